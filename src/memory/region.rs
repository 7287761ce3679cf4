//! One range of registered bytes.

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, Ordering};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::Arc;

use super::MemoryError;

/// Alignment of allocated regions in bytes: a page, so that drivers can map them whole.
const REGION_ALIGN: usize = 4096;

/// A range of bytes that can be registered, and the address by which peers name its first byte.
///
/// That address (`iova`) is the pointer's own value unless another was asked for, which deterministic
/// tests do. All accessors are bounds-checked. Calling them while the network reads or writes the same
/// bytes garbles data at worst in practice, but is a data race by Rust's rules: see
/// [what is not sound yet](super#what-is-not-sound-yet).
pub struct Region {
    base: NonNull<u8>,
    len: usize,
    iova: u64,
    owner: Owner,
}

/// How the bytes are given back.
enum Owner {
    Allocated(Layout),
    Boxed,
    Borrowed,
}

// SAFETY: `base` points to memory that lives as long as the region whatever thread drops it, and all
// access goes through raw copies that form no references.
unsafe impl Send for Region {}
// SAFETY: as above; shared access is by raw copies. Two that race are not ruled out by the types, as the module
// documentation says.
unsafe impl Sync for Region {}

impl Region {
    /// `len` zeroed bytes on a page boundary, named by their own address.
    ///
    /// # Errors
    /// [`MemoryError::BadRange`] for zero bytes, [`MemoryError::OutOfMemory`] when the allocator refuses.
    pub fn alloc(len: usize) -> Result<Arc<Self>, MemoryError> {
        let (base, layout) = allocate(len)?;
        Self::build(base, len, address_of(base), Owner::Allocated(layout))
    }

    /// `len` zeroed bytes whose first byte peers name by the address `iova`.
    ///
    /// # Errors
    /// As [`Region::alloc`]; also [`MemoryError::BadRange`] when `iova + len` passes 2^64.
    pub fn alloc_at(len: usize, iova: u64) -> Result<Arc<Self>, MemoryError> {
        check_range(iova, len)?;
        let (base, layout) = allocate(len)?;
        Self::build(base, len, iova, Owner::Allocated(layout))
    }

    /// Takes the bytes of a vector over without copying them (a vector with spare capacity is shrunk first).
    ///
    /// # Errors
    /// [`MemoryError::BadRange`] for an empty vector.
    pub fn from_vec(bytes: Vec<u8>) -> Result<Arc<Self>, MemoryError> {
        let len = bytes.len();
        check_range(0, len)?;
        let raw = Box::into_raw(bytes.into_boxed_slice());
        let Some(base) = NonNull::new(raw.cast::<u8>()) else {
            return Err(MemoryError::BadRange { addr: 0, len: len as u64 });
        };
        Self::build(base, len, address_of(base), Owner::Boxed)
    }

    /// Borrows `len` bytes at `base` that someone else owns: mapped files, huge pages, shared memory.
    ///
    /// # Errors
    /// [`MemoryError::BadRange`] for a null pointer or zero bytes.
    ///
    /// # Safety
    /// The bytes must be valid for reads and writes until the last clone of the returned region is gone,
    /// and no Rust reference to them may be used while the region is registered.
    pub unsafe fn from_raw(base: *mut u8, len: usize) -> Result<Arc<Self>, MemoryError> {
        let addr = base.addr() as u64;
        check_range(addr, len)?;
        let base = NonNull::new(base).ok_or(MemoryError::BadRange { addr, len: len as u64 })?;
        Self::build(base, len, addr, Owner::Borrowed)
    }

    fn build(base: NonNull<u8>, len: usize, iova: u64, owner: Owner) -> Result<Arc<Self>, MemoryError> {
        // The value owns the bytes from here on, so an error below gives them back.
        let region = Self { base, len, iova, owner };
        check_range(iova, len)?;
        Ok(Arc::new(region))
    }

    /// The address by which peers and work requests name the first byte.
    pub fn iova(&self) -> u64 {
        self.iova
    }

