//! Messages over several queue pairs: QP scaling (MRC paper, section 5.2.7).
//!
//! Collective libraries give two hosts several queue pairs, so that ECMP leads their traffic several ways. A message is cut into parts of whole
//! packets, each on another queue pair. It is complete when all its parts are, and messages complete in the order in which they were posted,
//! as on one queue pair.

use std::collections::VecDeque;

use spindrift::time::Time;

use crate::transport::Message;

/// How a connection carries messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Striping {
    /// Queue pairs of each connection, at least 1.
    pub qps: u32,
    /// Payload of a full packet in bytes: parts end where packets do.
    pub mtu: u32,
}

impl Striping {
    /// All of a message on the one queue pair.
    pub const NONE: Self = Self { qps: 1, mtu: 1 };

    /// The lengths of a message's parts: as even as whole packets allow, and no more parts than packets.
    fn parts(self, len: u32) -> impl Iterator<Item = u32> {
        let mtu = u64::from(self.mtu.max(1));
        let packets = u64::from(len).div_ceil(mtu).max(1);
        let parts = packets.min(self.qps.max(1).into());
        let end = move |part: u64| (packets * part / parts * mtu).min(len.into());
        (0..parts).map(move |part| (end(part + 1) - end(part)) as u32)
    }
}

/// A message whose parts are on their way.
#[derive(Clone, Copy, Debug)]
struct Parts<T> {
    /// Its number at its sender, which all parts have for a tag.
    number: u32,
    left: u32,
    message: T,
}

/// Messages of which parts are missing, oldest first.
#[derive(Debug)]
struct InOrder<T>(VecDeque<Parts<T>>);

impl<T> Default for InOrder<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> InOrder<T> {
    /// Another part of a message is there.
    fn on_part(&mut self, number: u32) {
        let Some(oldest) = self.0.front().map(|message| message.number) else { return };
        // Numbers only grow from one to the next, and may wrap.
        let at = self
            .0
            .partition_point(|message| message.number.wrapping_sub(oldest) < number.wrapping_sub(oldest));
        if let Some(message) = self.0.get_mut(at).filter(|message| message.number == number) {
            message.left = message.left.saturating_sub(1);
        }
    }

    /// The oldest message, if all of it is there.
    fn pop(&mut self) -> Option<T> {
        self.0.pop_front_if(|message| message.left == 0).map(|message| message.message)
    }
}

/// One queue pair of an end.
#[derive(Clone, Debug, Default)]
struct Lane {
    /// Parts that the transport has taken and not completed.
    under_way: u32,
    /// Those that it has had no room for yet.
    waiting: VecDeque<Message>,
}

/// A message that a sender has ordered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ordered {
    pub(crate) tag: u32,
    pub(crate) len: u32,
    pub(crate) at: Time,
}

/// What an end of a connection sends.
#[derive(Debug)]
pub(crate) struct Backlog {
    striping: Striping,
    lanes: Vec<Lane>,
    /// The queue pair of the next part: short messages take turns, too.
    turn: u32,
    /// The number of the next message.
    number: u32,
    /// Messages that are not complete here.
    outstanding: InOrder<Ordered>,
    /// Messages that notify and of which the receiver has not all, by their tags.
    arriving: InOrder<u32>,
}

impl Backlog {
    pub(crate) fn new(striping: Striping) -> Self {
        let lanes = vec![Lane::default(); striping.qps.max(1) as usize];
        let (outstanding, arriving) = Default::default();
        Self { striping, lanes, turn: 0, number: 0, outstanding, arriving }
    }

