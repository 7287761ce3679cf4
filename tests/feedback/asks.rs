//! Which new packets ask the peer to answer at once.
//!
//! Tests decision 14 of `docs/protocol.md`.

use spindrift::congestion::{CcConfig, NsccOverrides};
use spindrift::work::SendOp;

use crate::sender::{PACKET, Sender, Setup, cc};

const WRITE: SendOp = SendOp::Write;

fn setup() -> Setup {
    Setup { cc: CcConfig::none(), mpr: 255, ..Setup::default() }
}

fn with_window(bytes: u64) -> Setup {
    let mut cc = cc(NsccOverrides::default());
    cc.nscc.max_cwnd_bytes = Some(bytes);
    Setup { cc, ..Setup::default() }
}

/// The packets that asked, of these messages queued one behind the other and then sent.
fn asked(setup: Setup, messages: &[(u32, SendOp, bool)]) -> Vec<i32> {
    let mut sender = Sender::new(setup);
    for &(packets, op, signaled) in messages {
        sender.queue(packets, op, signaled);
    }
    sender.go();
    let sent = sender.sent();
    assert_eq!(sent.len(), messages.iter().map(|message| message.0 as usize).sum::<usize>());
    sent.iter().filter(|packet| packet.ack_req).map(|packet| packet.n).collect()
}

#[test]
fn the_last_packet_of_a_signalled_message() {
    assert_eq!(asked(setup(), &[(4, WRITE, true), (1, WRITE, true), (3, WRITE, true)]), [3, 4, 7]);
    assert_eq!(asked(setup(), &[(1, WRITE, true); 15]), (0..15).collect::<Vec<_>>());
}

/// An eighth of the queue is the distance then; sixteenth messages and the last one ask besides.
#[test]
fn fewer_signalled_messages_of_a_long_queue() {
    let every = |step: usize, end: i32| (0..end).step_by(step);
    assert_eq!(asked(setup(), &[(1, WRITE, true); 16]), [0, 2, 4, 6, 8, 10, 12, 14, 15]);
    assert_eq!(asked(setup(), &[(1, WRITE, true); 40]), [0, 5, 10, 15, 16, 21, 26, 31, 32, 37, 39]);
    // However long it is.
    let of_many = asked(setup(), &[(1, WRITE, true); 400]);
    assert_eq!(of_many, every(16, 399).chain([399]).collect::<Vec<_>>());
}

/// Sixteen packets are the most, and those of the messages between count.
#[test]
fn a_signalled_message_sixteen_packets_after_one_that_asked() {
    let last_of = |packets: i32, messages: &[i32]| {
        messages.iter().map(|message| message * packets + packets - 1).collect::<Vec<_>>()
    };
    let long = |packets: u32| asked(setup(), &[(packets, WRITE, true); 200])[..6].to_vec();
    assert_eq!(long(16), last_of(16, &[0, 1, 2, 3, 4, 5]));
    assert_eq!(long(15), last_of(15, &[0, 2, 4, 6, 8, 10]));
    assert_eq!(long(3), last_of(3, &[0, 6, 12, 16, 22, 28]));
    let mut messages = vec![(1, WRITE, true); 200];
    messages[1] = (15, WRITE, false);
    // The first message, the one behind fifteen packets of another, and a sixteenth one.
    assert_eq!(asked(setup(), &messages)[..3], [0, 16, 30]);
}

#[test]
fn the_last_packet_of_a_message_with_an_immediate() {
    let imm = SendOp::WriteWithImm(7);
    assert_eq!(
        asked(setup(), &[(2, imm, false), (3, WRITE, false), (2, imm, false), (2, WRITE, true)]),
        [1, 6, 8]
    );
}

/// The very first message asks too: it is a sixteenth one.
#[test]
fn the_last_packet_of_the_last_message_queued() {
    assert_eq!(asked(setup(), &[(3, WRITE, false); 3]), [2, 8]);
}

/// Counted by message sequence numbers, which start at 0.
#[test]
fn the_last_packet_of_every_sixteenth_message() {
    assert_eq!(asked(setup(), &[(2, WRITE, false); 40]), [1, 33, 65, 79]);
}

/// The packet after which no other may go before something is acknowledged, to the byte.
#[test]
fn the_packet_that_uses_the_window_up() {
    for (room, last) in [(100 * PACKET, 99), (101 * PACKET - 1, 99), (101 * PACKET, 100)] {
        let mut sender = Sender::new(with_window(room));
        sender.queue(400, WRITE, true);
        sender.go();
        let sent = sender.sent();
        assert_eq!(sent.len() as i32, last + 1, "{room}");
        assert_eq!(
            sent.iter().filter(|packet| packet.ack_req).map(|packet| packet.n).collect::<Vec<_>>(),
            [last]
        );
    }
}

/// The peer answers of its own accord only after 16 KiB.
#[test]
fn every_packet_while_the_window_is_small() {
    assert_eq!(asked(with_window(16 * 1024 - 1), &[(4, WRITE, true)]), [0, 1, 2, 3]);
}
