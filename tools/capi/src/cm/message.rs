//! What two processes tell each other when they connect queue pairs by address and port.
//!
//! A port of RDMA is a UDP port of the listener's address, so the kernel decides who has it. Whoever wants to connect asks there, by a
//! [`Lookup`], for the TCP port of the listener, and talks over a TCP connection from then on. The kernel closes that when a process ends,
//! so that the other side knows.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// The first bytes of a datagram, and of each message of a connection: a name, and the version of the format.
const MAGIC: [u8; 4] = *b"SPC\x01";
/// Bytes of a message's body, at most.
pub(crate) const MAX_BODY: usize = 4096;
/// Bytes before the body: the magic, and the length.
const HEADER: usize = 6;

/// A question to a port, or its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lookup {
    /// Drawn by the one who asks.
    pub(crate) nonce: u64,
    /// The TCP port, in an answer.
    pub(crate) port: Option<u16>,
}

impl Lookup {
    /// As a datagram: magic (4 bytes), TCP port or 0 (2), nonce (8), in network byte order.
    pub(crate) fn encode(self) -> [u8; 14] {
        let mut bytes = [0; 14];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&self.port.unwrap_or(0).to_be_bytes());
        bytes[6..].copy_from_slice(&self.nonce.to_be_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (magic, rest) = bytes.split_first_chunk::<4>()?;
        let (port, rest) = rest.split_first_chunk::<2>()?;
        let nonce = u64::from_be_bytes(rest.try_into().ok()?);
        let port = Some(u16::from_be_bytes(*port)).filter(|port| *port != 0);
        (*magic == MAGIC).then_some(Self { nonce, port })
    }
}

/// A side of a connection, as it tells the other of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Side {
    /// The number of its queue pair, and the address of its device.
    pub(crate) number: u32,
    pub(crate) address: IpAddr,
    /// The code of its MTU.
    pub(crate) mtu: u8,
    /// READs and atomic operations in flight that it accepts, and that it will send.
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) flow_control: u8,
    /// How often the other side repeats a message that found no receive.
    pub(crate) rnr_retry: u8,
    pub(crate) srq: u8,
    /// What the program wants to tell.
    pub(crate) private: Vec<u8>,
}

/// Of the one who wants to connect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) side: Side,
    /// It wants the number of a queue pair of datagrams.
    pub(crate) datagrams: bool,
    /// Its own port.
    pub(crate) port: u16,
    /// How often both sides retransmit.
    pub(crate) retry: u8,
}

/// A message of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Message {
    Request(Request),
    Accept {
        side: Side,
        qkey: u32,
    },
    Reject {
        private: Vec<u8>,
    },
    /// The one who asked has the answer, and its queue pair is ready.
    Ready,
    Disconnect,
    Disconnected,
}

/// Bytes that are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Garbled;

impl Message {
    /// Magic (4 bytes), length of the body (2), and the body in JSON.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let body = serde_json::to_vec(self).unwrap_or_default();
        let mut bytes = Vec::with_capacity(HEADER + body.len());
        bytes.extend(MAGIC);
        bytes.extend((body.len() as u16).to_be_bytes());
        bytes.extend(body);
        bytes
    }

    /// Takes the first message from what has arrived. `None`: more has to arrive.
    pub(crate) fn take(arrived: &mut Vec<u8>) -> Result<Option<Self>, Garbled> {
        let known = arrived.len().min(MAGIC.len());
        if arrived[..known] != MAGIC[..known] {
            return Err(Garbled);
        }
        let Some(len) = arrived.get(MAGIC.len()..HEADER) else { return Ok(None) };
        let len = usize::from(u16::from_be_bytes([len[0], len[1]]));
        if len > MAX_BODY {
            return Err(Garbled);
        }
        let Some(body) = arrived.get(HEADER..HEADER + len) else { return Ok(None) };
        let message: Self = serde_json::from_slice(body).map_err(|_| Garbled)?;
        let private = message.private();
        if private.is_some_and(|private| private.len() > usize::from(u8::MAX)) {
            return Err(Garbled);
        }
        arrived.drain(..HEADER + len);
        Ok(Some(message))
    }

    fn private(&self) -> Option<&[u8]> {
        match self {
            Self::Request(Request { side, .. }) | Self::Accept { side, .. } => Some(&side.private),
            Self::Reject { private } => Some(private),
            Self::Ready | Self::Disconnect | Self::Disconnected => None,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    pub(crate) fn side(number: u32) -> Side {
        Side {
            number,
            address: IpAddr::from([10, 0, 0, 1]),
            mtu: 5,
            responder_resources: 16,
            initiator_depth: 15,
            flow_control: 1,
            rnr_retry: 6,
            srq: 0,
            private: vec![0xff; 255],
        }
    }

    pub(crate) fn request() -> Message {
        Message::Request(Request { side: side(7), datagrams: false, port: 4000, retry: 7 })
    }

    #[test]
    fn messages_come_in_pieces_and_together() {
        let all = [
            request(),
            Message::Accept { side: side(0xff_ffff), qkey: u32::MAX },
            Message::Reject { private: vec![1, 2] },
            Message::Ready,
            Message::Disconnect,
            Message::Disconnected,
        ];
        let bytes: Vec<u8> = all.iter().flat_map(Message::encode).collect();
        for piece in [1, 7, bytes.len()] {
            let (mut arrived, mut seen) = (Vec::new(), Vec::new());
            for part in bytes.chunks(piece) {
                arrived.extend(part);
                while let Some(message) = Message::take(&mut arrived).unwrap() {
                    seen.push(message);
                }
            }
            assert_eq!(seen, all, "pieces of {piece}");
            assert!(arrived.is_empty());
        }
    }

    #[test]
    fn what_is_no_message_is_refused_as_soon_as_that_is_known() {
        for bad in [&b"GET /"[..], b"SPC\x02", b"SPD\x01", b"SPC\x01\x10\x01", b"SPC\x01\x00\x02{}", b"x"] {
            assert_eq!(Message::take(&mut bad.to_vec()), Err(Garbled), "{bad:?}");
        }
        for part in [&b""[..], b"S", b"SPC\x01\x00", b"SPC\x01\x00\x02{"] {
            assert_eq!(Message::take(&mut part.to_vec()), Ok(None), "{part:?}");
        }
        let Message::Request(mut long) = request() else { unreachable!() };
        long.side.private.push(0);
        assert_eq!(Message::take(&mut Message::Request(long).encode()), Err(Garbled), "256 bytes");
    }

    #[test]
    fn no_flipped_bit_and_no_cut_panics() {
        let good = request().encode();
        for at in 0..good.len() {
            let _ = Message::take(&mut good[..at].to_vec());
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                let _ = Message::take(&mut bad);
            }
        }
    }

    #[test]
    fn a_lookup_and_its_answer() {
        for port in [None, Some(1), Some(u16::MAX)] {
            let lookup = Lookup { nonce: 0x0102_0304_0506_0708, port };
            assert_eq!(Lookup::decode(&lookup.encode()), Some(lookup));
            for len in 0..14 {
                assert_eq!(Lookup::decode(&lookup.encode()[..len]), None);
            }
        }
        let mut other = Lookup { nonce: 1, port: None }.encode().to_vec();
        other.push(0);
        assert_eq!(Lookup::decode(&other), None);
        other.pop();
        other[3] = 2;
        assert_eq!(Lookup::decode(&other), None, "another version");
    }
}
