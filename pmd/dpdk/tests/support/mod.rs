//! What the tests of DPDK ports share: the EAL that all tests of a process use, and ports that know each other.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test uses some of it")]

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use spindrift_dpdk::{DpdkConfig, DpdkPort, Eal, EalConfig};
use spindrift_pmd::{DatagramMeta, MacAddr, Port as _, TxFrame, testing};

/// Longer than anything takes; only what is lost meets it.
pub const PATIENCE: Duration = Duration::from_mins(1);

pub const PORT: u16 = 4971;
pub const V4: [&str; 2] = ["10.96.0.1", "10.96.0.2"];
pub const V6: [&str; 2] = ["fd96::1", "fd96::2"];

/// Settings of the EAL that every machine has memory for, and that leave no files.
pub fn eal_config() -> EalConfig {
    EalConfig { huge_pages: false, memory_mib: Some(192), ..EalConfig::default() }
}

pub fn eal() -> Eal {
    Eal::start(&eal_config()).unwrap()
}

/// A port at a device. The tests of a process use the EAL together, so each names devices of its own.
pub fn config(device: &str, local: &str) -> DpdkConfig {
    let local: IpAddr = local.parse().unwrap();
    DpdkConfig {
        device: device.to_owned(),
        local,
        prefix_len: if local.is_ipv4() { 24 } else { 64 },
        rx_descriptors: 256,
        tx_descriptors: 256,
        duplicate_wait: Duration::ZERO,
        ..DpdkConfig::default()
    }
}

/// The same, which knows the Ethernet address of a neighbour that it never hears of.
pub fn introduced(device: &str, local: &str, neighbour: &str) -> DpdkConfig {
    let mac = MacAddr([2, 0, 0, 0, 0, 9]);
    DpdkConfig { neighbours: vec![(neighbour.parse().unwrap(), mac)], ..config(device, local) }
}

pub fn refused(config: &DpdkConfig, lanes: usize, parts: &[&str]) {
    let error = DpdkPort::open_planes(eal(), std::slice::from_ref(config), lanes).unwrap_err().to_string();
    assert!(parts.iter().all(|part| error.contains(part)), "{error}");
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
pub struct Datagram {
    head: [u8; 62],
    head_len: usize,
    payload: Vec<u8>,
}

impl Datagram {
    pub fn new(from: &DpdkPort, to: &str, dst_port: u16, payload: &[u8]) -> Self {
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
        Self { head, head_len, payload: payload.to_vec() }
    }

    pub fn frame(&self) -> TxFrame<'_> {
        TxFrame {
            head: &self.head[..self.head_len],
            udp_payload_at: self.head_len,
            payload: (&self.payload).into(),
            tail: (&[]).into(),
            ticket: 0,
        }
    }
}

/// Polls a port once; returns what arrived: whole frames.
pub fn receive(port: &mut DpdkPort, now: u64) -> Vec<Vec<u8>> {
    let mut got = Vec::new();
    port.rx_burst(now, 64, &mut |frame| {
        let mut bytes = Vec::new();
        frame.append_to(&mut bytes);
        got.push(bytes);
    });
    got
}

/// Makes two devices of the driver `net_ring` that lead to each other, `queues` rings each way; returns their names.
pub fn rings(name: &str, queues: usize) -> [String; 2] {
    type Create = unsafe extern "C" fn(*const c_char, c_uint, c_int, c_uint) -> *mut c_void;
    type FromRings = unsafe extern "C" fn(
        *const c_char,
        *const *mut c_void,
        c_uint,
        *const *mut c_void,
        c_uint,
        c_uint,
    ) -> c_int;
    eal();
    let text = |text: String| CString::new(text).unwrap();
    // SAFETY: functions of DPDK by their own names and types; the driver is loaded, as the EAL has started. All strings and lists live
    // until the calls return.
    unsafe {
        let symbol = |handle, name: &str| {
            let at = libc::dlsym(handle, text(name.to_owned()).as_ptr());
            assert!(!at.is_null(), "{name}");
            at
        };
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let path = maps.split_whitespace().find(|word| word.contains("librte_net_ring")).unwrap();
        let path = text(path.to_owned());
        let driver = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        assert!(!driver.is_null(), "net_ring is loaded");
        let create =
            std::mem::transmute::<*mut c_void, Create>(symbol(libc::RTLD_DEFAULT, "rte_ring_create"));
        let from_rings = std::mem::transmute::<*mut c_void, FromRings>(symbol(driver, "rte_eth_from_rings"));
        let ways = ["ab", "ba"].map(|way| {
            let ring = |n| create(text(format!("{name}{way}{n}")).as_ptr(), 512, 0, 0);
            (0..queues).map(ring).inspect(|ring| assert!(!ring.is_null())).collect::<Vec<_>>()
        });
        [0, 1].map(|side| {
            let (tx, rx, count) = (&ways[side], &ways[1 - side], queues as c_uint);
            let name = format!("{name}{side}");
            let made = from_rings(text(name.clone()).as_ptr(), rx.as_ptr(), count, tx.as_ptr(), count, 0);
            assert!(made >= 0, "{name}");
            format!("net_ring_{name}")
        })
    }
}

/// Sends a datagram again and again until it arrives, polling both ports; returns the frame that did, and how many were sent.
pub fn deliver(
    from: &mut DpdkPort,
    to: &mut DpdkPort,
    datagram: &Datagram,
    clock: &mut u64,
) -> (Vec<u8>, u64) {
    let mut sent = 0;
    let mut arrived = None;
    wait_for("a datagram arrives", || {
        *clock += 10_000_000;
        from.link();
        from.tx_room(*clock);
        sent += from.tx_burst(*clock, &[datagram.frame()]) as u64;
        from.flush(*clock);
        receive(from, *clock);
        std::thread::sleep(Duration::from_millis(1));
        arrived = receive(to, *clock).pop();
        arrived.is_some()
    });
    (arrived.unwrap(), sent)
}
