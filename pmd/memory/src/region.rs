//! One range of shared bytes.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::copy::copy;
use super::crc::{crc32, crc32_shared};
use super::{Payload, Pieces, RegionError};

/// Alignment of allocated regions in bytes: a page, so that drivers can map them whole.
const REGION_ALIGN: usize = 4096;
/// Regions of this length and longer are mappings of their own: the allocator would write zeros to every page.
const MAPPED_MIN: usize = 1 << 20;

/// A range of bytes that packets are read from and written to, and the address by which peers name its first byte.
///
/// That address (`iova`) is the pointer's own value unless another was asked for. All accessors are bounds-checked, and
/// may be called from any thread whatever others do with the same bytes; the [module](super) tells what they then see.
pub struct Region {
    /// `None` for a virtual region.
    base: Option<NonNull<u8>>,
    len: usize,
    iova: u64,
    owner: Owner,
}

/// How the bytes are given back.
enum Owner {
    Allocated(Layout),
    Boxed,
    /// `munmap`s this many bytes.
    Mapped(usize),
    Borrowed,
}

// SAFETY: `base` points to memory that lives as long as the region whatever thread drops it. Every access in this
// crate is by the copies of `copy.rs`, by atomic bytes and by atomics of 8 bytes, which may race with each other; who
// gets a pointer or a view answers for his own.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

/// A range of a region, known to be inside it: where bytes that arrive will go.
#[derive(Clone, Copy, Debug)]
pub struct Room<'a> {
    region: &'a Region,
    offset: usize,
    len: usize,
}

impl Room<'_> {
    /// Length in bytes.
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no room at all.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies `bytes`, of which no more count than there is room for, to its start. The last one is stored last, with
    /// release ordering.
    #[inline]
    pub fn fill(self, bytes: &[u8]) {
        let bytes = bytes.get(..self.len).unwrap_or(bytes);
        // SAFETY: the room is inside the region, and the bytes are no more.
        unsafe { self.region.copy_in(self.offset, bytes) };
    }

    /// Copies what a frame carries, of which no more counts than there is room for, to its start: piece by piece, the
    /// last byte of each last and with release ordering.
    #[inline]
    pub fn place(self, data: Pieces<'_>) {
        let mut at = self.offset;
        for piece in data.first_bytes(self.len).iter() {
            let copied = piece.copy_to(self.region, at);
            debug_assert!(copied.is_ok(), "both ranges were checked");
            at += piece.len();
        }
    }

    /// Copies one piece, of which no more counts than there is room for, to its start, and returns the room after it.
    pub(super) fn place_next(self, piece: Payload<'_>) -> Self {
        let piece = piece.first_bytes(self.len);
        let copied = piece.copy_to(self.region, self.offset);
        debug_assert!(copied.is_ok(), "both ranges were checked");
        Self { offset: self.offset + piece.len(), len: self.len - piece.len(), ..self }
    }
}

impl Region {
    /// `len` zeroed bytes on a page boundary, named by their own address. From 1 MiB on the system gives each page when it is first
    /// touched: a program that measures touches all of them before.
    ///
    /// # Errors
    /// [`RegionError::BadRange`] for zero bytes, [`RegionError::OutOfMemory`] when the allocator refuses.
    pub fn alloc(len: usize) -> Result<Arc<Self>, RegionError> {
        let (base, owner) = allocate(len)?;
        Self::build(Some(base), len, address_of(base), owner)
    }

    /// `len` zeroed bytes whose first byte peers name by the address `iova`.
    ///
    /// # Errors
    /// As [`Region::alloc`]; also [`RegionError::BadRange`] when `iova + len` passes 2^64.
    pub fn alloc_at(len: usize, iova: u64) -> Result<Arc<Self>, RegionError> {
        check_range(iova, len)?;
        let (base, owner) = allocate(len)?;
        Self::build(Some(base), len, iova, owner)
    }

