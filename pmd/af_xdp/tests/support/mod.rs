//! Two hosts joined by a veth pair, in two network namespaces that go when the test ends.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test uses some of it")]

use std::process::Command;
use std::time::{Duration, Instant};

use spindrift_af_xdp::{AfXdpConfig, AfXdpError, AfXdpPort, XdpMode};
use spindrift_pmd::testing::within;
use spindrift_pmd::{DatagramMeta, Port as _, Tail, TxFrame, testing};

/// Longer than anything takes; only what is lost meets it.
pub const PATIENCE: Duration = Duration::from_mins(1);

pub fn ip(args: &str) -> bool {
    Command::new("ip").args(args.split_whitespace()).output().is_ok_and(|out| out.status.success())
}

/// Two hosts, gone when dropped.
pub struct Hosts {
    pub names: [String; 2],
}

/// Addresses of both hosts.
pub const V4: [&str; 2] = ["10.97.0.1", "10.97.0.2"];
pub const V6: [&str; 2] = ["fd97::1", "fd97::2"];
/// Their interfaces.
pub const DEVICES: [&str; 2] = ["sdxa", "sdxb"];

impl Hosts {
    /// `None`: no permission, or no `ip`.
    pub fn new(test: &str, mtu: usize, queues: usize) -> Option<Self> {
        let names = ["a", "b"].map(|side| format!("sdxdp-{test}-{side}-{}", std::process::id()));
        let this = Self { names };
        let end = |side: usize| {
            let (device, host, index) = (DEVICES[side], &this.names[side], 81 + side);
            format!(
                "{device} index {index} address 02:00:00:00:97:0{side} mtu {mtu} numrxqueues {queues} numtxqueues {queues} netns {host}"
            )
        };
        let made = this.names.iter().all(|host| ip(&format!("netns add {host}")))
            && ip(&format!("link add {} type veth peer name {}", end(0), end(1)))
            && (0..2).all(|side| {
                let (device, host) = (DEVICES[side], &this.names[side]);
                ip(&format!("-n {host} address add {}/24 dev {device}", V4[side]))
                    && ip(&format!("-n {host} address add {}/64 dev {device} nodad", V6[side]))
                    && ip(&format!("-n {host} link set {device} up"))
                    && this.tc(side, &format!("qdisc add dev {device} root pfifo limit 1000"))
            });
        if !made {
            eprintln!("skipped: no permission to make network namespaces, or no `ip`");
        }
        made.then_some(this)
    }

    pub fn tc(&self, side: usize, args: &str) -> bool {
        let args = format!("-n {} {args}", self.names[side]);
        Command::new("tc").args(args.split_whitespace()).output().is_ok_and(|out| out.status.success())
    }

    pub fn ip(&self, side: usize, args: &str) -> bool {
        ip(&format!("-n {} {args}", self.names[side]))
    }

    /// A command on a host.
    pub fn command(&self, side: usize, command: &str) -> Command {
        let mut on_host = Command::new("ip");
        on_host.args(["netns", "exec", &self.names[side]]).args(command.split_whitespace());
        on_host
    }

    /// Does something on a host.
    pub fn on<T: Send>(&self, side: usize, f: impl FnOnce() -> T + Send) -> T {
        within(&self.names[side], f)
    }

    /// Ports that learn of changes by events alone: the first time that they ask for the state is the last one.
    pub fn config(side: usize, mode: XdpMode, local: &str) -> AfXdpConfig {
        AfXdpConfig {
            interface: DEVICES[side].to_owned(),
            local: Some(local.parse().unwrap()),
            mode,
            state_poll: Duration::from_hours(1),
            ..AfXdpConfig::default()
        }
    }

    pub fn try_open(&self, side: usize, config: &AfXdpConfig) -> Result<AfXdpPort, AfXdpError> {
        self.on(side, || AfXdpPort::open(config))
    }

    /// Ports of both hosts, with these addresses.
    pub fn open(&self, mode: XdpMode, addresses: [&str; 2]) -> [AfXdpPort; 2] {
        [0, 1].map(|side| self.try_open(side, &Self::config(side, mode, addresses[side])).unwrap())
    }

    /// Each host knows the other's Ethernet address, for good.
    pub fn introduce(&self) {
        for (side, device) in DEVICES.into_iter().enumerate() {
            for addresses in [V4, V6] {
                let other = 1 - side;
                let ip = addresses[other];
                let args =
                    format!("neigh replace {ip} lladdr 02:00:00:00:97:0{other} dev {device} nud permanent");
                assert!(self.ip(side, &args));
            }
        }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            ip(&format!("netns del {name}"));
        }
    }
}

/// Waits until something is so.
pub fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        std::thread::yield_now();
    }
}

/// A datagram from a port to an address.
#[derive(Clone)]
pub struct Datagram {
    head: [u8; 62],
    head_len: usize,
    payload: Vec<u8>,
    tail: Option<Tail<'static>>,
}

impl Datagram {
    pub fn new(from: &AfXdpPort, to: &str, dst_port: u16, payload: &[u8]) -> Self {
        let meta = DatagramMeta {
            src: from.caps().local_ip,
            dst: to.parse().unwrap(),
            src_port: 0xc000,
            dst_port,
            flow_label: 0,
            traffic_class: 0,
            hop_limit: 64,
        };
        let mut head = [0; 62];
        let head_len = testing::head(&meta, payload.len(), &mut head);
        Self { head, head_len, payload: payload.to_vec(), tail: None }
    }

    #[must_use]
    pub fn with_tail(self, tail: Tail<'static>) -> Self {
        Self { tail: Some(tail), ..self }
    }

    pub fn frame(&self) -> TxFrame<'_> {
        TxFrame {
            head: &self.head[..self.head_len],
            udp_payload_at: self.head_len,
            payload: (&self.payload).into(),
            tail: self.tail.unwrap_or((&[]).into()),
            ticket: 0,
        }
    }
}

/// Polls a port once; returns what arrived: whole frames.
pub fn receive(port: &mut AfXdpPort, now: u64) -> Vec<Vec<u8>> {
    let mut got = Vec::new();
    port.rx_burst(now, 64, &mut |frame| {
        let mut bytes = Vec::new();
        frame.append_to(&mut bytes);
        got.push(bytes);
    });
    got
}

/// Sends a datagram again and again until it arrives; returns the frame that did, and how many were sent.
pub fn deliver(
    from: &mut AfXdpPort,
    to: &mut AfXdpPort,
    datagram: &Datagram,
    clock: &mut u64,
) -> (Vec<u8>, u64) {
    let mut sent = 0;
    let mut arrived = None;
    wait_for("a datagram arrives", || {
        *clock += 1_000_000;
        from.link();
        from.tx_room(*clock);
        sent += from.tx_burst(*clock, &[datagram.frame()]) as u64;
        from.flush(*clock);
        std::thread::sleep(Duration::from_millis(1));
        arrived = receive(to, *clock).pop();
        arrived.is_some()
    });
    (arrived.unwrap(), sent)
}
