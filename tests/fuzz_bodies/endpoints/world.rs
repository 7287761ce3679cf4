//! Two endpoints, their queue pairs and memory, and what is demanded of them.

use std::collections::VecDeque;

use spindrift::counters::Counters;
use spindrift::endpoint::{Event, FailReason, QpModify};
use spindrift::memory::{Access, PdId, Region};
use spindrift::time::Time;
use spindrift::work::{Wc, WcStatus};

use super::setup::{PairSetup, Setup};
use crate::support::accusation::accusation;
use crate::support::ledger::{GUARD, Ledger, Memory, Receive};
use crate::support::link::Link;
use crate::support::net::Net;
use crate::support::pair::{self, End};
use crate::support::rand::Rng;

/// Bytes of a region that messages are read from or written to.
const REGION: usize = 8 * 1024;

/// What can go wrong for an honest request.
const REASONS: [WcStatus; 6] = [
    WcStatus::RetryExceeded,
    WcStatus::WrFlushError,
    WcStatus::RemoteAccessError,
    WcStatus::RemoteOperationError,
    WcStatus::RemoteInvalidRequest,
    WcStatus::FatalError,
];

/// Two connected queue pairs; what number *n* posts is in ledger *n*.
pub(crate) struct Pair {
    pub(crate) setup: PairSetup,
    pub(crate) ends: [End; 2],
    pub(crate) destroyed: [bool; 2],
    pub(crate) ledgers: [Ledger; 2],
    pub(crate) cursors: [usize; 2],
    pub(crate) results_cursors: [usize; 2],
    /// Receive work requests for messages that were posted, in order.
    pub(crate) pending: [VecDeque<Receive>; 2],
    /// The application did something that a peer may refuse.
    pub(crate) flawed: bool,
    /// An end is gone or has failed, so that the other may wait for ever.
    pub(crate) broken: bool,
}

/// See the [module documentation](self).
pub(crate) struct World {
    pub(crate) setup: Setup,
    pub(crate) net: Net,
    pub(crate) pairs: Vec<Pair>,
    pub(crate) rng: Rng,
    pds: [PdId; 2],
    /// Memory of each node that no key in use allows to write.
    vaults: Vec<(Memory, Vec<u8>)>,
    /// The keys of each node.
    keys: [Vec<u32>; 2],
    /// A packet was forged that no receiver can tell from a real one.
    pub(crate) forged: bool,
    /// Queue pairs are being moved to ERROR.
    closing: bool,
}

impl World {
    pub(crate) fn build(setup: &Setup) -> Self {
        let mut net = Net::new(setup.seed, vec![Link::clean(5_000); setup.planes.into()]);
        net.held = Some(Vec::new());
        let mut rng = Rng::new(setup.seed);
        let (mut vaults, mut keys) = (Vec::new(), [Vec::new(), Vec::new()]);
        let pds = [0, 1].map(|node| {
            net.add(setup.endpoint(node));
            net.nodes[node].sockets = setup.sockets;
            let [pd, other] = [(); 2].map(|()| net.endpoint(node).alloc_pd());
            let vault = memory(&mut net, node, other, &mut keys);
            let bytes = rng.bytes(REGION);
            vault.region.write_at(0, &bytes).unwrap();
            vaults.push((vault, bytes));
            pd
        });
        let mut world = Self {
            setup: *setup,
            net,
            pairs: Vec::new(),
            rng,
            pds,
            vaults,
            keys,
            forged: false,
            closing: false,
        };
        world.add_pair([0, 0]);
        world
    }

    pub(crate) fn add_pair(&mut self, args: [u8; 2]) {
        let setup = PairSetup::read(args);
        let net = &mut self.net;
        let ends = [0, 1].map(|node| pair::create(net, node, setup.init(&self.setup, self.pds[node])));
        pair::connect(net, ends[0], ends[1], setup.patience());
        let ledgers = [0, 1].map(|from| {
            let memory = [from, 1 - from, from].map(|node| memory(net, node, self.pds[node], &mut self.keys));
            Ledger::new(memory, &REASONS, &mut self.rng).unwrap()
        });
        self.pairs.push(Pair {
            setup,
            ends,
            destroyed: [false; 2],
            ledgers,
            cursors: [GUARD; 2],
            results_cursors: [GUARD; 2],
            pending: Default::default(),
            flawed: false,
            broken: false,
        });
    }

