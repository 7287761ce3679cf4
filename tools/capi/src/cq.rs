//! Completion queues.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use spindrift::verbs::Cq;
use spindrift::work::{Wc, WcStatus};

use crate::abi::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_poll_cq_attr, ibv_wc,
};
use crate::channel::ChannelBox;
use crate::connection::QpCore;
use crate::context::ContextBox;
use crate::convert::completion;
use crate::error::{code, code_of, object, tell};
use crate::event::EventQueue;
use crate::mrc::context::Owner;
use crate::mrc::ctl::events::EvEvents;
use crate::nic::Nic;
use crate::side_queue::SideQueue;

/// Completions that are taken from Spindrift at a time.
const BATCH: usize = 32;

#[repr(C)]
pub(crate) struct CqBox {
    /// Its extended part is written while the program polls by it, from one thread at a time.
    base: UnsafeCell<ibv_cq_ex>,
    current: UnsafeCell<ibv_wc>,
    nic: Arc<Nic>,
    events: Arc<EventQueue>,
    inner: Mutex<Inner>,
    /// Completions of datagrams.
    pub(crate) side: Arc<SideQueue>,
    /// Queue pairs that report here, and those of datagrams among them.
    users: AtomicU32,
    datagrams: AtomicU32,
    /// Its context of MRC's interface.
    owner: Option<Arc<Owner>>,
    /// Events instead of completions.
    ev_events: Option<Arc<EvEvents>>,
}

struct Inner {
    cq: Option<Cq>,
    batch: Box<[Wc; BATCH]>,
    /// The queue pair of the last completion: completions come in runs.
    last: Option<(u32, Arc<QpCore>)>,
    ended: bool,
}

impl CqBox {
    /// # Safety
    /// A queue of this library that was not destroyed.
    pub(crate) unsafe fn of<'a>(cq: *mut ibv_cq) -> &'a Self {
        // SAFETY: it is the first field of a box.
        unsafe { &*cq.cast::<Self>() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The events of a queue of events.
    pub(crate) fn ev_events(&self) -> Option<&EvEvents> {
        self.ev_events.as_deref()
    }

    /// The version of MRC's interface that its context was made for.
    pub(crate) fn version(&self) -> u32 {
        self.owner.as_ref().map_or(0, |owner| owner.version)
    }

    pub(crate) fn cq_context(&self) -> *mut c_void {
        // SAFETY: this field is written by nobody after the queue was made.
        unsafe { (*self.base.get()).base.cq_context }
    }

    /// Makes something of the queue while nobody polls it.
    pub(crate) fn with<R>(&self, act: impl FnOnce(&Cq) -> R) -> Result<R, c_int> {
        self.lock().cq.as_ref().map(act).ok_or(libc::EINVAL)
    }

    pub(crate) fn add_user(&self, of_datagrams: bool) {
        self.users.fetch_add(1, Ordering::Relaxed);
        self.datagrams.fetch_add(of_datagrams.into(), Ordering::Relaxed);
    }

    pub(crate) fn remove_user(&self, of_datagrams: bool) {
        self.datagrams.fetch_sub(of_datagrams.into(), Ordering::Relaxed);
        self.users.fetch_sub(1, Ordering::Release);
    }

    /// Takes completions. Where there are none, drives the transport once, in the program's thread.
    fn poll(&self, out: &mut dyn FnMut(ibv_wc), most: usize) -> Result<usize, c_int> {
        // In the child of a fork, a thread of the parent may hold the locks for ever.
        if self.nic.is_elsewhere() {
            return Err(libc::EIO);
        }
        match self.take(out, most) {
            Ok(0) if most > 0 => {
                self.nic.verbs.poll();
                if self.datagrams.load(Ordering::Relaxed) > 0 {
                    self.nic.receive();
                }
                self.take(out, most)
            }
            taken => taken,
        }
    }

    fn take(&self, out: &mut dyn FnMut(ibv_wc), most: usize) -> Result<usize, c_int> {
        let mut inner = self.lock();
        let Inner { cq, batch, last, ended } = &mut *inner;
        let cq = cq.as_mut().ok_or(libc::EINVAL)?;
        let mut given = 0;
        while given < most {
            let room = (most - given).min(BATCH);
            let count = match cq.poll(batch.get_mut(..room).unwrap_or_default()) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) => {
                    if !core::mem::replace(ended, true) {
                        tell("a completion queue", &error);
                    }
                    if given == 0 {
                        return Err(libc::EIO);
                    }
                    break;
                }
            };
            for wc in batch.iter().take(count) {
                let wire = wc.qpn.get();
                if last.as_ref().is_none_or(|(known, _)| *known != wire) {
                    let found = self.nic.with_wires(|wires| wires.get(&wire).cloned());
                    *last = found.map(|found| (wire, found));
                }
                // Those of a queue pair that was destroyed or reset are dropped.
                let Some((_, core)) = last else { continue };
                if core.wire() != wire {
                    *last = None;
                    continue;
                }
                let mut wc = *wc;
                if wc.status == WcStatus::WrFlushError && !wc.opcode.is_receive() && core.takes_blame() {
                    wc.status = WcStatus::RetryExceeded;
                }
                let src = if wc.opcode.is_receive() { core.peer_number() } else { 0 };
                out(completion(&wc, core.number.get(), src));
                given += 1;
            }
        }
        while given < most
            && let Some(wc) = self.side.pop()
        {
            out(wc);
            given += 1;
        }
        Ok(given)
    }
}

