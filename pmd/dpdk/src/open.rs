//! The steps of opening ports.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use spindrift_pmd::netlink::Netlink;
use spindrift_pmd::{ETHERNET_LEN, MacAddr, Medium, PortCaps, device};

use crate::classify::Wanted;
use crate::eal::last;
use crate::pci;
use crate::port::{DpdkPort, KernelInterface, Shared};
use crate::stack::{Addresses, NONCE_LEN, Search, Stack};
use crate::sys::{self, Description, Device, Errno, Modes, Pool, RxQueue, TxQueue};
use crate::{DpdkConfig, DpdkError, Eal};

/// What the kernel and DPDK take for granted.
pub(crate) const MTU_DEFAULT: usize = 1500;
/// Least MTU of a port: a frame of it holds headers and some payload.
const MTU_MIN: usize = 576;
/// What a driver that does not say reports as its largest MTU, or frame.
const NOT_SAID: u32 = 65_535;
/// Bytes of Ethernet header and checksum, and of two VLAN tags, that drivers count into a frame.
const OVERHEAD: usize = ETHERNET_LEN + 4;
const BUFFER_SLACK: usize = OVERHEAD + 8;
/// Buffers are a multiple of this, which is the unit of many NICs.
const BUFFER_UNIT: usize = 1024;
/// Shortest buffers.
const BUFFER_MIN: usize = 2048;
/// Frames that wait in a port until the device takes them, and longest burst.
pub(crate) const STAGED: usize = 256;
/// Buffers in the hands of the transport, of caches, and of other devices.
const SPARE: u32 = 1024;
/// Virtual devices that lead to this host alone.
const LOCAL: [&str; 3] = ["net_ring", "net_memif", "net_null"];
/// Buffers of shared memory if nothing else is asked for. Its driver reports the frame of an MTU of 1500 and carries longer
/// ones. Those longer than its buffers it joins to others once its ring has wrapped (DPDK 22.11), so they are not sent.
const MEMIF_BUFFER: usize = 2048;
/// Drivers that have copied a frame, or written it to the kernel, when the call that sends it returns. Others keep its buffers: those of
/// NICs until they have read them, and that of a ring until the peer has.
const COPIES: [&str; 2] = [sys::MEMIF, "net_af_packet"];
/// Payloads of so many bytes are read where they are. The buffers that this takes cost more than a copy of shorter ones.
const LEND_FROM: usize = 4096;
/// `EBUSY`, `EEXIST`, `ENOMEM`, as everywhere in Linux.
const EBUSY: Errno = Errno(16);
const EEXIST: Errno = Errno(17);
const ENOMEM: Errno = Errno(12);

/// Ports on some devices for several lanes: for each device one port per lane.
pub(crate) fn open(eal: Eal, configs: &[DpdkConfig], lanes: usize) -> Result<Vec<Vec<DpdkPort>>, DpdkError> {
    for config in configs {
        check(config)?;
    }
    let _control = sys::control();
    let started = configs.iter().map(|config| Opening::new(eal, config)?.start(lanes));
    let started = started.collect::<Result<Vec<_>, _>>()?;
    let limit = configs.iter().map(|config| config.link_wait).max().unwrap_or_default();
    wait(limit, || started.iter().all(Opening::is_ready));
    let mut planes: Vec<_> = started.into_iter().map(Opening::finish).collect();
    detect(&mut planes)?;
    Ok(planes)
}

/// Looks for duplicates of the addresses of those ports that have their link, and are not to use them meanwhile.
fn detect(planes: &mut [Vec<DpdkPort>]) -> Result<(), DpdkError> {
    let mut ports: Vec<_> = planes.iter_mut().flatten().filter(|port| port.is_tentative()).collect();
    let mut now_ns = 0;
    let mut result = Ok(());
    wait_with(Duration::MAX, Duration::from_millis(1), |elapsed| {
        now_ns = elapsed.as_nanos() as u64;
        let mut is_open = false;
        for port in &mut ports {
            match port.detect(now_ns) {
                Ok(more) => is_open |= more,
                Err(error) => result = Err(error),
            }
        }
        !is_open || result.is_err()
    });
    for port in ports {
        port.restart_clock();
    }
    result
}

