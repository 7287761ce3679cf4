//! What `mrc_ctl.h` declares, in the layouts of C: see [`crate::abi`].

#![allow(non_camel_case_types, reason = "names of the C interface")]

use core::ffi::{c_char, c_int, c_void};

use crate::abi::ibv_gid;

use crate::mrc::abi::CURRENT_VERSION;

/// Bytes that a vendor defines.
pub(crate) const MAX_VENDOR_CFG_SIZE: usize = 128;
/// Bytes of an entropy value.
pub(crate) const EV_MAX_BYTES: usize = 32;

pub(crate) const PROTOCOL_VERSION_1: u32 = 1;

/// States of a profile.
pub(crate) mod profile_state {
    pub(crate) const INIT: u32 = 0;
    pub(crate) const OFFLINE: u32 = 1;
    pub(crate) const ONLINE: u32 = 2;
}

/// Optional features of a device.
#[allow(dead_code, reason = "some are not offered")]
pub(crate) mod opt_cap {
    pub(crate) const EV_PROFILE_MODIFY_ONLINE: u32 = 1;
    pub(crate) const CC_PROFILE_MODIFY_ONLINE: u32 = 1 << 1;
    pub(crate) const EV_EVENT: u32 = 1 << 2;
    pub(crate) const EV_EXPLICIT_RANGE: u32 = 1 << 3;
    pub(crate) const EV_EVENT_PRECISE_DROP_CNT: u32 = 1 << 4;
    pub(crate) const EP_OP_EV_PROBE: u32 = 1 << 5;
}

/// Which attributes of a port are meant.
pub(crate) mod port_mask {
    use core::ffi::c_int;

    pub(crate) const ADMIN_STATE: c_int = 1;
}

/// How entropy values are written in packets.
pub(crate) mod fmt_mode {
    pub(crate) const STEV: u32 = 1;
    pub(crate) const SRV6: u32 = 1 << 1;
    pub(crate) const UDP: u32 = 1 << 2;
}

/// Operations on the fields of a format, and of a profile of entropy values.
pub(crate) mod fields_op {
    pub(crate) const MODIFY: u32 = 0;
    pub(crate) const QUERY: u32 = 1;
}

/// Which attributes of a format are meant.
pub(crate) mod fmt_mask {
    use core::ffi::c_int;

    pub(crate) const STATE: c_int = 1;
    pub(crate) const CUR_STATE: c_int = 1 << 1;
    pub(crate) const MODE: c_int = 1 << 2;
    pub(crate) const OP: c_int = 1 << 3;
    pub(crate) const VENDOR_CFG: c_int = 1 << 31;
    pub(crate) const ALL: c_int = ((1 << 4) - 1) | VENDOR_CFG;
}

/// States of an entropy value.
pub(crate) mod ev_state {
    pub(crate) const GOOD: u32 = 1;
    pub(crate) const ASSUMED_BAD: u32 = 1 << 1;
    pub(crate) const DENIED: u32 = 1 << 2;
    pub(crate) const UNKNOWN: u32 = 1 << 31;
}

/// Where the entropy values of a profile come from.
pub(crate) mod ev_mode {
    pub(crate) const AUTO: u32 = 1;
    pub(crate) const EXPLICIT: u32 = 1 << 1;
    pub(crate) const GENERATED: u32 = 1 << 2;
}

/// Operations on entropy values.
pub(crate) mod ev_op {
    pub(crate) const REPLACE: u32 = 0;
    pub(crate) const MODIFY_STATE: u32 = 1;
    pub(crate) const QUERY_STATE: u32 = 2;
    pub(crate) const QUERY_ARRAY: u32 = 3;
}

/// An entropy value is replaced wherever it stands.
pub(crate) const EV_OP_F_ALL_COPIES: u32 = 1;

/// Which attributes of a profile of entropy values are meant.
pub(crate) mod ev_mask {
    use core::ffi::c_int;

