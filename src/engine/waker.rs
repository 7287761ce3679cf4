//! Waking a lane that sleeps.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};

/// Synchronises a lane's driver, which sleeps when there is no work, with threads that post or send.
///
/// The sleeper sets a flag and then looks for work; the other side posts and then looks for a sleeper. Both swap the
/// same flag, so no wake-up is lost.
#[derive(Debug)]
pub(super) struct Waker {
    /// A sleeper has not been woken yet. Only ever swapped.
    asleep: AtomicBool,
    /// Threads that are about to sleep, sleep, or have not quite woken.
    sleepers: Mutex<u32>,
    /// Readable when a port has received something: a set of the ports' descriptors.
    ports: OwnedFd,
    /// Readable from the first wake-up until all sleepers are awake.
    wake_fd: OwnedFd,
}

impl Waker {
    /// A waker for a lane whose ports have these descriptors.
    pub(super) fn new<'a>(ports: impl IntoIterator<Item = BorrowedFd<'a>>) -> io::Result<Self> {
        let all = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for port in ports {
            // It leaves the set when it is closed.
            epoll::add(&all, port, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        }
        let wake_fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { asleep: AtomicBool::new(false), sleepers: Mutex::new(0), ports: all, wake_fd })
    }

    /// Sleeps for at most this long, unless there is or comes work. It may end early.
    pub(super) fn nap(&self, duration: Duration, is_busy: impl FnOnce() -> bool) {
        {
            *self.sleepers() += 1;
            self.asleep.swap(true, Ordering::AcqRel);
        }
        let mut fds = [&self.ports, &self.wake_fd].map(|fd| PollFd::new(fd, PollFlags::IN));
        if !is_busy() {
            // A time that is too long for the system means for ever. A signal ends the wait, as does a packet.
            let _ = poll(&mut fds, Timespec::try_from(duration).ok().as_ref());
        }
        let [_, wake_fd] = &fds;
        let mut sleepers = self.sleepers();
        *sleepers -= 1;
        if *sleepers == 0 {
            self.asleep.swap(false, Ordering::AcqRel);
            if !wake_fd.revents().is_empty() {
                let _ = rustix::io::read(&self.wake_fd, &mut [0; 8]);
            }
        }
    }

    /// There is work.
    pub(super) fn wake(&self) {
        if self.asleep.swap(false, Ordering::AcqRel) {
            // Read before it is written many times, so it never blocks.
            let _ = rustix::io::write(&self.wake_fd, &1u64.to_ne_bytes());
        }
    }

    fn sleepers(&self) -> MutexGuard<'_, u32> {
        self.sleepers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "about sleep, which takes time")]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd as _;
    use std::sync::atomic::AtomicU32;
    use std::sync::{Arc, mpsc};
    use std::thread;
    use std::time::Instant;

    use super::*;

    const HOUR: Duration = Duration::from_hours(1);
    const SHORT: Duration = Duration::from_millis(20);

    /// The duration of a nap.
    fn nap(waker: &Waker, duration: Duration) -> Duration {
        let begin = Instant::now();
        waker.nap(duration, || false);
        begin.elapsed()
    }

    #[test]
    fn a_nap_lasts_as_long_as_it_was_to_if_nothing_happens() {
        let waker = Waker::new([]).unwrap();
        // Nobody sleeps yet: this wakes nobody later either.
        waker.wake();
        assert!(nap(&waker, SHORT) >= SHORT);
        waker.wake();
        assert!(nap(&waker, SHORT) >= SHORT);
        // Not even a turn of the scheduler.
        waker.nap(HOUR, || true);
        assert!(nap(&waker, SHORT) >= SHORT, "what was to do has been done");
    }

    #[test]
    fn what_has_arrived_ends_a_nap_until_it_is_read() {
        let [near, far] = [0, 1].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
        let idle = UdpSocket::bind("127.0.0.1:0").unwrap();
        let waker = Waker::new([idle.as_fd(), near.as_fd()]).unwrap();
        far.send_to(b"x", near.local_addr().unwrap()).unwrap();
        for _ in 0..2 {
            waker.nap(HOUR, || false);
        }
        near.recv(&mut [0]).unwrap();
        assert!(nap(&waker, SHORT) >= SHORT);
        // A port that has been closed is none.
        far.send_to(b"x", near.local_addr().unwrap()).unwrap();
        drop(near);
        assert!(nap(&waker, SHORT) >= SHORT);
    }

    /// Each turn of a sleeper answers what was posted before it; each post after it wakes the sleeper.
    #[test]
    fn no_post_goes_unseen() {
        const POSTS: u32 = 20_000;
        let posted = AtomicU32::new(0);
        let waker = Waker::new([]).unwrap();
        let (report, reports) = mpsc::channel();
        thread::scope(|s| {
            let (posted, waker) = (&posted, &waker);
            s.spawn(move || {
                for post in 1..=POSTS {
                    posted.store(post, Ordering::Relaxed);
                    waker.wake();
                    // At once in turn, and now and then only when all was seen.
                    while post % 16 == 0 && reports.recv().unwrap() < post {}
                }
            });
            let mut seen = 0;
            while seen < POSTS {
                waker.nap(HOUR, || posted.load(Ordering::Relaxed) != seen);
                seen = posted.load(Ordering::Relaxed);
                let _ = report.send(seen);
            }
        });
        // The last post may have rung for a sleeper who had seen it.
        waker.nap(SHORT, || false);
        assert!(nap(&waker, SHORT) >= SHORT);
    }

    /// One thread goes for good after a short nap: the others are woken all the same.
    #[test]
    fn one_post_wakes_all_who_sleep() {
        let waker = Arc::new(Waker::new([]).unwrap());
        for round in 0..20 {
            let done = Arc::new(AtomicBool::new(false));
            let sleepers = [HOUR, SHORT, HOUR].map(|duration| {
                let (waker, done) = (Arc::clone(&waker), Arc::clone(&done));
                thread::spawn(move || {
                    while !done.load(Ordering::Relaxed) && duration == HOUR {
                        waker.nap(duration, || done.load(Ordering::Relaxed));
                    }
                    waker.nap(duration.min(SHORT), || done.load(Ordering::Relaxed));
                })
            });
            // On a busy machine the short nap may be over before the others have begun theirs.
            let short = &sleepers[1];
            while *waker.sleepers() < if short.is_finished() { 2 } else { 2 + round % 2 } {
                thread::yield_now();
            }
            if round % 4 < 2 {
                thread::sleep(2 * SHORT);
            }
            done.store(true, Ordering::Relaxed);
            waker.wake();
            for sleeper in sleepers {
                sleeper.join().unwrap();
            }
            assert_eq!(*waker.sleepers(), 0);
        }
    }
}
