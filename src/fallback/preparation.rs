//! How pairs come about (the shadow verbs of the SHIFT paper, section 4.2): each side makes a pair, publishes how to connect
//! to it, and connects to the peer's pair with the same number.
//!
//! Each step that is not possible yet is tried again later, and none waits for another, so there is no deadlock by order
//! (appendix B).

use std::net::IpAddr;

use super::machine::Machine;
use super::store::{PairRecord, Record, StoreError, StoreKey};
use super::verbs::{Nic, PairId, Verbs};
use crate::endpoint::QpInfo;
use crate::time::Time;

/// Looks of the store's interval between two checks whether the peer has ended a pair that is prepared or in use.
const LOOKS_PER_CHECK: u64 = 10;

/// What makes pairs and connects them, and the key-value store through which the two sides find each other's.
pub trait MakePairs: Verbs {
    /// Makes a pair, in a state in which it takes receives, and returns how to connect to it. `None`: it cannot be made now.
    fn make(&mut self, id: PairId) -> Option<QpInfo>;

    /// Connects a pair to the peer's.
    ///
    /// # Errors
    /// Why that is not possible. It is tried again.
    fn join(&mut self, id: PairId, peer: &QpInfo) -> Result<(), String>;

    /// The name under which the keys of this side's memory regions are found.
    fn home(&self) -> String;

    /// The peer's.
    fn set_peer_home(&mut self, home: &str);

    /// As [`Store::interval_ns`](super::Store::interval_ns).
    fn interval_ns(&self) -> u64;

    /// As [`Store::put`](super::Store::put).
    ///
    /// # Errors
    /// [`StoreError`].
    fn put(&mut self, key: &StoreKey, record: &Record) -> Result<(), StoreError>;

    /// As [`Store::get`](super::Store::get).
    ///
    /// # Errors
    /// [`StoreError`].
    fn get(&mut self, key: &StoreKey) -> Result<Option<Record>, StoreError>;

    /// A pair is connected on both sides.
    fn on_prepared(&mut self, _id: PairId) {}

    /// A pair cannot be connected to the peer's. Once for each pair.
    fn on_refused(&mut self, _reason: String) {}
}

/// How far a pair has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Made,
    /// This side is connected.
    Joined,
    /// Both sides are.
    Prepared,
}

/// How pairs on one NIC come about.
#[derive(Debug, Default)]
struct OnNic {
    /// The newest pair, unless it is in use or has ended.
    pair: Option<(PairId, Stage)>,
    /// How to connect to the newest pair, and whether it is connected.
    info: Option<QpInfo>,
    is_connected: bool,
    /// What the record in the store says: the generation, those alive, and whether it is connected.
    published: Option<(u32, Vec<u32>, bool)>,
    /// The generation of this side's newest pair.
    newest: Option<u32>,
    /// The generation of the peer's newest pair, as far as it is known.
    peers: u32,
    /// The generation of the pair that this side could not connect.
    refused: Option<u32>,
    /// When to look for the peer's record.
    due: Time,
}

/// The first address and the number of a queue pair.
type Name = (IpAddr, u32);

/// The preparation of the pairs of one connection.
#[derive(Debug)]
pub struct Preparation {
    /// The names of the first pair on this side and on the peer's, once it is connected.
    names: Option<(Name, Name)>,
    nics: [OnNic; 2],
}

impl Default for Preparation {
    /// Of a connection whose first pair is [`PairId::FIRST`].
    fn default() -> Self {
        let first = OnNic { newest: Some(PairId::FIRST.generation), ..OnNic::default() };
        Self { names: None, nics: [first, OnNic::default()] }
    }
}

impl Preparation {
    /// The first pair is connected. Records are found under its names.
    pub fn connected(&mut self, own: &QpInfo, peer: &QpInfo) {
        let name = |info: &QpInfo| info.ports.first().map(|port| (port.ip, info.qpn));
        self.names = name(own).zip(name(peer));
        let [default, _] = &mut self.nics;
        (default.info, default.is_connected) = (Some(own.clone()), true);
    }

