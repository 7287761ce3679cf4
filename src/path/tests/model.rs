//! Random events against a reference model that knows only how many entropy values of a plane are
//! good: the active ones are as many of them as the plane wants, and more where the planes have too few together.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    Good,
    /// With the answered probes in a row.
    Bad(u8),
    Denied,
}

#[derive(Clone, Debug)]
enum Op {
    Pick { free: u32, avoid: Option<u8> },
    Burst(u8),
    Congested(u8, bool),
    Loss(u8),
    PacketLost { id: u8, order: u64, later: [u8; 3], queueing: bool },
    Unmarked(u8),
    AlwaysSkip(u8),
    Delivered(u8),
    PickBad { free: u32, avoid: u8 },
    Advance(u32),
    Probe { patience_ns: u32 },
    Answer { which: u8, mark: EvMark },
    ForgedAnswer(u16),
    LocalPorts(u32),
    PeerPorts(u32),
    DenyEv(u8),
    AllowEv(u8),
    DenyPlane(u8),
    AllowPlane(u8),
    PickReverse(u32, bool),
    EndAnswers,
    LearnReverse(u8),
    ReverseProbe { answer: bool },
    DoubtReverse { answer: bool },
    RefreshReverse { answer: bool },
}

fn mark() -> impl Strategy<Value = EvMark> {
    prop_oneof![4 => Just(EvMark::None), 1 => Just(EvMark::SkipOnce), 1 => Just(EvMark::AlwaysSkip)]
}

/// Mostly all planes.
fn mask() -> impl Strategy<Value = u32> {
    prop_oneof![2 => Just(u32::MAX), 1 => any::<u32>()]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        20 => (mask(), any::<Option<u8>>()).prop_map(|(free, avoid)| Op::Pick { free, avoid }),
        3 => any::<u8>().prop_map(Op::Burst),
        6 => any::<(u8, bool)>().prop_map(|(id, trim)| Op::Congested(id, trim)),
        8 => any::<u8>().prop_map(Op::Loss),
        8 => (any::<u8>(), 1_u64..1_000, any::<[u8; 3]>(), any::<bool>())
            .prop_map(|(id, order, later, queueing)| Op::PacketLost { id, order, later, queueing }),
        3 => any::<u8>().prop_map(Op::Unmarked),
        2 => any::<u8>().prop_map(Op::AlwaysSkip),
        4 => any::<u8>().prop_map(Op::Delivered),
        4 => (mask(), any::<u8>()).prop_map(|(free, avoid)| Op::PickBad { free, avoid }),
        6 => (0_u32..5_000_000).prop_map(Op::Advance),
        8 => prop_oneof![Just(0), 0_u32..20_000_000].prop_map(|patience_ns| Op::Probe { patience_ns }),
        8 => (any::<u8>(), mark()).prop_map(|(which, mark)| Op::Answer { which, mark }),
        1 => any::<u16>().prop_map(Op::ForgedAnswer),
        2 => mask().prop_map(Op::LocalPorts),
        2 => mask().prop_map(Op::PeerPorts),
        2 => any::<u8>().prop_map(Op::DenyEv),
        3 => any::<u8>().prop_map(Op::AllowEv),
        1 => (0_u8..6).prop_map(Op::DenyPlane),
        2 => (0_u8..6).prop_map(Op::AllowPlane),
        4 => (mask(), any::<bool>()).prop_map(|(free, acks)| Op::PickReverse(free, acks)),
        2 => Just(Op::EndAnswers),
        2 => any::<u8>().prop_map(Op::LearnReverse),
        2 => any::<bool>().prop_map(|answer| Op::ReverseProbe { answer }),
        1 => any::<bool>().prop_map(|answer| Op::DoubtReverse { answer }),
        1 => any::<bool>().prop_map(|answer| Op::RefreshReverse { answer }),
    ]
}

fn config() -> impl Strategy<Value = PathConfig> {
    (1_u8..6, 1_u16..7, 0_u16..5, any::<u16>(), 0_u16..9, 1_u8..4, 1_u8..4).prop_map(
        |(planes, active, backup, floor, spray_width, probes_to_revive, reverse_per_plane)| {
            let cfg = small(planes, active, backup);
            PathConfig {
                min_active: 1 + floor % cfg.active,
                spray_width,
                probes_to_revive,
                reverse_per_plane,
                ..cfg
            }
        },
    )
}

