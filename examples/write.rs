//! A client that writes into a server's memory, and a server that checks what it got.
//!
//! ```text
//! cargo run --release --example write                              both in one process, over the loopback port
//! cargo run --release --example write -- server 127.0.0.1          in one terminal
//! cargo run --release --example write -- client 127.0.0.2 127.0.0.1    in another
//! ```
//!
//! The first address after `server` or `client` is the side's own; the client's second is the server's. Between two hosts,
//! give each its own address; several, separated by commas, make several planes.

use std::error::Error;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use spindrift::pmd::{Port, loopback, udp};
use spindrift::verbs::{
    Access, Context, ContextConfig, Cq, Idle, LaneMode, Mr, Qp, QpConfig, RecvWr, SendOp, SendWr, Wc, nic,
};
use spindrift_exchange::{Channel, Listener};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Bytes that are written, and in how many messages.
const TOTAL: usize = 256 << 20;
const MESSAGE: usize = 4 << 20;

/// TCP port of the set-up exchange.
const SETUP_PORT: u16 = 18_515;
const TIMEOUT: Duration = Duration::from_secs(10);

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        [] => both(),
        ["server", own] => {
            let listener = Listener::bind((first(own)?, SETUP_PORT))?;
            println!("waiting for a client at {}", listener.local_addr()?);
            server(udp_ports(own)?, &listener)
        }
        ["client", own, peer] => client(udp_ports(own)?, &format!("{}:{SETUP_PORT}", first(peer)?)),
        _ => Err("give nothing, `server OWN-ADDRESS`, or `client OWN-ADDRESS SERVER-ADDRESS`".into()),
    }
}

/// Both sides in one process, over a NIC of four planes each.
fn both() -> Outcome<()> {
    let (here, there) = loopback::pair(4, loopback::LoopbackConfig::default());
    let listener = Listener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    std::thread::scope(|scope| {
        let server = scope.spawn(|| server(nic(there), &listener));
        client(nic(here), &address)?;
        server.join().map_err(|_| "the server panicked")?
    })
}

/// Offers memory to one client, waits for its immediate and checks every byte.
fn server(ports: Vec<Box<dyn Port>>, listener: &Listener) -> Outcome<()> {
    let mut side = Side::open(ports, Access::REMOTE_WRITE)?;
    side.qp.init()?;
    side.qp.post_recv(RecvWr::empty(0))?;

    let mut peer = listener.accept(TIMEOUT, || true)?;
    peer.connect_qps(std::slice::from_mut(&mut side.qp), &[&side.mr], "")?;
    let wc = side.wait()?;
    let expected: Vec<u8> = (0..TOTAL).map(pattern).collect();
    let verified = side.mr.region().first_difference(0, &expected)?.is_none();
    println!("server: immediate {:?}, bytes verified: {verified}", wc.imm);

    // The client waits for this, so neither side leaves while the other may still need an answer.
    peer.send(&verified)?;
    Ok(peer.barrier()?)
}

/// Writes everything into the server's memory, message by message, the last with an immediate.
fn client(ports: Vec<Box<dyn Port>>, address: &str) -> Outcome<()> {
    let mut side = Side::open(ports, Access::LOCAL_READ)?;
    let bytes: Vec<u8> = (0..TOTAL).map(pattern).collect();
    side.mr.write_at(0, &bytes)?;

    let mut peer = Channel::connect(address, TIMEOUT)?;
    let theirs = peer.connect_qps(std::slice::from_mut(&mut side.qp), &[], "")?;
    let target = theirs.memory.first().ok_or("the server offers no memory")?;

    #[expect(clippy::disallowed_methods, reason = "an application may look at the clock")]
    let start = Instant::now();
    for offset in (0..TOTAL).step_by(MESSAGE) {
        let last = offset + MESSAGE == TOTAL;
        side.qp.post_send(SendWr {
            wr_id: offset as u64,
            op: if last { SendOp::WriteWithImm(2026) } else { SendOp::Write },
            local: side.mr.sge(offset, MESSAGE as u32)?,
            remote: target.at(offset as u64, MESSAGE as u64)?,
            signaled: last,
            fence: false,
        })?;
    }
    side.wait()?;
    let seconds = start.elapsed().as_secs_f64();
    println!("client: {} MiB in {seconds:.3} s, {:.1} Gb/s", TOTAL >> 20, TOTAL as f64 * 8e-9 / seconds);

    peer.set_timeout(TIMEOUT * 6);
    let verified: bool = peer.receive()?;
    peer.barrier()?;
    if verified { Ok(()) } else { Err("the server found other bytes than were sent".into()) }
}

/// What both sides need.
struct Side {
    context: Context,
    cq: Cq,
    mr: Mr,
    qp: Qp,
}

impl Side {
    fn open(ports: Vec<Box<dyn Port>>, access: Access) -> Outcome<Self> {
        let lane = LaneMode::Thread { core: None, idle: Idle::Yield };
        let config = ContextConfig::new(&ports).lane(lane);
        let context = Context::open(ports, config)?;
        let pd = context.create_pd()?;
        let cq = context.create_cq(256)?;
        let mr = pd.register(TOTAL, access)?;
        let qp = Qp::create(&pd, &cq, &cq, &QpConfig { mpr: 32, ..QpConfig::default() })?;
        Ok(Self { context, cq, mr, qp })
    }

    /// The next completion, which must be a good one.
    fn wait(&mut self) -> Outcome<Wc> {
        loop {
            self.context.poll();
            match self.cq.poll_one()? {
                Some(wc) if wc.status.is_success() => return Ok(wc),
                Some(wc) => return Err(format!("work request {} failed: {}", wc.wr_id, wc.status).into()),
                None => {}
            }
        }
    }
}

/// The byte that belongs at a position.
fn pattern(position: usize) -> u8 {
    (position * 31 + position / 4093) as u8
}

fn udp_ports(addresses: &str) -> Outcome<Vec<Box<dyn Port>>> {
    let open = |text: &str| -> Outcome<udp::UdpPort> {
        let local = text.parse().map_err(|error| format!("{text}: {error}"))?;
        Ok(udp::UdpPort::open(&udp::UdpConfig { local, ..udp::UdpConfig::default() })?)
    };
    Ok(nic(addresses.split(',').map(open).collect::<Outcome<Vec<_>>>()?))
}

fn first(addresses: &str) -> Outcome<IpAddr> {
    let text = addresses.split(',').next().unwrap_or_default();
    Ok(text.parse().map_err(|error| format!("{text}: {error}"))?)
}
