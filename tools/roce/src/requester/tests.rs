use super::*;

const MTU: u32 = 1_000;
const RETRY: Retry = Retry { timeout: 1, count: 7, doublings: 0 };
/// 4.096 us times 2.
const TIMER: u64 = 8_192;

/// Begins at this PSN with these lengths posted.
fn requester(psn: u32, lens: &[u32]) -> Requester {
    let mut requester = Requester::new(Psn::new(psn), MTU, RETRY);
    for (wr_id, &len) in (0..).zip(lens) {
        assert!(requester.post(Write { wr_id, va: wr_id << 32, len, imm: None }));
    }
    requester
}

/// The PSNs of what it sends now, until it has no more.
fn psns(requester: &mut Requester, now: u64) -> Vec<u32> {
    core::iter::from_fn(|| requester.transmit(Time(now))).map(|data| data.psn.get()).collect()
}

fn completions(requester: &mut Requester) -> Vec<(u64, Status)> {
    core::iter::from_fn(|| requester.poll()).collect()
}

#[test]
fn messages_are_cut_into_packets() {
    let mut requester = Requester::new(Psn::new(5), MTU, RETRY);
    for (wr_id, len, imm) in [(1, 2_500, Some(9)), (2, 1_000, None), (3, 0, Some(4)), (4, 1_001, None)] {
        requester.post(Write { wr_id, va: 100 * wr_id, len, imm });
    }
    let sent: Vec<_> = core::iter::from_fn(|| requester.transmit(Time(0))).collect();
    let what: Vec<_> =
        sent.iter().map(|data| (data.opcode, data.psn.get(), data.len, data.ack_req, data.imm)).collect();
    let want = [
        (Opcode::WriteFirst, 5, 1_000, false, None),
        (Opcode::WriteMiddle, 6, 1_000, false, None),
        (Opcode::WriteLastImm, 7, 500, true, Some(9)),
        (Opcode::WriteOnly, 8, 1_000, true, None),
        (Opcode::WriteOnlyImm, 9, 0, true, Some(4)),
        (Opcode::WriteFirst, 10, 1_000, false, None),
        (Opcode::WriteLast, 11, 1, true, None),
    ];
    assert_eq!(what, want);
    let reths: Vec<_> = sent.iter().map(|data| data.reth.map(|reth| (reth.va, reth.dma_len))).collect();
    assert_eq!(
        reths,
        [Some((100, 2_500)), None, None, Some((200, 1_000)), Some((300, 0)), Some((400, 1_001)), None]
    );
}

#[test]
fn acknowledgements_coalesce_and_complete_in_order() {
    let mut requester = requester(5, &[2_500, 1_000, 1_000]);
    assert_eq!(psns(&mut requester, 0), [5, 6, 7, 8, 9]);
    requester.on_ack(Time(10), Psn::new(6));
    assert_eq!(completions(&mut requester), [], "its last packet is 7");
    requester.on_ack(Time(20), Psn::new(8));
    assert_eq!(completions(&mut requester), [(0, Status::Success), (1, Status::Success)]);
    // Again, for what was never sent, and for what is far away: nothing.
    for psn in [8, 5, 4, 10, 1 << 23, 0xff_ffff] {
        requester.on_ack(Time(30), Psn::new(psn));
    }
    assert_eq!((completions(&mut requester), requester.counters().strange_acks), (vec![], 6));
    requester.on_ack(Time(40), Psn::new(9));
    assert_eq!(completions(&mut requester), [(2, Status::Success)]);
    assert_eq!((requester.deadline(), requester.has_next()), (Time::NEVER, false));
}

/// PSN 0 follows 2^24 - 1.
#[test]
fn psns_wrap() {
    let mut requester = requester(0xff_fffe, &[4_000, 1_000]);
    assert_eq!(psns(&mut requester, 0), [0xff_fffe, 0xff_ffff, 0, 1, 2]);
    requester.on_ack(Time(1), Psn::new(0xff_ffff));
    requester.on_sequence_nak(Time(2), Psn::new(1));
    assert_eq!(psns(&mut requester, 2), [1, 2]);
    requester.on_ack(Time(3), Psn::new(0xff_ffff));
    assert_eq!(requester.counters().strange_acks, 1, "an old one, on the other side of the wrap");
    requester.on_ack(Time(4), Psn::new(2));
    assert_eq!(completions(&mut requester), [(0, Status::Success), (1, Status::Success)]);
}

