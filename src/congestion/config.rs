//! Settings of congestion control, and the defaults that follow from the link.

/// The algorithm that limits a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CcAlgorithm {
    /// NSCC where switches trim; where they drop, windows for each plane that follow losses and delay.
    /// [`CcConfig::trimming`] selects the initial one.
    #[default]
    Adaptive,
    /// Network-signalled congestion control (UET 1.0 section 3.6.13).
    Nscc,
    /// No limit.
    None,
}

/// Congestion control of a queue pair: the algorithm, the link it runs on, and what to override.
#[derive(Clone, Debug, PartialEq)]
pub struct CcConfig {
    /// The algorithm. Default adaptive.
    pub algorithm: CcAlgorithm,
    /// Rate of all planes together, bits per second.
    pub link_rate_bps: u64,
    /// Round-trip time of the longest path when the network is idle, nanoseconds.
    pub base_rtt_ns: u64,
    /// Nominal size of a full packet (see the [module](super)), bytes.
    pub mtu_bytes: u32,
    /// Whether the switches trim packets instead of dropping them. It is a hint to adaptive congestion control.
    /// Default true.
    pub trimming: bool,
    /// One window for all queue pairs of a lane that go to the same peer with the same settings, instead of one for each.
    /// Default false.
    pub shared: bool,
    /// NSCC parameters that override those of the link.
    pub nscc: NsccOverrides,
}

/// NSCC parameters, `None` for the default. The names are those of the OCP API's congestion control
/// profile. R is `base_rtt_ns`, m is `mtu_bytes`, a is the bandwidth-delay product over 150,000 bytes, b
/// is `target_delay_ns` over 12 us (UET 1.0 section 3.6.13: the reference link has 100 Gb/s and 12 us).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NsccOverrides {
    /// Queueing delay to aim at, nanoseconds. Default 0.75 R with trimming, else R.
    pub target_delay_ns: Option<u64>,
    /// Largest window, bytes. Default 1.5 times link rate times the smallest round-trip time seen.
    pub max_cwnd_bytes: Option<u64>,
    /// Proportional increase, bytes squared per byte acknowledged and nanosecond below the target. Default
    /// 4 a b m / target.
    pub alpha: Option<f64>,
    /// Fair increase, bytes squared per byte acknowledged. Default 5 m a.
    pub fi: Option<f64>,
    /// Fast increase, bytes per byte acknowledged. Default 0.25 a.
    pub fi_scale: Option<f64>,
    /// Bytes added once every adjustment period. Default 0.15 m a.
    pub eta: Option<f64>,
    /// Weight of the delay above the target in a decrease, greater than 0 and at most 1. Default 0.8.
    pub gamma: Option<f64>,
    /// Smallest factor of a decrease, greater than 0 and at most 1. Default 0.5.
    pub max_md_jump: Option<f64>,
    /// Turns quick adaptation off. Default false.
    pub disable_qa: bool,
    /// Quick adaptation acts when less than the largest window divided by 2 to this power was delivered. Default 3.
    pub qa_gate: Option<u8>,
    /// Delay that triggers quick adaptation, nanoseconds. Default none with trimming, else 4 targets.
    pub qa_threshold_ns: Option<u64>,
    /// Bytes acknowledged after which the window is adjusted. Default 8 m.
    pub adjust_bytes_threshold: Option<u64>,
    /// Time after which the window is adjusted, nanoseconds. Default R.
    pub adjust_period_threshold_ns: Option<u64>,
    /// Bytes after which the receiver sends a SACK without a request. With a smaller window, every packet requests an
    /// acknowledgement. Default 16 KiB (UET's `ACK_Gen_Trigger`).
    pub ack_gen_trigger_bytes: Option<u64>,
}

/// The reason why a [`CcConfig`] is invalid. Every message names the field.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CcConfigError {
    /// A field is 0 and must not be.
    #[error("{0} = 0: must be at least 1")]
    Zero(&'static str),
    /// A field exceeds its maximum.
    #[error("{field} = {value}: at most {max}")]
    TooLarge {
        /// The field.
        field: &'static str,
        /// The given value.
        value: u64,
        /// The maximum.
        max: u64,
    },
    /// A factor is negative, infinite or not a number.
    #[error("{field} = {value}: must be a number of at least 0")]
    Factor {
        /// The field.
        field: &'static str,
        /// The given value.
        value: f64,
    },
    /// A fraction is not in its range.
    #[error("{field} = {value}: must be more than 0 and at most 1")]
    Fraction {
        /// The field.
        field: &'static str,
        /// The given value.
        value: f64,
    },
}

/// Largest and initial window in bandwidth-delay products.
pub(super) const MAX_WINDOW_BDP: f64 = 1.5;
/// Minimum of full packets in the largest window between software hosts.
const LEAST_SOFTWARE_WINDOW: u64 = 32;

/// 100 Tb/s: beyond any NIC, and far from overflow.
const MAX_RATE_BPS: u64 = 100_000_000_000_000;
/// Ten seconds.
const MAX_RTT_NS: u64 = 10_000_000_000;
/// Larger than any UDP datagram.
const MAX_MTU_BYTES: u64 = 1 << 17;
/// One terabyte.
const MAX_BYTES: u64 = 1 << 40;

