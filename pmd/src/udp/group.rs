//! Which frames of a burst leave the kernel as one segmentation batch. Pure.
//!
//! The frames of one entropy value are scattered over a burst, because packets are sprayed one by one. A
//! batch takes the frames of one source port, destination and traffic class, in their order, as long as
//! they have one size; the last may be shorter. Batches of one source port never overtake each other on the way to
//! one destination, whatever their traffic class: the sender can rely on their order.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{ETHERNET_LEN, TxFrame};
use spindrift_wire::batch_ids::SEGMENTS_MAX;

/// Most bytes in a batch: the longest IPv6 packet less IPv6 and UDP header, which also fits IPv4.
pub(crate) const BATCH_BYTES_MAX: usize = 65_535 - 40 - 8;

/// No frame, no batch.
const NONE: u16 = u16::MAX;

/// What all datagrams of a batch share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    /// Index of the socket.
    pub(crate) socket: u16,
    pub(crate) dst: IpAddr,
    pub(crate) dst_port: u16,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
}

/// Frames to be sent together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch {
    pub(crate) key: Key,
    /// UDP payload bytes of every datagram but the last.
    pub(crate) segment: usize,
    /// UDP payload bytes of all.
    pub(crate) bytes: usize,
    pub(crate) count: usize,
    first: u16,
    last: u16,
    /// The batch before this one with the same socket.
    previous: u16,
    /// A shorter datagram has ended the batch.
    closed: bool,
}

/// Sorts bursts into batches, with room for `burst` frames and `sockets` sockets.
pub(crate) struct Grouper {
    batches: Vec<Batch>,
    /// For each frame the next one of its batch.
    next: Vec<u16>,
    /// For each socket its latest batch, valid if the stamp is the current one.
    latest: Vec<(u32, u16)>,
    stamp: u32,
}

/// Reads where a frame goes from its headers. `None`: no IP, headers too short, or something between IP and UDP,
/// which the kernel would not write.
pub(crate) fn destination(frame: &TxFrame<'_>) -> Option<(u16, Key)> {
    let udp = frame.udp_payload_at.checked_sub(8)?;
    let ports = frame.head.get(udp..frame.udp_payload_at)?;
    let word = |at: usize| u16::from_be_bytes([ports[at], ports[at + 1]]);
    let ip = frame.head.get(ETHERNET_LEN..udp)?;
    let (dst, traffic_class, hop_limit) = match (ip.first()? >> 4, ip.len()) {
        (4, 20) => {
            let dst: [u8; 4] = ip.get(16..20)?.try_into().ok()?;
            (Ipv4Addr::from(dst).into(), ip[1], ip[8])
        }
        (6, 40) => {
            let dst: [u8; 16] = ip.get(24..40)?.try_into().ok()?;
            (Ipv6Addr::from(dst).into(), ip[0] << 4 | ip[1] >> 4, ip[7])
        }
        _ => return None,
    };
    Some((word(0), Key { socket: NONE, dst, dst_port: word(2), traffic_class, hop_limit }))
}

impl Grouper {
    pub(crate) fn new(burst: usize, sockets: usize) -> Self {
        Self {
            batches: Vec::with_capacity(burst),
            next: vec![NONE; burst],
            latest: vec![(0, NONE); sockets],
            stamp: 0,
        }
    }

    /// There is one more socket.
    pub(crate) fn add_socket(&mut self) {
        self.latest.push((0, NONE));
    }

    /// Forgets the last burst.
    pub(crate) fn start(&mut self) {
        self.batches.clear();
        self.stamp = self.stamp.wrapping_add(1);
        if self.stamp == 0 {
            // The stamps of long ago would look current.
            self.latest.fill((0, NONE));
            self.stamp = 1;
        }
    }

    /// Adds frame `index` of the burst, `size` bytes of UDP payload. Frames come in order.
    pub(crate) fn add(&mut self, index: usize, key: Key, size: usize) {
        let latest = &mut self.latest[key.socket as usize];
        let newest = if latest.0 == self.stamp { latest.1 } else { NONE };
        self.next[index] = NONE;
        let mut at = newest;
        while at != NONE {
            let batch = &mut self.batches[at as usize];
            if batch.key.dst != key.dst || batch.key.dst_port != key.dst_port {
                at = batch.previous;
                continue;
            }
            if (batch.key.traffic_class, batch.key.hop_limit) != (key.traffic_class, key.hop_limit) {
                break;
            }
            let fits = !batch.closed
                && size <= batch.segment
                && batch.count < SEGMENTS_MAX
                && batch.bytes + size <= BATCH_BYTES_MAX;
            // Only the newest batch of a key may grow: an older one would overtake it.
            if fits {
                batch.closed = size < batch.segment;
                batch.bytes += size;
                batch.count += 1;
                self.next[batch.last as usize] = index as u16;
                batch.last = index as u16;
                return;
            }
            break;
        }
        let index = index as u16;
        *latest = (self.stamp, self.batches.len() as u16);
        self.batches.push(Batch {
            key,
            segment: size,
            bytes: size,
            count: 1,
            first: index,
            last: index,
            previous: newest,
            closed: size == 0,
        });
    }

