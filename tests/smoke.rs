//! Two endpoints joined by a perfect wire: the shortest story the transport can tell.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::net::Ipv6Addr;

use spindrift::endpoint::{
    CqId, Endpoint, EndpointConfig, Event, LocalPort, QpInit, QpModify, RtrAttr, RtsAttr, Transmit,
};
use spindrift::memory::{Access, Region};
use spindrift::path::PortMask;
use spindrift::pmd::{MacAddr, RxFrame, RxOrigin};
use spindrift::time::Time;
use spindrift::wire::{Msn, Psn, Qpn, icrc};
use spindrift::work::{RecvWr, RemoteAddr, SendOp, SendWr, Sge, WcStatus};

fn endpoint(side: u16) -> Endpoint {
    let ports = (0..4)
        .map(|plane| LocalPort {
            ip: Ipv6Addr::new(0xfd00, plane, 0, 0, 0, 0, 0, side).into(),
            mac: MacAddr([2, 0, 0, 0, plane as u8, side as u8]),
            max_frame: 9014,
            source_ports: None,
            same_path_batch: 1,
        })
        .collect();
    Endpoint::new(EndpointConfig { seed: side.into(), ..EndpointConfig::new(ports) }).unwrap()
}

fn connect(a: &mut Endpoint, qa: Qpn, b: &Endpoint, qb: Qpn) {
    let info = b.qp_info(qb).unwrap();
    a.modify_qp(Time::ZERO, qa, QpModify::Init).unwrap();
    let rtr = RtrAttr {
        dest_qpn: info.qpn,
        rq_psn: Psn::new(info.psn),
        rq_msn: Msn::new(info.msn),
        path_mtu: 1024,
        mpr_dest: 8,
        max_wimm_dest: 128,
        dynamic_mpr: false,
        trim_nack: true,
        ports: info.ports,
        udp_port: info.udp_port,
    };
    a.modify_qp(Time::ZERO, qa, QpModify::Rtr(Box::new(rtr))).unwrap();
    a.modify_qp(Time::ZERO, qa, QpModify::Rts(RtsAttr::default())).unwrap();
}

fn carry(now: Time, from: &mut Endpoint, to: &mut Endpoint) -> usize {
    let mut out = Transmit::default();
    let mut count = 0;
    while from.transmit(now, PortMask::ALL, &mut out) {
        let payload = from.payload(&out);
        let mut frame = out.head().to_vec();
        let crc = icrc::compute(&frame[14..], payload, &[]);
        frame.extend_from_slice(payload);
        frame.extend_from_slice(&crc);
        to.receive(now, out.port, &RxFrame { origin: RxOrigin::Ethernet, data: &frame });
        count += 1;
    }
    count
}

#[test]
fn bytes_and_an_immediate_arrive() {
    let (mut a, mut b) = (endpoint(1), endpoint(2));
    let (pa, pb) = (a.alloc_pd(), b.alloc_pd());
    let qa = a.create_qp(QpInit::new(pa, CqId(0), CqId(0))).unwrap();
    let qb = b.create_qp(QpInit::new(pb, CqId(0), CqId(0))).unwrap();
    connect(&mut a, qa, &b, qb);
    connect(&mut b, qb, &a, qa);
    let (src, dst) = (Region::alloc(100_000).unwrap(), Region::alloc(100_000).unwrap());
    let pattern: Vec<u8> = (0..100_000_u32).map(|i| (i * 7 / 3) as u8).collect();
    src.write_at(0, &pattern).unwrap();
    let lkey = a.register(pa, src.clone(), Access::LOCAL_WRITE).unwrap().lkey;
    let rkey = b.register(pb, dst.clone(), Access::REMOTE_WRITE).unwrap().rkey;
    b.post_recv(qb, RecvWr { wr_id: 77 }).unwrap();
    let wr = SendWr {
        wr_id: 1,
        op: SendOp::WriteWithImm(0xabcd),
        local: Sge { addr: src.iova(), len: 100_000, lkey },
        remote: RemoteAddr { addr: dst.iova(), rkey },
        signaled: true,
    };
    a.post_send(Time(1), qa, wr).unwrap();
    let mut now = Time(1_000);
    while carry(now, &mut a, &mut b) + carry(now, &mut b, &mut a) > 0 {
        now = now + 1_000;
    }
    assert_eq!(dst.first_difference(0, &pattern).unwrap(), None, "{:?}", b.counters());
    let received: Vec<_> = std::iter::from_fn(|| b.poll_event()).collect();
    assert!(
        matches!(received[..], [Event::Completion { wc, .. }] if wc.imm == Some(0xabcd) && wc.byte_len == 100_000 && wc.wr_id == 77),
        "{received:?}"
    );
    let sent: Vec<_> = std::iter::from_fn(|| a.poll_event()).collect();
    assert!(
        matches!(sent[..], [Event::Completion { wc, .. }, Event::SendRetired { count: 1, .. }] if wc.status == WcStatus::Success),
        "{sent:?}"
    );
    assert_eq!(a.counters().tx_retransmits + a.counters().tx_tail_probes, 0);
}
