//! The UDP port that an answer to an endpoint request goes to: the one on which whoever asked listens.

use std::collections::BTreeSet;
use std::net::IpAddr;

use spindrift::endpoint::{PortAddr, QpInfo};
use spindrift::wire::{Bth, ENDPOINT_QPN, EndpointOp, Erth, Opcode, Packet, Psn, UDP_PORT_MRC};

use crate::bench::{Bench, VICTIM, attacker_info, envelope, init, stranger_ip};
use crate::support::frame::{self, Envelope};
use crate::support::net::address;
use crate::support::pair::{self, Patience};

/// Asks the victim on plane 0 and returns the ports that are answered, each once.
fn answered(bench: &mut Bench, from: IpAddr, op: EndpointOp) -> BTreeSet<u16> {
    let bth = Bth::new(Opcode::EndpointRequest, ENDPOINT_QPN, Psn::new(0x1234));
    let request =
        Packet::EndpointRequest { bth, erth: Erth { op, port_status_mask: 0b11, ..Erth::default() } };
    bench.net.astray.clear();
    bench.net.inject(VICTIM, 0, &Envelope::new(from, address(true, VICTIM, 0)).seal(&request));
    let mut ports = BTreeSet::new();
    for (_, bytes) in &bench.net.astray {
        let (meta, packet) = frame::decode(bytes).unwrap();
        if let Packet::EndpointResponse { bth, .. } = packet {
            assert_eq!((bth.psn, meta.dst), (Psn::new(0x1234), from));
            assert!(ports.insert(meta.dst_port), "answered twice");
        }
    }
    ports
}

/// Connects one more queue pair of the victim: to the host of this number, where somebody listens on `udp_port`.
pub(crate) fn connect(bench: &mut Bench, host: usize, udp_port: u16) -> IpAddr {
    let pd = bench.net.endpoint(VICTIM).alloc_pd();
    let qp = pair::create(&mut bench.net, VICTIM, init(pd));
    let ours = bench.net.endpoint(VICTIM).qp_info(qp.qpn).unwrap();
    let ports: Vec<_> =
        (0..2).map(|plane| PortAddr { ip: address(true, host, plane), mac: [6; 6] }).collect();
    let ip = ports[0].ip;
    let theirs = QpInfo { ports, udp_port, ..attacker_info(&ours) };
    pair::bring_up(&mut bench.net, qp, &theirs, Patience::default());
    ip
}

const OPS: [EndpointOp; 2] = [EndpointOp::EvProbe, EndpointOp::PortStatusUpdate];

#[test]
fn an_answer_goes_to_where_the_peer_listens() {
    let mut bench = Bench::new();
    let ip = connect(&mut bench, 30, 40_001);
    for op in OPS {
        assert_eq!(answered(&mut bench, ip, op), [40_001].into(), "{op:?}");
        assert_eq!(answered(&mut bench, envelope().src, op), [UDP_PORT_MRC].into(), "{op:?}");
    }
    // Nobody said where a stranger listens.
    assert_eq!(answered(&mut bench, stranger_ip(), EndpointOp::EvProbe), [UDP_PORT_MRC].into());
}

/// A request does not say which of several processes on a host sent it.
#[test]
fn all_who_share_an_address_are_answered_up_to_eight() {
    let mut bench = Bench::new();
    let mut expected = BTreeSet::new();
    for udp_port in [40_001, 40_002, 40_001, UDP_PORT_MRC] {
        let ip = connect(&mut bench, 30, udp_port);
        expected.insert(udp_port);
        for op in OPS {
            assert_eq!(answered(&mut bench, ip, op), expected, "{op:?}");
        }
    }
    let ip = (0..20).map(|more| connect(&mut bench, 30, 50_000 + more)).last().unwrap();
    let ports = answered(&mut bench, ip, EndpointOp::EvProbe);
    assert_eq!(ports.len(), 8);
    assert!(ports.is_superset(&expected));
    bench.check_healthy("answers to many");
}
