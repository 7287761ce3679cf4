//! Copies to and from bytes that other threads or processes may change at the same time.
//!
//! An ordinary copy that races with a write is undefined behaviour in Rust, and so are racing accesses of different
//! sizes. A sound copy accesses every byte atomically, one at a time. Compilers make slow loops of such copies. So on
//! x86-64 this is assembly, with the effect of that loop and the speed of a plain copy.

/// Copies `len` bytes as if by one relaxed atomic load and one relaxed atomic store for each byte, in any order.
///
/// # Safety
/// `src` must be valid for reads and `dst` for writes of `len` bytes. If the ranges overlap, the target is left with
/// some mixture of what both held. Other threads may access either meanwhile; they must access bytes that are not
/// private to the caller by atomic accesses of one byte only.
#[inline]
pub(super) unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: as the caller promises.
    unsafe { machine::copy(src, dst, len) }
}

/// As assembly. Memory that it reads and writes is, to the compiler, any memory: nothing is kept back or moved across.
///
/// Where the length is no multiple of a register's, the last one is filled from the end, so some bytes are copied twice.
#[cfg(all(target_arch = "x86_64", not(any(miri, spindrift_instrumented))))]
mod machine {
    use core::arch::asm;

    /// Copies the first and the last bytes, as many as `$reg` holds, through `$first` and `$last`.
    macro_rules! ends {
        ($src:ident, $dst:ident, $len:ident, $size:literal, $move:literal, $class:ident, $shape:literal) => {
            asm!(
                concat!($move, " {first", $shape, "}, [{src}]"),
                concat!($move, " {last", $shape, "}, [{src} + {len} - ", $size, "]"),
                concat!($move, " [{dst}], {first", $shape, "}"),
                concat!($move, " [{dst} + {len} - ", $size, "], {last", $shape, "}"),
                first = out($class) _, last = out($class) _,
                src = in(reg) $src, dst = in(reg) $dst, len = in(reg) $len,
                options(nostack, preserves_flags),
            )
        };
    }

    // In line, the loops would take every register from the caller.
    #[inline(never)]
    pub(super) unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) {
        // SAFETY: each arm touches `len` bytes from both pointers on, since `len` is at least what its registers hold
        // and at most twice that, or what the loops ask for.
        unsafe {
            match len {
                32.. if std::arch::is_x86_feature_detected!("avx") => with_avx(src, dst, len),
                32.. => with_sse2(src, dst, len),
                0 => {}
                1 => {
                    asm!("mov {byte}, [{src}]", "mov [{dst}], {byte}", byte = out(reg_byte) _, src = in(reg) src,
                    dst = in(reg) dst, options(nostack, preserves_flags));
                }
                2..4 => ends!(src, dst, len, "2", "mov", reg, ":x"),
                4..8 => ends!(src, dst, len, "4", "mov", reg, ":e"),
                8..16 => ends!(src, dst, len, "8", "mov", reg, ""),
                16..32 => ends!(src, dst, len, "16", "movdqu", xmm_reg, ""),
            }
        }
    }

    /// `len` is at least 32, and the processor has AVX.
    #[inline]
    unsafe fn with_avx(src: *const u8, dst: *mut u8, len: usize) {
        // SAFETY: the first loop copies 128 bytes while as many are left, the second 32 while more are left, and the
        // last 32 of all follow. The registers that this writes are among those that a call may change, and their
        // upper halves are left zero, as for a call.
        unsafe {
            asm!(
                "vmovdqu ymm4, [rsi + rdx - 32]",
                "lea rax, [rdi + rdx - 32]",
                "sub rdx, 128",
                "jb 3f",
                "2:",
                "vmovdqu ymm0, [rsi]",
                "vmovdqu ymm1, [rsi + 32]",
                "vmovdqu ymm2, [rsi + 64]",
                "vmovdqu ymm3, [rsi + 96]",
                "vmovdqu [rdi], ymm0",
                "vmovdqu [rdi + 32], ymm1",
                "vmovdqu [rdi + 64], ymm2",
                "vmovdqu [rdi + 96], ymm3",
                "add rsi, 128",
                "add rdi, 128",
                "sub rdx, 128",
                "jae 2b",
                "3:",
                "add rdx, 96",
                "jle 5f",
                "4:",
                "vmovdqu ymm0, [rsi]",
                "vmovdqu [rdi], ymm0",
                "add rsi, 32",
                "add rdi, 32",
                "sub rdx, 32",
                "jg 4b",
                "5:",
                "vmovdqu [rax], ymm4",
                "vzeroupper",
                inout("rsi") src => _,
                inout("rdi") dst => _,
                inout("rdx") len => _,
                clobber_abi("sysv64"),
                options(nostack),
            );
        }
    }

    /// `len` is at least 16.
    #[inline]
    unsafe fn with_sse2(src: *const u8, dst: *mut u8, len: usize) {
        // SAFETY: the loop copies 16 bytes while more are left, and the last 16 of all follow.
        unsafe {
            asm!(
                "movdqu {last}, [{src} + {len} - 16]",
                "lea {end}, [{dst} + {len} - 16]",
                "sub {len}, 16",
                "2:",
                "movdqu {block}, [{src}]",
                "movdqu [{dst}], {block}",
                "add {src}, 16",
                "add {dst}, 16",
                "sub {len}, 16",
                "ja 2b",
                "movdqu [{end}], {last}",
                last = out(xmm_reg) _,
                block = out(xmm_reg) _,
                end = out(reg) _,
                src = inout(reg) src => _,
                dst = inout(reg) dst => _,
                len = inout(reg) len => _,
                options(nostack),
            );
        }
    }

    #[cfg(test)]
    mod tests {
        /// The processors that tests run on have AVX, so this loop would go unseen.
        #[test]
        fn without_avx_too() {
            super::super::tests::check(16, |src, dst, len| {
                // SAFETY: as `check` promises.
                unsafe { super::with_sse2(src, dst, len) }
            });
        }
    }
}

