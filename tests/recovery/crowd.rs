//! Many queue pairs share a host that is slow: whoever waits for its turn, or behind others in a queue, is late and not
//! lost. Tests decisions 7 and 26 of `docs/protocol.md`.

use spindrift::endpoint::{CqId, EndpointConfig, Event, QpInit};
use spindrift::memory::{Access, Region};
use spindrift::path::{EvState, PathConfig};
use spindrift::work::{RemoteAddr, SendOp, SendWr, Sge};

use crate::flow::{TARGET, WRITER};
use crate::support::link::Link;
use crate::support::net::{Net, ports};
use crate::support::pair::{self, Patience};

const PAIRS: usize = 64;
const PLANES: u8 = 2;
const IOVA: u64 = 0x1000;
const LEN: u32 = 1 << 20;
/// Half a gigabyte per second on each plane: 64 MiB take 64 ms, and a round of turns 8 ms.
const NS_PER_KIB: u64 = 2_000;
const IDEAL_NS: u64 = PAIRS as u64 * LEN as u64 / 1024 * NS_PER_KIB / PLANES as u64;

struct Outcome {
    took_ns: u64,
    sent: u64,
    /// Packets sent more than once, tail probes included.
    again: u64,
    bad: usize,
}

/// Every queue pair writes a mebibyte, all at once. The ports of the writer queue up to `queue_ns`.
fn crowd(seed: u64, queue_ns: u64, patience: Patience) -> Outcome {
    let mut net = Net::new(seed, vec![Link::clean(5_000); PLANES.into()]);
    net.max_steps = 100_000_000;
    for node in [WRITER, TARGET] {
        net.add(EndpointConfig {
            seed: (seed + node as u64).into(),
            ..EndpointConfig::new(ports(true, node, PLANES, 4300))
        });
    }
    (net.nodes[WRITER].ns_per_kib, net.nodes[WRITER].queue_ns) = (NS_PER_KIB, queue_ns);
    let pds = [WRITER, TARGET].map(|node| net.endpoint(node).alloc_pd());
    let keys = [WRITER, TARGET].map(|node| {
        let region = Region::alloc_at(LEN as usize, IOVA).unwrap();
        net.endpoint(node).register(pds[node], region, Access::REMOTE_WRITE).unwrap()
    });
    let pairs: Vec<_> = (0..PAIRS)
        .map(|_| {
            let ends = [WRITER, TARGET].map(|node| {
                let path = PathConfig { active: 16, backup: 8, ..PathConfig::new(PLANES) };
                pair::create(&mut net, node, QpInit { path, ..QpInit::new(pds[node], CqId(0), CqId(1)) })
            });
            pair::connect(&mut net, ends[0], ends[1], patience);
            ends[WRITER].qpn
        })
        .collect();
    let start = net.now;
    for &qpn in &pairs {
        let wr = SendWr {
            wr_id: 0,
            op: SendOp::Write,
            local: Sge { addr: IOVA, len: LEN, lkey: keys[WRITER].lkey },
            remote: RemoteAddr { addr: IOVA, rkey: keys[TARGET].rkey },
            signaled: true,
            fence: false,
        };
        net.endpoint(WRITER).post_send(start, qpn, wr).unwrap();
    }
    net.pump(WRITER);
    let mut completed = 0;
    let done = net.run_until(|net| {
        for event in net.take_events(WRITER) {
            if let Event::Completion { wc, .. } = event {
                assert!(wc.status.is_success(), "{wc:?}");
                completed += 1;
            }
        }
        completed == PAIRS
    });
    assert!(done, "{completed} of {PAIRS}: {}", net.why_stopped());
    let took_ns = net.now.since(start);
    let counters = net.endpoint(WRITER).counters().clone();
    let bad = pairs
        .iter()
        .flat_map(|&qpn| net.endpoint(WRITER).ev_states(qpn).unwrap().collect::<Vec<_>>())
        .filter(|ev| ev.state == EvState::AssumedBad)
        .count();
    Outcome { took_ns, sent: counters.tx_data, again: counters.tx_retransmits + counters.tx_tail_probes, bad }
}

/// A queue pair's turn comes every 8 ms; the retransmission timer of half of these runs is much shorter.
#[test]
fn whoever_waits_for_its_turn_is_not_lost() {
    for timeout in [14, 10] {
        let outcome = crowd(1, 100_000, Patience { timeout, linear: 7, exponential: 9 });
        assert!(outcome.again * 25 <= outcome.sent, "{} of {} again", outcome.again, outcome.sent);
        assert_eq!(outcome.bad, 0);
        // Headers take 2 %.
        assert!(outcome.took_ns * 100 <= IDEAL_NS * 107, "{} ns, at best {IDEAL_NS}", outcome.took_ns);
    }
}

/// Packets wait in the port for longer than the retransmission timer: the way is slow, and nothing is lost.
#[test]
fn a_queue_longer_than_the_timer_is_no_loss() {
    // A timer of 1 ms expires eight times before it starts to double. Each time costs a packet and tail probes, and not
    // a window.
    for (timeout, percent) in [(14, 3), (10, 20)] {
        let outcome = crowd(2, 30_000_000, Patience { timeout, linear: 7, exponential: 9 });
        assert!(outcome.again * 100 <= outcome.sent * percent, "{} of {} again", outcome.again, outcome.sent);
        assert_eq!(outcome.bad, 0);
        let most = IDEAL_NS * (103 + percent) / 100;
        assert!(outcome.took_ns <= most, "{} ns, at best {IDEAL_NS}", outcome.took_ns);
    }
}
