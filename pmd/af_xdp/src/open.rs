//! The steps of opening ports.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use spindrift_bpf::{Array, Error as BpfError, Link, Mode, Program, SocketMap};
use spindrift_pmd::{ETHERNET_LEN, Medium, PortCaps, device};

use crate::config::{AfXdpConfig, AfXdpError, XdpMode};
use crate::features::{Features, features};
use crate::filter::{self, Count, Wanted};
use crate::port::AfXdpPort;
use crate::queue::{BUFFER, Binding, Buffers, MOST_BUFFERS, Queue, Sizes};
use spindrift_pmd::netlink::{Interface, Netlink, names};
use spindrift_pmd::route::local_address;
use spindrift_pmd::shared_interface::SharedInterface;

/// How long the kernel may take to clean up behind a socket that was closed.
const SOCKET_CLEANUP: Duration = Duration::from_secs(2);
/// How long what this process has closed may still be open: a process that another of its threads starts has copies of all its files
/// until it runs its program.
pub(crate) const INHERITED_FD_GRACE: Duration = Duration::from_millis(500);
/// What a port needs in all; this is where a process without any fails.
const CAPABILITIES: &str = "CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF";

const _: () = assert!(FRAME_MAX <= BUFFER * MOST_BUFFERS);

/// Frames of interfaces that take longer ones are kept to this, Ethernet header included.
const FRAME_MAX: usize = 9216 + ETHERNET_LEN;
/// Bytes of a buffer with its room for XDP programs.
const BUFFER_BYTES: u64 = 4096;

/// The XDP program of an interface, on it as long as this lives.
pub(crate) struct Filter {
    _link: Link,
    counts: Array,
    /// Nobody else on this host gets these UDP ports, whose datagrams the program takes. Nothing arrives here.
    _reserved: Vec<UdpSocket>,
}

impl Filter {
    /// What the program has counted.
    pub(crate) fn count(&self, what: Count) -> u64 {
        self.counts.read().ok().and_then(|all| all.get(what as usize).copied()).unwrap_or_default()
    }
}

/// What there is to know of an interface before its sockets are made.
pub(crate) struct Plane {
    pub(crate) interface: Interface,
    local: IpAddr,
    pub(crate) queues: u32,
    pub(crate) caps: PortCaps,
}

/// Ports on some interfaces for several lanes: for each interface one port per lane. A lane has one UMEM for all its ports.
pub(crate) fn open(configs: &[AfXdpConfig], lanes: usize) -> Result<Vec<Vec<AfXdpPort>>, AfXdpError> {
    let planes = configs.iter().map(|config| Plane::look_at(config, lanes)).collect::<Result<Vec<_>, _>>()?;
    let sizes = Sizes {
        rx: configs.iter().map(|config| config.rx_buffers).max().unwrap_or_default(),
        tx: configs.iter().map(|config| config.tx_buffers).max().unwrap_or_default(),
    };
    let mut buffers = Vec::new();
    for lane in 0..lanes {
        let queues: u32 =
            planes.iter().map(|plane| queues_of(lane, lanes, plane.queues).count() as u32).sum();
        let Some(first) = planes.first() else { return Ok(Vec::new()) };
        let bytes = u64::from((sizes.rx + sizes.tx) * queues) * BUFFER_BYTES;
        let made = Buffers::new(sizes, queues);
        buffers.push(
            made.map_err(|error| system_error("make the buffers", error, &first.interface.name, bytes))?,
        );
    }
    let max_frame = planes.iter().map(|plane| plane.interface.mtu + ETHERNET_LEN).max().unwrap_or_default();
    let planes = planes.into_iter().zip(configs).map(|(plane, config)| plane.attach(config));
    let planes = planes.collect::<Result<Vec<_>, _>>()?;
    let drivers: Vec<_> = planes.iter().map(|plane| (plane.mode, plane.offered)).collect();
    let wanted = (sizes, binding(max_frame, &drivers));
    planes.into_iter().zip(configs).map(|(plane, config)| plane.open(config, wanted, &mut buffers)).collect()
}

/// What to ask of the drivers of these planes, by the longest frame. Drivers that share single buffers only do not share any with sockets
/// that ask for several. In generic mode the kernel would grant zero-copy, too, and then the driver sends nothing. And where the first
/// socket of a UMEM gets zero-copy, every other has to.
fn binding(max_frame: usize, drivers: &[(Mode, Option<Features>)]) -> Binding {
    let several = max_frame > BUFFER;
    let shares = |offered: Features| offered.zero_copy && (!several || offered.segments > 1);
    // Kernels that do not tell what a driver offers find out themselves.
    let copies = |&(mode, offered): &(Mode, Option<Features>)| {
        mode == Mode::Generic || offered.is_some_and(|offered| !shares(offered))
    };
    Binding { several, copy: drivers.iter().any(copies) }
}

