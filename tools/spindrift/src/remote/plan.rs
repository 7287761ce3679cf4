//! What client and server tell each other, over the connection that also sets the queue pairs up.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value as Json;

use super::planes::Planes;
use crate::bench::layout::Layout;

/// Names these messages.
pub(super) const TOOL: &str = "spindrift-benchmark";
/// Version of these messages. Before 3 only clients sent signs of life, before 4 neither side told where its planes are.
pub(super) const VERSION: u32 = 4;
/// Most sizes of a run.
const SIZES_MAX: usize = 64;

/// Which benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    WriteBw,
    WriteLat,
}

impl Kind {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::WriteBw => "write-bw",
            Self::WriteLat => "write-lat",
        }
    }
}

/// The client's first message. The client decides; the server follows, if it can.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Plan {
    pub(super) tool: String,
    pub(super) version: u32,
    pub(super) kind: Kind,
    pub(super) queue_pairs: usize,
    pub(super) tx_depth: u32,
    pub(super) sizes: Vec<u64>,
    /// Rounds of ping-pong; unused for bandwidth.
    pub(super) rounds: u64,
    pub(super) seed: u64,
    /// The client will ask for slices of the raw pump.
    #[serde(default)]
    pub(super) with_pump: bool,
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
        serde_json::from_value(message).map_err(|error| {
            printable(&format!("the plan is malformed: {error}; use the same spindrift on both sides"))
        })
    }

    /// The memory of each size, or why the plan cannot be followed.
    pub(super) fn layouts(&self) -> Result<Vec<Layout>, String> {
        if self.sizes.is_empty() || self.sizes.len() > SIZES_MAX {
            return Err(format!("{} sizes; 1 to {SIZES_MAX} can be measured", self.sizes.len()));
        }
        self.sizes
            .iter()
            .map(|&size| {
                Layout::new(size, self.queue_pairs, self.tx_depth).map_err(|error| format!("size {error}"))
            })
            .collect()
    }

    /// The server's check of a plan that came over the network.
    pub(super) fn check(&self, kind: Kind) -> Result<(), String> {
        if self.kind != kind {
            return Err(format!("the server runs {}, the client {}", kind.name(), self.kind.name()));
        }
        if self.with_pump && kind != Kind::WriteBw {
            return Err(format!("--with-pump is for write-bw, not for {}", kind.name()));
        }
        if !(1..=1024).contains(&self.queue_pairs) || !(1..=16_384).contains(&self.tx_depth) {
            return Err("1 to 1024 queue pairs and a tx depth of 1 to 16384 can be used".to_owned());
        }
        self.planes.check()?;
        self.layouts().map(drop)
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
    /// Client: this size is done, with so many writes on each queue pair, `measured` of them after the warm-up.
    Done { writes: Vec<u64>, measured: u64 },
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
            Self::Done { .. } => "done",
            Self::Verdict { .. } => "verdict",
            Self::Finish => "finish",
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
    use super::*;

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
