//! Devices, and the pools of buffers that their queues use.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use spindrift_pmd::MacAddr;
use spindrift_pmd::fork::Home;

use super::Errno;

/// Devices that this process has open, by port number, each with what its driver had counted when it started.
static OPEN: Mutex<BTreeMap<u16, Vec<Counter>>> = Mutex::new(BTreeMap::new());
/// Pools of closed devices some of whose buffers are still elsewhere, such as in a ring that leads to another device.
/// With each, since when all of them have been back.
static LEFT: Mutex<Vec<(Pool, Option<Instant>)>> = Mutex::new(Vec::new());
/// How long a thread may take to give a buffer back once it is counted.
const GIVING_BACK: Duration = Duration::from_millis(100);

/// A driver's name of what it counts, and the count.
pub(crate) type Counter = (String, u64);
/// Most counters of a device. NICs have some hundred, and some more for each queue.
const COUNTERS_MAX: u32 = 1 << 14;

/// The driver of shared memory.
pub(crate) const MEMIF: &str = "net_memif";
/// When this process closed a device last.
static CLOSED: Mutex<Option<Instant>> = Mutex::new(None);
/// Bursts of each queue that are taken from a device before it is closed.
const DRAINED: usize = 256;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps other threads from opening and closing devices, for which DPDK is not made.
pub(crate) struct Control(Option<MutexGuard<'static, ()>>);

thread_local! {
    /// How many [`Control`]s this thread has.
    static HELD: Cell<usize> = const { Cell::new(0) };
}

/// Waits until no other thread opens or closes a device. A thread may have it several times.
pub(crate) fn control() -> Control {
    static CONTROL: Mutex<()> = Mutex::new(());
    let held = HELD.get();
    HELD.set(held + 1);
    Control((held == 0).then(|| lock(&CONTROL)))
}

impl Drop for Control {
    fn drop(&mut self) {
        HELD.set(HELD.get().saturating_sub(1));
        self.0 = None;
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "when a device was closed is the system's time, whatever time drivers of ports keep"
)]
fn now() -> Instant {
    Instant::now()
}

/// Buffers of one length.
pub(crate) struct Pool {
    at: NonNull<dpdk_sys::rte_mempool>,
    count: u32,
    /// Bytes of a buffer that a frame can use.
    room: usize,
}

// SAFETY: a pool is made for several threads.
unsafe impl Send for Pool {}
// SAFETY: as above; nothing here changes it but through DPDK.
unsafe impl Sync for Pool {}

impl Pool {
    /// A pool of `count` buffers.
    pub(crate) fn new(count: u32, room: usize, socket: i32) -> Result<Self, Errno> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        bury();
        let name = format!("spindrift{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let name = CString::new(name).unwrap_or_default();
        let cache = if count >= 1024 { 256 } else { 0 };
        // SAFETY: the name is a live string, which is copied.
        let pool = unsafe { dpdk_sys::spindrift_pool(name.as_ptr(), count, cache, room as u32, socket) };
        match NonNull::new(pool) {
            Some(at) => Ok(Self { at, count, room }),
            // SAFETY: reads a variable of this thread.
            None => Err(Errno(unsafe { dpdk_sys::spindrift_errno() })),
        }
    }

    pub(super) fn as_ptr(&self) -> *mut dpdk_sys::rte_mempool {
        self.at.as_ptr()
    }

    pub(super) fn room(&self) -> usize {
        self.room
    }

    /// Whether all buffers are here.
    fn is_whole(&self) -> bool {
        // SAFETY: the pool lives.
        unsafe { dpdk_sys::rte_mempool_avail_count(self.at.as_ptr()) == self.count }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: `retire` and `bury` drop it once all buffers are back; a pool that was not used has them all.
        unsafe { dpdk_sys::rte_mempool_free(self.at.as_ptr()) };
    }
}

/// Frees pools, or keeps those that have buffers elsewhere.
fn retire(pools: Vec<Pool>) {
    let elsewhere = pools.into_iter().filter(|pool| !pool.is_whole());
    lock(&LEFT).extend(elsewhere.map(|pool| (pool, None)));
    bury();
}

/// Frees the pools of closed devices whose buffers have all come back.
fn bury() {
    lock(&LEFT).retain_mut(|(pool, whole_since)| {
        if pool.is_whole() {
            return whole_since.get_or_insert_with(now).elapsed() < GIVING_BACK;
        }
        *whole_since = None;
        true
    });
}

/// The name of a port.
fn name(port: u16) -> Option<String> {
    let mut name = [0 as c_char; 64];
    // SAFETY: 64 bytes are enough for any name and its end.
    let result = unsafe { dpdk_sys::spindrift_port_name(port, name.as_mut_ptr()) };
    // SAFETY: a string with its end.
    (result == 0).then(|| unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned())
}

/// What the driver of a device has counted. Nothing if it counts nothing, or the number of counters changes meanwhile.
fn xstats(port: u16) -> Vec<Counter> {
    const NAME: usize = dpdk_sys::SPINDRIFT_XSTAT_NAME as usize;
    // SAFETY: there is no room, and nothing is written.
    let count = unsafe { dpdk_sys::spindrift_xstats(port, std::ptr::null_mut(), std::ptr::null_mut(), 0) };
    let room = u32::try_from(count).unwrap_or(0).min(COUNTERS_MAX);
    let (mut names, mut values) = (vec![0_u8; room as usize * NAME], vec![0; room as usize]);
    // SAFETY: both have room for so many.
    let count =
        unsafe { dpdk_sys::spindrift_xstats(port, names.as_mut_ptr().cast(), values.as_mut_ptr(), room) };
    let count = usize::try_from(count).unwrap_or(0);
    let names = names.chunks(NAME).map(|name| {
        let name = CStr::from_bytes_until_nul(name).unwrap_or_default();
        name.to_string_lossy().into_owned()
    });
    names.zip(values).take(count).filter(|(name, _)| !name.is_empty()).collect()
}

/// What a device is and can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Description {
    pub(crate) driver: String,
    /// The number of the kernel's interface that it uses.
    pub(crate) interface: Option<u32>,
    pub(crate) mac: MacAddr,
    pub(crate) max_frame: u32,
    pub(crate) min_mtu: u32,
    pub(crate) max_mtu: u32,
    pub(crate) max_queues: u32,
    pub(crate) scatters: bool,
    /// It sends frames from several buffers.
    pub(crate) gathers: bool,
    /// It reports changes of its link by interrupts.
    pub(crate) link_interrupts: bool,
}

