//! Diagnosis of a failed run: the cause, as far as this side can see it.

use spindrift::counters::Counters;
use spindrift::verbs::{AsyncEvent, PortAttr};

use super::endpoint_setup::Side;
use super::transport::Nics;

impl Side {
    /// What arrived and what did not, and what was odd about it. `peer` is the other side.
    pub(crate) fn findings(&self, peer: &str) -> Vec<String> {
        findings(&self.nics.query_ports(), &self.nics.counters(), peer)
    }
}

/// Which rules the peers of this side's queue pairs broke, since it was last asked.
pub(crate) fn violations(nics: &Nics) -> Vec<String> {
    let failures = nics.events().into_iter().filter_map(|event| match event {
        AsyncEvent::QpFatal(failure) if failure.violation.is_some() => Some(failure.to_string()),
        _ => None,
    });
    failures.collect()
}

fn findings(ports: &[PortAttr], counters: &Counters, peer: &str) -> Vec<String> {
    let mut all = arrivals(ports, peer);
    let arrived: u64 = ports.iter().map(|port| port.counters.rx_frames).sum();
    for error in ports.iter().flat_map(|port| &port.send_errors) {
        if !all.contains(error) {
            all.push(error.clone());
        }
    }
    let odd = [
        (
            counters.rx_bad_icrc,
            "had a wrong iCRC and were dropped: something on the way changes packets, or the sides compute it differently",
        ),
        (
            counters.rx_foreign_source,
            "came from addresses that the peer did not offer and were dropped: a NAT changes them, or the peer sends from another interface",
        ),
        (
            counters.rx_wrong_destination,
            "were for other addresses than those of the planes that they came in on and were dropped: the sides list their planes in different orders, or a NAT changes addresses",
        ),
        (
            counters.rx_other_port,
            "were for other UDP ports than those of this side and were dropped: a NAT changes them",
        ),
        (
            counters.rx_unknown_qp,
            "were for queue pairs that this side does not have and were dropped: they belong to another program or to a former run",
        ),
        (
            counters.rx_truncated,
            "were shorter than their headers say and were dropped: something on the way cuts packets, or trims them and does not mark them",
        ),
    ];
    let told = odd.into_iter().filter(|(count, _)| *count > 0);
    all.extend(told.map(|(count, what)| format!("{count} of {arrived} packets that arrived {what}")));
    let unread: u64 = ports.iter().map(|port| port.counters.rx_unread).sum();
    if unread > 0 {
        all.push(format!(
            "{unread} packets for this side's UDP port had VLAN tags, IPv6 extension headers or IPv4 options, or were fragments, which `af_xdp` ports do not read: use `udp` ports here, or have the network leave them out"
        ));
    }
    let lost: u64 = ports.iter().map(|port| port.counters.tx_oversize).sum();
    if lost > 0 {
        all.push(format!("{lost} packets exceeded the path MTU and were not sent: use a smaller --mtu"));
    }
    all
}

