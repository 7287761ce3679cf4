//! Requests whose bytes come from several places.

use spindrift::endpoint::{FailReason, PostError, QpModify, Transmit};
use spindrift::path::PlaneSet;
use spindrift::wire::{Aeth, Packet};
use spindrift::work::{SendOp, Sge, WcStatus};

use crate::sender::{Sender, Setup};
use crate::support::frame;

/// Memory of this length whose bytes no other has.
fn memory(sender: &mut Sender, number: u8, len: u32) -> Sge {
    sender.memory((0..len).map(|n| number.wrapping_mul(61).wrapping_add((n * 5 / 2) as u8)).collect())
}

fn bytes_of(sender: &mut Sender, sges: &[Sge]) -> Vec<u8> {
    let endpoint = sender.net.endpoint(0);
    let mut all = Vec::new();
    for sge in sges.iter().filter(|sge| sge.len > 0) {
        let pinned = endpoint.memory_mut().pin(sge.lkey, sender.pd, sge.addr, sge.len).unwrap();
        let memory = endpoint.memory_mut();
        memory.bytes(&pinned).append_to(&mut all, usize::MAX);
        memory.unpin(pinned.slot);
    }
    all
}

/// The next packet's payload, and whether it is sent from where it lies.
fn next(sender: &mut Sender, out: &mut Transmit) -> Option<(Vec<u8>, bool)> {
    let now = sender.net.now;
    let endpoint = sender.net.endpoint(0);
    endpoint.transmit(now, PlaneSet(1), out).then(|| {
        let payload = endpoint.payload(out);
        let mut bytes = Vec::new();
        payload.append_to(&mut bytes, usize::MAX);
        (bytes, payload.region().is_some())
    })
}

/// The payload of each data packet that went into the network.
fn payloads(sender: &mut Sender) -> Vec<Vec<u8>> {
    let frames = core::mem::take(&mut sender.net.astray);
    let payload = |(_, bytes): &(_, Vec<u8>)| match frame::decode(bytes)?.1 {
        Packet::Data { payload, .. } => Some(payload.to_vec()),
        _ => None,
    };
    frames.iter().filter_map(payload).collect()
}

/// With 256 bytes a packet: the first one takes bytes of two elements, the second lies in one, the third takes bytes of
/// three, the last lies in one.
fn elements(sender: &mut Sender) -> [Sge; 5] {
    let sges = [(1, 100), (2, 156 + 256 + 10), (3, 1), (4, 500)];
    let [a, b, c, d] = sges.map(|(number, len)| memory(sender, number, len));
    // One without bytes may say what it will.
    [a, Sge { addr: 7, len: 0, lkey: 7 }, b, c, d]
}

#[test]
fn packets_take_the_bytes_of_the_elements_in_order() {
    let mut sender = Sender::new(Setup::default());
    let sges = elements(&mut sender);
    let all = bytes_of(&mut sender, &sges);
    assert_eq!(all.len(), 1023);
    sender.queue_gather(&sges).unwrap();
    // Between others, and the same memory once more.
    sender.queue(2, SendOp::Write, true);
    sender.queue_gather(&sges[2..]).unwrap();
    assert_eq!(sender.uses(&sges), [1, 0, 2, 2, 2]);
    // The same `Transmit` serves all, as in a driver.
    let mut out = Transmit::default();
    let mut sent = Vec::new();
    for (at, whole) in [false, true, false, true].into_iter().enumerate() {
        let end = (256 * (at + 1)).min(all.len());
        let (bytes, lies_in_one) = next(&mut sender, &mut out).unwrap();
        assert_eq!((bytes.len(), lies_in_one), (end - 256 * at, whole), "packet {at}");
        assert_eq!(bytes, all[256 * at..end], "packet {at}");
        sent.push(bytes);
    }
    for _ in 0..2 {
        assert_eq!(next(&mut sender, &mut out), Some((vec![0; 256], true)));
    }
    let rest: Vec<_> = core::iter::from_fn(|| next(&mut sender, &mut out)).collect();
    assert_eq!(rest.iter().map(|(_, one)| *one).collect::<Vec<_>>(), [true, false, true, true]);
    assert_eq!(rest.concat_bytes(), all[100..]);

    // What is sent again is copied together again.
    sender.wait(150_000);
    assert_eq!(payloads(&mut sender), [sent[0].clone()], "the tail probe");
    // Each request gives back its own memory, when it is done.
    sender.ack(3, Aeth::ack(0));
    assert_eq!(sender.uses(&sges), [1, 0, 2, 2, 2]);
    sender.ack(4, Aeth::ack(1));
    assert_eq!(sender.uses(&sges), [0, 0, 1, 1, 1]);
    let (done, _) = sender.ended();
    assert_eq!(done.iter().map(|wc| (wc.wr_id, wc.byte_len)).collect::<Vec<_>>(), [(0, 1023)]);
    sender.ack(6, Aeth::ack(2));
    assert_eq!(sender.uses(&sges), [0, 0, 1, 1, 1]);
    sender.ack(10, Aeth::ack(3));
    assert_eq!(sender.uses(&sges), [0; 5]);
    assert_eq!(sender.ended().0.last().unwrap().byte_len, 923);
}

/// The bytes of several packets, one after the other.
trait Concat {
    fn concat_bytes(&self) -> Vec<u8>;
}

impl Concat for Vec<(Vec<u8>, bool)> {
    fn concat_bytes(&self) -> Vec<u8> {
        self.iter().flat_map(|(bytes, _)| bytes.clone()).collect()
    }
}

