//! A message over several queue pairs: complete when all parts are, and messages in order. Packets are carried by hand.

use std::sync::Arc;

use spindrift::time::Time;
use spindrift_fabric::{FlowEvent, Free, Message, Messenger as _, Packet, Transport as _};
use spindrift_roce::{RoceHost, RoceSpec};

use crate::support::{clos, nic};

const QPS: u32 = 3;

fn pair() -> (RoceHost, RoceHost, u32) {
    let fabric = clos(1, 2, 100, None, None).fabric().unwrap();
    let spec = Arc::new(RoceSpec { qps: QPS, depth: 4, ..nic(100, None) });
    let [mut one, mut other] = [0, 1].map(|host| RoceHost::new(&spec, &fabric, host, 7).unwrap());
    let [flow, _] = RoceHost::connect(Time::ZERO, &mut one, &mut other).unwrap();
    (one, other, flow)
}

/// The packets that a host sends now, each with the number of its queue pair at the receiver, from 0 on.
fn sent(host: &mut RoceHost) -> Vec<(u32, Packet)> {
    let mut packets = Vec::new();
    let mut out = Packet::default();
    while host.transmit(Time(1), Free::same(1), &mut out) {
        let qpn = u32::from_be_bytes(out.head()[66..70].try_into().unwrap()) & 0xff_ffff;
        packets.push((qpn - 2, out.clone()));
    }
    packets
}

fn events(host: &mut RoceHost) -> Vec<FlowEvent> {
    core::iter::from_fn(|| host.poll()).collect()
}

const fn message(tag: u32, len: u32) -> Message {
    Message { tag, len, notify: true }
}

#[test]
fn a_message_is_there_when_all_its_parts_are() {
    for first in 0..QPS {
        parts_arrive(first);
    }
}

/// The parts on one queue pair after the other, from `first` on.
fn parts_arrive(first: u32) {
    let (mut one, mut other, flow) = pair();
    assert!(one.post(Time(0), flow, message(8, 3 * 4_096)));
    assert!(one.post(Time(0), flow, message(9, 100)));
    let packets = sent(&mut one);
    // Each has a packet of each message; two of the second's have no bytes.
    assert_eq!(packets.len(), 6);
    for wanted in 0..QPS {
        assert_eq!(events(&mut other), [], "{wanted}");
        for (_, packet) in packets.iter().filter(|&&(qp, _)| qp == (wanted + first) % QPS) {
            other.receive(Time(2), 0, packet);
        }
    }
    let received = [8, 9].map(|tag| FlowEvent::Received { flow: 0, tag });
    assert_eq!(events(&mut other), received);
    let acks = sent(&mut other);
    assert_eq!(acks.len(), QPS as usize);
    for (_, ack) in &acks {
        assert_eq!(events(&mut one), [], "a queue pair has not heard");
        one.receive(Time(3), 0, ack);
    }
    assert_eq!(events(&mut one), [8, 9].map(|tag| FlowEvent::Sent { flow, tag }));
}

/// A short message is complete before a long one that was posted first, and waits for it.
#[test]
fn messages_complete_in_order() {
    let (mut one, mut other, flow) = pair();
    // The second has its only part on the first queue pair, which has one packet of the first message.
    for (tag, len) in [(1, 3 * 4_096), (2, 10), (3, 10)] {
        assert!(one.post(Time(0), flow, Message { tag, len, notify: false }));
    }
    let packets = sent(&mut one);
    let [early, late]: [Vec<_>; 2] =
        [true, false].map(|first| packets.iter().filter(move |(qp, _)| (*qp == 0) == first).collect());
    assert_eq!((early.len(), late.len()), (3, 2));
    for (batch, done) in [(early, &[][..]), (late, &[1, 2, 3])] {
        for (_, packet) in batch {
            other.receive(Time(2), 0, packet);
        }
        for (_, ack) in sent(&mut other) {
            one.receive(Time(3), 0, &ack);
        }
        let want: Vec<_> = done.iter().map(|&tag| FlowEvent::Sent { flow, tag }).collect();
        assert_eq!(events(&mut one), want);
        assert_eq!(events(&mut other), [], "none notifies");
    }
}

#[test]
fn a_flow_holds_so_many_messages() {
    let (mut one, _, flow) = pair();
    let posted: Vec<_> = (0..6).map(|tag| one.post(Time(0), flow, message(tag, 1))).collect();
    assert_eq!(posted, [true, true, true, true, false, false]);
    assert!(!one.post(Time(0), 5, message(0, 1)), "there is no such flow");
}
