//! Logging to standard error while a command runs: `-v` and the variable `SPINDRIFT_LOG`.

use std::env::{self, VarError};
use std::io;

use anyhow::Result;
use clap::{ArgAction, Args};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{fmt, registry};

use crate::sim::Clock;
use crate::usage::usage;

/// Overrides `-v`.
const VARIABLE: &str = "SPINDRIFT_LOG";

/// How much is reported.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct Verbosity {
    /// Log to standard error: -v life cycle, -vv also paths, congestion and timeouts, -vvv everything.
    /// `SPINDRIFT_LOG` selects in detail [default: warnings and errors]
    #[arg(short, long = "verbose", action = ArgAction::Count)]
    verbose: u8,
}

impl Verbosity {
    /// Starts to report, from now until the command ends.
    ///
    /// # Errors
    /// `SPINDRIFT_LOG` does not make a filter.
    pub(crate) fn start(self) -> Result<()> {
        start(&variable()?.unwrap_or_else(|| self.directive().to_owned()))
    }

    fn directive(self) -> &'static str {
        match self.verbose {
            0 => "spindrift=warn",
            1 => "spindrift=info",
            2 => "spindrift=debug",
            _ => "spindrift=trace",
        }
    }
}

/// Starts to report if `-v` was given so often, or `SPINDRIFT_LOG` is set: without them, nothing is logged.
///
/// # Errors
/// `SPINDRIFT_LOG` does not make a filter.
pub(crate) fn start_if_asked(verbose: u8) -> Result<()> {
    match variable()? {
        Some(text) => start(&text),
        None if verbose > 0 => start(Verbosity { verbose }.directive()),
        None => Ok(()),
    }
}

/// The value of `SPINDRIFT_LOG` if it is set.
fn variable() -> Result<Option<String>> {
    match env::var(VARIABLE) {
        Ok(text) => Ok((!text.trim().is_empty()).then_some(text)),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => Err(bad("<not UTF-8>", "it is not UTF-8")),
    }
}

fn start(filter: &str) -> Result<()> {
    let targets: Targets = filter.parse().map_err(|error| bad(filter, &format!("{error}")))?;
    let lines = fmt::layer()
        .with_timer(Clock)
        .with_writer(io::stderr)
        // Colours would need a feature of the crate, without which it complains on each terminal.
        .with_ansi(false)
        // Standard error that takes nothing more is no reason to stop.
        .log_internal_errors(false);
    registry().with(lines).with(targets).init();
    Ok(())
}

fn bad(text: &str, reason: &str) -> anyhow::Error {
    usage(format!(
        "{VARIABLE}={text}: {reason}; write a level (error, warn, info, debug, trace) or targets with levels, such as \
         spindrift::path=debug,spindrift::qp=info"
    ))
}
