//! Names of hosts, devices, options, texts; and what is not there.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::null_mut;
use std::net::SocketAddr;

use super::abi::QpInit;
use super::abi::{
    RAI_NUMERICHOST, RAI_PASSIVE, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, RDMA_OPTION_ID_AFONLY,
    RDMA_OPTION_ID_REUSEADDR, RDMA_OPTION_ID_TOS, event, port_space, rdma_addrinfo, rdma_cm_id,
};
use super::id::{IdBox, rdma_destroy_id};
use super::queue::{self, rdma_destroy_qp, rdma_destroy_srq};
use super::{address, open};
use crate::abi::{IBV_QPT_RC, IBV_QPT_UD, ibv_context, ibv_ece, ibv_pd};
use crate::device;
use crate::error::{count, object, set_errno};

/// Addresses that a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    flags: c_int,
    qp_type: c_int,
    ps: c_int,
    from: Option<SocketAddr>,
    to: Option<SocketAddr>,
}

/// Looks a name up.
///
/// # Safety
/// Texts of C or null, and hints or null.
unsafe fn look_up(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> Result<Found, c_int> {
    if node.is_null() && service.is_null() && hints.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: as the caller promises.
    let hints = unsafe { hints.as_ref() };
    let flags = hints.map_or(0, |hints| hints.ai_flags);
    let of_datagrams =
        hints.is_some_and(|hints| hints.ai_qp_type == IBV_QPT_UD || hints.ai_port_space == port_space::UDP);
    let usual = if of_datagrams { (IBV_QPT_UD, port_space::UDP) } else { (IBV_QPT_RC, port_space::TCP) };
    let or = |given: Option<c_int>, usual: c_int| given.filter(|given| *given != 0).unwrap_or(usual);
    let qp_type = or(hints.map(|hints| hints.ai_qp_type), usual.0);
    let ps = or(hints.map(|hints| hints.ai_port_space), usual.1);
    // SAFETY: as the caller promises.
    let given = |at: *mut libc::sockaddr, len: libc::socklen_t| unsafe {
        if len == 0 { Ok(None) } else { address::read(at) }
    };
    let (mut from, mut to) = match hints {
        Some(hints) => {
            (given(hints.ai_src_addr, hints.ai_src_len)?, given(hints.ai_dst_addr, hints.ai_dst_len)?)
        }
        None => (None, None),
    };
    if !node.is_null() || !service.is_null() {
        let mut wanted: libc::addrinfo = none();
        wanted.ai_socktype = if of_datagrams { libc::SOCK_DGRAM } else { libc::SOCK_STREAM };
        wanted.ai_family = hints.map_or(0, |hints| hints.ai_family);
        let pick = |bit: c_int, flag: c_int| if flags & bit != 0 { flag } else { 0 };
        wanted.ai_flags = pick(RAI_PASSIVE, libc::AI_PASSIVE) | pick(RAI_NUMERICHOST, libc::AI_NUMERICHOST);
        let mut list: *mut libc::addrinfo = null_mut();
        // SAFETY: as the caller promises; the other two are this function's.
        let failed = unsafe { libc::getaddrinfo(node, service, &raw const wanted, &raw mut list) };
        if failed != 0 || list.is_null() {
            return Err(if failed == libc::EAI_MEMORY { libc::ENOMEM } else { libc::ENODATA });
        }
        // SAFETY: the list of the call above has an address.
        let found = unsafe { address::read((*list).ai_addr) };
        // SAFETY: the same; it is not used afterwards.
        unsafe { libc::freeaddrinfo(list) };
        let found = found?;
        if flags & RAI_PASSIVE != 0 {
            from = found;
        } else {
            to = found;
        }
    }
    Ok(Found { flags, qp_type, ps, from, to })
}

/// Names of nothing.
fn none() -> libc::addrinfo {
    // SAFETY: zeros and null pointers mean "nothing".
    unsafe { core::mem::zeroed() }
}

/// An address in memory that C frees.
fn to_c(address: Option<SocketAddr>) -> Result<(*mut libc::sockaddr, libc::socklen_t), c_int> {
    let Some(address) = address else { return Ok((null_mut(), 0)) };
    let (storage, len) = address::write(address);
    // SAFETY: a call that takes no pointer.
    let to = unsafe { libc::malloc(size_of::<libc::sockaddr_storage>()) };
    if to.is_null() {
        return Err(libc::ENOMEM);
    }
    // SAFETY: it has as many bytes, and memory of `malloc` is aligned for anything.
    unsafe { to.cast::<libc::sockaddr_storage>().write(storage) };
    Ok((to.cast(), len as libc::socklen_t))
}

impl Found {
    fn into_c(self) -> Result<*mut rdma_addrinfo, c_int> {
        let (src, src_len) = to_c(self.from)?;
        let (dst, dst_len) = to_c(self.to)?;
        let first = self.to.or(self.from);
        let family = first.map_or(0, |at| if at.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 });
        let info = rdma_addrinfo {
            ai_flags: self.flags,
            ai_family: family,
            ai_qp_type: self.qp_type,
            ai_port_space: self.ps,
            ai_src_len: src_len,
            ai_dst_len: dst_len,
            ai_src_addr: src,
            ai_dst_addr: dst,
            ai_src_canonname: null_mut(),
            ai_dst_canonname: null_mut(),
            ai_route_len: 0,
            ai_route: null_mut(),
            ai_connect_len: 0,
            ai_connect: null_mut(),
            ai_next: null_mut(),
        };
        // SAFETY: a call that takes no pointer.
        let to = unsafe { libc::malloc(size_of::<rdma_addrinfo>()) }.cast::<rdma_addrinfo>();
        if to.is_null() {
            return Err(libc::ENOMEM);
        }
        // SAFETY: it has as many bytes.
        unsafe { to.write(info) };
        Ok(to)
    }
}

