//! The functions under the names and versions that programs link.
//!
//! The linker gets each name with its version from the assembler. Rust's own export would be without version, and programs that were
//! linked against the real library ask for one.

use core::arch::global_asm;

use crate::mrc::ctl::{arrays, calls};
use crate::mrc::{completion, context as owner, hint, queue};
use crate::{ah, channel, cm, context, cq, device, event, mr, pd, qp, srq, text};

#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    ($to:ident) => {
        concat!("jmp {", stringify!($to), "}")
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    ($to:ident) => {
        concat!("b {", stringify!($to), "}")
    };
}

// The function itself may be in another object file, and a version can only be given to a symbol of this one: so each name is that of a
// jump.
macro_rules! export {
    ($($version:literal: { $($name:ident = $function:path;)+ })+) => {
        $($(
            global_asm!(
                ".text",
                concat!(".globl spindrift.", stringify!($name)),
                concat!(".type spindrift.", stringify!($name), ", %function"),
                concat!("spindrift.", stringify!($name), ":"),
                jump!(function),
                concat!(".symver spindrift.", stringify!($name), ", ", stringify!($name), "@@", $version),
                function = sym $function,
            );
        )+)+
    };
}

export! {
    "IBVERBS_1.0": {
        ibv_create_comp_channel = channel::ibv_create_comp_channel;
        ibv_destroy_comp_channel = channel::ibv_destroy_comp_channel;
        ibv_get_sysfs_path = device::ibv_get_sysfs_path;
        ibv_read_sysfs_file = device::ibv_read_sysfs_file;
        ibv_rate_to_mult = text::ibv_rate_to_mult;
        mult_to_ibv_rate = text::mult_to_ibv_rate;
        ibv_copy_path_rec_from_kern = device::nothing;
        ibv_copy_path_rec_to_kern = device::nothing;
        ibv_copy_qp_attr_from_kern = device::nothing;
    }
    "IBVERBS_1.1": {
        ibv_get_device_list = device::ibv_get_device_list;
        ibv_free_device_list = device::ibv_free_device_list;
        ibv_get_device_name = device::ibv_get_device_name;
        ibv_get_device_guid = device::ibv_get_device_guid;
        ibv_open_device = context::ibv_open_device;
        ibv_close_device = context::ibv_close_device;
        ibv_get_async_event = event::ibv_get_async_event;
        ibv_ack_async_event = event::ibv_ack_async_event;
        ibv_query_device = context::ibv_query_device;
        ibv_query_port = context::ibv_query_port;
        ibv_query_gid = context::ibv_query_gid;
        ibv_query_pkey = context::ibv_query_pkey;
        ibv_alloc_pd = pd::ibv_alloc_pd;
        ibv_dealloc_pd = pd::ibv_dealloc_pd;
        ibv_reg_mr = mr::ibv_reg_mr;
        ibv_rereg_mr = device::failed;
        ibv_dereg_mr = mr::ibv_dereg_mr;
        ibv_create_cq = cq::ibv_create_cq;
        ibv_resize_cq = cq::ibv_resize_cq;
        ibv_destroy_cq = cq::ibv_destroy_cq;
        ibv_get_cq_event = channel::ibv_get_cq_event;
        ibv_ack_cq_events = channel::ibv_ack_cq_events;
        ibv_create_srq = srq::ibv_create_srq;
        ibv_modify_srq = srq::ibv_modify_srq;
        ibv_query_srq = srq::ibv_query_srq;
        ibv_destroy_srq = srq::ibv_destroy_srq;
        ibv_create_qp = qp::ibv_create_qp;
        ibv_modify_qp = qp::ibv_modify_qp;
        ibv_query_qp = qp::ibv_query_qp;
        ibv_destroy_qp = qp::ibv_destroy_qp;
        ibv_create_ah = ah::ibv_create_ah;
        ibv_create_ah_from_wc = ah::ibv_create_ah_from_wc;
        ibv_init_ah_from_wc = ah::ibv_init_ah_from_wc;
        ibv_destroy_ah = ah::ibv_destroy_ah;
        ibv_attach_mcast = device::not_supported;
        ibv_detach_mcast = device::not_supported;
        ibv_copy_ah_attr_from_kern = device::nothing;
        ibv_register_driver = device::nothing;
        ibv_resolve_eth_l2_from_gid = device::failed;
        ibv_fork_init = device::ibv_fork_init;
        ibv_dontfork_range = device::ibv_dontfork_range;
        ibv_dofork_range = device::ibv_dofork_range;
        ibv_node_type_str = text::ibv_node_type_str;
        ibv_port_state_str = text::ibv_port_state_str;
        ibv_event_type_str = text::ibv_event_type_str;
        ibv_wc_status_str = text::ibv_wc_status_str;
        ibv_rate_to_mbps = text::ibv_rate_to_mbps;
        mbps_to_ibv_rate = text::mbps_to_ibv_rate;
    }
    "IBVERBS_1.5": {
        ibv_get_pkey_index = context::ibv_get_pkey_index;
    }
    "IBVERBS_1.6": {
        ibv_qp_to_qp_ex = qp::ibv_qp_to_qp_ex;
    }
    "IBVERBS_1.7": {
        ibv_reg_mr_iova = mr::ibv_reg_mr_iova;
    }
    "IBVERBS_1.8": {
        ibv_reg_mr_iova2 = mr::ibv_reg_mr_iova2;
    }
    "IBVERBS_1.9": {
        ibv_get_device_index = device::ibv_get_device_index;
    }
    "IBVERBS_1.10": {
        ibv_import_device = device::no_object;
        ibv_import_mr = device::no_object;
        ibv_unimport_mr = device::nothing;
        ibv_import_pd = device::no_object;
        ibv_unimport_pd = device::nothing;
        ibv_query_ece = qp::ibv_query_ece;
        ibv_set_ece = qp::ibv_set_ece;
    }
    "IBVERBS_1.11": {
        _ibv_query_gid_ex = context::_ibv_query_gid_ex;
        _ibv_query_gid_table = context::_ibv_query_gid_table;
    }
    "IBVERBS_1.12": {
        ibv_reg_dmabuf_mr = mr::ibv_reg_dmabuf_mr;
    }
    "IBVERBS_1.13": {
        ibv_import_dm = device::no_object;
        ibv_unimport_dm = device::nothing;
        ibv_is_fork_initialized = device::ibv_is_fork_initialized;
    }
    "IBVERBS_1.14": {
        ibv_query_qp_data_in_order = qp::ibv_query_qp_data_in_order;
    }
    "RDMACM_1.0": {
        rdma_create_event_channel = cm::channel::rdma_create_event_channel;
        rdma_destroy_event_channel = cm::channel::rdma_destroy_event_channel;
        rdma_get_cm_event = cm::channel::rdma_get_cm_event;
        rdma_ack_cm_event = cm::channel::rdma_ack_cm_event;
        rdma_create_id = cm::id::rdma_create_id;
        rdma_destroy_id = cm::id::rdma_destroy_id;
        rdma_bind_addr = cm::id::rdma_bind_addr;
        rdma_resolve_addr = cm::id::rdma_resolve_addr;
        rdma_resolve_route = cm::id::rdma_resolve_route;
        rdma_listen = cm::id::rdma_listen;
        rdma_get_src_port = cm::id::rdma_get_src_port;
        rdma_get_dst_port = cm::id::rdma_get_dst_port;
        rdma_migrate_id = cm::id::rdma_migrate_id;
        rdma_create_qp = cm::queue::rdma_create_qp;
        rdma_create_qp_ex = cm::queue::rdma_create_qp_ex;
        rdma_destroy_qp = cm::queue::rdma_destroy_qp;
        rdma_create_srq = cm::queue::rdma_create_srq;
        rdma_create_srq_ex = cm::queue::rdma_create_srq_ex;
        rdma_destroy_srq = cm::queue::rdma_destroy_srq;
        rdma_connect = cm::connect::rdma_connect;
        rdma_accept = cm::connect::rdma_accept;
        rdma_reject = cm::connect::rdma_reject;
        rdma_notify = cm::connect::rdma_notify;
        rdma_disconnect = cm::connect::rdma_disconnect;
        rdma_get_request = cm::connect::rdma_get_request;
        rdma_get_devices = cm::info::rdma_get_devices;
        rdma_free_devices = cm::info::rdma_free_devices;
        rdma_event_str = cm::info::rdma_event_str;
        rdma_set_option = cm::info::rdma_set_option;
        rdma_getaddrinfo = cm::info::rdma_getaddrinfo;
        rdma_freeaddrinfo = cm::info::rdma_freeaddrinfo;
        rdma_create_ep = cm::info::rdma_create_ep;
        rdma_destroy_ep = cm::info::rdma_destroy_ep;
        rdma_join_multicast = cm::info::absent;
        rdma_leave_multicast = cm::info::absent;
        rsocket = cm::info::absent;
        rbind = cm::info::absent;
        rlisten = cm::info::absent;
        raccept = cm::info::absent;
        rconnect = cm::info::absent;
        rshutdown = cm::info::absent;
        rclose = cm::info::absent;
        rrecv = cm::info::absent;
        rrecvfrom = cm::info::absent;
        rrecvmsg = cm::info::absent;
        rsend = cm::info::absent;
        rsendto = cm::info::absent;
        rsendmsg = cm::info::absent;
        rread = cm::info::absent;
        rreadv = cm::info::absent;
        rwrite = cm::info::absent;
        rwritev = cm::info::absent;
        rpoll = cm::info::absent;
        rselect = cm::info::absent;
        rgetpeername = cm::info::absent;
        rgetsockname = cm::info::absent;
        rsetsockopt = cm::info::absent;
        rgetsockopt = cm::info::absent;
        rfcntl = cm::info::absent;
        riomap = cm::info::absent;
        riounmap = cm::info::absent;
        riowrite = cm::info::absent;
    }
    "RDMACM_1.1": {
        rdma_join_multicast_ex = cm::info::absent;
    }
    "RDMACM_1.2": {
        rdma_establish = cm::connect::rdma_establish;
        rdma_init_qp_attr = cm::queue::rdma_init_qp_attr;
    }
    "RDMACM_1.3": {
        rdma_get_remote_ece = cm::info::rdma_get_remote_ece;
        rdma_reject_ece = cm::connect::rdma_reject;
        rdma_set_local_ece = cm::info::rdma_set_local_ece;
    }
    "RDMACM_1.4": {
        rdma_query_addrinfo = cm::info::rdma_query_addrinfo;
        rdma_resolve_addrinfo = cm::info::rdma_resolve_addrinfo;
        rdma_write_cm_event = cm::channel::rdma_write_cm_event;
    }
    "RDMACM_1.5": {
        repoll_create = cm::info::absent;
        repoll_ctl = cm::info::absent;
        repoll_wait = cm::info::absent;
    }
}

