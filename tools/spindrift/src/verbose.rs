//! Logging to standard error while a command runs: `-v` and the variable `SPINDRIFT_LOG`.

use std::env::{self, VarError};
use std::io::{self, IsTerminal as _};

use anyhow::Result;
use clap::{ArgAction, Args};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{fmt, registry};

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
        let text = match env::var(VARIABLE) {
            Ok(text) if !text.trim().is_empty() => text,
            Ok(_) | Err(VarError::NotPresent) => self.directive().to_owned(),
            Err(VarError::NotUnicode(_)) => return Err(bad("<not UTF-8>", "it is not UTF-8")),
        };
        let filter: Targets = text.parse().map_err(|error| bad(&text, &format!("{error}")))?;
        let lines = fmt::layer()
            .with_writer(io::stderr)
            .with_ansi(io::stderr().is_terminal())
            // Standard error that takes nothing more is no reason to stop.
            .log_internal_errors(false);
        registry().with(lines).with(filter).init();
        Ok(())
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

fn bad(text: &str, reason: &str) -> anyhow::Error {
    usage(format!(
        "{VARIABLE}={text}: {reason}; write a level (error, warn, info, debug, trace) or targets with levels, such as \
         spindrift::path=debug,spindrift::qp=info"
    ))
}
