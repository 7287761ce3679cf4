//! The text of a switch's program, made from its tables and rules.

mod rules;

use std::mem;

use spindrift_bpf::{Alu, Array, Assembler, Cond, Helper, Label, Reg, Width, context, verdict};
use spindrift_srv6::Behavior;

use crate::{Count, NextHop, Port, QueueCount, Rules, Switch, Tables};

use Reg::{R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10};
use Width::{Byte, Double, Half, Word};

/// What registers hold all along.
const CONTEXT: Reg = R6;
const PACKET: Reg = R7;
/// Behind the packet's first buffer.
const END: Reg = R8;
/// Bytes of the packet, whatever number of buffers they are in.
const LEN: Reg = R9;

/// Offsets in the packet: the headers of Ethernet, IPv6 and UDP.
mod at {
    pub(super) const MAC_TO: i16 = 0;
    pub(super) const MAC_FROM: i16 = 6;
    pub(super) const ETHER_TYPE: i16 = 12;
    pub(super) const IPV6: i16 = 14;
    pub(super) const PAYLOAD_LEN: i16 = IPV6 + 4;
    pub(super) const NEXT_HEADER: i16 = IPV6 + 6;
    pub(super) const HOP_LIMIT: i16 = IPV6 + 7;
    pub(super) const SOURCE: i16 = IPV6 + 8;
    pub(super) const DESTINATION: i16 = IPV6 + 24;
    pub(super) const PAYLOAD: i16 = IPV6 + 40;
    pub(super) const PORT_FROM: i16 = PAYLOAD;
    pub(super) const PORT_TO: i16 = PAYLOAD + 2;
    /// Packets that have no UDP header's length behind the IPv6 header are left to the kernel.
    pub(super) const SHORTEST: i16 = PAYLOAD + 8;
    /// Of IPv6 in IPv6.
    pub(super) const INNER_PORT_FROM: i16 = PAYLOAD + 40;
    /// Bytes of the header of IPv6.
    pub(super) const IPV6_LEN: u16 = 40;
}

/// Offsets on the stack, below the frame: the parameters of `bpf_fib_lookup`, whose call changes the destination, and below them
/// that destination, and what rules need.
mod on {
    const LOOKUP: i16 = -(super::LOOKUP_LEN as i16);
    pub(super) const FAMILY: i16 = LOOKUP;
    pub(super) const PROTOCOL: i16 = LOOKUP + 1;
    pub(super) const PORT_FROM: i16 = LOOKUP + 2;
    pub(super) const PORT_TO: i16 = LOOKUP + 4;
    pub(super) const LEN: i16 = LOOKUP + 6;
    /// Where it came in, and after the call where it leaves.
    pub(super) const INTERFACE: i16 = LOOKUP + 8;
    pub(super) const FLOW: i16 = LOOKUP + 12;
    pub(super) const SOURCE: i16 = LOOKUP + 16;
    pub(super) const NEXT: i16 = LOOKUP + 32;
    pub(super) const VLAN: i16 = LOOKUP + 48;
    pub(super) const MAC_FROM: i16 = LOOKUP + 52;
    pub(super) const MAC_TO: i16 = LOOKUP + 58;
    pub(super) const DESTINATION: i16 = LOOKUP - 16;
    /// The UDP source port that rules ask for.
    pub(super) const UDP_PORT: i16 = DESTINATION - 8;
}

/// Bytes of the parameters of `bpf_fib_lookup`.
const LOOKUP_LEN: i32 = 64;

const ETHER_TYPE_IPV6: i32 = u16::from_ne_bytes([0x86, 0xdd]) as i32;
const AF_INET6: i32 = 10;
const UDP: i32 = 17;
/// Traffic class and flow label, as they are in the header's first four bytes.
const FLOW_INFO: u64 = u32::from_ne_bytes([0x0f, 0xff, 0xff, 0xff]) as u64;

/// Keys that are tried one after the other before halves are worth it.
const FEW: usize = 3;

