//! The table of decision 42: each pair of operations, over a network that loses and reorders packets.

use spindrift::endpoint::{CqId, EndpointConfig, Event, QpInit};
use spindrift::memory::{Access, MrKey, PdId, Region};
use spindrift::path::PathConfig;
use spindrift::time::Time;
use spindrift::work::{RecvWr, RemoteAddr, SendOp, SendWr, Sge, WcOpcode, WcStatus};

use std::sync::Arc;

use super::support::link::Link;
use super::support::net::{Net, ports};
use super::support::pair::{self, End, Patience};

const IOVA: u64 = 0x7000_0000;
const OLD: u64 = 0x0101_0101_0101_0101;
const NEW: u64 = 0x0202_0202_0202_0202;
/// Bytes of a long message, in several packets.
const LONG: u32 = 2000;

struct World {
    net: Net,
    from: End,
    to: End,
    /// The requester's memory: what it sends at 0, what it fetches at 4096.
    ours: (Arc<Region>, MrKey),
    theirs: (Arc<Region>, MrKey),
    /// Completions of the requester, and of the target's receives, in the order in which they came.
    seen: Vec<WcOpcode>,
    fetched_at_receive: Option<u64>,
    target_pd: PdId,
    invalidated: Option<u32>,
}

impl World {
    fn new(seed: u64) -> Self {
        let link =
            Link { delay_ns: 5_000, jitter_ns: 4_000, spread_ns: 9_000, loss: 2_500, ..Link::default() };
        let mut net = Net::new(seed, vec![link; 2]);
        net.heal_at = Time(5_000_000);
        net.max_steps = 200_000;
        let mut ends = Vec::new();
        let (mut memories, mut pds) = (Vec::new(), Vec::new());
        for node in 0..2 {
            net.add(EndpointConfig {
                seed: (seed ^ node).into(),
                ..EndpointConfig::new(ports(true, node as usize, 2, 4300))
            });
            let endpoint = net.endpoint(node as usize);
            let pd = endpoint.alloc_pd();
            let region = Region::alloc_at(8192, IOVA).unwrap();
            let all =
                Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
            let key = endpoint.register(pd, Arc::clone(&region), all).unwrap();
            let path = PathConfig { active: 8, ..PathConfig::new(2) };
            let init = QpInit { path, max_mtu: 256, ..QpInit::new(pd, CqId(0), CqId(1)) };
            ends.push(pair::create(&mut net, node as usize, init));
            memories.push((region, key));
            pds.push(pd);
        }
        pair::connect(&mut net, ends[0], ends[1], Patience::default());
        let [ours, theirs]: [_; 2] = memories.try_into().unwrap();
        ours.0.fill(0, LONG as usize, 2).unwrap();
        theirs.0.fill(0, LONG as usize, 1).unwrap();
        let (from, to) = (ends[0], ends[1]);
        net.endpoint(1)
            .post_recv(
                to.qpn,
                RecvWr { wr_id: 0, local: Sge { addr: IOVA + 4096, len: 4096, lkey: theirs.1.lkey } },
            )
            .unwrap();
        Self {
            net,
            from,
            to,
            ours,
            theirs,
            seen: Vec::new(),
            fetched_at_receive: None,
            target_pd: pds[1],
            invalidated: None,
        }
    }

    fn request(&self, what: What, fence: bool) -> SendWr {
        let sge = |at, len| Sge { addr: IOVA + at, len, lkey: self.ours.1.lkey };
        let (op, local) = match what {
            What::Send => (SendOp::Send, sge(0, LONG)),
            What::Write => (SendOp::Write, sge(0, LONG)),
            What::Read => (SendOp::Read, sge(4096, LONG)),
            // Changes the old value, and finds the new one if it comes after a write.
            What::Atomic => (SendOp::FetchAdd(NEW - OLD), sge(8184, 8)),
        };
        SendWr {
            wr_id: 1,
            op,
            local,
            remote: RemoteAddr { addr: IOVA, rkey: self.theirs.1.rkey },
            signaled: true,
            fence,
        }
    }

    fn word(region: &Region, at: usize) -> u64 {
        let mut bytes = [0; 8];
        region.read_at(at, &mut bytes).unwrap();
        u64::from_ne_bytes(bytes)
    }

