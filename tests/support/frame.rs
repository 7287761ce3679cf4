//! Whole frames: joining what an endpoint sends, and what a network does to them on the way.

use std::net::IpAddr;

use spindrift::endpoint::{Endpoint, Transmit};
use spindrift::memory::{Payload, Region};
use spindrift::pmd::{DatagramMeta, MacAddr, RxFrame, RxOrigin};
use spindrift::wire::{Entropy, ICRC_LEN, Packet, StackTemplate, UDP_PORT_MRC, dscp, icrc, stack};

use super::rand::mix;

const ETHERNET: usize = 14;

/// Bytes that a switch leaves of a trimmed frame, beside an outer IP header.
pub(crate) const TRIMMED_LEN: usize = 128;

/// Headers, payload and iCRC as they go on the wire.
pub(crate) fn join(endpoint: &Endpoint, transmit: &Transmit) -> Vec<u8> {
    let (head, payload) = (transmit.head(), endpoint.payload(transmit));
    assert_eq!(payload.len(), transmit.payload.len as usize, "the payload of a packet to send must be there");
    let mut frame = Vec::with_capacity(head.len() + payload.len() + ICRC_LEN);
    frame.extend_from_slice(head);
    payload.append_to(&mut frame, usize::MAX);
    frame.extend_from_slice(&icrc::compute(transmit.l3(), payload, &[]));
    frame
}

/// The packet inside a frame.
pub(crate) fn decode(frame: &[u8]) -> Option<(DatagramMeta, Packet<'_>)> {
    let parsed = stack::parse(frame).ok()?;
    let body = parsed.mrc.len().checked_sub(ICRC_LEN).and_then(|len| parsed.mrc.get(..len))?;
    Some((parsed.meta, Packet::decode(body).ok()?))
}

/// Shows a frame as a port with several buffers would, or with the sender's own memory among them: cut at places that its
/// bytes decide, behind the first `headers` bytes. A short one is left whole.
pub(crate) fn in_parts(bytes: &[u8], headers: usize, origin: RxOrigin, show: impl FnOnce(&RxFrame<'_>)) {
    let last = bytes.last_chunk().map_or(0, |last| mix(u64::from_le_bytes(*last)));
    if bytes.len() < headers + 150 || last % 3 == 0 {
        return show(&RxFrame::whole(origin, bytes));
    }
    let first = headers + (last >> 8) as usize % (bytes.len() - headers);
    let second =
        if last % 3 == 1 { bytes.len() } else { first + (last >> 32) as usize % (bytes.len() - first) };
    let region = Region::from_vec(bytes.to_vec()).unwrap();
    let rest = [region.payload(first, second - first).unwrap(), Payload::from(&bytes[second..])];
    show(&RxFrame { origin, data: &bytes[..first], rest: &rest });
}

/// Whether nothing is missing and the iCRC is right.
pub(crate) fn is_whole(frame: &[u8]) -> bool {
    stack::parse(frame).is_ok_and(|parsed| !parsed.truncated && icrc::verify_frame(parsed.l3))
}

fn is_v4(frame: &[u8]) -> bool {
    frame[12..14] == [0x08, 0x00]
}

/// Bytes of an outer header without a routing header, if there is one.
pub(crate) fn outer_len(frame: &[u8]) -> usize {
    match frame.get(12..21) {
        Some([0x86, 0xdd, .., 4 | 41]) => 40,
        _ => 0,
    }
}

pub(crate) fn traffic_class(frame: &[u8]) -> u8 {
    if is_v4(frame) { frame[15] } else { frame[14] << 4 | frame[15] >> 4 }
}

/// Rewrites the traffic class as a switch would.
pub(crate) fn set_traffic_class(frame: &mut [u8], class: u8) {
    if is_v4(frame) {
        frame[15] = class;
        fix_checksum(frame);
    } else {
        frame[14] = frame[14] & 0xf0 | class >> 4;
        frame[15] = frame[15] & 0x0f | class << 4;
    }
}

/// Sets congestion experienced, if the packet is ECN-capable.
pub(crate) fn mark_congested(frame: &mut [u8]) -> bool {
    let class = traffic_class(frame);
    let capable = class & 3 == 0b10 || class & 3 == 0b01;
    if capable {
        set_traffic_class(frame, class | 3);
    }
    capable
}

/// Cuts the payload off and says so in the DSCP. The UDP length stays, as switches leave it.
pub(crate) fn trim(frame: &mut Vec<u8>, dscp: u8) {
    frame.truncate(TRIMMED_LEN + outer_len(frame));
    let class = dscp::traffic_class(dscp, traffic_class(frame) & 3);
    let ip_len = frame.len() - ETHERNET;
    if is_v4(frame) {
        frame[16..18].copy_from_slice(&(ip_len as u16).to_be_bytes());
    } else {
        frame[18..20].copy_from_slice(&((ip_len - 40) as u16).to_be_bytes());
    }
    set_traffic_class(frame, class);
}

fn fix_checksum(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let sum: u32 =
        frame[14..34].chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    frame[24..26].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

/// Puts the iCRC right after a header was changed.
pub(crate) fn fix_icrc(frame: &mut [u8]) {
    let end = frame.len() - ICRC_LEN;
    let crc = icrc::compute(&frame[ETHERNET..end], &[], &[]);
    frame[end..].copy_from_slice(&crc);
}

/// Who a forged frame claims to be from, and where it goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Envelope {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) entropy: Entropy,
    pub(crate) traffic_class: u8,
}

impl Envelope {
    pub(crate) fn new(src: IpAddr, dst: IpAddr) -> Self {
        Self { src, dst, entropy: Entropy { src_port: 0xc123, flow_label: 0x4567 }, traffic_class: 0 }
    }

    /// A frame around `mrc` (a packet without its iCRC), with a correct iCRC.
    pub(crate) fn wrap(&self, mrc: &[u8]) -> Vec<u8> {
        let template =
            StackTemplate::new(MacAddr([2; 6]), MacAddr([4; 6]), self.src, self.dst, UDP_PORT_MRC, 64)
                .unwrap();
        let mut head = [0; 128];
        let len = template.write(&mut head, self.entropy, self.traffic_class, mrc.len() + ICRC_LEN);
        let mut frame = head[..len].to_vec();
        frame.extend_from_slice(mrc);
        let crc = icrc::compute(&frame[ETHERNET..], &[], &[]);
        frame.extend_from_slice(&crc);
        frame
    }

    /// A frame around `packet`, its payload included.
    pub(crate) fn seal(&self, packet: &Packet<'_>) -> Vec<u8> {
        let mut mrc = vec![0; 64];
        let len = packet.encode_head(&mut mrc);
        assert!(len > 0, "{packet:?} does not encode");
        mrc.truncate(len);
        if let Packet::Data { payload, pad, .. } = packet {
            mrc.extend_from_slice(payload);
            mrc.extend_from_slice(pad);
        }
        self.wrap(&mrc)
    }
}
