//! Priority flow control (IEEE 802.1Q, clause 36): a switch whose buffer fills stops the links that fill it, class by class.
//!
//! Packets are counted at the link that they came by, not at the one that they wait for: see [`PfcSpec`] for the rules. The counting is that
//! of the memory management unit in the public ns-3 model of HPCC. The threshold is a fixed one, or alpha times what is left of the shared
//! buffer (Choudhury and Hahne, "Dynamic queue length thresholds", 1998).

use crate::link::LinkSpec;

/// The classes of packets, as queues and pauses know them. Which one a packet is in follows from its code point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Class {
    /// Acknowledgements and the like, which leave first.
    Control,
    /// Packets that a switch has trimmed.
    Trimmed,
    /// All others.
    Data,
}

/// A set of classes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Classes(u8);

impl Classes {
    /// No class.
    pub const NONE: Self = Self(0);
    /// Every class.
    pub const ALL: Self = Self(0b111);
    /// Data alone: what RoCE is usually run with.
    pub const DATA: Self = Self(1 << Class::Data as u8);

    /// Whether a class is one of them.
    #[inline]
    pub const fn has(self, class: Class) -> bool {
        self.0 >> class as u8 & 1 == 1
    }

    /// Whether there are none.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The others.
    #[must_use]
    #[inline]
    pub const fn others(self) -> Self {
        Self(!self.0 & Self::ALL.0)
    }

    /// These, with or without a class.
    #[must_use]
    pub const fn with(self, class: Class, included: bool) -> Self {
        let bit = 1 << class as u8;
        Self(if included { self.0 | bit } else { self.0 & !bit })
    }
}

/// The planes whose ports would send a packet at once, by class.
///
/// A port that is paused for data still sends acknowledgements, so one bit for a plane would not do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Free([u32; 3]);

impl Free {
    /// The same planes for each class; bit n is plane n.
    pub const fn same(planes: u32) -> Self {
        Self([planes; 3])
    }

    /// The planes that are free for a class.
    #[inline]
    pub const fn of(self, class: Class) -> u32 {
        self.0[class as usize]
    }

    /// The planes that are free for each class.
    #[inline]
    pub const fn all(self) -> u32 {
        let Self([control, trimmed, data]) = self;
        control & trimmed & data
    }

    /// The planes that are free for some class.
    #[inline]
    pub const fn any(self) -> u32 {
        let Self([control, trimmed, data]) = self;
        control | trimmed | data
    }

    #[inline]
    pub(crate) const fn add(&mut self, plane: u32, Classes(classes): Classes) {
        let Self([control, trimmed, data]) = self;
        *control |= (classes as u32 & 1) << plane;
        *trimmed |= (classes as u32 >> 1 & 1) << plane;
        *data |= (classes as u32 >> 2 & 1) << plane;
    }
}

/// From how many bytes of one ingress link and class on a switch pauses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threshold {
    /// That many: XOFF.
    Fixed(u64),
    /// This share, in thousandths, of what nobody uses of the shared buffer: alpha.
    Dynamic {
        /// 125 is the 1/8 of many switches.
        alpha_per_mille: u64,
    },
}

/// What switches with PFC do.
///
/// A packet that arrives is counted at its ingress link and its class. Up to the threshold it is in the shared buffer. From there on it is in the
/// headroom of its link, and the link is told to pause the class. The headroom takes what arrives until the pause takes effect. A packet leaves
/// the headroom first. The link may go on when its headroom is empty and its share is `resume_bytes` below the threshold, or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PfcSpec {
    /// Bytes of a switch's buffer that its links share. The headrooms are beside it.
    pub shared_bytes: u64,
    /// When a link is paused.
    pub xoff: Threshold,
    /// How far below that it may go on: XON is XOFF less this.
    pub resume_bytes: u64,
    /// The longest packet on the wire, of which one may have begun in each direction when a pause is sent.
    pub mtu_bytes: u64,
    /// Bytes of each link's headroom; `None` for as many as it needs to lose nothing.
    pub headroom_bytes: Option<u64>,
    /// The classes that are paused instead of dropped.
    pub classes: Classes,
}

