//! Ports of one host: what is wrong with all of them is wrong with the NIC.

use spindrift_srv6::{Fabric, Node};

use crate::locate::crosses;
use crate::{Component, Fault, Finding, Path, View, Window};

/// Names a host's NIC in place of its ports if all of several planes' ports are at fault. If those of other planes show the same loss,
/// but are not certain yet, nothing is named for now, unless something else explains it there: something that was found, or that is `hidden` from the window
/// because it is known.
pub(crate) fn join(
    (fabric, view, window): (&Fabric, &View, Window),
    hidden: &[Component],
    found: Vec<Finding>,
) -> Vec<Finding> {
    let planes = fabric.shape().planes;
    if planes == 1 {
        // A NIC is the end of its only link.
        return found;
    }
    let mut hosts: Vec<u16> = found.iter().filter_map(host_of).collect();
    hosts.sort_unstable();
    hosts.dedup();
    let mut rest = found;
    for host in hosts {
        let (ports, others): (Vec<_>, Vec<_>) = rest.into_iter().partition(|at| host_of(at) == Some(host));
        rest = others;
        let rate = ports.iter().map(|port| port.fault.rate()).sum::<f64>() / ports.len().max(1) as f64;
        let is_lossy = |plane| {
            let Some(path) = to_t0(fabric, host, plane) else { return false };
            let mut known = rest.iter().flat_map(|other| &other.components).chain(hidden);
            let is_explained = known.any(|&other| crosses(fabric, path, other));
            !is_explained && view.count(path, window).loss() >= rate / 2.0
        };
        if ports.len() == usize::from(planes) {
            rest.extend(whole(host, rate, &ports));
        } else if !(0..planes).all(is_lossy) {
            rest.extend(ports);
        }
    }
    rest
}

fn host_of(finding: &Finding) -> Option<u16> {
    finding.components.iter().find_map(|component| match component {
        Component::Link((Node::Host(host), _)) => Some(*host),
        _ => None,
    })
}

/// The path of a host that turns at its T0 switch in a plane.
fn to_t0(fabric: &Fabric, host: u16, plane: u8) -> Option<Path> {
    let at = fabric.hosts().get(usize::from(host))?;
    Some(Path { host, top: Node::T0 { plane, number: at.t0 } })
}

fn whole(host: u16, rate: f64, ports: &[Finding]) -> Option<Finding> {
    let components = vec![Component::Node(Node::Host(host))];
    let mut whole = Finding { components, fault: Fault::of_rate(rate), ..ports.first()?.clone() };
    for port in ports.iter().skip(1) {
        whole.confidence = whole.confidence.min(port.confidence);
        whole.evidence.through = whole.evidence.through.plus(port.evidence.through);
        whole.evidence.beside = whole.evidence.beside.plus(port.evidence.beside);
        whole.evidence.paths += port.evidence.paths;
    }
    Some(whole)
}