/// What a queue is made from.
pub(crate) struct Wanted {
    pub(crate) depth: u32,
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) vector: u32,
    /// The context of MRC's interface that it belongs to.
    pub(crate) owner: Option<Arc<Owner>>,
    /// It has events of paths, for a controller.
    pub(crate) of_events: bool,
}

/// The extended part of a queue.
fn extended(base: ibv_cq) -> ibv_cq_ex {
    ibv_cq_ex {
        base,
        comp_mask: 0,
        status: 0,
        wr_id: 0,
        start_poll: Some(start_poll),
        next_poll: Some(next_poll),
        end_poll: Some(end_poll),
        read_opcode: Some(read_opcode),
        read_vendor_err: Some(read_vendor_err),
        read_byte_len: Some(read_byte_len),
        read_imm_data: Some(read_imm_data),
        read_qp_num: Some(read_qp_num),
        read_src_qp: Some(read_src_qp),
        read_wc_flags: Some(read_wc_flags),
        read_slid: Some(read_slid),
        read_sl: Some(read_sl),
        read_dlid_path_bits: Some(read_sl),
        read_completion_ts: None,
        read_cvlan: None,
        read_flow_tag: None,
        read_tm_info: None,
        read_completion_wallclock_ns: None,
    }
}

/// # Safety
/// A context, and a channel or null, of this library.
pub(crate) unsafe fn create(context: *mut ibv_context, wanted: Wanted) -> Result<*mut ibv_cq_ex, c_int> {
    // SAFETY: as the caller promises.
    let of = unsafe { ContextBox::of(context) };
    let depth = wanted.depth;
    if !(1..=spindrift::verbs::MAX_CQ_DEPTH).contains(&depth) || wanted.vector > 0 {
        return Err(libc::EINVAL);
    }
    // SAFETY: as the caller promises.
    let channel = (!wanted.channel.is_null()).then(|| unsafe { ChannelBox::of(wanted.channel) });
    let cq = match channel {
        None => of.nic.verbs.create_cq(depth),
        Some(channel) => of.nic.verbs.create_cq_with_channel(depth, &channel.channel),
    };
    let cq = cq.map_err(|error| code_of(&error))?;
    let id = cq.id();
    if let Some(channel) = channel {
        channel.users.fetch_add(1, Ordering::Relaxed);
    }
    let base = extended(ibv_cq {
        context,
        channel: wanted.channel,
        cq_context: wanted.cq_context,
        handle: 0,
        cqe: depth as c_int,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        comp_events_completed: 0,
        async_events_completed: 0,
    });
    let side = SideQueue::new(depth, channel.map(|channel| Arc::clone(&channel.side)));
    let ev_events = wanted.of_events.then(|| EvEvents::new(depth, Arc::clone(&side)));
    if let Some(ev_events) = &ev_events {
        of.nic.managed.add_queue(ev_events);
    }
    let events = Arc::clone(wanted.owner.as_ref().map_or(&of.events, |owner| &owner.events));
    let heard = Arc::downgrade(&events);
    let made = Box::new(CqBox {
        base: UnsafeCell::new(base),
        current: UnsafeCell::new(completion(&Wc::default(), 0, 0)),
        nic: Arc::clone(&of.nic),
        events,
        inner: Mutex::new(Inner {
            cq: Some(cq),
            batch: Box::new([Wc::default(); BATCH]),
            last: None,
            ended: false,
        }),
        side: Arc::clone(&side),
        users: AtomicU32::new(0),
        datagrams: AtomicU32::new(0),
        owner: wanted.owner,
        ev_events,
    });
    let made = Box::into_raw(made);
    side.set_address(made.addr());
    of.nic.set_cq(id, Some((made.addr(), heard)));
    Ok(made.cast())
}

