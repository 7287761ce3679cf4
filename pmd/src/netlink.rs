//! What routing netlink (rtnetlink(7)) tells of a network namespace: interfaces, addresses, routes, and neighbours.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader,
    NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressMessage, AddressScope, CacheInfo,
};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteType, RouteVia,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage as Message};
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_ROUTE;

use crate::MacAddr;

/// Multicast groups of rtnetlink (linux/rtnetlink.h): links, neighbours, and routes of both families.
const EVENTS: [u32; 4] = [1, 3, 7, 11];

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its number, which it keeps when it is renamed.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its Ethernet address, if it has one.
    pub mac: Option<MacAddr>,
    /// Its MTU in bytes.
    pub mtu: usize,
    /// Whether it is a loopback interface.
    pub loopback: bool,
    /// Up, with carrier.
    pub running: bool,
    /// Whether it has a queueing discipline: without one, a full queue of the device may lose frames in silence.
    pub queues: bool,
}

/// An address of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Index of its interface.
    pub interface: u32,
    /// The address.
    pub ip: IpAddr,
    /// Bits of the network part.
    pub prefix_len: u8,
    /// Who can send to it.
    pub scope: Scope,
    /// Whether it can be used.
    pub state: AddressState,
}

impl Address {
    /// The scope id that a socket address needs: the interface of a link-local IPv6 address, else 0.
    pub fn scope_id(&self) -> u32 {
        match self.ip {
            IpAddr::V6(ip) if ip.is_unicast_link_local() => self.interface,
            _ => 0,
        }
    }
}

/// Who can send to an address (`rt_scope_t`), the widest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// Everybody.
    Universe,
    /// Its site.
    Site,
    /// Its link.
    Link,
    /// This host alone.
    Host,
}

/// How far duplicate address detection (RFC 4862, section 5.4) is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressState {
    /// The address can be used.
    Ready,
    /// Whether another host has the address is not known yet: it cannot be used.
    Tentative,
    /// Another host has the address: it cannot be used.
    Duplicate,
}

/// The kernel's route to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelRoute {
    /// Index of the interface that packets leave by.
    pub interface: u32,
    /// Whether the address is one of this host.
    pub local: bool,
}

/// A socket that asks.
pub struct Netlink {
    socket: Socket,
    sequence: u32,
}

/// A socket that is told.
pub struct Events {
    socket: Socket,
}

/// Something that has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An interface is as this tells.
    Link(Interface),
    /// The interface with this number is gone.
    LinkGone(u32),
    /// A neighbour on an interface has this address.
    Neighbour {
        /// The interface.
        interface: u32,
        /// Whose address.
        ip: IpAddr,
        /// The address.
        mac: MacAddr,
    },
    /// Ways to somewhere.
    Routes,
    /// More than the kernel could tell.
    Lost,
}

/// A request about an address that is alone in its prefix.
fn address_message(interface: u32, ip: Ipv6Addr) -> AddressMessage {
    let mut message = AddressMessage::default();
    (message.header.family, message.header.prefix_len) = (AddressFamily::Inet6, 128);
    message.header.index = interface;
    message.attributes.push(AddressAttribute::Address(IpAddr::V6(ip)));
    message
}

