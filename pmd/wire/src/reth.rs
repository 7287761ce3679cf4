//! RDMA header (MRC 1.0 table 6-5) and immediate data.

use super::field::{U32, U64, slice_forms};

const VA: U64<0> = U64;
const RKEY: U32<8> = U32;
const DMA_LEN: U32<12> = U32;

/// RDMA header, in every packet of a write.
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

/// Immediate data, after the RETH of a packet that ends a write with immediate.
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