/// The maps of a filter.
pub(crate) struct Maps {
    sockets: SocketMap,
    counts: Array,
}

impl Maps {
    pub(crate) fn new(queues: u32) -> Result<Self, BpfError> {
        Ok(Self {
            sockets: SocketMap::new("spindrift", queues)?,
            counts: Array::new("spindrift", Count::ALL)?,
        })
    }

    pub(crate) fn program(&self, wanted: &Wanted) -> Result<Program, BpfError> {
        Program::load("spindrift", filter::text(wanted, &self.sockets, &self.counts))
    }
}

/// Sockets that take UDP ports from the kernel's, so that no other has them.
fn reserve(address: IpAddr, ports: &[u16], interface: &Interface) -> Result<Vec<UdpSocket>, AfXdpError> {
    let one = |&port: &u16| {
        let at = match address {
            IpAddr::V4(ip) => SocketAddrV4::new(ip, port).into(),
            // Addresses of the link alone need it.
            IpAddr::V6(ip) => SocketAddr::from(SocketAddrV6::new(ip, port, 0, interface.index)),
        };
        UdpSocket::bind(at).map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => AfXdpError::PortInUse { address, port },
            _ => system_error("reserve the UDP ports", error, &interface.name, 0),
        })
    };
    ports.iter().map(one).collect()
}

/// The queues of an interface that a lane has.
fn queues_of(lane: usize, lanes: usize, queues: u32) -> impl Iterator<Item = u32> {
    (0..queues).skip(lane).step_by(lanes)
}

impl Plane {
    /// Looks at the interface, and checks the settings.
    pub(crate) fn look_at(config: &AfXdpConfig, lanes: usize) -> Result<Self, AfXdpError> {
        check(config)?;
        let name = &config.interface;
        let io = |what| move |error| system_error(what, error, name, 0);
        let mut netlink = Netlink::open().map_err(io("ask for the state"))?;
        let all = netlink.interfaces().map_err(io("ask for the state"))?;
        let known = || names(&all);
        let Some(interface) = all.iter().find(|interface| interface.name == *name).cloned() else {
            return Err(AfXdpError::NoInterface { name: name.clone(), known: known() });
        };
        let medium = device::medium(&netlink, name);
        let Some(mac) = interface.mac.filter(|_| medium != Medium::Host) else {
            return Err(AfXdpError::NotEthernet(name.clone()));
        };
        let addresses = netlink.addresses_of(interface.index).map_err(io("ask for the addresses"))?;
        let local = match config.local {
            None => addresses.first().copied().ok_or_else(|| AfXdpError::NoAddress(name.clone()))?,
            Some(local) if addresses.contains(&local) => local,
            Some(address) => {
                if let Ok(Some(found)) = local_address(address, Some(name)) {
                    found.check()?;
                }
                let known: Vec<_> = addresses.iter().map(IpAddr::to_string).collect();
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                return Err(AfXdpError::NotLocal { address, interface: name.clone(), known });
            }
        };
        let queues = device::receive_queues(&netlink, name);
        if lanes == 0 || lanes > queues as usize {
            return Err(AfXdpError::Lanes { interface: name.clone(), lanes, queues });
        }
        let mut notes = Vec::new();
        if !interface.queues && device::driver(&netlink, name).is_ok_and(|driver| driver == "veth") {
            notes.push(format!(
                "{name} is veth without a queueing discipline: it drops in silence what the other end has no room for; \
                 `tc qdisc add dev {name} root pfifo` makes it wait"
            ));
        }
        let mtu = config.mtu.unwrap_or(interface.mtu).min(interface.mtu);
        if mtu < interface.mtu {
            notes.push(format!("the path takes {mtu} bytes, and the MTU of {name} is {}", interface.mtu));
        }
        let caps = PortCaps {
            name: format!("af_xdp {name} ({local})"),
            local_ip: local,
            mac,
            max_frame: (mtu + ETHERNET_LEN).min(FRAME_MAX),
            max_burst: config.tx_buffers as usize,
            source_ports: None,
            same_path_batch: 1,
            holds_payloads: false,
            medium,
            notes,
            send_errors: Vec::new(),
        };
        Ok(Self { interface, local, queues, caps })
    }

