//! The part of the program that loses, marks and trims packets: on the way from where the next hop is known to where the packet changes.

use std::time::Duration;

use spindrift_bpf::{Alu, Cond, Helper, Label, Operand, context, verdict};

use super::Reg::{self, R0, R1, R2, R3, R4, R5, R10};
use super::Width::{Byte, Double, Half, Word};
use super::{CONTEXT, END, LEN, PACKET, Text, UDP, at, offset_of, on};
use crate::{Action, Fault, Packets, Queue, QueueCount, Rules, Tables, Trim, place_of_counter};

const IPV6_IN_IPV6: i32 = 41;
/// Next headers of packets that have no UDP header behind others: those of TCP and of ICMP, and no header at all.
const NO_UDP: [i32; 3] = [6, 58, 59];
/// No UDP port.
const NO_PORT: i32 = 1 << 16;

/// The bits of ECN in the second byte of an IPv6 header: none for packets that may not be marked, all of them for those that are.
const ECN: i32 = 0x30;
/// Where DSCP is in the first two bytes of an IPv6 header.
const DSCP_SHIFT: i32 = 6;

/// How often a packet tries to enter a queue that others enter, too. If it never does, it passes by it.
const TRIES: usize = 4;

/// Times are compared in steps of so many bits of nanoseconds, about a microsecond.
const STEP: i32 = 10;

/// Fractions of a nanosecond in the time that a byte takes.
const FRACTION: i32 = 20;

