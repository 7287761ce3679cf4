//! The benchmarks by name, and the options that only some of them have.

use anyhow::Result;
use clap::{Args, ValueEnum};

use super::plan::{Kind, Shape};
use super::{RemoteArgs, run};
use crate::bench::mix::Mix;
use crate::bench::operation::{Operation, Verb, Work};
use crate::verbose::Verbosity;

/// A benchmark: the options that all have, and its own.
#[derive(Args, Debug)]
pub(crate) struct Benchmark<O: Args> {
    #[command(flatten)]
    remote: RemoteArgs,
    #[command(flatten)]
    own: O,
}

/// Options that decide on the operation.
trait Choice {
    const VERB: Verb;

    fn work(&self) -> Work;
}

#[expect(private_bounds, reason = "only these options choose an operation")]
impl<O: Args + Choice> Benchmark<O> {
    pub(crate) fn verbosity(&self) -> Verbosity {
        self.remote.verbosity()
    }

    pub(crate) fn bandwidth(&self) -> Result<()> {
        run(&self.remote, Kind::new(O::VERB, Shape::Bandwidth), self.own.work())
    }

    pub(crate) fn latency(&self) -> Result<()> {
        run(&self.remote, Kind::new(O::VERB, Shape::Latency), self.own.work())
    }
}

#[derive(Args, Debug)]
pub(crate) struct WriteOptions {
    /// Client: writes have immediates, and take receives of the server
    #[arg(long, visible_alias = "write_with_imm")]
    imm: bool,
    /// Client: the receives come from a shared receive queue
    #[arg(long, visible_alias = "use-srq", requires = "imm")]
    srq: bool,
}

impl Choice for WriteOptions {
    const VERB: Verb = Verb::Write;

    fn work(&self) -> Work {
        let operation = if self.imm { Operation::WriteImm } else { Operation::Write };
        Work { srq: self.srq, ..Work::of(operation) }
    }
}

#[derive(Args, Debug)]
pub(crate) struct SendOptions {
    /// Client: SENDs have immediates
    #[arg(long)]
    imm: bool,
    /// Client: the receives come from a shared receive queue
    #[arg(long, visible_alias = "use-srq")]
    srq: bool,
}

impl Choice for SendOptions {
    const VERB: Verb = Verb::Send;

    fn work(&self) -> Work {
        let operation = if self.imm { Operation::SendImm } else { Operation::Send };
        Work { srq: self.srq, ..Work::of(operation) }
    }
}

#[derive(Args, Debug)]
pub(crate) struct ReadOptions {
    /// Client: READs or atomic operations in flight on each queue pair, 1 to 255
    #[arg(short, long, value_name = "N", default_value_t = Work::OUTS)]
    outs: u8,
}

impl Choice for ReadOptions {
    const VERB: Verb = Verb::Read;

    fn work(&self) -> Work {
        Work { outs: self.outs, ..Work::of(Operation::Read) }
    }
}

/// The names that perftest has.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum AtomicType {
    #[default]
    #[value(name = "FETCH_AND_ADD")]
    FetchAndAdd,
    #[value(name = "CMP_AND_SWAP")]
    CmpAndSwap,
}

#[derive(Args, Debug)]
pub(crate) struct AtomicOptions {
    #[command(flatten)]
    reads: ReadOptions,
    /// Client: the atomic operation
    #[arg(
        short = 'A',
        long = "atomic_type",
        visible_alias = "atomic-type",
        value_enum,
        ignore_case = true,
        default_value_t
    )]
    atomic_type: AtomicType,
}

impl Choice for AtomicOptions {
    const VERB: Verb = Verb::Atomic;

    fn work(&self) -> Work {
        let operation = match self.atomic_type {
            AtomicType::FetchAndAdd => Operation::FetchAdd,
            AtomicType::CmpAndSwap => Operation::CompareSwap,
        };
        Work { operations: Mix::One(operation), ..self.reads.work() }
    }
}

#[derive(Args, Debug)]
pub(crate) struct MixOptions {
    #[command(flatten)]
    reads: ReadOptions,
    /// Client: the operations by their weights: write, write-imm, send, send-imm, read, fetch-add, compare-swap
    #[arg(long, value_name = "NAME=N,..", default_value = "write=60,send=20,read=20")]
    mix: Mix,
}

impl Choice for MixOptions {
    const VERB: Verb = Verb::Mix;

    fn work(&self) -> Work {
        Work { operations: self.mix, ..self.reads.work() }
    }
}
