//! Compares the layouts of `abi.rs` with those of the header of this machine (package `libibverbs-dev`).

use std::fmt::Write;
use std::io::Write as _;
use std::process::{Command, Stdio};

use crate::abi::*;
use crate::cm::abi::*;

/// Lists `sizeof` and `offsetof` as C and as Rust have them.
macro_rules! layouts {
    ($($name:ident { $($field:ident $(= $in_c:literal)?),* $(,)? })+) => {{
        let mut c = String::new();
        let mut rust = Vec::new();
        $(
            writeln!(c, "P(sizeof(struct {0}));", stringify!($name)).unwrap();
            rust.push((concat!("size of ", stringify!($name)).to_owned(), size_of::<$name>()));
            $(
                #[allow(unused_mut, unused_assignments, reason = "most fields have the same name in both")]
                let mut field = stringify!($field);
                $(field = $in_c;)?
                writeln!(c, "P(offsetof(struct {}, {field}));", stringify!($name)).unwrap();
                rust.push((format!("{}.{field}", stringify!($name)), core::mem::offset_of!($name, $field)));
            )*
        )+
        (c, rust)
    }};
}

/// Lists constants as C and as Rust have them.
macro_rules! values {
    ($($in_c:ident = $rust:expr;)+) => {{
        let mut c = String::new();
        let mut rust = Vec::new();
        $(
            writeln!(c, "P({});", stringify!($in_c)).unwrap();
            rust.push((stringify!($in_c).to_owned(), $rust as usize));
        )+
        (c, rust)
    }};
}

#[expect(clippy::too_many_lines, reason = "a list")]
fn layouts() -> (String, Vec<(String, usize)>) {
    layouts! {
        ibv_device { ops = "_ops", node_type, transport_type, name, dev_name, dev_path, ibdev_path }
        ibv_context_ops {
            alloc_mw, bind_mw, dealloc_mw, poll_cq, req_notify_cq, post_srq_recv, post_send, post_recv,
        }
        ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat }
        ibv_device_attr {
            fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id, vendor_part_id, hw_ver, max_qp,
            max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom,
            max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom, max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd,
            max_mw, max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach,
            max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr, max_srq, max_srq_wr, max_srq_sge,
            max_pkeys, local_ca_ack_delay, phys_port_cnt,
        }
        ibv_query_device_ex_input { comp_mask }
        ibv_device_attr_ex {
            orig_attr, comp_mask, odp_caps, completion_timestamp_mask, hca_core_clock, device_cap_flags_ex, tso_caps,
            rss_caps, max_wq_type_rq, packet_pacing_caps, raw_packet_caps, tm_caps, cq_mod_caps, max_dm_size,
            pci_atomic_caps, xrc_odp_caps, phys_port_cnt_ex,
        }
        ibv_port_attr {
            state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr,
            pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width,
            active_speed, phys_state, link_layer, flags, port_cap_flags2,
        }
        ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }
        ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
        ibv_grh { version_tclass_flow, paylen, next_hdr, hop_limit, sgid, dgid }
        ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
        ibv_pd { context, handle }
        ibv_mr { context, pd, addr, length, handle, lkey, rkey }
        ibv_comp_channel { context, fd, refcnt }
        ibv_cq {
            context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed, async_events_completed,
        }
        ibv_poll_cq_attr { comp_mask }
        ibv_cq_ex {
            comp_mask, status, wr_id, start_poll, next_poll, end_poll, read_opcode, read_vendor_err, read_byte_len,
            read_imm_data, read_qp_num, read_src_qp, read_wc_flags, read_slid, read_sl, read_dlid_path_bits,
            read_completion_ts, read_cvlan, read_flow_tag, read_tm_info, read_completion_wallclock_ns,
        }
        ibv_cq_init_attr_ex {
            cqe, cq_context, channel, comp_vector, wc_flags, comp_mask, flags, parent_domain,
        }
        ibv_wc {
            wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags, pkey_index, slid, sl,
            dlid_path_bits,
        }
        ibv_srq_attr { max_wr, max_sge, srq_limit }
        ibv_srq_init_attr { srq_context, attr }
        ibv_srq_init_attr_ex { srq_context, attr, comp_mask, srq_type, pd, xrcd, cq, tm_cap }
        ibv_srq { context, srq_context, pd, handle, mutex, cond, events_completed }
        ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        ibv_qp_init_attr_ex {
            qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, comp_mask, pd, xrcd, create_flags,
            max_tso_header, rwq_ind_tbl, rx_hash_conf, source_qpn, send_ops_flags,
        }
        ibv_qp_attr {
            qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap,
            ah_attr, alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining, max_rd_atomic,
            max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout,
            rate_limit,
        }
        ibv_qp {
            context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, mutex, cond,
            events_completed,
        }
        ibv_qp_ex {
            base = "qp_base", comp_mask, wr_id, wr_flags, wr_atomic_cmp_swp, wr_atomic_fetch_add, wr_bind_mw,
            wr_local_inv, wr_rdma_read, wr_rdma_write, wr_rdma_write_imm, wr_send, wr_send_imm, wr_send_inv,
            wr_send_tso, wr_set_ud_addr, wr_set_xrc_srqn, wr_set_inline_data, wr_set_inline_data_list, wr_set_sge,
            wr_set_sge_list, wr_start, wr_complete, wr_abort,
        }
        ibv_data_buf { addr, length }
        ibv_sge { addr, length, lkey }
        ibv_send_wr {
            wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, wr, remote_srqn = "qp_type", rest = "bind_mw",
        }
        ibv_recv_wr { wr_id, next, sg_list, num_sge }
        ibv_ah { context, pd, handle }
        ibv_async_event { element, event_type }
        ibv_ece { vendor_id, options, comp_mask }
    }
}

