//! Rings that carry frames from thread to thread: bounded, made once, without a lock.
//!
//! Pool buffers belong to one thread, so a [`FrameRing`] copies a frame into a slot and out of it. Buffers that any thread
//! may have go through a [`MoveRing`] as they are.

use std::io;
use std::sync::Arc;

use castnet_wire::{DropReason, FrameBuf, PortId};
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

/// How frames of one kind go from one worker to another, each with the port that it came in by. One thread pushes, one pops
/// and may sleep.
pub trait HandOver<B: FrameBuf>: Send + Sync + Sized + 'static {
    /// A ring for `capacity` frames of up to `frame_max` bytes.
    fn new(capacity: usize, frame_max: usize) -> Self;

    /// Puts a frame in. Call [`HandOver::wake`] after the last of a batch.
    ///
    /// # Errors
    /// [`DropReason::TxFull`], or [`DropReason::TooLong`]; the frame comes back.
    fn push(&self, from: PortId, frame: B) -> Result<(), (DropReason, B)>;

    /// Takes the oldest frame out, into `memory` if it must be copied. `None` where there is no frame, or no buffer for it.
    ///
    /// # Errors
    /// [`DropReason::TooLong`]: the frame was longer than this memory's buffers, and is gone.
    fn pop(&self, memory: &impl Memory<Buf = B>) -> Option<Popped<PortId, B>>;

    /// Wakes the thread that pops, where it sleeps.
    fn wake(&self);

    /// Frames in it.
    fn len(&self) -> usize;

    /// Whether there is no frame in it.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Frames that fit.
    fn capacity(&self) -> usize;

    /// Lets `sleeper` be woken by [`HandOver::wake`].
    ///
    /// # Errors
    /// No file descriptor, or too many sources.
    fn attach(&self, sleeper: &mut Sleeper) -> io::Result<()>;
}

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

    /// Frames that fit.
    pub fn capacity(&self) -> usize {
        self.full.capacity()
    }

    /// Lets `sleeper` be woken by [`FrameRing::wake`].
    ///
    /// # Errors
    /// No file descriptor, or too many sources.
    pub fn attach(&self, sleeper: &mut Sleeper) -> io::Result<()> {
        sleeper.add_bell(self.bell.clone())
    }
}

impl<B: FrameBuf> HandOver<B> for FrameRing<PortId> {
    fn new(capacity: usize, frame_max: usize) -> Self {
        Self::new(capacity, frame_max)
    }
    fn push(&self, from: PortId, frame: B) -> Result<(), (DropReason, B)> {
        self.push(from, &frame).map_err(|reason| (reason, frame))
    }
    fn pop(&self, memory: &impl Memory<Buf = B>) -> Option<Popped<PortId, B>> {
        self.pop(memory)
    }
    fn wake(&self) {
        self.wake();
    }
    fn len(&self) -> usize {
        self.len()
    }
    fn is_empty(&self) -> bool {
        self.is_empty()
    }
    fn capacity(&self) -> usize {
        self.full.capacity()
    }
    fn attach(&self, sleeper: &mut Sleeper) -> io::Result<()> {
        self.attach(sleeper)
    }
}

/// A ring of frames whose buffers any thread may have: they go over as they are. Any number of threads may push; one pops
/// and may sleep. What is in it when it is dropped goes back to where it came from.
#[derive(Debug)]
pub struct MoveRing<M, B> {
    frames: ArrayQueue<(M, B)>,
    bell: Arc<Bell>,
}

impl<M, B> MoveRing<M, B> {
    /// A ring for `capacity` frames.
    pub fn new(capacity: usize) -> Self {
        Self {
            frames: ArrayQueue::new(capacity.max(1)),
            bell: Arc::default(),
        }
    }

    /// Puts a frame in. Call [`MoveRing::wake`] after the last of a batch.
    ///
    /// # Errors
    /// There is no place; the frame comes back.
    #[inline]
    pub fn push(&self, meta: M, frame: B) -> Result<(), B> {
        self.frames.push((meta, frame)).map_err(|(_, frame)| frame)
    }

    /// Takes the oldest frame out.
    #[inline]
    pub fn pop(&self) -> Option<(M, B)> {
        self.frames.pop()
    }

    /// Wakes the thread that pops, where it sleeps.
    pub fn wake(&self) {
        self.bell.ring();
    }

    /// Whether there is no frame in it.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Frames in it.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Lets `sleeper` be woken by [`MoveRing::wake`].
    ///
    /// # Errors
    /// No file descriptor, or too many sources.
    pub fn attach(&self, sleeper: &mut Sleeper) -> io::Result<()> {
        sleeper.add_bell(self.bell.clone())
    }
}

impl<B: FrameBuf + Send + 'static> HandOver<B> for MoveRing<PortId, B> {
    fn new(capacity: usize, _frame_max: usize) -> Self {
        Self::new(capacity)
    }
    #[inline]
    fn push(&self, from: PortId, frame: B) -> Result<(), (DropReason, B)> {
        self.push(from, frame)
            .map_err(|frame| (DropReason::TxFull, frame))
    }
    #[inline]
    fn pop(&self, _memory: &impl Memory<Buf = B>) -> Option<Popped<PortId, B>> {
        self.pop().map(Ok)
    }
    fn wake(&self) {
        self.wake();
    }
    fn len(&self) -> usize {
        self.len()
    }
    fn is_empty(&self) -> bool {
        self.is_empty()
    }
    fn capacity(&self) -> usize {
        self.frames.capacity()
    }
    fn attach(&self, sleeper: &mut Sleeper) -> io::Result<()> {
        self.attach(sleeper)
    }
}
