//! The CRC-32 of Ethernet over bytes that other threads or processes may change at the same time.
//!
//! A library's kernel takes a slice, and memory that others may write must never be a slice. So most bytes are folded
//! here, by assembly that loads them as the copies of `copy.rs` do. Blocks of 256 bytes, and 64 in the end, are folded
//! into others with the same CRC (V. Gopal and others, *Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
//! Instruction*, Intel, 2009). The remainder is private, and is passed to the library.

use core::mem::MaybeUninit;

use super::copy::copy;

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod short;

/// The most that is handled at a time of bytes that were copied or folded.
const LEFT: usize = 512;

/// Below this length the library has no kernel.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const SHORT: usize = 128;

/// The CRC continued from `state` over private bytes.
#[inline]
pub fn crc32(state: u32, bytes: &[u8]) -> u32 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if bytes.len() < SHORT && short::known() {
        // SAFETY: the processor has what the function is compiled for.
        if let Some(crc) = unsafe { short::crc32(state, bytes) } {
            return crc;
        }
    }
    by_library(state, bytes)
}

/// Bytes that [`crc32_with_ones`] may take for others.
const ONES: usize = 64;

/// The CRC-32 of Ethernet, continued from `state` over bytes of which those bits count as ones that are set in `ones`,
/// such as the fields of a header that may change on the way.
///
/// ```
/// use spindrift_memory::{Payload, crc32_with_ones};
///
/// let mut ones = [0; 64];
/// ones[1] = 0xf0;
/// assert_eq!(crc32_with_ones(0, &[1, 2, 3], &ones), Payload::from(&[1, 0xf2, 3]).crc32(0));
/// ```
#[inline]
pub fn crc32_with_ones(state: u32, bytes: &[u8], ones: &[u8; ONES]) -> u32 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if bytes.len() < SHORT && short::known() {
        // SAFETY: the processor has what the function is compiled for.
        if let Some(crc) = unsafe { short::crc32_with_ones(state, bytes, ones) } {
            return crc;
        }
    }
    let (head, rest) = bytes.split_at_checked(ONES).unwrap_or((bytes, &[]));
    let mut room = *ones;
    for (byte, &given) in room.iter_mut().zip(head) {
        *byte |= given;
    }
    crc32(crc32(state, room.split_at(head.len()).0), rest)
}

pub(super) fn by_library(state: u32, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(state);
    hasher.update(bytes);
    hasher.finalize()
}

/// x to the power of `n` modulo the polynomial, bits reversed, as the multiplication wants it.
#[cfg(target_arch = "x86_64")]
const fn power(n: u32) -> u64 {
    let mut value = 0x8000_0000_u32;
    let mut at = 0;
    while at < n {
        value = (value >> 1) ^ if value & 1 == 1 { 0xedb8_8320 } else { 0 };
        at += 1;
    }
    (value as u64) << 1
}

/// What moves the two halves of 128 bits forward by `bits`.
#[cfg(target_arch = "x86_64")]
const fn forward(bits: u32) -> [u64; 2] {
    [power(bits + 32), power(bits - 32)]
}

/// The CRC continued from `state` over `len` bytes.
///
/// # Safety
/// `src` must be valid for reads of `len` bytes. Others may access them meanwhile, by atomic accesses of one byte.
#[inline]
pub(super) unsafe fn crc32_shared(state: u32, src: *const u8, len: usize) -> u32 {
    // SAFETY: as the caller promises.
    unsafe { machine::crc32_shared(state, src, len) }
}

/// By copies of `LEFT` bytes.
unsafe fn by_copies(mut state: u32, src: *const u8, len: usize) -> u32 {
    let mut room = [MaybeUninit::<u8>::uninit(); LEFT];
    let mut at = 0;
    while at < len {
        let count = LEFT.min(len - at);
        // SAFETY: the caller's bytes, of which `count` fit into `room` and are then initialised.
        let bytes = unsafe {
            copy(src.add(at), room.as_mut_ptr().cast::<u8>(), count);
            core::slice::from_raw_parts(room.as_ptr().cast::<u8>(), count)
        };
        state = crc32(state, bytes);
        at += count;
    }
    state
}