    /// Posts both and runs until both are complete or failed, and what follows has happened.
    fn run_until_end(&mut self, first: SendWr, second: SendWr) -> Vec<(WcOpcode, WcStatus)> {
        for wr in [first, second] {
            let now = self.net.now;
            self.net.endpoint(0).post_send(now, self.from.qpn, wr).unwrap();
        }
        self.net.pump(0);
        let mut seen = Vec::new();
        while seen.len() < 3 {
            assert!(self.net.step(), "stalls: {}", self.net.why_stopped());
            for node in 0..2 {
                for event in self.net.take_events(node) {
                    let Event::Completion { wc, .. } = event else { continue };
                    self.invalidated = self.invalidated.or(wc.invalidated);
                    seen.push((wc.opcode, wc.status));
                }
            }
        }
        seen
    }

    /// Posts both and runs until both are complete; `watch` is called after each step.
    fn run(&mut self, first: SendWr, second: SendWr, mut watch: impl FnMut(&Self)) {
        for wr in [first, second] {
            let now = self.net.now;
            self.net.endpoint(0).post_send(now, self.from.qpn, wr).unwrap();
        }
        self.net.pump(0);
        let receives = usize::from(first.op.takes_receive() || second.op.takes_receive());
        while self.seen.len() < 2 + receives {
            assert!(self.net.step(), "stalls: {}", self.net.why_stopped());
            for node in 0..2 {
                for event in self.net.take_events(node) {
                    let Event::Completion { wc, .. } = event else { continue };
                    assert_eq!(wc.status, WcStatus::Success);
                    if wc.opcode == WcOpcode::Recv {
                        assert_eq!(wc.qpn, self.to.qpn);
                        let fetched = if first.op.is_atomic() { 8184 } else { 4096 };
                        self.fetched_at_receive = Some(Self::word(&self.ours.0, fetched));
                    }
                    self.seen.push(wc.opcode);
                }
            }
            watch(self);
        }
        let sends: Vec<_> = self.seen.iter().filter(|opcode| !opcode.is_receive()).copied().collect();
        assert_eq!(sends, [first.op.wc_opcode(), second.op.wc_opcode()], "completions are in order");
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Send,
    Write,
    Read,
    Atomic,
}

/// Runs a pair with many seeds. `check` gets the world at the end; it says which of two outcomes it saw, if either is
/// allowed. Returns whether the second ever overtook the first.
fn pairs(
    first: What,
    second: What,
    fence: bool,
    watch: impl Fn(&World),
    check: impl Fn(&World) -> bool,
) -> bool {
    let mut overtaken = false;
    for seed in 0..60 {
        let mut world = World::new(seed);
        let mut requests = (world.request(first, false), world.request(second, fence));
        if first == second {
            // Responses are placed in any order, so each has a place of its own.
            requests.0.local.addr -= 8;
        }
        world.run(requests.0, requests.1, &watch);
        overtaken |= check(&world);
    }
    overtaken
}

fn read(world: &World) -> u64 {
    // The last bytes, which come in the last packet.
    World::word(&world.ours.0, 4096 + LONG as usize - 8)
}

fn first_read(world: &World) -> u64 {
    World::word(&world.ours.0, 4096)
}

fn found(world: &World) -> u64 {
    World::word(&world.ours.0, 8184)
}

fn target(world: &World) -> u64 {
    World::word(&world.theirs.0, 0)
}

fn nothing(_: &World) {}

/// Decision 42, the row of SEND. A SEND changes nothing that the others see, so the order is that of its completion: it
/// comes before the effect of a request that is carried out in its turn.
#[test]
fn a_send_is_complete_before_what_follows_it_is_carried_out() {
    let received = |world: &World| world.seen.contains(&WcOpcode::Recv);
    let before = |world: &World| assert!(target(world) == OLD || received(world), "the effect came first");
    assert!(!pairs(What::Send, What::Atomic, false, before, |_| false));
    let before =
        |world: &World| assert!(first_read(world) != OLD || received(world), "the response came first");
    assert!(!pairs(What::Send, What::Read, false, before, |_| false));
    assert!(!pairs(What::Send, What::Write, false, nothing, |_| false));
}

/// Decision 42, the row of WRITE.
#[test]
fn a_write_is_seen_by_what_follows_it() {
    assert!(!pairs(What::Write, What::Read, false, nothing, |world| {
        assert_eq!((first_read(world), read(world)), (NEW, NEW));
        false
    }));
    assert!(!pairs(What::Write, What::Atomic, false, nothing, |world| {
        assert_eq!((found(world), target(world)), (NEW, NEW + (NEW - OLD)));
        false
    }));
    // The bytes are complete when the receive of the SEND is.
    let whole = |world: &World| {
        let last = World::word(&world.theirs.0, LONG as usize - 8);
        assert!(!world.seen.contains(&WcOpcode::Recv) || (target(world), last) == (NEW, NEW));
    };
    assert!(!pairs(What::Write, What::Send, false, whole, |_| false));
}

/// Decision 42, the row of READ: with a fence it sees nothing of what follows, and without one it may.
#[test]
fn a_read_sees_nothing_of_what_waits_for_it() {
    for fence in [true, false] {
        let overtaken = pairs(What::Read, What::Write, fence, nothing, |world| {
            let seen = (first_read(world), read(world));
            assert!(seen == (OLD, OLD) || !fence, "{seen:x?}");
            seen != (OLD, OLD)
        });
        assert_eq!(overtaken, !fence, "write, fence {fence}");
        let overtaken = pairs(What::Read, What::Send, fence, nothing, |world| {
            let fetched = world.fetched_at_receive;
            assert!(fetched == Some(OLD) || !fence, "{fetched:x?}");
            fetched != Some(OLD)
        });
        assert_eq!(overtaken, !fence, "send, fence {fence}");
    }
    let overtaken = pairs(What::Read, What::Atomic, true, nothing, |world| {
        assert_eq!((first_read(world), found(world)), (OLD, OLD));
        false
    });
    assert!(!overtaken);
}

/// Decision 42, the row of atomic operations.
#[test]
fn an_atomic_operation_is_seen_by_what_is_carried_out_after_it() {
    pairs(What::Atomic, What::Read, false, nothing, |world| {
        assert_eq!((found(world), first_read(world)), (OLD, NEW));
        false
    });
    pairs(What::Atomic, What::Atomic, false, nothing, |world| {
        assert_eq!((found(world), target(world)), (NEW, NEW + (NEW - OLD)));
        false
    });
    for fence in [true, false] {
        let overtaken = pairs(What::Atomic, What::Write, fence, nothing, |world| {
            let (found, left) = (found(world), target(world));
            assert!((found, left) == (OLD, NEW) || !fence, "{found:x} {left:x}");
            found != OLD
        });
        assert_eq!(overtaken, !fence, "write, fence {fence}");
        let overtaken = pairs(What::Atomic, What::Send, fence, nothing, |world| {
            assert!(world.fetched_at_receive == Some(OLD) || !fence);
            world.fetched_at_receive != Some(OLD)
        });
        assert_eq!(overtaken, !fence, "send, fence {fence}");
    }
}

/// Decision 43.
#[test]
fn a_send_ends_a_registration_that_permits_it_and_no_other() {
    for (access, permits) in [(Access::REMOTE_INVALIDATE, true), (Access::REMOTE_WRITE, false)] {
        for seed in 0..20 {
            let mut world = World::new(seed);
            let region = Region::alloc_at(64, IOVA).unwrap();
            let (pd, endpoint) = (world.target_pd, world.net.endpoint(1));
            let key = endpoint.register(pd, region, access).unwrap();
            let first = world.request(What::Write, false);
            let second =
                SendWr { op: SendOp::SendWithInvalidate(key.rkey), ..world.request(What::Send, false) };
            let outcome = world.run_until_end(first, second);
            if permits {
                assert!(outcome.iter().all(|(_, status)| status.is_success()), "{outcome:?}");
                assert_eq!((outcome.len(), world.invalidated), (3, Some(key.rkey)));
            } else {
                let expected =
                    [(WcOpcode::RdmaWrite, WcStatus::Success), (WcOpcode::Send, WcStatus::RemoteAccessError)];
                let sends: Vec<_> = outcome.into_iter().filter(|(opcode, _)| !opcode.is_receive()).collect();
                assert_eq!(sends, expected);
            }
            let left = world.net.endpoint(1).memory().check_remote(key.rkey, pd, IOVA, 0, access);
            assert_eq!(left.is_ok(), !permits, "{access:?}");
        }
    }
}