/// The program of a switch.
pub(crate) fn text<'maps>(tables: &Tables, rules: &Rules, numbers: &'maps Array) -> Assembler<'maps> {
    let mut text = Text::new(numbers);
    text.headers();
    text.ports(tables);
    text.source();
    text.segments(tables);
    text.look_up();
    text.asm.place(text.send);
    text.rules(tables, rules);
    text.send();
    text.leave();
    text.asm
}

/// A program as it grows: packets go from each part to the next, unless they leave it for `pass` or `send`.
struct Text<'maps> {
    asm: Assembler<'maps>,
    numbers: &'maps Array,
    /// The kernel sees to the packet, of which nothing has changed.
    pass: Label,
    /// The packet leaves as the stack tells.
    send: Label,
}

impl<'maps> Text<'maps> {
    fn new(numbers: &'maps Array) -> Self {
        let mut asm = Assembler::new();
        let (pass, send) = (asm.label(), asm.label());
        Self { asm, numbers, pass, send }
    }

    fn pass_if(&mut self, cond: Cond, reg: Reg, than: impl Into<spindrift_bpf::Operand>) {
        self.asm.jump_if(cond, reg, than, self.pass);
    }

    /// IPv6, whole, and not at the end of its life.
    fn headers(&mut self) {
        self.asm.mov(CONTEXT, R1).call(Helper::BufferLen).mov(LEN, R0);
        self.asm.load(Word, PACKET, CONTEXT, context::DATA).load(Word, END, CONTEXT, context::DATA_END);
        self.asm.mov(R1, PACKET).alu(Alu::Add, R1, i32::from(at::SHORTEST));
        self.pass_if(Cond::Greater, R1, END);
        self.asm.load(Half, R1, PACKET, at::ETHER_TYPE);
        self.pass_if(Cond::NotEqual, R1, ETHER_TYPE_IPV6);
        self.asm.load(Byte, R1, PACKET, at::IPV6).alu(Alu::ShiftRight, R1, 4);
        self.pass_if(Cond::NotEqual, R1, 6);
        // Hop-by-hop options are for every node on the way.
        self.asm.load(Byte, R1, PACKET, at::NEXT_HEADER);
        self.pass_if(Cond::Equal, R1, 0);
        self.asm.load(Byte, R1, PACKET, at::HOP_LIMIT);
        self.pass_if(Cond::LessOrEqual, R1, 1);
        // One that was cut short or has something behind it.
        self.asm.load(Half, R1, PACKET, at::PAYLOAD_LEN).swap(R1, Half);
        self.asm.alu(Alu::Add, R1, i32::from(at::PAYLOAD));
        self.pass_if(Cond::NotEqual, R1, LEN);
    }

    /// Packets to the port that they come in by.
    fn ports(&mut self, tables: &Tables) {
        let ours = self.asm.label();
        self.asm.load(Word, R5, CONTEXT, context::INGRESS);
        let ports: Vec<_> = tables.ports.values().map(|&port| (port, self.asm.label())).collect();
        let keys: Vec<_> = ports.iter().map(|&(port, label)| (u64::from(port.interface), label)).collect();
        self.find(R5, &keys, self.pass);
        for (Port { mac, .. }, label) in ports {
            let (first, last) = halves_of(mac);
            self.asm.place(label);
            self.asm.load(Word, R1, PACKET, at::MAC_TO).imm64(R2, u64::from(first));
            self.pass_if(Cond::NotEqual, R1, R2);
            self.asm.load(Half, R1, PACKET, at::MAC_TO + 4);
            self.pass_if(Cond::NotEqual, R1, i32::from(last));
            self.asm.jump(ours);
        }
        self.asm.place(ours);
    }

    /// Senders whose packets may be forwarded. Those that start with zeros (none, this node, IPv4), those of a link and groups are the
    /// kernel's to judge; of destinations, its routes say it.
    fn source(&mut self) {
        self.asm.load(Byte, R1, PACKET, at::SOURCE);
        self.pass_if(Cond::GreaterOrEqual, R1, 0xfe);
        self.asm.load(Double, R1, PACKET, at::SOURCE);
        self.pass_if(Cond::Equal, R1, 0);
    }

