//! What is in a probe: the payload of its UDP datagram.
//!
//! | Bytes | Field | |
//! |---|---|---|
//! | 0..4 | magic | `SDPB` |
//! | 4 | version | 1 |
//! | 5 | tier | where the probe turns: 0, 1 or 2 for T0, T1 or T2 |
//! | 6 | plane | of that switch |
//! | 7 | reserved | 0 |
//! | 8..10 | number | of that switch in its plane |
//! | 10..12 | host | number of the prober's host in the topology |
//! | 12..16 | reserved | 0 |
//! | 16..24 | run | drawn at random when the agent starts |
//! | 24..32 | sequence number | counted from 0 in each run |
//! | 32..40 | nonce | drawn at random for each probe |
//!
//! Numbers are big-endian. The prober keeps the nonce and takes the round-trip time from its own record, never from the packet. Whoever has
//! not seen a probe cannot forge its return. The checksum of UDP covers the payload; a probe that was changed on its way is not
//! counted as returned, so corruption shows as loss.

use spindrift_srv6::Node;

use crate::Path;

/// Length of a payload.
pub const PAYLOAD_LEN: usize = 40;
/// The version that this agent sends, and the only one that it accepts.
pub const VERSION: u8 = 1;
const MAGIC: [u8; 4] = *b"SDPB";

/// The payload of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Payload {
    /// The way the probe was sent.
    pub path: Path,
    /// The prober's run.
    pub run: u64,
    /// Number of the probe in its run.
    pub seq: u64,
    /// Proves that a return belongs to a probe that was sent.
    pub nonce: u64,
}

/// Why bytes are no payload of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum PayloadError {
    /// It is shorter or longer than a payload.
    #[error("{0} bytes: the payload of a probe has {PAYLOAD_LEN}")]
    Length(usize),
    /// It starts with something else.
    #[error("it does not start with \"SDPB\": not a probe")]
    Magic,
    /// Another version of the format.
    #[error("version {0}: this agent sends and accepts version {VERSION} alone")]
    Version(u8),
    /// There is no such tier.
    #[error("tier {0}: must be 0, 1 or 2")]
    Tier(u8),
    /// Something is where nothing should be.
    #[error("a reserved byte is not 0")]
    Reserved,
}

impl Payload {
    /// The bytes of the payload. A path that turns at a host, which no [`Route`](crate::Route) has, is written as one that turns at T0 switch 0.
    pub fn to_bytes(self) -> [u8; PAYLOAD_LEN] {
        let (tier, plane, number) = match self.path.top {
            Node::Host(_) => (0, 0, 0),
            Node::T0 { plane, number } => (0, plane, number),
            Node::T1 { plane, number } => (1, plane, number),
            Node::T2 { plane, number } => (2, plane, number),
        };
        let mut bytes = [0; PAYLOAD_LEN];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&[VERSION, tier, plane, 0]);
        bytes[8..10].copy_from_slice(&number.to_be_bytes());
        bytes[10..12].copy_from_slice(&self.path.host.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.run.to_be_bytes());
        bytes[24..32].copy_from_slice(&self.seq.to_be_bytes());
        bytes[32..].copy_from_slice(&self.nonce.to_be_bytes());
        bytes
    }

    /// The payload that these bytes are.
    ///
    /// # Errors
    /// If they are none, by name: see [`PayloadError`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, PayloadError> {
        let bytes: &[u8; PAYLOAD_LEN] = bytes.try_into().map_err(|_| PayloadError::Length(bytes.len()))?;
        let [m0, m1, m2, m3, version, tier, plane, r0, n0, n1, h0, h1, r1, r2, r3, r4, numbers @ ..] = *bytes;
        if [m0, m1, m2, m3] != MAGIC {
            return Err(PayloadError::Magic);
        }
        if version != VERSION {
            return Err(PayloadError::Version(version));
        }
        if [r0, r1, r2, r3, r4] != [0; 5] {
            return Err(PayloadError::Reserved);
        }
        let number = u16::from_be_bytes([n0, n1]);
        let top = match tier {
            0 => Node::T0 { plane, number },
            1 => Node::T1 { plane, number },
            2 => Node::T2 { plane, number },
            other => return Err(PayloadError::Tier(other)),
        };
        let mut words = numbers
            .chunks_exact(8)
            .map(|chunk| chunk.iter().fold(0_u64, |word, &byte| word << 8 | u64::from(byte)));
        let mut next = || words.next().unwrap_or_default();
        let (run, seq, nonce) = (next(), next(), next());
        Ok(Self { path: Path { host: u16::from_be_bytes([h0, h1]), top }, run, seq, nonce })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> Payload {
        let path = Path { host: 0x0102, top: Node::T1 { plane: 3, number: 0x0405 } };
        Payload { path, run: 0x1011_1213_1415_1617, seq: 0x2021_2223_2425_2627, nonce: 0x3031_3233_3435_3637 }
    }

    #[test]
    fn each_field_is_where_the_table_says() {
        let mut want = b"SDPB\x01\x01\x03\x00\x04\x05\x01\x02\x00\x00\x00\x00".to_vec();
        want.extend((0x10..0x18).chain(0x20..0x28).chain(0x30..0x38));
        assert_eq!(sample().to_bytes().to_vec(), want);
    }

    #[test]
    fn what_is_no_payload_is_refused_by_name() {
        let good = sample().to_bytes();
        let with = |at: usize, byte: u8| {
            let mut bytes = good;
            bytes[at] = byte;
            Payload::from_bytes(&bytes)
        };
        assert_eq!(Payload::from_bytes(&good[1..]), Err(PayloadError::Length(39)));
        assert_eq!(Payload::from_bytes(&[&good[..], &[0]].concat()), Err(PayloadError::Length(41)));
        for at in 0..4 {
            assert_eq!(with(at, 0), Err(PayloadError::Magic));
        }
        assert_eq!(with(4, 2), Err(PayloadError::Version(2)));
        assert_eq!(with(5, 3), Err(PayloadError::Tier(3)));
        for at in [7, 12, 13, 14, 15] {
            assert_eq!(with(at, 1), Err(PayloadError::Reserved), "byte {at}");
        }
    }

    proptest! {
        #[test]
        fn bytes_are_a_payload_or_an_error(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..64),
            start in 0_usize..17,
        ) {
            // Often the beginning of a good one.
            for (byte, &good) in bytes.iter_mut().zip(sample().to_bytes().get(..start).unwrap_or_default()) {
                *byte = good;
            }
            if let Ok(payload) = Payload::from_bytes(&bytes) {
                prop_assert_eq!(&payload.to_bytes()[..], &bytes[..]);
            }
        }

        #[test]
        fn what_is_written_is_read(host: u16, place: (u8, u16), tier in 0..3, words: (u64, u64, u64)) {
            let (plane, number) = place;
            let top = match tier {
                0 => Node::T0 { plane, number },
                1 => Node::T1 { plane, number },
                _ => Node::T2 { plane, number },
            };
            let payload = Payload { path: Path { host, top }, run: words.0, seq: words.1, nonce: words.2 };
            prop_assert_eq!(Payload::from_bytes(&payload.to_bytes()), Ok(payload));
        }
    }
}
