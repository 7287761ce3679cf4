//! What is demanded of a run as a whole: of its memory at any time, when all work is done, and when nothing happens any more.

use spindrift::counters::Counters;
use spindrift::path::EvState;

use super::World;
use crate::net::Net;
use crate::swarm::accusation::accusation;
use crate::swarm::episode::EpisodeKind;
use crate::swarm::host::Host;
use crate::swarm::ledger::{Check, demand};

/// How long the network may take to fall quiet: probes come once a second at last, and several have to be answered.
const QUIET_NS: u64 = 900_000_000_000;
/// The same where probes never end.
const LONELY_NS: u64 = 5_000_000_000;

impl World<'_> {
    /// What must hold at any time.
    pub(super) fn check_memory(&self) -> Check {
        self.transfers.iter().try_for_each(|transfer| transfer.writer.ledger.check_memory())
    }

    /// What must hold when all work is done.
    pub(super) fn check_done(&mut self) -> Check {
        for transfer in &mut self.transfers {
            transfer.writer.check_end()?;
            transfer.writer.ledger.check_source()?;
        }
        let trimmed = self.sum(|counters| counters.rx_trimmed);
        let corrupt = self.case.episodes.iter().any(|episode| match &episode.kind {
            EpisodeKind::Links { impairment, .. } => impairment.corrupt > 0.0,
            _ => false,
        });
        let late = self.transfers.iter().any(|transfer| transfer.late_ns > 0);
        for host in self.net.hosts() {
            let counters = self.net.transport(host).nic.endpoint.counters();
            if let Some((name, count)) = accused(counters, corrupt, trimmed, late) {
                return Err(format!("{} accuses an honest peer: {name} = {count}", self.name(host)));
            }
            let written = self.transfers.iter().map(|transfer| {
                let tally = transfer.writer.ledger.tally;
                u64::from(transfer.to.0 == host) * tally.bytes
                    + u64::from(transfer.from.0 == host) * tally.fetched
            });
            let written: u64 = written.sum();
            let placed = counters.rx_placed_bytes;
            demand!(
                self.case.may_fail || placed == written,
                "every byte is placed once: {} placed {placed} of {written}",
                self.name(host)
            );
        }
        Ok(())
    }

    /// Lets everything that is still under way arrive, bad paths be probed, timers run out.
    pub(super) fn fall_quiet(&mut self) -> Check {
        let from = self.net.now().max(self.heal_at);
        let requests =
            |net: &Net<Host>| net.hosts().map(|host| net.transport(host).audit.requests()).sum::<u64>();
        let before = requests(&self.net);
        // Until the network has healed, hosts may avoid paths again.
        while self.step(from)? {}
        self.lift_lists()?;
        // A queue pair may give up as late as now, when nothing acknowledges its last response.
        while self.step(from + if self.probes_for_ever() { LONELY_NS } else { QUIET_NS })? {}
        demand!(self.probes_for_ever() || self.net.is_idle(), "the network never falls quiet");
        let more = requests(&self.net) - before;
        demand!(more == 0, "{more} data packets were sent although all work was done");
        Ok(())
    }

    /// What must hold when nothing happens any more.
    pub(super) fn check_quiet(&mut self) -> Check {
        let lonely = self.probes_for_ever();
        for transfer in &mut self.transfers {
            transfer.writer.check_end()?;
            let endpoint = &self.net.transport(transfer.from.0).nic.endpoint;
            let status =
                endpoint.qp_status(transfer.from.1).ok_or("a queue pair stays until it is destroyed")?;
            demand!(status.send_outstanding == 0, "requests are outstanding: {status:?}");
            let uses = transfer.writer.lkeys().map(|lkey| endpoint.memory().uses(lkey));
            demand!(uses == [0; 3], "memory is still in use: {uses:?}");
            if lonely {
                continue;
            }
            let receiver = &self.net.transport(transfer.to.0).nic.endpoint;
            let uses = receiver.memory().uses(transfer.writer.ledger.target().key.lkey);
            demand!(uses == 0, "receive buffers are still in use: {uses}");
            demand!(status.inflight_bytes == 0, "congestion control has forgotten bytes: {status:?}");
            let bad = endpoint.ev_states(transfer.from.1).into_iter().flatten();
            let bad: Vec<_> = bad.filter(|ev| ev.state == EvState::AssumedBad).collect();
            demand!(bad.is_empty(), "entropy values stay bad: {bad:?}");
        }
        let (counters, under_way) = (self.net.counters(), self.net.on_their_way());
        demand!(
            counters.add_up(under_way),
            "packets are missing: {counters:?}, {under_way} on their transfer"
        );
        demand!(lonely || under_way == 0, "{under_way} packets are on their transfer for ever");
        Ok(())
    }

    /// A peer of a queue pair that has given up, or a NIC that stands by, may be probed until the end.
    fn probes_for_ever(&self) -> bool {
        self.gave_up() > 0 || self.case.roles.is_some_and(|roles| roles.probe_ns > 0)
    }
}

/// A counter that says that a peer has done what none does. Receives may come late.
fn accused(counters: &Counters, corrupt: bool, trimmed: u64, late: bool) -> Option<(&'static str, u64)> {
    // Nothing protects what is taken for trimmed, least of all when the bit that says so was flipped.
    let doubtful = counters.rx_unknown_qp + counters.rx_foreign_source + counters.rx_forged_ack;
    let over = doubtful.saturating_sub(if corrupt { trimmed } else { 0 });
    let doubt = (over > 0).then_some(("rx_unknown_qp, rx_foreign_source and rx_forged_ack", over));
    accusation(counters, if late { &["rx_not_ready"] } else { &[] }).or(doubt)
}