    /// The switch's own segments; what is for none of them is routed.
    fn segments(&mut self, tables: &Tables) {
        let (node, route) = (self.asm.label(), self.asm.label());
        // As the packet has it, on the stack, and as numbers.
        for (reg, half) in [(R3, 0), (R4, 8)] {
            self.asm.load(Double, reg, PACKET, at::DESTINATION + half);
            self.asm.store(Double, R10, on::DESTINATION + half, reg).swap(reg, Double);
        }
        self.asm.mov(R5, R3).alu(Alu::ShiftRight, R5, 16);
        let mut adjacencies = Vec::new();
        let mut keys = Vec::with_capacity(tables.segments.len());
        for (&locator, &behavior) in &tables.segments {
            let label = match behavior {
                Behavior::Node => node,
                Behavior::Decapsulate => self.pass,
                Behavior::Adjacency(next) => {
                    let label = self.asm.label();
                    adjacencies.push((next, label));
                    label
                }
            };
            keys.push((locator, label));
        }
        self.find(R5, &keys, route);
        for (next, label) in adjacencies {
            self.asm.place(label);
            // `Tables` has no adjacency without a port.
            if let Some(port) = tables.ports.get(&next.interface) {
                self.adjacency(*port, next);
            }
        }
        // The kernel refuses a part that nothing leads to.
        if tables.segments.values().any(|behavior| *behavior == Behavior::Node) {
            self.asm.place(node);
            self.advance();
        }
        self.asm.place(route);
    }

    /// The uSIDs behind the first one move up, in the destination on the stack (RFC 9800 section 4.1).
    fn advance(&mut self) {
        // Without any the path goes on in the routing header, or ends.
        self.asm.mov(R1, R3).alu(Alu::And, R1, 0xffff).alu(Alu::Or, R1, R4);
        self.pass_if(Cond::Equal, R1, 0);
        self.asm.mov(R1, R3).alu(Alu::ShiftRight, R1, 32).alu(Alu::ShiftLeft, R1, 32);
        self.asm.mov(R2, R3).alu(Alu::And, R2, 0xffff).alu(Alu::ShiftLeft, R2, 16).alu(Alu::Or, R1, R2);
        self.asm.mov(R2, R4).alu(Alu::ShiftRight, R2, 48).alu(Alu::Or, R1, R2);
        self.asm.swap(R1, Double).store(Double, R10, on::DESTINATION, R1);
        self.asm.mov(R1, R4).alu(Alu::ShiftLeft, R1, 16);
        self.asm.swap(R1, Double).store(Double, R10, on::DESTINATION + 8, R1);
    }

    fn adjacency(&mut self, port: Port, next: NextHop) {
        self.pass_if(Cond::Greater, LEN, i32::from(port.mtu) + i32::from(at::IPV6));
        self.advance();
        for (place, mac) in [(on::MAC_FROM, port.mac), (on::MAC_TO, next.mac)] {
            for (offset, bytes) in (0..).step_by(2).zip(mac.as_chunks::<2>().0) {
                self.asm.store(Half, R10, place + offset, i32::from(u16::from_ne_bytes(*bytes)));
            }
        }
        self.asm.store(Word, R10, on::INTERFACE, next.interface as i32).jump(self.send);
    }

