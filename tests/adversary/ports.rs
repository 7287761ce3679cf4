//! Ports that go down and up, and what the peer is told of it.
//!
//! Tests decisions 4 and 22 of `docs/protocol.md`.

use std::cell::RefCell;
use std::rc::Rc;

use spindrift::endpoint::{EndpointConfig, QpInit};
use spindrift::memory::Access;
use spindrift::time::Time;
use spindrift::wire::{EndpointOp, Packet};
use spindrift::work::{RemoteAddr, SendOp, SendWr, Sge};

use crate::bench::{Bench, Memory, PEER, VICTIM, config, envelope, init, region};
use crate::support::link::{Link, Outage};
use crate::support::net::{Net, Tap};
use crate::support::pair::{self, End, Patience};

/// Two endpoints with two planes, and a queue pair between them.
struct Planes {
    net: Net,
    ends: [End; 2],
    source: Memory,
    target: Memory,
    arrivals: Rc<RefCell<u64>>,
    posted: u64,
}

/// Counts port status updates that arrive.
struct Updates(Rc<RefCell<u64>>);

impl Tap for Updates {
    fn sent(&mut self, _at: Time, _node: usize, _packet: &Packet<'_>) {}

    fn arrived(&mut self, _at: Time, _node: usize, packet: &Packet<'_>) {
        if matches!(packet, Packet::EndpointRequest { erth, .. } if erth.op == EndpointOp::PortStatusUpdate) {
            *self.0.borrow_mut() += 1;
        }
    }
}

impl Planes {
    fn new(before_connecting: impl Fn(&mut Net)) -> Self {
        let mut net = Net::new(3, vec![Link::clean(5_000); 2]);
        for node in [VICTIM, PEER] {
            net.add(EndpointConfig { ..config(node) });
        }
        let arrivals = Rc::new(RefCell::new(0));
        net.tap = Some(Box::new(Updates(Rc::clone(&arrivals))));
        let pds = [VICTIM, PEER].map(|node| net.endpoint(node).alloc_pd());
        let source = region(&mut net, VICTIM, pds[VICTIM], (0x1000, 100_000), Access::LOCAL_READ);
        let target = region(&mut net, PEER, pds[PEER], (0x1000, 100_000), Access::REMOTE_WRITE);
        let ends = [VICTIM, PEER].map(|node| pair::create(&mut net, node, QpInit { ..init(pds[node]) }));
        before_connecting(&mut net);
        pair::connect(&mut net, ends[0], ends[1], Patience::default());
        Self { net, ends, source, target, arrivals, posted: 0 }
    }

    /// Sends a message and tells how many of its packets took each plane.
    fn send(&mut self) -> [usize; 2] {
        let now = self.net.now;
        self.posted += 1;
        let wr = SendWr {
            wr_id: self.posted,
            op: SendOp::Write,
            local: Sge { addr: 0x1000, len: 20_000, lkey: self.source.key.lkey },
            remote: RemoteAddr { addr: 0x1000, rkey: self.target.key.rkey },
            signaled: true,
            fence: false,
        };
        let before = self.net.data_by_port.clone();
        self.net.endpoint(VICTIM).post_send(now, self.ends[0].qpn, wr).unwrap();
        self.net.pump(VICTIM);
        self.net.run_until(|net| !crate::bench::completions(&net.take_events(VICTIM)).is_empty());
        [0, 1].map(|port| {
            let count = |all: &std::collections::BTreeMap<(usize, u8), usize>| {
                all.get(&(VICTIM, port)).copied().unwrap_or(0)
            };
            count(&self.net.data_by_port) - count(&before)
        })
    }
}

#[test]
fn a_peer_whose_port_is_down_gets_nothing_there_until_it_is_up() {
    let mut planes = Planes::new(|_| {});
    assert_eq!(planes.send().map(|count| count > 0), [true, true]);
    let now = planes.net.now;
    planes.net.schedule_link(now.after(1), PEER, 1, false);
    planes.net.run_for(50_000);
    assert_eq!(planes.send().map(|count| count > 0), [true, false]);
    planes.net.run_for(20_000_000);
    let now = planes.net.now;
    planes.net.schedule_link(now.after(1), PEER, 1, true);
    planes.net.run_for(50_000);
    assert_eq!(planes.send().map(|count| count > 0), [true, true]);
    planes.net.run_for(10_000_000_000);
    assert_eq!(*planes.arrivals.borrow(), 2, "an answered update is not repeated");
}

/// The answer to "down" comes after the port is up again, and must not stop "up" from being told.
#[test]
fn a_port_that_is_back_before_the_answer_is_used_again() {
    for up_after in [100, 4_000, 9_000, 11_000, 100_000] {
        for lost in [0, 1, 2] {
            let mut planes = Planes::new(|_| {});
            let now = planes.net.now;
            planes.net.schedule_link(now.after(1_000), PEER, 1, false);
            planes.net.schedule_link(now.after(1_000 + up_after), PEER, 1, true);
            if lost > 0 {
                // The first news of the return is lost, and some more.
                let from = now.after(1_000 + up_after);
                let to = from.after(lost * 20_000_000);
                let outage = |plane| Outage { from, to, plane, sender: Some(PEER), paths: 1 };
                planes.net.outages = vec![outage(0), outage(1)];
            }
            planes.net.run_for(100_000_000);
            assert_eq!(
                planes.send().map(|count| count > 0),
                [true, true],
                "up after {up_after} ns, lost {lost}"
            );
        }
    }
}

#[test]
fn a_port_that_is_down_at_connection_is_told_of() {
    let mut planes = Planes::new(|net| {
        let now = net.now;
        net.schedule_link(now, PEER, 0, false);
        net.step();
    });
    planes.net.run_for(100_000);
    assert_eq!(planes.send().map(|count| count > 0), [false, true]);
}

#[test]
fn all_ports_down_and_up_again() {
    let mut planes = Planes::new(|_| {});
    let now = planes.net.now;
    for port in [0, 1] {
        planes.net.schedule_link(now.after(1_000), VICTIM, port, false);
        planes.net.schedule_link(now.after(30_000_000), VICTIM, port, true);
    }
    planes.net.run_for(10_000);
    planes.send();
    assert!(planes.net.now >= now.after(30_000_000));
    assert_eq!(planes.send().map(|count| count > 0), [true, true]);
    assert_eq!(planes.net.sent_on_down_port, 0);
}

/// An answer that no plane can take is owed until one can.
#[test]
fn what_is_owed_while_every_port_is_down_is_told_afterwards() {
    let mut bench = Bench::new();
    let packet = Packet::Data { head: bench.write(), payload: &[7; 8], pad: &[] };
    bench.give_silently(0, &envelope().seal(&packet));
    bench.all_links(false);
    bench.net.run_for(1_000_000);
    assert_eq!(bench.answers(), [""; 0]);
    let now = bench.net.now;
    bench.net.endpoint(VICTIM).port_link(now, 1, true);
    bench.net.pump(VICTIM);
    let told = bench
        .answers()
        .into_iter()
        .filter(|answer| answer.starts_with("Sack cack") || answer.starts_with("Ack"));
    assert_eq!(told.collect::<Vec<_>>(), ["Sack cack fffffe bits 0", "Ack psn fffffe"]);
}
