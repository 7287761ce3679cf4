//! The functions of the interface, but for those that ask for attributes by an operation: see [`super::arrays`].

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::null;

use super::abi::{
    CcLimits, EVENT_SIZE_BEFORE, EVENT_STATE_VERSION, PROTOCOL_VERSION_1, cc_mask, ep_op, ev_mode, ev_state,
    fmt_mode, mrc_ctl_cc_nscc_cfg, mrc_ctl_cc_profile_attr, mrc_ctl_device_attr, mrc_ctl_ep_req,
    mrc_ctl_ep_rsp, mrc_ctl_ev, mrc_ctl_ev_event, mrc_ctl_port_attr, opt_cap, port_mask,
};
use super::managed::Managed;
use super::state::{
    Algorithm, CcChange, CcProfile, DeviceState, MAX_EVS, MAX_PROFILES, MAX_WIDTH, Nscc, Profile,
    ProfileState, Refusal, Result, Step, refuse, vendor_bytes,
};
use crate::abi::ibv_context;
use crate::context::ContextBox;
use crate::cq::CqBox;
use crate::error::{set_errno, tell};
use crate::mrc::abi::{mrc_comp_channel, mrc_context, mrc_cq};
use crate::mrc::completion;
use crate::mrc::context::{OwnerBox, mrc_query_version};

/// A function that returns 0, or -1 with `errno` and words on standard error.
pub(super) fn call(name: &str, act: impl FnOnce() -> Result<()>) -> c_int {
    let acted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
    let Err(refusal) = acted.unwrap_or_else(|_| refuse(libc::EIO, "it has failed")) else { return 0 };
    tell(name, &refusal.why);
    set_errno(refusal.code);
    -1
}

/// What a controller manages of the device of a context.
///
/// # Safety
/// A context of this library that was not destroyed, or null.
pub(super) unsafe fn managed<'a>(context: *mut mrc_context) -> Result<&'a Managed> {
    if context.is_null() {
        return refuse(libc::EINVAL, "there is no context");
    }
    // SAFETY: as the caller promises; the context of verbs is open as long as this one.
    let nic = unsafe { &ContextBox::of(OwnerBox::of(context).context).nic };
    if nic.is_elsewhere() {
        return refuse(libc::EIO, "a child of a fork has none of its parent's devices");
    }
    Ok(&nic.managed)
}

/// The attributes of a call, if there are any and its mask names nothing else.
///
/// # Safety
/// Attributes that the caller lets change, or null.
pub(super) unsafe fn attributes<'a, T>(attr: *mut T, mask: c_int, known: c_int) -> Result<&'a mut T> {
    if mask & !known != 0 {
        return refuse(libc::EINVAL, format!("attribute mask {mask:#x}: only {known:#x} is known"));
    }
    // SAFETY: as the caller promises.
    unsafe { attr.as_mut() }
        .ok_or_else(|| Refusal { code: libc::EINVAL, why: "there are no attributes".to_owned() })
}

/// A step that a mask asks for.
pub(super) fn step(mask: c_int, [to, from]: [c_int; 2], [wanted, now]: [u32; 2]) -> Result<Step> {
    let state = |bit, value| (mask & bit != 0).then(|| ProfileState::of(value)).transpose();
    Ok(Step { to: state(to, wanted)?, from: state(from, now)? })
}

/// A null-terminated list of names that never goes.
struct Names([*const c_char; Algorithm::NAMES.len() + 1]);

// SAFETY: the names are constants.
unsafe impl Sync for Names {}

static NAMES: Names = Names([Algorithm::NAMES[0].0.as_ptr(), Algorithm::NAMES[1].0.as_ptr(), null()]);

