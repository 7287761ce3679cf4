//! Programs on interfaces: by routing netlink (`RTM_SETLINK` with `IFLA_XDP`), such a program stays when its process ends, or by a [`Link`],
//! and it goes with its process.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::{Error, Program, sys};

/// Who runs a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The driver, before the kernel makes anything of the packet. Not all drivers can.
    Native,
    /// The network stack, for any driver.
    Generic,
}

/// What becomes of a program that an interface has already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// It stays, and attaching fails.
    Refuse,
    /// The new one takes its place, and no packet comes between.
    Replace,
}

/// The program of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    /// Who runs it.
    pub mode: Mode,
    /// Its number in the kernel.
    pub program: u32,
}

const RTM_GETLINK: u16 = libc::RTM_GETLINK;
const RTM_SETLINK: u16 = libc::RTM_SETLINK;
/// The attribute of a link for its XDP program, and those nested in it (`linux/if_link.h`).
const IFLA_XDP: u16 = 43;
const IFLA_XDP_FD: u16 = 1;
const IFLA_XDP_ATTACHED: u16 = 2;
const IFLA_XDP_FLAGS: u16 = 3;
const IFLA_XDP_PROG_ID: u16 = 4;
const NLA_F_NESTED: u16 = 1 << 15;
/// Bits of an attribute that hold its type, without the flags.
const NLA_TYPE_MASK: u16 = (1 << 14) - 1;

const XDP_FLAGS_UPDATE_IF_NOEXIST: u32 = 1;
const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

/// The attribute with the text of an error.
const NLMSGERR_ATTR_MSG: u16 = 1;
/// The error does not repeat the request.
const NLM_F_CAPPED: u16 = 0x100;
/// Attributes follow an error.
const NLM_F_ACK_TLVS: u16 = 0x200;

const NLMSG_HDRLEN: usize = 16;
const IFINFOMSG_LEN: usize = 16;
const NEEDED_CAPABILITY: &str = "CAP_NET_ADMIN in the interface's network namespace";

impl Mode {
    fn flag(self) -> u32 {
        match self {
            Self::Native => XDP_FLAGS_DRV_MODE,
            Self::Generic => XDP_FLAGS_SKB_MODE,
        }
    }
}

/// Has an interface of this thread's network namespace run a program on each packet that comes in. It runs until it is
/// [detached](detach) or replaced, or the interface goes.
///
/// # Errors
/// If there is a program already and it shall stay, the driver cannot run it, or the process may not do this.
pub fn attach(interface: u32, program: &Program, mode: Mode, existing: Existing) -> Result<(), Error> {
    let only_if_none = if existing == Existing::Refuse { XDP_FLAGS_UPDATE_IF_NOEXIST } else { 0 };
    set(interface, program.as_fd().as_raw_fd(), mode.flag() | only_if_none, "attach an XDP program to")
        .map_err(|error| or_busy(error, interface))
}

/// What an error means if there is a program already, in one mode or the other.
fn or_busy(error: Error, interface: u32) -> Error {
    match error {
        Error::System { source, .. } if matches!(source.raw_os_error(), Some(libc::EBUSY | libc::EEXIST)) => {
            let program = attached(interface).ok().flatten().map(|attached| attached.program);
            Error::Busy { interface, program }
        }
        error => error,
    }
}

/// A program on an interface for as long as this value lives: it is off when the value is dropped, and when the process ends, however it
/// ends.
#[derive(Debug)]
pub struct Link {
    _fd: OwnedFd,
}

impl Link {
    /// Has an interface of this thread's network namespace run a program on each packet that comes in.
    ///
    /// # Errors
    /// If there is a program already, the driver cannot run it, or the process may not do this.
    pub fn attach(interface: u32, program: &Program, mode: Mode) -> Result<Self, Error> {
        let what = || format!("attach an XDP program to interface {interface}");
        let link = sys::link_create(program.as_fd(), interface, mode.flag());
        let fd = link.map_err(|error| or_busy(Error::system(what(), error, NEEDED_CAPABILITY), interface))?;
        Ok(Self { _fd: fd })
    }
}