    /// Messages that are not complete.
    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding.0.len()
    }

    /// Takes a message in, and hands its parts to `post` with their queue pairs, as far as that takes them. `false` if it is refused, as there
    /// is nothing under way on a queue pair whose completion would make room.
    pub(crate) fn send(
        &mut self,
        now: Time,
        message: Message,
        mut post: impl FnMut(u32, Message) -> bool,
    ) -> bool {
        let (number, Message { tag, len, notify }) = (self.number, message);
        self.number = number.wrapping_add(1);
        let (mut sent, qps) = (0, self.lanes.len() as u32);
        for len in self.striping.parts(len) {
            let qp = (self.turn + sent) % qps;
            let Some(lane) = self.lanes.get_mut(qp as usize) else { continue };
            let part = Message { tag: number, len, notify };
            if lane.waiting.is_empty() && post(qp, part) {
                lane.under_way += 1;
            } else if lane.under_way > 0 {
                lane.waiting.push_back(part);
            } else {
                return false;
            }
            sent += 1;
        }
        self.turn = (self.turn + sent) % qps;
        self.outstanding.0.push_back(Parts { number, left: sent, message: Ordered { tag, len, at: now } });
        if notify {
            self.arriving.0.push_back(Parts { number, left: sent, message: tag });
        }
        true
    }

    /// A part on a queue pair is complete, which makes room for those that wait there.
    pub(crate) fn on_sent(&mut self, qp: u32, number: u32, mut post: impl FnMut(u32, Message) -> bool) {
        self.outstanding.on_part(number);
        let Some(lane) = self.lanes.get_mut(qp as usize) else { return };
        lane.under_way = lane.under_way.saturating_sub(1);
        while let Some(&part) = lane.waiting.front()
            && post(qp, part)
        {
            lane.waiting.pop_front();
            lane.under_way += 1;
        }
    }

    /// The next message that is complete.
    pub(crate) fn pop_sent(&mut self) -> Option<Ordered> {
        self.outstanding.pop()
    }

    /// A part of a message that notifies has come to the receiver.
    pub(crate) fn on_received(&mut self, number: u32) {
        self.arriving.on_part(number);
    }

    /// The tag of the next message that the receiver has all of.
    pub(crate) fn pop_received(&mut self) -> Option<u32> {
        self.arriving.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MTU: u32 = 1_000;

    fn backlog(qps: u32) -> Backlog {
        Backlog::new(Striping { qps, mtu: MTU })
    }

    const fn message(tag: u32, len: u32) -> Message {
        Message { tag, len, notify: true }
    }

    /// Sends it, and returns the parts with their queue pairs.
    fn send(backlog: &mut Backlog, tag: u32, len: u32) -> Vec<(u32, u32)> {
        let mut parts = Vec::new();
        let sent = backlog.send(Time(7), message(tag, len), |qp, part| {
            assert!(part.notify);
            parts.push((qp, part.len));
            true
        });
        assert!(sent);
        parts
    }

    #[test]
    fn parts_are_whole_packets_as_even_as_can_be() {
        for (qps, len, want) in [
            (1, 5_500, &[5_500][..]),
            (4, 8_000, &[2_000; 4]),
            (4, 5_500, &[1_000, 2_000, 1_000, 1_500]),
            (4, 2_001, &[1_000, 1_000, 1]),
            (4, 1, &[1]),
            (3, 1_000, &[1_000]),
        ] {
            let parts: Vec<_> = Striping { qps, mtu: MTU }.parts(len).collect();
            assert_eq!(parts, want, "{len} over {qps}");
        }
        let all: u64 = Striping { qps: 7, mtu: 4_096 }.parts(u32::MAX).map(u64::from).sum();
        assert_eq!(all, u64::from(u32::MAX));
    }

    /// Short messages do not all go over the first queue pair.
    #[test]
    fn queue_pairs_take_turns() {
        let mut backlog = backlog(3);
        assert_eq!(send(&mut backlog, 0, 2_000), [(0, 1_000), (1, 1_000)]);
        assert_eq!(send(&mut backlog, 1, 10), [(2, 10)]);
        assert_eq!(send(&mut backlog, 2, 10), [(0, 10)]);
        assert_eq!(send(&mut backlog, 3, 4_000), [(1, 1_000), (2, 1_000), (0, 2_000)]);
    }

    /// Whatever the order in which parts complete, a message does with its last one, and after those before it.
    #[test]
    fn a_message_is_complete_when_all_its_parts_are() {
        for first in 0..3 {
            let mut backlog = backlog(3);
            send(&mut backlog, 8, 3_000);
            send(&mut backlog, 9, 500);
            backlog.on_sent(0, 1, |_, _| unreachable!("nothing waits"));
            backlog.on_received(1);
            for part in 0..3 {
                assert!(backlog.pop_sent().is_none() && backlog.pop_received().is_none(), "{part}");
                backlog.on_sent((first + part) % 3, 0, |_, _| unreachable!("nothing waits"));
                backlog.on_received(0);
            }
            let sent = [8, 9].map(|tag| (backlog.pop_sent().map(|ordered| ordered.tag), tag));
            assert!(sent.iter().all(|(sent, tag)| *sent == Some(*tag)), "{sent:?}");
            assert_eq!([backlog.pop_received(), backlog.pop_received()], [Some(8), Some(9)]);
            assert_eq!((backlog.outstanding(), backlog.pop_received()), (0, None));
        }
    }

    /// What finds no room on a queue pair waits there, in order; other queue pairs go on.
    #[test]
    fn parts_wait_for_room_on_their_queue_pair() {
        let mut backlog = backlog(2);
        send(&mut backlog, 0, 2_000);
        for tag in [1, 2] {
            let mut posted = Vec::new();
            let sent = backlog.send(Time(0), message(tag, 2_000), |qp, part| {
                posted.push((qp, part.tag));
                qp == 1
            });
            // After the first part that waits, the transport is not asked again.
            let want = if tag == 1 { vec![(0, 1), (1, 1)] } else { vec![(1, 2)] };
            assert_eq!((sent, posted), (true, want));
        }
        let mut posted = Vec::new();
        backlog.on_sent(0, 0, |qp, part| {
            posted.push((qp, part.tag));
            posted.len() < 2
        });
        assert_eq!(posted, [(0, 1), (0, 2)], "the second found no room");
        backlog.on_sent(0, 1, |qp, part| {
            posted.push((qp, part.tag));
            true
        });
        assert_eq!(posted[2..], [(0, 2)]);
    }

    /// Nothing is under way whose completion would make room.
    #[test]
    fn what_is_refused_is_told() {
        let mut backlog = backlog(2);
        assert!(!backlog.send(Time(0), message(0, 10), |_, _| false));
        assert_eq!(backlog.outstanding(), 0);
    }

    /// The part of a refused message that was taken is no part of the next message.
    #[test]
    fn parts_of_a_refused_message_count_for_none() {
        let mut backlog = backlog(3);
        assert_eq!(send(&mut backlog, 0, 500), [(0, 500)]);
        assert!(!backlog.send(Time(0), message(1, 2_000), |qp, _| qp == 1));
        assert_eq!(send(&mut backlog, 2, 500), [(1, 500)]);
        for (qp, number, tags) in [(1, 1, &[][..]), (0, 0, &[0]), (1, 2, &[2])] {
            backlog.on_sent(qp, number, |_, _| unreachable!("nothing waits"));
            let complete = std::iter::from_fn(|| backlog.pop_sent().map(|ordered| ordered.tag));
            assert_eq!(complete.collect::<Vec<_>>(), tags, "{number}");
        }
        assert_eq!(backlog.outstanding(), 0);
    }

    /// Messages that do not notify are not waited for at the receiver; numbers may wrap.
    #[test]
    fn only_messages_that_notify_are_awaited() {
        let mut backlog = backlog(1);
        backlog.number = u32::MAX;
        for (tag, notify) in [(1, true), (2, false), (3, true)] {
            assert!(backlog.send(Time(0), Message { tag, len: 1, notify }, |_, _| true));
        }
        backlog.on_received(1);
        assert_eq!(backlog.pop_received(), None);
        backlog.on_received(u32::MAX);
        assert_eq!([backlog.pop_received(), backlog.pop_received()], [Some(1), Some(3)]);
        for number in [u32::MAX, 0, 1] {
            backlog.on_sent(0, number, |_, _| unreachable!("nothing waits"));
        }
        let tags: Vec<_> = std::iter::from_fn(|| backlog.pop_sent().map(|ordered| ordered.tag)).collect();
        assert_eq!(tags, [1, 2, 3]);
    }
}