/// In Rust: by the byte for tools that watch every access (`--cfg spindrift_instrumented`), by words elsewhere.
///
/// Words are of another size than the single bytes that [`Region::load`](super::Region::load) reads. Processors and
/// compilers have no trouble with that; the rules of the language have not settled it.
#[cfg(not(all(target_arch = "x86_64", not(any(miri, spindrift_instrumented)))))]
mod machine {
    use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

    const WORD: usize = size_of::<usize>();

    pub(super) unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) {
        let by_words = !cfg!(any(miri, spindrift_instrumented)) && (src.addr() ^ dst.addr()) % WORD == 0;
        let first = if by_words { src.align_offset(WORD).min(len) } else { len };
        let words = (len - first) / WORD;
        let rest = first + words * WORD;
        // SAFETY: the three cover `len` bytes. The words are aligned: `first` bytes on, both pointers are.
        unsafe {
            copy_bytes(src, dst, first);
            for at in 0..words {
                let from = AtomicUsize::from_ptr(src.add(first).cast::<usize>().add(at).cast_mut());
                let to = AtomicUsize::from_ptr(dst.add(first).cast::<usize>().add(at));
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            copy_bytes(src.add(rest), dst.add(rest), len - rest);
        }
    }

    unsafe fn copy_bytes(src: *const u8, dst: *mut u8, len: usize) {
        for at in 0..len {
            // SAFETY: `at` is below `len`; a byte needs no alignment.
            unsafe {
                let byte = AtomicU8::from_ptr(src.add(at).cast_mut()).load(Ordering::Relaxed);
                AtomicU8::from_ptr(dst.add(at)).store(byte, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every length from `least` on around the sizes of the loops, every alignment of both ends, and not a byte
    /// outside. The pointers given are valid for the length given, and apart.
    pub(super) fn check(least: usize, copy: impl Fn(*const u8, *mut u8, usize)) {
        let src: Vec<u8> = (0..1200_u32).map(|at| (at * 7 + at / 256) as u8).collect();
        let lengths = (least..300).chain([383, 384, 385, 511, 512, 513, 767, 1023, 1024, 1025]);
        for len in lengths {
            for (from, to) in [(0, 0), (1, 0), (0, 1), (3, 5), (8, 0), (31, 33), (64, 7), (127, 128)] {
                let mut dst = vec![0xEE; len + to + 16];
                copy(src[from..from + len].as_ptr(), dst[to..to + len].as_mut_ptr(), len);
                assert_eq!(dst[to..to + len], src[from..from + len], "{len} bytes from {from} to {to}");
                let outside = dst[..to].iter().chain(&dst[to + len..]);
                assert!(outside.into_iter().all(|&byte| byte == 0xEE), "{len} bytes from {from} to {to}");
            }
        }
    }

    #[test]
    fn all_lengths_and_alignments() {
        // SAFETY: as `check` promises.
        check(0, |src, dst, len| unsafe { copy(src, dst, len) });
    }
}
