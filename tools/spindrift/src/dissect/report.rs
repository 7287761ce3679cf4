//! Output of packets as text and JSON.

use std::io::{self, Write};

use serde_json::{Map, Value as Json, json};
use spindrift::wire::{AethKind, AtomicOperands, Bth, DataHead, DecodeError, Opcode, Packet, TrimKind};

use super::fields::{
    Header, endpoint_op_name, headers_of, headers_of_front, headers_of_trimmed, nack_reason_name, nak_name,
    opcode_name, rnr_timer,
};
use super::{Content, CutHead, DissectArgs, Dissected, Totals};

/// Bytes of the BTH up to the end of the queue pair number.
const BTH_QPN_END: usize = 8;

/// Writes packets as they come.
pub(super) struct Printer<'a, W> {
    out: &'a mut W,
    json: bool,
    verbose: bool,
    file: String,
    first: bool,
}

impl<'a, W: Write> Printer<'a, W> {
    pub(super) fn new(args: &DissectArgs, out: &'a mut W) -> io::Result<Self> {
        let file = super::capture::name_of(&args.file);
        if args.json {
            write!(out, "{{\"file\":{},\"packets\":[", Json::from(file.as_str()))?;
        }
        Ok(Self { out, json: args.json, verbose: args.verbose, file, first: true })
    }

    pub(super) fn packet(&mut self, dissected: &Dissected, content: &Content<'_>) -> io::Result<()> {
        let headers = match content {
            Content::Packet(packet) if self.json || self.verbose => headers_of(packet),
            Content::Trimmed(head) if self.json || self.verbose => headers_of_trimmed(head),
            Content::Cut(head) if self.json || self.verbose => headers_of_front(&head.bth, &dissected.mrc),
            _ => Vec::new(),
        };
        if self.json {
            let separator = if self.first { "" } else { "," };
            self.first = false;
            return write!(self.out, "{separator}\n{}", to_json(dissected, content, &headers));
        }
        writeln!(self.out, "{}", line(dissected, content))?;
        if self.verbose {
            for line in details(dissected, content, &headers) {
                writeln!(self.out, "      {line}")?;
            }
        }
        Ok(())
    }

    /// Hands on what was printed, for a reader that waits for it.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    pub(super) fn finish(&mut self, totals: &Totals, damaged: Option<&anyhow::Error>) -> io::Result<()> {
        if self.json {
            let totals = json!({
                "frames": totals.frames,
                "packets": totals.packets,
                "unreadable": totals.unreadable,
                "cut": totals.cut,
                "other_frames": totals.others,
                "not_looked_through": totals.closed,
                "fragments": totals.fragments,
                "cut_before_ports": totals.cut_before_ports,
                "link_types": totals.link_types,
                "bad_icrc": totals.bad_icrc,
                "by_opcode": totals.by_opcode,
            });
            let error = damaged.map(|error| format!("{}: {error:#}", self.file));
            writeln!(self.out, "\n],\"totals\":{totals},\"error\":{}}}", Json::from(error))?;
        } else if totals.packets + totals.unreadable > 0 {
            writeln!(self.out, "{}", summary(totals))?;
        }
        self.out.flush()
    }
}

fn summary(totals: &Totals) -> String {
    let mut text = format!("{} MRC packets in {} frames", totals.packets, totals.frames);
    let kinds: Vec<String> = totals.by_opcode.iter().map(|(name, count)| format!("{name} {count}")).collect();
    if !kinds.is_empty() {
        text += &format!(": {}", kinds.join(", "));
    }
    if totals.unreadable > 0 {
        text += &format!("; {} not readable", totals.unreadable);
    }
    if totals.cut > 0 {
        text += &format!("; {} cut in the capture", totals.cut);
    }
    if totals.bad_icrc > 0 {
        text += &format!("; {} with a bad iCRC", totals.bad_icrc);
    }
    text + &left_out(totals)
}

