//! The CRC-32 of Ethernet over a few private bytes, such as a packet's headers.
//!
//! The library takes fewer than 128 bytes out of tables, the odd ones singly. For the headers of a packet that takes
//! half as long as its kernel does for 4096 bytes. Here, blocks of 16 bytes are multiplied, as for long ones, and what is left at the
//! end is put behind a part of the block before it.

use core::arch::x86_64::{
    __m128i, _mm_and_si128, _mm_blendv_epi8, _mm_clmulepi64_si128, _mm_cvtsi32_si128, _mm_extract_epi32,
    _mm_or_si128, _mm_set_epi64x, _mm_setzero_si128, _mm_shuffle_epi8, _mm_srli_si128, _mm_xor_si128,
};

use super::{ONES, forward, power};

/// Bytes of a register.
const BLOCK: usize = 16;

/// The polynomial, bits reversed, with its highest coefficient.
const POLYNOMIAL: u64 = 0x1_db71_0641;
/// x^64 divided by it, bits reversed.
const QUOTIENT: u64 = quotient();

const fn quotient() -> u64 {
    let polynomial = POLYNOMIAL.reverse_bits() >> 31;
    let (mut rest, mut quotient, mut bit) = (1_u128 << 64, 0_u64, 33);
    while bit > 0 {
        bit -= 1;
        if (rest >> (bit + 32)) & 1 == 1 {
            rest ^= (polynomial as u128) << bit;
            quotient |= 1 << bit;
        }
    }
    quotient.reverse_bits() >> 31
}

/// Which byte of a register each byte of another is taken from, moved up or down by as many bytes as one starts to read
/// this away from the middle. Numbers with the highest bit set give zeros.
static MOVED: [u8; 3 * BLOCK] = {
    let mut moved = [0x80; 3 * BLOCK];
    let mut at = 0;
    while at < BLOCK {
        moved[BLOCK + at] = at as u8;
        at += 1;
    }
    moved
};

/// Whether [`crc32`] may be called.
#[inline]
pub(super) fn known() -> bool {
    is_x86_feature_detected!("pclmulqdq") && is_x86_feature_detected!("sse4.1")
}

/// The CRC continued from `state`, or nothing for fewer than 16 bytes.
#[target_feature(enable = "pclmulqdq,sse4.1")]
pub(super) fn crc32(state: u32, bytes: &[u8]) -> Option<u32> {
    // The register is the inverse of what callers see.
    let register = _mm_cvtsi32_si128(!state as i32);
    Some(continued(_mm_xor_si128(load(*bytes.first_chunk()?), register), bytes))
}

/// The same where the bits that are set in `ones` count as ones, or nothing for fewer bytes than that has.
#[target_feature(enable = "pclmulqdq,sse4.1")]
pub(super) fn crc32_with_ones(state: u32, bytes: &[u8], ones: &[u8; ONES]) -> Option<u32> {
    let head = bytes.first_chunk::<ONES>()?;
    let mut block = _mm_setzero_si128();
    let mut register = _mm_cvtsi32_si128(!state as i32);
    for (&bytes, &ones) in head.as_chunks().0.iter().zip(ones.as_chunks().0) {
        let next = _mm_xor_si128(_mm_or_si128(load(bytes), load(ones)), register);
        block = onto(block, next);
        register = _mm_setzero_si128();
    }
    // The last block of the head is in front of what is left of the bytes.
    Some(continued(block, bytes.get(ONES - BLOCK..)?))
}

/// The CRC of 16 bytes, which have taken in the register before them, and of `bytes`, of which the first 16 do not
/// count and may be any.
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.1")]
pub(super) fn continued(mut block: __m128i, bytes: &[u8]) -> u32 {
    let (whole, left) = bytes.get(BLOCK..).unwrap_or_default().as_chunks();
    for next in whole {
        block = onto(block, load(*next));
    }
    if let (1.., Some(up), Some(down), Some(end)) = (
        left.len(),
        MOVED[left.len()..].first_chunk(),
        MOVED[BLOCK + left.len()..].first_chunk(),
        bytes.last_chunk(),
    ) {
        // As many bytes off the block's front as are left become a block of their own, with zeros in front, which
        // change nothing; the others and those that are left are the last.
        let up = load(*up);
        let before = _mm_shuffle_epi8(block, up);
        let last = _mm_blendv_epi8(load(*end), _mm_shuffle_epi8(block, load(*down)), up);
        block = onto(before, last);
    }
    !reduced(block)
}

#[inline]
#[target_feature(enable = "pclmulqdq,sse4.1")]
fn load(bytes: [u8; BLOCK]) -> __m128i {
    // One load, since the halves are next to each other.
    let [low, high] = [u128::from_le_bytes(bytes), u128::from_le_bytes(bytes) >> 64].map(|half| half as i64);
    _mm_set_epi64x(high, low)
}

/// The block that a block and the one behind it amount to.
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.1")]
pub(super) fn onto(block: __m128i, next: __m128i) -> __m128i {
    const BY: [u64; 2] = forward(128);
    let by = _mm_set_epi64x(BY[1] as i64, BY[0] as i64);
    let [low, high] = [_mm_clmulepi64_si128(block, by, 0x00), _mm_clmulepi64_si128(block, by, 0x11)];
    _mm_xor_si128(_mm_xor_si128(low, next), high)
}

/// The register after a block: 128 bits become 96, then 64, and of these the remainder is taken with the quotient
/// known (Barrett).
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.1")]
fn reduced(block: __m128i) -> u32 {
    let word = _mm_set_epi64x(0, 0xffff_ffff);
    let by = _mm_set_epi64x(power(64) as i64, power(96) as i64);
    let block = _mm_xor_si128(_mm_clmulepi64_si128(block, by, 0x00), _mm_srli_si128(block, 8));
    let folded = _mm_clmulepi64_si128(_mm_and_si128(block, word), by, 0x10);
    let block = _mm_xor_si128(folded, _mm_srli_si128(block, 4));
    let by = _mm_set_epi64x(QUOTIENT as i64, POLYNOMIAL as i64);
    let times = _mm_and_si128(_mm_clmulepi64_si128(_mm_and_si128(block, word), by, 0x10), word);
    _mm_extract_epi32(_mm_xor_si128(block, _mm_clmulepi64_si128(times, by, 0x00)), 1) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Those of the paper's reference code, of zlib and of Linux.
    #[test]
    fn constants_are_those_published() {
        assert_eq!(forward(128), [0x1_7519_97d0, 0x0_ccaa_009e]);
        assert_eq!((power(64), QUOTIENT), (0x1_63cd_6124, 0x1_f701_1641));
    }
}
