//! Posting, by lists and one by one (`ibv_wr_*`).

use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::Ordering;

use spindrift::verbs::{InlineWr, PostError, Qp};
use spindrift::work::{GatherWr, MAX_SGE, RemoteAddr, ScatterWr, SendOp, SendWr, Sge};

use crate::abi::{
    IBV_SEND_FENCE, IBV_SEND_INLINE, IBV_SEND_SIGNALED, ibv_ah, ibv_data_buf, ibv_qp, ibv_qp_cap, ibv_qp_ex,
    ibv_recv_wr, ibv_send_wr, ibv_sge,
};
use crate::ah::AhBox;
use crate::connection::{Inner, QpCore};
use crate::convert::{element, operation};
use crate::error::{code, code_of_post};
use crate::handshake::Number;
use crate::qp::{Body, QpBox};
use crate::ud::{self, Target, UdData, UdQp, UdSend};

/// A request that is kept: the peer is not known yet, or the program has not finished it.
#[derive(Debug)]
pub(crate) struct Request {
    wr_id: u64,
    op: SendOp,
    remote: RemoteAddr,
    signaled: bool,
    fence: bool,
    local: Local,
    /// Where it goes, if it is a datagram.
    target: Option<Target>,
}

#[derive(Debug)]
enum Local {
    Elements(Vec<Sge>),
    Inline(Vec<u8>),
}

impl Local {
    /// Bytes in the request itself. Of none, a queue pair without room for such bytes takes a request too.
    fn inline(bytes: Vec<u8>) -> Self {
        if bytes.is_empty() { Self::Elements(Vec::new()) } else { Self::Inline(bytes) }
    }
}

impl Request {
    fn len(&self) -> u64 {
        match &self.local {
            Local::Elements(list) => list.iter().map(|sge| u64::from(sge.len)).sum(),
            Local::Inline(bytes) => bytes.len() as u64,
        }
    }

    /// Refuses what a queue pair of these sizes refuses, whoever its peer is.
    pub(crate) fn check(&self, cap: &ibv_qp_cap) -> Result<(), c_int> {
        let fits = match &self.local {
            Local::Elements(list) => list.len() <= cap.max_send_sge as usize,
            Local::Inline(bytes) => bytes.len() <= cap.max_inline_data as usize && !self.op.is_fetch(),
        };
        let len = self.len();
        let has_length = u32::try_from(len).is_ok() && (!self.op.is_atomic() || len == 8);
        if fits && has_length { Ok(()) } else { Err(libc::EINVAL) }
    }

    pub(crate) fn post(&self, qp: &mut Qp) -> Result<(), PostError> {
        let Self { wr_id, op, remote, signaled, fence, .. } = *self;
        match &self.local {
            Local::Elements(local) => qp.post_gather(GatherWr { wr_id, op, local, remote, signaled, fence }),
            Local::Inline(bytes) => {
                qp.post_send_inline(bytes, InlineWr { wr_id, op, remote, signaled, fence })
            }
        }
    }
}

/// The elements of a list.
///
/// # Safety
/// `count` elements at `list`.
unsafe fn elements<'a>(list: *const ibv_sge, count: c_int) -> Result<&'a [ibv_sge], c_int> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        Ok(count) if count <= MAX_SGE as usize && !list.is_null() => {
            // SAFETY: as the caller promises.
            Ok(unsafe { core::slice::from_raw_parts(list, count) })
        }
        _ => Err(libc::EINVAL),
    }
}

/// The bytes of elements, copied now.
///
/// # Safety
/// The elements name memory of the program.
unsafe fn copied(elements: &[ibv_sge]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(elements.iter().map(|sge| sge.length as usize).sum());
    for sge in elements.iter().filter(|sge| sge.length > 0) {
        let from = core::ptr::with_exposed_provenance::<u8>(sge.addr as usize);
        // SAFETY: as the caller promises; the bytes are copied and not kept.
        bytes.extend_from_slice(unsafe { core::slice::from_raw_parts(from, sge.length as usize) });
    }
    bytes
}

