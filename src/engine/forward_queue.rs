//! Frames forwarded between lanes with the same addresses: those that arrived on a lane that does not own them.

use std::sync::{Arc, OnceLock};

use crossbeam_queue::ArrayQueue;
use spindrift_pmd::{RxFrame, RxOrigin};

use super::tuning::FORWARD_QUEUE_FRAMES;
use super::waker::Waker;
use crate::endpoint::Forward;

/// A frame that another lane took from its port.
#[derive(Debug)]
pub(super) struct ForwardedFrame {
    pub(super) plane: u8,
    pub(super) forward: Forward,
    origin: RxOrigin,
    bytes: Vec<u8>,
}

impl ForwardedFrame {
    pub(super) fn frame(&self) -> RxFrame<'_> {
        RxFrame::whole(self.origin, &self.bytes)
    }
}

/// The queue of frames that other lanes forward to one lane.
#[derive(Debug)]
pub(super) struct ForwardQueue {
    frames: ArrayQueue<ForwardedFrame>,
    /// Used buffers, so that a hand-over does not allocate in the steady state.
    buffers: ArrayQueue<Vec<u8>>,
    /// Of a lane whose thread can sleep.
    waker: OnceLock<Arc<Waker>>,
}

impl ForwardQueue {
    pub(super) fn new() -> Self {
        Self {
            frames: ArrayQueue::new(FORWARD_QUEUE_FRAMES),
            buffers: ArrayQueue::new(FORWARD_QUEUE_FRAMES),
            waker: OnceLock::new(),
        }
    }

    /// Frames forwarded from now on wake the lane.
    pub(super) fn set_waker(&self, waker: &Arc<Waker>) {
        let _ = self.waker.set(Arc::clone(waker));
    }

    /// Adds a copy of a frame. Returns `false` if the forward queue is full, like a port's ring whose lane does not keep up.
    pub(super) fn push(&self, plane: u8, frame: &RxFrame<'_>, forward: Forward) -> bool {
        if self.frames.is_full() {
            return false;
        }
        let mut bytes = self.buffers.pop().unwrap_or_default();
        bytes.clear();
        frame.append_to(&mut bytes);
        let pushed = self.frames.push(ForwardedFrame { plane, forward, origin: frame.origin, bytes });
        if let Err(refused) = pushed {
            self.recycle(refused);
            return false;
        }
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
        true
    }

    /// The oldest frame, to be [returned](ForwardQueue::recycle).
    pub(super) fn pop(&self) -> Option<ForwardedFrame> {
        self.frames.pop()
    }

    pub(super) fn recycle(&self, frame: ForwardedFrame) {
        // There is room for as many as there are frames; otherwise it is freed.
        let _ = self.buffers.push(frame.bytes);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }
}
