//! DPDK devices, which the kernel does not see. Opening them needs the feature `dpdk`, which links DPDK's C libraries.

/// What compiles with the feature alone.
#[cfg(feature = "dpdk")]
mod built;
#[cfg(not(feature = "dpdk"))]
mod built {
    pub(super) const BACKEND: Option<&'static dyn crate::driver::Backend> = None;

    pub(super) fn pump(_: &super::pump::DpdkPumpArgs) -> anyhow::Result<()> {
        anyhow::bail!("this build has no such pump")
    }
}
mod on_link;
mod pump;

pub(crate) use self::on_link::OnLink;

use std::net::Ipv6Addr;

use super::{Driver, Kernel, Reach, Setting, setting};
use crate::pump::Pump;

pub(super) static DRIVER: Driver = Driver {
    name: "dpdk",
    about: "DPDK devices: NICs bound to vfio-pci, and virtual devices such as net_memif",
    how_to_build: "`./tools/setup.sh --dpdk`, then `cargo build --release -p spindrift-cli --features dpdk`",
    reach: Reach::Hosts,
    kernel: Kernel::Bypassed,
    settings,
    check_place: Some(check_place),
    in_lab: Some(in_lab),
    pump: Some(Pump::of::<pump::DpdkPumpArgs>()),
    backend: built::BACKEND,
};

/// What ports of other drivers lack that have addresses of the kernel's.
const ADDRESS_OF_ITS_OWN: &str = "address of its own";

fn settings() -> Vec<Setting> {
    use setting::{
        buffers, evs, fault, lanes, link_rate, local, pcap, plane_ids, port, routing, topology, udp_port,
    };
    vec![
        port(DRIVER.name),
        lanes(),
        local("list of devices", ["0000:3b:00.0", "0000:3b:00.1"]),
        Setting::new(
            ("nic.device_addresses", "device-addresses"),
            "list of addresses with the length of their prefix",
            ("[\"fd00::1/64\", \"fd00:0:0:1::1/64\"]", "fd00::1/64,fd00:0:0:1::1/64"),
        )
        .or_refused(ADDRESS_OF_ITS_OWN),
        Setting::new(
            ("nic.gateways", "gateways"),
            "list of addresses",
            ("[\"fd00::ff\", \"fd00:0:0:1::ff\"]", "fd00::ff,fd00:0:0:1::ff"),
        )
        .or_refused(ADDRESS_OF_ITS_OWN),
        Setting::new(("nic.device_mtu", "device-mtu"), "bytes", ("9000", "9000"))
            .or_refused("MTU but its interface's"),
        Setting::new(("nic.zero_copy", "zero-copy"), "true or false", ("true", "true"))
            .or_refused("zero-copy setting"),
        Setting::new(("nic.dpdk_eal", "dpdk-eal"), "arguments", ("\"--iova-mode=va\"", "--iova-mode=va"))
            .or_refused("EAL"),
        plane_ids(),
        topology(),
        routing("srv6"),
        buffers("nic.rx_buffers", "rx-buffers", DESCRIPTORS_USUAL),
        buffers("nic.tx_buffers", "tx-buffers", DESCRIPTORS_USUAL),
        link_rate(),
        evs(),
        fault(),
        udp_port(),
        pcap(),
    ]
}

/// On each of a host's interfaces a device that shares it with the kernel. The switch at its other end is the router.
fn in_lab(addresses: &[Ipv6Addr]) -> Vec<String> {
    let device = |plane| format!("dpdk:net_af_packet{plane},iface=eth{plane},{RING_IN_LAB}");
    let own: Vec<_> = addresses.iter().map(|address| format!("{address}/128")).collect();
    let ports = (0..addresses.len()).flat_map(|plane| ["--port".to_owned(), device(plane)]);
    let more =
        ["--device-addresses".to_owned(), own.join(","), "--gateways".to_owned(), "fe80::1".to_owned()];
    ports.chain(more).collect()
}

/// Places that hold the longest frame of a lab's interfaces.
const RING_IN_LAB: &str = "blocksz=65536,framesz=16384,framecnt=256,qpairs=1";

/// Descriptors of each queue where nobody says how many.
const DESCRIPTORS_USUAL: u32 = 1024;

/// A device as DPDK names it: a PCI address, or a virtual device, each with arguments behind commas.
fn check_place(text: &str) -> Result<(), String> {
    let name = text.split(',').next().unwrap_or_default();
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, ':' | '.' | '_' | '-');
    let starts = name.chars().next().is_some_and(|c| c.is_ascii_alphanumeric());
    if starts && name.chars().all(fits) && !text.chars().any(char::is_whitespace) {
        return Ok(());
    }
    Err(format!(
        "`{text}` is no device of DPDK: write a PCI address such as 0000:3b:00.0, or a virtual device with its arguments such as \
         net_memif0,role=client"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_a_lab_have_a_device_on_each_interface() {
        let options =
            in_lab(&["fd00::1", "fd00:0:0:1::1"].map(|text| text.parse().unwrap_or(Ipv6Addr::LOCALHOST)));
        let options: Vec<_> =
            options.iter().map(|option| option.split(",bl").next().unwrap_or_default()).collect();
        let expected = [
            "--port",
            "dpdk:net_af_packet0,iface=eth0",
            "--port",
            "dpdk:net_af_packet1,iface=eth1",
            "--device-addresses",
            "fd00::1/128,fd00:0:0:1::1/128",
            "--gateways",
            "fe80::1",
        ];
        assert_eq!(options, expected);
    }

    #[test]
    fn places_are_devices_with_arguments() {
        for device in
            ["0000:3b:00.0", "3b:00.0,txq_inline=0", "net_memif0", "net_memif0,role=client,bsize=16384"]
        {
            assert_eq!(check_place(device), Ok(()), "{device}");
        }
        for bad in ["", ",role=client", "net memif", "net_memif0, role=client", "/dev/eth0", "_x"] {
            assert!(check_place(bad).is_err_and(|why| why.contains(&format!("`{bad}`"))), "{bad}");
        }
    }
}
