//! Settings of an `AF_XDP` port, and what can be wrong with them.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use spindrift_pmd::route::NotReady;

/// Who runs the XDP program that takes Spindrift's packets out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XdpMode {
    /// The driver if it can, else the network stack; a note says so.
    #[default]
    Auto,
    /// The driver.
    Native,
    /// The network stack, which works for any driver.
    Generic,
}

/// Settings of an [`AfXdpPort`](crate::AfXdpPort).
#[derive(Clone, Debug)]
pub struct AfXdpConfig {
    /// Name of the interface, in the network namespace of the thread that opens the port.
    pub interface: String,
    /// Address of the interface that the plane uses. Default: its first IPv6 address of the widest scope, else IPv4.
    pub local: Option<IpAddr>,
    /// UDP ports whose datagrams are Spindrift's; all others are the kernel's. Default 4971.
    pub udp_ports: Vec<u16>,
    /// Who runs the XDP program. Default `Auto`.
    pub mode: XdpMode,
    /// Longest IP packet in bytes, if the way to the peers takes less than the interface. Default: the interface's MTU.
    pub mtu: Option<usize>,
    /// Buffers of 4 KiB for what arrives, per queue: a power of two. Default 2048.
    pub rx_buffers: u32,
    /// Buffers of 4 KiB for what is sent, per queue: a power of two. Default 2048.
    pub tx_buffers: u32,
    /// How often the kernel is asked for the state of the interface. It tells of changes by events, which are looked for every
    /// millisecond; this is for events that were lost. Default 1 s.
    pub state_poll: Duration,
}

impl Default for AfXdpConfig {
    fn default() -> Self {
        Self {
            interface: String::new(),
            local: None,
            udp_ports: vec![4971],
            mode: XdpMode::Auto,
            mtu: None,
            rx_buffers: 2048,
            tx_buffers: 2048,
            state_poll: Duration::from_secs(1),
        }
    }
}

impl AfXdpConfig {
    /// Most buffers for each direction.
    pub const BUFFERS_MAX: u32 = 1 << 16;
    /// Fewest: what two of the longest frames take, and more.
    pub const BUFFERS_MIN: u32 = 64;
    /// Most UDP ports.
    pub const UDP_PORTS_MAX: usize = 16;
}

/// Why an `AF_XDP` port cannot be opened, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum AfXdpError {
    /// There is no such interface.
    #[error("there is no interface {name:?} here; there are {known}")]
    NoInterface {
        /// The name asked for.
        name: String,
        /// Those there are.
        known: String,
    },
    /// The interface is not Ethernet, or leads to this host alone.
    #[error("interface {0} is not Ethernet; use a `udp` port")]
    NotEthernet(String),
    /// The interface has no address that others could send to.
    #[error(
        "interface {0} has no address that others can send to; add one with `ip address add ADDRESS/LENGTH dev {0}`"
    )]
    NoAddress(String),
    /// The address is not one of the interface's.
    #[error("{address} is not an address of interface {interface}, which has {known}")]
    NotLocal {
        /// The address asked for.
        address: IpAddr,
        /// The interface.
        interface: String,
        /// Its addresses.
        known: String,
    },
    /// Duplicate address detection (RFC 4862, section 5.4) stands in the way.
    #[error(transparent)]
    NotReady(#[from] NotReady),
    /// A setting out of its range.
    #[error("{what} is {value}; use a power of two from {min} to {max}", min = AfXdpConfig::BUFFERS_MIN, max = AfXdpConfig::BUFFERS_MAX)]
    Buffers {
        /// The setting.
        what: &'static str,
        /// Its value.
        value: u32,
    },
    /// None, too many, or port 0.
    #[error("UDP ports {0:?}: give 1 to {max}, none of them 0", max = AfXdpConfig::UDP_PORTS_MAX)]
    UdpPorts(Vec<u16>),
    /// A UDP port that a socket of the kernel has: its datagrams would go to this port instead.
    #[error(
        "UDP port {port} of {address} is in use by another socket (`ss -nulp` names its process); use another"
    )]
    PortInUse {
        /// The address.
        address: IpAddr,
        /// The UDP port.
        port: u16,
    },
    /// None, or more lanes than the interface has queues.
    #[error(
        "{lanes} lanes on interface {interface}, which has {queues} receive queue(s); each lane needs one: use fewer lanes, or `ethtool -L {interface} combined {lanes}`"
    )]
    Lanes {
        /// The interface.
        interface: String,
        /// The lanes asked for.
        lanes: usize,
        /// Its queues.
        queues: u32,
    },
    /// The interface has an XDP program, of another port or of something else.
    #[error(
        "interface {interface} has an XDP program already{}, of another Spindrift process or of something else: \
         `ip link show dev {interface}` shows it, `ip link set dev {interface} xdp off` takes one off that `ip` put there",
        .program.map_or_else(String::new, |id| format!(" (program {id})"))
    )]
    Busy {
        /// The interface.
        interface: String,
        /// The number of the program, where it can be told.
        program: Option<u32>,
    },
    /// The driver does not run XDP programs, and nothing else was asked for.
    #[error(
        "the driver of interface {interface} ({driver}) has no native XDP; use the mode `auto` or `generic`"
    )]
    NotNative {
        /// The interface.
        interface: String,
        /// The name of its driver.
        driver: String,
    },
    /// The XDP program cannot be loaded or attached.
    #[error("cannot attach the XDP filter to {interface}: {source}{}", advice(.source))]
    Filter {
        /// The interface.
        interface: String,
        /// What the kernel says.
        source: spindrift_bpf::Error,
    },
    /// Another socket has the queue.
    #[error(
        "queue {queue} of interface {interface} is in use by another AF_XDP socket (`ss --xdp -p` names its process)"
    )]
    QueueInUse {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
    },
    /// The kernel refuses.
    #[error(
        "no permission to {what}: AF_XDP needs {capabilities}, which root has; without, use a `udp` port"
    )]
    Permission {
        /// The attempt.
        what: &'static str,
        /// What the process needs, and lacks some of.
        capabilities: &'static str,
    },
    /// The process may not lock so much memory.
    #[error(
        "cannot lock {mib} MiB of memory for packets: raise `ulimit -l` to at least {kib}, use fewer buffers, or run as root"
    )]
    LockedMemory {
        /// The memory in MiB.
        mib: u64,
        /// The same in KiB.
        kib: u64,
    },
    /// Anything else the kernel says.
    #[error("cannot {what} of interface {interface}: {source}")]
    Io {
        /// The attempt.
        what: &'static str,
        /// The interface.
        interface: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl AfXdpError {
    /// An error about the program of an interface.
    pub(crate) fn of_filter(interface: &str, source: spindrift_bpf::Error) -> Self {
        let interface = interface.to_owned();
        match source {
            spindrift_bpf::Error::Busy { program, .. } => Self::Busy { interface, program },
            source => Self::Filter { interface, source },
        }
    }
}

/// What else there is for those who lack a capability.
fn advice(error: &spindrift_bpf::Error) -> &'static str {
    match error {
        spindrift_bpf::Error::Permission { .. } => "; without, use a `udp` port",
        _ => "",
    }
}
