//! The `spindrift` command: benchmarks, a packet dissector and tools for the Spindrift transport.

mod agent;
mod bench;
mod config;
mod ctl;
mod dissect;
mod driver;
mod figure;
#[cfg(test)]
mod help_tables;
mod lab;
mod launch;
mod loopback;
mod metrics;
mod output;
mod path;
mod place;
mod ports;
mod pump;
mod remote;
mod sim;
mod stop;
mod swarm;
mod times;
mod toml_file;
mod topology;
mod trace;
mod units;
mod usage;
mod verbose;

use std::env;
use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};
use verbose::Verbosity;

/// Userspace MRC transport: benchmarks and tools
#[derive(Parser, Debug)]
#[command(name = "spindrift", version, after_help = "Start with:  spindrift loopback")]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand, Debug)]
enum Command {
    Loopback(loopback::LoopbackArgs),
    /// Bandwidth of RDMA writes between two hosts or two processes
    WriteBw(remote::Benchmark<remote::WriteOptions>),
    /// Latency of RDMA writes (half a round trip) between two hosts or two processes
    WriteLat(remote::Benchmark<remote::WriteOptions>),
    /// Bandwidth of SENDs between two hosts or two processes
    SendBw(remote::Benchmark<remote::SendOptions>),
    /// Latency of SENDs (half a round trip) between two hosts or two processes
    SendLat(remote::Benchmark<remote::SendOptions>),
    /// Bandwidth of RDMA READs between two hosts or two processes
    ReadBw(remote::Benchmark<remote::ReadOptions>),
    /// Latency of RDMA READs (a round trip) between two hosts or two processes
    ReadLat(remote::Benchmark<remote::ReadOptions>),
    /// Rate of atomic operations between two hosts or two processes
    AtomicBw(remote::Benchmark<remote::AtomicOptions>),
    /// Latency of atomic operations (a round trip) between two hosts or two processes
    AtomicLat(remote::Benchmark<remote::AtomicOptions>),
    /// Bandwidth of a mix of operations between two hosts or two processes; compares each message
    MixBw(remote::Benchmark<remote::MixOptions>),
    Pump(pump::PumpArgs),
    Ports(ports::PortsArgs),
    Run(launch::RunArgs),
    // What `run` becomes before it becomes the program.
    #[command(hide = true)]
    EnterView(launch::EnterArgs),
    Path(path::PathArgs),
    Agent(agent::AgentArgs),
    Ctl(ctl::CtlArgs),
    Lab(lab::LabArgs),
    // The former name, accepted for one version.
    #[command(alias = "experiment")]
    Sim(sim::SimArgs),
    Swarm(swarm::SwarmArgs),
    Dissect(dissect::DissectArgs),
}

/// Reads the command line, does what it says, and returns the exit status of the process.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(mut message) => {
            if let Some(advice) = of_perftest(&mut message) {
                return status_of(Err(usage::usage(advice)), ExitCode::SUCCESS);
            }
            let printed = message.print();
            // A message on standard error that nobody reads is dropped.
            output::record_stdout_error(if message.use_stderr() { Ok(()) } else { printed });
            let status = u8::try_from(message.exit_code()).unwrap_or(usage::USAGE_STATUS);
            return status_of(Ok(()), ExitCode::from(status));
        }
    };
    let result = match &cli.command {
        None => {
            output::record_stdout_error(Cli::command().print_help());
            Ok(ExitCode::SUCCESS)
        }
        Some(command) => run(command),
    };
    let success = result.as_ref().copied().unwrap_or(ExitCode::SUCCESS);
    status_of(result.map(drop), success)
}

/// What to do about an option of perftest, which the benchmarks do not have. No other error of theirs suggests to take an option for the server's address.
fn of_perftest(message: &mut clap::Error) -> Option<String> {
    let is_ours = |argument: &OsString| argument.to_str().is_some_and(remote::is_benchmark);
    if message.kind() != ErrorKind::UnknownArgument
        || !env::args_os().nth(1).is_some_and(|name| is_ours(&name))
    {
        return None;
    }
    message.remove(ContextKind::Suggested);
    match message.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(option)) => remote::perftest::advice(option),
        _ => None,
    }
}

/// Does what a command says. The status of `spindrift run` is the program's.
fn run(command: &Command) -> Result<ExitCode> {
    let verbosity = match command {
        Command::Loopback(args) => Some(args.verbosity()),
        Command::WriteBw(args) | Command::WriteLat(args) => Some(args.verbosity()),
        Command::SendBw(args) | Command::SendLat(args) => Some(args.verbosity()),
        Command::ReadBw(args) | Command::ReadLat(args) => Some(args.verbosity()),
        Command::AtomicBw(args) | Command::AtomicLat(args) => Some(args.verbosity()),
        Command::MixBw(args) => Some(args.verbosity()),
        Command::Pump(args) => Some(args.verbosity()),
        Command::Ports(args) => Some(args.verbosity()),
        // The first has its own `-v`, about packets; in the others the transport does nothing.
        Command::Agent(_) | Command::Dissect(_) | Command::Path(_) | Command::Ctl(_) | Command::Lab(_) => {
            Some(Verbosity::default())
        }

        Command::Swarm(args) => args.verbosity(),
        // Of what happens in the hosts of the first there is too much to tell; the transport of the others is a program's.
        Command::Sim(_) | Command::Run(_) | Command::EnterView(_) => None,
    };
    if let Some(verbosity) = verbosity {
        verbosity.start()?;
    }
    match command {
        Command::Loopback(args) => loopback::run(args),
        Command::WriteBw(args) => args.bandwidth(),
        Command::WriteLat(args) => args.latency(),
        Command::SendBw(args) => args.bandwidth(),
        Command::SendLat(args) => args.latency(),
        Command::ReadBw(args) => args.bandwidth(),
        Command::ReadLat(args) => args.latency(),
        Command::AtomicBw(args) => args.bandwidth(),
        Command::AtomicLat(args) => args.latency(),
        Command::MixBw(args) => args.bandwidth(),
        Command::Pump(args) => pump::run(args),
        Command::Ports(args) => ports::run(args),
        Command::Dissect(args) => dissect::run(args),
        Command::Path(args) => path::run(args),
        Command::Agent(args) => agent::run(args),
        Command::Ctl(args) => ctl::run(args),
        Command::Lab(args) => lab::run(args),
        Command::Swarm(args) => swarm::run(args),
        Command::Sim(args) => sim::run(args),
        Command::Run(args) => return launch::run(args),
        Command::EnterView(args) => return Ok(launch::enter_view(args)),
    }
    .map(|()| ExitCode::SUCCESS)
}

/// The exit status of a result, `success` for a good one whose output was not lost. Prints what went wrong.
fn status_of(result: Result<()>, success: ExitCode) -> ExitCode {
    let lost = output::check();
    if let Err(lost) = &lost
        && lost.reader_has_gone()
    {
        return ExitCode::from(output::BROKEN_PIPE_STATUS);
    }
    match result.and(lost.map_err(Into::into)) {
        Ok(()) => success,
        Err(error) => {
            output::eprint_line(format_args!("spindrift: {}", output::error_chain(&error)));
            if error.is::<stop::Interrupted>() {
                ExitCode::from(stop::INTERRUPTED_STATUS)
            } else if error.is::<usage::Usage>() {
                ExitCode::from(usage::USAGE_STATUS)
            } else {
                ExitCode::FAILURE
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_fit_together() {
        Cli::command().debug_assert();
    }
}
