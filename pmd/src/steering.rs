//! Which of several receive queues a datagram goes to.

/// How the datagrams of one address and UDP port are shared out among several receive queues: by four bits of each.
///
/// A rule so small fits a socket filter, an XDP program and the flow tables of NICs. A queue's reader must expect what
/// belongs to another all the same: a kernel that coalesces datagrams steers them by the first, and hardware may not
/// know the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steering {
    /// Offset in the UDP payload of the byte whose upper four bits, modulo the number of queues, are the queue's number.
    pub byte: u8,
    /// Where that byte is instead in some datagrams.
    pub exception: Option<SteeringException>,
}

/// Datagrams told by their first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SteeringException {
    /// Bits of the first byte that are looked at.
    pub mask: u8,
    /// What they must be.
    pub value: u8,
    /// Offset of the byte whose upper four bits decide.
    pub byte: u8,
}

impl Steering {
    /// Most queues: four bits tell no more apart.
    pub const QUEUES_MAX: usize = 16;

    /// The queue of a datagram with this payload; the first for one that is too short.
    ///
    /// # Panics
    /// There are no queues.
    pub fn queue(&self, payload: &[u8], queues: usize) -> usize {
        let offset = match (self.exception, payload.first()) {
            (Some(exception), Some(first)) if first & exception.mask == exception.value => exception.byte,
            _ => self.byte,
        };
        payload.get(usize::from(offset)).map_or(0, |byte| usize::from(byte >> 4) % queues)
    }
}
