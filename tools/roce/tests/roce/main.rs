//! What RoCEv2 gives to those who use it over a whole network, and what becomes of it when packets are lost.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod collectives;
mod flows;
mod incast;
mod lossy;
mod mixed;
mod network;
mod support;
