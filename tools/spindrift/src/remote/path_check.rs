//! Whether packets of full size reach the peer, before a run: a switch or tunnel whose MTU is smaller may drop them without a word, while
//! everything else works. The run would end in silence, after as long as queue pairs wait.
//!
//! On each plane, writes of one packet each go to the peer at once, ever longer ones, up to the MTU. Completions come in order, so
//! they tell how long a packet may be. It takes one round trip a plane, or more where the send queue holds fewer writes.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Error, Result, anyhow, bail};
use spindrift::endpoint::EndpointConfig;
use spindrift::fallback::{self, Nic, QpId, SendState};
use spindrift::path::PlaneRole;
use spindrift::verbs::{SendOp, SendWr, VerbsError, WcStatus};
use spindrift_pmd::{ETHERNET_LEN, Medium};

use super::Connected;
use super::peer::{LOOK_INTERVAL, Peer};
use crate::bench::endpoint_setup::has_arrived;
use crate::bench::options::Settings;
use crate::bench::report::explain;
use crate::bench::transport::{Nics, Qp, Two};
use crate::output::eprint_line;

/// How long the first packet of a plane is waited for. A plane that carries nothing at all is a matter of the run, which may wait longer.
const FIRST_LIMIT: Duration = Duration::from_secs(1);
/// How long a longer packet is waited for after a shorter one arrived: some ten retransmissions, the later ones half a second apart, so
/// that loss is not taken for a limit.
const NEXT_LIMIT: Duration = Duration::from_secs(3);
/// The same in smoothed round-trip times, and the most that this may be. A queue that is nearly full has room for short packets and none
/// for long ones, so round trips that take as long as such a queue allow for more retransmissions.
const NEXT_LIMIT_RTTS: u32 = 600;
const NEXT_LIMIT_MOST: Duration = Duration::from_secs(30);
/// Shortest payload of those that are tried after one byte.
const LADDER_FROM: u32 = 256;

/// How long queue pairs may take to move to the other NIC: the move needs some round trips there.
const MOVE_LIMIT: Duration = Duration::from_secs(10);

/// Sizes of payload up to the MTU.
fn ladder(mtu: u32) -> Vec<u32> {
    let doubled = (0..).map_while(|n| LADDER_FROM.checked_shl(n)).take_while(|&size| size < mtu);
    [1].into_iter().chain(doubled).chain([mtu]).collect()
}

/// A plane on which packets of one size arrive, and those of the next do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    plane: u8,
    arrives: u32,
    vanishes: u32,
}

impl Cut {
    fn text(&self, v6: bool, to: &str) -> String {
        let Self { plane, arrives, vanishes } = self;
        let ip = |payload: u32| payload as usize + EndpointConfig::overhead(v6) - ETHERNET_LEN;
        format!(
            "plane {plane}: packets of {arrives} bytes of payload reach {to}, packets of {vanishes} bytes (IP packets of {}) do not, and no router says so: \
             a switch or tunnel on the way has a smaller MTU",
            ip(*vanishes)
        )
    }
}

/// How far writes have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waited {
    Done,
    /// So many are complete, and no more in time.
    Stuck(usize),
}

/// Looks at each plane. One that does not take packets of full size is denied to all queue pairs; if no other is left, or with
/// `--fallback shift`, that is an error. Where this host alone is between the sides, and where this side injects faults, there is nothing
/// to find out.
pub(super) fn check_paths(connected: &mut Connected, peer: &mut Peer, settings: &Settings) -> Result<()> {
    let ports = connected.side.nics.query_ports();
    if settings.fault.is_some() || ports.iter().all(|port| port.medium == Medium::Host) {
        return Ok(());
    }
    let v6 = connected.addresses.iter().all(IpAddr::is_ipv6);
    // A slow link takes its time for one packet.
    let slow = settings
        .link_rate
        .map_or(0.0, |rate| f64::from(connected.side.in_use.mtu) * 16.0 / rate.max(1) as f64);
    let next_limit = NEXT_LIMIT + Duration::from_secs_f64(slow);
    let depth = settings.tx_depth as usize;
    let planes = connected.planes;
    let mut check = Check {
        connected,
        peer,
        depth,
        v6,
        planes,
        switches: 0,
        waiting: VecDeque::new(),
        done: 0,
        posted: 0,
        first: 0,
        next_limit,
    };
    let Nics::Two(two) = check.connected.side.nics.clone() else {
        check.check_nic(0)?;
        return check.prefer_primary();
    };
    // Packets of the second NIC take paths of their own.
    for nic in [Nic::Default, Nic::Backup, Nic::Default] {
        check.move_to(&two, nic)?;
        if nic == Nic::Backup || check.posted == 0 {
            check.planes = if nic == Nic::Backup { two.planes(nic).len() as u8 } else { planes };
            check.check_nic(nic as usize)?;
        }
    }
    Ok(())
}

