//! What only the inside of an endpoint shows.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use spindrift_pmd::MacAddr;

use super::*;
use crate::memory::{Access, MemoryError, Region};
use crate::wire::{EntropyMode, Msn, Psn, StevOrder};
use crate::work::{RemoteAddr, SendOp, Sge};

/// A port that carries any entropy value.
pub(super) fn port(last: u8) -> LocalPort {
    LocalPort {
        ip: [10, 0, 0, last].into(),
        mac: MacAddr([2, 0, 0, 0, 0, last]),
        max_frame: 1514,
        source_ports: None,
        same_path_batch: 1,
    }
}

/// An endpoint with a queue pair in RTS, whose peer says nothing.
struct Alone {
    endpoint: Endpoint,
    qpn: Qpn,
    now: Time,
    wr: SendWr,
}

impl Alone {
    fn new() -> Self {
        let mut endpoint = Endpoint::new(EndpointConfig::new(vec![port(1)])).unwrap();
        let pd = endpoint.alloc_pd();
        let qpn = endpoint.create_qp(QpInit::new(pd, CqId(0), CqId(1))).unwrap();
        let info = endpoint.qp_info(qpn).unwrap();
        let peer = PortAddr { ip: [10, 0, 0, 2].into(), mac: [4; 6] };
        let rtr = RtrAttr {
            dest_qpn: 77,
            rq_psn: Psn::new(0),
            rq_msn: Msn::new(0),
            path_mtu: info.mtu,
            mpr_dest: info.mpr,
            max_wimm_dest: info.max_wimm,
            dynamic_mpr: false,
            trim_nack: true,
            ports: vec![peer],
            udp_port: info.udp_port,
        };
        let now = Time(1_000);
        for change in [QpModify::Init, QpModify::Rtr(Box::new(rtr)), QpModify::Rts(RtsAttr::default())] {
            endpoint.modify_qp(now, qpn, change).unwrap();
        }
        let key = endpoint.register(pd, Region::alloc_at(4096, 0x1000).unwrap(), Access::LOCAL_READ).unwrap();
        let wr = SendWr {
            wr_id: 0,
            op: SendOp::Write,
            local: Sge { addr: 0x1000, len: 64, lkey: key.lkey },
            remote: RemoteAddr { addr: 0x1000, rkey: 1 },
            signaled: true,
        };
        Self { endpoint, qpn, now, wr }
    }

    fn post(&mut self) {
        self.endpoint.post_send(self.now, self.qpn, self.wr).unwrap();
    }

    /// Sends what may leave; how many packets that is.
    fn transmit(&mut self) -> usize {
        let mut packet = Transmit::default();
        core::iter::from_fn(|| self.endpoint.transmit(self.now, PortMask(1), &mut packet).then_some(()))
            .take(100)
            .count()
    }
}

#[test]
fn a_queue_pair_is_listed_once_however_much_it_has_to_send() {
    let mut alone = Alone::new();
    assert_eq!(alone.endpoint.senders.len(List::New), 0);
    for _ in 0..3 {
        alone.post();
        assert_eq!(alone.endpoint.senders.len(List::New), 1);
    }
    assert_eq!((alone.transmit(), alone.endpoint.senders.len(List::New)), (3, 0));
    alone.post();
    assert_eq!(alone.endpoint.senders.len(List::New), 1);
}

/// The names are part of what peers tell each other: another version must find the same.
#[test]
fn each_mode_of_entropy_has_its_name_in_what_the_peer_is_told() {
    for (mode, name) in [
        (EntropyMode::Stev(StevOrder::SportHigh), "stev-sport-high"),
        (EntropyMode::Stev(StevOrder::SportLow), "stev-sport-low"),
        (EntropyMode::Udp, "udp"),
    ] {
        let mut cfg = EndpointConfig::new(vec![port(1)]);
        cfg.entropy = mode;
        let mut endpoint = Endpoint::new(cfg).unwrap();
        let pd = endpoint.alloc_pd();
        let qpn = endpoint.create_qp(QpInit::new(pd, CqId(0), CqId(1))).unwrap();
        assert_eq!(endpoint.qp_info(qpn).unwrap().entropy, name);
    }
}

#[test]
fn protection_domains_are_all_different() {
    let mut endpoint = Endpoint::new(EndpointConfig::new(vec![port(1)])).unwrap();
    let pds = [(); 3].map(|()| endpoint.alloc_pd());
    assert!(pds[0] != pds[1] && pds[1] != pds[2] && pds[0] != pds[2], "{pds:?}");
    assert!(endpoint.dealloc_pd(pds[1]).is_ok());
    assert_eq!(endpoint.dealloc_pd(pds[1]), Err(MemoryError::NoSuchPd { pd: pds[1].0 }.into()));
    assert!(!pds.contains(&endpoint.alloc_pd()), "a number that was given out before");
    // What belongs to one domain keeps that one alone.
    let qpn = endpoint.create_qp(QpInit::new(pds[0], CqId(0), CqId(1))).unwrap();
    assert!(endpoint.dealloc_pd(pds[2]).is_ok());
    let held = Err(MemoryError::PdInUse { pd: pds[0].0 }.into());
    assert_eq!(endpoint.dealloc_pd(pds[0]), held);
    endpoint.destroy_qp(qpn).unwrap();
    assert!(endpoint.dealloc_pd(pds[0]).is_ok());
}
