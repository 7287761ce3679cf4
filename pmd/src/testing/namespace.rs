//! Tests that need a network of their own.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Does something in the network namespace that `ip netns add` has called `name`: on a thread of its own, so that the caller stays
/// where it is. Sockets stay where they were made, and can be given back.
///
/// # Panics
/// If there is no such namespace, without the right to go there, and if `work` panics.
#[expect(clippy::panic, reason = "it fails the test that calls it")]
pub fn within<T: Send>(name: &str, work: impl FnOnce() -> T + Send) -> T {
    let path = format!("/run/netns/{name}");
    let go = || {
        let namespace = File::open(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let moved = move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network));
        moved.unwrap_or_else(|error| panic!("{path}: {error}"));
        work()
    };
    let done = thread::scope(|scope| scope.spawn(go).join());
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
