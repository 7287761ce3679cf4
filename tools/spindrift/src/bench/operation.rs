//! What a benchmark has its queue pairs do, and what that needs of both sides.

use std::fmt;

use anyhow::Result;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use spindrift::verbs::{Access, Extensions, SendOp};

use super::layout::Layout;
use super::options::Verify;

/// Most receive work requests that a queue pair holds.
pub(crate) const RECEIVES_MAX: u64 = 16_384;
/// What each atomic operation adds: a number whose bytes all count.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A family of operations, as in the names of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Write,
    Send,
    Read,
    Atomic,
}

/// The operation that a benchmark repeats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
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
        match self.verb() {
            Verb::Write => [Access::LOCAL_READ, Access::REMOTE_WRITE],
            Verb::Send => [Access::LOCAL_READ, Access::REMOTE_WRITE | Access::LOCAL_WRITE],
            Verb::Read => [Access::REMOTE_READ, Access::REMOTE_WRITE | Access::LOCAL_WRITE],
            Verb::Atomic => {
                [Access::LOCAL_READ, Access::REMOTE_WRITE | Access::LOCAL_WRITE | Access::REMOTE_ATOMIC]
            }
        }
    }

    /// Request number `number` of a queue pair: the operation, and the offsets of the local and the remote bytes.
    #[inline]
    pub(crate) fn request(
        self,
        layout: &Layout,
        seed: u64,
        qp: usize,
        number: u64,
    ) -> (SendOp, usize, usize) {
        let (from, to) = (layout.source(qp, number), layout.target(qp, number));
        let imm = number as u32;
        match self {
            Self::Write => (SendOp::Write, from, to),
            Self::WriteImm => (SendOp::WriteWithImm(imm), from, to),
            Self::Send => (SendOp::Send, from, 0),
            Self::SendImm => (SendOp::SendWithImm(imm), from, 0),
            Self::Read => (SendOp::Read, to, from),
            Self::FetchAdd => (SendOp::FetchAdd(STEP), to, layout.target(qp, 0)),
            Self::CompareSwap => {
                let [compare, swap] = [number, number + 1].map(|number| counter(seed, qp, number));
                (SendOp::CompareSwap { compare, swap }, to, layout.target(qp, 0))
            }
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.noun())
    }
}

/// What a queue pair's counter holds after so many atomic operations.
pub(crate) const fn counter(seed: u64, qp: usize, operations: u64) -> u64 {
    let start = seed.rotate_left(17) ^ (qp as u64 + 1).wrapping_mul(0xd6e8_feb8_6659_fd93);
    start.wrapping_add(operations.wrapping_mul(STEP))
}

/// The operation and the attributes of the queue pairs that it needs. The client decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Work {
    pub(crate) operation: Operation,
    /// Reads and atomic operations in flight on a queue pair.
    pub(crate) outs: u8,
    /// Receives come from a shared receive queue.
    pub(crate) srq: bool,
}

impl Work {
    /// Reads and atomic operations in flight where nobody says.
    pub(crate) const OUTS: u8 = 16;

    pub(crate) const fn of(operation: Operation) -> Self {
        Self { operation, outs: Self::OUTS, srq: false }
    }

    /// What is run, in the first line of the output.
    pub(crate) fn words(self) -> String {
        let queue = if self.srq { " to a shared receive queue" } else { "" };
        format!("{}{queue}", self.operation.plural())
    }

    /// Whether messages go to buffers in the order in which they arrive on all queue pairs together.
    pub(crate) const fn shares_buffers(self) -> bool {
        self.srq && self.operation.fills_receive()
    }

    /// The slots of a size. A shared receive queue needs as many buffers again: a message may take any of them.
    pub(crate) fn layout(self, size: u64, qps: usize, tx_depth: u32) -> Result<Layout> {
        let depth = if self.srq { tx_depth.saturating_mul(2) } else { tx_depth };
        Layout::new(size, qps, depth)
    }

    /// Requests in flight on a queue pair.
    pub(crate) fn depth(self, layout: &Layout, tx_depth: u32) -> u64 {
        let depth = layout.depth(tx_depth);
        if self.srq { depth.min((layout.slots / 2).max(1)) } else { depth }
    }

    /// Which requests are compared: each result of an atomic operation is.
    pub(crate) fn verify(self, wanted: Verify) -> Verify {
        if self.operation.is_atomic() { Verify::Every } else { wanted }
    }

    /// Receive work requests that the receiver keeps posted for each queue pair that has so many slots: twice as many as are in
    /// flight, so that a receiver that is late holds nothing up.
    pub(crate) const fn receives(self, slots: u64) -> u32 {
        let wanted = 2 * slots;
        if !self.operation.takes_receive() {
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
mod tests {
    use super::*;

    /// The counter after so many operations is what the next one finds, whichever operation it is.
    #[test]
    fn both_atomic_operations_step_through_the_same_values() {
        let layout = Layout::new(8, 2, 4).unwrap();
        for (qp, number) in [(0, 0), (1, 7), (1, u64::MAX - 1)] {
            let now = counter(5, qp, number);
            let request = |operation: Operation| operation.request(&layout, 5, qp, number);
            let (add, ..) = request(Operation::FetchAdd);
            let SendOp::FetchAdd(step) = add else { panic!("{add:?}") };
            let swap = now.wrapping_add(step);
            assert_eq!(request(Operation::CompareSwap).0, SendOp::CompareSwap { compare: now, swap });
            // Always the same counter, and a result of its own for each in flight.
            assert_eq!(request(Operation::FetchAdd).2, layout.target(qp, 0));
            assert_eq!(request(Operation::FetchAdd).1, layout.target(qp, number));
        }
        assert_ne!(counter(5, 0, 0), counter(5, 1, 0));
        assert_ne!(counter(5, 0, 0), counter(6, 0, 0));
    }

    #[test]
    fn names_are_those_of_json() {
        for operation in Operation::value_variants() {
            assert_eq!(serde_json::to_string(operation).unwrap(), format!("\"{}\"", operation.name()));
            let possible = operation.to_possible_value().unwrap();
            assert_eq!(possible.get_name(), operation.name());
        }
    }
}
