//! The host's side of flow control: [`Obeying`] wraps the port of a software RNIC, and obeys PAUSE.

use std::collections::VecDeque;

use castnet_wire::pause::quanta_time;
use castnet_wire::{Batch, DropReason, FrameBuf, Nanos, Pause, TrafficClass};

use crate::pfc::PfcConfig;
use crate::port::{Port, PortStats, delegate_port};

/// Frames that wait, at most. An RNIC sends less than that without an answer.
const WAITING_MAX: usize = 4096;

/// A port that sends no frames of a class that the peer has paused. They wait, in order. Of the configuration it uses the classes, their
/// DSCPs, and the speed of the link. It sends no PAUSE.
#[derive(Debug)]
pub struct Obeying<P: Port> {
    inner: P,
    config: PfcConfig,
    /// By class: the time until which it is paused.
    until: [Nanos; TrafficClass::COUNT],
    waiting: [VecDeque<P::Buf>; TrafficClass::COUNT],
    /// Frames in `waiting`.
    held: usize,
    drops: u64,
    now: Nanos,
}

impl<P: Port> Obeying<P> {
    /// Wraps `inner`. Its thread must call [`Port::poll`], which sets the time.
    pub fn new(inner: P, config: PfcConfig) -> Self {
        Self {
            inner,
            config,
            until: [Nanos::ZERO; TrafficClass::COUNT],
            waiting: Default::default(),
            held: 0,
            drops: 0,
            now: Nanos::ZERO,
        }
    }

    fn obey(&mut self, pause: &Pause) {
        let speed = self.config.speed_mbps.or_else(|| self.inner.speed_mbps());
        let speed = speed.unwrap_or(PfcConfig::UNKNOWN_SPEED_MBPS);
        for class in self.config.classes.iter() {
            if let Some(quanta) = pause.of(class) {
                self.until[class.index()] = self.now + quanta_time(quanta, speed);
            }
        }
    }

    fn is_paused(&self, class: TrafficClass) -> bool {
        self.until[class.index()] > self.now
    }

    /// True if frames may have to wait.
    fn is_suspended(&self) -> bool {
        self.held > 0 || self.config.classes.iter().any(|class| self.is_paused(class))
    }

    fn hold(&mut self, class: TrafficClass, frame: P::Buf) {
        if self.held == WAITING_MAX {
            self.drops += 1;
            return;
        }
        self.held += 1;
        self.waiting[class.index()].push_back(frame);
    }

    /// Sends what waits of classes that are not paused.
    fn release(&mut self) {
        for class in self.config.classes.iter() {
            while !self.is_paused(class) && !self.waiting[class.index()].is_empty() {
                let waiting = &mut self.waiting[class.index()];
                let count = waiting.len().min(castnet_wire::BATCH);
                let mut batch: Batch<P::Buf> = waiting.drain(..count).collect();
                self.inner.offer(&mut batch);
                self.held -= count - batch.len();
                if !batch.is_empty() {
                    batch.drain(..).rev().for_each(|frame| waiting.push_front(frame));
                    break;
                }
            }
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
                    self.obey(&pause);
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
        pauses.iter().for_each(|pause| self.obey(pause));
        count
    }

    fn multi_segment(&self) -> bool {
        self.inner.multi_segment()
    }

    /// Frames of lossless classes that do not fit wait too.
    fn send(&mut self, batch: &mut Batch<Self::Buf>) {
        if self.is_suspended() {
            let mut pass = Batch::new();
            for frame in batch.drain(..) {
                let class = self.config.map.class_of(frame.head());
                if self.is_paused(class) || !self.waiting[class.index()].is_empty() {
                    self.hold(class, frame);
                } else {
                    pass.push(frame);
                }
            }
            std::mem::swap(batch, &mut pass);
        }
        self.inner.offer(batch);
        let mut lossy = Batch::new();
        for frame in batch.drain(..) {
            let class = self.config.map.class_of(frame.head());
            match self.config.classes.has(class) {
                true => self.hold(class, frame),
                false => lossy.push(frame),
            }
        }
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
        match self.is_suspended() {
            true => None,
            false => self.inner.send_in_place(least, fill),
        }
    }

    delegate_port!(|this| this.inner);

    fn stats(&self) -> PortStats {
        let mut stats = self.inner.stats();
        stats.drops[DropReason::PfcOverflow] += self.drops;
        stats
    }

    fn ready(&self) -> bool {
        self.inner.ready()
    }

    fn poll(&mut self, now: Nanos) {
        self.now = now;
        self.inner.poll(now);
        if self.held > 0 {
            self.release();
        }
    }

    fn poll_timeout(&self) -> Option<Nanos> {
        let waiting = self
            .config
            .classes
            .iter()
            .filter(|class| !self.waiting[class.index()].is_empty());
        let ends = waiting.map(|class| self.until[class.index()].max(self.now));
        ends.chain(self.inner.poll_timeout()).min()
    }

    fn pending(&self) -> usize {
        self.held + self.inner.pending()
    }
}