    /// `len` bytes that exist in name only: they read as zeros, and what is written is forgotten. For simulations
    /// that move lengths and no data.
    ///
    /// # Errors
    /// [`RegionError::BadRange`] for zero bytes and when `iova + len` passes 2^64.
    pub fn virtual_at(len: usize, iova: u64) -> Result<Arc<Self>, RegionError> {
        Self::build(None, len, iova, Owner::Borrowed)
    }

    /// Takes the bytes of a vector over without copying them (a vector with spare capacity is shrunk first).
    ///
    /// # Errors
    /// [`RegionError::BadRange`] for an empty vector.
    pub fn from_vec(bytes: Vec<u8>) -> Result<Arc<Self>, RegionError> {
        let len = bytes.len();
        check_range(0, len)?;
        let raw = Box::into_raw(bytes.into_boxed_slice());
        let Some(base) = NonNull::new(raw.cast::<u8>()) else {
            return Err(RegionError::BadRange { addr: 0, len: len as u64 });
        };
        Self::build(Some(base), len, address_of(base), Owner::Boxed)
    }

    /// `len` zeroed bytes of huge pages (`MAP_HUGETLB`, of the system's default size), rounded up to whole ones.
    ///
    /// # Errors
    /// [`RegionError::Map`] where no huge pages are set aside (`/proc/sys/vm/nr_hugepages`), [`RegionError::BadRange`].
    pub fn alloc_huge(len: usize) -> Result<Arc<Self>, RegionError> {
        check_range(0, len)?;
        let page = huge_page_len();
        let whole =
            len.checked_next_multiple_of(page).ok_or(RegionError::BadRange { addr: 0, len: len as u64 })?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | libc::MAP_POPULATE;
        Self::mapped(whole, whole, flags, -1, 0)
    }

    /// Maps `len` bytes of a file from `offset` on, shared with everybody else who maps them: a memfd, a file of
    /// `/dev/shm`, a device's memory. The file descriptor may be closed afterwards.
    ///
    /// A file that is shorter than the mapping is refused. Somebody who cuts it short later makes the next access to the lost bytes
    /// end the process (`SIGBUS`), by a packet as well; seal a memfd against that (`F_SEAL_SHRINK`) before it is shared.
    ///
    /// # Errors
    /// [`RegionError::FileTooShort`]; [`RegionError::Map`] with what the system said, such as for an offset that is not a multiple of the page size;
    /// [`RegionError::BadRange`].
    pub fn map_shared(file: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Arc<Self>, RegionError> {
        let bad = RegionError::BadRange { addr: offset, len: len as u64 };
        check_range(offset, len)?;
        let start = libc::off_t::try_from(offset).map_err(|_| bad)?;
        if let Some(file_len) = length_of(file)
            && offset + len as u64 > file_len
        {
            return Err(RegionError::FileTooShort { offset, len: len as u64, file_len });
        }
        Self::mapped(len, len, libc::MAP_SHARED, file.as_raw_fd(), start)
    }

    fn mapped(
        len: usize,
        whole: usize,
        flags: i32,
        fd: i32,
        offset: libc::off_t,
    ) -> Result<Arc<Self>, RegionError> {
        let base = map(whole, flags, fd, offset).map_err(|error| RegionError::Map {
            len: whole as u64,
            errno: error.raw_os_error().unwrap_or(0),
        })?;
        let base = base.ok_or(RegionError::BadRange { addr: 0, len: len as u64 })?;
        Self::build(Some(base), len, address_of(base), Owner::Mapped(whole))
    }

    /// Borrows `len` bytes at `base` that someone else owns, named by their own address.
    ///
    /// # Errors
    /// [`RegionError::BadRange`] for a null pointer or zero bytes.
    ///
    /// # Safety
    /// The bytes must be valid for reads and writes until the last clone of the returned region is gone. While it
    /// is there, no Rust reference to them may be used, and other accesses that may meet those of the network must be
    /// atomic: of one byte each, or of 8 aligned bytes where the network uses those as a [counter](super#counters).
    pub unsafe fn from_raw(base: *mut u8, len: usize) -> Result<Arc<Self>, RegionError> {
        let iova = base.expose_provenance() as u64;
        // SAFETY: as the caller promises.
        unsafe { Self::from_raw_at(base, len, iova) }
    }

    /// The same, with the address by which peers name the first byte.
    ///
    /// # Errors
    /// As [`Region::from_raw`]; also [`RegionError::BadRange`] when `iova + len` passes 2^64.
    ///
    /// # Safety
    /// As [`Region::from_raw`].
    pub unsafe fn from_raw_at(base: *mut u8, len: usize, iova: u64) -> Result<Arc<Self>, RegionError> {
        let addr = base.addr() as u64;
        check_range(addr, len)?;
        let base = NonNull::new(base).ok_or(RegionError::BadRange { addr, len: len as u64 })?;
        Self::build(Some(base), len, iova, Owner::Borrowed)
    }

    fn build(
        base: Option<NonNull<u8>>,
        len: usize,
        iova: u64,
        owner: Owner,
    ) -> Result<Arc<Self>, RegionError> {
        // The value owns the bytes from here on, so an error below gives them back.
        let region = Self { base, len, iova, owner };
        check_range(iova, len)?;
        Ok(Arc::new(region))
    }

    /// The address by which peers and work requests name the first byte.
    #[inline]
    pub fn iova(&self) -> u64 {
        self.iova
    }

    /// Length in bytes, never zero.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Always false: a region holds at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Whether there are no bytes behind the addresses; see [`Region::virtual_at`].
    pub fn is_virtual(&self) -> bool {
        self.base.is_none()
    }

    /// Distance of the address `addr` from the first byte, if all of `len` bytes from there are inside.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`].
    #[inline]
    pub fn offset_of(&self, addr: u64, len: u64) -> Result<usize, RegionError> {
        let region_len = self.len as u64;
        match addr.checked_sub(self.iova) {
            Some(offset) if offset <= region_len && len <= region_len - offset => Ok(offset as usize),
            _ => Err(RegionError::OutOfBounds { addr, len, region_addr: self.iova, region_len }),
        }
    }

    /// Refers to `len` bytes from `offset` on.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`].
    #[inline]
    pub fn payload(self: &Arc<Self>, offset: usize, len: usize) -> Result<Payload<'_>, RegionError> {
        Payload::of_region(self, offset, len)
    }

