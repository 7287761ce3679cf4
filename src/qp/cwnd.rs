//! Congestion windows: one for each queue pair, or one shared by those to the same peer.
//!
//! A queue pair that waits for its own window is checked again when its own packets are acknowledged. Acknowledgements
//! for other queue pairs open a shared window, so those that wait for it are queued at the window. Whatever may make
//! room marks the window as maybe open. Then as many queue pairs as it has room for are listed to send, the longest
//! waiting first. A queue pair that leaves the lists marks the window too, because it may have had nothing to send. So
//! while there is room, either a queue pair that may use it is listed, or none waits.
//!
//! A queue pair whose retransmission timer expires *leaves* the shared window until it makes progress. Its packets in
//! flight are probably lost, and would take window from the others until the queue pair fails.

use std::collections::VecDeque;

use crate::congestion::{self, CcAlgorithm, CcConfig, Controller, Flight};
use crate::counters::Counters;
use crate::peer::Peer;
use crate::requester::{Requester, SendContext};
use crate::time::Time;
use crate::wire::Qpn;

use super::{Cx, EndpointError, Qp, QpState, QpTable, TxClass, Wakes};

/// The window that limits a queue pair's packets in flight.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a box would cost a cache miss for every packet")]
pub(crate) enum Cwnd {
    Own(Controller),
    /// Index among the shared windows.
    Shared(u32),
}

impl Cwnd {
    #[inline]
    pub(crate) fn get<'a>(&'a self, shared: &'a SharedCwnds) -> &'a Controller {
        match self {
            Self::Own(cc) => cc,
            Self::Shared(index) => &shared.all[*index as usize].cc,
        }
    }

    /// Access for operations that only take room, such as sending a packet.
    #[inline]
    pub(crate) fn get_mut<'a>(&'a mut self, shared: &'a mut SharedCwnds) -> &'a mut Controller {
        match self {
            Self::Own(cc) => cc,
            Self::Shared(index) => &mut shared.all[*index as usize].cc,
        }
    }

    /// Access for operations that may make room: [`Wakes::CWND`] follows.
    #[inline]
    pub(crate) fn get_mut_may_open<'a>(&'a mut self, shared: &'a mut SharedCwnds) -> &'a mut Controller {
        if let Self::Shared(index) = self {
            shared.may_open(*index);
        }
        self.get_mut(shared)
    }
}

/// The windows that queue pairs share.
#[derive(Debug, Default)]
pub(crate) struct SharedCwnds {
    all: Vec<SharedCwnd>,
    /// Unused indices.
    free: Vec<u32>,
    /// Windows that may have room for queue pairs that wait.
    maybe_open_list: Vec<u32>,
    /// Slots of queue pairs that may send now, or at the given time.
    woken: Vec<(u32, Option<Time>)>,
    /// The latest time at which a window was checked: windows that pace packets have room by it.
    pub(crate) now: Time,
}

#[derive(Debug)]
struct SharedCwnd {
    cc: Controller,
    cfg: CcConfig,
    members: u32,
    /// Slots of the waiting queue pairs, each once.
    waiting: VecDeque<u32>,
    maybe_open: bool,
}

impl SharedCwnds {
    #[cold]
    fn may_open(&mut self, index: u32) {
        let cwnd = &mut self.all[index as usize];
        if !cwnd.waiting.is_empty() && !cwnd.maybe_open {
            cwnd.maybe_open = true;
            self.maybe_open_list.push(index);
        }
    }

