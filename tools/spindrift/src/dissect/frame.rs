//! From a captured frame to the MRC bytes in it.

use spindrift::wire::stack;
use spindrift::wire::{ICRC_LEN, TrimKind, icrc};
use spindrift_pmd::batch_ids::BatchIds;
use spindrift_pmd::udp::FRAME_MAX;
use spindrift_pmd::{DatagramMeta, ETHERNET_LEN};

use super::capture::Captured;
use super::link::Link;
use super::lower::{
    IPV4_LEN, IPV6_LEN, UDP_LEN, complete_udp, fill_lengths, is_fragment, shorten, traffic_class,
    without_extensions, without_options,
};
use super::tunnel::{Inner, look_through};

const BTH_LEN: usize = 12;
const LONGEST_IP: usize = 40 + 65_535;
/// Bytes of the ports at the front of a UDP header.
const UDP_PORTS_LEN: usize = 4;

/// A UDP datagram of a capture.
#[derive(Debug)]
pub(crate) struct Datagram {
    /// Addresses and markings.
    pub(crate) meta: DatagramMeta,
    /// The UDP payload without its iCRC, as far as it was captured.
    pub(crate) mrc: Vec<u8>,
    /// Bytes of it that the capture left out.
    pub(crate) not_captured: usize,
    /// The last four bytes and what they should be, where both are known.
    pub(crate) icrc: Option<Icrc>,
    /// This is not one packet but several, which the kernel handles as one: bytes of each.
    pub(crate) several: Option<usize>,
    /// The length field of the IP header is 0: the length is that of the capture.
    pub(crate) length_open: bool,
    /// The IP header of a trimmed packet announces less than the UDP header.
    pub(crate) shorter_than_udp: bool,
    /// How a switch trimmed it: the DSCP of the outer IPv6 header says so, where there is one.
    pub(crate) trimmed: Option<TrimKind>,
    /// Traffic class of that outer header.
    pub(crate) carrier: Option<u8>,
    /// Encapsulations around it, outermost first.
    pub(crate) through: Vec<&'static str>,
}

/// What a frame is instead of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Other {
    /// Not UDP, or not as MRC sends it.
    NotUdp,
    /// A part of an IP packet: MRC never sends one, and the iCRC of the whole is in another.
    Fragment,
    /// An encapsulation of this kind, that cannot be looked through.
    Closed(&'static str),
    /// The capture ends before the UDP ports.
    CutBeforePorts,
}

/// The iCRC of a packet, as four bytes in the order of the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Icrc {
    pub(crate) found: u32,
    pub(crate) expected: u32,
    /// The IPv4 identification with which it would be right, of those that an endpoint over kernel sockets assumes.
    pub(crate) good_with_id: Option<usize>,
}

impl Icrc {
    pub(crate) fn is_good(self) -> bool {
        self.found == self.expected
    }
}

/// Finds the UDP datagram in a frame, inside encapsulations too. `is_mrc` tells the ports of MRC; `trim_of` tells from a DSCP whether a switch trimmed the packet.
///
/// Errors name what the frame is instead.
pub(crate) fn datagram(
    captured: &Captured,
    link: Link,
    is_mrc: impl Fn(u16) -> bool,
    trim_of: impl Fn(u8) -> Option<TrimKind>,
) -> Result<Datagram, Other> {
    let Inner { mut frame, through, carrier, closed } =
        look_through(link.as_ethernet(&captured.data), is_mrc);
    if let Some(encapsulation) = closed {
        return Err(Other::Closed(encapsulation));
    }
    without_extensions(&mut frame);
    without_options(&mut frame);
    if is_fragment(&frame) {
        return Err(Other::Fragment);
    }
    let kept = frame.len();
    let cut = captured.wire_len.saturating_sub(captured.data.len()).min(LONGEST_IP);
    let cut = match missing(&frame) {
        lacks
            if lacks > 0
                && cut == 0
                && trim_of(carrier.unwrap_or_else(|| traffic_class(&frame)) >> 2).is_some() =>
        {
            shorten(&mut frame);
            cut
        }
        lacks if !through.is_empty() => cut.max(lacks),
        _ => cut,
    };
    // A frame of which only the front was kept is made whole with zeros, so that its lengths are right.
    frame.resize(kept + cut, 0);
    let length_open = fill_lengths(&mut frame);
    if cut > 0 {
        complete_udp(&mut frame, kept);
    }
    let parsed = stack::parse(&frame).map_err(|_| not_udp(kept, cut))?;
    let mrc_at = ETHERNET_LEN + parsed.l3.len() - parsed.mrc.len();
    if kept + UDP_LEN < mrc_at + UDP_PORTS_LEN {
        return Err(Other::CutBeforePorts);
    }
    let captured_mrc = kept.saturating_sub(mrc_at).min(parsed.mrc.len());
    let not_captured = parsed.mrc.len() - captured_mrc;
    let several = several(parsed.mrc);
    let trimmed = trim_of(carrier.unwrap_or(parsed.meta.traffic_class) >> 2);
    let (covered, icrc) = match parsed.mrc.split_last_chunk::<ICRC_LEN>() {
        Some((covered, found)) if trimmed.is_none() && !parsed.truncated => {
            let found = u32::from_be_bytes(*found);
            let icrc =
                Icrc { found, expected: expected_icrc(parsed.l3), good_with_id: assumed_id(&parsed, found) };
            (covered, (not_captured == 0).then_some(icrc))
        }
        _ => (parsed.mrc, None),
    };
    Ok(Datagram {
        meta: parsed.meta,
        mrc: covered.get(..captured_mrc).unwrap_or(covered).to_vec(),
        not_captured: covered.len().saturating_sub(captured_mrc),
        // Several packets in one have not got the lengths yet that their iCRCs cover. Where the length is open, there
        // may be several that cannot be told apart.
        icrc: icrc.filter(|icrc| several.is_none() && (!length_open || icrc.is_good())),
        several,
        length_open,
        shorter_than_udp: parsed.truncated,
        trimmed,
        carrier,
        through,
    })
}

