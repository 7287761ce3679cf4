//! Whole packets, from the BTH to the iCRC.

use core::hint::cold_path;

use super::{
    Aeth, AtomicOperands, Bth, DecodeError, Eeth, Erth, ImmDt, Meth, Neth, Opcode, Peth, Psn, Qpn, Reth,
    Seth, Tseth, field,
};

/// The headers of a data packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataHead {
    /// Base transport header. Its opcode must be that of a data packet.
    pub bth: Bth,
    /// Message header.
    pub meth: Meth,
    /// Timestamp header.
    pub tseth: Option<Tseth>,
    /// RDMA header.
    pub reth: Reth,
    /// Immediate data, or the key that a send invalidates.
    pub imm: Option<u32>,
    /// Operands of an atomic operation.
    pub operands: Option<AtomicOperands>,
}

impl DataHead {
    /// Bytes of the longest one.
    pub const MAX_LEN: usize = Bth::LEN + Meth::LEN + Tseth::LEN + Reth::LEN + AtomicOperands::LEN;

    /// Bytes that [`encode`](Self::encode) writes.
    #[inline]
    pub const fn encoded_len(&self) -> usize {
        Self::len_of(self.bth.opcode, self.tseth.is_some())
    }

    /// Bytes of the headers of a data packet, TSETH included if `timestamp`.
    #[inline]
    pub const fn len_of(opcode: Opcode, timestamp: bool) -> usize {
        let tseth = if timestamp { Tseth::LEN } else { 0 };
        Bth::LEN + Meth::LEN + tseth + Reth::LEN + opcode.tail_len()
    }

    /// Writes the headers to the front of `out` and returns their length, or returns 0 if `out` is shorter than
    /// [`MAX_LEN`](Self::MAX_LEN). Bytes of `out` up to `MAX_LEN` may change.
    ///
    /// The result can always be decoded. The `ts` bit says whether there is a TSETH, whatever `bth.ts` is. There are
    /// immediate data, a key or operands (0 if none are given) if and only if the opcode requires them.
    #[expect(clippy::inline_always, reason = "the path of every packet: most fields are constants there")]
    #[inline(always)]
    pub fn encode(&self, out: &mut [u8]) -> usize {
        let len = self.encode_front(out);
        if len > 0 && self.bth.opcode.has_tail() {
            cold_path();
            return len + encode_tail(self.bth.opcode, self.imm, self.operands, out, len);
        }
        len
    }

    /// The same without what follows the RETH: for an opcode after which nothing follows.
    #[expect(clippy::inline_always, reason = "as for `encode`")]
    #[inline(always)]
    pub fn encode_front(&self, out: &mut [u8]) -> usize {
        let Some(out) = out.first_chunk_mut::<{ Self::MAX_LEN }>() else { return 0 };
        let bth = Bth { ts: self.tseth.is_some(), ..self.bth };
        let mut len = put_two(&bth, &self.meth.to_bytes(), out);
        if let Some(tseth) = self.tseth {
            len += append(&tseth.to_bytes(), out, len);
        }
        len + append(&self.reth.to_bytes(), out, len)
    }

    /// Splits `mrc`, a packet without its iCRC, into headers and what follows them (payload and pad).
    ///
    /// Fails if `mrc` ends inside the headers or is not a data packet.
    #[inline]
    pub fn decode(mrc: &[u8]) -> Result<(Self, &[u8]), DecodeError> {
        let (opcode, bth, _) = split_bth(mrc)?;
        let (view, rest) = DataView::read(opcode, bth, mrc)?;
        Ok((view.head(), rest))
    }
}

/// The headers of a data packet in place, with each field read when needed. A receiver needs few of them, and
/// moving the values of all costs more than reading those.
#[derive(Clone, Copy, Debug)]
pub struct DataView<'a> {
    opcode: Opcode,
    /// All of them and nothing else.
    headers: &'a [u8],
}

/// BTH and METH, which every data packet starts with.
type Front = [u8; Bth::LEN + Meth::LEN];

