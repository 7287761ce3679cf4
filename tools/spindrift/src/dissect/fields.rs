//! A packet as a list of headers with named fields: what the text, the JSON and the comparison with the
//! Wireshark dissector are all made of.
//!
//! The names are those of the Wireshark fields: header `seth`, field `cack` is `mrc.seth.cack`.

use std::fmt;

use spindrift::wire::{
    Aeth, Bth, CcState, Eeth, EndpointOp, Erth, Mark, Meth, NackReason, NakCode, Neth, OpPosition, Opcode,
    Packet, Peth, Reth, Seth, TrimmedHead, Tseth,
};

/// A header.
#[derive(Debug)]
pub(crate) struct Header {
    /// Short name, as in field names.
    pub(crate) name: &'static str,
    pub(crate) fields: Vec<Field>,
}

/// A field of a header.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) value: Value,
    /// Reserved bits: shown only where they are not 0.
    pub(crate) reserved: bool,
    /// What the value means.
    pub(crate) note: Option<String>,
}

/// The value of a field, with the way it is best read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    /// A count or number.
    Dec(u64),
    /// A code, key or address with so many hexadecimal digits.
    Hex(u64, usize),
    /// A signed offset.
    Signed(i64),
    Flag(bool),
    Bytes(Vec<u8>),
}

impl Value {
    fn is_zero(&self) -> bool {
        match self {
            Self::Dec(n) | Self::Hex(n, _) => *n == 0,
            Self::Signed(n) => *n == 0,
            Self::Flag(flag) => !flag,
            Self::Bytes(bytes) => bytes.iter().all(|byte| *byte == 0),
        }
    }

    /// Numbers as numbers, flags as booleans; bytes and what has 64 bits, which not every reader of JSON can
    /// hold, as text.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        match self {
            Self::Hex(_, 16) | Self::Bytes(_) => self.to_string().into(),
            Self::Dec(n) | Self::Hex(n, _) => (*n).into(),
            Self::Signed(n) => (*n).into(),
            Self::Flag(flag) => (*flag).into(),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dec(n) => write!(f, "{n}"),
            Self::Hex(n, digits) => write!(f, "0x{n:0digits$x}"),
            Self::Signed(n) => write!(f, "{n:+}"),
            Self::Flag(flag) => write!(f, "{}", u8::from(*flag)),
            Self::Bytes(bytes) => bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}")),
        }
    }
}

impl Field {
    fn new(name: &'static str, value: Value) -> Self {
        Self { name, value, reserved: false, note: None }
    }

    fn note(self, note: impl Into<String>) -> Self {
        Self { note: Some(note.into()), ..self }
    }

    /// Whether it is worth a line of text.
    pub(crate) fn is_shown(&self) -> bool {
        !self.reserved || !self.value.is_zero()
    }
}

fn dec(name: &'static str, value: impl Into<u64>) -> Field {
    Field::new(name, Value::Dec(value.into()))
}

fn hex(name: &'static str, value: impl Into<u64>, digits: usize) -> Field {
    Field::new(name, Value::Hex(value.into(), digits))
}

fn signed(name: &'static str, value: i16) -> Field {
    Field::new(name, Value::Signed(value.into()))
}

fn flag(name: &'static str, value: bool) -> Field {
    Field::new(name, Value::Flag(value))
}

/// Bits without a use in MRC.
fn reserved(name: &'static str, value: impl Into<u64>, digits: usize) -> Field {
    Field { reserved: true, ..hex(name, value, digits) }
}

fn reserved_flag(name: &'static str, value: bool) -> Field {
    Field { reserved: true, ..flag(name, value) }
}

fn reserved_bytes(name: &'static str, bytes: &[u8]) -> Field {
    Field { reserved: true, ..Field::new(name, Value::Bytes(bytes.to_vec())) }
}