impl Netlink {
    /// Opens it in the network namespace of the calling thread.
    ///
    /// # Errors
    /// When the process has no more descriptors, or may not.
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        Ok(Self { socket, sequence: 0 })
    }

    /// All interfaces.
    pub fn interfaces(&mut self) -> io::Result<Vec<Interface>> {
        let answers = self.ask(NLM_F_DUMP, Message::GetLink(LinkMessage::default()))?;
        let links = answers.into_iter().filter_map(|answer| match answer {
            Message::NewLink(link) => Some(interface(&link)),
            _ => None,
        });
        Ok(links.collect())
    }

    /// The interface with a number, as it is now; `None` if it is gone.
    pub fn interface(&mut self, index: u32) -> io::Result<Option<Interface>> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        match self.ask(NLM_F_ACK, Message::GetLink(link)) {
            Ok(answers) => Ok(answers.iter().find_map(|answer| match answer {
                Message::NewLink(link) if link.header.index == index => Some(interface(link)),
                _ => None,
            })),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All addresses of this host.
    pub fn addresses(&mut self) -> io::Result<Vec<Address>> {
        let answers = self.ask(NLM_F_DUMP, Message::GetAddress(AddressMessage::default()))?;
        let addresses = answers.into_iter().filter_map(|answer| match answer {
            Message::NewAddress(message) => address(&message),
            _ => None,
        });
        Ok(addresses.collect())
    }

    /// Gives an interface an address for what is sent to it: the kernel never chooses it as a source, and asks nobody else for it. One that it
    /// has already stays.
    pub(crate) fn add_receiving_address(&mut self, interface: u32, ip: Ipv6Addr) -> io::Result<()> {
        let mut message = address_message(interface, ip);
        let mut lifetimes = CacheInfo::default();
        (lifetimes.ifa_preferred, lifetimes.ifa_valid) = (0, u32::MAX);
        message.attributes.push(AddressAttribute::CacheInfo(lifetimes));
        message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
        self.ask(flags, Message::NewAddress(message)).map(drop)
    }

    /// Takes an address from an interface.
    pub(crate) fn remove_address(&mut self, interface: u32, ip: Ipv6Addr) -> io::Result<()> {
        self.ask(NLM_F_ACK, Message::DelAddress(address_message(interface, ip))).map(drop)
    }

    /// The addresses of an interface that others can send to, those of the widest scope first.
    pub fn addresses_of(&mut self, interface: u32) -> io::Result<Vec<IpAddr>> {
        let mut all = self.addresses()?;
        all.retain(|address| {
            address.interface == interface
                && address.scope < Scope::Host
                && address.state == AddressState::Ready
        });
        all.sort_by_key(|address| (address.scope, address.ip.is_ipv4()));
        Ok(all.into_iter().map(|address| address.ip).collect())
    }

    /// The route of packets from one address to another, by a given interface or by any. `None`: there is none.
    pub fn route(
        &mut self,
        from: IpAddr,
        to: IpAddr,
        interface: Option<u32>,
    ) -> io::Result<Option<KernelRoute>> {
        let mut request = route_request(from, to, interface);
        if interface.is_some() {
            // Without a route by an interface that was asked for, IPv4 takes every address to be on its link
            // (`ip_route_output_key_hash_rcu`). A match in the routing tables is asked for first.
            request.header.flags = RouteFlags::FibMatch;
            if self.first_route(request.clone())?.is_none() {
                return Ok(None);
            }
            request.header.flags = RouteFlags::empty();
        }
        let Some(route) = self.first_route(request)? else { return Ok(None) };
        Ok(kernel_route(&route).filter(|found| interface.is_none_or(|wanted| wanted == found.interface)))
    }

    /// What the kernel answers to a request for a route; `None` if there is no route.
    fn first_route(&mut self, request: RouteMessage) -> io::Result<Option<RouteMessage>> {
        let answers = match self.ask(NLM_F_ACK, Message::GetRoute(request)) {
            Ok(answers) => answers,
            Err(error) if is_no_route(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(answers.into_iter().find_map(|answer| match answer {
            Message::NewRoute(route) => Some(route),
            _ => None,
        }))
    }

    /// The neighbour that packets to an address go to by an interface: the address itself, if that is on the link. `None`: there is no way.
    pub fn next_hop(&mut self, to: IpAddr, from: IpAddr, interface: u32) -> io::Result<Option<IpAddr>> {
        let route = self.first_route(route_request(from, to, Some(interface)))?;
        Ok(route.and_then(|route| hop_of(&route, to, interface)))
    }

    /// The Ethernet address of a neighbour, if the kernel knows it.
    pub fn neighbour(&mut self, ip: IpAddr, interface: u32) -> io::Result<Option<MacAddr>> {
        let message = neighbour_message(ip, interface);
        match self.ask(NLM_F_ACK, Message::GetNeighbour(message)) {
            Ok(answers) => Ok(answers.iter().find_map(|answer| match answer {
                Message::NewNeighbour(message) => known(message).map(|(_, mac)| mac),
                _ => None,
            })),
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Has the kernel find the Ethernet address of a neighbour out, or see whether it is still right.
    pub fn solicit(&mut self, ip: IpAddr, interface: u32) -> io::Result<()> {
        let mut message = neighbour_message(ip, interface);
        message.header.state = NeighbourState::None;
        message.header.flags = NeighbourFlags::Use;
        self.ask(NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE, Message::NewNeighbour(message)).map(|_| ())
    }

    fn ask(&mut self, flags: u16, message: Message) -> io::Result<Vec<Message>> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut request = NetlinkMessage::new(header, NetlinkPayload::from(message));
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        let mut answers = Vec::new();
        loop {
            let (bytes, _) = self.socket.recv_from_full()?;
            for answer in messages(&bytes) {
                // Of an earlier request that was given up.
                if answer.header.sequence_number != self.sequence {
                    continue;
                }
                match answer.payload {
                    NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
                    NetlinkPayload::Error(_) | NetlinkPayload::Done(_) => return Ok(answers),
                    NetlinkPayload::InnerMessage(message) => answers.push(message),
                    _ => {}
                }
            }
        }
    }
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Events {
    /// Opens it in the network namespace of the calling thread.
    ///
    /// # Errors
    /// When the process has no more descriptors, or may not.
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        for group in EVENTS {
            socket.add_membership(group)?;
        }
        socket.set_non_blocking(true)?;
        Ok(Self { socket })
    }

    /// What has changed since the last call.
    pub fn take(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        loop {
            match self.socket.recv_from_full() {
                Ok((bytes, _)) => events.extend(messages(&bytes).filter_map(event)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return events,
                Err(error) => {
                    events.push(Event::Lost);
                    // The kernel had no room for more of them. What comes next is whole.
                    if error.raw_os_error() != Some(libc::ENOBUFS) {
                        return events;
                    }
                }
            }
        }
    }
}

/// The messages in a datagram. What this crate cannot read is left out.
pub fn messages<T: NetlinkDeserializable>(mut bytes: &[u8]) -> impl Iterator<Item = NetlinkMessage<T>> {
    std::iter::from_fn(move || {
        loop {
            let len = u32::from_ne_bytes(*bytes.first_chunk::<4>()?) as usize;
            let message = bytes.get(..len).filter(|message| !message.is_empty())?;
            bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
            if let Ok(message) = NetlinkMessage::deserialize(message) {
                return Some(message);
            }
        }
    })
}

fn event(message: NetlinkMessage<Message>) -> Option<Event> {
    let NetlinkPayload::InnerMessage(message) = message.payload else { return None };
    match message {
        Message::NewLink(link) => Some(Event::Link(interface(&link))),
        Message::DelLink(link) => Some(Event::LinkGone(link.header.index)),
        Message::NewNeighbour(message) => {
            let interface = message.header.ifindex;
            known(&message).map(|(ip, mac)| Event::Neighbour { interface, ip, mac })
        }
        Message::NewRoute(_) | Message::DelRoute(_) => Some(Event::Routes),
        _ => None,
    }
}

fn interface(link: &LinkMessage) -> Interface {
    let mut this = Interface {
        index: link.header.index,
        name: String::new(),
        mac: None,
        mtu: 0,
        loopback: link.header.flags.contains(LinkFlags::Loopback),
        running: link.header.flags.contains(LinkFlags::Up | LinkFlags::Running),
        queues: false,
    };
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => this.name.clone_from(name),
            LinkAttribute::Address(bytes) => this.mac = bytes[..].try_into().ok().map(MacAddr),
            LinkAttribute::Mtu(mtu) => this.mtu = *mtu as usize,
            LinkAttribute::Qdisc(name) => this.queues = !matches!(&name[..], "noqueue" | "noop"),
            _ => {}
        }
    }
    this
}

fn address(message: &AddressMessage) -> Option<Address> {
    let mut local = None;
    let mut flags = AddressFlags::from_bits_retain(u32::from(message.header.flags.bits()));
    for attribute in &message.attributes {
        match attribute {
            // Where the link has two ends, `Address` is that of the other.
            AddressAttribute::Local(ip) => local = Some(*ip),
            AddressAttribute::Address(ip) => local = local.or(Some(*ip)),
            AddressAttribute::Flags(all) => flags = *all,
            _ => {}
        }
    }
    let state = if flags.contains(AddressFlags::Dadfailed) {
        AddressState::Duplicate
    } else if flags.contains(AddressFlags::Tentative) && !flags.contains(AddressFlags::Optimistic) {
        AddressState::Tentative
    } else {
        AddressState::Ready
    };
    let scope = match message.header.scope {
        AddressScope::Universe => Scope::Universe,
        AddressScope::Site => Scope::Site,
        AddressScope::Link => Scope::Link,
        _ => Scope::Host,
    };
    let AddressMessage { header, .. } = message;
    local.map(|ip| Address { interface: header.index, ip, prefix_len: header.prefix_len, scope, state })
}

fn route_request(from: IpAddr, to: IpAddr, interface: Option<u32>) -> RouteMessage {
    let mut route = RouteMessage::default();
    route.header.address_family = family(to);
    route.header.destination_prefix_length = bits(to);
    route.attributes = vec![RouteAttribute::Destination(to.into())];
    route.attributes.extend(interface.map(RouteAttribute::Oif));
    // A packet inside an IPv6 packet may come from an address of the other family.
    if to.is_ipv4() == from.is_ipv4() {
        route.header.source_prefix_length = bits(from);
        route.attributes.push(RouteAttribute::Source(from.into()));
    }
    route
}

/// A route that leads somewhere.
fn kernel_route(route: &RouteMessage) -> Option<KernelRoute> {
    let local = match route.header.kind {
        RouteType::Unicast => false,
        RouteType::Local => true,
        _ => return None,
    };
    let oif = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Oif(oif) => Some(*oif),
        _ => None,
    });
    oif.map(|interface| KernelRoute { interface, local })
}

