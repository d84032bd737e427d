//! [`DpdkMemory`]: DPDK's buffers as the frame memory of one thread.

use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use castnet_port::{
    Batch, Bridge, FrameBuf, Memory, MemoryPort, MoveRing, OpenError, Pool, PoolStats, PortSpec, Sides,
};
use castnet_wire::PortId;

use crate::fence::eal::Registered;
use crate::fence::mbuf::{HEAD, Mbuf, TAIL};
use crate::fence::pool::Lease;
use crate::port::DpdkPort;
use crate::runtime::Runtime;
use crate::sharing::Thresholds;

/// The memory of one thread's frames. Clones refer to the same memory.
#[derive(Clone)]
pub struct DpdkMemory(Rc<MemoryInner>);

struct MemoryInner {
    whole: Stash,
    small: Stash,
    /// Created when the first port of another kind is opened.
    pool: OnceCell<Pool>,
    thresholds: Cell<Thresholds>,
    runtime: Arc<Runtime>,
    // The last field, so that all buffers are freed through this thread's caches before it is dropped.
    _registered: Registered,
}

struct Stash {
    fresh: RefCell<Batch<Mbuf>>,
    lease: Arc<Lease>,
    exhausted: Cell<u64>,
}

impl Stash {
    fn new(lease: &Arc<Lease>) -> Self {
        Self {
            fresh: RefCell::new(Batch::new()),
            lease: lease.clone(),
            exhausted: Cell::new(0),
        }
    }

    #[inline]
    fn pop(&self) -> Option<Mbuf> {
        let mut fresh = self.fresh.borrow_mut();
        if fresh.is_empty() && !self.lease.refill(&mut fresh) {
            self.exhausted.set(self.exhausted.get() + 1);
        }
        fresh.pop()
    }

    #[inline]
    fn pop_two(&self) -> Option<[Mbuf; 2]> {
        let mut fresh = self.fresh.borrow_mut();
        if fresh.len() < 2 && !self.lease.refill(&mut fresh) {
            self.exhausted.set(self.exhausted.get() + 1);
            return None;
        }
        Some([fresh.pop()?, fresh.pop()?])
    }

    fn has_capacity(&self) -> bool {
        let mut fresh = self.fresh.borrow_mut();
        !fresh.is_empty() || self.lease.refill(&mut fresh)
    }
}

impl DpdkMemory {
    pub(crate) fn new(runtime: Arc<Runtime>, registered: Registered) -> Self {
        let memory = Self(Rc::new(MemoryInner {
            whole: Stash::new(&runtime.whole),
            small: Stash::new(&runtime.small),
            pool: OnceCell::new(),
            thresholds: Cell::new(Thresholds { lend: 0, share: 0 }),
            runtime,
            _registered: registered,
        }));
        let measured = &memory.0.runtime.thresholds;
        memory.set_thresholds(*measured.get_or_init(|| Thresholds::measure(&memory)));
        memory
    }

    /// The frame lengths from which on replicas share their body, if the device supports it: measured when the first
    /// thread creates its memory, or [set](Self::set_thresholds).
    pub fn thresholds(&self) -> Thresholds {
        self.0.thresholds.get()
    }

    /// Of this thread. A frame that has only head and tail cannot be shared.
    pub fn set_thresholds(&self, thresholds: Thresholds) {
        self.0.thresholds.set(Thresholds {
            lend: thresholds.lend.max(HEAD + TAIL),
            share: thresholds.share.max(HEAD + TAIL + 1),
        });
    }

    pub(crate) fn capacity(&self) -> usize {
        self.0.whole.lease.capacity
    }

    /// `None` if no buffer is free or the bytes are too long.
    pub fn copy_from(&self, bytes: &[u8]) -> Option<Mbuf> {
        self.gather(&[bytes])
    }

    #[inline(always)]
    pub(crate) fn copy(&self, original: &Mbuf) -> Option<Mbuf> {
        let mut frame = self.0.whole.pop()?;
        frame.copy(original).then_some(frame)
    }

    #[inline]
    pub(crate) fn share(&self, original: &Mbuf) -> Option<Mbuf> {
        let small = &self.0.small;
        let parts = [small.pop()?, small.pop()?, small.pop()?];
        original.share(parts)
    }

    /// For frames of ports that are not DPDK devices.
    fn pool(&self) -> &Pool {
        self.0.pool.get_or_init(|| Pool::new(self.0.runtime.pool))
    }
}

impl Memory for DpdkMemory {
    type Buf = Mbuf;
    /// Any thread may own a buffer.
    type HandOver = MoveRing<PortId, Mbuf>;

    /// A port of another kind is opened behind a bridge that copies.
    fn open(&self, spec: &PortSpec, sides: Sides, queue: usize) -> Result<MemoryPort<Self>, OpenError> {
        let inner = match spec {
            PortSpec::Dpdk(spec) => {
                let device = self.0.runtime.device(spec)?;
                let port = DpdkPort::open(device, self, sides, queue, self.0.runtime.threads, spec.queues)?;
                return Ok(Box::new(port));
            }
            // Fault injectors work on the pool's frames, so the port is bridged to the pool and back.
            PortSpec::Faulty(inner, control) if inner.dpdk().is_some() => {
                let port = self.open(inner, sides, queue)?;
                let there = Bridge::new(port, self.clone(), self.pool().clone());
                Box::new(control.wrap(there, queue))
            }
            other => other.open_queue(self.pool(), sides, queue)?,
        };
        Ok(Box::new(Bridge::new(inner, self.pool().clone(), self.clone())))
    }

    #[inline]
    fn gather(&self, parts: &[&[u8]]) -> Option<Mbuf> {
        let mut frame = self.0.whole.pop()?;
        frame.fill(parts).then_some(frame)
    }

    #[inline]
    fn replicate(&self, original: &Mbuf, header: usize, multi_segment: bool) -> Option<Mbuf> {
        if header > HEAD {
            return None;
        }
        if multi_segment && original.length() >= self.thresholds().share && original.can_share() {
            return self.share(original);
        }
        self.copy(original)
    }

    #[inline]
    fn lends(&self, length: usize) -> bool {
        length >= self.thresholds().lend
    }

    #[inline]
    fn lend(&self, original: &Mbuf, to_come: usize) -> Option<Mbuf> {
        if !original.can_lend() {
            // A copy is allowed as well: its trailer is not written.
            return self.copy(original);
        }
        original.lend(self.0.small.pop_two(), to_come.try_into().ok()?)
    }

    #[inline]
    fn allocate(&self, length: usize) -> Option<Mbuf> {
        let mut frame = self.0.whole.pop()?;
        frame.fill_zero(length).then_some(frame)
    }

    fn has_capacity(&self) -> bool {
        self.0.whole.has_capacity()
    }

    /// Of the buffers shared by all threads. `bodies_free` counts the buffers for replicas that share.
    fn stats(&self) -> PoolStats {
        let (whole, small) = (&self.0.whole, &self.0.small);
        PoolStats {
            buffers: whole.lease.count,
            buffers_free: whole.lease.available() + whole.fresh.borrow().len(),
            bodies_free: small.lease.available() + small.fresh.borrow().len(),
            exhausted: whole.exhausted.get() + small.exhausted.get(),
        }
    }
}

impl fmt::Debug for DpdkMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stats().fmt(f)
    }
}
