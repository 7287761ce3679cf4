//! What leaves first: replies, answers, and long messages.
//!
//! Tests decision 32 of `docs/protocol.md`.

use std::io::Write;
use std::sync::{Arc, Mutex};

use spindrift::endpoint::Endpoint;
use spindrift::pmd::Port;
use spindrift::pmd::loopback::{self, LoopbackConfig};
use spindrift::pmd::trace::TracePort;
use spindrift::pmd::udp::{UdpConfig, UdpPort};
use spindrift::verbs::{LaneMode, Qp, QpConfig, nic};

use crate::connected_pair::{Side, connect, side, until, write};

/// Keeps what one port did, a line for each frame.
#[derive(Clone, Default)]
struct Trace(Arc<Mutex<Vec<u8>>>);

impl Write for Trace {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Trace {
    /// The names of the packets sent since the last call, in their order. Paths are probed now and then; that is left out.
    fn take(&self) -> Vec<String> {
        let text = String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap();
        let name = |line: &str| {
            let words: Vec<_> = line.split_whitespace().collect();
            let at = words.iter().position(|&word| word == "fl").unwrap();
            words[at + 2].to_owned()
        };
        let sent = text.lines().filter(|line| line.contains(" tx ")).map(name);
        sent.filter(|name| ["write", "sack", "ack"].contains(&name.as_str())).collect()
    }
}

/// Two sides over one plane of memory, and what the right one sends. Nothing is on its way.
fn traced() -> (Side, Side, Trace) {
    let (left, right) = loopback::pair(1, LoopbackConfig::default());
    let trace = Trace::default();
    let tracing = |(plane, port)| {
        Box::new(TracePort::new(Box::new(port), plane, Box::new(trace.clone()))) as Box<dyn Port>
    };
    let right: Vec<_> = right.into_iter().enumerate().map(tracing).collect();
    let config = QpConfig::default();
    let (mut left, mut right) =
        (side(nic(left), LaneMode::Inline, &config), side(right, LaneMode::Inline, &config));
    connect(&mut left, &mut right);
    while left.context.poll() + right.context.poll() > 0 {}
    (left, right, trace)
}

/// Sends a message of `len` bytes to the right; all its frames wait there.
fn send(left: &mut Side, right: &Side, len: u32) {
    left.qp.post_send(write(left, right, 1, len)).unwrap();
    left.context.poll();
}

#[test]
fn a_driver_that_may_pause_answers_at_once() {
    let (mut left, right, trace) = traced();
    send(&mut left, &right, 64);
    assert!(right.context.poll() >= 3, "a frame in and two out");
    assert_eq!(trace.take(), ["sack", "ack"]);
}

#[test]
fn a_busy_driver_replies_before_it_answers() {
    let (mut left, mut right, trace) = traced();
    for lane in [None, Some(0)] {
        let turn = |right: &Side| match lane {
            Some(lane) => right.context.poll_lane_busy(lane),
            None => right.context.poll_busy(),
        };
        send(&mut left, &right, 64);
        assert!(turn(&right) > 0);
        assert_eq!(right.context.counters().rx_data, 1 + u64::from(lane.is_some()), "it is there");
        assert_eq!(trace.take(), [""; 0]);
        right.qp.post_send(write(&right, &left, 2, 64)).unwrap();
        turn(&right);
        assert_eq!(trace.take(), ["write", "sack", "ack"]);
        while left.context.poll() + right.context.poll() > 0 {}
        trace.take();
    }
}

/// Whether or not there is a reply, and whatever the next turn is.
#[test]
fn what_a_busy_driver_owes_leaves_with_the_next_turn() {
    let (mut left, right, trace) = traced();
    for busy in [true, false] {
        send(&mut left, &right, 64);
        right.context.poll_busy();
        assert_eq!(trace.take(), [""; 0]);
        let work = if busy { right.context.poll_busy() } else { right.context.poll() };
        assert!(work >= 2, "two frames out");
        assert_eq!(trace.take(), ["sack", "ack"]);
        while left.context.poll() + right.context.poll() > 0 {}
        trace.take();
    }
}

/// What waits for nobody's reply leaves with the turn in which it is posted, and with the one that makes room for it.
#[test]
fn without_answers_owed_a_busy_driver_sends_at_once() {
    let (left, mut right, trace) = traced();
    for wr_id in 0..2 {
        right.qp.post_send(write(&right, &left, wr_id, 64)).unwrap();
        // The second time, the answers to the first are received before it.
        assert!(right.context.poll_busy() > 0);
        assert_eq!(trace.take(), ["write"]);
        left.context.poll();
    }
}

/// Who sends as many waits for room, not for a reply.
#[test]
fn more_than_four_frames_are_answered_at_once() {
    for (packets, answers) in [(4, 0), (5, 2)] {
        let (mut left, right, trace) = traced();
        send(&mut left, &right, packets * 4096);
        right.context.poll_busy();
        assert_eq!(right.context.counters().rx_data, u64::from(packets));
        assert_eq!(trace.take().len(), answers, "{packets} packets");
    }
}

/// A message goes ahead of the answers that are owed if so few packets of it are left.
#[test]
fn long_messages_do_not_go_ahead_of_answers() {
    let ahead = Endpoint::AHEAD;
    for packets in [1, ahead, ahead + 1, 16] {
        let (mut left, mut right, trace) = traced();
        send(&mut left, &right, 64);
        right.context.poll_busy();
        right.qp.post_send(write(&right, &left, 2, packets as u32 * 4096)).unwrap();
        right.context.poll_busy();
        let sent = trace.take();
        let at = sent.iter().position(|name| name == "sack").unwrap();
        assert_eq!(at, if packets <= ahead { packets } else { 0 }, "{sent:?}");
        assert_eq!(sent[at + 1], "ack");
    }
}

/// However many of them there are.
#[test]
fn a_few_packets_go_ahead_and_no_more() {
    let (mut left, right, trace) = traced();
    let create = |side: &Side| Qp::create(&side.pd, &side.cq, &side.cq, &QpConfig::default()).unwrap();
    let mut pairs: Vec<_> = (0..Endpoint::AHEAD + 2)
        .map(|_| {
            let (mut there, mut here) = (create(&left), create(&right));
            there.connect(&here.info().unwrap()).unwrap();
            here.connect(&there.info().unwrap()).unwrap();
            (here, there)
        })
        .collect();
    send(&mut left, &right, 64);
    right.context.poll_busy();
    for (here, _) in &mut pairs {
        here.post_send(write(&right, &left, 2, 64)).unwrap();
    }
    right.context.poll_busy();
    let mut expected = vec!["write"; pairs.len()];
    expected.splice(Endpoint::AHEAD..Endpoint::AHEAD, ["sack", "ack"]);
    assert_eq!(trace.take(), expected);
}

/// The SACK and the shorter ACK behind it are one segmentation batch: one system call, one way through the kernel.
#[test]
fn both_answers_to_a_message_leave_a_socket_in_one_call() {
    let port = |last| -> Box<dyn Port> {
        let local = [127, 83, 9, last].into();
        Box::new(UdpPort::open(&UdpConfig { local, ..UdpConfig::default() }).unwrap())
    };
    let config = QpConfig::default();
    let mut left = side(vec![port(1)], LaneMode::Inline, &config);
    let mut right = side(vec![port(2)], LaneMode::Inline, &config);
    if right.context.query_port(0, 0).unwrap().same_path_batch == 1 {
        // The kernel has no segmentation offload.
        return;
    }
    connect(&mut left, &mut right);
    let rounds = 20;
    for round in 0..rounds {
        left.qp.post_send(write(&left, &right, round, 64)).unwrap();
        until("a completion", || {
            left.context.poll();
            right.context.poll();
            left.cq.poll_one().unwrap()
        });
    }
    let transport = right.context.counters();
    assert!(transport.tx_acks >= rounds && transport.tx_sacks >= rounds);
    let others = transport.tx_endpoint_requests + transport.tx_endpoint_responses;
    let calls = right.context.query_port(0, 0).unwrap().counters.tx_calls;
    assert!(calls <= rounds + others, "{calls} calls for {rounds} messages, {others} others");
}
