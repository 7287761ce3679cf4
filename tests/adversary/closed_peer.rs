//! A peer that nobody can reach any more stops nobody else.

use spindrift::endpoint::{EndpointConfig, QpInit};
use spindrift::memory::Access;
use spindrift::time::Time;
use spindrift::work::{RemoteAddr, SendOp, SendWr, Sge};

use crate::bench::{Memory, completions, init, region};
use crate::support::link::Link;
use crate::support::net::{Net, ports};
use crate::support::pair::{self, End, Patience};

const MS: u64 = 1_000_000;
const PLANES: u8 = 4;
const LEN: u32 = 64 << 10;
/// Messages in flight to each peer.
const DEPTH: u64 = 4;
const WRITER: usize = 0;
/// The peer whose ports go down, and the other one.
const CLOSED: usize = 1;
const OPEN: usize = 2;

/// A writer that always has something to send to the peers in `busy`.
struct Writer {
    net: Net,
    /// The writer's ends of its queue pairs, to each peer.
    ends: [End; 2],
    memory: [Memory; 3],
    busy: Vec<usize>,
    posted: [u64; 2],
    done: [u64; 2],
}

impl Writer {
    fn new(busy: &[usize]) -> Self {
        let mut net = Net::new(11, vec![Link::clean(5_000); PLANES.into()]);
        (net.max_steps, net.max_time) = (u64::MAX, Time::NEVER);
        for node in [WRITER, CLOSED, OPEN] {
            let ports = ports(true, node, PLANES, 4300);
            net.add(EndpointConfig { seed: (90 + node as u64).into(), ..EndpointConfig::new(ports) });
            // 400 Mb/s on a plane.
            net.nodes[node].ns_per_kib = 20_480;
        }
        let pds = [WRITER, CLOSED, OPEN].map(|node| net.endpoint(node).alloc_pd());
        let memory = [WRITER, CLOSED, OPEN]
            .map(|node| region(&mut net, node, pds[node], (0x1000, LEN as usize), Access::REMOTE_WRITE));
        let ends = [CLOSED, OPEN].map(|peer| {
            let [ours, theirs] = [WRITER, peer]
                .map(|node| pair::create(&mut net, node, QpInit { max_mtu: 4096, ..init(pds[node]) }));
            pair::connect(&mut net, ours, theirs, Patience::default());
            ours
        });
        Self { net, ends, memory, busy: busy.to_vec(), posted: [0; 2], done: [0; 2] }
    }

    fn keep_posting(&mut self) {
        for wc in completions(&self.net.take_events(WRITER)) {
            assert!(wc.status.is_success(), "{wc:?} at {}", self.net.now);
            self.done[usize::from(wc.qpn == self.ends[1].qpn)] += 1;
        }
        for &peer in &self.busy {
            let at = peer - CLOSED;
            while self.posted[at] < self.done[at] + DEPTH {
                let wr = SendWr {
                    wr_id: self.posted[at],
                    op: SendOp::Write,
                    local: Sge { addr: 0x1000, len: LEN, lkey: self.memory[WRITER].key.lkey },
                    remote: RemoteAddr { addr: 0x1000, rkey: self.memory[peer].key.rkey },
                    signaled: true,
                    fence: false,
                };
                let now = self.net.now;
                self.net.endpoint(WRITER).post_send(now, self.ends[at].qpn, wr).unwrap();
                self.posted[at] += 1;
            }
        }
        self.net.pump(WRITER);
    }

    /// Messages to each peer that end within `ns`.
    fn run(&mut self, ns: u64) -> [u64; 2] {
        let (end, before) = (self.net.now.after(ns), self.done);
        self.keep_posting();
        while self.net.next_at() <= end && self.net.step() {
            if !self.net.nodes[WRITER].events.is_empty() {
                self.keep_posting();
            }
        }
        self.net.now = end;
        [0, 1].map(|at| self.done[at] - before[at])
    }

    fn links(&mut self, port: u8, up: bool) {
        self.net.schedule_link(self.net.now, CLOSED, port, up);
    }

    fn open_planes(&mut self) -> u32 {
        let qpn = self.ends[0].qpn;
        self.net.endpoint(WRITER).peer_planes(qpn).unwrap().0.count_ones()
    }
}

#[test]
fn a_peer_whose_ports_are_all_closed_stops_nobody_else() {
    let mut alone = Writer::new(&[OPEN]);
    alone.run(20 * MS);
    let [_, full] = alone.run(200 * MS);
    let mut both = Writer::new(&[CLOSED, OPEN]);
    both.run(20 * MS);
    let shared = both.run(200 * MS);
    assert!(shared.iter().all(|&share| share * 10 > full * 4), "{shared:?} of {full}");
    for port in 0..PLANES {
        both.links(port, false);
        let [_, open] = both.run(50 * MS);
        assert!(open * 4 * 10 > full * 4, "port {port} down: {open} in 50 ms, {full} in 200 ms alone");
        if port + 1 < PLANES {
            assert_eq!(
                both.open_planes(),
                u32::from(PLANES - 1 - port),
                "the news of port {port} was accepted"
            );
        }
    }
    // The last port can tell nobody that it is down.
    let [closed, open] = both.run(200 * MS);
    assert_eq!(closed, 0);
    assert!(open * 100 >= full * 98, "{open} messages to the peer that is there, {full} when it is alone");
    (0..PLANES).for_each(|port| both.links(port, true));
    both.run(2_000 * MS);
    let shared = both.run(200 * MS);
    assert!(shared.iter().all(|&share| share * 10 > full * 4), "{shared:?} of {full} once it is back");
}
