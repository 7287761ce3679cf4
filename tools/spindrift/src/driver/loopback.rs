//! A ring in memory between two lanes of one process.

use anyhow::Result;
use spindrift::endpoint::EndpointConfig;
use spindrift::verbs::nic;
use spindrift_pmd::loopback::{self, LoopbackConfig};
use spindrift_pmd::route::LocalAddress;

use super::{Backend, Driver, Kernel, Prospect, Reach, Setting, setting};
use crate::bench::nic::Nic;
use crate::bench::options::Settings;

pub(super) static DRIVER: Driver = Driver {
    name: "loopback",
    about: "A ring in memory between two lanes of one process",
    how_to_build: "",
    reach: Reach::Process,
    kernel: Kernel::Uninvolved,
    settings,
    check_place: None,
    in_lab: None,
    pump: None,
    backend: Some(&Rings),
};

/// Headers before the payload and the checksum behind it, with room for an outer IPv6 header.
const FRAME_ROOM: usize = EndpointConfig::overhead(true) + 48;

fn settings() -> Vec<Setting> {
    use setting::{evs, fault, lanes, link_rate, pcap, plane_ids, planes, port};
    vec![port(DRIVER.name), planes(), lanes(), plane_ids(), link_rate(), evs(), fault(), pcap()]
}

struct Rings;

impl Backend for Rings {
    /// It is there without any of the machine's addresses.
    fn prospects(&self, _: &[LocalAddress]) -> Vec<Prospect> {
        Vec::new()
    }

    /// Two NICs joined by rings, lane by lane.
    fn open_pair(&self, settings: &Settings, planes: usize) -> Result<[Nic; 2]> {
        let frame_max = settings.mtu as usize + FRAME_ROOM;
        let config = LoopbackConfig { frame_max, ..LoopbackConfig::default() };
        let pairs = (0..settings.lanes).map(|_| loopback::pair(planes, config));
        let (left, right) = pairs.map(|(left, right)| (nic(left), nic(right))).unzip();
        Ok([left, right].map(|lanes| Nic::new(lanes, None)))
    }
}
