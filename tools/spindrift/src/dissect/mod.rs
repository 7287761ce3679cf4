//! `spindrift dissect`: prints the MRC packets of a capture, field by field.

mod capture;
mod fields;
mod frame;
mod link;
mod lower;
mod pcapng;
mod report;
mod tunnel;

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use spindrift::wire::{
    Bth, DecodeError, DscpMap, Packet, Qpn, TrimKind, TrimmedHead, UDP_PORT_MRC, UDP_PORT_ROCE, is_mrc_port,
};
use spindrift_pmd::DatagramMeta;

use self::capture::Capture;
use self::frame::{Datagram, Icrc, Other, datagram};
use self::link::Link;
use crate::output::{eprint_line, record_stdout_error};
use crate::units::parse_qpn;

/// Prints the MRC packets of a capture, field by field
#[derive(Args, Debug)]
pub(crate) struct DissectArgs {
    /// Capture file (pcap or pcapng), or `-` for standard input
    file: PathBuf,
    /// Print every field of every header, reserved fields only where they are not 0
    #[arg(short, long)]
    verbose: bool,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
    /// Stop after this many MRC packets
    #[arg(short, long, value_name = "N")]
    count: Option<u64>,
    /// Only packets to this queue pair (0x42 or 66), and SACKs, NACKs and probes from it
    #[arg(long, value_name = "QPN", value_parser = parse_qpn)]
    qp: Option<Qpn>,
    /// UDP destination port that carries MRC, in addition to 4971 and 4791
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// DSCP of packets that a switch has trimmed
    #[arg(long, value_name = "DSCP", default_value_t = DscpMap::default().trimmed, value_parser = dscp_range())]
    trimmed_dscp: u8,
    /// DSCP of packets that the last switch before the host has trimmed
    #[arg(long, value_name = "DSCP", default_value_t = DscpMap::default().trimmed_last_hop, value_parser = dscp_range())]
    trimmed_last_hop_dscp: u8,
    /// Do not check the iCRC, for captures of hosts that run without it
    #[arg(long)]
    no_icrc: bool,
}

fn dscp_range() -> clap::builder::RangedI64ValueParser<u8> {
    clap::value_parser!(u8).range(0..=63)
}

/// One MRC packet, or a datagram to an MRC port that is none.
struct Dissected {
    /// Number of the frame in the file, from 1, as Wireshark counts.
    number: u64,
    /// Since the first frame of the file that has a time; less than 0 for a packet captured before it.
    time_ns: Option<i64>,
    meta: DatagramMeta,
    icrc: Option<Icrc>,
    /// Bytes of the UDP payload that the capture left out.
    not_captured: usize,
    mrc: Vec<u8>,
    trimmed: Option<TrimKind>,
    /// Traffic class of the outer IPv6 header, if one carries the packet.
    carrier: Option<u8>,
    shorter_than_udp: bool,
    several: Option<usize>,
    length_open: bool,
    /// Encapsulations around it, outermost first.
    through: Vec<&'static str>,
}

/// What the bytes of a [`Dissected`] are.
enum Content<'a> {
    Packet(Packet<'a>),
    Trimmed(TrimmedHead),
    /// The capture kept the first bytes only, not all headers.
    Cut(CutHead),
    Unreadable(DecodeError),
}

/// What is left of a packet that was cut inside its headers.
struct CutHead {
    /// Fields that were not captured are 0.
    bth: Bth,
    /// Bytes from the BTH on that were captured.
    kept: usize,
    error: DecodeError,
}

impl Dissected {
    fn content(&self) -> Content<'_> {
        let content = if self.trimmed.is_some() {
            TrimmedHead::decode(&self.mrc).map(Content::Trimmed)
        } else {
            Packet::decode(&self.mrc).map(Content::Packet)
        };
        content.unwrap_or_else(|error| self.cut_head(error).map_or(Content::Unreadable(error), Content::Cut))
    }

    /// Bytes are missing that the sender sent, and that no switch trimmed.
    fn is_cut(&self) -> bool {
        self.not_captured > 0 || self.shorter_than_udp && self.trimmed.is_none()
    }

    fn cut_head(&self, error: DecodeError) -> Option<CutHead> {
        let mut front = [0; Bth::LEN];
        let captured = self.mrc.get(..Bth::LEN).unwrap_or(&self.mrc);
        front.get_mut(..captured.len())?.copy_from_slice(captured);
        let bth = Bth::from_bytes(&front).ok().filter(|_| self.is_cut())?;
        Some(CutHead { bth, kept: self.mrc.len(), error })
    }

    /// Payload bytes on the wire.
    fn payload_len(&self, content: &Content<'_>) -> Option<usize> {
        match content {
            Content::Packet(Packet::Data { payload, .. }) => Some(payload.len() + self.not_captured),
            _ => None,
        }
    }
}