    pub(crate) const STATE: c_int = 1;
    pub(crate) const CUR_STATE: c_int = 1 << 1;
    pub(crate) const MODE: c_int = 1 << 2;
    pub(crate) const FMT_ID: c_int = 1 << 3;
    pub(crate) const COUNT: c_int = 1 << 4;
    pub(crate) const MIN_ACTIVE: c_int = 1 << 5;
    pub(crate) const EVENT_MASK: c_int = 1 << 6;
    pub(crate) const EV_OP: c_int = 1 << 7;
    pub(crate) const FIELDS_OP: c_int = 1 << 8;
    pub(crate) const VENDOR_CFG: c_int = 1 << 31;
    pub(crate) const ALL: c_int = ((1 << 9) - 1) | VENDOR_CFG;
}

/// Which attributes of a profile of congestion control are meant.
pub(crate) mod cc_mask {
    use core::ffi::c_int;

    pub(crate) const STATE: c_int = 1;
    pub(crate) const CUR_STATE: c_int = 1 << 1;
    pub(crate) const ALGORITHM: c_int = 1 << 2;
    pub(crate) const CONFIG: c_int = 1 << 3;
    pub(crate) const VENDOR_CFG: c_int = 1 << 31;
    pub(crate) const ALL: c_int = ((1 << 4) - 1) | VENDOR_CFG;
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CcLimits {
    pub(crate) cc_max_profiles: u32,
    /// Names, and a null at the end. The program does not free them.
    pub(crate) algorithms: *const *const c_char,
}

#[repr(C)]
pub(crate) struct mrc_ctl_device_attr {
    pub(crate) mrc_ctl_protocol_version: u32,
    pub(crate) ev_max_fmt_profiles: u32,
    pub(crate) ev_max_profiles: u32,
    pub(crate) ev_max_count: u32,
    pub(crate) ev_free_count: u32,
    pub(crate) ev_max_count_profile: u32,
    pub(crate) ev_count_align: u32,
    pub(crate) ev_max_width: u32,
    pub(crate) ev_fmt_mode_mask: u32,
    pub(crate) ev_mode_mask: u32,
    pub(crate) ev_op_max_entries: u32,
    pub(crate) cc: CcLimits,
    /// Bit n is port n; the first port is 1.
    pub(crate) phy_port_mask: u32,
    pub(crate) opt_attr: u32,
}

#[repr(C)]
pub(crate) struct mrc_ctl_port_attr {
    /// 0: disabled, 1: enabled.
    pub(crate) port_admin_state: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct mrc_ctl_ev_fmt_field {
    /// Bits.
    pub(crate) width: u8,
}

#[repr(C)]
pub(crate) struct EvFmtOp {
    pub(crate) op: u32,
    pub(crate) fmt_fields: *mut mrc_ctl_ev_fmt_field,
    pub(crate) fmt_field_count: c_int,
}

#[repr(C)]
pub(crate) struct mrc_ctl_ev_fmt_profile_attr {
    pub(crate) profile_state: u32,
    pub(crate) cur_profile_state: u32,
    pub(crate) ev_fmt_mode: u32,
    pub(crate) ev_fmt_op: EvFmtOp,
    pub(crate) vendor_cfg: [u8; MAX_VENDOR_CFG_SIZE],
}

/// An entropy value and its port, from 1; all zero where there is none yet.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct mrc_ctl_ev {
    pub(crate) val: [u8; EV_MAX_BYTES],
    pub(crate) port: u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct mrc_ctl_ev_field {
    pub(crate) width: u32,
    pub(crate) init_val: u32,
    pub(crate) min_val: u32,
    pub(crate) max_val: u32,
    pub(crate) mask: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct mrc_ctl_ev_op_entry {
    pub(crate) ev: mrc_ctl_ev,
    pub(crate) ev_new: mrc_ctl_ev,
    pub(crate) state: u32,
    pub(crate) flags: u32,
}

#[repr(C)]
pub(crate) struct EvOp {
    pub(crate) op: u32,
    pub(crate) entries: *mut mrc_ctl_ev_op_entry,
    pub(crate) entry_count: c_int,
}

#[repr(C)]
pub(crate) struct EvFieldsOp {
    pub(crate) op: u32,
    pub(crate) fields: *mut mrc_ctl_ev_field,
    pub(crate) field_count: c_int,
}

#[repr(C)]
pub(crate) struct mrc_ctl_ev_profile_attr {
    pub(crate) profile_state: u32,
    pub(crate) cur_profile_state: u32,
    pub(crate) ev_mode: u32,
    pub(crate) ev_fmt_profile_id: u64,
    pub(crate) ev_count: u32,
    pub(crate) ev_min_active: u32,
    pub(crate) ev_event_mask: c_int,
    pub(crate) ev_op: EvOp,
    pub(crate) ev_fields_op: EvFieldsOp,
    pub(crate) vendor_cfg: [u8; MAX_VENDOR_CFG_SIZE],
}

#[repr(C)]
pub(crate) struct mrc_ctl_cc_profile_attr {
    pub(crate) profile_state: u32,
    pub(crate) cur_profile_state: u32,
    pub(crate) algorithm: *const c_char,
    pub(crate) cc_config: *const c_void,
    pub(crate) vendor_cfg: [u8; MAX_VENDOR_CFG_SIZE],
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct mrc_ctl_cc_nscc_cfg {
    pub(crate) disable_qa: u8,
    /// Bytes.
    pub(crate) adjust_bytes_threshold: u32,
    /// Nanoseconds.
    pub(crate) adjust_period_threshold: u32,
    /// Nanoseconds.
    pub(crate) base_rtt: u32,
    pub(crate) eta: f32,
    pub(crate) fi: f32,
    pub(crate) fi_scale: f32,
    pub(crate) gamma: f32,
    pub(crate) max_md_jump: f32,
    /// Bytes.
    pub(crate) max_cwnd: u32,
    pub(crate) qa_gate: u8,
    /// Nanoseconds.
    pub(crate) qa_threshold: u32,
    /// Nanoseconds.
    pub(crate) target_delay: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct mrc_ctl_ev_event {
    pub(crate) profile_id: u64,
    pub(crate) ev: mrc_ctl_ev,
    pub(crate) drop_count: u32,
    /// From version 1.0.1 on.
    pub(crate) state: u32,
}

/// The version from which on an event has its state, and its size before.
pub(crate) const EVENT_STATE_VERSION: u32 = CURRENT_VERSION;
pub(crate) const EVENT_SIZE_BEFORE: usize = 48;

#[repr(C)]
pub(crate) struct mrc_ctl_ep_req {
    pub(crate) req_id: u16,
    pub(crate) sgid: ibv_gid,
    pub(crate) dgid: ibv_gid,
    pub(crate) ev_fmt_mode: u32,
    pub(crate) req_ev: mrc_ctl_ev,
    /// Of a port status update: bit n is port n, from 1.
    pub(crate) port_status: u32,
}

#[repr(C)]
pub(crate) struct mrc_ctl_ep_rsp {
    pub(crate) req_id: u16,
    /// The port that it came by, from 1.
    pub(crate) port: u8,
    /// Nanoseconds.
    pub(crate) rtt: u32,
    pub(crate) adj_svc_time: u8,
}

/// Operations of endpoints.
pub(crate) mod ep_op {
    pub(crate) const EV_PROBE: u32 = 0;
    pub(crate) const PORT_STATUS_UPDATE: u32 = 1;
}

impl mrc_ctl_ev {
    /// The value of at most 32 bits that programs write as a number in the first four bytes. `None`: it has more.
    pub(crate) fn value(&self) -> Option<u32> {
        let (first, rest) = self.val.split_first_chunk()?;
        rest.iter().all(|byte| *byte == 0).then(|| u32::from_ne_bytes(*first))
    }

    pub(crate) fn of(value: u32, port: u8) -> Self {
        let mut val = [0; EV_MAX_BYTES];
        if let Some(first) = val.first_chunk_mut() {
            *first = value.to_ne_bytes();
        }
        Self { val, port }
    }
}