    /// Has the interface send Spindrift's packets to sockets, of which there are none yet.
    fn attach(mut self, config: &AfXdpConfig) -> Result<AttachedPlane, AfXdpError> {
        let name = self.interface.name.clone();
        let wanted = Wanted { ip: self.local, ports: config.udp_ports.clone() };
        let filter = |source| AfXdpError::of_filter(&name, source);
        let maps = Maps::new(self.queues).map_err(filter)?;
        let program = maps.program(&wanted).map_err(filter)?;
        let reserved = retry_for(
            INHERITED_FD_GRACE,
            || reserve(self.local, &config.udp_ports, &self.interface),
            |error| matches!(error, AfXdpError::PortInUse { .. }),
        )?;
        let (link, mode) = self.put_on(config.mode, &program).map_err(|error| match error {
            BpfError::System { ref source, .. }
                if source.raw_os_error() == Some(libc::EOPNOTSUPP) && config.mode == XdpMode::Native =>
            {
                let driver = Netlink::open().and_then(|netlink| device::driver(&netlink, &name));
                AfXdpError::NotNative {
                    interface: name.clone(),
                    driver: driver.unwrap_or_else(|_| "unknown".to_owned()),
                }
            }
            error => filter(error),
        })?;
        match (mode, config.mode) {
            (Mode::Native, _) => self.caps.notes.push("native XDP".to_owned()),
            (Mode::Generic, XdpMode::Generic) => {
                self.caps.notes.push("generic XDP, as was asked for".to_owned());
            }
            // The attempt has told why.
            (Mode::Generic, _) => {}
        }
        // Some drivers offer zero-copy only once they have a program.
        let offered = features(self.interface.index).ok().flatten();
        Ok(AttachedPlane { plane: self, maps, link, reserved, mode, offered })
    }

    /// Puts the program on the interface, in the mode asked for or the best there is.
    fn put_on(&mut self, mode: XdpMode, program: &Program) -> Result<(Link, Mode), BpfError> {
        let attach = |mode| {
            let link = retry_for(
                INHERITED_FD_GRACE,
                || Link::attach(self.interface.index, program, mode),
                |error| matches!(error, BpfError::Busy { .. }),
            );
            link.map(|link| (link, mode))
        };
        match mode {
            XdpMode::Native => attach(Mode::Native),
            XdpMode::Generic => attach(Mode::Generic),
            XdpMode::Auto => match attach(Mode::Native) {
                Err(BpfError::System { source, .. }) => {
                    let name = &self.interface.name;
                    self.caps
                        .notes
                        .push(format!("generic XDP: the driver of {name} cannot run the program ({source})"));
                    attach(Mode::Generic)
                }
                attached => attached,
            },
        }
    }
}

/// A plane whose interface has the program.
struct AttachedPlane {
    plane: Plane,
    maps: Maps,
    link: Link,
    reserved: Vec<UdpSocket>,
    mode: Mode,
    offered: Option<Features>,
}

impl AttachedPlane {
    /// Makes the sockets: a port for each lane.
    fn open(
        self,
        config: &AfXdpConfig,
        wanted: (Sizes, Binding),
        buffers: &mut [Buffers],
    ) -> Result<Vec<AfXdpPort>, AfXdpError> {
        let Self { mut plane, maps, link, reserved, mode, offered } = self;
        let name = plane.interface.name.clone();
        let lanes = buffers.len();
        let mut by_lane = Vec::new();
        for (lane, buffers) in buffers.iter_mut().enumerate() {
            let mut queues = Vec::new();
            for number in queues_of(lane, lanes, plane.queues) {
                let queue = open_queue(buffers, wanted, &name, number)?;
                maps.sockets.insert(number, &queue).map_err(|source| AfXdpError::of_filter(&name, source))?;
                queues.push(queue);
            }
            by_lane.push(queues);
        }
        let zero_copy = by_lane.iter().flatten().all(|queue| queue.is_zero_copy().unwrap_or(false));
        plane.caps.notes.push(copies(mode, zero_copy, offered.unwrap_or_default()));
        let filter = Arc::new(Filter { _link: link, counts: maps.counts, _reserved: reserved });
        let mut ports = Vec::new();
        for (lane, queues) in by_lane.into_iter().enumerate() {
            let io = |error| system_error("watch the state", error, &name, 0);
            let interface = SharedInterface::open(&plane.interface, plane.local, config.state_poll);
            let (caps, first) = (plane.caps.clone(), lane == 0);
            ports.push(AfXdpPort::new(caps, queues, interface.map_err(io)?, (first, &filter)));
        }
        Ok(ports)
    }
}

/// Opens a queue. The kernel may still be cleaning up behind the last one who had it.
fn open_queue(
    buffers: &mut Buffers,
    wanted: (Sizes, Binding),
    name: &str,
    number: u32,
) -> Result<Queue, AfXdpError> {
    let in_use = |error: &io::Error| error.raw_os_error() == Some(libc::EBUSY);
    retry_for(SOCKET_CLEANUP, || Queue::open(buffers, wanted, name, number), in_use).map_err(|error| {
        if in_use(&error) {
            AfXdpError::QueueInUse { interface: name.to_owned(), queue: number }
        } else {
            system_error("open an AF_XDP socket on a queue", error, name, 0)
        }
    })
}

