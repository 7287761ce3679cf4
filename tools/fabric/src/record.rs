//! What a network looks like at short intervals.

use spindrift::time::Time;

use crate::link::{LinkCounters, LinkId};
use crate::net::{HostFlow, HostId, Net, NetCounters};
use crate::transport::{EvStateCounts, Messenger, TransportStats};

/// What is looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watch {
    /// Hosts: what they and their ports have done.
    pub hosts: Vec<HostId>,
    /// Links: what they have done, and what waits for them.
    pub links: Vec<LinkId>,
    /// Ends of flows: the states of their entropy values.
    pub flows: Vec<HostFlow>,
}

/// A network at a moment. Counts are since the beginning; those of hosts, links and flows are in the order of the [`Watch`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The moment.
    pub at: Time,
    /// What happened to packets in all of the network.
    pub net: NetCounters,
    /// Hosts.
    pub hosts: Vec<HostSample>,
    /// Links.
    pub links: Vec<LinkSample>,
    /// States of entropy values, by flow and plane.
    pub flows: Vec<Vec<EvStateCounts>>,
}

/// A host at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostSample {
    /// What its transport has done.
    pub stats: TransportStats,
    /// Bytes that the links to it have sent, by plane.
    pub plane_bytes: Vec<u64>,
}

/// A link at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkSample {
    /// What it has done.
    pub counters: LinkCounters,
    /// Bytes that wait for it.
    pub queued_bytes: u64,
    /// The most that waited since the sample before.
    pub peak_bytes: u64,
}

/// Samples of a network, one after the other.
#[derive(Clone, Debug)]
pub struct Recorder {
    watch: Watch,
    samples: Vec<Sample>,
}

impl Recorder {
    /// Begins without samples.
    pub const fn new(watch: Watch) -> Self {
        Self { watch, samples: Vec::new() }
    }

    /// What is looked at.
    pub const fn watch(&self) -> &Watch {
        &self.watch
    }

    /// Takes the first sample, of a network in which nothing has been sent. What workloads sent as they were added is in the next.
    pub fn begin<T: Messenger>(&mut self, net: &mut Net<T>) {
        self.look(net);
        let Some(Sample { net, hosts, links, .. }) = self.samples.last_mut() else { return };
        *net = NetCounters::default();
        for HostSample { stats, plane_bytes } in hosts {
            *stats = TransportStats::default();
            plane_bytes.fill(0);
        }
        links.fill(LinkSample::default());
    }

    /// Takes a sample. One for each time: the latest takes the place of one that was taken at the same.
    pub fn look<T: Messenger>(&mut self, net: &mut Net<T>) {
        let Watch { hosts, links, flows } = &self.watch;
        let at = net.now();
        let replaced = self.samples.pop_if(|last| last.at == at);
        let link = |(place, &link): (usize, &LinkId)| {
            // What was asked for at this time already is no longer in the network's.
            let before = replaced.as_ref().and_then(|sample: &Sample| sample.links.get(place));
            let peak = before.map_or(0, |link| link.peak_bytes);
            LinkSample {
                counters: net.link(link),
                queued_bytes: net.queued_bytes(link),
                peak_bytes: net.take_queue_peak(link).max(peak),
            }
        };
        let links = links.iter().enumerate().map(link).collect();
        let host = |&host: &HostId| HostSample {
            stats: net.transport(host).stats(),
            plane_bytes: net.downlinks(host).iter().map(|&link| net.link(link).bytes).collect(),
        };
        self.samples.push(Sample {
            at,
            net: net.counters(),
            hosts: hosts.iter().map(host).collect(),
            links,
            flows: flows.iter().map(|end| net.transport(end.host).evs(end.flow)).collect(),
        });
    }

    /// The samples, oldest first.
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }
}
