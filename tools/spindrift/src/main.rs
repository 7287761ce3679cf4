//! The `spindrift` command: benchmarks, a packet dissector and tools for the Spindrift transport.

mod bench;
mod config;
mod dissect;
mod loopback;
mod ports;
mod pump;
mod remote;
mod stop;
mod units;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// Userspace MRC transport: benchmarks and tools.
#[derive(Parser, Debug)]
#[command(name = "spindrift", version, after_help = "Start with:  spindrift loopback")]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand, Debug)]
enum Command {
    Loopback(loopback::LoopbackArgs),
    /// Bandwidth of RDMA writes between two hosts, or two terminals.
    WriteBw(remote::RemoteArgs),
    /// Latency of RDMA writes (half of a round trip), with percentiles.
    WriteLat(remote::RemoteArgs),
    Dissect(dissect::DissectArgs),
    Pump(pump::PumpArgs),
    Ports(ports::PortsArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let Some(command) = cli.command else {
        // What can go wrong here is a closed terminal.
        let _ = Cli::command().print_help();
        return ExitCode::SUCCESS;
    };
    let result = match &command {
        Command::Loopback(args) => loopback::run(args),
        Command::WriteBw(args) => remote::write_bw(args),
        Command::WriteLat(args) => remote::write_lat(args),
        Command::Pump(args) => pump::run(args),
        Command::Ports(args) => ports::run(args),
        Command::Dissect(args) => dissect::run(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("spindrift: {error:#}");
            if error.is::<stop::Interrupted>() {
                ExitCode::from(stop::INTERRUPTED_STATUS)
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
