//! Congestion windows: one for each queue pair, or one that those to the same peer share.
//!
//! A queue pair that a window of its own holds back is looked at again when its own packets are answered. Where the window is
//! shared, the answers to others open it. So those that wait for it stand in a queue. Whatever may make room
//! *stirs* the window, and then as many as it has room for join the senders, who has waited for longest first. Who leaves the
//! senders stirs it too, since it may have had nothing to send: so as long as there is room, somebody who may use it is
//! among the senders, or nobody waits.
//!
//! A queue pair whose retransmission timer expires *steps aside* until it makes progress: what it has in flight is long gone,
//! and would keep the others out of the window until the queue pair fails.

use std::collections::VecDeque;

use crate::congestion::{self, CcAlgorithm, CcConfig, Controller, Flight};
use crate::requester::Env;
use crate::time::Time;
use crate::wire::Qpn;

use super::peer::Peer;
use super::qp::Qp;
use super::senders::List;
use super::transmit::Turn;
use super::{Endpoint, EndpointError, QpState};

/// What limits what a queue pair has in flight.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a box would cost a cache miss for every packet")]
pub(super) enum Cwnd {
    Own(Controller),
    /// By its place among the shared ones.
    Shared(u32),
}

impl Cwnd {
    #[inline]
    pub(super) fn get<'a>(&'a self, shared: &'a SharedCwnds) -> &'a Controller {
        match self {
            Self::Own(cc) => cc,
            Self::Shared(index) => &shared.all[*index as usize].cc,
        }
    }

    /// For what only takes room: a packet that leaves.
    #[inline]
    pub(super) fn get_mut<'a>(&'a mut self, shared: &'a mut SharedCwnds) -> &'a mut Controller {
        match self {
            Self::Own(cc) => cc,
            Self::Shared(index) => &mut shared.all[*index as usize].cc,
        }
    }

    /// For what may make room: [`Endpoint::wake_waiting`] follows.
    #[inline]
    pub(super) fn stir<'a>(&'a mut self, shared: &'a mut SharedCwnds) -> &'a mut Controller {
        if let Self::Shared(index) = self {
            shared.stir(*index);
        }
        self.get_mut(shared)
    }
}

/// The windows that queue pairs share.
#[derive(Debug, Default)]
pub(super) struct SharedCwnds {
    all: Vec<SharedCwnd>,
    /// Places of those that nobody uses.
    free: Vec<u32>,
    /// Those that may have room for queue pairs that wait.
    stirred: Vec<u32>,
    /// Slots of queue pairs that may send now, or then.
    woken: Vec<(u32, Option<Time>)>,
    /// The latest time at which one was looked at: those that pace packets have room by it.
    pub(super) now: Time,
}

#[derive(Debug)]
struct SharedCwnd {
    cc: Controller,
    cfg: CcConfig,
    members: u32,
    /// Slots of the queue pairs that wait, each once.
    waiting: VecDeque<u32>,
    is_stirred: bool,
}

impl SharedCwnds {
    #[cold]
    fn stir(&mut self, index: u32) {
        let cwnd = &mut self.all[index as usize];
        if !cwnd.waiting.is_empty() && !cwnd.is_stirred {
            cwnd.is_stirred = true;
            self.stirred.push(index);
        }
    }

    /// One more queue pair shares the window of this peer with these settings.
    fn join(
        &mut self,
        peer: &mut Peer,
        cfg: &CcConfig,
        (qpn, planes): (Qpn, u8),
        now: Time,
    ) -> Result<u32, EndpointError> {
        let same = peer.cwnds.iter().find(|&&index| self.all[index as usize].cfg == *cfg);
        if let Some(&index) = same {
            self.all[index as usize].members += 1;
            return Ok(index);
        }
        let mut cc = congestion::build(cfg, now)?;
        cc.set_up(qpn, planes);
        let waiting = VecDeque::new();
        let made = SharedCwnd { cc, cfg: cfg.clone(), members: 1, waiting, is_stirred: false };
        let index = self.free.pop().unwrap_or(self.all.len() as u32);
        match self.all.get_mut(index as usize) {
            Some(place) => *place = made,
            None => self.all.push(made),
        }
        peer.cwnds.push(index);
        Ok(index)
    }

