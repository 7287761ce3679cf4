//! Reliability probes of a path that went bad: what they look like, and what each answer and none does.
//!
//! Tests decision 8 of `docs/protocol.md`.

use spindrift::path::EvState;
use spindrift::wire::{Mark, Opcode, Seth};

use crate::sender::{FULL, PACKET, PEER_QPN, RTT, Sender, SentProbe, Setup, same_path};

/// MRC leaves these open; they are the defaults.
const INTERVAL: u64 = 1_000_000;
const TIMEOUT: u64 = 4_000_000;

/// A sender without anything in flight, one of whose paths went bad just now, and the path.
fn with_bad_path() -> (Sender, SentProbe) {
    let (mut sender, sent) = Sender::sending(Setup { planes: 2, ..Setup::default() }, 32);
    let (lost, later) = same_path(&sent);
    sender.wait(RTT);
    sender.sack(Seth { bitmap: 1 << later.n, ..sender.answer(&later, 0) });
    assert_eq!(sender.blamed(), [(lost.ev, EvState::AssumedBad, 1)]);
    let went_bad = sender.net.now;
    sender.ack(32, spindrift::wire::Aeth::ack(1));
    sender.sent();
    sender.wait(INTERVAL - 1);
    assert_eq!(sender.probes().len(), 0);
    sender.wait(1);
    let probe = only_probe(&mut sender);
    assert_eq!((probe.ev, probe.plane, probe.at), (lost.ev, lost.plane, went_bad.after(INTERVAL)));
    (sender, probe)
}

#[track_caller]
fn only_probe(sender: &mut Sender) -> SentProbe {
    let probes = sender.probes();
    assert_eq!(probes.len(), 1, "{probes:?}");
    probes[0]
}

fn answer(sender: &mut Sender, probe: &SentProbe, mark: Mark) {
    let seth = Seth {
        pr: true,
        mark,
        ack_psn_offset: probe.peth.probe_id.cast_signed(),
        entropy: probe.ev,
        ..sender.seth(32)
    };
    sender.sack(seth);
}

fn state(sender: &mut Sender, probe: &SentProbe) -> EvState {
    sender.evs().iter().find(|ev| ev.ev == probe.ev).unwrap().state
}

#[test]
fn a_probe_travels_on_the_path_it_tests_and_names_both_ends() {
    let (mut sender, probe) = with_bad_path();
    let own = sender.qp.qpn;
    assert_eq!((probe.bth.opcode, probe.bth.dest_qpn), (Opcode::Probe, PEER_QPN));
    assert_eq!((probe.peth.spdcid, probe.peth.dpdcid), (own.low16(), PEER_QPN.low16()));
    assert_eq!((probe.peth.tx_timestamp, probe.peth.ftype), ((probe.at.0 >> 7) as u16, 1));
    assert_eq!((sender.inflight(), sender.cwnd()), (0, FULL - PACKET), "it is no data");
    assert_eq!(sender.sent(), []);
}

#[test]
fn two_answers_bring_the_path_back() {
    for (last, expected) in
        [(Mark::None, EvState::Good), (Mark::Reserved, EvState::Good), (Mark::SkipOnce, EvState::Skip)]
    {
        let (mut sender, probe) = with_bad_path();
        let cwnd = sender.cwnd();
        sender.wait(RTT);
        answer(&mut sender, &probe, Mark::SkipOnce);
        assert_eq!(state(&mut sender, &probe), EvState::AssumedBad);
        // Once more and no less: the answer counts once.
        answer(&mut sender, &probe, Mark::None);
        assert_eq!(state(&mut sender, &probe), EvState::AssumedBad);
        assert_eq!((sender.counters().rx_unmatched_response, sender.paths().probe_answers_unknown), (1, 1));
        sender.wait(INTERVAL);
        let second = only_probe(&mut sender);
        assert_eq!(
            (second.ev, second.plane, second.at),
            (probe.ev, probe.plane, probe.at.after(RTT + INTERVAL))
        );
        assert_ne!(second.peth.probe_id, probe.peth.probe_id);
        answer(&mut sender, &second, last);
        assert_eq!(state(&mut sender, &probe), expected, "{last:?}");
        let paths = sender.paths();
        assert_eq!((paths.probes_answered, paths.probes_expired, paths.revived), (2, 0, 1));
        assert_eq!((sender.cwnd(), sender.inflight()), (cwnd, 0));
        sender.wait(10 * TIMEOUT);
        assert_eq!(sender.probes().len(), 0);
    }
}

#[test]
fn an_answer_that_says_always_skip_is_a_failure() {
    let (mut sender, probe) = with_bad_path();
    answer(&mut sender, &probe, Mark::None);
    sender.wait(INTERVAL);
    let second = only_probe(&mut sender);
    answer(&mut sender, &second, Mark::AlwaysSkip);
    assert_eq!(state(&mut sender, &probe), EvState::AssumedBad);
    sender.wait(2 * INTERVAL - 1);
    assert_eq!(sender.probes().len(), 0);
    sender.wait(1);
    let third = only_probe(&mut sender);
    answer(&mut sender, &third, Mark::None);
    assert_eq!(state(&mut sender, &probe), EvState::AssumedBad, "it counts from the start");
    assert_eq!(sender.paths().always_skips, 0);
}

#[test]
fn without_an_answer_the_wait_doubles() {
    let (mut sender, first) = with_bad_path();
    let mut at = first.at;
    for doubling in 1..4 {
        at = at.after(TIMEOUT + (INTERVAL << doubling));
        sender.wait(at.since(sender.net.now) - 1);
        assert_eq!(sender.probes().len(), 0, "doubling {doubling}");
        assert_eq!(sender.paths().probes_expired, doubling);
        sender.wait(1);
        let probe = only_probe(&mut sender);
        assert_eq!((probe.ev, probe.at), (first.ev, at), "doubling {doubling}");
    }
    // Too late.
    answer(&mut sender, &first, Mark::None);
    assert_eq!((sender.paths().probes_answered, sender.paths().probe_answers_unknown), (0, 1));
    assert_eq!(sender.blamed(), [(first.ev, EvState::AssumedBad, 1)]);
}

#[test]
fn an_answer_with_another_id_answers_nothing() {
    let (mut sender, probe) = with_bad_path();
    let mut other = probe;
    other.peth.probe_id = probe.peth.probe_id.wrapping_add(1);
    for _ in 0..4 {
        answer(&mut sender, &other, Mark::None);
    }
    assert_eq!((sender.paths().probes_answered, sender.counters().rx_unmatched_response), (0, 4));
    assert_eq!(sender.blamed(), [(probe.ev, EvState::AssumedBad, 1)]);
}