#[cfg(not(all(target_arch = "x86_64", not(any(miri, spindrift_instrumented)))))]
mod machine {
    pub(super) use super::by_copies as crc32_shared;
}

#[cfg(all(target_arch = "x86_64", not(any(miri, spindrift_instrumented))))]
mod machine {
    use core::arch::asm;
    use core::arch::x86_64::__m128i;

    use super::{by_copies, copy, forward, short};

    /// Below these lengths, the registers are not worth filling.
    const LEAST_512: usize = 512;
    const LEAST_128: usize = 128;

    /// Bytes of a register that a kernel leaves.
    const FOLDED: usize = 16;

    #[inline]
    pub(super) unsafe fn crc32_shared(state: u32, src: *const u8, len: usize) -> u32 {
        // SAFETY: as the caller promises, and the kernels run where their instructions are known.
        unsafe {
            if len >= LEAST_512 && has_512() {
                folded::<256>(state, src, len, fold_512)
            } else if len >= LEAST_128 && short::known() {
                folded::<64>(state, src, len, fold_128)
            } else {
                by_copies(state, src, len)
            }
        }
    }

    #[inline]
    fn has_512() -> bool {
        is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("vpclmulqdq") && short::known()
    }

    /// Folds whole blocks of `BLOCK` bytes, and takes the CRC of what that leaves and the rest.
    ///
    /// # Safety
    /// As for `crc32_shared`; `len` is at least `BLOCK`, and `fold` may be called.
    #[inline]
    #[target_feature(enable = "pclmulqdq,sse4.1")]
    unsafe fn folded<const BLOCK: usize>(
        state: u32,
        src: *const u8,
        len: usize,
        fold: unsafe fn(u32, *const u8, usize) -> __m128i,
    ) -> u32 {
        const { assert!(FOLDED + BLOCK <= ROOM, "what is folded, and almost a block") };
        let (blocks, rest) = (len / BLOCK, len % BLOCK);
        // SAFETY: as the caller promises. The rest is private once it was copied, and fits in behind the place of what
        // was folded.
        unsafe {
            // The register is the inverse of what callers see. The block takes it in.
            let block = fold(!state, src, blocks);
            if rest == 0 {
                return short::continued(block, &[]);
            }
            let mut room = [0; ROOM];
            let bytes = room.split_at_mut(FOLDED + rest).0;
            copy(src.add(len - rest), bytes.as_mut_ptr().add(FOLDED), rest);
            short::continued(block, bytes)
        }
    }

    /// For the longest rest, behind what was folded.
    const ROOM: usize = FOLDED + 256;

    static FORWARD_512: [u64; 2] = forward(512);
    static FORWARD_2048: [u64; 2] = forward(2048);

    /// What moves the first three of four registers to the place of the last, and then three quarters of that one.
    static TOGETHER: [[u64; 2]; 7] =
        [forward(1536), forward(1024), forward(512), forward(384), forward(256), forward(128), [0, 0]];

