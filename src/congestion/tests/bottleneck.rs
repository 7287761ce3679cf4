//! NSCC on a simple model of a shared queue.

use std::collections::VecDeque;

use super::*;

/// A queue at the end of a path of `RTT`, shared by some senders: packets wait their turn at the link
/// rate, are ECN-marked above one threshold and trimmed or dropped above another.
struct Bottleneck {
    now: u64,
    /// Time at which the link has sent its queue.
    busy_until: u64,
    ns_per_packet: u64,
    mark_above_ns: u64,
    drop_above_ns: u64,
    /// Every so many packets one is lost, whatever the queue.
    lose_every: u64,
    sent: u64,
    delivered: Vec<u64>,
    /// In order of time: when, whose, sent when, marked, dropped.
    feedback: VecDeque<(u64, usize, u64, bool, bool)>,
}

impl Bottleneck {
    fn new(senders: usize) -> Self {
        Self {
            now: 0,
            busy_until: 0,
            ns_per_packet: MTU * 8 * 1_000_000_000 / RATE,
            mark_above_ns: RTT / 2,
            drop_above_ns: 2 * RTT,
            lose_every: u64::MAX,
            sent: 0,
            delivered: vec![0; senders],
            feedback: VecDeque::new(),
        }
    }

    fn queue_ns(&self) -> u64 {
        self.busy_until.saturating_sub(self.now)
    }

    fn send(&mut self, sender: usize) {
        self.sent += 1;
        let wait = self.queue_ns();
        let dropped = wait > self.drop_above_ns || self.sent.is_multiple_of(self.lose_every);
        if !dropped {
            self.busy_until = self.now + wait + self.ns_per_packet;
        }
        let heard = self.now + wait + RTT;
        self.feedback.push_back((heard, sender, self.now, wait > self.mark_above_ns, dropped));
    }

    /// Runs the senders for `ns` and returns the largest and the average queueing delay after the
    /// first half.
    fn run(&mut self, senders: &mut [Nscc], ns: u64, trim: bool) -> (u64, u64) {
        let start = self.now;
        let (mut worst, mut sum, mut samples) = (0, 0, 0_u64);
        while self.now < start + ns {
            while self.feedback.front().is_some_and(|&(heard, ..)| heard <= self.now) {
                let Some((_, sender, sent, ecn, dropped)) = self.feedback.pop_front() else { break };
                let (cc, now) = (&mut senders[sender], Time(self.now));
                if !dropped {
                    self.delivered[sender] += MTU;
                    cc.on_ack(&AckSample { ecn, rtt_ns: Some(self.now - sent), ..AckSample::new(now, MTU) });
                } else if trim {
                    cc.on_trim_nack(now, MTU, false);
                } else {
                    cc.on_loss(now, MTU);
                }
            }
            for (sender, cc) in senders.iter_mut().enumerate() {
                if cc.may_send(MTU) {
                    cc.on_send(MTU);
                    self.send(sender);
                }
            }
            if self.now > start + ns / 2 {
                worst = worst.max(self.queue_ns());
                sum += self.queue_ns();
                samples += 1;
            }
            self.now += 100;
        }
        (worst, sum / samples.max(1))
    }

    /// Part of the link used since the start.
    fn utilisation(&self) -> f64 {
        self.delivered.iter().sum::<u64>() as f64 * 8e9 / RATE as f64 / self.now as f64
    }
}

#[test]
fn one_sender_fills_the_link_without_overfilling_the_queue() {
    let mut network = Bottleneck::new(1);
    let mut senders = [nscc(&config())];
    let (worst, average) = network.run(&mut senders, 5_000_000, true);
    assert!(worst < 2 * TARGET, "{worst} ns");
    assert!(average < TARGET, "{average} ns");
    assert!(network.utilisation() > 0.95, "{}", network.utilisation());
}

#[test]
fn eight_senders_settle_near_the_target_delay_and_share() {
    let mut network = Bottleneck::new(8);
    let mut senders: Vec<Nscc> = (0..8).map(|_| nscc(&config())).collect();
    let (_, average) = network.run(&mut senders, 20_000_000, true);
    assert!((TARGET / 2..2 * TARGET).contains(&average), "{average} ns");
    assert!(network.utilisation() > 0.95, "{}", network.utilisation());
    let fair = network.delivered.iter().sum::<u64>() / 8;
    for &bytes in &network.delivered {
        assert!(bytes > fair / 2 && bytes < fair * 2, "{bytes} of a fair {fair}");
    }
}

#[test]
fn windows_recover_after_losses() {
    let mut network = Bottleneck::new(1);
    let mut senders = [nscc(&config())];
    for _ in 0..60 {
        senders[0].on_send(MTU);
        senders[0].on_loss(Time::ZERO, MTU);
    }
    assert_eq!(senders[0].cwnd(), MTU);
    network.run(&mut senders, 2_000_000, true);
    assert!(senders[0].cwnd() > MAX_CWND / 2, "{}", senders[0].cwnd());
}

#[test]
fn one_loss_in_a_thousand_costs_little() {
    let mut network = Bottleneck { lose_every: 1_000, ..Bottleneck::new(1) };
    network.run(&mut [nscc(&config())], 5_000_000, false);
    assert!(network.utilisation() > 0.9, "{}", network.utilisation());
}