/// What a device is to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Modes {
    /// Receive a frame in several buffers.
    pub(crate) scatter: bool,
    /// Send a frame from several buffers.
    pub(crate) gather: bool,
    /// Report changes of its link by interrupts.
    pub(crate) link_interrupts: bool,
}

/// State of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) is_up: bool,
    pub(crate) mbps: Option<u32>,
}

/// What a device has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stats {
    /// Frames that arrived and were lost, as the lane was too slow.
    pub(crate) dropped: u64,
    pub(crate) rx_errors: u64,
    pub(crate) tx_errors: u64,
}

/// A device that this process has opened. It is stopped and closed when this is dropped.
pub(crate) struct Device {
    port: u16,
    /// It was found by its description, so it is taken off its bus in the end.
    probed: bool,
    home: Home,
    pools: Vec<Pool>,
    /// Queues of each kind, once it has started.
    running: u16,
}

impl Device {
    /// Opens a device that there is already. `Ok(None)`: it is in use.
    pub(crate) fn find(name: &str) -> Option<u16> {
        let name = CString::new(name).ok()?;
        let mut port = 0;
        // SAFETY: a live string, and a place for the number.
        let result = unsafe { dpdk_sys::rte_eth_dev_get_port_by_name(name.as_ptr(), &raw mut port) };
        (result == 0).then_some(port)
    }

