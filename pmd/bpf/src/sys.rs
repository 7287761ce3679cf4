//! The system calls: `bpf(2)`, and one option of netlink sockets. All `unsafe` of the crate is here.

use std::ffi::c_long;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const BPF_MAP_CREATE: c_long = 0;
const BPF_MAP_LOOKUP_ELEM: c_long = 1;
const BPF_MAP_UPDATE_ELEM: c_long = 2;
const BPF_PROG_LOAD: c_long = 5;
const BPF_PROG_TEST_RUN: c_long = 10;
const BPF_MAP_GET_FD_BY_ID: c_long = 14;
const BPF_OBJ_GET_INFO_BY_FD: c_long = 15;
const BPF_LINK_CREATE: c_long = 28;

// Types of maps and programs, and of attachment (`linux/bpf.h`).
const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_MAP_TYPE_XSKMAP: u32 = 17;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;
const BPF_F_XDP_HAS_FRAGS: u32 = 1 << 5;
/// The verifier's log, of which errors tell the end.
const LOG_LEN: usize = 1 << 20;
/// A program may make a packet longer; those here do not.
const MAX_PACKET: usize = 1 << 16;

type Name = [u8; 16];

/// The first 15 bytes, and a zero.
fn name_of(name: &str) -> Name {
    let mut short = [0; 16];
    for (to, from) in short.iter_mut().take(15).zip(name.bytes()) {
        *to = from;
    }
    short
}

