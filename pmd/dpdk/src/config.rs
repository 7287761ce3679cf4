//! Settings of the EAL and of a DPDK port, and what can be wrong with them.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use spindrift_pmd::MacAddr;

/// Settings of the EAL, which is DPDK's layer over the system. It starts once per process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EalConfig {
    /// Whether memory is in huge pages. NICs need it; virtual devices do without. Default true.
    pub huge_pages: bool,
    /// Memory for packet buffers in MiB. Default: what is needed, or 512 without huge pages.
    pub memory_mib: Option<u32>,
    /// Whether no file is shared with other DPDK processes: huge pages have no names, so nothing is left of a killed process, and tools such as
    /// `dpdk-proc-info` cannot attach. Default true.
    pub in_memory: bool,
    /// Name that tells DPDK processes apart which do share files. Default `spindrift`.
    pub file_prefix: String,
    /// Whether PCI devices can be opened. Default false. Only those that are opened are taken.
    pub pci: bool,
    /// The EAL's lcores in its own syntax, such as `0@2`. Default: one, which may run on any processor that the process may. Threads that
    /// drive ports need no lcore.
    pub lcores: Option<String>,
    /// Further arguments of the EAL, such as `--iova-mode=va`. If one is wrong, the EAL also writes its usage to standard output.
    pub extra_args: Vec<String>,
}

impl Default for EalConfig {
    fn default() -> Self {
        Self {
            huge_pages: true,
            memory_mib: None,
            in_memory: true,
            file_prefix: "spindrift".to_owned(),
            pci: false,
            lcores: None,
            extra_args: Vec::new(),
        }
    }
}

impl EalConfig {
    /// What these devices need: huge pages and the PCI bus if one of them is a PCI device. Virtual devices have huge pages if at least
    /// 512 MiB of them are free.
    pub fn for_devices(configs: &[DpdkConfig]) -> Self {
        let pci = configs.iter().any(|config| crate::pci::address(&config.device).is_some());
        Self { pci, huge_pages: pci || crate::eal::enough_huge_pages(), ..Self::default() }
    }
}

/// Settings of a [`DpdkPort`](crate::DpdkPort).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DpdkConfig {
    /// A PCI address such as `0000:3b:00.0`, or a virtual device such as `net_memif0,role=client`, each with the arguments that its driver
    /// takes.
    pub device: String,
    /// The port's own address, which no kernel has.
    pub local: IpAddr,
    /// Destinations that have so many first bits in common with `local` are on the link. Default 64.
    pub prefix_len: u8,
    /// Routers: the first of each family gets the packets to all other destinations, those of SRv6 carriers too.
    pub gateways: Vec<IpAddr>,
    /// Ethernet addresses of neighbours that are not to be asked for.
    pub neighbours: Vec<(IpAddr, MacAddr)>,
    /// UDP ports whose datagrams are Spindrift's. Default 4971.
    pub udp_ports: Vec<u16>,
    /// Longest IP packet in bytes. Default: that of the interface behind the device if the kernel has one, else 1500.
    pub mtu: Option<usize>,
    /// Descriptors of each receive queue, rounded to what the device has. Default 1024.
    pub rx_descriptors: u16,
    /// Descriptors of each transmit queue, rounded to what the device has. Default 1024.
    pub tx_descriptors: u16,
    /// Whether the driver reads longer payloads where they are, so that the port does not copy them. Only drivers that copy frames
    /// themselves can: others keep a frame after the call that sends it. Default: with `net_memif`, where it is faster.
    pub zero_copy: Option<bool>,
    /// Whether the device reports changes of its link by interrupts (`RTE_ETH_DEV_INTR_LSC`), where it says that it does. Then it is not
    /// asked, and a device whose interrupts get lost keeps the link that it had. Default: false, and the device is asked every millisecond.
    pub link_interrupts: bool,
    /// How long another node may take to say that it has the address, before this port uses it: duplicate address detection (RFC 4862,
    /// section 5.4), of IPv6 addresses. Opening takes as long where the device has its link; else the port's link is down until then. Ports
    /// that lead to this host alone use the address meanwhile. Zero: nobody is asked. Default 1 s.
    pub duplicate_wait: Duration,
    /// How long opening waits for the link of a NIC, whose rate is known only then. Default 3 s.
    pub link_wait: Duration,
}