    /// Copies `bytes` to `offset` bytes from the start. The last byte is stored last, with release ordering.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`], and nothing is written.
    #[inline]
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), RegionError> {
        self.check(offset, bytes.len())?;
        // SAFETY: just checked.
        unsafe { self.copy_in(offset, bytes) };
        Ok(())
    }

    /// The `len` bytes from the address `addr` on, as a peer names it.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`].
    #[inline]
    pub fn room(&self, addr: u64, len: usize) -> Result<Room<'_>, RegionError> {
        Ok(Room { offset: self.offset_of(addr, len as u64)?, len, region: self })
    }

    /// The `len` bytes from `offset` bytes after the start.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`].
    #[inline]
    pub fn room_at(&self, offset: usize, len: usize) -> Result<Room<'_>, RegionError> {
        self.check(offset, len)?;
        Ok(Room { offset, len, region: self })
    }

    /// Copies what a frame carries to the address `addr`, as a peer names it, like [`Room::place`].
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`] if not all of it fits there, and nothing is written.
    #[inline]
    pub fn place(&self, addr: u64, data: &Pieces<'_>) -> Result<(), RegionError> {
        self.room(addr, data.len())?.place(*data);
        Ok(())
    }

    /// Copies `len` bytes from `from` on to `offset` bytes from the start of `target`, like [`Region::write_at`].
    pub(super) fn copy_to(
        &self,
        from: usize,
        len: usize,
        target: &Self,
        offset: usize,
    ) -> Result<(), RegionError> {
        self.check(from, len)?;
        target.check(offset, len)?;
        let (Some(to), Some(rest)) = (target.base, len.checked_sub(1)) else { return Ok(()) };
        let Some(source) = self.base else { return target.fill(offset, len, 0) };
        // SAFETY: both ranges were just checked, and the two regions are alive. Every access may race with others.
        unsafe {
            let (source, to) = (source.add(from).as_ptr(), to.add(offset).as_ptr());
            copy(source, to, rest);
            let last = AtomicU8::from_ptr(source.add(rest)).load(Ordering::Relaxed);
            AtomicU8::from_ptr(to.add(rest)).store(last, Ordering::Release);
        }
        Ok(())
    }

    /// # Safety
    /// The range must be inside the region.
    #[inline]
    unsafe fn copy_in(&self, offset: usize, bytes: &[u8]) {
        let (Some(base), [rest @ .., last]) = (self.base, bytes) else { return };
        // SAFETY: the target is inside the region, which this value keeps alive. No reference to its bytes exists, so
        // `bytes` is elsewhere (a view's holder promised that nobody writes).
        unsafe {
            let to = base.add(offset);
            copy(rest.as_ptr(), to.as_ptr(), rest.len());
            AtomicU8::from_ptr(to.add(rest.len()).as_ptr()).store(*last, Ordering::Release);
        }
    }

    /// Copies `out.len()` bytes from `offset` bytes after the start.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`], and `out` is left as it was.
    #[inline]
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), RegionError> {
        self.check(offset, out.len())?;
        self.copy_out(offset, out);
        Ok(())
    }

    /// As [`Region::read_at`]; a range that is not inside is a defect of the caller's.
    #[inline]
    pub(super) fn copy_out(&self, offset: usize, out: &mut [u8]) {
        assert!(self.check(offset, out.len()).is_ok(), "the caller checked the range");
        match self.base {
            // SAFETY: the range was just checked, and `out` is private to the caller.
            Some(base) => unsafe { copy(base.add(offset).as_ptr(), out.as_mut_ptr(), out.len()) },
            None => out.fill(0),
        }
    }

    /// The CRC-32 of Ethernet, continued from `state`; a range that is not inside is a defect of the caller's.
    pub(super) fn crc32(&self, offset: usize, len: usize, state: u32) -> u32 {
        assert!(self.check(offset, len).is_ok(), "the caller checked the range");
        if let Some(base) = self.base {
            // SAFETY: the range is inside the region.
            return unsafe { crc32_shared(state, base.add(offset).as_ptr(), len) };
        }
        let zeros = [0; 1024];
        let parts = (0..len).step_by(zeros.len());
        parts.fold(state, |state, at| crc32(state, zeros.get(..len - at).unwrap_or(&zeros)))
    }

    /// Sets `len` bytes from `offset` on to `byte`.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`], and nothing is written.
    pub fn fill(&self, offset: usize, len: usize, byte: u8) -> Result<(), RegionError> {
        self.check(offset, len)?;
        let block = [byte; 1024];
        let mut at = 0;
        while at < len {
            let count = block.len().min(len - at);
            self.write_at(offset + at, block.get(..count).unwrap_or_default())?;
            at += count;
        }
        Ok(())
    }

    /// Where the bytes from `offset` on first differ from `expected`, or `None` if they are equal.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`] when `expected` does not fit inside the region at `offset`.
    pub fn first_difference(&self, offset: usize, expected: &[u8]) -> Result<Option<usize>, RegionError> {
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

    /// Reads the byte at `offset` afresh (atomically, acquire), for applications that wait for a byte to change; the
    /// [module](super#waiting-for-a-byte) tells what it proves.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`].
    pub fn load(&self, offset: usize) -> Result<u8, RegionError> {
        self.check(offset, 1)?;
        let Some(base) = self.base else { return Ok(0) };
        // SAFETY: one byte inside the region; a byte needs no alignment.
        Ok(unsafe { AtomicU8::from_ptr(base.add(offset).as_ptr()) }.load(Ordering::Acquire))
    }

    /// Writes the byte at `offset` (atomically, release).
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`].
    pub fn store(&self, offset: usize, byte: u8) -> Result<(), RegionError> {
        self.write_at(offset, &[byte])
    }

    /// Adds `add` to the counter of 8 bytes at `offset`, and returns its value before. It wraps at 2^64.
    ///
    /// The counter is in the byte order of this host. The access is atomic for all threads and processes that share the
    /// bytes, with acquire and release ordering; the [module](super#counters) explains how it mixes with copies. A
    /// virtual region returns 0 and changes nothing.
    ///
    /// ```
    /// let region = spindrift_memory::Region::alloc(64)?;
    /// region.store_u64(8, 40)?;
    /// assert_eq!(region.fetch_add(8, 2)?, 40);
    /// assert_eq!(region.compare_swap(8, 42, 7)?, 42);
    /// assert_eq!(region.load_u64(8)?, 7);
    /// # Ok::<(), spindrift_memory::RegionError>(())
    /// ```
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`], or [`RegionError::Misaligned`] if the bytes do not start at a multiple of 8 in
    /// this process. Nothing is changed then.
    pub fn fetch_add(&self, offset: usize, add: u64) -> Result<u64, RegionError> {
        Ok(self.counter(offset)?.map_or(0, |counter| counter.fetch_add(add, Ordering::AcqRel)))
    }

    /// Sets the counter of 8 bytes at `offset` to `swap` if it is `compare`, and returns its value before. It was
    /// changed if that is `compare`.
    ///
    /// It is atomic like [`Region::fetch_add`]. A virtual region returns 0 and changes nothing.
    ///
    /// # Errors
    /// As [`Region::fetch_add`].
    pub fn compare_swap(&self, offset: usize, compare: u64, swap: u64) -> Result<u64, RegionError> {
        let Some(counter) = self.counter(offset)? else { return Ok(0) };
        let swapped = counter.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire);
        Ok(swapped.unwrap_or_else(|before| before))
    }

    /// Reads the counter of 8 bytes at `offset` as a whole (atomically, acquire), for applications that wait
    /// for it to change. A virtual region returns 0.
    ///
    /// # Errors
    /// As [`Region::fetch_add`].
    pub fn load_u64(&self, offset: usize) -> Result<u64, RegionError> {
        Ok(self.counter(offset)?.map_or(0, |counter| counter.load(Ordering::Acquire)))
    }

    /// Writes the counter of 8 bytes at `offset` as a whole (atomically, release).
    ///
    /// # Errors
    /// As [`Region::fetch_add`].
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<(), RegionError> {
        if let Some(counter) = self.counter(offset)? {
            counter.store(value, Ordering::Release);
        }
        Ok(())
    }

    /// The 8 bytes at `offset`, to be accessed as a whole. `None` for a virtual region.
    ///
    /// Read-modify-write operations acquire and release, so a thread that sees a count sees all that was written before
    /// it was counted. That needs no `SeqCst`, which would add one order of all accesses to all counters: verbs promise
    /// none.
    fn counter(&self, offset: usize) -> Result<Option<&AtomicU64>, RegionError> {
        self.check(offset, size_of::<AtomicU64>())?;
        let Some(base) = self.base else { return Ok(None) };
        // SAFETY: the 8 bytes are inside the region.
        let at = unsafe { base.add(offset) }.cast::<AtomicU64>();
        if !at.is_aligned() {
            let addr = self.iova + offset as u64;
            return Err(RegionError::Misaligned { addr, at: at.addr().get() as u64 });
        }
        // SAFETY: aligned, and inside the region, which the reference borrows. All other accesses are atomic. Those of
        // single bytes are of another size: processors and compilers have no trouble with that, and the rules of the
        // language have not settled it.
        Ok(Some(unsafe { at.as_ref() }))
    }

    /// The bytes themselves, without a copy. `None` for a virtual region.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`].
    ///
    /// # Safety
    /// Nobody may write to these bytes while the slice is held: no accessor of this type on another thread, no peer
    /// with a key that grants it, no other process that maps them. Between the completion of a receive and
    /// the next message that the application allows its peer, that is so.
    pub unsafe fn view(&self, offset: usize, len: usize) -> Result<Option<&[u8]>, RegionError> {
        self.check(offset, len)?;
        let Some(base) = self.base else { return Ok(None) };
        // SAFETY: the range is inside the region and initialised; that nobody writes is the caller's promise.
        Ok(Some(unsafe { std::slice::from_raw_parts(base.add(offset).as_ptr(), len) }))
    }

    /// The first byte's place in this process, if it has one.
    #[inline]
    pub(super) fn base(&self) -> Option<NonNull<u8>> {
        self.base
    }

    #[inline]
    pub(super) fn check(&self, offset: usize, len: usize) -> Result<(), RegionError> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(RegionError::OutOfBounds {
                addr: self.iova.saturating_add(offset as u64),
                len: len as u64,
                region_addr: self.iova,
                region_len: self.len as u64,
            });
        }
        Ok(())
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let Some(base) = self.base else { return };
        match self.owner {
            // SAFETY: `base` came from `alloc_zeroed` with this very layout, and this is its only owner.
            Owner::Allocated(layout) => unsafe { dealloc(base.as_ptr(), layout) },
            Owner::Boxed => {
                let slice = NonNull::slice_from_raw_parts(base, self.len);
                // SAFETY: `base` and `len` came from `Box::into_raw` of a boxed slice of this length.
                drop(unsafe { Box::from_raw(slice.as_ptr()) });
            }
            Owner::Mapped(len) => {
                // SAFETY: `base` came from `mmap` of this length, and nobody uses it any more.
                unsafe { libc::munmap(base.as_ptr().cast(), len) };
            }
            Owner::Borrowed => {}
        }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_virtual() { "virtual bytes" } else { "bytes" };
        write!(f, "Region({} {kind} at {:#x})", self.len, self.iova)
    }
}