struct Model {
    paths: Paths,
    cfg: PathConfig,
    now: Time,
    health: Vec<Health>,
    drops: Vec<u32>,
    /// Bad ones on which a packet has arrived since the last loss or unanswered probe.
    alive: Vec<bool>,
    local: u32,
    peer: u32,
    denied_planes: u32,
    /// Each with the time when it is given up.
    in_flight: Vec<(Probe, Time)>,
    /// The plane of the last reverse probe, if it had no answer; and those of others before it that had none, nor anything since.
    asked: Vec<(Time, u8)>,
    silent: u32,
}

impl Model {
    fn new(cfg: PathConfig, seed: u64) -> Self {
        let paths = Paths::new(&cfg, seed).unwrap();
        let evs = paths.states().count();
        Self {
            paths,
            cfg,
            now: Time(MS),
            health: vec![Health::Good; evs],
            drops: vec![0; evs],
            alive: vec![false; evs],
            local: u32::MAX,
            peer: u32::MAX,
            denied_planes: 0,
            in_flight: Vec::new(),
            asked: Vec::new(),
            silent: 0,
        }
    }

    fn id(&self, number: u8) -> EvId {
        EvId((usize::from(number) % self.health.len()) as u16)
    }

    fn open(&self) -> u32 {
        self.local & self.peer & !self.denied_planes & PlaneSet::first(self.cfg.planes).0
    }

