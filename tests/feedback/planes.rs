//! A plane goes: the packets on it are sent again elsewhere, and no path is to blame.
//!
//! Tests decision 22 of `docs/protocol.md`.

use spindrift::path::PlaneSet;
use spindrift::wire::{Bth, ENDPOINT_QPN, EndpointOp, Erth, Opcode, Packet, Psn};

use crate::sender::{FULL, PACKET, RTT, Sender, Sent, Setup};

fn sending() -> (Sender, Vec<Sent>) {
    Sender::sending(Setup { planes: 2, ..Setup::default() }, 20)
}

fn update(mask: u32) -> Packet<'static> {
    let bth = Bth::new(Opcode::EndpointRequest, ENDPOINT_QPN, Psn::new(7));
    let erth = Erth { op: EndpointOp::PortStatusUpdate, port_status_mask: mask, ..Erth::default() };
    Packet::EndpointRequest { bth, erth }
}

/// The packets that were on plane 1 have left again on plane 0, and everything else stays as it was.
#[track_caller]
fn expect_moved(sender: &mut Sender, sent: &[Sent]) {
    let again = sender.sent();
    let on_it: Vec<_> = sent.iter().filter(|packet| packet.plane == 1).map(|packet| packet.n).collect();
    assert_eq!(on_it.len(), 10);
    assert_eq!(again.iter().map(|packet| packet.n).collect::<Vec<_>>(), on_it);
    assert!(again.iter().all(|packet| packet.plane == 0 && packet.rtx && packet.at == sender.net.now));
    assert_eq!(sender.blamed(), []);
    assert_eq!((sender.cwnd(), sender.inflight()), (FULL - 10 * PACKET, 20));
    let (paths, counters) = (sender.paths(), sender.counters());
    assert_eq!((paths.losses, paths.swaps, counters.tx_retransmits), (0, 0, 10));
    sender.post(4);
    assert!(sender.sent().iter().all(|packet| packet.plane == 0));
}

#[test]
fn a_port_status_update_of_the_peer_moves_what_is_in_flight() {
    let (mut sender, sent) = sending();
    sender.wait(RTT);
    sender.give(&update(0b01));
    expect_moved(&mut sender, &sent);
}

#[test]
fn a_port_of_our_own_that_goes_down_does_too_and_returns() {
    let (mut sender, sent) = sending();
    sender.wait(RTT);
    let now = sender.net.now;
    sender.net.endpoint(0).port_link(now, 1, false);
    sender.net.pump(0);
    expect_moved(&mut sender, &sent);
    sender.net.endpoint(0).port_link(now, 1, true);
    sender.post(8);
    assert_eq!(sender.sent().iter().filter(|packet| packet.plane == 1).count(), 4);
    assert_eq!(sender.blamed(), []);
}

#[test]
fn an_update_that_names_every_port_changes_nothing() {
    let (mut sender, _) = sending();
    let before = sender.status();
    sender.give(&update(!0));
    sender.give(&update(0b11));
    let qpn = sender.qp.qpn;
    assert_eq!(sender.net.endpoint(0).peer_planes(qpn), Some(PlaneSet(0b11)));
    assert_eq!((sender.status(), sender.sent(), sender.blamed()), (before, vec![], vec![]));
}

/// What was on the plane is sent again; a tail probe's first copy that was on it is not suspected.
#[test]
fn a_first_copy_on_the_plane_that_went_is_not_suspected() {
    let (mut sender, sent) = Sender::sending(Setup { planes: 2, ..Setup::default() }, 1);
    sender.wait(100_000);
    let probe = sender.sent_one();
    assert_ne!(probe.plane, sent[0].plane);
    let now = sender.net.now;
    sender.net.endpoint(0).port_link(now, sent[0].plane, false);
    sender.net.pump(0);
    assert_eq!(sender.sent(), [], "its last copy is on the plane that stays");
    sender.wait(RTT);
    let answer = sender.answer(&probe, 1);
    let packet = Packet::Sack { bth: Bth::new(Opcode::Sack, sender.qp.qpn, answer.cack), seth: answer };
    sender.give_on(probe.plane, &packet);
    assert_eq!((sender.counters().tail_suspects, sender.inflight()), (0, 0));
    assert_eq!((sender.blamed(), sender.cwnd()), (vec![], FULL));
}
