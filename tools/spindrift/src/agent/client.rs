//! Requests to an agent that runs, by its HTTP interface.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde::de::DeserializeOwned;
use spindrift_agentd::snapshot::Snapshot;

use super::{ADDRESS, PATIENCE};
use crate::metrics::token;

#[derive(Args, Clone, Debug)]
pub(super) struct From {
    /// Where the agent listens
    #[arg(long, value_name = "ADDRESS:PORT", default_value = ADDRESS)]
    pub(super) agent: SocketAddr,
    /// The file of the agent's token, if it has one
    #[arg(long, value_name = "FILE")]
    pub(super) token_file: Option<PathBuf>,
}

/// What the agent there knows.
pub(super) fn fetch(from: &From) -> Result<Snapshot> {
    fetch_json(from, "/api/v1/status", "the status of an agent")
}

/// The answer of the agent to the request for a path, which is `what`.
pub(super) fn fetch_json<T: DeserializeOwned>(from: &From, path: &str, what: &str) -> Result<T> {
    let url = format!("http://{}{path}", from.agent);
    let agent = ureq::Agent::config_builder().timeout_global(Some(PATIENCE)).build().new_agent();
    let mut request = agent.get(&url);
    if let Some(token) = token("--token-file", from.token_file.as_deref())? {
        request = request.header("Authorization", token.header());
    }
    let reply = request.call();
    if let Err(ureq::Error::StatusCode(401)) = reply {
        let how = if from.token_file.is_some() {
            "that of --token-file is another one"
        } else {
            "name its file with --token-file"
        };
        bail!("the agent at {} asks for its token: {how}", from.agent);
    }
    let reply = reply.with_context(|| {
        format!(
            "no agent replies at {}; start one with `spindrift agent run`, or name its address with --agent",
            from.agent
        )
    })?;
    reply.into_body().read_json().with_context(|| format!("what {url} says is not {what}"))
}