impl CcConfig {
    /// Default parameters on a network that trims.
    pub fn new(link_rate_bps: u64, base_rtt_ns: u64, mtu_bytes: u32) -> Self {
        Self {
            algorithm: CcAlgorithm::Adaptive,
            link_rate_bps,
            base_rtt_ns,
            mtu_bytes,
            trimming: true,
            shared: false,
            nscc: NsccOverrides::default(),
        }
    }

    /// The assumed rate of a link that does not report one: 100 Gb/s.
    pub const USUAL_LINK_BPS: u64 = 100_000_000_000;

    /// Round-trip time of an idle network between software hosts: 50 us.
    pub const SOFTWARE_RTT_NS: u64 = 50_000;

    /// Congestion control for software hosts, on an unknown network.
    ///
    /// The largest window is 1.5 bandwidth-delay products of the link and the given round-trip time. It does not
    /// follow that time down as in [`new`](Self::new): packets also wait for the polls of the lanes at both ends, so
    /// a window that suits the network alone would leave the link idle. For the same reason it is at least 32 full
    /// packets, half of what a lane takes from a port at a time. On a link so slow that this is more, the round-trip
    /// time is scaled until it fits, and the other parameters follow. Delay alone triggers no quick adaptation, even
    /// where nothing is trimmed, because a lane that is not scheduled delays packets by more than a network.
    pub fn for_software(link_rate_bps: u64, base_rtt_ns: u64, mtu_bytes: u32) -> Self {
        let least = (LEAST_SOFTWARE_WINDOW * u64::from(mtu_bytes)) as f64;
        let of_least = least / MAX_WINDOW_BDP * 8e9 / link_rate_bps as f64;
        let base_rtt_ns = base_rtt_ns.max((of_least as u64).min(MAX_RTT_NS));
        let link = Self::new(link_rate_bps, base_rtt_ns, mtu_bytes);
        let of_link = MAX_WINDOW_BDP * link.bdp_bytes();
        let max_cwnd_bytes = Some((of_link.max(least) as u64).min(MAX_BYTES));
        let target_delay_ns = Some(base_rtt_ns / 4 * 3);
        let nscc =
            NsccOverrides { target_delay_ns, max_cwnd_bytes, qa_threshold_ns: Some(u64::MAX), ..link.nscc };
        Self { trimming: false, nscc, ..link }
    }

    /// The largest window at the configured round-trip time, bytes.
    pub(super) fn max_window(&self) -> f64 {
        self.nscc
            .max_cwnd_bytes
            .map_or(MAX_WINDOW_BDP * self.bdp_bytes(), |max| max as f64)
            .max(self.mtu_bytes.into())
    }

    /// The bandwidth-delay product.
    fn bdp_bytes(&self) -> f64 {
        self.link_rate_bps as f64 / 8e9 * self.base_rtt_ns as f64
    }

    /// No congestion control.
    pub fn none() -> Self {
        Self { algorithm: CcAlgorithm::None, ..Self::new(100_000_000_000, 12_000, 4096) }
    }

    /// Checks every field against its range. Fields that the algorithm does not use are not checked.
    ///
    /// # Errors
    /// The first invalid field.
    pub fn validate(&self) -> Result<(), CcConfigError> {
        if self.algorithm == CcAlgorithm::None {
            return Ok(());
        }
        let nscc = &self.nscc;
        in_range("link_rate_bps", Some(self.link_rate_bps), MAX_RATE_BPS)?;
        in_range("base_rtt_ns", Some(self.base_rtt_ns), MAX_RTT_NS)?;
        in_range("mtu_bytes", Some(u64::from(self.mtu_bytes)), MAX_MTU_BYTES)?;
        in_range("target_delay_ns", nscc.target_delay_ns, MAX_RTT_NS)?;
        in_range("max_cwnd_bytes", nscc.max_cwnd_bytes, MAX_BYTES)?;
        in_range("adjust_bytes_threshold", nscc.adjust_bytes_threshold, MAX_BYTES)?;
        in_range("adjust_period_threshold_ns", nscc.adjust_period_threshold_ns, MAX_RTT_NS)?;
        factor("alpha", nscc.alpha)?;
        factor("fi", nscc.fi)?;
        factor("fi_scale", nscc.fi_scale)?;
        factor("eta", nscc.eta)?;
        fraction("gamma", nscc.gamma)?;
        fraction("max_md_jump", nscc.max_md_jump)?;
        if let Some(gate) = nscc.qa_gate.filter(|&gate| gate > 40) {
            return Err(CcConfigError::TooLarge { field: "qa_gate", value: u64::from(gate), max: 40 });
        }
        Ok(())
    }
}

fn in_range(field: &'static str, value: Option<u64>, max: u64) -> Result<(), CcConfigError> {
    match value {
        Some(0) => Err(CcConfigError::Zero(field)),
        Some(value) if value > max => Err(CcConfigError::TooLarge { field, value, max }),
        _ => Ok(()),
    }
}

fn factor(field: &'static str, value: Option<f64>) -> Result<(), CcConfigError> {
    match value {
        Some(value) if !value.is_finite() || value < 0.0 => Err(CcConfigError::Factor { field, value }),
        _ => Ok(()),
    }
}

fn fraction(field: &'static str, value: Option<f64>) -> Result<(), CcConfigError> {
    match value {
        Some(value) if !(value > 0.0 && value <= 1.0) => Err(CcConfigError::Fraction { field, value }),
        _ => Ok(()),
    }
}
