//! The IPv4 identifications that segmentation writes into the packets of a batch.
//!
//! The kernel or NIC that segments a batch numbers its packets 0, 1, 2, .. in that field (Linux: `inet_gso_segment`;
//! the first has the 0 of a socket that is not connected and forbids fragments). The invariant CRC covers the field.
//! The CRC is linear: the effect of a bit depends only on the number of bytes that follow.

use spindrift_memory::Payload;

/// The largest number of datagrams in a batch (`UDP_MAX_SEGMENTS` of older kernels).
pub const SEGMENTS_MAX: usize = 64;

/// CRC-32 of Ethernet, least significant bit first (IEEE 802.3 section 3.2.9).
const POLYNOMIAL: u32 = 0xedb8_8320;
/// Bytes of an IPv4 packet between the identification and the UDP payload: 14 of the IP header, the UDP header.
const BETWEEN: usize = 14 + 8;
const CRC_LEN: usize = 4;
/// Number of cached lengths: those of full packets and acknowledgements, and some last packets of messages.
const KEPT: usize = 4;
static ZEROS: [u8; 1024] = [0; 1024];

/// The difference that each identification of a batch makes to the CRC of an IPv4 packet computed with identification
/// 0, for recently used lengths.
#[derive(Clone, Debug)]
pub struct BatchIds {
    rows: [Row; KEPT],
    /// The row that was used last, and the one to be replaced next.
    latest: usize,
    oldest: usize,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    datagram: usize,
    deltas: [u32; SEGMENTS_MAX],
}

impl Default for BatchIds {
    fn default() -> Self {
        // No datagram with a CRC is empty.
        Self { rows: [Row { datagram: 0, deltas: [0; SEGMENTS_MAX] }; KEPT], latest: 0, oldest: 0 }
    }
}

impl BatchIds {
    /// For UDP payloads of this many bytes, including the CRC at their end: the differences for packets 0, 1, 2, ..,
    /// to be added bit by bit. All zero for a payload that is shorter than a CRC.
    #[inline]
    pub fn deltas(&mut self, datagram: usize) -> &[u32; SEGMENTS_MAX] {
        let known = |row: &Row| row.datagram == datagram;
        if !self.rows.get(self.latest).is_some_and(known) {
            self.latest = match self.rows.iter().position(known) {
                Some(row) => row,
                None => self.compute(datagram),
            };
        }
        &self.rows[self.latest % KEPT].deltas
    }

    /// The number of the packet in a batch whose CRC differs by `difference` from that with identification 0.
    #[inline]
    pub fn number(&mut self, datagram: usize, difference: u32) -> Option<usize> {
        self.deltas(datagram).iter().position(|&delta| delta == difference)
    }

    #[cold]
    fn compute(&mut self, datagram: usize) -> usize {
        let mut row = Row { datagram, deltas: [0; SEGMENTS_MAX] };
        if let Some(covered) = datagram.checked_sub(CRC_LEN) {
            // The highest bit of a byte is the last that a CRC processes, and each lower one has been shifted once
            // more.
            let mut bits = [0; 8];
            let mut bit = after_zeros(POLYNOMIAL, BETWEEN + covered);
            for place in bits.iter_mut().rev() {
                *place = bit;
                bit = bit >> 1 ^ if bit & 1 == 1 { POLYNOMIAL } else { 0 };
            }
            for (id, delta) in row.deltas.iter_mut().enumerate() {
                let set = bits.iter().enumerate().filter(|(bit, _)| id >> bit & 1 == 1);
                *delta = set.fold(0, |sum, (_, added)| sum ^ added);
            }
        }
        let place = self.oldest;
        self.rows[place] = row;
        self.oldest = (place + 1) % KEPT;
        place
    }
}

/// A difference of two CRCs after this many more bytes, which are the same in both.
fn after_zeros(difference: u32, count: usize) -> u32 {
    let run = |state: u32| {
        (0..count).step_by(ZEROS.len()).fold(state, |state, done| {
            let (zeros, _) = ZEROS.split_at(ZEROS.len().min(count - done));
            Payload::from(zeros).crc32(state)
        })
    };
    run(difference) ^ run(0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
mod tests {
    use super::*;

    /// An IPv4 packet with this identification and UDP payload.
    fn crc(id: u16, payload: &[u8]) -> u32 {
        let mut packet = vec![0x45, 0, 1, 2];
        packet.extend_from_slice(&id.to_be_bytes());
        packet.extend_from_slice(&[7; BETWEEN]);
        packet.extend_from_slice(payload);
        Payload::from(&packet[..]).crc32(0x1234_5678)
    }

    #[test]
    fn the_crc_of_each_packet_of_a_batch_follows_from_that_of_the_first() {
        let mut ids = BatchIds::default();
        for covered in [0, 1, 36, 37, 1_001, 1_002, 1_003, 4_142, 8_995, 4_142] {
            let payload: Vec<u8> = (0..covered).map(|at| (at * 7) as u8).collect();
            let deltas = *ids.deltas(covered + CRC_LEN);
            for (id, delta) in deltas.into_iter().enumerate() {
                assert_eq!(crc(0, &payload) ^ delta, crc(id as u16, &payload), "{id} of {covered}");
                assert_eq!(ids.number(covered + CRC_LEN, delta), Some(id));
            }
            let beyond = crc(0, &payload) ^ crc(SEGMENTS_MAX as u16, &payload);
            assert_eq!(ids.number(covered + CRC_LEN, beyond), None);
        }
    }

    #[test]
    fn what_is_too_short_for_a_crc_has_none() {
        for datagram in 0..CRC_LEN {
            assert_eq!(BatchIds::default().deltas(datagram), &[0; SEGMENTS_MAX]);
        }
    }
}