/// Functions that programs link without a version: those of MRC's interface.
macro_rules! export_plain {
    ($($name:ident = $function:path;)+) => {
        $(
            global_asm!(
                ".text",
                concat!(".globl ", stringify!($name)),
                concat!(".type ", stringify!($name), ", %function"),
                concat!(stringify!($name), ":"),
                jump!(function),
                function = sym $function,
            );
        )+
    };
}

export_plain! {
    mrc_query_device = owner::mrc_query_device;
    mrc_query_device_ex = owner::mrc_query_device_ex;
    mrc_query_version = owner::mrc_query_version;
    mrc_create_context = owner::mrc_create_context;
    mrc_destroy_context = owner::mrc_destroy_context;
    mrc_get_async_event = owner::mrc_get_async_event;
    mrc_ack_async_event = owner::mrc_ack_async_event;
    mrc_create_comp_channel = completion::mrc_create_comp_channel;
    mrc_get_comp_channel_fd = completion::mrc_get_comp_channel_fd;
    mrc_destroy_comp_channel = completion::mrc_destroy_comp_channel;
    mrc_create_cq = completion::mrc_create_cq;
    mrc_poll_cq = completion::mrc_poll_cq;
    mrc_destroy_cq = completion::mrc_destroy_cq;
    mrc_req_notify_cq = completion::mrc_req_notify_cq;
    mrc_get_cq_event = completion::mrc_get_cq_event;
    mrc_ack_cq_events = completion::mrc_ack_cq_events;
    mrc_create_qp_hint = hint::mrc_create_qp_hint;
    mrc_destroy_qp_hint = hint::mrc_destroy_qp_hint;
    mrc_query_qp_hint = hint::mrc_query_qp_hint;
    mrc_modify_qp_hint = hint::mrc_modify_qp_hint;
    mrc_create_qp = queue::mrc_create_qp;
    mrc_destroy_qp = queue::mrc_destroy_qp;
    mrc_modify_qp = queue::mrc_modify_qp;
    mrc_query_qp = queue::mrc_query_qp;
    mrc_get_qpn = queue::mrc_get_qpn;
    mrc_post_send = queue::mrc_post_send;
    mrc_post_recv = queue::mrc_post_recv;
    mrc_ctl_query_device = calls::mrc_ctl_query_device;
    mrc_ctl_query_device_ex = calls::mrc_ctl_query_device_ex;
    mrc_ctl_query_version = calls::mrc_ctl_query_version;
    mrc_ctl_query_port = calls::mrc_ctl_query_port;
    mrc_ctl_modify_port = calls::mrc_ctl_modify_port;
    mrc_ctl_modify_ev_fmt_profile = arrays::mrc_ctl_modify_ev_fmt_profile;
    mrc_ctl_query_ev_fmt_profile = arrays::mrc_ctl_query_ev_fmt_profile;
    mrc_ctl_modify_ev_profile = arrays::mrc_ctl_modify_ev_profile;
    mrc_ctl_query_ev_profile = arrays::mrc_ctl_query_ev_profile;
    mrc_ctl_modify_cc_profile = calls::mrc_ctl_modify_cc_profile;
    mrc_ctl_query_cc_profile = calls::mrc_ctl_query_cc_profile;
    mrc_ctl_create_ev_event_cq = calls::mrc_ctl_create_ev_event_cq;
    mrc_ctl_poll_ev_event = calls::mrc_ctl_poll_ev_event;
    mrc_ctl_ep_batch_send_wait = calls::mrc_ctl_ep_batch_send_wait;
}

include!(concat!(env!("OUT_DIR"), "/private.rs"));
