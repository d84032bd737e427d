//! [`Memory`], the trait of frame memory over which a worker's loop is generic, and [`Bridge`], which
//! connects ports of another kind of memory.

use castnet_wire::{Batch, CounterSet, DropReason, Drops, FrameBuf, Nanos, PortId};

use crate::pool::{Pool, PoolBuf, PoolStats};
use crate::port::{Port, PortStats, Sides, delegate_port};
use crate::ring::{FrameRing, HandOver};
use crate::spec::{OpenError, PortSpec};

/// A port whose frames live in memory of type `M`.
pub type MemoryPort<M> = Box<dyn Port<Buf = <M as Memory>::Buf>>;

/// The memory of one thread's frames. It is a handle; clones refer to the same memory.
///
/// A worker's loop is compiled once per kind of memory, so the fast path has no dynamic dispatch on it. A
/// port whose frames live in another kind of memory is opened behind a [`Bridge`].
pub trait Memory: Clone + 'static {
    /// The representation of a frame.
    type Buf: FrameBuf + 'static;

    /// The ring between threads. It moves or copies frames.
    type HandOver: HandOver<Self::Buf>;

    /// Opens a port for this thread. `queue` is its index among the threads of the port; 0 is the first that receives.
    fn open(&self, spec: &PortSpec, sides: Sides, queue: usize) -> Result<MemoryPort<Self>, OpenError>;

    /// A frame of the concatenated bytes of `parts`. `None` if no buffer is free or the frame is too long.
    fn gather(&self, parts: &[&[u8]]) -> Option<Self::Buf>;

    /// Creates a replica of `original` with its own first `header` bytes and its own trailer. The body is
    /// shared or copied, whichever costs less. It is copied if the egress port is not `multi_segment`.
    /// Returns `None` if no buffer is free or `header` exceeds [`FrameBuf::HEAD`].
    fn replicate(&self, original: &Self::Buf, header: usize, multi_segment: bool) -> Option<Self::Buf>;

    /// Returns true if [`Memory::lend`] is the cheapest way to replicate frames of this length.
    fn lends(&self, length: usize) -> bool;

    /// Creates a replica with its own head of 64 bytes that borrows the rest of `original`, including the
    /// trailer. While both exist, neither trailer can be written. For ports that are [`Port::multi_segment`].
    /// `to_come` is the number of further replicas of this original, so that all references are counted at
    /// once. If they are not created, the buffer leaks. Returns `None` if no buffer is free.
    fn lend(&self, original: &Self::Buf, to_come: usize) -> Option<Self::Buf>;

    /// Creates a frame of `length` zero bytes. Returns `None` if no buffer is free or the frame is too long.
    fn allocate(&self, length: usize) -> Option<Self::Buf>;

    /// Returns true if a frame of any length can be allocated.
    fn has_capacity(&self) -> bool;

    /// Statistics of the buffers.
    fn stats(&self) -> PoolStats;
}

impl Memory for Pool {
    type Buf = PoolBuf;
    type HandOver = FrameRing<PortId>;

    fn open(&self, spec: &PortSpec, sides: Sides, queue: usize) -> Result<MemoryPort<Self>, OpenError> {
        spec.open_queue(self, sides, queue)
    }

    fn gather(&self, parts: &[&[u8]]) -> Option<PoolBuf> {
        Self::gather(self, parts)
    }

    #[inline]
    fn replicate(&self, original: &PoolBuf, header: usize, _: bool) -> Option<PoolBuf> {
        if header > PoolBuf::HEAD {
            return None;
        }
        original.replicate()
    }

    /// Always false: a replica's own trailer is free of cost in a [`Pool`].
    #[inline]
    fn lends(&self, _: usize) -> bool {
        false
    }

    #[inline]
    fn lend(&self, _: &PoolBuf, _: usize) -> Option<PoolBuf> {
        None
    }