    /// Folds `blocks` of 256 bytes, at least one, into 16. The first takes in the CRC register.
    ///
    /// What is left never goes through memory: a load of what was just stored waits, on some processors, for all
    /// stores before it, and before it is the copy of another payload.
    ///
    /// # Safety
    /// The blocks are valid for reads, and the processor has AVX-512F and VPCLMULQDQ.
    unsafe fn fold_512(register: u32, src: *const u8, blocks: usize) -> __m128i {
        let block;
        // SAFETY: reads the blocks and the constants. The registers are among those that a call may change,
        // and their upper parts are left zero, as for a call.
        unsafe {
            asm!(
                "vmovd xmm4, esi",
                "vbroadcasti32x4 zmm5, [rcx]",
                "vpxorq zmm0, zmm4, [rdi]",
                "vmovdqu64 zmm1, [rdi + 64]",
                "vmovdqu64 zmm2, [rdi + 128]",
                "vmovdqu64 zmm3, [rdi + 192]",
                "dec rdx",
                "jz 3f",
                "2:",
                "add rdi, 256",
                "vpclmulqdq zmm6, zmm0, zmm5, 0x00",
                "vpclmulqdq zmm7, zmm1, zmm5, 0x00",
                "vpclmulqdq zmm8, zmm2, zmm5, 0x00",
                "vpclmulqdq zmm9, zmm3, zmm5, 0x00",
                "vpclmulqdq zmm0, zmm0, zmm5, 0x11",
                "vpclmulqdq zmm1, zmm1, zmm5, 0x11",
                "vpclmulqdq zmm2, zmm2, zmm5, 0x11",
                "vpclmulqdq zmm3, zmm3, zmm5, 0x11",
                "vpternlogq zmm0, zmm6, [rdi], 0x96",
                "vpternlogq zmm1, zmm7, [rdi + 64], 0x96",
                "vpternlogq zmm2, zmm8, [rdi + 128], 0x96",
                "vpternlogq zmm3, zmm9, [rdi + 192], 0x96",
                "dec rdx",
                "jnz 2b",
                "3:",
                // Four registers into the last: each of the others from as far away as it is.
                "vbroadcasti32x4 zmm5, [rax]",
                "vbroadcasti32x4 zmm6, [rax + 16]",
                "vbroadcasti32x4 zmm7, [rax + 32]",
                "vpclmulqdq zmm8, zmm0, zmm5, 0x00",
                "vpclmulqdq zmm9, zmm1, zmm6, 0x00",
                "vpclmulqdq zmm10, zmm2, zmm7, 0x00",
                "vpclmulqdq zmm0, zmm0, zmm5, 0x11",
                "vpclmulqdq zmm1, zmm1, zmm6, 0x11",
                "vpclmulqdq zmm2, zmm2, zmm7, 0x11",
                "vpternlogq zmm3, zmm8, zmm9, 0x96",
                "vpternlogq zmm10, zmm0, zmm1, 0x96",
                "vpternlogq zmm3, zmm2, zmm10, 0x96",
                // The same with the quarters of the register that is left.
                "vmovdqu64 zmm5, [rax + 48]",
                "vpclmulqdq zmm6, zmm3, zmm5, 0x00",
                "vpclmulqdq zmm7, zmm3, zmm5, 0x11",
                "vextracti32x4 xmm3, zmm3, 3",
                "vpxorq zmm6, zmm6, zmm7",
                "vextracti64x4 ymm7, zmm6, 1",
                "vpxorq ymm6, ymm6, ymm7",
                "vextracti128 xmm7, ymm6, 1",
                "vpternlogq zmm3, zmm6, zmm7, 0x96",
                "vmovdqa xmm0, xmm3",
                "vzeroupper",
                inout("rdi") src => _,
                inout("rdx") blocks => _,
                in("rsi") u64::from(register),
                in("rcx") &raw const FORWARD_2048,
                in("rax") &raw const TOGETHER,
                out("xmm0") block,
                // All of them: `vzeroupper` changes also those that are not named above.
                clobber_abi("sysv64"),
                options(nostack),
            );
        }
        block
    }