    fn in_plane(&self, plane: u8) -> impl Iterator<Item = usize> + '_ {
        (0..self.health.len()).filter(move |&id| self.paths.plane(EvId(id as u16)) == plane)
    }

    fn good(&self, plane: u8) -> usize {
        self.in_plane(plane).filter(|&id| self.health[id] == Health::Good).count()
    }

    fn target(&self) -> usize {
        usize::from(self.cfg.active / u16::from(self.cfg.planes))
    }

    /// All good ones up to the target, without what the plane lends.
    fn own(&self, plane: u8) -> usize {
        self.good(plane).min(self.target())
    }

    /// All good ones up to the target, and those of open planes beyond it that the floor asks for: the plane with
    /// the fewest lends first.
    fn active(&self, plane: u8) -> usize {
        let open = |plane: &u8| PlaneSet(self.open()).contains(*plane);
        let mut active: Vec<_> = (0..self.cfg.planes).map(|plane| self.own(plane)).collect();
        while (0..self.cfg.planes).filter(open).map(|plane| active[usize::from(plane)]).sum::<usize>()
            < self.floor()
        {
            let lenders = (0..self.cfg.planes).filter(open);
            let lenders = lenders.filter(|&plane| active[usize::from(plane)] < self.good(plane));
            let Some(plane) = lenders.min_by_key(|&plane| active[usize::from(plane)]) else { break };
            active[usize::from(plane)] += 1;
        }
        active[usize::from(plane)]
    }

    fn usable(&self) -> u32 {
        let open = PlaneSet(self.open());
        let usable = (0..self.cfg.planes).filter(|&plane| open.contains(plane) && self.active(plane) > 0);
        usable.fold(0, |mask, plane| mask | 1 << plane)
    }

    fn active_in(&self, mask: u32) -> usize {
        let planes = (0..self.cfg.planes).filter(|&plane| PlaneSet(mask).contains(plane));
        planes.map(|plane| self.active(plane)).sum()
    }

    fn floor(&self) -> usize {
        usize::from(self.cfg.min_active)
    }

    fn assume_bad(&mut self, id: EvId) {
        let plane = self.paths.plane(id);
        let at = usize::from(id.0);
        let usable = PlaneSet(self.usable());
        let good = (0..self.cfg.planes).filter(|&plane| usable.contains(plane)).map(|plane| self.good(plane));
        let needed = usable.contains(plane) && good.sum::<usize>() <= self.floor();
        if self.health[at] != Health::Good {
            return;
        }
        if needed {
            let Some(other) = self.bad_to_use(|id| self.alive[id]) else { return };
            self.health[other] = Health::Good;
        }
        self.health[at] = Health::Bad(0);
        self.alive[at] = false;
    }

    fn arrives(&mut self, id: EvId) {
        let at = usize::from(id.0);
        self.alive[at] |= matches!(self.health[at], Health::Bad(_));
    }

    /// A bad one of an open plane: one that lives, then one of the plane with the fewest active.
    fn bad_to_use(&self, fit: impl Fn(usize) -> bool) -> Option<usize> {
        let plane = |id: usize| self.paths.plane(EvId(id as u16));
        let open = PlaneSet(self.open());
        let bad = (0..self.health.len())
            .filter(|&id| matches!(self.health[id], Health::Bad(_)) && open.contains(plane(id)) && fit(id));
        bad.min_by_key(|&id| (!self.alive[id], self.active(plane(id))))
    }

    /// Ports or the deny list changed: bad ones return if there are too few.
    fn keep_floor(&mut self) {
        while self.active_in(self.open()) < self.floor() {
            let Some(id) = self.bad_to_use(|_| true) else { return };
            self.health[id] = Health::Good;
        }
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Pick { free, avoid } => self.pick(free, avoid),
            Op::Burst(packets) => self.paths.begin_burst(usize::from(packets)),
            Op::Congested(id, true) => self.paths.on_trim(self.id(id), self.now),
            Op::Congested(id, false) => {
                self.arrives(self.id(id));
                self.paths.on_ecn(self.id(id), self.now);
            }
            Op::Loss(id) => {
                let id = self.id(id);
                self.drops[usize::from(id.0)] += 1;
                self.alive[usize::from(id.0)] = false;
                self.assume_bad(id);
                self.paths.on_loss(id, self.now);
            }
            Op::PacketLost { id, order, later, queueing } => self.lose(self.id(id), order, later, queueing),
            Op::Unmarked(id) => {
                let id = self.id(id);
                self.silent &= !(1 << self.paths.plane(id));
                self.arrives(id);
                self.paths.on_unmarked(id);
            }
            Op::AlwaysSkip(id) => {
                let id = self.id(id);
                self.assume_bad(id);
                self.paths.on_always_skip(id, self.now);
            }
            Op::Delivered(id) => {
                self.arrives(self.id(id));
                self.paths.on_delivered(self.id(id), self.now);
            }
            Op::PickBad { free, avoid } => self.pick_bad(free, self.id(avoid)),
            Op::Advance(ns) => self.advance(self.now + u64::from(ns)),
            Op::Probe { patience_ns } => self.probe(u64::from(patience_ns)),
            Op::Answer { which, mark } => self.answer(usize::from(which), mark),
            Op::ForgedAnswer(id) => {
                if !self.in_flight.iter().any(|(probe, _)| probe.id == id) {
                    assert_eq!(self.paths.on_probe_answer(id, EvMark::None, self.now), None);
                }
            }
            Op::LocalPorts(up) => {
                if std::mem::replace(&mut self.local, up) != up {
                    self.keep_floor();
                }
                self.paths.set_local_ports(PlaneSet(up));
            }
            Op::PeerPorts(up) => {
                if std::mem::replace(&mut self.peer, up) != up {
                    self.keep_floor();
                }
                self.paths.set_peer_ports(PlaneSet(up));
            }
            Op::DenyEv(id) => self.deny_ev(self.id(id)),
            Op::AllowEv(id) => self.allow_ev(self.id(id)),
            Op::DenyPlane(plane) => {
                self.denied_planes |= (1 << plane) & PlaneSet::first(self.cfg.planes).0;
                self.keep_floor();
                self.paths.deny_plane(plane);
            }
            Op::AllowPlane(plane) => {
                self.denied_planes &= !(1 << plane);
                self.keep_floor();
                self.paths.allow_plane(plane);
            }
            _ => self.apply_reverse(op),
        }
    }

    /// The paths decide whether a loss counts against its path; the model follows either decision.
    fn lose(&mut self, id: EvId, order: u64, [latest, newest, others]: [u8; 3], queueing: bool) {
        let signs = LossSigns {
            order,
            latest: order + u64::from(latest),
            newest_on_path: (order + u64::from(newest)).saturating_sub(128),
            plane_delivers: others > 128,
            queueing,
        };
        let mut tried = self.paths.clone();
        tried.on_packet_lost(id, &signs, self.now);
        let tolerated = tried.counters().tolerated > self.paths.counters().tolerated;
        let at = usize::from(id.0);
        assert!(!tolerated || self.health[at] == Health::Good);
        assert!(
            !tolerated
                || tried.states().any(|status| status.id == id && status.state == EvState::Skip
                    || self.denied_planes >> status.plane & 1 == 1)
        );
        self.drops[at] += 1;
        self.alive[at] = false;
        if !tolerated {
            self.assume_bad(id);
        }
        self.paths.on_packet_lost(id, &signs, self.now);
    }

    /// The same for what concerns answers.
    fn apply_reverse(&mut self, op: &Op) {
        match *op {
            Op::PickReverse(free, acks) => self.pick_reverse(free, acks),
            Op::EndAnswers => self.paths.end_acks(),
            Op::LearnReverse(id) => {
                let id = self.id(id);
                self.silent &= !(1 << self.paths.plane(id));
                self.arrives(id);
                self.paths.learn_reverse(id);
            }
            Op::ReverseProbe { answer } => {
                let probe = self.paths.poll_reverse_probe(self.now, 10 * US, true);
                self.probe_reverse(probe, answer);
            }
            Op::DoubtReverse { answer } => {
                self.paths.suspect_reverse(self.now);
                self.hurry_reverse_probes(4, answer);
            }
            Op::RefreshReverse { answer } => {
                self.paths.refresh_reverse(self.now);
                self.hurry_reverse_probes(1, answer);
            }
            _ => unreachable!("{op:?} concerns data"),
        }
    }

    fn hurry_reverse_probes(&mut self, most: usize, answer: bool) {
        for sent in 0.. {
            let Some(probe) = self.paths.poll_early_probe(self.now, 10 * US) else { return };
            assert!(sent < if answer { 1 } else { most }, "the first answer is enough");
            self.probe_reverse(Some(probe), answer);
        }
    }

    fn probe_reverse(&mut self, probe: Option<(Ev, u8, u16)>, answer: bool) {
        if let Some((_, plane, request)) = probe {
            let late = self.asked.iter().filter(|(at, _)| *at < self.now);
            self.silent |= late.map(|(_, plane)| 1 << plane).fold(0, |all, plane| all | plane);
            self.asked.retain(|(at, _)| *at >= self.now);
            if answer {
                self.silent &= !(1 << plane);
            } else {
                self.asked.push((self.now, plane));
            }
            assert!(PlaneSet(self.open()).contains(plane));
            assert!(!answer || self.paths.on_reverse_probe_answer(request, self.now));
        }
    }

    fn pick(&mut self, free: u32, avoid: Option<u8>) {
        let avoid = avoid.map(|id| self.id(id));
        let planes = self.usable() & free;
        let picked = self.paths.pick(PlaneSet(free), avoid);
        assert_eq!(picked.is_some(), planes != 0);
        let Some(id) = picked else { return };
        let plane = self.paths.plane(id);
        assert!(PlaneSet(planes).contains(plane), "plane {plane} is not usable");
        assert_eq!(self.health[usize::from(id.0)], Health::Good);
        if let Some(avoid) = avoid {
            let other_planes = planes & !(1 << self.paths.plane(avoid));
            assert!(other_planes == 0 || plane != self.paths.plane(avoid));
            assert!(id != avoid || self.active(plane) == 1);
        }
    }

    fn pick_bad(&mut self, free: u32, avoid: EvId) {
        let plane = |id: usize| self.paths.plane(EvId(id as u16));
        let open = PlaneSet(self.open() & free);
        let bad = (0..self.health.len()).filter(|&id| {
            matches!(self.health[id], Health::Bad(_))
                && open.contains(plane(id))
                && id != usize::from(avoid.0)
        });
        let rank = |id: usize| (plane(id) == self.paths.plane(avoid), !self.alive[id]);
        let best = bad.map(rank).min();
        let picked = self.paths.clone().pick_bad(PlaneSet(free), avoid);
        assert_eq!(picked.map(|picked| rank(usize::from(picked.id.0))), best);
        let Some(picked) = picked else { return };
        let id = usize::from(picked.id.0);
        assert!(
            matches!(self.health[id], Health::Bad(_)) && open.contains(picked.plane) && picked.id != avoid
        );
        assert_eq!((picked.ev, picked.plane), (self.paths.ev(picked.id), plane(id)));
    }

    fn pick_reverse(&mut self, free: u32, acks: bool) {
        let usable = self.usable();
        let trusted = usable & !self.silent;
        let all = [trusted, usable, self.open()].into_iter().find(|&planes| planes != 0).unwrap_or(0);
        let planes = PlaneSet(free & all);
        let allowed = |health: &Health| *health != Health::Denied;
        let some = (0..self.cfg.planes)
            .any(|plane| planes.contains(plane) && self.in_plane(plane).any(|id| allowed(&self.health[id])));
        let picked = self.paths.pick_reverse(PlaneSet(free), acks);
        assert_eq!(picked.is_some(), some);
        let Some((ev, plane)) = picked else { return };
        assert!(planes.contains(plane));
        let id = self.in_plane(plane).find(|&id| self.paths.ev(EvId(id as u16)) == ev).unwrap();
        assert!(allowed(&self.health[id]));
        assert!(usable == 0 || self.health[id] == Health::Good);
        assert_eq!(
            self.paths.pick_reverse(PlaneSet(free), acks),
            picked,
            "what leaves together takes one path"
        );
    }

    fn deny_ev(&mut self, id: EvId) {
        let health = &mut self.health[usize::from(id.0)];
        let changes = usize::from(*health != Health::Denied);
        *health = Health::Denied;
        if changes > 0 {
            self.keep_floor();
        }
        let (ev, plane) = (self.paths.ev(id), self.paths.plane(id));
        assert_eq!(self.paths.deny_ev(ev, Some(plane)), changes);
    }

    fn allow_ev(&mut self, id: EvId) {
        let health = &mut self.health[usize::from(id.0)];
        let changes = usize::from(*health == Health::Denied);
        if changes > 0 {
            *health = Health::Good;
            self.keep_floor();
        }
        let (ev, plane) = (self.paths.ev(id), self.paths.plane(id));
        assert_eq!(self.paths.allow_ev(ev, Some(plane)), changes);
    }

    fn advance(&mut self, now: Time) {
        self.now = now;
        let (gone, waiting) = self.in_flight.drain(..).partition(|&(_, until)| now >= until);
        self.in_flight = waiting;
        for (probe, _) in gone {
            if let Health::Bad(answers) = &mut self.health[usize::from(probe.ev.0)] {
                *answers = 0;
                self.alive[usize::from(probe.ev.0)] = false;
            }
        }
        self.paths.on_timer(now);
    }

    fn probe(&mut self, patience_ns: u64) {
        let until = self.now + self.cfg.probe_timeout_ns.max(patience_ns);
        while let Some(probe) = self.paths.patient_probe(self.now, patience_ns) {
            assert!(matches!(self.health[usize::from(probe.ev.0)], Health::Bad(_)));
            assert!(PlaneSet(self.open()).contains(self.paths.plane(probe.ev)));
            assert!(self.in_flight.iter().all(|(other, _)| other.id != probe.id));
            self.in_flight.push((probe, until));
            assert!(self.in_flight.len() <= MAX_PROBES_IN_FLIGHT);
        }
        assert!(self.paths.next_timeout() > self.now, "woken for nothing");
    }

    fn answer(&mut self, which: usize, mark: EvMark) {
        if self.in_flight.is_empty() {
            return;
        }
        let (probe, _) = self.in_flight.swap_remove(which % self.in_flight.len());
        let health = &mut self.health[usize::from(probe.ev.0)];
        if let Health::Bad(answers) = health {
            *answers = if mark == EvMark::AlwaysSkip { 0 } else { *answers + 1 };
            self.alive[usize::from(probe.ev.0)] = mark != EvMark::AlwaysSkip;
            if *answers == self.cfg.probes_to_revive {
                *health = Health::Good;
            }
        }
        assert_eq!(self.paths.on_probe_answer(probe.id, mark, self.now), Some(probe.ev));
    }

    fn check(&mut self) {
        let mut seen = vec![false; self.health.len()];
        for status in self.paths.states() {
            let at = usize::from(status.id.0);
            assert!(!std::mem::replace(&mut seen[at], true), "{:?} is in two sets", status.id);
            let denied = self.health[at] == Health::Denied || self.denied_planes >> status.plane & 1 == 1;
            match status.state {
                EvState::Good | EvState::Skip => assert_eq!(self.health[at], Health::Good),
                EvState::AssumedBad => assert!(matches!(self.health[at], Health::Bad(_))),
                EvState::Denied => assert!(denied),
            }
            assert!(!status.active || self.health[at] == Health::Good);
            let lives = self.paths.has(status.id.0, ALIVE);
            assert_eq!(lives, self.alive[at] && matches!(self.health[at], Health::Bad(_)), "{:?}", status.id);
            assert_eq!(status.drop_count, self.drops[at]);
        }
        assert!(seen.iter().all(|&seen| seen));
        // Probing ends when this is 0.
        let bad = self.paths.entries.iter().filter(|entry| entry.flags & BAD != 0).count();
        assert_eq!(usize::from(self.paths.prober.bad), bad);
        for plane in 0..self.cfg.planes {
            assert_eq!(self.paths.active_len(plane), self.active(plane), "plane {plane}");
        }
        assert_eq!(self.paths.usable_planes(), PlaneSet(self.usable()));
        let open = PlaneSet(self.open());
        let allowed = (0..self.health.len()).filter(|&id| {
            open.contains(self.paths.plane(EvId(id as u16))) && self.health[id] != Health::Denied
        });
        assert!(self.active_in(open.0) >= self.floor().min(allowed.count()));
        while self.paths.poll_event().is_some() {}
    }

    /// The network heals, probes are answered: everything must be as at the start.
    fn heal(&mut self) {
        self.apply(&Op::LocalPorts(u32::MAX));
        self.apply(&Op::PeerPorts(u32::MAX));
        for plane in 0..self.cfg.planes {
            self.apply(&Op::AllowPlane(plane));
        }
        for id in 0..self.health.len() as u8 {
            self.apply(&Op::AllowEv(id));
        }
        for _ in 0..20 * self.health.len() {
            while !self.in_flight.is_empty() {
                self.answer(0, EvMark::None);
            }
            let next = self.paths.next_timeout();
            if next == Time::NEVER {
                break;
            }
            assert!(next - self.now <= self.cfg.probe_interval_max_ns);
            self.advance(next.max(self.now));
            self.probe(0);
        }
        self.check();
        assert!(self.health.iter().all(|health| *health == Health::Good), "not healed: {:?}", self.health);
    }

    /// All planes up: after the saved turns are used up, loads are equal.
    fn check_equal_load(&mut self) {
        let planes = usize::from(self.cfg.planes);
        picks(&mut self.paths, 40 * planes);
        let ids = picks(&mut self.paths, 100 * planes);
        for plane in 0..self.cfg.planes {
            let load = ids.iter().filter(|&&id| self.paths.plane(id) == plane).count();
            assert!(load.abs_diff(100) <= 1, "plane {plane} took {load} of {}", ids.len());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_the_sets_hold_and_heal(
        cfg in config(),
        seed in any::<u64>(),
        ops in prop::collection::vec(op(), 1..300),
    ) {
        let mut model = Model::new(cfg, seed);
        for op in &ops {
            model.apply(op);
            model.check();
        }
        model.heal();
        model.check_equal_load();
    }

    #[test]
    fn every_active_path_carries_the_same(cfg in config(), seed in any::<u64>()) {
        let mut paths = Paths::new(&PathConfig { spray_width: 0, ..cfg.clone() }, seed).unwrap();
        let per_path = 20;
        let ids = sorted(picks(&mut paths, per_path * usize::from(cfg.active)));
        for run in ids.chunk_by(|a, b| a == b) {
            prop_assert_eq!(run.len(), per_path);
        }
    }

    #[test]
    fn slices_use_every_active_path(cfg in config(), seed in any::<u64>(), packets in 1_usize..50) {
        let spray_width = cfg.spray_width.max(1);
        let mut paths = Paths::new(&PathConfig { spray_width, ..cfg.clone() }, seed).unwrap();
        let mut used = Vec::new();
        for _ in 0..2 * cfg.active {
            paths.begin_burst(packets);
            used.extend(picks(&mut paths, packets.max(usize::from(cfg.planes))));
        }
        used.sort();
        used.dedup();
        prop_assert_eq!(used.len(), usize::from(cfg.active));
    }
}