/// Posts one request of a list.
///
/// # Safety
/// As for `ibv_post_send`.
unsafe fn post_one(inner: &mut Inner, wr: &ibv_send_wr) -> Result<(), c_int> {
    // SAFETY: as the caller promises.
    let (op, remote) = unsafe { operation(wr) }.ok_or(libc::EOPNOTSUPP)?;
    // MRC has nothing else.
    if inner.mrc.is_some() && !matches!(op, SendOp::Write | SendOp::WriteWithImm(_)) {
        return Err(libc::EOPNOTSUPP);
    }
    // SAFETY: as the caller promises.
    let list = unsafe { elements(wr.sg_list, wr.num_sge) }?;
    let (signaled, fence) = (wr.send_flags & IBV_SEND_SIGNALED != 0, wr.send_flags & IBV_SEND_FENCE != 0);
    let wr_id = wr.wr_id;
    if wr.send_flags & IBV_SEND_INLINE != 0 && !op.is_fetch() {
        let len: u64 = list.iter().map(|sge| u64::from(sge.length)).sum();
        if len > u64::from(inner.cap.max_inline_data) {
            return Err(libc::EINVAL);
        }
        // SAFETY: as the caller promises.
        let local = Local::inline(unsafe { copied(list) });
        return post_request(inner, Request { wr_id, op, remote, signaled, fence, local, target: None });
    }
    match (inner.ready(), list) {
        (Some(qp), [only]) => {
            let wr = SendWr { wr_id, op, local: element(only), remote, signaled, fence };
            qp.post_send(wr).map_err(code_of_post)
        }
        (Some(qp), _) => {
            let mut local = [Sge::EMPTY; MAX_SGE as usize];
            local.iter_mut().zip(list).for_each(|(to, from)| *to = element(from));
            let local = local.get(..list.len()).unwrap_or_default();
            qp.post_gather(GatherWr { wr_id, op, local, remote, signaled, fence }).map_err(code_of_post)
        }
        (None, _) => {
            let local = Local::Elements(list.iter().map(element).collect());
            inner.hold(Request { wr_id, op, remote, signaled, fence, local, target: None })
        }
    }
}

fn post_request(inner: &mut Inner, request: Request) -> Result<(), c_int> {
    match inner.ready() {
        Some(qp) => request.post(qp).map_err(code_of_post),
        None => inner.hold(request),
    }
}

/// The immediate of a datagram, if it has one. An error: the operation is none of datagrams.
const fn datagram_imm(op: SendOp) -> Result<Option<u32>, c_int> {
    match op {
        SendOp::Send => Ok(None),
        SendOp::SendWithImm(imm) => Ok(Some(imm)),
        _ => Err(libc::EINVAL),
    }
}

/// Where a datagram goes.
///
/// # Safety
/// An address handle of this library, or null.
unsafe fn target(ah: *mut ibv_ah, number: u32, qkey: u32) -> Option<Target> {
    if ah.is_null() {
        return None;
    }
    // SAFETY: as the caller promises.
    let route = unsafe { AhBox::of(ah) }.route;
    Some(Target { route, number: Number::from_verbs(number), qkey })
}

/// Posts one datagram of a list.
///
/// # Safety
/// As for `ibv_post_send`.
unsafe fn post_datagram(ud: &UdQp, inner: &mut ud::Inner, wr: &ibv_send_wr) -> Result<(), c_int> {
    // SAFETY: as the caller promises.
    let (op, _) = unsafe { operation(wr) }.ok_or(libc::EOPNOTSUPP)?;
    let imm = datagram_imm(op)?;
    // SAFETY: this part of the union is that of the queue pair's type.
    let part = unsafe { wr.wr.ud };
    // SAFETY: as the caller promises.
    let target = unsafe { target(part.ah, part.remote_qpn, part.remote_qkey) }.ok_or(libc::EINVAL)?;
    // SAFETY: as the caller promises.
    let list = unsafe { elements(wr.sg_list, wr.num_sge) }?;
    if list.len() > inner.cap.max_send_sge as usize {
        return Err(libc::EINVAL);
    }
    let (wr_id, signaled) = (wr.wr_id, wr.send_flags & IBV_SEND_SIGNALED != 0);
    if wr.send_flags & IBV_SEND_INLINE == 0 {
        let list: Vec<Sge> = list.iter().map(element).collect();
        let data = UdData::Elements(&list);
        return ud.post_send(inner, &UdSend { wr_id, imm, signaled, target, data });
    }
    let len: u64 = list.iter().map(|sge| u64::from(sge.length)).sum();
    if len > u64::from(inner.cap.max_inline_data) {
        return Err(libc::EINVAL);
    }
    // SAFETY: as the caller promises.
    let bytes = unsafe { copied(list) };
    ud.post_send(inner, &UdSend { wr_id, imm, signaled, target, data: UdData::Inline(&bytes) })
}

