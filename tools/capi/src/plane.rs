//! The port of a plane, which a controller may disable and which gets source ports while it is in use.

use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use spindrift::pmd::udp::{SourceOpener, SourceSocket, UdpError, UdpPort};
use spindrift::pmd::{LinkState, Port, PortCounters, RxFrame, TxFrame};
use spindrift_pmd::forward_to_inner;

/// What the process has of a plane while a lane drives its port.
pub(crate) struct Plane {
    disabled: AtomicBool,
    opener: SourceOpener,
    /// Source ports that are open, those that the port does not have yet, and whether there are any of these.
    open: Mutex<BTreeSet<u16>>,
    arrived: Mutex<Vec<SourceSocket>>,
    has_arrived: AtomicBool,
    /// A source port that is open whatever a controller does.
    first: u16,
}

impl Plane {
    /// As if its cable were pulled, or not any more.
    pub(crate) fn set_enabled(&self, enabled: bool) {
        self.disabled.store(!enabled, Ordering::Relaxed);
    }

    /// Makes the port send from these source ports too, from its next burst on.
    ///
    /// # Errors
    /// Another program has one for itself, or there are too many open files.
    pub(crate) fn open_sources(&self, ports: impl Iterator<Item = u16>) -> Result<(), UdpError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        for port in ports {
            if open.contains(&port) {
                continue;
            }
            let socket = self.opener.open(port)?;
            self.arrived.lock().unwrap_or_else(PoisonError::into_inner).push(socket);
            self.has_arrived.store(true, Ordering::Release);
            open.insert(port);
        }
        Ok(())
    }

    pub(crate) const fn first_source(&self) -> u16 {
        self.first
    }
}

/// The port. While it is disabled nothing leaves it, and nothing arrives.
pub(crate) struct PlanePort {
    inner: UdpPort,
    plane: Arc<Plane>,
    /// Frames that it has taken and given while disabled.
    dropped: PortCounters,
    /// Whether the last burst went to the port inside.
    went_in: bool,
}

impl PlanePort {
    pub(crate) fn new(inner: UdpPort) -> (Self, Arc<Plane>) {
        let ports = inner.caps().source_ports.as_deref().unwrap_or_default();
        let plane = Arc::new(Plane {
            disabled: AtomicBool::new(false),
            opener: inner.source_opener(),
            open: Mutex::new(ports.iter().copied().collect()),
            arrived: Mutex::default(),
            has_arrived: AtomicBool::new(false),
            first: ports.first().copied().unwrap_or_default(),
        });
        let port = Self { inner, plane: Arc::clone(&plane), dropped: PortCounters::default(), went_in: true };
        (port, plane)
    }

    fn is_disabled(&self) -> bool {
        self.plane.disabled.load(Ordering::Relaxed)
    }

    fn take_sources(&mut self) {
        self.plane.has_arrived.store(false, Ordering::Relaxed);
        let mut arrived = self.plane.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        arrived.drain(..).for_each(|socket| self.inner.add_source(socket));
    }
}

impl Port for PlanePort {
    forward_to_inner!(caps, tx_room, flush, reap, recall, next_event_ns, readable);

    fn link(&mut self) -> LinkState {
        if self.is_disabled() { LinkState::Down } else { self.inner.link() }
    }

