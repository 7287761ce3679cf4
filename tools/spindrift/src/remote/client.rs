//! The client: decides what is run, and measures.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Error, Result, anyhow, bail};
use serde_json::{Value as Json, json};
use spindrift::memory::Region;
use spindrift_exchange::{Channel, ExchangeError};

use super::path_check::check_paths;
use super::peer::{Peer, Role};
use super::plan::{Message, Plan, Shape, TOOL, VERSION};
use super::planes::Planes;
use super::pump::Sending;
use super::shift::{Shift, connect_store};
use super::{Connected, Session, sample};
use crate::bench::contents::Contents;
use crate::bench::endpoint_setup::{InUse, Side};
use crate::bench::layout::Layout;
use crate::bench::operation::RECEIVES_MAX;
use crate::bench::options::{Amount, Verify};
use crate::bench::pingpong::{Game, Player};
use crate::bench::report::{
    BandwidthRow, Columns, LatencyRow, Progress, PumpCells, counters_json, counters_table, faults_line,
    settings_json, settings_lines,
};
use crate::bench::samples::Sampler;
use crate::bench::writer::{Measured, Watch, Writer, next_lap};
use crate::bench::yardstick::{Slices, Yardstick};
use crate::output::{eprint_line, error_chain, print_line};
use crate::place::Local;

/// How often an attempt to connect looks whether the user wants an end.
const CONNECT_CHECK: Duration = Duration::from_millis(50);

pub(super) fn run(session: &Session, server: &str) -> Result<()> {
    let mut rows = Rows::default();
    let mut client = match Client::connect(session, server) {
        Ok(client) => client,
        Err(error) => {
            if session.settings.json {
                print_line(&object(session, server, None, &rows, Some(&error)).to_string());
            }
            return Err(error);
        }
    };
    let result = client.measure_all(&mut rows);
    let result = result.map_err(|error| client.peer.with_findings(error, &client.connected.side));
    if let Err(error) = &result {
        client.peer.abort(error);
    }
    let sampled = client.connected.sampler.as_mut().map_or(Ok(()), Sampler::finish);
    let result = result.and(sampled).and_then(|()| client.connected.side.finish_capture());
    client.report(&rows, result.as_ref().err());
    result
}

/// Connects, unless the user wants an end. Neither the look-up of a name nor the connection can be interrupted: they have a
/// thread that is left behind.
fn connect(session: &Session, server: &str) -> Result<Peer> {
    let (send, connected) = mpsc::channel();
    let (address, timeout) = ((server.to_owned(), session.tcp_port), session.timeout);
    thread::spawn(move || {
        let (name, port) = address;
        // Nobody waits for it any more after Ctrl-C.
        let _ = send.send(Channel::connect((name.as_str(), port), timeout));
    });
    loop {
        match connected.recv_timeout(CONNECT_CHECK) {
            Ok(channel) => {
                let channel = channel.map_err(|error| no_connection(session, server, error))?;
                return Ok(Peer::new(channel, Role::Client, Some(server), timeout, &session.stop));
            }
            Err(RecvTimeoutError::Timeout) => session.stop.check()?,
            Err(RecvTimeoutError::Disconnected) => bail!("the thread that connects panicked"),
        }
    }
}

/// An error of the attempt to connect.
fn no_connection(session: &Session, server: &str, error: ExchangeError) -> Error {
    match &error {
        ExchangeError::Io { peer, error: cause } if cause.kind() == ErrorKind::ConnectionRefused => anyhow!(
            "server {server}: nothing listens at {peer} (TCP); start `spindrift {}` there first, or give the port of its -p",
            session.kind.name()
        ),
        _ => Error::new(error).context(format!("server {server}")),
    }
}

#[derive(Default)]
struct Rows {
    bandwidth: Vec<BandwidthRow>,
    latency: Vec<LatencyRow>,
}

struct Client<'a> {
    session: &'a Session,
    peer: Peer,
    connected: Connected,
    plan: Plan,
    layouts: Vec<Layout>,
    /// The pump beside each row, if one was asked for.
    pump: Option<Sending>,
}

