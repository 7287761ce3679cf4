//! Routes to peers beyond what their addresses give: a next hop, and source-routed paths.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use spindrift_pmd::MacAddr;
use spindrift_srv6::EvProfile;

use crate::path::{EvSource, PathConfigError};
use crate::wire::stack::{Outer, StackError, StackTemplate};
use crate::wire::{EntropyMode, Ev};

use super::{ConfigError, EndpointConfig, LocalPort, PortAddr};

/// How packets from one local port travel to peers with certain addresses. If no route matches, they go unencapsulated
/// to the Ethernet address of the peer's port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Addresses of the peers. Of the matching routes of a port, the longest prefix is used.
    pub to: IpNet,
    /// The local port that packets leave by, counted from 0 as in [`EndpointConfig::ports`].
    pub port: u8,
    /// Ethernet address of the next hop. Default: that of the peer's port.
    pub next_hop: Option<MacAddr>,
    /// The outer packet that takes packets along the path of their entropy value. When queue pairs are connected, they
    /// then draw their entropy values from the path's profile (MRC paper, section 2.2). Default: none, switches choose
    /// the path by hashing.
    pub outer: Option<Outer>,
}

impl Route {
    /// A route to `to` from `port` without next hop and outer packet, as an exception to other routes.
    pub const fn new(to: IpNet, port: u8) -> Self {
        Self { to, port, next_hop: None, outer: None }
    }

    /// Why the route cannot work.
    fn check(&self, cfg: &EndpointConfig) -> Result<(), String> {
        let Some(port) = cfg.ports.get(usize::from(self.port)) else {
            return Err(format!("there is no such port, the last one is port {}", cfg.ports.len() - 1));
        };
        if self.to.addr().is_ipv6() != port.ip.is_ipv6() {
            return Err(format!("the addresses are not of the family of the port's, {}", port.ip));
        }
        if self.to.trunc() != self.to {
            return Err(format!("there are bits behind the prefix; write {}", self.to.trunc()));
        }
        if port.source_ports.is_some() && (self.next_hop.is_some() || self.outer.is_some()) {
            return Err(
                "the port is a set of kernel sockets: the kernel chooses next hop and headers".to_owned()
            );
        }
        let Some(outer) = &self.outer else { return Ok(()) };
        if outer.hop_limit == 0 {
            return Err("outer.hop_limit must be at least 1".to_owned());
        }
        let bits = outer.path.bits();
        if !carries(cfg.entropy, bits, port.ip.is_ipv6()) {
            return Err(format!(
                "outer.path takes the first {bits} bits of the entropy value, which packets do not carry: entropy must be \
                 `stev-sport-high` or `stev-sport-low`, and over IPv4 up to 16 bits are carried by the first one"
            ));
        }
        Ok(())
    }

    /// The entropy value itself if it has a path, and otherwise one that has.
    fn own(&self, ev: Ev) -> Ev {
        match &self.outer {
            Some(Outer { path, .. }) if path.check(ev.0).is_err() => {
                Ev(path.nth(u64::from(ev.0) % path.count()).unwrap_or_default())
            }
            _ => ev,
        }
    }
}

/// Whether the first `bits` bits of an entropy value are carried unchanged.
fn carries(mode: EntropyMode, bits: u32, v6: bool) -> bool {
    let all = Ev(!u32::MAX.checked_shr(bits).unwrap_or(0));
    mode.carried(all, v6) == all
}

/// The routes of an endpoint, indexed for lookup.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    by_prefix: BTreeMap<(u8, IpNet), Route>,
    /// Lengths of prefixes, longest first.
    lengths: Vec<u8>,
}

impl Routes {
    /// Fails if a route cannot work, or if two routes have the same port and prefix.
    pub(crate) fn new(cfg: &EndpointConfig) -> Result<Self, ConfigError> {
        let mut routes = Self::default();
        for (number, route) in (1..).zip(&cfg.routes) {
            let result = route.check(cfg).and_then(|()| {
                match routes.by_prefix.insert((route.port, route.to), route.clone()) {
                    None => Ok(()),
                    Some(_) => Err("there is one before it for the same addresses and port".to_owned()),
                }
            });
            if let Err(why) = result {
                let why = format!("route {number} (to {}, port {}): {why}", route.to, route.port);
                return Err(ConfigError { setting: "routes", why });
            }
            routes.lengths.push(route.to.prefix_len());
        }
        routes.lengths.sort_unstable_by_key(|&len| core::cmp::Reverse(len));
        routes.lengths.dedup();
        Ok(routes)
    }

