//! BPF instructions by name, with labels for jumps.
//!
//! A program is a list of instructions of eight bytes (RFC 9669); what this writes is what the kernel loads. There is no optimiser and no
//! register allocation: the text of a program here is its machine code.

use std::marker::PhantomData;
use std::os::fd::AsRawFd as _;

use crate::{Array, SocketMap};

/// A register. A program begins with its context in `R1`; calls take `R1` to `R5`, return in `R0` and keep `R6` to `R9`; `R10` is
/// the frame, whose 512 bytes lie below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[expect(missing_docs, reason = "numbers")]
pub enum Reg {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
}

/// Bytes of a load or a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Width {
    /// One.
    Byte = 0x10,
    /// Two.
    Half = 0x08,
    /// Four.
    Word = 0x00,
    /// Eight.
    Double = 0x18,
}

/// What is done to a register, over all of its 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[expect(missing_docs, reason = "known names")]
pub enum Alu {
    Add = 0x00,
    Sub = 0x10,
    Mul = 0x20,
    /// Unsigned; by zero gives zero.
    Div = 0x30,
    Or = 0x40,
    And = 0x50,
    ShiftLeft = 0x60,
    ShiftRight = 0x70,
    /// Unsigned; by zero leaves what is there.
    Mod = 0x90,
    Xor = 0xa0,
    Move = 0xb0,
}

/// When a jump is taken. All comparisons are unsigned and of 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[expect(missing_docs, reason = "known names")]
pub enum Cond {
    Equal = 0x10,
    Greater = 0x20,
    GreaterOrEqual = 0x30,
    /// Some bit is set in both.
    AnyBit = 0x40,
    NotEqual = 0x50,
    Less = 0xa0,
    LessOrEqual = 0xb0,
}

/// The second operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// A register.
    Reg(Reg),
    /// A number, sign-extended to 64 bits.
    Imm(i32),
}

impl From<Reg> for Operand {
    fn from(reg: Reg) -> Self {
        Self::Reg(reg)
    }
}

impl From<i32> for Operand {
    fn from(imm: i32) -> Self {
        Self::Imm(imm)
    }
}

/// A place in a program, to jump to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label(usize);

/// Why a program is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AsmError {
    /// A jump to a label that has no place.
    #[error("instruction {0} jumps to a label that was never placed")]
    Unplaced(usize),
    /// A jump over more than 32767 instructions.
    #[error("instruction {0} jumps too far")]
    TooFar(usize),
}

/// An instruction as the kernel reads it.
pub(crate) type Insn = u64;

/// A program as it is written. The maps that it names stay there until it is loaded, and the loaded program keeps them.
#[derive(Clone, Debug, Default)]
pub struct Assembler<'maps> {
    insns: Vec<Insn>,
    labels: Vec<Option<usize>>,
    jumps: Vec<(usize, Label)>,
    maps: PhantomData<&'maps Array>,
}

const CLASS_LD: u8 = 0x00;
const CLASS_LDX: u8 = 0x01;
const CLASS_ST: u8 = 0x02;
const CLASS_STX: u8 = 0x03;
const CLASS_ALU: u8 = 0x04;
const CLASS_JMP: u8 = 0x05;
const CLASS_ALU64: u8 = 0x07;
const SOURCE_REG: u8 = 0x08;
const MODE_MEM: u8 = 0x60;
const MODE_ATOMIC: u8 = 0xc0;
const TO_BIG_ENDIAN: u8 = 0xd8;
const ADD: i32 = 0x00;
const COMPARE_EXCHANGE: i32 = 0xf1;
const CALL: u8 = 0x80;
const EXIT: u8 = 0x90;
const LOAD_IMM64: u8 = 0x18;
/// The immediate is a map's descriptor, and what is loaded is the map.
const MAP: u8 = 1;
/// The immediate is a map's descriptor, and what is loaded is the address of its first value.
const MAP_VALUE: u8 = 2;

fn insn(op: u8, dst: Reg, src: u8, offset: i16, imm: i32) -> Insn {
    let [low, high] = offset.to_le_bytes();
    let [a, b, c, d] = imm.to_le_bytes();
    u64::from_ne_bytes([op, src << 4 | dst as u8, low, high, a, b, c, d])
}

impl<'maps> Assembler<'maps> {
    /// An empty program.
    pub fn new() -> Self {
        Self::default()
    }

    fn push(&mut self, insn: Insn) -> &mut Self {
        self.insns.push(insn);
        self
    }

    fn with_operand(&mut self, op: u8, dst: Reg, offset: i16, operand: Operand) -> &mut Self {
        self.push(match operand {
            Operand::Reg(src) => insn(op | SOURCE_REG, dst, src as u8, offset, 0),
            Operand::Imm(imm) => insn(op, dst, 0, offset, imm),
        })
    }

    /// A label without a place yet.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// The label stands before the next instruction.
    pub fn place(&mut self, label: Label) -> &mut Self {
        let next = self.insns.len();
        if let Some(place) = self.labels.get_mut(label.0) {
            *place = Some(next);
        }
        self
    }

    /// `dst = dst op operand`; a move takes no `dst`.
    pub fn alu(&mut self, op: Alu, dst: Reg, operand: impl Into<Operand>) -> &mut Self {
        self.with_operand(op as u8 | CLASS_ALU64, dst, 0, operand.into())
    }

    /// `dst = operand`.
    pub fn mov(&mut self, dst: Reg, operand: impl Into<Operand>) -> &mut Self {
        self.alu(Alu::Move, dst, operand)
    }