impl<'a> Client<'a> {
    fn connect(session: &'a Session, server: &str) -> Result<Self> {
        let settings = &session.settings;
        let mut plan = Plan {
            tool: TOOL.to_owned(),
            version: VERSION,
            kind: session.kind,
            work: settings.work,
            queue_pairs: settings.qps,
            tx_depth: settings.tx_depth,
            sizes: settings.sizes.clone(),
            rounds: if let Amount::Iterations(n) = settings.amount { n } else { 0 },
            seed: settings.seed.unwrap_or(1),
            with_pump: session.yardstick,
            verify_every: settings.verify == Verify::Every,
            shift: Shift::of(settings)?,
            planes: Planes::unknown(),
        };
        let layouts = plan.layouts().map_err(|reason| anyhow!(reason))?;
        let mut peer = connect(session, server)?;
        let local = session.locals(&peer).inspect_err(|error| peer.abort(error))?;
        plan.planes = Planes::new(&local, &peer)?;
        let connected = Self::set_up(session, &plan, &layouts, &local, &mut peer);
        let connected = connected.inspect_err(|error| peer.abort(error))?;
        let pump = session.yardstick.then(|| {
            let [local_address, remote] = connected.addresses;
            let interface = local.first().and_then(|local| local.interface.clone());
            Sending {
                local: local_address,
                interface,
                remote,
                payload: connected.side.in_use.mtu as usize,
                gso: settings.gso,
            }
        });
        Ok(Self { session, peer, connected, plan, layouts, pump })
    }

    fn set_up(
        session: &Session,
        plan: &Plan,
        layouts: &[Layout],
        local: &[Local],
        peer: &mut Peer,
    ) -> Result<Connected> {
        peer.send_plan(plan)?;
        let theirs = match peer.receive()? {
            Message::Accept { planes } => planes,
            Message::Refuse { reason } => bail!("the {} refused: {reason}", peer.name()),
            other => return Err(peer.unexpected(&other, "accept")),
        };
        theirs.tell_of_nat(peer.connection()?, peer.name());
        theirs.check().map_err(|reason| anyhow!("the {} offers {reason}", peer.name()))?;
        let nic = session.open_nic(local, peer, &theirs)?;
        let memory = layouts.iter().map(Layout::memory).max().unwrap_or_default();
        let side = Side::open(&session.settings, nic, memory, 0)?;
        if let (Some(shift), Some(store)) = (&plan.shift, &side.store) {
            let [_, server] = peer.connection()?;
            let channel = connect_store(server, shift, session.timeout);
            store.add(channel.map_err(|error| peer.end_or(error))?);
        }
        peer.send(&Message::Ready)?;
        let mut connected = Connected::new(session, &session.settings, peer, side)?;
        let checked = check_paths(&mut connected, peer, &session.settings);
        checked.map_err(|error| peer.with_findings(error, &connected.side))?;
        connected.side.tell_new_notes();
        Ok(connected)
    }

    fn measure_all(&mut self, rows: &mut Rows) -> Result<()> {
        let (settings, kind) = (&self.session.settings, self.session.kind);
        if !settings.json {
            print_line(&format!(
                "spindrift {} to {}: {}, {}",
                kind.name(),
                self.peer.address(),
                settings.work.words(),
                settings_lines(settings, &self.connected.side.in_use)
            ));
            let columns = if self.pump.is_some() { Columns::Pump } else { Columns::Usual };
            print_line(&match kind.shape {
                Shape::Bandwidth => BandwidthRow::head(columns),
                Shape::Latency => LatencyRow::head(),
            });
        }
        for index in 0..self.layouts.len() {
            self.session.stop.check()?;
            self.connected.side.tell_new_notes();
            match kind.shape {
                Shape::Bandwidth => {
                    let row = self.bandwidth(index)?;
                    let verified = row.verified;
                    self.show(&row.line());
                    rows.bandwidth.push(row);
                    if !verified {
                        bail!("{}", self.mismatch());
                    }
                }
                Shape::Latency => {
                    let row = self.latency(index)?;
                    self.show(&row.line());
                    rows.latency.push(row);
                }
            }
        }
        self.peer.finish()
    }

    /// What is wrong, and where.
    fn mismatch(&self) -> String {
        let (operations, peer) = (self.plan.work.operations, self.peer.name());
        if operations.has_fetches() {
            let plural = operations.plural();
            format!("memory does not hold what the {plural} had to leave here and at the {peer}")
        } else {
            format!("the memory of the {peer} does not hold what was written")
        }
    }

    fn show(&self, line: &str) {
        if !self.session.settings.json {
            print_line(line);
        }
    }

    fn receive(&mut self) -> Result<Message> {
        self.connected.receive(&mut self.peer)
    }

    fn begin(&mut self, index: usize) -> Result<Layout> {
        let layout = *self.layouts.get(index).context("no such size")?;
        layout.fill(self.connected.side.source.region(), self.plan.seed, &mut || self.peer.tick(0))?;
        self.peer.send(&Message::Begin { index })?;
        match self.receive()? {
            Message::Ready => {}
            other => return Err(self.peer.unexpected(&other, "ready")),
        }
        if self.plan.work.operations.has_fetches() {
            // The peer's path check may have written there.
            layout.clear(self.connected.side.target.region(), &mut || self.peer.tick(0))?;
        }
        Ok(layout)
    }

