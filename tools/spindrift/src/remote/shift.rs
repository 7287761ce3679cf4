//! `--fallback shift`: what both sides of a run agree on, and the connection of their key-value store.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rand::TryRng as _;
use rand::rngs::SysRng;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use spindrift::fallback::Nic;
use spindrift::path::PlaneSet;
use spindrift_exchange::Channel;

use super::peer::{LOOK_INTERVAL, Peer, Role};
use super::plan::{Message, TOOL, VERSION};
use crate::bench::endpoint_setup::Side;
use crate::bench::operation::Work;
use crate::bench::options::Settings;
use crate::bench::pin::WaitName;
use crate::bench::transport::{Nics, Qp, Two};
use crate::config::FallbackName;
use crate::usage::usage;

/// What the client's plan says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Shift {
    /// The planes of the second NIC, a bit for each.
    standby: u32,
    /// The first message of the store's connection has the same.
    token: u64,
}

impl Shift {
    /// The client's, if its settings are such.
    pub(super) fn of(settings: &Settings) -> Result<Option<Self>> {
        if settings.fallback != FallbackName::Shift {
            return Ok(None);
        }
        let standby = settings.standby.unwrap_or_default().0;
        let token = SysRng.try_next_u64().context("the system gives no random numbers")?;
        Ok(Some(Self { standby, token }))
    }

    pub(super) const fn token(&self) -> u64 {
        self.token
    }
}

/// The server's check: both sides do the same.
pub(super) fn check_plan(settings: &Settings, theirs: Option<&Shift>) -> Result<()> {
    let planes = |set: PlaneSet| format!("--fallback shift --standby {set}");
    match (settings.fallback, theirs) {
        (FallbackName::Seamless, None) => Ok(()),
        (FallbackName::Shift, Some(theirs)) => {
            let (ours, theirs) = (settings.standby.unwrap_or_default(), PlaneSet(theirs.standby));
            if ours == theirs {
                return Ok(());
            }
            bail!(
                "the client has {}, the server {}; give both the same planes, in the same order",
                planes(theirs),
                planes(ours)
            )
        }
        (FallbackName::Seamless, Some(theirs)) => bail!(
            "the client has --fallback shift and the server has not; start the server with {}",
            planes(PlaneSet(theirs.standby))
        ),
        (FallbackName::Shift, None) => {
            bail!("the server has --fallback shift and the client has not; give it to both sides, or to none")
        }
    }
}

/// What the mode cannot be combined with.
pub(super) fn check_settings(settings: &Settings, given: bool) -> Result<()> {
    if settings.fallback != FallbackName::Shift {
        return Ok(());
    }
    let config = &settings.config;
    let name = config.origin(given, "--fallback", "path.fallback");
    if settings.standby.unwrap_or_default() == PlaneSet::default() {
        return Err(usage(format!(
            "{name} shift: needs the planes of the second NIC; name them with --standby, such as --standby 1"
        )));
    }
    let Work { srq, .. } = settings.work;
    let refused = [
        (srq, "--srq: its queue pairs cannot have a shared receive queue"),
        (settings.lanes > 1, "--lanes: one lane drives both NICs"),
        (settings.wait == WaitName::Poll, "--wait poll: the lane of two NICs cannot sleep"),
    ];
    match refused.into_iter().find(|(given, _)| *given) {
        Some((_, why)) => Err(usage(format!("{name} shift cannot be combined with {why}"))),
        None => Ok(()),
    }
}

/// The first message of the store's connection.
#[derive(Serialize)]
struct Greeting {
    tool: &'static str,
    version: u32,
    store: u64,
}

/// The token of a store's connection, if that is what a first message is of.
pub(super) fn store_token(message: &Json) -> Option<u64> {
    message.get("store").and_then(Json::as_u64)
}

/// The client's end of the store's connection.
pub(super) fn connect_store(server: SocketAddr, shift: &Shift, timeout: Duration) -> Result<Channel> {
    let mut channel = Channel::connect(server, timeout).context("the connection of --fallback shift")?;
    let greeting = Greeting { tool: TOOL, version: VERSION, store: shift.token };
    channel.send(&greeting).context("the connection of --fallback shift")?;
    Ok(channel)
}

/// Waits until every queue pair of both sides is prepared on the second NIC, so that the run survives the death of the first one
/// from its start. The lanes go on meanwhile.
pub(super) fn wait_prepared(side: &Side, peer: &mut Peer, limit: Duration) -> Result<()> {
    let Nics::Two(two) = &side.nics else { return Ok(()) };
    let is_client = peer.role() == Role::Client;
    let (start, mut next_look) = (Instant::now(), Instant::now());
    // The server tells the client, which begins.
    let (mut here, mut there) = (false, !is_client);
    while !(here && there) {
        side.nics.poll();
        let now = Instant::now();
        if now < next_look {
            continue;
        }
        next_look = now + LOOK_INTERVAL;
        here = is_prepared(two, side)?;
        match peer.look(&mut || 0)? {
            None => {}
            Some(Message::Ready) if !there => there = true,
            Some(other) => return Err(peer.unexpected(&other, "ready")),
        }
        if now.duration_since(start) > limit {
            let whose = if here { "the server" } else { "this side" };
            bail!(
                "{whose} could prepare no queue pairs on the planes that stand by within {limit:?}; its log (-v) tells more"
            );
        }
    }
    if is_client { Ok(()) } else { peer.send(&Message::Ready) }
}

fn is_prepared(two: &Two, side: &Side) -> Result<bool> {
    two.with(|context| {
        for (qp, _) in side.qps.iter().filter_map(Qp::id) {
            if !context.is_prepared(qp, Nic::Backup)? {
                return Ok(false);
            }
        }
        Ok(true)
    })
}
