//! Contexts: a device as a program has opened it.

use core::ffi::{c_int, c_void};
use core::mem::offset_of;
use std::ptr::null_mut;
use std::sync::Arc;

use crate::abi::{
    IBV_LINK_LAYER_ETHERNET, IBV_PORT_ACTIVE, IBV_PORT_DOWN, IBV_PORT_IP_BASED_GIDS, VERBS_ABI_IS_EXTENDED,
    ibv_context, ibv_context_ops, ibv_device, ibv_device_attr, ibv_device_attr_ex, ibv_gid, ibv_gid_entry,
    ibv_port_attr, ibv_query_device_ex_input, verbs_context,
};
use crate::cq;
use crate::device::{self, DeviceBox};
use crate::error::{code, count, object};
use crate::event::EventQueue;
use crate::nic::Nic;
use crate::{post, qp, srq};
use spindrift_programs::gid;

/// A context. Its C part is at the end of a larger struct, which grows at its front.
#[repr(C)]
pub(crate) struct ContextBox {
    base: verbs_context,
    pub(crate) nic: Arc<Nic>,
    pub(crate) events: Arc<EventQueue>,
}

impl ContextBox {
    /// # Safety
    /// A context of [`ibv_open_device`] that was not closed.
    pub(crate) unsafe fn of<'a>(context: *mut ibv_context) -> &'a Self {
        // SAFETY: it is a field of the first field of a box.
        unsafe { &*context.byte_sub(offset_of!(verbs_context, context)).cast::<Self>() }
    }

    fn as_c(&self) -> *mut ibv_context {
        (&raw const self.base.context).cast_mut()
    }

    fn device(&self) -> &DeviceBox {
        // SAFETY: it was opened from this device.
        unsafe { DeviceBox::of(self.base.context.device) }
    }
}

/// # Safety
/// A device of this library.
pub(crate) unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    object(|| {
        // SAFETY: as the caller promises.
        let of = unsafe { DeviceBox::of(device) };
        let nic = of.open()?;
        let events = Arc::new(EventQueue::new()?);
        nic.add_context(&events);
        let base = verbs_context {
            query_port: Some(query_port),
            before_modify_cq: [None; 16],
            modify_cq: None,
            before_query_rt_values: [None; 6],
            query_rt_values: None,
            create_cq_ex: Some(cq::create_cq_ex),
            private: null_mut(),
            query_device_ex: Some(query_device_ex),
            flow: [None; 4],
            open_qp: None,
            create_qp_ex: Some(qp::create_qp_ex),
            get_srq_num: None,
            create_srq_ex: Some(srq::create_srq_ex),
            open_xrcd: None,
            close_xrcd: None,
            placeholder: 0,
            sz: size_of::<verbs_context>(),
            context: ibv_context {
                device,
                ops: ibv_context_ops {
                    compat_before_mw: [None; 7],
                    alloc_mw: None,
                    bind_mw: None,
                    dealloc_mw: None,
                    compat_create_cq: None,
                    poll_cq: Some(cq::poll_cq),
                    req_notify_cq: Some(cq::req_notify_cq),
                    compat_before_srq_recv: [None; 7],
                    post_srq_recv: Some(srq::post_srq_recv),
                    compat_before_send: [None; 4],
                    post_send: Some(post::post_send),
                    post_recv: Some(post::post_recv),
                    compat_after_recv: [None; 5],
                },
                cmd_fd: -1,
                async_fd: events.fd(),
                num_comp_vectors: 1,
                mutex: libc::PTHREAD_MUTEX_INITIALIZER,
                abi_compat: VERBS_ABI_IS_EXTENDED as *mut c_void,
            },
        };
        let context = Box::leak(Box::new(ContextBox { base, nic, events }));
        Ok(context.as_c())
    })
}

/// # Safety
/// A context of [`ibv_open_device`] whose objects have ended.
pub(crate) unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    code(|| {
        // SAFETY: as the caller promises; the box was leaked when it was opened.
        drop(unsafe { Box::from_raw(std::ptr::from_ref(ContextBox::of(context)).cast_mut()) });
        Ok(())
    })
}

/// # Safety
/// A context of this library and a place for the attributes.
pub(crate) unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> c_int {
    code(|| {
        // SAFETY: as the caller promises.
        let context = unsafe { ContextBox::of(context) };
        let attributes = device::attributes(context.device(), &context.nic);
        // SAFETY: as the caller promises.
        unsafe { attr.write(attributes) };
        Ok(())
    })
}

unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    code(|| {
        // SAFETY: the caller passes nothing, or a mask.
        if !input.is_null() && unsafe { (*input).comp_mask } != 0 || size < size_of::<ibv_device_attr>() {
            return Err(libc::EINVAL);
        }
        // SAFETY: as for every function of a context.
        let context = unsafe { ContextBox::of(context) };
        let orig_attr = device::attributes(context.device(), &context.nic);
        let mut full = core::mem::MaybeUninit::<ibv_device_attr_ex>::zeroed();
        // SAFETY: a field of a place of this function.
        unsafe { (&raw mut (*full.as_mut_ptr()).orig_attr).write(orig_attr) };
        // SAFETY: the same.
        unsafe { (&raw mut (*full.as_mut_ptr()).phys_port_cnt_ex).write(1) };
        let len = size.min(size_of::<ibv_device_attr_ex>());
        // SAFETY: the caller has `size` bytes there; all bytes of the source are initialised.
        unsafe { core::ptr::copy_nonoverlapping(full.as_ptr().cast::<u8>(), attr.cast::<u8>(), len) };
        Ok(())
    })
}

/// The code of an MTU: 1 is 256 bytes.
pub(crate) const fn mtu_code(bytes: u32) -> c_int {
    match bytes {
        4096.. => 5,
        2048.. => 4,
        1024.. => 3,
        512.. => 2,
        _ => 1,
    }
}

/// The bytes of an MTU's code.
pub(crate) const fn mtu_bytes(code: c_int) -> Option<u32> {
    if code >= 1 && code <= 5 { Some(128 << code) } else { None }
}

/// Codes of width and speed whose product comes close to a rate in bit/s.
fn width_and_speed(rate_bps: u64) -> (u8, u8) {
    // Lanes and their codes; Gb/s of a lane and its code.
    const WIDTHS: [(u64, u8); 4] = [(1, 1), (2, 16), (4, 2), (8, 4)];
    const SPEEDS: [(u64, u8); 7] = [(2, 1), (5, 2), (10, 4), (14, 16), (25, 32), (50, 64), (100, 128)];
    let all =
        WIDTHS.iter().flat_map(|width| SPEEDS.iter().map(move |speed| (width.0 * speed.0, width.1, speed.1)));
    let best = all.min_by_key(|(gbps, ..)| gbps.abs_diff(rate_bps / 1_000_000_000));
    best.map_or((2, 32), |(_, width, speed)| (width, speed))
}

/// Port 1 stands for all planes; those from 2 on are planes of their own, for controllers. One that a controller has disabled is down.
fn port_attributes(nic: &Nic, number: u8) -> ibv_port_attr {
    use spindrift::pmd::Medium;

    let mut ports = nic.verbs.query_ports();
    let up = if number == 1 {
        nic.is_up()
    } else {
        ports = ports.into_iter().skip(usize::from(number) - 1).take(1).collect();
        ports.iter().any(|port| port.link == spindrift::pmd::LinkState::Up)
    };
    let up = up && nic.managed.state().is_enabled(number);
    let mtu = nic.mtu_code();
    let rate = |medium: &Medium| match medium {
        Medium::Host => 100_000_000_000,
        Medium::Network { rate_bps } => rate_bps.unwrap_or(spindrift::congestion::CcConfig::USUAL_LINK_BPS),
    };
    let (active_width, active_speed) = width_and_speed(ports.iter().map(|port| rate(&port.medium)).sum());
    ibv_port_attr {
        state: if up { IBV_PORT_ACTIVE } else { IBV_PORT_DOWN },
        max_mtu: mtu,
        active_mtu: mtu,
        gid_tbl_len: gid::ENTRIES as c_int,
        port_cap_flags: IBV_PORT_IP_BASED_GIDS,
        max_msg_sz: 1 << 31,
        pkey_tbl_len: 1,
        active_width,
        active_speed,
        // Link up, or disabled.
        phys_state: if up { 5 } else { 3 },
        link_layer: IBV_LINK_LAYER_ETHERNET,
        max_vl_num: 1,
        ..ibv_port_attr::default()
    }
}

unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    len: usize,
) -> c_int {
    code(|| {
        // SAFETY: as for every function of a context.
        let nic = &unsafe { ContextBox::of(context) }.nic;
        if !(1..=nic.managed.ports()).contains(&port) {
            return Err(libc::EINVAL);
        }
        let attributes = port_attributes(nic, port);
        let known = size_of::<ibv_port_attr>();
        // SAFETY: the caller has `len` bytes there. What a newer header adds is 0.
        unsafe { core::ptr::write_bytes(attr.cast::<u8>(), 0, len) };
        let from = (&raw const attributes).cast::<u8>();
        // SAFETY: the same, of bytes that this struct has.
        unsafe { core::ptr::copy_nonoverlapping(from, attr.cast::<u8>(), len.min(known)) };
        Ok(())
    })
}