impl Default for DpdkConfig {
    fn default() -> Self {
        Self {
            device: String::new(),
            local: Ipv6Addr::UNSPECIFIED.into(),
            prefix_len: 64,
            gateways: Vec::new(),
            neighbours: Vec::new(),
            udp_ports: vec![4971],
            mtu: None,
            rx_descriptors: 1024,
            tx_descriptors: 1024,
            zero_copy: None,
            link_interrupts: false,
            duplicate_wait: Duration::from_secs(1),
            link_wait: Duration::from_secs(3),
        }
    }
}

impl DpdkConfig {
    /// Most UDP ports.
    pub const UDP_PORTS_MAX: usize = 16;
    /// Longest MTU that a port uses.
    pub const MTU_MAX: usize = 9216;
    /// Fewest descriptors.
    pub const DESCRIPTORS_MIN: u16 = 32;
    /// Most descriptors.
    pub const DESCRIPTORS_MAX: u16 = 1 << 14;
}

/// Lines of DPDK's log, for the end of a message.
fn log_of(lines: &[String]) -> String {
    if lines.is_empty() {
        return String::new();
    }
    format!("\nDPDK's log:\n  {}", lines.join("\n  "))
}

fn list(lines: &[String]) -> String {
    if lines.is_empty() { String::new() } else { format!("; it also has\n  {}", lines.join("\n  ")) }
}

