//! The processes of the agent's host: counters now and before, as rates.

use std::time::Duration;

use spindrift_control::{CountersReport, Seen};

/// A context of a process.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) program: String,
    pub(super) connected: u64,
    pub(super) failed: u64,
    /// Payload sent and placed, in bits per second; `None` until it has been seen twice.
    pub(super) sent_bps: Option<f64>,
    pub(super) placed_bps: Option<f64>,
    /// The share of data packets that were retransmissions.
    pub(super) retransmitted: Option<f64>,
    pub(super) timeouts: u64,
    pub(super) rtt_p50_ns: Option<u64>,
    /// Planes whose links are up, and all.
    pub(super) planes: (usize, usize),
    /// Entropy values that are assumed bad.
    pub(super) bad_evs: u64,
    pub(super) deny_rules: u64,
}

/// By how much a counter has grown, if it is the same context as before.
fn growth(now: &CountersReport, before: &CountersReport, name: &str) -> Option<f64> {
    let [now, before] = [now, before].map(|report| report.transport.get(name).copied());
    Some(now?.checked_sub(before?)? as f64)
}

fn process(now: &CountersReport, before: Option<(&CountersReport, Duration)>) -> Process {
    let state = |name: &str| now.queue_pairs.states.get(name).copied().unwrap_or_default();
    let grown = |name: &str| before.and_then(|(report, _)| growth(now, report, name));
    let bps = |name: &str| {
        let seconds = before.map(|(_, since)| since.as_secs_f64()).filter(|seconds| *seconds > 0.0)?;
        Some(grown(name)? * 8.0 / seconds)
    };
    let repeated = grown("tx_retransmits").zip(grown("tx_tail_probes")).map(|(lost, tail)| lost + tail);
    let share = |repeated: f64, sent: f64| if sent > 0.0 { repeated / sent } else { 0.0 };
    let rtt = now.queue_pairs.rtt;
    Process {
        pid: now.process,
        program: now.program.clone(),
        connected: state("RTS"),
        failed: state("ERROR"),
        sent_bps: bps("tx_data_bytes"),
        placed_bps: bps("rx_placed_bytes"),
        retransmitted: repeated.zip(grown("tx_data")).map(|(repeated, sent)| share(repeated, sent)),
        timeouts: now.transport.get("timeouts").copied().unwrap_or_default(),
        rtt_p50_ns: (rtt.queue_pairs > 0).then_some(rtt.p50_ns),
        planes: (now.planes.iter().filter(|plane| plane.up).count(), now.planes.len()),
        bad_evs: now.planes.iter().map(|plane| plane.evs.assumed_bad).sum(),
        deny_rules: now.deny_rules,
    }
}

/// All contexts, with what has changed since an earlier look.
pub(super) fn processes(now: &Seen, before: Option<(&Seen, Duration)>) -> Vec<Process> {
    let of = |report: &CountersReport| {
        let same = |other: &&CountersReport| {
            (other.process, other.context, &other.program)
                == (report.process, report.context, &report.program)
        };
        let earlier = before.and_then(|(seen, since)| Some((seen.contexts.iter().find(same)?, since)));
        process(report, earlier)
    };
    now.contexts.iter().map(of).collect()
}
