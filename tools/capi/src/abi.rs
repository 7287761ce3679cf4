//! What `infiniband/verbs.h` declares, as far as programs and this crate exchange it: the layouts of C. Names, order and sizes are those
//! of the header, so that both can be read side by side; `layout.rs` compares them with the header of the machine.
//!
//! Fields of `enum` type are integers here: a program may pass any value.

#![allow(non_camel_case_types, reason = "names of the C interface")]

use core::ffi::{c_char, c_int, c_uint, c_void};

/// A function that is not there: programs take a null pointer for "not supported".
pub(crate) type Absent = Option<unsafe extern "C" fn()>;

pub(crate) const IBV_SYSFS_NAME_MAX: usize = 64;
pub(crate) const IBV_SYSFS_PATH_MAX: usize = 256;

pub(crate) const IBV_NODE_CA: c_int = 1;
pub(crate) const IBV_TRANSPORT_IB: c_int = 0;

#[repr(C)]
pub(crate) struct ibv_device {
    pub(crate) ops: [Absent; 2],
    pub(crate) node_type: c_int,
    pub(crate) transport_type: c_int,
    pub(crate) name: [c_char; IBV_SYSFS_NAME_MAX],
    pub(crate) dev_name: [c_char; IBV_SYSFS_NAME_MAX],
    pub(crate) dev_path: [c_char; IBV_SYSFS_PATH_MAX],
    pub(crate) ibdev_path: [c_char; IBV_SYSFS_PATH_MAX],
}

type QueryPort = unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> c_int;
type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;
type PostSend = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;
type PostRecv = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;
type PostSrqRecv = unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;

#[repr(C)]
pub(crate) struct ibv_context_ops {
    pub(crate) compat_before_mw: [Absent; 7],
    pub(crate) alloc_mw: Absent,
    pub(crate) bind_mw: Absent,
    pub(crate) dealloc_mw: Absent,
    pub(crate) compat_create_cq: Absent,
    pub(crate) poll_cq: Option<PollCq>,
    pub(crate) req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
    pub(crate) compat_before_srq_recv: [Absent; 7],
    pub(crate) post_srq_recv: Option<PostSrqRecv>,
    pub(crate) compat_before_send: [Absent; 4],
    pub(crate) post_send: Option<PostSend>,
    pub(crate) post_recv: Option<PostRecv>,
    pub(crate) compat_after_recv: [Absent; 5],
}

#[repr(C)]
pub(crate) struct ibv_context {
    pub(crate) device: *mut ibv_device,
    pub(crate) ops: ibv_context_ops,
    pub(crate) cmd_fd: c_int,
    pub(crate) async_fd: c_int,
    pub(crate) num_comp_vectors: c_int,
    pub(crate) mutex: libc::pthread_mutex_t,
    pub(crate) abi_compat: *mut c_void,
}

/// The functions that were added later. It grows at its front; `sz` tells a program how much there is.
#[repr(C)]
pub(crate) struct verbs_context {
    pub(crate) query_port: Option<QueryPort>,
    pub(crate) before_modify_cq: [Absent; 16],
    pub(crate) modify_cq: Absent,
    pub(crate) before_query_rt_values: [Absent; 6],
    pub(crate) query_rt_values: Absent,
    pub(crate) create_cq_ex:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex>,
    pub(crate) private: *mut c_void,
    pub(crate) query_device_ex: Option<
        unsafe extern "C" fn(
            *mut ibv_context,
            *const ibv_query_device_ex_input,
            *mut ibv_device_attr_ex,
            usize,
        ) -> c_int,
    >,
    pub(crate) flow: [Absent; 4],
    pub(crate) open_qp: Absent,
    pub(crate) create_qp_ex:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp>,
    pub(crate) get_srq_num: Option<unsafe extern "C" fn(*mut ibv_srq, *mut u32) -> c_int>,
    pub(crate) create_srq_ex:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq>,
    pub(crate) open_xrcd: Absent,
    pub(crate) close_xrcd: Absent,
    pub(crate) placeholder: u64,
    pub(crate) sz: usize,
    pub(crate) context: ibv_context,
}

