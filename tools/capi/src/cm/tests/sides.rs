//! Sides of connections: channels whose events are expected, identifiers and queue pairs in their usual states.

use super::*;

/// How long a test waits for what must come, on a machine with other work.
pub(super) const PATIENCE: Duration = Duration::from_mins(1);

/// An event, as far as tests look at it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) kind: c_int,
    pub(super) status: c_int,
    pub(super) private: Vec<u8>,
}

pub(super) fn seen(kind: c_int, status: c_int, private: &[u8]) -> Seen {
    Seen { kind, status, private: private.to_vec() }
}

pub(super) struct Channel(pub(super) *mut rdma_event_channel);

impl Channel {
    pub(super) fn new() -> Self {
        let channel = rdma_create_event_channel();
        assert!(!channel.is_null());
        Self(channel)
    }

    pub(super) fn fd(&self) -> c_int {
        // SAFETY: a channel of this test.
        unsafe { (*self.0).fd }
    }

    /// Whether an event waits, for as long as `ms`.
    pub(super) fn has_event(&self, ms: c_int) -> bool {
        let mut poll = libc::pollfd { fd: self.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one element of this function.
        unsafe { libc::poll(&raw mut poll, 1, ms) == 1 }
    }

    /// The next event, which the caller acknowledges.
    #[track_caller]
    pub(super) fn next(&self) -> *mut rdma_cm_event {
        assert!(self.has_event(PATIENCE.as_millis() as c_int), "no event comes");
        let mut event = null_mut();
        // SAFETY: a channel of this test, and a place of this function.
        assert_eq!(unsafe { rdma_get_cm_event(self.0, &raw mut event) }, 0);
        event
    }

    /// The next event, acknowledged, and the object that it is about.
    #[track_caller]
    pub(super) fn take(&self) -> (Seen, *mut rdma_cm_id) {
        let event = self.next();
        // SAFETY: the event is not acknowledged yet.
        unsafe {
            let conn = (*event).param.conn;
            let data = conn.private_data.cast::<u8>();
            let private = match conn.private_data_len {
                0 => Vec::new(),
                len => core::slice::from_raw_parts(data, len.into()).to_vec(),
            };
            let found = (Seen { kind: (*event).event, status: (*event).status, private }, (*event).id);
            assert_eq!(rdma_ack_cm_event(event), 0);
            found
        }
    }

    #[track_caller]
    pub(super) fn expect(&self, id: *mut rdma_cm_id, wanted: &Seen) {
        let (seen, about) = self.take();
        assert_eq!((&seen, about), (wanted, id));
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: tests destroy the objects before.
        unsafe { rdma_destroy_event_channel(self.0) };
    }
}

pub(super) fn create(channel: &Channel, ps: c_int) -> *mut rdma_cm_id {
    let mut id = null_mut();
    // SAFETY: a channel of the test.
    assert_eq!(unsafe { rdma_create_id(channel.0, &raw mut id, 7 as *mut c_void, ps) }, 0);
    id
}

pub(super) fn destroy(id: *mut rdma_cm_id) {
    // SAFETY: an object of the test, which is not used afterwards.
    unsafe {
        rdma_destroy_qp(id);
        assert_eq!(rdma_destroy_id(id), 0);
    }
}

pub(super) fn here(port: u16) -> libc::sockaddr_storage {
    address::write(SocketAddr::from(([127, 0, 0, 1], port))).0
}

/// A listener and its port.
pub(super) fn listener(channel: &Channel, ps: c_int, backlog: c_int) -> (*mut rdma_cm_id, u16) {
    let id = create(channel, ps);
    let mut at = here(0);
    // SAFETY: an object of the test and an address.
    unsafe {
        assert_eq!(rdma_bind_addr(id, (&raw mut at).cast()), 0);
        assert_eq!(rdma_listen(id, backlog), 0);
        (id, u16::from_be(rdma_get_src_port(id)))
    }
}

/// An object that knows its way to a port.
pub(super) fn routed(channel: &Channel, ps: c_int, port: u16) -> *mut rdma_cm_id {
    let id = create(channel, ps);
    let mut to = here(port);
    // SAFETY: an object of the test and an address.
    unsafe {
        assert_eq!(rdma_resolve_addr(id, null_mut(), (&raw mut to).cast(), 1000), 0);
        channel.expect(id, &seen(event::ADDR_RESOLVED, 0, &[]));
        assert_eq!(rdma_resolve_route(id, 1000), 0);
        channel.expect(id, &seen(event::ROUTE_RESOLVED, 0, &[]));
        assert_eq!((*(*id).route.path_rec).mtu as c_int, 5.min((*(*id).route.path_rec).mtu as c_int));
        assert_eq!((u16::from_be(rdma_get_dst_port(id)), (*id).port_num), (port, 1));
    }
    id
}

pub(super) fn init_attr(kind: c_int) -> ibv_qp_init_attr {
    // SAFETY: numbers and null pointers.
    let mut attr: ibv_qp_init_attr = unsafe { zeroed() };
    attr.qp_type = kind;
    attr.sq_sig_all = 1;
    attr.cap =
        ibv_qp_cap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 16 };
    attr
}

