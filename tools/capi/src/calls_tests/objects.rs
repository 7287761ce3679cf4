//! What sequences do with objects: they make, change and destroy them.

use super::*;

impl World {
    pub(super) fn make(&mut self) {
        // SAFETY: only objects of this world are passed, which live; numbers may be any.
        unsafe {
            match self.rng.below(9) {
                0 if self.pds.len() < MOST => self.pds.push(pd::ibv_alloc_pd(self.context)),
                1 if self.channels.len() < MOST => {
                    let made = channel::ibv_create_comp_channel(self.context);
                    libc::fcntl((*made).fd, libc::F_SETFL, libc::O_NONBLOCK);
                    self.channels.push(made);
                }
                2 if self.cqs.len() < MOST => {
                    let channels = self.channels.clone();
                    let channel =
                        self.rng.pick(&channels).filter(|_| self.rng.one_in(2)).unwrap_or(null_mut());
                    let depth = if self.rng.one_in(20) { self.rng.next() as c_int } else { DEPTH };
                    // A depth by chance may be large, but not as much as to fill the memory.
                    let depth = if depth > 1 << 16 { c_int::MAX } else { depth };
                    let vector = if self.rng.one_in(20) { 9 } else { 0 };
                    let made = cq::ibv_create_cq(self.context, depth, null_mut(), channel, vector);
                    if !made.is_null() && (*made).cqe < DEPTH {
                        // Too small for what follows.
                        assert_eq!(cq::ibv_destroy_cq(made), 0);
                    } else if !made.is_null() {
                        self.cqs.push((made, channel));
                    }
                }
                3 | 4 => self.register(),
                5 if self.srqs.len() < MOST => {
                    let Some(pd) = self.rng.pick(&self.pds) else { return };
                    let mut attr: ibv_srq_init_attr = zeroed();
                    (attr.attr.max_wr, attr.attr.max_sge) = (self.rng.number(64), self.rng.number(17));
                    if attr.attr.max_wr > 1 << 16 {
                        attr.attr.max_wr = u32::MAX;
                    }
                    let made = srq::ibv_create_srq(pd, &raw mut attr);
                    if !made.is_null() {
                        self.srqs.push((made, pd));
                    }
                }
                6 if self.ahs.len() < MOST => {
                    let Some(pd) = self.rng.pick(&self.pds) else { return };
                    let mut attr = self.way();
                    let made = ah::ibv_create_ah(pd, &raw mut attr);
                    if !made.is_null() {
                        self.ahs.push((made, pd));
                    }
                }
                _ => self.make_queue_pair(),
            }
        }
    }

    unsafe fn register(&mut self) {
        let Some(pd) = self.rng.pick(&self.pds).filter(|_| self.mrs.len() < 2 * MOST) else { return };
        let from = self.rng.below(MEMORY);
        let len = self.rng.below(MEMORY - from + 1);
        let flags = if self.rng.one_in(8) { self.rng.next() as c_uint & 0xff } else { 0xf };
        // SAFETY: within the memory, which lives as long as the regions.
        let made =
            unsafe { mr::ibv_reg_mr(pd, self.memory.as_mut_ptr().add(from).cast(), len, flags as c_int) };
        if !made.is_null() {
            self.mrs.push((made, pd));
        }
    }

    pub(super) fn way(&mut self) -> ibv_ah_attr {
        // SAFETY: numbers.
        let mut attr: ibv_ah_attr = unsafe { zeroed() };
        attr.is_global = u8::from(!self.rng.one_in(10));
        attr.port_num = if self.rng.one_in(10) { 9 } else { 1 };
        attr.grh.sgid_index = if self.rng.one_in(10) { 77 } else { 3 };
        attr.grh.dgid = ibv_gid { raw: spindrift_programs::gid::of("127.0.0.1".parse().unwrap()) };
        if self.rng.one_in(10) {
            attr.grh.dgid = ibv_gid { raw: [self.rng.next() as u8; 16] };
        }
        attr
    }

    unsafe fn make_queue_pair(&mut self) {
        if self.qps.len() >= 2 * MOST {
            return;
        }
        let (Some(pd), Some((send_cq, _)), Some((recv_cq, _))) =
            (self.rng.pick(&self.pds), self.rng.pick(&self.cqs), self.rng.pick(&self.cqs))
        else {
            return;
        };
        let kind = [IBV_QPT_RC, IBV_QPT_RC, IBV_QPT_UD, IBV_QPT_UC, of_mrc::MRC, 99][self.rng.below(6)];
        let srqs = self.srqs.clone();
        let shares = kind != of_mrc::MRC && self.rng.one_in(4);
        let srq = self.rng.pick(&srqs).filter(|_| shares).map_or(null_mut(), |(srq, _)| srq);
        let wrs = |rng: &mut Rng| if rng.one_in(30) { u32::MAX } else { rng.below(17) as u32 };
        let cap = ibv_qp_cap {
            max_send_wr: wrs(&mut self.rng),
            max_recv_wr: wrs(&mut self.rng),
            max_send_sge: self.rng.number(6),
            max_recv_sge: self.rng.number(6),
            max_inline_data: if self.rng.one_in(20) { u32::MAX } else { 64 },
        };
        let extended = kind != of_mrc::MRC && self.rng.one_in(3);
        // SAFETY: objects of this world.
        let made = unsafe {
            if extended {
                let mut attr: ibv_qp_init_attr_ex = zeroed();
                (attr.send_cq, attr.recv_cq, attr.srq, attr.cap, attr.qp_type) =
                    (send_cq, recv_cq, srq, cap, kind);
                attr.comp_mask = qp_init_attr_mask::PD | qp_init_attr_mask::SEND_OPS_FLAGS;
                attr.pd = pd;
                attr.send_ops_flags = if kind == IBV_QPT_UD { send_ops::DATAGRAM } else { send_ops::ALL };
                qp::create_qp_ex(self.context, &raw mut attr)
            } else if kind == of_mrc::MRC {
                of_mrc::create(self.mrc, pd, [send_cq, recv_cq], cap)
            } else {
                let mut attr: ibv_qp_init_attr = zeroed();
                (attr.send_cq, attr.recv_cq, attr.srq, attr.cap, attr.qp_type) =
                    (send_cq, recv_cq, srq, cap, kind);
                qp::ibv_create_qp(pd, &raw mut attr)
            }
        };
        if !made.is_null() {
            self.adopt(made, pd, [send_cq, recv_cq], srq, (kind, extended));
        }
    }

