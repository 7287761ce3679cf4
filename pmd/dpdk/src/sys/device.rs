//! Devices, and the pools of buffers that their queues use.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use spindrift_pmd::MacAddr;
use spindrift_pmd::fork::Home;

use super::Errno;

/// Devices that this process has open, by port number.
static OPEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
/// Pools of closed devices some of whose buffers are still elsewhere, such as in a ring that leads to another device.
/// With each, since when all of them have been back.
static LEFT: Mutex<Vec<(Pool, Option<Instant>)>> = Mutex::new(Vec::new());
/// How long a thread may take to give a buffer back once it is counted.
const GIVING_BACK: Duration = Duration::from_millis(100);

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
        lock(&OPEN).insert(port).then(|| Self {
            port,
            probed,
            home: Home::here(),
            pools: Vec::new(),
            running: 0,
        })
    }

    /// The names of all ports.
    pub(crate) fn names() -> Vec<String> {
        let mut names = Vec::new();
        let mut next = 0;
        // SAFETY: any number is fine.
        while let Ok(port) = u16::try_from(unsafe { dpdk_sys::spindrift_port_from(next) }) {
            let mut name = [0 as c_char; 64];
            // SAFETY: 64 bytes are enough for any name and its end.
            let result = unsafe { dpdk_sys::spindrift_port_name(port, name.as_mut_ptr()) };
            if result == 0 {
                // SAFETY: a string with its end.
                names.push(unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned());
            }
            next = port + 1;
        }
        names
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
        })
    }

    /// Sets the number of queues and the longest packet.
    pub(crate) fn configure(
        &mut self,
        queues: u16,
        mtu: u32,
        scatter: bool,
        gather: bool,
    ) -> Result<(), Errno> {
        // SAFETY: the device is this process's, and stopped.
        let result =
            unsafe { dpdk_sys::spindrift_configure(self.port, queues, mtu, scatter.into(), gather.into()) };
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
