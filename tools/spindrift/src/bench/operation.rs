//! What a benchmark has its queue pairs do, and what that needs of both sides.

use std::fmt;

use anyhow::Result;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use spindrift::verbs::{Access, Extensions};

use super::layout::Layout;
use super::mix::Mix;
use super::options::Verify;

/// Most receive work requests that a queue pair holds.
pub(crate) const RECEIVES_MAX: u64 = 16_384;
/// A family of operations, as in the names of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Write,
    Send,
    Read,
    Atomic,
    /// Of several families.
    Mix,
}

/// The operation that a benchmark repeats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Operation {
    /// RDMA WRITE
    #[default]
    Write,
    /// RDMA WRITE with immediate
    WriteImm,
    /// SEND
    Send,
    /// SEND with immediate
    SendImm,
    /// RDMA READ
    Read,
    /// Fetch-and-add
    FetchAdd,
    /// Compare-and-swap
    CompareSwap,
}

impl Operation {
    pub(crate) const ALL: [Self; 7] = [
        Self::Write,
        Self::WriteImm,
        Self::Send,
        Self::SendImm,
        Self::Read,
        Self::FetchAdd,
        Self::CompareSwap,
    ];

    pub(crate) const fn verb(self) -> Verb {
        match self {
            Self::Write | Self::WriteImm => Verb::Write,
            Self::Send | Self::SendImm => Verb::Send,
            Self::Read => Verb::Read,
            Self::FetchAdd | Self::CompareSwap => Verb::Atomic,
        }
    }

    /// One of them, in messages.
    pub(crate) const fn noun(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::WriteImm => "write with immediate",
            Self::Send => "SEND",
            Self::SendImm => "SEND with immediate",
            Self::Read => "READ",
            Self::FetchAdd => "fetch-and-add",
            Self::CompareSwap => "compare-and-swap",
        }
    }

    /// Several of them, in messages.
    pub(crate) const fn plural(self) -> &'static str {
        match self {
            Self::Write => "RDMA writes",
            Self::WriteImm => "RDMA writes with immediate",
            Self::Send => "SENDs",
            Self::SendImm => "SENDs with immediate",
            Self::Read => "RDMA READs",
            Self::FetchAdd => "fetch-and-adds",
            Self::CompareSwap => "compare-and-swaps",
        }
    }

    /// As in JSON and in the options of `loopback`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::WriteImm => "write-imm",
            Self::Send => "send",
            Self::SendImm => "send-imm",
            Self::Read => "read",
            Self::FetchAdd => "fetch-add",
            Self::CompareSwap => "compare-swap",
        }
    }

    /// Whether each takes a receive work request of the peer.
    pub(crate) const fn takes_receive(self) -> bool {
        matches!(self, Self::WriteImm | Self::Send | Self::SendImm)
    }

    /// Whether the receive work request has the bytes.
    pub(crate) const fn fills_receive(self) -> bool {
        matches!(self, Self::Send | Self::SendImm)
    }

    pub(crate) const fn has_imm(self) -> bool {
        matches!(self, Self::WriteImm | Self::SendImm)
    }

    pub(crate) const fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CompareSwap)
    }

    /// Whether the peer's response has the bytes.
    pub(crate) const fn is_fetch(self) -> bool {
        self.is_atomic() || matches!(self, Self::Read)
    }

    /// The extensions of MRC that both sides need.
    pub(crate) fn extensions(self) -> Extensions {
        match self {
            Self::Write => Extensions::NONE,
            Self::WriteImm => Extensions::RNR,
            Self::Send | Self::SendImm => Extensions::SEND | Extensions::RNR,
            Self::Read => Extensions::READ,
            Self::FetchAdd | Self::CompareSwap => Extensions::ATOMIC,
        }
    }

    /// The rights of the memory that bytes come from, and of that where they go to.
    pub(crate) fn access(self) -> [Access; 2] {
        // The peer's path check writes to every target.
        let to = Access::REMOTE_WRITE;
        match self {
            Self::Write | Self::WriteImm => [Access::LOCAL_READ, to],
            Self::Send | Self::SendImm => [Access::LOCAL_READ, to | Access::LOCAL_WRITE],
            Self::Read => [Access::REMOTE_READ, to | Access::LOCAL_WRITE],
            Self::FetchAdd | Self::CompareSwap => {
                [Access::LOCAL_READ, to | Access::LOCAL_WRITE | Access::REMOTE_ATOMIC]
            }
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.noun())
    }
}

/// The operations and the attributes of the queue pairs that they need. The client decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Work {
    #[serde(rename = "operation")]
    pub(crate) operations: Mix,
    /// READs and atomic operations in flight on a queue pair.
    pub(crate) outs: u8,
    /// Receives come from a shared receive queue.
    pub(crate) srq: bool,
}

impl Work {
    /// READs and atomic operations in flight where nobody says.
    pub(crate) const OUTS: u8 = 16;

    pub(crate) const fn of(operation: Operation) -> Self {
        Self::of_mix(Mix::One(operation))
    }

    pub(crate) const fn of_mix(operations: Mix) -> Self {
        Self { operations, outs: Self::OUTS, srq: false }
    }

    /// What is run, in the first line of the output.
    pub(crate) fn words(self) -> String {
        let queue = if self.srq { " to a shared receive queue" } else { "" };
        format!("{}{queue}", self.operations.words())
    }

    /// Whether messages go to buffers in the order in which they arrive on all queue pairs together.
    pub(crate) fn shares_buffers(self) -> bool {
        self.srq && self.operations.any(Operation::fills_receive)
    }

    /// The slots of a size. A shared receive queue needs as many buffers again: a message may take any of them.
    pub(crate) fn layout(self, size: u64, qps: usize, tx_depth: u32) -> Result<Layout> {
        let depth = if self.srq { tx_depth.saturating_mul(2) } else { tx_depth };
        if self.operations.has_atomics() {
            Layout::with_cells(size, qps, depth)
        } else {
            Layout::new(size, qps, depth)
        }
    }

    /// Requests in flight on a queue pair.
    pub(crate) fn depth(self, layout: &Layout, tx_depth: u32) -> u64 {
        let depth = layout.depth(tx_depth);
        if self.srq { depth.min((layout.slots / 2).max(1)) } else { depth }
    }

    /// Which requests are compared: each result of an atomic operation is, and all of a mix where nobody says.
    pub(crate) fn verify(self, wanted: Option<Verify>) -> Verify {
        match self.operations {
            Mix::One(operation) if operation.is_atomic() => Verify::Every,
            Mix::One(_) => wanted.unwrap_or_default(),
            Mix::Several(_) => wanted.unwrap_or(Verify::Every),
        }
    }

    /// Receive work requests that the receiver keeps posted for each queue pair that has so many slots: twice as many as are in
    /// flight, so that a receiver that is late holds nothing up.
    pub(crate) fn receives(self, slots: u64) -> u32 {
        let wanted = 2 * slots;
        if !self.operations.takes_receive() {
            Self::RECEIVES_MIN
        } else if wanted > RECEIVES_MAX {
            RECEIVES_MAX as u32
        } else if wanted < Self::RECEIVES_MIN as u64 {
            Self::RECEIVES_MIN
        } else {
            wanted as u32
        }
    }

    /// Enough for a ping-pong.
    const RECEIVES_MIN: u32 = 16;
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_options() {
        for operation in Operation::ALL {
            assert_eq!(operation.to_possible_value().unwrap().get_name(), operation.name());
        }
        assert_eq!(Operation::value_variants(), Operation::ALL);
    }
}
