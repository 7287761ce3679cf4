//! Link types: which ones are read, and a frame of one of them as if captured on Ethernet.

use pcap_file::DataLink;

/// What is read, as messages say it.
pub(super) const READ: &str = "Ethernet, Linux \"any\" (SLL, SLL2), raw IP and BSD loopback are read";
/// Raw IP, as some systems number it.
const RAW_ELSEWHERE: [u32; 2] = [12, 14];

/// A link type that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    Ethernet,
    LinuxSll,
    LinuxSll2,
    RawIp,
    BsdLoopback,
}

impl Link {
    /// The error is the number and, if it has one, the name of a link type that is not read.
    pub(super) fn of(link: DataLink) -> Result<Self, String> {
        // Above these bits, a pcap file can say whether frames end on a check sequence.
        let number = u32::from(link) & 0xffff;
        match DataLink::from(number) {
            DataLink::ETHERNET => Ok(Self::Ethernet),
            DataLink::LINUX_SLL => Ok(Self::LinuxSll),
            DataLink::LINUX_SLL2 => Ok(Self::LinuxSll2),
            DataLink::RAW | DataLink::IPV4 | DataLink::IPV6 => Ok(Self::RawIp),
            DataLink::NULL | DataLink::LOOP => Ok(Self::BsdLoopback),
            _ if RAW_ELSEWHERE.contains(&number) => Ok(Self::RawIp),
            DataLink::Unknown(_) => Err(format!("link type {number}")),
            named => Err(format!("link type {number} ({named:?})")),
        }
    }

    /// The frame with an Ethernet header in the place of its link header.
    pub(super) fn as_ethernet(self, data: &[u8]) -> Vec<u8> {
        match self {
            Self::Ethernet => data.to_vec(),
            Self::LinuxSll => behind(data, 14, 16),
            Self::LinuxSll2 => behind(data, 0, 20),
            Self::RawIp => raw_ip(data, 0),
            Self::BsdLoopback => raw_ip(data, 4),
        }
    }
}

/// A frame whose protocol stands at `kind_at` and whose packet at `at`.
fn behind(data: &[u8], kind_at: usize, at: usize) -> Vec<u8> {
    let mut frame = vec![0; 12];
    frame.extend(data.get(kind_at..kind_at + 2).unwrap_or_default());
    frame.extend(data.get(at..).unwrap_or_default());
    frame
}

/// A frame whose IP packet, of the version that it says, stands at `at`.
fn raw_ip(data: &[u8], at: usize) -> Vec<u8> {
    let packet = data.get(at..).unwrap_or_default();
    let mut frame = vec![0; 12];
    frame.extend(if packet.first().is_some_and(|byte| byte >> 4 == 6) { [0x86, 0xdd] } else { [0x08, 0x00] });
    frame.extend(packet);
    frame
}
