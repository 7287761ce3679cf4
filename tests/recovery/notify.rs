//! The ways in which communication libraries tell a peer that data has arrived, while NICs die and return: a write with
//! immediate, a flag within the data, an atomic operation (SHIFT paper, table 1).
//!
//! What SHIFT cannot rule out must not happen here: that bytes change after the peer has consumed them, or that an
//! atomic operation is executed twice. Tests decision 44 of `docs/protocol.md`.

use std::sync::Arc;

use spindrift::endpoint::{CqId, EndpointConfig, Event, QpInit, RtsAttr};
use spindrift::memory::{Access, MrKey, Region};
use spindrift::path::{PathConfig, PlaneSet};
use spindrift::time::Time;
use spindrift::work::{RecvWr, RemoteAddr, SendOp, SendWr, Sge};

use crate::flow::{TARGET, WRITER, patience};
use crate::support::link::{Link, Outage};
use crate::support::net::{Net, ports};
use crate::support::pair::{self, End};

const US: u64 = 1_000;
const MS: u64 = 1_000 * US;
const PRIMARY: u8 = 0b0011;
const STANDBY: u32 = 0b1100;

const IOVA: u64 = 0x10_0000;
/// Messages that are not consumed yet have a slot each.
const SLOTS: u64 = 8;
/// Bytes of a message, in two packets.
const LEN: usize = 6_000;
/// A line of 4 bytes of data and 4 of a flag.
const LINE: usize = 8;
/// Where the counter of the atomic operations is.
const COUNTER: usize = SLOTS as usize * LEN;
/// What a consumed line is overwritten with. No flag is like it.
const CONSUMED: [u8; LINE] = [0xee; LINE];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Notify {
    Immediate,
    Flag,
    Atomic,
}

/// Two hosts with two NICs each, and a stream of messages.
struct World {
    notify: Notify,
    net: Net,
    ends: [End; 2],
    regions: [Arc<Region>; 2],
    keys: [MrKey; 2],
    posted: u64,
    /// Requests that are complete at the writer.
    completed: u64,
    consumed: u64,
    /// Lines of each slot that were consumed.
    lines: Vec<Vec<bool>>,
}

/// A line of a message.
fn line(message: u64, number: usize) -> [u8; LINE] {
    let data = (message as u32).wrapping_mul(0x9e37_79b9).wrapping_add(number as u32 * 7);
    let mut line = [0; LINE];
    line[..4].copy_from_slice(&data.to_le_bytes());
    line[4..].copy_from_slice(&(message as u32 + 1).to_le_bytes());
    line
}

fn slot(message: u64) -> usize {
    (message % SLOTS) as usize * LEN
}

impl World {
    fn new(notify: Notify, seed: u64) -> Self {
        let mut net = Net::new(seed, vec![Link::clean(5 * US); 4]);
        net.max_steps = 100_000_000;
        net.heal_at = Time::NEVER;
        for node in [WRITER, TARGET] {
            net.add(EndpointConfig {
                seed: (seed + node as u64).into(),
                ..EndpointConfig::new(ports(true, node, 4, 4300))
            });
        }
        let regions = [WRITER, TARGET].map(|_| Region::alloc_at(COUNTER + 8, IOVA).unwrap());
        let pds = [WRITER, TARGET].map(|node| net.endpoint(node).alloc_pd());
        let keys = [WRITER, TARGET].map(|node| {
            let access = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC | Access::LOCAL_WRITE;
            net.endpoint(node).register(pds[node], Arc::clone(&regions[node]), access).unwrap()
        });
        let path = PathConfig {
            active: 32,
            backup: 32,
            standby: PlaneSet(STANDBY),
            failback_hold_ns: 300 * US,
            failback_hold_max_ns: MS,
            ..PathConfig::new(4)
        };
        let ends = [WRITER, TARGET].map(|node| {
            let init = QpInit { path: path.clone(), ..QpInit::new(pds[node], CqId(0), CqId(1)) };
            pair::create(&mut net, node, init)
        });
        pair::connect(&mut net, ends[0], ends[1], patience(&RtsAttr::default()));
        for offset in (0..COUNTER).step_by(LINE) {
            regions[TARGET].write_at(offset, &CONSUMED).unwrap();
        }
        let lines = vec![vec![true; LEN / LINE]; SLOTS as usize];
        Self { notify, net, ends, regions, keys, posted: 0, completed: 0, consumed: 0, lines }
    }

