//! Applies the rules of a fault plan to one frame.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::Rng as _;

use super::plan::{FaultRule, Trim};
use super::stats::{FaultStats, count};
use crate::{RxFrame, RxOrigin, TxFrame, frame};

/// What is to happen to one frame.
#[derive(Clone, Copy, Default)]
pub(super) struct Verdict {
    pub(super) lost: bool,
    /// The caller keeps it.
    pub(super) unsent: bool,
    pub(super) duplicate: bool,
    pub(super) corrupt: bool,
    pub(super) ecn: bool,
    pub(super) trim: Option<Trim>,
    pub(super) delay_ns: u64,
}

impl Verdict {
    fn changes(&self) -> bool {
        self.corrupt || self.ecn || self.trim.is_some()
    }

    pub(super) fn passes(&self) -> bool {
        !self.lost && !self.unsent && !self.duplicate && !self.changes() && self.delay_ns == 0
    }
}

/// What rules select frames by.
#[derive(Clone, Copy)]
pub(super) struct Inside {
    src_port: u16,
    flow_label: u32,
    opcode: Option<u8>,
}

impl Inside {
    pub(super) fn of_tx(frame: &TxFrame<'_>) -> Option<Self> {
        let (meta, at) = frame::parse(frame.head)?;
        let opcode = frame.head.get(at).copied().or_else(|| frame.payload.first());
        Some(Self { src_port: meta.src_port, flow_label: meta.flow_label, opcode })
    }

    pub(super) fn of_rx(frame: &RxFrame<'_>) -> Option<Self> {
        let (meta, at) = match frame.origin {
            RxOrigin::Udp(meta) => (meta, 0),
            RxOrigin::Ethernet => frame::parse(frame.data)?,
        };
        Some(Self {
            src_port: meta.src_port,
            flow_label: meta.flow_label,
            opcode: frame.data.get(at).copied(),
        })
    }

    pub(super) fn matches(self, rule: &FaultRule) -> bool {
        let ev = match rule.ev {
            None => true,
            Some(ev) if ev <= 0xffff => ev == u32::from(self.src_port),
            Some(ev) => ev == u32::from(self.src_port) << 16 | self.flow_label & 0xffff,
        };
        let in_range = |code: u8| rule.opcodes.iter().any(|&(first, last)| (first..=last).contains(&code));
        ev && (rule.opcodes.is_empty() || self.opcode.is_some_and(in_range))
    }
}

/// Adds a rule's faults to the verdict; true if the frame goes no further.
pub(super) fn apply(
    rule: &FaultRule,
    rng: &mut Xoshiro256PlusPlus,
    stats: &FaultStats,
    verdict: &mut Verdict,
) -> bool {
    if rule.blackhole {
        count(&stats.blackholed);
        verdict.lost = true;
        return true;
    }
    if rule.full.hits(|| rng.next_u64()) {
        count(&stats.unsent);
        verdict.unsent = true;
        return true;
    }
    if rule.loss.hits(|| rng.next_u64()) {
        count(&stats.lost);
        verdict.lost = true;
        return true;
    }
    if rule.duplicate.hits(|| rng.next_u64()) {
        count(&stats.duplicated);
        verdict.duplicate = true;
    }
    verdict.corrupt |= rule.corrupt.hits(|| rng.next_u64());
    verdict.ecn |= rule.ecn.hits(|| rng.next_u64());
    if let Some(trim) = rule.trim.filter(|trim| trim.chance.hits(|| rng.next_u64())) {
        verdict.trim = Some(trim);
    }
    if let Some((_, hold_ns)) = rule.reorder.filter(|(chance, _)| chance.hits(|| rng.next_u64())) {
        count(&stats.reordered);
        verdict.delay_ns += hold_ns;
    }
    if let Some((base_ns, jitter_ns)) = rule.delay {
        count(&stats.delayed);
        let jitter = if jitter_ns == 0 { 0 } else { rng.next_u64() % (jitter_ns + 1) };
        verdict.delay_ns += base_ns + jitter;
    }
    false
}