impl<'a> DataView<'a> {
    /// Splits `mrc`, a packet without its iCRC, into headers and what follows them (payload and pad).
    ///
    /// Nothing if `mrc` ends inside the headers or is not a data packet.
    #[inline]
    pub fn split(mrc: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let bth = mrc.first_chunk()?;
        let opcode = Bth::data_opcode_of(bth)?;
        let (headers, rest) = mrc.split_at_checked(DataHead::len_of(opcode, Bth::ts_of(bth)))?;
        Some((Self { opcode, headers }, rest))
    }

    #[inline]
    fn front(&self) -> &'a Front {
        // As long as that, always.
        self.headers.first_chunk().unwrap_or(&[0; _])
    }

    #[inline]
    fn bth(&self) -> &'a [u8; Bth::LEN] {
        self.front().first_chunk().unwrap_or(&[0; _])
    }

    #[inline]
    fn tseth(&self) -> Option<&'a [u8; Tseth::LEN]> {
        let (_, behind) = self.headers.split_first_chunk::<{ Bth::LEN + Meth::LEN }>()?;
        if Bth::ts_of(self.bth()) { behind.first_chunk() } else { None }
    }

    /// Why a packet cannot be [split](Self::split).
    #[cold]
    fn missing(bth: &[u8; Bth::LEN], opcode: Opcode, mut found: usize) -> DecodeError {
        if !opcode.is_data() {
            return DecodeError::NotData(opcode);
        }
        let tseth = if Bth::ts_of(bth) { Tseth::LEN } else { 0 };
        let tail = (opcode.tail_name(), opcode.tail_len());
        for (header, needed) in [("METH", Meth::LEN), ("TSETH", tseth), ("RETH", Reth::LEN), tail] {
            if found < needed {
                return DecodeError::Short { header, needed, found };
            }
            found -= needed;
        }
        DecodeError::NotData(opcode)
    }

    /// The same with the reason.
    #[inline]
    fn read(opcode: Opcode, bth: &[u8; Bth::LEN], mrc: &'a [u8]) -> Result<(Self, &'a [u8]), DecodeError> {
        Self::split(mrc).ok_or_else(|| Self::missing(bth, opcode, mrc.len() - Bth::LEN))
    }

    /// All of them, read.
    #[inline]
    pub fn head(&self) -> DataHead {
        DataHead {
            bth: Bth::of(self.opcode, self.bth()),
            meth: self.meth(),
            tseth: self.tseth().map(Tseth::from_bytes),
            reth: self.reth(),
            imm: (self.opcode.tail_len() == ImmDt::LEN).then(|| self.last_word()),
            operands: self.opcode.has_operands().then(|| self.operands()),
        }
    }

    /// Bytes that they take.
    #[inline]
    pub const fn header_len(&self) -> usize {
        self.headers.len()
    }

    /// The opcode.
    #[inline]
    pub const fn opcode(&self) -> Opcode {
        self.opcode
    }

    /// The destination queue pair.
    #[inline]
    pub fn dest_qpn(&self) -> Qpn {
        Bth::dest_qpn_of(self.bth())
    }

    /// The packet sequence number.
    #[inline]
    pub fn psn(&self) -> Psn {
        Bth::psn_of(self.bth())
    }

    /// Whether the packet triggers a SACK by itself: it requests an acknowledgement, or it is a retransmission.
    #[inline]
    pub fn demands_sack(&self) -> bool {
        self.ack_req() | self.rtx()
    }

    /// Whether a transport acknowledgement is requested.
    #[inline]
    pub fn ack_req(&self) -> bool {
        Bth::ack_req_of(self.bth())
    }

    /// Whether it is a retransmission.
    #[inline]
    pub fn rtx(&self) -> bool {
        Bth::rtx_of(self.bth())
    }

    /// Pad bytes after the payload.
    #[inline]
    pub fn pad(&self) -> u8 {
        Bth::pad_of(self.bth())
    }

    /// The METH.
    #[inline]
    pub fn meth(&self) -> Meth {
        Meth::from_bytes(self.front().last_chunk().unwrap_or(&[0; _]))
    }

    /// The timestamp of the TSETH; 0 if there is none.
    #[inline]
    pub fn timestamp(&self) -> u16 {
        self.tseth().map_or(0, Tseth::timestamp_of)
    }

    /// The RETH.
    #[inline]
    pub fn reth(&self) -> Reth {
        let upto = self.headers.len().saturating_sub(self.opcode.tail_len());
        let reth = self.headers.get(..upto).and_then(|headers| headers.last_chunk());
        reth.map_or_else(Reth::default, Reth::from_bytes)
    }

    /// The operands of an atomic operation, if the opcode calls for them.
    #[inline]
    pub fn operands(&self) -> AtomicOperands {
        self.headers.last_chunk().map_or_else(AtomicOperands::default, AtomicOperands::from_bytes)
    }

    /// The last word of the headers: the immediate data or the key to invalidate, if the opcode calls for them.
    #[inline]
    pub fn last_word(&self) -> u32 {
        self.headers.last_chunk().map_or(0, |imm| ImmDt::from_bytes(imm).0)
    }
}

