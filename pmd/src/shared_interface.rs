//! An interface that a port shares with the kernel: packets of the port bypass the kernel, all else stays the kernel's.
//!
//! Such a port needs to know whether the link is up, and which Ethernet address a packet goes to. The kernel knows both, and reports
//! changes as events. [`SharedInterface`] reads the events and keeps what is known.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::neighbours::{Neighbours, OfInterface};
use crate::netlink::{Event, Events, Interface};
use crate::{ETHERNET_LEN, LinkState, MacAddr};

/// How often events are read.
const EVENTS_POLL: Duration = Duration::from_millis(1);

/// The link of an interface, and the Ethernet addresses of next hops on it. See the [module](self).
pub struct SharedInterface {
    neighbours: Neighbours<OfInterface>,
    events: Events,
    link: LinkState,
    events_at: Option<Instant>,
    state_at: Option<Instant>,
    state_poll: Duration,
}

impl SharedInterface {
    /// Watches an interface in the network namespace of the calling thread. Packets leave from the address `from`. Events can be lost, so
    /// the whole state is asked for as often as `state_poll` says.
    ///
    /// # Errors
    /// When there is no netlink socket.
    pub fn open(interface: &Interface, from: IpAddr, state_poll: Duration) -> io::Result<Self> {
        let events = Events::open()?;
        let neighbours = Neighbours::of_interface(interface.index, from)?;
        let link = state(interface.running);
        Ok(Self { neighbours, events, link, events_at: None, state_at: None, state_poll })
    }

    /// Whether the link is up. Reads events, at most once a millisecond: cheap enough for each poll.
    #[expect(
        clippy::disallowed_methods,
        reason = "the interface is polled by the clock, whatever time the driver keeps"
    )]
    pub fn link(&mut self) -> LinkState {
        let now = Instant::now();
        let due = |at: Option<Instant>, every| at.is_none_or(|at| now.duration_since(at) >= every);
        if !due(self.events_at, EVENTS_POLL) {
            return self.link;
        }
        self.events_at = Some(now);
        let interface = self.neighbours.kernel().index();
        let mut ask = due(self.state_at, self.state_poll);
        for event in self.events.take() {
            match &event {
                Event::Link(link) if link.index == interface => self.link = state(link.running),
                Event::LinkGone(index) if *index == interface => self.link = LinkState::Down,
                // Other interfaces may have neighbours with the same addresses.
                Event::Neighbour { interface: of, .. } if *of != interface => continue,
                Event::Lost => ask = true,
                _ => {}
            }
            self.neighbours.note(&event);
        }
        if ask {
            self.state_at = Some(now);
            if let Ok(link) = self.neighbours.kernel().interface() {
                self.link = state(link.is_some_and(|link| link.running));
            }
        }
        self.link
    }

    /// The link as [`link`](Self::link) last returned it.
    pub fn last_link(&self) -> LinkState {
        self.link
    }

    /// See [`Neighbours::mac_of`].
    #[inline]
    pub fn mac_of(&mut self, to: IpAddr, now_ns: u64) -> Option<MacAddr> {
        self.neighbours.mac_of(to, now_ns)
    }

    /// See [`Neighbours::refresh`].
    #[inline]
    pub fn refresh(&mut self, now_ns: u64) {
        self.neighbours.refresh(now_ns);
    }
}

impl fmt::Debug for SharedInterface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { neighbours, link, .. } = self;
        f.debug_struct("SharedInterface")
            .field("link", link)
            .field("neighbours", neighbours)
            .finish_non_exhaustive()
    }
}

/// The destination of the outermost IP header of a frame, of which the front is `head`: where [`SharedInterface::mac_of`] leads. `None` if
/// it is neither IPv4 nor IPv6.
#[inline]
pub fn destination(head: &[u8]) -> Option<IpAddr> {
    let (ethernet, ip) = head.split_first_chunk::<ETHERNET_LEN>()?;
    match ethernet {
        [.., 0x86, 0xdd] => ip.get(24..40)?.first_chunk::<16>().map(|&bytes| bytes.into()),
        [.., 0x08, 0x00] => ip.get(16..20)?.first_chunk::<4>().map(|&bytes| bytes.into()),
        _ => None,
    }
}

fn state(running: bool) -> LinkState {
    if running { LinkState::Up } else { LinkState::Down }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_destination_is_that_of_the_outermost_header() {
        let frame = |kind: [u8; 2], ip: &[u8]| [&[0; 12], &kind[..], ip].concat();
        let mut v6 = [0; 40];
        v6[24..].copy_from_slice(&[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
        assert_eq!(destination(&frame([0x86, 0xdd], &v6)), Some("fd00::7".parse().unwrap()));
        let mut v4 = [0; 20];
        v4[16..].copy_from_slice(&[10, 0, 0, 7]);
        assert_eq!(destination(&frame([0x08, 0x00], &v4)), Some("10.0.0.7".parse().unwrap()));
        assert_eq!(destination(&frame([0x08, 0x06], &v4)), None, "ARP");
        assert_eq!(destination(&frame([0x86, 0xdd], &v6[..39])), None, "cut short");
        assert_eq!(destination(&[0; 13]), None);
    }

    /// The loopback interface of this machine is there and up, whatever else is.
    #[test]
    fn a_link_is_read_at_once() {
        let mut netlink = crate::netlink::Netlink::open().unwrap();
        let Some(lo) = netlink.interfaces().unwrap().into_iter().find(|interface| interface.loopback) else {
            return;
        };
        let stale = Interface { running: !lo.running, ..lo.clone() };
        let mut shared =
            SharedInterface::open(&stale, [127, 0, 0, 1].into(), Duration::from_secs(1)).unwrap();
        assert_eq!(shared.last_link(), state(!lo.running));
        assert_eq!(shared.link(), state(lo.running));
        assert_eq!(shared.last_link(), state(lo.running));
    }
}
