//! `spindrift agent top`: what an agent knows, in the terminal, kept up to date.
//!
//! `app` is the logic: what is shown and what keys do, without a clock, a terminal or a socket. `draw` draws it. `live` asks the agent, reads
//! keys, and restores the terminal whatever happens. These are in builds with the feature `top` alone.

#[cfg(feature = "top")]
mod app;
#[cfg(feature = "top")]
mod draw;
#[cfg(feature = "top")]
mod live;
#[cfg(feature = "top")]
mod processes;
#[cfg(all(test, feature = "top"))]
mod tests;

use std::env;
use std::io::{self, IsTerminal as _};
use std::time::Duration;

use anyhow::Result;
use clap::Args;

use super::client::From;
use crate::units::parse_duration;
use crate::usage::usage;

#[derive(Args, Debug)]
pub(super) struct TopArgs {
    #[command(flatten)]
    from: From,
    /// How often the agent is asked
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "1s")]
    interval: Duration,
}

pub(super) fn run(args: &TopArgs) -> Result<()> {
    let is_dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
    if is_dumb || !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        return Err(usage(
            "agent top draws on a terminal, and this is none; `spindrift agent status` prints the same once",
        ));
    }
    live(args)
}

#[cfg(feature = "top")]
fn live(args: &TopArgs) -> Result<()> {
    live::run(args)
}

#[cfg(not(feature = "top"))]
fn live(_: &TopArgs) -> Result<()> {
    Err(usage(
        "this build has no `agent top`; `cargo build --release -p spindrift-cli --features top` makes one that has",
    ))
}
