//! The settings that the first bytes of an input stand for.

use spindrift::congestion::CcConfig;
use spindrift::endpoint::{CqId, EndpointConfig, Extensions, QpCap, QpInit};
use spindrift::memory::PdId;
use spindrift::path::PathConfig;
use spindrift::wire::{Msn, Psn};
use spindrift::work::MAX_SGE;

use crate::support::net::ports;
use crate::support::pair::Patience;

/// Settings of both endpoints.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) seed: u64,
    pub(crate) planes: u8,
    pub(crate) v6: bool,
    /// Frames arrive without their headers, as from kernel sockets.
    pub(crate) sockets: bool,
    /// Forged packets that a receiver cannot tell from real ones are allowed.
    pub(crate) forges: bool,
    trimming: bool,
    oor_nack: bool,
    sack_threshold: u32,
}

impl Setup {
    /// Bytes of an input that it takes.
    pub(crate) const LEN: usize = 3;

    pub(crate) fn read(bytes: &[u8]) -> Self {
        let [seed, flags, more] = core::array::from_fn(|at| bytes.get(at).copied().unwrap_or(0));
        Self {
            seed: seed.into(),
            planes: 1 + (flags & 3),
            v6: flags & 4 == 0,
            sockets: flags & 0x38 == 0x38,
            forges: flags & 0xc0 == 0xc0,
            trimming: more & 3 != 3,
            oor_nack: more & 4 != 0,
            sack_threshold: [16 * 1024, 1, 500, 4_000][usize::from(more >> 3 & 3)],
        }
    }

    pub(crate) fn endpoint(&self, node: usize) -> EndpointConfig {
        EndpointConfig {
            seed: (self.seed << 1 | node as u64).into(),
            trimming: self.trimming,
            oor_nack: self.oor_nack,
            sack_threshold_bytes: self.sack_threshold,
            ..EndpointConfig::new(ports(self.v6, node, self.planes, 4300))
        }
    }
}

/// Settings of a queue pair, the same at both ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PairSetup {
    pub(crate) mtu: u32,
    pub(crate) sig_all: bool,
    /// The retries run out one day.
    pub(crate) gives_up: bool,
    pub(crate) depth: u32,
    psn: u32,
    max_wimm: u16,
    dynamic_mpr: bool,
    nscc: bool,
    /// It has the extensions of MRC. Receive work requests are then posted after their messages.
    pub(crate) extended: bool,
}

impl PairSetup {
    pub(crate) fn read([a, b]: [u8; 2]) -> Self {
        Self {
            mtu: [256, 300, 512, 1024][usize::from(a & 3)],
            sig_all: a & 4 != 0,
            gives_up: a & 0x18 == 0x18,
            depth: [128, 1, 2, 8][usize::from(a >> 5 & 3)],
            psn: [0, 0xff_fffe, 0x7f_fff0, 0x80_0000][usize::from(b & 3)],
            max_wimm: [128, 1, 2, 4][usize::from(b >> 2 & 3)],
            dynamic_mpr: b & 0x10 != 0,
            nscc: b & 0x20 != 0,
            extended: b & 0x40 != 0,
        }
    }

    pub(crate) fn init(&self, setup: &Setup, pd: PdId) -> QpInit {
        let mut init = QpInit {
            cap: QpCap {
                max_send_wr: self.depth,
                max_recv_wr: 1024,
                max_send_sge: MAX_SGE,
                max_recv_sge: MAX_SGE,
            },
            sig_all: self.sig_all,
            psn: Some(Psn::new(self.psn)),
            msn: Msn::new(if self.psn == 0 { 0 } else { 0xffff }),
            max_wimm_dest: self.max_wimm,
            max_mtu: self.mtu,
            dynamic_mpr: self.dynamic_mpr,
            path: PathConfig { active: 8, backup: 4, min_active: 2, ..PathConfig::new(setup.planes) },
            extensions: if self.extended { Extensions::ALL } else { Extensions::NONE },
            ..QpInit::new(pd, CqId(0), CqId(1))
        };
        if self.nscc {
            init.cc = CcConfig::new(100_000_000_000, 20_000, self.mtu);
        }
        init
    }

    pub(crate) fn patience(&self) -> Patience {
        if self.gives_up { Patience { timeout: 8, linear: 1, exponential: 3 } } else { Patience::default() }
    }
}
