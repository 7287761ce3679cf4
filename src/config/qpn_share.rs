//! Queue pair numbers and request ids, divided among the endpoints of one NIC.

use spindrift_pmd::{Steering, SteeringException};

use crate::wire::{Opcode, Qpn};

/// The part of all queue pair numbers and request ids that an endpoint assigns. If several lanes of one NIC have an
/// endpoint each, a number shows which endpoint it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpnShare {
    /// Index of the part, from 0.
    pub index: u32,
    /// The number of parts.
    pub of: u32,
}

impl QpnShare {
    /// All numbers.
    pub const ALL: Self = Self { index: 0, of: 1 };

    /// The largest number of parts. The top four bits of a number decide. The first part needs two of their values,
    /// since a few numbers with none of these bits have other meanings.
    pub const MAX: u32 = 15;

    /// The same rule for steering that distributes packets before any lane sees them: the queue of a packet is the
    /// index of its owner. A request to the endpoint, which any endpoint can process, is steered by its id too. So
    /// lanes share the work, and the responses to different lanes of a peer with as many lanes do not mix.
    pub const STEERING: Steering = Steering {
        // The first byte of BTH's destination queue pair.
        byte: 5,
        // Requests and responses carry no queue pair; their id is the lower 16 bits of BTH's PSN.
        exception: Some(SteeringException { mask: 0xfe, value: Opcode::EndpointRequest as u8, byte: 10 }),
    };

    /// The part (of `of`) that a queue pair number is in.
    pub const fn owner(qpn: Qpn, of: u32) -> u32 {
        (qpn.get() >> 20) % of
    }

    /// The part (of `of`) that the id of an endpoint request is in.
    pub const fn owner_of_request(id: u16, of: u32) -> u32 {
        (id >> 12) as u32 % of
    }

    /// Whether a queue pair number is in this part.
    pub(crate) const fn has(self, qpn: Qpn) -> bool {
        Self::owner(qpn, self.of) == self.index
    }

    /// Whether the id of an endpoint request is in this part.
    pub(crate) const fn has_request(self, id: u16) -> bool {
        Self::owner_of_request(id, self.of) == self.index
    }
}
