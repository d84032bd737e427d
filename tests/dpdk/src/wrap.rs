//! Ports that stand in front of other ports: what is received is theirs to say, all else is the other port's.

use std::io;
use std::sync::Arc;

use castnet_port::{
    Batch, FlowTable, Memory, MemoryPort, OpenError, PoolStats, Port, PortLink, PortSpec, PortStats, RingUse,
    Sides, Sleeper, Steering,
};
use castnet_wire::Nanos;

/// Puts ports in front of those that one worker opens.
pub trait Wrap<M: Memory>: Clone + 'static {
    /// What stands in front of `inner`, which was opened with this specification; or `inner` itself.
    fn wrap(&self, inner: MemoryPort<M>, memory: &M, spec: &PortSpec, sides: Sides) -> MemoryPort<M>;
}

/// A port that receives by `receive`, which may ask the port behind it.
pub fn receiving<M: Memory>(
    inner: MemoryPort<M>,
    receive: impl FnMut(&mut MemoryPort<M>, &mut Batch<M::Buf>) + 'static,
) -> MemoryPort<M> {
    Box::new(Front::<M, _> { inner, receive })
}

/// Memory whose ports have others in front of them.
#[derive(Clone)]
pub struct Wrapped<M, W> {
    inner: M,
    wrap: W,
}

impl<M, W> Wrapped<M, W> {
    /// Frames live in `inner`.
    pub fn new(inner: M, wrap: W) -> Self {
        Self { inner, wrap }
    }
}

impl<M: Memory, W: Wrap<M>> Memory for Wrapped<M, W> {
    type Buf = M::Buf;
    type HandOver = M::HandOver;

    fn open(&self, spec: &PortSpec, sides: Sides, queue: usize) -> Result<MemoryPort<Self>, OpenError> {
        let inner = self.inner.open(spec, sides, queue)?;
        Ok(self.wrap.wrap(inner, &self.inner, spec, sides))
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

    fn has_capacity(&self) -> bool {
        self.inner.has_capacity()
    }

    fn stats(&self) -> PoolStats {
        self.inner.stats()
    }
}

struct Front<M: Memory, R> {
    inner: MemoryPort<M>,
    receive: R,
}

impl<M: Memory, R: FnMut(&mut MemoryPort<M>, &mut Batch<M::Buf>)> Port for Front<M, R> {
    type Buf = M::Buf;

    fn receive(&mut self, batch: &mut Batch<M::Buf>) {
        (self.receive)(&mut self.inner, batch);
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

    fn mtu(&self) -> usize {
        self.inner.mtu()
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

    fn receive_ring(&self) -> Option<RingUse> {
        self.inner.receive_ring()
    }

    fn speed_mbps(&self) -> Option<u32> {
        self.inner.speed_mbps()
    }

    fn steering(&self) -> Steering {
        self.inner.steering()
    }

    fn flow_table(&self) -> Option<Arc<dyn FlowTable>> {
        self.inner.flow_table()
    }
}
