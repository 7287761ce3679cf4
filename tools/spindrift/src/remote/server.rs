//! The server: offers memory, and verifies it at the end.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use serde::Serialize;
use serde_json::json;
use spindrift_exchange::Channel;

use super::acceptor::{Acceptor, ExpectedStore};
use super::memory::{Bound, needed};
use super::path_check::check_paths;
use super::peer::{Peer, Role};
use super::plan::{Message, Plan, Shape};
use super::planes::Planes;
use super::pump::receive_slice;
use super::shift::check_plan;
use super::{Connected, Lanes, Session};
use crate::bench::contents::Contents;
use crate::bench::endpoint_setup::{InUse, Side, completions};
use crate::bench::layout::Layout;
use crate::bench::operation::Work;
use crate::bench::options::{Settings, Verify};
use crate::bench::pin::cpu_time;
use crate::bench::pingpong::{Game, Player};
use crate::bench::receiver::{ARRIVAL_LIMIT, Receivers};
use crate::bench::report::{counters_json, counters_table, faults_line, settings_json, settings_lines};
use crate::bench::samples::Sampler;
use crate::bench::transport::Mr;
use crate::output::{eprint_line, error_chain, print_line};

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
    let mut acceptor = Acceptor::open(session)?;
    let (name, port) = (session.kind.name(), acceptor.port());
    eprint_line(format_args!("spindrift {name}: waiting for a client on TCP port {port}"));
    loop {
        let result = serve_next(session, &mut acceptor);
        if !session.keep_serving {
            return result;
        }
        session.stop.check()?;
        if let Err(error) = result {
            eprint_line(format_args!("spindrift: {}", error_chain(&error)));
        }
        eprint_line(format_args!("spindrift {name}: waiting for the next client on TCP port {port}"));
    }
}

/// One run, from the wait for its client to the report.
fn serve_next(session: &Session, acceptor: &mut Acceptor) -> Result<()> {
    let mut rows = Vec::new();
    let mut server = None;
    let result = serve(session, acceptor, &mut server, &mut rows);
    let settings = server.as_ref().map_or(&session.settings, |server| &server.settings);
    let counted = server.as_ref().map(|server| server.connected.side.counted());
    let in_use = server
        .as_ref()
        .map_or_else(|| InUse::of_nobody(settings), |server| server.connected.side.in_use.clone());
    if settings.json {
        let object = json!({
            "command": session.kind.name(),
            "version": env!("CARGO_PKG_VERSION"),
            "role": "server",
            "settings": settings_json(settings, &in_use),
            "rows": rows,
            "counters": counted.as_ref().map(counters_json),
            "error": result.as_ref().err().map(error_chain),
        });
        print_line(&object.to_string());
    } else if let Some(counted) = counted {
        if settings.fault.is_some() {
            print_line(&faults_line("server", &counted));
        }
        if settings.counters {
            print_line("");
            print_line(&counters_table(&[("server", &counted)]));
        }
    }
    result
}

fn serve<'a>(
    session: &'a Session,
    acceptor: &mut Acceptor,
    server: &mut Option<Server<'a>>,
    rows: &mut Vec<Row>,
) -> Result<()> {
    let client = acceptor.next_client(session)?;
    let server = server.insert(Server::connect(session, acceptor, client)?);
    let followed = server.follow(rows);
    let followed = followed.map_err(|error| server.peer.with_findings(error, &server.connected.side));
    let followed = followed.inspect_err(|error| server.peer.abort(error));
    let connected = &mut server.connected;
    let sampled = connected.sampler.as_mut().map_or(Ok(()), Sampler::finish);
    followed.and(sampled).and_then(|()| connected.side.finish_capture())
}

struct Server<'a> {
    session: &'a Session,
    /// The session's, as far as the client's plan leaves them.
    settings: Settings,
    peer: Peer,
    connected: Connected,
    /// Of the first plane.
    interface: Option<String>,
    plan: Plan,
    layouts: Vec<Layout>,
}

