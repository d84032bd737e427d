//! ECN marking at the send queue of a port: [`Marking`] wraps any port whose queue is visible.

use arrayvec::ArrayVec;
use castnet_wire::red::{Red, RedConfig, mark_frame};
use castnet_wire::{BATCH, Batch, FrameBuf, Nanos};

use crate::port::{Port, PortStats, delegate_port};

/// A port that marks frames of ECN-capable senders as congested (CE) when its send queue is long, before it sends them.
#[derive(Debug)]
pub struct Marking<P> {
    inner: P,
    red: Red,
    marks: u64,
}

impl<P: Port> Marking<P> {
    /// `seed` is of the random numbers. A port without a visible queue ([`Port::backlog`]) marks nothing.
    pub fn new(inner: P, config: RedConfig, seed: u64) -> Self {
        Self {
            inner,
            red: Red::new(config, seed),
            marks: 0,
        }
    }

    /// The frames of the batch are behind one another in the queue. `before_each` gets the position of the random numbers.
    fn mark(&mut self, batch: &mut Batch<P::Buf>, mut before_each: impl FnMut(u64)) {
        if let Some(mut queued) = self.inner.backlog() {
            for frame in batch.iter_mut() {
                before_each(self.red.position());
                if self.red.marks(queued) {
                    self.marks += u64::from(mark_frame(frame.head_mut()));
                }
                queued += frame.length() as u64;
            }
        }
    }
}

impl<P: Port> Port for Marking<P> {
    type Buf = P::Buf;

    fn receive(&mut self, batch: &mut Batch<Self::Buf>) {
        self.inner.receive(batch);
    }

    fn multi_segment(&self) -> bool {
        self.inner.multi_segment()
    }

    fn send(&mut self, batch: &mut Batch<Self::Buf>) {
        self.mark(batch, |_| ());
        self.inner.send(batch);
    }

    fn offer(&mut self, batch: &mut Batch<Self::Buf>) {
        let (offered, mut positions) = (batch.len(), ArrayVec::<u64, BATCH>::new());
        self.mark(batch, |position| positions.push(position));
        self.inner.offer(batch);
        // What was refused is offered again, until there is room. It has one chance to be marked, as a frame that finds room at once.
        if let Some(first_refused) = positions.get(offered - batch.len()) {
            self.red.back_to(*first_refused);
        }
    }

    fn receive_with(&mut self, scratch: &mut [u8], take: &mut dyn FnMut(&[u8])) -> usize {
        self.inner.receive_with(scratch, take)
    }

    delegate_port!(|this| this.inner);

    fn stats(&self) -> PortStats {
        PortStats {
            ecn_marks: self.marks,
            ..self.inner.stats()
        }
    }

    fn ready(&self) -> bool {
        self.inner.ready()
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
