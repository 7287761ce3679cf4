//! Queue pairs of unreliable datagrams (UD): each send is a message on the control socket, see [`datagram`].
//!
//! As on InfiniBand, a datagram is lost without a trace if the receiver has no receive, no room in its completion queue, or another
//! `Q_Key`. A send is complete when the system has taken it.

use core::ffi::{c_int, c_uint};
use core::sync::atomic::{AtomicU32, Ordering};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use spindrift::work::Sge;

use crate::abi::{
    IBV_WC_GRH, IBV_WC_WITH_IMM, ibv_qp_attr, ibv_qp_cap, ibv_wc, qp_attr_mask, qp_state, wc_opcode,
    wc_status,
};
use crate::connection::{no_attributes, remember};
use crate::datagram::{self, Datagram, GRH, Head, Route};
use crate::handshake::Number;
use crate::nic::Nic;
use crate::side_queue::SideQueue;
use crate::tally::count;
use spindrift_programs::gid;

/// See the [module documentation](self).
pub(crate) struct UdQp {
    pub(crate) number: Number,
    pub(crate) nic: Arc<Nic>,
    /// The address of its protection domain.
    pd: usize,
    /// Bytes of a message, at most.
    mtu: usize,
    send_queue: Arc<SideQueue>,
    recv_queue: Arc<SideQueue>,
    /// Sends whose completions were not polled yet.
    sends: Arc<AtomicU32>,
    inner: Mutex<Inner>,
}

pub(crate) struct Inner {
    pub(crate) state: c_int,
    pub(crate) attr: ibv_qp_attr,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) sig_all: bool,
    receives: VecDeque<Receive>,
}

struct Receive {
    wr_id: u64,
    list: Box<[Sge]>,
}

/// What a queue pair is made from.
pub(crate) struct UdConfig {
    pub(crate) pd: usize,
    pub(crate) send_queue: Arc<SideQueue>,
    pub(crate) recv_queue: Arc<SideQueue>,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) sig_all: bool,
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) route: Route,
    pub(crate) number: Number,
    pub(crate) qkey: u32,
}

/// A datagram to send.
pub(crate) struct UdSend<'a> {
    pub(crate) wr_id: u64,
    pub(crate) imm: Option<u32>,
    pub(crate) signaled: bool,
    pub(crate) target: Target,
    pub(crate) data: UdData<'a>,
}

pub(crate) enum UdData<'a> {
    Elements(&'a [Sge]),
    Inline(&'a [u8]),
}

impl UdData<'_> {
    fn len(&self) -> u64 {
        match self {
            Self::Elements(list) => len_of(list),
            Self::Inline(bytes) => bytes.len() as u64,
        }
    }
}

fn len_of(list: &[Sge]) -> u64 {
    list.iter().map(|sge| u64::from(sge.len)).sum()
}