/// A nonce that others are not likely to have.
fn random_nonce() -> [u8; NONCE_LEN] {
    let bits = RandomState::new().build_hasher().finish();
    bits.to_be_bytes().first_chunk().copied().unwrap_or_default()
}

pub(crate) fn check(config: &DpdkConfig) -> Result<(), DpdkError> {
    let bad =
        |address: IpAddr, what, why| Err(DpdkError::Address { address: address.to_string(), what, why });
    let local = config.local;
    if local.is_unspecified() || local.is_multicast() || local.is_loopback() {
        return bad(local, "the address of a port", "give one that others can send to");
    }
    let bits = if local.is_ipv4() { 32 } else { 128 };
    if config.prefix_len > bits {
        return Err(DpdkError::Address {
            address: format!("{local}/{}", config.prefix_len),
            what: "the address of a port",
            why: "the prefix is longer than the address",
        });
    }
    for &gateway in &config.gateways {
        if gateway == local || gateway.is_unspecified() || gateway.is_multicast() {
            return bad(gateway, "a gateway", "give a neighbour's address");
        }
        if !addresses(config, MacAddr::default()).is_on_link(gateway) {
            return bad(gateway, "a gateway", "it is not on the link by the port's address and prefix");
        }
    }
    let ports = &config.udp_ports;
    if !(1..=DpdkConfig::UDP_PORTS_MAX).contains(&ports.len()) || ports.contains(&0) {
        return Err(DpdkError::UdpPorts(ports.clone()));
    }
    let descriptors = [("rx_descriptors", config.rx_descriptors), ("tx_descriptors", config.tx_descriptors)];
    for (what, value) in descriptors {
        if !(DpdkConfig::DESCRIPTORS_MIN..=DpdkConfig::DESCRIPTORS_MAX).contains(&value) {
            return Err(DpdkError::Descriptors { what, value });
        }
    }
    Ok(())
}

pub(crate) fn addresses(config: &DpdkConfig, mac: MacAddr) -> Addresses {
    Addresses {
        mac,
        local: config.local,
        prefix_len: config.prefix_len,
        gateways: config.gateways.clone(),
        fixed: config.neighbours.clone(),
    }
}

/// An Ethernet address for a device without one, such as a ring: locally administered, and different for different IP addresses.
fn made_up(ip: IpAddr) -> MacAddr {
    let bits = match ip {
        IpAddr::V4(ip) => u128::from(ip.to_bits()),
        IpAddr::V6(ip) => ip.to_bits(),
    };
    let bits = (bits as u64 ^ (bits >> 64) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let [_, rest @ ..] = bits.to_be_bytes();
    let mut mac = [2; 6];
    mac.iter_mut().skip(1).zip(rest).for_each(|(byte, random)| *byte = random);
    MacAddr(mac)
}

/// The name of a device description without its arguments.
pub(crate) fn name_of(device: &str) -> String {
    pci::address(device).unwrap_or_else(|| device.split(',').next().unwrap_or_default().to_owned())
}

/// A device on its way to ports.
struct Opening<'a> {
    config: &'a DpdkConfig,
    name: String,
    device: Device,
    about: Description,
    /// Lines of DPDK's log before.
    log: u64,
    mtu: usize,
    /// The pools of the transmit queues.
    pools: Vec<usize>,
    notes: Vec<String>,
    /// Whether payloads are read by the driver where they are.
    lends: bool,
}

impl<'a> Opening<'a> {
    /// Finds the device and takes it.
    fn new(eal: Eal, config: &'a DpdkConfig) -> Result<Self, DpdkError> {
        let (name, log) = (name_of(&config.device), sys::log_len());
        let in_use = |whose| DpdkError::InUse { device: name.clone(), whose, log: Vec::new() };
        let (port, probed) = match Device::find(&name) {
            Some(port) => (port, false),
            None => (probe(eal, config, &name, log)?, true),
        };
        let device = Device::open(port, probed).ok_or_else(|| in_use(" by another port of this process"))?;
        let about = device.describe();
        let mut about = about.map_err(|error| explain("ask for the state of", error, &name, log))?;
        if about.mac == MacAddr::default() {
            about.mac = made_up(config.local);
        }
        let mut notes = Vec::new();
        if !eal.huge_pages {
            let advice = "no huge pages, so the processor looks addresses up more often: `sysctl vm.nr_hugepages=512` reserves some";
            notes.push(advice.to_owned());
        }
        Ok(Self {
            config,
            name,
            device,
            about,
            log,
            mtu: MTU_DEFAULT,
            pools: Vec::new(),
            notes,
            lends: false,
        })
    }

