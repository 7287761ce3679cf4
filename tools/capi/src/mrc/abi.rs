//! What `mrc.h` declares, in the layouts of C: see [`crate::abi`].

#![allow(non_camel_case_types, reason = "names of the C interface")]

use core::ffi::{c_int, c_void};

use crate::abi::{ibv_async_event, ibv_pd, ibv_qp_cap};

/// A version of the interface: 8, 8 and 16 bits.
const fn version(major: u32, minor: u32, sub_minor: u32) -> u32 {
    major << 24 | minor << 16 | sub_minor
}

/// The version that this library has, and the oldest one that it still takes.
pub(crate) const CURRENT_VERSION: u32 = version(1, 0, 1);
pub(crate) const OLDEST_VERSION: u32 = version(0, 0, 0);
/// The version of what a vendor adds: nothing here.
pub(crate) const VENDOR_VERSION: u32 = version(1, 0, 0);

/// Version 1 of MRC on the wire, in a bitmap; 0 leaves the choice to the library.
pub(crate) const MRC_PROTOCOL_VERSION_1: u32 = 1;

/// Bytes that a vendor defines.
pub(crate) const MRC_MAX_VENDOR_CFG_SIZE: usize = 128;

/// Capabilities of a device.
pub(crate) mod device_cap {
    pub(crate) const TRIM_NACK: u32 = 1;
    pub(crate) const DYNAMIC_MPR: u32 = 1 << 1;
}

/// Which attributes of a queue pair are meant.
pub(crate) mod attr_mask {
    use core::ffi::c_int;

    pub(crate) const MAX_WIMM: c_int = 1;
    pub(crate) const MAX_WIMM_DEST: c_int = 1 << 1;
    pub(crate) const MPR: c_int = 1 << 2;
    pub(crate) const MPR_DEST: c_int = 1 << 3;
    pub(crate) const TIMEOUT: c_int = 1 << 4;
    pub(crate) const EV_PROFILE_ID: c_int = 1 << 5;
    pub(crate) const CC_PROFILE_ID: c_int = 1 << 6;
    pub(crate) const HINT: c_int = 1 << 7;
    pub(crate) const RETRY_CNT: c_int = 1 << 8;
    pub(crate) const CAP: c_int = 1 << 9;
    pub(crate) const VENDOR_CFG: c_int = 1 << 31;
    pub(crate) const ALL: c_int = ((1 << 10) - 1) | VENDOR_CFG;
}

/// Capabilities of a queue pair.
pub(crate) mod qp_cap {
    /// The peer sends no NACKs for trimmed packets.
    pub(crate) const TRIM_NACK_DEST_UNSUPPORTED: u32 = 1;
    /// The PSN range may change while connected.
    pub(crate) const DYNAMIC_MPR: u32 = 1 << 1;
    /// The peer does not report how long it took to respond.
    pub(crate) const SVC_TIME_DEST_UNSUPPORTED: u32 = 1 << 2;
    pub(crate) const ALL: u32 = TRIM_NACK_DEST_UNSUPPORTED | DYNAMIC_MPR | SVC_TIME_DEST_UNSUPPORTED;
}

/// Which attributes of a hint are meant.
pub(crate) mod hint_mask {
    use core::ffi::c_int;

    pub(crate) const NUM_QPS_PER_PEER: c_int = 1;
    pub(crate) const NUM_SEND_PEERS: c_int = 1 << 1;
    pub(crate) const NUM_REMOTE_RECV_PEERS: c_int = 1 << 2;
    pub(crate) const VENDOR_CFG: c_int = 1 << 31;
    pub(crate) const ALL: c_int = ((1 << 3) - 1) | VENDOR_CFG;
}

#[repr(C)]
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct mrc_device_attr {
    pub(crate) mrc_protocol_version: u32,
    pub(crate) max_wimm: u16,
    pub(crate) max_wimm_dest: u16,
    pub(crate) max_mpr: u8,
    pub(crate) mpr_resolution: u8,
    pub(crate) max_qp_hint: u32,
    pub(crate) cap: u32,
}

#[repr(C)]
pub(crate) struct mrc_context_attr {
    pub(crate) mrc_api_version_used: u32,
    pub(crate) mrc_vendor_api_version_used: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct mrc_qp_hint_attr {
    pub(crate) num_qps_per_peer: c_int,
    pub(crate) num_send_peers: c_int,
    pub(crate) num_remote_recv_peers: c_int,
    pub(crate) vendor_cfg: [u8; MRC_MAX_VENDOR_CFG_SIZE],
}

/// What a hint is made from.
#[repr(C)]
pub(crate) struct mrc_qp_hint_init_attr {
    pub(crate) attr: mrc_qp_hint_attr,
}

#[repr(C)]
pub(crate) struct mrc_qp_init_attr {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut mrc_cq,
    pub(crate) recv_cq: *mut mrc_cq,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) sq_sig_all: c_int,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) send_ops_flags: u64,
    pub(crate) protocol_version: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct mrc_qp_attr {
    /// PSN ranges, in units of 128 PSNs.
    pub(crate) mpr: u8,
    pub(crate) mpr_dest: u8,
    pub(crate) max_wimm: u16,
    pub(crate) max_wimm_dest: u16,
    pub(crate) timeout: u8,
    pub(crate) ev_profile_id: u64,
    pub(crate) cc_profile_id: u64,
    pub(crate) linear_cnt: u8,
    pub(crate) exp_cnt: u8,
    pub(crate) qp_hint: *mut mrc_qp_hint,
    pub(crate) cap: u32,
    pub(crate) vendor_cfg: [u8; MRC_MAX_VENDOR_CFG_SIZE],
}

/// An event has the layout of one of verbs.
pub(crate) type mrc_async_event = ibv_async_event;

/// Objects whose fields are not part of the interface.
macro_rules! opaque {
    ($($name:ident)+) => {
        $(
            #[repr(C)]
            pub(crate) struct $name {
                _private: [u8; 0],
            }
        )+
    };
}

opaque! { mrc_context mrc_qp_hint mrc_qp mrc_cq mrc_comp_channel }