/// # Safety
/// A context, and a channel or null, of this library.
pub(crate) unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    object(|| {
        let depth = u32::try_from(cqe).map_err(|_| libc::EINVAL)?;
        let vector = u32::try_from(vector).map_err(|_| libc::EINVAL)?;
        // SAFETY: as the caller promises.
        Ok(unsafe {
            create(context, Wanted { depth, cq_context, channel, vector, owner: None, of_events: false })
        }?
        .cast())
    })
}

pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    /// Completion timestamps, VLANs and what else a NIC may tell.
    const STANDARD: u64 = 0x7f;
    object(|| {
        // SAFETY: the caller passes attributes.
        let attr = unsafe { &*attr };
        if attr.wc_flags & !STANDARD != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        let wanted = Wanted {
            depth: attr.cqe,
            cq_context: attr.cq_context,
            channel: attr.channel,
            vector: attr.comp_vector,
            owner: None,
            of_events: false,
        };
        // SAFETY: as for every function of a context.
        unsafe { create(context, wanted) }
    })
}

/// # Safety
/// A queue of this library, which is not used afterwards if the call succeeds.
pub(crate) unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    code(|| {
        // SAFETY: as the caller promises.
        let of = unsafe { CqBox::of(cq) };
        if of.users.load(Ordering::Acquire) > 0 {
            return Err(libc::EBUSY);
        }
        let Some(inner) = of.lock().cq.take() else { return Err(libc::EINVAL) };
        of.nic.set_cq(inner.id(), None);
        if let Err((inner, error)) = inner.destroy() {
            of.nic.set_cq(inner.id(), Some((cq.addr(), Arc::downgrade(&of.events))));
            of.lock().cq = Some(inner);
            return Err(code_of(&error));
        }
        of.events.forget(cq.addr());
        of.side.set_address(0);
        // SAFETY: as the caller promises.
        let channel = unsafe { (*cq).channel };
        if !channel.is_null() {
            // SAFETY: a channel with queues cannot be destroyed.
            unsafe { ChannelBox::of(channel) }.users.fetch_sub(1, Ordering::Release);
        }
        // SAFETY: as the caller promises; it came from a box.
        drop(unsafe { Box::from_raw(cq.cast::<CqBox>()) });
        Ok(())
    })
}

/// Queues have the size that they were made with.
pub(crate) unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: the caller passes a queue.
    if unsafe { (*cq).cqe } >= cqe { 0 } else { libc::EOPNOTSUPP }
}

pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, most: c_int, out: *mut ibv_wc) -> c_int {
    let polled = std::panic::catch_unwind(|| {
        // SAFETY: as for every function of a queue.
        let of = unsafe { CqBox::of(cq) };
        let mut at = 0;
        let mut put = |wc| {
            // SAFETY: the caller has room for `most` completions.
            unsafe { out.add(at).write(wc) };
            at += 1;
        };
        of.poll(&mut put, usize::try_from(most).unwrap_or(0))
    });
    match polled {
        Ok(Ok(count)) => count as c_int,
        _ => -1,
    }
}

pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, _solicited_only: c_int) -> c_int {
    code(|| {
        // SAFETY: as for every function of a queue.
        let (of, channel) = unsafe { (CqBox::of(cq), (*cq).channel) };
        if channel.is_null() {
            // A NIC would raise an event that nobody sees.
            return Ok(());
        }
        let mut inner = of.lock();
        let cq = inner.cq.as_mut().ok_or(libc::EINVAL)?;
        cq.req_notify().map_err(|error| code_of(&error))?;
        of.side.arm();
        Ok(())
    })
}

/// Takes the next completion into the extended part. Returns `ENOENT` if there is none.
unsafe fn advance(cq: *mut ibv_cq_ex) -> c_int {
    let advanced = std::panic::catch_unwind(|| {
        // SAFETY: as for every function of a queue.
        let of = unsafe { CqBox::of(cq.cast()) };
        let mut put = |wc: ibv_wc| {
            // SAFETY: one thread polls by the extended part at a time, as verbs demands.
            let base = unsafe { &mut *of.base.get() };
            (base.status, base.wr_id) = (wc.status, wc.wr_id);
            // SAFETY: the same.
            unsafe { of.current.get().write(wc) };
        };
        match of.poll(&mut put, 1) {
            Ok(0) => libc::ENOENT,
            Ok(_) => 0,
            Err(code) => code,
        }
    });
    advanced.unwrap_or(libc::EIO)
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the caller passes attributes, or nothing.
    if !attr.is_null() && unsafe { (*attr).comp_mask } != 0 {
        return libc::EINVAL;
    }
    // SAFETY: as for every function of a queue.
    unsafe { advance(cq) }
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: as for every function of a queue.
    unsafe { advance(cq) }
}

unsafe extern "C" fn end_poll(_cq: *mut ibv_cq_ex) {}

/// The completion that the extended part shows.
unsafe fn current<'a>(cq: *mut ibv_cq_ex) -> &'a ibv_wc {
    // SAFETY: as for every function of a queue; only the thread that calls this one polls.
    unsafe { &*CqBox::of(cq.cast()).current.get() }
}

unsafe extern "C" fn read_opcode(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: as for every function of a queue.
    unsafe { current(cq) }.opcode
}

unsafe extern "C" fn read_vendor_err(_cq: *mut ibv_cq_ex) -> u32 {
    0
}

unsafe extern "C" fn read_byte_len(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as for every function of a queue.
    unsafe { current(cq) }.byte_len
}

unsafe extern "C" fn read_imm_data(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as for every function of a queue.
    unsafe { current(cq) }.imm_data
}

unsafe extern "C" fn read_qp_num(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as for every function of a queue.
    unsafe { current(cq) }.qp_num
}

unsafe extern "C" fn read_src_qp(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as for every function of a queue.
    unsafe { current(cq) }.src_qp
}

unsafe extern "C" fn read_wc_flags(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as for every function of a queue.
    unsafe { current(cq) }.wc_flags
}

unsafe extern "C" fn read_slid(_cq: *mut ibv_cq_ex) -> u32 {
    0
}

unsafe extern "C" fn read_sl(_cq: *mut ibv_cq_ex) -> u8 {
    0
}