    /// The route from `port` to `ip`, if there is one.
    fn find(&self, port: u8, ip: IpAddr) -> Option<&Route> {
        self.lengths.iter().find_map(|&len| {
            // Fails if the prefix is longer than the address, as an IPv6 prefix may be for an IPv4 address.
            let to = IpNet::new(ip, len).ok()?.trunc();
            self.by_prefix.get(&(port, to))
        })
    }

    /// The paths from `port` to `ip`, if packets are source-routed.
    pub(crate) fn path(&self, port: u8, ip: IpAddr) -> Option<&EvProfile> {
        Some(&self.find(port, ip)?.outer.as_ref()?.path)
    }

    /// The headers of packets to a peer from our port with index `port`, which is `ours`.
    pub(crate) fn template(
        &self,
        cfg: &EndpointConfig,
        (port, ours): (u8, &LocalPort),
        theirs: &PortAddr,
        udp_port: u16,
    ) -> Result<StackTemplate, StackError> {
        let route = self.find(port, theirs.ip);
        let next_hop = route.and_then(|route| route.next_hop).unwrap_or(MacAddr(theirs.mac));
        let template = StackTemplate::new(ours.mac, next_hop, ours.ip, theirs.ip, udp_port, cfg.hop_limit)?;
        Ok(match route.and_then(|route| route.outer.as_ref()) {
            Some(outer) => template.through(outer, cfg.entropy),
            None => template,
        })
    }

    /// The entropy value of the response to a packet that arrived with `ev`: the same value, unless it has no path
    /// back to the peer.
    pub(crate) fn answer_ev(&self, port: u8, ip: IpAddr, ev: Ev) -> Ev {
        self.find(port, ip).map_or(ev, |route| route.own(ev))
    }

