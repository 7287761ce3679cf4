//! The Ethernet addresses that packets go to, for ports that bypass the kernel on an interface that stays the kernel's.
//!
//! Both tables are the kernel's. Its routes give the next hop. Its neighbour discovery (ARP, or RFC 4861) finds the next hop's Ethernet
//! address, and goes on to reply to requests for ours. [`Neighbours`] keeps the results, so that a packet costs no system call.
//!
//! The kernel's [`Events`](crate::netlink::Events) go to [`Neighbours::note`]: changed routes and addresses are then used from the next
//! packet on. [`SharedInterface`](crate::shared_interface::SharedInterface) does that for a port. The kernel does not see these packets,
//! so it would let the neighbour's entry expire. [`Neighbours::refresh`] therefore has it probe each neighbour in use, once in ten seconds.
//!
//! ```no_run
//! use spindrift_pmd::neighbours::Neighbours;
//! use spindrift_pmd::netlink::Events;
//!
//! # fn main() -> std::io::Result<()> {
//! let (interface, local) = (2, "10.0.0.1".parse().unwrap());
//! let mut events = Events::open()?;
//! let mut neighbours = Neighbours::of_interface(interface, local)?;
//! # let now_ns = 0;
//! for event in events.take() {
//!     neighbours.note(&event);
//! }
//! neighbours.refresh(now_ns);
//! match neighbours.mac_of("10.0.0.2".parse().unwrap(), now_ns) {
//!     Some(mac) => println!("to {mac}"),
//!     None => println!("the kernel is looking for it: drop the packet"),
//! }
//! # Ok(())
//! # }
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::ops::Bound;

use crate::MacAddr;
use crate::netlink::{Event, Interface, Netlink};

/// How long the kernel is left alone after it did not know a way or an address.
const RETRY_NS: u64 = 20_000_000;
/// How often the kernel is told that a neighbour is in use, for each of them. It asks the neighbour again if it has not heard of it for a
/// while.
const REFRESH_NS: u64 = 10_000_000_000;
/// Addresses in front of all others, a power of two.
const FRONT: usize = 512;
/// Destinations that are kept. When there are more, all are asked for again.
const MOST: usize = 1 << 16;

/// A routing table and a neighbour table: the kernel's, or a test's.
pub trait Kernel {
    /// The next hop on the way to an address: the address itself if it is on the link. `None`: there is no route.
    ///
    /// # Errors
    /// When the kernel does not say.
    fn next_hop(&mut self, to: IpAddr) -> io::Result<Option<IpAddr>>;
    /// The Ethernet address of a neighbour, if it is known.
    ///
    /// # Errors
    /// When the kernel does not say.
    fn neighbour(&mut self, ip: IpAddr) -> io::Result<Option<MacAddr>>;
    /// Starts neighbour discovery for a neighbour, or a probe of one that is known.
    ///
    /// # Errors
    /// When the kernel cannot.
    fn solicit(&mut self, ip: IpAddr) -> io::Result<()>;
}

/// The kernel's tables, for packets that leave from one local address by one interface.
pub struct OfInterface {
    netlink: Netlink,
    interface: u32,
    from: IpAddr,
}

impl OfInterface {
    /// The index of the interface.
    pub fn index(&self) -> u32 {
        self.interface
    }

    /// The interface as it is now; `None` if it has gone.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn interface(&mut self) -> io::Result<Option<Interface>> {
        self.netlink.interface(self.interface)
    }
}

impl fmt::Debug for OfInterface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { netlink: _, interface, from } = self;
        f.debug_struct("OfInterface")
            .field("interface", interface)
            .field("from", from)
            .finish_non_exhaustive()
    }
}

impl Kernel for OfInterface {
    fn next_hop(&mut self, to: IpAddr) -> io::Result<Option<IpAddr>> {
        self.netlink.next_hop(to, self.from, self.interface)
    }
    fn neighbour(&mut self, ip: IpAddr) -> io::Result<Option<MacAddr>> {
        self.netlink.neighbour(ip, self.interface)
    }
    fn solicit(&mut self, ip: IpAddr) -> io::Result<()> {
        self.netlink.solicit(ip, self.interface)
    }
}

