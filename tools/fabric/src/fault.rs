//! What goes wrong in a fabric, as data.

use spindrift_srv6::Node;

use crate::clos::Clos;
use crate::impair::Impairment;
use crate::net::{HostId, Net};
use crate::transport::Transport;

/// Something that happens to a part of a fabric, or its end.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// A cable breaks or is whole again, in both directions.
    Cable {
        /// The nodes that it joins.
        ends: (Node, Node),
        /// Whether it carries anything.
        up: bool,
        /// Whether a host at its end sees by the carrier signal. Switches never tell anybody.
        carrier: bool,
    },
    /// One direction of a cable breaks or is whole again, and nobody sees it.
    LinkDirection {
        /// Where packets leave.
        from: Node,
        /// Where they should arrive.
        to: Node,
        /// Whether they do.
        up: bool,
    },
    /// From now on this is wrong with one direction of a cable; the default ends it.
    Impair {
        /// Where packets leave.
        from: Node,
        /// Where they should arrive.
        to: Node,
        /// What is wrong.
        impairment: Impairment,
    },
    /// From now on one direction of a cable has this rate.
    Rate {
        /// Where packets leave.
        from: Node,
        /// Where they arrive.
        to: Node,
        /// Bits per second.
        rate_bps: u64,
    },
    /// A switch stops to forward, or begins again. Its links stay up, and so nobody sees it (MRC paper, section 3).
    Forwarding {
        /// The switch.
        switch: Node,
        /// Whether it forwards.
        on: bool,
    },
    /// A switch or a whole NIC is switched off or on: all its cables, with a carrier signal where a host is at the other end.
    Power {
        /// The switch or the host.
        node: Node,
        /// Whether it is on.
        on: bool,
    },
    /// A host stands still.
    Pause {
        /// Its number.
        host: u16,
        /// For how long.
        ns: u64,
    },
}

impl Clos {
    /// Lets a fault happen now; `false` if the fabric has no such part.
    pub fn apply<T: Transport>(&self, net: &mut Net<T>, fault: &Fault) -> bool {
        match *fault {
            Fault::Cable { ends, up, carrier } => self.set_cable(net, ends, up, carrier),
            Fault::LinkDirection { from, to, up } => {
                self.link(from, to).map(|link| net.set_link(link, up)).is_some()
            }
            Fault::Impair { from, to, ref impairment } => {
                self.link(from, to).map(|link| net.set_impairment(link, impairment.clone())).is_some()
            }
            Fault::Rate { from, to, rate_bps } => {
                self.link(from, to).map(|link| net.set_rate(link, rate_bps)).is_some()
            }
            Fault::Forwarding { switch, on } => {
                self.switch(switch).map(|switch| net.set_forwarding(switch, on)).is_some()
            }
            Fault::Power { node, on } => self.set_power(net, node, on),
            Fault::Pause { host, ns } => {
                let known = usize::from(host) < self.fabric().hosts().len();
                if known {
                    net.pause(HostId(host.into()), ns);
                }
                known
            }
        }
    }

    /// Ends every fault but a pause, which ends by itself.
    pub fn heal<T: Transport>(&self, net: &mut Net<T>) {
        for ((from, to), link) in self.links() {
            net.set_link(link, true);
            net.set_impairment(link, Impairment::default());
            if let Some(rate_bps) = self.rate_bps(from, to) {
                net.set_rate(link, rate_bps);
            }
            if let (Node::Host(host), Node::T0 { plane, .. }) = (from, to) {
                net.set_carrier(HostId(host.into()), plane, true);
            }
        }
        for switch in self.switches() {
            net.set_forwarding(switch, true);
        }
    }

    fn set_power<T: Transport>(&self, net: &mut Net<T>, node: Node, on: bool) -> bool {
        let cables: Vec<_> = self.neighbours(node).map(|other| (node, other)).collect();
        if let Some(switch) = self.switch(node) {
            net.set_forwarding(switch, on);
        }
        for &cable in &cables {
            self.set_cable(net, cable, on, true);
        }
        !cables.is_empty()
    }
}