    /// The same by blocks of 64 bytes.
    ///
    /// # Safety
    /// The blocks are valid for reads.
    #[target_feature(enable = "pclmulqdq,sse4.1")]
    unsafe fn fold_128(register: u32, src: *const u8, blocks: usize) -> __m128i {
        let (first, second, third, last): (__m128i, __m128i, __m128i, __m128i);
        // SAFETY: reads the blocks and the constant.
        unsafe {
            asm!(
                "movdqu xmm0, [{src}]",
                "movdqu xmm1, [{src} + 16]",
                "movdqu xmm2, [{src} + 32]",
                "movdqu xmm3, [{src} + 48]",
                "movdqu xmm5, [{forward}]",
                "movd xmm4, {register:e}",
                "pxor xmm0, xmm4",
                "dec {blocks}",
                "jz 3f",
                "2:",
                "add {src}, 64",
                "movdqa xmm6, xmm0",
                "movdqa xmm7, xmm1",
                "movdqa xmm8, xmm2",
                "movdqa xmm9, xmm3",
                "pclmulqdq xmm6, xmm5, 0x00",
                "pclmulqdq xmm7, xmm5, 0x00",
                "pclmulqdq xmm8, xmm5, 0x00",
                "pclmulqdq xmm9, xmm5, 0x00",
                "pclmulqdq xmm0, xmm5, 0x11",
                "pclmulqdq xmm1, xmm5, 0x11",
                "pclmulqdq xmm2, xmm5, 0x11",
                "pclmulqdq xmm3, xmm5, 0x11",
                "pxor xmm0, xmm6",
                "pxor xmm1, xmm7",
                "pxor xmm2, xmm8",
                "pxor xmm3, xmm9",
                "movdqu xmm6, [{src}]",
                "movdqu xmm7, [{src} + 16]",
                "movdqu xmm8, [{src} + 32]",
                "movdqu xmm9, [{src} + 48]",
                "pxor xmm0, xmm6",
                "pxor xmm1, xmm7",
                "pxor xmm2, xmm8",
                "pxor xmm3, xmm9",
                "dec {blocks}",
                "jnz 2b",
                "3:",
                src = inout(reg) src => _,
                blocks = inout(reg) blocks => _,
                register = in(reg) register,
                forward = in(reg) &raw const FORWARD_512,
                out("xmm0") first, out("xmm1") second, out("xmm2") third, out("xmm3") last, out("xmm4") _,
                out("xmm5") _, out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _,
                options(nostack, readonly),
            );
        }
        [second, third, last].into_iter().fold(first, |block, next| short::onto(block, next))
    }

    #[cfg(test)]
    mod tests {
        use super::super::{ONES, by_library, crc32, crc32_with_ones};
        use super::*;

        /// The constants of the paper's reference code and of zlib.
        #[test]
        fn constants_are_those_published() {
            assert_eq!(FORWARD_512, [0x1_5444_2bd4, 0x1_c6e4_1596]);
        }

        /// Each kernel against the library: every length, alignment and state, and no byte beyond.
        #[test]
        fn every_kernel_agrees_with_the_library() {
            let bytes: Vec<u8> = (0..2100_u32).map(|n| (n.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect();
            for len in (0..1400).chain([2047, 2048, 2049]) {
                let at = len % 37;
                let part = &bytes[at..at + len];
                for state in [0, !0, 0x1234_5678 ^ len as u32] {
                    let expected = by_library(state, part);
                    assert_eq!(crc32(state, part), expected, "{len} private bytes");
                    let mut ones = [0; ONES];
                    assert_eq!(crc32_with_ones(state, part, &ones), expected, "{len}, none of them changed");
                    let mut changed = part.to_vec();
                    for (at, byte) in changed.iter_mut().enumerate().take(ONES) {
                        ones[at] = (at * 5 + len) as u8;
                        *byte |= ones[at];
                    }
                    let with_ones = by_library(state, &changed);
                    assert_eq!(crc32_with_ones(state, part, &ones), with_ones, "{len} with ones");
                    // SAFETY: the bytes are `part`'s, and each kernel is asked only where it may run.
                    unsafe {
                        assert_eq!(crc32_shared(state, part.as_ptr(), len), expected, "{len}");
                        assert_eq!(by_copies(state, part.as_ptr(), len), expected, "{len} by copies");
                        if len >= 64 && is_x86_feature_detected!("pclmulqdq") {
                            let crc = folded::<64>(state, part.as_ptr(), len, fold_128);
                            assert_eq!(crc, expected, "{len} by 128 bits");
                        }
                        if len >= 256 && has_512() {
                            let crc = folded::<256>(state, part.as_ptr(), len, fold_512);
                            assert_eq!(crc, expected, "{len} by 512 bits");
                        }
                    }
                }
            }
        }
    }
}
