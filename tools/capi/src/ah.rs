//! Address handles: where datagrams go.

use core::ffi::c_int;

use crate::abi::{ibv_ah, ibv_ah_attr, ibv_context, ibv_gid, ibv_global_route, ibv_grh, ibv_pd, ibv_wc};
use crate::context::ContextBox;
use crate::datagram::{GRH, Route};
use crate::error::{code, count, object};
use crate::pd::PdBox;
use spindrift_programs::gid;

/// An address handle. Libraries of vendors look behind `ibv_ah` for their own, and find zeros.
#[repr(C)]
pub(crate) struct AhBox {
    base: ibv_ah,
    zeros: [u64; 32],
    pub(crate) route: Route,
}

impl AhBox {
    /// # Safety
    /// A handle of this library that was not destroyed.
    pub(crate) unsafe fn of<'a>(ah: *mut ibv_ah) -> &'a Self {
        // SAFETY: it is the first field of a box.
        unsafe { &*ah.cast::<Self>() }
    }
}

/// # Safety
/// A protection domain of this library, and attributes.
pub(crate) unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    object(|| {
        // SAFETY: as the caller promises.
        let (of, context, attr) = unsafe { (PdBox::of(pd), (*pd).context, &*attr) };
        // Ethernet has no local identifiers: a packet always has a GRH.
        if attr.is_global == 0 || attr.port_num != 1 {
            return Err(libc::EINVAL);
        }
        // SAFETY: the context of a protection domain is open.
        let nic = &unsafe { ContextBox::of(context) }.nic;
        let own = nic.planes.first().copied().ok_or(libc::ENODEV)?;
        let (sgid, _) = gid::entry(own, attr.grh.sgid_index.into()).ok_or(libc::EINVAL)?;
        let route = Route {
            sgid,
            // SAFETY: all bit patterns are bytes.
            dgid: unsafe { attr.grh.dgid.raw },
            flow_label: attr.grh.flow_label,
            traffic_class: attr.grh.traffic_class,
            hop_limit: attr.grh.hop_limit,
        };
        of.add_user();
        let made = AhBox { base: ibv_ah { context, pd, handle: 0 }, zeros: [0; 32], route };
        Ok(Box::into_raw(Box::new(made)).cast())
    })
}

/// # Safety
/// A handle of this library, which is not used afterwards. Requests that name it are done when they are posted.
pub(crate) unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    code(|| {
        // SAFETY: as the caller promises; it came from a box.
        let of = unsafe { Box::from_raw(ah.cast::<AhBox>()) };
        // SAFETY: a protection domain with handles cannot be freed.
        unsafe { PdBox::of(of.base.pd) }.remove_user();
        Ok(())
    })
}

/// The attributes of the way back to the sender of a datagram.
///
/// # Safety
/// A context of this library, and the GRH of the datagram.
unsafe fn way_back(context: *mut ibv_context, port: u8, grh: *const ibv_grh) -> Result<ibv_ah_attr, c_int> {
    if port != 1 || grh.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: as the caller promises: so many bytes without padding, at any alignment.
    let back = Route::back(&unsafe { grh.cast::<[u8; GRH]>().read_unaligned() });
    // SAFETY: as the caller promises.
    let own = unsafe { ContextBox::of(context) }.nic.planes.first().copied().ok_or(libc::ENODEV)?;
    // Of two entries with the same GID it is that of RoCE v2.
    let index = (0..gid::ENTRIES)
        .rev()
        .find(|index| gid::entry(own, *index).is_some_and(|(gid, _)| gid == back.sgid));
    Ok(ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: back.dgid },
            flow_label: back.flow_label,
            sgid_index: index.ok_or(libc::EINVAL)? as u8,
            hop_limit: back.hop_limit,
            traffic_class: back.traffic_class,
        },
        dlid: 0,
        sl: 0,
        src_path_bits: 0,
        static_rate: 0,
        is_global: 1,
        port_num: port,
    })
}

/// # Safety
/// A context of this library, the completion of a datagram with its GRH, and a place for attributes.
pub(crate) unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    _wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    count(|| {
        // SAFETY: as the caller promises.
        let found = unsafe { way_back(context, port, grh) }?;
        // SAFETY: as the caller promises.
        unsafe { attr.write(found) };
        Ok(0)
    })
}

/// # Safety
/// A protection domain of this library, and the completion of a datagram with its GRH.
pub(crate) unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    _wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    object(|| {
        // SAFETY: as the caller promises.
        let mut attr = unsafe { way_back((*pd).context, port, grh) }?;
        // SAFETY: as the caller promises. It sets `errno` itself.
        let made = unsafe { ibv_create_ah(pd, &raw mut attr) };
        if made.is_null() { Err(libc::EINVAL) } else { Ok(made) }
    })
}
