//! Fields at fixed offsets of a header.
//!
//! A field is a type with its offset. Access outside the header does not compile, so no check is needed at run time.

#![expect(
    clippy::unused_self,
    reason = "all there is to a field is in its type; `self` lets a constant give it its name"
)]

/// The `W` bytes at `AT`.
#[inline]
fn get<const AT: usize, const W: usize, const N: usize>(header: &[u8; N]) -> [u8; W] {
    const { assert!(AT + W <= N, "the field lies outside the header") };
    // The assertion leaves only the first arm.
    match header.get(AT..).and_then(|rest| rest.first_chunk()) {
        Some(field) => *field,
        None => [0; W],
    }
}

/// Replaces the `W` bytes at `AT`.
#[inline]
fn set<const AT: usize, const W: usize, const N: usize>(header: &mut [u8; N], value: [u8; W]) {
    const { assert!(AT + W <= N, "the field lies outside the header") };
    if let Some(field) = header.get_mut(AT..).and_then(|rest| rest.first_chunk_mut()) {
        *field = value;
    }
}

/// Plain bytes.
pub(super) struct Bytes<const AT: usize, const W: usize>;

impl<const AT: usize, const W: usize> Bytes<AT, W> {
    #[inline]
    pub(super) fn get<const N: usize>(self, header: &[u8; N]) -> [u8; W] {
        get::<AT, W, N>(header)
    }

    #[inline]
    pub(super) fn set<const N: usize>(self, header: &mut [u8; N], value: [u8; W]) {
        set::<AT, W, N>(header, value);
    }
}

macro_rules! integer {
    ($name:ident, $int:ty, $bytes:literal, $doc:literal) => {
        #[doc = $doc]
        pub(super) struct $name<const AT: usize>;

        impl<const AT: usize> $name<AT> {
            #[inline]
            pub(super) fn get<const N: usize>(self, header: &[u8; N]) -> $int {
                <$int>::from_be_bytes(get::<AT, $bytes, N>(header))
            }

            #[inline]
            pub(super) fn set<const N: usize>(self, header: &mut [u8; N], value: $int) {
                set::<AT, $bytes, N>(header, value.to_be_bytes());
            }
        }
    };
}

integer!(U8, u8, 1, "A byte.");
integer!(U16, u16, 2, "16 bits, big-endian.");
integer!(U32, u32, 4, "32 bits, big-endian.");
integer!(U64, u64, 8, "64 bits, big-endian.");

/// `WIDTH` bits of the 32-bit big-endian word at `AT`; `SHIFT` is the position of the lowest one.
///
/// Fields that are not whole bytes, or 24 bits wide, are extracted from the word that holds them. One load or store
/// then serves all fields of a word.
pub(super) struct Bits<const AT: usize, const SHIFT: u32, const WIDTH: u32>;

impl<const AT: usize, const SHIFT: u32, const WIDTH: u32> Bits<AT, SHIFT, WIDTH> {
    const MASK: u32 = {
        assert!(SHIFT + WIDTH <= 32 && WIDTH > 0 && WIDTH < 32, "the bits lie outside the word");
        ((1 << WIDTH) - 1) << SHIFT
    };

    /// The bits in place.
    pub(super) const fn mask(self) -> u32 {
        Self::MASK
    }

    #[inline]
    pub(super) fn get<const N: usize>(self, header: &[u8; N]) -> u32 {
        (U32::<AT>.get(header) & Self::MASK) >> SHIFT
    }

    /// Whether any bit is set.
    #[inline]
    pub(super) fn flag<const N: usize>(self, header: &[u8; N]) -> bool {
        U32::<AT>.get(header) & Self::MASK != 0
    }

    /// `value` in place, without its excess bits.
    #[inline]
    pub(super) fn place(self, value: impl Into<u32>) -> u32 {
        (value.into() << SHIFT) & Self::MASK
    }
}

/// Gives a header with `LEN`, `from_bytes` and `to_bytes` its slice forms.
macro_rules! slice_forms {
    ($header:ident, $name:literal) => {
        impl $header {
            /// Reads the header from the front of `bytes`; what follows it is ignored.
            ///
            /// Fails if `bytes` is shorter than the header.
            #[inline]
            pub fn read(bytes: &[u8]) -> Result<Self, $crate::DecodeError> {
                match bytes.first_chunk() {
                    Some(header) => Ok(Self::from_bytes(header)),
                    None => Err($crate::DecodeError::Short {
                        header: $name,
                        needed: Self::LEN,
                        found: bytes.len(),
                    }),
                }
            }

            /// Writes the header to the front of `out` and returns its length, or returns 0 and does not change `out`
            /// if it does not fit.
            #[inline]
            pub fn write(&self, out: &mut [u8]) -> usize {
                $crate::field::put(&self.to_bytes(), out)
            }
        }
    };
}
pub(super) use slice_forms;

/// Copies `header` to the front of `out`: its length, or 0 if it does not fit.
#[inline]
pub(super) fn put<const N: usize>(header: &[u8; N], out: &mut [u8]) -> usize {
    match out.first_chunk_mut() {
        Some(room) => {
            *room = *header;
            N
        }
        None => 0,
    }
}