    #[inline]
    fn allocate(&self, length: usize) -> Option<PoolBuf> {
        Self::allocate(self, length)
    }

    fn has_capacity(&self) -> bool {
        Self::has_capacity(self)
    }

    fn stats(&self) -> PoolStats {
        Self::stats(self)
    }
}

/// A port with frames in `outside` over a port with frames in `inside`. Copies each frame once per direction.
pub struct Bridge<I: Memory, O: Memory> {
    port: MemoryPort<I>,
    inside: I,
    outside: O,
    /// Frames received from `port` and not yet copied.
    received: Batch<I::Buf>,
    sending: Batch<I::Buf>,
    drops: Drops,
    /// Frames and bytes received from `port` and not yet returned by this bridge.
    undelivered: (u64, u64),
}

impl<I: Memory, O: Memory> Bridge<I, O> {
    /// Creates a bridge to `port`, whose frames live in `inside`.
    pub fn new(port: MemoryPort<I>, inside: I, outside: O) -> Self {
        Self {
            port,
            inside,
            outside,
            received: Batch::new(),
            sending: Batch::new(),
            drops: Drops::default(),
            undelivered: (0, 0),
        }
    }
}

impl<I: Memory, O: Memory> Port for Bridge<I, O> {
    type Buf = O::Buf;

    fn receive(&mut self, batch: &mut Batch<O::Buf>) {
        if self.received.is_empty() {
            self.port.receive(&mut self.received);
            // `pop` then returns the oldest frame first.
            self.received.reverse();
            self.undelivered.0 += self.received.len() as u64;
            self.undelivered.1 += self.received.iter().map(|f| f.length() as u64).sum::<u64>();
        }
        while !batch.is_full() && self.outside.has_capacity() {
            let Some(frame) = self.received.pop() else { break };
            match self.outside.gather(&frame.segments()) {
                Some(copy) => {
                    self.undelivered.0 -= 1;
                    self.undelivered.1 -= frame.length() as u64;
                    batch.push(copy);
                }
                // A buffer was free, so the frame is longer than this memory's buffers.
                None => self.drops[DropReason::TooLong] += 1,
            }
        }
    }

    fn send(&mut self, batch: &mut Batch<O::Buf>) {
        for frame in batch.drain(..) {
            match self.inside.gather(&frame.segments()) {
                Some(copy) => self.sending.push(copy),
                None if self.inside.has_capacity() => self.drops[DropReason::TooLong] += 1,
                None => self.drops[DropReason::TxFull] += 1,
            }
        }
        self.port.send(&mut self.sending);
    }

    fn offer(&mut self, batch: &mut Batch<O::Buf>) {
        let (inside, sending, drops) = (&self.inside, &mut self.sending, &mut self.drops);
        let mut is_full = false;
        batch.retain(|frame| {
            let copy = if is_full {
                None
            } else {
                inside.gather(&frame.segments())
            };
            is_full |= copy.is_none() && !inside.has_capacity();
            match copy {
                Some(copy) => sending.push(copy),
                None if is_full => {}
                None => {
                    drops[DropReason::TooLong] += 1;
                    return false;
                }
            }
            true
        });
        let copied = self.sending.len();
        self.port.offer(&mut self.sending);
        batch.drain(..copied - self.sending.len());
        self.sending.clear();
    }

    delegate_port!(|this| this.port);

    fn stats(&self) -> PortStats {
        let mut stats = self.port.stats();
        stats.rx_frames -= self.undelivered.0;
        stats.rx_bytes -= self.undelivered.1;
        stats.drops.add(&self.drops);
        stats
    }

    fn ready(&self) -> bool {
        !self.received.is_empty() || self.port.ready()
    }

    fn poll(&mut self, now: Nanos) {
        self.port.poll(now);
    }

    fn poll_timeout(&self) -> Option<Nanos> {
        self.port.poll_timeout()
    }

    fn pending(&self) -> usize {
        self.port.pending()
    }
}
