//! The workloads of a plan.

use std::fs;

use anyhow::Result;
use serde::Deserialize;
use spindrift_fabric::HostId;
use spindrift_fabric::workload::{
    AllToAll, Neighbours, PingPong, Poisson, PoissonSpec, RingAllReduce, Sizes, Stream, StreamSpec, Trace,
    TraceEntry, Workload,
};
use spindrift_srv6::Fabric;

use super::plan::Reader;
use crate::units::parse_size;
use crate::usage::usage;

/// Most queue pairs of a workload at one end of all connections; there are as many at the other.
const MOST_CONNECTIONS: usize = 1 << 17;
/// Most queue pairs of a connection.
const MOST_QPS: u32 = 4_096;
/// Longest message.
const LONGEST: u64 = u32::MAX as u64;

/// Something that hosts do together.
pub(super) struct WorkloadPlan {
    pub(super) name: String,
    pub(super) kind: Kind,
    /// Queue pairs of each connection.
    pub(super) qps: u32,
    pub(super) workload: Box<dyn Workload>,
}

impl std::fmt::Debug for WorkloadPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkloadPlan")
            .field("name", &self.name)
            .field("kind", &self.kind)
            .field("qps", &self.qps)
            .finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    Write,
    Permutation,
    PingPong,
    Neighbours,
    AllReduce,
    AllToAll,
    Poisson,
    Trace,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Permutation => "permutation",
            Self::PingPong => "ping-pong",
            Self::Neighbours => "neighbours",
            Self::AllReduce => "all-reduce",
            Self::AllToAll => "all-to-all",
            Self::Poisson => "poisson",
            Self::Trace => "trace",
        }
    }

    /// The keys that say something to it, beside `kind`, `name` and `qps`.
    const fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Write => &["from", "to", "connections", "size", "depth", "count", "start", "stop"],
            Self::Permutation => &["hosts", "by", "connections", "size", "depth", "count", "start", "stop"],
            Self::PingPong => &["from", "to", "size", "count"],
            Self::Neighbours | Self::AllReduce => &["hosts", "size", "count"],
            Self::AllToAll => &["hosts", "size", "at_a_time"],
            Self::Poisson => &["hosts", "load", "size", "sizes", "start", "stop"],
            Self::Trace => &["file"],
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct WorkloadTable {
    kind: Option<Kind>,
    name: Option<String>,
    qps: Option<u32>,
    hosts: Option<String>,
    from: Option<String>,
    to: Option<String>,
    by: Option<u32>,
    connections: Option<u32>,
    size: Option<String>,
    sizes: Option<Vec<(String, f64)>>,
    depth: Option<u32>,
    count: Option<u32>,
    start: Option<String>,
    stop: Option<String>,
    at_a_time: Option<u32>,
    load: Option<f64>,
    file: Option<String>,
}

/// What a table is read with.
struct Context<'a> {
    reader: &'a Reader<'a>,
    /// The name of the table.
    place: &'a str,
    fabric: &'a Fabric,
    nic_rate_bps: u64,
    seed: u64,
}

impl WorkloadTable {
    pub(super) fn read(
        &self,
        reader: &Reader<'_>,
        place: &str,
        fabric: &Fabric,
        nic_rate_bps: u64,
        seed: u64,
    ) -> Result<WorkloadPlan> {
        let cx = Context { reader, place, fabric, nic_rate_bps, seed };
        let kind = self.kind.ok_or_else(|| cx.wrong("kind", "`kind` is missing"))?;
        for (key, given) in self.given() {
            if given && !kind.keys().contains(&key) {
                let keys = kind.keys().join(", ");
                let why =
                    format!("does not apply to a workload of kind {}; its keys are {keys}", kind.name());
                return Err(cx.wrong(key, &why));
            }
        }
        let qps = self.qps.unwrap_or(1);
        if qps == 0 || qps > MOST_QPS {
            return Err(cx.wrong("qps", &format!("write 1 to {MOST_QPS} queue pairs for each connection")));
        }
        let workload = self.build(&cx, kind)?;
        let connections = workload.pairs().len();
        if connections == 0 || connections > MOST_CONNECTIONS {
            let why = format!(
                "this makes {connections} connections; 1 to {MOST_CONNECTIONS} can be made, fewer with fewer hosts"
            );
            return Err(cx.wrong("hosts", &why));
        }
        if connections * qps as usize > MOST_CONNECTIONS {
            let why = format!(
                "{connections} connections of {qps} queue pairs are more than {MOST_CONNECTIONS}; write a smaller number"
            );
            return Err(cx.wrong("qps", &why));
        }
        let number = place.rsplit('.').next().unwrap_or_default();
        let name = self.name.clone().unwrap_or_else(|| match number {
            "0" => kind.name().to_owned(),
            number => format!("{}-{number}", kind.name()),
        });
        Ok(WorkloadPlan { name, kind, qps, workload })
    }