    /// Requests of a message.
    fn requests(&self) -> u64 {
        if self.notify == Notify::Flag { 1 } else { 2 }
    }

    /// The slot holds what the consumer left there: nothing that arrived late has overwritten it.
    fn check_consumed(&self, message: u64) {
        let mut bytes = vec![0; LEN];
        self.regions[TARGET].read_at(slot(message), &mut bytes).unwrap();
        let changed = bytes.chunks(LINE).position(|line| line != CONSUMED);
        assert_eq!(
            changed, None,
            "{:?}, at {}: overwritten before message {message}",
            self.notify, self.net.now
        );
    }

    fn post(&mut self) {
        let message = self.posted;
        self.check_consumed(message);
        for number in 0..LEN / LINE {
            self.regions[WRITER].write_at(slot(message) + number * LINE, &line(message, number)).unwrap();
        }
        self.lines[(message % SLOTS) as usize].fill(false);
        let at = |offset: usize| IOVA + offset as u64;
        let request = |op, offset: usize, len: usize| SendWr {
            wr_id: message,
            op,
            local: Sge { addr: at(offset), len: len as u32, lkey: self.keys[WRITER].lkey },
            remote: RemoteAddr { addr: at(offset), rkey: self.keys[TARGET].rkey },
            signaled: true,
            fence: false,
        };
        let notify = match self.notify {
            Notify::Flag => None,
            Notify::Immediate => Some(request(SendOp::WriteWithImm(message as u32), slot(message), 0)),
            Notify::Atomic => Some(request(SendOp::FetchAdd(1), COUNTER, 8)),
        };
        let requests = [Some(request(SendOp::Write, slot(message), LEN)), notify];
        let (now, [writer, target]) = (self.net.now, self.ends);
        for wr in requests.into_iter().flatten() {
            if let SendOp::WriteWithImm(_) = wr.op {
                self.net.endpoint(TARGET).post_recv(target.qpn, RecvWr::empty(message)).unwrap();
            }
            self.net.endpoint(WRITER).post_send(now, writer.qpn, wr).unwrap();
        }
        self.posted += 1;
        self.net.pump(WRITER);
    }

    /// The peer takes a message that it was told of, all of which must be there.
    fn consume_whole(&mut self) {
        let (message, mut bytes) = (self.consumed, vec![0; LEN]);
        self.regions[TARGET].read_at(slot(message), &mut bytes).unwrap();
        for (number, found) in bytes.chunks(LINE).enumerate() {
            assert_eq!(found, line(message, number), "{:?}: message {message}, line {number}", self.notify);
            self.regions[TARGET].write_at(slot(message) + number * LINE, &CONSUMED).unwrap();
        }
        self.consumed += 1;
    }

    /// The peer takes each line as soon as its flag is there.
    fn consume_lines(&mut self) {
        for message in self.consumed..self.posted {
            let mut bytes = vec![0; LEN];
            self.regions[TARGET].read_at(slot(message), &mut bytes).unwrap();
            let lines = &mut self.lines[(message % SLOTS) as usize];
            for (number, found) in bytes.chunks(LINE).enumerate() {
                if lines[number] {
                    assert_eq!(found, CONSUMED, "message {message}: line {number} came twice");
                } else if found != CONSUMED {
                    assert_eq!(found, line(message, number), "message {message}, line {number}");
                    self.regions[TARGET].write_at(slot(message) + number * LINE, &CONSUMED).unwrap();
                    lines[number] = true;
                }
            }
        }
        while self.consumed < self.posted
            && self.lines[(self.consumed % SLOTS) as usize].iter().all(|line| *line)
        {
            self.consumed += 1;
        }
    }