    fn explain(&self, what: &'static str, error: Errno) -> DpdkError {
        explain(what, error, &self.name, self.log)
    }

    fn log(&self) -> Vec<String> {
        last(sys::log_lines(self.log))
    }

    /// Sets the device up and starts it.
    fn start(mut self, lanes: usize) -> Result<Self, DpdkError> {
        let (device, driver) = (self.name.clone(), self.about.driver.clone());
        let queues = self.about.max_queues;
        let Some(count) = u16::try_from(lanes).ok().filter(|&n| n > 0 && u32::from(n) <= queues) else {
            return Err(DpdkError::Lanes { device, driver, lanes, queues });
        };
        self.lends = self.zero_copy()?;
        let scatter = self.set_mtu(count)?;
        let (rx, tx) = self.device.descriptors(self.config.rx_descriptors, self.config.tx_descriptors);
        let room = self.buffer();
        let socket = self.device.socket();
        for queue in 0..count {
            let pool = |count, log| {
                Pool::new(count, room, socket).map_err(|error| match error {
                    ENOMEM => DpdkError::Memory {
                        what: format!("{count} buffers of {room} bytes for {device}"),
                        log: last(sys::log_lines(log)),
                    },
                    error => explain("make the buffers of", error, &device, log),
                })
            };
            let for_rx = pool(u32::from(rx) + SPARE, self.log)?;
            // A frame whose payload is elsewhere takes three.
            let staged = STAGED as u32 * if self.lends { 3 } else { 1 };
            let for_tx = pool(u32::from(tx) + staged + SPARE, self.log)?;
            let set_up = self.device.rx_queue(queue, rx, for_rx, scatter);
            set_up.map_err(|error| self.explain("set up a receive queue of", error))?;
            let set_up = self.device.tx_queue(queue, tx, for_tx, self.lends);
            self.pools.push(set_up.map_err(|error| self.explain("set up a transmit queue of", error))?);
        }
        self.device.start(count).map_err(|error| self.explain("start", error))?;
        if !self.device.receive_groups() && self.config.local.is_ipv6() {
            self.notes.push(
                "the driver does not say whether it receives multicast frames, which neighbour discovery needs"
                    .to_owned(),
            );
        }
        Ok(self)
    }

    /// Whether the driver reads payloads where they are.
    fn zero_copy(&self) -> Result<bool, DpdkError> {
        let why = if !COPIES.contains(&&self.about.driver[..]) {
            "its driver keeps frames after the call that sends them"
        } else if self.is_memif() && self.argument_text("zero-copy") == Some("yes") {
            "with `zero-copy=yes` the peer reads the frames from the port's buffers"
        } else if !self.about.gathers {
            "its driver sends no frames of several buffers"
        } else {
            return Ok(self.config.zero_copy.unwrap_or_else(|| self.is_memif()));
        };
        match self.config.zero_copy {
            Some(true) => {
                Err(DpdkError::ZeroCopy { device: self.name.clone(), driver: self.about.driver.clone(), why })
            }
            _ => Ok(false),
        }
    }

    fn is_memif(&self) -> bool {
        self.about.driver == sys::MEMIF
    }

    /// One of the device's arguments.
    fn argument_text(&self, name: &str) -> Option<&str> {
        let mut arguments = self.config.device.split(',').filter_map(|argument| argument.split_once('='));
        Some(arguments.find(|(key, _)| *key == name)?.1)
    }

    /// A number among them.
    fn argument(&self, name: &str) -> Option<usize> {
        self.argument_text(name)?.parse().ok()
    }

