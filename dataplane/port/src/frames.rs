//! Where a thread's frames live: what a worker's loop is generic over, and how ports of another kind of memory join in.

use std::io;
use std::sync::Arc;

use castnet_wire::{Batch, CounterSet, DropReason, Drops, FrameBuf, Nanos, PortId};

use crate::pool::{Pool, PoolBuf, PoolStats};
use crate::port::{Port, PortLink, PortStats, RingUse, Sides, Steering};
use crate::ring::{FrameRing, HandOver};
use crate::sleep::Sleeper;
use crate::spec::{OpenError, PortSpec};
use crate::steer::FlowTable;

/// A port over a given kind of memory.
pub type MemoryPort<M> = Box<dyn Port<Buf = <M as Memory>::Buf>>;

/// Where the frames of one thread live: a handle, clones are the same memory.
///
/// A worker's loop is compiled once for each kind, so nothing on a frame's way asks which it is. A port whose frames live
/// elsewhere is opened behind a [`Bridge`].
pub trait Memory: Clone + 'static {
    /// How it holds a frame.
    type Buf: FrameBuf + 'static;

    /// How frames go from one thread to another: as they are, or copied.
    type HandOver: HandOver<Self::Buf>;

    /// Opens a port for this thread, which is the `queue`th of those that use the port, counted from the first that
    /// receives from it, 0.
    ///
    /// # Errors
    /// See [`OpenError`].
    fn open(&self, spec: &PortSpec, sides: Sides, queue: usize) -> Result<MemoryPort<Self>, OpenError>;

    /// A frame with the bytes of all `parts`, one after the other. `None` where no buffer is free, or it is too long.
    fn gather(&self, parts: &[&[u8]]) -> Option<Self::Buf>;

    /// A replica of `original` whose first `header` bytes and trailer are its own; the body is shared or copied, whichever
    /// costs less, and copied where the port that it leaves by is not `multi_segment`. `None` where no buffer is free, or
    /// `header` is more than a head holds ([`FrameBuf::HEAD`]).
    fn replicate(&self, original: &Self::Buf, header: usize, multi_segment: bool) -> Option<Self::Buf>;

    /// Whether [`Memory::lend`] is what makes replicas of so long frames at the least cost.
    fn lends(&self, length: usize) -> bool;

    /// A replica with a head of 64 bytes of its own that borrows all the rest of `original`, the trailer too: while both live,
    /// neither's trailer can be written. For ports that are [`Port::multi_segment`]. So many more replicas of this original
    /// are to come, so that they can be counted at once; if they do not, its buffer is lost. `None` where no buffer is free.
    fn lend(&self, original: &Self::Buf, to_come: usize) -> Option<Self::Buf>;

    /// A frame of `length` zero bytes. `None` where no buffer is free, or it is too long.
    fn allocate(&self, length: usize) -> Option<Self::Buf>;

    /// Whether a frame of any length can be had.
    fn has_room(&self) -> bool;

    /// What is left.
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

    /// Never: a replica's own trailer costs nothing here.
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

    fn has_room(&self) -> bool {
        Self::has_room(self)
    }

    fn stats(&self) -> PoolStats {
        Self::stats(self)
    }
}

/// A port over `inside`, for a thread whose frames live in `outside`: each frame is copied once in each direction.
pub struct Bridge<I: Memory, O: Memory> {
    port: MemoryPort<I>,
    inside: I,
    outside: O,
    /// Received, and not yet copied.
    received: Batch<I::Buf>,
    sending: Batch<I::Buf>,
    drops: Drops,
    /// Frames and bytes that `port` has delivered, and this has not.
    undelivered: (u64, u64),
}

impl<I: Memory, O: Memory> Bridge<I, O> {
    /// A bridge to `port`, whose frames live in `inside`.
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
            // From the back is from the oldest on.
            self.received.reverse();
            self.undelivered.0 += self.received.len() as u64;
            self.undelivered.1 += self.received.iter().map(|f| f.length() as u64).sum::<u64>();
        }
        while !batch.is_full() && self.outside.has_room() {
            let Some(frame) = self.received.pop() else { break };
            match self.outside.gather(&frame.segments()) {
                Some(copy) => {
                    self.undelivered.0 -= 1;
                    self.undelivered.1 -= frame.length() as u64;
                    batch.push(copy);
                }
                // There was room, so it is longer than this memory's frames.
                None => self.drops[DropReason::TooLong] += 1,
            }
        }
    }

    fn send(&mut self, batch: &mut Batch<O::Buf>) {
        for frame in batch.drain(..) {
            match self.inside.gather(&frame.segments()) {
                Some(copy) => self.sending.push(copy),
                None if self.inside.has_room() => self.drops[DropReason::TooLong] += 1,
                None => self.drops[DropReason::TxFull] += 1,
            }
        }
        self.port.send(&mut self.sending);
    }

    fn info(&self) -> PortLink {
        self.port.info()
    }

    fn mtu(&self) -> usize {
        self.port.mtu()
    }

    fn is_up(&self) -> bool {
        self.port.is_up()
    }

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

    fn attach(&mut self, sleeper: &mut Sleeper) -> io::Result<()> {
        self.port.attach(sleeper)
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

    fn receive_ring(&self) -> Option<RingUse> {
        self.port.receive_ring()
    }

    fn speed_mbps(&self) -> Option<u32> {
        self.port.speed_mbps()
    }

    fn steering(&self) -> Steering {
        self.port.steering()
    }

    fn flow_table(&self) -> Option<Arc<dyn FlowTable>> {
        self.port.flow_table()
    }
}
