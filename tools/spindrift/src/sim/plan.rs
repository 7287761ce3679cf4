//! Plans: TOML files that say which fabric, which hosts, which traffic, and which faults. `docs/cli.md` lists the keys.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde::Deserialize;
use spindrift_fabric::{ClosSpec, HostId, PfcSpec, QueueRules};
use spindrift_srv6::{Fabric, FabricError, Node};

use super::claim::{Claim, ClaimTable};
use super::fault::FaultPlan;
use super::flaps::FlapsTable;
use super::nic::{HostTable, NicTables, Nics, TransportKind, TransportTable};
use super::roce::{self, DcqcnTable, PfcTable};
use super::workload::{WorkloadPlan, WorkloadTable};
use crate::config::{Cc, PathSet};
use crate::times::FaultTable;
use crate::toml_file::TomlFile;
use crate::topology;
use crate::units::{parse_duration, parse_offset, parse_rate};
use crate::usage::usage;

/// Most hosts whose samples are kept unless the plan names them.
pub(super) const MOST_RECORDED: usize = 64;
/// Most samples of a run.
const MOST_SAMPLES: u128 = 100_000;

/// A plan file: one simulation, or several variants that differ in some settings.
#[derive(Debug)]
pub(super) struct PlanFile {
    pub(super) name: String,
    pub(super) title: String,
    pub(super) figure: FigureKind,
    /// What the paper shows, and how this differs from it.
    pub(super) paper: Option<String>,
    pub(super) scale: Option<String>,
    pub(super) variants: Vec<Plan>,
}

/// What the picture of a plan shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum FigureKind {
    /// What happened, over time.
    #[default]
    Time,
    /// What came of each variant.
    Variants,
}

/// What one simulation is made of.
#[derive(Debug)]
pub(super) struct Plan {
    /// The name of the variant; empty if the plan has none.
    pub(super) variant: String,
    pub(super) duration_ns: u64,
    pub(super) sample_ns: u64,
    pub(super) seed: u64,
    pub(super) clos: ClosSpec,
    pub(super) fabric: Fabric,
    /// How each host runs the transport.
    pub(super) nics: Nics,
    pub(super) workloads: Vec<WorkloadPlan>,
    pub(super) faults: Vec<FaultPlan>,
    pub(super) hosts: Vec<HostId>,
    pub(super) links: Vec<(Node, Node)>,
    pub(super) claims: Vec<Claim>,
    pub(super) capture: Option<Capture>,
}