    /// The longest and the shortest MTU that the device takes.
    fn mtu_limits(&self, interface_mtu: Option<usize>) -> (usize, usize) {
        let said = |value: u32| Some(value).filter(|&value| value != 0 && value < NOT_SAID);
        // Devices that are interfaces of the kernel report the frame of an MTU of 1500, whatever theirs is.
        let by_frame = said(self.about.max_frame)
            .filter(|_| interface_mtu.is_none() && !self.is_memif())
            .map(|frame| (frame as usize).saturating_sub(OVERHEAD));
        let by_mtu = said(self.about.max_mtu).map(|mtu| mtu as usize);
        let by_buffer = self
            .is_memif()
            .then(|| self.argument("bsize").unwrap_or(MEMIF_BUFFER).saturating_sub(ETHERNET_LEN));
        let most = [by_frame, by_mtu, by_buffer, interface_mtu, Some(DpdkConfig::MTU_MAX)];
        let min = (self.about.min_mtu as usize).max(MTU_MIN);
        (min, most.into_iter().flatten().min().unwrap_or(MTU_DEFAULT))
    }

    /// Configures the device with the MTU asked for. Returns whether it may receive a frame in several buffers.
    fn set_mtu(&mut self, queues: u16) -> Result<bool, DpdkError> {
        let interface_mtu = self.about.interface.and_then(|index| {
            let interface = Netlink::open().and_then(|mut netlink| netlink.interface(index)).ok()??;
            Some(interface.mtu)
        });
        let (min, max) = self.mtu_limits(interface_mtu);
        let wanted = self.config.mtu.unwrap_or_else(|| interface_mtu.unwrap_or(MTU_DEFAULT).min(max));
        let hint = match (self.is_memif(), interface_mtu) {
            (true, _) => "; its argument `bsize` makes its buffers larger",
            (_, Some(_)) => "; `ip link set` changes the MTU of its interface",
            _ => "",
        };
        let (device, driver) = (self.name.clone(), self.about.driver.clone());
        let refused = |log| DpdkError::Mtu { device, driver, mtu: wanted, min, max, hint, log };
        if !(min..=max).contains(&wanted) {
            return Err(refused(Vec::new()));
        }
        let scatter = self.about.scatters && wanted + BUFFER_SLACK > BUFFER_MIN;
        let (gather, link_interrupts) =
            (self.lends, self.config.link_interrupts && self.about.link_interrupts);
        let mut modes = Modes { scatter, gather, link_interrupts };
        let mut configured = self.device.configure(queues, wanted as u32, modes);
        if configured.is_err() && link_interrupts {
            // Some devices have no interrupts where they are, such as behind UIO. Their link is asked for.
            modes.link_interrupts = false;
            configured = self.device.configure(queues, wanted as u32, modes);
        }
        if configured.is_err() && (interface_mtu.is_some() || self.is_memif()) {
            // Some drivers, of interfaces above all, refuse any but the usual MTU, and carry more.
            configured = self.device.configure(queues, 0, modes);
        }
        if let Err(error) = configured {
            let log = self.log();
            let is_mtu = log.iter().any(|line| line.contains("MTU") || line.contains("mtu"));
            return Err(if is_mtu { refused(log) } else { self.explain("configure", error) });
        }
        self.mtu = wanted;
        Ok(scatter)
    }

    /// Bytes of a buffer: those of the longest frame.
    fn buffer(&self) -> usize {
        let by_mtu = self.mtu + BUFFER_SLACK;
        // This driver wants buffers that hold a place of its ring, and a frame in one of them.
        let by_ring = self.argument("framesz").unwrap_or(0);
        by_mtu.max(by_ring).next_multiple_of(BUFFER_UNIT).max(BUFFER_MIN)
    }

    fn is_nic(&self) -> bool {
        pci::address(&self.config.device).is_some()
    }

    /// Whether the device has its link, which NICs take some time to find.
    fn is_ready(&self) -> bool {
        !self.is_nic() || self.device.link().is_up
    }

