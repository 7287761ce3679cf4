//! Peers that are not Spindrift, such as MRC NICs: they send no messages to find each other, so a queue pair connects by what its program
//! says alone. Its number on the wire is the one that programs know, its PSNs are the program's, and it is plain MRC.

use std::net::IpAddr;

use spindrift::endpoint::{Extensions, PortAddr, QpInfo};
use spindrift_programs::settings::StaticPeers;

use crate::abi::ibv_qp_attr;
use crate::context::mtu_bytes;
use crate::handshake::Peer;

/// What a peer would say of itself. The attributes of MRC bound what is sent to it, and nothing here does.
///
/// # Errors
/// The settings do not have the peer.
pub(crate) fn info(
    own: &QpInfo,
    attr: &ibv_qp_attr,
    (peer, peers): (Peer, &StaticPeers),
) -> Result<QpInfo, String> {
    let Some(planes) = peers.planes(peer.address) else {
        return Err(format!(
            "{} is no peer of SPINDRIFT_STATIC_PEERS, which has the planes of each",
            peer.address
        ));
    };
    // The system finds the way to an address.
    let port = |ip: IpAddr| PortAddr { ip, mac: [0; 6] };
    Ok(QpInfo {
        version: QpInfo::VERSION,
        qpn: peer.number.get(),
        psn: attr.rq_psn & 0x00ff_ffff,
        msn: 0,
        mpr: u8::MAX,
        max_wimm: u16::MAX,
        mtu: mtu_bytes(attr.path_mtu).unwrap_or(own.mtu),
        trim_nack: own.trim_nack,
        dynamic_mpr: own.dynamic_mpr,
        icrc: own.icrc,
        udp_port: peers.udp_port,
        entropy: own.entropy.clone(),
        ports: planes.into_iter().map(port).collect(),
        // Planes are numbered alike on both sides.
        plane_ids: own.plane_ids.clone(),
        extensions: Extensions::EMPTY_MESSAGES,
        max_rd_atomic: 0,
    })
}