    /// From here on there is a forged packet about.
    pub(crate) fn forge(&mut self) {
        self.forged = true;
        for ledger in self.pairs.iter_mut().flat_map(|pair| &mut pair.ledgers) {
            ledger.forged = true;
        }
    }

    /// What must hold after every step.
    pub(crate) fn judge(&mut self) {
        self.hear();
        for ledger in self.pairs.iter().flat_map(|pair| &pair.ledgers) {
            ledger.check_memory().unwrap();
        }
    }

    fn hear(&mut self) {
        for node in 0..2 {
            for event in self.net.take_events(node) {
                self.hear_one(node, &event);
            }
        }
    }

    fn hear_one(&mut self, node: usize, event: &Event) {
        match event {
            Event::Completion { wc, .. } => self.on_completion(node, wc),
            Event::SendRetired { qpn, count } => {
                let (pair, end) = self.find(End { node, qpn: *qpn });
                pair.ledgers[end].on_retired(*count).unwrap();
            }
            Event::QpFailed { qpn, reason } => {
                let (forged, closing) = (self.forged, self.closing);
                let (pair, end) = self.find(End { node, qpn: *qpn });
                let allowed = match reason {
                    FailReason::Requested => closing,
                    FailReason::RetryExceeded => pair.setup.gives_up,
                    FailReason::PeerRefused | FailReason::PeerViolation => pair.flawed,
                    _ => false,
                };
                assert!(allowed || forged, "queue pair {:#x} of node {node} failed: {reason:?}", qpn.get());
                pair.broken = true;
                pair.ledgers[end].failed = true;
                pair.ledgers[1 - end].receiver_failed = true;
            }
            Event::PathsChanged { .. } | Event::PlanesSwitched { .. } | Event::PathDenied { .. } => {}
            Event::EvProbeAnswered { .. } | Event::SrqLimitReached { .. } => {
                panic!("nobody asked for it: {event:?}")
            }
        }
    }

    fn on_completion(&mut self, node: usize, wc: &Wc) {
        let (pair, end) = self.find(End { node, qpn: wc.qpn });
        match wc.opcode {
            opcode if !opcode.is_receive() => pair.ledgers[end].on_send_completion(wc),
            _ => pair.ledgers[1 - end].on_receive_completion(wc),
        }
        .unwrap();
    }

    fn find(&mut self, end: End) -> (&mut Pair, usize) {
        let found = self.pairs.iter_mut().find_map(|pair| {
            let at = pair.ends.iter().position(|one| *one == end)?;
            Some((pair, at))
        });
        found.expect("an event of a queue pair that exists")
    }

    /// Heals the network and lets everything come to an end.
    pub(crate) fn finish(mut self) {
        self.heal();
        self.receive_all();
        let whole = !self.forged && self.pairs.iter().all(|pair| !pair.broken);
        self.run(900_000_000_000, |world| world.pairs.iter().all(Pair::is_done));
        for pair in &self.pairs {
            assert!(
                self.forged || pair.is_done(),
                "work is left and {}: {:?}",
                self.net.why_stopped(),
                pair.setup
            );
        }
        // Bad paths are probed, last acknowledgements arrive.
        self.run(if whole { 900_000_000_000 } else { 1_000_000_000 }, |_| false);
        if !self.forged && self.pairs.iter().all(|pair| !pair.broken) {
            assert_eq!(self.net.next_at(), Time::NEVER, "never falls quiet: {}", self.net.why_stopped());
            self.check_counters();
        }
        self.close();
    }

    fn heal(&mut self) {
        for (node, port) in (0..2).flat_map(|node| (0..self.setup.planes).map(move |port| (node, port))) {
            if !self.net.is_up(node, port) {
                self.net.schedule_link(self.net.now, node, port, true);
            }
        }
        self.net.run_for(1);
        for held in self.net.held.take().unwrap_or_default() {
            self.net.inject(held.node, held.port, &held.bytes);
        }
        for pair in &self.pairs {
            for end in pair.ends {
                let endpoint = self.net.endpoint(end.node);
                let evs: Vec<_> =
                    endpoint.ev_states(end.qpn).into_iter().flatten().map(|state| state.ev).collect();
                for ev in evs {
                    endpoint.allow_ev(end.qpn, ev, None);
                }
                for plane in 0..self.setup.planes {
                    endpoint.allow_plane(end.qpn, plane);
                }
            }
        }
        for node in 0..2 {
            self.net.pump(node);
        }
        self.judge();
    }

