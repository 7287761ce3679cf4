//! The responder packet by packet.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use super::*;
use crate::wire::{Ev, Opcode};

fn responder() -> Responder {
    Responder::new(
        Receives::own(4),
        ResponderSetup {
            initial_psn: Psn::new(0xff_fff0),
            initial_msn: Msn::new(0),
            own_msn: Msn::new(0),
            window: 1024,
            dynamic: false,
            max_wimm: 4,
            sack_threshold: 16 * 1024,
        },
    )
}

fn trigger(psn: Psn) -> Trigger {
    Trigger { psn, ev: Ev(7), timestamp: 1, marked: false, repeated: false, probe_id: None }
}

fn give(r: &mut Responder, offset: u32, demands: bool) {
    let psn = Psn::new(0xff_fff0).add(offset);
    let Class::New(seq) = r.classify(psn) else { panic!("{psn:?} is not new") };
    let packet = Arrived { dma_len: 8, len: 8, msn: Msn::new(offset as u16), ..Arrived::default() };
    r.arrive::<false>(seq, || packet, &mut Vec::new()).unwrap();
    if r.count_bytes(8, 84, demands) {
        r.queue_sack(trigger(psn));
    }
}

/// Takes all pending SACKs. If they never end, it fails instead of hanging.
fn take_sacks(r: &mut Responder) -> Vec<SackOut> {
    let sacks: Vec<_> = core::iter::from_fn(|| r.take_sack()).take(2_000).collect();
    assert!(sacks.len() < 2_000, "it never ends");
    sacks
}

#[test]
fn a_sack_is_due_every_threshold() {
    let mut r = responder();
    for offset in 0..15 {
        give(&mut r, offset, false);
        assert!(r.take_sack().is_none());
    }
    give(&mut r, 15, false);
    let sack = r.take_sack().unwrap();
    assert_eq!((sack.cack, sack.bitmap, sack.sack_offset), (Psn::new(0xff_ffff), 0, 1));
    assert_eq!(sack.rcvd_bytes, (16 * 84_u32).div_ceil(256));
    give(&mut r, 16, true);
    assert_eq!(r.take_sack().unwrap().cack, Psn::new(0), "PSN wraps");
}

/// The state that a queue pair reports.
#[test]
fn it_knows_the_next_packet_in_order_and_the_receives_that_wait() {
    let mut r = responder();
    assert_eq!((r.next_psn(), r.cack(), r.recvs_queued()), (Psn::new(0xff_fff0), Psn::new(0xff_ffef), 0));
    (0..3).for_each(|wr_id| assert!(post_recv(&mut r, wr_id)));
    for offset in [0, 1, 3] {
        give(&mut r, offset, false);
    }
    assert_eq!((r.next_psn(), r.recvs_queued()), (Psn::new(0xff_fff2), 3));
    give(&mut r, 2, false);
    assert_eq!((r.next_psn(), r.cack()), (Psn::new(0xff_fff4), Psn::new(0xff_fff3)));
    assert_eq!(r.pop_recv().map(|receive| receive.wr_id), Some(0));
    assert_eq!(r.recvs_queued(), 2);
}

#[test]
fn no_threshold_is_too_large_to_count_to() {
    let mut r = responder();
    r.setup.sack_threshold = u32::MAX;
    r.answers.sack_bytes = u32::MAX - 1;
    give(&mut r, 0, false);
    assert!(r.take_sack().is_some());
}

/// While a message is refused, its NACK makes the peer judge what it has sent besides. Each burst that arrives is reported.
#[test]
fn what_arrives_beyond_a_refused_message_is_reported_at_once() {
    let mut r = responder();
    give(&mut r, 0, false);
    assert_eq!(r.take_sack(), None);
    r.ack_before_refusal(1, false);
    for (burst, bitmap) in [(2..4, 0b110), (4..5, 0b1110), (6..8, 0b110_1110)] {
        burst.for_each(|offset| give(&mut r, offset, false));
        let sacks = take_sacks(&mut r);
        assert_eq!(sacks.len(), 1);
        assert_eq!((sacks[0].cack, sacks[0].bitmap), (Psn::new(0xff_fff0), bitmap));
        r.ack_before_refusal(5, true);
    }
    // When it has arrived, SACKs are as rare as usual.
    give(&mut r, 1, false);
    assert_eq!(take_sacks(&mut r).len(), 1);
    give(&mut r, 5, false);
    for offset in 8..22 {
        give(&mut r, offset, false);
        assert_eq!(r.take_sack(), None, "{offset}");
    }
    give(&mut r, 22, false);
    assert_eq!(take_sacks(&mut r).len(), 1);
}

