//! Looks through the encapsulations that mirrored and tunnelled packets are captured in: VLAN tags, MPLS, IP in IP,
//! GRE, ERSPAN, VXLAN and GENEVE.

use etherparse::{IpNumber, LaxIpSlice};
use spindrift_pmd::ETHERNET_LEN;

use super::lower::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, traffic_class};

const VLAN: [[u8; 2]; 3] = [[0x81, 0x00], [0x88, 0xa8], [0x91, 0x00]];
const MPLS: [[u8; 2]; 2] = [[0x88, 0x47], [0x88, 0x48]];
/// Transparent Ethernet bridging: an Ethernet frame in GRE or GENEVE.
const BRIDGED: [u8; 2] = [0x65, 0x58];
/// ERSPAN type I (no header of its own, no GRE sequence number) and II.
const ERSPAN_II: [u8; 2] = [0x88, 0xbe];
const ERSPAN_III: [u8; 2] = [0x22, 0xeb];
/// The port of RFC 7348, and that of Linux before there was one.
const PORTS_VXLAN: [u16; 2] = [4789, 8472];
const PORT_VXLAN_GPE: u16 = 4790;
const PORT_GENEVE: u16 = 6081;
const PORT_MPLS: u16 = 6635;
/// Headers that are taken off one frame, and labels of one MPLS stack.
const LAYERS_MAX: usize = 16;

/// A frame without its encapsulations.
#[derive(Debug, Default)]
pub(super) struct Inner {
    /// From the innermost Ethernet header on.
    pub(super) frame: Vec<u8>,
    /// What was looked through, outermost first; without VLAN tags and outer IPv6 headers, which MRC has itself.
    pub(super) through: Vec<&'static str>,
    /// Traffic class of the outer IPv6 header that carries the packet, where there is one. Switches mark that one.
    pub(super) carrier: Option<u8>,
    /// What is left and cannot be looked through.
    pub(super) closed: Option<&'static str>,
}

/// What the first header of a frame is.
enum Step<'a> {
    /// None of an encapsulation.
    Plain,
    /// One that cannot be looked through: encrypted, damaged, or of an unknown kind.
    Closed(&'static str),
    /// These bytes are inside.
    Open(Option<&'static str>, Content, &'a [u8]),
}

/// What the bytes inside an encapsulation start with.
enum Content {
    Ethernet,
    /// What the type of an Ethernet frame stands for.
    Typed([u8; 2]),
}

/// Takes the encapsulations off a frame. A datagram to a port that `is_mrc` is none.
pub(super) fn look_through(frame: Vec<u8>, is_mrc: impl Fn(u16) -> bool) -> Inner {
    let mut inner = Inner { frame, ..Inner::default() };
    for _ in 0..LAYERS_MAX {
        let next = match step(&inner.frame, &is_mrc) {
            Step::Plain => return inner,
            Step::Closed(name) => {
                inner.closed = Some(name);
                return inner;
            }
            Step::Open(name, content, bytes) => {
                let from_ipv6 = inner.frame.get(12..14) == Some(&ETHERTYPE_IPV6);
                inner.carrier = match (name, &content) {
                    (None, Content::Typed(_)) if from_ipv6 => Some(traffic_class(&inner.frame)),
                    // VLAN tags.
                    (None, _) => inner.carrier,
                    (Some(_), _) => None,
                };
                inner.through.extend(name);
                match content {
                    Content::Ethernet => bytes.to_vec(),
                    Content::Typed(kind) => [&[0; 12], &kind[..], bytes].concat(),
                }
            }
        };
        inner.frame = next;
    }
    inner.closed = Some("too many headers");
    inner
}

fn step(frame: &[u8], is_mrc: impl Fn(u16) -> bool) -> Step<'_> {
    let Some((head, rest)) = frame.split_first_chunk::<ETHERNET_LEN>() else { return Step::Plain };
    let kind = [head[12], head[13]];
    match kind {
        ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => ip(rest, is_mrc),
        _ if MPLS.contains(&kind) => mpls(rest),
        _ if VLAN.contains(&kind) => rest
            .split_first_chunk::<4>()
            .map_or(Step::Plain, |(tag, rest)| Step::Open(None, Content::Typed([tag[2], tag[3]]), rest)),
        _ => Step::Plain,
    }
}

fn ip(packet: &[u8], is_mrc: impl Fn(u16) -> bool) -> Step<'_> {
    let Ok((ip, _)) = LaxIpSlice::from_slice(packet) else { return Step::Plain };
    let payload = ip.payload().clone();
    if payload.fragmented {
        return Step::Plain;
    }
    let name = ip.ipv4().map(|_| "IP in IP");
    match payload.ip_number {
        IpNumber::IPV4 | IpNumber::IPV6 => open_ip(name, payload.payload).unwrap_or(Step::Plain),
        IpNumber::GRE => gre(payload.payload).unwrap_or(Step::Closed("GRE")),
        IpNumber::MPLS_IN_IP => mpls(payload.payload),
        IpNumber::ENCAPSULATING_SECURITY_PAYLOAD => Step::Closed("ESP"),
        IpNumber::UDP => udp(payload.payload, is_mrc),
        _ => Step::Plain,
    }
}

/// An IP packet, whose first byte tells its version.
fn open_ip<'a>(name: Option<&'static str>, bytes: &'a [u8]) -> Option<Step<'a>> {
    match bytes.first()? >> 4 {
        4 => Some(Step::Open(name, Content::Typed(ETHERTYPE_IPV4), bytes)),
        6 => Some(Step::Open(name, Content::Typed(ETHERTYPE_IPV6), bytes)),
        _ => None,
    }
}

