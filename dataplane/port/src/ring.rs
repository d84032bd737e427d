//! Rings that carry frames from thread to thread: bounded, made once, without a lock.
//!
//! Pool buffers belong to one thread, so a frame is copied into a slot and out of it.

use std::io;
use std::sync::Arc;

use castnet_wire::{DropReason, FrameBuf};
use crossbeam::queue::ArrayQueue;

use crate::frames::Memory;
use crate::sleep::{Bell, Sleeper};

#[derive(Debug)]
struct Slot<M> {
    meta: M,
    length: usize,
    bytes: Box<[u8]>,
}

/// What comes out of a ring: what was said about a frame, and the frame, or why it is gone.
pub type Popped<M, B> = Result<(M, B), (M, DropReason)>;

/// A ring of frames, each with something small said about it. Any number of threads may push; one pops and may sleep.
///
/// Each slot is in one of two queues or in the hands of a thread, so neither queue overflows.
#[derive(Debug)]
pub struct FrameRing<M> {
    full: ArrayQueue<Slot<M>>,
    free: ArrayQueue<Slot<M>>,
    frame_max: usize,
    bell: Arc<Bell>,
}

impl<M: Copy + Default> FrameRing<M> {
    /// A ring for `capacity` frames of up to `frame_max` bytes.
    pub fn new(capacity: usize, frame_max: usize) -> Self {
        let capacity = capacity.max(1);
        let ring = Self {
            full: ArrayQueue::new(capacity),
            free: ArrayQueue::new(capacity),
            frame_max,
            bell: Arc::default(),
        };
        for _ in 0..capacity {
            let slot = Slot {
                meta: M::default(),
                length: 0,
                bytes: vec![0; frame_max].into(),
            };
            // There are as many places as slots, here and below.
            let _ = ring.free.push(slot);
        }
        ring
    }

    /// Puts a copy of `frame` in. Call [`FrameRing::wake`] after the last of a batch.
    ///
    /// # Errors
    /// [`DropReason::TxFull`], or [`DropReason::TooLong`].
    pub fn push(&self, meta: M, frame: &impl FrameBuf) -> Result<(), DropReason> {
        if frame.length() > self.frame_max {
            return Err(DropReason::TooLong);
        }
        let mut slot = self.free.pop().ok_or(DropReason::TxFull)?;
        slot.meta = meta;
        slot.length = frame.copy_to(&mut slot.bytes);
        let _ = self.full.push(slot);
        Ok(())
    }

    /// Wakes the thread that pops, where it sleeps.
    pub fn wake(&self) {
        self.bell.ring();
    }

    /// Takes the oldest frame out into a buffer of `memory`. `None` where there is no frame, or no buffer for it.
    ///
    /// # Errors
    /// [`DropReason::TooLong`]: the frame was longer than this memory's buffers, and is gone.
    pub fn pop<P: Memory>(&self, memory: &P) -> Option<Popped<M, P::Buf>> {
        if self.full.is_empty() || !memory.has_room() {
            return None;
        }
        let slot = self.full.pop()?;
        let (meta, frame) = (slot.meta, memory.gather(&[&slot.bytes[..slot.length]]));
        let _ = self.free.push(slot);
        Some(
            frame
                .map(|frame| (meta, frame))
                .ok_or((meta, DropReason::TooLong)),
        )
    }

    /// Whether there is no frame in it.
    pub fn is_empty(&self) -> bool {
        self.full.is_empty()
    }

    /// Frames in it.
    pub fn len(&self) -> usize {
        self.full.len()
    }

    /// Lets `sleeper` be woken by [`FrameRing::wake`].
    ///
    /// # Errors
    /// No file descriptor, or too many sources.
    pub fn attach(&self, sleeper: &mut Sleeper) -> io::Result<()> {
        sleeper.add_bell(self.bell.clone())
    }
}