impl Content<'_> {
    fn bth(&self) -> Option<&Bth> {
        match self {
            Self::Packet(packet) => Some(packet.bth()),
            Self::Trimmed(head) => Some(&head.bth),
            Self::Cut(head) => Some(&head.bth),
            Self::Unreadable(_) => None,
        }
    }

    fn concerns(&self, qpn: Qpn) -> bool {
        let low = qpn.get() as u16;
        let from = match self {
            Self::Packet(Packet::Sack { seth, .. }) => Some(seth.spdcid),
            Self::Packet(Packet::Nack { neth, .. }) => Some(neth.spdcid),
            Self::Packet(Packet::Probe { peth, .. }) => Some(peth.spdcid),
            _ => None,
        };
        self.bth().is_some_and(|bth| bth.dest_qpn == qpn) || from == Some(low)
    }
}

/// What was found in all.
#[derive(Default)]
struct Totals {
    frames: u64,
    packets: u64,
    bad_icrc: u64,
    unreadable: u64,
    /// Packets of which the capture has only the front.
    cut: u64,
    /// Frames that the capture cut before the UDP ports, so that nobody can tell what they are.
    cut_before_ports: u64,
    /// UDP or not, these frames were not to an MRC port.
    others: u64,
    /// Of these, the ones in encapsulations that cannot be looked through.
    closed: BTreeMap<&'static str, u64>,
    /// Of these, IP fragments.
    fragments: u64,
    /// Of these, the ones of link types that are not read.
    link_types: BTreeMap<String, u64>,
    by_opcode: BTreeMap<&'static str, u64>,
    /// Datagrams to other ports that read as MRC and have a good iCRC.
    elsewhere: BTreeMap<u16, u64>,
}

pub(crate) fn run(args: &DissectArgs) -> Result<()> {
    let name = capture::name_of(&args.file);
    let mut out = BufWriter::new(io::stdout().lock());
    let mut capture = match Capture::open(&args.file) {
        Ok(capture) => capture,
        Err(error) => {
            if args.json {
                let printer = report::Printer::new(args, &mut out);
                record_stdout_error(
                    printer.and_then(|mut printer| printer.finish(&Totals::default(), Some(&error))),
                );
            }
            return Err(error.context(name));
        }
    };
    match print_all(args, &mut capture, &mut out) {
        Err(error) => {
            record_stdout_error(Err(error));
            Ok(())
        }
        Ok((_, Some(error))) => Err(error.context(name)),
        Ok((totals, None)) => {
            if totals.packets + totals.unreadable == 0 && !args.json {
                eprint_line(format_args!("{}", nothing_found(args, &totals)));
            }
            Ok(())
        }
    }
}

fn nothing_found(args: &DissectArgs, totals: &Totals) -> String {
    let port = args.port.map(|port| format!(" and {port}")).unwrap_or_default();
    let mut text = format!(
        "no MRC packets among {} frames (UDP ports {UDP_PORT_MRC}, {UDP_PORT_ROCE}{port})",
        totals.frames
    );
    text += &report::left_out(totals);
    if args.qp.is_some() {
        text += "; --qp leaves out other queue pairs";
    } else if let Some((port, count)) = totals.elsewhere.iter().max_by_key(|(_, count)| **count) {
        text += &format!("; {count} datagrams to port {port} read as MRC: --port {port} prints them");
    } else if args.port.is_none() {
        text += "; another port can be given with --port";
    }
    text
}

