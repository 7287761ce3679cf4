//! Control operations: protection domains, memory, queue pairs and their states, deny lists.

use core::ops::RangeInclusive;
use std::sync::Arc;

use rand::Rng;

use crate::memory::{Access, MemoryError, MemoryView, MrKey, PdId, Region};
use crate::path::{
    EvEvent, EvSource, EvStatus, PathConfig, PathCounters, Paths, PlaneRole, PlaneSet, RoleStatus,
};
use crate::time::Time;
use crate::wire::{Ev, Psn, Qpn};
use crate::work::MAX_SGE;

use crate::config::PortAddr;
use crate::peer::{Peers, log_local_port};
use crate::qp::{
    Cx, EndpointError, Event, FailReason, Qp, QpAttr, QpFailure, QpInfo, QpInit, QpModify, QpPeer, QpState,
    QpStatus, RetryAttr, RtrAttr, RtsAttr, Wakes, entropy_name,
};

use super::Endpoint;

impl Endpoint {
    /// Makes a protection domain.
    pub fn alloc_pd(&mut self) -> PdId {
        self.cx.memory.space().alloc_pd()
    }

    /// Removes a protection domain that has no members any more.
    ///
    /// # Errors
    /// As [`MemorySpace::dealloc_pd`](crate::memory::MemorySpace::dealloc_pd).
    pub fn dealloc_pd(&mut self, pd: PdId) -> Result<(), EndpointError> {
        Ok(self.cx.memory.space().dealloc_pd(pd)?)
    }

    /// Registers memory in a protection domain.
    ///
    /// # Errors
    /// As [`MemorySpace::register`](crate::memory::MemorySpace::register).
    pub fn register(
        &mut self,
        pd: PdId,
        region: Arc<Region>,
        access: Access,
    ) -> Result<MrKey, EndpointError> {
        let key = self.cx.memory.space().register(pd, region, access)?;
        self.cx.memory.sync();
        Ok(key)
    }

    /// Ends a registration; refused while a work request uses it. Only for an endpoint that shares its memory space
    /// with no other. Endpoints that share one use
    /// [`MemorySpace::deregister`](crate::memory::MemorySpace::deregister).
    ///
    /// # Errors
    /// As [`MemorySpace::deregister`](crate::memory::MemorySpace::deregister).
    pub fn deregister(&mut self, rkey: u32) -> Result<(), EndpointError> {
        let space = self.cx.memory.space().clone();
        self.cx.unpin_released();
        space.deregister::<MemoryError>(rkey, |visit| {
            visit(&mut self.cx.memory);
            Ok(())
        })?;
        Ok(())
    }

    /// Makes the keys of a registration invalid at once; the memory is kept until no work request uses it.
    pub fn invalidate(&mut self, rkey: u32) {
        self.cx.memory.space().invalidate(rkey);
        self.cx.memory.sync();
    }

    /// The registered memory, as this endpoint sees it.
    pub const fn memory(&self) -> &MemoryView {
        &self.cx.memory
    }

    /// The registered memory, for operations that end a registration. Not between
    /// [`transmit`](Self::transmit) and the time at which the ports have its packets.
    pub fn memory_mut(&mut self) -> &mut MemoryView {
        self.cx.unpin_released();
        &mut self.cx.memory
    }

    /// Makes a queue pair in RESET.
    ///
    /// # Errors
    /// Names the limit that is reached or the setting that is out of range.
    pub fn create_qp(&mut self, init: QpInit) -> Result<Qpn, EndpointError> {
        self.make_qp(init, None)
    }