    /// Makes the ports of a device that runs.
    fn finish(mut self) -> Vec<DpdkPort> {
        let (config, local) = (self.config, self.config.local);
        let is_local = LOCAL.iter().any(|kind| self.about.driver.starts_with(kind));
        let (is_nic, link) = (self.is_nic(), self.device.link());
        if is_nic && !link.is_up {
            self.notes.push("no link yet: its rate is not known".to_owned());
        }
        let rate_bps = link.mbps.filter(|_| is_nic && link.is_up).map(|mbps| u64::from(mbps) * 1_000_000);
        let medium = if is_local { Medium::Host } else { Medium::Network { rate_bps } };
        let how = if self.lends {
            format!("payloads of {LEND_FROM} bytes or more are copied once, by the driver")
        } else {
            "with copies".to_owned()
        };
        self.notes.push(format!("{}, driver {}, {how}", sys::version(), self.about.driver));
        let caps = PortCaps {
            name: format!("dpdk {} ({local})", self.name),
            local_ip: local,
            mac: self.about.mac,
            max_frame: self.mtu + ETHERNET_LEN,
            max_burst: STAGED,
            source_ports: None,
            same_path_batch: 1,
            holds_payloads: false,
            medium,
            notes: self.notes,
            send_errors: Vec::new(),
        };
        let wait_ns = config.duplicate_wait.as_nanos().try_into().unwrap_or(u64::MAX);
        let link_local = self.about.interface.is_none();
        let search = Search { wait_ns, optimistic: is_local, link_local, nonce: random_nonce() };
        let stack = Stack::new(addresses(config, self.about.mac), search);
        let before = self.device.stats();
        let device = Arc::new(self.device);
        let interface = self.about.interface.and_then(kernel_interface);
        let shared = Arc::new(Shared::new(Arc::clone(&device), stack, before, interface));
        let wanted = Wanted { ip: local, ports: config.udp_ports.clone() };
        let port = |(queue, &pool): (usize, &usize)| {
            let number = queue as u16;
            let tx = TxQueue::new(&device, number, pool, STAGED, self.lends.then_some(LEND_FROM));
            let queues = (tx, RxQueue::new(&device, number));
            DpdkPort::new(caps.clone(), queues, wanted.clone(), Arc::clone(&shared), queue == 0)
        };
        self.pools.iter().enumerate().map(port).collect()
    }
}

/// How long DPDK may take to clean up behind a device that was closed.
const CLEANUP: Duration = Duration::from_millis(100);

/// Waits until what was closed lately is gone: the EAL's interrupt thread takes this driver's connections down, and frees memory twice if
/// others come up meanwhile (DPDK 22.11).
fn settle() {
    wait(CLEANUP, || !Device::was_closed_within(CLEANUP));
}

/// Has the EAL find a device and its driver.
fn probe(eal: Eal, config: &DpdkConfig, name: &str, log: u64) -> Result<u16, DpdkError> {
    let devices = Path::new(pci::DEVICES);
    let description = if let Some(address) = pci::address(&config.device) {
        if !eal.pci {
            return Err(DpdkError::NoPci(address));
        }
        pci::check(devices, &address)?;
        let arguments = config.device.split_once(',').map_or(String::new(), |(_, args)| format!(",{args}"));
        format!("{address}{arguments}")
    } else {
        check_driver(name)?;
        config.device.clone()
    };
    let before = Device::names();
    if name.starts_with(sys::MEMIF) {
        settle();
    }
    let error = Device::probe(&description).err();
    // Some drivers give their ports names of their own.
    let new = Device::names().into_iter().find(|name| !before.contains(name));
    if let Some(port) = Device::find(name).or_else(|| Device::find(&new?)) {
        return Ok(port);
    }
    let log = last(sys::log_lines(log));
    let says = |what: &str| log.iter().any(|line| line.contains(what));
    if says("not viable") {
        return Err(DpdkError::NotViable { device: name.to_owned(), others: pci::group(devices, name) });
    }
    if error == Some(EBUSY) || error == Some(EEXIST) || says("resource busy") {
        return Err(DpdkError::InUse { device: name.to_owned(), whose: " by another process", log });
    }
    let mut known = Device::names();
    known.extend(pci::known(devices));
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    Err(match error {
        Some(ENOMEM) => DpdkError::Memory { what: format!("for {name}"), log },
        Some(error) if !says("annot find") => {
            DpdkError::Device { what: "open", device: description, reason: error.to_string(), log }
        }
        _ => DpdkError::NoDevice { device: name.to_owned(), known, log },
    })
}

