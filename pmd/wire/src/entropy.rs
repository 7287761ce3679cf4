//! The fields of a packet that carry its entropy value.

use serde::{Deserialize, Serialize};

use super::Ev;

/// Which half of a 32-bit entropy value the UDP source port carries.
///
/// Readings of the specification disagree; both ends of a connection need the same setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StevOrder {
    /// The upper half; the lower one goes to the flow label.
    #[default]
    SportHigh,
    /// The lower half; the upper one goes to the flow label.
    SportLow,
}

/// How a path is chosen through fields that switches hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EntropyMode {
    /// Structured entropy: 32 bits, half in the UDP source port and half in the lower 16 bits of the IPv6 flow
    /// label. IPv4 has no place for the second half.
    Stev(StevOrder),
    /// 16 bits in the UDP source port; the flow label is 0.
    Udp,
}

impl Default for EntropyMode {
    fn default() -> Self {
        Self::Stev(StevOrder::default())
    }
}

/// The fields that switches hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Entropy {
    /// UDP source port.
    pub src_port: u16,
    /// IPv6 flow label, 20 bits, of which MRC uses the lower 16.
    pub flow_label: u32,
}

impl EntropyMode {
    /// The number of bits of an entropy value.
    #[inline]
    pub const fn width_bits(self) -> u32 {
        match self {
            Self::Stev(_) => 32,
            Self::Udp => 16,
        }
    }

    /// The fields that carry `ev`. Bits above [`width_bits`](Self::width_bits) are dropped.
    #[inline]
    pub const fn place(self, ev: Ev) -> Entropy {
        let (high, low) = ((ev.0 >> 16) as u16, ev.0 as u16);
        match self {
            Self::Stev(StevOrder::SportHigh) => Entropy { src_port: high, flow_label: low as u32 },
            Self::Stev(StevOrder::SportLow) => Entropy { src_port: low, flow_label: high as u32 },
            Self::Udp => Entropy { src_port: low, flow_label: 0 },
        }
    }

    /// The value that the peer reads after `ev` was sent: over IPv4, which has no flow label, only part of it.
    #[inline]
    pub const fn carried(self, ev: Ev, v6: bool) -> Ev {
        let Entropy { src_port, flow_label } = self.place(ev);
        self.extract(src_port, if v6 { flow_label } else { 0 })
    }

    /// The entropy value of a packet that arrived with these fields.
    #[inline]
    pub const fn extract(self, src_port: u16, flow_label: u32) -> Ev {
        let (port, label) = (src_port as u32, flow_label & 0xffff);
        match self {
            Self::Stev(StevOrder::SportHigh) => Ev((port << 16) | label),
            Self::Stev(StevOrder::SportLow) => Ev((label << 16) | port),
            Self::Udp => Ev(port),
        }
    }
}