    /// Makes a queue pair with a number other than `before`, or with that one if it keeps its number.
    fn make_qp(&mut self, mut init: QpInit, before: Option<Qpn>) -> Result<Qpn, EndpointError> {
        if init.srq.is_some() {
            init.cap.max_recv_wr = 0;
        }
        let pd = self.cx.memory.space().join_pd(init.pd)?;
        self.check_init(&init)?;
        if self.qps.live() >= self.cx.cfg.limits.max_qps {
            return Err(EndpointError::Limit("limits.max_qps"));
        }
        let path = self.path_config(&init.path);
        let paths = Paths::new(&path, self.rng.next_u64())?;
        // Everything that can fail comes before a slot is taken, so that no slot leaks.
        init.cc.validate()?;
        let qpn = before.filter(|_| init.keep_number).unwrap_or_else(|| self.draw_qpn(before));
        let slot = qpn.get() & self.qps.mask();
        let psn = init.psn.unwrap_or_else(|| Psn::new(self.rng.next_u32()));
        let qp = Qp::new((qpn, slot), pd, psn, QpInit { path, ..init }, paths)?;
        qp.log_state(&self.cx.peers);
        self.qps.insert(qp);
        self.follow_list(slot);
        self.make_room();
        Ok(qpn)
    }

    /// Grows everything with one entry per queue pair now, so that it never grows while packets move.
    fn make_room(&mut self) {
        let live = self.qps.live() as usize;
        self.scheduler.make_room(live);
        self.control_list.reserve(live.saturating_sub(self.control_list.len()));
        self.timers.reserve_for(live);
        // There are no more peers than queue pairs.
        self.cx.peers.reserve_for(live);
    }

    fn check_init(&self, init: &QpInit) -> Result<(), EndpointError> {
        let limits = &self.cx.cfg.limits;
        in_range("cap.max_send_wr", init.cap.max_send_wr, 1, limits.max_send_wr, "")?;
        in_range("cap.max_recv_wr", init.cap.max_recv_wr, 0, limits.max_recv_wr, "")?;
        in_range("cap.max_send_sge", init.cap.max_send_sge, 1, MAX_SGE, "")?;
        in_range("cap.max_recv_sge", init.cap.max_recv_sge, 1, MAX_SGE, "")?;
        in_range("mpr_dest", u32::from(init.mpr_dest), 1, 255, " units of 128 PSNs")
    }

    /// A random queue pair number whose low bits are a free slot. Reserved numbers are excluded, so is `before` unless
    /// no other is left. One number reveals nothing about the next.
    ///
    /// The caller ensures that a slot is free. If only one is, this takes about as many draws as there are slots.
    fn draw_qpn(&mut self, before: Option<Qpn>) -> Qpn {
        let avoided = before.filter(|&before| self.has_other_than(before));
        loop {
            let qpn = Qpn::new(self.rng.next_u32());
            let slot = qpn.get() & self.qps.mask();
            if self.may_give(qpn) && self.qps.get(slot).is_none() && Some(qpn) != avoided {
                return qpn;
            }
        }
    }

    fn may_give(&self, qpn: Qpn) -> bool {
        const RESERVED: RangeInclusive<u32> = 0..=2;
        self.cx.cfg.qpns.has(qpn) && !RESERVED.contains(&qpn.get())
    }

    /// Whether a number other than `qpn`, whose slot is free, can be assigned.
    pub(super) fn has_other_than(&self, qpn: Qpn) -> bool {
        let is_last_slot = self.qps.live() >= self.qps.mask();
        // Only with the largest possible number of slots do the numbers of one slot differ just in the bits that
        // select the owner.
        let slot = qpn.get() & self.qps.mask();
        let mut of_its_slot = (0..16).map(|top| Qpn::new(top << 20 | slot));
        !is_last_slot
            || self.qps.mask() < 0xf_ffff
            || of_its_slot.any(|other| other != qpn && self.may_give(other))
    }

