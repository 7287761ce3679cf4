//! One queue pair between two hosts, and writes over it, or other requests.

use spindrift::counters::Counters;
use spindrift::endpoint::{CqId, EndpointConfig, Event, QpInit, QpStatus, RtsAttr};
use spindrift::memory::{Access, MrKey, Region};
use spindrift::path::{EvState, EvStatus, PathConfig};
use spindrift::time::Time;
use spindrift::work::{RemoteAddr, SendOp, SendWr, Sge};

use crate::support::link::Link;
use crate::support::net::{Net, ports};
use crate::support::pair::{self, End, Patience};

pub(crate) const WRITER: usize = 0;
pub(crate) const TARGET: usize = 1;
const IOVA: u64 = 0x1000;
const LEN: usize = 1 << 20;

pub(crate) fn patience(attr: &RtsAttr) -> Patience {
    Patience { timeout: attr.timeout, linear: attr.linear_retries, exponential: attr.exponential_retries }
}

pub(crate) struct Flow {
    pub(crate) net: Net,
    pub(crate) ends: [End; 2],
    source: MrKey,
    target: MrKey,
    /// What each request is.
    pub(crate) op: SendOp,
    posted: u64,
    completed: u64,
}

impl Flow {
    /// Connects the two hosts over planes like `link`, with `active` entropy values in use and as many in reserve.
    pub(crate) fn new(seed: u64, links: Vec<Link>, active: u16) -> Self {
        Self::with(seed, links, active, |init| init)
    }

    pub(crate) fn with(seed: u64, links: Vec<Link>, active: u16, adjust: impl Fn(QpInit) -> QpInit) -> Self {
        Self::build(seed, links, active, adjust, &RtsAttr::default())
    }

    /// With these settings of the retransmission timer.
    pub(crate) fn patient(seed: u64, links: Vec<Link>, active: u16, retry: &RtsAttr) -> Self {
        Self::build(seed, links, active, |init| init, retry)
    }

    fn build(
        seed: u64,
        links: Vec<Link>,
        active: u16,
        adjust: impl Fn(QpInit) -> QpInit,
        retry: &RtsAttr,
    ) -> Self {
        let planes = links.len() as u8;
        let mut net = Net::new(seed, links);
        net.max_steps = 100_000_000;
        net.heal_at = Time::NEVER;
        for node in [WRITER, TARGET] {
            net.add(EndpointConfig {
                seed: (seed + node as u64).into(),
                ..EndpointConfig::new(ports(true, node, planes, 4300))
            });
        }
        let pds = [WRITER, TARGET].map(|node| net.endpoint(node).alloc_pd());
        let keys = [WRITER, TARGET].map(|node| {
            let region = Region::alloc_at(LEN, IOVA).unwrap();
            let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::LOCAL_WRITE;
            net.endpoint(node).register(pds[node], region, access).unwrap()
        });
        let path = PathConfig { active, backup: active, ..PathConfig::new(planes) };
        let ends = [WRITER, TARGET].map(|node| {
            let init = QpInit { path: path.clone(), ..QpInit::new(pds[node], CqId(0), CqId(1)) };
            pair::create(&mut net, node, adjust(init))
        });
        pair::connect(&mut net, ends[0], ends[1], patience(retry));
        Self { net, ends, source: keys[0], target: keys[1], op: SendOp::Write, posted: 0, completed: 0 }
    }

    pub(crate) fn post(&mut self, len: u32) {
        let wr = SendWr {
            wr_id: self.posted,
            op: self.op,
            local: Sge { addr: IOVA, len, lkey: self.source.lkey },
            remote: RemoteAddr { addr: IOVA, rkey: self.target.rkey },
            signaled: true,
            fence: false,
        };
        self.posted += 1;
        let (now, qpn) = (self.net.now, self.ends[WRITER].qpn);
        self.net.endpoint(WRITER).post_send(now, qpn, wr).unwrap();
        self.net.pump(WRITER);
    }

    /// Posts requests of `len` bytes until `until`, at most `depth` at a time; the longest time without a completion, ns.
    pub(crate) fn stream_until(&mut self, len: u32, depth: u64, until: Time) -> u64 {
        let (mut last, mut stall_ns) = (self.net.now, 0);
        let mut posted = 0;
        while self.net.now < until {
            self.post(len);
            posted += 1;
            if posted >= depth {
                self.finish_all_but(depth - 1);
                stall_ns = stall_ns.max(self.net.now.since(last));
                last = self.net.now;
            }
        }
        self.finish_all_but(0);
        stall_ns.max(self.net.now.since(last))
    }

    /// Lets the network run until all but `left` of the writes posted are complete, in order and without error.
    pub(crate) fn finish_all_but(&mut self, left: u64) {
        let (mut completed, posted) = (self.completed, self.posted);
        let done = self.net.run_until(|net| {
            for event in net.take_events(WRITER) {
                if let Event::Completion { wc, .. } = event {
                    assert!(wc.status.is_success(), "{wc:?}");
                    assert_eq!(wc.wr_id, completed, "in order");
                    completed += 1;
                }
            }
            posted - completed <= left
        });
        assert!(done, "{}", self.net.why_stopped());
        self.completed = completed;
    }

    /// Writes that are not complete yet.
    pub(crate) fn waiting(&mut self) -> u64 {
        self.finish_all_but(u64::MAX);
        self.posted - self.completed
    }

    /// One write on its own; how long it took, ns.
    pub(crate) fn write(&mut self, len: u32) -> u64 {
        let start = self.net.now;
        self.post(len);
        self.finish_all_but(0);
        self.net.now.since(start)
    }

    /// `count` writes of `len` bytes, `depth` at a time; how long they took, ns.
    pub(crate) fn stream(&mut self, count: u64, len: u32, depth: u64) -> u64 {
        let start = self.net.now;
        for _ in 0..count {
            self.post(len);
            self.finish_all_but(depth - 1);
        }
        self.finish_all_but(0);
        self.net.now.since(start)
    }

    pub(crate) fn counters(&mut self, node: usize) -> Counters {
        self.net.endpoint(node).counters().clone()
    }

    pub(crate) fn status(&mut self, node: usize) -> QpStatus {
        let qpn = self.ends[node].qpn;
        self.net.endpoint(node).qp_status(qpn).unwrap()
    }

    pub(crate) fn evs(&mut self) -> Vec<EvStatus> {
        let qpn = self.ends[WRITER].qpn;
        self.net.endpoint(WRITER).ev_states(qpn).unwrap().collect()
    }

    pub(crate) fn bad(&mut self) -> usize {
        self.evs().iter().filter(|ev| ev.state == EvState::AssumedBad).count()
    }
}

/// The value that `share` of all values, in per mille, do not exceed.
pub(crate) fn percentile(values: &[u64], per_mille: usize) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted[(sorted.len() * per_mille / 1000).min(sorted.len() - 1)]
}
