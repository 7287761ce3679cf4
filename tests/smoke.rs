//! Two endpoints joined by a perfect wire: the shortest story the transport can tell.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

#[path = "../benches/common/mod.rs"]
mod common;

use common::Pair;
use spindrift::endpoint::Event;
use spindrift::work::{RecvWr, SendOp, SendWr, WcStatus};

#[test]
fn bytes_and_an_immediate_arrive() {
    let mut pair = Pair::new(1024, true, 100_000);
    let pattern: Vec<u8> = (0..100_000_u32).map(|i| (i * 7 / 3) as u8).collect();
    pair.a.region.write_at(0, &pattern).unwrap();
    pair.b.endpoint.post_recv(pair.qb, RecvWr { wr_id: 77 }).unwrap();
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
