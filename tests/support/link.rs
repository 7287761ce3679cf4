//! What one plane does to packets in one direction.

use spindrift::time::Time;

use super::rand::{Rng, mix};

/// Delays always apply; faults (rates in ten-thousandths) end when the network heals.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Link {
    /// One way, ns.
    pub(crate) delay_ns: u64,
    /// Paths differ by up to this, each by a fixed part of it.
    pub(crate) spread_ns: u64,
    /// Every packet is late by up to this: packets of one path overtake each other.
    pub(crate) jitter_ns: u64,
    /// Some packets are late by up to `stray_ns`.
    pub(crate) stray: u32,
    pub(crate) stray_ns: u64,
    pub(crate) loss: u32,
    pub(crate) duplicate: u32,
    pub(crate) corrupt: u32,
    pub(crate) ecn: u32,
    pub(crate) trim: u32,
}

impl Link {
    /// A clean path of `delay_ns`.
    pub(crate) fn clean(delay_ns: u64) -> Self {
        Self { delay_ns, ..Self::default() }
    }

    /// How long a packet on path `path` takes.
    pub(crate) fn latency(&self, path: u64, faulty: bool, rng: &mut Rng) -> u64 {
        let own = if self.spread_ns == 0 { 0 } else { mix(path) % self.spread_ns };
        let mut latency = self.delay_ns + own;
        if faulty {
            latency += rng.below(self.jitter_ns + 1);
            if rng.chance(self.stray) {
                latency += rng.below(self.stray_ns + 1);
            }
        }
        latency
    }
}

/// Part of the network that swallows packets for a while, without telling anyone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outage {
    pub(crate) from: Time,
    pub(crate) to: Time,
    pub(crate) plane: u8,
    /// Only packets that this node sends; all when `None`.
    pub(crate) sender: Option<usize>,
    /// Only one in so many paths; all when 0 or 1.
    pub(crate) paths: u64,
}

impl Outage {
    pub(crate) fn swallows(&self, at: Time, plane: u8, sender: usize, path: u64) -> bool {
        (self.from..self.to).contains(&at)
            && self.plane == plane
            && self.sender.is_none_or(|only| only == sender)
            && (self.paths <= 1 || mix(path ^ 0x5eed).is_multiple_of(self.paths))
    }
}