/// With completion queues that the library makes.
pub(super) fn give_queue_pair(id: *mut rdma_cm_id) {
    // SAFETY: an object of the test.
    unsafe {
        let mut attr = init_attr((*id).qp_type);
        assert_eq!(rdma_create_qp(id, null_mut(), &raw mut attr), 0);
        assert!(!(*id).qp.is_null() && !(*id).send_cq.is_null() && !(*id).recv_cq_channel.is_null());
    }
}

pub(super) fn param(private: &[u8]) -> rdma_conn_param {
    rdma_conn_param {
        private_data: private.as_ptr().cast(),
        private_data_len: private.len() as u8,
        responder_resources: 3,
        initiator_depth: 2,
        flow_control: 1,
        retry_count: 5,
        rnr_retry_count: 4,
        srq: 0,
        qp_num: 0,
    }
}

pub(super) fn connect(id: *mut rdma_cm_id, private: &[u8]) {
    let mut param = param(private);
    // SAFETY: an object of the test.
    assert_eq!(unsafe { rdma_connect(id, &raw mut param) }, 0);
}

pub(super) fn accept(id: *mut rdma_cm_id, private: &[u8]) {
    let mut param = param(private);
    // SAFETY: an object of the test.
    assert_eq!(unsafe { rdma_accept(id, &raw mut param) }, 0, "{}", last_code());
}

pub(super) fn state_of(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: a queue pair of the test.
    unsafe {
        let (mut attr, mut init): (ibv_qp_attr, ibv_qp_init_attr) = (zeroed(), zeroed());
        assert_eq!(ibv_query_qp((*id).qp, &raw mut attr, 0, &raw mut init), 0);
        attr.qp_state
    }
}

/// The next completion.
pub(super) fn completion(queue: *mut ibv_cq) -> ibv_wc {
    let began = std::time::Instant::now();
    loop {
        // SAFETY: a completion queue of the test, and a place of this function.
        unsafe {
            let mut wc: ibv_wc = zeroed();
            if cq::poll_cq(queue, 1, &raw mut wc) == 1 {
                return wc;
            }
        }
        assert!(began.elapsed() < PATIENCE, "no completion");
    }
}

pub(super) fn send(id: *mut rdma_cm_id, bytes: &[u8]) -> c_int {
    // SAFETY: a queue pair of the test; inline bytes are copied.
    unsafe {
        let mut sge = ibv_sge { addr: bytes.as_ptr().addr() as u64, length: bytes.len() as u32, lkey: 0 };
        let mut wr: ibv_send_wr = zeroed();
        (wr.sg_list, wr.num_sge) = (&raw mut sge, 1);
        (wr.opcode, wr.send_flags) = (wr_opcode::SEND, IBV_SEND_INLINE);
        let mut bad = null_mut();
        crate::post::post_send((*id).qp, &raw mut wr, &raw mut bad)
    }
}

/// Both sides of a connection, and the listener. Each side has a channel.
pub(super) struct Pair {
    pub(super) of: [Channel; 2],
    pub(super) listener: *mut rdma_cm_id,
    pub(super) ids: [*mut rdma_cm_id; 2],
}

impl Pair {
    pub(super) fn new() -> Self {
        let of = [Channel::new(), Channel::new()];
        let (listener, port) = listener(&of[1], port_space::TCP, 0);
        let caller = routed(&of[0], port_space::TCP, port);
        give_queue_pair(caller);
        connect(caller, b"hello");
        let (request, called) = of[1].take();
        assert_eq!(request, seen(event::CONNECT_REQUEST, 0, b"hello"));
        give_queue_pair(called);
        accept(called, b"welcome");
        of[0].expect(caller, &seen(event::ESTABLISHED, 0, b"welcome"));
        of[1].expect(called, &seen(event::ESTABLISHED, 0, &[]));
        Self { of, listener, ids: [caller, called] }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.ids.into_iter().chain([self.listener]).for_each(destroy);
    }
}