/// The value of `ibv_context::abi_compat` that says that a [`verbs_context`] is around it.
pub(crate) const VERBS_ABI_IS_EXTENDED: usize = usize::MAX;

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_device_attr {
    pub(crate) fw_ver: [c_char; 64],
    pub(crate) node_guid: u64,
    pub(crate) sys_image_guid: u64,
    pub(crate) max_mr_size: u64,
    pub(crate) page_size_cap: u64,
    pub(crate) vendor_id: u32,
    pub(crate) vendor_part_id: u32,
    pub(crate) hw_ver: u32,
    pub(crate) max_qp: c_int,
    pub(crate) max_qp_wr: c_int,
    pub(crate) device_cap_flags: c_uint,
    pub(crate) max_sge: c_int,
    pub(crate) max_sge_rd: c_int,
    pub(crate) max_cq: c_int,
    pub(crate) max_cqe: c_int,
    pub(crate) max_mr: c_int,
    pub(crate) max_pd: c_int,
    pub(crate) max_qp_rd_atom: c_int,
    pub(crate) max_ee_rd_atom: c_int,
    pub(crate) max_res_rd_atom: c_int,
    pub(crate) max_qp_init_rd_atom: c_int,
    pub(crate) max_ee_init_rd_atom: c_int,
    pub(crate) atomic_cap: c_int,
    pub(crate) max_ee: c_int,
    pub(crate) max_rdd: c_int,
    pub(crate) max_mw: c_int,
    pub(crate) max_raw_ipv6_qp: c_int,
    pub(crate) max_raw_ethy_qp: c_int,
    pub(crate) max_mcast_grp: c_int,
    pub(crate) max_mcast_qp_attach: c_int,
    pub(crate) max_total_mcast_qp_attach: c_int,
    pub(crate) max_ah: c_int,
    pub(crate) max_fmr: c_int,
    pub(crate) max_map_per_fmr: c_int,
    pub(crate) max_srq: c_int,
    pub(crate) max_srq_wr: c_int,
    pub(crate) max_srq_sge: c_int,
    pub(crate) max_pkeys: u16,
    pub(crate) local_ca_ack_delay: u8,
    pub(crate) phys_port_cnt: u8,
}

pub(crate) const IBV_DEVICE_RC_RNR_NAK_GEN: c_uint = 1 << 12;
pub(crate) const IBV_ATOMIC_HCA: c_int = 1;

#[repr(C)]
pub(crate) struct ibv_query_device_ex_input {
    pub(crate) comp_mask: u32,
}

