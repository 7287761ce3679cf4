//! Event channels, and the events that programs read from them.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};

use super::abi::{EventParam, event, rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel};
use super::conversation::News;
use super::id::{IdBox, IdCore, drop_events};
use super::message::{Request, Side};
use super::{connect, service};
use crate::error::{count, object};
use crate::event::{Look, counting_fd, lower, raise, wait_unless_chosen, wait_until};
use spindrift_pmd::fork::Home;

/// Events of one object, which a channel keeps until somebody reads them.
#[derive(Debug)]
pub(crate) struct Channel {
    queue: Mutex<VecDeque<(Arc<IdCore>, What)>>,
    /// Held from the taking of an event until the object that it brings exists: what follows may be about that.
    turn: Mutex<()>,
    /// Readable while the queue is not empty. Changed with the queue, so that both always agree.
    fd: OwnedFd,
    home: Home,
}

/// What an event tells.
#[derive(Debug)]
pub(crate) enum What {
    News(News),
    /// A connection that is asked for, and the addresses of this side and of the other.
    Request {
        core: Arc<IdCore>,
        request: Box<Request>,
        local: SocketAddr,
        peer: SocketAddr,
    },
    /// Of this type, with status and argument.
    Plain(c_int, c_int, u64),
}

#[repr(C)]
pub(crate) struct ChannelBox {
    base: rdma_event_channel,
    pub(crate) channel: Arc<Channel>,
}

/// An event as a program has it, until it is acknowledged.
#[repr(C)]
pub(crate) struct EventBox {
    base: UnsafeCell<rdma_cm_event>,
    /// Whose event it is.
    about: Arc<IdCore>,
    /// What the program of the other side has sent along.
    private: Vec<u8>,
}

impl Channel {
    pub(crate) fn new() -> Result<Arc<Self>, c_int> {
        let fd = counting_fd()?;
        Ok(Arc::new(Self { queue: Mutex::default(), turn: Mutex::default(), fd, home: Home::here() }))
    }

