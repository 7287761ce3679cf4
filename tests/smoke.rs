//! Two endpoints joined by a perfect wire: the shortest stories the transport can tell.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

#[path = "../benches/common/mod.rs"]
mod common;

use common::{Pair, Side};
use spindrift::endpoint::Event;
use spindrift::time::Time;
use spindrift::work::{RecvWr, RemoteAddr, SendOp, SendWr, Sge, WcStatus};

#[test]
fn bytes_and_an_immediate_arrive() {
    let mut pair = Pair::new(1024, true, 100_000);
    let pattern: Vec<u8> = (0..100_000_u32).map(|i| (i * 7 / 3) as u8).collect();
    pair.a.region.write_at(0, &pattern).unwrap();
    pair.b.endpoint.post_recv(pair.qb, RecvWr::empty(77)).unwrap();
    let wr = SendWr { op: SendOp::WriteWithImm(0xabcd), ..pair.write(100_000) };
    pair.a.endpoint.post_send(pair.now, pair.qa, wr).unwrap();
    pair.settle(usize::MAX);
    let counters = pair.b.endpoint.counters();
    assert_eq!(pair.b.region.first_difference(0, &pattern).unwrap(), None, "{counters:?}");
    let received: Vec<_> = std::iter::from_fn(|| pair.b.endpoint.poll_event()).collect();
    assert!(
        matches!(received[..], [Event::Completion { wc, .. }] if wc.imm == Some(0xabcd) && wc.byte_len == 100_000 && wc.wr_id == 77),
        "{received:?}"
    );
    let sent: Vec<_> = std::iter::from_fn(|| pair.a.endpoint.poll_event()).collect();
    assert!(
        matches!(sent[..], [Event::Completion { wc, .. }, Event::SendRetired { count: 1, .. }] if wc.status == WcStatus::Success),
        "{sent:?}"
    );
    let counters = pair.a.endpoint.counters();
    assert_eq!(counters.tx_retransmits + counters.tx_tail_probes, 0);
}

/// Planes that 64 KiB from a new queue pair of `a` to `b` take once `a` has asked about those in doubt; nothing passes on
/// the plane `down`.
fn planes_used(a: &mut Side, b: &mut Side, now: Time, down: Option<u8>) -> Vec<u8> {
    let (qa, qb) = (a.create_qp(16), b.create_qp(16));
    a.connect_at(now, qa, b, qb, 1024);
    b.connect_at(now, qb, a, qa, 1024);
    let (mut requests, mut answers) = (Vec::new(), Vec::new());
    a.endpoint.on_timeout(now);
    a.transmit(now, usize::MAX, &mut requests);
    requests.retain(|frame| Some(frame.port) != down);
    b.receive(now + 1_000, &requests);
    b.transmit(now + 1_000, usize::MAX, &mut answers);
    a.receive(now + 2_000, &answers);
    let now = now + 2_000;
    let local = Sge { addr: a.region.iova(), len: 65_536, lkey: a.key.lkey };
    let remote = RemoteAddr { addr: b.region.iova(), rkey: b.key.rkey };
    let wr = SendWr { wr_id: 0, op: SendOp::Write, local, remote, signaled: false, fence: false };
    a.endpoint.post_send(now, qa, wr).unwrap();
    let mut frames = Vec::new();
    a.transmit(now, usize::MAX, &mut frames);
    let mut planes: Vec<u8> = frames.iter().map(|frame| frame.port).collect();
    planes.sort_unstable();
    planes.dedup();
    planes
}

/// Lets `a` and `b` speak for `ns`, with nothing passing on the plane `down`.
fn speak(pair: &mut Pair, ns: u64, down: u8) {
    let end = pair.now + ns;
    while pair.now < end {
        let (mut out, mut back) = (Vec::new(), Vec::new());
        pair.a.endpoint.on_timeout(pair.now);
        pair.b.endpoint.on_timeout(pair.now);
        pair.a.transmit(pair.now, usize::MAX, &mut out);
        pair.b.transmit(pair.now, usize::MAX, &mut back);
        out.retain(|frame| frame.port != down);
        back.retain(|frame| frame.port != down);
        pair.now = pair.now + 1_000;
        pair.b.receive(pair.now, &out);
        pair.a.receive(pair.now, &back);
        if out.is_empty() && back.is_empty() {
            let next = pair.a.endpoint.next_timeout().min(pair.b.endpoint.next_timeout());
            pair.now = pair.now.max(next.min(end));
        }
    }
}

#[test]
fn a_peer_that_started_anew_gets_all_its_planes_back() {
    let mut pair = Pair::new(1024, true, 1 << 17);
    pair.b.endpoint.port_link(pair.now, 2, false);
    speak(&mut pair, 5_000_000, 2);
    assert_eq!(
        planes_used(&mut pair.a, &mut pair.b, pair.now, Some(2)),
        [0, 1, 3],
        "it said so a moment ago"
    );
    speak(&mut pair, 60_000_000_000, 2);
    // The next probe is seconds away, but a connection is a reason to ask at once.
    assert!(pair.a.endpoint.next_timeout() > pair.now + 100_000_000);
    let mut anew = Side::new(2, true, 1 << 17, 4096);
    assert_eq!(planes_used(&mut pair.a, &mut anew, pair.now, None), [0, 1, 2, 3]);
}