/// Everything before the NAK's PSN has arrived; everything from it on is sent again, from the middle of a message, too.
#[test]
fn a_nak_rewinds_to_its_psn() {
    let mut requester = requester(10, &[1_000, 3_000]);
    assert_eq!(psns(&mut requester, 0), [10, 11, 12, 13]);
    requester.on_sequence_nak(Time(5), Psn::new(12));
    assert_eq!(completions(&mut requester), [(0, Status::Success)], "the NAK acknowledges 10 and 11");
    let again: Vec<_> = core::iter::from_fn(|| requester.transmit(Time(6))).collect();
    let what: Vec<_> = again.iter().map(|data| (data.psn.get(), data.opcode, data.len)).collect();
    assert_eq!(what, [(12, Opcode::WriteMiddle, 1_000), (13, Opcode::WriteLast, 1_000)]);
    let RequesterCounters { sent, repeats, sequence_naks, .. } = requester.counters();
    assert_eq!((sent, repeats, sequence_naks), (6, 2, 1));
    // A NAK for what is acknowledged, or was never sent.
    requester.on_ack(Time(7), Psn::new(12));
    for psn in [12, 9, 14] {
        requester.on_sequence_nak(Time(8), Psn::new(psn));
    }
    assert_eq!((psns(&mut requester, 8), requester.counters().strange_acks), (vec![], 3));
}

/// After it went back, an acknowledgement of packets from before goes forward again.
#[test]
fn an_acknowledgement_overtakes_the_repeats() {
    let mut requester = requester(0, &[5_000]);
    assert_eq!(psns(&mut requester, 0), [0, 1, 2, 3, 4]);
    requester.on_timeout(Time(TIMER));
    assert_eq!(requester.transmit(Time(TIMER)).map(|data| data.psn.get()), Some(0));
    requester.on_ack(Time(TIMER + 1), Psn::new(2));
    assert_eq!(psns(&mut requester, TIMER + 2), [3, 4]);
    assert_eq!(requester.counters().repeats, 3);
}

#[test]
fn the_timer_starts_with_a_packet_and_anew_with_each_step_forward() {
    let mut requester = requester(0, &[3_000]);
    assert_eq!(requester.deadline(), Time::NEVER);
    assert!(requester.transmit(Time(100)).is_some());
    assert_eq!(requester.deadline(), Time(100 + TIMER));
    assert!(requester.transmit(Time(500)).is_some());
    assert_eq!(requester.deadline(), Time(100 + TIMER), "it runs for the oldest packet");
    requester.on_ack(Time(1_000), Psn::new(0));
    assert_eq!(requester.deadline(), Time(1_000 + TIMER));
    requester.on_ack(Time(1_500), Psn::new(0));
    assert_eq!(requester.deadline(), Time(1_000 + TIMER), "nothing new");
    requester.on_timeout(Time(1_000 + TIMER - 1));
    assert_eq!(requester.counters().timeouts, 0, "too early");
    requester.on_timeout(Time(1_000 + TIMER));
    assert_eq!((requester.counters().timeouts, psns(&mut requester, 20_000)), (1, vec![1, 2]));
    requester.on_ack(Time(21_000), Psn::new(2));
    assert_eq!(requester.deadline(), Time::NEVER);
}

