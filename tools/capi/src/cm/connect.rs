//! To ask for a connection, to accept or refuse one, and to end it.

use core::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::sync::Arc;

use super::abi::{
    EventParam, RDMA_MAX_INIT_DEPTH, RDMA_MAX_RESP_RES, RDMA_UDP_QKEY, event, rdma_cm_id, rdma_conn_param,
    rdma_ud_param,
};
use super::channel::as_param;
use super::id::{Agreed, IdBox, IdCore, IdState, Step};
use super::message::{Message, Request, Side};
use super::queue;
use crate::error::count;

/// READs and atomic operations in flight, at most.
const MOST_READS: u8 = 16;
/// Retransmissions, if the program does not say.
const RETRIES: u8 = 7;

/// What the program says, or what is usual if it says nothing.
fn told(param: *const rdma_conn_param) -> rdma_conn_param {
    // SAFETY: the caller of the function of C passes null or parameters.
    let given = (!param.is_null()).then(|| unsafe { param.read() });
    given.unwrap_or(rdma_conn_param {
        private_data: core::ptr::null(),
        private_data_len: 0,
        responder_resources: RDMA_MAX_RESP_RES,
        initiator_depth: RDMA_MAX_INIT_DEPTH,
        flow_control: 1,
        retry_count: RETRIES,
        rnr_retry_count: RETRIES,
        srq: 0,
        qp_num: 0,
    })
}

/// Bytes of a program.
///
/// # Safety
/// `len` bytes, or null.
unsafe fn private(data: *const c_void, len: u8) -> Vec<u8> {
    if data.is_null() || len == 0 {
        return Vec::new();
    }
    // SAFETY: as the caller promises.
    unsafe { core::slice::from_raw_parts(data.cast::<u8>(), len.into()) }.to_vec()
}

/// What this side tells of itself.
fn side(of: &IdBox, state: &IdState, param: &rdma_conn_param) -> Result<Side, c_int> {
    let device = state.device.ok_or(libc::EINVAL)?;
    let base = of.base();
    let (mut number, mut srq) = (param.qp_num, param.srq);
    if !base.qp.is_null() {
        // SAFETY: a queue pair of the object was not destroyed.
        (number, srq) = unsafe { ((*base.qp).qp_num, u8::from(!(*base.qp).srq.is_null())) };
    }
    Ok(Side {
        number,
        address: device.address()?,
        mtu: device.mtu(),
        responder_resources: param.responder_resources.min(MOST_READS),
        initiator_depth: param.initiator_depth.min(MOST_READS),
        flow_control: param.flow_control,
        rnr_retry: param.rnr_retry_count.min(RETRIES),
        srq,
        // SAFETY: as the program promises.
        private: unsafe { private(param.private_data, param.private_data_len) },
    })
}

/// # Safety
/// An object of this library, and parameters or null.
pub(crate) unsafe extern "C" fn rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    count(|| {
        // SAFETY: as the caller promises.
        let of = unsafe { IdBox::of(id) };
        let param = told(param);
        let mut state = of.state()?;
        if !matches!(state.step, Step::Resolved | Step::Routed) {
            return Err(libc::EINVAL);
        }
        let socket = state.sockets.first().cloned().ok_or(libc::EINVAL)?;
        let port = socket.local_addr().map_err(|error| super::address::code(&error))?.port();
        let retry = param.retry_count.min(RETRIES);
        let side = side(of, &state, &param)?;
        state.agreed = Agreed {
            remote: None,
            retry,
            responder_resources: side.responder_resources,
            initiator_depth: side.initiator_depth,
        };
        state.step = Step::Calling;
        let request = Request { side, datagrams: of.is_of_datagrams(), port, retry };
        let line = of.core.service.ask(socket, Message::Request(request), Arc::clone(&of.core));
        of.core.add_line(line);
        drop(state);
        of.complete()?;
        Ok(0)
    })
}

