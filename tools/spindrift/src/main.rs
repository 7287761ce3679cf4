//! The `spindrift` command: benchmarks, a packet dissector and tools for the Spindrift transport.

mod dissect;
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
    Dissect(dissect::DissectArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let Some(command) = cli.command else {
        // What can go wrong here is a closed terminal.
        let _ = Cli::command().print_help();
        return ExitCode::SUCCESS;
    };
    let result = match &command {
        Command::Dissect(args) => dissect::run(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("spindrift: {error:#}");
            ExitCode::FAILURE
        }
    }
}