/// The caps at its end are all 0 here.
#[repr(C)]
pub(crate) struct ibv_device_attr_ex {
    pub(crate) orig_attr: ibv_device_attr,
    pub(crate) comp_mask: u32,
    pub(crate) odp_caps: [u64; 3],
    pub(crate) completion_timestamp_mask: u64,
    pub(crate) hca_core_clock: u64,
    pub(crate) device_cap_flags_ex: u64,
    pub(crate) tso_caps: [u32; 2],
    pub(crate) rss_caps: [u64; 4],
    pub(crate) max_wq_type_rq: u32,
    pub(crate) packet_pacing_caps: [u32; 3],
    pub(crate) raw_packet_caps: u32,
    pub(crate) tm_caps: [u32; 5],
    pub(crate) cq_mod_caps: [u16; 2],
    pub(crate) max_dm_size: u64,
    pub(crate) pci_atomic_caps: [u16; 3],
    pub(crate) xrc_odp_caps: u32,
    pub(crate) phys_port_cnt_ex: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ibv_port_attr {
    pub(crate) state: c_int,
    pub(crate) max_mtu: c_int,
    pub(crate) active_mtu: c_int,
    pub(crate) gid_tbl_len: c_int,
    pub(crate) port_cap_flags: u32,
    pub(crate) max_msg_sz: u32,
    pub(crate) bad_pkey_cntr: u32,
    pub(crate) qkey_viol_cntr: u32,
    pub(crate) pkey_tbl_len: u16,
    pub(crate) lid: u16,
    pub(crate) sm_lid: u16,
    pub(crate) lmc: u8,
    pub(crate) max_vl_num: u8,
    pub(crate) sm_sl: u8,
    pub(crate) subnet_timeout: u8,
    pub(crate) init_type_reply: u8,
    pub(crate) active_width: u8,
    pub(crate) active_speed: u8,
    pub(crate) phys_state: u8,
    pub(crate) link_layer: u8,
    pub(crate) flags: u8,
    pub(crate) port_cap_flags2: u16,
}

pub(crate) const IBV_PORT_DOWN: c_int = 1;
pub(crate) const IBV_PORT_ACTIVE: c_int = 4;
pub(crate) const IBV_LINK_LAYER_ETHERNET: u8 = 2;
pub(crate) const IBV_PORT_IP_BASED_GIDS: u32 = 1 << 26;

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union ibv_gid {
    pub(crate) raw: [u8; 16],
    pub(crate) halves: [u64; 2],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_gid_entry {
    pub(crate) gid: ibv_gid,
    pub(crate) gid_index: u32,
    pub(crate) port_num: u32,
    pub(crate) gid_type: u32,
    pub(crate) ndev_ifindex: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_global_route {
    pub(crate) dgid: ibv_gid,
    pub(crate) flow_label: u32,
    pub(crate) sgid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_ah_attr {
    pub(crate) grh: ibv_global_route,
    pub(crate) dlid: u16,
    pub(crate) sl: u8,
    pub(crate) src_path_bits: u8,
    pub(crate) static_rate: u8,
    pub(crate) is_global: u8,
    pub(crate) port_num: u8,
}

/// What a program finds before the payload of a datagram; this library has it as bytes.
#[repr(C)]
pub(crate) struct ibv_grh {
    pub(crate) version_tclass_flow: u32,
    pub(crate) paylen: u16,
    pub(crate) next_hdr: u8,
    pub(crate) hop_limit: u8,
    pub(crate) sgid: ibv_gid,
    pub(crate) dgid: ibv_gid,
}

#[repr(C)]
pub(crate) struct ibv_pd {
    pub(crate) context: *mut ibv_context,
    pub(crate) handle: u32,
}

#[repr(C)]
pub(crate) struct ibv_mr {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) addr: *mut c_void,
    pub(crate) length: usize,
    pub(crate) handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

pub(crate) const IBV_ACCESS_LOCAL_WRITE: c_uint = 1;
pub(crate) const IBV_ACCESS_REMOTE_WRITE: c_uint = 1 << 1;
pub(crate) const IBV_ACCESS_REMOTE_READ: c_uint = 1 << 2;
pub(crate) const IBV_ACCESS_REMOTE_ATOMIC: c_uint = 1 << 3;
pub(crate) const IBV_ACCESS_MW_BIND: c_uint = 1 << 4;
pub(crate) const IBV_ACCESS_ZERO_BASED: c_uint = 1 << 5;
pub(crate) const IBV_ACCESS_ON_DEMAND: c_uint = 1 << 6;
pub(crate) const IBV_ACCESS_HUGETLB: c_uint = 1 << 7;
/// Flags from here on may be ignored.
pub(crate) const IBV_ACCESS_OPTIONAL_FIRST: c_uint = 1 << 20;

#[repr(C)]
pub(crate) struct ibv_comp_channel {
    pub(crate) context: *mut ibv_context,
    pub(crate) fd: c_int,
    pub(crate) refcnt: c_int,
}

#[repr(C)]
pub(crate) struct ibv_cq {
    pub(crate) context: *mut ibv_context,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) cq_context: *mut c_void,
    pub(crate) handle: u32,
    pub(crate) cqe: c_int,
    pub(crate) mutex: libc::pthread_mutex_t,
    pub(crate) cond: libc::pthread_cond_t,
    pub(crate) comp_events_completed: u32,
    pub(crate) async_events_completed: u32,
}

#[repr(C)]
pub(crate) struct ibv_poll_cq_attr {
    pub(crate) comp_mask: u32,
}

type ReadU32 = unsafe extern "C" fn(*mut ibv_cq_ex) -> u32;

#[repr(C)]
pub(crate) struct ibv_cq_ex {
    pub(crate) base: ibv_cq,
    pub(crate) comp_mask: u32,
    pub(crate) status: c_int,
    pub(crate) wr_id: u64,
    pub(crate) start_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_poll_cq_attr) -> c_int>,
    pub(crate) next_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> c_int>,
    pub(crate) end_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex)>,
    pub(crate) read_opcode: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> c_int>,
    pub(crate) read_vendor_err: Option<ReadU32>,
    pub(crate) read_byte_len: Option<ReadU32>,
    pub(crate) read_imm_data: Option<ReadU32>,
    pub(crate) read_qp_num: Option<ReadU32>,
    pub(crate) read_src_qp: Option<ReadU32>,
    pub(crate) read_wc_flags: Option<ReadU32>,
    pub(crate) read_slid: Option<ReadU32>,
    pub(crate) read_sl: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u8>,
    pub(crate) read_dlid_path_bits: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u8>,
    pub(crate) read_completion_ts: Absent,
    pub(crate) read_cvlan: Absent,
    pub(crate) read_flow_tag: Absent,
    pub(crate) read_tm_info: Absent,
    pub(crate) read_completion_wallclock_ns: Absent,
}

#[repr(C)]
pub(crate) struct ibv_cq_init_attr_ex {
    pub(crate) cqe: u32,
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) comp_vector: u32,
    pub(crate) wc_flags: u64,
    pub(crate) comp_mask: u32,
    pub(crate) flags: u32,
    pub(crate) parent_domain: *mut ibv_pd,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_wc {
    pub(crate) wr_id: u64,
    pub(crate) status: c_int,
    pub(crate) opcode: c_int,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    /// In network byte order, or the remote key that was invalidated.
    pub(crate) imm_data: u32,
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    pub(crate) wc_flags: c_uint,
    pub(crate) pkey_index: u16,
    pub(crate) slid: u16,
    pub(crate) sl: u8,
    pub(crate) dlid_path_bits: u8,
}

pub(crate) mod wc_status {
    use core::ffi::c_int;