/// Somebody asks a listener. `None`: it is refused without a question to the program.
pub(super) fn incoming(
    listener: &IdBox,
    core: &Arc<IdCore>,
    request: &Request,
    local: SocketAddr,
    peer: SocketAddr,
) -> Option<*mut rdma_cm_id> {
    let base = listener.base();
    // The listener may have moved since.
    core.move_to(&listener.core.channel());
    let made = IdBox::make(base.channel, base.context, base.ps, Some(Arc::clone(core)));
    let made = made.ok().inspect(|made| {
        made.base().qp_type = base.qp_type;
        made.set_peer(peer);
    });
    let side = &request.side;
    let is_host = !side.address.is_unspecified() && !side.address.is_multicast();
    let made = made.filter(|_| is_host && side.number < 1 << 24).filter(|made| {
        let Ok(mut state) = made.state() else { return false };
        state.step = Step::Called;
        state.agreed = Agreed {
            remote: Some(request.side.clone()),
            retry: request.retry,
            responder_resources: request.side.initiator_depth.min(MOST_READS),
            initiator_depth: request.side.responder_resources.min(MOST_READS),
        };
        if made.set_local(&mut state, local).is_err() {
            return false;
        }
        made.set_route(request.side.mtu);
        true
    });
    let Some(made) = made else {
        core.abandon();
        return None;
    };
    Some(made.into_c())
}

/// The other side has accepted: connects the queue pair, if the object has one. The event that the program reads.
pub(super) fn accepted(of: &IdBox, side: &Side, qkey: u32) -> (c_int, c_int, EventParam) {
    let failed_with = |code: c_int| (event::CONNECT_ERROR, -code, EventParam::none());
    let Ok(mut state) = of.state() else { return failed_with(libc::EIO) };
    state.agreed.remote = Some(side.clone());
    state.agreed.responder_resources = state.agreed.responder_resources.min(side.initiator_depth);
    state.agreed.initiator_depth = state.agreed.initiator_depth.min(side.responder_resources);
    state.step = Step::Accepted;
    if of.is_of_datagrams() {
        let ud = rdma_ud_param {
            private_data: core::ptr::null(),
            private_data_len: 0,
            ah_attr: queue::to_host(side.address),
            qp_num: side.number,
            qkey,
        };
        return (event::ESTABLISHED, 0, EventParam { ud });
    }
    let conn = as_param(side, 0);
    drop(state);
    if of.base().qp.is_null() {
        return (event::CONNECT_RESPONSE, 0, EventParam::connected(conn));
    }
    let ready = queue::connect(of).and_then(|()| say(of, &Message::Ready));
    match ready {
        // The other side may have ended since: the next event tells of that.
        Ok(()) | Err(libc::ENOTCONN) => (event::ESTABLISHED, 0, EventParam::connected(conn)),
        Err(code) => {
            // The other side sees the end, and the program is told of this alone.
            of.core.close();
            failed_with(code)
        }
    }
}

/// A request has failed. The program may ask again, with another queue pair.
pub(super) fn failed(of: &IdBox) {
    queue::fail(of);
    if let Ok(mut state) = of.state()
        && state.step == Step::Calling
    {
        state.step = Step::Routed;
        of.core.close();
    }
}

fn say(of: &IdBox, message: &Message) -> Result<(), c_int> {
    of.core.service.say(of.core.line()?, message)
}

