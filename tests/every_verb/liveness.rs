//! What could make two queue pairs wait for each other: fences, limits and receivers that are not ready, while both sides
//! read.
//!
//! Tests decisions 39, 40 and 42 of `docs/protocol.md`.

use std::collections::VecDeque;
use std::sync::Arc;

use spindrift::congestion::CcConfig;
use spindrift::endpoint::{CqId, EndpointConfig, Event, QpInit};
use spindrift::memory::{Access, MrKey, Region};
use spindrift::path::PathConfig;
use spindrift::time::Time;
use spindrift::work::{RecvWr, RemoteAddr, SendOp, SendWr, Sge, Wc, WcStatus};

use super::support::link::Link;
use super::support::net::{Net, ports};
use super::support::pair::{self, End, Patience};

const IOVA: u64 = 0x7000_0000;
const MTU: u32 = 256;
/// Bytes of each region: what is sent and read, and behind it where reads and SENDs go.
const HALF: u32 = 512 * 1024;

/// One side, and what it has posted.
struct Side {
    end: End,
    region: Arc<Region>,
    key: MrKey,
    posted: u64,
    done: u64,
    received: u64,
}

struct Pair {
    net: Net,
    sides: [Side; 2],
    /// Work requests that wait for room in the send queue.
    queued: [VecDeque<(SendOp, u32, bool)>; 2],
}

impl Pair {
    fn new(seed: u64, max_rd_atomic: u8, loss: u32) -> Self {
        let link = Link { delay_ns: 5_000, jitter_ns: 4_000, spread_ns: 9_000, loss, ..Link::default() };
        let mut net = Net::new(seed, vec![link; 2]);
        net.heal_at = Time(20_000_000);
        net.max_steps = 2_000_000;
        let mut sides = Vec::new();
        for node in 0..2 {
            net.add(EndpointConfig {
                seed: (seed ^ node as u64).into(),
                ..EndpointConfig::new(ports(true, node, 2, 4300))
            });
            let endpoint = net.endpoint(node);
            let pd = endpoint.alloc_pd();
            let region = Region::alloc_at(2 * HALF as usize, IOVA).unwrap();
            let all =
                Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
            let key = endpoint.register(pd, Arc::clone(&region), all).unwrap();
            region.fill(0, HALF as usize, 0x41 + node as u8).unwrap();
            let path = PathConfig { active: 8, ..PathConfig::new(2) };
            // A queue pair that shares its window waits in a queue for it.
            let cc = match seed % 2 {
                0 => CcConfig::none(),
                _ => CcConfig { shared: true, ..CcConfig::new(100_000_000_000, 20_000, MTU) },
            };
            let init = QpInit {
                path,
                cc,
                max_mtu: MTU,
                max_dest_rd_atomic: max_rd_atomic,
                ..QpInit::new(pd, CqId(0), CqId(1))
            };
            let end = pair::create(&mut net, node, init);
            sides.push(Side { end, region, key, posted: 0, done: 0, received: 0 });
        }
        pair::connect(&mut net, sides[0].end, sides[1].end, Patience::default());
        let sides = sides.try_into().ok().unwrap();
        Self { net, sides, queued: Default::default() }
    }

    fn request(&self, node: usize, (op, len, fence): (SendOp, u32, bool)) -> SendWr {
        let (ours, theirs) = (&self.sides[node], &self.sides[1 - node]);
        // Atomic operations at the end, where nothing else is.
        let (local, remote) = match op {
            SendOp::FetchAdd(_) => (2 * HALF - 8, 2 * HALF - 16),
            SendOp::Read => (HALF, 0),
            _ => (0, HALF),
        };
        SendWr {
            wr_id: ours.posted,
            op,
            local: Sge { addr: IOVA + u64::from(local), len, lkey: ours.key.lkey },
            remote: RemoteAddr { addr: IOVA + u64::from(remote), rkey: theirs.key.rkey },
            signaled: true,
            fence,
        }
    }

    fn post(&mut self, node: usize, op: SendOp, len: u32, fence: bool) {
        self.queued[node].push_back((op, len, fence));
    }

    fn post_receives(&mut self, node: usize, count: usize) {
        let Side { end, key, .. } = self.sides[node];
        for _ in 0..count {
            let local = Sge { addr: IOVA + u64::from(HALF), len: HALF - 16, lkey: key.lkey };
            self.net.endpoint(node).post_recv(end.qpn, RecvWr { wr_id: 0, local }).unwrap();
        }
    }

    /// Posts as many of the queued requests as there is room for.
    fn refill(&mut self, node: usize) {
        while let Some(&next) = self.queued[node].front() {
            let (wr, now, qpn) = (self.request(node, next), self.net.now, self.sides[node].end.qpn);
            if self.net.endpoint(node).post_send(now, qpn, wr).is_err() {
                break;
            }
            self.queued[node].pop_front();
            self.sides[node].posted += 1;
        }
        self.net.pump(node);
    }

    fn note(&mut self, node: usize, wc: &Wc) {
        assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
        let side = &mut self.sides[node];
        if wc.opcode.is_receive() {
            side.received += 1;
            return;
        }
        assert_eq!(wc.wr_id, side.done, "in order");
        side.done += 1;
    }