/// Ethernet addresses by destination. See the [module](self).
#[derive(Debug)]
pub struct Neighbours<K> {
    kernel: K,
    /// The last destinations, each in one place.
    front: Vec<Option<(IpAddr, MacAddr)>>,
    ways: BTreeMap<IpAddr, Way>,
    hops: BTreeMap<IpAddr, Hop>,
    refresh_at: u64,
    /// The neighbour that was the last one to be refreshed.
    refreshed: Option<IpAddr>,
}

/// The next neighbour on the way to a destination, or since when there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    By(IpAddr),
    NoneSince(u64),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Hop {
    mac: Option<MacAddr>,
    /// When the kernel was asked last.
    asked_at: Option<u64>,
    /// It may have changed without our knowing.
    doubtful: bool,
}

impl Neighbours<OfInterface> {
    /// Neighbours on the interface with this index (see [`netlink`](crate::netlink)), in the network namespace of the calling thread,
    /// for packets from `from`.
    ///
    /// # Errors
    /// When there is no netlink socket.
    pub fn of_interface(interface: u32, from: IpAddr) -> io::Result<Self> {
        Ok(Self::new(OfInterface { netlink: Netlink::open()?, interface, from }))
    }
}

impl<K: Kernel> Neighbours<K> {
    /// Neighbours in these tables.
    pub fn new(kernel: K) -> Self {
        let front = vec![None; FRONT];
        let (ways, hops) = (BTreeMap::new(), BTreeMap::new());
        Self { kernel, front, ways, hops, refresh_at: 0, refreshed: None }
    }

    /// The tables.
    pub fn kernel(&mut self) -> &mut K {
        &mut self.kernel
    }

    /// The Ethernet address that packets to an address go to. `None`: there is no route, or neighbour discovery has just been started.
    /// Either is looked up again after 20 ms, if it is asked for.
    #[inline]
    pub fn mac_of(&mut self, to: IpAddr, now_ns: u64) -> Option<MacAddr> {
        match self.front.get(place(to)) {
            Some(&Some((ip, mac))) if ip == to => Some(mac),
            _ => self.look_up(to, now_ns),
        }
    }

    #[cold]
    fn look_up(&mut self, to: IpAddr, now_ns: u64) -> Option<MacAddr> {
        let hop = match self.ways.get(&to) {
            Some(&Way::By(hop)) => hop,
            Some(&Way::NoneSince(since)) if now_ns.saturating_sub(since) < RETRY_NS => return None,
            _ => self.find_way(to, now_ns)?,
        };
        let mac = self.find_mac(hop, now_ns)?;
        if let Some(place) = self.front.get_mut(place(to)) {
            *place = Some((to, mac));
        }
        Some(mac)
    }

    fn find_way(&mut self, to: IpAddr, now_ns: u64) -> Option<IpAddr> {
        if self.ways.len() >= MOST {
            self.ways.clear();
        }
        let hop = self.kernel.next_hop(to).ok().flatten();
        self.ways.insert(to, hop.map_or(Way::NoneSince(now_ns), Way::By));
        hop
    }

    fn find_mac(&mut self, hop: IpAddr, now_ns: u64) -> Option<MacAddr> {
        if self.hops.len() >= MOST {
            self.hops.clear();
        }
        let entry = self.hops.entry(hop).or_default();
        let early = entry.asked_at.is_some_and(|at| now_ns.saturating_sub(at) < RETRY_NS);
        if early || (entry.mac.is_some() && !entry.doubtful) {
            return entry.mac;
        }
        entry.asked_at = Some(now_ns);
        entry.doubtful = false;
        match self.kernel.neighbour(hop).ok().flatten() {
            Some(mac) => entry.mac = Some(mac),
            // An address that the kernel no longer knows stays what it was. If the kernel cannot ask, the next try may go better.
            None => drop(self.kernel.solicit(hop)),
        }
        entry.mac
    }

    /// Takes note of what has changed. Events of neighbours have to be those of the interface; other interfaces may use the same addresses.
    pub fn note(&mut self, event: &Event) {
        match *event {
            Event::Neighbour { ip, mac, .. } => {
                // Only those that packets go to.
                if let Some(hop) = self.hops.get_mut(&ip).filter(|hop| hop.mac != Some(mac)) {
                    hop.mac = Some(mac);
                    self.front.fill(None);
                }
            }
            Event::Routes => self.forget_ways(),
            Event::Lost => {
                self.forget_ways();
                self.hops.values_mut().for_each(|hop| hop.doubtful = true);
            }
            Event::Link(_) | Event::LinkGone(_) => {}
        }
    }