/// Bytes of a pause frame on the wire: the shortest frame, preamble, checksum and gap (IEEE 802.3, annex 31B).
pub(crate) const PAUSE_BYTES: u64 = 84;

impl PfcSpec {
    /// A switch with a shared buffer of so many bytes and packets of at most `mtu_bytes`: alpha is 1/8, and XON two packets below XOFF.
    pub const fn new(shared_bytes: u64, mtu_bytes: u64) -> Self {
        Self {
            shared_bytes,
            xoff: Threshold::Dynamic { alpha_per_mille: 125 },
            resume_bytes: 2 * mtu_bytes,
            mtu_bytes,
            headroom_bytes: None,
            classes: Classes::DATA,
        }
    }

    /// What arrives by a link after its pause was decided: the data of both delays, a packet that was just being sent in each direction,
    /// and the pause frame's own time.
    pub const fn headroom(&self, link: &LinkSpec) -> u64 {
        if let Some(bytes) = self.headroom_bytes {
            return bytes;
        }
        let both_ways = 2 * link.delay_ns as u128 * link.rate_bps as u128 / 8_000_000_000;
        both_ways as u64 + 2 * self.mtu_bytes + PAUSE_BYTES
    }

    /// XOFF of a link whose switch has so much of the shared buffer in use.
    const fn threshold(&self, used: u64) -> u64 {
        let left = self.shared_bytes.saturating_sub(used);
        match self.xoff {
            Threshold::Fixed(bytes) => bytes,
            Threshold::Dynamic { alpha_per_mille } => (left as u128 * alpha_per_mille as u128 / 1_000) as u64,
        }
    }
}

/// The packets of one ingress link and class.
#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    shared: u64,
    headroom: u64,
    pausing: bool,
}

/// What a switch should tell the other end of an ingress link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Nothing,
    Pause,
    Resume,
}

/// A switch, a link to it, and a class.
pub(crate) type Place = (u32, u32, Class);

/// The buffers of all switches.
#[derive(Debug)]
pub(crate) struct Buffers {
    spec: PfcSpec,
    /// Bytes in the shared buffer, by switch.
    used: Vec<u64>,
    /// The most of that.
    most_used: Vec<u64>,
    /// By link and class.
    ingress: Vec<[Usage; 3]>,
}

impl Buffers {
    pub(crate) const fn new(spec: PfcSpec) -> Self {
        Self { spec, used: Vec::new(), most_used: Vec::new(), ingress: Vec::new() }
    }

    pub(crate) const fn spec(&self) -> &PfcSpec {
        &self.spec
    }

    /// Bytes that a switch's shared buffer held at most.
    pub(crate) fn most_used(&self, switch: u32) -> u64 {
        self.most_used.get(switch as usize).copied().unwrap_or_default()
    }

    fn parts(&mut self, (switch, link, class): Place) -> (&mut u64, &mut u64, &mut Usage) {
        let (switch, link) = (switch as usize, link as usize);
        if self.used.len() <= switch {
            self.used.resize(switch + 1, 0);
            self.most_used.resize(switch + 1, 0);
        }
        if self.ingress.len() <= link {
            self.ingress.resize(link + 1, [Usage::default(); 3]);
        }
        (&mut self.used[switch], &mut self.most_used[switch], &mut self.ingress[link][class as usize])
    }

    /// Takes in a packet that came by a link with this headroom. `None` if there is no room, which drops it.
    pub(crate) fn admit(&mut self, at: Place, bytes: u64, headroom: u64) -> Option<Told> {
        let spec = self.spec;
        let (used, most_used, usage) = self.parts(at);
        let threshold = spec.threshold(*used);
        let fits = *used + bytes <= spec.shared_bytes;
        if fits && usage.headroom == 0 && usage.shared + bytes <= threshold {
            usage.shared += bytes;
            *used += bytes;
            *most_used = (*most_used).max(*used);
        } else if usage.headroom + bytes <= headroom {
            usage.headroom += bytes;
        } else {
            return None;
        }
        let full = usage.headroom > 0 || usage.shared >= spec.threshold(*used);
        if !full || usage.pausing {
            return Some(Told::Nothing);
        }
        usage.pausing = true;
        Some(Told::Pause)
    }

