//! The server: offers memory, and says in the end whether it holds what was written.

use std::net::IpAddr;

use anyhow::{Context as _, Result, bail};
use serde::Serialize;
use serde_json::json;
use spindrift::verbs::exchange::{Channel, RemoteMr};

use super::door::Door;
use super::plan::{Kind, Message, Plan};
use super::pump::{first_address, receive_slice};
use super::site::tell_without_path;
use super::{Session, pretty, sample, tell_unused_planes, while_polling, with_peer};
use crate::bench::layout::Layout;
use crate::bench::options::Settings;
use crate::bench::pin::{Cores, cpu_time};
use crate::bench::pingpong::Player;
use crate::bench::report::{counters_json, counters_table, faults_line, settings_json, settings_lines};
use crate::bench::samples::Sampler;
use crate::bench::side::{InUse, Side};
use crate::output::{say, tell, told};

/// What the server saw of one size.
#[derive(Clone, Debug, Serialize)]
struct Row {
    size_bytes: u64,
    iterations: u64,
    verified: bool,
    /// Time for which this process's threads had cores, from the server's being ready until the client was done.
    cpu_s: f64,
}

pub(super) fn run(session: &Session) -> Result<()> {
    session.check_nic()?;
    let mut door = Door::open(session)?;
    let (name, port) = (session.kind.name(), door.port()?);
    tell(format_args!("spindrift {name}: waiting for a client on TCP port {port}"));
    loop {
        let result = serve_next(session, &mut door);
        if !session.keep_serving {
            return result;
        }
        session.stop.check()?;
        if let Err(error) = result {
            tell(format_args!("spindrift: {}", told(&error)));
        }
        tell(format_args!("spindrift {name}: waiting for the next client on TCP port {port}"));
    }
}

/// One run, from the wait for its client to the report.
fn serve_next(session: &Session, door: &mut Door) -> Result<()> {
    let mut rows = Vec::new();
    let mut server = None;
    let result = serve(session, door, &mut server, &mut rows);
    let settings = server.as_ref().map_or(&session.settings, |server| &server.settings);
    let counted = server.as_ref().map(|server| server.side.counted());
    let in_use =
        server.as_ref().map_or_else(|| InUse::of_nobody(settings), |server| server.side.in_use.clone());
    if settings.json {
        let object = json!({
            "command": session.kind.name(),
            "version": env!("CARGO_PKG_VERSION"),
            "role": "server",
            "settings": settings_json(settings, &in_use),
            "rows": rows,
            "counters": counted.as_ref().map(counters_json),
            "error": result.as_ref().err().map(told),
        });
        say(&object.to_string());
    } else if let Some(counted) = counted {
        if settings.fault.is_some() {
            say(&faults_line("server", &counted));
        }
        if settings.counters {
            say("");
            say(&counters_table(&[("server", &counted)]));
        }
    }
    result
}

fn serve<'a>(
    session: &'a Session,
    door: &mut Door,
    server: &mut Option<Server<'a>>,
    rows: &mut Vec<Row>,
) -> Result<()> {
    let client = door.next_client(session)?;
    let connected = server.insert(Server::connect(session, client)?);
    let followed = connected.follow(rows);
    let sampled = connected.sampler.as_mut().map_or(Ok(()), Sampler::finish);
    followed.and(sampled).and_then(|()| connected.side.finish_capture())
}

struct Server<'a> {
    session: &'a Session,
    /// The session's, as far as the client's plan leaves them.
    settings: Settings,
    channel: Channel,
    side: Side,
    remote: RemoteMr,
    plan: Plan,
    layouts: Vec<Layout>,
    peer: String,
    cores: Cores,
    /// Where slices of the pump arrive.
    pump_at: IpAddr,
    sampler: Option<Sampler>,
}

impl<'a> Server<'a> {
    fn connect(session: &'a Session, (mut channel, plan): (Channel, Plan)) -> Result<Self> {
        let peer = pretty(channel.peer());
        let named = |error| with_peer(error, "client", &peer);
        let layouts = match plan.check(session.kind).and_then(|()| plan.layouts()) {
            Ok(layouts) => layouts,
            Err(reason) => {
                channel.send(&Message::Refuse { reason: reason.clone() }).map_err(named)?;
                bail!("refused the client {peer}: {reason}");
            }
        };
        let mut settings = session.settings.clone();
        settings.qps = plan.queue_pairs;
        settings.tx_depth = plan.tx_depth;
        let memory = layouts.iter().map(Layout::memory).max().unwrap_or_default();
        let nic = session.open_nic(&channel).inspect_err(|error| {
            // The client learns why; that it may be gone changes nothing.
            let _ = channel.send(&Message::Refuse { reason: told(error) });
        })?;
        let mut side = Side::open(&settings, nic, memory, 1)?;
        channel.send(&Message::Accept).map_err(named)?;
        let offer = side.offer()?;
        let theirs = channel.agree(&offer, |_, agreed| side.establish(agreed)).map_err(named)?;
        tell_unused_planes("client", &peer, &offer, &theirs);
        tell_without_path(&settings, "client", &peer, &theirs);
        let remote = *theirs.memory.first().with_context(|| format!("the client {peer} offers no memory"))?;
        if !settings.json {
            say(&format!(
                "spindrift {} from {peer}: {}",
                session.kind.name(),
                settings_lines(&settings, &side.in_use)
            ));
            say(&format!("{:>9} {:>12}  verified", "#bytes", "#iterations"));
        }
        let cores = Cores::any(settings.lanes, session.share_cores, settings.wait);
        cores.check(&side.context)?;
        let pump_at = first_address(&offer)?;
        let sampler = session.sampler(&side)?;
        Ok(Self { session, settings, channel, side, remote, plan, layouts, peer, cores, pump_at, sampler })
    }

