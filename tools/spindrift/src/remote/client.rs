//! The client: decides what is run, and measures.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use serde_json::{Value as Json, json};
use spindrift::verbs::exchange::{Channel, RemoteMr};

use super::plan::{Kind, Message, Plan, TOOL, VERSION, VERSION_WITH_PUMP};
use super::pump::{Sending, first_address};
use super::site::tell_without_path;
use super::{Session, pretty, sample, tell_unused_planes, while_polling, with_peer};
use crate::bench::layout::Layout;
use crate::bench::options::Amount;
use crate::bench::pin::Cores;
use crate::bench::pingpong::Player;
use crate::bench::report::{
    BandwidthRow, Columns, LatencyRow, Progress, PumpCells, counters_json, counters_table, faults_line,
    settings_json, settings_lines,
};
use crate::bench::samples::Sampler;
use crate::bench::side::{InUse, Side};
use crate::bench::writer::{Measured, Watch, Writer};
use crate::bench::yardstick::{Cut, Yardstick};
use crate::output::{say, tell, told};
use crate::stop::Stop;

/// How often the server hears that the client lives.
const ALIVE_INTERVAL: Duration = Duration::from_millis(500);

pub(super) fn run(session: &Session, server: &str) -> Result<()> {
    let mut rows = Rows::default();
    let mut client = match Client::connect(session, server) {
        Ok(client) => client,
        Err(error) => {
            if session.settings.json {
                say(&object(session, server, None, &rows, Some(&error)).to_string());
            }
            return Err(error);
        }
    };
    let result = client.measure_all(&mut rows);
    if let Err(error) = &result {
        // The server may be gone; then there is nobody to tell.
        let _ = client.channel.send(&Message::Abort { reason: told(error) });
    }
    let sampled = client.sampler.as_mut().map_or(Ok(()), Sampler::finish);
    let result = result.and(sampled).and_then(|()| client.side.finish_capture());
    client.report(&rows, result.as_ref().err());
    result
}

#[derive(Default)]
struct Rows {
    bandwidth: Vec<BandwidthRow>,
    latency: Vec<LatencyRow>,
}

struct Client<'a> {
    session: &'a Session,
    channel: Channel,
    side: Side,
    remote: RemoteMr,
    plan: Plan,
    layouts: Vec<Layout>,
    peer: String,
    cores: Cores,
    /// The pump beside each row, if one was asked for.
    pump: Option<Sending>,
    sampler: Option<Sampler>,
}

impl<'a> Client<'a> {
    fn connect(session: &'a Session, server: &str) -> Result<Self> {
        let settings = &session.settings;
        let plan = Plan {
            tool: TOOL.to_owned(),
            version: if session.with_pump { VERSION_WITH_PUMP } else { VERSION },
            kind: session.kind,
            queue_pairs: settings.qps,
            tx_depth: settings.tx_depth,
            sizes: settings.sizes.clone(),
            rounds: if let Amount::Iterations(n) = settings.amount { n } else { 0 },
            seed: settings.seed.unwrap_or(1),
            with_pump: session.with_pump,
        };
        let layouts = plan.layouts().map_err(|reason| anyhow!(reason))?;
        let mut channel = Channel::connect((server, session.tcp_port), session.timeout)
            .map_err(|error| with_peer(error, "server", server))?;
        let peer = format!("{server} ({})", pretty(channel.peer()));
        let named = |error| with_peer(error, "server", &peer);
        channel.send(&plan).map_err(named)?;
        match channel.receive().map_err(named)? {
            Message::Accept => {}
            Message::Refuse { reason } if session.with_pump && reason.contains("version") => bail!(
                "the server {peer} refused: {reason}; if it is older, update it, or run without --with-pump"
            ),
            Message::Refuse { reason } => bail!("the server {peer} refused: {reason}"),
            other => bail!("the server {peer} sent \"{}\" when \"accept\" was due", other.name()),
        }
        let nic = session.open_nic(&channel)?;
        let memory = layouts.iter().map(Layout::memory).max().unwrap_or_default();
        let mut side = Side::open(settings, nic, memory, 0)?;
        let offer = side.offer()?;
        let theirs = channel.agree(&offer, |_, agreed| side.establish(agreed)).map_err(named)?;
        tell_unused_planes("server", &peer, &offer, &theirs);
        tell_without_path(settings, "server", &peer, &theirs);
        let remote = *theirs.memory.first().with_context(|| format!("the server {peer} offers no memory"))?;
        let cores = Cores::any(settings.lanes, session.share_cores, settings.wait);
        cores.check(&side.context)?;
        let pump = if session.with_pump {
            let (local, remote) = (first_address(&offer)?, first_address(&theirs)?);
            Some(Sending { local, remote, payload: side.in_use.mtu as usize, gso: settings.gso })
        } else {
            None
        };
        let sampler = session.sampler(&side)?;
        Ok(Self { session, channel, side, remote, plan, layouts, peer, cores, pump, sampler })
    }

