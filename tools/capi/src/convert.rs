//! Requests and completions, from one interface to the other.

use core::ffi::{c_int, c_uint};

use spindrift::work::{RemoteAddr, SendOp, Sge, Wc, WcOpcode, WcStatus};

use crate::abi::{
    IBV_WC_WITH_IMM, IBV_WC_WITH_INV, ibv_send_wr, ibv_sge, ibv_wc, wc_opcode, wc_status, wr_opcode,
};

/// An immediate as it is on the wire, from the bytes of a field in network byte order.
const fn imm(bytes: u32) -> u32 {
    u32::from_be(bytes)
}

/// The operation of a request, and its place at the peer. `None`: this interface does not have it.
///
/// # Safety
/// The parts of the unions that the opcode names are filled.
pub(crate) unsafe fn operation(wr: &ibv_send_wr) -> Option<(SendOp, RemoteAddr)> {
    // SAFETY: as the caller promises.
    let rdma = || unsafe { RemoteAddr { addr: wr.wr.rdma.remote_addr, rkey: wr.wr.rdma.rkey } };
    // SAFETY: as the caller promises.
    let atomic = || unsafe { wr.wr.atomic };
    Some(match wr.opcode {
        wr_opcode::RDMA_WRITE => (SendOp::Write, rdma()),
        wr_opcode::RDMA_WRITE_WITH_IMM => (SendOp::WriteWithImm(imm(wr.imm_data)), rdma()),
        wr_opcode::SEND => (SendOp::Send, RemoteAddr::default()),
        wr_opcode::SEND_WITH_IMM => (SendOp::SendWithImm(imm(wr.imm_data)), RemoteAddr::default()),
        wr_opcode::SEND_WITH_INV => (SendOp::SendWithInvalidate(wr.imm_data), RemoteAddr::default()),
        wr_opcode::RDMA_READ => (SendOp::Read, rdma()),
        wr_opcode::ATOMIC_CMP_AND_SWP => {
            let part = atomic();
            let op = SendOp::CompareSwap { compare: part.compare_add, swap: part.swap };
            (op, RemoteAddr { addr: part.remote_addr, rkey: part.rkey })
        }
        wr_opcode::ATOMIC_FETCH_AND_ADD => {
            let part = atomic();
            (SendOp::FetchAdd(part.compare_add), RemoteAddr { addr: part.remote_addr, rkey: part.rkey })
        }
        _ => return None,
    })
}

pub(crate) const fn element(sge: &ibv_sge) -> Sge {
    Sge { addr: sge.addr, len: sge.length, lkey: sge.lkey }
}

const fn status(status: WcStatus) -> c_int {
    match status {
        WcStatus::Success => wc_status::SUCCESS,
        WcStatus::LocalLengthError => wc_status::LOC_LEN_ERR,
        WcStatus::LocalQpOperationError => wc_status::LOC_QP_OP_ERR,
        WcStatus::LocalProtectionError => wc_status::LOC_PROT_ERR,
        WcStatus::WrFlushError => wc_status::WR_FLUSH_ERR,
        WcStatus::RemoteInvalidRequest => wc_status::REM_INV_REQ_ERR,
        WcStatus::RemoteAccessError => wc_status::REM_ACCESS_ERR,
        WcStatus::RemoteOperationError => wc_status::REM_OP_ERR,
        WcStatus::RetryExceeded => wc_status::RETRY_EXC_ERR,
        WcStatus::RnrRetryExceeded => wc_status::RNR_RETRY_EXC_ERR,
        WcStatus::FatalError => wc_status::FATAL_ERR,
        _ => wc_status::GENERAL_ERR,
    }
}

const fn opcode(opcode: WcOpcode) -> c_int {
    match opcode {
        WcOpcode::RdmaWrite => wc_opcode::RDMA_WRITE,
        WcOpcode::Send => wc_opcode::SEND,
        WcOpcode::RdmaRead => wc_opcode::RDMA_READ,
        WcOpcode::CompareSwap => wc_opcode::COMP_SWAP,
        WcOpcode::FetchAdd => wc_opcode::FETCH_ADD,
        WcOpcode::RecvRdmaWithImm => wc_opcode::RECV_RDMA_WITH_IMM,
        WcOpcode::Recv => wc_opcode::RECV,
    }
}

/// A completion with the numbers that the program knows.
pub(crate) const fn completion(wc: &Wc, qp_num: u32, src_qp: u32) -> ibv_wc {
    let (field, wc_flags): (u32, c_uint) = match (wc.imm, wc.invalidated) {
        (Some(imm), _) => (imm.to_be(), IBV_WC_WITH_IMM),
        (_, Some(rkey)) => (rkey, IBV_WC_WITH_INV),
        _ => (0, 0),
    };
    ibv_wc {
        wr_id: wc.wr_id,
        status: status(wc.status),
        opcode: opcode(wc.opcode),
        vendor_err: 0,
        byte_len: wc.byte_len,
        imm_data: field,
        qp_num,
        src_qp,
        wc_flags,
        pkey_index: 0,
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
    }
}