#[test]
fn the_timer_is_a_power_of_two_and_may_double() {
    let timer = |timeout, doublings, retries| Retry { timeout, count: 7, doublings }.timer_ns(retries);
    assert_eq!(timer(14, 0, 0), Some(67_108_864));
    assert_eq!(
        [1, 2, 8, 31].map(|timeout| timer(timeout, 0, 7)),
        [8_192, 16_384, 1 << 20, 4_096 << 31].map(Some)
    );
    assert_eq!(timer(0, 3, 0), None, "off");
    assert_eq!(
        [0, 1, 2, 3, 7].map(|retries| timer(1, 2, retries)),
        [1, 2, 4, 4, 4].map(|times| Some(times * TIMER))
    );
    let mut requester = Requester::new(Psn::new(0), MTU, Retry { doublings: 2, ..RETRY });
    requester.post(Write { wr_id: 0, va: 0, len: 1, imm: None });
    let (mut now, mut waits) = (0, Vec::new());
    psns(&mut requester, now);
    for _ in 0..4 {
        waits.push((requester.deadline().0 - now) / TIMER);
        now = requester.deadline().0;
        requester.on_timeout(Time(now));
        psns(&mut requester, now);
    }
    assert_eq!(waits, [1, 2, 4, 4]);
}

/// Seven retries, and an error after the eighth attempt. What follows is flushed.
#[test]
fn retries_are_exhausted() {
    let mut requester = requester(0, &[1_000, 2_000, 1_000]);
    let mut attempts = 0;
    while requester.deadline() != Time::NEVER || attempts == 0 {
        assert_eq!(psns(&mut requester, attempts * TIMER), [0, 1, 2, 3]);
        attempts += 1;
        assert_eq!(requester.deadline(), Time(attempts * TIMER));
        requester.on_timeout(Time(attempts * TIMER));
    }
    assert_eq!((attempts, requester.has_failed()), (8, true));
    let want = [(0, Status::RetryExceeded), (1, Status::Flushed), (2, Status::Flushed)];
    assert_eq!(completions(&mut requester), want);
    assert!(!requester.post(Write { wr_id: 3, va: 0, len: 1, imm: None }));
    requester.on_ack(Time(1 << 40), Psn::new(1));
    requester.on_sequence_nak(Time(1 << 40), Psn::new(1));
    assert_eq!((completions(&mut requester), psns(&mut requester, 1 << 40)), (vec![], vec![]));
    assert_eq!(requester.deadline(), Time::NEVER);
}

/// Only retries without a step forward count, whether a timer or a NAK causes them.
#[test]
fn a_step_forward_renews_the_retries() {
    let mut requester = requester(0, &[9_000]);
    psns(&mut requester, 0);
    for psn in 0..8 {
        for retry in 0..7 {
            if retry % 2 == 0 {
                requester.on_sequence_nak(Time(1), Psn::new(psn));
            } else {
                requester.on_timeout(requester.deadline());
            }
            psns(&mut requester, 1);
        }
        requester.on_ack(Time(1), Psn::new(psn));
        assert!(!requester.has_failed(), "{psn}");
    }
    for _ in 0..8 {
        assert!(!requester.has_failed());
        requester.on_sequence_nak(Time(1), Psn::new(8));
        psns(&mut requester, 1);
    }
    assert!(requester.has_failed());
    assert_eq!(completions(&mut requester), [(0, Status::RetryExceeded)]);
}

#[test]
fn a_refusal_ends_it() {
    let mut requester = requester(0, &[1_000, 1_000, 1_000]);
    psns(&mut requester, 0);
    requester.on_refusal(Time(1), Psn::new(7));
    assert!(!requester.has_failed(), "never sent");
    requester.on_refusal(Time(1), Psn::new(1));
    let want = [(0, Status::Success), (1, Status::Refused), (2, Status::Flushed)];
    assert_eq!((requester.has_failed(), completions(&mut requester)), (true, want.to_vec()));
}

/// No more than half of all PSNs are outstanding, so that an old one is never taken for a new one.
#[test]
fn the_window_is_half_of_all_psns() {
    let mut requester = Requester::new(Psn::new(3), 1, Retry { timeout: 0, ..RETRY });
    requester.post(Write { wr_id: 0, va: 0, len: 1 << 24, imm: None });
    let mut last = None;
    let mut sent = 0_u64;
    while let Some(data) = requester.transmit(Time(0)) {
        sent += 1;
        last = Some(data);
    }
    let last = last.unwrap();
    assert_eq!((sent, last.ack_req, requester.has_next()), (WINDOW, true, false));
    requester.on_ack(Time(1), last.psn);
    assert_eq!((requester.has_next(), requester.counters().strange_acks), (true, 0));
}
