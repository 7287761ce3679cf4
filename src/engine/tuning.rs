//! All performance settings of a lane, each with the reason for its value.

/// Frames taken from one port before the next is asked. Small enough that one busy port does not hold up
/// acknowledgements on the others, large enough to spread a poll's fixed costs.
pub(super) const RX_BURST: usize = 64;

/// Most frames received in one poll of a busy driver whose answers wait for the next: a short message, or a reply to one
/// with the answers to what went before. With more, a peer waits for room rather than for a reply.
pub(super) const RX_FEW: usize = 4;

/// Frames built before they are handed to the ports. Sixteen full packets stay in the first-level cache
/// between the checksum's pass over the payload and the port's copy.
pub(super) const TX_BURST: usize = 16;

/// The same for ports that gain from many frames of one path at a time (kernel segmentation offload): sixteen
/// batches of fifteen full packets. More would leave the second-level cache between the checksum and the kernel's
/// copy, and make the last packet wait long for the first.
pub(super) const TX_BURST_BATCHED: usize = 240;

/// Most frames sent in one poll before received packets get their turn again.
pub(super) const TX_PER_POLL: usize = 4 * TX_BURST;

/// How often the ports' link states are looked at, in nanoseconds: well below a round trip over a fabric,
/// far above a poll.
pub(super) const LINK_CHECK_NS: u64 = 10_000;

/// A lane whose polls lie further apart than this, in nanoseconds, was kept from running: a poll that sends and receives
/// as much as one can takes less, and a scheduler that runs something else meanwhile takes more.
pub(super) const AWAY_NS: u64 = 250_000;

/// How long a completed request waits, in nanoseconds, for ports to let go of its payload before they are made to:
/// far above what a peer takes that is there, far below what an application would notice.
pub(super) const RECALL_AFTER_NS: u64 = 1_000_000;

/// Frames that other lanes have handed to a lane and that it has not taken in yet; more are dropped. As many as a lane
/// that is away for a millisecond may find waiting, at a million packets a second.
pub(super) const INBOX_FRAMES: usize = 1024;

/// Frames taken from there in one poll, as from a port.
pub(super) const INBOX_BURST: usize = RX_BURST;

/// Polls that a threaded lane makes before it looks up from its lock (it does so at once when a control call waits).
pub(super) const POLLS_PER_LOCK: usize = 64;

/// Empty polls before an idle threaded lane starts to give its core away: tens of microseconds.
pub(super) const IDLE_POLLS: u32 = 512;

/// Empty polls, in which the core was given away, before a napping lane naps: on a quiet core about a millisecond.
pub(super) const YIELDS_BEFORE_NAP: u32 = 4096;

/// Control calls hold a busy lane of its own thread up for at most one part in so many of its time: after each call the
/// lane works on for this many times as long, less one, before the next is let in. An idle lane serves one call a turn.
pub(super) const CONTROL_SHARE: u64 = 16;

/// A busy lane renews its counters for readers no more often than this, in nanoseconds. Waking eight sleeping readers
/// costs it some tens of microseconds.
pub(super) const SNAPSHOT_NS: u64 = 1_000_000;

/// How long a control call that waits for its lane to make a turn gives its core away before it sleeps instead.
pub(super) const YIELDS_BEFORE_SLEEP: u32 = 64;

/// Asynchronous events that wait for the application before newer ones are lost and counted.
pub(super) const ASYNC_EVENTS: usize = 1024;

/// The longest such sleep, in nanoseconds.
pub(super) const CONTROL_SLEEP_NS: u64 = 50_000;

/// Send requests that a queue pair can post before the lane has to take one, in memory of its own; beyond, it takes
/// rings of as many from the lane's spare ones, or new ones. As many as a lane with a core of its own lets wait, and small
/// beside the rest of a queue pair.
pub(super) const SEND_RING: usize = 16;

/// Spare rings of send requests that a lane keeps for all its queue pairs: 256 of them are about 230 KB, and a burst of
/// 4,096 requests.
pub(super) const SPARE_SEND_RINGS: usize = 256;

/// The same for receive requests, which are 8 bytes each: beside the 512 that a ring takes by itself, twice as many cost
/// little.
pub(super) const RECV_RING: usize = 32;

/// Spare rings of receive requests that a lane keeps: about 200 KB, and 8,192 requests.
pub(super) const SPARE_RECV_RINGS: usize = 256;