impl<'a> Server<'a> {
    fn connect(session: &'a Session, acceptor: &Acceptor, (channel, plan): (Channel, Plan)) -> Result<Self> {
        let mut peer = Peer::new(channel, Role::Server, None, session.timeout, &session.stop);
        let mut settings = session.settings.clone();
        settings.qps = plan.queue_pairs;
        settings.tx_depth = plan.tx_depth;
        settings.work = plan.work;
        if plan.verify_every {
            settings.verify = Verify::Every;
        }
        let layouts = Self::check(session, &settings, &plan).inspect_err(|reason| peer.refuse(reason));
        let layouts = layouts.with_context(|| format!("refused the {}", peer.name()))?;
        // Nothing is taken for a client that has gone.
        peer.tick(0)?;
        let memory = layouts.iter().map(Layout::memory).max().unwrap_or_default();
        let local = session.locals(&peer).inspect_err(|error| peer.refuse(error))?;
        plan.planes.tell_of_nat(peer.connection()?, peer.name());
        let nic = session.open_nic(&local, &peer, &plan.planes);
        let side = nic.and_then(|nic| Side::open(&settings, nic, memory, 1));
        let side = side.inspect_err(|error| peer.refuse(error))?;
        let planes = Planes::new(&local, &peer)?;
        let expected = plan.shift.as_ref().map(|shift| acceptor.expect_store(shift.token()));
        let connected = Self::set_up(session, &settings, &mut peer, planes, side, expected);
        let connected = connected.inspect_err(|error| peer.abort(error))?;
        if !settings.json {
            print_line(&format!(
                "spindrift {} from {}: {}, {}",
                session.kind.name(),
                peer.address(),
                settings.work.words(),
                settings_lines(&settings, &connected.side.in_use)
            ));
            print_line(&format!("{:>9} {:>12}  verified", "#bytes", "#iterations"));
        }
        let interface = local.into_iter().next().and_then(|local| local.interface);
        Ok(Self { session, settings, peer, connected, interface, plan, layouts })
    }

    /// Whether the plan can be followed, in these settings that it makes. Nothing is taken before.
    fn check(session: &Session, settings: &Settings, plan: &Plan) -> Result<Vec<Layout>> {
        check_plan(settings, plan.shift.as_ref())?;
        let layouts =
            plan.check(session.kind).and_then(|()| plan.layouts()).map_err(|reason| anyhow!(reason))?;
        let extensions = plan.work.operations.extensions();
        let lacks = |name: &&str| !settings.extensions.names().any(|known| known == *name);
        if let Some(name) = extensions.names().find(lacks) {
            bail!(
                "{} with {} needs the extension {name} of MRC, which --extensions {} leaves out on the server; start it without that option",
                session.kind.name(),
                plan.work.operations.plural(),
                settings.extensions
            );
        }
        completions(settings)?;
        if let Some(bound) = Bound::new(session.max_memory) {
            bound.check(needed(settings, &layouts)).map_err(|reason| anyhow!(reason))?;
        }
        Ok(layouts)
    }

    fn set_up(
        session: &Session,
        settings: &Settings,
        peer: &mut Peer,
        planes: Planes,
        side: Side,
        expected: Option<ExpectedStore<'_>>,
    ) -> Result<Connected> {
        peer.send(&Message::Accept { planes })?;
        // The client's ports and memory may take it a while.
        match peer.receive_silently()? {
            Message::Ready => {}
            other => return Err(peer.unexpected(&other, "ready")),
        }
        if let (Some(expected), Some(store)) = (expected, &side.store) {
            // The client has connected before.
            store.add(expected.wait(session)?);
        }
        Connected::new(session, settings, peer, side)
    }

    /// The client's next message; the lanes go on meanwhile.
    fn receive(&mut self) -> Result<Message> {
        loop {
            match self.connected.receive(&mut self.peer)? {
                Message::Pump { payload_bytes } if self.plan.with_pump => {
                    let [local, _] = self.connected.addresses;
                    receive_slice(&mut self.peer, (local, self.interface.clone()), payload_bytes)?;
                }
                other => return Ok(other),
            }
        }
    }