/// # Safety
/// Texts of C or null, hints or null, and a place for the result.
pub(crate) unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    to: *mut *mut rdma_addrinfo,
) -> c_int {
    count(|| {
        // SAFETY: as the caller promises.
        let found = unsafe { look_up(node, service, hints) }?.into_c()?;
        // SAFETY: as the caller promises.
        unsafe { to.write(found) };
        Ok(0)
    })
}

/// # Safety
/// A list of [`rdma_getaddrinfo`], which is not used afterwards; programs may have put memory of `malloc` into it.
pub(crate) unsafe extern "C" fn rdma_freeaddrinfo(mut list: *mut rdma_addrinfo) {
    while !list.is_null() {
        // SAFETY: as the caller promises.
        let info = unsafe { list.read() };
        let parts: [*mut c_void; 6] = [
            info.ai_src_addr.cast(),
            info.ai_dst_addr.cast(),
            info.ai_src_canonname.cast(),
            info.ai_dst_canonname.cast(),
            info.ai_route,
            info.ai_connect,
        ];
        for part in parts.into_iter().chain([list.cast()]) {
            // SAFETY: memory of `malloc`, or null.
            unsafe { libc::free(part) };
        }
        list = info.ai_next;
    }
}

/// # Safety
/// An object of this library; texts of C or null; hints or null.
pub(crate) unsafe extern "C" fn rdma_resolve_addrinfo(
    id: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> c_int {
    count(|| {
        // SAFETY: as the caller promises.
        let of = unsafe { IdBox::of(id) };
        // SAFETY: as the caller promises.
        let found = unsafe { look_up(node, service, hints) };
        let (kind, status) = match found {
            Ok(_) => (event::ADDRINFO_RESOLVED, 0),
            Err(code) => (event::ADDRINFO_ERROR, -code),
        };
        of.state()?.found = found.ok();
        of.post(kind, status);
        of.complete()?;
        Ok(0)
    })
}

/// # Safety
/// An object of this library and a place for a list.
pub(crate) unsafe extern "C" fn rdma_query_addrinfo(
    id: *mut rdma_cm_id,
    to: *mut *mut rdma_addrinfo,
) -> c_int {
    count(|| {
        // SAFETY: as the caller promises.
        let found = unsafe { IdBox::of(id) }.state()?.found.ok_or(libc::EINVAL)?.into_c()?;
        // SAFETY: as the caller promises.
        unsafe { to.write(found) };
        Ok(0)
    })
}

/// An object whose calls wait for their events: bound, or resolved and with a queue pair.
///
/// # Safety
/// A place for the object, addresses of [`rdma_getaddrinfo`], a protection domain of this library or null, and attributes or null.
pub(crate) unsafe extern "C" fn rdma_create_ep(
    to: *mut *mut rdma_cm_id,
    info: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut QpInit,
) -> c_int {
    count(|| {
        // SAFETY: as the caller promises.
        let info = unsafe { info.as_ref() }.ok_or(libc::EINVAL)?;
        let made = IdBox::make(null_mut(), null_mut(), info.ai_port_space, None)?.into_c();
        // SAFETY: it was just made.
        let of = unsafe { IdBox::of(made) };
        of.base().qp_type = info.ai_qp_type;
        // SAFETY: as the caller promises.
        let (from, dst) = unsafe { (address::read(info.ai_src_addr), address::read(info.ai_dst_addr)) };
        let prepare = || -> Result<(), c_int> {
            // SAFETY: as the caller promises.
            let attr = unsafe { attr.as_mut() };
            if info.ai_flags & RAI_PASSIVE != 0 {
                of.bind(from?.ok_or(libc::EINVAL)?)?;
                of.state()?.template = attr.map(|attr| (pd, QpInit { qp_type: info.ai_qp_type, ..*attr }));
                return Ok(());
            }
            of.resolve(from?, dst?.ok_or(libc::EINVAL)?)?;
            of.complete()?;
            // SAFETY: an object of this library.
            if unsafe { super::id::rdma_resolve_route(made, 0) } != 0 {
                return Err(crate::error::last_code());
            }
            if let Some(attr) = attr {
                attr.qp_type = info.ai_qp_type;
                queue::create(of, pd, attr)?;
            }
            Ok(())
        };
        if let Err(code) = prepare() {
            // SAFETY: nobody else has it.
            unsafe { rdma_destroy_id(made) };
            return Err(code);
        }
        // SAFETY: as the caller promises.
        unsafe { to.write(made) };
        Ok(0)
    })
}

/// # Safety
/// An object of this library, which is not used afterwards.
pub(crate) unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    // SAFETY: as the caller promises.
    unsafe {
        rdma_destroy_qp(id);
        rdma_destroy_srq(id);
        rdma_destroy_id(id);
    }
}

