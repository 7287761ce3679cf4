//! Declarations of the DPDK functions that Spindrift's ports use, made by bindgen when the crate is built.
//!
//! They are those of `shim.h`: functions of DPDK that are plain, and functions of `shim.c` in front of what is inline in DPDK's headers
//! or in structures that differ between its versions. DPDK 22.11 is what it is tested with; 23.11 and 24.11 have all that it names.
//!
//! The crate links DPDK's libraries without its drivers, which the EAL loads when it starts.

#![allow(
    non_camel_case_types,
    missing_docs,
    clippy::pedantic,
    reason = "names and types are those of the C declarations"
)]

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