    /// Does what the client asks for, until it has enough.
    fn follow(&mut self, rows: &mut Vec<Row>) -> Result<()> {
        loop {
            match self.receive()? {
                Message::Begin { index } => {
                    if rows.len() == self.layouts.len() {
                        bail!("the {} asked for more sizes than its plan has", self.peer.name());
                    }
                    let layout = *self.layouts.get(index).with_context(|| {
                        format!(
                            "the {} asked for size number {index}, which is not in its plan",
                            self.peer.name()
                        )
                    })?;
                    let (shape, operations) = (self.session.kind.shape, self.plan.work.operations);
                    let sends =
                        operations.has_reads() || shape == Shape::Latency && !operations.has_fetches();
                    if rows.is_empty() && sends {
                        // This side sends bytes too.
                        check_paths(&mut self.connected, &mut self.peer, &self.settings)?;
                    }
                    let row = match shape {
                        Shape::Bandwidth => self.bandwidth(&layout)?,
                        Shape::Latency => self.latency(&layout)?,
                    };
                    self.connected.side.tell_new_notes();
                    if !self.session.settings.json {
                        let verdict = if row.verified { "yes" } else { "NO" };
                        print_line(&format!("{:>9} {:>12}  {verdict}", row.size_bytes, row.iterations));
                    }
                    rows.push(row);
                }
                Message::Finish => break,
                other => return Err(self.peer.unexpected(&other, "begin")),
            }
        }
        if rows.iter().any(|row| !row.verified) {
            let operations = self.plan.work.operations.plural();
            bail!(
                "memory does not hold what the {operations} of the {} had to leave there",
                self.peer.name()
            );
        }
        Ok(())
    }

    fn done(&mut self) -> Result<(Vec<u64>, u64)> {
        done(self.receive()?, &self.peer)
    }

    /// Gets memory ready for a size.
    fn prepare(&mut self, layout: &Layout) -> Result<()> {
        // What the client's operations leave there. This side's source serves for nothing else, but for READs.
        let Side { source, target, .. } = &self.connected.side;
        layout.fill(source.region(), self.plan.seed, &mut || self.peer.tick(0))?;
        self.contents(layout).clear(target.region(), &mut || self.peer.tick(0))
    }

    /// The client's messages of a size.
    fn contents(&self, layout: &Layout) -> Contents {
        Contents { layout: *layout, operations: self.plan.work.operations, seed: self.plan.seed }
    }

    fn bandwidth(&mut self, layout: &Layout) -> Result<Row> {
        self.prepare(layout)?;
        let contents = self.contents(layout);
        let Self { peer, connected, plan, interface, .. } = self;
        let Connected { side, cores, sampler, addresses, .. } = connected;
        let Side { qps, cqs, source, target, srq, work, nics, .. } = side;
        let receivers = if work.operations.takes_receive() {
            let mut receivers = Receivers::new(qps, cqs, srq.as_ref(), target, *work)?;
            receivers.start(&contents, None)?;
            Some(receivers)
        } else {
            None
        };
        let lanes = Lanes { nics, cores, receivers: receivers.as_ref(), responds: false };
        let memory = Memory { source, target, contents, work: *work, lanes };
        peer.send(&Message::Ready)?;
        let before = cpu_time();
        let (mut comparing, mut all_good) = (Duration::ZERO, true);
        loop {
            let (writes, measured) = match lanes.receive(peer, sampler)? {
                Message::Pump { payload_bytes } if plan.with_pump => {
                    let [local, _] = *addresses;
                    receive_slice(peer, (local, interface.clone()), payload_bytes)?;
                    continue;
                }
                Message::Close { writes } if receivers.is_some() => {
                    let of_each = memory.close(peer, &writes)?;
                    peer.send(&Message::Closed { of_each })?;
                    continue;
                }
                Message::Compare { writes } if plan.verify_every => (writes, None),
                Message::Done { writes, measured } => (writes, Some(measured)),
                other => return Err(peer.unexpected(&other, "done")),
            };
            let so_far = cpu_time().saturating_sub(before);
            all_good &= memory.compare(peer, &writes)?;
            let Some(iterations) = measured else {
                comparing += cpu_time().saturating_sub(before + so_far);
                continue;
            };
            let cpu_s = so_far.saturating_sub(comparing).as_secs_f64();
            return Ok(Row { size_bytes: layout.size.into(), iterations, verified: all_good, cpu_s });
        }
    }