/// `verbs_context` grows at its front, so its fields count from the context at its end.
fn from_the_end() -> (String, Vec<(String, usize)>) {
    macro_rules! fields {
        ($($field:ident),+) => {{
            let mut c = String::new();
            let mut rust = Vec::new();
            $(
                let field = stringify!($field);
                let from = "offsetof(struct verbs_context, context)";
                writeln!(c, "P({from} - offsetof(struct verbs_context, {field}));").unwrap();
                let end = core::mem::offset_of!(verbs_context, context);
                rust.push((format!("verbs_context.{field}"), end - core::mem::offset_of!(verbs_context, $field)));
            )+
            (c, rust)
        }};
    }
    fields!(
        query_port,
        modify_cq,
        query_rt_values,
        create_cq_ex,
        query_device_ex,
        open_qp,
        create_qp_ex,
        get_srq_num,
        create_srq_ex,
        open_xrcd,
        close_xrcd,
        sz
    )
}

/// Those of `rdma/rdma_cma.h`.
fn connections() -> (String, Vec<(String, usize)>) {
    layouts! {
        ibv_sa_path_rec {
            dgid, sgid, dlid, slid, raw_traffic, flow_label, hop_limit, traffic_class, reversible, numb_path, pkey, sl,
            mtu_selector, mtu, rate_selector, rate, packet_life_time_selector, packet_life_time, preference,
        }
        rdma_ib_addr { sgid, dgid, pkey }
        rdma_addr { src_storage, dst_storage, addr }
        rdma_route { addr, path_rec, num_paths }
        rdma_event_channel { fd }
        rdma_cm_id {
            verbs, channel, context, qp, route, ps, port_num, event, send_cq_channel, send_cq, recv_cq_channel, recv_cq,
            srq, pd, qp_type,
        }
        rdma_conn_param {
            private_data, private_data_len, responder_resources, initiator_depth, flow_control, retry_count,
            rnr_retry_count, srq, qp_num,
        }
        rdma_ud_param { private_data, private_data_len, ah_attr, qp_num, qkey }
        rdma_cm_event { id, listen_id, event, status, param }
        rdma_addrinfo {
            ai_flags, ai_family, ai_qp_type, ai_port_space, ai_src_len, ai_dst_len, ai_src_addr, ai_dst_addr,
            ai_src_canonname, ai_dst_canonname, ai_route_len, ai_route, ai_connect_len, ai_connect, ai_next,
        }
    }
}