/// The headers of a packet.
pub(crate) fn headers_of(packet: &Packet<'_>) -> Vec<Header> {
    let mut headers = vec![bth(packet.bth())];
    match packet {
        Packet::Data { head, .. } => {
            headers.push(meth(&head.meth));
            headers.extend(head.tseth.as_ref().map(tseth));
            headers.push(reth(&head.reth));
            headers.extend(head.imm.map(|data| Header { name: "immdt", fields: vec![hex("data", data, 8)] }));
        }
        Packet::Ack { aeth: header, .. } => headers.push(aeth(header)),
        Packet::Sack { seth: header, .. } => headers.extend([seth(header), cc(&header.cc)]),
        Packet::Nack { neth: header, .. } => headers.push(neth(header)),
        Packet::Probe { peth: header, .. } => headers.push(peth(header)),
        Packet::EndpointRequest { erth: header, .. } => headers.push(erth(header)),
        Packet::EndpointResponse { eeth: header, .. } => headers.push(eeth(header)),
    }
    headers
}

/// The headers that a switch left of a write.
pub(crate) fn headers_of_trimmed(head: &TrimmedHead) -> Vec<Header> {
    let mut headers = vec![bth(&head.bth), meth(&head.meth)];
    headers.extend(head.tseth.as_ref().map(tseth));
    headers
}

/// The headers that are whole in the front `mrc` of a packet that starts with `bth`.
pub(crate) fn headers_of_front(bth: &Bth, mrc: &[u8]) -> Vec<Header> {
    let Some(mut rest) = mrc.get(Bth::LEN..) else { return Vec::new() };
    let mut headers = vec![self::bth(bth)];
    match bth.opcode {
        Opcode::Ack => headers.extend(Aeth::read(rest).ok().as_ref().map(aeth)),
        Opcode::Nack => headers.extend(Neth::read(rest).ok().as_ref().map(neth)),
        Opcode::Probe => headers.extend(Peth::read(rest).ok().as_ref().map(peth)),
        Opcode::EndpointRequest => headers.extend(Erth::read(rest).ok().as_ref().map(erth)),
        // They are whole only if the packet is.
        Opcode::Sack | Opcode::EndpointResponse => {}
        _ => {
            let Ok(found) = Meth::read(rest) else { return headers };
            headers.push(meth(&found));
            rest = rest.get(Meth::LEN..).unwrap_or_default();
            if bth.ts {
                let Ok(found) = Tseth::read(rest) else { return headers };
                headers.push(tseth(&found));
                rest = rest.get(Tseth::LEN..).unwrap_or_default();
            }
            headers.extend(Reth::read(rest).ok().as_ref().map(reth));
        }
    }
    headers
}

/// The name of an opcode, as in the specification's tables.
pub(crate) const fn opcode_name(opcode: Opcode) -> &'static str {
    match opcode {
        Opcode::SendFirst => "SEND_FIRST",
        Opcode::SendMiddle => "SEND_MIDDLE",
        Opcode::SendLast => "SEND_LAST",
        Opcode::SendLastImm => "SEND_LAST_IMM",
        Opcode::SendLastInvalidate => "SEND_LAST_INVALIDATE",
        Opcode::SendOnly => "SEND_ONLY",
        Opcode::SendOnlyImm => "SEND_ONLY_IMM",
        Opcode::SendOnlyInvalidate => "SEND_ONLY_INVALIDATE",
        Opcode::ReadRequest => "READ_REQUEST",
        Opcode::ReadResponseFirst => "READ_RESPONSE_FIRST",
        Opcode::ReadResponseMiddle => "READ_RESPONSE_MIDDLE",
        Opcode::ReadResponseLast => "READ_RESPONSE_LAST",
        Opcode::ReadResponseOnly => "READ_RESPONSE_ONLY",
        Opcode::CompareSwap => "COMPARE_SWAP",
        Opcode::FetchAdd => "FETCH_ADD",
        Opcode::AtomicResponse => "ATOMIC_RESPONSE",
        Opcode::WriteFirst => "WRITE_FIRST",
        Opcode::WriteMiddle => "WRITE_MIDDLE",
        Opcode::WriteLast => "WRITE_LAST",
        Opcode::WriteLastImm => "WRITE_LAST_IMM",
        Opcode::WriteOnly => "WRITE_ONLY",
        Opcode::WriteOnlyImm => "WRITE_ONLY_IMM",
        Opcode::Ack => "ACK",
        Opcode::EndpointRequest => "ENDPOINT_REQUEST",
        Opcode::EndpointResponse => "ENDPOINT_RESPONSE",
        Opcode::Sack => "SACK",
        Opcode::Nack => "NACK",
        Opcode::Probe => "PROBE",
    }
}