/// As a symbol it fills what the struct had when the symbol was new: programs that look it up have a struct of their own.
///
/// # Safety
/// A context of this library and a place for the attributes up to `flags`.
pub(crate) unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { query_port(context, port, attr, offset_of!(ibv_port_attr, port_cap_flags2)) }
}

fn entry(context: &ContextBox, port: u32, index: u32) -> Result<([u8; 16], u32), c_int> {
    let plane = context.nic.planes.first().copied().ok_or(libc::ENODEV)?;
    if port != 1 {
        return Err(libc::EINVAL);
    }
    gid::entry(plane, index).ok_or(libc::EINVAL)
}

/// # Safety
/// A context of this library and a place for the GID.
pub(crate) unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    count(|| {
        let index = u32::try_from(index).map_err(|_| libc::EINVAL)?;
        // SAFETY: as the caller promises.
        let (raw, _) = entry(unsafe { ContextBox::of(context) }, port.into(), index)?;
        // SAFETY: as the caller promises.
        unsafe { gid.write(ibv_gid { raw }) };
        Ok(0)
    })
}

/// # Safety
/// A context of this library and a place for the type.
pub(crate) unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port: u8,
    index: u32,
    kind: *mut c_int,
) -> c_int {
    count(|| {
        // SAFETY: as the caller promises.
        let (_, found) = entry(unsafe { ContextBox::of(context) }, port.into(), index)?;
        // RoCE v1 shares its value with InfiniBand in this older function.
        // SAFETY: as the caller promises.
        unsafe { kind.write(found as c_int - 1) };
        Ok(0)
    })
}

/// Fills an entry of the table.
///
/// # Safety
/// A context of this library and a place for an entry of `size` bytes.
unsafe fn gid_entry(
    context: *mut ibv_context,
    (port, index): (u32, u32),
    to: *mut ibv_gid_entry,
    (flags, size): (u32, usize),
) -> Result<(), c_int> {
    if flags != 0 || size < size_of::<ibv_gid_entry>() {
        return Err(libc::EINVAL);
    }
    // SAFETY: as the caller promises.
    let (raw, gid_type) = entry(unsafe { ContextBox::of(context) }, port, index).map_err(|code| {
        // An entry that does not exist.
        if code == libc::EINVAL { libc::ENODATA } else { code }
    })?;
    let gid = ibv_gid { raw };
    let found = ibv_gid_entry { gid, gid_index: index, port_num: port, gid_type, ndev_ifindex: 0 };
    // SAFETY: as the caller promises.
    unsafe { to.write(found) };
    Ok(())
}

/// # Safety
/// As [`gid_entry`].
pub(crate) unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    to: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    // SAFETY: as the caller promises.
    code(|| unsafe { gid_entry(context, (port, index), to, (flags, size)) })
}

/// # Safety
/// A context of this library and a place for `max` entries of `size` bytes.
pub(crate) unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    to: *mut ibv_gid_entry,
    max: usize,
    flags: u32,
    size: usize,
) -> isize {
    let entries = (gid::ENTRIES as usize).min(max);
    for index in 0..entries {
        let failed = code(|| {
            // SAFETY: as the caller promises: the place is within what it has.
            let at = unsafe { to.byte_add(index * size) };
            // SAFETY: as the caller promises.
            unsafe { gid_entry(context, (1, index as u32), at, (flags, size)) }
        });
        if failed != 0 {
            return -(failed as isize);
        }
    }
    entries as isize
}

/// # Safety
/// A place for the key.
pub(crate) unsafe extern "C" fn ibv_query_pkey(
    _context: *mut ibv_context,
    port: u8,
    index: c_int,
    key: *mut u16,
) -> c_int {
    count(|| {
        if port != 1 || index != 0 {
            return Err(libc::EINVAL);
        }
        // SAFETY: as the caller promises.
        unsafe { key.write(0xffff) };
        Ok(0)
    })
}

pub(crate) extern "C" fn ibv_get_pkey_index(_context: *mut ibv_context, _port: u8, key: u16) -> c_int {
    if key == 0xffff { 0 } else { -1 }
}
