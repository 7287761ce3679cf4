//! Frames that lie in several places: wherever they are cut, they do what they do in one piece.

use spindrift::endpoint::Endpoint;
use spindrift::memory::{Payload, Region};
use spindrift::pmd::{RxFrame, RxOrigin};
use spindrift::time::Time;
use spindrift::wire::{Aeth, Bth, Opcode, Packet, Peth, Psn, stack};

use crate::bench::{Bench, FIRST_PSN, VICTIM, attacker_ip, envelope};
use crate::support::frame::{Envelope, fix_icrc, set_traffic_class, trim};
use crate::support::net::address;

const ETHERNET: usize = 14;
const UDP_DST: usize = ETHERNET + 40 + 2;
const UDP_LEN: usize = ETHERNET + 40 + 4;
const MRC: usize = ETHERNET + 40 + 8;
/// DSCPs of data, and of what a switch has trimmed.
const DATA: u8 = 0;
const TRIMMED: u8 = 12;

/// What came of a frame: counts, answers, and the bytes in memory.
type Outcome = (Vec<(&'static str, u64)>, Vec<String>, Vec<u8>);

fn outcome(give: impl FnOnce(&mut Endpoint, Time)) -> Outcome {
    let mut bench = Bench::new();
    let now = bench.net.now;
    give(bench.net.endpoint(VICTIM), now);
    bench.net.pump(VICTIM);
    let mut memory = vec![0; bench.target.expected.len()];
    bench.target.region.read_at(0, &mut memory).unwrap();
    (bench.counted(), bench.answers(), memory)
}

/// Shows a frame in one piece, and cut in two and in three at every place, as a port with frames and as one of sockets.
#[track_caller]
fn same_however_cut(what: &str, frame: &[u8], expected: &str) {
    let meta = stack::parse(frame).ok().map(|parsed| (parsed.meta, parsed.mrc));
    let mut views = vec![(RxOrigin::Ethernet, frame)];
    // Sockets hand over no frame whose length is wrong.
    if let Some((meta, mrc)) = meta.filter(|_| !stack::parse(frame).unwrap().truncated) {
        views.push((RxOrigin::Udp(meta), mrc));
    }
    for (origin, bytes) in views {
        let whole = outcome(|endpoint, now| endpoint.receive(now, 0, &RxFrame::whole(origin, bytes)));
        // A socket does not look at the address again.
        if origin == RxOrigin::Ethernet || expected != "rx_wrong_destination" {
            assert!(whole.0.iter().any(|row| row.0 == expected), "{what}: {:?}", whole.0);
        }
        let region = Region::from_vec(bytes.to_vec()).unwrap();
        for cut in (0..bytes.len())
            .filter(|cut| cut % 7 == 0 || !(110..bytes.len().saturating_sub(12)).contains(cut))
        {
            let second = cut + (bytes.len() - cut) / 2;
            let shared = region.payload(cut, second - cut).unwrap();
            let two = [Payload::from(&bytes[cut..])];
            let three = [shared, Payload::from(&bytes[second..])];
            for rest in [&two[..], &three[..]] {
                let frame = RxFrame { origin, data: &bytes[..cut], rest };
                let parts = outcome(|endpoint, now| endpoint.receive(now, 0, &frame));
                assert!(parts == whole, "{what}, cut at {cut}: {:?} {:?}", parts.0, whole.0);
            }
        }
    }
}

/// A write of `len` bytes that would be accepted, sealed.
fn write(len: usize, envelope: &Envelope) -> Vec<u8> {
    let mut head = Bench::new().write();
    head.reth.dma_len = len as u32;
    let payload: Vec<u8> = (0..len).map(|n| (n * 7) as u8).collect();
    envelope.seal(&Packet::Data { head, payload: &payload, pad: &[] })
}

fn changed(frame: &[u8], change: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
    let mut frame = frame.to_vec();
    change(&mut frame);
    frame
}

#[test]
fn writes_are_placed() {
    let good = write(200, &envelope());
    same_however_cut("a write", &good, "rx_placed_bytes");
    same_however_cut("an empty write", &write(0, &envelope()), "rx_data");
    same_however_cut(
        "with padding of the frame",
        &changed(&good, |f| f.extend([0xee; 9])),
        "rx_placed_bytes",
    );
    let mut head = Bench::new().write();
    (head.bth.pad, head.reth.dma_len) = (3, 201);
    let padded = envelope().seal(&Packet::Data { head, payload: &[7; 201], pad: &[0; 3] });
    same_however_cut("a padded write", &padded, "rx_placed_bytes");
    let mut head = Bench::new().write();
    (head.bth.pad, head.reth.dma_len) = (3, 0);
    let lies = envelope().seal(&Packet::Data { head, payload: &[], pad: &[0; 2] });
    same_however_cut("more padding than there is", &lies, "rx_malformed");
}

#[test]
fn damage_is_noticed() {
    let good = write(200, &envelope());
    let end = good.len();
    same_however_cut("damaged payload", &changed(&good, |f| f[MRC + 80] ^= 1), "rx_bad_icrc");
    same_however_cut("a damaged iCRC", &changed(&good, |f| f[end - 1] ^= 1), "rx_bad_icrc");
    same_however_cut("cut off", &good[..end - 30], "rx_bad_stack");
    let longer = |f: &mut Vec<u8>| f[UDP_LEN + 1] += 1;
    same_however_cut("a UDP length beyond the packet", &changed(&good, longer), "rx_truncated");
    let shorter = |f: &mut Vec<u8>| f[UDP_LEN + 1] -= 1;
    same_however_cut("a UDP length before its end", &changed(&good, shorter), "rx_bad_stack");
    let two = |f: &mut Vec<u8>| {
        f.truncate(MRC + 2);
        (f[ETHERNET + 5], f[UDP_LEN + 1]) = (10, 10);
        (f[ETHERNET + 4], f[UDP_LEN]) = (0, 0);
    };
    same_however_cut("two bytes", &changed(&good, two), "rx_malformed");
}

#[test]
fn what_is_not_for_us_is_counted_so() {
    let here = envelope();
    let elsewhere = Envelope::new(attacker_ip(0), address(true, VICTIM, 1));
    same_however_cut("another port's address", &write(200, &elsewhere), "rx_wrong_destination");
    let stranger = Envelope::new(address(true, 17, 0), address(true, VICTIM, 0));
    same_however_cut("from a stranger", &write(200, &stranger), "rx_foreign_source");
    let port = changed(&write(200, &here), |f| {
        f[UDP_DST] ^= 0x40;
        fix_icrc(f);
    });
    same_however_cut("another UDP port", &port, "rx_other_port");
    for (at, what, count) in
        [(1, "another version", "rx_wrong_version"), (2, "another partition", "rx_wrong_partition")]
    {
        let foreign = changed(&write(200, &here), |f| {
            f[MRC + at] ^= 1;
            fix_icrc(f);
        });
        same_however_cut(what, &foreign, count);
    }
}

#[test]
fn what_a_switch_trimmed_is_told() {
    let good = write(200, &envelope());
    same_however_cut("trimmed", &changed(&good, |f| trim(f, TRIMMED)), "rx_trimmed");
    same_however_cut("cut without saying so", &changed(&good, |f| trim(f, DATA)), "rx_truncated");
    // One that says so and is whole is taken for trimmed all the same.
    same_however_cut(
        "said to be trimmed",
        &changed(&good, |f| set_traffic_class(f, TRIMMED << 2)),
        "rx_trimmed",
    );
}

#[test]
fn what_is_no_write_is_taken_too() {
    let qpn = Bench::new().qp.qpn;
    let probe = Packet::Probe { bth: Bth::new(Opcode::Probe, qpn, Psn::new(0)), peth: Peth::default() };
    same_however_cut("a probe", &envelope().seal(&probe), "rx_probes");
    let ack = Packet::Ack { bth: Bth::new(Opcode::Ack, qpn, FIRST_PSN), aeth: Aeth::ack(0) };
    same_however_cut("an acknowledgement", &envelope().seal(&ack), "rx_acks");
}
