//! All performance settings of a lane, each with the reason for its value.

/// Frames taken from one port before the next is polled. Small enough that one busy port does not delay
/// acknowledgements on the others, large enough to spread a poll's fixed costs.
pub(super) const RX_BURST: usize = 64;

/// Maximum of frames received in one poll of a busy driver whose acknowledgements wait for the next: a short message,
/// or a reply with the acknowledgements of earlier packets. With more, a peer waits for room rather than for a reply.
pub(super) const DEFERRED_ACKS_MAX_FRAMES: usize = 4;

/// Frames built before they are handed to the ports. Sixteen full packets stay in the first-level cache
/// between the checksum's pass over the payload and the port's copy.
pub(super) const TX_BURST: usize = 16;

/// The same for ports that benefit from many frames of one path at a time (kernel segmentation offload): sixteen
/// batches of fifteen full packets. More would leave the second-level cache between the checksum and the kernel's
/// copy, and make the last packet wait long for the first.
pub(super) const TX_BURST_BATCHED: usize = 240;

/// Maximum of frames sent in one poll before received packets are processed again.
pub(super) const TX_PER_POLL: usize = 4 * TX_BURST;

/// Interval of checks of the ports' link states, in nanoseconds: well below a round trip over a fabric, far above a
/// poll.
pub(super) const LINK_CHECK_NS: u64 = 10_000;

/// A lane whose polls are more than this apart, in nanoseconds, was stalled: even the longest poll takes less, and a
/// scheduler that runs another thread meanwhile takes more.
pub(super) const STALL_THRESHOLD_NS: u64 = 250_000;

/// Time for which a completed request waits for ports to release its payload, in nanoseconds, before a recall: far
/// above what a responsive peer takes, far below what an application would notice.
pub(super) const TX_RECALL_AFTER_NS: u64 = 1_000_000;

/// Capacity of the queue of frames that other lanes forward; more are dropped. It covers a stall of a millisecond
/// at a million packets a second.
pub(super) const FORWARD_QUEUE_FRAMES: usize = 1024;

/// Frames taken from that queue in one poll, as from a port.
pub(super) const FORWARD_QUEUE_BURST: usize = RX_BURST;

/// Polls of a threaded lane between two releases of its lock (it releases it at once when a control call waits).
pub(super) const POLLS_PER_LOCK: usize = 64;

/// Empty polls before an idle threaded lane starts to yield its core: tens of microseconds.
pub(super) const IDLE_POLLS: u32 = 512;

/// Empty polls, each with a yield of the core, before a napping lane naps: on a quiet core about a millisecond.
pub(super) const YIELDS_BEFORE_NAP: u32 = 4096;

/// Empty polls after which the thread of a hybrid lane naps. The application may spin on every core there is: a thread that
/// sleeps is scheduled when a frame arrives, one that yields waits for the end of the application's time slice.
pub(super) const HYBRID_IDLE_POLLS: u32 = 8;

/// The first sleep of the thread of a hybrid lane that the application polls, in nanoseconds: what a thread that naps
/// takes to wake on a busy core.
pub(super) const DEFERRAL_MIN_NS: u64 = 50_000;

/// The longest such sleep. The thread's looks then cost a core a hundredth of its time, and an application that stops
/// polling for good is missed for no longer than a short retransmission timeout.
pub(super) const DEFERRAL_MAX_NS: u64 = 1_000_000;

/// Looks of that thread at which the application had polled, and which it ignores, at most: a program that polls
/// between waits for memory loses one of this many waits to a sleep.
pub(super) const DEFERRALS_SKIPPED_MAX: u32 = 63;

/// Control calls delay a busy lane with a thread of its own for at most one part in this many of its time. After each
/// call the lane runs for this many times as long, less one, before the next is served. An idle lane serves one call
/// per poll.
pub(super) const CONTROL_SHARE: u64 = 16;

/// Minimum interval of a busy lane's snapshots of its counters, in nanoseconds. Waking eight sleeping readers costs
/// it some tens of microseconds.
pub(super) const SNAPSHOT_NS: u64 = 1_000_000;

/// Yields of its core by a control call that waits for a poll of its lane, before it sleeps instead.
pub(super) const YIELDS_BEFORE_SLEEP: u32 = 64;

/// Capacity of the queue of asynchronous events; newer ones are lost and counted.
pub(super) const ASYNC_EVENTS: usize = 1024;

/// The longest such sleep, in nanoseconds.
pub(super) const CONTROL_SLEEP_NS: u64 = 50_000;

/// Send requests that a queue pair can post in memory of its own before the lane has to take one. Beyond that it
/// takes rings of this size from the lane's spare ones, or new ones. The number covers the backlog of a lane with a
/// core of its own, and is small beside the rest of a queue pair.
pub(super) const SEND_SEGMENT: usize = 16;

/// Spare rings of send requests that a lane keeps for all its queue pairs: 256 of them are about 400 KB, and a burst of
/// 4,096 requests.
pub(super) const SEND_SEGMENT_POOL: usize = 256;

/// The same for receive requests, which are 32 bytes each.
pub(super) const RECV_SEGMENT: usize = 8;

/// Spare rings of receive requests that a lane keeps: about 400 KB, and 4,096 requests.
pub(super) const RECV_SEGMENT_POOL: usize = 512;
