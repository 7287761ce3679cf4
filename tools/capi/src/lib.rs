//! RDMA verbs for programs as they are: a `libibverbs.so.1`, `librdmacm.so.1` and `lib_mrc.so` whose queue pairs are Spindrift's.
//!
//! It is a library for C programs alone, loaded in place of the system's: `docs/programs.md` tells how. It needs no RDMA NIC, no kernel
//! module and no privilege. Each process has one endpoint per device, opened when a program opens the device, and never before: the
//! library is also loaded into programs that never use it.
//!
//! | Module | What it holds |
//! |---|---|
//! | `abi` | what `infiniband/verbs.h` declares |
//! | `export` | the functions under the names and versions that programs link |
//! | `handshake` | how processes find each other, without socket or clock |
//! | `nic`, `control` | a device in use: Spindrift's context, the control sockets and their thread |
//! | `device`, `context`, `pd`, `mr`, `cq`, `qp`, `srq`, `ah`, `channel`, `event` | the objects of C |
//! | `connection` | the connection behind a queue pair |
//! | `cm` | connections by address and port: what `librdmacm.so.1` does |
//! | `mrc` | MRC's own interface: what `lib_mrc.so` does |
//! | `ud`, `datagram` | queue pairs of datagrams, and their messages |
//! | `foreign` | peers that are not Spindrift |
//! | `plane` | the port of a plane |
//! | `local`, `side_queue` | memory that this library copies, and completions that it makes itself |
//! | `operator` | what `spindrift ctl` sees and moves |
//! | `tally` | what a device has moved, for `spindrift run` |
//! | `convert` | requests and completions from one interface to the other |
//!
//! Each object of C stands first in a box of Rust, so that its address leads to both.

#![cfg_attr(
    any(test, fuzzing),
    allow(dead_code, reason = "tests export nothing, so much has no caller there")
)]

mod abi;
mod ah;
#[cfg(test)]
mod calls_tests;
mod channel;
mod cm;
mod connection;
mod context;
mod control;
mod convert;
mod cq;
mod datagram;
mod device;
mod error;
mod event;
#[cfg(not(any(test, fuzzing)))]
mod export;
mod foreign;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod handshake;
#[cfg(test)]
mod layout;
mod local;
mod mr;
mod mrc;
mod nic;
mod operator;
mod pd;
mod plane;
mod post;
mod qp;
mod side_queue;
mod srq;
mod tally;
mod text;
mod ud;
#[cfg(test)]
mod ud_tests;