/// Takes the program off an interface. Nothing happens if there is none.
///
/// # Errors
/// If there is no such interface, or the process may not do this.
pub fn detach(interface: u32, mode: Mode) -> Result<(), Error> {
    set(interface, -1, mode.flag(), "take the XDP program off")
}

/// The program that an interface has.
///
/// # Errors
/// If there is no such interface.
pub fn attached(interface: u32) -> Result<Option<Attached>, Error> {
    let what = || format!("ask for the XDP program of interface {interface}");
    let answer = request(RTM_GETLINK, interface, &[]).map_err(|failure| failure.into_error(what()))?;
    let xdp = attributes(answer.get(IFINFOMSG_LEN..).unwrap_or_default()).find(|&(kind, _)| kind == IFLA_XDP);
    let (mut mode, mut program) = (None, None);
    for (kind, value) in attributes(xdp.map_or(&[], |(_, value)| value)) {
        match (kind, value) {
            (IFLA_XDP_ATTACHED, [1]) => mode = Some(Mode::Native),
            (IFLA_XDP_ATTACHED, [2]) => mode = Some(Mode::Generic),
            (IFLA_XDP_PROG_ID, value) => {
                program = value.first_chunk().map(|&bytes| u32::from_ne_bytes(bytes));
            }
            _ => {}
        }
    }
    Ok(mode.zip(program).map(|(mode, program)| Attached { mode, program }))
}

fn set(interface: u32, program: i32, flags: u32, what: &str) -> Result<(), Error> {
    let mut xdp = Vec::new();
    put(&mut xdp, IFLA_XDP_FD, &program.to_ne_bytes());
    put(&mut xdp, IFLA_XDP_FLAGS, &flags.to_ne_bytes());
    let mut all = Vec::new();
    put(&mut all, IFLA_XDP | NLA_F_NESTED, &xdp);
    request(RTM_SETLINK, interface, &all)
        .map_err(|failure| failure.into_error(format!("{what} interface {interface}")))?;
    Ok(())
}

/// An error, and what the kernel says of it.
struct Failure {
    source: io::Error,
    reason: Option<String>,
}

impl Failure {
    fn into_error(self, what: String) -> Error {
        match Error::system(what, self.source, NEEDED_CAPABILITY) {
            Error::System { what, source, .. } => Error::System { what, source, reason: self.reason },
            error => error,
        }
    }
}

impl From<io::Error> for Failure {
    fn from(source: io::Error) -> Self {
        Self { source, reason: None }
    }
}

impl From<rustix::io::Errno> for Failure {
    fn from(error: rustix::io::Errno) -> Self {
        io::Error::from(error).into()
    }
}

/// Asks for something of a link, and returns what the answer has behind its header.
fn request(kind: u16, interface: u32, attributes: &[u8]) -> Result<Vec<u8>, Failure> {
    let close = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, close, None)?;
    sys::enable_ext_ack(socket.as_fd());
    let mut flags = libc::NLM_F_REQUEST as u16;
    if kind != RTM_GETLINK {
        flags |= libc::NLM_F_ACK as u16;
    }
    let mut message = Vec::with_capacity(NLMSG_HDRLEN + IFINFOMSG_LEN + attributes.len());
    message.extend(((NLMSG_HDRLEN + IFINFOMSG_LEN + attributes.len()) as u32).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    // Sequence number and port: there is one request on this socket.
    message.extend([0; 8]);
    // Any family, any type of device.
    message.extend([0; 4]);
    message.extend(interface.to_ne_bytes());
    message.extend([0; 8]);
    message.extend(attributes);
    rustix::net::send(&socket, &message, SendFlags::empty())?;
    let mut answer = vec![0; 1 << 16];
    let (len, _) = rustix::net::recv(&socket, &mut answer[..], RecvFlags::empty())?;
    answer.truncate(len);
    outcome(&answer)
}