/// What a NACK says.
pub(crate) fn nack_reason_name(reason: u8) -> String {
    match NackReason::from(reason) {
        NackReason::Trimmed => "TRIMMED".to_owned(),
        NackReason::TrimmedLastHop => "TRIMMED_LASTHOP".to_owned(),
        NackReason::NoBitmap => "NO_BITMAP".to_owned(),
        NackReason::NoPacketBuffer => "NO_PKT_BUFFER".to_owned(),
        NackReason::NoResource => "NO_RESOURCE".to_owned(),
        NackReason::PsnOutOfWindow => "PSN_OOR_WINDOW".to_owned(),
        NackReason::UnexpectedEvent => "UNEXP_EVENT".to_owned(),
        NackReason::Other(code) => format!("code 0x{code:02x}"),
    }
}

/// What a transport NAK says.
pub(crate) const fn nak_name(code: NakCode) -> &'static str {
    match code {
        NakCode::PsnSequence => "PSN sequence error",
        NakCode::InvalidRequest => "invalid request",
        NakCode::RemoteAccess => "remote access error",
        NakCode::RemoteOperational => "remote operational error",
    }
}

/// What an endpoint request asks for.
pub(crate) const fn endpoint_op_name(op: EndpointOp) -> &'static str {
    match op {
        EndpointOp::PortStatusUpdate => "PORT_STATUS_UPDATE",
        EndpointOp::EvProbe => "EV_PROBE",
        EndpointOp::Reserved2 | EndpointOp::Reserved3 => "reserved",
    }
}

const fn mark_name(mark: Mark) -> &'static str {
    match mark {
        Mark::None => "NONE",
        Mark::SkipOnce => "SKIP_ONCE",
        Mark::AlwaysSkip => "ALWAYS_SKIP",
        Mark::Reserved => "reserved",
    }
}

fn bth(h: &Bth) -> Header {
    let fields = vec![
        hex("opcode", h.opcode.code(), 2).note(opcode_name(h.opcode)),
        reserved_flag("solicited", h.solicited),
        reserved_flag("migrated", h.migrated),
        dec("pad", h.pad),
        reserved("tver", h.tver, 1),
        hex("pkey", h.pkey, 4),
        reserved("var_res", h.var_res, 2),
        hex("dest_qpn", h.dest_qpn.get(), 6),
        flag("ack_req", h.ack_req),
        reserved_flag("reserved", h.reserved),
        flag("rtx", h.rtx),
        flag("ts", h.ts),
        reserved("inv_res", h.inv_res, 1),
        dec("psn", h.psn.get()),
    ];
    Header { name: "bth", fields }
}

fn meth(h: &Meth) -> Header {
    Header { name: "meth", fields: vec![dec("rqmsn", h.rqmsn.get()), dec("msn", h.msn.get())] }
}

fn tseth(h: &Tseth) -> Header {
    let fields = vec![
        dec("timestamp", h.timestamp).note(time_note(h.timestamp, h.tsr)),
        flag("tsr", h.tsr),
        reserved("reserved", h.reserved, 3),
        dec("ftype", h.ftype),
    ];
    Header { name: "tseth", fields }
}

fn reth(h: &Reth) -> Header {
    Header {
        name: "reth",
        fields: vec![hex("va", h.va, 16), hex("rkey", h.rkey, 8), dec("dma_len", h.dma_len)],
    }
}

fn aeth(h: &Aeth) -> Header {
    let note = match h.kind() {
        spindrift::wire::AethKind::Ack => "ACK".to_owned(),
        spindrift::wire::AethKind::Nak(code) => format!("NAK, {}", nak_name(code)),
        spindrift::wire::AethKind::Other(_) => "unknown".to_owned(),
    };
    Header { name: "aeth", fields: vec![hex("syndrome", h.syndrome, 2).note(note), dec("msn", h.msn)] }
}