    pub(crate) const SUCCESS: c_int = 0;
    pub(crate) const LOC_LEN_ERR: c_int = 1;
    pub(crate) const LOC_QP_OP_ERR: c_int = 2;
    pub(crate) const LOC_PROT_ERR: c_int = 4;
    pub(crate) const WR_FLUSH_ERR: c_int = 5;
    pub(crate) const REM_INV_REQ_ERR: c_int = 9;
    pub(crate) const REM_ACCESS_ERR: c_int = 10;
    pub(crate) const REM_OP_ERR: c_int = 11;
    pub(crate) const RETRY_EXC_ERR: c_int = 12;
    pub(crate) const RNR_RETRY_EXC_ERR: c_int = 13;
    pub(crate) const FATAL_ERR: c_int = 19;
    pub(crate) const GENERAL_ERR: c_int = 21;
}

pub(crate) mod wc_opcode {
    use core::ffi::c_int;

    pub(crate) const SEND: c_int = 0;
    pub(crate) const RDMA_WRITE: c_int = 1;
    pub(crate) const RDMA_READ: c_int = 2;
    pub(crate) const COMP_SWAP: c_int = 3;
    pub(crate) const FETCH_ADD: c_int = 4;
    pub(crate) const RECV: c_int = 1 << 7;
    pub(crate) const RECV_RDMA_WITH_IMM: c_int = RECV + 1;
}

pub(crate) const IBV_WC_GRH: c_uint = 1;
pub(crate) const IBV_WC_WITH_IMM: c_uint = 1 << 1;
pub(crate) const IBV_WC_WITH_INV: c_uint = 1 << 3;

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_srq_attr {
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) srq_limit: u32,
}

