//! A socket that sees every frame of a network namespace.

use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use spindrift_pmd::testing::within;

/// Room for what waits to be looked at.
const BUFFER: libc::c_int = 64 << 20;
/// Longest frame, and what the kernel handles as one.
const FRAME_MAX: usize = 1 << 17;

/// Sees the frames of all interfaces, in both directions: a switch's twice, where it comes in and where it goes out.
pub(crate) struct RawSocket(OwnedFd);

impl RawSocket {
    pub(crate) fn new(namespace: &str) -> Self {
        within(namespace, || {
            let all = i32::from((libc::ETH_P_ALL as u16).to_be());
            // SAFETY: a plain call.
            let raw = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, all) };
            assert!(raw >= 0);
            set(raw, libc::SO_RCVBUFFORCE, &BUFFER);
            set(raw, libc::SO_RCVTIMEO, &libc::timeval { tv_sec: 0, tv_usec: 50_000 });
            // SAFETY: just opened, and nobody else's.
            Self(unsafe { OwnedFd::from_raw_fd(raw) })
        })
    }

    /// Calls `note` for each frame until `over`, and then for those that are left.
    pub(crate) fn listen(&self, over: &AtomicBool, mut note: impl FnMut(&[u8])) {
        let mut frame = vec![0; FRAME_MAX];
        loop {
            let last = over.load(Ordering::Acquire);
            while let Some(len) = self.next_frame(&mut frame) {
                note(&frame[..len]);
            }
            if last {
                return;
            }
        }
    }

    /// The next frame's length; `None` when none came for a while.
    fn next_frame(&self, frame: &mut [u8]) -> Option<usize> {
        // SAFETY: the buffer is as long as it says and lives during the call.
        let len = unsafe { libc::recv(self.0.as_raw_fd(), frame.as_mut_ptr().cast(), frame.len(), 0) };
        usize::try_from(len).ok()
    }
}

fn set<T>(socket: libc::c_int, option: libc::c_int, value: &T) {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the value lives during the call, and its length is right.
    let result =
        unsafe { libc::setsockopt(socket, libc::SOL_SOCKET, option, std::ptr::from_ref(value).cast(), len) };
    assert_eq!(result, 0, "option {option}");
}

/// Ends listening, also when the test fails.
pub(crate) struct OverOnDrop<'a>(pub(crate) &'a AtomicBool);

impl Drop for OverOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}