    fn tx_burst(&mut self, now_ns: u64, frames: &[TxFrame<'_>]) -> usize {
        if self.plane.has_arrived.load(Ordering::Acquire) {
            self.take_sources();
        }
        self.went_in = !self.is_disabled();
        if self.went_in {
            return self.inner.tx_burst(now_ns, frames);
        }
        self.dropped.tx_dropped += frames.len() as u64;
        frames.len()
    }

    fn unsent(&self) -> &[u16] {
        if self.went_in { self.inner.unsent() } else { &[] }
    }

    fn rx_burst(&mut self, now_ns: u64, max: usize, sink: &mut dyn FnMut(&RxFrame<'_>)) -> usize {
        if !self.is_disabled() {
            return self.inner.rx_burst(now_ns, max, sink);
        }
        let dropped = &mut self.dropped;
        let count =
            self.inner.rx_burst(now_ns, max, &mut |frame| dropped.rx_bytes += frame.data.len() as u64);
        dropped.rx_dropped += count as u64;
        0
    }

    fn counters(&self) -> PortCounters {
        let counters = self.inner.counters();
        PortCounters {
            tx_dropped: counters.tx_dropped + self.dropped.tx_dropped,
            rx_dropped: counters.rx_dropped + self.dropped.rx_dropped,
            // Those were not passed on.
            rx_frames: counters.rx_frames - self.dropped.rx_dropped,
            rx_bytes: counters.rx_bytes - self.dropped.rx_bytes,
            ..counters
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use spindrift::pmd::udp::UdpConfig;
    use spindrift_pmd::testing::Conformance;

    use super::*;

    fn pair() -> [(PlanePort, Arc<Plane>); 2] {
        ["127.0.0.1", "127.0.0.9"].map(|local| {
            let config = UdpConfig { local: local.parse().unwrap(), port: 0, ..UdpConfig::default() };
            PlanePort::new(UdpPort::open(&config).unwrap())
        })
    }

    fn run(ports: &mut [(PlanePort, Arc<Plane>); 2]) {
        let [(a, _), (b, _)] = ports;
        let run = Conformance { port_a: a.inner.port(), port_b: b.inner.port() };
        run.run(a, b);
    }

    #[test]
    fn it_conforms_also_when_it_was_disabled() {
        let mut ports = pair();
        run(&mut ports);
        for enabled in [false, true] {
            for (port, plane) in &mut ports {
                plane.set_enabled(enabled);
                assert_eq!(port.link(), if enabled { LinkState::Up } else { LinkState::Down });
            }
        }
        run(&mut ports);
    }

    /// A UDP datagram between the ports, as the transport writes it.
    fn head(from: &PlanePort, to: &PlanePort, source: u16) -> Vec<u8> {
        let ip = |port: &PlanePort| match port.caps().local_ip {
            std::net::IpAddr::V4(ip) => ip.octets(),
            std::net::IpAddr::V6(_) => [0; 4],
        };
        let mut head = vec![0; 14];
        head.extend([0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0]);
        head.extend(ip(from));
        head.extend(ip(to));
        head.extend(source.to_be_bytes());
        head.extend(to.inner.port().to_be_bytes());
        head.extend([0; 4]);
        head
    }

    #[test]
    fn nothing_passes_a_disabled_port() {
        let [(mut a, plane), (mut b, other)] = pair();
        let head = head(&a, &b, plane.first_source());
        let frame = || TxFrame {
            head: &head,
            udp_payload_at: 42,
            payload: b"x"[..].into(),
            tail: (&[]).into(),
            ticket: 0,
        };
        let send = |a: &mut PlanePort| (a.tx_burst(0, &[frame(), frame()]), a.unsent().len());
        let receive = |b: &mut PlanePort| {
            let mut seen = 0;
            let given = b.rx_burst(0, 9, &mut |_| seen += 1);
            assert_eq!(given, seen);
            given
        };
        plane.set_enabled(false);
        assert_eq!((send(&mut a), receive(&mut b)), ((2, 0), 0));
        assert_eq!((a.counters().tx_frames, a.counters().tx_dropped), (0, 2));
        // What arrives is taken off the socket, so that it does not come later.
        plane.set_enabled(true);
        other.set_enabled(false);
        assert_eq!(send(&mut a), (2, 0));
        let began = std::time::Instant::now();
        while b.counters().rx_dropped < 2 {
            assert_eq!(receive(&mut b), 0);
            assert!(began.elapsed() < std::time::Duration::from_mins(1));
        }
        other.set_enabled(true);
        assert_eq!(receive(&mut b), 0);
        let counters = b.counters();
        assert_eq!((counters.rx_frames, counters.rx_bytes, counters.rx_dropped), (0, 0, 2));
    }

    #[test]
    fn source_ports_are_there_for_the_next_burst() {
        let [(mut a, plane), (b, _)] = pair();
        let free = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let head = head(&a, &b, free);
        let mut send = || {
            let tail = (&[]).into();
            let frame =
                TxFrame { head: &head, udp_payload_at: 42, payload: b"x"[..].into(), tail, ticket: 0 };
            assert_eq!(a.tx_burst(0, &[frame]), 1);
            (a.counters().tx_frames, a.counters().tx_unsendable)
        };
        assert_eq!(send(), (0, 1));
        plane.open_sources([free, plane.first_source()].into_iter()).unwrap();
        assert_eq!(send(), (1, 1));
        // It is open already.
        plane.open_sources([free].into_iter()).unwrap();
        assert_eq!(send(), (2, 1));
        let taken = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let error = plane.open_sources([taken.local_addr().unwrap().port()].into_iter()).unwrap_err();
        assert!(error.to_string().contains("in use"), "{error}");
    }
}