    /// A packet that had been taken in has left.
    pub(crate) fn release(&mut self, at: Place, bytes: u64) -> Told {
        let spec = self.spec;
        let (used, _, usage) = self.parts(at);
        let from_headroom = bytes.min(usage.headroom);
        usage.headroom -= from_headroom;
        let from_shared = bytes - from_headroom;
        usage.shared -= from_shared;
        *used -= from_shared;
        let low = usage.shared == 0 || usage.shared + spec.resume_bytes <= spec.threshold(*used);
        if !usage.pausing || usage.headroom > 0 || !low {
            return Told::Nothing;
        }
        usage.pausing = false;
        Told::Resume
    }

    /// The classes of a link that are paused.
    pub(crate) fn pausing(&self, link: u32) -> Classes {
        let usages = self.ingress.get(link as usize).copied().unwrap_or_default();
        let classes = [Class::Control, Class::Trimmed, Class::Data];
        let paused = classes.into_iter().zip(usages).filter(|(_, usage)| usage.pausing);
        paused.fold(Classes::NONE, |all, (class, _)| all.with(class, true))
    }

    /// The link has gone down, and its pauses with it.
    pub(crate) fn forget_pauses(&mut self, link: u32) {
        for usage in self.ingress.get_mut(link as usize).into_iter().flatten() {
            usage.pausing = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use spindrift::wire::DscpMap;

    use super::*;
    use crate::queue::QueueSpec;

    const AT: Place = (0, 7, Class::Data);

    fn fixed() -> PfcSpec {
        PfcSpec { xoff: Threshold::Fixed(1_000), resume_bytes: 300, ..PfcSpec::new(10_000, 500) }
    }

    #[test]
    fn a_link_is_paused_at_xoff_and_goes_on_at_xon() {
        let mut buffers = Buffers::new(fixed());
        assert_eq!(buffers.admit(AT, 999, 600), Some(Told::Nothing));
        assert_eq!((buffers.pausing(7), buffers.most_used(0)), (Classes::NONE, 999));
        assert_eq!(buffers.admit(AT, 1, 600), Some(Told::Pause), "at the threshold");
        assert_eq!((buffers.pausing(7), buffers.pausing(6)), (Classes::DATA, Classes::NONE));
        assert_eq!(buffers.admit(AT, 400, 600), Some(Told::Nothing), "in the headroom, and told before");
        assert_eq!(buffers.admit(AT, 201, 600), None, "the headroom is full");
        assert_eq!(buffers.admit(AT, 200, 600), Some(Told::Nothing));
        assert_eq!(buffers.most_used(0), 1_000, "the headroom is beside the shared buffer");
        // What leaves is taken off the headroom first; 701 bytes are still too many.
        assert_eq!(buffers.release(AT, 500), Told::Nothing);
        assert_eq!(buffers.release(AT, 399), Told::Nothing);
        assert_eq!(buffers.release(AT, 1), Told::Resume, "700 are left");
        assert_eq!(buffers.release(AT, 700), Told::Nothing, "told before");
        assert_eq!(buffers.admit(AT, 1_000, 600), Some(Told::Pause), "empty again");
    }

    /// While the headroom holds something, the link stays paused, and what comes goes there too.
    #[test]
    fn the_headroom_must_be_empty() {
        let mut buffers = Buffers::new(PfcSpec { resume_bytes: 0, ..fixed() });
        assert_eq!(buffers.admit(AT, 900, 600), Some(Told::Nothing));
        assert_eq!(buffers.admit(AT, 101, 600), Some(Told::Pause), "it would be above the threshold");
        assert_eq!(buffers.admit(AT, 50, 600), Some(Told::Nothing));
        assert_eq!(buffers.release(AT, 150), Told::Nothing, "one byte is left of 151");
        assert_eq!(buffers.release(AT, 1), Told::Resume);
    }

    /// Alpha of what nobody uses: the more others have, the less is left for each.
    #[test]
    fn a_dynamic_threshold_shrinks_as_the_buffer_fills() {
        let spec = PfcSpec::new(8_000, 100);
        assert_eq!((spec.threshold(0), spec.threshold(4_000), spec.threshold(9_000)), (1_000, 500, 0));
        let mut buffers = Buffers::new(spec);
        // Each of the others takes 500 and is below its threshold.
        for link in 0..6 {
            assert_eq!(buffers.admit((0, link, Class::Data), 500, 0), Some(Told::Nothing), "{link}");
        }
        // 5,000 are left, so 625 are the threshold. With 556 it is (8,000 - 3,556) / 8 = 555.
        assert_eq!(buffers.admit(AT, 556, 0), Some(Told::Pause));
        // On another switch all is free.
        assert_eq!(buffers.admit((1, 8, Class::Data), 556, 0), Some(Told::Nothing));
        // One by one they leave. Its own share is 200 bytes below the threshold when 3,000 others' have gone: (8,000 - 556) / 8 = 930.
        for link in 0..6 {
            assert_eq!(buffers.release((0, link, Class::Data), 500), Told::Nothing);
        }
        assert_eq!(buffers.release(AT, 1), Told::Resume);
    }

    /// The buffer is no larger than it is, whatever the threshold.
    #[test]
    fn the_shared_buffer_ends() {
        let mut buffers = Buffers::new(PfcSpec { xoff: Threshold::Fixed(9_000), ..fixed() });
        assert_eq!(buffers.admit((0, 1, Class::Data), 8_000, 0), Some(Told::Nothing));
        assert_eq!(buffers.admit((0, 2, Class::Data), 2_000, 0), Some(Told::Nothing), "the last bytes of it");
        assert_eq!(buffers.admit((0, 3, Class::Data), 1, 0), None);
        assert_eq!(buffers.admit((0, 3, Class::Data), 1, 1), Some(Told::Pause), "into its headroom");
    }

    #[test]
    fn classes_are_counted_apart() {
        let mut buffers = Buffers::new(fixed());
        assert_eq!(buffers.admit((0, 7, Class::Control), 1_000, 0), Some(Told::Pause));
        assert_eq!(buffers.admit(AT, 999, 0), Some(Told::Nothing));
        assert!(buffers.pausing(7).has(Class::Control) && !buffers.pausing(7).has(Class::Data));
        buffers.forget_pauses(7);
        assert_eq!((buffers.pausing(7), buffers.release(AT, 999)), (Classes::NONE, Told::Nothing));
    }

    /// Two delays at the link's rate, two packets and a pause frame.
    #[test]
    fn the_headroom_follows_the_link() {
        let queue = QueueSpec {
            limit_bytes: 0,
            control_limit_bytes: 0,
            ecn: None,
            trim: None,
            dscp: DscpMap::default(),
        };
        let link = LinkSpec { rate_bps: 400_000_000_000, delay_ns: 600, queue };
        let spec = PfcSpec::new(1 << 20, 4_200);
        assert_eq!(spec.headroom(&link), 60_000 + 8_400 + 84);
        assert_eq!(PfcSpec { headroom_bytes: Some(5), ..spec }.headroom(&link), 5);
    }

    #[test]
    fn ports_are_free_class_by_class() {
        let mut free = Free::default();
        free.add(0, Classes::ALL);
        free.add(3, Classes::DATA.others());
        free.add(5, Classes::DATA);
        let of = [Class::Control, Class::Trimmed, Class::Data].map(|class| free.of(class));
        assert_eq!(of, [0b1001, 0b1001, 0b10_0001]);
        assert_eq!((free.all(), free.any(), Free::same(6).all()), (1, 0b10_1001, 6));
    }
}
