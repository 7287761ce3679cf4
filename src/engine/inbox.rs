//! From a lane to another one with the same addresses: frames that came in on the wrong one of them.

use std::sync::{Arc, OnceLock};

use crossbeam_queue::ArrayQueue;
use spindrift_pmd::{RxFrame, RxOrigin};

use super::tuning::INBOX_FRAMES;
use super::waker::Waker;
use crate::endpoint::Forward;

/// A frame that another lane took from its port.
#[derive(Debug)]
pub(super) struct HandedOver {
    pub(super) plane: u8,
    pub(super) forward: Forward,
    origin: RxOrigin,
    bytes: Vec<u8>,
}

impl HandedOver {
    pub(super) fn frame(&self) -> RxFrame<'_> {
        RxFrame::whole(self.origin, &self.bytes)
    }
}

/// Where all other lanes put frames for one.
#[derive(Debug)]
pub(super) struct Inbox {
    frames: ArrayQueue<HandedOver>,
    /// Used before, so that handing frames over allocates nothing in the long run.
    buffers: ArrayQueue<Vec<u8>>,
    /// Of a lane that naps.
    waker: OnceLock<Arc<Waker>>,
}

impl Inbox {
    pub(super) fn new() -> Self {
        Self {
            frames: ArrayQueue::new(INBOX_FRAMES),
            buffers: ArrayQueue::new(INBOX_FRAMES),
            waker: OnceLock::new(),
        }
    }

    /// What is put in from now on wakes the lane.
    pub(super) fn wake(&self, waker: &Arc<Waker>) {
        let _ = self.waker.set(Arc::clone(waker));
    }

    /// Puts a copy of a frame in. `false`: it is full, as a lane that does not keep up finds its port's ring full.
    pub(super) fn put(&self, plane: u8, frame: &RxFrame<'_>, forward: Forward) -> bool {
        if self.frames.is_full() {
            return false;
        }
        let mut bytes = self.buffers.pop().unwrap_or_default();
        bytes.clear();
        frame.append_to(&mut bytes);
        let put = self.frames.push(HandedOver { plane, forward, origin: frame.origin, bytes });
        if let Err(refused) = put {
            self.give_back(refused);
            return false;
        }
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
        true
    }

    /// The oldest frame, to be [given back](Inbox::give_back).
    pub(super) fn take(&self) -> Option<HandedOver> {
        self.frames.pop()
    }

    pub(super) fn give_back(&self, frame: HandedOver) {
        // There is room for as many as there are frames; else it is freed.
        let _ = self.buffers.push(frame.bytes);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }
}