    fn given(&self) -> [(&'static str, bool); 14] {
        [
            ("hosts", self.hosts.is_some()),
            ("from", self.from.is_some()),
            ("to", self.to.is_some()),
            ("by", self.by.is_some()),
            ("connections", self.connections.is_some()),
            ("size", self.size.is_some()),
            ("sizes", self.sizes.is_some()),
            ("depth", self.depth.is_some()),
            ("count", self.count.is_some()),
            ("start", self.start.is_some()),
            ("stop", self.stop.is_some()),
            ("at_a_time", self.at_a_time.is_some()),
            ("load", self.load.is_some()),
            ("file", self.file.is_some()),
        ]
    }

    fn build(&self, cx: &Context<'_>, kind: Kind) -> Result<Box<dyn Workload>> {
        let count = self.count.unwrap_or(1);
        if self.count == Some(0) {
            return Err(cx.wrong("count", "write 1 or more"));
        }
        Ok(match kind {
            Kind::Write => Box::new(Stream::new(self.each(cx, &self.ends(cx)?)?, self.stream(cx)?)),
            Kind::Permutation => {
                Box::new(Stream::new(self.each(cx, &self.permutation(cx)?)?, self.stream(cx)?))
            }
            Kind::PingPong => Box::new(PingPong::new(self.ends(cx)?, self.size(cx)?, count)),
            Kind::Neighbours => Box::new(Neighbours::new(self.several(cx)?, self.size(cx)?, count)),
            Kind::AllReduce => {
                let bytes = self.size_below(cx, u64::MAX)?;
                let hosts = self.several(cx)?;
                if bytes.div_ceil(hosts.len() as u64) > LONGEST {
                    return Err(cx.wrong("size", "the part of a host must be less than 4 GiB"));
                }
                Box::new(RingAllReduce::new(hosts, bytes, count))
            }
            Kind::AllToAll => {
                let at_a_time = self.at_a_time.unwrap_or(4);
                Box::new(AllToAll::new(self.several(cx)?, self.size(cx)?, at_a_time))
            }
            Kind::Poisson => self.poisson(cx)?,
            Kind::Trace => Box::new(self.trace(cx)?),
        })
    }

    fn hosts(&self, cx: &Context<'_>) -> Result<Vec<HostId>> {
        let text = self.hosts.as_deref().unwrap_or("all");
        cx.reader.hosts(cx.fabric, cx.place, "hosts", text)
    }

    /// At least two hosts, none of them twice.
    fn several(&self, cx: &Context<'_>) -> Result<Vec<HostId>> {
        let hosts = self.hosts(cx)?;
        let mut sorted = hosts.clone();
        sorted.sort_unstable();
        sorted.dedup();
        if hosts.len() < 2 || sorted.len() < hosts.len() {
            return Err(cx.wrong("hosts", "at least two hosts are needed, and each is named once"));
        }
        Ok(hosts)
    }

    /// The first of `from` with the first of `to`, and so on; one alone is there for all.
    fn ends(&self, cx: &Context<'_>) -> Result<Vec<(HostId, HostId)>> {
        let list = |key, value: &Option<String>| {
            let missing = || cx.wrong(key, &format!("`{key}` is missing"));
            let text = value.as_ref().ok_or_else(missing)?;
            cx.reader.hosts(cx.fabric, cx.place, key, text)
        };
        let (from, to) = (list("from", &self.from)?, list("to", &self.to)?);
        if from.len() != to.len() && from.len() != 1 && to.len() != 1 {
            let why = format!("{} hosts for {} in `from`; name as many, or one", to.len(), from.len());
            return Err(cx.wrong("to", &why));
        }
        let pairs = from.len().max(to.len());
        let pairs: Vec<_> = from.into_iter().cycle().zip(to.into_iter().cycle()).take(pairs).collect();
        match pairs.iter().find(|(from, to)| from == to) {
            Some((host, _)) => Err(cx.wrong("to", &format!("h{} sends to itself", host.0 + 1))),
            None => Ok(pairs),
        }
    }

    /// Each pair as often as it has connections.
    fn each(&self, cx: &Context<'_>, pairs: &[(HostId, HostId)]) -> Result<Vec<(HostId, HostId)>> {
        let connections = self.connections.unwrap_or(1) as usize;
        if connections == 0 || connections > MOST_CONNECTIONS / pairs.len().max(1) {
            let most = MOST_CONNECTIONS / pairs.len().max(1);
            return Err(cx.wrong("connections", &format!("write 1 to {most} connections for each two hosts")));
        }
        Ok(pairs.repeat(connections))
    }

    /// Each host sends to the one that is `by` further in the list.
    fn permutation(&self, cx: &Context<'_>) -> Result<Vec<(HostId, HostId)>> {
        let hosts = self.several(cx)?;
        let by = self.by.map_or(hosts.len() / 2, |by| by as usize);
        if by.is_multiple_of(hosts.len()) {
            return Err(cx.wrong("by", "each host would send to itself"));
        }
        let to = hosts.iter().cycle().skip(by);
        Ok(hosts.iter().zip(to).map(|(&from, &to)| (from, to)).collect())
    }

    fn stream(&self, cx: &Context<'_>) -> Result<StreamSpec> {
        let start_ns = cx.time("start", self.start.as_ref())?;
        let depth = self.depth.unwrap_or(16);
        if depth == 0 {
            return Err(cx.wrong("depth", "write 1 or more"));
        }
        Ok(StreamSpec {
            size: self.size(cx)?,
            depth,
            count: self.count.map(u64::from),
            start_ns,
            stop_ns: self.stop(cx, start_ns)?,
        })
    }

    fn stop(&self, cx: &Context<'_>, start_ns: u64) -> Result<Option<u64>> {
        let Some(stop) = &self.stop else { return Ok(None) };
        let stop_ns = cx.time("stop", Some(stop))?;
        if stop_ns <= start_ns {
            return Err(cx.wrong("stop", "it ends before it begins"));
        }
        Ok(Some(stop_ns))
    }

    fn size(&self, cx: &Context<'_>) -> Result<u32> {
        Ok(self.size_below(cx, LONGEST)? as u32)
    }

    fn size_below(&self, cx: &Context<'_>, most: u64) -> Result<u64> {
        let text = self.size.as_deref().unwrap_or("1M");
        cx.length("size", text, most)
    }

    fn poisson(&self, cx: &Context<'_>) -> Result<Box<dyn Workload>> {
        let hosts = self.several(cx)?;
        let load = self.load.ok_or_else(|| cx.wrong("load", "`load` is missing"))?;
        if !(load > 0.0 && load <= 2.0) {
            let why = "the offered share of the hosts' rate must be above 0 and at most 2";
            return Err(cx.wrong("load", why));
        }
        let sizes = match &self.sizes {
            None => Sizes::fixed(self.size(cx)?),
            Some(_) if self.size.is_some() => {
                return Err(cx.wrong("size", "leave it out, or leave out `sizes`"));
            }
            Some(points) => {
                let point = |(text, percent): &(String, f64)| {
                    Ok((cx.length("sizes", text, LONGEST)? as u32, percent / 100.0))
                };
                let points = points.iter().map(point).collect::<Result<Vec<_>>>()?;
                Sizes::new(points).map_err(|why| {
                    cx.wrong(
                        "sizes",
                        &format!("{why}; write [size, percent of messages that are no longer], up to 100"),
                    )
                })?
            }
        };
        let start_ns = cx.time("start", self.start.as_ref())?;
        let stop_ns = self.stop(cx, start_ns)?.ok_or_else(|| cx.wrong("stop", "`stop` is missing"))?;
        let offered = load * cx.nic_rate_bps as f64 * hosts.len() as f64;
        let to_others =
            |&from: &HostId| hosts.iter().filter(move |to| **to != from).map(move |&to| (from, to));
        let pairs = hosts.iter().flat_map(to_others).take(MOST_CONNECTIONS + 1).collect();
        let spec =
            PoissonSpec { sizes, offered_bps: offered as u64, during_ns: (start_ns, stop_ns), seed: cx.seed };
        Ok(Box::new(Poisson::new(pairs, spec)))
    }

    /// Reads the lines of a trace: when, who, to whom, how much, and after which line.
    fn trace(&self, cx: &Context<'_>) -> Result<Trace> {
        let file = self.file.as_ref().ok_or_else(|| cx.wrong("file", "`file` is missing"))?;
        let path = cx.reader.folder.join(file);
        let text = fs::read_to_string(&path)
            .map_err(|error| cx.wrong("file", &format!("cannot read {}: {error}", path.display())))?;
        let at = |number: usize, why: &str| usage(format!("{}: line {}: {why}", path.display(), number + 1));
        let mut entries = Vec::new();
        let mut lines = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty()
                || line.starts_with('#')
                || (entries.is_empty() && line.starts_with("start_ns"))
            {
                continue;
            }
            entries.push(trace_entry(cx.fabric, line).map_err(|why| at(number, &why))?);
            lines.push(number);
        }
        Trace::new(entries)
            .map_err(|(entry, why)| at(lines.get(entry).copied().unwrap_or_default(), &why.to_string()))
    }
}

