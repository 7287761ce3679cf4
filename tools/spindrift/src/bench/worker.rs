//! One lane's part of a run: keeps a window of requests in flight on each of its queue pairs.

use anyhow::{Result, bail};
use spindrift::verbs::{RemoteAddr, RtsAttr, SendOp, SendWr, Sge, Wc};

use super::contents::{Contents, Request};
use super::endpoint_setup::has_arrived;
use super::pin::Idle;
use super::report::explain;
use super::timing::Done;
use super::transport::{Cq, Nics, Qp};

/// Polls and packets between two looks at the clock.
const CLOCK_STEPS: usize = 64;
const WRITE_MASK: u64 = (1 << 48) - 1;

/// Asked about each completed write, by queue pair and number, before its slot is used again.
pub(crate) type Check<'a> = &'a (dyn Fn(usize, u64) -> Result<()> + Sync);

/// A queue pair of a lane.
pub(super) struct Stream<'a> {
    /// Its number among all of the run.
    pub(super) number: usize,
    pub(super) qp: &'a mut Qp,
    /// Writes posted since the target was cleared.
    pub(super) posted: u64,
    pub(super) completed: u64,
    /// Most in a run: none goes to a place twice.
    pub(super) lap: Option<u64>,
    /// No more are posted in this run.
    pub(super) end: u64,
}

/// The first slots of the memory of both sides.
#[derive(Clone, Copy)]
pub(super) struct Memory {
    pub(super) source: Sge,
    pub(super) target: Sge,
    pub(super) remote_target: RemoteAddr,
    /// What READs name.
    pub(super) remote_source: RemoteAddr,
}

impl Memory {
    fn request(&self, wr_id: u64, request: Request) -> SendWr {
        let Request { op, local, remote, len } = request;
        let (near, far) = match op {
            SendOp::Read => (self.target, self.remote_source),
            SendOp::FetchAdd(_) | SendOp::CompareSwap { .. } => (self.target, self.remote_target),
            _ => (self.source, self.remote_target),
        };
        SendWr {
            wr_id,
            op,
            local: Sge { addr: near.addr + local as u64, len, ..near },
            remote: RemoteAddr { addr: far.addr + remote as u64, ..far },
            signaled: true,
            fence: false,
        }
    }
}

/// One lane's queue pairs and their completion queue.
pub(super) struct Worker<'a> {
    pub(super) lane: usize,
    pub(super) nics: Nics,
    pub(super) streams: Vec<Stream<'a>>,
    pub(super) cq: &'a mut Cq,
    pub(super) contents: Contents,
    /// Writes in flight on each queue pair.
    pub(super) depth: u64,
    pub(super) memory: Memory,
    pub(super) idle: Idle,
    pub(super) retry: RtsAttr,
    pub(super) wcs: [Wc; 64],
}

impl Worker<'_> {
    /// Writes `left` messages, fewer if `clock` says that the time is over, until all that was posted is complete. `clock` is told
    /// now and then how much is.
    pub(super) fn write(
        &mut self,
        mut left: u64,
        check: Check<'_>,
        clock: &mut dyn FnMut(Done) -> Result<bool>,
    ) -> Result<Done> {
        let mut done = Done::default();
        let mut steps = 0;
        for stream in &mut self.streams {
            stream.end = stream.lap.map_or(u64::MAX, |lap| stream.posted + lap);
        }
        loop {
            left -= self.post(left)?;
            let work = self.nics.poll_lane(self.lane);
            let newly = self.complete(check, &mut done)?;
            let has_slept = self.idle.after_turn(work + newly, &self.nics, self.lane)?;
            steps += if has_slept { CLOCK_STEPS } else { 1 + work };
            if steps >= CLOCK_STEPS {
                steps = 0;
                if clock(done)? {
                    left = 0;
                }
            }
            if left == 0 && self.streams.iter().all(|stream| stream.posted == stream.completed) {
                return Ok(done);
            }
        }
    }

    /// Drives the lane for others: peers may want answers, and other lanes what came in here.
    pub(super) fn serve(&mut self, clock: &mut dyn FnMut() -> Result<bool>) -> Result<()> {
        while !clock()? {
            for _ in 0..CLOCK_STEPS {
                let work = self.nics.poll_lane(self.lane);
                if self.idle.after_turn(work, &self.nics, self.lane)? {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Posts what the windows take, at most `left`, and returns how many.
    fn post(&mut self, left: u64) -> Result<u64> {
        let mut posted_now = 0;
        for (place, stream) in self.streams.iter_mut().enumerate() {
            while posted_now < left
                && stream.posted - stream.completed < self.depth
                && stream.posted < stream.end
            {
                let wr_id = (place as u64) << 48 | (stream.posted & WRITE_MASK);
                let request = self.contents.request(stream.number, stream.posted);
                stream.qp.post_send(self.memory.request(wr_id, request))?;
                stream.posted += 1;
                posted_now += 1;
            }
        }
        Ok(posted_now)
    }

    /// Takes completions, and returns how many; each must be the next of its queue pair, and a success.
    fn complete(&mut self, check: Check<'_>, done: &mut Done) -> Result<usize> {
        let count = self.cq.poll(&mut self.wcs)?;
        for wc in self.wcs.iter().take(count) {
            let (place, write) = ((wc.wr_id >> 48) as usize, wc.wr_id & WRITE_MASK);
            let Some(stream) = self.streams.get_mut(place) else {
                bail!("completion {:#x} matches no request", wc.wr_id)
            };
            let (number, next) = (stream.number, stream.completed);
            let operation = self.contents.operation(number, next);
            let len = self.contents.len(operation);
            if !wc.status.is_success() {
                bail!(
                    "queue pair {:#08x}: {operation} {write} of {len} bytes failed: {}",
                    wc.qpn.get(),
                    explain(wc.status, stream.qp.failure(), &self.retry, has_arrived(&self.nics))
                );
            }
            if next & WRITE_MASK != write {
                bail!("queue pair {number}: {operation} {write} completed, but {next} was next");
            }
            check(number, next)?;
            stream.completed += 1;
            done.messages += 1;
            done.bytes += u64::from(len);
        }
        Ok(count)
    }
}