/// What an Ethernet type, as GRE and GENEVE have it, says to be in `bytes`.
fn open_typed<'a>(name: &'static str, kind: [u8; 2], bytes: &'a [u8]) -> Step<'a> {
    match kind {
        BRIDGED => Step::Open(Some(name), Content::Ethernet, bytes),
        ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => Step::Open(Some(name), Content::Typed(kind), bytes),
        _ if MPLS.contains(&kind) || VLAN.contains(&kind) => {
            Step::Open(Some(name), Content::Typed(kind), bytes)
        }
        _ => Step::Closed(name),
    }
}

fn udp(datagram: &[u8], is_mrc: impl Fn(u16) -> bool) -> Step<'_> {
    let Some((head, data)) = datagram.split_first_chunk::<8>() else { return Step::Plain };
    let port = u16::from_be_bytes([head[2], head[3]]);
    match port {
        _ if is_mrc(port) => Step::Plain,
        _ if PORTS_VXLAN.contains(&port) => vxlan(data).unwrap_or(Step::Closed("VXLAN")),
        PORT_VXLAN_GPE => Step::Closed("VXLAN-GPE"),
        PORT_GENEVE => geneve(data).unwrap_or(Step::Closed("GENEVE")),
        PORT_MPLS => mpls(data),
        _ => Step::Plain,
    }
}

/// RFC 7348 section 5: a header whose network identifier is valid.
fn vxlan(data: &[u8]) -> Option<Step<'_>> {
    let (head, frame) = data.split_first_chunk::<8>()?;
    (head[0] & 0x08 != 0).then_some(Step::Open(Some("VXLAN"), Content::Ethernet, frame))
}

/// RFC 8926 section 3.4: version 0, options, and the type of what is inside.
fn geneve(data: &[u8]) -> Option<Step<'_>> {
    let (head, rest) = data.split_first_chunk::<8>()?;
    let options_len = usize::from(head[0] & 0x3f) * 4;
    (head[0] >> 6 == 0).then_some(open_typed("GENEVE", [head[2], head[3]], rest.get(options_len..)?))
}

/// RFC 2890: checksum, key and sequence number follow if the flags say so.
fn gre(packet: &[u8]) -> Option<Step<'_>> {
    let (head, _) = packet.split_first_chunk::<4>()?;
    let flags = u16::from_be_bytes([head[0], head[1]]);
    // Routing (RFC 1701), or another version (PPTP).
    if flags & 0x4007 != 0 {
        return None;
    }
    let fields = [0x8000, 0x2000, 0x1000].iter().filter(|flag| flags & **flag != 0).count();
    let inside = packet.get(4 + 4 * fields..)?;
    match [head[2], head[3]] {
        ERSPAN_II => {
            // Type I has neither sequence number nor header.
            let frame = if flags & 0x1000 == 0 { Some(inside) } else { inside.get(8..) };
            Some(
                frame.map_or(Step::Closed("ERSPAN"), |frame| {
                    Step::Open(Some("ERSPAN"), Content::Ethernet, frame)
                }),
            )
        }
        ERSPAN_III => Some(erspan_iii(inside).unwrap_or(Step::Closed("ERSPAN"))),
        kind => Some(open_typed("GRE", kind, inside)),
    }
}

/// ERSPAN type III: twelve bytes, eight more if the last bit of these says so; its bits 1 to 5 of the last word say what
/// kind of frame follows (draft-foschiano-erspan section 4.3).
fn erspan_iii(data: &[u8]) -> Option<Step<'_>> {
    let (head, _) = data.split_first_chunk::<12>()?;
    let more = if head[11] & 1 == 0 { 0 } else { 8 };
    let inside = data.get(12 + more..)?;
    match head[10] >> 2 & 0x1f {
        0 => Some(Step::Open(Some("ERSPAN"), Content::Ethernet, inside)),
        2 => open_ip(Some("ERSPAN"), inside),
        _ => None,
    }
}

/// Labels, and an IP packet or (pseudowire) an Ethernet frame with or without a control word. Nothing says which.
fn mpls(stack: &[u8]) -> Step<'_> {
    let is_bottom = |label: &[u8; 4]| label[2] & 1 == 1;
    let Some(last) = stack.as_chunks().0.iter().take(LAYERS_MAX).position(is_bottom) else {
        return Step::Closed("MPLS");
    };
    let inside = stack.get(4 * (last + 1)..).unwrap_or_default();
    let behind_control_word = inside.get(4..).filter(|frame| inside[0] >> 4 == 0 && is_ethernet(frame));
    match behind_control_word.or_else(|| is_ethernet(inside).then_some(inside)) {
        Some(frame) => Step::Open(Some("MPLS"), Content::Ethernet, frame),
        None => open_ip(Some("MPLS"), inside).unwrap_or(Step::Closed("MPLS")),
    }
}

/// Whether these bytes look like an Ethernet frame around an IP packet.
fn is_ethernet(bytes: &[u8]) -> bool {
    let mut rest = bytes.get(12..).unwrap_or_default();
    while let Some((tag, behind)) = rest.split_first_chunk::<4>()
        && VLAN.contains(&[tag[0], tag[1]])
    {
        rest = behind;
    }
    rest.first_chunk::<3>().is_some_and(|[a, b, first]| match [*a, *b] {
        ETHERTYPE_IPV4 => first >> 4 == 4,
        ETHERTYPE_IPV6 => first >> 4 == 6,
        kind => MPLS.contains(&kind),
    })
}