    /// Asks the kernel's routes where the destination on the stack is.
    fn look_up(&mut self) {
        let no_ports = self.asm.label();
        self.asm.store(Byte, R10, on::FAMILY, AF_INET6);
        self.asm.store(Half, R10, on::PORT_FROM, 0).store(Half, R10, on::PORT_TO, 0);
        self.asm.load(Byte, R1, PACKET, at::NEXT_HEADER).store(Byte, R10, on::PROTOCOL, R1);
        self.asm.jump_if(Cond::NotEqual, R1, UDP, no_ports);
        self.asm.load(Half, R1, PACKET, at::PORT_FROM).store(Half, R10, on::PORT_FROM, R1);
        self.asm.load(Half, R1, PACKET, at::PORT_TO).store(Half, R10, on::PORT_TO, R1);
        self.asm.place(no_ports);
        self.asm.mov(R1, LEN).alu(Alu::Sub, R1, i32::from(at::IPV6)).store(Half, R10, on::LEN, R1);
        self.asm.load(Word, R1, CONTEXT, context::INGRESS).store(Word, R10, on::INTERFACE, R1);
        self.asm.load(Word, R1, PACKET, at::IPV6).imm64(R2, FLOW_INFO).alu(Alu::And, R1, R2);
        self.asm.store(Word, R10, on::FLOW, R1);
        for half in [0, 8] {
            self.asm.load(Double, R1, PACKET, at::SOURCE + half).store(Double, R10, on::SOURCE + half, R1);
            self.asm.load(Double, R1, R10, on::DESTINATION + half).store(Double, R10, on::NEXT + half, R1);
        }
        // No tag of a virtual network, and room for both addresses.
        for word in [0, 4, 8, 12] {
            self.asm.store(Word, R10, on::VLAN + word, 0);
        }
        self.asm.mov(R1, CONTEXT).mov(R2, R10).alu(Alu::Add, R2, -LOOKUP_LEN);
        self.asm.mov(R3, LOOKUP_LEN).mov(R4, 0).call(Helper::FibLookup);
        // For this node, unreachable, too long, a neighbour to be found first, or a segment of the kernel's.
        self.pass_if(Cond::NotEqual, R0, 0);
    }

    /// Sends the packet to where the stack tells.
    fn send(&mut self) {
        for (place, from) in [(at::MAC_TO, on::MAC_TO), (at::MAC_FROM, on::MAC_FROM)] {
            for offset in [0, 2, 4] {
                self.asm.load(Half, R1, R10, from + offset).store(Half, PACKET, place + offset, R1);
            }
        }
        for half in [0, 8] {
            self.asm.load(Double, R1, R10, on::DESTINATION + half);
            self.asm.store(Double, PACKET, at::DESTINATION + half, R1);
        }
        self.asm.load(Byte, R1, PACKET, at::HOP_LIMIT).alu(Alu::Sub, R1, 1);
        self.asm.store(Byte, PACKET, at::HOP_LIMIT, R1);
        self.count(Count::Forwarded as usize);
        self.asm.load(Word, R1, R10, on::INTERFACE).mov(R2, 0).call(Helper::Redirect).exit();
    }

    fn leave(&mut self) {
        self.asm.place(self.pass);
        self.count(Count::Passed as usize);
        self.asm.mov(R0, verdict::PASS).exit();
    }

    /// Adds one to a number. Changes `R1` and `R2`.
    fn count(&mut self, place: usize) {
        self.asm.array(R1, self.numbers).mov(R2, 1).atomic_add(R1, offset_of(place), R2);
    }

    /// Goes to the label of the key that `reg` holds. Keys are in order, and none comes twice. Changes `R0`.
    fn find(&mut self, reg: Reg, keys: &[(u64, Label)], otherwise: Label) {
        if let Some((middle, _)) = keys.get(keys.len() / 2).filter(|_| keys.len() > FEW) {
            let (below, above) = keys.split_at(keys.len() / 2);
            let lower = self.asm.label();
            self.asm.imm64(R0, *middle).jump_if(Cond::Less, reg, R0, lower);
            self.find(reg, above, otherwise);
            self.asm.place(lower);
            self.find(reg, below, otherwise);
            return;
        }
        for &(key, label) in keys {
            self.asm.imm64(R0, key).jump_if(Cond::Equal, reg, R0, label);
        }
        self.asm.jump(otherwise);
    }
}

/// An address as a load of four bytes and one of two find it.
fn halves_of(mac: [u8; 6]) -> (u32, u16) {
    let [b0, b1, b2, b3, b4, b5] = mac;
    (u32::from_ne_bytes([b0, b1, b2, b3]), u16::from_ne_bytes([b4, b5]))
}

/// The place behind the last number that a switch can have is one that a program can reach.
const _: () = {
    let numbers = Count::ALL + Switch::COUNTERS + 2 * QueueCount::ALL * Switch::MAX_PORTS;
    assert!(numbers * mem::size_of::<u64>() <= i16::MAX as usize);
};

/// Where a number is in the array.
fn offset_of(place: usize) -> i16 {
    (place * mem::size_of::<u64>()) as i16
}
