//! What sequences do with work: they post it, and compare each completion with what was posted.

use super::*;

impl World {
    /// Ranges of regions, mostly.
    pub(super) fn elements(&mut self, most: usize) -> Vec<ibv_sge> {
        let count = self.rng.below(most + 1);
        (0..count)
            .map(|_| {
                let mrs = self.mrs.clone();
                let Some((mr, _)) = self.rng.pick(&mrs).filter(|_| !self.rng.one_in(12)) else {
                    // Of no region. It is refused before it is read, but may be copied as inline data.
                    let addr = self.memory.as_ptr().addr() as u64;
                    return ibv_sge { addr, length: self.rng.below(16) as u32, lkey: self.rng.next() as u32 };
                };
                // SAFETY: a region of this world.
                let (addr, len, lkey) = unsafe { ((*mr).addr.addr(), (*mr).length, (*mr).lkey) };
                let from = self.rng.below(len);
                let length = self.rng.below((len - from).min(9000) + 1) as u32;
                ibv_sge { addr: (addr + from) as u64, length, lkey }
            })
            .collect()
    }

    pub(super) fn send(&mut self) {
        if self.qps.is_empty() {
            return;
        }
        let at = self.rng.below(self.qps.len());
        let id = self.id();
        let mut list = self.elements(3);
        let mrs = self.mrs.clone();
        let remote = self.rng.pick(&mrs);
        // SAFETY: regions and handles of this world; numbers.
        let mut wr: ibv_send_wr = unsafe { zeroed() };
        wr.wr_id = id;
        (wr.sg_list, wr.num_sge) = (list.as_mut_ptr(), list.len() as c_int);
        wr.opcode = if self.rng.one_in(12) { self.rng.next() as c_int } else { self.rng.below(7) as c_int };
        let signaled = self.rng.one_in(2);
        wr.send_flags = if signaled { IBV_SEND_SIGNALED } else { 0 }
            | if self.rng.one_in(4) { IBV_SEND_INLINE } else { 0 };
        if self.qps[at].kind == IBV_QPT_UD {
            let Some((ah, _)) = self.rng.pick(&self.ahs) else { return };
            let of_datagrams = |at: &usize| self.qps[*at].kind == IBV_QPT_UD;
            let likely: Vec<_> = (0..self.qps.len()).filter(of_datagrams).collect();
            let any = self.rng.below(self.qps.len());
            let to = self.rng.pick(&likely).filter(|_| !self.rng.one_in(4)).unwrap_or(any);
            // SAFETY: a queue pair of this world.
            let remote_qpn = unsafe { (*self.qps[to].qp).qp_num };
            wr.wr = SendPart { ud: UdPart { ah, remote_qpn, remote_qkey: 5 } };
        } else if let Some((mr, _)) = remote {
            // SAFETY: a region of this world.
            let (remote_addr, rkey) = unsafe { ((*mr).addr.addr() as u64, (*mr).rkey) };
            wr.wr = SendPart {
                atomic: AtomicPart { remote_addr: remote_addr & !7, compare_add: 1, swap: 2, rkey },
            };
            if wr.opcode < wr_opcode::ATOMIC_CMP_AND_SWP {
                wr.wr = SendPart { rdma: RdmaPart { remote_addr, rkey } };
            }
        }
        if wr.send_flags & IBV_SEND_INLINE != 0 && list.iter().any(|sge| sge.length > 16) {
            // Its bytes are read at once, wherever they are.
            wr.send_flags &= !IBV_SEND_INLINE;
        }
        let mut bad = null_mut();
        // SAFETY: as above.
        let code = unsafe { post::post_send(self.qps[at].qp, &raw mut wr, &raw mut bad) };
        if code == 0 {
            self.qps[at].sends.insert(id, signaled);
            // As programs do that wait. It also gives packets the time to arrive.
            let queue = self.qps[at].send_cq;
            for _ in 0..self.rng.below(4) {
                self.poll(queue);
            }
        } else {
            assert_eq!(bad, &raw mut wr);
            self.reached.refused += 1;
        }
    }