/// Frames that may carry MRC and are not read.
pub(super) fn left_out(totals: &Totals) -> String {
    let mut text = String::new();
    for (encapsulation, count) in &totals.closed {
        text += &format!("; {count} in {encapsulation} not looked through");
    }
    if totals.fragments > 0 {
        text += &format!("; {} IP fragments not read", totals.fragments);
    }
    if totals.cut_before_ports > 0 {
        text += &format!("; {} cut before the UDP ports", totals.cut_before_ports);
    }
    for (link, count) in &totals.link_types {
        text += &format!("; {count} of {link} not read ({})", super::link::READ);
    }
    text
}

/// One line that tells what a packet is about.
fn line(dissected: &Dissected, content: &Content<'_>) -> String {
    let Dissected { meta, number, .. } = dissected;
    let name = content.bth().map_or_else(|| unreadable_name(dissected), |bth| opcode_name(bth.opcode));
    let mut text =
        format!("{number:5} {:>13}  {} -> {}  {name:<17} ", time(dissected.time_ns), meta.src, meta.dst);
    text += &match content {
        Content::Packet(packet) => about(dissected, content, packet),
        Content::Trimmed(head) => {
            let kind = if dissected.trimmed == Some(TrimKind::LastHop) {
                "on the last hop"
            } else {
                "in the fabric"
            };
            let bth = &head.bth;
            format!(
                "qp {:#08x} psn {} msn {} trimmed {kind}",
                bth.dest_qpn.get(),
                bth.psn.get(),
                head.meth.msn.get()
            )
        }
        Content::Cut(head) => cut(head),
        Content::Unreadable(error) => unreadable(dissected, error),
    };
    if let Some(bth) = content.bth() {
        for (set, name) in [(bth.ack_req, " ack-req"), (bth.rtx, " rtx")] {
            text += if set { name } else { "" };
        }
    }
    for (class, name) in [(Some(meta.traffic_class), " CE"), (dissected.carrier, " CE (outer)")] {
        text += if class.is_some_and(|class| class & 3 == 3) { name } else { "" };
    }
    for mark in marks(dissected) {
        text += &format!(" [{mark}]");
    }
    text
}

