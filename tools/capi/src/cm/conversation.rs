//! The order of the messages of a connection, without socket or clock.

use core::ffi::c_int;

use super::message::{Message, Request, Side};

/// Why a request was refused, as InfiniBand numbers it (volume 1, table 113): nobody listens there.
pub(crate) const NO_LISTENER: c_int = 8;
/// The program refused it, or has ended.
pub(crate) const REFUSED: c_int = 28;

/// What has been said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing, by the one who called.
    Called,
    /// This side has asked to connect.
    Asking,
    /// The program of this side has to decide.
    Deciding,
    /// This side is accepted. It has to be ready.
    Accepted,
    /// This side has accepted, and waits for the other.
    Accepting,
    Open,
    /// This side has disconnected.
    Closing,
    Ended,
}

/// What a program is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum News {
    Request(Box<Request>),
    Accepted {
        side: Box<Side>,
        qkey: u32,
    },
    Rejected {
        status: c_int,
        private: Vec<u8>,
    },
    Established,
    Disconnected,
    /// A code of an error.
    Unreachable(c_int),
}

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Conversation {
    phase: Phase,
    datagrams: bool,
}

/// What a message leads to: news for the program, and an answer.
pub(crate) type Effects = (Option<News>, Option<Message>);

impl Conversation {
    /// The one who asks.
    pub(crate) const fn asking(datagrams: bool) -> Self {
        Self { phase: Phase::Asking, datagrams }
    }

    /// The one who was called.
    pub(crate) const fn called() -> Self {
        Self { phase: Phase::Called, datagrams: false }
    }

    /// Whether nothing more will be said.
    pub(crate) fn has_ended(&self) -> bool {
        self.phase == Phase::Ended
    }

    /// Whether the other side has to say something soon.
    pub(crate) fn waits(&self) -> bool {
        matches!(self.phase, Phase::Called | Phase::Closing)
    }

    /// Whether the program of the other side has to do something, for which it may take its time.
    pub(crate) fn is_deciding_elsewhere(&self) -> bool {
        matches!(self.phase, Phase::Asking | Phase::Accepting)
    }

    /// Whether the one who called has not said what for.
    pub(crate) fn is_nameless(&self) -> bool {
        self.phase == Phase::Called
    }

    /// A message has arrived. `None`: it cannot be, so the other side is not to be talked to.
    pub(crate) fn hear(&mut self, message: Message) -> Option<Effects> {
        let (phase, effects) = match (self.phase, message) {
            (Phase::Called, Message::Request(request)) => {
                self.datagrams = request.datagrams;
                (Phase::Deciding, (Some(News::Request(Box::new(request))), None))
            }
            (Phase::Asking, Message::Accept { side, qkey }) => {
                let next = if self.datagrams { Phase::Ended } else { Phase::Accepted };
                (next, (Some(News::Accepted { side: Box::new(side), qkey }), None))
            }
            (Phase::Asking | Phase::Accepting, Message::Reject { private }) => {
                (Phase::Ended, (Some(News::Rejected { status: REFUSED, private }), None))
            }
            (Phase::Deciding, Message::Disconnect) => {
                (Phase::Ended, (Some(News::Rejected { status: REFUSED, private: Vec::new() }), None))
            }
            (Phase::Accepting, Message::Ready) => (Phase::Open, (Some(News::Established), None)),
            (Phase::Accepted | Phase::Accepting | Phase::Open | Phase::Closing, Message::Disconnect) => {
                (Phase::Ended, (Some(News::Disconnected), Some(Message::Disconnected)))
            }
            (Phase::Closing, Message::Disconnected) => (Phase::Ended, (Some(News::Disconnected), None)),
            // It was on its way when this side disconnected.
            (Phase::Closing, Message::Ready) => (Phase::Closing, (None, None)),
            (Phase::Ended, _) => (Phase::Ended, (None, None)),
            _ => return None,
        };
        self.phase = phase;
        Some(effects)
    }

    /// This side says something.
    ///
    /// # Errors
    /// `EINVAL`: it cannot be said now. `ENOTCONN`: nothing can be said any more.
    pub(crate) fn say(&mut self, message: &Message) -> Result<(), c_int> {
        self.phase = match (self.phase, message) {
            (Phase::Deciding, Message::Accept { .. }) if !self.datagrams => Phase::Accepting,
            // Whoever is accepted may refuse what the other side answers.
            (Phase::Deciding, Message::Accept { .. } | Message::Reject { .. })
            | (Phase::Accepted, Message::Reject { .. })
            | (Phase::Asking, Message::Disconnect) => Phase::Ended,
            (Phase::Accepted, Message::Ready) => Phase::Open,
            (Phase::Accepted | Phase::Accepting | Phase::Open, Message::Disconnect) => Phase::Closing,
            (Phase::Ended | Phase::Closing, _) => return Err(libc::ENOTCONN),
            _ => return Err(libc::EINVAL),
        };
        Ok(())
    }