/// How long a packet is waited for where round trips take this long, and `usual` is enough without a queue.
fn limit_for(rtt: Duration, usual: Duration) -> Duration {
    usual.max(rtt.saturating_mul(NEXT_LIMIT_RTTS).min(NEXT_LIMIT_MOST))
}

struct Check<'a> {
    connected: &'a mut Connected,
    peer: &'a mut Peer,
    v6: bool,
    /// Planes of the NIC.
    planes: u8,
    /// Times that queue pairs had left a NIC before this one was looked at.
    switches: u64,
    /// Writes that the send queue holds.
    depth: usize,
    /// Sizes of the writes that did not yet fit in it.
    waiting: VecDeque<u32>,
    /// Writes that are complete, and all that were posted.
    done: usize,
    posted: usize,
    /// Number of the plane's first write.
    first: usize,
    /// How long a longer packet is waited for.
    next_limit: Duration,
}

impl Check<'_> {
    /// Looks at each plane of a NIC, which the queue pairs use.
    fn check_nic(&mut self, nic: usize) -> Result<()> {
        let remote_len = u32::try_from(self.connected.far.target.len).unwrap_or(u32::MAX);
        let sizes = ladder(self.connected.side.in_use.mtu.min(remote_len));
        let planes = self.planes;
        let usable = |cuts: &[Cut]| -> Vec<u8> {
            (0..planes).filter(|&plane| cuts.iter().all(|cut| cut.plane != plane)).collect()
        };
        let mut cuts: Vec<Cut> = Vec::new();
        self.switches = self.count_switches();
        for plane in 0..planes {
            self.allow_only(&[plane])?;
            self.begin(&sizes)?;
            let mut waited = self.wait(Some(FIRST_LIMIT))?;
            if waited == Waited::Stuck(0) && !self.has_switched() {
                // An outage, maybe. The run would wait too, on every plane.
                self.allow_only(&usable(&cuts))?;
                waited = self.wait(None)?;
            }
            let Waited::Stuck(count) = waited else { continue };
            if self.has_switched() {
                return Err(self.left(nic, plane, sizes.get(..count).unwrap_or_default(), sizes.get(count)));
            }
            // No longer one arrives either.
            self.waiting.clear();
            if let Some((&arrives, &vanishes)) = sizes.get(count - 1).zip(sizes.get(count)) {
                cuts.push(Cut { plane, arrives, vanishes });
            }
            let left = usable(&cuts);
            // A queue pair that is prepared later would use the plane.
            let can_deny = matches!(self.connected.side.nics, Nics::One(_));
            let goes_on = can_deny && !left.is_empty() && {
                self.allow_only(&left)?;
                self.wait(Some(self.next_limit()?))? == Waited::Done
            };
            if !goes_on {
                let texts: Vec<_> = cuts.iter().map(|cut| self.text(nic, cut)).collect();
                let least = cuts.iter().map(|cut| cut.arrives).min().unwrap_or(LADDER_FROM).max(LADDER_FROM);
                bail!("{}; use --mtu {least}, or raise the MTU there", texts.join("; "));
            }
        }
        self.allow_only(&usable(&cuts))?;
        for cut in &cuts {
            eprint_line(format_args!(
                "spindrift: {}; the plane is not used: use --mtu {}, or raise the MTU there",
                self.text(nic, cut),
                cut.arrives.max(LADDER_FROM)
            ));
        }
        Ok(())
    }

    /// Times that the queue pairs have left a NIC because it failed.
    fn count_switches(&self) -> u64 {
        let counters = self.connected.side.qps.iter().filter_map(Qp::fallback_counters);
        counters.map(|counters| counters.switches + counters.switches_by_peer).sum()
    }

    /// Whether they have left the NIC that is looked at: its packets did not arrive before retries were exhausted. What they
    /// send again over the other NIC says nothing.
    fn has_switched(&self) -> bool {
        self.count_switches() != self.switches
    }

    /// That error, where packets of some sizes had arrived, and those of the next had not.
    fn left(&self, nic: usize, plane: u8, arrived: &[u32], next: Option<&u32>) -> Error {
        if let Some((&arrives, &vanishes)) = arrived.last().zip(next) {
            return anyhow!(
                "{}, or the NIC has failed meanwhile; use --mtu {}, or raise the MTU there",
                self.text(nic, &Cut { plane, arrives, vanishes }),
                arrives.max(LADDER_FROM)
            );
        }
        let plane = self.connected.side.nics.plane(nic, plane.into());
        anyhow!("plane {plane}: no packet reaches the {}", self.peer.name())
    }

    fn text(&self, nic: usize, cut: &Cut) -> String {
        let plane = self.connected.side.nics.plane(nic, cut.plane.into()) as u8;
        Cut { plane, ..*cut }.text(self.v6, self.peer.name())
    }

    /// Moves all queue pairs to a NIC, and waits until they are there, and the run can begin or go on.
    fn move_to(&mut self, two: &Two, nic: Nic) -> Result<()> {
        let qps: Vec<QpId> = self.connected.side.qps.iter().filter_map(Qp::id).map(|(qp, _)| qp).collect();
        two.with(|context| qps.iter().try_for_each(|qp| context.prefer(*qp, nic)))?;
        let is_there = |context: &mut fallback::Context, qp: &QpId| {
            let steady = matches!(context.state(*qp)?.0, SendState::Default | SendState::Fallback);
            // On the second NIC it need not be: while the peer sends over the first one, no other pair is prepared there.
            let armed = nic == Nic::Backup || context.is_prepared(*qp, nic.other())?;
            Ok::<_, VerbsError>(steady && armed && context.pair(*qp)?.0 == nic)
        };
        let (start, mut next_look) = (Instant::now(), Instant::now());
        while !two.with(|context| {
            qps.iter().try_fold(true, |all, qp| Ok::<_, VerbsError>(all & is_there(context, qp)?))
        })? {
            self.connected.side.nics.poll();
            let now = Instant::now();
            if now >= next_look {
                next_look = now + LOOK_INTERVAL;
                self.peer.tick(self.done as u64)?;
            }
            if now.duration_since(start) > MOVE_LIMIT {
                bail!(
                    "the {nic} carries no packets to the {}: its queue pairs did not move there within {MOVE_LIMIT:?}",
                    self.peer.name()
                );
            }
        }
        Ok(())
    }

    /// Has every queue pair send on these planes alone.
    fn allow_only(&self, wanted: &[u8]) -> Result<()> {
        let Self { connected: Connected { side, .. }, planes, .. } = self;
        for qp in &side.qps {
            let pair = qp.pair_of().now()?;
            side.nics.with_endpoint(pair, |endpoint| {
                // First those that are allowed, so that there always is one.
                for plane in wanted {
                    endpoint.allow_plane(pair.qpn, *plane);
                }
                for plane in (0..*planes).filter(|plane| !wanted.contains(plane)) {
                    endpoint.deny_plane(pair.qpn, plane);
                }
            })?;
        }
        Ok(())
    }

    /// The standby served while the others were denied, which is no failure.
    fn prefer_primary(&self) -> Result<()> {
        let Connected { side, .. } = &*self.connected;
        for qp in &side.qps {
            let pair = qp.pair_of().now()?;
            side.nics.with_endpoint(pair, |endpoint| endpoint.prefer_role(pair.qpn, PlaneRole::Primary))?;
        }
        Ok(())
    }

    /// Begins a plane: a write of each of these sizes, from and to the start of memory, is posted as the send queue has room.
    fn begin(&mut self, sizes: &[u32]) -> Result<()> {
        self.first = self.posted;
        self.waiting.extend(sizes);
        self.post()
    }

    fn post(&mut self) -> Result<()> {
        let Connected { side, far, .. } = &mut *self.connected;
        while self.posted - self.done < self.depth
            && let Some(size) = self.waiting.pop_front()
        {
            let wr = SendWr {
                wr_id: self.posted as u64,
                op: SendOp::Write,
                local: side.source.sge(0, size)?,
                remote: far.target.at(0, size.into()).context("the peer's memory")?,
                signaled: true,
                fence: false,
            };
            side.qps.first_mut().context("no queue pair")?.post_send(wr)?;
            self.posted += 1;
        }
        Ok(())
    }

    /// Waits for the plane's writes. `first`: how long for the first of them, if not without end.
    fn wait(&mut self, first: Option<Duration>) -> Result<Waited> {
        let mut since = Instant::now();
        let mut next_look = since;
        loop {
            let now = Instant::now();
            if now >= next_look {
                next_look = now + LOOK_INTERVAL;
                self.peer.tick(self.done as u64)?;
            }
            for lane in 0..self.connected.side.nics.lanes() {
                self.connected.side.nics.poll_lane(lane);
            }
            let before = self.done;
            self.take_completions()?;
            if self.has_switched() {
                return Ok(Waited::Stuck(self.done.saturating_sub(self.first)));
            }
            self.post()?;
            if self.done == self.posted {
                return Ok(Waited::Done);
            }
            if self.done > before {
                since = Instant::now();
            }
            let count = self.done.saturating_sub(self.first);
            let waited = since.elapsed();
            let limit = if count == 0 { first } else { Some(self.next_limit) };
            if limit.is_some_and(|limit| waited >= limit) && (count == 0 || waited >= self.next_limit()?) {
                return Ok(Waited::Stuck(count));
            }
        }
    }

    /// How long a longer packet is waited for, with the round-trip times of now.
    fn next_limit(&self) -> Result<Duration> {
        let side = &self.connected.side;
        let pair = side.qps.first().context("no queue pair")?.pair_of().now()?;
        let status = side.nics.with_endpoint(pair, |endpoint| endpoint.qp_status(pair.qpn))?;
        let rtt = status.map_or(Duration::ZERO, |status| Duration::from_nanos(status.smoothed_rtt_ns));
        Ok(limit_for(rtt, self.next_limit))
    }

    fn take_completions(&mut self) -> Result<()> {
        let side = &mut self.connected.side;
        for cq in &mut side.cqs {
            while let Some(wc) = cq.poll_one()? {
                if wc.status != WcStatus::Success {
                    let failure = side.qps.iter().find_map(Qp::failure);
                    let why = explain(wc.status, failure, &side.retry, has_arrived(&side.nics));
                    return Err(self.peer.blame(anyhow!("a write of the path check failed: {why}")));
                }
                self.done += 1;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_go_up_to_the_mtu() {
        assert_eq!(ladder(4096), [1, 256, 512, 1024, 2048, 4096]);
        assert_eq!(ladder(1404), [1, 256, 512, 1024, 1404]);
        assert_eq!(ladder(256), [1, 256]);
        assert_eq!(ladder(8960).len(), 8);
    }

    #[test]
    fn long_round_trips_allow_for_more_retransmissions() {
        let ms = Duration::from_millis;
        let limits = [0, 1, 5, 6, 20, 52, 5_000].map(|rtt| limit_for(ms(rtt), NEXT_LIMIT));
        assert_eq!(limits, [3_000, 3_000, 3_000, 3_600, 12_000, 30_000, 30_000].map(ms));
        // A slow link has its own limit.
        assert_eq!(limit_for(ms(52), ms(40_000)), ms(40_000));
    }

    #[test]
    fn both_sizes_are_named() {
        let cut = Cut { plane: 1, arrives: 1024, vanishes: 4096 };
        let text = cut.text(true, "the server");
        assert!(text.starts_with("plane 1: packets of 1024 bytes of payload reach the server, packets of 4096 bytes (IP packets of 4188)"), "{text}");
    }
}
