//! Sees every frame of a network namespace.

use std::os::fd::{FromRawFd as _, OwnedFd};
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use spindrift_pmd::testing::within;

const FRAMES: usize = 1 << 14;

/// A ring into which the kernel copies the frames of all interfaces, in both directions: a switch's twice, where it comes in and where
/// it goes out. (What a plain packet socket would give is the packet itself, in which the kernel has shifted a uSID since.)
pub(crate) struct Ring {
    _socket: OwnedFd,
    memory: NonNull<u8>,
    /// Bytes of a frame, with what the kernel says of it.
    frame: usize,
    /// The next one to look at.
    next: usize,
}

// SAFETY: the memory is nobody else's.
unsafe impl Send for Ring {}

impl Ring {
    /// Room for so many bytes of each frame, a power of two; the rest is cut off.
    pub(crate) fn new(namespace: &str, frame: usize) -> Self {
        within(namespace, || Self::here(frame))
    }

    fn here(frame: usize) -> Self {
        let all = i32::from((libc::ETH_P_ALL as u16).to_be());
        // Sees nothing until it has its ring.
        // SAFETY: a plain call.
        let raw = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        assert!(raw >= 0);
        // SAFETY: just opened, and nobody else's.
        let socket = unsafe { OwnedFd::from_raw_fd(raw) };
        set(raw, libc::PACKET_VERSION, &libc::tpacket_versions::TPACKET_V2);
        let ring = libc::tpacket_req {
            tp_block_size: 1 << 16,
            tp_block_nr: ((frame * FRAMES) >> 16) as u32,
            tp_frame_size: frame as u32,
            tp_frame_nr: FRAMES as u32,
        };
        set(raw, libc::PACKET_RX_RING, &ring);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: new memory, which nobody knows yet.
        let memory =
            unsafe { libc::mmap(std::ptr::null_mut(), frame * FRAMES, access, libc::MAP_SHARED, raw, 0) };
        assert_ne!(memory, libc::MAP_FAILED);
        // SAFETY: all zeros are an address.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = all as u16;
        let len = size_of_val(&address) as libc::socklen_t;
        // SAFETY: the address lives during the call, and its length is right.
        assert_eq!(unsafe { libc::bind(raw, std::ptr::from_ref(&address).cast(), len) }, 0);
        Self { _socket: socket, memory: NonNull::new(memory.cast()).unwrap(), frame, next: 0 }
    }

    /// Calls `note` for each frame that is there.
    pub(crate) fn look(&mut self, mut note: impl FnMut(&[u8])) {
        loop {
            // SAFETY: inside the memory, and the status comes first.
            let (header, status) = unsafe {
                let header = self.memory.add(self.next * self.frame).cast::<libc::tpacket2_hdr>();
                (header, header.cast::<AtomicU32>().as_ref())
            };
            if status.load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
                return;
            }
            // SAFETY: the kernel gave it, and takes it back below.
            let bytes = unsafe {
                let told = header.as_ref();
                let from = header.cast::<u8>().add(told.tp_mac.into());
                slice::from_raw_parts(from.as_ptr(), told.tp_snaplen as usize)
            };
            note(bytes);
            status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
            self.next = (self.next + 1) % FRAMES;
        }
    }

    /// Calls `note` for each frame until `over`, and then for those that are left.
    pub(crate) fn listen(&mut self, over: &AtomicBool, mut note: impl FnMut(&[u8])) {
        while !over.load(Ordering::Acquire) {
            self.look(&mut note);
            thread::sleep(Duration::from_millis(1));
        }
        self.look(note);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and is not used any more.
        assert_eq!(unsafe { libc::munmap(self.memory.as_ptr().cast(), self.frame * FRAMES) }, 0);
    }
}

fn set<T>(socket: libc::c_int, option: libc::c_int, value: &T) {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the value lives during the call, and its length is right.
    let result =
        unsafe { libc::setsockopt(socket, libc::SOL_PACKET, option, std::ptr::from_ref(value).cast(), len) };
    assert_eq!(result, 0, "option {option}: {}", std::io::Error::last_os_error());
}

/// Ends listening, also when the test fails.
pub(crate) struct OverOnDrop<'a>(pub(crate) &'a AtomicBool);

impl Drop for OverOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}