    /// The source of a queue pair's entropy values when its peer has these ports: `None` if the source does not change
    /// when it is connected. `wanted` is valid.
    ///
    /// # Errors
    /// A listed value has no path.
    pub(crate) fn ev_source(
        &self,
        cfg: &EndpointConfig,
        wanted: &EvSource,
        peer: &[PortAddr],
    ) -> Result<Option<EvSource>, PathConfigError> {
        let profile = |port: u8, addr: Option<&PortAddr>| self.path(port, addr?.ip).cloned();
        let planes = 0..cfg.ports.len() as u8;
        let profiles: Arc<[Option<EvProfile>]> =
            planes.map(|port| profile(port, peer.get(usize::from(port)))).collect();
        if profiles.iter().all(Option::is_none) {
            return Ok(None);
        }
        match wanted {
            EvSource::Explicit(lists) => {
                for (plane, (list, profile)) in (0..).zip(lists.iter().zip(&*profiles)) {
                    let Some(profile) = profile else { continue };
                    let bad = list.iter().find_map(|ev| profile.check(ev.0).err());
                    if let Some(why) = bad {
                        return Err(PathConfigError::NoPath { plane, why });
                    }
                }
                Ok(None)
            }
            EvSource::Random { width_bits } | EvSource::Routed { width_bits, .. } => {
                Ok(Some(EvSource::Routed { profiles, width_bits: *width_bits }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use spindrift_srv6::{Field, Segments};

    use super::*;
    use crate::config::test_port as port;
    use crate::wire::StevOrder;

    /// The error names the first route that cannot work, with the reason.
    #[test]
    fn routes_that_cannot_work_are_named() {
        let outer = |bits: u8| {
            let path = EvProfile::new(&[96, 32], &[Field::fixed(32, 1), Field::low_bits(32, 0, bits)]);
            Outer { src: Ipv6Addr::LOCALHOST, path: path.expect("it fits"), hop_limit: 9 }
        };
        let why = |v6: bool, mode: Option<EntropyMode>, route: Route, more: Option<Route>| {
            let mut config = EndpointConfig::new((1..=2).map(port).collect());
            if v6 {
                config.ports.iter_mut().for_each(|port| port.ip = Ipv6Addr::LOCALHOST.into());
            }
            config.entropy = mode.unwrap_or(config.entropy);
            config.routes = [route].into_iter().chain(more).collect();
            config.validate().map_err(|error| {
                assert_eq!(error.setting, "routes");
                assert_eq!(Routes::new(&config).map(|_| ()), Err(error.clone()));
                error.why
            })
        };
        let to = |text: &str| Route::new(text.parse().expect("a prefix"), 1);
        let with = |bits| Route { outer: Some(outer(bits)), ..to("::/0") };
        let v4_with = |bits| Route { outer: Some(outer(bits)), ..to("0.0.0.0/0") };
        let low = Some(EntropyMode::Stev(StevOrder::SportLow));
        let udp = Some(EntropyMode::Udp);
        for good in [
            why(true, None, with(32), None),
            why(true, low, with(32), None),
            why(true, udp, with(0), None),
            why(false, None, v4_with(16), Some(to("10.0.0.0/8"))),
            why(false, low, v4_with(0), None),
            why(false, None, v4_with(16), Some(Route { port: 0, ..v4_with(16) })),
        ] {
            assert_eq!(good, Ok(()));
        }
        let not_carried = "outer.path takes the first";
        for (result, want) in [
            (
                why(true, None, Route { port: 2, ..to("::/0") }, None),
                "there is no such port, the last one is port 1",
            ),
            (why(false, None, to("::/0"), None), "family of the port's, 10.0.0.2"),
            (why(true, None, to("0.0.0.0/0"), None), "family of the port's, ::1"),
            (why(false, None, to("10.1.0.0/8"), None), "bits behind the prefix; write 10.0.0.0/8"),
            (
                why(
                    true,
                    None,
                    Route { outer: Some(Outer { hop_limit: 0, ..outer(1) }), ..to("::/0") },
                    None,
                ),
                "hop_limit",
            ),
            (why(true, udp, with(1), None), not_carried),
            (why(false, None, v4_with(17), None), not_carried),
            (why(false, low, v4_with(1), None), not_carried),
            (why(true, None, with(3), Some(to("::/0"))), "one before it for the same"),
        ] {
            let why = result.expect_err("it cannot work");
            assert!(why.contains(want), "{why:?} says nothing of {want:?}");
        }
        let second =
            why(true, None, with(3), Some(Route { port: 9, ..to("fd00::/64") })).expect_err("no port 9");
        assert!(second.starts_with("route 2 (to fd00::/64, port 9): "), "{second}");
    }

    /// The outer packet with the most addresses sets the limit, for the ports that it leaves by.
    #[test]
    fn outer_packets_leave_less_room_for_payload() {
        let mut config = EndpointConfig::new((1..=3).map(port).collect());
        config.ports.iter_mut().for_each(|port| port.ip = Ipv6Addr::LOCALHOST.into());
        let room = config.ports[0].max_frame as u32 - EndpointConfig::overhead(true) as u32;
        let through = |to: &str, port, addresses: usize| {
            let path = Segments::new(&vec![Ipv6Addr::LOCALHOST; addresses]).expect("they fit").into();
            let outer = Outer { src: Ipv6Addr::LOCALHOST, path, hop_limit: 9 };
            Route { outer: Some(outer), ..Route::new(to.parse().expect("a prefix"), port) }
        };
        config.routes = vec![
            through("fd00::/16", 1, 1),
            through("fd01::/16", 1, 4),
            through("fd02::/16", 1, 2),
            Route::new("fd03::/16".parse().expect("a prefix"), 1),
            through("fd00::/16", 2, 1),
        ];
        // IPv6, and a segment routing header of three addresses.
        let left = [0, 40 + 8 + 3 * 16, 40].map(|outer| room - outer);
        assert_eq!([0, 1, 2].map(|plane| config.max_mtu_of(plane)), left);
        assert_eq!((config.max_mtu(), config.max_mtu_of(3)), (left[1], 0));
    }

    /// If the kernel makes the headers, routes cannot set them.
    #[test]
    fn sockets_have_no_routes_of_ours() {
        let refused = |at: u8, change: fn(&mut Route)| {
            let mut ports = vec![port(1), port(2)];
            ports[1].source_ports = Some(vec![50_000]);
            let mut config = EndpointConfig::new(ports);
            let mut route = Route::new("10.0.0.0/8".parse().expect("a prefix"), at);
            change(&mut route);
            config.routes = vec![route];
            config.validate().map_err(|error| error.why.contains("kernel sockets"))
        };
        let hop: fn(&mut Route) = |route| route.next_hop = Some(MacAddr([2; 6]));
        let outer: fn(&mut Route) = |route| {
            let path = Segments::from(Ipv6Addr::LOCALHOST).into();
            route.outer = Some(Outer { src: Ipv6Addr::LOCALHOST, path, hop_limit: 9 });
        };
        assert_eq!([hop, outer].map(|change| refused(0, change)), [Ok(()), Ok(())]);
        assert_eq!([hop, outer].map(|change| refused(1, change)), [Err(true), Err(true)]);
        assert_eq!(refused(1, |_| ()), Ok(()));
    }
}
