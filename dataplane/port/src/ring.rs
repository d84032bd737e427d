//! Bounded lock-free rings that carry frames between threads. All memory is allocated at creation.
//!
//! Pool buffers belong to one thread, so a [`FrameRing`] copies each frame into a slot and out of it. Buffers
//! that any thread may own go through a [`MoveRing`] without a copy.

use std::io;
use std::sync::Arc;

use castnet_wire::{DropReason, FrameBuf, PortId};
use crossbeam::queue::ArrayQueue;

use crate::frames::Memory;
use crate::sleep::{Sleeper, WakeEvent};

#[derive(Debug)]
struct Slot<M> {
    meta: M,
    length: usize,
    bytes: Box<[u8]>,
}

/// An item from a ring: the metadata of a frame, and the frame or the reason why it was dropped.
pub type Popped<M, B> = Result<(M, B), (M, DropReason)>;

/// A ring of frames between two workers, each with its ingress port. One thread pushes; one pops and may sleep.
pub trait HandOver<B: FrameBuf>: Send + Sync + Sized + 'static {
    /// Creates a ring for `capacity` frames of up to `frame_max` bytes.
    fn new(capacity: usize, frame_max: usize) -> Self;

    /// Pushes a frame. Call [`HandOver::wake`] after the last frame of a batch.
    ///
    /// # Errors
    /// [`DropReason::TxFull`] or [`DropReason::TooLong`], with the frame.
    fn push(&self, from: PortId, frame: B) -> Result<(), (DropReason, B)>;

    /// Pops the oldest frame, into a buffer of `memory` if it must be copied. Returns `None` if the ring is
    /// empty or no buffer is free.
    ///
    /// # Errors
    /// [`DropReason::TooLong`]: the frame was longer than this memory's buffers and has been dropped.
    fn pop(&self, memory: &impl Memory<Buf = B>) -> Option<Popped<PortId, B>>;

    /// Wakes the popping thread if it sleeps.
    fn wake(&self);

    /// The number of frames in the ring.
    fn len(&self) -> usize;

    /// Returns true if the ring is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Capacity in frames.
    fn capacity(&self) -> usize;

    /// Registers the ring as a wake source of `sleeper`, used by [`HandOver::wake`].
    ///
    /// # Errors
    /// No file descriptor or source slot is free.
    fn attach(&self, sleeper: &mut Sleeper) -> io::Result<()>;
}

/// A ring of copied frames, each with metadata. Any number of threads may push. One thread pops and may sleep.
/// Each slot is in one of two queues or owned by a thread, so neither queue overflows.
#[derive(Debug)]
pub struct FrameRing<M> {
    full: ArrayQueue<Slot<M>>,
    free: ArrayQueue<Slot<M>>,
    frame_max: usize,
    wake_event: Arc<WakeEvent>,
}

impl<M: Copy + Default> FrameRing<M> {
    /// Creates a ring for `capacity` frames of up to `frame_max` bytes.
    pub fn new(capacity: usize, frame_max: usize) -> Self {
        let capacity = capacity.max(1);
        let ring = Self {
            full: ArrayQueue::new(capacity),
            free: ArrayQueue::new(capacity),
            frame_max,
            wake_event: Arc::default(),
        };
        for _ in 0..capacity {
            let slot = Slot {
                meta: M::default(),
                length: 0,
                bytes: vec![0; frame_max].into(),
            };
            // Each queue has capacity for all slots, so no push of a slot can fail.
            let _ = ring.free.push(slot);
        }
        ring
    }

    /// Pushes a copy of `frame`. Call [`FrameRing::wake`] after the last frame of a batch.
    ///
    /// # Errors
    /// [`DropReason::TxFull`] or [`DropReason::TooLong`].
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

    /// Wakes the popping thread if it sleeps.
    pub fn wake(&self) {
        self.wake_event.wake();
    }

    /// Pops the oldest frame into a buffer of `memory`. Returns `None` if the ring is empty or no buffer is free.
    ///
    /// # Errors
    /// [`DropReason::TooLong`]: the frame was longer than this memory's buffers and has been dropped.
    pub fn pop<P: Memory>(&self, memory: &P) -> Option<Popped<M, P::Buf>> {
        if self.full.is_empty() || !memory.has_capacity() {
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

    /// Returns true if the ring is empty.
    pub fn is_empty(&self) -> bool {
        self.full.is_empty()
    }

    /// The number of frames in the ring.
    pub fn len(&self) -> usize {
        self.full.len()
    }

    /// Capacity in frames.
    pub fn capacity(&self) -> usize {
        self.full.capacity()
    }

    /// Registers the ring as a wake source of `sleeper`, used by [`FrameRing::wake`].
    ///
    /// # Errors
    /// No file descriptor or source slot is free.
    pub fn attach(&self, sleeper: &mut Sleeper) -> io::Result<()> {
        sleeper.add_event(self.wake_event.clone())
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

/// A ring of frames whose buffers may change threads: no frame is copied. Any number of threads may push; one pops and may
/// sleep. Dropping the ring frees the frames in it.
#[derive(Debug)]
pub struct MoveRing<M, B> {
    frames: ArrayQueue<(M, B)>,
    wake_event: Arc<WakeEvent>,
}

impl<M, B> MoveRing<M, B> {
    /// Creates a ring for `capacity` frames.
    pub fn new(capacity: usize) -> Self {
        Self {
            frames: ArrayQueue::new(capacity.max(1)),
            wake_event: Arc::default(),
        }
    }

    /// Pushes a frame. Call [`MoveRing::wake`] after the last frame of a batch.
    ///
    /// # Errors
    /// The ring is full; the frame is returned.
    #[inline]
    pub fn push(&self, meta: M, frame: B) -> Result<(), B> {
        self.frames.push((meta, frame)).map_err(|(_, frame)| frame)
    }

    /// Pops the oldest frame.
    #[inline]
    pub fn pop(&self) -> Option<(M, B)> {
        self.frames.pop()
    }

    /// Wakes the popping thread if it sleeps.
    pub fn wake(&self) {
        self.wake_event.wake();
    }

    /// Returns true if the ring is empty.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// The number of frames in the ring.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Registers the ring as a wake source of `sleeper`, used by [`MoveRing::wake`].
    ///
    /// # Errors
    /// No file descriptor or source slot is free.
    pub fn attach(&self, sleeper: &mut Sleeper) -> io::Result<()> {
        sleeper.add_event(self.wake_event.clone())
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