    /// Path settings with the planes and the entropy source that follow from the ports.
    fn path_config(&self, wanted: &PathConfig) -> PathConfig {
        let planes = self.cx.cfg.ports.len() as u8;
        let sockets: Option<Vec<Vec<Ev>>> = self
            .cx
            .cfg
            .ports
            .iter()
            .map(|port| Some(port.source_ports.as_ref()?.iter().map(|&p| Ev(u32::from(p))).collect()))
            .collect();
        let narrow = |width_bits: u8| width_bits.min(self.cx.cfg.entropy.width_bits() as u8);
        let source = match (sockets, &wanted.source) {
            (_, EvSource::Explicit(lists)) => EvSource::Explicit(Arc::clone(lists)),
            (Some(lists), _) => EvSource::Explicit(lists.into()),
            (None, EvSource::Random { width_bits }) => EvSource::Random { width_bits: narrow(*width_bits) },
            (None, EvSource::Routed { profiles, width_bits }) => {
                EvSource::Routed { profiles: Arc::clone(profiles), width_bits: narrow(*width_bits) }
            }
        };
        let active = wanted.active.max(u16::from(planes));
        // Bursts use fewer paths only if a port gains from several packets of one path.
        let spray_width = if wanted.spray_width == 0 && self.burst.same_path_batch > 1 {
            active
        } else {
            wanted.spray_width
        };
        PathConfig {
            active,
            planes,
            source,
            carried: self.cx.cfg.carried_ev_bits(),
            spray_width,
            ..wanted.clone()
        }
    }

