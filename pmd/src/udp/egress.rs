//! How datagrams leave this host: by which interface, and up to which length. The kernel knows, and it may change.

use std::io;
use std::net::{IpAddr, UdpSocket};
use std::time::{Duration, Instant};

use super::config::{FRAME_MAX, MTU_MIN, UdpConfig, UdpError};
use super::socket::{allow_fragments, forbid_fragments, known_addresses};
use crate::route::{LocalAddress, PathProbe, PeerRoute, bind_to_interface, local_address, local_addresses};
use crate::{ETHERNET_LEN, Medium, device};

/// How often the MTU of a path is looked at that has become too small.
const MTU_POLL: Duration = Duration::from_secs(1);
/// MTU of an address that no interface lists.
const USUAL_MTU: usize = 1500;

/// The local address of a port and the way out from there.
#[derive(Debug)]
pub(crate) struct Egress {
    ip: IpAddr,
    peer: Option<IpAddr>,
    /// What the kernel has of the address: nothing if it is local by a route alone.
    local: Option<LocalAddress>,
    /// To the peer.
    route: Option<PeerRoute>,
    /// What the kernel is asked with later.
    probe: Option<PathProbe>,
    /// Why the sockets could not be bound to the interface.
    unbound: Option<io::Error>,
    /// Longer IP packets are sent as fragments: the path has come to take less than the port does.
    shrunk: Option<Shrunk>,
}

#[derive(Debug)]
struct Shrunk {
    mtu: usize,
    /// The peer whose path it is.
    to: IpAddr,
    looked: Instant,
}

impl Egress {
    /// Finds the address, and the route to the peer if there is one.
    pub(crate) fn find(ip: IpAddr, interface: Option<&str>, peer: Option<IpAddr>) -> Result<Self, UdpError> {
        let local = local_address(ip, interface).map_err(UdpError::io("list the addresses of this host"))?;
        if let (None, Some(interface)) = (&local, interface) {
            let (interface, known) = (interface.to_owned(), known_addresses());
            return Err(UdpError::NotOn { address: ip, interface, known });
        }
        if let Some(local) = &local {
            local.check()?;
        }
        let mut route = None;
        if let Some((local, peer)) = local.as_ref().zip(peer) {
            let found = local.route_to(peer).map_err(UdpError::io("ask for the route to the peer"))?;
            route = Some(found.ok_or(UdpError::NoRoute { address: ip, peer })?);
        }
        let bind = route.as_ref().is_some_and(|route| route.bind);
        // Without it, the path is taken to stay as it is.
        let probe = local.as_ref().and_then(|local| local.path_probe(bind).ok());
        Ok(Self { ip, peer, local, route, probe, unbound: None, shrunk: None })
    }

    /// Scope id of the address, for sockets.
    pub(crate) fn scope_id(&self) -> u32 {
        self.local.as_ref().map_or(0, |local| local.scope_id)
    }

    /// The interface whose carrier is the port's: the one that has the address.
    pub(super) fn interface(&self) -> Option<u32> {
        self.local.as_ref().map(|local| local.interface.index)
    }

    /// The interface of the address, for people.
    pub(super) fn name(&self) -> &str {
        self.local.as_ref().map_or("?", |local| &local.interface.name)
    }

    /// Has a socket send by the interface of the address alone, where that has a route to the peer: the routing table may prefer
    /// another.
    pub(crate) fn bind(&mut self, socket: &UdpSocket) {
        if let Some(interface) = self.bound_to()
            && let Err(error) = bind_to_interface(socket, interface)
        {
            self.unbound = Some(error);
        }
    }

    /// The interface that sockets are bound to.
    pub(super) fn bound_to(&self) -> Option<u32> {
        self.route.as_ref().filter(|route| route.bind).map(|route| route.interface.index)
    }

    /// What frames travel over.
    pub(super) fn medium(&self, socket: &UdpSocket) -> Medium {
        match (&self.route, &self.local) {
            (Some(route), _) => route.medium,
            (None, Some(local)) if self.is_on_loopback(local) => Medium::Network { rate_bps: None },
            (None, Some(local)) => device::medium(socket, &local.interface.name),
            (None, None) => Medium::Network { rate_bps: None },
        }
    }

    /// Whether the loopback interface has an address that others can send to.
    fn is_on_loopback(&self, local: &LocalAddress) -> bool {
        local.interface.loopback && !self.ip.is_loopback()
    }