fn device(managed: &Managed) -> Result<mrc_ctl_device_attr> {
    let state = managed.read()?;
    let most = MAX_PROFILES * MAX_EVS;
    Ok(mrc_ctl_device_attr {
        mrc_ctl_protocol_version: PROTOCOL_VERSION_1,
        ev_max_fmt_profiles: MAX_PROFILES,
        ev_max_profiles: MAX_PROFILES,
        ev_max_count: most,
        ev_free_count: most.saturating_sub(state.evs()),
        ev_max_count_profile: MAX_EVS,
        ev_count_align: 1,
        ev_max_width: MAX_WIDTH,
        ev_fmt_mode_mask: fmt_mode::UDP,
        ev_mode_mask: ev_mode::AUTO | ev_mode::EXPLICIT | ev_mode::GENERATED,
        ev_op_max_entries: 0,
        cc: CcLimits { cc_max_profiles: MAX_PROFILES, algorithms: NAMES.0.as_ptr() },
        phy_port_mask: (1..=managed.ports()).map(|port| 1_u32.checked_shl(port.into()).unwrap_or(0)).sum(),
        opt_attr: opt_cap::CC_PROFILE_MODIFY_ONLINE | opt_cap::EV_EVENT,
    })
}

/// # Safety
/// A context of verbs of this library, and a place for the attributes.
pub(crate) unsafe extern "C" fn mrc_ctl_query_device(
    context: *mut ibv_context,
    attr: *mut mrc_ctl_device_attr,
) -> c_int {
    call("mrc_ctl_query_device", || {
        if context.is_null() || attr.is_null() {
            return refuse(libc::EINVAL, "there is no context, or no place for the attributes");
        }
        // SAFETY: as the caller promises.
        let found = device(&unsafe { ContextBox::of(context) }.nic.managed)?;
        // SAFETY: as the caller promises.
        unsafe { attr.write(found) };
        Ok(())
    })
}

/// # Safety
/// As [`mrc_ctl_query_device`], and a place for a number, or null.
pub(crate) unsafe extern "C" fn mrc_ctl_query_device_ex(
    context: *mut ibv_context,
    _mrc_context: *mut mrc_context,
    attr: *mut mrc_ctl_device_attr,
    supported: *mut c_int,
) -> c_int {
    // SAFETY: as the caller promises.
    let code = unsafe { mrc_ctl_query_device(context, attr) };
    if code == 0 && !supported.is_null() {
        // SAFETY: as the caller promises.
        unsafe { supported.write(1) };
    }
    code
}

/// # Safety
/// Places for numbers, or null.
pub(crate) unsafe extern "C" fn mrc_ctl_query_version(
    current: *mut u32,
    oldest: *mut u32,
    vendor: *mut u32,
    oldest_vendor: *mut u32,
) {
    // SAFETY: as the caller promises; the two interfaces have the same versions.
    unsafe { mrc_query_version(current, oldest, vendor, oldest_vendor) };
}

fn check_port(managed: &Managed, port: u8) -> Result<()> {
    let ports = managed.ports();
    if (1..=ports).contains(&port) {
        return Ok(());
    }
    refuse(libc::EINVAL, format!("port {port}: the device has ports 1 to {ports}"))
}

/// # Safety
/// A context of this library, and a place for the attributes.
pub(crate) unsafe extern "C" fn mrc_ctl_query_port(
    context: *mut mrc_context,
    port: u8,
    attr: *mut mrc_ctl_port_attr,
    mask: c_int,
) -> c_int {
    call("mrc_ctl_query_port", || {
        // SAFETY: as the caller promises.
        let managed = unsafe { managed(context) }?;
        // SAFETY: as the caller promises.
        let attr = unsafe { attributes(attr, mask, port_mask::ADMIN_STATE) }?;
        check_port(managed, port)?;
        let enabled = managed.read()?.is_enabled(port);
        if mask & port_mask::ADMIN_STATE != 0 {
            attr.port_admin_state = enabled.into();
        }
        Ok(())
    })
}

/// # Safety
/// A context of this library, and attributes.
pub(crate) unsafe extern "C" fn mrc_ctl_modify_port(
    context: *mut mrc_context,
    port: u8,
    attr: *mut mrc_ctl_port_attr,
    mask: c_int,
) -> c_int {
    call("mrc_ctl_modify_port", || {
        // SAFETY: as the caller promises.
        let managed = unsafe { managed(context) }?;
        // SAFETY: as the caller promises.
        let attr = unsafe { attributes(attr, mask, port_mask::ADMIN_STATE) }?;
        check_port(managed, port)?;
        if mask & port_mask::ADMIN_STATE == 0 {
            return Ok(());
        }
        let enabled = match attr.port_admin_state {
            0 => false,
            1 => true,
            other => return refuse(libc::EINVAL, format!("{other} is no administrative state")),
        };
        managed.change(|state| {
            state.set_enabled(port, enabled);
            Ok(())
        })
    })
}