    /// Makes pairs that the machine wants, and connects those that the peer has made too. To be called about as often as
    /// [`MakePairs::interval_ns`] says.
    pub fn step(&mut self, machine: &mut Machine, pairs: &mut impl MakePairs, now: Time) {
        let Some((own, peer)) = self.names else { return };
        for (nic, state) in Nic::ALL.into_iter().zip(&mut self.nics) {
            if machine.wants(nic) {
                state.make(machine, pairs, nic);
            }
            // It is tried again in the next round.
            if state.publish(machine, pairs, nic, own).is_ok() {
                state.look(machine, pairs, now, (nic, peer));
                // The peer waits for this side to connect, and this side may stop polling once it is prepared. If the store fails now, it
                // is tried again too.
                let _ = state.publish(machine, pairs, nic, own);
            }
        }
    }
}

impl OnNic {
    fn make(&mut self, machine: &mut Machine, pairs: &mut impl MakePairs, nic: Nic) {
        let generation = self.newest.map_or(0, |newest| newest + 1).max(self.peers);
        let id = PairId { nic, generation };
        let Some(info) = pairs.make(id) else { return };
        self.newest = Some(generation);
        self.pair = Some((id, Stage::Made));
        (self.info, self.is_connected) = (Some(info), false);
        self.due = Time::ZERO;
        machine.created(pairs, id);
    }

    /// Publishes this side's newest pair, and which have ended, as far as that has changed.
    fn publish(
        &mut self,
        machine: &Machine,
        pairs: &mut impl MakePairs,
        nic: Nic,
        own: Name,
    ) -> Result<(), StoreError> {
        let (Some(generation), Some(info)) = (self.newest, &self.info) else { return Ok(()) };
        let connected = self.is_connected;
        let is_same = |(newest, those, joined): &(u32, Vec<u32>, bool)| {
            (*newest, *joined) == (generation, connected) && machine.alive(nic).eq(those.iter().copied())
        };
        if self.published.as_ref().is_some_and(is_same) {
            return Ok(());
        }
        let alive: Vec<_> = machine.alive(nic).collect();
        let (home, info) = (pairs.home(), info.clone());
        let record =
            Record::Pair(Box::new(PairRecord { generation, alive: alive.clone(), home, info, connected }));
        let (address, qpn) = own;
        pairs.put(&StoreKey::Pair { address, qpn, nic }, &record)?;
        self.published = Some((generation, alive, connected));
        Ok(())
    }

    /// Looks at the record of the peer.
    fn look(
        &mut self,
        machine: &mut Machine,
        pairs: &mut impl MakePairs,
        now: Time,
        (nic, (address, qpn)): (Nic, Name),
    ) {
        if now < self.due {
            return;
        }
        self.pair = self.pair.filter(|(id, _)| machine.is_unused(*id));
        let is_waiting = self.pair.is_some_and(|(_, stage)| stage != Stage::Prepared);
        self.due = now.after(pairs.interval_ns() * if is_waiting { 1 } else { LOOKS_PER_CHECK });
        let Ok(Some(Record::Pair(theirs))) = pairs.get(&StoreKey::Pair { address, qpn, nic }) else {
            return;
        };
        self.peers = self.peers.max(theirs.generation);
        pairs.set_peer_home(&theirs.home);
        machine.on_peer_pairs(pairs, nic, theirs.generation, &theirs.alive);
        self.pair = self.pair.filter(|(id, _)| machine.is_unused(*id));
        let Some((id, stage)) = self.pair else { return };
        // A newer pair alone does not mean that this one has ended: the peer may have begun to use it.
        if stage == Stage::Made && id.generation < theirs.generation {
            self.pair = None;
            machine.on_stale(pairs, id);
        } else if id.generation == theirs.generation {
            self.advance(machine, pairs, (id, stage), &theirs);
        }
    }

    /// Connects a pair to the peer's, and gives it to the machine when the peer has done the same.
    fn advance(
        &mut self,
        machine: &mut Machine,
        pairs: &mut impl MakePairs,
        (id, mut stage): (PairId, Stage),
        theirs: &PairRecord,
    ) {
        if stage == Stage::Made {
            if let Err(reason) = pairs.join(id, &theirs.info) {
                if self.refused.replace(id.generation) != Some(id.generation) {
                    pairs.on_refused(reason);
                }
                return;
            }
            (stage, self.is_connected) = (Stage::Joined, true);
        }
        if stage == Stage::Joined && theirs.connected {
            stage = Stage::Prepared;
            pairs.on_prepared(id);
            machine.prepared(pairs, id);
        }
        self.pair = Some((id, stage));
    }
}
