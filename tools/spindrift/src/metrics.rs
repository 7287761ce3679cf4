//! `--metrics`: the counters of this process or of a run, for Prometheus.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process;

use anyhow::{Error, Result};
use clap::Args;
use spindrift_agentd::exporter::Exporter;
use spindrift_agentd::http::HttpError;
use spindrift_agentd::token::Token;
use spindrift_control::{ControlDir, Watch};

use crate::ctl::{self, ControlPlace};
use crate::output::eprint_line;
use crate::usage::usage;

/// The option for the file of a token.
const TOKEN_FILE: &str = "--metrics-token-file";

/// Where counters are shown.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct MetricsArgs {
    /// Serve the counters for Prometheus at this address, as http://ADDRESS:PORT/metrics
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<String>,
    /// Whoever asks for the metrics has to show the token in this file; needed where the address is no loopback address
    #[arg(long, value_name = "FILE", requires = "metrics")]
    metrics_token_file: Option<PathBuf>,
}

/// The token in the file that an option names.
pub(crate) fn token(option: &str, path: Option<&Path>) -> Result<Option<Token>> {
    path.map(|path| Token::read(path).map_err(|error| usage(format!("{option} {error}")))).transpose()
}

impl MetricsArgs {
    /// Whether they are wanted.
    pub(crate) const fn are_wanted(&self) -> bool {
        self.metrics.is_some()
    }

    fn address(&self) -> Result<Option<SocketAddr>> {
        let Some(text) = &self.metrics else { return Ok(None) };
        text.parse().map(Some).map_err(|_| {
            usage(format!(
                "--metrics {text}: write an address and a port, such as 127.0.0.1:9468 or [::1]:9468"
            ))
        })
    }

    /// Serves the counters of these processes from now on, if that is wanted.
    fn serve(&self, watch: impl FnOnce() -> Result<Watch>) -> Result<Option<Exporter>> {
        let Some(address) = self.address()? else { return Ok(None) };
        let token = token(TOKEN_FILE, self.metrics_token_file.as_deref())?;
        let started = Exporter::start(address, watch()?, token, TOKEN_FILE);
        let exporter = started.map_err(|error| match error {
            HttpError::NeedsToken(..) => usage(format!("--metrics: {error}")),
            error => Error::from(error).context("--metrics"),
        })?;
        // The port may have been left to the system.
        eprint_line(format_args!("spindrift: metrics at http://{}/metrics", exporter.address()));
        Ok(Some(exporter))
    }

    /// Serves the counters of this process.
    pub(crate) fn serve_own(&self, place: &ControlPlace) -> Result<Option<Exporter>> {
        self.serve(|| {
            let own = process::id();
            let dir = match place {
                ControlPlace::None => return Err(without_socket()),
                ControlPlace::Usual => ctl::folder(None),
                ControlPlace::At(path) => ControlDir::at(path),
            };
            Ok(Watch::only(vec![dir], move |process| process == own))
        })
    }

    /// Serves the counters of those processes with sockets in this folder that are wanted.
    pub(crate) fn serve_of(
        &self,
        dir: Option<ControlDir>,
        wanted: impl Fn(u32) -> bool + Send + Sync + 'static,
    ) -> Result<Option<Exporter>> {
        self.serve(|| Ok(Watch::only(vec![dir.ok_or_else(without_socket)?], wanted)))
    }
}

fn without_socket() -> Error {
    usage("--metrics: the counters come through the control socket; leave out --control-dir none")
}