    /// Compares this side's memory with what so many messages of each queue pair leave there.
    fn compare_here(&mut self, contents: &Contents, done: &[u64]) -> Result<bool> {
        let Self { peer, connected: Connected { side: Side { source, target, .. }, .. }, .. } = self;
        let pattern = |at: usize, out: &mut [u8]| Ok(source.read_at(at, out)?);
        let mismatch = contents.check_here(target.region(), &pattern, done, &mut || peer.tick(0))?;
        if let Some(found) = mismatch {
            eprint_line(format_args!(
                "spindrift: byte {} is wrong here (queue pair {})",
                found.offset, found.qp
            ));
        }
        Ok(mismatch.is_none())
    }

    fn verdict(&mut self, writes: Vec<u64>, measured: u64) -> Result<bool> {
        self.peer.send(&Message::Done { writes, measured })?;
        let verdict = self.receive()?;
        read_verdict(&self.peer, verdict)
    }

    fn bandwidth(&mut self, index: usize) -> Result<BandwidthRow> {
        let layout = self.begin(index)?;
        let is_last = index + 1 == self.layouts.len();
        let settings = &self.session.settings;
        let operations = self.plan.work.operations;
        let contents = Contents { layout, operations, seed: self.plan.seed };
        let Connected { side, far, cores, sampler, .. } = &mut self.connected;
        let landing = Landing::new(side, contents, settings.verify == Verify::Every);
        let mut watch = RemoteWatch {
            peer: &mut self.peer,
            progress: Progress::new(layout.size.into(), settings.amount),
            amount: settings.amount,
            before: Measured::default(),
            sampler,
        };
        let pump = self.pump.clone();
        let mut slices = Slices::of(settings.amount);
        if pump.is_none() {
            slices.piece = settings.amount;
        }
        let mut beside = Yardstick::default();
        let mut slice = |watch: &mut RemoteWatch<'_>| {
            if let Some(pump) = &pump {
                beside.slices.push(pump.slice(watch.peer, slices.slice)?);
            }
            Ok::<_, Error>(())
        };
        // Only what the server compares is written in laps.
        let every = settings.verify == Verify::Every;
        let in_laps = every && operations.has_bytes_there();
        let verify = if in_laps { Verify::Every } else { Verify::Last };
        let mut writer = Writer::new(side, contents, far, (settings.tx_depth, verify), cores)?;
        let warm_up = layout.slots * layout.qps as u64;
        let check = |qp: usize, number: u64| landing.check(qp, number);
        let write = |writer: &mut Writer<'_>, amount, watch: &mut RemoteWatch<'_>| {
            writer.run(amount, watch, &check).map_err(|error| watch.peer.blame(error))
        };
        let next = |measured: &Measured| {
            if in_laps {
                next_lap(&layout, settings.amount, measured)
            } else {
                slices.next(settings.amount, measured.elapsed)
            }
        };
        let mut measured = Measured::default();
        write(&mut writer, Amount::Iterations(warm_up), &mut watch)?;
        slice(&mut watch)?;
        while let Some(piece) = next(&measured) {
            if in_laps && !watch.compare(&writer)? {
                // The end finds the same.
                break;
            }
            watch.before = measured;
            measured = measured.and(write(&mut writer, piece, &mut watch)?);
            slice(&mut watch)?;
        }
        if operations.takes_receive() && !is_last {
            let of_each = watch.close(&layout, writer.writes())?;
            writer.consume(of_each, &mut watch, &check).map_err(|error| watch.peer.blame(error))?;
        }
        let writes = writer.writes();
        drop(watch);
        let all = writes.iter().sum();
        let compared = if every { all } else { contents.compared(&writes) };
        let is_right = landing.wrong.into_inner() == 0
            && (!operations.has_fetches() || self.compare_here(&contents, &writes)?);
        let verified = self.verdict(writes, measured.iterations)? && is_right;
        let row = BandwidthRow::new(layout.size, &measured, verified, [compared, all]);
        row.warn_of_pause(&measured);
        let beside = pump.map(|_| PumpCells::new("UDP sockets", &beside, row.bandwidth_gbps));
        Ok(BandwidthRow { beside, ..row })
    }

    fn latency(&mut self, index: usize) -> Result<LatencyRow> {
        let layout = self.begin(index)?;
        let game = Game { layout, rounds: self.plan.rounds, seed: self.plan.seed };
        let Connected { side, far, cores, .. } = &mut self.connected;
        let mtu = side.in_use.mtu;
        let mut player = Player::new(side, game, far, mtu, cores.idle())?;
        let peer = &mut self.peer;
        let mut go_on = |round| peer.tick(round);
        let led = player.lead(&mut go_on).and_then(|led| {
            player.drain(&mut go_on)?;
            Ok(led)
        });
        let led = led.map_err(|error| self.peer.blame(error))?;
        if !self.verdict(vec![game.all()], game.rounds)? {
            bail!("{}", self.mismatch());
        }
        let row = LatencyRow::new(layout.size, &led);
        row.warn_of_pause(&led);
        Ok(row)
    }

    fn report(&mut self, rows: &Rows, error: Option<&anyhow::Error>) {
        self.connected.side.tell_new_notes();
        let settings = &self.session.settings;
        if settings.json {
            print_line(&object(self.session, self.peer.address(), Some(self), rows, error).to_string());
            return;
        }
        let counted = self.connected.side.counted();
        if settings.fault.is_some() {
            print_line(&faults_line("client", &counted));
        }
        if settings.counters {
            print_line("");
            print_line(&counters_table(&[("client", &counted)]));
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
    let in_use = client
        .map_or_else(|| InUse::of_nobody(&session.settings), |client| client.connected.side.in_use.clone());
    let mut object = json!({
        "command": session.kind.name(),
        "version": env!("CARGO_PKG_VERSION"),
        "role": "client",
        "server": server,
        "settings": settings_json(&session.settings, &in_use),
        "counters": client.map(|client| counters_json(&client.connected.side.counted())),
        "error": error.map(error_chain),
    });
    let rows = match session.kind.shape {
        Shape::Bandwidth => json!(rows.bandwidth),
        Shape::Latency => json!(rows.latency),
    };
    if let Json::Object(map) = &mut object {
        map.insert("rows".to_owned(), rows);
    }
    object
}

/// Where the bytes of responses go to, and what they have to be.
struct Landing {
    contents: Contents,
    every: bool,
    source: Arc<Region>,
    region: Arc<Region>,
    /// Responses that were not what they had to be.
    wrong: AtomicU64,
}

impl Landing {
    fn new(side: &Side, contents: Contents, every: bool) -> Self {
        let [source, region] = [&side.source, &side.target].map(|mr| Arc::clone(mr.region()));
        Self { contents, every, source, region, wrong: AtomicU64::new(0) }
    }

    /// Compares what a completed operation has left here. What it leaves at the server is compared there.
    fn check(&self, qp: usize, number: u64) -> Result<()> {
        let Self { contents, every, region, source, .. } = self;
        let pattern = |at: usize, out: &mut [u8]| Ok(source.read_at(at, out)?);
        let is_right = contents.is_right_here(region, &pattern, (qp, number), *every)?;
        self.wrong.fetch_add(u64::from(!is_right), Ordering::Relaxed);
        Ok(())
    }
}

struct RemoteWatch<'a> {
    peer: &'a mut Peer,
    progress: Progress,
    amount: Amount,
    /// The pieces of the run that are over.
    before: Measured,
    sampler: &'a mut Option<Sampler>,
}