/// # Safety
/// A context of this library, and attributes whose name and configuration are what they say.
pub(crate) unsafe extern "C" fn mrc_ctl_modify_cc_profile(
    context: *mut mrc_context,
    id: u64,
    attr: *mut mrc_ctl_cc_profile_attr,
    mask: c_int,
) -> c_int {
    call("mrc_ctl_modify_cc_profile", || {
        // SAFETY: as the caller promises.
        let managed = unsafe { managed(context) }?;
        // SAFETY: as the caller promises.
        let attr = unsafe { attributes(attr, mask, cc_mask::ALL) }?;
        let mut change = CcChange {
            step: step(
                mask,
                [cc_mask::STATE, cc_mask::CUR_STATE],
                [attr.profile_state, attr.cur_profile_state],
            )?,
            vendor: (mask & cc_mask::VENDOR_CFG != 0).then(|| attr.vendor_cfg.to_vec()),
            ..CcChange::default()
        };
        if mask & cc_mask::ALGORITHM != 0 {
            // SAFETY: as the caller promises.
            let name = (!attr.algorithm.is_null()).then(|| unsafe { CStr::from_ptr(attr.algorithm) });
            change.algorithm = Some(Algorithm::named(name)?);
        }
        if mask & cc_mask::CONFIG != 0 && !attr.cc_config.is_null() {
            // SAFETY: as the caller promises. Only this algorithm has a configuration.
            change.nscc = Some(Nscc::from(unsafe { &*attr.cc_config.cast::<mrc_ctl_cc_nscc_cfg>() }));
        }
        change_profile(managed, Profile::Congestion(id), change.step, |state| state.modify_cc(id, change))
    })
}

/// Makes a change that takes a profile from ONLINE only if no queue pair uses it.
pub(super) fn change_profile(
    managed: &Managed,
    profile: Profile,
    step: Step,
    act: impl FnOnce(&mut DeviceState) -> Result<()>,
) -> Result<()> {
    let leaves = step.to == Some(ProfileState::Offline)
        && managed.read()?.profile_state(profile) == ProfileState::Online;
    if !leaves {
        return managed.change(act);
    }
    // Before, so that a profile in use never leaves ONLINE; and after, for those that have come meanwhile.
    managed.check_unused(profile)?;
    let mut before = DeviceState::default();
    managed.change(|state| {
        before.clone_from(state);
        act(state)
    })?;
    managed.check_unused(profile).or_else(|refusal| {
        managed.change(|state| {
            state.restore(profile, before);
            Ok(())
        })?;
        Err(refusal)
    })
}

/// # Safety
/// A context of this library, and attributes; with the mask of a configuration, a place for that or null.
pub(crate) unsafe extern "C" fn mrc_ctl_query_cc_profile(
    context: *mut mrc_context,
    id: u64,
    attr: *mut mrc_ctl_cc_profile_attr,
    mask: c_int,
) -> c_int {
    call("mrc_ctl_query_cc_profile", || {
        // SAFETY: as the caller promises.
        let managed = unsafe { managed(context) }?;
        // SAFETY: as the caller promises.
        let attr = unsafe { attributes(attr, mask, cc_mask::ALL) }?;
        let state = managed.read()?;
        let own = CcProfile {
            state: ProfileState::Online,
            algorithm: Some(Algorithm::Adaptive),
            ..CcProfile::default()
        };
        let none = CcProfile::default();
        let profile = if id == 0 { &own } else { state.cc(id).unwrap_or(&none) };
        if mask & (cc_mask::STATE | cc_mask::CUR_STATE) != 0 {
            (attr.profile_state, attr.cur_profile_state) = (profile.state.value(), profile.state.value());
        }
        if mask & cc_mask::ALGORITHM != 0 {
            let named = Algorithm::NAMES.iter().find(|(_, algorithm)| Some(*algorithm) == profile.algorithm);
            attr.algorithm = named.map_or(null(), |(name, _)| name.as_ptr());
        }
        if mask & cc_mask::CONFIG != 0
            && !attr.cc_config.is_null()
            && let Some(nscc) = &profile.nscc
        {
            // SAFETY: as the caller promises: a query writes where the program lets it.
            unsafe { attr.cc_config.cast_mut().cast::<mrc_ctl_cc_nscc_cfg>().write(nscc.into()) };
        }
        if mask & cc_mask::VENDOR_CFG != 0 {
            attr.vendor_cfg = vendor_bytes(&profile.vendor);
        }
        Ok(())
    })
}

