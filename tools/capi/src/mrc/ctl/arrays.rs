//! The functions for formats and for profiles of entropy values, whose attributes have arrays.

use core::ffi::c_int;
use std::collections::BTreeSet;

use super::abi::{
    EV_OP_F_ALL_COPIES, ev_mask, ev_op, ev_state, fields_op, fmt_mask, fmt_mode, mrc_ctl_ev,
    mrc_ctl_ev_field, mrc_ctl_ev_fmt_field, mrc_ctl_ev_fmt_profile_attr, mrc_ctl_ev_op_entry,
    mrc_ctl_ev_profile_attr,
};
use super::bus::Census;
use super::calls::{attributes, call, change_profile, denies, managed, step};
use super::managed::Managed;
use super::state::{
    DeviceState, Entry, EvChange, EvProfile, Format, FormatChange, Mode, Profile, ProfileState, Replacement,
    Result, refuse, vendor_bytes,
};
use crate::mrc::abi::mrc_context;

/// The entries of an array that a program passes.
///
/// # Safety
/// So many entries at the address.
unsafe fn entries<'a, T>(at: *mut T, count: c_int) -> Result<&'a mut [T]> {
    match usize::try_from(count) {
        Ok(0) => Ok(&mut []),
        // SAFETY: as the caller promises.
        Ok(count) if !at.is_null() => Ok(unsafe { core::slice::from_raw_parts_mut(at, count) }),
        _ => refuse(libc::EINVAL, format!("there is no array of {count} entries")),
    }
}

/// Fills an array that a program passes, if it is long enough; sets the number of its entries, or of those that it needs.
///
/// # Safety
/// So many entries at the address.
unsafe fn fill<T: Copy>(at: *mut T, count: &mut c_int, found: &[T]) -> Result<()> {
    let room = core::mem::replace(count, found.len() as c_int);
    if usize::try_from(room).is_ok_and(|room| room < found.len()) {
        return refuse(libc::E2BIG, format!("the array has {room} entries, and {} are needed", found.len()));
    }
    // SAFETY: as the caller promises.
    let to = unsafe { entries(at, room) }?;
    to.iter_mut().zip(found).for_each(|(to, from)| *to = *from);
    Ok(())
}

/// # Safety
/// A context of this library, and attributes with an array of fields.
pub(crate) unsafe extern "C" fn mrc_ctl_modify_ev_fmt_profile(
    context: *mut mrc_context,
    id: u64,
    attr: *mut mrc_ctl_ev_fmt_profile_attr,
    mask: c_int,
) -> c_int {
    call("mrc_ctl_modify_ev_fmt_profile", || {
        // SAFETY: as the caller promises.
        let managed = unsafe { managed(context) }?;
        // SAFETY: as the caller promises.
        let attr = unsafe { attributes(attr, mask, fmt_mask::ALL) }?;
        let states = [attr.profile_state, attr.cur_profile_state];
        let mut change = FormatChange {
            step: step(mask, [fmt_mask::STATE, fmt_mask::CUR_STATE], states)?,
            mode: (mask & fmt_mask::MODE != 0).then_some(attr.ev_fmt_mode),
            widths: None,
            vendor: (mask & fmt_mask::VENDOR_CFG != 0).then(|| attr.vendor_cfg.to_vec()),
        };
        let queries = mask & fmt_mask::OP != 0 && attr.ev_fmt_op.op == fields_op::QUERY;
        if mask & fmt_mask::OP != 0 && !queries {
            if attr.ev_fmt_op.op != fields_op::MODIFY {
                return refuse(libc::EINVAL, format!("{} is no operation on fields", attr.ev_fmt_op.op));
            }
            // SAFETY: as the caller promises.
            let fields = unsafe { entries(attr.ev_fmt_op.fmt_fields, attr.ev_fmt_op.fmt_field_count) }?;
            change.widths = Some(fields.iter().map(|field| field.width).collect());
        }
        managed.change(|state| state.modify_format(id, change))?;
        let state = managed.read()?;
        match state.format(id) {
            // SAFETY: as the caller promises.
            Some(format) if queries => unsafe { fill_format(format, attr) },
            _ => Ok(()),
        }
    })
}