    /// Removes a queue pair and drops its work requests.
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), EndpointError> {
        let qp = self.find(qpn)?;
        qp.log_destroyed(&self.cx.peers);
        let slot = qp.slot;
        self.remove_qp(slot);
        Ok(())
    }

    fn remove_qp(&mut self, slot: u32) -> Option<Box<Qp>> {
        let qp = self.qps.get_mut(slot)?;
        qp.drop_work(&mut self.cx);
        let wakes = qp.leave_cwnd(&mut self.cx);
        qp.responder.leave(&mut self.cx.windows);
        let index = core::mem::replace(&mut qp.peer, Qp::NO_PEER);
        let place = qp.member;
        if let Some(moved) = self.cx.peers.leave(index, place)
            && let Some(qp) = self.qps.get_mut(moved)
        {
            qp.member = place;
        }
        self.apply(slot, wakes);
        self.scheduler.remove(slot);
        self.control_list.retain(|&listed| listed != slot);
        self.qps.remove(slot)
    }

    fn find(&self, qpn: Qpn) -> Result<&Qp, EndpointError> {
        self.qps.find(qpn).ok_or(EndpointError::NoSuchQp(qpn.get()))
    }

    /// The attributes of a queue pair, in any state.
    pub fn query_qp(&self, qpn: Qpn) -> Option<QpAttr> {
        let qp = self.qps.find(qpn)?;
        let peer = self.cx.peers.get(qp.peer).map(|peer| QpPeer {
            qpn: qp.dest_qpn,
            ports: peer.ports.clone(),
            udp_port: peer.udp_port,
        });
        Some(qp.attr(peer, &self.cx.cwnds))
    }

    /// The state of a queue pair.
    pub fn qp_state(&self, qpn: Qpn) -> Option<QpState> {
        self.qps.find(qpn).map(|qp| qp.state)
    }

    /// State, counts, round-trip time and window of a queue pair.
    pub fn qp_status(&self, qpn: Qpn) -> Option<QpStatus> {
        self.qps.find(qpn).map(|qp| qp.status(&self.cx.cwnds))
    }

    /// The numbers of all queue pairs.
    pub fn qpns(&self) -> impl Iterator<Item = Qpn> + '_ {
        self.qps.iter().map(|qp| qp.qpn)
    }

    /// The information that a peer needs to connect to this queue pair.
    pub fn qp_info(&self, qpn: Qpn) -> Option<QpInfo> {
        let qp = self.qps.find(qpn)?;
        let wanted = if qp.init.max_mtu == 0 { u32::MAX } else { qp.init.max_mtu };
        Some(QpInfo {
            version: QpInfo::VERSION,
            qpn: qp.qpn.get(),
            psn: qp.psn.get(),
            msn: qp.init.msn.get(),
            mpr: qp.init.mpr_dest,
            max_wimm: qp.init.max_wimm_dest,
            mtu: wanted.min(self.cx.cfg.max_mtu()),
            trim_nack: self.cx.cfg.trimming,
            dynamic_mpr: qp.init.dynamic_mpr,
            icrc: self.cx.cfg.icrc,
            udp_port: self.cx.cfg.udp_port,
            entropy: entropy_name(self.cx.cfg.entropy).to_owned(),
            ports: self.cx.cfg.ports.iter().map(|port| PortAddr { ip: port.ip, mac: port.mac.0 }).collect(),
            plane_ids: self.cx.cfg.plane_ids.clone(),
            extensions: qp.init.extensions,
            max_rd_atomic: qp.init.fetches_offered(),
        })
    }

    /// Changes the state of a queue pair, or attributes in RTS, and returns its number. [`QpModify::Reset`] assigns a
    /// new number; all other changes keep it.
    ///
    /// # Errors
    /// [`EndpointError::BadTransition`], [`EndpointError::NotInRts`], or the attribute that is out of range. Nothing
    /// has changed then.
    pub fn modify_qp(&mut self, now: Time, qpn: Qpn, change: QpModify) -> Result<Qpn, EndpointError> {
        let slot = self.find(qpn)?.slot;
        let from = self.qp_state(qpn).unwrap_or(QpState::Reset);
        let result = match (change, from) {
            (QpModify::Reset, _) => return self.reset_qp(slot, qpn),
            (QpModify::Error, _) => {
                self.with_qp(slot, |qp, cx| qp.fail(cx, FailReason::Requested, None));
                Ok(())
            }
            (QpModify::Init, QpState::Reset) => {
                if let Some(qp) = self.qps.get_mut(slot) {
                    qp.state = QpState::Init;
                }
                Ok(())
            }
            (QpModify::Rtr(attr), QpState::Init) => self.make_rtr(now, slot, &attr),
            (QpModify::Rts(attr), QpState::Rtr) => self.make_rts(now, slot, &attr),
            (QpModify::Retry(attr), QpState::Rts) => self.set_retry(slot, attr),
            (QpModify::Paths(path), QpState::Reset | QpState::Init) => self.set_paths(slot, &path),
            (QpModify::Congestion(cc), QpState::Reset | QpState::Init | QpState::Rtr) => {
                cc.validate()?;
                if let Some(qp) = self.qps.get_mut(slot) {
                    qp.init.cc = *cc;
                }
                Ok(())
            }
            (QpModify::Congestion(cc), QpState::Rts) => {
                let Some(qp) = self.qps.get_mut(slot) else { return Err(EndpointError::NoSuchQp(qpn.get())) };
                let wakes = qp.enter_cwnd(&mut self.cx, &cc, now)?;
                qp.other_cc = Some(cc);
                // The new settings may allow packets that the old ones did not.
                self.apply(slot, wakes | Wakes::DATA);
                Ok(())
            }
            (QpModify::Retry(_), state) => Err(EndpointError::NotInRts { what: "retry attributes", state }),
            (QpModify::Congestion(_), QpState::Error) => {
                Err(EndpointError::BadTransition { from, to: "other congestion control" })
            }
            (QpModify::Paths(_), state) => Err(EndpointError::AfterInit { what: "path settings", state }),
            (QpModify::Init, _) => Err(EndpointError::BadTransition { from, to: "INIT" }),
            (QpModify::Rtr(_), _) => Err(EndpointError::BadTransition { from, to: "RTR" }),
            (QpModify::Rts(_), _) => Err(EndpointError::BadTransition { from, to: "RTS" }),
        };
        if let Some(qp) = self.qps.find(qpn).filter(|qp| qp.state != from && qp.state != QpState::Error) {
            qp.log_state(&self.cx.peers);
        }
        result.map(|()| qpn)
    }

    /// Replaces a queue pair by a new one. Packets in flight to the old number cannot be mistaken for packets of the
    /// next connection.
    fn reset_qp(&mut self, slot: u32, qpn: Qpn) -> Result<Qpn, EndpointError> {
        self.find(qpn)?.log_reset(&self.cx.peers);
        // Kept until the new one has joined its protection domain.
        let old = self.remove_qp(slot).ok_or(EndpointError::NoSuchQp(qpn.get()))?;
        self.make_qp((*old.init).clone(), Some(qpn))
    }

    /// Chooses the entropy values of a queue pair anew, by other settings.
    fn set_paths(&mut self, slot: u32, wanted: &PathConfig) -> Result<(), EndpointError> {
        let path = self.path_config(wanted);
        let mut paths = Paths::new(&path, self.rng.next_u64())?;
        if let Some(qp) = self.qps.get_mut(slot) {
            paths.deny_as(&qp.paths);
            (qp.paths, qp.init.path) = (paths, path);
        }
        self.follow_list(slot);
        Ok(())
    }

    fn make_rtr(&mut self, now: Time, slot: u32, attr: &RtrAttr) -> Result<(), EndpointError> {
        in_range("dest_qpn", attr.dest_qpn, 3, 0x00ff_ffff, ", a queue pair number")?;
        in_range("path_mtu", attr.path_mtu, 256, self.cx.cfg.max_mtu(), ", what every port takes")?;
        in_range("mpr_dest", u32::from(attr.mpr_dest), 1, 255, " units of 128 PSNs")?;
        in_range("udp_port", u32::from(attr.udp_port), 1, 0xffff, "")?;
        let drawn = self.draw_routed(slot, &attr.ports)?;
        let Cx { cfg, peers, .. } = &mut self.cx;
        let index = peers.join(cfg, &attr.ports, attr.udp_port).map_err(EndpointError::Ports)?;
        let local = peers.ports_up;
        let Some(peer) = peers.get_mut(index) else {
            return Err(EndpointError::Ports("none of them fits ours".to_owned()));
        };
        // A peer that has just started does not report that a port is up again.
        peer.reachability.expedite_all(now);
        peer.members.push(slot);
        let (member, open) = (peer.members.len() as u32 - 1, peer.reachability.open());
        let Some(qp) = self.qps.get_mut(slot) else { return Ok(()) };
        if let Some(paths) = drawn {
            qp.paths = paths;
        }
        qp.connect(cfg, attr, index);
        qp.member = member;
        qp.set_ports(local, open);
        peers.arm(index);
        self.follow_list(slot);
        Ok(())
    }

    /// The entropy values of a queue pair that are chosen once its peer is known, because packets to it are
    /// source-routed.
    fn draw_routed(&mut self, slot: u32, peer: &[PortAddr]) -> Result<Option<Paths>, EndpointError> {
        let Some(qp) = self.qps.get(slot) else { return Ok(None) };
        let wanted = &qp.init.path;
        let Some(source) = self.cx.peers.routes.ev_source(&self.cx.cfg, &wanted.source, peer)? else {
            return Ok(None);
        };
        let path = PathConfig { source, ..wanted.clone() };
        let mut paths = Paths::new(&path, self.rng.next_u64())?;
        if let Some(qp) = self.qps.get(slot) {
            paths.deny_as(&qp.paths);
        }
        Ok(Some(paths))
    }

    fn make_rts(&mut self, now: Time, slot: u32, attr: &RtsAttr) -> Result<(), EndpointError> {
        in_range("mpr", u32::from(attr.mpr), 1, 255, " units of 128 PSNs")?;
        check_retry(attr.retry())?;
        check_rts(attr)?;
        let Some(qp) = self.qps.get_mut(slot) else { return Ok(()) };
        let (index, cc) = (qp.peer, qp.init.cc.clone());
        // Everything that can fail comes first.
        let wakes = qp.enter_cwnd(&mut self.cx, &cc, now)?;
        qp.ready_to_send(&self.cx.cfg, attr);
        self.apply(slot, wakes | Wakes::ARM);
        // The peer assumes that all our ports are up until an update says otherwise.
        if self.ports_up() != PlaneSet::first(self.cx.cfg.ports.len() as u8) {
            self.cx.peers.start_announcing(now, index);
            self.run_peer(now, index, &mut { Peers::SLICE });
        }
        Ok(())
    }

    /// Changes the retry attributes in RTS. A timer set for later is set again. A timer set for earlier expires
    /// without effect and is set again then.
    fn set_retry(&mut self, slot: u32, attr: RetryAttr) -> Result<(), EndpointError> {
        check_retry(attr)?;
        if let Some(qp) = self.qps.get_mut(slot) {
            qp.set_retry(attr);
        }
        self.arm(slot);
        Ok(())
    }

    /// Reports that a port went down or came up. Queue pairs stop or resume using the paths over it: the first few at
    /// once, the others at the next calls of [`on_timeout`](Self::on_timeout), so that no call takes long. Every peer
    /// gets a port status update.
    pub fn port_link(&mut self, now: Time, port: u8, up: bool) {
        if usize::from(port) >= self.cx.cfg.ports.len() || self.cx.peers.ports_up.contains(port) == up {
            return;
        }
        self.cx.counters.port_changes += 1;
        log_local_port(port, up);
        self.cx.peers.ports_up.0 ^= 1 << port;
        if !up {
            self.cx.counters.tx_endpoint_dropped += self.cx.peers.requests.drop_plane(port);
            let before = self.given_back.len();
            self.given_back.retain(|packet| packet.port != port);
            self.cx.counters.tx_unsent_dropped += (before - self.given_back.len()) as u64;
        }
        self.announce_to_all(now);
    }

    /// Planes that a queue pair may use, judging by the peer's ports.
    pub fn peer_planes(&self, qpn: Qpn) -> Option<PlaneSet> {
        self.qps.find(qpn).map(|qp| qp.paths.ports().1)
    }

    /// Planes that a queue pair may use now: their ports are up on both sides, as far as is known.
    pub fn planes(&self, qpn: Qpn) -> Option<PlaneSet> {
        let (ours, theirs) = self.qps.find(qpn)?.paths.ports();
        Some(PlaneSet(ours.0 & theirs.0))
    }

    /// The roles of a queue pair's planes; `None` also if they have none.
    pub fn role_status(&self, qpn: Qpn) -> Option<RoleStatus> {
        self.qps.find(qpn)?.paths.role_status()
    }

    /// Makes a role of planes the preferred one of a queue pair: for maintenance of a NIC, or because it slows the job.
    /// Packets take its planes from now on, or once they have been fit for the hold time
    /// ([`Paths::prefer`]). Returns whether they do; `false` also if there is no such queue pair, or the role has no
    /// planes.
    pub fn prefer_role(&mut self, qpn: Qpn, role: PlaneRole) -> bool {
        self.with_paths(qpn, |paths| paths.prefer(role)).unwrap_or(false)
    }

    /// Entropy values of a queue pair with their states.
    pub fn ev_states(&self, qpn: Qpn) -> Option<impl Iterator<Item = EvStatus> + '_> {
        self.qps.find(qpn).map(|qp| qp.paths.states())
    }

    /// Counters of a queue pair's paths.
    pub fn path_counters(&self, qpn: Qpn) -> Option<&PathCounters> {
        self.qps.find(qpn).map(|qp| qp.paths.counters())
    }

    /// The next change of an entropy value's state on this queue pair.
    pub fn poll_ev_event(&mut self, qpn: Qpn) -> Option<EvEvent> {
        let qp = self.qps.find_mut(qpn)?;
        let event = qp.paths.poll_event();
        qp.path_events_reported &= event.is_some();
        if let Some(event) = &event {
            qp.log_path(&self.cx.peers, event);
        }
        event
    }

    /// The details of the failure of a queue pair in ERROR.
    pub fn qp_failure(&self, qpn: Qpn) -> Option<QpFailure> {
        self.qps.find(qpn)?.failure.as_deref().copied()
    }

    /// Denies an entropy value, on one plane or on all; returns how many entries changed.
    pub fn deny_ev(&mut self, qpn: Qpn, ev: Ev, plane: Option<u8>) -> usize {
        let denied = self.with_paths(qpn, |paths| paths.deny_ev(ev, plane)).unwrap_or(0);
        if denied > 0 {
            self.log_denied(qpn, Some(ev), plane, true);
            self.cx.events.push_back(Event::PathDenied { qpn, ev: Some(ev), plane });
        }
        denied
    }

    /// Allows an entropy value again; returns how many entries changed.
    pub fn allow_ev(&mut self, qpn: Qpn, ev: Ev, plane: Option<u8>) -> usize {
        let allowed = self.with_paths(qpn, |paths| paths.allow_ev(ev, plane)).unwrap_or(0);
        if allowed > 0 {
            self.log_denied(qpn, Some(ev), plane, false);
        }
        allowed
    }

    /// Denies a whole plane to a queue pair; `false` if it was already denied or does not exist.
    pub fn deny_plane(&mut self, qpn: Qpn, plane: u8) -> bool {
        let denied = self.with_paths(qpn, |paths| paths.deny_plane(plane)).unwrap_or(false);
        if denied {
            self.log_denied(qpn, None, Some(plane), true);
            self.cx.events.push_back(Event::PathDenied { qpn, ev: None, plane: Some(plane) });
        }
        denied
    }

    /// Allows a plane again; `false` if it was not denied.
    pub fn allow_plane(&mut self, qpn: Qpn, plane: u8) -> bool {
        let allowed = self.with_paths(qpn, |paths| paths.allow_plane(plane)).unwrap_or(false);
        if allowed {
            self.log_denied(qpn, None, Some(plane), false);
        }
        allowed
    }

    fn log_denied(&self, qpn: Qpn, ev: Option<Ev>, plane: Option<u8>, denied: bool) {
        if let Some(qp) = self.qps.find(qpn) {
            qp.log_denied(&self.cx.peers, ev, plane, denied);
        }
    }

    pub(super) fn with_paths<R>(&mut self, qpn: Qpn, act: impl FnOnce(&mut Paths) -> R) -> Option<R> {
        let qp = self.qps.find_mut(qpn)?;
        let result = act(&mut qp.paths);
        let (slot, control) = (qp.slot, Wakes::CONTROL.when(qp.responder.has_pending_acks()));
        self.apply(slot, control | Wakes::DATA | Wakes::ARM);
        Some(result)
    }
}

/// Refuses limits that are out of range.
fn check_rts(attr: &RtsAttr) -> Result<(), EndpointError> {
    in_range("rnr_retry", attr.rnr_retry.into(), 0, RtsAttr::MAX_RNR.into(), "")
}

fn check_retry(attr: RetryAttr) -> Result<(), EndpointError> {
    let RetryAttr { timeout, linear_retries, exponential_retries } = attr;
    in_range("timeout", timeout.into(), 1, RtsAttr::MAX_TIMEOUT.into(), "")?;
    in_range("linear_retries", linear_retries.into(), 0, RtsAttr::MAX_LINEAR.into(), "")?;
    let most = RtsAttr::MAX_EXPONENTIAL.into();
    in_range("exponential_retries", exponential_retries.into(), 0, most, "")
}

/// Refuses a value that is not from `low` to `high`; `unit` follows these in the error.
fn in_range(name: &'static str, value: u32, low: u32, high: u32, unit: &str) -> Result<(), EndpointError> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    let allowed = format!("{low} to {high}{unit}");
    Err(EndpointError::BadAttribute { name, value: u64::from(value), allowed })
}
