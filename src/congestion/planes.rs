//! The congestion windows of a queue pair with one window per plane.
//!
//! Planes may be separate networks with different rates and delays, so each has its window and its round-trip time.
//! They may also share a bottleneck, where all of them together must not take more than one connection does. A window
//! therefore grows only in proportion to its share of all windows, or to an equal share if that is more. Together
//! they then grow like one window, as in MPTCP (RFC 6356).

use super::Flight;
use super::window::{Cut, Window};
use crate::time::Time;

/// A window for each plane.
#[derive(Clone, Debug)]
pub(super) struct Planes {
    windows: Vec<Window>,
    mtu: f64,
    /// The planes that have room for a full packet.
    room: u32,
    /// Those that are paced.
    paced: u32,
}

impl Planes {
    pub(super) fn new(mtu: u32) -> Self {
        Self { windows: Vec::new(), mtu: f64::from(mtu), room: u32::MAX, paced: 0 }
    }

    /// Creates windows for this number of planes in advance, so that no packet has to.
    pub(super) fn make_room(&mut self, planes: u8) {
        let planes = usize::from(planes).max(1);
        if self.windows.len() < planes {
            self.windows.reserve_exact(planes - self.windows.len());
            let mtu = self.mtu;
            self.windows.resize_with(planes, || Window::new(mtu));
            self.room = 0;
            self.note_all();
        }
    }

    #[inline]
    fn at(&mut self, plane: u8) -> Option<&mut Window> {
        if usize::from(plane) >= self.windows.len() {
            self.make_room(plane + 1);
        }
        self.windows.get_mut(usize::from(plane))
    }

    /// Records whether this plane has room and whether it is paced.
    #[inline]
    fn note(&mut self, plane: u8) {
        let Some(window) = self.windows.get(usize::from(plane)) else { return };
        let bit = 1_u32.checked_shl(plane.into()).unwrap_or(0);
        self.room = if window.has_room() { self.room | bit } else { self.room & !bit };
        self.paced = if window.is_paced() { self.paced | bit } else { self.paced & !bit };
    }

    #[inline]
    pub(super) fn on_send(&mut self, packet: &Flight) {
        if let Some(window) = self.at(packet.plane) {
            window.on_send(packet);
            self.note(packet.plane);
        }
    }

    #[inline]
    pub(super) fn on_arrival(&mut self, packet: &Flight, most: f64) {
        if let Some(window) = self.at(packet.plane) {
            window.on_arrival(packet, most);
            self.note(packet.plane);
        }
    }

    /// A packet leaves the network without information about congestion.
    pub(super) fn on_gone(&mut self, packet: &Flight) {
        if let Some(window) = self.at(packet.plane) {
            window.on_gone(packet.bytes);
            self.note(packet.plane);
        }
    }

    /// The windows start to limit the bytes in flight.
    pub(super) fn take_over(&mut self) {
        self.windows.iter_mut().for_each(Window::take_over);
        self.note_all();
    }

    /// Nothing is in flight.
    pub(super) fn clear(&mut self) {
        for window in &mut self.windows {
            window.inflight = 0;
        }
        self.note_all();
    }

    fn note_all(&mut self) {
        for plane in 0..self.windows.len() {
            self.note(plane as u8);
        }
    }

    /// A packet was lost: it was in flight until now, or its retransmission is.
    pub(super) fn on_loss(&mut self, now: Time, packet: &Flight, in_flight: bool) -> Option<Cut> {
        let window = self.at(packet.plane)?;
        if in_flight {
            window.on_gone(packet.bytes);
        }
        let cut = window.on_loss(now, packet);
        self.note(packet.plane);
        cut
    }

    /// Whether round trips on this plane take twice as long as the shortest one, so packets wait in queues.
    pub(super) fn queues(&self, plane: u8) -> bool {
        self.windows.get(usize::from(plane)).is_some_and(Window::queues)
    }

    pub(super) fn on_wrong_loss(&mut self, packet: &Flight) {
        if let Some(window) = self.at(packet.plane) {
            window.on_wrong_loss(packet);
            self.note(packet.plane);
        }
    }

    pub(super) fn on_sample(&mut self, now: Time, plane: u8, rtt_ns: u64, ecn: bool) {
        if let Some(window) = self.at(plane) {
            window.on_sample(now, rtt_ns, ecn);
        }
    }

    /// Ends rounds that are over. Windows grow up to `most` bytes. Calls `cut` for each window that was cut.
    pub(super) fn end_rounds(&mut self, now: Time, most: f64, mut cut: impl FnMut(u8, Cut, f64, f64)) {
        for plane in 0..self.windows.len() {
            if !self.windows[plane].round_is_over() {
                continue;
            }
            let share = self.share(plane);
            let window = &mut self.windows[plane];
            let before = window.cwnd;
            if let Some(reason) = window.end_round(now, share, most) {
                cut(plane as u8, reason, before, window.cwnd);
            }
            self.note(plane as u8);
        }
    }

    /// This plane's share of all windows, or an equal share if that is more. Planes without packets in flight do not
    /// count.
    fn share(&self, plane: usize) -> f64 {
        let used = self.windows.iter().enumerate().filter(|(at, window)| *at == plane || window.inflight > 0);
        let (count, sum) =
            used.fold((0.0, 0.0), |(count, sum), (_, window)| (count + 1.0, sum + window.cwnd));
        (self.windows[plane].cwnd / sum).max(1.0 / count)
    }

    /// The planes on which a full packet may leave now.
    #[inline]
    pub(super) fn open(&self, now: Time) -> u32 {
        if self.paced == 0 { self.room } else { self.open_if_paced(now) }
    }

    #[cold]
    fn open_if_paced(&self, now: Time) -> u32 {
        let mut open = self.room;
        for (plane, window) in self.windows.iter().enumerate() {
            if window.is_paced() && window.next_send > now {
                open &= !(1 << plane);
            }
        }
        open
    }

    /// Time at which a plane has room again that has none now only because its packets are paced.
    pub(super) fn opens_at(&self, now: Time) -> Time {
        let waits = |window: &&Window| window.is_paced() && window.has_room() && window.next_send > now;
        self.windows.iter().filter(waits).map(|window| window.next_send).min().unwrap_or(Time::NEVER)
    }

    /// A full packet, bytes.
    pub(super) const fn mtu(&self) -> f64 {
        self.mtu
    }

    /// Whether a packet of `bytes` fills the plane's window, or the window is below `least` bytes.
    #[inline]
    pub(super) fn is_filled_by(&self, plane: u8, bytes: u64, least: u64) -> bool {
        let window = self.windows.get(usize::from(plane));
        window.is_none_or(|window| {
            (window.inflight + bytes) as f64 + self.mtu > window.cwnd || window.cwnd < least as f64
        })
    }

    /// The smallest round-trip time on the plane where it is largest, ns.
    pub(super) fn base_ns(&self) -> u64 {
        self.windows.iter().map(Window::base_ns).max().unwrap_or(0)
    }

    /// All windows together, bytes.
    pub(super) fn cwnd(&self) -> f64 {
        self.windows.iter().map(|window| window.cwnd).sum()
    }
}