/// # Safety
/// Attributes with an array of fields.
unsafe fn fill_format(format: &Format, attr: &mut mrc_ctl_ev_fmt_profile_attr) -> Result<()> {
    let fields: Vec<_> = format.widths.iter().map(|width| mrc_ctl_ev_fmt_field { width: *width }).collect();
    let op = &mut attr.ev_fmt_op;
    // SAFETY: as the caller promises.
    unsafe { fill(op.fmt_fields, &mut op.fmt_field_count, &fields) }
}

/// # Safety
/// A context of this library, and attributes with an array of fields.
pub(crate) unsafe extern "C" fn mrc_ctl_query_ev_fmt_profile(
    context: *mut mrc_context,
    id: u64,
    attr: *mut mrc_ctl_ev_fmt_profile_attr,
    mask: c_int,
) -> c_int {
    call("mrc_ctl_query_ev_fmt_profile", || {
        // SAFETY: as the caller promises.
        let managed = unsafe { managed(context) }?;
        // SAFETY: as the caller promises.
        let attr = unsafe { attributes(attr, mask, fmt_mask::ALL) }?;
        let state = managed.read()?;
        let none = Format::default();
        let own = Format {
            state: ProfileState::Online,
            mode: fmt_mode::UDP,
            widths: vec![super::state::MAX_WIDTH as u8],
            ..Format::default()
        };
        let format = if id == 0 { &own } else { state.format(id).unwrap_or(&none) };
        if mask & (fmt_mask::STATE | fmt_mask::CUR_STATE) != 0 {
            (attr.profile_state, attr.cur_profile_state) = (format.state.value(), format.state.value());
        }
        if mask & fmt_mask::MODE != 0 {
            attr.ev_fmt_mode = format.mode;
        }
        if mask & fmt_mask::VENDOR_CFG != 0 {
            attr.vendor_cfg = vendor_bytes(&format.vendor);
        }
        if mask & fmt_mask::OP == 0 {
            return Ok(());
        }
        if attr.ev_fmt_op.op != fields_op::QUERY {
            return refuse(
                libc::EINVAL,
                "a query of a format has no other operation than to query its fields",
            );
        }
        // SAFETY: as the caller promises.
        unsafe { fill_format(format, attr) }
    })
}

/// An entropy value and its port, as numbers.
fn numbers(ev: &mrc_ctl_ev) -> Result<(u32, u8)> {
    ev.value().map_or_else(
        || refuse(libc::EINVAL, "an entropy value of more than 32 bits: UDP source ports have 16"),
        |value| Ok((value, ev.port)),
    )
}