#[repr(C)]
pub(crate) struct ibv_srq_init_attr {
    pub(crate) srq_context: *mut c_void,
    pub(crate) attr: ibv_srq_attr,
}

#[repr(C)]
pub(crate) struct ibv_srq_init_attr_ex {
    pub(crate) srq_context: *mut c_void,
    pub(crate) attr: ibv_srq_attr,
    pub(crate) comp_mask: u32,
    pub(crate) srq_type: c_int,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) xrcd: *mut c_void,
    pub(crate) cq: *mut ibv_cq,
    pub(crate) tm_cap: [u32; 2],
}

#[repr(C)]
pub(crate) struct ibv_srq {
    pub(crate) context: *mut ibv_context,
    pub(crate) srq_context: *mut c_void,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) handle: u32,
    pub(crate) mutex: libc::pthread_mutex_t,
    pub(crate) cond: libc::pthread_cond_t,
    pub(crate) events_completed: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
#[allow(clippy::struct_field_names, reason = "names of the C interface")]
pub(crate) struct ibv_qp_cap {
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_qp_init_attr {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut ibv_cq,
    pub(crate) recv_cq: *mut ibv_cq,
    pub(crate) srq: *mut ibv_srq,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) qp_type: c_int,
    pub(crate) sq_sig_all: c_int,
}

#[repr(C)]
pub(crate) struct ibv_qp_init_attr_ex {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut ibv_cq,
    pub(crate) recv_cq: *mut ibv_cq,
    pub(crate) srq: *mut ibv_srq,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) qp_type: c_int,
    pub(crate) sq_sig_all: c_int,
    pub(crate) comp_mask: u32,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) xrcd: *mut c_void,
    pub(crate) create_flags: u32,
    pub(crate) max_tso_header: u16,
    pub(crate) rwq_ind_tbl: *mut c_void,
    pub(crate) rx_hash_conf: [u64; 3],
    pub(crate) source_qpn: u32,
    pub(crate) send_ops_flags: u64,
}

pub(crate) const IBV_QPT_RC: c_int = 2;
pub(crate) const IBV_QPT_UC: c_int = 3;
pub(crate) const IBV_QPT_UD: c_int = 4;

pub(crate) mod qp_init_attr_mask {
    pub(crate) const PD: u32 = 1;
    pub(crate) const CREATE_FLAGS: u32 = 1 << 2;
    pub(crate) const SEND_OPS_FLAGS: u32 = 1 << 6;
}

/// Bits of `send_ops_flags`.
pub(crate) mod send_ops {
    pub(crate) const RDMA_WRITE: u64 = 1;
    pub(crate) const RDMA_WRITE_WITH_IMM: u64 = 1 << 1;
    pub(crate) const SEND: u64 = 1 << 2;
    pub(crate) const SEND_WITH_IMM: u64 = 1 << 3;
    pub(crate) const RDMA_READ: u64 = 1 << 4;
    pub(crate) const ATOMIC_CMP_AND_SWP: u64 = 1 << 5;
    pub(crate) const ATOMIC_FETCH_AND_ADD: u64 = 1 << 6;
    pub(crate) const SEND_WITH_INV: u64 = 1 << 9;
    pub(crate) const ALL: u64 = RDMA_WRITE
        | RDMA_WRITE_WITH_IMM
        | SEND
        | SEND_WITH_IMM
        | RDMA_READ
        | ATOMIC_CMP_AND_SWP
        | ATOMIC_FETCH_AND_ADD
        | SEND_WITH_INV;
    /// Those of a queue pair of datagrams.
    pub(crate) const DATAGRAM: u64 = SEND | SEND_WITH_IMM;
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_qp_attr {
    pub(crate) qp_state: c_int,
    pub(crate) cur_qp_state: c_int,
    pub(crate) path_mtu: c_int,
    pub(crate) path_mig_state: c_int,
    pub(crate) qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qp_num: u32,
    pub(crate) qp_access_flags: c_uint,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) ah_attr: ibv_ah_attr,
    pub(crate) alt_ah_attr: ibv_ah_attr,
    pub(crate) pkey_index: u16,
    pub(crate) alt_pkey_index: u16,
    pub(crate) en_sqd_async_notify: u8,
    pub(crate) sq_draining: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port_num: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) alt_port_num: u8,
    pub(crate) alt_timeout: u8,
    pub(crate) rate_limit: u32,
}