    fn look(&mut self) {
        for event in self.net.take_events(WRITER) {
            if let Event::Completion { wc, .. } = event {
                assert!(wc.status.is_success(), "{wc:?}");
                assert_eq!(wc.wr_id, self.completed / self.requests(), "in order");
                self.completed += 1;
            }
        }
        for event in self.net.take_events(TARGET) {
            if let Event::Completion { wc, .. } = event {
                assert!(wc.status.is_success(), "{wc:?}");
                assert_eq!((wc.wr_id, wc.imm), (self.consumed, Some(self.consumed as u32)), "in order");
                self.consume_whole();
            }
        }
        match self.notify {
            Notify::Immediate => {}
            Notify::Flag => self.consume_lines(),
            Notify::Atomic => {
                let count = self.regions[TARGET].load_u64(COUNTER).unwrap();
                assert!(count <= self.posted, "executed twice: {count} of {}", self.posted);
                while self.consumed < count {
                    self.consume_whole();
                }
            }
        }
    }

    /// Runs until `until`, then until all is complete.
    fn run(&mut self, until: Time) {
        loop {
            let room = self.posted < self.consumed.min(self.completed / self.requests()) + SLOTS;
            if room && self.net.now < until {
                self.post();
            }
            self.look();
            if self.net.now >= until
                && self.completed == self.posted * self.requests()
                && self.consumed == self.posted
            {
                return;
            }
            assert!(self.net.step(), "{:?}: {}", self.notify, self.net.why_stopped());
        }
    }
}

/// The first NIC of either host, or of both, dies every two milliseconds: silently, for one direction or both, or with its links.
#[test]
fn consumed_bytes_stay_as_they_are_and_atomic_operations_are_executed_once() {
    for notify in [Notify::Immediate, Notify::Flag, Notify::Atomic] {
        let [mut failovers, mut silent, mut repeats, mut messages] = [0; 4];
        for seed in 0..4 {
            let mut world = World::new(notify, seed);
            for round in 0..10 {
                let from =
                    Time(world.net.now.0 + (2 * round + 1) * MS + (seed * 37 + round * 101) % 200 * US);
                let to = from.after(MS);
                let who = [None, Some(WRITER), Some(TARGET)][(seed + round) as usize % 3];
                for plane in (0..4).filter(|plane| PRIMARY >> plane & 1 == 1) {
                    if round % 2 == 0 {
                        world.net.outages.push(Outage { from, to, plane, sender: who, paths: 0 });
                    } else {
                        let node = who.unwrap_or(TARGET);
                        world.net.schedule_link(from, node, plane, false);
                        world.net.schedule_link(to, node, plane, true);
                    }
                }
            }
            world.run(Time(22 * MS));
            if notify == Notify::Atomic {
                assert_eq!(world.regions[TARGET].load_u64(COUNTER).unwrap(), world.posted, "each once");
            }
            // Nothing arrives late.
            world.net.run_for(50 * MS);
            world.look();
            (world.consumed - SLOTS..world.consumed).for_each(|message| world.check_consumed(message));
            for end in world.ends {
                let status = world.net.endpoint(end.node).role_status(end.qpn).unwrap();
                (failovers, silent) = (failovers + status.failovers, silent + status.silent_failovers);
            }
            let counters = world.net.endpoint(TARGET).counters();
            repeats += counters.rx_duplicates + counters.rx_old;
            messages += world.posted;
        }
        println!(
            "{notify:?}: {messages} messages, {failovers} failovers, {silent} of them silent, {repeats} packets twice"
        );
        assert!(failovers >= 25 && silent >= 5, "{notify:?}: {failovers} {silent}");
        assert!(repeats >= 10, "{notify:?}: what arrived was sent again {repeats} times");
    }
}
