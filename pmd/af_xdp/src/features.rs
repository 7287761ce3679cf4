//! What the kernel tells of a driver's XDP: the generic netlink family `netdev` (linux/netdev.h), of Linux 6.3 and later.

use std::convert::Infallible;
use std::io;

use netlink_packet_core::{
    DefaultNla, Emitable as _, NLM_F_ACK, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader,
    NetlinkMessage, NetlinkPayload, NetlinkSerializable, NlasIterator,
};
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_GENERIC;

/// The family that knows the others (linux/genetlink.h).
const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
/// `netdev`: its request, the attribute that asks, and those that answer.
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NETDEV_A_DEV_XDP_ZC_MAX_SEGS: u16 = 4;
/// Bits of the features: XDP in the driver, and sockets that share its buffers.
const NETDEV_XDP_ACT_BASIC: u64 = 1;
const NETDEV_XDP_ACT_XSK_ZEROCOPY: u64 = 8;
/// Bytes of the generic header: command, version, and two without a meaning.
const GENL_HDRLEN: usize = 4;

/// What a driver offers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Features {
    /// The driver runs programs itself.
    pub(crate) native: bool,
    /// It shares its buffers with sockets.
    pub(crate) zero_copy: bool,
    /// Buffers that a frame may take then.
    pub(crate) segments: u32,
}

/// A generic message.
#[derive(Debug)]
struct Generic {
    family: u16,
    /// The header and attributes.
    bytes: Vec<u8>,
}

impl Generic {
    fn new(family: u16, command: u8, kind: u16, value: &[u8]) -> Self {
        let attribute = DefaultNla::new(kind, value.to_vec());
        let mut bytes = vec![0; GENL_HDRLEN + attribute.buffer_len()];
        if let Some((header, rest)) = bytes.split_at_mut_checked(GENL_HDRLEN) {
            header.copy_from_slice(&[command, 1, 0, 0]);
            attribute.emit(rest);
        }
        Self { family, bytes }
    }

    /// The value of an attribute, in the integer's bytes.
    fn attribute<const N: usize>(&self, kind: u16) -> Option<[u8; N]> {
        NlasIterator::new(self.bytes.get(GENL_HDRLEN..)?)
            .map_while(Result::ok)
            .find(|attribute| attribute.kind() == kind)
            .and_then(|attribute| attribute.value().try_into().ok())
    }
}

impl NetlinkSerializable for Generic {
    fn message_type(&self) -> u16 {
        self.family
    }

    fn buffer_len(&self) -> usize {
        self.bytes.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(&self.bytes);
    }
}

impl NetlinkDeserializable for Generic {
    type Error = Infallible;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, Infallible> {
        Ok(Self { family: header.message_type, bytes: payload.to_vec() })
    }
}

/// What the driver of an interface offers. `None`: the kernel is too old to tell.
pub(crate) fn features(interface: u32) -> io::Result<Option<Features>> {
    let mut socket = Socket::new(NETLINK_GENERIC)?;
    socket.bind_auto()?;
    let family =
        ask(&socket, Generic::new(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_NAME, b"netdev\0"));
    let family = match family {
        Ok(answer) => answer.and_then(|answer| answer.attribute(CTRL_ATTR_FAMILY_ID)).map(u16::from_ne_bytes),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => None,
        Err(error) => return Err(error),
    };
    let Some(family) = family else { return Ok(None) };
    let answer = ask(
        &socket,
        Generic::new(family, NETDEV_CMD_DEV_GET, NETDEV_A_DEV_IFINDEX, &interface.to_ne_bytes()),
    )?;
    Ok(answer.as_ref().and_then(read))
}

fn read(answer: &Generic) -> Option<Features> {
    let bits = u64::from_ne_bytes(answer.attribute(NETDEV_A_DEV_XDP_FEATURES)?);
    let segments = answer.attribute(NETDEV_A_DEV_XDP_ZC_MAX_SEGS).map_or(1, u32::from_ne_bytes);
    Some(Features {
        native: bits & NETDEV_XDP_ACT_BASIC != 0,
        zero_copy: bits & NETDEV_XDP_ACT_XSK_ZEROCOPY != 0,
        segments,
    })
}

/// Sends a request and waits for its one answer.
fn ask(socket: &Socket, request: Generic) -> io::Result<Option<Generic>> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_ACK;
    let mut request = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(request));
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    socket.send(&bytes, 0)?;
    let mut answer = None;
    loop {
        let (bytes, _) = socket.recv_from_full()?;
        for message in spindrift_pmd::netlink::messages(&bytes) {
            match message.payload {
                NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
                NetlinkPayload::Error(_) => return Ok(answer),
                NetlinkPayload::InnerMessage(message) => answer = Some(message),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::print_stderr, reason = "tests")]
mod tests {
    use super::*;

    fn answer(attributes: &[(u16, &[u8])]) -> Generic {
        let all = attributes
            .iter()
            .map(|&(kind, value)| Generic::new(0, 0, kind, value).bytes[GENL_HDRLEN..].to_vec());
        Generic { family: 0, bytes: [vec![0; GENL_HDRLEN]].into_iter().chain(all).flatten().collect() }
    }

    #[test]
    fn answers_are_read() {
        let features = |bits: u64, segments: &[u8]| {
            read(&answer(&[(1, &[7; 4]), (3, &bits.to_ne_bytes()), (NETDEV_A_DEV_XDP_ZC_MAX_SEGS, segments)]))
        };
        let (native, copies) = (Features { native: true, ..Features::default() }, Features::default());
        assert_eq!(features(0b111_0111, &[]), Some(Features { segments: 1, ..native }));
        assert_eq!(
            features(0b1001, &4_u32.to_ne_bytes()),
            Some(Features { zero_copy: true, segments: 4, ..native })
        );
        assert_eq!(features(0b100, &[]), Some(Features { segments: 1, ..copies }));
        assert_eq!(read(&answer(&[(1, &[7; 4])])), None);
        // Cut off, or of another length.
        let whole = answer(&[(3, &[0xff; 8])]);
        for len in 0..whole.bytes.len() {
            assert_eq!(read(&Generic { family: 0, bytes: whole.bytes[..len].to_vec() }), None);
        }
        assert_eq!(read(&answer(&[(3, &[0xff; 4])])), None);
    }

    /// The one interface that every machine has: no driver, no XDP in it.
    #[test]
    fn the_kernel_answers() {
        match features(1) {
            Ok(Some(features)) => assert_eq!(features, Features { segments: 1, ..features }),
            Ok(None) => eprintln!("skipped: an old kernel"),
            Err(error) => eprintln!("skipped: {error}"),
        }
        assert_eq!(features(0x00ff_ffff).map_err(|error| error.raw_os_error()), Err(Some(libc::ENODEV)));
    }
}