    /// The client's next message; the lane goes on meanwhile.
    fn receive(&mut self) -> Result<Message> {
        loop {
            let channel = &mut self.channel;
            let received =
                while_polling(&self.side.context, &self.cores, || channel.receive(), &mut |now| {
                    sample(&mut self.sampler, now);
                })?;
            self.session.stop.check()?;
            match received.map_err(|error| with_peer(error, "client", &self.peer))? {
                Message::Alive { .. } => {}
                Message::Pump { payload_bytes } if self.plan.with_pump => {
                    receive_slice(&mut self.channel, &self.peer, self.pump_at, payload_bytes)?;
                }
                Message::Abort { reason } => bail!("the client {} gave up: {reason}", self.peer),
                other => return Ok(other),
            }
        }
    }

    fn send(&mut self, message: &Message) -> Result<()> {
        self.channel.send(message).map_err(|error| with_peer(error, "client", &self.peer))
    }

    /// Does what the client asks for, until it has enough.
    fn follow(&mut self, rows: &mut Vec<Row>) -> Result<()> {
        loop {
            match self.receive()? {
                Message::Begin { index } => {
                    let layout = *self.layouts.get(index).with_context(|| {
                        format!(
                            "the client {} asked for size number {index}, which is not in its plan",
                            self.peer
                        )
                    })?;
                    let row = match self.session.kind {
                        Kind::WriteBw => self.bandwidth(&layout)?,
                        Kind::WriteLat => self.latency(&layout)?,
                    };
                    if !self.session.settings.json {
                        let verdict = if row.verified { "yes" } else { "NO" };
                        say(&format!("{:>9} {:>12}  {verdict}", row.size_bytes, row.iterations));
                    }
                    rows.push(row);
                }
                Message::Finish => break,
                other => bail!("the client {} sent \"{}\" when \"begin\" was due", self.peer, other.name()),
            }
        }
        if rows.iter().any(|row| !row.verified) {
            bail!("memory does not hold what the client {} wrote", self.peer);
        }
        Ok(())
    }

    fn done(&mut self) -> Result<(Vec<u64>, u64)> {
        match self.receive()? {
            Message::Done { writes, measured } => Ok((writes, measured)),
            other => bail!("the client {} sent \"{}\" when \"done\" was due", self.peer, other.name()),
        }
    }

    fn bandwidth(&mut self, layout: &Layout) -> Result<Row> {
        let pattern = layout.pattern(self.plan.seed);
        layout.clear(self.side.target.region())?;
        self.send(&Message::Ready)?;
        let before = cpu_time();
        let (writes, measured) = self.done()?;
        let cpu_s = cpu_time().saturating_sub(before).as_secs_f64();
        let mismatch = layout.check(self.side.target.region(), &pattern, &writes)?;
        let whole = writes.len() == layout.qps;
        let reason = mismatch
            .map(|found| format!("byte {} of the target is wrong (queue pair {})", found.offset, found.qp));
        let verified = mismatch.is_none() && whole;
        self.send(&Message::Verdict { verified, reason })?;
        Ok(Row { size_bytes: layout.size.into(), iterations: measured, verified, cpu_s })
    }

    fn latency(&mut self, layout: &Layout) -> Result<Row> {
        let mtu = self.side.in_use.mtu;
        let (stop, peer) = (&self.session.stop, &self.peer);
        let mut player = Player::new(&mut self.side, layout.size, self.remote, mtu, self.cores.idle())?;
        let before = cpu_time();
        let ready = self.channel.send(&Message::Ready);
        ready.map_err(|error| with_peer(error, "client", &self.peer))?;
        let channel = &self.channel;
        let mut go_on = || {
            stop.check()?;
            if channel.peer_is_gone() {
                bail!("the client {peer} went away (it ended, was interrupted, or crashed)");
            }
            Ok(())
        };
        player.follow(self.plan.rounds, &mut go_on)?;
        let (_, measured) = self.done()?;
        let cpu_s = cpu_time().saturating_sub(before).as_secs_f64();
        self.send(&Message::Verdict { verified: true, reason: None })?;
        Ok(Row { size_bytes: layout.size.into(), iterations: measured, verified: true, cpu_s })
    }
}