fn address_of(base: NonNull<u8>) -> u64 {
    base.as_ptr().expose_provenance() as u64
}

fn allocate(len: usize) -> Result<(NonNull<u8>, Owner), RegionError> {
    check_range(0, len)?;
    let out_of_memory = RegionError::OutOfMemory { len: len as u64 };
    if len >= MAPPED_MIN {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let base = map(len, flags, -1, 0).map_err(|_| out_of_memory)?;
        return Ok((base.ok_or(out_of_memory)?, Owner::Mapped(len)));
    }
    let layout = Layout::from_size_align(len, REGION_ALIGN).map_err(|_| out_of_memory)?;
    // SAFETY: the layout's size is not zero (`check_range`).
    let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(out_of_memory)?;
    Ok((base, Owner::Allocated(layout)))
}

/// A new mapping that can be read and written.
fn map(
    len: usize,
    flags: libc::c_int,
    fd: libc::c_int,
    offset: libc::off_t,
) -> std::io::Result<Option<NonNull<u8>>> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, at an address that the system chooses, touches nothing that exists.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, fd, offset) };
    if at == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    Ok(NonNull::new(at.cast()))
}

/// The length of a file in bytes; of devices, which have none that counts, and where it cannot be told, nothing.
fn length_of(file: BorrowedFd<'_>) -> Option<u64> {
    let file = std::fs::File::from(file.try_clone_to_owned().ok()?);
    let metadata = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
    Some(metadata.len())
}

/// A range is valid when it holds a byte and both its ends can be named in 64 bits (and, on the host side, in an `isize`).
fn check_range(addr: u64, len: usize) -> Result<(), RegionError> {
    let fits = len != 0 && isize::try_from(len).is_ok() && addr.checked_add(len as u64).is_some();
    if fits { Ok(()) } else { Err(RegionError::BadRange { addr, len: len as u64 }) }
}

/// The system's default size of a huge page in bytes.
fn huge_page_len() -> usize {
    let told = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = told.lines().find_map(|line| line.strip_prefix("Hugepagesize:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<usize>().ok());
    kib.map_or(2 << 20, |kib| kib << 10)
}