/// Constants as C and as Rust have them.
#[expect(clippy::too_many_lines, reason = "a list")]
fn constants() -> (String, Vec<(String, usize)>) {
    values! {
        IBV_ACCESS_LOCAL_WRITE = IBV_ACCESS_LOCAL_WRITE;
        IBV_ACCESS_REMOTE_WRITE = IBV_ACCESS_REMOTE_WRITE;
        IBV_ACCESS_REMOTE_READ = IBV_ACCESS_REMOTE_READ;
        IBV_ACCESS_REMOTE_ATOMIC = IBV_ACCESS_REMOTE_ATOMIC;
        IBV_ACCESS_MW_BIND = IBV_ACCESS_MW_BIND;
        IBV_ACCESS_ZERO_BASED = IBV_ACCESS_ZERO_BASED;
        IBV_ACCESS_ON_DEMAND = IBV_ACCESS_ON_DEMAND;
        IBV_ACCESS_HUGETLB = IBV_ACCESS_HUGETLB;
        IBV_ACCESS_OPTIONAL_FIRST = IBV_ACCESS_OPTIONAL_FIRST;
        IBV_QPT_RC = IBV_QPT_RC;
        IBV_QPT_UC = IBV_QPT_UC;
        IBV_QPT_UD = IBV_QPT_UD;
        IBV_QPS_RESET = qp_state::RESET;
        IBV_QPS_INIT = qp_state::INIT;
        IBV_QPS_RTR = qp_state::RTR;
        IBV_QPS_RTS = qp_state::RTS;
        IBV_QPS_SQE = qp_state::SQE;
        IBV_QPS_ERR = qp_state::ERR;
        IBV_QP_STATE = qp_attr_mask::STATE;
        IBV_QP_CUR_STATE = qp_attr_mask::CUR_STATE;
        IBV_QP_ACCESS_FLAGS = qp_attr_mask::ACCESS_FLAGS;
        IBV_QP_PKEY_INDEX = qp_attr_mask::PKEY_INDEX;
        IBV_QP_PORT = qp_attr_mask::PORT;
        IBV_QP_QKEY = qp_attr_mask::QKEY;
        IBV_QP_AV = qp_attr_mask::AV;
        IBV_QP_PATH_MTU = qp_attr_mask::PATH_MTU;
        IBV_QP_TIMEOUT = qp_attr_mask::TIMEOUT;
        IBV_QP_RETRY_CNT = qp_attr_mask::RETRY_CNT;
        IBV_QP_RNR_RETRY = qp_attr_mask::RNR_RETRY;
        IBV_QP_RQ_PSN = qp_attr_mask::RQ_PSN;
        IBV_QP_MAX_QP_RD_ATOMIC = qp_attr_mask::MAX_QP_RD_ATOMIC;
        IBV_QP_MIN_RNR_TIMER = qp_attr_mask::MIN_RNR_TIMER;
        IBV_QP_SQ_PSN = qp_attr_mask::SQ_PSN;
        IBV_QP_MAX_DEST_RD_ATOMIC = qp_attr_mask::MAX_DEST_RD_ATOMIC;
        IBV_QP_DEST_QPN = qp_attr_mask::DEST_QPN;
        IBV_WR_RDMA_WRITE = wr_opcode::RDMA_WRITE;
        IBV_WR_RDMA_WRITE_WITH_IMM = wr_opcode::RDMA_WRITE_WITH_IMM;
        IBV_WR_SEND = wr_opcode::SEND;
        IBV_WR_SEND_WITH_IMM = wr_opcode::SEND_WITH_IMM;
        IBV_WR_SEND_WITH_INV = wr_opcode::SEND_WITH_INV;
        IBV_WR_RDMA_READ = wr_opcode::RDMA_READ;
        IBV_WR_ATOMIC_CMP_AND_SWP = wr_opcode::ATOMIC_CMP_AND_SWP;
        IBV_WR_ATOMIC_FETCH_AND_ADD = wr_opcode::ATOMIC_FETCH_AND_ADD;
        IBV_SEND_FENCE = IBV_SEND_FENCE;
        IBV_SEND_SIGNALED = IBV_SEND_SIGNALED;
        IBV_SEND_INLINE = IBV_SEND_INLINE;
        IBV_WC_SEND = wc_opcode::SEND;
        IBV_WC_RDMA_WRITE = wc_opcode::RDMA_WRITE;
        IBV_WC_RDMA_READ = wc_opcode::RDMA_READ;
        IBV_WC_COMP_SWAP = wc_opcode::COMP_SWAP;
        IBV_WC_FETCH_ADD = wc_opcode::FETCH_ADD;
        IBV_WC_RECV = wc_opcode::RECV;
        IBV_WC_RECV_RDMA_WITH_IMM = wc_opcode::RECV_RDMA_WITH_IMM;
        IBV_WC_GRH = IBV_WC_GRH;
        IBV_WC_WITH_IMM = IBV_WC_WITH_IMM;
        IBV_WC_WITH_INV = IBV_WC_WITH_INV;
        IBV_WC_SUCCESS = wc_status::SUCCESS;
        IBV_WC_LOC_LEN_ERR = wc_status::LOC_LEN_ERR;
        IBV_WC_LOC_QP_OP_ERR = wc_status::LOC_QP_OP_ERR;
        IBV_WC_LOC_PROT_ERR = wc_status::LOC_PROT_ERR;
        IBV_WC_WR_FLUSH_ERR = wc_status::WR_FLUSH_ERR;
        IBV_WC_REM_INV_REQ_ERR = wc_status::REM_INV_REQ_ERR;
        IBV_WC_REM_ACCESS_ERR = wc_status::REM_ACCESS_ERR;
        IBV_WC_REM_OP_ERR = wc_status::REM_OP_ERR;
        IBV_WC_RETRY_EXC_ERR = wc_status::RETRY_EXC_ERR;
        IBV_WC_RNR_RETRY_EXC_ERR = wc_status::RNR_RETRY_EXC_ERR;
        IBV_WC_FATAL_ERR = wc_status::FATAL_ERR;
        IBV_WC_GENERAL_ERR = wc_status::GENERAL_ERR;
        IBV_QP_EX_WITH_RDMA_WRITE = send_ops::RDMA_WRITE;
        IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM = send_ops::RDMA_WRITE_WITH_IMM;
        IBV_QP_EX_WITH_SEND = send_ops::SEND;
        IBV_QP_EX_WITH_SEND_WITH_IMM = send_ops::SEND_WITH_IMM;
        IBV_QP_EX_WITH_RDMA_READ = send_ops::RDMA_READ;
        IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP = send_ops::ATOMIC_CMP_AND_SWP;
        IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD = send_ops::ATOMIC_FETCH_AND_ADD;
        IBV_QP_EX_WITH_SEND_WITH_INV = send_ops::SEND_WITH_INV;
        IBV_QP_INIT_ATTR_PD = qp_init_attr_mask::PD;
        IBV_QP_INIT_ATTR_CREATE_FLAGS = qp_init_attr_mask::CREATE_FLAGS;
        IBV_QP_INIT_ATTR_SEND_OPS_FLAGS = qp_init_attr_mask::SEND_OPS_FLAGS;
        IBV_EVENT_CQ_ERR = event_type::CQ_ERR;
        IBV_EVENT_QP_FATAL = event_type::QP_FATAL;
        IBV_EVENT_QP_ACCESS_ERR = event_type::QP_ACCESS_ERR;
        IBV_EVENT_DEVICE_FATAL = event_type::DEVICE_FATAL;
        IBV_EVENT_PORT_ACTIVE = event_type::PORT_ACTIVE;
        IBV_EVENT_PORT_ERR = event_type::PORT_ERR;
        IBV_EVENT_SRQ_LIMIT_REACHED = event_type::SRQ_LIMIT_REACHED;
        IBV_PORT_DOWN = IBV_PORT_DOWN;
        IBV_PORT_ACTIVE = IBV_PORT_ACTIVE;
        IBV_LINK_LAYER_ETHERNET = IBV_LINK_LAYER_ETHERNET;
        IBV_PORT_IP_BASED_GIDS = IBV_PORT_IP_BASED_GIDS;
        IBV_GID_TYPE_ROCE_V1 = spindrift_programs::gid::ROCE_V1;
        IBV_GID_TYPE_ROCE_V2 = spindrift_programs::gid::ROCE_V2;
        IBV_DEVICE_RC_RNR_NAK_GEN = IBV_DEVICE_RC_RNR_NAK_GEN;
        IBV_ATOMIC_HCA = IBV_ATOMIC_HCA;
        IBV_NODE_CA = IBV_NODE_CA;
        IBV_TRANSPORT_IB = IBV_TRANSPORT_IB;
        RDMA_CM_EVENT_ADDR_RESOLVED = event::ADDR_RESOLVED;
        RDMA_CM_EVENT_ADDR_ERROR = event::ADDR_ERROR;
        RDMA_CM_EVENT_ROUTE_RESOLVED = event::ROUTE_RESOLVED;
        RDMA_CM_EVENT_CONNECT_REQUEST = event::CONNECT_REQUEST;
        RDMA_CM_EVENT_CONNECT_RESPONSE = event::CONNECT_RESPONSE;
        RDMA_CM_EVENT_CONNECT_ERROR = event::CONNECT_ERROR;
        RDMA_CM_EVENT_UNREACHABLE = event::UNREACHABLE;
        RDMA_CM_EVENT_REJECTED = event::REJECTED;
        RDMA_CM_EVENT_ESTABLISHED = event::ESTABLISHED;
        RDMA_CM_EVENT_DISCONNECTED = event::DISCONNECTED;
        RDMA_PS_IPOIB = port_space::IPOIB;
        RDMA_PS_TCP = port_space::TCP;
        RDMA_PS_UDP = port_space::UDP;
        RDMA_PS_IB = port_space::IB;
        RDMA_UDP_QKEY = RDMA_UDP_QKEY;
        RDMA_MAX_RESP_RES = RDMA_MAX_RESP_RES;
        RDMA_MAX_INIT_DEPTH = RDMA_MAX_INIT_DEPTH;
        RAI_PASSIVE = RAI_PASSIVE;
        RAI_NUMERICHOST = RAI_NUMERICHOST;
        RDMA_OPTION_ID = RDMA_OPTION_ID;
        RDMA_OPTION_ID_TOS = RDMA_OPTION_ID_TOS;
        RDMA_OPTION_ID_REUSEADDR = RDMA_OPTION_ID_REUSEADDR;
        RDMA_OPTION_ID_AFONLY = RDMA_OPTION_ID_AFONLY;
        RDMA_OPTION_ID_ACK_TIMEOUT = RDMA_OPTION_ID_ACK_TIMEOUT;
    }
}