/// What a frame is that is no UDP datagram, of which `kept` bytes were captured and `cut` were not.
fn not_udp(kept: usize, cut: usize) -> Other {
    if cut > 0 && kept < ETHERNET_LEN + IPV4_LEN { Other::CutBeforePorts } else { Other::NotUdp }
}

/// The IPv4 identification that an endpoint which cannot see it must have assumed for the iCRC found: 0, or a number in a batch.
fn assumed_id(parsed: &stack::Parsed<'_>, found: u32) -> Option<usize> {
    let mut l3 = parsed.l3.to_vec();
    if l3.first()? >> 4 != 4 {
        return None;
    }
    l3.get_mut(4..8)?.copy_from_slice(&[0, 0, 0x40, 0]);
    let difference = (expected_icrc(&l3) ^ found).swap_bytes();
    BatchIds::default().number(parsed.mrc.len(), difference)
}

/// Bytes of each packet where a UDP payload has several, as the kernel has them before it cuts them up or after
/// it joined them: another header to the same queue pair, and of the next PSN or the same, follows an iCRC.
fn several(mrc: &[u8]) -> Option<usize> {
    let first = mrc.first_chunk::<BTH_LEN>()?;
    if !is_opcode(first[0]) {
        return None;
    }
    let psn = |bth: &[u8; BTH_LEN]| u32::from_be_bytes([0, bth[9], bth[10], bth[11]]);
    let follows = |at: usize| {
        let second = mrc.get(at..).and_then(|rest| rest.first_chunk::<BTH_LEN>())?;
        let same = second[2..4] == first[2..4] && second[5..8] == first[5..8] && is_opcode(second[0]);
        (same && psn(second).wrapping_sub(psn(first)) & 0xff_ffff <= 1).then_some(at)
    };
    // Packets end on four bytes.
    let found = (BTH_LEN + ICRC_LEN..mrc.len()).step_by(4).find_map(follows);
    // What follows was perhaps not captured; no interface carries so much in one piece.
    found.or((mrc.len() > FRAME_MAX).then_some(0))
}

fn is_opcode(code: u8) -> bool {
    matches!(code, 0xc6..=0xcb | 0xd1 | 0xd8 | 0xd9 | 0xdc..=0xde)
}

fn expected_icrc(l3: &[u8]) -> u32 {
    let covered = l3.split_last_chunk::<ICRC_LEN>().map_or(l3, |(covered, _)| covered);
    let ip_udp_bth = if l3.first().is_some_and(|byte| byte >> 4 == 6) { 60 } else { 40 };
    let (head, rest) = covered.split_at_checked(ip_udp_bth).unwrap_or((covered, &[]));
    u32::from_be_bytes(icrc::compute(head, rest, &[]))
}

/// Bytes of the IP packet in a frame that its length field says and that are not there. Switches that mirror can cut
/// what they encapsulate.
fn missing(frame: &[u8]) -> usize {
    let Some(ip) = frame.get(ETHERNET_LEN..ETHERNET_LEN + IPV4_LEN) else { return 0 };
    let (field, head) = if ip[0] >> 4 == 6 { ([ip[4], ip[5]], IPV6_LEN) } else { ([ip[2], ip[3]], 0) };
    (ETHERNET_LEN + head + usize::from(u16::from_be_bytes(field))).saturating_sub(frame.len())
}