#[test]
fn every_arrival_is_reported_once_whatever_the_distance() {
    let mut r = responder();
    let arrived: Vec<u32> = (1..1000).filter(|offset| offset % 7 != 0).collect();
    for &offset in &arrived {
        give(&mut r, offset, false);
    }
    let mut reported = Vec::new();
    for sack in take_sacks(&mut r) {
        assert_eq!(sack.cack, Psn::new(0xff_ffef));
        for bit in 0..64_u32 {
            if sack.bitmap >> bit & 1 == 1 {
                let psn = sack.cack.add(sack.sack_offset as u32 + bit);
                reported.push(psn.distance(Psn::new(0xff_fff0)) as u32);
            }
        }
    }
    reported.sort_unstable();
    reported.dedup();
    assert_eq!(reported, arrived);
}

#[test]
fn a_repeat_is_answered_with_the_oldest_gap() {
    let mut r = responder();
    for offset in 1..200 {
        give(&mut r, offset, false);
    }
    take_sacks(&mut r);
    r.ack_duplicate(Trigger { repeated: true, ..trigger(Psn::new(0xff_fff1)) }, false);
    let sack = r.take_sack().unwrap();
    assert_eq!(sack.sack_offset, 1);
    assert_eq!(sack.bitmap, !1);
    assert!(r.take_ack().is_none());
}

/// If a packet was listed with fewer `rcvd_bytes` than the SACK for its retransmission has, the requester concludes
/// that an earlier copy had arrived.
#[test]
fn no_more_bytes_are_told_of_while_the_answer_to_a_repeat_waits() {
    let mut r = responder();
    let repeat = |n: u32| Trigger { repeated: true, ..trigger(Psn::new(0xff_fff0).add(n)) };
    let units = |packets: u32| (packets * 84).div_ceil(256);
    give(&mut r, 0, true);
    assert_eq!(r.take_sack().unwrap().rcvd_bytes, units(1));
    // Two retransmissions arrive after a packet with a mark, and only the SACK for the mark is sent.
    for n in 1..=40 {
        give(&mut r, n, false);
    }
    r.ack_duplicate(Trigger { marked: true, ..trigger(Psn::new(0xff_fff1)) }, false);
    r.ack_duplicate(repeat(2), false);
    r.ack_duplicate(repeat(3), false);
    let lists_all = r.take_sack().unwrap();
    assert_eq!((lists_all.rcvd_bytes, lists_all.cack), (units(41), Psn::new(0xff_fff0).add(40)));
    for n in 41..=80 {
        give(&mut r, n, false);
    }
    let answer = r.take_sack().unwrap();
    assert_eq!((answer.trigger.psn, answer.rcvd_bytes), (repeat(2).psn, units(41)));
    assert_eq!(answer.cack, Psn::new(0xff_fff0).add(80), "what has arrived is told all the same");
    // A retransmission that arrives while another's SACK is pending is listed by that SACK.
    r.ack_duplicate(repeat(79), false);
    assert_eq!([r.take_sack(), r.take_sack()].map(|sack| sack.unwrap().rcvd_bytes), [units(41); 2]);
    give(&mut r, 81, true);
    assert_eq!(r.take_sack().unwrap().rcvd_bytes, units(82), "none waits");
    r.ack_duplicate(repeat(80), false);
    assert_eq!(r.take_sack().unwrap().rcvd_bytes, units(82));
    give(&mut r, 82, true);
    r.ack_duplicate(repeat(80), false);
    assert_eq!(r.take_sack().unwrap().rcvd_bytes, units(83), "the first answer of a turn tells all");
    // The final ACK and NAK of a queue pair replace the pending SACKs.
    r.queue_final_ack_and_nak();
    give(&mut r, 83, true);
    assert_eq!(r.take_sack().unwrap().rcvd_bytes, units(83), "one waited");
    give(&mut r, 84, true);
    assert_eq!(r.take_sack().unwrap().rcvd_bytes, units(85));
}