    /// Has the EAL look for a device and its driver.
    pub(crate) fn probe(description: &str) -> Result<(), Errno> {
        let text = CString::new(description).map_err(|_| Errno(22))?;
        // SAFETY: a live string, which is copied.
        Errno::check(unsafe { dpdk_sys::rte_dev_probe(text.as_ptr()) }).map(drop)
    }

    /// Takes a port for this process; `None` if it has it already.
    pub(crate) fn open(port: u16, probed: bool) -> Option<Self> {
        let mut open = lock(&OPEN);
        let is_new = !open.contains_key(&port);
        is_new.then(|| {
            open.insert(port, Vec::new());
            Self { port, probed, home: Home::here(), pools: Vec::new(), running: 0 }
        })
    }

    /// The names of all ports.
    pub(crate) fn names() -> Vec<String> {
        let mut names = Vec::new();
        let mut next = 0;
        // SAFETY: any number is fine.
        while let Ok(port) = u16::try_from(unsafe { dpdk_sys::spindrift_port_from(next) }) {
            names.extend(name(port));
            next = port + 1;
        }
        names
    }

    /// What the drivers of the devices that this process has open have counted since these started, by the device's name.
    pub(crate) fn counters() -> Vec<(String, Vec<Counter>)> {
        // No device is closed meanwhile.
        let _control = control();
        let open = lock(&OPEN);
        let since = |(port, before): (&u16, &Vec<Counter>)| {
            let mut counters = xstats(*port);
            for (at, counter) in counters.iter_mut().enumerate() {
                // The order is nearly always the same.
                let same = before.get(at).filter(|known| known.0 == counter.0);
                let known = same.or_else(|| before.iter().find(|known| known.0 == counter.0));
                counter.1 = counter.1.saturating_sub(known.map_or(0, |known| known.1));
            }
            Some((name(*port)?, counters))
        };
        open.iter().filter_map(since).collect()
    }