    fn measure_all(&mut self, rows: &mut Rows) -> Result<()> {
        let (settings, kind) = (&self.session.settings, self.session.kind);
        if !settings.json {
            say(&format!(
                "spindrift {} to {}: {}",
                kind.name(),
                self.peer,
                settings_lines(settings, &self.side.in_use)
            ));
            let columns = if self.pump.is_some() { Columns::Pump } else { Columns::Usual };
            say(&if kind == Kind::WriteBw { BandwidthRow::head(columns) } else { LatencyRow::head() });
        }
        for index in 0..self.layouts.len() {
            self.session.stop.check()?;
            match kind {
                Kind::WriteBw => {
                    let row = self.bandwidth(index)?;
                    let verified = row.verified;
                    self.show(&row.line());
                    rows.bandwidth.push(row);
                    if !verified {
                        bail!("the memory of the server {} does not hold what was written", self.peer);
                    }
                }
                Kind::WriteLat => {
                    let row = self.latency(index)?;
                    self.show(&row.line());
                    rows.latency.push(row);
                }
            }
        }
        self.send(&Message::Finish)
    }

    fn show(&self, line: &str) {
        if !self.session.settings.json {
            say(line);
        }
    }

    fn send(&mut self, message: &Message) -> Result<()> {
        self.channel.send(message).map_err(|error| with_peer(error, "server", &self.peer))
    }

    fn receive(&mut self) -> Result<Message> {
        let channel = &mut self.channel;
        let received = while_polling(&self.side.context, &self.cores, || channel.receive(), &mut |now| {
            sample(&mut self.sampler, now);
        })?;
        received.map_err(|error| with_peer(error, "server", &self.peer))
    }

    fn begin(&mut self, index: usize) -> Result<Layout> {
        let layout = *self.layouts.get(index).context("no such size")?;
        let pattern = layout.pattern(self.plan.seed);
        self.side.source.write_at(0, &pattern)?;
        self.send(&Message::Begin { index })?;
        match self.receive()? {
            Message::Ready => Ok(layout),
            other => bail!("the server {} sent \"{}\" when \"ready\" was due", self.peer, other.name()),
        }
    }

    fn verdict(&mut self, writes: Vec<u64>, measured: u64) -> Result<bool> {
        self.send(&Message::Done { writes, measured })?;
        match self.receive()? {
            Message::Verdict { verified, reason } => {
                if let Some(reason) = reason {
                    tell(format_args!("spindrift: the server {} says: {reason}", self.peer));
                }
                Ok(verified)
            }
            other => bail!("the server {} sent \"{}\" instead of its verdict", self.peer, other.name()),
        }
    }

