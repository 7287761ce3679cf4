//! The last packets of a run, kept as bytes and decoded only when somebody reads them.

use std::collections::VecDeque;
use std::fmt::Write as _;

use spindrift::time::Time;
use spindrift::wire::{AethKind, NackReason, Packet, stack};

use super::frame;

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Arrives at this time.
    Arrives(Time),
    Lost,
    Swallowed,
    PortDown,
    Nobody,
    /// Waits for whoever drives the network.
    Held,
}

struct Line {
    at: Time,
    node: usize,
    port: u8,
    fate: Fate,
    note: &'static str,
    bytes: Vec<u8>,
}

/// A bounded record of packets sent, with a hash over all of them.
pub(crate) struct Trace {
    lines: VecDeque<Line>,
    keep: usize,
    pub(crate) print: bool,
    pub(crate) packets: u64,
    hash: crc32fast::Hasher,
}

impl Trace {
    /// Bytes kept of each packet: all headers of any.
    const BYTES: usize = 192;

    pub(crate) fn new(keep: usize) -> Self {
        let hash = crc32fast::Hasher::new();
        Self { lines: VecDeque::with_capacity(keep), keep, print: false, packets: 0, hash }
    }

    /// Stands for everything that was sent, when, and what became of it.
    pub(crate) fn hash(&self) -> u32 {
        self.hash.clone().finalize()
    }

    pub(crate) fn note(
        &mut self,
        at: Time,
        (node, port): (usize, u8),
        fate: Fate,
        note: &'static str,
        bytes: &[u8],
    ) {
        self.packets += 1;
        self.hash.update(&at.0.to_le_bytes());
        let arrives = if let Fate::Arrives(at) = fate { at.0 } else { 0 };
        self.hash.update(&arrives.to_le_bytes());
        self.hash.update(bytes);
        if self.lines.len() == self.keep {
            self.lines.pop_front();
        }
        let kept = if bytes.len() > Self::BYTES { &bytes[..Self::BYTES] } else { bytes };
        let line = Line { at, node, port, fate, note, bytes: kept.to_vec() };
        if self.print {
            println!("{}", line.text());
        }
        self.lines.push_back(line);
    }

    /// The packets kept, one a line.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for line in &self.lines {
            let _ = writeln!(text, "{}", line.text());
        }
        text
    }
}

impl Line {
    fn text(&self) -> String {
        let fate = match self.fate {
            Fate::Arrives(at) => format!("arrives {at}"),
            Fate::Lost => "LOST".to_owned(),
            Fate::Swallowed => "SWALLOWED".to_owned(),
            Fate::PortDown => "PORT DOWN".to_owned(),
            Fate::Nobody => "to nobody".to_owned(),
            Fate::Held => "held".to_owned(),
        };
        format!(
            "{:>14} n{}p{} {} [{fate}{}]",
            self.at.to_string(),
            self.node,
            self.port,
            describe(&self.bytes),
            self.note
        )
    }
}

/// One line for a packet, which may be cut or damaged.
pub(crate) fn describe(bytes: &[u8]) -> String {
    let Ok(parsed) = stack::parse(bytes) else {
        // A write longer than what was kept: decode it as if it ended here.
        let mut cut = bytes.to_vec();
        if cut.len() >= frame::TRIMMED_LEN {
            frame::trim(&mut cut, frame::traffic_class(bytes) >> 2);
            if stack::parse(&cut).is_ok() {
                return describe(&cut);
            }
        }
        return format!("{} bytes that are no datagram", bytes.len());
    };
    let body = parsed.mrc.get(..parsed.mrc.len().saturating_sub(4)).unwrap_or_default();
    let body = if parsed.truncated { parsed.mrc } else { body };
    let meta = parsed.meta;
    let path =
        format!("ev {:04x}.{:04x} tc {:02x}", meta.src_port, meta.flow_label & 0xffff, meta.traffic_class);
    match Packet::decode(body) {
        Err(error) => format!("{path} undecodable: {error}"),
        Ok(packet) => format!("{path} {}", words(&packet)),
    }
}

fn words(packet: &Packet<'_>) -> String {
    match packet {
        Packet::Data { head, .. } => format!(
            "{:?} q{:06x} psn {:06x}{}{} msn {:04x} rq {:04x} va {:x} of {} ts {:04x}{}",
            head.bth.opcode,
            head.bth.dest_qpn.get(),
            head.bth.psn.get(),
            if head.bth.rtx { " rtx" } else { "" },
            if head.bth.ack_req { " a" } else { "" },
            head.meth.msn.get(),
            head.meth.rqmsn.get(),
            head.reth.va,
            head.reth.dma_len,
            head.tseth.map_or(0, |tseth| tseth.timestamp),
            head.imm.map_or(String::new(), |imm| format!(" imm {imm:x}")),
        ),
        Packet::Ack { bth, aeth } => match aeth.kind() {
            AethKind::Ack => {
                format!("Ack q{:06x} psn {:06x} msn {}", bth.dest_qpn.get(), bth.psn.get(), aeth.msn)
            }
            other => {
                format!("{other:?} q{:06x} psn {:06x} msn {}", bth.dest_qpn.get(), bth.psn.get(), aeth.msn)
            }
        },
        Packet::Sack { bth, seth } => format!(
            "Sack q{:06x} cack {:06x} trigger {:+}{} base {:+} bits {:x} mark {:?} rcvd {} ts {:04x}",
            bth.dest_qpn.get(),
            seth.cack.get(),
            seth.ack_psn_offset,
            if seth.pr { " pr" } else { "" },
            seth.sack_offset,
            seth.bitmap,
            seth.mark,
            seth.cc.rcvd_bytes,
            seth.cc.tx_timestamp,
        ),
        Packet::Nack { bth, neth } => format!(
            "Nack q{:06x} psn {:06x} {:?} ts {:04x}",
            bth.dest_qpn.get(),
            neth.nack_psn.get(),
            NackReason::from(neth.reason),
            neth.tx_timestamp
        ),
        Packet::Probe { bth, peth } => format!("Probe q{:06x} id {:04x}", bth.dest_qpn.get(), peth.probe_id),
        Packet::EndpointRequest { bth, erth } => {
            format!("Request {:?} id {:04x} ports {:x}", erth.op, bth.psn.get(), erth.port_status_mask)
        }
        Packet::EndpointResponse { bth, .. } => format!("Response id {:04x}", bth.psn.get()),
    }
}
