//! Memory regions: bytes of the program.

use core::ffi::{c_int, c_uint, c_void};

use spindrift::memory::{Access, Region};
use spindrift::verbs::Mr;

use crate::abi::{
    IBV_ACCESS_HUGETLB, IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_MW_BIND, IBV_ACCESS_ON_DEMAND,
    IBV_ACCESS_OPTIONAL_FIRST, IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE,
    IBV_ACCESS_ZERO_BASED, ibv_mr, ibv_pd,
};
use crate::context::ContextBox;
use crate::error::{code, code_of, object, set_errno};
use crate::local::Registered;
use crate::pd::PdBox;

#[repr(C)]
struct MrBox {
    base: ibv_mr,
    zeros: [u64; 32],
    mr: Option<Mr>,
}

/// The rights that flags grant.
fn rights(flags: c_uint) -> Result<Access, c_int> {
    const KNOWN: c_uint = IBV_ACCESS_LOCAL_WRITE
        | IBV_ACCESS_REMOTE_WRITE
        | IBV_ACCESS_REMOTE_READ
        | IBV_ACCESS_REMOTE_ATOMIC
        | IBV_ACCESS_MW_BIND
        | IBV_ACCESS_ZERO_BASED
        | IBV_ACCESS_HUGETLB;
    let needed = flags & (IBV_ACCESS_OPTIONAL_FIRST - 1);
    if needed & IBV_ACCESS_ON_DEMAND != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    // As in verbs: who may write from afar may write here.
    let writes = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    if needed & !KNOWN != 0 || needed & writes != 0 && needed & IBV_ACCESS_LOCAL_WRITE == 0 {
        return Err(libc::EINVAL);
    }
    let mut access = Access::LOCAL_READ;
    for (flag, right) in [
        (IBV_ACCESS_LOCAL_WRITE, Access::LOCAL_WRITE | Access::REMOTE_INVALIDATE),
        (IBV_ACCESS_REMOTE_WRITE, Access::REMOTE_WRITE),
        (IBV_ACCESS_REMOTE_READ, Access::REMOTE_READ),
        (IBV_ACCESS_REMOTE_ATOMIC, Access::REMOTE_ATOMIC),
    ] {
        if needed & flag != 0 {
            access |= right;
        }
    }
    Ok(access)
}

/// Sees that the bytes are there, while an error can still be returned: a page that is missing would end the process in the lane later.
fn populate(addr: *mut c_void, len: usize, writable: bool) -> Result<(), c_int> {
    // SAFETY: a system call that takes no pointer.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let start = addr.addr() & !(page - 1);
    let whole = addr.addr() + len - start;
    let advice = if writable { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    // SAFETY: it changes no byte, and fails where nothing is mapped.
    if unsafe { libc::madvise(addr.with_addr(start), whole, advice) } == 0 {
        return Ok(());
    }
    match std::io::Error::last_os_error().raw_os_error() {
        // Kernels before 5.14 do not know it, and some mappings cannot do it.
        Some(libc::EINVAL) => Ok(()),
        Some(libc::ENOMEM) => Err(libc::EFAULT),
        code => Err(code.unwrap_or(libc::EFAULT)),
    }
}

/// # Safety
/// A protection domain of this library, or null; `len` bytes at `addr` that stay until the region is deregistered.
unsafe fn register(pd: *mut ibv_pd, addr: *mut c_void, len: usize, iova: u64, flags: c_uint) -> *mut ibv_mr {
    object(|| {
        if pd.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: as the caller promises.
        let of = unsafe { PdBox::of(pd) };
        let access = rights(flags)?;
        if len == 0 || addr.addr().checked_add(len).is_none() {
            return Err(libc::EINVAL);
        }
        populate(addr, len, flags & IBV_ACCESS_LOCAL_WRITE != 0)?;
        let iova = if flags & IBV_ACCESS_ZERO_BASED != 0 { 0 } else { iova };
        // SAFETY: as the caller promises. What else the program does to the bytes is its own affair, as with a NIC.
        let region = unsafe { Region::from_raw_at(addr.cast(), len, iova) }.map_err(|_| libc::EINVAL)?;
        let mr = of.pd.register_region(region.clone(), access).map_err(|error| code_of(&error))?;
        let (lkey, rkey) = (mr.lkey(), mr.rkey());
        // SAFETY: as the caller promises.
        let context = unsafe { (*pd).context };
        // SAFETY: the context of a protection domain is open.
        let nic = &unsafe { ContextBox::of(context) }.nic;
        nic.local.add(lkey, Registered { region, access, pd: pd.addr() });
        let base = ibv_mr { context, pd, addr, length: len, handle: 0, lkey, rkey };
        of.add_user();
        Ok(Box::into_raw(Box::new(MrBox { base, zeros: [0; 32], mr: Some(mr) })).cast())
    })
}

/// # Safety
/// As [`register`].
pub(crate) unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
    flags: c_int,
) -> *mut ibv_mr {
    // SAFETY: as the caller promises.
    unsafe { register(pd, addr, len, addr.addr() as u64, flags as c_uint) }
}

/// # Safety
/// As [`register`].
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    flags: c_int,
) -> *mut ibv_mr {
    // SAFETY: as the caller promises.
    unsafe { register(pd, addr, len, iova, flags as c_uint) }
}

/// # Safety
/// As [`register`].
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    flags: c_uint,
) -> *mut ibv_mr {
    // SAFETY: as the caller promises.
    unsafe { register(pd, addr, len, iova, flags) }
}

/// Memory of other devices cannot be reached.
pub(crate) extern "C" fn ibv_reg_dmabuf_mr(
    _pd: *mut ibv_pd,
    _offset: u64,
    _len: usize,
    _iova: u64,
    _fd: c_int,
    _flags: c_int,
) -> *mut ibv_mr {
    set_errno(libc::EOPNOTSUPP);
    core::ptr::null_mut()
}

/// # Safety
/// A region of this library, which is not used afterwards if the call succeeds.
pub(crate) unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    code(|| {
        // SAFETY: as the caller promises; the program does not use it meanwhile.
        let of = unsafe { &mut *mr.cast::<MrBox>() };
        let (pd, lkey) = (of.base.pd, of.base.lkey);
        // SAFETY: the context of a region is open.
        let local = &unsafe { ContextBox::of(of.base.context) }.nic.local;
        let ended = of.mr.take().ok_or(libc::EINVAL)?;
        let registered = local.remove(lkey);
        if let Err((kept, _)) = ended.deregister() {
            // Requests use it.
            of.mr = Some(kept);
            if let Some(registered) = registered {
                local.add(lkey, registered);
            }
            return Err(libc::EBUSY);
        }
        // SAFETY: it came from a box.
        drop(unsafe { Box::from_raw(mr.cast::<MrBox>()) });
        // SAFETY: a protection domain with regions cannot be freed.
        unsafe { PdBox::of(pd) }.remove_user();
        Ok(())
    })
}