/// Retransmissions whose trigger found no room hold back nothing.
#[test]
fn repeats_that_are_not_answered_hold_nothing_up() {
    let mut r = responder();
    for n in 0..AckState::MAX_TRIGGERS as u32 + 5 {
        r.ack_duplicate(Trigger { repeated: true, ..trigger(Psn::new(n)) }, false);
    }
    assert_eq!(take_sacks(&mut r).len(), AckState::MAX_TRIGGERS);
    give(&mut r, 0, true);
    assert_eq!(r.take_sack().unwrap().rcvd_bytes, 84_u32.div_ceil(256));
}

#[test]
fn every_mark_of_a_burst_is_told_and_no_plain_trigger_takes_its_place() {
    let mut r = responder();
    let marked = |n: u32| Trigger { marked: true, ev: Ev(n), ..trigger(Psn::new(n)) };
    for n in 0..64 {
        r.ack_duplicate(marked(n), false);
        r.ack_duplicate(trigger(Psn::new(1_000 + n)), false);
    }
    let told: Vec<_> = take_sacks(&mut r).into_iter().filter(|sack| sack.trigger.marked).collect();
    assert_eq!(told.iter().map(|sack| sack.trigger.ev.0).collect::<Vec<_>>(), (0..64).collect::<Vec<_>>());
    assert_eq!(r.take_counts().triggers_dropped, 0);
}

#[test]
fn a_full_queue_keeps_the_marks_it_has_and_counts_the_others() {
    let mut r = responder();
    let most = AckState::MAX_TRIGGERS as u32;
    for n in 0..most + 3 {
        r.ack_duplicate(Trigger { marked: true, ev: Ev(n), ..trigger(Psn::new(n)) }, false);
    }
    r.ack_duplicate(trigger(Psn::new(9_999)), false);
    assert_eq!((r.take_counts().triggers_dropped, r.take_counts().triggers_dropped), (3, 0));
    let told: Vec<_> = take_sacks(&mut r).into_iter().map(|sack| sack.trigger.ev.0).collect();
    assert_eq!(told, (0..most).collect::<Vec<_>>());
}

#[test]
fn a_packet_and_its_repeat_are_both_told() {
    let mut r = responder();
    give(&mut r, 0, true);
    let first = trigger(Psn::new(0xff_fff0));
    r.ack_duplicate(Trigger { repeated: true, timestamp: 2, ..first }, true);
    let told: Vec<_> = take_sacks(&mut r).into_iter().map(|sack| sack.trigger.timestamp).collect();
    assert_eq!(told, [1, 2], "the requester learns that the first copy arrived");
    give(&mut r, 1, true);
    give(&mut r, 2, true);
    assert_eq!(take_sacks(&mut r).len(), 1, "one SACK lists both");
}

#[test]
fn the_window_is_half_open() {
    let r = responder();
    let at = |offset: u32| r.classify(Psn::new(0xff_fff0).add(offset));
    assert!(matches!(at(0), Class::New(_)));
    assert!(matches!(at(1022), Class::New(_)));
    assert_eq!(at(1023), Class::OutOfWindow, "cack + mpr is outside, and cack is -1");
    assert_eq!(r.classify(Psn::new(0xff_ffef)), Class::Old);
    assert_eq!(r.classify(Psn::new(0xff_fff0).sub(1 << 23)), Class::OutOfWindow);
}

/// The PSN of packet `n`.
fn psn(n: u32) -> Psn {
    Psn::new(0xff_fff0).add(n)
}

/// Posts a receive work request without a buffer. `false` if the queue is full.
fn post_recv(r: &mut Responder, wr_id: u64) -> bool {
    let fits = !r.recvs_full();
    if fits {
        r.push_recv(Receive { wr_id, buffer: Buffer::NONE });
    }
    fits
}

#[test]
fn receive_requests_are_kept_up_to_the_depth_and_through_connecting() {
    let mut r = responder();
    let setup = r.setup;
    assert!((0..4).all(|n| post_recv(&mut r, n)));
    assert!(!post_recv(&mut r, 4), "the queue holds four");
    r.connect(setup);
    let taken: Vec<_> = core::iter::from_fn(|| r.pop_recv()).map(|wr| wr.wr_id).collect();
    assert_eq!(taken, [0, 1, 2, 3]);
}