/// Whether the driver of a virtual device is installed.
pub(crate) fn check_driver(name: &str) -> Result<(), DpdkError> {
    let folder = sys::plugins();
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let files = files.map(|file| file.file_name().to_string_lossy().into_owned());
    let drivers: Vec<_> = files
        .filter_map(|file| Some(file.strip_prefix("librte_")?.split_once(".so")?.0.to_owned()))
        .collect();
    // A driver has all devices whose names begin with its own.
    if !name.is_empty() && drivers.iter().any(|driver| name.starts_with(driver)) {
        return Ok(());
    }
    // Where there are no files, drivers are linked into the program.
    let (driver, has_drivers) = (name.trim_end_matches(|c: char| c.is_ascii_digit()), !drivers.is_empty());
    if has_drivers && !driver.starts_with("net_") {
        let known = "virtual devices by the names of their drivers, such as net_memif0".to_owned();
        return Err(DpdkError::NoDevice { device: name.to_owned(), known, log: Vec::new() });
    }
    let (device, folder) = (name.to_owned(), folder.display().to_string());
    Err(DpdkError::NoDriver { device, driver: driver.to_owned(), folder })
}

/// An error of DPDK in words.
fn explain(what: &'static str, error: Errno, device: &str, log: u64) -> DpdkError {
    let (device, log) = (device.to_owned(), last(sys::log_lines(log)));
    match error {
        ENOMEM if !log.iter().any(|line| line.contains("will not fit")) => {
            DpdkError::Memory { what: format!("{what} {device}"), log }
        }
        EBUSY => DpdkError::InUse { device, whose: "", log },
        error => DpdkError::Device { what, device, reason: error.to_string(), log },
    }
}

/// The kernel's interface of this number, by its present name.
fn kernel_interface(index: u32) -> Option<KernelInterface> {
    let socket = Netlink::open().ok()?;
    let name = device::name(&socket, index).ok()?;
    Some(KernelInterface { socket, name })
}

/// Waits until something is so, for a while.
fn wait(limit: Duration, mut is_so: impl FnMut() -> bool) {
    wait_with(limit, Duration::from_millis(10), |_| is_so());
}

/// The same with a pause between looks, each of which is told how long it has taken.
#[expect(clippy::disallowed_methods, reason = "opening a port may wait")]
fn wait_with(limit: Duration, pause: Duration, mut is_so: impl FnMut(Duration) -> bool) {
    let began = Instant::now();
    while !is_so(began.elapsed()) && began.elapsed() < limit {
        std::thread::sleep(pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut DpdkConfig)) -> String {
        let mut config = DpdkConfig {
            device: "net_null0".to_owned(),
            local: "fd00::1".parse().unwrap(),
            gateways: vec!["fd00::2".parse().unwrap(), "fe80::1".parse().unwrap()],
            ..DpdkConfig::default()
        };
        assert!(check(&config).is_ok());
        change(&mut config);
        check(&config).unwrap_err().to_string()
    }

    #[test]
    fn settings_are_checked() {
        let text = refused(|config| config.local = "::".parse().unwrap());
        assert!(text.contains(":: cannot be the address of a port"), "{text}");
        let text = refused(|config| config.prefix_len = 129);
        assert!(text.contains("fd00::1/129") && text.contains("longer"), "{text}");
        let text = refused(|config| config.gateways = vec!["fd01::1".parse().unwrap()]);
        assert!(text.contains("fd01::1 cannot be a gateway") && text.contains("not on the link"), "{text}");
        let text = refused(|config| config.gateways = vec!["10.0.0.1".parse().unwrap()]);
        assert!(text.contains("10.0.0.1"), "{text}");
        assert!(refused(|config| config.udp_ports = vec![4971, 0]).contains("[4971, 0]"));
        assert!(refused(|config| config.udp_ports.clear()).contains("UDP ports []"));
        let text = refused(|config| config.tx_descriptors = 31);
        assert!(text.contains("tx_descriptors is 31; use 32 to 16384"), "{text}");
    }

    #[test]
    fn names_have_no_arguments() {
        assert_eq!(name_of("net_memif0,role=client"), "net_memif0");
        assert_eq!(name_of("3b:00.0,x=1"), "0000:3b:00.0");
        assert_eq!(name_of(""), "");
    }
}