/// What OCP's `mrc.h` declares.
fn mrc() -> (String, Vec<(String, usize)>) {
    use crate::mrc::abi::*;

    let (mut c, mut rust) = layouts! {
        mrc_device_attr {
            mrc_protocol_version, max_wimm = "wimm_attr.max_wimm", max_wimm_dest = "wimm_attr.max_wimm_dest",
            max_mpr = "mpr_attr.max_mpr", mpr_resolution = "mpr_attr.mpr_resolution",
            max_qp_hint = "qp_attr.max_qp_hint", cap,
        }
        mrc_context_attr { mrc_api_version_used, mrc_vendor_api_version_used }
        mrc_qp_hint_attr { num_qps_per_peer, num_send_peers, num_remote_recv_peers, vendor_cfg }
        mrc_qp_hint_init_attr { attr }
        mrc_qp_init_attr { qp_context, send_cq, recv_cq, cap, sq_sig_all, pd, send_ops_flags, protocol_version }
        mrc_qp_attr {
            mpr = "mpr.mpr", mpr_dest = "mpr.mpr_dest", max_wimm = "wimm.max_wimm",
            max_wimm_dest = "wimm.max_wimm_dest", timeout, ev_profile_id = "profile.ev_profile_id",
            cc_profile_id = "profile.cc_profile_id", linear_cnt = "retry.linear_cnt", exp_cnt = "retry.exp_cnt",
            qp_hint, cap, vendor_cfg,
        }
        mrc_async_event { element, event_type }
    };
    let values = values! {
        MRC_API_CURRENT_VERSION = CURRENT_VERSION;
        MRC_API_LAST_SUPPORTED_VERSION = OLDEST_VERSION;
        MRC_VENDOR_API_CURRENT_VERSION = VENDOR_VERSION;
        MRC_VENDOR_API_LAST_SUPPORTED_VERSION = OLDEST_VERSION;
        MRC_MAX_VENDOR_CFG_SIZE = MRC_MAX_VENDOR_CFG_SIZE;
        MRC_PROTOCOL_VERSION_1 = MRC_PROTOCOL_VERSION_1;
        MRC_DEVICE_CAP_TRIM_NACK = device_cap::TRIM_NACK;
        MRC_DEVICE_CAP_DYNAMIC_MPR = device_cap::DYNAMIC_MPR;
        MRC_QP_MAX_WIMM = attr_mask::MAX_WIMM;
        MRC_QP_MAX_WIMM_DEST = attr_mask::MAX_WIMM_DEST;
        MRC_QP_MPR = attr_mask::MPR;
        MRC_QP_MPR_DEST = attr_mask::MPR_DEST;
        MRC_QP_TIMEOUT = attr_mask::TIMEOUT;
        MRC_QP_EV_PROFILE_ID = attr_mask::EV_PROFILE_ID;
        MRC_QP_CC_PROFILE_ID = attr_mask::CC_PROFILE_ID;
        MRC_QP_HINT = attr_mask::HINT;
        MRC_QP_RETRY_CNT = attr_mask::RETRY_CNT;
        MRC_QP_CAP = attr_mask::CAP;
        MRC_QP_VENDOR_CFG = attr_mask::VENDOR_CFG;
        MRC_QP_CAP_TRIM_NACK_DEST_UNSUPPORTED = qp_cap::TRIM_NACK_DEST_UNSUPPORTED;
        MRC_QP_CAP_DYNAMIC_MPR = qp_cap::DYNAMIC_MPR;
        MRC_QP_CAP_SVC_TIME_DEST_UNSUPPORTED = qp_cap::SVC_TIME_DEST_UNSUPPORTED;
        MRC_QP_HINT_NUM_QPS_PER_PEER = hint_mask::NUM_QPS_PER_PEER;
        MRC_QP_HINT_NUM_SEND_PEERS = hint_mask::NUM_SEND_PEERS;
        MRC_QP_HINT_NUM_REMOTE_RECV_PEERS = hint_mask::NUM_REMOTE_RECV_PEERS;
        MRC_QP_HINT_VENDOR_CFG = hint_mask::VENDOR_CFG;
    };
    c.push_str(&values.0);
    rust.extend(values.1);
    (c, rust)
}