    /// Length in bytes, never zero.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Always false: a region holds at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Copies `bytes` to `offset` bytes from the start.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`], and nothing is written.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), MemoryError> {
        let to = self.checked(offset, bytes.len())?;
        // SAFETY: `checked` keeps the target inside the region, which this value keeps alive. `copy` allows
        // an overlap, should `bytes` come from this very region.
        unsafe { bytes.as_ptr().copy_to(to.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// Copies `out.len()` bytes from `offset` bytes after the start.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`], and `out` is left as it was.
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), MemoryError> {
        let from = self.checked(offset, out.len())?;
        // SAFETY: as in `write_at`, with the copy the other way.
        unsafe { from.as_ptr().copy_to(out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    /// Sets `len` bytes from `offset` on to `byte`.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`], and nothing is written.
    pub fn fill(&self, offset: usize, len: usize, byte: u8) -> Result<(), MemoryError> {
        let to = self.checked(offset, len)?;
        // SAFETY: `checked` keeps the target inside the region.
        unsafe { to.as_ptr().write_bytes(byte, len) };
        Ok(())
    }

    /// Where the bytes from `offset` on first differ from `expected`, or `None` if they are equal.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`] when `expected` does not fit inside the region at `offset`.
    pub fn first_difference(&self, offset: usize, expected: &[u8]) -> Result<Option<usize>, MemoryError> {
        let mut block = [0u8; 1024];
        let mut at = 0;
        for want in expected.chunks(block.len()) {
            let got = block.get_mut(..want.len()).unwrap_or_default();
            self.read_at(offset.saturating_add(at), got)?;
            if got != want {
                return Ok(got.iter().zip(want).position(|(g, w)| g != w).map(|i| at + i));
            }
            at += want.len();
        }
        Ok(None)
    }

    /// Reads the byte at `offset` afresh (atomically, acquire), for applications that wait for a byte to change.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`].
    pub fn load(&self, offset: usize) -> Result<u8, MemoryError> {
        let at = self.checked(offset, 1)?;
        // SAFETY: one byte inside the region; a byte needs no alignment.
        Ok(unsafe { AtomicU8::from_ptr(at.as_ptr()) }.load(Ordering::Acquire))
    }

    /// Writes the byte at `offset` (atomically, release).
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`].
    pub fn store(&self, offset: usize, byte: u8) -> Result<(), MemoryError> {
        let at = self.checked(offset, 1)?;
        // SAFETY: as in `load`.
        unsafe { AtomicU8::from_ptr(at.as_ptr()) }.store(byte, Ordering::Release);
        Ok(())
    }

    /// The first byte's place in this process.
    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn checked(&self, offset: usize, len: usize) -> Result<NonNull<u8>, MemoryError> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(MemoryError::OutOfBounds {
                addr: self.iova.saturating_add(offset as u64),
                len: len as u64,
                region_addr: self.iova,
                region_len: self.len as u64,
            });
        }
        // SAFETY: `offset <= len` of the region, so the result is inside it or one past its end.
        Ok(unsafe { self.base.add(offset) })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        match self.owner {
            // SAFETY: `base` came from `alloc_zeroed` with this very layout, and this is its only owner.
            Owner::Allocated(layout) => unsafe { dealloc(self.base.as_ptr(), layout) },
            Owner::Boxed => {
                let slice = NonNull::slice_from_raw_parts(self.base, self.len);
                // SAFETY: `base` and `len` came from `Box::into_raw` of a boxed slice of this length.
                drop(unsafe { Box::from_raw(slice.as_ptr()) });
            }
            Owner::Borrowed => {}
        }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({} bytes at {:#x})", self.len, self.iova)
    }
}

fn address_of(base: NonNull<u8>) -> u64 {
    base.as_ptr().expose_provenance() as u64
}

fn allocate(len: usize) -> Result<(NonNull<u8>, Layout), MemoryError> {
    check_range(0, len)?;
    let out_of_memory = MemoryError::OutOfMemory { len: len as u64 };
    let layout = Layout::from_size_align(len, REGION_ALIGN).map_err(|_| out_of_memory)?;
    // SAFETY: the layout's size is not zero (`check_range`).
    let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(out_of_memory)?;
    Ok((base, layout))
}

/// A range is valid when it holds a byte and both its ends can be named in 64 bits (and, on the host side, in an `isize`).
fn check_range(addr: u64, len: usize) -> Result<(), MemoryError> {
    let fits = len != 0 && isize::try_from(len).is_ok() && addr.checked_add(len as u64).is_some();
    if fits { Ok(()) } else { Err(MemoryError::BadRange { addr, len: len as u64 }) }
}
