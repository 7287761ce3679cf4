//! The queue pairs of a host: who receives a packet, and who sends the next one.
//!
//! Acknowledgements and CNPs leave first, in the control class. Queue pairs that have data and whose rate allows a packet take turns, one packet
//! each. Nothing here reads a clock: `now` is an argument, and never goes back.

use std::collections::{BTreeSet, VecDeque};

use spindrift::time::Time;
use spindrift::wire::{DscpMap, Psn, Qpn};

use crate::qp::{Peer, Qp, QpSpec};
use crate::requester::{Status, Write};
use crate::responder::Placed;
use crate::wire::{Content, Head, read};

/// Something that happened to a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpEvent {
    /// A write ended.
    Completed {
        /// The queue pair.
        qp: u32,
        /// The write's.
        wr_id: u64,
        /// How.
        status: Status,
    },
    /// Bytes of the peer's were placed.
    Placed {
        /// The queue pair.
        qp: u32,
        /// Which.
        placed: Placed,
    },
}

/// The planes whose ports would send at once, bit n for plane n: one set for acknowledgements and CNPs, one for data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// Not paused, and idle.
    pub control: u32,
    /// The same.
    pub data: u32,
}

/// What an endpoint has done, all queue pairs together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Data packets sent.
    pub sent: u64,
    /// Those sent before.
    pub repeats: u64,
    /// Sequence error NAKs that came in and made a queue pair go back.
    pub sequence_naks: u64,
    /// Times that a retransmission timer expired.
    pub timeouts: u64,
    /// Acknowledgements of what was not outstanding.
    pub strange_acks: u64,
    /// Bytes placed.
    pub placed_bytes: u64,
    /// Data packets that had come before.
    pub duplicates: u64,
    /// Data packets that came too early.
    pub gaps: u64,
    /// Data packets that were refused.
    pub refused: u64,
    /// Data packets that came in marked.
    pub marked: u64,
    /// CNPs that came in.
    pub cnps: u64,
    /// CNPs sent.
    pub cnps_sent: u64,
    /// Packets for no queue pair, or that are none of RoCEv2.
    pub strays: u64,
}

/// The queue pairs of one plane that have something to send.
#[derive(Debug, Default)]
struct Queue {
    /// Those with data whose rate allows a packet.
    ready: VecDeque<u32>,
    /// Those that have to wait, by until when.
    paced: BTreeSet<(Time, u32)>,
    /// Those with an acknowledgement or a CNP.
    control: VecDeque<u32>,
}

/// The number of the first queue pair; those below are special (section 3.5.3 of the specification).
const FIRST_QPN: u32 = 2;
/// What a link is busy with besides a frame: preamble, checksum and gap.
const AROUND_FRAME: u64 = 24;

/// See the module.
#[derive(Debug)]
pub struct Endpoint {
    dscp: DscpMap,
    qps: Vec<Qp>,
    /// By plane.
    queues: Vec<Queue>,
    /// Retransmission timers, at or before the time at which they are due.
    timers: BTreeSet<(Time, u32)>,
    /// The plane that has its turn.
    turn: u32,
    events: VecDeque<QpEvent>,
    strays: u64,
}

impl Endpoint {
    /// With ports in so many planes, and packets of these classes.
    pub fn new(planes: u8, dscp: DscpMap) -> Self {
        Self {
            dscp,
            qps: Vec::new(),
            queues: (0..planes.max(1)).map(|_| Queue::default()).collect(),
            timers: BTreeSet::new(),
            turn: 0,
            events: VecDeque::new(),
            strays: 0,
        }
    }

    /// The number that the next queue pair is going to have on the wire.
    pub const fn next_qpn(&self) -> Qpn {
        Qpn::new(FIRST_QPN + self.qps.len() as u32)
    }

    /// Makes a queue pair that sends to a peer, from `psn` on. Returns its number here.
    pub fn add_qp(&mut self, spec: &QpSpec, psn: Psn, peer: Peer) -> u32 {
        let last = self.queues.len() as u8 - 1;
        let path = crate::wire::Path { plane: peer.path.plane.min(last), ..peer.path };
        self.qps.push(Qp::new(spec, psn, Peer { path, ..peer }));
        self.qps.len() as u32 - 1
    }

    /// Takes a write; `false` if the queue pair has failed, or there is none.
    pub fn post(&mut self, now: Time, qp: u32, write: Write) -> bool {
        let posted = self.qps.get_mut(qp as usize).is_some_and(|at| at.requester.post(write));
        self.see_to(now, qp);
        posted
    }

    /// A frame has come in: its headers, and how many bytes follow.
    pub fn receive(&mut self, now: Time, head: &[u8], follows: u32) {
        let datagram = read(head, follows);
        let found = datagram.and_then(|datagram| {
            let qp = datagram.to.get().checked_sub(FIRST_QPN)?;
            Some((datagram, qp, self.qps.get_mut(qp as usize)?))
        });
        let Some((datagram, qp, at)) = found else {
            self.strays += 1;
            return;
        };
        if let Some(placed) = at.receive(now, &datagram.content, datagram.marked) {
            self.events.push_back(QpEvent::Placed { qp, placed });
        }
        self.see_to(now, qp);
    }