/// Seconds since the first frame.
fn time(time_ns: Option<i64>) -> String {
    let Some(time_ns) = time_ns else { return "-".to_owned() };
    let (sign, ns) = (if time_ns < 0 { "-" } else { "" }, time_ns.unsigned_abs());
    format!("{sign}{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

/// What stands in the place of an opcode.
fn unreadable_name(dissected: &Dissected) -> &'static str {
    if is_cut(dissected) { "cut" } else { "not MRC" }
}

/// Bytes are missing, so that an unreadable packet is no malformed one.
fn is_cut(dissected: &Dissected) -> bool {
    dissected.not_captured > 0 || dissected.shorter_than_udp
}

/// As much of a packet as was captured.
fn cut(head: &CutHead) -> String {
    let CutHead { bth, kept, .. } = head;
    let mut text = String::new();
    if *kept >= BTH_QPN_END {
        text += &format!("qp {:#08x} ", bth.dest_qpn.get());
    }
    if *kept >= Bth::LEN {
        text += &format!("psn {} ", bth.psn.get());
    }
    text + &format!("cut after {kept} bytes")
}

/// Why a packet cannot be read, in the specification's names.
fn unreadable(dissected: &Dissected, error: &DecodeError) -> String {
    let text = match error {
        DecodeError::TrailingBytes { opcode, expected, found } => {
            let name = opcode_name(*opcode);
            format!("{name} takes {expected} bytes from the BTH to the iCRC, found {found}")
        }
        DecodeError::NotData(opcode) => {
            format!("expected a trimmed data packet, found {}", opcode_name(*opcode))
        }
        other => other.to_string(),
    };
    if is_cut(dissected) { format!("cut after {} bytes: {text}", dissected.mrc.len()) } else { text }
}

/// What is wrong or unusual about the packet as a whole.
fn marks(dissected: &Dissected) -> Vec<String> {
    let mut marks = Vec::new();
    if !dissected.through.is_empty() {
        marks.push(format!("in {}", dissected.through.join(", ")));
    }
    if let Some(icrc) = dissected.icrc.filter(|icrc| !icrc.is_good()) {
        let mut mark = format!("iCRC BAD: found {:08x}, expected {:08x}", icrc.found, icrc.expected);
        if let Some(id) = icrc.good_with_id {
            mark += &format!(
                "; good with IPv4 identification {id}: the kernel has chosen another, which its sender cannot see"
            );
        }
        marks.push(mark);
    }
    if dissected.not_captured > 0 {
        marks.push(format!("cut: {} bytes not captured", dissected.not_captured));
    }
    if dissected.shorter_than_udp && dissected.trimmed.is_none() {
        marks.push("cut: IP packet shorter than its UDP header says".to_owned());
    }
    if dissected.length_open {
        marks.push(
            "IP length 0, as in packets captured before segmentation offload: the length is that of the capture"
                .to_owned(),
        );
    }
    if let Some(len) = dissected.several {
        let each = if len == 0 { String::new() } else { format!(" of {len} bytes") };
        marks.push(format!(
            "several packets{each} that the kernel handles as one (segmentation offload): this is the first; --pcap captures each by itself"
        ));
    }
    marks
}

fn about(dissected: &Dissected, content: &Content<'_>, packet: &Packet<'_>) -> String {
    let bth = packet.bth();
    let (qp, psn) = (format!("qp {:#08x}", bth.dest_qpn.get()), bth.psn.get());
    match packet {
        Packet::Data { head, .. } => {
            let len = dissected.payload_len(content).unwrap_or_default();
            format!(
                "{qp} psn {psn} msn {} va {:#x} len {len} of {}{} {}",
                head.meth.msn.get(),
                head.reth.va,
                head.reth.dma_len,
                beyond_reth(head),
                path(dissected)
            )
        }
        Packet::Ack { aeth, .. } => match aeth.kind() {
            AethKind::Ack => format!("{qp} psn {psn} msn {}", aeth.msn),
            AethKind::Nak(code) => format!("{qp} psn {psn} msn {} NAK: {}", aeth.msn, nak_name(code)),
            AethKind::Other(syndrome) => format!("{qp} psn {psn} msn {} syndrome {syndrome:#04x}", aeth.msn),
        },
        Packet::Sack { seth, .. } => {
            let what = if seth.pr {
                format!("answers probe {}", seth.probe_id())
            } else {
                format!("for psn {}", seth.ack_psn().get())
            };
            let (base, bits) = (seth.sack_base().get(), seth.bitmap);
            let ev = seth.entropy.0;
            format!("{qp} cack {} {what} ev {ev:#010x} base {base} bitmap {bits:#x}", seth.cack.get())
        }
        Packet::Nack { neth, .. } => {
            let ev = neth.entropy.0;
            let timer = rnr_timer(neth).map(|timer| format!(" wait {timer}")).unwrap_or_default();
            format!("{qp} psn {} {}{timer} ev {ev:#010x}", neth.nack_psn.get(), nack_reason_name(neth.reason))
        }
        Packet::Probe { peth, .. } => format!("{qp} probe {} {}", peth.probe_id, path(dissected)),
        Packet::EndpointRequest { erth, .. } => {
            let mask = erth.port_status_mask;
            format!("request {} {} ports {mask:#010x}", psn & 0xffff, endpoint_op_name(erth.op))
        }
        Packet::EndpointResponse { eeth, .. } => {
            format!("request {} {}", psn & 0xffff, endpoint_op_name(eeth.op))
        }
    }
}

/// What a data packet carries that not every one does: a word after the RETH, operands, and the number among messages of
/// its kind.
fn beyond_reth(head: &DataHead) -> String {
    let opcode = head.bth.opcode;
    let mut text = String::new();
    if let Some(word) = head.imm {
        text += &format!(" {} {word:#010x}", if opcode.invalidates() { "invalidates" } else { "imm" });
    }
    if let Some(operands) = head.operands {
        let AtomicOperands { swap_or_add, compare } = operands;
        text += &match opcode {
            Opcode::FetchAdd => format!(" add {swap_or_add:#x}"),
            _ => format!(" compare {compare:#x} swap {swap_or_add:#x}"),
        };
    }
    if !opcode.is_plain_write() {
        text += &format!(" rqmsn {}", head.meth.rqmsn.get());
    }
    text
}

/// The fields that carry the entropy value.
fn path(dissected: &Dissected) -> String {
    let meta = &dissected.meta;
    if meta.src.is_ipv4() {
        return format!("sport {:#06x}", meta.src_port);
    }
    format!("sport {:#06x} label {:#07x}", meta.src_port, meta.flow_label)
}

/// All fields, a line for each header.
fn details(dissected: &Dissected, content: &Content<'_>, headers: &[Header]) -> Vec<String> {
    let meta = &dissected.meta;
    let mut lines = vec![format!(
        "udp: src_port={} dst_port={} flow_label=0x{:05x} dscp={} ecn={} hop_limit={}",
        meta.src_port,
        meta.dst_port,
        meta.flow_label,
        meta.traffic_class >> 2,
        meta.traffic_class & 3,
        meta.hop_limit
    )];
    if let Some(class) = dissected.carrier {
        lines.push(format!("outer: dscp={} ecn={}", class >> 2, class & 3));
    }
    for header in headers {
        let fields = header.fields.iter().filter(|field| field.is_shown()).map(|field| {
            let note = field.note.as_ref().map(|note| format!(" ({note})")).unwrap_or_default();
            format!(" {}={}{note}", field.name, field.value)
        });
        lines.push(format!("{}:{}", header.name, fields.collect::<String>()));
    }
    if let Some(len) = dissected.payload_len(content) {
        lines.push(format!("payload: {len} bytes"));
    }
    if let Some(icrc) = dissected.icrc {
        let verdict = if icrc.is_good() { "good" } else { "BAD" };
        lines.push(format!("icrc: {:08x} ({verdict})", icrc.found));
    }
    lines
}

fn to_json(dissected: &Dissected, content: &Content<'_>, headers: &[Header]) -> Json {
    let meta = &dissected.meta;
    let mut packet = Map::new();
    let mut put = |name: &str, value: Json| {
        packet.insert(name.to_owned(), value);
    };
    put("number", dissected.number.into());
    put("time_ns", dissected.time_ns.into());
    put("src", meta.src.to_string().into());
    put("dst", meta.dst.to_string().into());
    put("src_port", meta.src_port.into());
    put("dst_port", meta.dst_port.into());
    put("flow_label", meta.flow_label.into());
    put("dscp", (meta.traffic_class >> 2).into());
    put("ecn", (meta.traffic_class & 3).into());
    put("hop_limit", meta.hop_limit.into());
    let outer = dissected.carrier.map(|class| json!({ "dscp": class >> 2, "ecn": class & 3 }));
    put("outer", outer.into());
    put("encapsulation", json!(dissected.through));
    put("opcode", content.bth().map(|bth| opcode_name(bth.opcode)).into());
    put(
        "trimmed",
        dissected.trimmed.map(|kind| if kind == TrimKind::Fabric { "fabric" } else { "last-hop" }).into(),
    );
    for header in headers {
        let fields = header.fields.iter().map(|field| (field.name.to_owned(), field.value.to_json()));
        put(header.name, Json::Object(fields.collect()));
    }
    put("payload_len", dissected.payload_len(content).into());
    let icrc = dissected
        .icrc
        .map(|icrc| json!({ "value": icrc.found, "expected": icrc.expected, "good": icrc.is_good() }));
    put("icrc", icrc.into());
    put("not_captured", dissected.not_captured.into());
    let error = match content {
        Content::Unreadable(error) | Content::Cut(CutHead { error, .. }) => {
            Some(unreadable(dissected, error))
        }
        Content::Packet(_) | Content::Trimmed(_) => None,
    };
    put("notes", marks(dissected).into());
    put("error", error.into());
    Json::Object(packet)
}
