//! `AF_XDP` sockets, which bypass the kernel's network stack. Opening them needs the feature `af_xdp`, which compiles a C library.

/// What compiles with the feature alone.
#[cfg(feature = "af_xdp")]
mod built;
#[cfg(not(feature = "af_xdp"))]
mod built {
    pub(super) const BACKEND: Option<&'static dyn crate::driver::Backend> = None;

    pub(super) fn pump(_: &super::pump::AfXdpPumpArgs) -> anyhow::Result<()> {
        anyhow::bail!("this build has no such pump")
    }
}
mod pump;

use super::{Driver, Kernel, Reach, Setting, setting};
use crate::pump::Pump;

pub(super) static DRIVER: Driver = Driver {
    name: "af_xdp",
    about: "`AF_XDP` sockets, which bypass the kernel's network stack",
    how_to_build: "`./tools/setup.sh --af-xdp`, then `cargo build --release -p spindrift-cli --features af_xdp`",
    reach: Reach::Hosts,
    kernel: Kernel::Bypassed,
    settings,
    check_place: None,
    in_lab: None,
    pump: Some(Pump::of::<pump::AfXdpPumpArgs>()),
    backend: built::BACKEND,
};

/// Buffers for each direction of a queue where nobody says how many.
const BUFFERS_USUAL: u32 = 2048;

fn settings() -> Vec<Setting> {
    use setting::{
        buffers, evs, fault, lanes, link_rate, local, pcap, plane_ids, port, routing, topology, udp_port,
    };
    vec![
        port(DRIVER.name),
        lanes(),
        local("list of addresses or interfaces", ["eth0", "eth1"]),
        plane_ids(),
        topology(),
        routing("srv6"),
        Setting::new(("nic.xdp_mode", "xdp-mode"), "mode", ("\"generic\"", "generic"))
            .default("auto")
            .or_refused("XDP program"),
        buffers("nic.rx_buffers", "rx-buffers", BUFFERS_USUAL),
        buffers("nic.tx_buffers", "tx-buffers", BUFFERS_USUAL),
        link_rate(),
        evs(),
        fault(),
        udp_port(),
        pcap(),
    ]
}