    /// Longest frame: what the path or the interface carries, or the setting says.
    pub(super) fn frame_limit(&self, cfg: &UdpConfig, notes: &mut Vec<String>) -> Result<usize, UdpError> {
        let (limit, of) = self.mtu(notes);
        if let Some(error) = &self.unbound {
            notes.push(format!(
                "packets leave as the routing table says, since sockets cannot be bound to {} ({error})",
                self.name()
            ));
        }
        if let Some(asked) = cfg.mtu {
            if asked < MTU_MIN || asked > limit {
                return Err(UdpError::Mtu { asked, limit, of });
            }
            return Ok((ETHERNET_LEN + asked).min(FRAME_MAX));
        }
        if ETHERNET_LEN + limit > FRAME_MAX {
            notes.push(format!("the MTU of {of} is {limit}: frames are kept to {FRAME_MAX} bytes"));
        }
        Ok((ETHERNET_LEN + limit).min(FRAME_MAX))
    }

    /// The MTU that counts, and whose it is.
    fn mtu(&self, notes: &mut Vec<String>) -> (usize, String) {
        let ip = self.ip;
        if let Some((route, peer)) = self.route.as_ref().zip(self.peer) {
            let PeerRoute { interface, mtu, .. } = route;
            if *mtu < interface.mtu {
                notes.push(format!(
                    "the path to {peer} takes {mtu} bytes, and the MTU of {} is {}",
                    interface.name, interface.mtu
                ));
                return (*mtu, format!("the path to {peer}"));
            }
            return (*mtu, interface.name.clone());
        }
        match &self.local {
            None => {
                notes.push(format!("no interface lists {ip}: an MTU of {USUAL_MTU} is assumed"));
                (USUAL_MTU, format!("the interface of {ip}"))
            }
            Some(local) if self.is_on_loopback(local) => {
                let (mtu, of) = smallest_mtu();
                notes.push(format!(
                    "{ip} is on {}, and frames leave by other interfaces: the MTU of {of} is taken, {mtu}",
                    self.name()
                ));
                (mtu, of)
            }
            Some(local) => (local.interface.mtu, local.interface.name.clone()),
        }
    }

    /// Whether an IP packet of this length goes as fragments.
    pub(super) fn fragments(&self, ip_len: usize) -> bool {
        self.shrunk.as_ref().is_some_and(|shrunk| ip_len > shrunk.mtu)
    }

    /// Whether sockets may fragment, since the path of a peer has shrunk.
    pub(super) fn is_shrunk(&self) -> bool {
        self.shrunk.is_some()
    }

    /// The kernel refused a frame as too long that the port takes. Where the path to `to` has shrunk below that, the kernel may
    /// fragment from now on, since packets that have numbers cannot be cut anew. Returns a note, or `None` if that is not it.
    #[expect(clippy::disallowed_methods, reason = "paths change with time, whatever time the driver keeps")]
    pub(super) fn shrink(&mut self, to: IpAddr, senders: &[UdpSocket], max_frame: usize) -> Option<String> {
        let mtu = self.path_mtu(to)?;
        if ETHERNET_LEN + mtu >= max_frame || self.shrunk.as_ref().is_some_and(|known| known.mtu == mtu) {
            return None;
        }
        senders.iter().try_for_each(|socket| allow_fragments(socket, to.is_ipv4())).ok()?;
        self.shrunk = Some(Shrunk { mtu, to, looked: Instant::now() });
        Some(note_of(to, mtu, max_frame))
    }

    /// Looks at a path that has shrunk. Returns a note if it has changed.
    pub(super) fn look(&mut self, now: Instant, senders: &[UdpSocket], max_frame: usize) -> Option<String> {
        let shrunk = self.shrunk.as_mut().filter(|known| now.duration_since(known.looked) >= MTU_POLL)?;
        shrunk.looked = now;
        let (to, before) = (shrunk.to, shrunk.mtu);
        let mtu = self.path_mtu(to)?;
        if ETHERNET_LEN + mtu < max_frame {
            self.shrunk.as_mut()?.mtu = mtu;
            return (mtu != before).then(|| note_of(to, mtu, max_frame));
        }
        senders.iter().try_for_each(|socket| forbid_fragments(socket, to.is_ipv4())).ok()?;
        self.shrunk = None;
        Some(format!("the path to {to} takes {mtu} bytes again: no more fragments"))
    }

    fn path_mtu(&self, to: IpAddr) -> Option<usize> {
        self.probe.as_ref()?.mtu_to(to).ok()?
    }
}

fn note_of(to: IpAddr, mtu: usize, max_frame: usize) -> String {
    format!(
        "the path to {to} has come to take {mtu} bytes: the kernel sends longer packets, of up to {}, in fragments",
        max_frame - ETHERNET_LEN
    )
}

/// The least MTU of the interfaces that reach other hosts, and the interface.
fn smallest_mtu() -> (usize, String) {
    let all = local_addresses().unwrap_or_default().into_iter().map(|local| local.interface);
    let least = all.filter(|interface| interface.running && !interface.loopback).min_by_key(|i| i.mtu);
    least.map_or((USUAL_MTU, "Ethernet".to_owned()), |interface| (interface.mtu, interface.name))
}