/// Calls `post` for each request of a list, until one is refused.
///
/// # Safety
/// A list of requests, and a place for the one that is refused.
unsafe fn each_send(
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
    mut post: impl FnMut(&ibv_send_wr) -> Result<(), c_int>,
) -> Result<(), c_int> {
    let mut next = wr;
    while !next.is_null() {
        // SAFETY: as the caller promises.
        let one = unsafe { &*next };
        if let Err(code) = post(one) {
            // SAFETY: as the caller promises.
            unsafe { bad.write(next) };
            return Err(code);
        }
        next = one.next;
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    code(|| {
        // SAFETY: as for every function of a queue pair.
        match unsafe { QpBox::of(qp) }.body() {
            Err(code) => {
                // SAFETY: the caller passes a place for the one that is refused.
                unsafe { bad.write(wr) };
                Err(code)
            }
            Ok(Body::Connected(core)) => {
                let mut inner = core.lock();
                // SAFETY: the caller passes a list of requests, and a place for the one that is refused.
                let result = unsafe {
                    each_send(wr, bad, |one| {
                        inner.takes_sends()?;
                        post_one(&mut inner, one)
                    })
                };
                core.watch(inner);
                result
            }
            Ok(Body::Datagrams(ud)) => {
                let mut inner = ud.lock();
                // SAFETY: the same.
                unsafe { each_send(wr, bad, |one| post_datagram(ud, &mut inner, one)) }
            }
        }
    })
}

/// Calls `post` for each request of a list, until one is refused.
///
/// # Safety
/// A list of requests, and a place for the one that is refused.
pub(crate) unsafe fn each_receive(
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    max_sge: u32,
    mut post: impl FnMut(ScatterWr<'_>) -> Result<(), c_int>,
) -> c_int {
    code(|| {
        let mut next = wr;
        while !next.is_null() {
            // SAFETY: as the caller promises.
            let one = unsafe { &*next };
            // SAFETY: as the caller promises.
            let list = unsafe { elements(one.sg_list, one.num_sge) };
            let posted = list.and_then(|list| {
                if list.len() > max_sge as usize {
                    return Err(libc::EINVAL);
                }
                let mut local = [Sge::EMPTY; MAX_SGE as usize];
                local.iter_mut().zip(list).for_each(|(to, from)| *to = element(from));
                post(ScatterWr { wr_id: one.wr_id, local: local.get(..list.len()).unwrap_or_default() })
            });
            if let Err(code) = posted {
                // SAFETY: as the caller promises.
                unsafe { bad.write(next) };
                return Err(code);
            }
            next = one.next;
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: as for every function of a queue pair.
    match unsafe { QpBox::of(qp) }.body() {
        Err(code) => {
            // SAFETY: the caller passes a place for the one that is refused.
            unsafe { bad.write(wr) };
            code
        }
        Ok(Body::Connected(core)) => {
            let mut inner = core.lock();
            let max_sge = inner.cap.max_recv_sge;
            // SAFETY: the caller passes a list.
            unsafe {
                each_receive(wr, bad, max_sge, |wr| {
                    inner.takes_receives()?;
                    inner.qp()?.post_scatter(wr).map_err(code_of_post)
                })
            }
        }
        Ok(Body::Datagrams(ud)) => {
            let mut inner = ud.lock();
            let max_sge = inner.cap.max_recv_sge;
            // SAFETY: the same.
            unsafe { each_receive(wr, bad, max_sge, |wr| ud.post_recv(&mut inner, wr.wr_id, wr.local)) }
        }
    }
}

/// Requests that a program makes one by one, between `ibv_wr_start` and `ibv_wr_complete`.
#[derive(Debug, Default)]
pub(crate) struct Builder {
    requests: Vec<Request>,
    /// The first error, which `ibv_wr_complete` returns.
    error: Option<c_int>,
}

/// The builder of a queue pair, for the thread between start and complete.
///
/// # Safety
/// As for every function of a queue pair, between the two.
unsafe fn builder<'a>(qp: *mut ibv_qp_ex) -> (&'a QpBox, &'a mut Builder) {
    // SAFETY: as the caller promises.
    let of = unsafe { QpBox::of(qp.cast()) };
    // SAFETY: only the thread that has taken `building` comes here.
    (of, unsafe { &mut *of.builder.get() })
}

unsafe fn add(qp: *mut ibv_qp_ex, op: SendOp, remote: RemoteAddr) {
    // SAFETY: as the caller promises.
    let (of, builder) = unsafe { builder(qp) };
    // SAFETY: the thread itself has set these fields.
    let (wr_id, flags): (u64, c_uint) = unsafe { ((*of.base()).wr_id, (*of.base()).wr_flags) };
    builder.requests.push(Request {
        wr_id,
        op,
        remote,
        signaled: flags & IBV_SEND_SIGNALED != 0,
        fence: flags & IBV_SEND_FENCE != 0,
        local: Local::Elements(Vec::new()),
        target: None,
    });
}

unsafe fn set_local(qp: *mut ibv_qp_ex, local: Local) {
    // SAFETY: as the caller promises.
    let (_, builder) = unsafe { builder(qp) };
    match builder.requests.last_mut() {
        Some(request) => request.local = local,
        None => builder.error = builder.error.or(Some(libc::EINVAL)),
    }
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: as for every function of a queue pair.
    let of = unsafe { QpBox::of(qp.cast()) };
    // As in verbs, the threads of a queue pair take turns from start to complete.
    while of.building.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
        std::thread::yield_now();
    }
    // SAFETY: this thread has taken it.
    let (_, builder) = unsafe { builder(qp) };
    builder.requests.clear();
    builder.error = None;
}

/// Posts all of the requests, or none.
fn post_all(core: &QpCore, requests: &mut Vec<Request>) -> Result<(), c_int> {
    let mut inner = core.lock();
    inner.takes_sends()?;
    let room = inner.cap.max_send_wr.saturating_sub(inner.sends_outstanding());
    if requests.len() > room as usize {
        return Err(libc::ENOMEM);
    }
    let Inner { cap, .. } = *inner;
    requests.iter().try_for_each(|request| request.check(&cap))?;
    if let Some(qp) = inner.ready() {
        let known = |request: &Request| qp.check_send(request.op, request.len() as u32);
        requests.iter().try_for_each(known).map_err(code_of_post)?;
    }
    let posted = requests.drain(..).try_for_each(|request| post_request(&mut inner, request));
    core.watch(inner);
    posted
}

/// The same for datagrams.
fn post_all_datagrams(ud: &UdQp, requests: &[Request]) -> Result<(), c_int> {
    let mut inner = ud.lock();
    UdQp::takes_sends(&inner)?;
    if requests.len() > ud.room(&inner) as usize {
        return Err(libc::ENOMEM);
    }
    let mut sends = Vec::with_capacity(requests.len());
    for request in requests {
        let imm = datagram_imm(request.op)?;
        let (data, elements) = match &request.local {
            Local::Elements(list) => (UdData::Elements(list), list.len()),
            Local::Inline(bytes) => (UdData::Inline(bytes), 0),
        };
        let target = request.target.ok_or(libc::EINVAL)?;
        if elements > inner.cap.max_send_sge as usize {
            return Err(libc::EINVAL);
        }
        let Request { wr_id, signaled, .. } = *request;
        sends.push(UdSend { wr_id, imm, signaled, target, data });
    }
    sends.iter().try_for_each(|send| ud.post_send(&mut inner, send))
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    let completed = code(|| {
        // SAFETY: the thread is between start and complete.
        let (of, builder) = unsafe { builder(qp) };
        if let Some(error) = builder.error {
            return Err(error);
        }
        match of.body()? {
            Body::Connected(core) => post_all(core, &mut builder.requests),
            Body::Datagrams(ud) => post_all_datagrams(ud, &builder.requests),
        }
    });
    // SAFETY: as for every function of a queue pair.
    unsafe { QpBox::of(qp.cast()) }.building.store(false, Ordering::Release);
    completed
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: as for every function of a queue pair.
    unsafe { QpBox::of(qp.cast()) }.building.store(false, Ordering::Release);
}

const fn at(rkey: u32, addr: u64) -> RemoteAddr {
    RemoteAddr { addr, rkey }
}

unsafe extern "C" fn wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    // SAFETY: as for every function between start and complete.
    unsafe { add(qp, SendOp::Write, at(rkey, addr)) };
}

unsafe extern "C" fn wr_rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, imm: u32) {
    // SAFETY: as for every function between start and complete.
    unsafe { add(qp, SendOp::WriteWithImm(u32::from_be(imm)), at(rkey, addr)) };
}

unsafe extern "C" fn wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    // SAFETY: as for every function between start and complete.
    unsafe { add(qp, SendOp::Read, at(rkey, addr)) };
}