/// Packets that are written to a file.
#[derive(Debug)]
pub(super) struct Capture {
    pub(super) path: PathBuf,
    /// Where they are seen: links, each in the direction in which it is named.
    pub(super) links: BTreeSet<(Node, Node)>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// `[experiment]` is the former name, accepted for one version.
    #[serde(alias = "experiment")]
    plan: PlanTable,
    #[serde(default)]
    fabric: FabricTable,
    #[serde(default)]
    transport: TransportTable,
    #[serde(default)]
    pfc: PfcTable,
    /// Tables of one kind of transport: that they are there is enough to be wrong with the other.
    dcqcn: Option<DcqcnTable>,
    path: Option<PathSet>,
    cc: Option<Cc>,
    #[serde(default)]
    host: Vec<HostTable>,
    #[serde(default)]
    record: RecordTable,
    #[serde(default)]
    workload: Vec<WorkloadTable>,
    #[serde(default)]
    fault: Vec<FaultTable>,
    #[serde(default)]
    flaps: Vec<FlapsTable>,
    #[serde(default)]
    claim: Vec<ClaimTable>,
    #[serde(default)]
    variant: Vec<VariantTable>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct PlanTable {
    title: Option<String>,
    duration: Option<String>,
    sample: Option<String>,
    seed: Option<u64>,
    figure: FigureKind,
    paper: Option<String>,
    scale: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct FabricTable {
    planes: Option<u8>,
    t0: Option<u16>,
    t1: Option<u16>,
    pods: Option<u16>,
    t2: Option<u16>,
    hosts_per_t0: Option<u16>,
    host_rate: Option<String>,
    trunk_rate: Option<String>,
    host_delay: Option<String>,
    trunk_delay: Option<String>,
    queue: Option<String>,
    last_hop_queue: Option<String>,
    control_queue: Option<String>,
    ecn: Option<bool>,
    ecn_low: Option<String>,
    ecn_high: Option<String>,
    ecn_on_last_hop: Option<bool>,
    trim: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RecordTable {
    hosts: Option<String>,
    links: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct VariantTable {
    name: String,
    #[serde(default)]
    set: toml::Table,
}

/// The seed that a plan is read with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SeedChoice {
    /// Overrides the plan's.
    pub(super) given: Option<u64>,
    /// Added to it: 0 for the first of several seeds.
    pub(super) offset: u64,
}

impl SeedChoice {
    /// `of_plan` is that of the plan, if it has one.
    fn of(self, of_plan: Option<u64>) -> u64 {
        self.given.or(of_plan).unwrap_or(1).wrapping_add(self.offset)
    }
}

/// The text of a plan, which is read once for each seed.
#[derive(Debug)]
pub(super) struct PlanSource {
    /// The name of the file without its ending.
    pub(super) name: String,
    file: TomlFile,
    /// Paths in the plan start here.
    folder: PathBuf,
}

impl PlanSource {
    pub(super) fn of_file(path: &Path) -> Result<Self> {
        Ok(Self {
            name: path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
            file: TomlFile::read(path, "plan")?.renamed("plan", FORMER),
            folder: path.parent().unwrap_or(Path::new("")).to_owned(),
        })
    }

    pub(super) fn of_text(name: &str, text: &str) -> Self {
        let file = TomlFile::of(format!("{name}.toml"), text);
        Self { name: name.to_owned(), file, folder: PathBuf::new() }
    }

    /// The plan with all of its variants.
    pub(super) fn read(&self, seed: SeedChoice) -> Result<PlanFile> {
        let Self { name, file, folder } = self;
        PlanFile::from_file(name.clone(), file, folder, seed)
    }
}

impl PlanFile {
    /// Of a file whose name without its ending is `name`; what it names is in `folder`.
    fn from_file(name: String, file: &TomlFile, folder: &Path, seed: SeedChoice) -> Result<Self> {
        let tables: File = file.parse()?;
        let title = file.needed("plan", "title", tables.plan.title.clone())?;
        let PlanTable { figure, paper, scale, .. } = tables.plan.clone();
        for (number, claim) in tables.claim.iter().enumerate() {
            for (key, name) in claim.variants() {
                if tables.variant.iter().all(|variant| variant.name != name) {
                    let why = format!("there is no variant \"{name}\"");
                    return Err(file.wrong(&format!("claim.{number}"), key, &why));
                }
            }
        }
        let base = Reader { file, folder, seed, variant: None };
        if tables.variant.is_empty() {
            if figure == FigureKind::Variants {
                return Err(file.wrong("plan", "figure", "there is no [[variant]] to compare"));
            }
            let only = base.plan(String::new(), tables)?;
            return Ok(Self { name, title, figure, paper, scale, variants: vec![only] });
        }
        let mut variants: Vec<Plan> = Vec::new();
        for (number, table) in tables.variant.iter().enumerate() {
            let reader = Reader { file, folder, seed, variant: Some((number, &table.set)) };
            let wrong = |why: &str| file.wrong(&format!("variant.{number}"), "name", why);
            if variants.iter().any(|other| other.variant == table.name) || table.name.is_empty() {
                return Err(wrong("each variant needs its own name"));
            }
            if !fits_in_a_table(&table.name) {
                return Err(wrong(UNFIT));
            }
            variants.push(reader.plan(table.name.clone(), reader.changed()?)?);
        }
        Ok(Self { name, title, figure, paper, scale, variants })
    }
}

/// Reads tables, and says where something is wrong.
pub(super) struct Reader<'a> {
    file: &'a TomlFile,
    pub(super) folder: &'a Path,
    seed: SeedChoice,
    /// The number of the variant, and what it changes.
    variant: Option<(usize, &'a toml::Table)>,
}

impl Reader<'_> {
    /// Something is wrong with a key of a table: where the variant has set it, or else where the file has it.
    pub(super) fn wrong(&self, table: &str, key: &str, why: &str) -> anyhow::Error {
        if let Some((number, set)) = self.variant {
            let name = format!("{table}.{key}");
            // A key with dots has no place of its own.
            if set.keys().any(|key| current_key(key) == name) {
                return self.file.wrong(&format!("variant.{number}"), "set", &format!("{name}: {why}"));
            }
        }
        self.file.wrong(table, key, why)
    }

    /// What the file says with the variant's changes.
    fn changed(&self) -> Result<File> {
        let Some((number, set)) = self.variant else { return self.file.parse() };
        let wrong = |why: &str| self.file.wrong(&format!("variant.{number}"), "set", why);
        let mut whole: toml::Table = self.file.parse()?;
        // A file with both names is refused when it is parsed.
        if let Some(table) = whole.remove(FORMER) {
            whole.insert("plan".to_owned(), table);
        }
        for (key, value) in set {
            put(&mut whole, &current_key(key), value).map_err(|why| wrong(&format!("{key}: {why}")))?;
        }
        whole.try_into().map_err(|error: toml::de::Error| wrong(error.message()))
    }

    /// Something is wrong with a whole table.
    fn wrong_table(&self, table: &str, why: &str) -> anyhow::Error {
        let of_table = |key: &&String| current_key(key).split('.').next() == Some(table);
        let place = match self.variant.map(|(number, set)| (number, set.keys().find(of_table))) {
            Some((number, Some(key))) => {
                return self.file.wrong(&format!("variant.{number}"), "set", &format!("{key}: {why}"));
            }
            _ => self.file.place(table),
        };
        usage(format!("{}: {why}", place.unwrap_or_else(|| self.file.name().to_owned())))
    }

    pub(super) fn time(&self, table: &str, key: &str, value: Option<&String>, default: u64) -> Result<u64> {
        let Some(text) = value else { return Ok(default) };
        let time = parse_duration(text).map_err(|why| self.wrong(table, key, &why))?;
        u64::try_from(time.as_nanos()).map_err(|_| self.wrong(table, key, "this is too long"))
    }

    /// Likewise, of a time that may be 0.
    pub(super) fn offset(&self, table: &str, key: &str, value: Option<&String>) -> Result<u64> {
        let time = parse_offset(value.map(String::as_str)).map_err(|why| self.wrong(table, key, &why))?;
        u64::try_from(time.as_nanos()).map_err(|_| self.wrong(table, key, "this is too long"))
    }

    pub(super) fn rate(&self, table: &str, key: &str, value: Option<&String>, default: u64) -> Result<u64> {
        value.map_or(Ok(default), |text| parse_rate(text).map_err(|why| self.wrong(table, key, &why)))
    }

    fn plan(&self, variant: String, mut file: File) -> Result<Plan> {
        let duration = self.file.needed("plan", "duration", file.plan.duration.as_ref())?;
        let duration_ns = self.time("plan", "duration", Some(duration), 0)?;
        let sample_ns = self.time("plan", "sample", file.plan.sample.as_ref(), duration_ns / 100)?;
        let sample_ns = sample_ns.max(1);
        if u128::from(duration_ns) > MOST_SAMPLES * u128::from(sample_ns) {
            let why = format!("at most {MOST_SAMPLES} samples are taken; use a longer interval");
            return Err(self.wrong("plan", "sample", &why));
        }
        let mut clos = self.clos(&file.fabric)?;
        let fabric = clos.fabric().map_err(|error| match &error {
            FabricError::Range { setting, .. } | FabricError::Pods { setting, .. } => {
                self.wrong("fabric", setting, &error.to_string())
            }
            FabricError::Apart(_) => self.wrong("fabric", "t1", &error.to_string()),
            _ => self.wrong("fabric", "hosts_per_t0", &error.to_string()),
        })?;
        if file.workload.is_empty() {
            return Err(usage(format!("{}: there is no [[workload]] in it", self.file.name())));
        }
        let seed = self.seed.of(file.plan.seed);
        let (nics, queues) = self.nics(&mut file, &clos, &fabric)?;
        clos.queues = queues;
        let workloads = self.workloads(&file.workload, &fabric, &clos, seed)?;
        let faults = file.fault.iter().enumerate().map(|(number, table)| {
            let whole = format!("fault.{number}");
            let (place, action, times) = table.read(self.file, &whole)?;
            let plan = FaultPlan::new(&fabric, place, action, times)
                .map_err(|(key, why)| self.wrong(&whole, key, &why))?;
            if plan.denies() && nics.kind() == TransportKind::Roce {
                let why =
                    "RoCE has no paths to choose from; leave the fault out, or use transport.kind = \"mrc\"";
                return Err(self.wrong(&whole, "action", why));
            }
            Ok(plan)
        });
        let mut faults = faults.collect::<Result<Vec<_>>>()?;
        let hosts = self.recorded_hosts(&file.record, &fabric, &workloads)?;
        let links = self.recorded_links(&file.record, &fabric, &faults)?;
        for (number, table) in file.flaps.iter().enumerate() {
            faults.extend(table.read(self, number, &fabric, (duration_ns, seed))?);
        }
        let claims = Vec::new();
        let mut plan = Plan {
            variant,
            duration_ns,
            sample_ns,
            seed,
            clos,
            fabric,
            nics,
            workloads,
            faults,
            hosts,
            links,
            claims,
            capture: None,
        };
        let claims = file.claim.iter().enumerate().filter(|(_, table)| table.is_about(&plan.variant));
        let claims = claims.map(|(number, table)| table.read(self, &format!("claim.{number}"), &plan));
        plan.claims = claims.collect::<Result<_>>()?;
        Ok(plan)
    }

    /// How hosts run their transport, and the queues that go with it.
    fn nics(&self, file: &mut File, clos: &ClosSpec, fabric: &Fabric) -> Result<(Nics, QueueRules)> {
        let (transport, host) = (&file.transport, &file.host);
        transport.check(self)?;
        let kind = transport.kind;
        let mtu = transport.mtu.unwrap_or(4096);
        let pfc = file.pfc.read(self, kind, clos, mtu)?;
        self.check_fabric(&file.fabric, kind, pfc.as_ref())?;
        let unfit = match kind {
            TransportKind::Mrc => &[("dcqcn", file.dcqcn.is_some())][..],
            TransportKind::Roce => {
                &[("path", file.path.is_some()), ("cc", file.cc.is_some()), ("host", !host.is_empty())]
            }
        };
        if let Some((table, _)) = unfit.iter().find(|(_, given)| *given) {
            return Err(self.wrong_table(table, &kind.unfit()));
        }
        match kind {
            TransportKind::Mrc => {
                let (path, cc) = (file.path.take().unwrap_or_default(), file.cc.take().unwrap_or_default());
                let nics = NicTables { transport, path, cc }.read(self, clos, fabric, host)?;
                Ok((Nics::Mrc(nics), QueueRules { pfc, ..clos.queues }))
            }
            TransportKind::Roce => {
                let (nic, queues) = roce::nic(self, clos, transport, file.dcqcn.as_ref(), pfc)?;
                let table = &file.fabric;
                let given =
                    |key, value: &Option<String>, usual| self.time("fabric", key, value.as_ref(), usual);
                let queues = QueueRules {
                    limit_ns: given("queue", &table.queue, queues.limit_ns)?,
                    last_hop_limit_ns: given(
                        "last_hop_queue",
                        &table.last_hop_queue,
                        queues.last_hop_limit_ns,
                    )?,
                    control_limit_ns: given("control_queue", &table.control_queue, queues.control_limit_ns)?,
                    ecn_on_last_hop: table.ecn_on_last_hop.unwrap_or(queues.ecn_on_last_hop),
                    ..queues
                };
                Ok((Nics::Roce(nic), queues))
            }
        }
    }

    /// Refuses keys of queues that something else takes the place of.
    fn check_fabric(&self, table: &FabricTable, kind: TransportKind, pfc: Option<&PfcSpec>) -> Result<()> {
        let wrong = |key: &str, why: &str| Err(self.wrong("fabric", key, why));
        let marks = [
            ("ecn", table.ecn.is_some()),
            ("ecn_low", table.ecn_low.is_some()),
            ("ecn_high", table.ecn_high.is_some()),
        ];
        if let Some((key, _)) = marks.iter().find(|(_, given)| kind == TransportKind::Roce && *given) {
            return wrong(key, "with RoCE, `kmin`, `kmax` and `pmax` of [dcqcn] say when packets are marked");
        }
        if kind == TransportKind::Roce && table.trim.is_some() {
            return wrong("trim", "RoCE packets are not trimmed; leave it out");
        }
        let limits = [
            ("queue", table.queue.is_some()),
            ("last_hop_queue", table.last_hop_queue.is_some()),
            ("trim", table.trim == Some(true)),
        ];
        match limits.iter().find(|(_, given)| pfc.is_some() && *given) {
            Some((key, _)) => wrong(
                key,
                "has no effect with PFC, whose buffer takes its place; leave it out, or set enabled = false in [pfc]",
            ),
            None => Ok(()),
        }
    }

    fn workloads(
        &self,
        tables: &[WorkloadTable],
        fabric: &Fabric,
        clos: &ClosSpec,
        seed: u64,
    ) -> Result<Vec<WorkloadPlan>> {
        let mut workloads: Vec<WorkloadPlan> = Vec::new();
        for (number, table) in tables.iter().enumerate() {
            let place = format!("workload.{number}");
            let plan = table.read(self, &place, fabric, clos.nic_rate_bps(), seed)?;
            if workloads.iter().any(|other| other.name == plan.name) {
                let why = format!("two workloads are called {}; give each a `name`", plan.name);
                return Err(self.wrong(&place, "name", &why));
            }
            if !fits_in_a_table(&plan.name) {
                return Err(self.wrong(&place, "name", UNFIT));
            }
            workloads.push(plan);
        }
        Ok(workloads)
    }

    fn clos(&self, table: &FabricTable) -> Result<ClosSpec> {
        let rate = |key, value: &Option<String>, default| self.rate("fabric", key, value.as_ref(), default);
        let time = |key, value: &Option<String>, default| self.time("fabric", key, value.as_ref(), default);
        let t0 = table.t0.unwrap_or(2);
        let pods = table.pods.unwrap_or(1);
        let host_rate_bps = rate("host_rate", &table.host_rate, 100_000_000_000)?;
        let host_delay_ns = time("host_delay", &table.host_delay, 1_000)?;
        let links = ClosSpec {
            planes: table.planes.unwrap_or(1),
            t0,
            t1: table.t1.unwrap_or(if t0 > 1 { 2 } else { 0 }),
            pods,
            t2: table.t2.unwrap_or(if pods > 1 { 2 } else { 0 }),
            hosts_per_t0: table.hosts_per_t0.unwrap_or(2),
            host_rate_bps,
            trunk_rate_bps: rate("trunk_rate", &table.trunk_rate, host_rate_bps)?,
            host_delay_ns,
            trunk_delay_ns: time("trunk_delay", &table.trunk_delay, host_delay_ns)?,
            queues: QueueRules::for_rtt(1),
        };
        let usual = QueueRules::for_rtt(base_rtt_ns(&links));
        let (low, high) = usual.ecn_ns.unwrap_or_default();
        let low = time("ecn_low", &table.ecn_low, low)?;
        let high = time("ecn_high", &table.ecn_high, high.max(low))?;
        if high < low {
            return Err(self.wrong("fabric", "ecn_high", "this must not be below `ecn_low`"));
        }
        let queues = QueueRules {
            limit_ns: time("queue", &table.queue, usual.limit_ns)?,
            last_hop_limit_ns: time("last_hop_queue", &table.last_hop_queue, usual.last_hop_limit_ns)?,
            control_limit_ns: time("control_queue", &table.control_queue, usual.control_limit_ns)?,
            ecn_ns: table.ecn.unwrap_or(true).then_some((low, high)),
            ecn_on_last_hop: table.ecn_on_last_hop.unwrap_or(usual.ecn_on_last_hop),
            trim_bytes: usual.trim_bytes.filter(|_| table.trim.unwrap_or(true)),
            ..usual
        };
        Ok(ClosSpec { queues, ..links })
    }

    /// Hosts by name: `all`, or names and ranges of names, `h1-h4, h9`.
    pub(super) fn hosts(&self, fabric: &Fabric, table: &str, key: &str, text: &str) -> Result<Vec<HostId>> {
        let all = fabric.hosts().len() as u32;
        if text.trim() == "all" {
            return Ok((0..all).map(HostId).collect());
        }
        let host = |name: &str| {
            fabric.host(name).map(u32::from).ok_or_else(|| {
                let why = format!("there is no host \"{name}\"; they are called h1 to h{all}");
                self.wrong(table, key, &why)
            })
        };
        let mut hosts = Vec::new();
        for piece in text.split(',').map(str::trim) {
            let (first, last) = piece.split_once('-').unwrap_or((piece, piece));
            let (first, last) = (host(first.trim())?, host(last.trim())?);
            if first > last {
                return Err(self.wrong(table, key, &format!("\"{piece}\" ends before it begins")));
            }
            hosts.extend((first..=last).map(HostId));
        }
        Ok(hosts)
    }

    /// Those that the plan names, or those that the workloads use if they are not too many.
    fn recorded_hosts(
        &self,
        record: &RecordTable,
        fabric: &Fabric,
        workloads: &[WorkloadPlan],
    ) -> Result<Vec<HostId>> {
        let mut hosts = if let Some(text) = &record.hosts {
            self.hosts(fabric, "record", "hosts", text)?
        } else {
            let pairs = workloads.iter().flat_map(|plan| plan.workload.pairs());
            pairs.flat_map(|(one, other)| [one, other]).collect()
        };
        hosts.sort_unstable();
        hosts.dedup();
        if record.hosts.is_none() {
            hosts.truncate(MOST_RECORDED);
        }
        Ok(hosts)
    }

    /// Those that the plan names, in the direction in which it does, and those that faults are about, in both.
    fn recorded_links(
        &self,
        record: &RecordTable,
        fabric: &Fabric,
        faults: &[FaultPlan],
    ) -> Result<Vec<(Node, Node)>> {
        let mut links = Vec::new();
        if record.links == ["all"] {
            return Ok(fabric.links().flat_map(|(lower, upper)| [(lower, upper), (upper, lower)]).collect());
        }
        for (number, text) in record.links.iter().enumerate() {
            let wrong = |why: String| self.wrong("record", &format!("links.{number}"), &why);
            links.push(topology::way(fabric, text).map_err(wrong)?);
        }
        for (lower, upper) in faults.iter().flat_map(|fault| fault.links(fabric)) {
            for way in [(lower, upper), (upper, lower)] {
                if !links.contains(&way) && links.len() < MOST_RECORDED {
                    links.push(way);
                }
            }
        }
        Ok(links)
    }
}

/// The round-trip time of the longest path of an idle fabric: a full packet one way, a SACK back.
pub(super) fn base_rtt_ns(spec: &ClosSpec) -> u64 {
    const FULL: u64 = 4_300;
    const ANSWER: u64 = 200;
    spec.base_rtt_ns(FULL, ANSWER)
}

/// What is wrong with a name that [does not fit](fits_in_a_table).
const UNFIT: &str = "a name must not contain commas, quotation marks or line ends";

/// Whether a name can stand in a table of comma-separated values as it is.
fn fits_in_a_table(name: &str) -> bool {
    !name.contains([',', '"']) && !name.contains(char::is_control)
}

/// The former name of the table `[plan]`, accepted for one version.
const FORMER: &str = "experiment";

/// A key of a variant's `set`, with the present name of its table.
fn current_key(key: &str) -> Cow<'_, str> {
    match key.split_once('.') {
        Some((FORMER, rest)) => format!("plan.{rest}").into(),
        _ => key.into(),
    }
}

/// Puts a value at a key such as `fabric.t1` or `workload.0.size`.
fn put(whole: &mut toml::Table, key: &str, value: &toml::Value) -> Result<(), String> {
    let (path, last) = key.rsplit_once('.').ok_or("write a section and a key, as in fabric.t1")?;
    let mut parts = path.split('.');
    let first = parts.next().unwrap_or_default();
    let mut at = whole.entry(first).or_insert_with(|| toml::Value::Table(toml::Table::new()));
    for part in parts {
        let next = match at {
            toml::Value::Array(list) => part.parse::<usize>().ok().and_then(|number| list.get_mut(number)),
            toml::Value::Table(table) => table.get_mut(part),
            _ => None,
        };
        at = next
            .ok_or_else(|| format!("there is no {part} in it; lists count from 0, as in workload.0.size"))?;
    }
    let table = at.as_table_mut().ok_or("write the number of one of the list, as in workload.0.size")?;
    table.insert(last.to_owned(), value.clone());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{assert_documented, keys_of};

    const HEADING: &str = "## `sim`";

    #[test]
    fn every_key_is_documented() {
        for (section, keys) in [
            ("[plan]", keys_of::<PlanTable>()),
            ("[fabric]", keys_of::<FabricTable>()),
            ("[record]", keys_of::<RecordTable>()),
            ("[[claim]]", keys_of::<ClaimTable>()),
            ("[[variant]]", keys_of::<VariantTable>()),
        ] {
            assert_documented(HEADING, section, keys);
        }
    }
}
