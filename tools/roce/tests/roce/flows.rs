//! What a flow tells whoever uses it. Packets are carried by hand.

use std::sync::Arc;

use spindrift::time::Time;
use spindrift_fabric::{FlowEvent, Free, Message, Messenger as _, Packet, Transport as _};
use spindrift_roce::{RoceHost, RoceSpec};

use crate::support::{clos, nic};

fn pair() -> (RoceHost, RoceHost, u32) {
    let fabric = clos(1, 2, 100, None, None).fabric().unwrap();
    let spec = Arc::new(RoceSpec { depth: 4, ..nic(100, None) });
    let [mut one, mut other] = [0, 1].map(|host| RoceHost::new(&spec, &fabric, host, 7).unwrap());
    // A second one, so that numbers of flows and of queue pairs count.
    RoceHost::connect(Time::ZERO, &mut one, &mut other).unwrap();
    let [flow, _] = RoceHost::connect(Time::ZERO, &mut one, &mut other).unwrap();
    (one, other, flow)
}

/// Everything that one sends now comes to the other.
fn carry(from: &mut RoceHost, to: &mut RoceHost) -> usize {
    let (mut packets, mut out) = (0, Packet::default());
    while from.transmit(Time(1), Free::same(1), &mut out) {
        to.receive(Time(2), 0, &out);
        packets += 1;
    }
    packets
}

fn events(host: &mut RoceHost) -> Vec<FlowEvent> {
    core::iter::from_fn(|| host.poll()).collect()
}

#[test]
fn messages_come_and_complete_with_their_tags() {
    let (mut one, mut other, flow) = pair();
    for (tag, len, notify) in [(8, 3 * 4_096, true), (u32::MAX, 1, false), (7, 10, true)] {
        assert!(one.post(Time(0), flow, Message { tag, len, notify }));
    }
    assert_eq!(carry(&mut one, &mut other), 5);
    assert_eq!(events(&mut other), [8, 7].map(|tag| FlowEvent::Received { flow, tag }));
    assert_eq!(events(&mut one), [], "it has not heard");
    assert!(carry(&mut other, &mut one) > 0);
    assert_eq!(events(&mut one), [8, u32::MAX, 7].map(|tag| FlowEvent::Sent { flow, tag }));
}

#[test]
fn a_flow_holds_so_many_messages() {
    let (mut one, mut other, flow) = pair();
    let message = Message { tag: 0, len: 1, notify: true };
    let posted: Vec<_> = (0..6).map(|_| one.post(Time(0), flow, message)).collect();
    assert_eq!(posted, [true, true, true, true, false, false]);
    assert!(one.post(Time(0), 0, message), "another flow has room of its own");
    carry(&mut one, &mut other);
    carry(&mut other, &mut one);
    assert_eq!(events(&mut one).len(), 5);
    assert!(one.post(Time(0), flow, message), "four are complete");
    assert!(!one.post(Time(0), 5, message), "there is no such flow");
}