/// Prints until the file ends or is damaged; the error then comes along with what was found before.
fn print_all(
    args: &DissectArgs,
    capture: &mut Capture,
    out: &mut impl Write,
) -> io::Result<(Totals, Option<anyhow::Error>)> {
    let mut totals = Totals::default();
    let mut printer = report::Printer::new(args, out)?;
    let mut first_ns: Option<i64> = None;
    let mut damaged = None;
    while args.count.is_none_or(|count| totals.packets < count) {
        let captured = match capture.next() {
            None => break,
            Some(Ok(captured)) => captured,
            Some(Err(error)) => {
                damaged = Some(error);
                break;
            }
        };
        totals.frames += 1;
        first_ns = first_ns.or(captured.time_ns);
        let link = match Link::of(captured.link) {
            Ok(link) => link,
            Err(link) => {
                totals.others += 1;
                *totals.link_types.entry(link).or_default() += 1;
                continue;
            }
        };
        let is_mrc = |port| is_mrc_port(port, args.port.unwrap_or(UDP_PORT_MRC));
        let found = match datagram(&captured, link, is_mrc, |dscp| trim_of(args, dscp)) {
            Ok(found) if is_mrc(found.meta.dst_port) => found,
            other => {
                totals.count_other(other);
                continue;
            }
        };
        let dissected = Dissected {
            number: captured.number,
            time_ns: captured.time_ns.zip(first_ns).map(|(time, first)| time.saturating_sub(first)),
            meta: found.meta,
            icrc: found.icrc.filter(|_| !args.no_icrc),
            not_captured: found.not_captured,
            trimmed: found.trimmed,
            carrier: found.carrier,
            mrc: found.mrc,
            shorter_than_udp: found.shorter_than_udp,
            several: found.several,
            length_open: found.length_open,
            through: found.through,
        };
        let content = dissected.content();
        if args.qp.is_some_and(|qpn| !content.concerns(qpn)) {
            continue;
        }
        totals.count(&dissected, &content);
        printer.packet(&dissected, &content)?;
        if capture.is_live {
            printer.flush()?;
        }
    }
    let damaged = damaged.or_else(|| no_link_read(&totals));
    printer.finish(&totals, damaged.as_ref())?;
    Ok((totals, damaged))
}

/// The error where no frame is of a link type that is read.
fn no_link_read(totals: &Totals) -> Option<anyhow::Error> {
    let links: Vec<&str> = totals.link_types.keys().map(String::as_str).collect();
    let all = totals.link_types.values().sum::<u64>() == totals.frames && totals.frames > 0;
    all.then(|| anyhow::anyhow!("{} is not read ({})", links.join(", "), link::READ))
}

/// The destination port of a datagram that is MRC by all signs but that port.
fn port_of_mrc(found: &Datagram) -> Option<u16> {
    let good = found.icrc.is_some_and(|icrc| icrc.is_good() || icrc.good_with_id.is_some());
    (good && Packet::decode(&found.mrc).is_ok()).then_some(found.meta.dst_port)
}

fn trim_of(args: &DissectArgs, dscp: u8) -> Option<TrimKind> {
    let map = DscpMap {
        trimmed: args.trimmed_dscp,
        trimmed_last_hop: args.trimmed_last_hop_dscp,
        ..DscpMap::default()
    };
    map.class_of_trim(dscp)
}

impl Totals {
    /// Counts what is not to an MRC port, or cannot be read.
    fn count_other(&mut self, other: Result<Datagram, Other>) {
        self.others += 1;
        match other {
            Ok(found) => {
                if let Some(port) = port_of_mrc(&found) {
                    *self.elsewhere.entry(port).or_default() += 1;
                }
            }
            Err(Other::Closed(encapsulation)) => *self.closed.entry(encapsulation).or_default() += 1,
            Err(Other::Fragment) => self.fragments += 1,
            Err(Other::CutBeforePorts) => self.cut_before_ports += 1,
            Err(Other::NotUdp) => {}
        }
    }

    fn count(&mut self, dissected: &Dissected, content: &Content<'_>) {
        if dissected.icrc.is_some_and(|icrc| !icrc.is_good()) {
            self.bad_icrc += 1;
        }
        self.cut += u64::from(dissected.is_cut());
        match content.bth() {
            None => self.unreadable += 1,
            Some(bth) => {
                self.packets += 1;
                *self.by_opcode.entry(fields::opcode_name(bth.opcode)).or_default() += 1;
            }
        }
    }
}
