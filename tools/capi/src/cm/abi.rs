//! What `rdma/rdma_cma.h` declares, in the layouts of C: see [`crate::abi`].

use core::ffi::{c_char, c_int, c_void};

use crate::abi::{
    ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_cq, ibv_gid, ibv_pd, ibv_qp, ibv_qp_init_attr, ibv_srq,
};

/// Types of events.
pub(crate) mod event {
    use core::ffi::c_int;

    pub(crate) const ADDR_RESOLVED: c_int = 0;
    pub(crate) const ADDR_ERROR: c_int = 1;
    pub(crate) const ROUTE_RESOLVED: c_int = 2;
    pub(crate) const CONNECT_REQUEST: c_int = 4;
    pub(crate) const CONNECT_RESPONSE: c_int = 5;
    pub(crate) const CONNECT_ERROR: c_int = 6;
    pub(crate) const UNREACHABLE: c_int = 7;
    pub(crate) const REJECTED: c_int = 8;
    pub(crate) const ESTABLISHED: c_int = 9;
    pub(crate) const DISCONNECTED: c_int = 10;
    pub(crate) const ADDRINFO_RESOLVED: c_int = 16;
    pub(crate) const ADDRINFO_ERROR: c_int = 17;
    pub(crate) const USER: c_int = 18;
    pub(crate) const INTERNAL: c_int = 19;
}

/// Port spaces.
pub(crate) mod port_space {
    use core::ffi::c_int;

    pub(crate) const IPOIB: c_int = 2;
    pub(crate) const TCP: c_int = 0x106;
    pub(crate) const UDP: c_int = 0x111;
    pub(crate) const IB: c_int = 0x13f;
}

/// The key of all queue pairs of datagrams that connections are asked for.
pub(crate) const RDMA_UDP_QKEY: u32 = 0x0123_4567;
/// "As many as the device has."
pub(crate) const RDMA_MAX_RESP_RES: u8 = 0xff;
pub(crate) const RDMA_MAX_INIT_DEPTH: u8 = 0xff;

/// Flags of addresses.
pub(crate) const RAI_PASSIVE: c_int = 1;
pub(crate) const RAI_NUMERICHOST: c_int = 2;

pub(crate) const RDMA_OPTION_ID: c_int = 0;
pub(crate) const RDMA_OPTION_ID_TOS: c_int = 0;
pub(crate) const RDMA_OPTION_ID_REUSEADDR: c_int = 1;
pub(crate) const RDMA_OPTION_ID_AFONLY: c_int = 2;
pub(crate) const RDMA_OPTION_ID_ACK_TIMEOUT: c_int = 3;

/// A record of the subnet's administration, which programs look into.
#[repr(C)]
pub(crate) struct ibv_sa_path_rec {
    pub(crate) dgid: ibv_gid,
    pub(crate) sgid: ibv_gid,
    pub(crate) dlid: u16,
    pub(crate) slid: u16,
    pub(crate) raw_traffic: c_int,
    pub(crate) flow_label: u32,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) reversible: c_int,
    pub(crate) numb_path: u8,
    pub(crate) pkey: u16,
    pub(crate) sl: u8,
    pub(crate) mtu_selector: u8,
    pub(crate) mtu: u8,
    pub(crate) rate_selector: u8,
    pub(crate) rate: u8,
    pub(crate) packet_life_time_selector: u8,
    pub(crate) packet_life_time: u8,
    pub(crate) preference: u8,
}

#[repr(C)]
pub(crate) struct rdma_ib_addr {
    pub(crate) sgid: ibv_gid,
    pub(crate) dgid: ibv_gid,
    pub(crate) pkey: u16,
}

#[repr(C)]
pub(crate) struct rdma_addr {
    pub(crate) src_storage: libc::sockaddr_storage,
    pub(crate) dst_storage: libc::sockaddr_storage,
    pub(crate) addr: rdma_ib_addr,
}

#[repr(C)]
pub(crate) struct rdma_route {
    pub(crate) addr: rdma_addr,
    pub(crate) path_rec: *mut ibv_sa_path_rec,
    pub(crate) num_paths: c_int,
}

#[repr(C)]
pub(crate) struct rdma_event_channel {
    pub(crate) fd: c_int,
}

#[repr(C)]
pub(crate) struct rdma_cm_id {
    pub(crate) verbs: *mut ibv_context,
    pub(crate) channel: *mut rdma_event_channel,
    pub(crate) context: *mut c_void,
    pub(crate) qp: *mut ibv_qp,
    pub(crate) route: rdma_route,
    pub(crate) ps: c_int,
    pub(crate) port_num: u8,
    pub(crate) event: *mut rdma_cm_event,
    pub(crate) send_cq_channel: *mut ibv_comp_channel,
    pub(crate) send_cq: *mut ibv_cq,
    pub(crate) recv_cq_channel: *mut ibv_comp_channel,
    pub(crate) recv_cq: *mut ibv_cq,
    pub(crate) srq: *mut ibv_srq,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) qp_type: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct rdma_conn_param {
    pub(crate) private_data: *const c_void,
    pub(crate) private_data_len: u8,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) flow_control: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) srq: u8,
    pub(crate) qp_num: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct rdma_ud_param {
    pub(crate) private_data: *const c_void,
    pub(crate) private_data_len: u8,
    pub(crate) ah_attr: ibv_ah_attr,
    pub(crate) qp_num: u32,
    pub(crate) qkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union EventParam {
    pub(crate) conn: rdma_conn_param,
    pub(crate) ud: rdma_ud_param,
    pub(crate) arg: u64,
}

impl EventParam {
    /// All bytes of it are 0, also those that only one of its kinds has: programs read the length of the data of each event.
    pub(crate) const fn none() -> Self {
        // SAFETY: all bit patterns are numbers, and null is a pointer.
        unsafe { core::mem::zeroed() }
    }

    pub(crate) const fn with(arg: u64) -> Self {
        let mut param = Self::none();
        param.arg = arg;
        param
    }

    pub(crate) const fn connected(conn: rdma_conn_param) -> Self {
        let mut param = Self::none();
        param.conn = conn;
        param
    }
}

#[repr(C)]
pub(crate) struct rdma_cm_event {
    pub(crate) id: *mut rdma_cm_id,
    pub(crate) listen_id: *mut rdma_cm_id,
    pub(crate) event: c_int,
    pub(crate) status: c_int,
    pub(crate) param: EventParam,
}

#[repr(C)]
#[expect(clippy::struct_field_names, reason = "names of the C interface")]
pub(crate) struct rdma_addrinfo {
    pub(crate) ai_flags: c_int,
    pub(crate) ai_family: c_int,
    pub(crate) ai_qp_type: c_int,
    pub(crate) ai_port_space: c_int,
    pub(crate) ai_src_len: libc::socklen_t,
    pub(crate) ai_dst_len: libc::socklen_t,
    pub(crate) ai_src_addr: *mut libc::sockaddr,
    pub(crate) ai_dst_addr: *mut libc::sockaddr,
    pub(crate) ai_src_canonname: *mut c_char,
    pub(crate) ai_dst_canonname: *mut c_char,
    pub(crate) ai_route_len: usize,
    pub(crate) ai_route: *mut c_void,
    pub(crate) ai_connect_len: usize,
    pub(crate) ai_connect: *mut c_void,
    pub(crate) ai_next: *mut rdma_addrinfo,
}

/// Attributes of a queue pair that a program leaves to this library.
pub(crate) type QpInit = ibv_qp_init_attr;
