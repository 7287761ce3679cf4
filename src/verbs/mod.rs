//! The verbs API: the objects and calls that applications use.
//!
//! Objects and calls have the names they have in `libibverbs`. There are three differences. A context is opened on
//! ports, one per plane of the network, and not on a device found by name. MRC has only RDMA WRITE and RDMA WRITE with
//! immediate; the other operations need a peer with the same [extensions](Extensions), such as this crate. An object is
//! never freed while another one uses it.
//!
//! | object | what it is | made by |
//! |---|---|---|
//! | [`Context`] | a NIC in use: its ports, the transport, and the lane that drives both | [`Context::open`] |
//! | [`Pd`] | protection domain: queue pairs write only to memory of their own | [`Context::create_pd`] |
//! | [`Mr`] | registered memory, with keys | [`Pd::register`] |
//! | [`Cq`] | completion queue, of a fixed size | [`Context::create_cq`] |
//! | [`CompChannel`] | completion channel: wakes threads that wait for completions | [`Context::create_comp_channel`] |
//! | [`Qp`] | queue pair: one side of a reliable connection | [`Qp::create`] |
//! | [`QpPoster`] | a handle by which several threads post to one queue pair | [`Qp::share`] |
//! | [`Srq`] | shared receive queue: receives for several queue pairs | [`Context::create_srq`] |
//! | [`SendWr`], [`GatherWr`] | send work requests | [`Qp::post_send`], [`Qp::post_gather`] |
//! | [`RecvWr`], [`ScatterWr`] | receive work requests | [`Qp::post_recv`], [`Qp::post_scatter`] |
//! | [`Wc`] | work completion | [`Cq::poll`] |
//!
//! # A client and a server
//!
//! Both sides in one program, joined by the loopback port:
//!
//! ```
//! use spindrift::pmd::loopback;
//! use spindrift::verbs::{Access, Context, ContextConfig, Qp, QpConfig, RecvWr, SendOp, SendWr, nic};
//!
//! // Two NICs with four planes each, wired to each other.
//! let (here, there) = loopback::pair(4, loopback::LoopbackConfig::default());
//!
//! // The server: memory that its peers may write, and a queue pair.
//! let ports = nic(there);
//! let config = ContextConfig::new(&ports);
//! let server = Context::open(ports, config)?;
//! let server_pd = server.create_pd()?;
//! let mut server_cq = server.create_cq(64)?;
//! let target = server_pd.register(1 << 20, Access::REMOTE_WRITE)?;
//! let mut server_qp = Qp::create(&server_pd, &server_cq, &server_cq, &QpConfig::default())?;
//!
//! // The client: memory to send from, and a queue pair.
//! let ports = nic(here);
//! let config = ContextConfig::new(&ports);
//! let client = Context::open(ports, config)?;
//! let client_pd = client.create_pd()?;
//! let mut client_cq = client.create_cq(64)?;
//! let source = client_pd.register(1 << 20, Access::LOCAL_READ)?;
//! let mut client_qp = Qp::create(&client_pd, &client_cq, &client_cq, &QpConfig::default())?;
//!
//! // The server expects one immediate. A receive may be posted from INIT on. Posted before the client
//! // connects, it is in the queue before the immediate can arrive.
//! server_qp.init()?;
//! server_qp.post_recv(RecvWr::empty(7))?;
//!
//! // They exchange connection data (here directly) and connect.
//! server_qp.connect(&client_qp.info()?)?;
//! client_qp.connect(&server_qp.info()?)?;
//!
//! // The client writes a whole mebibyte, with an immediate to notify the server.
//! source.write_at(0, b"hello, spray")?;
//! client_qp.post_send(SendWr {
//!     wr_id: 1,
//!     op: SendOp::WriteWithImm(42),
//!     local: source.sge(0, 1 << 20)?,
//!     remote: target.remote().at(0, 1 << 20)?,
//!     signaled: true,
//!     fence: false,
//! })?;
//!
//! // Both lanes run inside this thread, so it drives both until each side has its completion.
//! let (mut sent, mut received) = (None, None);
//! while sent.is_none() || received.is_none() {
//!     client.poll();
//!     server.poll();
//!     sent = sent.or(client_cq.poll_one()?);
//!     received = received.or(server_cq.poll_one()?);
//! }
//! assert!(sent.is_some_and(|wc| wc.wr_id == 1 && wc.status.is_success()));
//! assert!(received.is_some_and(|wc| wc.wr_id == 7 && wc.imm == Some(42)));
//! let mut bytes = [0; 12];
//! target.read_at(0, &mut bytes)?;
//! assert_eq!(&bytes, b"hello, spray");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Every operation
//!
//! | [`SendOp`] | what it does | at the peer it needs |
//! |---|---|---|
//! | `Write` | copies local bytes to the remote address | [`Access::REMOTE_WRITE`] |
//! | `WriteWithImm` | the same, and completes a receive with a value | a receive |
//! | `Send`, `SendWithImm` | copies local bytes to the buffer of the peer's next receive | a receive with a buffer in memory with [`Access::LOCAL_WRITE`] |
//! | `SendWithInvalidate` | a SEND that also ends a registration of the peer | [`Access::REMOTE_INVALIDATE`] |
//! | `Read` | copies bytes from the remote address to local memory | [`Access::REMOTE_READ`] |
//! | `CompareSwap`, `FetchAdd` | changes 8 remote bytes and returns their value before | [`Access::REMOTE_ATOMIC`] |
//!
//! All but writes need an extension of MRC that both queue pairs offer ([`QpConfig::extensions`]; all are offered by
//! default). Requests complete in the order in which they were posted. A read or an atomic operation sees earlier
//! writes. A later write or SEND may overtake it, unless that has the `fence` flag: see decision 42 of
//! `docs/protocol.md`.
//!
//! A peer that has no receive for a message refuses it, and it is sent again after [`QpConfig::min_rnr_timer`], up to
//! [`RtsAttr::rnr_retry`] times.
//!
//! ```
//! # use spindrift::pmd::loopback;
//! use spindrift::verbs::{
//!     Access, Context, ContextConfig, Qp, QpConfig, RecvWr, RemoteAddr, SendOp, SendWr, nic,
//! };
//!
//! # let (here, there) = loopback::pair(4, loopback::LoopbackConfig::default());
//! # let open = |ports| -> Result<_, Box<dyn std::error::Error>> {
//! #     let ports = nic(ports);
//! #     let config = ContextConfig::new(&ports);
//! #     Ok(Context::open(ports, config)?)
//! # };
//! # let (client, server) = (open(here)?, open(there)?);
//! # let (client_pd, server_pd) = (client.create_pd()?, server.create_pd()?);
//! # let (mut client_cq, mut server_cq) = (client.create_cq(64)?, server.create_cq(64)?);
//! # let mut client_qp = Qp::create(&client_pd, &client_cq, &client_cq, &QpConfig::default())?;
//! # let mut server_qp = Qp::create(&server_pd, &server_cq, &server_cq, &QpConfig::default())?;
//! # server_qp.connect(&client_qp.info()?)?;
//! # client_qp.connect(&server_qp.info()?)?;
//! // The server's memory: what the client may read, a counter, and a buffer for messages.
//! let library = server_pd.register(4096, Access::REMOTE_READ)?;
//! library.write_at(0, b"a book")?;
//! let counter = server_pd.register(8, Access::REMOTE_ATOMIC)?;
//! let inbox = server_pd.register(64, Access::LOCAL_WRITE)?;
//! server_qp.post_recv(RecvWr { wr_id: 1, local: inbox.sge(0, 64)? })?;
//!
//! // The client sends a message, reads the library, and adds 5 to the counter.
//! let memory = client_pd.register(64, Access::LOCAL_WRITE)?;
//! memory.write_at(0, b"hello")?;
//! let request = |wr_id, op, local, remote| SendWr { wr_id, op, local, remote, signaled: true, fence: false };
//! client_qp.post_sends(&[
//!     request(1, SendOp::Send, memory.sge(0, 5)?, RemoteAddr::default()),
//!     request(2, SendOp::Read, memory.sge(8, 6)?, library.remote().at(0, 6)?),
//!     request(3, SendOp::FetchAdd(5), memory.sge(16, 8)?, counter.remote().at(0, 8)?),
//! ])?;
//!
//! let mut done = Vec::new();
//! let mut received = None;
//! while done.len() < 3 || received.is_none() {
//!     client.poll();
//!     server.poll();
//!     done.extend(client_cq.poll_one()?);
//!     received = received.or(server_cq.poll_one()?);
//! }
//! assert!(done.iter().map(|wc| (wc.wr_id, wc.status.is_success())).eq([(1, true), (2, true), (3, true)]));
//! assert!(received.is_some_and(|wc| (wc.wr_id, wc.byte_len) == (1, 5)));
//! let (mut message, mut book) = ([0; 5], [0; 6]);
//! inbox.read_at(0, &mut message)?;
//! memory.read_at(8, &mut book)?;
//! assert_eq!((&message, &book), (b"hello", b"a book"));
//! assert_eq!(counter.region().load_u64(0)?, 5);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The same over UDP, in two terminals
//!
//! Each side opens its own ports, and both exchange connection data over the TCP connection of the
//! `spindrift-exchange` crate. Call `server` in one program and `client` in another, each with its own address.
//! Several ports make several planes. `examples/write.rs` in the repository is such a program, with a command line and
//! error messages.
//!
//! ```
//! use std::{error::Error, net::IpAddr, time::Duration};
//!
//! use spindrift::pmd::udp::{UdpConfig, UdpPort};
//! use spindrift_exchange::{Channel, Listener};
//! use spindrift::verbs::{
//!     Access, Context, ContextConfig, Cq, Idle, LaneMode, Mr, Qp, QpConfig, RecvWr, SendOp, SendWr, Wc, nic,
//! };
//!
//! const TIMEOUT: Duration = Duration::from_secs(10);
//!
//! /// A NIC of one port at the side's own address, and a queue pair with a mebibyte of memory.
//! fn open(own: IpAddr) -> Result<(Cq, Mr, Qp), Box<dyn Error>> {
//!     let ports = nic(vec![UdpPort::open(&UdpConfig { local: own, ..UdpConfig::default() })?]);
//!     // The lane gets a thread of its own, so that it acknowledges packets while we wait for something else.
//!     let lane = LaneMode::Thread { core: None, idle: Idle::Yield };
//!     let config = ContextConfig::new(&ports).lane(lane);
//!     let context = Context::open(ports, config)?;
//!     let pd = context.create_pd()?;
//!     let cq = context.create_cq(64)?;
//!     let mr = pd.register(1 << 20, Access::REMOTE_WRITE)?;
//!     let qp = Qp::create(&pd, &cq, &cq, &QpConfig::default())?;
//!     Ok((cq, mr, qp))
//! }
//!
//! fn wait(cq: &mut Cq) -> Result<Wc, Box<dyn Error>> {
//!     loop {
//!         if let Some(wc) = cq.poll_one()? {
//!             return if wc.status.is_success() { Ok(wc) } else { Err(wc.status.to_string().into()) };
//!         }
//!         std::thread::yield_now();
//!     }
//! }
//!
//! fn server(own: IpAddr, listener: &Listener) -> Result<(), Box<dyn Error>> {
//!     let (mut cq, mr, mut qp) = open(own)?;
//!     qp.init()?;
//!     qp.post_recv(RecvWr::empty(7))?;
//!     let mut peer = listener.accept(TIMEOUT, || true)?;
//!     peer.connect_qps(std::slice::from_mut(&mut qp), &[&mr], "")?;
//!     assert_eq!(wait(&mut cq)?.imm, Some(42));
//!     let mut bytes = [0; 12];
//!     mr.read_at(0, &mut bytes)?;
//!     assert_eq!(&bytes, b"hello, spray");
//!     // Until the client has its completion: it waits for our acknowledgement.
//!     Ok(peer.barrier()?)
//! }
//!
//! fn client(own: IpAddr, server: &str) -> Result<(), Box<dyn Error>> {
//!     let (mut cq, mr, mut qp) = open(own)?;
//!     mr.write_at(0, b"hello, spray")?;
//!     let mut peer = Channel::connect(server, TIMEOUT)?;
//!     let theirs = peer.connect_qps(std::slice::from_mut(&mut qp), &[], "")?;
//!     let target = theirs.memory.first().ok_or("the server offers no memory")?;
//!     qp.post_send(SendWr {
//!         wr_id: 1,
//!         op: SendOp::WriteWithImm(42),
//!         local: mr.sge(0, 1 << 20)?,
//!         remote: target.at(0, 1 << 20)?,
//!         signaled: true,
//!         fence: false,
//!     })?;
//!     wait(&mut cq)?;
//!     Ok(peer.barrier()?)
//! }
//! # let listener = Listener::bind("127.0.93.1:0")?;
//! # let address = listener.local_addr()?.to_string();
//! # std::thread::scope(|scope| {
//! #     let server = scope.spawn(|| server([127, 0, 93, 1].into(), &listener).unwrap());
//! #     client([127, 0, 93, 2].into(), &address).unwrap();
//! #     server.join().unwrap();
//! # });
//! # Ok::<(), Box<dyn Error>>(())
//! ```
//!
//! # Queries and modifications
//!
//! | call | in `libibverbs` | returns or changes |
//! |---|---|---|
//! | [`Context::query_device`] | `ibv_query_device` | limits, capabilities, current use: [`DeviceAttr`] |
//! | [`Context::query_port`], [`Context::query_ports`] | `ibv_query_port` | address, link, frame size, counters: [`PortAttr`] |
//! | [`Qp::query`] | `ibv_query_qp` | state, connection, progress, attributes in force: [`QpAttr`] |
//! | [`Qp::modify`] | `ibv_modify_qp` | the state; in RTS also retries and congestion control: [`QpModify`] |
//!
//! To change one retry attribute of a connected queue pair and keep the others:
//!
//! ```
//! # use spindrift::verbs::{Qp, QpModify, RetryAttr, VerbsError};
//! fn set_timeout(qp: &mut Qp, timeout: u8) -> Result<(), VerbsError> {
//!     if let Some(rts) = qp.query()?.rts {
//!         qp.modify(QpModify::Retry(RetryAttr { timeout, ..rts.retry() }))?;
//!     }
//!     Ok(())
//! }
//! ```
//!
//! # Who drives the lane
//!
//! A [`Context`] has a *lane*: the loop that accepts work requests, sends and receives packets, and delivers
//! completions. By default it runs inside the caller's thread: nothing happens unless [`Context::poll`] is called.
//! Call it often, also on a side that only receives, because it sends the acknowledgements. With [`LaneMode::Thread`]
//! the lane has a thread of its own, and the application only posts and polls its completion queues. With
//! [`LaneMode::Hybrid`] both drive the lane, and the thread sleeps while the application polls. Posting and
//! polling never lock (except [`QpPoster`]). Control operations wait until the lane's current poll ends, a few
//! microseconds, and until earlier control operations are done. Together they get a sixteenth of a busy lane's time.
//! Reading counters and states does not slow the lane down.
//!
//! One lane keeps one core busy. [`Context::open_lanes`] makes several, each with ports of its own. Queue pairs are
//! distributed over them ([`QpConfig::lane`]). All lanes share memory and completion queues.
//!
//! # Gather and scatter lists
//!
//! [`Qp::post_gather`] sends up to [`MAX_SGE`] pieces of registered memory as one message, such as a header and its
//! body, or the rows of a tile. [`QpConfig::max_send_sge`] reserves room for them.
//!
//! ```
//! # use spindrift::verbs::{GatherWr, Mr, Qp, RemoteAddr, SendOp};
//! /// A header of 64 bytes from one region, then 4 KiB of another.
//! fn send(qp: &mut Qp, header: &Mr, body: &Mr, remote: RemoteAddr) -> Result<(), Box<dyn std::error::Error>> {
//!     let local = [header.sge(0, 64)?, body.sge(0, 4096)?];
//!     qp.post_gather(GatherWr { wr_id: 1, op: SendOp::Write, local: &local, remote, signaled: true, fence: false })?;
//!     Ok(())
//! }
//! ```
//!
//! A read fills the elements of its request in order. [`Qp::post_scatter`] and [`Srq::post_scatter`] post receives whose
//! buffers have several elements; [`QpConfig::max_recv_sge`] reserves room for them.
//!
//! # Posting lists, and posting from several threads
//!
//! [`Qp::post_sends`] takes a list of requests and notifies the lane once. A [`Qp`] belongs to one thread at a time,
//! so posting needs no lock. If several threads send to the same peer, it is cheapest to give each a queue pair, with
//! one completion queue or several. If they must share one queue pair, [`Qp::share`] gives them handles that take a
//! lock for each post or list:
//!
//! ```
//! # use spindrift::verbs::{PostError, Qp, QpPoster, SendWr};
//! /// Each thread posts its own requests; `qp` stays with the thread that connects and drops it.
//! fn spread(qp: Qp, work: &[Vec<SendWr>]) -> Qp {
//!     let (qp, poster) = qp.share();
//!     std::thread::scope(|scope| {
//!         for part in work {
//!             let poster: QpPoster = poster.clone();
//!             scope.spawn(move || {
//!                 let mut left = part.as_slice();
//!                 while let Err(bad) = poster.post_sends(left) {
//!                     assert!(matches!(bad.error, PostError::QueueFull { .. }), "{bad}");
//!                     left = &left[bad.index..];
//!                     std::thread::yield_now();
//!                 }
//!             });
//!         }
//!     });
//!     qp
//! }
//! ```
//!
//! # Sleeping until something completes
//!
//! Polling a completion queue has the lowest latency, and occupies a core. An application with other work waits on a
//! [`CompChannel`] instead, or adds its descriptor to its event loop:
//!
//! ```
//! # use spindrift::verbs::{CompChannel, Cq, Wc};
//! /// Sleeps until there are completions. Made with `context.create_cq_with_channel(depth, &channel)`.
//! fn next(cq: &mut Cq, channel: &CompChannel, out: &mut [Wc]) -> Result<usize, Box<dyn std::error::Error>> {
//!     loop {
//!         let count = cq.poll(out)?;
//!         if count > 0 {
//!             return Ok(count);
//!         }
//!         // A completion between the poll and this call causes no event: poll once more.
//!         if !cq.req_notify()? {
//!             channel.get_event(None)?;
//!         }
//!     }
//! }
//! ```
//!
//! With [`Idle::Nap`], and with [`LaneMode::Hybrid`], a lane sleeps while nothing happens. A post wakes it, and so does a frame that arrives at a
//! port with file descriptors for it. An application that drives a lane itself has [`Context::wait_lane`].
//!
//! # When something fails
//!
//! A call refuses what it can check beforehand, with an error that names the input. A request that fails later
//! completes with a [`WcStatus`] other than success and moves the queue pair to ERROR. Everything else posted on it
//! completes, in order, as [`WcStatus::WrFlushError`], signalled or not. [`Qp::state`] returns the reason. A
//! completion queue that overflows reports an error ([`CqError`]) instead of losing completions silently.
//!
//! If the peer sends nothing, the oldest request completes with [`WcStatus::RetryExceeded`] and its queue pair fails,
//! by default after 17.3 s. Nothing is lost if the peer is reachable again before that. [`QpConfig::retry`] sets the
//! time, and [`QpModify::Retry`] changes it while connected. [`RtsAttr`] has the formula and a table.
//!
//! A lane that panics fails its whole context. Posted requests are completed as flushed as far as possible, then every
//! completion queue reports [`CqError::LaneFailed`]. Queue pairs are in ERROR, control calls and posts are refused,
//! and [`Context::failure`] returns the panic message.
//!
//! # Lifetimes
//!
//! Every object keeps the objects that it was made from alive. When an [`Mr`] is dropped, new requests can no longer
//! use it, and its memory is kept until the last work request that uses it is done. Dropping a [`Qp`] destroys it. An
//! object dropped within [`Context::with_endpoint`] ends when that call returns. The lane (and its thread) ends with
//! the last object of its context.