pub(crate) mod qp_state {
    use core::ffi::c_int;

    pub(crate) const RESET: c_int = 0;
    pub(crate) const INIT: c_int = 1;
    pub(crate) const RTR: c_int = 2;
    pub(crate) const RTS: c_int = 3;
    /// The send queue is in error.
    pub(crate) const SQE: c_int = 5;
    pub(crate) const ERR: c_int = 6;
}

pub(crate) mod qp_attr_mask {
    use core::ffi::c_int;

    pub(crate) const STATE: c_int = 1;
    pub(crate) const CUR_STATE: c_int = 1 << 1;
    pub(crate) const ACCESS_FLAGS: c_int = 1 << 3;
    pub(crate) const PKEY_INDEX: c_int = 1 << 4;
    pub(crate) const PORT: c_int = 1 << 5;
    pub(crate) const QKEY: c_int = 1 << 6;
    pub(crate) const AV: c_int = 1 << 7;
    pub(crate) const PATH_MTU: c_int = 1 << 8;
    pub(crate) const TIMEOUT: c_int = 1 << 9;
    pub(crate) const RETRY_CNT: c_int = 1 << 10;
    pub(crate) const RNR_RETRY: c_int = 1 << 11;
    pub(crate) const RQ_PSN: c_int = 1 << 12;
    pub(crate) const MAX_QP_RD_ATOMIC: c_int = 1 << 13;
    pub(crate) const MIN_RNR_TIMER: c_int = 1 << 15;
    pub(crate) const SQ_PSN: c_int = 1 << 16;
    pub(crate) const MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
    pub(crate) const DEST_QPN: c_int = 1 << 20;
}

#[repr(C)]
pub(crate) struct ibv_qp {
    pub(crate) context: *mut ibv_context,
    pub(crate) qp_context: *mut c_void,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) send_cq: *mut ibv_cq,
    pub(crate) recv_cq: *mut ibv_cq,
    pub(crate) srq: *mut ibv_srq,
    pub(crate) handle: u32,
    pub(crate) qp_num: u32,
    pub(crate) state: c_int,
    pub(crate) qp_type: c_int,
    pub(crate) mutex: libc::pthread_mutex_t,
    pub(crate) cond: libc::pthread_cond_t,
    pub(crate) events_completed: u32,
}

#[repr(C)]
pub(crate) struct ibv_data_buf {
    pub(crate) addr: *mut c_void,
    pub(crate) length: usize,
}

type WrPlain = unsafe extern "C" fn(*mut ibv_qp_ex);
type WrRemote = unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64);