    fn with<R>(&self, act: impl FnOnce(&mut VecDeque<(Arc<IdCore>, What)>) -> R) -> R {
        act(&mut self.queue.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub(crate) fn push(&self, about: Arc<IdCore>, what: What) {
        self.with(|queue| {
            queue.push_back((about, what));
            raise(&self.fd);
        });
    }

    fn pop(&self) -> Option<(Arc<IdCore>, What)> {
        self.with(|queue| {
            let event = queue.pop_front()?;
            lower(&self.fd);
            Some(event)
        })
    }

    /// Events of this object that nobody has read.
    pub(crate) fn waiting(&self, about: &Arc<IdCore>) -> usize {
        self.with(|queue| queue.iter().filter(|(of, _)| Arc::ptr_eq(of, about)).count())
    }

    /// Takes the events of this object out.
    pub(crate) fn take(&self, about: &Arc<IdCore>) -> Vec<What> {
        self.with(|queue| {
            let all = core::mem::take(queue).into_iter();
            let (taken, left): (VecDeque<_>, VecDeque<_>) = all.partition(|(of, _)| Arc::ptr_eq(of, about));
            *queue = left;
            for _ in &taken {
                lower(&self.fd);
            }
            taken.into_iter().map(|(_, what)| what).collect()
        })
    }

    /// The next event, for the program, if there is one.
    ///
    /// # Errors
    /// `EIO` in the child of a fork.
    pub(crate) fn try_next(&self) -> Result<Option<Box<EventBox>>, c_int> {
        if self.home.is_elsewhere() {
            return Err(libc::EIO);
        }
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let found = core::iter::from_fn(|| self.pop()).find_map(|(about, what)| EventBox::of(about, what));
        drop(turn);
        Ok(found)
    }

    /// The same. Waits for it, unless the program has chosen otherwise.
    ///
    /// # Errors
    /// `EAGAIN`, `EINTR`, `EIO`.
    pub(crate) fn next(&self) -> Result<Box<EventBox>, c_int> {
        loop {
            if let Some(event) = self.try_next()? {
                return Ok(event);
            }
            wait_unless_chosen(self.fd())?;
        }
    }
}

impl ChannelBox {
    pub(crate) fn make() -> Result<Box<Self>, c_int> {
        let channel = Channel::new()?;
        Ok(Box::new(Self { base: rdma_event_channel { fd: channel.fd() }, channel }))
    }

    /// # Safety
    /// A channel of this library that was not destroyed.
    pub(crate) unsafe fn of<'a>(channel: *mut rdma_event_channel) -> &'a Self {
        // SAFETY: it is the first field of a box.
        unsafe { &*Self::around(channel) }
    }

    /// The box that it is the first field of.
    #[expect(clippy::cast_ptr_alignment, reason = "it was made as such a box")]
    const fn around(channel: *mut rdma_event_channel) -> *mut Self {
        channel.cast::<Self>()
    }
}

/// What a side tells, as the other side's program reads it: what one accepts is what the other may send.
pub(crate) fn as_param(side: &Side, retry: u8) -> rdma_conn_param {
    rdma_conn_param {
        private_data: core::ptr::null(),
        private_data_len: 0,
        responder_resources: side.initiator_depth,
        initiator_depth: side.responder_resources,
        flow_control: side.flow_control,
        retry_count: retry,
        rnr_retry_count: side.rnr_retry,
        srq: side.srq,
        qp_num: side.number,
    }
}

impl EventBox {
    /// What the program is told, after the library has done its part. `None`: nothing.
    fn of(about: Arc<IdCore>, what: What) -> Option<Box<Self>> {
        let Some(id) = about.hold_object() else {
            drop_events(vec![what]);
            return None;
        };
        // SAFETY: an object that is held is not destroyed.
        let Some((base, private)) = Self::fill(unsafe { IdBox::of(id) }, id, what) else {
            about.event_acknowledged();
            return None;
        };
        let event = Box::new(Self { base: UnsafeCell::new(base), about, private });
        // SAFETY: nobody else has the event yet.
        let base = unsafe { &mut *event.base.get() };
        if !event.private.is_empty() {
            // Parameters of datagrams begin with the same two fields.
            base.param.conn.private_data = event.private.as_ptr().cast::<c_void>();
            base.param.conn.private_data_len = event.private.len() as u8;
        }
        Some(event)
    }

    /// The event, and what the program of the other side has sent along.
    fn fill(about: &IdBox, id: *mut rdma_cm_id, what: What) -> Option<(rdma_cm_event, Vec<u8>)> {
        let none = EventParam::none();
        let (kind, status, param, private) = match what {
            What::Plain(kind, status, arg) => (kind, status, EventParam::with(arg), Vec::new()),
            What::Request { core, request, local, peer } => {
                let made = connect::incoming(about, &core, &request, local, peer)?;
                let conn = as_param(&request.side, request.retry);
                let (event, param) = (event::CONNECT_REQUEST, EventParam::connected(conn));
                return Some((
                    rdma_cm_event { id: made, listen_id: id, event, status: 0, param },
                    request.side.private,
                ));
            }
            What::News(News::Accepted { side, qkey }) => {
                let (kind, status, param) = connect::accepted(about, &side, qkey);
                (kind, status, param, side.private)
            }
            What::News(News::Rejected { status, private }) => (event::REJECTED, status, none, private),
            What::News(News::Established) => (event::ESTABLISHED, 0, none, Vec::new()),
            What::News(News::Disconnected) => (event::DISCONNECTED, 0, none, Vec::new()),
            What::News(News::Unreachable(code)) => (event::UNREACHABLE, -code, none, Vec::new()),
            What::News(News::Request(_)) => return None,
        };
        if matches!(kind, event::REJECTED | event::UNREACHABLE | event::CONNECT_ERROR) {
            connect::failed(about);
        }
        Some((rdma_cm_event { id, listen_id: core::ptr::null_mut(), event: kind, status, param }, private))
    }

    pub(crate) fn into_c(self: Box<Self>) -> *mut rdma_cm_event {
        Box::into_raw(self).cast()
    }

    /// # Safety
    /// An event of this library that was not acknowledged, and is not used afterwards.
    pub(crate) unsafe fn acknowledge(event: *mut rdma_cm_event) {
        // SAFETY: as the caller promises; it came from a box.
        let event = unsafe { Box::from_raw(event.cast::<Self>()) };
        event.about.event_acknowledged();
    }
}

pub(crate) extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    object(|| Ok(Box::into_raw(ChannelBox::make()?).cast()))
}

/// # Safety
/// A channel of this library without objects, which is not used afterwards.
pub(crate) unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    // SAFETY: as the caller promises; it came from a box.
    let ended = unsafe { Box::from_raw(ChannelBox::around(channel)) };
    // Objects and events know each other.
    let left = ended.channel.with(core::mem::take);
    drop_events(left.into_iter().map(|(_, what)| what).collect());
}

/// # Safety
/// A channel of this library and a place for an event.
pub(crate) unsafe extern "C-unwind" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    to: *mut *mut rdma_cm_event,
) -> c_int {
    wait_until(|| {
        // SAFETY: as the caller promises.
        let of = unsafe { ChannelBox::of(channel) };
        let Some(event) = of.channel.try_next()? else { return Ok(Look::Nothing(of.channel.fd())) };
        // SAFETY: as the caller promises.
        unsafe { to.write(event.into_c()) };
        Ok(Look::Taken)
    })
}

/// # Safety
/// An event of this library, which is not used afterwards.
pub(crate) unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    count(|| {
        if event.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: as the caller promises.
        unsafe { EventBox::acknowledge(event) };
        Ok(0)
    })
}

/// # Safety
/// An object of this library.
pub(crate) unsafe extern "C" fn rdma_write_cm_event(
    id: *mut rdma_cm_id,
    kind: c_int,
    status: c_int,
    argument: u64,
) -> c_int {
    count(|| {
        if kind != event::USER && kind != event::INTERNAL {
            return Err(libc::EINVAL);
        }
        // SAFETY: as the caller promises.
        unsafe { IdBox::of(id) }.core.tell(What::Plain(kind, status, argument));
        Ok(0)
    })
}

const _: fn() = || {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Channel>();
    is_shared::<service::Service>();
};