/// Where a route leads, if by this interface and to somebody else.
fn hop_of(route: &RouteMessage, to: IpAddr, interface: u32) -> Option<IpAddr> {
    if route.header.kind != RouteType::Unicast {
        return None;
    }
    let mut hop = to;
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Oif(oif) if *oif != interface => return None,
            RouteAttribute::Gateway(RouteAddress::Inet(ip)) | RouteAttribute::Via(RouteVia::Inet(ip)) => {
                hop = (*ip).into();
            }
            RouteAttribute::Gateway(RouteAddress::Inet6(ip)) | RouteAttribute::Via(RouteVia::Inet6(ip)) => {
                hop = (*ip).into();
            }
            _ => {}
        }
    }
    Some(hop)
}

fn neighbour_message(ip: IpAddr, interface: u32) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = family(ip);
    message.header.ifindex = interface;
    message.attributes = vec![NeighbourAttribute::Destination(match ip {
        IpAddr::V4(ip) => NeighbourAddress::Inet(ip),
        IpAddr::V6(ip) => NeighbourAddress::Inet6(ip),
    })];
    message
}

/// Whose Ethernet address a message tells.
fn known(message: &NeighbourMessage) -> Option<(IpAddr, MacAddr)> {
    // The entry of one who does not answer may still have its last address.
    if matches!(
        message.header.state,
        NeighbourState::Incomplete | NeighbourState::Failed | NeighbourState::None
    ) {
        return None;
    }
    let (mut ip, mut mac) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(to)) => ip = Some(IpAddr::V4(*to)),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(to)) => ip = Some(IpAddr::V6(*to)),
            NeighbourAttribute::LinkLayerAddress(bytes) => mac = bytes[..].try_into().ok().map(MacAddr),
            _ => {}
        }
    }
    ip.zip(mac)
}

