//! Reads capture files: classic pcap and pcapng, of the link types that an MRC packet is captured on.

use std::fs::File;
use std::io::{self, Cursor, Read};
use std::path::Path;

use anyhow::{Context, Result, bail};
use pcap_file::pcap::PcapReader;
use pcap_file::{DataLink, PcapError, TsResolution};

use super::link::{self, Link};
use super::pcapng::{self, PcapNg};

/// One captured frame.
#[derive(Debug)]
pub(crate) struct Captured {
    /// Its number in the file, from 1, as Wireshark counts.
    pub(crate) number: u64,
    /// Since 1970, in nanoseconds; `None` where the file says no time, as in simple packet blocks.
    pub(crate) time_ns: Option<i64>,
    /// What the file says about the link.
    pub(crate) link: DataLink,
    /// The bytes that were kept.
    pub(crate) data: Vec<u8>,
    /// How many there were on the wire.
    pub(crate) wire_len: usize,
}

/// The name of standard input as a file.
const STANDARD_INPUT: &str = "-";

/// A capture file, frame by frame.
pub(crate) struct Capture {
    reader: Reader,
    /// Number of the frame given out last.
    frames: u64,
    /// The frames may come while somebody waits for them: not from a file on a disk.
    pub(crate) is_live: bool,
}

/// The bytes of a capture. What was read to tell its kind stands in front, since a pipe cannot be read twice.
type Input = io::Chain<Cursor<[u8; 4]>, Box<dyn Read>>;

enum Reader {
    Pcap(Box<PcapReader<Input>>),
    PcapNg(PcapNg<Input>),
}

/// What messages call a file.
pub(crate) fn name_of(path: &Path) -> String {
    if path.as_os_str() == STANDARD_INPUT { "standard input".to_owned() } else { path.display().to_string() }
}

impl Capture {
    /// Opens a file, a pipe, or standard input, and reads its header.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let (mut file, is_live): (Box<dyn Read>, bool) = if path.as_os_str() == STANDARD_INPUT {
            (Box::new(io::stdin()), true)
        } else {
            let file = File::open(path).context("cannot open the capture")?;
            let kind = file.metadata().map(|meta| meta.file_type()).ok();
            if kind.is_some_and(|kind| kind.is_dir()) {
                bail!("this is a directory; give a pcap or pcapng file");
            }
            (Box::new(file), !kind.is_some_and(|kind| kind.is_file()))
        };
        let mut magic = [0; 4];
        if let Err(error) = file.read_exact(&mut magic) {
            bail!("not a capture: {}", short_file(&error));
        }
        let file = Cursor::new(magic).chain(file);
        let reader = if magic == pcapng::MAGIC {
            let reader = PcapNg::new(file).map_err(|error| not_a_capture(&error))?;
            Reader::PcapNg(reader)
        } else {
            let reader = PcapReader::new(file).map_err(|error| not_a_capture(&error))?;
            if let Err(link) = Link::of(reader.header().datalink) {
                bail!("{link} is not read ({})", link::READ);
            }
            Reader::Pcap(Box::new(reader))
        };
        Ok(Self { reader, frames: 0, is_live })
    }

    /// The next frame; `None` at the end of the file.
    pub(crate) fn next(&mut self) -> Option<Result<Captured>> {
        let next = match &mut self.reader {
            // Numbered from the one before.
            Reader::Pcap(reader) => next_pcap(reader),
            Reader::PcapNg(reader) => reader.next(),
        }?;
        let frames = self.frames;
        let next = next.map(|captured| {
            self.frames += captured.number;
            Captured { number: self.frames, ..captured }
        });
        Some(next.map_err(|error| match error {
            PcapError::IoError(io) if io.kind() == std::io::ErrorKind::UnexpectedEof => {
                anyhow::anyhow!("the file ends inside the record after frame {frames}: it was cut off")
            }
            PcapError::IoError(io) => anyhow::Error::new(io).context("cannot read on"),
            other => anyhow::anyhow!("the record after frame {frames} is damaged: {other}"),
        }))
    }
}

fn short_file(error: &std::io::Error) -> &'static str {
    if error.kind() == std::io::ErrorKind::UnexpectedEof {
        "the file has fewer than 4 bytes"
    } else {
        "it cannot be read"
    }
}

fn not_a_capture(error: &PcapError) -> anyhow::Error {
    match error {
        PcapError::IoError(io) if io.kind() == std::io::ErrorKind::UnexpectedEof => {
            anyhow::anyhow!("the file ends inside its header")
        }
        _ => anyhow::anyhow!("neither pcap nor pcapng (`tcpdump -w` and `tshark -w` write these)"),
    }
}

fn next_pcap(reader: &mut PcapReader<Input>) -> Option<Result<Captured, PcapError>> {
    let header = reader.header();
    // The raw form: the checked one refuses frames of which the capture kept only the front.
    let raw = match reader.next_raw_packet()? {
        Ok(raw) => raw,
        Err(error) => return Some(Err(error)),
    };
    let unit_ns = if header.ts_resolution == TsResolution::NanoSecond { 1 } else { 1000 };
    Some(Ok(Captured {
        number: 1,
        time_ns: Some(i64::from(raw.ts_sec) * 1_000_000_000 + i64::from(raw.ts_frac) * unit_ns),
        link: header.datalink,
        wire_len: (raw.orig_len as usize).max(raw.data.len()),
        data: raw.data.into_owned(),
    }))
}