    /// The lowest 2, 4 or 8 bytes of `dst` change from the order of the network to that of the machine, or back; those above become 0.
    /// A single byte stays as it is.
    pub fn swap(&mut self, dst: Reg, width: Width) -> &mut Self {
        let bits = match width {
            Width::Byte => return self,
            Width::Half => 16,
            Width::Word => 32,
            Width::Double => 64,
        };
        self.push(insn(CLASS_ALU | TO_BIG_ENDIAN, dst, 0, 0, bits))
    }

    /// `dst = *(src + offset)`, with zeros above.
    pub fn load(&mut self, width: Width, dst: Reg, src: Reg, offset: i16) -> &mut Self {
        self.push(insn(CLASS_LDX | MODE_MEM | width as u8, dst, src as u8, offset, 0))
    }

    /// `*(dst + offset) = operand`.
    pub fn store(&mut self, width: Width, dst: Reg, offset: i16, operand: impl Into<Operand>) -> &mut Self {
        self.push(match operand.into() {
            Operand::Reg(src) => insn(CLASS_STX | MODE_MEM | width as u8, dst, src as u8, offset, 0),
            Operand::Imm(imm) => insn(CLASS_ST | MODE_MEM | width as u8, dst, 0, offset, imm),
        })
    }

    /// Adds `src` to the eight bytes at `dst + offset`, at once, whatever other processors do there.
    pub fn atomic_add(&mut self, dst: Reg, offset: i16, src: Reg) -> &mut Self {
        self.push(insn(CLASS_STX | MODE_ATOMIC | Width::Double as u8, dst, src as u8, offset, ADD))
    }

    /// Replaces the eight bytes at `dst + offset` by `src` if they are what `R0` holds, at once. `R0` then holds what they were.
    pub fn compare_exchange(&mut self, dst: Reg, offset: i16, src: Reg) -> &mut Self {
        let op = CLASS_STX | MODE_ATOMIC | Width::Double as u8;
        self.push(insn(op, dst, src as u8, offset, COMPARE_EXCHANGE))
    }

    /// Goes on at a label.
    pub fn jump(&mut self, to: Label) -> &mut Self {
        self.jumps.push((self.insns.len(), to));
        self.push(insn(CLASS_JMP, Reg::R0, 0, 0, 0))
    }

    /// Goes on at a label if `reg cond operand`.
    pub fn jump_if(&mut self, cond: Cond, reg: Reg, operand: impl Into<Operand>, to: Label) -> &mut Self {
        self.jumps.push((self.insns.len(), to));
        self.with_operand(cond as u8 | CLASS_JMP, reg, 0, operand.into())
    }

    /// Calls a function of the kernel.
    pub fn call(&mut self, helper: Helper) -> &mut Self {
        self.push(insn(CLASS_JMP | CALL, Reg::R0, 0, 0, helper as i32))
    }

    /// Returns what is in `R0`.
    pub fn exit(&mut self) -> &mut Self {
        self.push(insn(CLASS_JMP | EXIT, Reg::R0, 0, 0, 0))
    }

    /// `dst` = the address of the numbers of `array`.
    pub fn array(&mut self, dst: Reg, array: &'maps Array) -> &mut Self {
        self.wide(dst, MAP_VALUE, array.as_raw_fd(), 0)
    }

    /// `dst` = a map of sockets, for [`Helper::RedirectMap`].
    pub fn sockets(&mut self, dst: Reg, sockets: &'maps SocketMap) -> &mut Self {
        self.wide(dst, MAP, sockets.as_raw_fd(), 0)
    }

    /// `dst = value`.
    pub fn imm64(&mut self, dst: Reg, value: u64) -> &mut Self {
        self.wide(dst, 0, value as i32, (value >> 32) as i32)
    }

    fn wide(&mut self, dst: Reg, src: u8, low: i32, high: i32) -> &mut Self {
        self.push(insn(LOAD_IMM64 | CLASS_LD, dst, src, 0, low)).push(insn(0, Reg::R0, 0, 0, high))
    }

    /// The program with its jumps.
    ///
    /// # Errors
    /// If a label has no place or is too far away.
    pub(crate) fn finish(mut self) -> Result<Vec<Insn>, AsmError> {
        for (at, label) in std::mem::take(&mut self.jumps) {
            let place = self.labels.get(label.0).copied().flatten().ok_or(AsmError::Unplaced(at))?;
            let offset = i16::try_from(place as i64 - at as i64 - 1).map_err(|_| AsmError::TooFar(at))?;
            if let Some(insn) = self.insns.get_mut(at) {
                let mut bytes = insn.to_ne_bytes();
                bytes[2..4].copy_from_slice(&offset.to_le_bytes());
                *insn = u64::from_ne_bytes(bytes);
            }
        }
        Ok(self.insns)
    }
}

/// A function of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Helper {
    /// `() -> nanoseconds since the machine started`.
    Now = 5,
    /// `() -> a random number of 32 bits`.
    Random = 7,
    /// `(interface, 0) -> verdict`.
    Redirect = 23,
    /// `(map of sockets, receive queue, verdict if the queue has no socket) -> verdict`.
    RedirectMap = 51,
    /// `(context, bytes more or, if negative, less) -> 0 or a negative error`. All addresses in the packet have to be loaded again.
    AdjustTail = 65,
    /// `(context, parameters, their size, flags) -> 0, a positive reason or a negative error`.
    FibLookup = 69,
    /// `(context) -> bytes of the packet in all of its buffers`.
    BufferLen = 188,
}
