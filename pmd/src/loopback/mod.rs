//! Two NICs joined back to back by shared rings, for two lanes of one process.
//!
//! [`pair`] makes two lists of ports; plane *n* of one is wired to plane *n* of the other by two rings of
//! fixed slots. Of a payload that is part of a region and not short, a slot has the place only: the receiver
//! reads it where the sender has it. All else is copied into the slot once, and read there. The ends may be driven by
//! one thread or by two.
//!
//! What is copied travels between the cores' caches, so it should fit there:
//! `planes * 2 * slots * (frame_max + 100)` bytes in all, 2.3 MB with four planes and the defaults.

mod ring;

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::{LinkState, MacAddr, Medium, Port, PortCaps, PortCounters, RxFrame, RxOrigin, TxFrame};
use ring::{Consumer, Producer};

/// Fewest and most slots of a ring.
pub const SLOTS_RANGE: (usize, usize) = (2, 1 << 16);
/// Shortest and longest `frame_max` in bytes.
pub const FRAME_MAX_RANGE: (usize, usize) = (128, 65_550);

/// The shortest payload that is handed over by reference: a shorter one is copied sooner than its region is kept.
pub const BY_REFERENCE: usize = 512;

/// Sizes and addresses of a loopback pair.
#[derive(Clone, Copy, Debug)]
pub struct LoopbackConfig {
    /// Longest frame in bytes, Ethernet header included. Default 4352: 4096 bytes of payload and all
    /// headers. Brought into [`FRAME_MAX_RANGE`].
    pub frame_max: usize,
    /// Frames that one direction of one plane can hold. Default 32: with four planes both directions stay
    /// in a second-level cache. Brought into [`SLOTS_RANGE`] and
    /// rounded up to a power of two.
    pub slots: usize,
    /// Addresses of the two sides at plane 0. At plane *n* the second group (IPv6) or the third byte
    /// (IPv4) is larger by *n*. Default `fd00::1` and `fd00::2`, so plane 3 has `fd00:3::1` and `fd00:3::2`.
    pub base_ips: [IpAddr; 2],
    /// First four bytes of the Ethernet addresses; plane and side (1 or 2) follow. Default
    /// `02:5d:00:00`, locally administered.
    pub mac_prefix: [u8; 4],
}

impl Default for LoopbackConfig {
    fn default() -> Self {
        let side = |n| IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n));
        Self { frame_max: 4352, slots: 32, base_ips: [side(1), side(2)], mac_prefix: [0x02, 0x5d, 0, 0] }
    }
}

impl LoopbackConfig {
    /// Address of `side` (0 or 1) at `plane`.
    pub fn address(&self, plane: usize, side: usize) -> IpAddr {
        match self.base_ips[side & 1] {
            IpAddr::V4(ip) => {
                let [a, b, c, d] = ip.octets();
                IpAddr::from([a, b, c.wrapping_add(plane as u8), d])
            }
            IpAddr::V6(ip) => {
                let mut groups = ip.segments();
                groups[1] = groups[1].wrapping_add(plane as u16);
                IpAddr::from(groups)
            }
        }
    }

    fn mac(&self, plane: usize, side: usize) -> MacAddr {
        let [a, b, c, d] = self.mac_prefix;
        MacAddr([a, b, c, d, plane as u8, side as u8 + 1])
    }
}

/// One plane set down by [`LoopbackControl`].
const DOWN: u8 = 1;
/// One of the two ends has been dropped.
const CLOSED: u8 = 2;

/// The cable of one plane: sets it down and up again, from any thread.
#[derive(Clone, Debug)]
pub struct LoopbackControl {
    state: Arc<AtomicU8>,
}

impl LoopbackControl {
    /// Plugs the cable in or pulls it out. While it is out both ends report [`LinkState::Down`], what is
    /// sent is lost and what was on its way is lost at the receiver; all of it is counted.
    pub fn set_up(&self, up: bool) {
        if up {
            self.state.fetch_and(!DOWN, Ordering::Relaxed);
        } else {
            self.state.fetch_or(DOWN, Ordering::Relaxed);
        }
    }

    /// Whether the cable is in and both ends exist.
    pub fn is_up(&self) -> bool {
        self.state.load(Ordering::Relaxed) == 0
    }
}