    /// The queue pair in `slot` shares the window no longer; what it has in flight counts no more.
    fn leave(&mut self, index: u32, slot: u32, flights: impl Iterator<Item = Flight>) -> Left {
        let cwnd = &mut self.all[index as usize];
        let mut copy = cwnd.cc.clone();
        copy.clear();
        for flight in flights {
            cwnd.cc.on_discard(&flight);
            copy.on_send(&flight);
        }
        cwnd.waiting.retain(|&waiting| waiting != slot);
        cwnd.members -= 1;
        let was_last = cwnd.members == 0;
        if was_last {
            self.free.push(index);
        }
        self.stir(index);
        Left { copy, was_last }
    }

    /// The queue pair in `slot` waits for room.
    fn wait(&mut self, index: u32, slot: u32) {
        self.all[index as usize].waiting.push_back(slot);
    }

    /// Takes those that have waited for longest off the queues of the windows that were stirred: a queue pair for each
    /// packet that there is room for. `usable` tells the planes that one can use. If none may send because packets are paced,
    /// the first one is to look again then.
    fn wake(&mut self, usable: impl Fn(u32) -> u32) {
        let Self { all, stirred, woken, now, .. } = self;
        for index in stirred.drain(..) {
            let SharedCwnd { cc, cfg, waiting, is_stirred, .. } = &mut all[index as usize];
            debug_assert!(*is_stirred, "a window is stirred once, and has as many woken as it has room for");
            *is_stirred = false;
            let packet = u64::from(cfg.mtu_bytes);
            let open = cc.open_planes(packet, *now);
            if open == 0 {
                let at = cc.opens_at(*now);
                if at != Time::NEVER
                    && let Some(&first) = waiting.front()
                {
                    woken.push((first, Some(at)));
                }
                continue;
            }
            let mut room = (cc.cwnd().saturating_sub(cc.inflight()) / packet).max(1);
            let mut left = waiting.len();
            while room > 0 && left > 0 {
                let Some(slot) = waiting.pop_front() else { break };
                left -= 1;
                if usable(slot) & open == 0 {
                    waiting.push_back(slot);
                    continue;
                }
                room -= 1;
                woken.push((slot, None));
            }
        }
    }
}

/// A window as it was when a queue pair left it, with what that has in flight, and whether it was the last one.
struct Left {
    copy: Controller,
    was_last: bool,
}

impl Qp {
    fn stop_waiting(&mut self) {
        if core::mem::take(&mut self.waits_for_cwnd) {
            self.places[List::New as usize].listed = false;
        }
    }

    /// The requester with what it works on.
    #[inline]
    pub(super) fn requester_env<'a>(
        &'a mut self,
        cwnds: &'a mut SharedCwnds,
        counters: &'a mut crate::counters::Counters,
    ) -> (&'a mut crate::requester::Requester, Env<'a>) {
        (&mut self.requester, Env { paths: &mut self.paths, cc: self.cwnd.stir(cwnds), counters })
    }
}

impl Endpoint {
    /// Gives a connected queue pair a window for these settings: of its own, or its peer's. What it has in flight
    /// counts there from now on, since the records of its packets will take the same bytes out again.
    pub(super) fn enter_cwnd(&mut self, slot: u32, cc: &CcConfig, now: Time) -> Result<(), EndpointError> {
        let Some(qp) = self.qps[slot as usize].as_deref_mut() else { return Ok(()) };
        let cfg = qp.cc_config(cc);
        let planes = qp.paths.plane_count();
        let peer = self.peers.get_mut(qp.peer as usize).and_then(Option::as_mut);
        let shares = cfg.shared && cfg.algorithm != CcAlgorithm::None;
        let mut entered = if let Some(peer) = peer.filter(|_| shares) {
            Cwnd::Shared(self.cwnds.join(peer, &cfg, (qp.qpn, planes), now)?)
        } else {
            let mut cc = congestion::build(&cfg, now)?;
            cc.set_up(qp.qpn, planes);
            Cwnd::Own(cc)
        };
        let cc = entered.get_mut(&mut self.cwnds);
        for flight in qp.requester.flights(&qp.paths) {
            cc.on_send(&flight);
        }
        self.leave_cwnd(slot);
        if let Some(qp) = self.qp_mut(slot) {
            qp.cwnd = entered;
            qp.is_aside = false;
        }
        Ok(())
    }

