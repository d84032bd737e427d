//! [`Obeying`] wraps the port of a software RNIC, and obeys PAUSE.

use castnet_pfc::{Gate, PfcConfig};
use castnet_wire::{Batch, DropReason, FrameBuf, Nanos, Pause};

use crate::port::{Port, PortStats, delegate_port};

/// A port that sends no frames of a class that the peer has paused: they wait in its [`Gate`].
#[derive(Debug)]
pub struct Obeying<P: Port> {
    inner: P,
    gate: Gate<P::Buf>,
}

impl<P: Port> Obeying<P> {
    /// Wraps `inner`. Its thread must call [`Port::poll`], which sets the time.
    pub fn new(inner: P, config: PfcConfig) -> Self {
        let gate = Gate::new(config);
        Self { inner, gate }
    }

    /// Sends what waits of classes that are not paused.
    fn release(&mut self) {
        loop {
            let mut batch = Batch::new();
            let mut classes = Batch::new();
            while !batch.is_full()
                && let Some((class, frame)) = self.gate.pop()
            {
                classes.push(class);
                batch.push(frame);
            }
            if batch.is_empty() {
                return;
            }
            self.inner.offer(&mut batch);
            if batch.is_empty() {
                continue;
            }
            // The last ones are left.
            while let (Some(class), Some(frame)) = (classes.pop(), batch.pop()) {
                self.gate.put_back(class, frame);
            }
            return;
        }
    }
}

impl<P: Port> Port for Obeying<P> {
    type Buf = P::Buf;

    fn receive(&mut self, batch: &mut Batch<Self::Buf>) {
        self.inner.receive(batch);
        if batch.iter().any(|frame| Pause::is_control(frame.head())) {
            batch.retain(|frame| match Pause::parse(frame.head()) {
                Some(pause) => {
                    self.gate.obey(&pause, self.inner.speed_mbps());
                    false
                }
                None => true,
            });
        }
    }

    fn receive_with(&mut self, scratch: &mut [u8], take: &mut dyn FnMut(&[u8])) -> usize {
        let mut pauses = Batch::<Pause>::new();
        let count = self
            .inner
            .receive_with(scratch, &mut |frame| match Pause::is_control(frame)
                .then(|| Pause::parse(frame))
                .flatten()
            {
                Some(pause) => pauses.push(pause),
                None => take(frame),
            });
        for pause in &pauses {
            self.gate.obey(pause, self.inner.speed_mbps());
        }
        count
    }

    fn multi_segment(&self) -> bool {
        self.inner.multi_segment()
    }

    /// Frames of lossless classes that do not fit wait too.
    fn send(&mut self, batch: &mut Batch<Self::Buf>) {
        if self.gate.is_suspended() {
            let mut pass = Batch::new();
            pass.extend(batch.drain(..).filter_map(|frame| self.gate.admit(frame)));
            std::mem::swap(batch, &mut pass);
        }
        self.inner.offer(batch);
        let mut lossy = Batch::new();
        lossy.extend(batch.drain(..).filter_map(|frame| self.gate.keep_unsent(frame)));
        if !lossy.is_empty() {
            self.inner.send(&mut lossy);
        }
    }

    /// `None` while frames may have to wait: they need buffers.
    fn send_in_place(
        &mut self,
        least: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> Option<usize>,
    ) -> Option<(usize, bool)> {
        match self.gate.is_suspended() {
            true => None,
            false => self.inner.send_in_place(least, fill),
        }
    }

    delegate_port!(|this| this.inner);

    fn stats(&self) -> PortStats {
        let mut stats = self.inner.stats();
        stats.drops[DropReason::PfcOverflow] += self.gate.drops();
        stats
    }

    fn ready(&self) -> bool {
        self.inner.ready()
    }

    fn poll(&mut self, now: Nanos) {
        self.gate.set_time(now);
        self.inner.poll(now);
        if self.gate.held() > 0 {
            self.release();
        }
    }

    fn poll_timeout(&self) -> Option<Nanos> {
        let gate = self.gate.poll_timeout();
        gate.into_iter().chain(self.inner.poll_timeout()).min()
    }

    fn pending(&self) -> usize {
        self.gate.held() + self.inner.pending()
    }
}