    /// Whether this process has closed a device since so long.
    pub(crate) fn was_closed_within(time: Duration) -> bool {
        lock(&CLOSED).is_some_and(|at| at.elapsed() < time)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn describe(&self) -> Result<Description, Errno> {
        // SAFETY: all-zero bytes are a valid structure of integers and a pointer.
        let mut info: dpdk_sys::spindrift_device = unsafe { std::mem::zeroed() };
        // SAFETY: a live structure to fill in.
        Errno::check(unsafe { dpdk_sys::spindrift_describe(self.port, &raw mut info) })?;
        // SAFETY: filled in with static text.
        let driver = unsafe { CStr::from_ptr(info.driver) }.to_string_lossy().into_owned();
        Ok(Description {
            driver,
            interface: Some(info.interface).filter(|&index| index != 0),
            mac: MacAddr(info.mac),
            max_frame: info.max_frame,
            min_mtu: info.min_mtu,
            max_mtu: info.max_mtu,
            max_queues: info.max_rx_queues.min(info.max_tx_queues),
            scatters: info.scatters != 0,
            gathers: info.gathers != 0,
            link_interrupts: info.link_interrupts != 0,
        })
    }

    /// Sets the number of queues, the longest packet, and what else the device is to do.
    pub(crate) fn configure(&mut self, queues: u16, mtu: u32, modes: Modes) -> Result<(), Errno> {
        let [scatter, gather, link_interrupts] =
            [modes.scatter, modes.gather, modes.link_interrupts].map(i32::from);
        // SAFETY: the device is this process's, and stopped.
        let result = unsafe {
            dpdk_sys::spindrift_configure(self.port, queues, mtu, scatter, gather, link_interrupts)
        };
        Errno::check(result).map(drop)
    }

    /// The nearest numbers of descriptors that the device has, for receive and transmit queues.
    pub(crate) fn descriptors(&self, mut rx: u16, mut tx: u16) -> (u16, u16) {
        // SAFETY: live numbers.
        unsafe { dpdk_sys::rte_eth_dev_adjust_nb_rx_tx_desc(self.port, &raw mut rx, &raw mut tx) };
        (rx, tx)
    }

    /// The NUMA node that it is on; -1 for any.
    pub(crate) fn socket(&self) -> i32 {
        // SAFETY: reads a number.
        unsafe { dpdk_sys::rte_eth_dev_socket_id(self.port) }
    }

    /// Makes a receive queue that takes its buffers from `pool`, which the device keeps.
    pub(crate) fn rx_queue(
        &mut self,
        queue: u16,
        descriptors: u16,
        pool: Pool,
        scatter: bool,
    ) -> Result<(), Errno> {
        // SAFETY: the pool lives until the device is closed.
        let result = unsafe {
            dpdk_sys::spindrift_rx_queue(self.port, queue, descriptors, pool.as_ptr(), scatter.into())
        };
        self.pools.push(pool);
        Errno::check(result).map(drop)
    }

    /// Makes a transmit queue whose buffers are from `pool`, which the device keeps. Returns the pool's place.
    pub(crate) fn tx_queue(
        &mut self,
        queue: u16,
        descriptors: u16,
        pool: Pool,
        gather: bool,
    ) -> Result<usize, Errno> {
        // SAFETY: the device is this process's, and stopped.
        let result = unsafe { dpdk_sys::spindrift_tx_queue(self.port, queue, descriptors, gather.into()) };
        self.pools.push(pool);
        Errno::check(result).map(|_| self.pools.len() - 1)
    }

    pub(super) fn pool(&self, place: usize) -> Option<&Pool> {
        self.pools.get(place)
    }

    /// Starts the device with so many queues of each kind.
    pub(crate) fn start(&mut self, queues: u16) -> Result<(), Errno> {
        // SAFETY: the device is this process's.
        Errno::check(unsafe { dpdk_sys::rte_eth_dev_start(self.port) })?;
        self.running = queues;
        lock(&OPEN).insert(self.port, xstats(self.port));
        Ok(())
    }

    /// Takes what has arrived, so that its buffers go back to their pools: a ring would keep them.
    fn drain(&self) {
        for queue in 0..self.running {
            let mut batch = super::queue::Batch::default();
            for _ in 0..DRAINED {
                if batch.receive(self.port, queue) == 0 {
                    break;
                }
            }
        }
    }

    /// Has it receive frames for groups, which neighbour discovery needs. `false`: it cannot.
    pub(crate) fn receive_groups(&mut self) -> bool {
        // SAFETY: the device is this process's.
        unsafe {
            dpdk_sys::rte_eth_allmulticast_enable(self.port) == 0
                || dpdk_sys::rte_eth_promiscuous_enable(self.port) == 0
        }
    }

    pub(crate) fn link(&self) -> Link {
        let mut link = dpdk_sys::spindrift_link { is_up: 0, mbps: 0 };
        // SAFETY: a live structure to fill in.
        unsafe { dpdk_sys::spindrift_link_of(self.port, &raw mut link) };
        Link { is_up: link.is_up != 0, mbps: Some(link.mbps).filter(|&mbps| mbps != 0) }
    }

    pub(crate) fn stats(&self) -> Stats {
        // SAFETY: all-zero bytes are a valid structure of integers.
        let mut stats: dpdk_sys::spindrift_stats = unsafe { std::mem::zeroed() };
        // SAFETY: a live structure to fill in.
        unsafe { dpdk_sys::spindrift_stats_of(self.port, &raw mut stats) };
        Stats { dropped: stats.missed, rx_errors: stats.rx_errors, tx_errors: stats.tx_errors }
    }

    /// Whether this is the process that opened it.
    pub(super) fn is_home(&self) -> bool {
        !self.home.is_elsewhere()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if !self.is_home() {
            // The device is the parent's, and so is the memory of the pools.
            Vec::leak(std::mem::take(&mut self.pools));
            return;
        }
        let _control = control();
        self.drain();
        // Somebody else's device stays as it was if it was not used.
        if self.probed || self.running > 0 {
            // SAFETY: no queue of it is left, as each has a share of this. The bus knows the device until it is removed.
            unsafe {
                let bus: *mut c_void = dpdk_sys::spindrift_device_of(self.port);
                // This driver's connections end in the EAL's interrupt thread, which frees their memory, and so does closing (DPDK
                // 22.11). NICs have handlers there that closing waits for.
                let by_interrupts = self.describe().is_ok_and(|about| about.driver == MEMIF);
                if !by_interrupts || dpdk_sys::spindrift_close_by_interrupts(self.port) < 0 {
                    dpdk_sys::rte_eth_dev_stop(self.port);
                    dpdk_sys::rte_eth_dev_close(self.port);
                }
                if self.probed && !bus.is_null() {
                    dpdk_sys::spindrift_remove(bus);
                }
            }
        }
        *lock(&CLOSED) = Some(now());
        retire(std::mem::take(&mut self.pools));
        lock(&OPEN).remove(&self.port);
    }
}

#[cfg(test)]
mod tests {
    use spindrift_pmd::testing::{Hosts, within};

