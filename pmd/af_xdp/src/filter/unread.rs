//! Packets for a port in forms that it does not read: behind VLAN tags, IPv6 extension headers or IPv4 options, or fragments. The kernel
//! gets them, where nobody listens at the UDP port; so they are counted.

use std::net::IpAddr;

use spindrift_bpf::{Alu, Array, Assembler, Cond, Label, Reg, Width};

use Reg::{R2, R3, R4, R7, R9};

use super::{
    Count, ETHERNET_LEN, IPV4_LEN, IPV6_LEN, PROTOCOL_ROUTING, PROTOCOL_UDP, UDP_LEN, Wanted, half, has,
    version,
};

const VLAN_LEN: i32 = 4;
/// Tags that are looked through: a service's and a customer's (IEEE 802.1ad).
const VLANS: usize = 2;
const VLAN_TYPES: [u16; 2] = [0x8100, 0x88a8];
/// Extension headers that are looked through.
const EXTENSIONS: usize = 4;
const PROTOCOL_HOP_BY_HOP: i32 = 0;
const PROTOCOL_FRAGMENT: i32 = 44;
const PROTOCOL_DESTINATION: i32 = 60;
const FRAGMENT_LEN: i32 = 8;

/// Counts such a packet; goes on at `pass` either way. `R7` and `R8` are begin and end of the packet.
pub(super) fn count<'maps>(text: &mut Assembler<'maps>, wanted: &Wanted, counts: &'maps Array, pass: Label) {
    let [typed, udp, ours] = [text.label(), text.label(), text.label()];
    // R9 is the place where the Ethernet header ends, if there are no tags.
    text.mov(R9, R7).alu(Alu::Add, R9, ETHERNET_LEN);
    has(text, R9, 0, pass);
    text.load(Width::Half, R2, R9, -2);
    for _ in 0..VLANS {
        let tagged = text.label();
        for tag in VLAN_TYPES {
            text.jump_if(Cond::Equal, R2, half(tag), tagged);
        }
        text.jump(typed).place(tagged).alu(Alu::Add, R9, VLAN_LEN);
        has(text, R9, 0, pass);
        text.load(Width::Half, R2, R9, -2);
    }
    text.place(typed);
    match wanted.ip {
        IpAddr::V6(ip) => {
            text.jump_if(Cond::NotEqual, R2, half(0x86dd), pass);
            has(text, R9, IPV6_LEN, pass);
            version(text, 6, pass);
            let ip = u128::from_ne_bytes(ip.octets());
            for (offset, half) in [(24, ip as u64), (32, (ip >> 64) as u64)] {
                text.load(Width::Double, R2, R9, offset);
                text.imm64(R3, half).jump_if(Cond::NotEqual, R2, R3, pass);
            }
            text.load(Width::Byte, R2, R9, 6).alu(Alu::Add, R9, IPV6_LEN);
            for _ in 0..EXTENSIONS {
                extension(text, udp, pass);
            }
            text.jump_if(Cond::NotEqual, R2, PROTOCOL_UDP, pass);
        }
        IpAddr::V4(ip) => {
            text.jump_if(Cond::NotEqual, R2, half(0x0800), pass);
            has(text, R9, IPV4_LEN, pass);
            version(text, 4, pass);
            text.load(Width::Byte, R2, R9, 9).jump_if(Cond::NotEqual, R2, PROTOCOL_UDP, pass);
            // The ports are in the first fragment.
            text.load(Width::Half, R2, R9, 6).jump_if(Cond::AnyBit, R2, half(0x1fff), pass);
            let ip = u64::from(u32::from_ne_bytes(ip.octets()));
            text.load(Width::Word, R2, R9, 16).imm64(R3, ip).jump_if(Cond::NotEqual, R2, R3, pass);
            text.load(Width::Byte, R3, R9, 0).alu(Alu::And, R3, 0xf).alu(Alu::ShiftLeft, R3, 2);
            text.jump_if(Cond::Less, R3, IPV4_LEN, pass).alu(Alu::Add, R9, R3);
        }
    }
    text.place(udp);
    has(text, R9, UDP_LEN, pass);
    text.load(Width::Half, R2, R9, 2);
    for &port in &wanted.ports {
        text.jump_if(Cond::Equal, R2, half(port), ours);
    }
    text.jump(pass).place(ours);
    text.array(R3, counts).mov(R4, 1).atomic_add(R3, 8 * Count::Unread as i16, R4);
}

/// Moves `R9` behind the header of kind `R2`, if that is an extension, and `R2` to the next kind; goes on at `udp` if it is UDP.
fn extension(text: &mut Assembler<'_>, udp: Label, pass: Label) {
    let [fragment, sized, next] = [text.label(), text.label(), text.label()];
    text.jump_if(Cond::Equal, R2, PROTOCOL_UDP, udp).jump_if(Cond::Equal, R2, PROTOCOL_FRAGMENT, fragment);
    for kind in [PROTOCOL_HOP_BY_HOP, PROTOCOL_ROUTING, PROTOCOL_DESTINATION] {
        text.jump_if(Cond::Equal, R2, kind, sized);
    }
    text.jump(pass).place(fragment);
    has(text, R9, FRAGMENT_LEN, pass);
    // The ports are in the first one.
    text.load(Width::Half, R3, R9, 2).jump_if(Cond::AnyBit, R3, half(0xfff8), pass);
    text.load(Width::Byte, R2, R9, 0).alu(Alu::Add, R9, FRAGMENT_LEN).jump(next).place(sized);
    has(text, R9, FRAGMENT_LEN, pass);
    text.load(Width::Byte, R2, R9, 0).load(Width::Byte, R3, R9, 1);
    text.alu(Alu::ShiftLeft, R3, 3).alu(Alu::Add, R9, 8).alu(Alu::Add, R9, R3).place(next);
}