fn family(ip: IpAddr) -> AddressFamily {
    if ip.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

/// Bits of an address.
fn bits(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

fn is_no_route(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EINVAL | libc::ESRCH))
}

/// The names of interfaces, for people.
pub fn names(interfaces: &[Interface]) -> String {
    let names: BTreeSet<&str> = interfaces.iter().map(|interface| &interface.name[..]).collect();
    names.into_iter().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
#[allow(clippy::print_stderr, reason = "tests")]
mod tests {
    use super::*;

    /// A message as the kernel sends it.
    fn bytes_of(message: Message) -> Vec<u8> {
        let mut message = NetlinkMessage::new(NetlinkHeader::default(), NetlinkPayload::from(message));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len().next_multiple_of(4)];
        message.serialize(&mut bytes);
        bytes
    }

    fn link(index: u32, flags: LinkFlags) -> Message {
        let mut link = LinkMessage::default();
        (link.header.index, link.header.flags) = (index, flags);
        link.attributes = vec![
            LinkAttribute::IfName("eth1".to_owned()),
            LinkAttribute::Mtu(9000),
            LinkAttribute::Qdisc("mq".to_owned()),
            LinkAttribute::Address(vec![2, 0, 0, 0, 0, 1]),
        ];
        Message::NewLink(link)
    }

    fn neighbour(state: NeighbourState) -> Message {
        let mut message = neighbour_message(IpAddr::from([10, 0, 0, 9]), 5);
        message.header.state = state;
        message.attributes.push(NeighbourAttribute::LinkLayerAddress(vec![2, 0, 0, 0, 0, 9]));
        Message::NewNeighbour(message)
    }

    fn events_in(bytes: &[u8]) -> Vec<Event> {
        messages(bytes).filter_map(event).collect()
    }

    #[test]
    fn messages_are_told_apart() {
        let both = LinkFlags::Up | LinkFlags::Running;
        let mut bytes = bytes_of(link(4, both));
        bytes.extend(bytes_of(neighbour(NeighbourState::Stale)));
        bytes.extend(bytes_of(neighbour(NeighbourState::Failed)));
        bytes.extend(bytes_of(neighbour(NeighbourState::Incomplete)));
        bytes.extend(bytes_of(Message::DelRoute(RouteMessage::default())));
        bytes.extend(bytes_of(link(4, LinkFlags::Up)));
        let mac = Some(MacAddr([2, 0, 0, 0, 0, 1]));
        let eth1 = Interface {
            index: 4,
            name: "eth1".to_owned(),
            mac,
            mtu: 9000,
            loopback: false,
            running: true,
            queues: true,
        };
        let known = Event::Neighbour {
            interface: 5,
            ip: IpAddr::from([10, 0, 0, 9]),
            mac: MacAddr([2, 0, 0, 0, 0, 9]),
        };
        let down = Interface { running: false, ..eth1.clone() };
        assert_eq!(events_in(&bytes), [Event::Link(eth1), known, Event::Routes, Event::Link(down)]);
    }

    /// What does not fit ends a datagram, what nobody knows is left out, and nothing panics.
    #[test]
    fn odd_messages_are_left_out() {
        let good = bytes_of(neighbour(NeighbourState::Reachable));
        for len in 0..good.len() {
            assert_eq!(events_in(&good[..len]), [], "{len}");
        }
        let mut odd = good.clone();
        // Its type.
        odd[4] = 0xff;
        odd.extend(&good);
        assert_eq!(events_in(&odd).len(), 1);
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut changed = good.clone();
                changed[at] ^= 1 << bit;
                events_in(&changed);
            }
        }
        // A length of 0 is no way to go on for ever.
        assert_eq!(events_in(&[0; 32]), []);
    }

    #[test]
    fn routes_to_others_by_the_interface_are_ways() {
        let to = IpAddr::from([10, 0, 0, 5]);
        let hop = |kind, attributes: &[RouteAttribute]| {
            let mut route = RouteMessage::default();
            route.header.kind = kind;
            route.attributes = attributes.to_vec();
            hop_of(&route, to, 4)
        };
        let by = RouteAttribute::Oif(4);
        let gateway = |ip: IpAddr| RouteAttribute::Gateway(ip.into());
        let other = IpAddr::from([0xfe80, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(hop(RouteType::Unicast, std::slice::from_ref(&by)), Some(to));
        assert_eq!(hop(RouteType::Unicast, &[by.clone(), gateway(other)]), Some(other));
        assert_eq!(hop(RouteType::Unicast, &[RouteAttribute::Oif(5), gateway(other)]), None);
        assert_eq!(hop(RouteType::Local, std::slice::from_ref(&by)), None);
        assert_eq!(hop(RouteType::BlackHole, &[by]), None);
        let via = RouteAttribute::Via(RouteVia::Inet6([0xfe80, 0, 0, 0, 0, 0, 0, 2].into()));
        assert_eq!(hop(RouteType::Unicast, &[via]), Some([0xfe80, 0, 0, 0, 0, 0, 0, 2].into()));
    }

    /// The one interface that every machine has.
    #[test]
    fn the_kernel_answers() {
        let mut netlink = match Netlink::open() {
            Ok(netlink) => netlink,
            Err(error) => return eprintln!("skipped: {error}"),
        };
        let all = netlink.interfaces().unwrap();
        let lo = all.iter().find(|interface| interface.name == "lo").unwrap();
        assert_eq!(netlink.interface(lo.index).unwrap().as_ref(), Some(lo));
        assert_eq!(netlink.interface(0x00ff_ffff).unwrap(), None);
        assert!(netlink.next_hop([127, 0, 0, 1].into(), [127, 0, 0, 1].into(), lo.index).unwrap().is_none());
        assert_eq!(netlink.neighbour([127, 9, 9, 9].into(), lo.index).unwrap(), None);
        assert!(names(&all).contains("lo"));
    }
}