    use super::*;
    use crate::{Eal, EalConfig};

    /// A device that has one queue of each kind and runs.
    fn started(description: &str, link_interrupts: bool) -> Device {
        let config = EalConfig { huge_pages: false, memory_mib: Some(64), ..EalConfig::default() };
        Eal::start(&config).unwrap();
        Device::probe(description).unwrap();
        let port = Device::find(description.split(',').next().unwrap()).unwrap();
        let mut device = Device::open(port, true).unwrap();
        device.configure(1, 1500, Modes { link_interrupts, ..Modes::default() }).unwrap();
        device.rx_queue(0, 256, Pool::new(1023, 2048, -1).unwrap(), false).unwrap();
        device.tx_queue(0, 256, Pool::new(511, 2048, -1).unwrap(), false).unwrap();
        device.start(1).unwrap();
        device
    }

    #[expect(clippy::disallowed_methods, reason = "a test waits")]
    fn becomes(device: &Device, is_up: bool) -> bool {
        let end = now() + Duration::from_secs(30);
        while device.link().is_up != is_up {
            if now() > end {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// With interrupts, what the EAL says of a link is what the last one said: nobody asks the driver.
    #[test]
    fn a_link_that_goes_down_is_reported_by_an_interrupt() {
        let hosts = Hosts::new("dpi", 1).expect("root, and `ip` of iproute2");
        let device = within(hosts.name(0), || started("net_tap40,iface=tap40", true));
        assert!(device.describe().unwrap().link_interrupts);
        for state in ["down", "up", "down"] {
            hosts.ip(0, &format!("link set tap40 {state}"));
            assert!(becomes(&device, state == "up"), "{state}");
        }
    }

    /// Counters begin with 0 when a device is opened, and have names of the driver's.
    #[test]
    fn drivers_count() {
        for _ in 0..2 {
            let device = started("net_null40,size=100", false);
            let count = |name: &str| {
                let all = Device::counters();
                let (_, counters) = all.iter().find(|(device, _)| device == "net_null40").unwrap();
                counters.iter().find(|counter| counter.0 == name).unwrap().1
            };
            assert_eq!(count("rx_good_packets"), 0);
            let mut batch = super::super::queue::Batch::default();
            let got = batch.receive(device.port(), 0) as u64;
            assert!(got > 0);
            assert_eq!((count("rx_good_packets"), count("rx_q0_packets")), (got, got));
            drop(batch);
            drop(device);
        }
        assert!(Device::counters().iter().all(|(device, _)| device != "net_null40"));
    }
}