    /// Batches of this burst, in the order of their first frames.
    pub(crate) fn len(&self) -> usize {
        self.batches.len()
    }

    pub(crate) fn batch(&self, index: usize) -> Option<Batch> {
        self.batches.get(index).copied()
    }

    /// The frames of a batch, in order, as indices into the burst.
    pub(crate) fn frames(&self, batch: &Batch) -> impl Iterator<Item = usize> {
        let mut at = batch.first;
        std::iter::from_fn(move || {
            let frame = at;
            at = *self.next.get(frame as usize)?;
            Some(frame as usize)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Payload;

    fn key(socket: u16, dst: u8) -> Key {
        Key { socket, dst: IpAddr::from([10, 0, 0, dst]), dst_port: 4971, traffic_class: 0, hop_limit: 64 }
    }

    fn groups(frames: &[(u16, u8, usize)]) -> Vec<Vec<usize>> {
        let mut grouper = Grouper::new(256, 8);
        for _ in 0..2 {
            grouper.start();
            for (i, &(socket, dst, size)) in frames.iter().enumerate() {
                grouper.add(i, key(socket, dst), size);
            }
        }
        (0..grouper.len()).map(|i| grouper.frames(&grouper.batch(i).unwrap()).collect()).collect()
    }

    #[test]
    fn scattered_frames_of_a_port_come_together() {
        let burst = [(0, 1, 100), (1, 1, 100), (0, 1, 100), (2, 1, 100), (1, 1, 100), (0, 1, 100)];
        assert_eq!(groups(&burst), [vec![0, 2, 5], vec![1, 4], vec![3]]);
    }

    #[test]
    fn destinations_of_one_port_do_not_mix_but_may_alternate() {
        assert_eq!(groups(&[(0, 1, 9), (0, 2, 9), (0, 1, 9), (0, 2, 9)]), [vec![0, 2], vec![1, 3]]);
    }

    #[test]
    fn a_shorter_frame_ends_a_batch_and_nothing_overtakes() {
        // 1 is shorter and closes; 2 starts anew; 3 is longer and starts anew; 4 may end that one.
        let burst = [(0, 1, 100), (0, 1, 50), (0, 1, 50), (0, 1, 100), (0, 1, 50), (0, 1, 100)];
        assert_eq!(groups(&burst), [vec![0, 1], vec![2], vec![3, 4], vec![5]]);
    }

    #[test]
    fn limits_hold() {
        let many: Vec<_> = (0..130).map(|_| (0, 1, 10)).collect();
        assert_eq!(groups(&many).iter().map(Vec::len).collect::<Vec<_>>(), [64, 64, 2]);
        let large: Vec<_> = (0..20).map(|_| (0, 1, 4140)).collect();
        assert_eq!(groups(&large).iter().map(Vec::len).collect::<Vec<_>>(), [15, 5]);
        assert_eq!(groups(&[(0, 1, 0), (0, 1, 0)]), [vec![0], vec![1]]);
    }

    #[test]
    fn reads_both_families_and_refuses_the_rest() {
        let mut v6 = [0; 62];
        (v6[14], v6[15]) = (0x6a, 0xb0);
        v6[38..54].copy_from_slice(&Ipv6Addr::LOCALHOST.octets());
        v6[54..58].copy_from_slice(&[0xc0, 1, 0x13, 0x6b]);
        let frame = |head| TxFrame {
            head,
            udp_payload_at: 62,
            payload: Payload::EMPTY,
            tail: (&[]).into(),
            ticket: 0,
        };
        let (port, key) = destination(&frame(&v6)).unwrap();
        assert_eq!((port, key.dst_port, key.traffic_class), (0xc001, 4971, 0xab));
        assert_eq!(key.dst, IpAddr::V6(Ipv6Addr::LOCALHOST));
        let mut v4 = [0; 42];
        (v4[14], v4[15]) = (0x45, 2);
        v4[30..34].copy_from_slice(&[127, 0, 0, 2]);
        let frame =
            TxFrame { head: &v4, udp_payload_at: 42, payload: Payload::EMPTY, tail: (&[]).into(), ticket: 0 };
        let (_, key) = destination(&frame).unwrap();
        assert_eq!((key.dst, key.traffic_class), (IpAddr::from([127, 0, 0, 2]), 2));
        for (len, at) in [(0, 0), (42, 7), (20, 42), (62, 62)] {
            let head = vec![0; len];
            assert_eq!(
                destination(&TxFrame {
                    head: &head,
                    udp_payload_at: at,
                    payload: Payload::EMPTY,
                    tail: (&[]).into(),
                    ticket: 0
                }),
                None
            );
        }
        // Something stands between IP and UDP.
        for (head, ip_len) in [(&v6[..], 40), (&v4[..], 20)] {
            let longer = [&head[..14 + ip_len], &[0; 8], &head[14 + ip_len..]].concat();
            let frame = TxFrame { head: &longer, udp_payload_at: longer.len(), ..frame };
            assert_eq!(destination(&frame), None);
        }
        for len in 0..42 {
            assert_eq!(
                destination(&TxFrame {
                    head: &v4[..len],
                    udp_payload_at: len,
                    payload: Payload::EMPTY,
                    tail: (&[]).into(),
                    ticket: 0
                }),
                None
            );
        }
    }
}