unsafe extern "C" fn wr_send(qp: *mut ibv_qp_ex) {
    // SAFETY: as for every function between start and complete.
    unsafe { add(qp, SendOp::Send, RemoteAddr::default()) };
}

unsafe extern "C" fn wr_send_imm(qp: *mut ibv_qp_ex, imm: u32) {
    // SAFETY: as for every function between start and complete.
    unsafe { add(qp, SendOp::SendWithImm(u32::from_be(imm)), RemoteAddr::default()) };
}

unsafe extern "C" fn wr_send_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: as for every function between start and complete.
    unsafe { add(qp, SendOp::SendWithInvalidate(rkey), RemoteAddr::default()) };
}

unsafe extern "C" fn wr_atomic_cmp_swp(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, compare: u64, swap: u64) {
    // SAFETY: as for every function between start and complete.
    unsafe { add(qp, SendOp::CompareSwap { compare, swap }, at(rkey, addr)) };
}

unsafe extern "C" fn wr_atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, more: u64) {
    // SAFETY: as for every function between start and complete.
    unsafe { add(qp, SendOp::FetchAdd(more), at(rkey, addr)) };
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, len: u32) {
    // SAFETY: as for every function between start and complete.
    unsafe { set_local(qp, Local::Elements(vec![Sge { addr, len, lkey }])) };
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    let count = c_int::try_from(count).unwrap_or(c_int::MAX);
    // SAFETY: the caller passes so many elements.
    match unsafe { elements(list, count) } {
        // SAFETY: as for every function between start and complete.
        Ok(list) => unsafe { set_local(qp, Local::Elements(list.iter().map(element).collect())) },
        Err(code) => {
            // SAFETY: the same.
            let (_, builder) = unsafe { builder(qp) };
            builder.error = builder.error.or(Some(code));
        }
    }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, len: usize) {
    let only = ibv_data_buf { addr, length: len };
    // SAFETY: the caller passes so many bytes.
    unsafe { wr_set_inline_data_list(qp, 1, &raw const only) };
}