    /// Puts a queue pair where it belongs after a change.
    fn see_to(&mut self, now: Time, qp: u32) {
        let Some(at) = self.qps.get_mut(qp as usize) else { return };
        while let Some((wr_id, status)) = at.requester.poll() {
            self.events.push_back(QpEvent::Completed { qp, wr_id, status });
        }
        let Some(queue) = self.queues.get_mut(usize::from(at.peer.path.plane)) else { return };
        if at.control_waits() && !at.has_control {
            at.has_control = true;
            queue.control.push_back(qp);
        }
        if at.requester.has_next() && !at.scheduled {
            at.scheduled = true;
            let may_send_at = at.may_send_at();
            if may_send_at <= now {
                queue.ready.push_back(qp);
            } else {
                queue.paced.insert((may_send_at, qp));
            }
        }
        // A timer that is set too early is set again when it expires; that is cheaper than to move it with each acknowledgement.
        let deadline = at.requester.deadline();
        if deadline < at.timer_at {
            self.timers.remove(&(at.timer_at, qp));
            at.timer_at = deadline;
            self.timers.insert((deadline, qp));
        }
    }

    /// Those whose rate allows a packet now are ready, in the order of these times.
    fn release(&mut self, now: Time) {
        for queue in &mut self.queues {
            while let Some(&(at, qp)) = queue.paced.first()
                && at <= now
            {
                queue.paced.pop_first();
                queue.ready.push_back(qp);
            }
        }
    }

    /// The next packet, and its plane. `None` if there is none that a port would send at once.
    pub fn transmit(&mut self, now: Time, ports: Ports) -> Option<(Head, u8)> {
        self.release(now);
        let planes = self.queues.len() as u32;
        for turn in 0..planes {
            let plane = (self.turn + turn) % planes;
            let free = |planes: u32| planes >> plane & 1 == 1;
            let head = match free(ports.control).then(|| self.transmit_control(now, plane)).flatten() {
                Some(head) => Some(head),
                None => free(ports.data).then(|| self.transmit_data(now, plane)).flatten(),
            };
            if let Some(head) = head {
                self.turn = (plane + 1) % planes;
                return Some((head, plane as u8));
            }
        }
        None
    }

    fn transmit_control(&mut self, now: Time, plane: u32) -> Option<Head> {
        let queue = self.queues.get_mut(plane as usize)?;
        while let Some(qp) = queue.control.pop_front() {
            let Some(at) = self.qps.get_mut(qp as usize) else { continue };
            at.has_control = false;
            let Some(content) = at.control() else { continue };
            let head = Head::new(&at.peer.path, at.peer.qpn, &content, self.dscp.control);
            self.see_to(now, qp);
            return Some(head);
        }
        None
    }

    fn transmit_data(&mut self, now: Time, plane: u32) -> Option<Head> {
        let queue = self.queues.get_mut(plane as usize)?;
        while let Some(qp) = queue.ready.pop_front() {
            let Some(at) = self.qps.get_mut(qp as usize) else { continue };
            at.scheduled = false;
            let Some(data) = at.requester.transmit(now) else { continue };
            let head = Head::new(&at.peer.path, at.peer.qpn, &Content::Data(data), self.dscp.no_trim);
            let bytes = head.bytes().len() as u64 + u64::from(head.follows) + AROUND_FRAME;
            at.on_sent(now, bytes);
            self.see_to(now, qp);
            return Some(head);
        }
        None
    }

    /// When [`on_timeout`](Self::on_timeout) has to be called: a timer expires, or a rate allows the next packet.
    pub fn next_timeout(&self) -> Time {
        let paced = self.queues.iter().filter_map(|queue| queue.paced.first());
        paced.chain(self.timers.first()).map(|&(at, _)| at).min().unwrap_or(Time::NEVER)
    }

    /// That time has come.
    pub fn on_timeout(&mut self, now: Time) {
        self.release(now);
        while let Some(&(at, qp)) = self.timers.first()
            && at <= now
        {
            self.timers.pop_first();
            let Some(at) = self.qps.get_mut(qp as usize) else { continue };
            at.timer_at = Time::NEVER;
            at.requester.on_timeout(now);
            self.see_to(now, qp);
        }
    }

    /// The next thing that happened.
    pub fn poll(&mut self) -> Option<QpEvent> {
        self.events.pop_front()
    }

    /// Queue pairs.
    pub const fn qps(&self) -> u32 {
        self.qps.len() as u32
    }

    /// The rate of a queue pair, bits per second; `None` if there is no such.
    pub fn rate_bps(&mut self, now: Time, qp: u32) -> Option<u64> {
        self.qps.get_mut(qp as usize).map(|qp| qp.rate_bps(now))
    }

    /// What all have done.
    pub fn counters(&self) -> Counters {
        let mut all = Counters { strays: self.strays, ..Counters::default() };
        for qp in &self.qps {
            let (sent, came, [cnps, cnps_sent]) =
                (qp.requester.counters(), qp.responder.counters(), qp.cnps());
            all.sent += sent.sent;
            all.repeats += sent.repeats;
            all.sequence_naks += sent.sequence_naks;
            all.timeouts += sent.timeouts;
            all.strange_acks += sent.strange_acks;
            all.placed_bytes += came.placed_bytes;
            all.duplicates += came.duplicates;
            all.gaps += came.gaps;
            all.refused += came.refused;
            all.marked += came.marked;
            all.cnps += cnps;
            all.cnps_sent += cnps_sent;
        }
        all
    }
}

#[cfg(test)]
mod tests;