    /// Takes a queue pair out of the window that it shares, if it does. It keeps a copy of its own.
    pub(super) fn leave_cwnd(&mut self, slot: u32) {
        let Some(qp) = self.qps[slot as usize].as_deref_mut() else { return };
        let Cwnd::Shared(index) = qp.cwnd else { return };
        let Left { copy, was_last } = self.cwnds.leave(index, slot, qp.requester.flights(&qp.paths));
        qp.cwnd = Cwnd::Own(copy);
        qp.stop_waiting();
        if was_last && let Some(peer) = self.peers.get_mut(qp.peer as usize).and_then(Option::as_mut) {
            peer.cwnds.retain(|&other| other != index);
        }
        self.wake_waiting();
    }

    /// The queue pair whose turn it is in this list sends nothing. If that is because of a window that it shares, it waits
    /// for it.
    #[cold]
    pub(super) fn pass(&mut self, list: List, slot: u32) -> Turn {
        if let Some(qp) = self.qps[slot as usize].as_deref_mut()
            && let Cwnd::Shared(index) = qp.cwnd
            && qp.requester.has_work()
        {
            // If its turn to send repairs comes to nothing, that for new data may be still to come.
            let new = &mut qp.places[List::New as usize];
            if list == List::New || !new.listed {
                new.listed = true;
                qp.waits_for_cwnd = true;
                self.counters.tx_cwnd_waits += 1;
                self.cwnds.wait(index, slot);
            }
        }
        Turn::Idle
    }

    /// The retransmission timer of a queue pair has expired.
    pub(super) fn step_aside(&mut self, slot: u32) {
        let Some(qp) = self.qp_mut(slot) else { return };
        if matches!(qp.cwnd, Cwnd::Shared(_)) {
            qp.is_aside = true;
            self.leave_cwnd(slot);
        }
    }

    /// The peer of a queue pair has answered: it may send, and so may others that share its window.
    pub(super) fn heard(&mut self, now: Time, slot: u32) {
        self.cwnds.now = now;
        if self.qp(slot).is_some_and(|qp| qp.is_aside) {
            self.come_back(now, slot);
        }
        self.go_on(slot);
    }

    #[cold]
    fn come_back(&mut self, now: Time, slot: u32) {
        let Some(qp) = self.qp(slot).filter(|qp| qp.state == QpState::Rts && !qp.requester.retries()) else {
            return;
        };
        let cc = qp.other_cc.as_deref().unwrap_or(&qp.init.cc).clone();
        // It was entered with the same settings before.
        let _ = self.enter_cwnd(slot, &cc, now);
    }

    /// Something has changed for a queue pair: it may send, and so may others that share its window.
    pub(super) fn go_on(&mut self, slot: u32) {
        self.wake_data(slot);
        self.wake_waiting();
    }

    /// Lists queue pairs that waited for a window that has room now.
    #[inline]
    pub(super) fn wake_waiting(&mut self) {
        if !self.cwnds.stirred.is_empty() {
            self.wake_stirred();
        }
    }

    #[cold]
    fn wake_stirred(&mut self) {
        let mut cwnds = core::mem::take(&mut self.cwnds);
        let qps = &self.qps;
        let usable = |slot: u32| match qps.get(slot as usize).and_then(Option::as_deref) {
            Some(qp) => qp.paths.usable_planes().0,
            None => u32::MAX,
        };
        cwnds.wake(usable);
        for (slot, at) in cwnds.woken.drain(..) {
            match (at, self.qp_mut(slot)) {
                (Some(at), Some(qp)) => {
                    qp.pace_at = at;
                    self.arm(slot);
                }
                (None, Some(qp)) => {
                    qp.stop_waiting();
                    self.wake_data(slot);
                }
                (_, None) => {}
            }
        }
        self.cwnds = cwnds;
    }
}
