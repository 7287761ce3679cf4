//! The blocks of a pcapng file that packets depend on (draft-ietf-opsawg-pcapng). Others are skipped unread, so that no
//! comment or name in them can keep a packet from being read.

use std::io::{self, BufReader, Read};

use pcap_file::{DataLink, PcapError};

use super::capture::Captured;

/// First bytes of a file: the type of a section header block, the same in both byte orders.
pub(super) const MAGIC: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
/// The field of a section header block that tells the byte order of the section.
const BYTE_ORDER: [u8; 4] = [0x1a, 0x2b, 0x3c, 0x4d];
const INTERFACE: u32 = 1;
const OBSOLETE_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;
/// Custom blocks, to be copied by whoever does not know them or not. Wireshark lists them among the packets.
const CUSTOM: [u32; 2] = [0x0000_0bad, 0x4000_0bad];
const OPTION_END: u16 = 0;
const OPTION_RESOLUTION: u16 = 9;
const OPTION_OFFSET: u16 = 14;
/// Microseconds.
const DEFAULT_RESOLUTION: u8 = 6;
/// Type and both lengths.
const FRAME_LEN: usize = 12;
/// Longer blocks than Wireshark takes are damage.
const BLOCK_MAX: usize = 16 << 20;
const NS_PER_S: i128 = 1_000_000_000;

/// A pcapng file, packet by packet.
pub(super) struct PcapNg<R> {
    input: BufReader<R>,
    order: Order,
    /// Those of the section, by number.
    interfaces: Vec<Interface>,
}

/// Byte order of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Big,
    Little,
}

#[derive(Clone, Copy, Debug)]
struct Interface {
    link: DataLink,
    /// Bytes that were kept of each packet; 0 for all.
    snap_len: usize,
    /// Option `if_tsresol`.
    resolution: u8,
    /// Option `if_tsoffset`, in seconds.
    offset_s: i64,
}

impl<R: Read> PcapNg<R> {
    /// Reads the first section header.
    pub(super) fn new(input: R) -> Result<Self, PcapError> {
        let mut file = Self { input: BufReader::new(input), order: Order::Big, interfaces: Vec::new() };
        file.block()?;
        Ok(file)
    }

    /// The next packet; `None` at the end of the file.
    pub(super) fn next(&mut self) -> Option<Result<Captured, PcapError>> {
        let mut before = 0;
        loop {
            match self.at_end().and_then(|end| if end { Ok(None) } else { self.block().map(Some) }) {
                Ok(None) => return None,
                Ok(Some((kind, body))) => match self.packet(kind, &body) {
                    Ok(None) => before += u64::from(CUSTOM.contains(&kind)),
                    Ok(Some(captured)) => {
                        return Some(Ok(Captured { number: captured.number + before, ..captured }));
                    }
                    Err(error) => return Some(Err(error)),
                },
                Err(error) => return Some(Err(error)),
            }
        }
    }

    fn at_end(&mut self) -> Result<bool, PcapError> {
        use io::BufRead as _;
        loop {
            match self.input.fill_buf() {
                Ok(bytes) => return Ok(bytes.is_empty()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(PcapError::IoError(error)),
            }
        }
    }

    /// Reads a block: its type and its body. A section header sets the byte order.
    fn block(&mut self) -> Result<(u32, Vec<u8>), PcapError> {
        let mut front = [0; FRAME_LEN];
        self.input.read_exact(&mut front).map_err(PcapError::IoError)?;
        let [kind, len, third] = [0, 4, 8].map(|at| [front[at], front[at + 1], front[at + 2], front[at + 3]]);
        let is_section = kind == MAGIC;
        if is_section {
            self.order = match third {
                BYTE_ORDER => Order::Big,
                [0x4d, 0x3c, 0x2b, 0x1a] => Order::Little,
                _ => return Err(PcapError::InvalidField("the byte order of a section header block")),
            };
            self.interfaces.clear();
        }
        let total_len = self.order.u32(len);
        let usable = total_len.is_multiple_of(4) && (FRAME_LEN..=BLOCK_MAX).contains(&(total_len as usize));
        if !usable || is_section && (total_len as usize) < FRAME_LEN + 16 {
            return Err(PcapError::InvalidField("the length of a block"));
        }
        // The third word is the first one of the body, or the length once more where there is no body.
        let mut body = third.to_vec();
        let rest = total_len as usize - FRAME_LEN;
        let read =
            self.input.by_ref().take(rest as u64).read_to_end(&mut body).map_err(PcapError::IoError)?;
        if read < rest {
            return Err(PcapError::IoError(io::ErrorKind::UnexpectedEof.into()));
        }
        let trailer = body.split_off(rest);
        if trailer != len {
            return Err(PcapError::InvalidField("the two lengths of a block differ"));
        }
        if is_section && self.order.u16([body[4], body[5]]) != 1 {
            return Err(PcapError::InvalidField("the version of a section"));
        }
        Ok((self.order.u32(kind), body))
    }

    /// The packet of a block, if it has one. A description of an interface is kept.
    fn packet(&mut self, kind: u32, body: &[u8]) -> Result<Option<Captured>, PcapError> {
        let order = self.order;
        let word = |at: usize| order.word(body, at).ok_or(PcapError::InvalidField("a block is too short"));
        let (number, ticks, kept, wire_len, data_at) = match kind {
            INTERFACE => {
                self.interfaces.push(order.interface(body).ok_or(PcapError::InvalidField("an interface"))?);
                return Ok(None);
            }
            SIMPLE_PACKET => (0, None, body.len().saturating_sub(4), word(0)?, 4),
            ENHANCED_PACKET | OBSOLETE_PACKET => {
                let number = match (kind, body.first_chunk()) {
                    (OBSOLETE_PACKET, Some(number)) => u32::from(order.u16(*number)),
                    _ => word(0)?,
                };
                let ticks = u64::from(word(4)?) << 32 | u64::from(word(8)?);
                (number, Some(ticks), word(12)? as usize, word(16)?, 20)
            }
            _ => return Ok(None),
        };
        let interface = self.interfaces.get(number as usize).ok_or(PcapError::InvalidInterfaceId(number))?;
        let wire_len = wire_len as usize;
        let kept = match (kind, interface.snap_len) {
            (SIMPLE_PACKET, 0) => kept.min(wire_len),
            (SIMPLE_PACKET, snap_len) => kept.min(wire_len).min(snap_len),
            _ => kept,
        };
        let data = body.get(data_at..).and_then(|rest| rest.get(..kept));
        let data = data.ok_or(PcapError::InvalidField("a packet is longer than its block"))?.to_vec();
        let time_ns = ticks.map(|ticks| interface.time_ns(ticks));
        Ok(Some(Captured { number: 1, time_ns, link: interface.link, wire_len: wire_len.max(kept), data }))
    }
}

impl Order {
    fn u16(self, bytes: [u8; 2]) -> u16 {
        if self == Self::Big { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) }
    }