    /// By the functions that make requests one by one.
    pub(super) fn build(&mut self) {
        let extended: Vec<usize> = (0..self.qps.len()).filter(|at| self.qps[*at].extended).collect();
        let Some(at) = self.rng.pick(&extended) else { return };
        let mrs = self.mrs.clone();
        let mut ids = Vec::new();
        // SAFETY: objects of this world.
        unsafe {
            let ex = qp::ibv_qp_to_qp_ex(self.qps[at].qp);
            assert!(!ex.is_null());
            ((*ex).wr_start.unwrap())(ex);
            for _ in 0..self.rng.below(4) {
                let id = self.id();
                (*ex).wr_id = id;
                (*ex).wr_flags = IBV_SEND_SIGNALED;
                let remote =
                    self.rng.pick(&mrs).map_or((0, 0), |(mr, _)| ((*mr).rkey, (*mr).addr.addr() as u64));
                if self.qps[at].kind == IBV_QPT_UD {
                    ((*ex).wr_send.unwrap())(ex);
                    if let Some((ah, _)) = self.rng.pick(&self.ahs).filter(|_| !self.rng.one_in(6)) {
                        ((*ex).wr_set_ud_addr.unwrap())(ex, ah, (*self.qps[at].qp).qp_num, 5);
                    }
                } else {
                    match self.rng.below(5) {
                        0 => ((*ex).wr_rdma_write.unwrap())(ex, remote.0, remote.1),
                        1 => ((*ex).wr_rdma_read.unwrap())(ex, remote.0, remote.1),
                        2 => ((*ex).wr_send_imm.unwrap())(ex, 9),
                        3 => ((*ex).wr_atomic_fetch_add.unwrap())(ex, remote.0, remote.1 & !7, 1),
                        _ => ((*ex).wr_send.unwrap())(ex),
                    }
                }
                let list = self.elements(4);
                match self.rng.below(4) {
                    0 => ((*ex).wr_set_sge_list.unwrap())(ex, list.len(), list.as_ptr()),
                    1 => {
                        let first = list.first().copied().unwrap_or(ibv_sge { addr: 0, length: 0, lkey: 0 });
                        ((*ex).wr_set_sge.unwrap())(ex, first.lkey, first.addr, first.length);
                    }
                    2 => ((*ex).wr_set_inline_data.unwrap())(
                        ex,
                        self.memory.as_mut_ptr().cast(),
                        self.rng.below(80),
                    ),
                    // Without data.
                    _ => {}
                }
                ids.push(id);
            }
            if self.rng.one_in(4) {
                ((*ex).wr_abort.unwrap())(ex);
            } else if ((*ex).wr_complete.unwrap())(ex) == 0 {
                self.qps[at].sends.extend(ids.into_iter().map(|id| (id, true)));
            }
        }
    }

    pub(super) fn receive(&mut self) {
        let id = self.id();
        let mut list = self.elements(3);
        // SAFETY: numbers.
        let mut wr: ibv_recv_wr = unsafe { zeroed() };
        (wr.wr_id, wr.sg_list, wr.num_sge) = (id, list.as_mut_ptr(), list.len() as c_int);
        let mut bad = null_mut();
        let srqs = self.srqs.clone();
        // SAFETY: objects of this world.
        unsafe {
            if let Some((srq, _)) = self.rng.pick(&srqs).filter(|_| self.rng.one_in(4)) {
                if srq::post_srq_recv(srq, &raw mut wr, &raw mut bad) == 0 {
                    self.shared.insert(id);
                }
            } else if !self.qps.is_empty() {
                let at = self.rng.below(self.qps.len());
                if post::post_recv(self.qps[at].qp, &raw mut wr, &raw mut bad) == 0 {
                    self.qps[at].receives.insert(id);
                }
            }
        }
    }