    fn latency(&mut self, layout: &Layout) -> Result<Row> {
        let has_fetches = self.plan.work.operations.has_fetches();
        let game = Game { layout: *layout, rounds: self.plan.rounds, seed: self.plan.seed };
        let before = if has_fetches {
            // The transport responds.
            self.prepare(layout)?;
            self.peer.send(&Message::Ready)?;
            cpu_time()
        } else {
            let Connected { side, far, cores, .. } = &mut self.connected;
            let mtu = side.in_use.mtu;
            let mut player = Player::new(side, game, far, mtu, cores.idle())?;
            let before = cpu_time();
            self.peer.send(&Message::Ready)?;
            let peer = &mut self.peer;
            let followed = player.follow(&mut |round| peer.tick(round));
            followed.map_err(|error| self.peer.blame(error))?;
            before
        };
        let (operations, measured) = if has_fetches {
            let Connected { side: Side { nics, .. }, cores, sampler, .. } = &mut self.connected;
            let lanes = Lanes { nics, cores, receivers: None, responds: true };
            done(lanes.receive(&mut self.peer, sampler)?, &self.peer)?
        } else {
            self.done()?
        };
        let cpu_s = cpu_time().saturating_sub(before).as_secs_f64();
        let verified = if has_fetches {
            let contents = self.contents(layout);
            let Connected { side: Side { source, target, work, nics, .. }, cores, .. } = &self.connected;
            let lanes = Lanes { nics, cores, receivers: None, responds: false };
            let memory = Memory { source, target, contents, work: *work, lanes };
            memory.compare(&mut self.peer, &operations)?
        } else {
            self.peer.send(&Message::Verdict { verified: true, reason: None })?;
            true
        };
        Ok(Row { size_bytes: layout.size.into(), iterations: measured, verified, cpu_s })
    }
}

/// What the client says at the end of a size.
fn done(message: Message, peer: &Peer) -> Result<(Vec<u64>, u64)> {
    match message {
        Message::Done { writes, measured } => Ok((writes, measured)),
        other => Err(peer.unexpected(&other, "done")),
    }
}

/// What a size leaves in the server's memory.
struct Memory<'a> {
    source: &'a Mr,
    target: &'a Mr,
    contents: Contents,
    work: Work,
    lanes: Lanes<'a>,
}

impl Memory<'_> {
    /// Compares the target with what so many messages of each queue pair leave there, and tells the client.
    fn compare(&self, peer: &mut Peer, messages: &[u64]) -> Result<bool> {
        let Self { source, target, contents, work, .. } = *self;
        let whole = messages.len() == contents.layout.qps;
        if let (Some(receivers), true) = (self.lanes.receivers, whole) {
            self.wait_for(receivers, peer, messages)?;
        }
        let pattern = |at: usize, out: &mut [u8]| Ok(source.read_at(at, out)?);
        let receivers = self.lanes.receivers.filter(|_| work.shares_buffers());
        let content = |qp, slot| receivers.and_then(|receivers| receivers.content(qp, slot));
        let shared: Option<&dyn Fn(usize, u64) -> Option<usize>> =
            if receivers.is_some() { Some(&content) } else { None };
        let mut tick = || peer.tick(0);
        let mismatch = contents.check_there(target.region(), &pattern, messages, shared, &mut tick)?;
        let reason = mismatch
            .map(|found| format!("byte {} of the target is wrong (queue pair {})", found.offset, found.qp));
        let verified = mismatch.is_none() && whole;
        peer.send(&Message::Verdict { verified, reason })?;
        Ok(verified)
    }

    /// Waits for so many messages of each queue pair, then stops the replacement of receives. Returns how many of each queue pair are
    /// posted.
    fn close(&self, peer: &mut Peer, messages: &[u64]) -> Result<u64> {
        let Some(receivers) = self.lanes.receivers else { return Ok(0) };
        self.wait_for(receivers, peer, messages)?;
        Ok(receivers.close())
    }

    /// Waits until those of so many messages of each queue pair that take receives have completed them here. The client has their completions already.
    fn wait_for(&self, receivers: &Receivers<'_>, peer: &mut Peer, messages: &[u64]) -> Result<()> {
        let deadline = Instant::now() + ARRIVAL_LIMIT;
        loop {
            for lane in 0..self.lanes.nics.lanes() {
                self.lanes.nics.poll_lane(lane);
                receivers.turn(lane)?;
            }
            if receivers.has_taken(messages) {
                return Ok(());
            }
            peer.tick(0)?;
            if Instant::now() > deadline {
                let due = receivers.due();
                bail!("messages of the queue pairs that were sent: {messages:?}, due here: {due:?}");
            }
        }
    }
}
