//! Peers that are told of by settings and by the program alone, as MRC NICs are: here two devices that do not know of each other.

use std::net::IpAddr;

use super::*;
use crate::qp::{Body, QpBox};
use spindrift_programs::settings::StaticPeers;

/// Devices have this UDP port, each on addresses of its own.
const UDP_PORT: u16 = 21_971;

fn planes(place: u8, count: u8) -> Vec<IpAddr> {
    (1..=count).map(|plane| IpAddr::from([127, 3, place, plane])).collect()
}

/// A device whose peers are these.
fn device_with(place: u8, peers: &[Vec<IpAddr>]) -> &'static DeviceBox {
    let mut settings = DeviceBox::usual_settings();
    settings.peers = Some(StaticPeers { udp_port: UDP_PORT, planes: peers.to_vec() });
    let nic = NicSettings::new(format!("foreign{place}"), planes(place, 2));
    DeviceBox::new(0, nic).with(settings).kept()
}

/// Takes a queue pair from RESET to RTS, with these first PSNs of its own and of its peer.
fn bring_up(side: &Side, peer: &Side, [own, theirs]: [u32; 2]) -> c_int {
    let mut attr = crate::connection::no_attributes();
    let go = |attr: &mut ibv_qp_attr, state, mask| {
        attr.qp_state = state;
        // SAFETY: a queue pair of the test.
        unsafe { mrc_modify_qp(side.qp, attr, qp_attr_mask::STATE | mask, null_mut(), 0) }
    };
    assert_eq!(go(&mut attr, qp_state::INIT, 0), 0);
    attr.dest_qp_num = peer.number();
    attr.ah_attr.is_global = 1;
    attr.ah_attr.grh.dgid = ibv_gid { raw: spindrift_programs::gid::of(peer.host) };
    (attr.rq_psn, attr.path_mtu) = (theirs, 3);
    let rtr = qp_attr_mask::AV | qp_attr_mask::DEST_QPN | qp_attr_mask::PATH_MTU | qp_attr_mask::RQ_PSN;
    let refused = go(&mut attr, qp_state::RTR, rtr);
    if refused != 0 {
        return refused;
    }
    attr.sq_psn = own;
    go(&mut attr, qp_state::RTS, qp_attr_mask::SQ_PSN)
}

/// The number on the wire, and the first PSNs that it sends and expects.
fn known(side: &Side) -> (u32, u32, u32) {
    // SAFETY: a queue pair of the test.
    let of = unsafe { QpBox::of(side.qp.cast()) };
    let Ok(Body::Connected(core)) = of.body() else { panic!("it is connected") };
    let attr = core.lock().qp().unwrap().query().unwrap();
    assert_eq!(attr.path_mtu, 1024);
    (attr.qpn.get(), attr.sq_psn.get(), attr.rq_psn.unwrap().get())
}

#[test]
fn queue_pairs_connect_by_what_their_programs_say() {
    let _no_forks = no_forks();
    // The second one has one plane more than its peer knows of.
    let mut sides =
        [device_with(1, &[planes(2, 1)]), device_with(2, &[planes(9, 2), planes(1, 2)])].map(Side::on);
    let numbers = [sides[0].number(), sides[1].number()];
    for psns in [[0x12_3456, 0xff_fff0], [0, 0], [7, 0x80_0000]] {
        for (at, other) in [(0, 1), (1, 0)] {
            assert_eq!(bring_up(&sides[at], &sides[other], [psns[at], psns[other]]), 0);
        }
        assert_eq!(known(&sides[0]), (numbers[0], psns[0], psns[1]));
        assert_eq!(known(&sides[1]), (numbers[1], psns[1], psns[0]));
        for _ in 0..2 {
            let [from, to] = &mut sides;
            from.fill();
            to.memory.fill(0);
            assert_eq!(from.send(to, (0, 0, MEMORY as u32), |_| ()), 0);
            assert_eq!(to.receive(5), 0);
            let immediate = |wr: &mut ibv_send_wr| wr.opcode = wr_opcode::RDMA_WRITE_WITH_IMM;
            assert_eq!(from.send(to, (0, 0, 0), immediate), 0);
            assert_eq!([(); 2].map(|()| wait(|| from.poll()).status), [wc_status::SUCCESS; 2]);
            assert_eq!(wait(|| to.poll()).wr_id, 5);
            assert!(from.memory == to.memory);
            sides.swap(0, 1);
        }
        // They keep their numbers, which their peers know.
        for side in &sides {
            assert_eq!(side.modify(qp_state::RESET, None, &no_attr(), 0), 0);
        }
        assert_eq!([sides[0].number(), sides[1].number()], numbers);
    }
    sides.into_iter().for_each(Side::end);
}

#[test]
fn who_is_no_peer_is_refused_by_name() {
    let _no_forks = no_forks();
    let side = Side::on(device_with(3, &[planes(4, 2)]));
    let other = Side::on(device_with(5, &[planes(3, 2)]));
    assert_eq!(bring_up(&side, &other, [0, 0]), libc::EINVAL);
    assert_eq!(side.query().0.qp_state, qp_state::INIT);
    other.end();
    side.end();
}

/// The UDP port is the peers' to know, so no other process has one.
#[test]
fn one_process_has_the_device() {
    let first = Side::on(device_with(6, &[]));
    // SAFETY: a device of the test.
    let second = unsafe { context::ibv_open_device(device_with(6, &[]).as_c()) };
    assert!(second.is_null());
    assert_eq!(last_code(), libc::ENODEV);
    first.end();
}