fn seth(h: &Seth) -> Header {
    let meaning = if h.pr {
        format!("answers probe {}", h.probe_id())
    } else {
        format!("triggered by PSN {}", h.ack_psn().get())
    };
    let bitmap = hex("bitmap", h.bitmap, 16).note(format!("{} arrived", h.bitmap.count_ones()));
    let fields = vec![
        reserved("reserved0", h.reserved0, 4),
        dec("mark", h.mark as u8).note(mark_name(h.mark)),
        flag("pr", h.pr),
        signed("ack_psn_offset", h.ack_psn_offset).note(meaning),
        hex("entropy", h.entropy.0, 8),
        hex("spdcid", h.spdcid, 4),
        hex("dpdcid", h.dpdcid, 4),
        reserved("reserved12", h.reserved12, 2),
        dec("cack", h.cack.get()),
        dec("cc_type", h.cc_type),
        hex("cc_flags", h.cc_flags, 1),
        dec("mpr", h.mpr).note(format!("{} PSNs", u32::from(h.mpr) * 128)),
        signed("sack_offset", h.sack_offset).note(format!("bit 0 is PSN {}", h.sack_base().get())),
        bitmap,
    ];
    Header { name: "seth", fields }
}

fn cc(h: &CcState) -> Header {
    let fields = vec![
        dec("tx_timestamp", h.tx_timestamp),
        reserved_flag("reserved", h.reserved),
        dec("ooo_count", h.ooo_count),
        flag("restore_cwnd", h.restore_cwnd),
        dec("cwnd_penalty", h.cwnd_penalty),
        dec("rcvd_bytes", h.rcvd_bytes).note("in units of 256 bytes"),
    ];
    Header { name: "cc", fields }
}

fn neth(h: &Neth) -> Header {
    let fields = vec![
        reserved("reserved0", h.reserved0, 4),
        hex("reason", h.reason, 2).note(nack_reason_name(h.reason)),
        hex("vendor_info", h.vendor_info, 2),
        hex("entropy", h.entropy.0, 8),
        hex("spdcid", h.spdcid, 4),
        hex("dpdcid", h.dpdcid, 4),
        reserved("reserved12", h.reserved12, 2),
        dec("nack_psn", h.nack_psn.get()),
        dec("cc_type", h.cc_type),
        hex("cc_flags", h.cc_flags, 1),
        reserved("reserved17", h.reserved17, 2),
        dec("tx_timestamp", h.tx_timestamp),
    ];
    Header { name: "neth", fields }
}

fn peth(h: &Peth) -> Header {
    let fields = vec![
        reserved("reserved0", h.reserved0, 4),
        reserved("reserved2", h.reserved2, 2),
        hex("vendor_info", h.vendor_info, 2),
        dec("probe_id", h.probe_id),
        reserved("reserved6", h.reserved6, 4),
        hex("spdcid", h.spdcid, 4),
        hex("dpdcid", h.dpdcid, 4),
        dec("tx_timestamp", h.tx_timestamp).note(time_note(h.tx_timestamp, h.tsr)),
        flag("tsr", h.tsr),
        reserved("reserved14", h.reserved14, 3),
        dec("ftype", h.ftype),
    ];
    Header { name: "peth", fields }
}

fn erth(h: &Erth) -> Header {
    let fields = vec![
        reserved("reserved0", h.reserved0, 4),
        dec("op", h.op as u8).note(endpoint_op_name(h.op)),
        reserved("reserved2", h.reserved2, 2),
        hex("vendor_info", h.vendor_info, 2),
        hex("port_status_mask", h.port_status_mask, 8),
        reserved("reserved8", h.reserved8, 8),
        dec("tx_timestamp", h.tx_timestamp).note(time_note(h.tx_timestamp, h.tsr)),
        flag("tsr", h.tsr),
        reserved("reserved14", h.reserved14, 3),
        dec("ftype", h.ftype),
    ];
    Header { name: "erth", fields }
}

fn eeth(h: &Eeth) -> Header {
    let position = match h.op_position {
        OpPosition::Bits3To2 => "bits 3 and 2",
        OpPosition::Bits5To4 => "bits 5 and 4",
    };
    let fields = vec![
        reserved("reserved0", h.reserved0, 4),
        dec("op", h.op as u8).note(format!("{}, in {position}", endpoint_op_name(h.op))),
        reserved_bytes("reserved2", &h.reserved2),
        dec("tx_timestamp", h.tx_timestamp),
        reserved_bytes("reserved30", &h.reserved30),
    ];
    Header { name: "eeth", fields }
}

fn time_note(timestamp: u16, tsr: bool) -> String {
    if tsr {
        return "in the sender's own unit".to_owned();
    }
    format!("{} ns", u64::from(timestamp) * spindrift::wire::TIMESTAMP_UNIT_NS)
}
