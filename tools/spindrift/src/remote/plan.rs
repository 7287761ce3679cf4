//! Messages between client and server, over the connection that also sets up the queue pairs.

use std::fmt::Display;
use std::ops::RangeInclusive;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value as Json;

use super::planes::Planes;
use super::shift::Shift;
use crate::bench::check::TX_DEPTH_MAX;
use crate::bench::layout::Layout;
use crate::bench::operation::{Operation, Verb, Work};
use crate::bench::options::Settings;

/// Names these messages.
pub(super) const TOOL: &str = "spindrift-benchmark";
/// Version of these messages. Before 3 only clients sent signs of life, before 4 neither side told where its planes are, before 5 there
/// were writes only, before 6 no mixes, and atomic operations used other places in
/// memory, before 7 no fallback in mode `shift`.
pub(super) const VERSION: u32 = 8;
/// Most sizes of a run.
const SIZES_MAX: usize = 64;
/// Most rounds of a ping-pong: what counts them does not overflow.
const ROUNDS_MAX: u64 = 1 << 53;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Bandwidth,
    Latency,
}

/// Which benchmark: the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "&'static str")]
pub(super) struct Kind {
    pub(super) verb: Verb,
    pub(super) shape: Shape,
}

impl Kind {
    /// Every benchmark, and the name of its command.
    const NAMED: [(Self, &'static str); 9] = [
        (Self::new(Verb::Write, Shape::Bandwidth), "write-bw"),
        (Self::new(Verb::Write, Shape::Latency), "write-lat"),
        (Self::new(Verb::Send, Shape::Bandwidth), "send-bw"),
        (Self::new(Verb::Send, Shape::Latency), "send-lat"),
        (Self::new(Verb::Read, Shape::Bandwidth), "read-bw"),
        (Self::new(Verb::Read, Shape::Latency), "read-lat"),
        (Self::new(Verb::Atomic, Shape::Bandwidth), "atomic-bw"),
        (Self::new(Verb::Atomic, Shape::Latency), "atomic-lat"),
        (Self::new(Verb::Mix, Shape::Bandwidth), "mix-bw"),
    ];

    pub(super) const fn new(verb: Verb, shape: Shape) -> Self {
        Self { verb, shape }
    }

    /// Whether the raw pump does what the benchmark does: bytes go from the client to the server.
    pub(super) fn has_pump(self) -> bool {
        self.shape == Shape::Bandwidth && matches!(self.verb, Verb::Write | Verb::Send)
    }

    pub(super) fn name(self) -> &'static str {
        Self::NAMED.iter().find(|(kind, _)| *kind == self).map_or("", |(_, name)| name)
    }
}

impl From<Kind> for &'static str {
    fn from(kind: Kind) -> Self {
        kind.name()
    }
}

impl TryFrom<String> for Kind {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let found = Self::NAMED.iter().find(|(_, name)| *name == text);
        found.map(|(kind, _)| *kind).ok_or_else(|| format!("there is no benchmark {text}"))
    }
}

/// Whether an argument is the name of a benchmark.
pub(crate) fn is_benchmark(argument: &str) -> bool {
    Kind::NAMED.iter().any(|(_, name)| *name == argument)
}

/// The client's first message. The client decides; the server follows, if it can.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Plan {
    pub(super) tool: String,
    pub(super) version: u32,
    pub(super) kind: Kind,
    #[serde(flatten)]
    pub(super) work: Work,
    pub(super) queue_pairs: usize,
    pub(super) tx_depth: u32,
    pub(super) sizes: Vec<u64>,
    /// Rounds of ping-pong; unused for bandwidth.
    pub(super) rounds: u64,
    pub(super) seed: u64,
    /// The client will ask for slices of the raw pump.
    #[serde(default)]
    pub(super) with_pump: bool,
    /// Every write is compared: the client will ask for it before it uses a place again.
    #[serde(default)]
    pub(super) verify_every: bool,
    /// Both sides have two NICs, with `--fallback shift`.
    #[serde(default)]
    pub(super) shift: Option<Shift>,
    /// The client's.
    pub(super) planes: Planes,
}

