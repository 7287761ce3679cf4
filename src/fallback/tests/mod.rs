//! Tests of the machine over a model of NICs.

mod search;
mod walks;
mod world;
