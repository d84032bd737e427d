//! The host's side of flow control.

use std::collections::VecDeque;

use castnet_wire::pause::quanta_time;
use castnet_wire::{FrameBuf, Nanos, Pause, TrafficClass};

use crate::config::PfcConfig;

/// Frames that wait, at most. An RNIC sends less than that without an answer.
const WAITING_MAX: usize = 4096;

/// Between a host and its link: frames of a class that the peer has paused wait, in order. Of the configuration it uses the classes, their
/// DSCPs, and the speed of the link. A host sends no PAUSE.
#[derive(Debug)]
pub struct Gate<B> {
    config: PfcConfig,
    /// By class: the time until which it is paused.
    until: [Nanos; TrafficClass::COUNT],
    waiting: [VecDeque<B>; TrafficClass::COUNT],
    /// Frames in `waiting`.
    held: usize,
    drops: u64,
    now: Nanos,
}

impl<B: FrameBuf> Gate<B> {
    /// Nothing is paused.
    pub fn new(config: PfcConfig) -> Self {
        Self {
            config,
            until: [Nanos::ZERO; TrafficClass::COUNT],
            waiting: Default::default(),
            held: 0,
            drops: 0,
            now: Nanos::ZERO,
        }
    }

    /// Must be called before the other functions when time has passed.
    pub fn set_time(&mut self, now: Nanos) {
        self.now = now;
    }

    /// A PFC frame was received on a link whose device has this speed, if that is known.
    pub fn obey(&mut self, pause: &Pause, speed_mbps: Option<u32>) {
        let speed = self.config.speed(speed_mbps);
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
    pub fn is_suspended(&self) -> bool {
        self.held > 0 || self.config.classes.iter().any(|class| self.is_paused(class))
    }

    /// Returns the frame if it can be sent. Otherwise it waits.
    pub fn admit(&mut self, frame: B) -> Option<B> {
        let class = self.config.map.class_of(frame.head());
        if !self.is_paused(class) && self.waiting[class.index()].is_empty() {
            return Some(frame);
        }
        self.hold(class, frame);
        None
    }

    /// Takes a frame that does not fit in the send queue. Returns it if its class is not lossless.
    pub fn keep_unsent(&mut self, frame: B) -> Option<B> {
        let class = self.config.map.class_of(frame.head());
        if !self.config.classes.has(class) {
            return Some(frame);
        }
        self.hold(class, frame);
        None
    }

    fn hold(&mut self, class: TrafficClass, frame: B) {
        if self.held == WAITING_MAX {
            self.drops += 1;
            return;
        }
        self.held += 1;
        self.waiting[class.index()].push_back(frame);
    }

    /// The oldest frame of a class that is not paused, and the class.
    pub fn pop(&mut self) -> Option<(TrafficClass, B)> {
        let mut classes = self.config.classes.iter();
        let class =
            classes.find(|class| !self.is_paused(*class) && !self.waiting[class.index()].is_empty())?;
        self.held -= 1;
        Some((class, self.waiting[class.index()].pop_front()?))
    }

    /// Puts a frame that was just [taken](Self::pop) back to the front.
    pub fn put_back(&mut self, class: TrafficClass, frame: B) {
        self.held += 1;
        self.waiting[class.index()].push_front(frame);
    }

    /// When frames that wait can leave.
    pub fn poll_timeout(&self) -> Option<Nanos> {
        let classes = self.config.classes.iter();
        let waiting = classes.filter(|class| !self.waiting[class.index()].is_empty());
        waiting.map(|class| self.until[class.index()].max(self.now)).min()
    }

    /// When the first pause ends for which frames wait. `None` if none of their classes is paused.
    pub fn pause_ends(&self) -> Option<Nanos> {
        let classes = self.config.classes.iter();
        let waiting =
            classes.filter(|class| self.is_paused(*class) && !self.waiting[class.index()].is_empty());
        waiting.map(|class| self.until[class.index()]).min()
    }

    /// Frames that wait.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Frames that were dropped because too many waited.
    pub fn drops(&self) -> u64 {
        self.drops
    }
}