impl Plan {
    /// Reads a client's first message, or says what is wrong with it. The version comes first: another one may mean
    /// other fields.
    pub(super) fn read(message: Json) -> Result<Self, String> {
        let text = |name: &str| message.get(name).map_or_else(|| "none".to_owned(), Json::to_string);
        if message.get("tool") != Some(&TOOL.into()) || message.get("version") != Some(&VERSION.into()) {
            return Err(printable(&format!(
                "the server speaks {TOOL} version {VERSION}, the client {:.40} version {:.20}; use the same spindrift on both sides",
                text("tool"),
                text("version")
            )));
        }
        check_numbers(&message)?;
        serde_json::from_value(message).map_err(|error| {
            printable(&format!("the plan is malformed: {error}; use the same spindrift on both sides"))
        })
    }

    /// The memory of each size, or why the plan cannot be followed.
    pub(super) fn layouts(&self) -> Result<Vec<Layout>, String> {
        in_bounds("queue_pairs", self.queue_pairs as u64)?;
        in_bounds("tx_depth", self.tx_depth.into())?;
        in_bounds("rounds", self.rounds)?;
        in_bounds("outs", self.work.outs.into())?;
        in_bounds("number of sizes", self.sizes.len() as u64)?;
        self.sizes
            .iter()
            .map(|&size| {
                let layout = self.work.layout(size, self.queue_pairs, self.tx_depth);
                layout.map_err(|error| format!("size {error}"))
            })
            .collect()
    }

    /// The server's check of a plan that came over the network.
    pub(super) fn check(&self, kind: Kind) -> Result<(), String> {
        if self.kind != kind {
            return Err(format!("the server runs {}, the client {}", kind.name(), self.kind.name()));
        }
        let operations = self.work.operations;
        if kind.verb != Verb::Mix && operations.verb() != kind.verb {
            return Err(format!("the plan's operation: {} does not run {operations}", kind.name()));
        }
        if operations.only().is_some_and(Operation::is_atomic) && self.sizes.iter().any(|&size| size != 8) {
            return Err("the plan's sizes: an atomic operation has 8 bytes".to_owned());
        }
        if self.work.srq && !operations.takes_receive() {
            return Err(format!("the plan's srq: {} take no receive", operations.plural()));
        }
        if self.work.srq && operations.only().is_none() {
            return Err("the plan's srq: a mix has receives of its own for each queue pair".to_owned());
        }
        if self.with_pump && !kind.has_pump() {
            return Err(format!("--yardstick is for write-bw and send-bw, not for {}", kind.name()));
        }
        self.planes.check()?;
        self.layouts().map(drop)
    }
}

/// Every number of a plan, and what it may be.
const BOUNDS: [(&str, RangeInclusive<u64>); 7] = [
    ("outs", 1..=u8::MAX as u64),
    ("queue_pairs", 1..=Settings::QPS_MAX as u64),
    ("tx_depth", 1..=TX_DEPTH_MAX),
    ("rounds", 0..=ROUNDS_MAX),
    ("seed", 0..=u64::MAX),
    ("number of sizes", 1..=SIZES_MAX as u64),
    ("sizes", 1..=u32::MAX as u64),
];

/// Refuses a number that is none of what its field may be.
fn in_bounds(field: &str, number: u64) -> Result<(), String> {
    number_in_bounds(field, Some(number), &number)
}

fn number_in_bounds(field: &str, number: Option<u64>, text: &dyn Display) -> Result<(), String> {
    let Some((_, range)) = BOUNDS.iter().find(|(name, _)| *name == field) else { return Ok(()) };
    if number.is_some_and(|number| range.contains(&number)) {
        return Ok(());
    }
    let (least, most) = (range.start(), range.end());
    Err(printable(&format!("the plan's {field}: {text:.40}; {least} to {most} can be used")))
}

/// Checks the numbers of a plan as it came, before anything is made of it.
fn check_numbers(plan: &Json) -> Result<(), String> {
    for (field, _) in BOUNDS {
        match plan.get(field) {
            Some(Json::Array(numbers)) if field == "sizes" => {
                in_bounds("number of sizes", numbers.len() as u64)?;
                numbers.iter().try_for_each(|size| number_in_bounds(field, size.as_u64(), &brief(size)))?;
            }
            Some(value) => {
                let number = value.as_u64().filter(|_| field != "sizes");
                number_in_bounds(field, number, &brief(value))?;
            }
            None => {}
        }
    }
    Ok(())
}