/// One end of one plane. When it is dropped the other end's link goes down.
pub struct LoopbackPort {
    caps: PortCaps,
    counters: PortCounters,
    state: Arc<AtomicU8>,
    tx: Producer,
    rx: Consumer,
}

/// Two NICs of `planes` ports each, wired plane by plane.
pub fn pair(planes: usize, cfg: LoopbackConfig) -> (Vec<LoopbackPort>, Vec<LoopbackPort>) {
    let frame_max = cfg.frame_max.clamp(FRAME_MAX_RANGE.0, FRAME_MAX_RANGE.1);
    let slots = cfg.slots.clamp(SLOTS_RANGE.0, SLOTS_RANGE.1).next_power_of_two();
    let cfg = LoopbackConfig { frame_max, slots, ..cfg };
    (0..planes)
        .map(|plane| {
            let state = Arc::new(AtomicU8::new(0));
            let (tx_a, rx_b) = ring::ring(slots, frame_max);
            let (tx_b, rx_a) = ring::ring(slots, frame_max);
            let end = |side, tx, rx| LoopbackPort {
                caps: caps(&cfg, plane, side),
                counters: PortCounters::default(),
                state: Arc::clone(&state),
                tx,
                rx,
            };
            (end(0, tx_a, rx_a), end(1, tx_b, rx_b))
        })
        .unzip()
}

fn caps(cfg: &LoopbackConfig, plane: usize, side: usize) -> PortCaps {
    let local_ip = cfg.address(plane, side);
    PortCaps {
        name: format!("loopback {local_ip}"),
        local_ip,
        mac: cfg.mac(plane, side),
        max_frame: cfg.frame_max,
        max_burst: cfg.slots,
        source_ports: None,
        same_path_batch: 1,
        holds_payloads: true,
        medium: Medium::Host,
        notes: Vec::new(),
        send_errors: Vec::new(),
    }
}

impl LoopbackPort {
    /// The cable that this port hangs on.
    pub fn control(&self) -> LoopbackControl {
        LoopbackControl { state: Arc::clone(&self.state) }
    }

    fn state(&self) -> u8 {
        self.state.load(Ordering::Relaxed)
    }
}

impl Drop for LoopbackPort {
    fn drop(&mut self) {
        self.state.fetch_or(CLOSED, Ordering::Relaxed);
    }
}

impl Port for LoopbackPort {
    fn caps(&self) -> &PortCaps {
        &self.caps
    }

    fn link(&mut self) -> LinkState {
        if self.state() == 0 { LinkState::Up } else { LinkState::Down }
    }

    fn tx_room(&mut self, _now_ns: u64) -> usize {
        if self.state() != 0 {
            return self.caps.max_burst;
        }
        // Half the ring is room enough to start a burst; asking for all of it would read the consumer's
        // line on every call.
        self.tx.room(self.caps.max_burst / 2)
    }

