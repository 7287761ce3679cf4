//! Counters of a lane.

/// Counters of a lane beside those of its endpoint and its ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneCounters {
    /// Polls made.
    pub polls: u64,
    /// Polls that found nothing to do.
    pub idle_polls: u64,
    /// Times that the lane did not run for longer than any poll takes.
    pub interruptions: u64,
    /// Doorbells served: a queue pair had posted requests.
    pub doorbells: u64,
    /// Frames taken from ports.
    pub rx_frames: u64,
    /// Frames handed to ports.
    pub tx_frames: u64,
    /// Frames that a port rejected or did not accept although it had announced room; they are sent again.
    pub tx_refused: u64,
    /// Work requests that the endpoint refused, completed in error instead.
    pub refused_requests: u64,
    /// Completion queues that overran.
    pub cq_overruns: u64,
    /// Frames received by another lane and forwarded to this one.
    pub taken_over: u64,
    /// Frames dropped because the forward queue of the lane that owns them was full.
    pub handover_lost: u64,
}

impl LaneCounters {
    /// Adds another lane's counts to these.
    pub fn add(&mut self, other: &Self) {
        let Self {
            polls,
            idle_polls,
            interruptions,
            doorbells,
            rx_frames,
            tx_frames,
            tx_refused,
            refused_requests,
            cq_overruns,
            taken_over,
            handover_lost,
        } = other;
        self.polls += polls;
        self.idle_polls += idle_polls;
        self.interruptions += interruptions;
        self.doorbells += doorbells;
        self.rx_frames += rx_frames;
        self.tx_frames += tx_frames;
        self.tx_refused += tx_refused;
        self.refused_requests += refused_requests;
        self.cq_overruns += cq_overruns;
        self.taken_over += taken_over;
        self.handover_lost += handover_lost;
    }
}