/// A packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet<'a> {
    /// Part of a message: of a write, or of an operation that is an extension of MRC.
    Data {
        /// The headers.
        head: DataHead,
        /// The data to be placed.
        payload: &'a [u8],
        /// The padding after the data, `head.bth.pad` bytes.
        pad: &'a [u8],
    },
    /// Transport acknowledgement, positive or negative.
    Ack {
        /// Base transport header.
        bth: Bth,
        /// Acknowledgement header.
        aeth: Aeth,
    },
    /// Selective acknowledgement.
    Sack {
        /// Base transport header. Its PSN repeats `seth.cack`.
        bth: Bth,
        /// Selective acknowledgement header.
        seth: Seth,
    },
    /// Negative acknowledgement of one packet.
    Nack {
        /// Base transport header. Its PSN repeats `neth.nack_psn`.
        bth: Bth,
        /// Negative acknowledgement header.
        neth: Neth,
    },
    /// Reliability probe request.
    Probe {
        /// Base transport header. Its PSN is reserved.
        bth: Bth,
        /// Probe header.
        peth: Peth,
    },
    /// Endpoint request.
    EndpointRequest {
        /// Base transport header. Its PSN holds the request id.
        bth: Bth,
        /// Endpoint request header.
        erth: Erth,
    },
    /// Endpoint response.
    EndpointResponse {
        /// Base transport header. Its PSN holds the request id.
        bth: Bth,
        /// Endpoint response header.
        eeth: Eeth,
    },
}

impl<'a> Packet<'a> {
    /// Bytes of the longest headers.
    pub const MAX_HEAD_LEN: usize = DataHead::MAX_LEN;

    /// Reads a packet without its iCRC.
    ///
    /// Fails if the opcode is unknown, if `mrc` ends inside the headers or the pad, or if something follows the
    /// headers of a control packet. That the length of the payload suits the message is not checked here.
    #[inline]
    pub fn decode(mrc: &'a [u8]) -> Result<Self, DecodeError> {
        let (opcode, bth, rest) = split_bth(mrc)?;
        if opcode.is_data() {
            let (view, data) = DataView::read(opcode, bth, mrc)?;
            let pad = view.pad();
            let Some((payload, pad)) =
                data.len().checked_sub(pad.into()).and_then(|n| data.split_at_checked(n))
            else {
                return Err(DecodeError::Pad { pad, found: data.len() });
            };
            return Ok(Self::Data { head: view.head(), payload, pad });
        }
        Self::decode_control(Bth::of(opcode, bth), rest)
    }

    fn decode_control(bth: Bth, rest: &'a [u8]) -> Result<Self, DecodeError> {
        Ok(match bth.opcode {
            Opcode::Ack => Self::Ack { bth, aeth: Aeth::from_bytes(only(bth, rest, "AETH")?) },
            Opcode::Sack => Self::Sack { bth, seth: Seth::from_bytes(only(bth, rest, "SETH")?) },
            Opcode::Nack => Self::Nack { bth, neth: Neth::from_bytes(only(bth, rest, "NETH")?) },
            Opcode::Probe => Self::Probe { bth, peth: Peth::from_bytes(only(bth, rest, "PETH")?) },
            Opcode::EndpointRequest => {
                Self::EndpointRequest { bth, erth: Erth::from_bytes(only(bth, rest, "ERTH")?) }
            }
            Opcode::EndpointResponse => {
                Self::EndpointResponse { bth, eeth: Eeth::from_bytes(only(bth, rest, "EETH")?) }
            }
            data => return Err(DecodeError::UnknownOpcode(data.code())),
        })
    }

