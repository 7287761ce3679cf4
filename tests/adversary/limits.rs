//! Settings and events at the edge of what is allowed: nothing may hang, and no completion may say less or more than is known.

use spindrift::congestion::CcConfig;
use spindrift::endpoint::{Endpoint, EndpointConfig, Event, FailReason, Limits, QpState};
use spindrift::time::Time;
use spindrift::wire::{Aeth, Bth, NakCode, Opcode, Packet, Psn};
use spindrift::work::WcStatus;

use crate::bench::{Bench, SHORT, VICTIM, completions, config, init};
use crate::support::frame;

#[test]
fn a_queue_pair_that_could_not_be_made_costs_nothing() {
    let limits = Limits { max_qps: 1, ..Limits::default() };
    let mut endpoint = Endpoint::new(EndpointConfig { limits, ..config(VICTIM) }).unwrap();
    let pd = endpoint.alloc_pd();
    let mut bad = init(pd);
    bad.cc = CcConfig::new(0, 12_000, 4_096);
    assert!(endpoint.create_qp(bad.clone()).is_err());
    assert!(endpoint.create_qp(bad).is_err());
    let qpn = endpoint.create_qp(init(pd)).unwrap();
    assert_eq!(endpoint.qp_state(qpn), Some(QpState::Reset), "the number leads to the queue pair");
    assert!(endpoint.create_qp(init(pd)).is_err(), "one is allowed");
    endpoint.destroy_qp(qpn).unwrap();
    endpoint.create_qp(init(pd)).unwrap();
}

#[test]
fn a_probe_timeout_of_nothing_is_refused() {
    let error =
        Endpoint::new(EndpointConfig { tail_probe_floor_ns: 0, ..config(VICTIM) }).err().map(|e| e.setting);
    assert_eq!(error, Some("tail_probe_floor_ns"));
    Endpoint::new(EndpointConfig { tail_probe_floor_ns: 1, ..config(VICTIM) }).unwrap();
}

#[test]
fn a_reordering_window_of_more_than_a_second_is_refused() {
    for (initial_reordering_ns, error) in
        [(1_000_000_000, None), (1_000_000_001, Some("initial_reordering_ns"))]
    {
        let cfg = EndpointConfig { initial_reordering_ns, ..config(VICTIM) };
        assert_eq!(Endpoint::new(cfg).err().map(|e| e.setting), error);
    }
}

#[test]
fn the_mtu_fits_the_length_fields() {
    let mut cfg = config(VICTIM);
    for port in &mut cfg.ports {
        port.max_frame = 1 << 20;
    }
    let overhead = EndpointConfig::overhead(true) - 14;
    assert_eq!(cfg.max_mtu() as usize + overhead, 65_535);
}

/// A request that no plane can take must not wait for ever: it has the same patience as one in flight.
#[test]
fn a_request_without_a_plane_is_given_up_too() {
    let mut bench = Bench::with(|_| {}, SHORT);
    bench.all_links(false);
    bench.mark();
    bench.post_to_attacker(1, 1_000);
    let mut events = Vec::new();
    let start = bench.net.now;
    bench.net.run_until(|net| {
        events.extend(net.take_events(VICTIM));
        let failed = events.iter().any(|event| matches!(event, Event::QpFailed { .. }));
        failed || net.now.since(start) > 10_000_000_000
    });
    let ends: Vec<_> = completions(&events).iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(ends, [(1, WcStatus::RetryExceeded)]);
    assert!(events.contains(&Event::QpFailed { qpn: bench.qp.qpn, reason: FailReason::RetryExceeded }));
    bench.all_links(true);
    bench.check_healthy("no plane");
}

fn first_psn(bench: &Bench) -> Psn {
    frame::decode(&bench.net.astray[0].1).unwrap().1.bth().psn
}

/// The timer of such a request runs from the moment it is posted, though nothing is sent.
#[test]
fn a_request_without_a_plane_starts_its_own_timer() {
    let mut bench = Bench::with(|_| {}, SHORT);
    bench.all_links(false);
    bench.net.run_for(100_000_000_000);
    assert_eq!(bench.net.endpoint(VICTIM).next_timeout(), Time::NEVER, "nothing else runs");
    bench.post_to_attacker(1, 1_000);
    let timeout_ns = 1024 << SHORT.timeout;
    assert_eq!(bench.net.endpoint(VICTIM).next_timeout(), bench.net.now.after(timeout_ns));
}

/// The acknowledgement and the NAK behind it take different planes, and the NAK may come first.
#[test]
fn a_nak_that_overtakes_the_acknowledgement_completes_what_was_done() {
    for (msn, first_end) in [(2, WcStatus::Success), (0, WcStatus::WrFlushError), (3, WcStatus::WrFlushError)]
    {
        let mut bench = Bench::new();
        bench.post_to_attacker(77, 2_560);
        let first = first_psn(&bench);
        bench.post_to_attacker(78, 300);
        bench.post_to_attacker(79, 300);
        bench.post_to_attacker(80, 300);
        let bth = Bth::new(Opcode::Ack, bench.qp.qpn, first.add(13));
        bench.give(&Packet::Ack { bth, aeth: Aeth::nak(NakCode::RemoteAccess, msn) });
        let ends: Vec<_> = bench.completions().iter().map(|wc| (wc.wr_id, wc.status)).collect();
        let (refused, flushed) = (WcStatus::RemoteAccessError, WcStatus::WrFlushError);
        assert_eq!(ends, [(77, first_end), (78, first_end), (79, refused), (80, flushed)], "{msn}");
        bench.check_healthy("a NAK ahead of its ACK");
    }
}
