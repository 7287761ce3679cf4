//! RDMA header (MRC 1.0 table 6-5), and what may follow it.

use super::field::{U32, U64, slice_forms};

const VA: U64<0> = U64;
const RKEY: U32<8> = U32;
const DMA_LEN: U32<12> = U32;

/// RDMA header, in every data packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reth {
    /// Address of this packet's first byte in the peer's memory.
    pub va: u64,
    /// Key of the peer's memory region.
    pub rkey: u32,
    /// Bytes of the whole message.
    pub dma_len: u32,
}

impl Reth {
    /// Bytes of the header.
    pub const LEN: usize = 16;

    /// The header in `b`.
    #[inline]
    pub fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self { va: VA.get(b), rkey: RKEY.get(b), dma_len: DMA_LEN.get(b) }
    }

    /// The header as bytes.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        VA.set(&mut b, self.va);
        RKEY.set(&mut b, self.rkey);
        DMA_LEN.set(&mut b, self.dma_len);
        b
    }
}

slice_forms!(Reth, "RETH");

/// Immediate data, after the RETH of a packet that ends a message with immediate. In a packet that ends a send with
/// invalidate, the key to invalidate is in its place (IETH: IBTA volume 1, section 9.3.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImmDt(pub u32);

impl ImmDt {
    /// Bytes of the header.
    pub const LEN: usize = 4;

    /// The header in `b`.
    #[inline]
    pub fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self(u32::from_be_bytes(*b))
    }

    /// The header as bytes.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        self.0.to_be_bytes()
    }
}

slice_forms!(ImmDt, "ImmDt");

const SWAP_OR_ADD: U64<0> = U64;
const COMPARE: U64<8> = U64;

/// Operands of an atomic operation, after the RETH of its request. The two headers together have the fields of the
/// `AtomicETH` (IBTA volume 1, section 9.3.4) and a length, which is 8.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AtomicOperands {
    /// The value to store or to add.
    pub swap_or_add: u64,
    /// The value to compare with; 0 in a fetch-and-add.
    pub compare: u64,
}

impl AtomicOperands {
    /// Bytes of the header.
    pub const LEN: usize = 16;

    /// The header in `b`.
    #[inline]
    pub fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self { swap_or_add: SWAP_OR_ADD.get(b), compare: COMPARE.get(b) }
    }

    /// The header as bytes.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        SWAP_OR_ADD.set(&mut b, self.swap_or_add);
        COMPARE.set(&mut b, self.compare);
        b
    }
}

slice_forms!(AtomicOperands, "AtomicETH");