/// # Safety
/// An object that an event of a request brought, and parameters or null.
pub(crate) unsafe extern "C" fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    count(|| {
        // SAFETY: as the caller promises.
        let of = unsafe { IdBox::of(id) };
        let mut given = told(param);
        let mut state = of.state()?;
        if state.step != Step::Called {
            return Err(libc::EINVAL);
        }
        // A program that says nothing takes what the other side wants.
        let agreed = &mut state.agreed;
        given.responder_resources = given.responder_resources.min(agreed.responder_resources);
        given.initiator_depth = given.initiator_depth.min(agreed.initiator_depth);
        agreed.responder_resources = given.responder_resources;
        agreed.initiator_depth = given.initiator_depth;
        let side = side(of, &state, &given)?;
        drop(state);
        if !of.is_of_datagrams() && !of.base().qp.is_null() {
            queue::connect(of)?;
        }
        let qkey = if of.is_of_datagrams() { RDMA_UDP_QKEY } else { 0 };
        if let Err(code) = say(of, &Message::Accept { side, qkey }) {
            queue::fail(of);
            return Err(code);
        }
        of.state()?.step = Step::Accepted;
        // Nothing follows for datagrams.
        if of.is_of_datagrams() {
            of.drop_event();
        } else {
            of.complete()?;
        }
        Ok(0)
    })
}

/// # Safety
/// An object of this library, and as many bytes as given.
pub(crate) unsafe extern "C" fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    count(|| {
        // SAFETY: as the caller promises.
        let (of, private) = unsafe { (IdBox::of(id), private(data, len)) };
        drop(of.state()?);
        say(of, &Message::Reject { private })?;
        Ok(0)
    })
}

/// For programs that connect their queue pair themselves.
///
/// # Safety
/// An object of this library.
pub(crate) unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    count(|| {
        // SAFETY: as the caller promises.
        let of = unsafe { IdBox::of(id) };
        drop(of.state()?);
        if !of.base().qp.is_null() {
            return Err(libc::EINVAL);
        }
        say(of, &Message::Ready)?;
        Ok(0)
    })
}

/// A connection is made without the arrival of data.
pub(crate) extern "C" fn rdma_notify(_id: *mut rdma_cm_id, _event: c_int) -> c_int {
    0
}

/// # Safety
/// An object of this library.
pub(crate) unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    count(|| {
        // SAFETY: as the caller promises.
        let of = unsafe { IdBox::of(id) };
        drop(of.state()?);
        queue::fail(of);
        match say(of, &Message::Disconnect) {
            // The other side was first. The event of that may not have been read.
            Err(libc::ENOTCONN) if of.core.waiting() == 0 => return Ok(0),
            Err(libc::ENOTCONN) | Ok(()) => {}
            Err(code) => return Err(code),
        }
        of.complete()?;
        Ok(0)
    })
}

/// Waits for the next request, at a listener whose calls wait for their events.
///
/// # Safety
/// An object of this library, and a place for another.
pub(crate) unsafe extern "C" fn rdma_get_request(
    listener: *mut rdma_cm_id,
    to: *mut *mut rdma_cm_id,
) -> c_int {
    count(|| {
        // SAFETY: as the caller promises.
        let of = unsafe { IdBox::of(listener) };
        if !of.is_synchronous() {
            return Err(libc::EINVAL);
        }
        of.complete()?;
        let event = core::mem::replace(&mut of.base().event, core::ptr::null_mut());
        // SAFETY: the call above has set it.
        let (kind, id) = unsafe { ((*event).event, (*event).id) };
        if kind != event::CONNECT_REQUEST {
            // SAFETY: the same; nobody else has it.
            unsafe { super::channel::EventBox::acknowledge(event) };
            return Err(libc::EINVAL);
        }
        // SAFETY: an object that the event has brought.
        let made = unsafe { IdBox::of(id) };
        if let Err(code) = made.take_over(event) {
            // SAFETY: the program has neither.
            unsafe {
                super::channel::EventBox::acknowledge(event);
                super::id::rdma_destroy_id(id);
            }
            return Err(code);
        }
        let template = of.state()?.template;
        if let Some((pd, attr)) = template {
            let mut attr = attr;
            queue::create(made, pd, &mut attr).inspect_err(|_| {
                // SAFETY: the program does not have it.
                unsafe { super::id::rdma_destroy_id(id) };
            })?;
        }
        // SAFETY: as the caller promises.
        unsafe { to.write(id) };
        Ok(0)
    })
}

const _: () = assert!(size_of::<rdma_conn_param>() == 24);
