//! BPF programs for the XDP hook: written as instructions, loaded and attached without a compiler, an object file or a C library.
//!
//! ```no_run
//! use spindrift_bpf::{Assembler, Existing, Mode, Program, Reg, attach, detach, verdict};
//!
//! # fn main() -> Result<(), spindrift_bpf::Error> {
//! let mut text = Assembler::new();
//! text.mov(Reg::R0, verdict::PASS).exit();
//! let program = Program::load("pass_all", text)?;
//! let interface = 7;
//! attach(interface, &program, Mode::Native, Existing::Refuse)?;
//! detach(interface, Mode::Native)?;
//! # Ok(())
//! # }
//! ```
//!
//! Loading needs `CAP_BPF`, attaching `CAP_NET_ADMIN` in the network namespace of the interface; root has both.

#[cfg(target_endian = "big")]
compile_error!("the instructions are encoded for little-endian machines");

mod asm;
mod error;
mod link;
mod map;
mod program;
mod sys;

pub use asm::{Alu, AsmError, Assembler, Cond, Helper, Label, Operand, Reg, Width};
pub use error::Error;
pub use link::{Attached, Existing, Link, Mode, attach, attached, detach};
pub use map::{Array, SocketMap};
pub use program::{Program, Ran};

/// What an XDP program returns: what becomes of the packet.
pub mod verdict {
    /// It is dropped, and a trace point tells: the program failed.
    pub const ABORTED: i32 = 0;
    /// It is dropped.
    pub const DROP: i32 = 1;
    /// It goes on to the kernel's network stack.
    pub const PASS: i32 = 2;
    /// It goes out where it came in.
    pub const TRANSMIT: i32 = 3;
    /// It goes where [`Helper::Redirect`](crate::Helper::Redirect) said.
    pub const REDIRECT: i32 = 4;
}

/// Fields of the context that a program starts with in [`Reg::R1`], as offsets; each is a [`Width::Word`].
pub mod context {
    /// The first byte of the packet.
    pub const DATA: i16 = 0;
    /// Behind the last byte of the packet's first buffer.
    pub const DATA_END: i16 = 4;
    /// The number of the interface that it came in by.
    pub const INGRESS: i16 = 12;
    /// The number of the receive queue.
    pub const QUEUE: i16 = 16;
}