    /// Adds a queue pair to the shared window of this peer with these settings.
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
        let made = SharedCwnd { cc, cfg: cfg.clone(), members: 1, waiting, maybe_open: false };
        let index = self.free.pop().unwrap_or(self.all.len() as u32);
        match self.all.get_mut(index as usize) {
            Some(place) => *place = made,
            None => self.all.push(made),
        }
        peer.cwnds.push(index);
        Ok(index)
    }

    /// Removes the queue pair in `slot` from the shared window, with its bytes in flight.
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
        self.may_open(index);
        Left { copy, was_last }
    }

    /// Queues the queue pair in `slot` until there is room.
    fn wait(&mut self, index: u32, slot: u32) {
        self.all[index as usize].waiting.push_back(slot);
    }

    /// Removes the longest waiting queue pairs from the queues of the windows that may have opened: one for each
    /// packet that there is room for. `usable` returns the planes that a queue pair can use. If none may send because
    /// packets are paced, the first one is to check again at the pacing time.
    fn wake(&mut self, usable: impl Fn(u32) -> u32) {
        let Self { all, maybe_open_list, woken, now, .. } = self;
        for index in maybe_open_list.drain(..) {
            let SharedCwnd { cc, cfg, waiting, maybe_open, .. } = &mut all[index as usize];
            debug_assert!(*maybe_open, "a window is listed once, and has as many woken as it has room for");
            *maybe_open = false;
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

/// A window as it was when a queue pair left it, with the bytes in flight of that queue pair, and whether it was the
/// last one.
struct Left {
    copy: Controller,
    was_last: bool,
}

impl SharedCwnds {
    /// Whether waiting queue pairs may have room.
    #[inline]
    pub(crate) fn may_have_opened(&self) -> bool {
        !self.maybe_open_list.is_empty()
    }

    /// Removes queue pairs that have room now from the queues of their windows. Passes each slot to `list`, or the
    /// time of its next check.
    #[cold]
    pub(crate) fn wake_waiters(&mut self, qps: &QpTable) -> Vec<(u32, Option<Time>)> {
        let usable = |slot: u32| qps.get(slot).map_or(u32::MAX, |qp| qp.paths.usable_planes().0);
        self.wake(usable);
        core::mem::take(&mut self.woken)
    }

    /// Returns the buffer from [`wake_waiters`](Self::wake_waiters) for reuse, so that nothing allocates.
    pub(crate) fn reuse(&mut self, mut woken: Vec<(u32, Option<Time>)>) {
        woken.clear();
        self.woken = woken;
    }
}

impl Qp {
    /// The queue pair no longer waits for its shared window.
    pub(crate) fn stop_waiting(&mut self) {
        if core::mem::take(&mut self.waits_for_cwnd) {
            self.tx_slots[TxClass::New as usize].listed = false;
        }
    }

    /// The requester, and the state that it works with.
    #[inline]
    pub(crate) fn send_context<'a>(
        &'a mut self,
        cwnds: &'a mut SharedCwnds,
        counters: &'a mut Counters,
    ) -> (&'a mut Requester, SendContext<'a>) {
        (
            &mut self.requester,
            SendContext { paths: &mut self.paths, cc: self.cwnd.get_mut_may_open(cwnds), counters },
        )
    }

    /// Gives a connected queue pair a window for these settings: its own, or its peer's. Its bytes in flight count
    /// there from now on, since the records of its packets will subtract the same bytes.
    pub(crate) fn enter_cwnd(
        &mut self,
        cx: &mut Cx,
        cc: &CcConfig,
        now: Time,
    ) -> Result<Wakes, EndpointError> {
        let cfg = self.cc_config(cc);
        let planes = self.paths.plane_count();
        let shares = cfg.shared && cfg.algorithm != CcAlgorithm::None;
        let mut entered = if let Some(peer) = cx.peers.get_mut(self.peer).filter(|_| shares) {
            Cwnd::Shared(cx.cwnds.join(peer, &cfg, (self.qpn, planes), now)?)
        } else {
            let mut cc = congestion::build(&cfg, now)?;
            cc.set_up(self.qpn, planes);
            Cwnd::Own(cc)
        };
        let cc = entered.get_mut(&mut cx.cwnds);
        for flight in self.requester.flights(&self.paths) {
            cc.on_send(&flight);
        }
        let wakes = self.leave_cwnd(cx);
        self.cwnd = entered;
        self.left_cwnd = false;
        Ok(wakes)
    }

    /// Removes a queue pair from the window that it shares, if it does. It keeps a copy of its own.
    pub(crate) fn leave_cwnd(&mut self, cx: &mut Cx) -> Wakes {
        let Cwnd::Shared(index) = self.cwnd else { return Wakes::NONE };
        let Left { copy, was_last } = cx.cwnds.leave(index, self.slot, self.requester.flights(&self.paths));
        self.cwnd = Cwnd::Own(copy);
        self.stop_waiting();
        if was_last && let Some(peer) = cx.peers.get_mut(self.peer) {
            peer.cwnds.retain(|&other| other != index);
        }
        Wakes::CWND
    }

    /// The queue pair whose turn it is in this list has no room in its window. If it shares that, it waits for it.
    #[cold]
    pub(super) fn park_on_shared_cwnd(&mut self, cx: &mut Cx, class: TxClass) {
        if let Cwnd::Shared(index) = self.cwnd {
            // If its turn to retransmit yields nothing, its turn for new data may still come.
            let new = &mut self.tx_slots[TxClass::New as usize];
            if class == TxClass::New || !new.listed {
                new.listed = true;
                self.waits_for_cwnd = true;
                cx.counters.tx_cwnd_waits += 1;
                cx.cwnds.wait(index, self.slot);
            }
        }
    }

    /// The retransmission timer of a queue pair has expired.
    pub(super) fn leave_shared_cwnd_on_rto(&mut self, cx: &mut Cx) -> Wakes {
        if !matches!(self.cwnd, Cwnd::Shared(_)) {
            return Wakes::NONE;
        }
        self.left_cwnd = true;
        self.leave_cwnd(cx)
    }

    /// The peer has acknowledged something: the queue pair may send, and so may others that share its window.
    #[inline]
    pub(super) fn on_peer_response(&mut self, cx: &mut Cx, now: Time) -> Wakes {
        cx.cwnds.now = now;
        let wakes = if self.left_cwnd { self.rejoin_shared_cwnd(cx, now) } else { Wakes::NONE };
        wakes | Wakes::DATA | Wakes::CWND
    }

    #[cold]
    fn rejoin_shared_cwnd(&mut self, cx: &mut Cx, now: Time) -> Wakes {
        if self.state != QpState::Rts || self.requester.retries() {
            return Wakes::NONE;
        }
        let cc = self.other_cc.as_deref().unwrap_or(&self.init.cc).clone();
        // The same settings were used before.
        self.enter_cwnd(cx, &cc, now).unwrap_or(Wakes::NONE)
    }
}