impl UdQp {
    /// Gives a queue pair a number. `None`: all are in use.
    pub(crate) fn add(nic: &Arc<Nic>, config: UdConfig) -> Option<Arc<Self>> {
        let UdConfig { pd, send_queue, recv_queue, cap, sig_all } = config;
        let inner =
            Inner { state: qp_state::RESET, attr: no_attributes(), cap, sig_all, receives: VecDeque::new() };
        nic.add_datagrams(|number| {
            Arc::new(Self {
                number,
                nic: Arc::clone(nic),
                pd,
                mtu: nic.mtu() as usize,
                send_queue,
                recv_queue,
                sends: Arc::default(),
                inner: Mutex::new(inner),
            })
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn completion(&self, wr_id: u64, status: c_int, opcode: c_int) -> ibv_wc {
        ibv_wc {
            wr_id,
            status,
            opcode,
            vendor_err: 0,
            byte_len: 0,
            imm_data: 0,
            qp_num: self.number.get(),
            src_qp: 0,
            wc_flags: 0,
            pkey_index: 0,
            slid: 0,
            sl: 0,
            dlid_path_bits: 0,
        }
    }

    fn complete_send(&self, wr_id: u64, status: c_int) {
        self.send_queue.push(self.completion(wr_id, status, wc_opcode::SEND), Some(&self.sends));
    }

    fn complete_receive(&self, wr_id: u64, status: c_int) {
        self.recv_queue.push(self.completion(wr_id, status, wc_opcode::RECV), None);
    }

    /// Ends in ERROR: what was posted is flushed.
    fn fail(&self, inner: &mut Inner) {
        inner.state = qp_state::ERR;
        for receive in inner.receives.drain(..) {
            self.complete_receive(receive.wr_id, wc_status::WR_FLUSH_ERR);
        }
    }

    /// How many sends can be posted now.
    pub(crate) fn room(&self, inner: &Inner) -> u32 {
        inner.cap.max_send_wr.saturating_sub(self.sends.load(Ordering::Relaxed))
    }

    /// Whether requests may be posted.
    pub(crate) fn takes_sends(inner: &Inner) -> Result<(), c_int> {
        match inner.state {
            qp_state::RTS | qp_state::SQE | qp_state::ERR => Ok(()),
            _ => Err(libc::EINVAL),
        }
    }

    pub(crate) fn post_send(&self, inner: &mut Inner, send: &UdSend<'_>) -> Result<(), c_int> {
        Self::takes_sends(inner)?;
        if self.room(inner) == 0 {
            return Err(libc::ENOMEM);
        }
        let status =
            if inner.state == qp_state::RTS { self.send(inner, send) } else { wc_status::WR_FLUSH_ERR };
        match status {
            wc_status::SUCCESS if !(send.signaled || inner.sig_all) => return Ok(()),
            wc_status::SUCCESS => {}
            // Receives go on after the error of a send (InfiniBand 1.4, section 10.3.1.6).
            _ if inner.state == qp_state::RTS => inner.state = qp_state::SQE,
            _ => {}
        }
        self.complete_send(send.wr_id, status);
        Ok(())
    }

    /// Hands a datagram to the system. Returns the status of its completion.
    fn send(&self, inner: &Inner, send: &UdSend<'_>) -> c_int {
        let len = send.data.len();
        if len > self.mtu as u64 {
            return wc_status::LOC_LEN_ERR;
        }
        let Target { route, number, qkey } = send.target;
        // The highest bit stands for the queue pair's own key (InfiniBand 1.4, section 10.2.5).
        let qkey = if qkey >> 31 == 1 { inner.attr.qkey } else { qkey };
        let head = Head { from: self.number, to: number, qkey, imm: send.imm };
        let mut bytes = datagram::begin(&head, &route, len as usize);
        match send.data {
            UdData::Inline(inline) => bytes.extend_from_slice(inline),
            UdData::Elements(list) => {
                if self.nic.local.gather(self.pd, list, &mut bytes).is_err() {
                    return wc_status::LOC_PROT_ERR;
                }
            }
        }
        self.nic.send_datagram(gid::address(route.dgid), number, &bytes);
        wc_status::SUCCESS
    }

    pub(crate) fn post_recv(&self, inner: &mut Inner, wr_id: u64, list: &[Sge]) -> Result<(), c_int> {
        match inner.state {
            qp_state::RESET => return Err(libc::EINVAL),
            qp_state::ERR => {
                self.complete_receive(wr_id, wc_status::WR_FLUSH_ERR);
                return Ok(());
            }
            _ => {}
        }
        if inner.receives.len() >= inner.cap.max_recv_wr as usize {
            return Err(libc::ENOMEM);
        }
        inner.receives.push_back(Receive { wr_id, list: list.into() });
        Ok(())
    }

    /// A datagram has arrived. Returns whether a receive has taken it.
    pub(crate) fn deliver(&self, datagram: &Datagram<'_>) -> bool {
        let mut inner = self.lock();
        let takes = matches!(inner.state, qp_state::RTR | qp_state::RTS | qp_state::SQE);
        if !takes || datagram.head.qkey != inner.attr.qkey || self.recv_queue.is_full() {
            return false;
        }
        let Some(Receive { wr_id, list }) = inner.receives.pop_front() else { return false };
        let len = GRH + datagram.payload.len();
        let mut status = wc_status::LOC_LEN_ERR;
        if len as u64 <= len_of(&list) {
            let mut bytes = Vec::with_capacity(len);
            bytes.extend_from_slice(datagram.grh);
            bytes.extend_from_slice(datagram.payload);
            let placed = self.nic.local.scatter(self.pd, &list, &bytes);
            status = if placed.is_ok() { wc_status::SUCCESS } else { wc_status::LOC_PROT_ERR };
        }
        if status != wc_status::SUCCESS {
            self.complete_receive(wr_id, status);
            self.fail(&mut inner);
            count(&self.nic.tally.failed);
            return true;
        }
        let imm: c_uint = if datagram.head.imm.is_some() { IBV_WC_WITH_IMM } else { 0 };
        let wc = ibv_wc {
            byte_len: len as u32,
            imm_data: datagram.head.imm.unwrap_or(0).to_be(),
            src_qp: datagram.head.from.get(),
            wc_flags: IBV_WC_GRH | imm,
            ..self.completion(wr_id, status, wc_opcode::RECV)
        };
        self.recv_queue.push(wc, None);
        true
    }

    pub(crate) fn modify(&self, attr: &ibv_qp_attr, mask: c_int) -> Result<c_int, c_int> {
        let mut inner = self.lock();
        let from = inner.state;
        let to = if mask & qp_attr_mask::STATE == 0 { from } else { attr.qp_state };
        if mask & qp_attr_mask::CUR_STATE != 0 && attr.cur_qp_state != from {
            return Err(libc::EINVAL);
        }
        match (from, to) {
            (_, qp_state::RESET) => self.clear(&mut inner),
            (_, qp_state::ERR) => self.fail(&mut inner),
            (qp_state::RESET | qp_state::INIT, qp_state::INIT)
            | (qp_state::INIT | qp_state::RTR, qp_state::RTR)
            | (qp_state::RTR | qp_state::RTS | qp_state::SQE, qp_state::RTS) => {
                remember(&mut inner.attr, attr, mask);
            }
            _ => return Err(libc::EINVAL),
        }
        inner.state = to;
        Ok(to)
    }

    /// Drops what was posted, and completions that nobody has polled.
    fn clear(&self, inner: &mut Inner) {
        inner.receives.clear();
        self.send_queue.forget(self.number.get());
        self.recv_queue.forget(self.number.get());
    }

    /// The program destroys it. A datagram that is being delivered is delivered before, or dropped.
    pub(crate) fn end(&self) {
        let mut inner = self.lock();
        inner.state = qp_state::RESET;
        self.clear(&mut inner);
    }
}