/// An element that is as long as a packet fills none where packets begin within it.
#[test]
fn an_element_as_long_as_a_packet_is_split_between_two() {
    let mut sender = Sender::new(Setup::default());
    let sges = [(1, 100), (2, 256), (3, 156)].map(|(number, len)| memory(&mut sender, number, len));
    let all = bytes_of(&mut sender, &sges);
    sender.queue_gather(&sges).unwrap();
    let mut out = Transmit::default();
    let sent: Vec<_> = core::iter::from_fn(|| next(&mut sender, &mut out)).collect();
    assert_eq!(sent, [(all[..256].to_vec(), false), (all[256..].to_vec(), false)]);
}

/// An application may write to the memory before the request is done; what is sent again is what is there then.
#[test]
fn a_repeat_is_read_anew() {
    let mut sender = Sender::new(Setup::default());
    let first = memory(&mut sender, 1, 100);
    let shared = Sge { addr: 0, len: 100, lkey: sender.key.lkey };
    sender.queue_gather(&[first, shared]).unwrap();
    sender.go();
    let before = payloads(&mut sender);
    assert_eq!(before[0][100..], [0; 100]);
    sender.region.write_at(0, &[9; 100]).unwrap();
    sender.wait(150_000);
    let again = payloads(&mut sender);
    assert_eq!((&again[0][..100], &again[0][100..]), (&before[0][..100], &[9; 100][..]));
}

#[test]
fn an_element_with_a_bad_key_fails_the_request_as_a_whole() {
    for bad in 0..3 {
        let mut sender = Sender::new(Setup::default());
        let mut sges = [1, 2, 3].map(|number| memory(&mut sender, number, 300));
        let good = sges;
        sender.queue_gather(&good).unwrap();
        sges[bad].lkey ^= 1;
        sender.queue_gather(&sges).unwrap();
        let (ended, failure) = {
            sender.go();
            sender.ended()
        };
        let expected = [(0, WcStatus::WrFlushError), (1, WcStatus::LocalProtectionError)];
        assert_eq!(ended.iter().map(|wc| (wc.wr_id, wc.status)).collect::<Vec<_>>(), expected);
        assert_eq!(failure, Some(FailReason::LocalWorkRequest));
        assert_eq!(
            (payloads(&mut sender).len(), sender.uses(&good)),
            (0, vec![0; 3]),
            "nothing is sent or held"
        );
    }
    // Beyond the end of the region, too.
    let mut sender = Sender::new(Setup::default());
    let [a, b] = [1, 2].map(|number| memory(&mut sender, number, 300));
    sender.queue_gather(&[a, Sge { len: 301, ..b }]).unwrap();
    assert_eq!(
        {
            sender.go();
            sender.ended().0[0].status
        },
        WcStatus::LocalProtectionError
    );
}

/// A queue pair that is reset or destroyed while requests are under way gives their memory back.
#[test]
fn memory_is_given_back_when_requests_are_dropped() {
    for reset in [true, false] {
        let mut sender = Sender::new(Setup::default());
        let sges = elements(&mut sender);
        for _ in 0..3 {
            sender.queue_gather(&sges).unwrap();
        }
        sender.go();
        assert_eq!(sender.uses(&sges), [3, 0, 3, 3, 3]);
        let (now, qpn) = (sender.net.now, sender.qp.qpn);
        let endpoint = sender.net.endpoint(0);
        if reset {
            endpoint.modify_qp(now, qpn, QpModify::Reset).unwrap();
        } else {
            endpoint.destroy_qp(qpn).unwrap();
        }
        assert_eq!(sender.uses(&sges), [0; 5]);
    }
}

/// The sender's queue pairs take five elements.
#[test]
fn what_is_no_message_is_refused() {
    let mut sender = Sender::new(Setup::default());
    let sge = memory(&mut sender, 1, 10);
    let empty = Sge { len: 0, ..sge };
    let huge = Sge { len: u32::MAX, ..sge };
    assert_eq!(sender.queue_gather(&[sge; 6]), Err(PostError::TooManySges));
    assert_eq!(sender.queue_gather(&[empty; 6]), Err(PostError::TooManySges), "they count");
    assert_eq!(sender.queue_gather(&[]), Err(PostError::Empty));
    assert_eq!(sender.queue_gather(&[empty; 5]), Err(PostError::Empty));
    assert_eq!(sender.queue_gather(&[huge, Sge { len: 1, ..sge }]), Err(PostError::TooLong));
    assert_eq!(sender.queue_gather(&[huge; 5]), Err(PostError::TooLong));
    assert_eq!(sender.uses(&[sge]), [0]);
    // As long as can be, but not as long as the memory.
    sender.queue_gather(&[Sge { len: u32::MAX - 1, ..sge }, Sge { len: 1, ..sge }]).unwrap();
    assert_eq!(sender.ended().0.len(), 0, "told when the driver asks");
    sender.go();
    assert_eq!(sender.ended().0[0].status, WcStatus::LocalProtectionError);
}

/// A request with one element that has bytes is an ordinary one.
#[test]
fn one_element_is_sent_from_where_it_lies() {
    let mut sender = Sender::new(Setup::default());
    let sge = memory(&mut sender, 1, 600);
    let empty = Sge { len: 0, lkey: 1, addr: 0 };
    sender.queue_gather(&[empty, sge, empty]).unwrap();
    let mut out = Transmit::default();
    let all = bytes_of(&mut sender, &[sge]);
    let sent: Vec<_> = core::iter::from_fn(|| next(&mut sender, &mut out)).collect();
    assert!(sent.iter().all(|(_, one)| *one) && sent.concat_bytes() == all, "{sent:?}");
}