impl Text<'_> {
    pub(super) fn rules(&mut self, tables: &Tables, rules: &Rules) {
        let drop = self.asm.label();
        if rules.need_ports() {
            self.udp_port();
        }
        for fault in &rules.faults {
            self.fault(fault, drop);
        }
        for incoming in [true, false] {
            self.queues(tables, &rules.queues, incoming, drop);
        }
        // The kernel refuses a part that nothing leads to.
        if !rules.queues.is_empty() || rules.faults.iter().any(|fault| fault.action == Action::Drop) {
            let sent = self.asm.label();
            self.asm.jump(sent).place(drop).mov(R0, verdict::DROP).exit().place(sent);
        }
    }

    /// Puts the packet's UDP source port on the stack.
    fn udp_port(&mut self) {
        let (inner, none, known) = (self.asm.label(), self.asm.label(), self.asm.label());
        self.asm.load(Byte, R1, PACKET, at::NEXT_HEADER).jump_if(Cond::Equal, R1, IPV6_IN_IPV6, inner);
        for next in NO_UDP {
            self.asm.jump_if(Cond::Equal, R1, next, none);
        }
        // Behind other headers the kernel finds it, and has the same rules.
        self.pass_if(Cond::NotEqual, R1, UDP);
        self.asm.load(Half, R1, PACKET, at::PORT_FROM).swap(R1, Half).jump(known);
        self.asm.place(inner).mov(R1, PACKET).alu(Alu::Add, R1, i32::from(at::INNER_PORT_FROM + 2));
        self.pass_if(Cond::Greater, R1, END);
        self.asm.load(Half, R1, PACKET, at::INNER_PORT_FROM).swap(R1, Half).jump(known);
        self.asm.place(none).mov(R1, NO_PORT).place(known).store(Word, R10, on::UDP_PORT, R1);
    }

    fn fault(&mut self, fault: &Fault, drop: Label) {
        let spared = self.asm.label();
        self.load_interface(R1, fault.port.is_in());
        self.asm.jump_if(Cond::NotEqual, R1, fault.port.interface() as i32, spared);
        let port = match fault.packets {
            Packets::All => None,
            Packets::Port(port) => Some(i32::from(port)),
            Packets::Ev(ev) => {
                let [_, _, b2, b3] = ev.to_be_bytes();
                let label = u16::from_ne_bytes([b2, b3]);
                self.asm.load(Half, R1, PACKET, at::IPV6 + 2);
                self.asm.jump_if(Cond::NotEqual, R1, i32::from(label), spared);
                Some((ev >> 16) as i32)
            }
        };
        if let Some(port) = port {
            self.asm.load(Word, R1, R10, on::UDP_PORT).jump_if(Cond::NotEqual, R1, port, spared);
        }
        if fault.action == Action::Mark {
            self.unless_ecn(spared);
        }
        if fault.chance < Fault::ALWAYS {
            self.asm.call(Helper::Random).alu(Alu::Mod, R0, Fault::ALWAYS as i32);
            self.asm.jump_if(Cond::GreaterOrEqual, R0, fault.chance as i32, spared);
        }
        self.count(place_of_counter(fault.counter));
        match fault.action {
            Action::Drop => {
                self.asm.jump(drop);
            }
            Action::Mark => self.mark(),
        }
        self.asm.place(spared);
    }

    /// Goes elsewhere with packets that may not be marked. Changes `R1`.
    fn unless_ecn(&mut self, elsewhere: Label) {
        self.asm.load(Byte, R1, PACKET, at::IPV6 + 1).alu(Alu::And, R1, ECN);
        self.asm.jump_if(Cond::Equal, R1, 0, elsewhere);
    }

    /// Changes `R1`.
    fn mark(&mut self) {
        self.asm.load(Byte, R1, PACKET, at::IPV6 + 1).alu(Alu::Or, R1, ECN);
        self.asm.store(Byte, PACKET, at::IPV6 + 1, R1);
    }

    /// The interface that the packet came in by or is to leave by.
    fn load_interface(&mut self, reg: Reg, incoming: bool) {
        if incoming {
            self.asm.load(Word, reg, CONTEXT, context::INGRESS);
        } else {
            self.asm.load(Word, reg, R10, on::INTERFACE);
        }
    }

    /// The queue for packets that come in by the packet's port, or leave by it, if there is one.
    fn queues(&mut self, tables: &Tables, queues: &[Queue], incoming: bool, drop: Label) {
        let mut queues: Vec<_> = queues
            .iter()
            .filter(|queue| queue.port.is_in() == incoming)
            .map(|queue| (queue, self.asm.label()))
            .collect();
        if queues.is_empty() {
            return;
        }
        queues.sort_unstable_by_key(|(queue, _)| queue.port);
        let keys: Vec<_> =
            queues.iter().map(|&(queue, label)| (u64::from(queue.port.interface()), label)).collect();
        let sent = self.asm.label();
        self.load_interface(R5, incoming);
        self.find(R5, &keys, sent);
        for (queue, label) in queues {
            self.asm.place(label);
            self.queue(tables, queue, sent, drop);
        }
        self.asm.place(sent);
    }

    /// A queue is the time at which it will be empty. A packet that it takes puts that off by the time that its bytes take. Trimmed
    /// packets have a queue of their own that goes first, but gets no more than half of the rate: so they put both off, and their own by
    /// twice the time.
    fn queue(&mut self, tables: &Tables, queue: &Queue, sent: Label, drop: Label) {
        let place = |count| tables.place(queue.port, count);
        let empty_at = offset_of(place(QueueCount::EmptyAt));
        let (full, taken) = (self.asm.label(), self.asm.label());
        self.asm.call(Helper::Now).mov(R5, R0);
        self.cost(queue.rate, LEN);
        self.take(empty_at, queue.limit, taken, full);
        self.asm.jump(sent).place(taken);
        if let Some(mark) = queue.mark {
            self.asm.alu(Alu::Sub, R4, R2).alu(Alu::Sub, R4, R5).alu(Alu::ShiftRight, R4, STEP);
            self.asm.jump_if(Cond::LessOrEqual, R4, steps(mark), sent);
            self.unless_ecn(sent);
            self.mark();
            self.count(place(QueueCount::Marked));
        }
        self.asm.jump(sent).place(full);
        if let Some(trim) = &queue.trim {
            let lost = self.asm.label();
            self.unless_trimmable(trim, lost);
            self.cost(queue.rate, i32::from(trim.size) + i32::from(at::IPV6));
            let taken = self.asm.label();
            self.asm.alu(Alu::Add, R2, R2);
            self.take(offset_of(place(QueueCount::TrimmedEmptyAt)), queue.limit, taken, lost);
            self.asm.place(taken).alu(Alu::ShiftRight, R2, 1).atomic_add(R1, empty_at, R2);
            self.trim(trim, lost);
            self.count(place(QueueCount::Trimmed));
            self.asm.jump(sent).place(lost);
        }
        self.count(place(QueueCount::Dropped));
        self.asm.jump(drop);
    }

    /// Has the queue at this offset take a packet of `R2` nanoseconds, now being `R5`, and goes to `taken`; or to `full` if the packet would
    /// wait longer than `limit`. Goes on if others change the queue again and again. `R1` = the numbers. Changes `R0`, `R3` and `R4`, which
    /// is when the packet has left.
    fn take(&mut self, empty_at: i16, limit: Duration, taken: Label, full: Label) {
        self.asm.array(R1, self.numbers);
        for _ in 0..TRIES {
            let behind = self.asm.label();
            self.asm.load(Double, R3, R1, empty_at).mov(R4, R3);
            self.asm.jump_if(Cond::GreaterOrEqual, R4, R5, behind).mov(R4, R5).place(behind);
            // How long it would wait.
            self.asm.mov(R0, R4).alu(Alu::Sub, R0, R5).alu(Alu::ShiftRight, R0, STEP);
            self.asm.jump_if(Cond::Greater, R0, steps(limit), full);
            self.asm.alu(Alu::Add, R4, R2).mov(R0, R3).compare_exchange(R1, empty_at, R4);
            self.asm.jump_if(Cond::Equal, R0, R3, taken);
        }
    }

    /// `R2` = the nanoseconds that so many bytes take. Changes `R3`.
    fn cost(&mut self, rate: u64, bytes: impl Into<Operand>) {
        // At the lowest rate, the longest packet times this is less than 2^64.
        let byte = (8_000_000_000_u128 << FRACTION) / u128::from(rate);
        self.asm.mov(R2, bytes).imm64(R3, byte as u64).alu(Alu::Mul, R2, R3);
        self.asm.alu(Alu::ShiftRight, R2, FRACTION);
    }

    /// Goes elsewhere with packets that are too short or are not to be trimmed. Changes `R1`.
    fn unless_trimmable(&mut self, trim: &Trim, elsewhere: Label) {
        let trimmable = self.asm.label();
        self.asm.jump_if(Cond::LessOrEqual, LEN, i32::from(trim.size) + i32::from(at::IPV6), elsewhere);
        self.asm.load(Half, R1, PACKET, at::IPV6).swap(R1, Half);
        self.asm.alu(Alu::ShiftRight, R1, DSCP_SHIFT).alu(Alu::And, R1, 0x3f);
        for &dscp in &trim.of {
            self.asm.jump_if(Cond::Equal, R1, i32::from(dscp), trimmable);
        }
        self.asm.jump(elsewhere).place(trimmable);
    }

    /// Takes the end off the packet, and says so in its header and in `LEN`. Changes all registers that a call changes.
    fn trim(&mut self, trim: &Trim, lost: Label) {
        let len = i32::from(trim.size) + i32::from(at::IPV6);
        self.asm.mov(R1, CONTEXT).mov(R2, len).alu(Alu::Sub, R2, LEN).call(Helper::AdjustTail);
        self.asm.jump_if(Cond::NotEqual, R0, 0, lost);
        self.asm.load(Word, PACKET, CONTEXT, context::DATA).load(Word, END, CONTEXT, context::DATA_END);
        self.asm.mov(R1, PACKET).alu(Alu::Add, R1, i32::from(at::SHORTEST));
        self.asm.jump_if(Cond::Greater, R1, END, lost);
        let payload = (trim.size - at::IPV6_LEN).to_be_bytes();
        self.asm.store(Half, PACKET, at::PAYLOAD_LEN, i32::from(u16::from_ne_bytes(payload)));
        self.asm.load(Half, R1, PACKET, at::IPV6).swap(R1, Half);
        self.asm.alu(Alu::And, R1, !(0x3f << DSCP_SHIFT)).alu(
            Alu::Or,
            R1,
            i32::from(trim.dscp) << DSCP_SHIFT,
        );
        self.asm.swap(R1, Half).store(Half, PACKET, at::IPV6, R1).mov(LEN, len);
    }
}

/// A time in steps, of which [`Queue::MAX_WAIT`] has few enough.
fn steps(time: Duration) -> i32 {
    (time.as_nanos() >> STEP) as i32
}