    /// The base transport header.
    #[inline]
    pub const fn bth(&self) -> &Bth {
        match self {
            Self::Data { head, .. } => &head.bth,
            Self::Ack { bth, .. }
            | Self::Sack { bth, .. }
            | Self::Nack { bth, .. }
            | Self::Probe { bth, .. }
            | Self::EndpointRequest { bth, .. }
            | Self::EndpointResponse { bth, .. } => bth,
        }
    }

    /// Writes all but payload and pad to the front of `out` and returns the length, or returns 0 if `out` is
    /// shorter than the headers (for a data packet, than [`DataHead::MAX_LEN`]).
    ///
    /// The BTH is written as it is; the caller gives it the opcode that suits the kind of packet.
    #[inline]
    pub fn encode_head(&self, out: &mut [u8]) -> usize {
        match self {
            Self::Data { head, .. } => head.encode(out),
            Self::Ack { bth, aeth } => put_two(bth, &aeth.to_bytes(), out),
            Self::Sack { bth, seth } => put_two(bth, &seth.to_bytes(), out),
            Self::Nack { bth, neth } => put_two(bth, &neth.to_bytes(), out),
            Self::Probe { bth, peth } => put_two(bth, &peth.to_bytes(), out),
            Self::EndpointRequest { bth, erth } => put_two(bth, &erth.to_bytes(), out),
            Self::EndpointResponse { bth, eeth } => put_two(bth, &eeth.to_bytes(), out),
        }
    }
}

/// The part of a trimmed data packet that remains: the headers that a NACK needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrimmedHead {
    /// Base transport header.
    pub bth: Bth,
    /// Message header.
    pub meth: Meth,
    /// Timestamp header.
    pub tseth: Option<Tseth>,
}

impl TrimmedHead {
    /// Reads the front of a trimmed packet. The bytes after it, perhaps half a header or a stale iCRC, are ignored.
    ///
    /// Fails if it is not a data packet or was cut before the end of the headers that it announces.
    #[inline]
    pub fn decode(mrc: &[u8]) -> Result<Self, DecodeError> {
        let (opcode, bth, rest) = split_bth(mrc)?;
        if !opcode.is_data() {
            return Err(DecodeError::NotData(opcode));
        }
        let (meth, tseth, _) = split_message(bth, rest)?;
        let (meth, tseth) = (Meth::from_bytes(meth), tseth.map(Tseth::from_bytes));
        Ok(Self { bth: Bth::of(opcode, bth), meth, tseth })
    }
}

#[inline]
fn split_bth(mrc: &[u8]) -> Result<(Opcode, &[u8; Bth::LEN], &[u8]), DecodeError> {
    let (bth, rest) = split(mrc, "BTH")?;
    Ok((Bth::opcode_of(bth)?, bth, rest))
}

type Message<'a> = (&'a [u8; Meth::LEN], Option<&'a [u8; Tseth::LEN]>, &'a [u8]);

/// METH and, if the BTH says so, TSETH.
#[inline]
fn split_message<'a>(bth: &[u8; Bth::LEN], rest: &'a [u8]) -> Result<Message<'a>, DecodeError> {
    let (meth, rest) = split(rest, "METH")?;
    if !Bth::ts_of(bth) {
        return Ok((meth, None, rest));
    }
    let (tseth, rest) = split(rest, "TSETH")?;
    Ok((meth, Some(tseth), rest))
}

#[inline]
fn split<'a, const N: usize>(
    bytes: &'a [u8],
    header: &'static str,
) -> Result<(&'a [u8; N], &'a [u8]), DecodeError> {
    bytes.split_first_chunk().ok_or(DecodeError::Short { header, needed: N, found: bytes.len() })
}