/// What an answer has behind its header, or its error.
fn outcome(answer: &[u8]) -> Result<Vec<u8>, Failure> {
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer is malformed");
    let (header, rest) = answer.split_first_chunk::<NLMSG_HDRLEN>().ok_or_else(malformed)?;
    let &[l0, l1, l2, l3, k0, k1, f0, f1, ..] = header;
    let len = u32::from_ne_bytes([l0, l1, l2, l3]) as usize;
    let (kind, flags) = (u16::from_ne_bytes([k0, k1]), u16::from_ne_bytes([f0, f1]));
    let body = len.checked_sub(NLMSG_HDRLEN).and_then(|len| rest.get(..len)).ok_or_else(malformed)?;
    if i32::from(kind) != libc::NLMSG_ERROR {
        return Ok(body.to_vec());
    }
    let (code, rest) = body.split_first_chunk::<4>().ok_or_else(malformed)?;
    let code = i32::from_ne_bytes(*code);
    if code == 0 {
        return Ok(Vec::new());
    }
    // The header of the request, and all of it in old kernels.
    let mut reason = None;
    if flags & (NLM_F_CAPPED | NLM_F_ACK_TLVS) == NLM_F_CAPPED | NLM_F_ACK_TLVS {
        let words = attributes(rest.get(NLMSG_HDRLEN..).unwrap_or_default())
            .find(|&(kind, _)| kind == NLMSGERR_ATTR_MSG);
        reason = words.map(|(_, text)| String::from_utf8_lossy(text).trim_end_matches('\0').to_owned());
    }
    Err(Failure { source: io::Error::from_raw_os_error(code.wrapping_neg()), reason })
}

/// Appends an attribute.
fn put(to: &mut Vec<u8>, kind: u16, value: &[u8]) {
    to.extend((4 + value.len() as u16).to_ne_bytes());
    to.extend(kind.to_ne_bytes());
    to.extend(value);
    to.resize(to.len().next_multiple_of(4), 0);
}

/// The attributes in some bytes: kinds without their flags, and values. What does not fit ends them.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let &[l0, l1, k0, k1, ..] = bytes else { return None };
        let len = usize::from(u16::from_ne_bytes([l0, l1]));
        let value = bytes.get(4..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((u16::from_ne_bytes([k0, k1]) & NLA_TYPE_MASK, value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer of the kernel.
    fn answer(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = ((NLMSG_HDRLEN + body.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend([0; 8]);
        bytes.extend(body);
        bytes
    }

    #[test]
    fn errors_come_with_the_kernels_words() {
        let error = libc::NLMSG_ERROR as u16;
        let refused = |flags, rest: &[u8]| {
            let body = [&(-libc::ERANGE).to_ne_bytes()[..], rest].concat();
            outcome(&answer(error, flags, &body))
                .map_err(|failure| (failure.source.raw_os_error(), failure.reason))
        };
        let mut rest = vec![0; NLMSG_HDRLEN];
        put(&mut rest, NLMSGERR_ATTR_MSG, b"too large\0");
        let words = Some("too large".to_owned());
        assert_eq!(refused(NLM_F_CAPPED | NLM_F_ACK_TLVS, &rest), Err((Some(libc::ERANGE), words)));
        assert_eq!(refused(0, &rest), Err((Some(libc::ERANGE), None)));
        assert_eq!(refused(NLM_F_CAPPED | NLM_F_ACK_TLVS, &[]), Err((Some(libc::ERANGE), None)));
        assert_eq!(outcome(&answer(error, NLM_F_CAPPED, &[0; 20])).ok(), Some(Vec::new()));
        assert_eq!(outcome(&answer(RTM_GETLINK, 0, b"link")).ok(), Some(b"link".to_vec()));
    }

    #[test]
    fn malformed_answers_are_errors() {
        let whole = answer(libc::NLMSG_ERROR as u16, 0, &[0; 4]);
        for len in 0..whole.len() {
            assert!(outcome(&whole[..len]).is_err(), "{len}");
        }
        let mut short = whole.clone();
        short[0] = 15;
        assert!(outcome(&short).is_err());
        assert_eq!(attributes(&[3, 0, 1, 0]).count(), 0);
        assert_eq!(attributes(&[9, 0, 1, 0, 1, 2, 3, 4]).count(), 0);
        let mut two = Vec::new();
        put(&mut two, 7, &[1]);
        put(&mut two, 8 | NLA_F_NESTED, &[2, 3, 4, 5]);
        assert_eq!(attributes(&two).collect::<Vec<_>>(), [(7, &[1][..]), (8, &[2, 3, 4, 5][..])]);
    }
}