/// What OCP's `mrc_ctl.h` declares.
#[expect(clippy::too_many_lines, reason = "a list")]
fn mrc_ctl() -> (String, Vec<(String, usize)>) {
    use crate::mrc::ctl::abi::*;

    let (mut c, mut rust) = layouts! {
        mrc_ctl_device_attr {
            mrc_ctl_protocol_version, ev_max_fmt_profiles = "ev.ev_max_fmt_profiles",
            ev_max_profiles = "ev.ev_max_profiles", ev_max_count = "ev.ev_max_count",
            ev_free_count = "ev.ev_free_count", ev_max_count_profile = "ev.ev_max_count_profile",
            ev_count_align = "ev.ev_count_align", ev_max_width = "ev.ev_max_width",
            ev_fmt_mode_mask = "ev.ev_fmt_mode_mask", ev_mode_mask = "ev.ev_mode_mask",
            ev_op_max_entries = "ev.ev_op_max_entries", cc, phy_port_mask, opt_attr,
        }
        mrc_ctl_port_attr { port_admin_state }
        mrc_ctl_ev_fmt_field { width }
        mrc_ctl_ev_fmt_profile_attr { profile_state, cur_profile_state, ev_fmt_mode, ev_fmt_op, vendor_cfg }
        mrc_ctl_ev { val, port }
        mrc_ctl_ev_field { width, init_val, min_val, max_val, mask }
        mrc_ctl_ev_op_entry { ev, ev_new, state, flags }
        mrc_ctl_ev_profile_attr {
            profile_state, cur_profile_state, ev_mode, ev_fmt_profile_id, ev_count, ev_min_active, ev_event_mask,
            ev_op, ev_fields_op, vendor_cfg,
        }
        mrc_ctl_cc_profile_attr { profile_state, cur_profile_state, algorithm, cc_config, vendor_cfg }
        mrc_ctl_cc_nscc_cfg {
            disable_qa, adjust_bytes_threshold, adjust_period_threshold, base_rtt, eta, fi, fi_scale, gamma,
            max_md_jump, max_cwnd, qa_gate, qa_threshold, target_delay,
        }
        mrc_ctl_ev_event { profile_id, ev, drop_count, state }
        mrc_ctl_ep_req { req_id, sgid, dgid, ev_fmt_mode, req_ev, port_status = "op.port_status_update.port_status" }
        mrc_ctl_ep_rsp { req_id, port, rtt, adj_svc_time }
    };
    macro_rules! members {
        ($($of:ident: $($name:ident).+;)+) => {
            $(
                let (of, member) = (stringify!($of), stringify!($($name).+));
                writeln!(c, "P(offsetof(struct {of}, {member}));").unwrap();
                rust.push((format!("{of}.{member}"), core::mem::offset_of!($of, $($name).+)));
            )+
        };
    }
    members! {
        mrc_ctl_device_attr: cc.cc_max_profiles;
        mrc_ctl_device_attr: cc.algorithms;
        mrc_ctl_ev_fmt_profile_attr: ev_fmt_op.fmt_fields;
        mrc_ctl_ev_fmt_profile_attr: ev_fmt_op.fmt_field_count;
        mrc_ctl_ev_profile_attr: ev_op.entries;
        mrc_ctl_ev_profile_attr: ev_op.entry_count;
        mrc_ctl_ev_profile_attr: ev_fields_op.fields;
        mrc_ctl_ev_profile_attr: ev_fields_op.field_count;
    }
    let values = values! {
        MRC_CTL_API_CURRENT_VERSION = crate::mrc::abi::CURRENT_VERSION;
        MRC_CTL_API_LAST_SUPPORTED_VERSION = crate::mrc::abi::OLDEST_VERSION;
        MRC_CTL_VENDOR_API_CURRENT_VERSION = crate::mrc::abi::VENDOR_VERSION;
        MRC_CTL_VENDOR_API_LAST_SUPPORTED_VERSION = crate::mrc::abi::OLDEST_VERSION;
        MRC_CTL_MAX_VENDOR_CFG_SIZE = MAX_VENDOR_CFG_SIZE;
        MRC_CTL_EV_MAX_BYTES = EV_MAX_BYTES;
        MRC_CTL_PROTOCOL_VERSION_1 = PROTOCOL_VERSION_1;
        MRC_CTL_PROFILE_INIT = profile_state::INIT;
        MRC_CTL_PROFILE_OFFLINE = profile_state::OFFLINE;
        MRC_CTL_PROFILE_ONLINE = profile_state::ONLINE;
        MRC_CTL_OPT_CAP_EV_PROFILE_MODIFY_ONLINE = opt_cap::EV_PROFILE_MODIFY_ONLINE;
        MRC_CTL_OPT_CAP_CC_PROFILE_MODIFY_ONLINE = opt_cap::CC_PROFILE_MODIFY_ONLINE;
        MRC_CTL_OPT_CAP_EV_EVENT = opt_cap::EV_EVENT;
        MRC_CTL_OPT_CAP_EV_EXPLICIT_RANGE = opt_cap::EV_EXPLICIT_RANGE;
        MRC_CTL_OPT_CAP_EV_EVENT_PRECISE_DROP_CNT = opt_cap::EV_EVENT_PRECISE_DROP_CNT;
        MRC_CTL_OPT_CAP_EP_OP_EV_PROBE = opt_cap::EP_OP_EV_PROBE;
        MRC_CTL_PORT_ADMIN_DISABLED = 0;
        MRC_CTL_PORT_ADMIN_ENABLED = 1;
        MRC_CTL_PORT_ADMIN_STATE = port_mask::ADMIN_STATE;
        MRC_CTL_EV_FMT_MODE_STEV = fmt_mode::STEV;
        MRC_CTL_EV_FMT_MODE_SRV6 = fmt_mode::SRV6;
        MRC_CTL_EV_FMT_MODE_UDP = fmt_mode::UDP;
        MRC_CTL_EV_FMT_OP_MODIFY_FIELDS = fields_op::MODIFY;
        MRC_CTL_EV_FMT_OP_QUERY_FIELDS = fields_op::QUERY;
        MRC_CTL_EV_FMT_PROFILE_STATE = fmt_mask::STATE;
        MRC_CTL_EV_FMT_PROFILE_CUR_STATE = fmt_mask::CUR_STATE;
        MRC_CTL_EV_FMT_PROFILE_MODE = fmt_mask::MODE;
        MRC_CTL_EV_FMT_PROFILE_OP = fmt_mask::OP;
        MRC_CTL_EV_FMT_VENDOR_CFG = fmt_mask::VENDOR_CFG;
        MRC_CTL_EV_GOOD = ev_state::GOOD;
        MRC_CTL_EV_ASSUMED_BAD = ev_state::ASSUMED_BAD;
        MRC_CTL_EV_DENIED = ev_state::DENIED;
        MRC_CTL_EV_MODE_AUTO = ev_mode::AUTO;
        MRC_CTL_EV_MODE_EXP = ev_mode::EXPLICIT;
        MRC_CTL_EV_MODE_GEN = ev_mode::GENERATED;
        MRC_CTL_EV_OP_REPLACE_EV = ev_op::REPLACE;
        MRC_CTL_EV_OP_MODIFY_EV_STATE = ev_op::MODIFY_STATE;
        MRC_CTL_EV_OP_QUERY_EV_STATE = ev_op::QUERY_STATE;
        MRC_CTL_EV_OP_QUERY_EV_ARRAY = ev_op::QUERY_ARRAY;
        MRC_CTL_EV_FIELDS_OP_MODIFY_FIELDS = fields_op::MODIFY;
        MRC_CTL_EV_FIELDS_OP_QUERY_FIELDS = fields_op::QUERY;
        MRC_CTL_EV_OP_F_ALL_COPIES = EV_OP_F_ALL_COPIES;
        MRC_CTL_EV_PROFILE_STATE = ev_mask::STATE;
        MRC_CTL_EV_PROFILE_CUR_STATE = ev_mask::CUR_STATE;
        MRC_CTL_EV_PROFILE_MODE = ev_mask::MODE;
        MRC_CTL_EV_PROFILE_FMT_ID = ev_mask::FMT_ID;
        MRC_CTL_EV_PROFILE_COUNT = ev_mask::COUNT;
        MRC_CTL_EV_PROFILE_MIN_ACTIVE = ev_mask::MIN_ACTIVE;
        MRC_CTL_EV_PROFILE_EVENT_MASK = ev_mask::EVENT_MASK;
        MRC_CTL_EV_PROFILE_EV_OP = ev_mask::EV_OP;
        MRC_CTL_EV_PROFILE_EV_FIELDS_OP = ev_mask::FIELDS_OP;
        MRC_CTL_EV_PROFILE_VENDOR_CFG = ev_mask::VENDOR_CFG;
        MRC_CTL_CC_PROFILE_STATE = cc_mask::STATE;
        MRC_CTL_CC_PROFILE_CUR_STATE = cc_mask::CUR_STATE;
        MRC_CTL_CC_PROFILE_ALGORITHM = cc_mask::ALGORITHM;
        MRC_CTL_CC_PROFILE_CONFIG = cc_mask::CONFIG;
        MRC_CTL_CC_PROFILE_VENDOR_CFG = cc_mask::VENDOR_CFG;
        MRC_CTL_EP_OP_EV_PROBE = ep_op::EV_PROBE;
        MRC_CTL_EP_OP_PORT_STATUS_UPDATE = ep_op::PORT_STATUS_UPDATE;
    };
    c.push_str(&values.0);
    rust.extend(values.1);
    (c, rust)
}