/// A value that is no number, cut short.
fn brief(value: &Json) -> String {
    match value {
        Json::Array(_) => "a list".to_owned(),
        Json::Object(_) => "an object".to_owned(),
        other => other.to_string(),
    }
}

/// A peer's words end up on a terminal: a line of plain characters.
fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(1_000).collect()
}

pub(super) fn printable_text<'de, D: Deserializer<'de>>(peer: D) -> Result<String, D::Error> {
    String::deserialize(peer).map(|text| printable(&text))
}

fn printable_option<'de, D: Deserializer<'de>>(peer: D) -> Result<Option<String>, D::Error> {
    Option::<String>::deserialize(peer).map(|text| text.map(|text| printable(&text)))
}

/// Messages behind the plan.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub(super) enum Message {
    /// Server: the plan will be followed, on these planes.
    Accept { planes: Planes },
    /// Server: it will not.
    Refuse {
        #[serde(deserialize_with = "printable_text")]
        reason: String,
    },
    /// Client: get ready for this size.
    Begin { index: usize },
    /// Client: its ports and memory are there. Server: memory is ready for this size.
    Ready,
    /// Either: it lives.
    Alive,
    /// Client: get ready to receive a slice of the raw pump, packets with so many bytes of payload.
    Pump { payload_bytes: usize },
    /// Server: ready, on this UDP port of the first plane's address.
    PumpReady { port: u16 },
    /// Client: everything was sent.
    PumpSent,
    /// Server: what came, from the first to the last packet.
    Pumped { payload_bytes: u64, elapsed_ns: u64 },
    /// Client: so many writes on each queue pair are complete, and no more are sent before the verdict.
    Compare { writes: Vec<u64> },
    /// Client: this size is done, with so many writes on each queue pair, `measured` of them after the warm-up.
    Done { writes: Vec<u64>, measured: u64 },
    /// Client: no more is measured of this size. So many messages on each queue pair are complete.
    Close { writes: Vec<u64> },
    /// Server: so many messages of each queue pair consume the receives that are still posted.
    Closed { of_each: u64 },
    /// Server: what memory holds.
    Verdict {
        verified: bool,
        #[serde(deserialize_with = "printable_option")]
        reason: Option<String>,
    },
    /// Client: the end.
    Finish,
}

impl Message {
    /// For an error message: what came instead of what was expected.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Accept { .. } => "accept",
            Self::Refuse { .. } => "refuse",
            Self::Begin { .. } => "begin",
            Self::Ready => "ready",
            Self::Alive => "alive",
            Self::Pump { .. } => "pump",
            Self::PumpReady { .. } => "pump-ready",
            Self::PumpSent => "pump-sent",
            Self::Pumped { .. } => "pumped",
            Self::Compare { .. } => "compare",
            Self::Done { .. } => "done",
            Self::Close { .. } => "close",
            Self::Closed { .. } => "closed",
            Self::Verdict { .. } => "verdict",
            Self::Finish => "finish",
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
    use super::*;

    fn plan() -> Json {
        serde_json::json!({
            "tool": TOOL, "version": VERSION, "kind": "write-bw", "queue_pairs": 1, "tx_depth": 1,
            "operation": "write", "outs": 16, "srq": false,
            "sizes": [64], "rounds": 0, "seed": 1, "with_pump": false,
            "planes": {"addresses": ["127.0.0.1"], "connection": ["127.0.0.1:1", "127.0.0.1:2"]}
        })
    }

