//! The small numbers that packets carry.

/// An entropy value: the 32 bits that choose a packet's path (MRC paper, section 2.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ev(pub u32);