/// The single header after the BTH of a control packet.
#[inline]
fn only<'a, const N: usize>(
    bth: Bth,
    rest: &'a [u8],
    header: &'static str,
) -> Result<&'a [u8; N], DecodeError> {
    let (bytes, more) = split(rest, header)?;
    if more.is_empty() {
        return Ok(bytes);
    }
    let (expected, found) = (Bth::LEN + N, Bth::LEN + rest.len());
    Err(DecodeError::TrailingBytes { opcode: bth.opcode, expected, found })
}

#[inline]
fn put_two<const N: usize>(bth: &Bth, header: &[u8; N], out: &mut [u8]) -> usize {
    let Some((room, rest)) = out.split_first_chunk_mut() else { return 0 };
    let len = field::put(header, rest);
    if len == 0 {
        return 0;
    }
    *room = bth.to_bytes();
    Bth::LEN + len
}

/// The header after the RETH.
#[inline(never)]
fn encode_tail(
    opcode: Opcode,
    imm: Option<u32>,
    operands: Option<AtomicOperands>,
    out: &mut [u8],
    at: usize,
) -> usize {
    if opcode.has_operands() {
        return append(&operands.unwrap_or_default().to_bytes(), out, at);
    }
    append(&ImmDt(imm.unwrap_or(0)).to_bytes(), out, at)
}

#[inline]
fn append<const N: usize>(header: &[u8; N], out: &mut [u8], at: usize) -> usize {
    out.get_mut(at..).map_or(0, |rest| field::put(header, rest))
}

#[cfg(test)]
#[expect(clippy::indexing_slicing, reason = "test")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn head() -> impl Strategy<Value = DataHead> {
        let data = Opcode::ALL.into_iter().filter(|opcode| opcode.is_data()).collect::<Vec<_>>();
        let parts = (
            any::<[u8; 11]>(),
            any::<[u8; 4]>(),
            any::<Option<[u8; 4]>>(),
            any::<[u8; 16]>(),
            any::<[u8; 16]>(),
        );
        (proptest::sample::select(data), parts).prop_map(|(opcode, (bth, meth, tseth, reth, tail))| {
            let mut bytes = [opcode.code(); Bth::LEN];
            bytes[1..].copy_from_slice(&bth);
            DataHead {
                bth: Bth::of(opcode, &bytes),
                meth: Meth::from_bytes(&meth),
                tseth: tseth.map(|tseth| Tseth::from_bytes(&tseth)),
                reth: Reth::from_bytes(&reth),
                imm: (opcode.tail_len() == 4).then_some(u32::from_be_bytes(tail[..4].try_into().unwrap())),
                operands: opcode.has_operands().then(|| AtomicOperands::from_bytes(&tail)),
            }
        })
    }

    proptest! {
        /// What is read where it lies is what was written, field by field. The `ts` bit is that of the headers there are.
        #[test]
        fn a_view_tells_what_was_written(head in head(), payload in proptest::collection::vec(any::<u8>(), 0..20)) {
            let mut packet = [0; DataHead::MAX_LEN];
            let len = head.encode(&mut packet);
            let packet = [&packet[..len], &payload].concat();
            let (view, rest) = DataView::split(&packet).unwrap();
            prop_assert_eq!(rest, &payload[..]);
            let bth = Bth { ts: head.tseth.is_some(), ..head.bth };
            prop_assert_eq!(view.head(), DataHead { bth, ..head });
            prop_assert_eq!((view.header_len(), view.opcode()), (len, bth.opcode));
            prop_assert_eq!((view.dest_qpn(), view.psn(), view.pad()), (bth.dest_qpn, bth.psn, bth.pad));
            prop_assert_eq!((view.ack_req(), view.rtx()), (bth.ack_req, bth.rtx));
            prop_assert_eq!(view.demands_sack(), bth.ack_req || bth.rtx);
            prop_assert_eq!(view.meth(), head.meth);
            prop_assert_eq!(view.timestamp(), head.tseth.map_or(0, |tseth| tseth.timestamp));
            prop_assert_eq!(view.reth(), head.reth);
            prop_assert!(head.imm.is_none_or(|imm| imm == view.last_word()));
            prop_assert!(head.operands.is_none_or(|operands| operands == view.operands()));
            for short in 0..len {
                prop_assert!(DataView::split(&packet[..short]).is_none());
            }
        }
    }
}