/// The numbers that a C program prints; `None` where there is no compiler, or no header.
fn printed(name: &str, includes: &[&str], flags: &[String], values: &str) -> Option<Vec<usize>> {
    let mut lines = String::new();
    for include in includes {
        writeln!(lines, "#include <{include}>").unwrap();
    }
    let program = format!(
        "#include <stddef.h>\n#include <stdio.h>\n{lines}\
         #define P(value) printf(\"%llu\\n\", (unsigned long long)(value))\n\
         int main(void) {{\n{values}return 0;\n}}\n"
    );
    let folder = std::env::temp_dir().join(format!("spindrift-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let binary = folder.join("layout");
    let mut compiler = Command::new("cc");
    compiler.args(flags).args(["-x", "c", "-", "-o"]).arg(&binary).stdin(Stdio::piped());
    let compiled = compiler.spawn().and_then(|mut compiler| {
        compiler.stdin.take().unwrap().write_all(program.as_bytes())?;
        compiler.wait()
    });
    let output = compiled
        .ok()
        .filter(std::process::ExitStatus::success)
        .map(|_| Command::new(&binary).output().unwrap());
    std::fs::remove_dir_all(&folder).unwrap();
    let text = String::from_utf8(output?.stdout).unwrap();
    Some(text.lines().map(|line| line.parse().unwrap()).collect())
}

/// Names, with the number here and in the header where they differ.
fn differ(ours: &[(String, usize)], theirs: &[usize]) -> Vec<(String, usize, usize)> {
    assert_eq!(ours.len(), theirs.len());
    let both = ours.iter().zip(theirs).filter(|((_, ours), theirs)| ours != *theirs);
    both.map(|((name, ours), theirs)| (name.clone(), *ours, *theirs)).collect()
}

#[test]
fn layouts_and_values_are_those_of_the_header() {
    let all = [layouts(), connections(), from_the_end(), constants()];
    let program: String = all.iter().map(|(c, _)| c.as_str()).collect();
    let Some(printed) = printed("layout", &["infiniband/verbs.h", "rdma/rdma_cma.h"], &[], &program) else {
        let required = std::env::var_os("SPINDRIFT_REQUIRE_VERBS_H").is_some();
        assert!(
            !required,
            "there is no C compiler, no infiniband/verbs.h or no rdma/rdma_cma.h; ./tools/setup.sh --tests installs them"
        );
        eprintln!(
            "SKIPPED: there is no C compiler, no infiniband/verbs.h or no rdma/rdma_cma.h (packages libibverbs-dev and librdmacm-dev)"
        );
        return;
    };
    let ours: Vec<_> = all.into_iter().flat_map(|(_, rust)| rust).collect();
    let differ = differ(&ours, &printed);
    assert!(differ.is_empty(), "name, here, in the header: {differ:?}");
}

/// OCP's headers are not part of this repository: `SPINDRIFT_MRC_SOURCES` names a checkout of theirs.
#[test]
fn layouts_and_values_are_those_of_ocps_header() {
    let Some(sources) = std::env::var_os("SPINDRIFT_MRC_SOURCES") else {
        eprintln!("SKIPPED: SPINDRIFT_MRC_SOURCES names no checkout of OCP's Multipath Reliable Connection");
        return;
    };
    let flags = [format!("-I{}", sources.display())];
    for (header, (program, ours)) in [("mrc.h", mrc()), ("mrc_ctl.h", mrc_ctl())] {
        let printed = printed("mrc-layout", &[header], &flags, &program)
            .unwrap_or_else(|| panic!("{} has no {header}, or there is no C compiler", sources.display()));
        let differ = differ(&ours, &printed);
        assert!(differ.is_empty(), "name, here, in {header}: {differ:?}");
    }
}