    /// Runs until every request is complete. `react` is called after each step.
    #[track_caller]
    fn finish(&mut self, what: &str, mut react: impl FnMut(&mut Self)) {
        let wanted = [0, 1].map(|node| self.queued[node].len() as u64 + self.sides[node].posted);
        loop {
            for node in 0..2 {
                self.refill(node);
                for event in self.net.take_events(node) {
                    match event {
                        Event::Completion { wc, .. } => self.note(node, &wc),
                        Event::QpFailed { reason, .. } => panic!("{what}: {reason:?}"),
                        _ => {}
                    }
                }
            }
            if [0, 1].map(|node| self.sides[node].done) == wanted {
                break;
            }
            react(self);
            let now = self.net.now;
            assert!(
                now < Time(30_000_000_000) && self.net.step(),
                "{what} stalls: {}",
                self.net.why_stopped()
            );
        }
        for node in 0..2 {
            let side = &self.sides[node];
            let mut first = [0];
            side.region.read_at(HALF as usize, &mut first).unwrap();
            assert!(matches!(first[0], 0 | 0x41 | 0x42), "{what}");
        }
    }
}

/// Seeds of each case.
const SEEDS: u64 = 6;

fn cases() -> impl Iterator<Item = (u64, u8, u32)> {
    let limits = [1, 2, 16];
    (0..SEEDS).flat_map(move |seed| {
        limits.into_iter().flat_map(move |limit| [0, 2_500].map(|loss| (seed, limit, loss)))
    })
}

/// Each side waits at fences for reads that the other side responds to behind fences of its own.
#[test]
fn fences_on_both_sides_at_once() {
    for (seed, limit, loss) in cases() {
        let mut pair = Pair::new(seed, limit, loss);
        for node in 0..2 {
            for n in 0..12 {
                pair.post(node, SendOp::Read, 100 + 700 * n, false);
                pair.post(node, SendOp::Write, 600, true);
                pair.post(node, SendOp::FetchAdd(1), 8, false);
                pair.post(node, SendOp::Read, 1, true);
            }
        }
        pair.finish(&format!("seed {seed}, limit {limit}, loss {loss}"), |_| {});
        for side in &pair.sides {
            let mut counter = [0; 8];
            side.region.read_at(2 * HALF as usize - 16, &mut counter).unwrap();
            assert_eq!(u64::from_ne_bytes(counter), 12);
        }
    }
}

/// Many requests with a limit of few, in both directions, with SENDs between them.
#[test]
fn a_limit_holds_back_a_long_queue() {
    for (seed, limit, loss) in cases() {
        let mut pair = Pair::new(seed, limit, loss);
        for node in 0..2 {
            pair.post_receives(node, 40);
            for n in 0..40 {
                for len in [3_000, 0, 1] {
                    pair.post(node, SendOp::Read, len, false);
                }
                pair.post(node, SendOp::Send, 10 * n, n % 3 == 0);
            }
        }
        pair.finish(&format!("seed {seed}, limit {limit}, loss {loss}"), |_| {});
        assert_eq!([0, 1].map(|node| pair.sides[node].received), [40, 40]);
    }
}

/// A side reads before it posts its receives. Its reads complete after the SEND of the other side that waits for one of
/// these, because a side's responses and requests complete in order. That SEND may have many packets, of which some have
/// not been sent.
#[test]
fn a_side_that_is_not_ready_reads() {
    const READS: u64 = 20;
    for packets in [1, 40, 1_500] {
        for (seed, limit, loss) in cases().filter(|(seed, limit, _)| *seed < 2 && *limit != 2) {
            for late in [false, true] {
                let mut pair = Pair::new(seed, limit, loss);
                let what = format!("{packets} packets, seed {seed}, limit {limit}, loss {loss}, late {late}");
                pair.post(0, SendOp::Send, packets * MTU, false);
                pair.post(0, SendOp::Read, 1, false);
                pair.post(0, SendOp::Send, 8, true);
                if late {
                    pair.refill(0);
                    pair.net.run_for(300_000);
                }
                for n in 0..READS {
                    pair.post(1, SendOp::Read, 2_000, late && n % 2 == 1);
                }
                let ready_at = pair.net.now.after(5_000_000);
                let mut posted = false;
                pair.finish(&what, |pair| {
                    let is_ready = pair.net.now >= ready_at;
                    if is_ready && !posted {
                        posted = true;
                        assert_eq!(pair.sides[1].received, 0, "{what}");
                        pair.post_receives(1, 2);
                    }
                    assert!(pair.net.now < ready_at.after(200_000_000), "{what}: slow");
                });
                assert_eq!(pair.sides[1].received, 2, "{what}");
            }
        }
    }
}

/// A SEND behind a fence has not begun, so a side can read and post its receive after that: the responses go before.
#[test]
fn a_side_is_ready_after_its_reads_if_the_send_waits() {
    for (seed, limit, loss) in cases().filter(|(_, limit, loss)| *limit == 16 && *loss == 0) {
        let mut pair = Pair::new(seed, limit, loss);
        let what = format!("seed {seed}");
        // The response takes longer than the reads of the other side.
        pair.post(0, SendOp::Read, 500_000, false);
        pair.post(0, SendOp::Send, 8, true);
        for _ in 0..3 {
            pair.post(1, SendOp::Read, 8, false);
        }
        let mut posted = false;
        pair.finish(&what, |pair| {
            if pair.sides[1].done == 3 && !posted {
                posted = true;
                pair.post_receives(1, 1);
            }
        });
        assert_eq!(pair.sides[1].received, 1, "{what}");
    }
}