    /// Destroys some object, or is told that it is in use.
    pub(super) fn destroy(&mut self) {
        // SAFETY: objects of this world, which are forgotten if that succeeds.
        unsafe {
            match self.rng.below(7) {
                0 if !self.pds.is_empty() => {
                    let at = self.rng.below(self.pds.len());
                    let pd = self.pds[at];
                    let used = self.mrs.iter().any(|(_, of)| *of == pd)
                        || self.srqs.iter().any(|(_, of)| *of == pd)
                        || self.ahs.iter().any(|(_, of)| *of == pd)
                        || self.qps.iter().any(|queue| queue.pd == pd);
                    assert_eq!(pd::ibv_dealloc_pd(pd), if used { libc::EBUSY } else { 0 });
                    if !used {
                        self.pds.swap_remove(at);
                    }
                }
                1 if !self.mrs.is_empty() => {
                    let at = self.rng.below(self.mrs.len());
                    match mr::ibv_dereg_mr(self.mrs[at].0) {
                        0 => drop(self.mrs.swap_remove(at)),
                        code => {
                            assert_eq!(code, libc::EBUSY);
                            self.reached.in_use += 1;
                        }
                    }
                }
                2 if !self.channels.is_empty() => {
                    let at = self.rng.below(self.channels.len());
                    let used = self.cqs.iter().any(|(_, of)| *of == self.channels[at]);
                    let code = channel::ibv_destroy_comp_channel(self.channels[at]);
                    assert_eq!(code, if used { libc::EBUSY } else { 0 });
                    if !used {
                        self.channels.swap_remove(at);
                    }
                }
                3 if !self.cqs.is_empty() => {
                    let at = self.rng.below(self.cqs.len());
                    let cq = self.cqs[at].0;
                    let used = self.qps.iter().any(|queue| queue.send_cq == cq || queue.recv_cq == cq);
                    assert_eq!(cq::ibv_destroy_cq(cq), if used { libc::EBUSY } else { 0 });
                    if !used {
                        self.cqs.swap_remove(at);
                    }
                }
                4 if !self.srqs.is_empty() => {
                    let at = self.rng.below(self.srqs.len());
                    let used = self.qps.iter().any(|queue| queue.srq == self.srqs[at].0);
                    assert_eq!(srq::ibv_destroy_srq(self.srqs[at].0), if used { libc::EBUSY } else { 0 });
                    if !used {
                        self.srqs.swap_remove(at);
                    }
                }
                5 if !self.ahs.is_empty() => {
                    let at = self.rng.below(self.ahs.len());
                    assert_eq!(ah::ibv_destroy_ah(self.ahs.swap_remove(at).0), 0);
                }
                6 if !self.qps.is_empty() => {
                    let at = self.rng.below(self.qps.len());
                    self.destroy_queue_pair(at);
                }
                _ => {}
            }
        }
    }

    pub(super) unsafe fn destroy_queue_pair(&mut self, at: usize) {
        let queue = self.qps.swap_remove(at);
        // SAFETY: a queue pair of this world.
        unsafe { assert_eq!(qp::ibv_destroy_qp(queue.qp), 0) };
    }

    /// Changes a state: as programs do, or in any way.
    pub(super) fn change(&mut self) {
        if self.qps.is_empty() {
            return;
        }
        let (at, other) = (self.rng.below(self.qps.len()), self.rng.below(self.qps.len()));
        // SAFETY: numbers.
        let mut attr: ibv_qp_attr = unsafe { zeroed() };
        attr.ah_attr = self.way();
        // SAFETY: a queue pair of this world.
        attr.dest_qp_num = unsafe { (*self.qps[other].qp).qp_num };
        (attr.port_num, attr.path_mtu, attr.qkey) = (1, 3, 5);
        (attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer) =
            (8, 1, self.rng.below(8) as u8, 1);
        let steps: &[c_int] = match self.rng.below(8) {
            0 => &[qp_state::RESET],
            1 => &[qp_state::ERR],
            2 => &[qp_state::INIT],
            3..=6 => &[qp_state::INIT, qp_state::RTR, qp_state::RTS],
            _ => &[-3],
        };
        for step in steps {
            attr.qp_state = if *step == -3 { self.rng.next() as c_int % 10 } else { *step };
            let mask =
                if *step == -3 { self.rng.next() as c_int } else { 0x1f_ffff & !qp_attr_mask::CUR_STATE };
            let qp = self.qps[at].qp;
            // SAFETY: as above.
            let code = unsafe {
                match self.qps[at].kind {
                    of_mrc::MRC => of_mrc::modify(&mut self.rng, qp, &mut attr, mask),
                    _ => qp::ibv_modify_qp(qp, &raw mut attr, mask),
                }
            };
            if code == 0 && attr.qp_state == qp_state::RESET && mask & qp_attr_mask::STATE != 0 {
                self.qps[at].is_reset = true;
            }
        }
    }
}