    /// The most of each number that is accepted, and the next one and the largest that JSON has, which are refused by name.
    #[test]
    fn every_number_of_a_plan_has_a_bound() {
        let most: [(&str, u64); 6] = [
            ("outs", 255),
            ("queue_pairs", 1024),
            ("tx_depth", 16_384),
            ("rounds", ROUNDS_MAX),
            ("seed", u64::MAX),
            ("version", VERSION.into()),
        ];
        let read = |field: &str, value: Json| {
            let mut plan = plan();
            plan[field] = value;
            Plan::read(plan).and_then(|plan| plan.layouts().map(|_| plan))
        };
        let refused = |field: &str, value: Json| {
            let error = read(field, value.clone()).unwrap_err();
            assert!(error.contains(field) && error.len() < 300, "{field} {value}: {error}");
        };
        for (field, most) in most {
            assert!(read(field, most.into()).is_ok(), "{field}");
            if let Some(next) = most.checked_add(1) {
                refused(field, next.into());
                refused(field, u64::MAX.into());
            }
            for value in ["-1", "1.5", "1e300", "null", "[]", "[0]", "{}", "true", "\"1\""] {
                refused(field, serde_json::from_str(value).unwrap());
            }
        }
        assert!(read("sizes", vec![64; SIZES_MAX].into()).is_ok());
        assert!(read("sizes", vec![u32::MAX].into()).is_ok());
        for sizes in
            ["[]", "5", "[-1]", "[0]", "[4294967296]", "[18446744073709551615]", "[64, 1.5]", "[[64]]"]
        {
            refused("sizes", serde_json::from_str(sizes).unwrap());
        }
        refused("sizes", vec![64; SIZES_MAX + 1].into());
        for (field, value) in [("queue_pairs", 0), ("tx_depth", 0), ("outs", 0)] {
            refused(field, value.into());
        }
        // No field that is a number is missing here.
        let plan = plan();
        let numbers =
            plan.as_object().unwrap().iter().filter(|(_, value)| value.is_number() || value.is_array());
        for (field, _) in numbers {
            assert!(
                field == "version" || BOUNDS.iter().any(|(name, _)| name == field),
                "{field} has no bound"
            );
        }
    }

    /// A server follows the plans of its own benchmark only, and `mix-bw` any mix.
    #[test]
    fn operations_fit_the_benchmark() {
        let check = |kind: &str, operation: &str, srq: bool| {
            let mut plan = plan();
            (plan["kind"], plan["operation"], plan["srq"]) = (kind.into(), operation.into(), srq.into());
            let plan = Plan::read(plan).unwrap();
            plan.check(plan.kind)
        };
        let refused = |kind, operation, srq, part: &str| {
            let error = check(kind, operation, srq).unwrap_err();
            assert!(error.contains(part), "{kind} {operation}: {error}");
        };
        refused("write-bw", "write=1,send=1", false, "write-bw does not run write=1,send=1");
        refused("write-bw", "send", false, "write-bw does not run send");
        refused("atomic-bw", "fetch-add", false, "an atomic operation has 8 bytes");
        refused("write-bw", "write", true, "RDMA writes take no receive");
        refused("mix-bw", "write=1,send=1", true, "a mix has receives of its own");
        for (kind, operation) in
            [("write-bw", "write-imm"), ("mix-bw", "send"), ("mix-bw", "write=1,fetch-add=1")]
        {
            assert_eq!(check(kind, operation, false), Ok(()), "{kind} {operation}");
        }
        let mut other = plan();
        other["kind"] = "read-bw".into();
        let ours = Kind::new(Verb::Write, Shape::Bandwidth);
        assert!(
            Plan::read(other).unwrap().check(ours).unwrap_err().contains("runs write-bw, the client read-bw")
        );
    }

    /// Each number may be in bounds, and all of them together be too much.
    #[test]
    fn the_largest_plan_is_refused() {
        let mut largest = plan();
        for (field, value) in [("queue_pairs", 1024), ("tx_depth", 16_384)] {
            largest[field] = value.into();
        }
        largest["sizes"] = vec![u32::MAX; SIZES_MAX].into();
        let error = Plan::read(largest).unwrap().layouts().unwrap_err();
        assert!(error.contains("1024 queue pairs with writes of that size need 8192 GiB"), "{error}");
    }

    #[test]
    fn what_a_peer_says_cannot_steer_a_terminal() {
        for message in [
            r#"{"type":"refuse","reason":"no\u001b[2J\nroom\u009b"}"#,
            r#"{"type":"verdict","verified":false,"reason":"no\u001b[2J\nroom\u009b"}"#,
        ] {
            let said = match serde_json::from_str(message).unwrap() {
                Message::Refuse { reason } => reason,
                Message::Verdict { reason, .. } => reason.unwrap(),
                other => panic!("{other:?}"),
            };
            assert_eq!(said, "no[2Jroom");
        }
        let none = serde_json::from_str(r#"{"type":"verdict","verified":true,"reason":null}"#).unwrap();
        assert!(matches!(none, Message::Verdict { verified: true, reason: None }));
    }
}