unsafe extern "C" fn wr_set_inline_data_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_data_buf) {
    let mut bytes = Vec::new();
    // SAFETY: as for every function between start and complete.
    let (of, builder) = unsafe { builder(qp) };
    let most = of.max_inline() as usize;
    for at in 0..count {
        // SAFETY: the caller passes so many buffers.
        let buffer = unsafe { &*list.add(at) };
        if buffer.length > most - bytes.len() {
            builder.error = builder.error.or(Some(libc::EINVAL));
            return;
        }
        if buffer.length > 0 {
            // SAFETY: the caller passes so many bytes, which are copied.
            let from = unsafe { core::slice::from_raw_parts(buffer.addr.cast::<u8>(), buffer.length) };
            bytes.extend_from_slice(from);
        }
    }
    // SAFETY: the same.
    unsafe { set_local(qp, Local::inline(bytes)) };
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, number: u32, qkey: u32) {
    // SAFETY: as for every function between start and complete.
    let (_, builder) = unsafe { builder(qp) };
    // SAFETY: the caller passes an address handle.
    match (builder.requests.last_mut(), unsafe { target(ah, number, qkey) }) {
        (Some(request), target @ Some(_)) => request.target = target,
        _ => builder.error = builder.error.or(Some(libc::EINVAL)),
    }
}

/// The functions of a queue pair; its first part is to be filled.
pub(crate) fn functions() -> ibv_qp_ex {
    ibv_qp_ex {
        // SAFETY: null pointers, zeros, and locks that nobody takes.
        base: unsafe { core::mem::zeroed() },
        comp_mask: 0,
        wr_id: 0,
        wr_flags: 0,
        wr_atomic_cmp_swp: Some(wr_atomic_cmp_swp),
        wr_atomic_fetch_add: Some(wr_atomic_fetch_add),
        wr_bind_mw: None,
        wr_local_inv: None,
        wr_rdma_read: Some(wr_rdma_read),
        wr_rdma_write: Some(wr_rdma_write),
        wr_rdma_write_imm: Some(wr_rdma_write_imm),
        wr_send: Some(wr_send),
        wr_send_imm: Some(wr_send_imm),
        wr_send_inv: Some(wr_send_inv),
        wr_send_tso: None,
        wr_set_ud_addr: Some(wr_set_ud_addr),
        wr_set_xrc_srqn: None,
        wr_set_inline_data: Some(wr_set_inline_data),
        wr_set_inline_data_list: Some(wr_set_inline_data_list),
        wr_set_sge: Some(wr_set_sge),
        wr_set_sge_list: Some(wr_set_sge_list),
        wr_start: Some(wr_start),
        wr_complete: Some(wr_complete),
        wr_abort: Some(wr_abort),
        wr_atomic_write: None,
    }
}