/// However much room the rings have to make for the first packet, no other packet is mistaken for one that arrived.
#[test]
fn every_packet_before_one_that_came_early_is_new_once() {
    for early in 1..=1022 {
        let mut r = responder();
        give(&mut r, early, false);
        for n in (1..early).rev() {
            give(&mut r, n, false);
            assert_eq!(r.classify(psn(n)), Class::Duplicate);
        }
        assert_eq!(r.out_of_order, early);
        give(&mut r, 0, false);
        assert_eq!((r.expected, r.highest, r.out_of_order), (u64::from(early) + 1, u64::from(early) + 1, 0));
    }
}

/// Every message has at least one packet, so its number cannot be further ahead than the packet.
#[test]
fn a_message_number_may_be_as_far_ahead_as_its_packet() {
    let mut r = responder();
    for received in 0..3 {
        for ahead in 0..5 {
            let seq = r.expected + ahead;
            for msn in 0..8 {
                assert_eq!(
                    r.plausible(seq, Msn::new(received + msn)),
                    u64::from(msn) <= ahead,
                    "{received} {ahead} {msn}"
                );
            }
            assert!(!r.plausible(seq, Msn::new(received).sub(1)));
        }
        give(&mut r, received.into(), false);
    }
}

/// Up to four may be stashed at a time, however many were before.
#[test]
fn immediates_that_wait_are_counted_until_their_turn() {
    let mut r = responder();
    let mut done = Vec::new();
    let mut early = |r: &mut Responder, n: u32, imm: bool| {
        let Class::New(seq) = r.classify(psn(n)) else { panic!("{n} is not new") };
        let opcode = if imm { Opcode::WriteOnlyImm } else { Opcode::WriteOnly };
        let rqmsn = Msn::new((n - n.div_ceil(5)) as u16);
        let msn = Msn::new(n as u16);
        let packet = Arrived { opcode, imm: n, rqmsn, msn, dma_len: 8, len: 8, ..Arrived::default() };
        r.arrive::<false>(seq, || packet, &mut done)
    };
    for round in 0..3 {
        let first = round * 5;
        for n in first + 1..first + 5 {
            assert!(post_recv(&mut r, n.into()));
            assert_eq!(early(&mut r, n, true), Ok(()));
        }
        assert_eq!(r.stashed_takers, 4);
        assert_eq!(early(&mut r, first, false), Ok(()));
        assert_eq!(r.stashed_takers, 0);
    }
    for n in 16..20 {
        assert_eq!(early(&mut r, n, true), Ok(()));
    }
    assert_eq!(early(&mut r, 20, true), Err(Violated));
    let culprit =
        Culprit { psn: psn(15), before: 15, violation: Violation::TooManyImmediates { max_wimm: 4 } };
    assert_eq!(r.culprit(), Some(culprit));
    let imm_of = |delivery: &Delivery| match delivery {
        Delivery::Received(received) => received.imm,
        Delivery::Request(_) | Delivery::Response => panic!("{delivery:?}"),
    };
    let done: Vec<_> = done.iter().map(imm_of).collect();
    assert_eq!(done, [1, 2, 3, 4, 6, 7, 8, 9, 11, 12, 13, 14]);
}

#[test]
fn what_is_in_order_is_no_longer_to_be_listed() {
    let mut r = responder();
    // These packets come in order before any SACK has listed them.
    for n in 1..=100 {
        give(&mut r, n, false);
    }
    r.answers.take_triggers();
    for n in [0].into_iter().chain(101..256) {
        give(&mut r, n, false);
    }
    r.answers.take_triggers();
    // The same slots of the ring, one round later.
    give(&mut r, 256 + 80, true);
    let sack = r.take_sack().unwrap();
    assert_eq!((sack.cack, sack.sack_offset, sack.bitmap), (psn(255), 18, 1 << 63));
    assert!(r.take_sack().is_none());
}