    fn tx_burst(&mut self, _now_ns: u64, frames: &[TxFrame<'_>]) -> usize {
        let counters = &mut self.counters;
        if self.state.load(Ordering::Relaxed) != 0 {
            counters.tx_dropped += frames.len() as u64;
            return frames.len();
        }
        let mut accepted = 0;
        for frame in frames {
            let len = frame.len();
            if len > self.caps.max_frame {
                counters.tx_oversize += 1;
                counters.tx_dropped += 1;
            } else if self.tx.push(frame) {
                counters.tx_frames += 1;
                counters.tx_bytes += len as u64;
            } else {
                counters.tx_full += 1;
                break;
            }
            accepted += 1;
        }
        if accepted > 0 {
            self.tx.publish();
            counters.tx_calls += 1;
        }
        accepted
    }

    /// None: what does not fit is not accepted.
    fn unsent(&self) -> &[u16] {
        &[]
    }

    fn flush(&mut self, _now_ns: u64) {}

    fn rx_burst(&mut self, _now_ns: u64, max: usize, sink: &mut dyn FnMut(&RxFrame<'_>)) -> usize {
        if self.state() & DOWN != 0 {
            self.counters.rx_dropped += self.rx.drain(max, |_, _| ()) as u64;
            return 0;
        }
        let mut bytes = 0;
        let count = self.rx.drain(max, |data, rest| {
            let frame = RxFrame { origin: RxOrigin::Ethernet, data, rest };
            bytes += frame.len() as u64;
            sink(&frame);
        });
        if count > 0 {
            self.counters.rx_frames += count as u64;
            self.counters.rx_bytes += bytes;
            self.counters.rx_calls += 1;
        }
        count
    }

    fn reap(&mut self) -> u64 {
        self.tx.reap()
    }

    fn recall(&mut self) {
        self.tx.recall();
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(payload: &[u8]) -> TxFrame<'_> {
        TxFrame {
            head: &[0; 62],
            udp_payload_at: 62,
            payload: payload.into(),
            tail: (&[7; 4]).into(),
            ticket: 0,
        }
    }

    #[test]
    fn addresses_follow_the_plane() {
        let cfg = LoopbackConfig::default();
        assert_eq!(cfg.address(3, 1).to_string(), "fd00:3::2");
        let cfg = LoopbackConfig { base_ips: ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse().unwrap()), ..cfg };
        assert_eq!(cfg.address(3, 0).to_string(), "10.0.3.1");
        let (a, b) = pair(2, cfg);
        assert_eq!(a[1].caps.mac.to_string(), "02:5d:00:00:01:01");
        assert_eq!(b[1].caps.mac.to_string(), "02:5d:00:00:01:02");
    }

    #[test]
    fn a_full_ring_takes_a_prefix() {
        let (mut a, mut b) = pair(1, LoopbackConfig { slots: 3, ..LoopbackConfig::default() });
        let (a, b) = (&mut a[0], &mut b[0]);
        assert_eq!(a.tx_room(0), 4);
        assert_eq!(a.tx_burst(0, &[frame(b"x"); 6]), 4);
        assert_eq!((a.tx_room(0), a.counters().tx_full), (0, 1));
        assert_eq!(b.rx_burst(0, 3, &mut |f| assert_eq!(f.data.len(), 67)), 3);
        assert_eq!(a.tx_room(0), 3);
    }

    #[test]
    fn long_frames_are_refused_and_counted() {
        let (mut a, mut b) = pair(1, LoopbackConfig { frame_max: 128, ..LoopbackConfig::default() });
        let long = [0; 63];
        assert_eq!(a[0].tx_burst(0, &[frame(&long), frame(b"ok")]), 2);
        let counters = a[0].counters();
        assert_eq!((counters.tx_oversize, counters.tx_dropped, counters.tx_frames), (1, 1, 1));
        assert_eq!(b[0].rx_burst(0, 9, &mut |f| assert_eq!(&f.data[62..64], b"ok")), 1);
    }

    #[test]
    fn a_pulled_cable_loses_what_is_sent_and_what_is_under_way() {
        let (mut a, mut b) = pair(2, LoopbackConfig::default());
        let cable = a[1].control();
        a[1].tx_burst(0, &[frame(b"under way")]);
        cable.set_up(false);
        assert_eq!(
            (a[1].link(), b[1].link(), a[0].link()),
            (LinkState::Down, LinkState::Down, LinkState::Up)
        );
        assert_eq!(a[1].tx_burst(0, &[frame(b"lost"); 3]), 3);
        assert_eq!(b[1].rx_burst(0, 9, &mut |_| panic!("lost")), 0);
        assert_eq!((a[1].counters().tx_dropped, b[1].counters().rx_dropped), (3, 1));
        cable.set_up(true);
        assert_eq!(b[1].link(), LinkState::Up);
        a[1].tx_burst(0, &[frame(b"back")]);
        assert_eq!(b[1].rx_burst(0, 9, &mut |f| assert_eq!(&f.data[62..66], b"back")), 1);
    }

    #[test]
    fn a_dropped_end_takes_the_link_down_after_its_last_frames() {
        let (mut a, mut b) = pair(1, LoopbackConfig::default());
        a[0].tx_burst(0, &[frame(b"last words")]);
        drop(a);
        assert_eq!(b[0].link(), LinkState::Down);
        assert_eq!(b[0].rx_burst(0, 9, &mut |_| ()), 1);
        assert_eq!(b[0].tx_burst(0, &[frame(b"nobody")]), 1);
        assert_eq!(b[0].counters().tx_dropped, 1);
    }
}