/// Retries for up to `limit` while the error may be transient.
#[expect(clippy::disallowed_methods, reason = "opening a port may wait")]
pub(crate) fn retry_for<T, E>(
    limit: Duration,
    mut attempt: impl FnMut() -> Result<T, E>,
    is_transient: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let began = Instant::now();
    loop {
        match attempt() {
            Err(error) if is_transient(&error) && began.elapsed() < limit => {
                std::thread::sleep(Duration::from_millis(1));
            }
            done => return done,
        }
    }
}

/// Whether frames are copied between the driver's buffers and the port's, and why, for people.
fn copies(mode: Mode, zero_copy: bool, offered: Features) -> String {
    match (mode, offered) {
        _ if zero_copy => "zero-copy".to_owned(),
        (Mode::Generic, _) => "copies: zero-copy needs native XDP".to_owned(),
        (Mode::Native, Features { zero_copy: true, segments: 0 | 1, .. }) => {
            let most = BUFFER - ETHERNET_LEN;
            format!("copies: the driver shares its buffers only if no plane has an MTU above {most}")
        }
        (Mode::Native, Features { zero_copy: true, .. }) => {
            "copies: the driver shares its buffers, but another plane's does not".to_owned()
        }
        (Mode::Native, _) => "copies: the driver does not share its buffers".to_owned(),
    }
}

fn check(config: &AfXdpConfig) -> Result<(), AfXdpError> {
    for (what, value) in [("rx_buffers", config.rx_buffers), ("tx_buffers", config.tx_buffers)] {
        if !value.is_power_of_two() || !(AfXdpConfig::BUFFERS_MIN..=AfXdpConfig::BUFFERS_MAX).contains(&value)
        {
            return Err(AfXdpError::Buffers { what, value });
        }
    }
    let ports = &config.udp_ports;
    if !(1..=AfXdpConfig::UDP_PORTS_MAX).contains(&ports.len()) || ports.contains(&0) {
        return Err(AfXdpError::UdpPorts(ports.clone()));
    }
    Ok(())
}

/// Converts an error of the system. `locked`: bytes of memory that were to be locked.
pub(crate) fn system_error(what: &'static str, error: io::Error, interface: &str, locked: u64) -> AfXdpError {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => AfXdpError::Permission { what, capabilities: CAPABILITIES },
        Some(libc::ENOBUFS) if locked > 0 => {
            AfXdpError::LockedMemory { mib: locked >> 20, kib: locked >> 10 }
        }
        _ => AfXdpError::Io { what, interface: interface.to_owned(), source: error },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn driver(zero_copy: bool, segments: u32) -> Features {
        Features { native: true, zero_copy, segments }
    }

    #[test]
    fn copies_have_their_reason() {
        let refused = |mode, offered| copies(mode, false, offered);
        assert_eq!(copies(Mode::Native, true, driver(true, 1)), "zero-copy");
        assert_eq!(copies(Mode::Native, true, Features::default()), "zero-copy", "an old kernel");
        let long = refused(Mode::Native, driver(true, 1));
        assert!(long.starts_with("copies: ") && long.ends_with("an MTU above 3826"), "{long}");
        assert!(refused(Mode::Native, driver(true, 8)).ends_with("another plane's does not"));
        assert!(refused(Mode::Generic, driver(true, 8)).ends_with("zero-copy needs native XDP"));
        for offered in [driver(false, 1), Features::default()] {
            assert_eq!(refused(Mode::Native, offered), "copies: the driver does not share its buffers");
        }
    }

    #[test]
    fn zero_copy_is_asked_for_where_all_can() {
        let one = (Mode::Native, Some(driver(true, 1)));
        let many = (Mode::Native, Some(driver(true, 8)));
        let none = (Mode::Native, Some(driver(false, 1)));
        let (generic, old) = ((Mode::Generic, Some(driver(true, 8))), (Mode::Native, None));
        let (several, copy) = (true, true);
        for (max_frame, drivers, expected) in [
            (1514, &[one][..], (!several, !copy)),
            (BUFFER, &[one, many, old], (!several, !copy)),
            (BUFFER + 1, &[one], (several, copy)),
            (BUFFER + 1, &[many, old], (several, !copy)),
            (9014, &[many, one], (several, copy)),
            (1514, &[one, none], (!several, copy)),
            (1514, &[one, generic], (!several, copy)),
            (9014, &[generic], (several, copy)),
        ] {
            let (several, copy) = expected;
            assert_eq!(binding(max_frame, drivers), Binding { several, copy }, "{max_frame} {drivers:?}");
        }
    }
}