/// A mark, a retransmission and a probe are reported once, even if several SACKs are needed to list what arrived.
#[test]
fn the_rest_of_a_long_list_repeats_nothing_but_the_list() {
    for special in [
        Trigger { marked: true, ..trigger(psn(200)) },
        Trigger { repeated: true, ..trigger(psn(200)) },
        Trigger { probe_id: Some(7), ..trigger(psn(200)) },
    ] {
        let mut r = responder();
        for n in 1..=200 {
            give(&mut r, n, false);
        }
        r.answers.take_triggers();
        r.ack_duplicate(special, false);
        let told: Vec<_> = take_sacks(&mut r).into_iter().map(|sack| sack.trigger).collect();
        assert_eq!(told.len(), 4);
        assert_eq!((told[0], told[1]), (special, trigger(psn(200))));
        assert!(told[1..].windows(2).all(|pair| pair[0] == pair[1]));
    }
}

#[test]
fn answers_are_owed_until_they_are_taken() {
    let mut r = responder();
    assert!(!r.has_pending_acks());
    give(&mut r, 0, true);
    assert!(r.has_pending_acks());
    assert!(r.take_sack().is_some() && !r.has_pending_acks());
    assert!(
        r.queue_nack(NackOut { reason: 1, info: 0, psn: psn(3), ev: Ev(1), timestamp: 0 })
            && r.has_pending_acks()
    );
    assert!(r.take_nack().is_some() && !r.has_pending_acks());
    r.ack_duplicate(trigger(psn(0)), true);
    assert!(r.take_sack().is_some() && r.has_pending_acks());
    assert!(r.take_ack().is_some() && !r.has_pending_acks());
    r.queue_nak();
    assert!(!r.has_pending_acks(), "no violation");
    r.violate(5, Violation::NoReceive);
    r.queue_nak();
    assert!(r.has_pending_acks());
    assert!(r.take_nak().is_some() && !r.has_pending_acks());
}

/// The count is modulo 2^24.
#[test]
fn acknowledgements_count_completed_messages() {
    for (completed, told) in [(0, 0), (3, 3), (0x00ff_ffff, 0x00ff_ffff), (0x1234_5678, 0x34_5678)] {
        let mut r = responder();
        r.answers.completed = completed;
        let _ = r.violate(0, Violation::NoReceive);
        r.queue_final_ack_and_nak();
        assert_eq!(r.take_ack(), Some((psn(0).sub(1), told)));
        let culprit = Culprit { psn: psn(0), before: completed, violation: Violation::NoReceive };
        assert_eq!(r.take_nak(), Some((culprit, told)));
    }
}

#[test]
fn what_is_owed_needs_no_more_memory_than_the_window() {
    let mut r = responder();
    for n in 1..1022 {
        give(&mut r, n, false);
    }
    assert!(r.answers.unreported.len() >= 1022);
    give(&mut r, 0, false);
    r.answers.fit(r.expected, r.highest, 128);
    assert!(r.answers.unreported.len() <= 256);
    for n in 0..100 {
        r.ack_duplicate(Trigger { marked: true, ..trigger(psn(n)) }, false);
        r.queue_nack(NackOut { reason: 1, info: 0, psn: psn(n), ev: Ev(1), timestamp: 0 });
    }
    take_sacks(&mut r);
    while r.take_nack().is_some() {}
    assert!(r.answers.capacity() >= 200);
    r.answers.reclaim();
    assert!(r.answers.capacity() <= 16, "{}", r.answers.capacity());
    assert_eq!(r.answers.unreported.len(), 0);
}

#[test]
fn no_more_nacks_are_owed_than_the_limit() {
    let mut r = responder();
    let nack = |n: u32| NackOut { reason: 1, info: 0, psn: psn(n), ev: Ev(1), timestamp: 0 };
    let kept = (0..300).filter(|&n| r.queue_nack(nack(n))).count();
    assert_eq!((kept, core::iter::from_fn(|| r.take_nack()).take(1_000).count()), (256, 256));
    assert!(r.queue_nack(nack(300)));
}

/// Storage that a burst needed is released once nothing has moved between two visits.
#[test]
fn only_a_quiet_responder_gives_up_room() {
    let mut r = Responder::new(Receives::own(100), *responder().setup());
    (0..100).for_each(|wr_id| assert!(post_recv(&mut r, wr_id)));
    while r.pop_recv().is_some() {}
    let mut budget = WindowBudget::new(0);
    let held = |r: &Responder| r.receives.capacity() >= 100;
    r.visit(&mut budget, false);
    assert!(held(&r));
    r.visit(&mut budget, true);
    assert!(!held(&r));
}