/// What a call asks of a profile.
///
/// # Safety
/// Attributes with the arrays that the mask names.
unsafe fn change(attr: &mrc_ctl_ev_profile_attr, mask: c_int) -> Result<EvChange> {
    let has = |bit| mask & bit != 0;
    if has(ev_mask::EV_OP) && has(ev_mask::FIELDS_OP) {
        return refuse(libc::EINVAL, "operations on entropy values and on fields do not go together");
    }
    let states = [attr.profile_state, attr.cur_profile_state];
    let mut change = EvChange {
        step: step(mask, [ev_mask::STATE, ev_mask::CUR_STATE], states)?,
        mode: has(ev_mask::MODE).then(|| Mode::of(attr.ev_mode)).transpose()?,
        format: has(ev_mask::FMT_ID).then_some(attr.ev_fmt_profile_id),
        count: has(ev_mask::COUNT).then_some(attr.ev_count),
        min_active: has(ev_mask::MIN_ACTIVE).then_some(attr.ev_min_active),
        event_mask: has(ev_mask::EVENT_MASK).then_some(attr.ev_event_mask as u32),
        vendor: has(ev_mask::VENDOR_CFG).then(|| attr.vendor_cfg.to_vec()),
        ..EvChange::default()
    };
    if has(ev_mask::FIELDS_OP) {
        match attr.ev_fields_op.op {
            fields_op::MODIFY => {
                // SAFETY: as the caller promises.
                let fields = unsafe { entries(attr.ev_fields_op.fields, attr.ev_fields_op.field_count) }?;
                change.fields = Some(fields.iter().map(Into::into).collect());
            }
            fields_op::QUERY => {}
            op => return refuse(libc::EINVAL, format!("{op} is no operation on fields")),
        }
    }
    if has(ev_mask::EV_OP) {
        // SAFETY: as the caller promises.
        let entries = unsafe { entries(attr.ev_op.entries, attr.ev_op.entry_count) }?;
        match attr.ev_op.op {
            ev_op::REPLACE => {
                for entry in &*entries {
                    change.replace.push(Replacement {
                        old: numbers(&entry.ev)?,
                        new: numbers(&entry.ev_new)?,
                        denied: denies(entry.state)?,
                        all_copies: entry.flags & EV_OP_F_ALL_COPIES != 0,
                    });
                }
            }
            ev_op::MODIFY_STATE => {
                for entry in &*entries {
                    change.deny.push((numbers(&entry.ev)?, denies(entry.state)?));
                }
            }
            ev_op::QUERY_STATE | ev_op::QUERY_ARRAY => {}
            op => return refuse(libc::EINVAL, format!("{op} is no operation on entropy values")),
        }
    }
    Ok(change)
}

/// # Safety
/// A context of this library, and attributes with the arrays that the mask names.
pub(crate) unsafe extern "C" fn mrc_ctl_modify_ev_profile(
    context: *mut mrc_context,
    id: u64,
    attr: *mut mrc_ctl_ev_profile_attr,
    mask: c_int,
) -> c_int {
    call("mrc_ctl_modify_ev_profile", || {
        // SAFETY: as the caller promises.
        let managed = unsafe { managed(context) }?;
        // SAFETY: as the caller promises.
        let attr = unsafe { attributes(attr, mask, ev_mask::ALL) }?;
        // SAFETY: as the caller promises.
        let change = unsafe { change(attr, mask) }?;
        let ports = managed.ports();
        let act = |state: &mut DeviceState| state.modify_ev(id, &change, ports);
        change_profile(managed, Profile::Entropy(id), change.step, act)?;
        let state = managed.read()?;
        match state.ev(id) {
            // SAFETY: as the caller promises.
            Some(profile) => unsafe { query_op(managed, (id, profile), attr, mask) },
            None => Ok(()),
        }
    })
}

/// The state of each entropy value of a profile, as its queue pairs on this host have it.
fn states(managed: &Managed, id: u64, profile: &EvProfile) -> Result<Vec<u32>> {
    let census = if profile.state == ProfileState::Online {
        managed.census(Profile::Entropy(id))?
    } else {
        Census::default()
    };
    let bad: BTreeSet<_> = census.bad.into_iter().collect();
    let state = |entry: &Entry| {
        if entry.denied {
            ev_state::DENIED
        } else if bad.contains(&(entry.value, entry.port)) {
            ev_state::ASSUMED_BAD
        } else if census.silent > 0 {
            ev_state::UNKNOWN
        } else {
            ev_state::GOOD
        }
    };
    Ok(profile.entries().iter().map(state).collect())
}

