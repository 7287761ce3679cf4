//! What one end of a queue pair writes to the other: which messages, from where, to where.
//!
//! The tests of the core compile this file, too: it knows nothing of the network.

use spindrift::endpoint::{Endpoint, PostError};
use spindrift::time::Time;
use spindrift::wire::Qpn;
use spindrift::work::{RecvWr, SendWr, Sge, WcStatus};

use super::ledger::{Check, GUARD, Ledger, Memory, Message, gather};
use super::rand::Rng;

/// The work of one end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) messages: u64,
    pub(crate) largest: u32,
    /// Bytes of the first message, if it is to be a long one.
    pub(crate) long: u32,
    /// In ten-thousandths.
    pub(crate) signaled: u32,
    pub(crate) immediates: u32,
    pub(crate) depth: u32,
    pub(crate) sig_all: bool,
}

/// A message to post, and the receive work request that it takes at the other end.
pub(crate) struct Posting {
    wr: SendWr,
    /// The same bytes in several elements.
    local: Option<Vec<Sge>>,
    pub(crate) receive: Option<RecvWr>,
}

/// See the [module documentation](self).
pub(crate) struct Writer {
    work: Work,
    qpn: Qpn,
    mtu: u32,
    pub(crate) rng: Rng,
    /// The same bytes as in the source, in memory of their own.
    mirror: Memory,
    pub(crate) ledger: Ledger,
    cursor: usize,
}

impl Work {
    /// Bytes of the region that messages are read from.
    pub(crate) fn source_len(&self) -> usize {
        self.largest.max(self.long) as usize + 5_000
    }

    /// Bytes of the region that they are written to.
    pub(crate) fn target_len(&self) -> usize {
        2 * GUARD + self.largest.max(self.long) as usize * 2 + 4096
    }
}

impl Posting {
    pub(crate) fn post(&self, now: Time, qpn: Qpn, endpoint: &mut Endpoint) -> Result<(), PostError> {
        match &self.local {
            None => endpoint.post_send(now, qpn, self.wr),
            Some(local) => endpoint.post_gather(now, qpn, gather(&self.wr, local)),
        }
    }
}

impl Writer {
    /// The writer of a queue pair. `mirror` is as long as `source`.
    pub(crate) fn new(
        work: Work,
        qpn: Qpn,
        mtu: u32,
        [source, mirror, target]: [Memory; 3],
        mut rng: Rng,
    ) -> Check<Self> {
        let ledger = Ledger::new(source, target, &[WcStatus::RetryExceeded], &mut rng)?;
        mirror.region.write_at(0, ledger.source_bytes()).map_err(|error| error.to_string())?;
        Ok(Self { work, qpn, mtu, rng, mirror, ledger, cursor: GUARD })
    }

    /// The keys of the memory that it sends from.
    pub(crate) fn lkeys(&self) -> [u32; 2] {
        [self.ledger.source(), &self.mirror].map(|memory| memory.key.lkey)
    }

    pub(crate) fn all_posted(&self) -> bool {
        self.ledger.failed || self.ledger.tally.posted == self.work.messages
    }

    pub(crate) fn finished(&self) -> bool {
        self.all_posted() && self.ledger.is_done()
    }

    /// The next message to post; `None` if all are, or the send queue is full, or messages under way use the place that it
    /// would be written to.
    pub(crate) fn next(&mut self) -> Option<Posting> {
        if self.all_posted() || self.ledger.outstanding() >= self.work.depth as usize {
            return None;
        }
        let message = self.next_message()?;
        let receive = message.imm.is_some().then(|| self.ledger.post_recv(message.wr_id ^ 0xf00d));
        let completes = message.signaled || self.work.sig_all;
        let wr = self.ledger.post(message, completes);
        // Drawn apart, so that what else a seed stands for does not depend on it.
        let mut rng = Rng::new(wr.wr_id ^ wr.local.addr);
        let several = rng.one_in(3);
        let local = several.then(|| self.ledger.split(&wr.local, &self.mirror, self.mtu, &mut rng));
        Some(Posting { wr, local, receive })
    }

    fn next_message(&mut self) -> Option<Message> {
        let mut rng = self.rng.clone();
        let len = match self.ledger.tally.posted {
            0 if self.work.long > 0 => self.work.long as usize,
            _ => self.length(&mut rng),
        };
        let start = self.cursor + rng.below(33) as usize;
        let area = self.ledger.area();
        let start = if start + len > area.end { area.start } else { start };
        let target = start..start + len;
        if !self.ledger.is_free(&target) {
            return None;
        }
        let message = Message {
            wr_id: self.ledger.tally.posted << 8 | u64::from(self.qpn.get() & 0xff),
            signaled: rng.chance(self.work.signaled),
            imm: rng.chance(self.work.immediates).then(|| rng.bits() as u32),
            source: rng.below((self.ledger.source_len() - len + 1) as u64) as usize,
            target,
        };
        self.cursor = message.target.end;
        self.rng = rng;
        Some(message)
    }

    fn length(&self, rng: &mut Rng) -> usize {
        let mtu = u64::from(self.mtu);
        let largest = u64::from(self.work.largest);
        let len = match rng.below(4) {
            0 => rng.range(1, largest),
            1 => (mtu * rng.range(1, largest / mtu + 1) + rng.below(3)).saturating_sub(1),
            _ => rng.sized(1, largest),
        };
        len.clamp(1, largest) as usize
    }

    /// What must hold when nothing is under way any more.
    pub(crate) fn check_end(&mut self) -> Check {
        self.ledger.check_end()?;
        let Work { messages, .. } = self.work;
        super::ledger::demand!(
            self.ledger.failed || self.ledger.tally.posted == messages,
            "all {messages} messages are posted: {:?}",
            self.ledger.tally
        );
        Ok(())
    }
}
