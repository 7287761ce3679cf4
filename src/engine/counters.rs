//! What a lane counts.

/// What a lane counts beside its endpoint and its ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneCounters {
    /// Polls made.
    pub polls: u64,
    /// Polls that found nothing to do.
    pub idle_polls: u64,
    /// Times that the lane was kept from running for longer than any poll takes.
    pub interruptions: u64,
    /// Doorbells answered: a queue pair had posted something.
    pub doorbells: u64,
    /// Frames taken from ports.
    pub rx_frames: u64,
    /// Frames handed to ports.
    pub tx_frames: u64,
    /// Frames that a port gave back or did not take although it had announced room; they go out again.
    pub tx_refused: u64,
    /// Work requests that the endpoint did not take, completed in error instead.
    pub refused_requests: u64,
    /// Completion queues that overran.
    pub cq_overruns: u64,
    /// Frames taken in that came in on another lane.
    pub taken_over: u64,
    /// Frames for another lane that were dropped because that one did not keep up.
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