    fn bandwidth(&mut self, index: usize) -> Result<BandwidthRow> {
        let layout = self.begin(index)?;
        let settings = &self.session.settings;
        let mut watch = RemoteWatch {
            life: Life {
                channel: &mut self.channel,
                peer: &self.peer,
                stop: &self.session.stop,
                last: Instant::now(),
            },
            progress: Progress::new(layout.size.into(), settings.amount),
            amount: settings.amount,
            before: Measured::default(),
            sampler: &mut self.sampler,
        };
        let pump = self.pump;
        let mut cut = Cut::of(settings.amount);
        if pump.is_none() {
            cut.piece = settings.amount;
        }
        let mut beside = Yardstick::default();
        let mut slice = |watch: &mut RemoteWatch<'_>| {
            let Some(pump) = pump else { return Ok(()) };
            let Life { channel, peer, stop, .. } = &mut watch.life;
            beside.slices.push(pump.slice(channel, peer, cut.slice, stop.flag())?);
            stop.check()
        };
        let mut writer = Writer::new(&mut self.side, layout, self.remote, settings.tx_depth, &self.cores)?;
        let peer = &self.peer;
        let blame = |error: anyhow::Error| {
            if error.is::<crate::stop::Interrupted>() {
                error
            } else {
                error.context(format!("run with the server {peer}"))
            }
        };
        let warm_up = layout.slots * layout.qps as u64;
        // The server compares its memory when all is done.
        let unchecked = |_, _| Ok(());
        writer.run(Amount::Iterations(warm_up), &mut watch, &unchecked).map_err(blame)?;
        slice(&mut watch)?;
        let mut measured = Measured::default();
        while let Some(piece) = cut.next(settings.amount, measured.elapsed) {
            watch.before = measured;
            measured = measured.and(writer.run(piece, &mut watch, &unchecked).map_err(blame)?);
            slice(&mut watch)?;
        }
        let writes = writer.writes();
        drop(watch);
        let verified = self.verdict(writes, measured.iterations)?;
        let row = BandwidthRow::new(layout.size, &measured, verified);
        row.warn_of_pause(&measured);
        let beside = pump.map(|_| PumpCells::new("UDP sockets", &beside, row.bandwidth_gbps));
        Ok(BandwidthRow { beside, ..row })
    }

    fn latency(&mut self, index: usize) -> Result<LatencyRow> {
        let layout = self.begin(index)?;
        let (mtu, rounds) = (self.side.in_use.mtu, self.plan.rounds);
        let mut life = Life {
            channel: &mut self.channel,
            peer: &self.peer,
            stop: &self.session.stop,
            last: Instant::now(),
        };
        let mut go_on = || life.tick(0);
        let mut player = Player::new(&mut self.side, layout.size, self.remote, mtu, self.cores.idle())?;
        let led = player.lead(rounds, &mut go_on)?;
        player.drain(&mut go_on)?;
        self.verdict(Vec::new(), rounds)?;
        let row = LatencyRow::new(layout.size, &led);
        row.warn_of_pause(&led);
        Ok(row)
    }

    fn report(&self, rows: &Rows, error: Option<&anyhow::Error>) {
        let settings = &self.session.settings;
        if settings.json {
            say(&object(self.session, &self.peer, Some(self), rows, error).to_string());
            return;
        }
        let counted = self.side.counted();
        if settings.fault.is_some() {
            say(&faults_line("client", &counted));
        }
        if settings.counters {
            say("");
            say(&counters_table(&[("client", &counted)]));
        }
    }
}

/// The JSON object of a client.
fn object(
    session: &Session,
    server: &str,
    client: Option<&Client<'_>>,
    rows: &Rows,
    error: Option<&anyhow::Error>,
) -> Json {
    let in_use =
        client.map_or_else(|| InUse::of_nobody(&session.settings), |client| client.side.in_use.clone());
    let mut object = json!({
        "command": session.kind.name(),
        "version": env!("CARGO_PKG_VERSION"),
        "role": "client",
        "server": server,
        "settings": settings_json(&session.settings, &in_use),
        "counters": client.map(|client| counters_json(&client.side.counted())),
        "error": error.map(told),
    });
    let rows = match session.kind {
        Kind::WriteBw => json!(rows.bandwidth),
        Kind::WriteLat => json!(rows.latency),
    };
    if let Json::Object(map) = &mut object {
        map.insert("rows".to_owned(), rows);
    }
    object
}

/// Tells the server that this side lives, and notices when the server does not.
struct Life<'a> {
    channel: &'a mut Channel,
    peer: &'a str,
    stop: &'a Stop,
    last: Instant,
}

impl Life<'_> {
    fn tick(&mut self, done: u64) -> Result<()> {
        self.stop.check()?;
        if self.channel.peer_is_gone() {
            bail!("the server {} went away (it ended, was interrupted, or crashed)", self.peer);
        }
        if self.last.elapsed() >= ALIVE_INTERVAL {
            self.last = Instant::now();
            self.channel
                .send(&Message::Alive { done })
                .map_err(|error| with_peer(error, "server", self.peer))?;
        }
        Ok(())
    }
}

struct RemoteWatch<'a> {
    life: Life<'a>,
    progress: Progress,
    amount: Amount,
    /// The pieces of the run that are over.
    before: Measured,
    sampler: &'a mut Option<Sampler>,
}

impl Watch for RemoteWatch<'_> {
    fn tick(&mut self, done: u64, elapsed: Duration) -> Result<()> {
        let before = &self.before;
        self.progress.set(self.amount, before.iterations + done, before.elapsed + elapsed);
        self.life.tick(before.iterations + done)
    }

    fn look(&mut self, now: Instant) {
        sample(self.sampler, now);
    }
}