    /// Lets at most `ns` pass, until `done`.
    fn run(&mut self, ns: u64, done: impl Fn(&Self) -> bool) {
        self.net.max_time = self.net.now.after(ns);
        self.net.max_steps = self.net.steps + 20_000;
        while !done(self) && self.net.step() {
            self.hear();
        }
        self.judge();
    }

    /// What an honest and healthy world has counted.
    fn check_counters(&self) {
        for (number, node) in self.net.nodes.iter().enumerate() {
            let counters: &Counters = node.endpoint.counters();
            // Receives are posted late, and an update may come when its queue pair is gone.
            let except = ["rx_not_ready", "rx_foreign_port_status"];
            assert_eq!(accusation(counters, &except), None, "an honest peer was accused: {counters:#?}");
            assert_eq!(counters.qp_errors, 0, "{counters:#?}");
            let placed =
                |pair: &Pair| pair.ledgers[1 - number].tally.bytes + pair.ledgers[number].tally.fetched;
            let placed = self.pairs.iter().map(placed).sum::<u64>();
            assert_eq!(counters.rx_placed_bytes, placed, "every byte is placed once on node {number}");
        }
        for end in self.pairs.iter().flat_map(|pair| pair.ends) {
            let status = self.net.nodes[end.node].endpoint.qp_status(end.qpn).unwrap();
            assert_eq!((status.send_outstanding, status.inflight_bytes), (0, 0), "{status:?}");
        }
        assert_eq!(self.net.sent_on_down_port, 0, "data was sent on a port known to be down");
    }

    /// Moves what is left to ERROR, which flushes it, and gives everything back.
    fn close(mut self) {
        self.closing = true;
        for at in 0..self.pairs.len() {
            for end in self.pairs[at].ends {
                let now = self.net.now;
                let endpoint = self.net.endpoint(end.node);
                if endpoint.qp_state(end.qpn).is_some() {
                    endpoint.modify_qp(now, end.qpn, QpModify::Error).unwrap();
                    self.net.pump(end.node);
                }
            }
        }
        self.judge();
        for pair in &mut self.pairs {
            let (destroyed, ends) = (pair.destroyed, pair.ends);
            for (end, ledger) in pair.ledgers.iter_mut().enumerate() {
                ledger.check_source().unwrap();
                assert_eq!(ledger.receives_left(), 0, "every receive work request ends");
                if !destroyed[end] {
                    assert_eq!(ledger.tally.retired, ledger.tally.posted, "every request retires");
                    self.net.endpoint(ends[end].node).destroy_qp(ends[end].qpn).unwrap();
                }
            }
        }
        for (vault, bytes) in &self.vaults {
            assert_eq!(vault.region.first_difference(0, bytes).unwrap(), None, "a vault was written to");
        }
        for node in 0..2 {
            for key in &self.keys[node] {
                self.net.endpoint(node).deregister(*key).expect("nothing uses the memory any more");
            }
            self.net.endpoint(node).dealloc_pd(self.pds[node]).expect("nothing uses the domain any more");
            assert_eq!(self.net.endpoint(node).qpns().count(), 0);
        }
    }
}

impl Pair {
    /// Nothing more comes of it by itself.
    fn is_done(&self) -> bool {
        self.broken || self.ledgers.iter().all(Ledger::is_done)
    }
}

fn memory(net: &mut Net, node: usize, pd: PdId, keys: &mut [Vec<u32>; 2]) -> Memory {
    let iova = 0x10_0000 * (1 + keys[node].len() as u64);
    let region = Region::alloc_at(REGION, iova).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let key = net.endpoint(node).register(pd, region.clone(), access).unwrap();
    keys[node].push(key.rkey);
    Memory { region, key }
}