impl RemoteWatch<'_> {
    /// Has the server post no more receives. Returns how many of each queue pair it has.
    fn close(&mut self, layout: &Layout, writes: Vec<u64>) -> Result<u64> {
        self.peer.send(&Message::Close { writes })?;
        match self.peer.receive()? {
            Message::Closed { of_each } if of_each <= RECEIVES_MAX.max(layout.slots) => Ok(of_each),
            other => Err(self.peer.unexpected(&other, "closed")),
        }
    }

    /// Has the server compare the writes so far. Nothing is sent meanwhile, and what comes is read later.
    fn compare(&mut self, writer: &Writer<'_>) -> Result<bool> {
        self.peer.send(&Message::Compare { writes: writer.writes() })?;
        let verdict = self.peer.receive()?;
        read_verdict(self.peer, verdict)
    }
}

fn read_verdict(peer: &Peer, message: Message) -> Result<bool> {
    match message {
        Message::Verdict { verified, reason } => {
            if let Some(reason) = reason {
                eprint_line(format_args!("spindrift: the {} says: {reason}", peer.name()));
            }
            Ok(verified)
        }
        other => Err(peer.unexpected(&other, "verdict")),
    }
}

impl Watch for RemoteWatch<'_> {
    fn tick(&mut self, done: u64, elapsed: Duration) -> Result<()> {
        let before = &self.before;
        self.progress.set(self.amount, before.iterations + done, before.elapsed + elapsed);
        self.peer.tick(before.iterations + done)
    }

    fn look(&mut self, now: Instant) {
        sample(self.sampler, now);
    }
}