impl Context<'_> {
    fn wrong(&self, key: &str, why: &str) -> anyhow::Error {
        self.reader.wrong(self.place, key, why)
    }

    fn time(&self, key: &str, value: Option<&String>) -> Result<u64> {
        self.reader.offset(self.place, key, value)
    }

    fn length(&self, key: &str, text: &str, most: u64) -> Result<u64> {
        let bytes = parse_size(text).map_err(|why| self.wrong(key, &why))?;
        if bytes == 0 || bytes > most {
            return Err(
                self.wrong(key, &format!("\"{text}\": a message has 1 byte or more, and less than 4 GiB"))
            );
        }
        Ok(bytes)
    }
}

/// `0,h1,h2,65536` or `500,h2,h3,65536,0`.
fn trace_entry(fabric: &Fabric, line: &str) -> Result<TraceEntry, String> {
    let fields: Vec<_> = line.split(',').map(str::trim).collect();
    let (start, from, to, bytes, after) = match *fields.as_slice() {
        [start, from, to, bytes] | [start, from, to, bytes, ""] => (start, from, to, bytes, None),
        [start, from, to, bytes, after] => (start, from, to, bytes, Some(after)),
        _ => {
            return Err(
                "write start_ns,from,to,bytes, and optionally the number of the entry that it waits for"
                    .to_owned(),
            );
        }
    };
    let host = |name: &str| {
        let host = fabric.host(name).ok_or_else(|| format!("there is no host \"{name}\""))?;
        Ok::<_, String>(HostId(host.into()))
    };
    let number = |what: &str, text: &str, most: u64| {
        let number = text.parse::<u64>().ok().filter(|&number| number <= most);
        number.ok_or_else(|| format!("{what} is \"{text}\"; write a number up to {most}"))
    };
    Ok(TraceEntry {
        start_ns: number("start_ns", start, u64::MAX)?,
        from: host(from)?,
        to: host(to)?,
        bytes: number("bytes", bytes, LONGEST)? as u32,
        after: after.map(|text| number("after", text, LONGEST)).transpose()?.map(|after| after as u32),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{assert_documented, keys_of};

    const HEADING: &str = "## `sim`";
    const KINDS: [Kind; 8] = [
        Kind::Write,
        Kind::Permutation,
        Kind::PingPong,
        Kind::Neighbours,
        Kind::AllReduce,
        Kind::AllToAll,
        Kind::Poisson,
        Kind::Trace,
    ];

    /// Each key belongs to a kind, and each kind has its row.
    #[test]
    fn every_key_is_documented() {
        assert_documented(HEADING, "[[workload]]", &["kind", "name", "qps"]);
        for kind in KINDS {
            assert_documented(HEADING, kind.name(), kind.keys());
        }
        for key in keys_of::<WorkloadTable>().iter().filter(|key| !["kind", "name", "qps"].contains(key)) {
            assert!(KINDS.iter().any(|kind| kind.keys().contains(key)), "{key} belongs to no kind");
            assert!(WorkloadTable::default().given().iter().any(|(given, _)| given == key), "{key}");
        }
    }
}
