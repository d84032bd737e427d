//! Ports that receive nothing until a gate opens: files begin to flow when the switch opens them, and its groups must be
//! there before.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use castnet_port::{
    Batch, FrameBuf, Memory, MemoryPort, OpenError, PoolStats, Port, PortLink, PortSpec, PortStats, Sides,
    Sleeper,
};
use castnet_wire::Nanos;

/// Memory whose ports wait for the gate.
#[derive(Clone)]
pub struct Gated<M> {
    inner: M,
    gate: Arc<AtomicBool>,
    /// Whether the gate was open when this worker's round began, and its first receiving port asked: all ports begin in the
    /// same round, so that what happens does not depend on when that is.
    open: Rc<Cell<Option<bool>>>,
    /// The next PSN, where frames are numbered.
    psn: Option<Rc<Cell<u32>>>,
}

/// Where the PSN of a RoCEv2 frame over IPv4 is, without a VLAN tag.
const PSN: std::ops::Range<usize> = 51..54;

impl<M> Gated<M> {
    /// Frames live in `inner`, and are received while `gate` is set.
    pub fn new(inner: M, gate: Arc<AtomicBool>) -> Self {
        Self {
            inner,
            gate,
            open: Rc::default(),
            psn: None,
        }
    }

    /// Numbers received frames from 0 on, as a source does that goes on and on, where a file would begin again. Their ICRC
    /// is wrong from here on, and goes through as wrong as it is.
    pub fn numbered(mut self) -> Self {
        self.psn = Some(Rc::default());
        self
    }
}

impl<M: Memory> Memory for Gated<M> {
    type Buf = M::Buf;
    type HandOver = M::HandOver;

    fn open(&self, spec: &PortSpec, sides: Sides, queue: usize) -> Result<MemoryPort<Self>, OpenError> {
        Ok(Box::new(GatedPort::<M> {
            inner: self.inner.open(spec, sides, queue)?,
            // The first one that receives.
            gate: (sides.receives() && self.open.replace(Some(false)).is_none()).then(|| self.gate.clone()),
            open: self.open.clone(),
            psn: self.psn.clone(),
        }))
    }

    fn gather(&self, parts: &[&[u8]]) -> Option<M::Buf> {
        self.inner.gather(parts)
    }

    fn replicate(&self, original: &M::Buf, header: usize, multi_segment: bool) -> Option<M::Buf> {
        self.inner.replicate(original, header, multi_segment)
    }

    fn lends(&self, length: usize) -> bool {
        self.inner.lends(length)
    }

    fn lend(&self, original: &M::Buf, to_come: usize) -> Option<M::Buf> {
        self.inner.lend(original, to_come)
    }

    fn allocate(&self, length: usize) -> Option<M::Buf> {
        self.inner.allocate(length)
    }

    fn has_room(&self) -> bool {
        self.inner.has_room()
    }

    fn stats(&self) -> PoolStats {
        self.inner.stats()
    }
}

struct GatedPort<M: Memory> {
    inner: MemoryPort<M>,
    gate: Option<Arc<AtomicBool>>,
    open: Rc<Cell<Option<bool>>>,
    psn: Option<Rc<Cell<u32>>>,
}

impl<M: Memory> Port for GatedPort<M> {
    type Buf = M::Buf;

    fn receive(&mut self, batch: &mut Batch<M::Buf>) {
        if let Some(gate) = &self.gate {
            self.open.set(Some(gate.load(Ordering::Relaxed)));
        }
        if self.open.get() == Some(true) {
            self.inner.receive(batch);
        }
        if let Some(psn) = &self.psn {
            for frame in batch {
                if let Some(bytes) = frame.head_mut().get_mut(PSN) {
                    bytes.copy_from_slice(&psn.get().to_be_bytes()[1..]);
                    psn.set((psn.get() + 1) & 0xFF_FFFF);
                }
            }
        }
    }

    fn multi_segment(&self) -> bool {
        self.inner.multi_segment()
    }

    fn send(&mut self, batch: &mut Batch<M::Buf>) {
        self.inner.send(batch);
    }

    fn info(&self) -> PortLink {
        self.inner.info()
    }

    fn is_up(&self) -> bool {
        self.inner.is_up()
    }

    fn stats(&self) -> PortStats {
        self.inner.stats()
    }

    fn ready(&self) -> bool {
        self.inner.ready()
    }

    fn attach(&mut self, sleeper: &mut Sleeper) -> io::Result<()> {
        self.inner.attach(sleeper)
    }

    fn poll(&mut self, now: Nanos) {
        self.inner.poll(now);
    }

    fn poll_timeout(&self) -> Option<Nanos> {
        self.inner.poll_timeout()
    }

    fn pending(&self) -> usize {
        self.inner.pending()
    }
}