    /// Takes what is complete, and checks that it was posted and not complete before.
    pub(super) fn poll(&mut self, queue: *mut ibv_cq) -> usize {
        // SAFETY: numbers.
        let mut found: [ibv_wc; 8] = unsafe { zeroed() };
        // SAFETY: a queue of this world, and places of this function.
        let count = unsafe { cq::poll_cq(queue, 8, found.as_mut_ptr()) };
        let count = usize::try_from(count).unwrap();
        for wc in &found[..count] {
            let id = wc.wr_id;
            match wc.status {
                wc_status::SUCCESS if wc.wc_flags & IBV_WC_GRH != 0 => self.reached.datagrams += 1,
                wc_status::SUCCESS if wc.opcode & wc_opcode::RECV != 0 => self.reached.received += 1,
                wc_status::SUCCESS => self.reached.sent += 1,
                wc_status::WR_FLUSH_ERR => self.reached.flushed += 1,
                _ => self.reached.failed += 1,
            }
            let mut owners = self.qps.iter_mut();
            let known = owners.any(|queue| queue.sends.remove(&id).is_some() || queue.receives.remove(&id))
                || self.shared.remove(&id)
                // Its queue pair is destroyed.
                || !self.qps.iter().any(|queue| {
                    // SAFETY: a queue pair of this world.
                    unsafe { (*queue.qp).qp_num == wc.qp_num }
                });
            assert!(
                known,
                "{id} was complete before, or never posted: status {} of {:#x}",
                wc.status, wc.qp_num
            );
        }
        count
    }

    pub(super) fn look(&mut self) {
        let (cqs, channels) = (self.cqs.clone(), self.channels.clone());
        // SAFETY: objects of this world; numbers may be any.
        unsafe {
            match self.rng.below(9) {
                0 => {
                    if let Some((cq, _)) = self.rng.pick(&cqs) {
                        assert_eq!(cq::req_notify_cq(cq, 0), 0);
                    }
                }
                1 => {
                    if let Some(channel) = self.rng.pick(&channels) {
                        let (mut cq, mut user) = (null_mut(), null_mut());
                        if channel::ibv_get_cq_event(channel, &raw mut cq, &raw mut user) == 0 {
                            assert!(self.cqs.iter().any(|(of, _)| *of == cq), "of a queue that has ended");
                        }
                    }
                }
                2 => {
                    libc::fcntl((*self.context).async_fd, libc::F_SETFL, libc::O_NONBLOCK);
                    let mut found: ibv_async_event = zeroed();
                    if event::ibv_get_async_event(self.context, &raw mut found) == 0 {
                        event::ibv_ack_async_event(&raw mut found);
                    }
                }
                3 if !self.qps.is_empty() => {
                    let at = self.rng.below(self.qps.len());
                    let (mut attr, mut init): (ibv_qp_attr, ibv_qp_init_attr) = (zeroed(), zeroed());
                    assert_eq!(qp::ibv_query_qp(self.qps[at].qp, &raw mut attr, -1, &raw mut init), 0);
                    assert_eq!(init.send_cq, self.qps[at].send_cq);
                }
                4 => {
                    let (mut gid, index) = (ibv_gid { raw: [0; 16] }, self.rng.number(5) as c_int);
                    let code = context::ibv_query_gid(self.context, 1, index, &raw mut gid);
                    assert_eq!(code == 0, (0..4).contains(&index));
                }
                5 => {
                    if let Some((srq, _)) = self.rng.pick(&self.srqs) {
                        let mut attr = ibv_srq_attr { max_wr: 5, max_sge: 1, srq_limit: self.rng.number(9) };
                        let _ = srq::ibv_modify_srq(srq, &raw mut attr, self.rng.below(4) as c_int);
                        assert_eq!(srq::ibv_query_srq(srq, &raw mut attr), 0);
                    }
                }
                _ => {
                    if let Some((cq, _)) = self.rng.pick(&cqs) {
                        self.poll(cq);
                    }
                }
            }
        }
    }
}