    fn u32(self, bytes: [u8; 4]) -> u32 {
        if self == Self::Big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
    }

    fn word(self, body: &[u8], at: usize) -> Option<u32> {
        body.get(at..)?.first_chunk().map(|bytes| self.u32(*bytes))
    }

    /// The body of an interface description block.
    fn interface(self, body: &[u8]) -> Option<Interface> {
        let mut interface = Interface {
            link: DataLink::from(u32::from(self.u16(*body.first_chunk()?))),
            snap_len: self.word(body, 4)? as usize,
            resolution: DEFAULT_RESOLUTION,
            offset_s: 0,
        };
        let mut options = body.get(8..)?;
        while let Some(([a, b, c, d], rest)) = options.split_first_chunk() {
            let (code, len) = (self.u16([*a, *b]), usize::from(self.u16([*c, *d])));
            // Options that end early say nothing.
            let Some(value) = rest.get(..len).filter(|_| code != OPTION_END) else { break };
            match (code, value) {
                (OPTION_RESOLUTION, [resolution]) => interface.resolution = *resolution,
                (OPTION_OFFSET, value) => {
                    if let Ok(bytes) = <[u8; 8]>::try_from(value) {
                        let big = self == Self::Big;
                        interface.offset_s =
                            if big { i64::from_be_bytes(bytes) } else { i64::from_le_bytes(bytes) };
                    }
                }
                _ => {}
            }
            options = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        }
        Some(interface)
    }
}

impl Interface {
    /// Since 1970, in nanoseconds; the nearest one that 64 bits hold.
    fn time_ns(&self, ticks: u64) -> i64 {
        let ns = ticks_to_ns(ticks, self.resolution) + i128::from(self.offset_s) * NS_PER_S;
        i64::try_from(ns).unwrap_or(if ns < 0 { i64::MIN } else { i64::MAX })
    }
}

/// Ticks of an interface's clock as nanoseconds. `resolution` is the negative exponent of ten, or of two if
/// its top bit is set.
fn ticks_to_ns(ticks: u64, resolution: u8) -> i128 {
    let exponent = u32::from(resolution & 0x7f);
    let per_second =
        if resolution & 0x80 == 0 { 10i128.checked_pow(exponent) } else { 1i128.checked_shl(exponent) };
    // A clock faster than that has not ticked a nanosecond in 64 bits.
    per_second.filter(|rate| *rate > 0).map_or(0, |rate| i128::from(ticks) * NS_PER_S / rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_of_all_resolutions_give_nanoseconds() {
        assert_eq!(ticks_to_ns(1_500_000, 6), 1_500_000_000);
        assert_eq!(ticks_to_ns(1_500_000, 9), 1_500_000);
        assert_eq!(ticks_to_ns(3, 0), 3_000_000_000);
        assert_eq!(ticks_to_ns(1 << 9, 0x8a), 500_000_000);
        assert_eq!(ticks_to_ns(u64::MAX, 0x7f), 0);
        let interface =
            |offset_s| Interface { link: DataLink::ETHERNET, snap_len: 0, resolution: 0, offset_s };
        assert_eq!(interface(-5).time_ns(3), -2_000_000_000);
        assert_eq!((interface(0).time_ns(u64::MAX), interface(i64::MIN).time_ns(0)), (i64::MAX, i64::MIN));
    }
}
