//! Tests of the machine over a model of NICs.

mod nics;
mod rules;
mod search;
mod walks;
mod world;