    fn forget_ways(&mut self) {
        self.ways.clear();
        self.front.fill(None);
    }

    /// Has the kernel probe a neighbour in use, if one is due: each once in ten seconds, spread over that time. Cheap enough for each poll.
    pub fn refresh(&mut self, now_ns: u64) {
        if now_ns < self.refresh_at {
            return;
        }
        let pause = REFRESH_NS / (self.hops.len() as u64).max(1);
        self.refresh_at = now_ns.saturating_add(pause);
        let behind = self.refreshed.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.hops.range((behind, Bound::Unbounded)).next().or_else(|| self.hops.iter().next());
        self.refreshed = next.map(|(&ip, _)| ip);
        if let Some(hop) = self.refreshed {
            // A permanent entry stays as it is; if the kernel cannot, there is another time.
            drop(self.kernel.solicit(hop));
        }
    }
}

/// A place in front. Destinations next to each other have different ones.
fn place(ip: IpAddr) -> usize {
    let bits = match ip {
        IpAddr::V4(ip) => u128::from(ip.to_bits()),
        IpAddr::V6(ip) => ip.to_bits(),
    };
    let bits = (bits as u64) ^ ((bits >> 64) as u64);
    (bits.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as usize % FRONT
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel that knows what it is told, and what it was asked.
    #[derive(Default)]
    struct Fake {
        ways: BTreeMap<IpAddr, IpAddr>,
        macs: BTreeMap<IpAddr, MacAddr>,
        asked: Vec<(char, IpAddr)>,
        broken: bool,
    }

    impl Fake {
        fn answer<T>(&mut self, kind: char, ip: IpAddr, answer: T) -> io::Result<T> {
            self.asked.push((kind, ip));
            if self.broken { Err(io::ErrorKind::Other.into()) } else { Ok(answer) }
        }
    }

    impl Kernel for Fake {
        fn next_hop(&mut self, to: IpAddr) -> io::Result<Option<IpAddr>> {
            let way = self.ways.get(&to).copied();
            self.answer('w', to, way)
        }
        fn neighbour(&mut self, ip: IpAddr) -> io::Result<Option<MacAddr>> {
            let mac = self.macs.get(&ip).copied();
            self.answer('n', ip, mac)
        }
        fn solicit(&mut self, ip: IpAddr) -> io::Result<()> {
            self.answer('s', ip, ())
        }
    }

    fn ip(last: u16) -> IpAddr {
        IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, last])
    }

    fn mac(last: u8) -> MacAddr {
        MacAddr([2, 0, 0, 0, 0, last])
    }

    /// Address 1 by neighbour 9, whose Ethernet address is 9.
    fn known() -> Neighbours<Fake> {
        let mut this = Neighbours::new(Fake::default());
        this.kernel.ways.insert(ip(1), ip(9));
        this.kernel.macs.insert(ip(9), mac(9));
        this
    }

    fn asked(of: &mut Neighbours<Fake>) -> Vec<(char, IpAddr)> {
        std::mem::take(&mut of.kernel.asked)
    }

    fn told(interface_ip: IpAddr, mac: MacAddr) -> Event {
        Event::Neighbour { interface: 1, ip: interface_ip, mac }
    }

    #[test]
    fn what_is_known_is_asked_once() {
        let mut all = known();
        for _ in 0..3 {
            assert_eq!(all.mac_of(ip(1), 0), Some(mac(9)));
        }
        assert_eq!(asked(&mut all), [('w', ip(1)), ('n', ip(9))]);
        // Another destination by the same neighbour.
        all.kernel.ways.insert(ip(2), ip(9));
        assert_eq!(all.mac_of(ip(2), 0), Some(mac(9)));
        assert_eq!(asked(&mut all), [('w', ip(2))]);
    }

    #[test]
    fn what_is_not_known_is_asked_again_but_not_at_once() {
        let mut all = Neighbours::new(Fake::default());
        assert_eq!((all.mac_of(ip(1), 5), all.mac_of(ip(1), 5 + RETRY_NS - 1)), (None, None));
        assert_eq!(asked(&mut all), [('w', ip(1))]);
        all.kernel.ways.insert(ip(1), ip(9));
        let now = 5 + RETRY_NS;
        assert_eq!((all.mac_of(ip(1), now), all.mac_of(ip(1), now + RETRY_NS - 1)), (None, None));
        assert_eq!(asked(&mut all), [('w', ip(1)), ('n', ip(9)), ('s', ip(9))]);
        // The kernel says so as soon as it knows.
        all.note(&told(ip(9), mac(9)));
        assert_eq!(all.mac_of(ip(1), now + 1), Some(mac(9)));
        assert_eq!(asked(&mut all), []);
    }

    #[test]
    fn changes_are_followed() {
        let mut all = known();
        assert_eq!(all.mac_of(ip(1), 0), Some(mac(9)));
        all.note(&told(ip(9), mac(8)));
        assert_eq!(all.mac_of(ip(1), 0), Some(mac(8)), "another Ethernet address");
        all.kernel.ways.insert(ip(1), ip(7));
        all.kernel.macs.insert(ip(7), mac(7));
        assert_eq!(all.mac_of(ip(1), 0), Some(mac(8)), "nobody has said so yet");
        all.note(&Event::Routes);
        assert_eq!(all.mac_of(ip(1), 0), Some(mac(7)), "another neighbour");
        all.note(&told(ip(3), mac(3)));
        assert_eq!(all.hops.len(), 2, "not of those that nothing is sent to");
    }

    #[test]
    fn lost_news_are_asked_for() {
        let mut all = known();
        assert_eq!(all.mac_of(ip(1), 0), Some(mac(9)));
        all.kernel.macs.insert(ip(9), mac(8));
        all.note(&Event::Lost);
        assert_eq!(all.mac_of(ip(1), RETRY_NS), Some(mac(8)));
        assert_eq!(asked(&mut all).last(), Some(&('n', ip(9))));
        all.note(&Event::Routes);
        assert_eq!(all.mac_of(ip(1), 3 * RETRY_NS), Some(mac(8)));
        assert_eq!(asked(&mut all), [('w', ip(1))], "asked once");
        // What the kernel has forgotten is not wrong for that.
        all.kernel.macs.clear();
        all.note(&Event::Lost);
        assert_eq!(all.mac_of(ip(1), 4 * RETRY_NS), Some(mac(8)));
        assert_eq!(asked(&mut all).last(), Some(&('s', ip(9))));
    }

    #[test]
    fn those_in_use_are_refreshed_one_at_a_time() {
        let mut all = known();
        all.kernel.ways.insert(ip(2), ip(8));
        all.kernel.macs.insert(ip(8), mac(8));
        all.refresh(0);
        assert_eq!((all.mac_of(ip(1), 0), all.mac_of(ip(2), 0)), (Some(mac(9)), Some(mac(8))));
        asked(&mut all);
        let mut now = REFRESH_NS - 1;
        all.refresh(now);
        assert_eq!(asked(&mut all), []);
        for hop in [8, 9, 8] {
            now += REFRESH_NS / 2 + 1;
            all.refresh(now);
            all.refresh(now);
            assert_eq!(asked(&mut all), [('s', ip(hop))]);
        }
    }

    #[test]
    fn a_kernel_that_does_not_answer_is_no_end() {
        let mut all = known();
        all.kernel.broken = true;
        assert_eq!(all.mac_of(ip(1), 0), None);
        all.refresh(0);
        all.note(&Event::Lost);
        all.kernel.broken = false;
        assert_eq!(all.mac_of(ip(1), RETRY_NS), Some(mac(9)));
    }

    #[test]
    fn memory_is_bounded() {
        let mut all = Neighbours::new(Fake::default());
        for to in 0..2 * MOST as u32 + 5 {
            let to = IpAddr::from(to.to_be_bytes());
            all.kernel.ways.insert(to, to);
            all.mac_of(to, 0);
        }
        assert!(all.ways.len() <= MOST && all.hops.len() <= MOST);
    }

    #[test]
    fn places_are_spread() {
        let taken = |all: &mut dyn Iterator<Item = IpAddr>| {
            all.map(place).collect::<std::collections::BTreeSet<_>>().len()
        };
        assert!(taken(&mut (0..256).map(ip)) > 150, "hosts of a network");
        let carrier = |n: u16| IpAddr::from([0xfcbb, 0xbb00, 0xa01, 0xb00 + n, 0x201, 0, 0, 0]);
        assert!(taken(&mut (0..256).map(carrier)) > 150, "paths to a host");
        assert!(taken(&mut (0..256_u32).map(|n| IpAddr::from((0x0a00_0000 + n).to_be_bytes()))) > 150);
    }
}