/// # Safety
/// A context, and a channel or null, of this library.
pub(crate) unsafe extern "C" fn mrc_ctl_create_ev_event_cq(
    context: *mut mrc_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut mrc_comp_channel,
    vector: c_int,
) -> *mut mrc_cq {
    // SAFETY: as the caller promises.
    unsafe { completion::create(context, cqe, cq_context, channel, vector, true) }
}

/// # Safety
/// A queue of [`mrc_ctl_create_ev_event_cq`], and room for so many events of the version that its context was made with.
pub(crate) unsafe extern "C" fn mrc_ctl_poll_ev_event(
    queue: *mut mrc_cq,
    most: c_int,
    events: *mut mrc_ctl_ev_event,
) -> c_int {
    let polled = std::panic::catch_unwind(|| {
        if queue.is_null() || most < 0 || (events.is_null() && most > 0) {
            return -libc::EINVAL;
        }
        // SAFETY: as the caller promises.
        let of = unsafe { CqBox::of(queue.cast()) };
        let Some(queue) = of.ev_events() else { return -libc::EINVAL };
        let has_state = of.version() >= EVENT_STATE_VERSION;
        let size = if has_state { size_of::<mrc_ctl_ev_event>() } else { EVENT_SIZE_BEFORE };
        let mut count = 0;
        while count < most
            && let Some(event) = queue.pop()
        {
            let found = mrc_ctl_ev_event {
                profile_id: event.profile,
                ev: mrc_ctl_ev::of(event.change.value, event.change.port),
                drop_count: event.lost.into(),
                state: event.change.state,
            };
            // SAFETY: as the caller promises: the event is of this size, and so is what is copied of it.
            unsafe {
                let to = events.byte_add(count as usize * size);
                core::ptr::copy_nonoverlapping((&raw const found).cast::<u8>(), to.cast::<u8>(), size);
            }
            count += 1;
        }
        count
    });
    polled.unwrap_or(-libc::EIO)
}

/// Nothing of these is here: a device says so by its optional features.
///
/// # Safety
/// Any pointers: nothing is read or written but the number of responses.
pub(crate) unsafe extern "C" fn mrc_ctl_ep_batch_send_wait(
    _context: *mut mrc_context,
    _class: u8,
    op: u32,
    _requests: *mut mrc_ctl_ep_req,
    _count: c_int,
    _timeout_ns: u32,
    _responses: *mut mrc_ctl_ep_rsp,
    responses: *mut c_int,
) -> c_int {
    call("mrc_ctl_ep_batch_send_wait", || {
        if !responses.is_null() {
            // SAFETY: a place for a number.
            unsafe { responses.write(0) };
        }
        match op {
            ep_op::EV_PROBE | ep_op::PORT_STATUS_UPDATE => {
                refuse(libc::ENOTSUP, "this device sends no endpoint operations for controllers")
            }
            _ => refuse(libc::EINVAL, format!("{op} is no endpoint operation")),
        }
    })
}

/// Whether a state is one that a controller sets, and whether that denies.
pub(super) fn denies(state: u32) -> Result<bool> {
    match state {
        ev_state::GOOD => Ok(false),
        ev_state::DENIED => Ok(true),
        ev_state::ASSUMED_BAD | ev_state::UNKNOWN => refuse(
            libc::EINVAL,
            "a controller sets GOOD or DENIED; what else a path is, the queue pairs find out",
        ),
        _ => refuse(libc::EINVAL, format!("{state:#x} is no state of an entropy value")),
    }
}