/// Why a DPDK port cannot be opened, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum DpdkError {
    /// The EAL runs with other settings; it starts once per process.
    #[error("the EAL runs in this process with other settings ({running}); start it once, for all ports")]
    EalStarted {
        /// Its settings.
        running: String,
    },
    /// The EAL of this process could not start before; it cannot be tried twice.
    #[error(
        "the EAL could not start before in this process, and starts once only; start the process again. It said: {0}"
    )]
    EalFailed(String),
    /// Ports need a primary process.
    #[error(
        "`--proc-type={0}`: ports are for primary processes, since a secondary one cannot set up the queues of a device; leave \
         the argument out, and give each process devices and a `--file-prefix` of its own"
    )]
    ProcessType(String),
    /// The EAL does not start.
    #[error("the EAL does not start: {reason}{}", log_of(.log))]
    Eal {
        /// What its error number means.
        reason: String,
        /// The last lines of its log.
        log: Vec<String>,
    },
    /// There are no free huge pages.
    #[error(
        "no free huge pages: reserve some, for example 512 of 2 MiB with `sysctl vm.nr_hugepages=512`; \
         virtual devices also work without (`huge_pages: false`)"
    )]
    NoHugePages,
    /// There is too little memory.
    #[error(
        "not enough memory for packet buffers: {what}; reserve more huge pages (`sysctl vm.nr_hugepages`), give the EAL \
         more (`memory_mib`), or use fewer descriptors or lanes{}",
        log_of(.log)
    )]
    Memory {
        /// What was asked for.
        what: String,
        /// The last lines of DPDK's log.
        log: Vec<String>,
    },
    /// The EAL was started without the PCI bus.
    #[error("{0} is a PCI device, and the EAL was started without PCI: set `pci` of its settings")]
    NoPci(String),
    /// There is no such device.
    #[error(
        "there is no device {device}{}; DPDK has {known} (`dpdk-devbind.py --status-dev net` lists NICs)",
        log_of(.log)
    )]
    NoDevice {
        /// The device asked for.
        device: String,
        /// Those that there are.
        known: String,
        /// The last lines of DPDK's log.
        log: Vec<String>,
    },
    /// The kernel's driver has the device.
    #[error(
        "{device} is bound to the kernel's driver {driver}: give it to DPDK with `modprobe vfio-pci; dpdk-devbind.py \
         --bind=vfio-pci {device}` (its kernel interface goes away), or use an `af_xdp` port"
    )]
    KernelDriver {
        /// Its PCI address.
        device: String,
        /// The driver.
        driver: String,
    },
    /// No driver has the device.
    #[error(
        "{device} is bound to no driver: `modprobe vfio-pci; dpdk-devbind.py --bind=vfio-pci {device}` gives it to DPDK"
    )]
    Unbound {
        /// Its PCI address.
        device: String,
    },
    /// Another device of its IOMMU group is not DPDK's.
    #[error(
        "the IOMMU group of {device} is not viable: bind all of its devices to vfio-pci, or to no driver{}",
        list(.others)
    )]
    NotViable {
        /// Its PCI address.
        device: String,
        /// The others of the group, with their drivers.
        others: Vec<String>,
    },
    /// The device is open already.
    #[error("{device} is in use{}; each device belongs to one process and one port{}", .whose, log_of(.log))]
    InUse {
        /// The device.
        device: String,
        /// By whom.
        whose: &'static str,
        /// The last lines of DPDK's log.
        log: Vec<String>,
    },
    /// The driver is not installed.
    #[error(
        "DPDK has no driver {driver} for {device} in {folder}: install it (Debian: `apt-get install librte-meta-allpmds`, \
         which `tools/setup.sh --dpdk` does)"
    )]
    NoDriver {
        /// The device asked for.
        device: String,
        /// The driver's name.
        driver: String,
        /// Where drivers are.
        folder: String,
    },
    /// The device cannot send such long packets.
    #[error("an MTU of {mtu} on {device} ({driver}): it takes {min} to {max}{}{}", .hint, log_of(.log))]
    Mtu {
        /// The device.
        device: String,
        /// Its driver.
        driver: String,
        /// The MTU asked for.
        mtu: usize,
        /// The least.
        min: usize,
        /// The most.
        max: usize,
        /// What else there is.
        hint: &'static str,
        /// The last lines of DPDK's log.
        log: Vec<String>,
    },
    /// Another node has the address.
    #[error(
        "{address} is a duplicate: the node with the Ethernet address {mac} has it too, on the link of {device}; give this \
         port another address, or take it from that node"
    )]
    Duplicate {
        /// The address.
        address: IpAddr,
        /// The device.
        device: String,
        /// The node.
        mac: MacAddr,
    },
    /// Payloads cannot be read where they are.
    #[error("`zero_copy` with {device} ({driver}): {why}; leave it out, and the port copies payloads")]
    ZeroCopy {
        /// The device.
        device: String,
        /// Its driver.
        driver: String,
        /// The reason.
        why: &'static str,
    },
    /// None, or more lanes than the device has queues.
    #[error(
        "{lanes} lanes on {device} ({driver}), which has {queues} queue(s) for each direction; each lane needs one: use fewer lanes"
    )]
    Lanes {
        /// The device.
        device: String,
        /// Its driver.
        driver: String,
        /// The lanes asked for.
        lanes: usize,
        /// Its queues.
        queues: u32,
    },
    /// An address that a port cannot have.
    #[error("{address} cannot be {what}: {why}")]
    Address {
        /// The address.
        address: String,
        /// What it was given as.
        what: &'static str,
        /// The reason.
        why: &'static str,
    },
    /// None, too many, or port 0.
    #[error("UDP ports {0:?}: give 1 to {max}, none of them 0", max = DpdkConfig::UDP_PORTS_MAX)]
    UdpPorts(Vec<u16>),
    /// A setting out of its range.
    #[error(
        "{what} is {value}; use {min} to {max}",
        min = DpdkConfig::DESCRIPTORS_MIN,
        max = DpdkConfig::DESCRIPTORS_MAX
    )]
    Descriptors {
        /// The setting.
        what: &'static str,
        /// Its value.
        value: u16,
    },
    /// Anything else that DPDK says.
    #[error("cannot {what} {device}: {reason}{}", log_of(.log))]
    Device {
        /// The attempt.
        what: &'static str,
        /// The device.
        device: String,
        /// What DPDK's error number means.
        reason: String,
        /// The last lines of its log.
        log: Vec<String>,
    },
}