/// Planes on which nothing has arrived, by the names of their ports, which have addresses and UDP ports.
fn arrivals(ports: &[PortAttr], peer: &str) -> Vec<String> {
    let planes = ports.iter().map(|port| port.plane + 1).max().unwrap_or_default();
    let of = |plane: usize| ports.iter().filter(move |port| port.plane == plane);
    let silent: Vec<usize> =
        (0..planes).filter(|&plane| of(plane).all(|port| port.counters.rx_frames == 0)).collect();
    let name = |plane: usize| of(plane).next().map_or("", |port| &port.name);
    let sent = |plane: usize| of(plane).map(|port| port.counters.tx_frames).sum::<u64>();
    let down = |plane: usize| of(plane).any(|port| port.link == spindrift_pmd::LinkState::Down);
    let told = |plane: &usize| {
        format!(
            "no UDP packet from the {peer} has arrived at {} ({} sent): {}",
            name(*plane),
            sent(*plane),
            if down(*plane) {
                "the link is down"
            } else {
                "a firewall, NAT or reverse path filter (rp_filter) on either side or between drops them"
            }
        )
    };
    silent.iter().map(told).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
mod tests {
    use spindrift_pmd::{LinkState, MacAddr, Medium, PortCounters};

    use super::*;

    fn port(lane: usize, plane: usize, sent: u64, arrived: u64) -> PortAttr {
        PortAttr {
            lane,
            plane,
            name: format!("udp 10.0.{plane}.1 port 4971 on eth{plane}"),
            ip: [10, 0, plane as u8, 1].into(),
            mac: MacAddr::default(),
            link: LinkState::Up,
            max_frame: 1514,
            max_mtu: 1428,
            max_burst: 64,
            source_ports: None,
            same_path_batch: 1,
            holds_payloads: false,
            medium: Medium::Host,
            notes: Vec::new(),
            send_errors: Vec::new(),
            counters: PortCounters { tx_frames: sent, rx_frames: arrived, ..PortCounters::default() },
        }
    }

    #[test]
    fn planes_on_which_nothing_arrived_are_named_with_address_and_port() {
        let quiet = Counters::default();
        assert!(findings(&[port(0, 0, 10, 1), port(0, 1, 10, 1)], &quiet, "server").is_empty());
        // Of several lanes one may have all.
        assert!(findings(&[port(0, 0, 10, 0), port(1, 0, 10, 3)], &quiet, "server").is_empty());
        let found = findings(&[port(0, 0, 10, 1), port(0, 1, 7, 0), port(1, 1, 8, 0)], &quiet, "server h2");
        assert_eq!(found.len(), 1);
        for part in [
            "no UDP packet from the server h2 has arrived",
            "at udp 10.0.1.1 port 4971 on eth1 (15 sent)",
            "rp_filter",
        ] {
            assert!(found[0].contains(part), "{found:?}");
        }
        let down = PortAttr { link: LinkState::Down, ..port(0, 0, 1, 0) };
        assert!(findings(&[down], &quiet, "server")[0].ends_with("the link is down"));
    }

    /// Sets a counter.
    type Set = fn(&mut Counters);

    #[test]
    fn what_was_odd_is_told_with_its_number() {
        let counters = |set: Set| {
            let mut counters = Counters::default();
            set(&mut counters);
            findings(&[port(0, 0, 10, 9)], &counters, "server")
        };
        let cases: [(Set, &str); 6] = [
            (|counters| counters.rx_bad_icrc = 4, "4 of 9 packets that arrived had a wrong iCRC"),
            (|counters| counters.rx_foreign_source = 5, "5 of 9 packets that arrived came from addresses"),
            (
                |counters| counters.rx_wrong_destination = 6,
                "6 of 9 packets that arrived were for other addresses",
            ),
            (|counters| counters.rx_other_port = 7, "7 of 9 packets that arrived were for other UDP ports"),
            (|counters| counters.rx_unknown_qp = 8, "8 of 9 packets that arrived were for queue pairs"),
            (|counters| counters.rx_truncated = 9, "9 of 9 packets that arrived were shorter"),
        ];
        for (set, text) in cases {
            let found = counters(set);
            assert!(found.len() == 1 && found[0].starts_with(text), "{found:?}");
        }
        let mut failing = [port(0, 0, 10, 9), port(1, 0, 10, 9)];
        for port in &mut failing {
            port.send_errors.push("a firewall".to_owned());
        }
        failing[1].counters.tx_oversize = 3;
        failing[0].counters.rx_unread = 2;
        let found = findings(&failing, &Counters::default(), "server");
        assert!(
            found[0] == "a firewall" && found[1].starts_with("2 packets for this side's UDP port had VLAN"),
            "{found:?}"
        );
        assert!(found[2].starts_with("3 packets exceeded") && found.len() == 3, "{found:?}");
    }
}