/// Does the operations that query.
///
/// # Safety
/// Attributes with the arrays that the mask names.
unsafe fn query_op(
    managed: &Managed,
    (id, profile): (u64, &EvProfile),
    attr: &mut mrc_ctl_ev_profile_attr,
    mask: c_int,
) -> Result<()> {
    if mask & ev_mask::FIELDS_OP != 0 && attr.ev_fields_op.op == fields_op::QUERY {
        let fields: Vec<mrc_ctl_ev_field> = profile.fields.iter().map(Into::into).collect();
        let op = &mut attr.ev_fields_op;
        // SAFETY: as the caller promises.
        unsafe { fill(op.fields, &mut op.field_count, &fields) }?;
    }
    if mask & ev_mask::EV_OP == 0 {
        return Ok(());
    }
    let op = &mut attr.ev_op;
    if op.op == ev_op::QUERY_ARRAY {
        let all = profile.entries().iter().zip(states(managed, id, profile)?);
        let all = all.map(|(entry, state)| mrc_ctl_ev_op_entry {
            ev: mrc_ctl_ev::of(entry.value, entry.port),
            ev_new: mrc_ctl_ev::of(0, 0),
            state,
            flags: 0,
        });
        let all: Vec<_> = all.collect();
        // SAFETY: as the caller promises.
        unsafe { fill(op.entries, &mut op.entry_count, &all) }?;
    }
    if op.op == ev_op::QUERY_STATE {
        let states = states(managed, id, profile)?;
        // SAFETY: as the caller promises.
        for entry in unsafe { entries(op.entries, op.entry_count) }? {
            let (value, port) = numbers(&entry.ev)?;
            let mut known = profile.entries().iter().zip(&states);
            let found = known.find(|(known, _)| port != 0 && (known.value, known.port) == (value, port));
            let Some((_, state)) = found else {
                return refuse(libc::ENOENT, format!("there is no entropy value {value:#x} on port {port}"));
            };
            entry.state = *state;
        }
    }
    Ok(())
}

/// # Safety
/// A context of this library, and attributes with the arrays that the mask names.
pub(crate) unsafe extern "C" fn mrc_ctl_query_ev_profile(
    context: *mut mrc_context,
    id: u64,
    attr: *mut mrc_ctl_ev_profile_attr,
    mask: c_int,
) -> c_int {
    call("mrc_ctl_query_ev_profile", || {
        // SAFETY: as the caller promises.
        let managed = unsafe { managed(context) }?;
        // SAFETY: as the caller promises.
        let attr = unsafe { attributes(attr, mask, ev_mask::ALL) }?;
        let has = |bit| mask & bit != 0;
        if has(ev_mask::EV_OP) && has(ev_mask::FIELDS_OP) {
            return refuse(libc::EINVAL, "operations on entropy values and on fields do not go together");
        }
        let changes = (has(ev_mask::EV_OP)
            && ![ev_op::QUERY_STATE, ev_op::QUERY_ARRAY].contains(&attr.ev_op.op))
            || (has(ev_mask::FIELDS_OP) && attr.ev_fields_op.op != fields_op::QUERY);
        if changes {
            return refuse(libc::EINVAL, "a query has no operation that changes a profile");
        }
        let state = managed.read()?;
        let none = EvProfile::default();
        let own = EvProfile::of_device();
        let profile = if id == 0 { &own } else { state.ev(id).unwrap_or(&none) };
        if has(ev_mask::STATE) || has(ev_mask::CUR_STATE) {
            (attr.profile_state, attr.cur_profile_state) = (profile.state.value(), profile.state.value());
        }
        if has(ev_mask::MODE) {
            attr.ev_mode = profile.mode.map_or(0, Mode::value);
        }
        if has(ev_mask::FMT_ID) {
            attr.ev_fmt_profile_id = profile.format.unwrap_or(0);
        }
        if has(ev_mask::COUNT) {
            attr.ev_count = profile.entries().len() as u32;
        }
        if has(ev_mask::MIN_ACTIVE) {
            attr.ev_min_active = profile.min_active;
        }
        if has(ev_mask::EVENT_MASK) {
            attr.ev_event_mask = profile.event_mask as c_int;
        }
        if has(ev_mask::VENDOR_CFG) {
            attr.vendor_cfg = vendor_bytes(&profile.vendor);
        }
        // SAFETY: as the caller promises.
        unsafe { query_op(managed, (id, profile), attr, mask) }
    })
}