#[repr(C)]
pub(crate) struct ibv_qp_ex {
    pub(crate) base: ibv_qp,
    pub(crate) comp_mask: u64,
    pub(crate) wr_id: u64,
    pub(crate) wr_flags: c_uint,
    pub(crate) wr_atomic_cmp_swp: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64, u64)>,
    pub(crate) wr_atomic_fetch_add: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64)>,
    pub(crate) wr_bind_mw: Absent,
    pub(crate) wr_local_inv: Absent,
    pub(crate) wr_rdma_read: Option<WrRemote>,
    pub(crate) wr_rdma_write: Option<WrRemote>,
    pub(crate) wr_rdma_write_imm: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32)>,
    pub(crate) wr_send: Option<WrPlain>,
    pub(crate) wr_send_imm: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>,
    pub(crate) wr_send_inv: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>,
    pub(crate) wr_send_tso: Absent,
    pub(crate) wr_set_ud_addr: Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut ibv_ah, u32, u32)>,
    pub(crate) wr_set_xrc_srqn: Absent,
    pub(crate) wr_set_inline_data: Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut c_void, usize)>,
    pub(crate) wr_set_inline_data_list:
        Option<unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_data_buf)>,
    pub(crate) wr_set_sge: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32)>,
    pub(crate) wr_set_sge_list: Option<unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_sge)>,
    pub(crate) wr_start: Option<WrPlain>,
    pub(crate) wr_complete: Option<unsafe extern "C" fn(*mut ibv_qp_ex) -> c_int>,
    pub(crate) wr_abort: Option<WrPlain>,
    pub(crate) wr_atomic_write: Absent,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_sge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RdmaPart {
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AtomicPart {
    pub(crate) remote_addr: u64,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    pub(crate) rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct UdPart {
    pub(crate) ah: *mut ibv_ah,
    pub(crate) remote_qpn: u32,
    pub(crate) remote_qkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union SendPart {
    pub(crate) rdma: RdmaPart,
    pub(crate) atomic: AtomicPart,
    pub(crate) ud: UdPart,
}

#[repr(C)]
pub(crate) struct ibv_send_wr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut ibv_send_wr,
    pub(crate) sg_list: *mut ibv_sge,
    pub(crate) num_sge: c_int,
    pub(crate) opcode: c_int,
    pub(crate) send_flags: c_uint,
    /// In network byte order, or the remote key to invalidate.
    pub(crate) imm_data: u32,
    pub(crate) wr: SendPart,
    pub(crate) remote_srqn: u32,
    /// Memory windows and segmentation, which are not supported.
    pub(crate) rest: [u64; 6],
}

pub(crate) mod wr_opcode {
    use core::ffi::c_int;

    pub(crate) const RDMA_WRITE: c_int = 0;
    pub(crate) const RDMA_WRITE_WITH_IMM: c_int = 1;
    pub(crate) const SEND: c_int = 2;
    pub(crate) const SEND_WITH_IMM: c_int = 3;
    pub(crate) const RDMA_READ: c_int = 4;
    pub(crate) const ATOMIC_CMP_AND_SWP: c_int = 5;
    pub(crate) const ATOMIC_FETCH_AND_ADD: c_int = 6;
    pub(crate) const SEND_WITH_INV: c_int = 9;
}

pub(crate) const IBV_SEND_FENCE: c_uint = 1;
pub(crate) const IBV_SEND_SIGNALED: c_uint = 1 << 1;
pub(crate) const IBV_SEND_INLINE: c_uint = 1 << 3;

#[repr(C)]
pub(crate) struct ibv_recv_wr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut ibv_recv_wr,
    pub(crate) sg_list: *mut ibv_sge,
    pub(crate) num_sge: c_int,
}

#[repr(C)]
pub(crate) struct ibv_ah {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) handle: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union EventElement {
    pub(crate) object: *mut c_void,
    pub(crate) port_num: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_async_event {
    pub(crate) element: EventElement,
    pub(crate) event_type: c_int,
}

pub(crate) mod event_type {
    use core::ffi::c_int;

    pub(crate) const CQ_ERR: c_int = 0;
    pub(crate) const QP_FATAL: c_int = 1;
    pub(crate) const QP_ACCESS_ERR: c_int = 3;
    pub(crate) const DEVICE_FATAL: c_int = 8;
    pub(crate) const PORT_ACTIVE: c_int = 9;
    pub(crate) const PORT_ERR: c_int = 10;
    pub(crate) const SRQ_LIMIT_REACHED: c_int = 15;
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ibv_ece {
    pub(crate) vendor_id: u32,
    pub(crate) options: u32,
    pub(crate) comp_mask: u32,
}