mod comp_channel;
mod context;
mod cq;
mod error;
mod mr;
pub mod negotiate;
mod pd;
mod port_attr;
mod post;
mod qp;
mod query;
mod srq;

pub use comp_channel::CompChannel;
pub use context::{Context, ContextConfig, Placement, nic, nic_of_queues};
pub use cq::{Cq, MAX_CQ_DEPTH};
pub use error::{BadWr, CqError, PostError, VerbsError};
pub use mr::Mr;
pub use pd::Pd;
pub use port_attr::PortAttr;
pub use post::{InlineWr, MAX_INLINE, QpPoster};
pub use qp::{Qp, QpConfig};
pub use query::{DeviceAttr, DeviceCaps, WrOpcode};
pub use srq::{Srq, SrqAttr};

pub use crate::endpoint::{
    CqId, Extensions, FailReason, QpAttr, QpCap, QpCounters, QpFailure, QpInfo, QpModify, QpPeer, QpState,
    RetryAttr, RtrAttr, RtsAttr,
};
pub use crate::engine::{AsyncEvent, ControlError, Idle, LaneMode};
pub use crate::memory::{Access, Region};
pub use crate::work::{
    GatherWr, MAX_SGE, RecvWr, RemoteAddr, ScatterWr, SendOp, SendWr, Sge, SrqId, Wc, WcOpcode, WcStatus,
};