/// A command's part of `union bpf_attr`: plain numbers, no padding, in the kernel's order.
///
/// # Safety
/// Pointers in it, as numbers, are valid during the call for what the kernel reads and writes there.
unsafe fn bpf<T>(command: c_long, attributes: &mut T) -> io::Result<i32> {
    let size = size_of::<T>();
    // SAFETY: the attributes are live and of this size; the caller answers for what they point to.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attributes), size) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

/// # Safety
/// The number is a descriptor that the kernel has just made for this process.
unsafe fn own(fd: i32) -> OwnedFd {
    // SAFETY: nobody else has it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn address<T>(of: &[T]) -> u64 {
    of.as_ptr() as u64
}

#[repr(C)]
struct MapCreate {
    kind: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
    inner: u32,
    numa_node: u32,
    name: Name,
}

/// An array with one value of so many bytes.
pub(crate) fn array_create(name: &str, value_size: u32) -> io::Result<OwnedFd> {
    map_create(BPF_MAP_TYPE_ARRAY, name, value_size, 1)
}

/// A map of so many `AF_XDP` sockets.
pub(crate) fn sockets_create(name: &str, entries: u32) -> io::Result<OwnedFd> {
    map_create(BPF_MAP_TYPE_XSKMAP, name, 4, entries)
}

fn map_create(kind: u32, name: &str, value_size: u32, max_entries: u32) -> io::Result<OwnedFd> {
    let mut attributes = MapCreate {
        kind,
        key_size: 4,
        value_size,
        max_entries,
        flags: 0,
        inner: 0,
        numa_node: 0,
        name: name_of(name),
    };
    // SAFETY: no pointers; what is returned is a new descriptor.
    unsafe { bpf(BPF_MAP_CREATE, &mut attributes).map(|fd| own(fd)) }
}

#[repr(C)]
struct Element {
    map: u32,
    zero: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// The numbers of an array that has as many as there is room for.
pub(crate) fn array_read(map: &OwnedFd, numbers: &mut [u64]) -> io::Result<()> {
    if map_info(map)?.value_size as usize != size_of_val(numbers) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let key = [0_u32];
    let value = numbers.as_mut_ptr() as u64;
    let mut attributes =
        Element { map: map.as_raw_fd() as u32, zero: 0, key: address(&key), value, flags: 0 };
    // SAFETY: the key is live and as long as keys of arrays are, and the room is as long as the value.
    unsafe { bpf(BPF_MAP_LOOKUP_ELEM, &mut attributes) }.map(|_| ())
}

pub(crate) fn socket_insert(map: &OwnedFd, at: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
    let (key, value) = ([at], [socket.as_raw_fd() as u32]);
    let mut attributes = Element {
        map: map.as_raw_fd() as u32,
        zero: 0,
        key: address(&key),
        value: address(&value),
        flags: 0,
    };
    // SAFETY: key and value are live and as long as those of maps of sockets, the only maps that this is called with.
    unsafe { bpf(BPF_MAP_UPDATE_ELEM, &mut attributes) }.map(|_| ())
}

#[repr(C)]
struct LinkCreate {
    program: u32,
    interface: u32,
    attach_type: u32,
    flags: u32,
}

/// Has an interface run a program as long as the descriptor that this returns is open.
pub(crate) fn link_create(program: BorrowedFd<'_>, interface: u32, flags: u32) -> io::Result<OwnedFd> {
    let program = program.as_raw_fd() as u32;
    let mut attributes = LinkCreate { program, interface, attach_type: BPF_XDP, flags };
    // SAFETY: no pointers; what is returned is a new descriptor.
    unsafe { bpf(BPF_LINK_CREATE, &mut attributes).map(|fd| own(fd)) }
}

#[repr(C)]
struct ById {
    id: u32,
    next: u32,
    flags: u32,
}

pub(crate) fn map_by_id(id: u32) -> io::Result<OwnedFd> {
    let mut attributes = ById { id, next: 0, flags: 0 };
    // SAFETY: no pointers; what is returned is a new descriptor.
    unsafe { bpf(BPF_MAP_GET_FD_BY_ID, &mut attributes).map(|fd| own(fd)) }
}

#[repr(C)]
struct Info {
    fd: u32,
    len: u32,
    place: u64,
}

/// The start of `struct bpf_map_info` and, as far as `id`, of `struct bpf_prog_info`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct ObjectInfo {
    kind: u32,
    pub(crate) id: u32,
    key_size: u32,
    pub(crate) value_size: u32,
    max_entries: u32,
    flags: u32,
}

impl ObjectInfo {
    /// Whether it is what [`array_create`] makes.
    pub(crate) fn is_single_array(&self) -> bool {
        self.kind == BPF_MAP_TYPE_ARRAY && self.max_entries == 1 && self.value_size.is_multiple_of(8)
    }
}

pub(crate) fn map_info(map: &OwnedFd) -> io::Result<ObjectInfo> {
    object_info(map)
}

pub(crate) fn program_id(program: &OwnedFd) -> io::Result<u32> {
    object_info(program).map(|info| info.id)
}

fn object_info(object: &OwnedFd) -> io::Result<ObjectInfo> {
    let mut info = ObjectInfo::default();
    let place = std::ptr::from_mut(&mut info) as u64;
    let mut attributes = Info { fd: object.as_raw_fd() as u32, len: size_of::<ObjectInfo>() as u32, place };
    // SAFETY: the kernel writes no more than `len` bytes, plain numbers, to what is live here.
    unsafe { bpf(BPF_OBJ_GET_INFO_BY_FD, &mut attributes) }?;
    Ok(info)
}

#[repr(C)]
struct ProgramLoad {
    kind: u32,
    insn_count: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: Name,
    interface: u32,
    attach_type: u32,
}

/// Loads an XDP program. The error has what the verifier says.
pub(crate) fn program_load(name: &str, insns: &[u64]) -> Result<OwnedFd, (io::Error, String)> {
    let mut attributes = ProgramLoad {
        kind: BPF_PROG_TYPE_XDP,
        insn_count: insns.len() as u32,
        insns: address(insns),
        license: c"Dual MIT/GPL".as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
        kernel_version: 0,
        flags: BPF_F_XDP_HAS_FRAGS,
        name: name_of(name),
        interface: 0,
        attach_type: BPF_XDP,
    };
    // SAFETY: the instructions, as many as is said, and the license are live; what is returned is a new descriptor.
    let error = match unsafe { bpf(BPF_PROG_LOAD, &mut attributes).map(|fd| own(fd)) } {
        Ok(fd) => return Ok(fd),
        Err(error) => error,
    };
    let mut log = vec![0_u8; LOG_LEN];
    (attributes.log_level, attributes.log_size, attributes.log) =
        (1, LOG_LEN as u32, log.as_mut_ptr() as u64);
    // SAFETY: as above, and the log is live and as long as is said.
    if let Ok(fd) = unsafe { bpf(BPF_PROG_LOAD, &mut attributes).map(|fd| own(fd)) } {
        return Ok(fd);
    }
    let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
    log.truncate(end);
    Err((error, String::from_utf8_lossy(&log).into_owned()))
}

#[repr(C)]
struct TestRun {
    program: u32,
    verdict: u32,
    len_in: u32,
    len_out: u32,
    packet_in: u64,
    packet_out: u64,
    repeat: u32,
    duration: u32,
    context_len_in: u32,
    context_len_out: u32,
    context_in: u64,
    context_out: u64,
}

/// Runs a program once; returns its verdict and the packet after it.
pub(crate) fn program_run(program: &OwnedFd, packet: &[u8]) -> io::Result<(i32, Vec<u8>)> {
    let mut after = vec![0_u8; MAX_PACKET];
    let mut attributes = TestRun {
        program: program.as_raw_fd() as u32,
        verdict: 0,
        len_in: packet.len() as u32,
        len_out: MAX_PACKET as u32,
        packet_in: address(packet),
        packet_out: after.as_mut_ptr() as u64,
        repeat: 1,
        duration: 0,
        context_len_in: 0,
        context_len_out: 0,
        context_in: 0,
        context_out: 0,
    };
    // SAFETY: both packets are live and as long as is said.
    unsafe { bpf(BPF_PROG_TEST_RUN, &mut attributes) }?;
    after.truncate(attributes.len_out as usize);
    Ok((attributes.verdict as i32, after))
}

/// Asks for extended acknowledgements: errors with a text, and without a copy of the request.
pub(crate) fn enable_ext_ack(socket: BorrowedFd<'_>) {
    for option in [libc::NETLINK_EXT_ACK, libc::NETLINK_CAP_ACK] {
        let on: libc::c_int = 1;
        let len = size_of_val(&on) as libc::socklen_t;
        // SAFETY: the value is live and as long as is said. An old kernel refuses, and errors are numbers then.
        unsafe {
            libc::setsockopt(socket.as_raw_fd(), libc::SOL_NETLINK, option, (&raw const on).cast(), len);
        }
    }
}