    /// The other side has closed the connection, has ended or is silent.
    pub(crate) fn over(&mut self) -> Option<News> {
        let before = core::mem::replace(&mut self.phase, Phase::Ended);
        match before {
            Phase::Called | Phase::Ended => None,
            Phase::Asking | Phase::Deciding => Some(News::Rejected { status: REFUSED, private: Vec::new() }),
            Phase::Accepted | Phase::Accepting | Phase::Open | Phase::Closing => Some(News::Disconnected),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::super::message::tests::{request, side};
    use super::*;

    fn accept() -> Message {
        Message::Accept { side: side(1), qkey: 5 }
    }

    /// Two sides that have got so far: 0 asked, 1 the request has arrived, 2 accepted, 3 open.
    fn at(step: u32) -> [Conversation; 2] {
        let (mut caller, mut called) = (Conversation::asking(false), Conversation::called());
        if step >= 1 {
            assert!(matches!(called.hear(request()), Some((Some(News::Request(_)), None))));
        }
        if step >= 2 {
            called.say(&accept()).unwrap();
            assert!(matches!(caller.hear(accept()), Some((Some(News::Accepted { qkey: 5, .. }), None))));
        }
        if step >= 3 {
            caller.say(&Message::Ready).unwrap();
            assert_eq!(called.hear(Message::Ready), Some((Some(News::Established), None)));
        }
        [caller, called]
    }

    #[test]
    fn either_side_disconnects_and_both_are_told_once() {
        for first in [0, 1] {
            let mut sides = at(3);
            sides[first].say(&Message::Disconnect).unwrap();
            assert_eq!(sides[first].say(&Message::Disconnect), Err(libc::ENOTCONN));
            let told = (Some(News::Disconnected), Some(Message::Disconnected));
            assert_eq!(sides[1 - first].hear(Message::Disconnect), Some(told));
            assert_eq!(sides[first].hear(Message::Disconnected), Some((Some(News::Disconnected), None)));
            for side in &mut sides {
                assert!(side.has_ended());
                assert_eq!((side.over(), side.hear(Message::Disconnect)), (None, Some((None, None))));
            }
        }
        let mut both = at(3);
        for side in &mut both {
            side.say(&Message::Disconnect).unwrap();
        }
        for side in &mut both {
            let (news, _) = side.hear(Message::Disconnect).unwrap();
            assert_eq!(
                (news, side.hear(Message::Disconnected)),
                (Some(News::Disconnected), Some((None, None)))
            );
        }
    }

    #[test]
    fn a_side_that_ends_is_noticed_in_each_phase() {
        let rejected = Some(News::Rejected { status: REFUSED, private: Vec::new() });
        for (step, of_caller, of_called) in [
            (0, rejected.clone(), None),
            (1, rejected.clone(), rejected),
            (2, Some(News::Disconnected), Some(News::Disconnected)),
            (3, Some(News::Disconnected), Some(News::Disconnected)),
        ] {
            let [mut caller, mut called] = at(step);
            assert_eq!((caller.over(), called.over()), (of_caller, of_called), "step {step}");
            assert_eq!((caller.over(), called.over()), (None, None), "step {step}");
        }
    }

    #[test]
    fn a_refusal_carries_the_data_of_the_program() {
        let [mut caller, mut called] = at(1);
        let refusal = Message::Reject { private: vec![3] };
        called.say(&refusal).unwrap();
        let news = News::Rejected { status: REFUSED, private: vec![3] };
        assert_eq!(caller.hear(refusal), Some((Some(news), None)));
        assert!(caller.has_ended() && called.has_ended());
    }

    /// A queue pair of datagrams is not connected: nothing follows the answer.
    #[test]
    fn of_datagrams_only_the_number_is_told() {
        let (mut caller, mut called) = (Conversation::asking(true), Conversation::called());
        let Message::Request(request) = request() else { unreachable!() };
        called.hear(Message::Request(Request { datagrams: true, ..request })).unwrap();
        called.say(&accept()).unwrap();
        caller.hear(accept()).unwrap();
        assert!(caller.has_ended() && called.has_ended());
        assert_eq!((caller.over(), called.over()), (None, None));
    }

    /// In each phase, each message that is not named above.
    #[test]
    fn what_cannot_be_said_is_refused() {
        let all = [
            request(),
            accept(),
            Message::Reject { private: Vec::new() },
            Message::Ready,
            Message::Disconnect,
            Message::Disconnected,
        ];
        let heard = |step, side: usize| {
            all.iter().map(|m| at(step)[side].hear(m.clone()).is_some()).collect::<Vec<_>>()
        };
        let said = |step, side: usize| all.iter().map(|m| at(step)[side].say(m).is_ok()).collect::<Vec<_>>();
        let (yes, no) = (true, false);
        assert_eq!(heard(0, 0), [no, yes, yes, no, no, no]);
        assert_eq!(heard(0, 1), [yes, no, no, no, no, no]);
        assert_eq!(heard(1, 1), [no, no, no, no, yes, no]);
        assert_eq!(heard(2, 0), [no, no, no, no, yes, no]);
        assert_eq!(heard(2, 1), [no, no, yes, yes, yes, no]);
        assert_eq!(heard(3, 0), [no, no, no, no, yes, no]);
        assert_eq!(said(0, 0), [no, no, no, no, yes, no]);
        assert_eq!(said(0, 1), [no; 6]);
        assert_eq!(said(1, 1), [no, yes, yes, no, no, no]);
        assert_eq!(said(2, 0), [no, no, yes, yes, yes, no]);
        assert_eq!(said(2, 1), [no, no, no, no, yes, no]);
        assert_eq!(said(3, 0), [no, no, no, no, yes, no]);
    }
}