/// # Safety
/// A place for a number, or null.
pub(crate) unsafe extern "C" fn rdma_get_devices(number: *mut c_int) -> *mut *mut ibv_context {
    object(|| {
        let opened: Vec<_> = device::all().iter().filter_map(|device| open(device).ok()).collect();
        if opened.is_empty() {
            return Err(libc::ENODEV);
        }
        // SAFETY: memory for the pointers and a null, which `rdma_free_devices` frees.
        let list = unsafe { libc::calloc(opened.len() + 1, size_of::<*mut ibv_context>()) };
        let list = list.cast::<*mut ibv_context>();
        if list.is_null() {
            return Err(libc::ENOMEM);
        }
        for (at, opened) in opened.iter().enumerate() {
            // SAFETY: within the list.
            unsafe { list.add(at).write(opened.context) };
        }
        if !number.is_null() {
            // SAFETY: as the caller promises.
            unsafe { number.write(opened.len() as c_int) };
        }
        Ok(list)
    })
}

/// # Safety
/// A list of [`rdma_get_devices`], which is not used afterwards.
pub(crate) unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: as the caller promises.
    unsafe { libc::free(list.cast::<c_void>()) };
}

pub(crate) extern "C" fn rdma_event_str(kind: c_int) -> *const c_char {
    const NAMES: [&CStr; 20] = [
        c"RDMA_CM_EVENT_ADDR_RESOLVED",
        c"RDMA_CM_EVENT_ADDR_ERROR",
        c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        c"RDMA_CM_EVENT_ROUTE_ERROR",
        c"RDMA_CM_EVENT_CONNECT_REQUEST",
        c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        c"RDMA_CM_EVENT_CONNECT_ERROR",
        c"RDMA_CM_EVENT_UNREACHABLE",
        c"RDMA_CM_EVENT_REJECTED",
        c"RDMA_CM_EVENT_ESTABLISHED",
        c"RDMA_CM_EVENT_DISCONNECTED",
        c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        c"RDMA_CM_EVENT_MULTICAST_JOIN",
        c"RDMA_CM_EVENT_MULTICAST_ERROR",
        c"RDMA_CM_EVENT_ADDR_CHANGE",
        c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
        c"RDMA_CM_EVENT_ADDRINFO_RESOLVED",
        c"RDMA_CM_EVENT_ADDRINFO_ERROR",
        c"RDMA_CM_EVENT_USER",
        c"RDMA_CM_EVENT_INTERNAL",
    ];
    let name = usize::try_from(kind).ok().and_then(|kind| NAMES.get(kind));
    name.unwrap_or(&c"UNKNOWN EVENT").as_ptr()
}

/// # Safety
/// An object of this library, and `len` bytes.
pub(crate) unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: usize,
) -> c_int {
    count(|| {
        if level != RDMA_OPTION_ID {
            return Err(libc::ENOSYS);
        }
        // SAFETY: as the caller promises.
        let mut state = unsafe { IdBox::of(id) }.state()?;
        let size = match name {
            RDMA_OPTION_ID_TOS | RDMA_OPTION_ID_ACK_TIMEOUT => 1,
            RDMA_OPTION_ID_REUSEADDR | RDMA_OPTION_ID_AFONLY => size_of::<c_int>(),
            _ => return Err(libc::ENOSYS),
        };
        if value.is_null() || len != size {
            return Err(libc::EINVAL);
        }
        // SAFETY: as the caller promises; there are as many bytes.
        let (byte, number) = unsafe {
            let number = if size == 1 { 0 } else { value.cast::<c_int>().read_unaligned() };
            (value.cast::<u8>().read(), number)
        };
        match name {
            RDMA_OPTION_ID_AFONLY => state.v6_only = number != 0,
            RDMA_OPTION_ID_ACK_TIMEOUT => state.ack_timeout = byte & 31,
            // The class of traffic is that of all packets, and a port that was in use is free at once.
            _ => {}
        }
        Ok(0)
    })
}

/// Nothing is agreed between vendors' devices.
///
/// # Safety
/// A place for the options.
pub(crate) unsafe extern "C" fn rdma_get_remote_ece(_id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { ece.write(ibv_ece::default()) };
    0
}

pub(crate) extern "C" fn rdma_set_local_ece(_id: *mut rdma_cm_id, _ece: *mut ibv_ece) -> c_int {
    0
}

/// For functions that are not there, and return an `int` or a `long`.
pub(crate) extern "C" fn absent() -> isize {
    set_errno(libc::EOPNOTSUPP);
    -1
}
