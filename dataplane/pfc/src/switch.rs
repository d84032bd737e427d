//! What one worker of a switch does for flow control at its ports.
//!
//! A worker that receives a PFC frame stores until when each class is paused. Each worker reads that once per iteration, and keeps frames
//! of paused classes in its [`Queues`]. The owner of a port, the first worker that receives from it, counts, runs the watchdog and sends
//! PAUSE upstream as long as any worker wants that.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use castnet_wire::pause::quanta_time;
use castnet_wire::{BATCH, Batch, ClassSet, DropReason, FrameBuf, Nanos, Pause, TrafficClass};

use crate::queues::Queues;
use crate::shared::{ClassState, PfcPort, PfcShared, add};

const CLASSES: usize = TrafficClass::COUNT;
/// How soon a worker that holds frames looks again whether they can leave.
const RETRY: Nanos = Nanos::from_micros(20);
/// Frames of a class that leave in one iteration, in batches.
const BATCHES: usize = 4;

/// A port with flow control, as one worker sees it.
pub trait PausablePort {
    /// A frame.
    type Buf: FrameBuf;

    /// True for the worker that sends PAUSE and runs the watchdog.
    fn is_owner(&self) -> bool;

    /// Speed of the link in Mb/s, if the device knows it.
    fn speed_mbps(&self) -> Option<u32>;

    /// Sends what fits in the send queue. The rest stays in the batch, in order.
    fn offer(&mut self, batch: &mut Batch<Self::Buf>);

    /// Sends a PFC frame. False if it does not fit.
    fn send_pause(&mut self, pause: &Pause) -> bool;

    /// A frame to this port was dropped.
    fn count_drop(&mut self, reason: DropReason);

    /// A storm has begun or ended.
    fn report_storm(&mut self, now: Nanos, class: TrafficClass, has_storm: bool);
}

/// A break takes back so many times its length of the pause before it: a peer that lets a class go for less than a thousandth of the time
/// does not keep the watchdog away by it, and one that is only slow does.
const BREAK: u64 = 1_000;

/// What the owner of a port knows of a class.
#[derive(Clone, Copy, Debug, Default)]
struct Watch {
    is_paused: bool,
    /// The length of the pause, less what breaks took back.
    stuck: Nanos,
    /// The time up to which it is counted.
    counted: Nanos,
    /// In a storm: since when the class is not paused.
    quiet_since: Option<Nanos>,
    /// When PAUSE must be sent again. `None`: the peer is not paused.
    refresh_at: Option<Nanos>,
}

/// Flow control of one worker.
#[derive(Debug)]
pub struct Pfc<B> {
    shared: Arc<PfcShared>,
    worker: usize,
    queues: Queues<B>,
    /// By slot and class, of the ports that this worker owns.
    watches: Vec<[Watch; CLASSES]>,
    /// By slot, as of the start of this iteration.
    paused: Vec<ClassSet>,
    storms: Vec<ClassSet>,
    /// By class: the ingress slots that this worker wants to be stopped.
    stopped: [u64; CLASSES],
    /// Workers that own one of the ports that were stopped or released, one bit each, until they are [woken](Self::wakes).
    wakes: u64,
    now: Nanos,
}

/// Where a frame of a port with flow control goes.
#[derive(Debug)]
pub enum Admitted<B> {
    /// To the port.
    Send(B),
    /// It waits.
    Held,
    /// It is dropped.
    Dropped(DropReason),
}

impl<B: FrameBuf> Pfc<B> {
    /// Flow control of a worker that stores up to `frames_max` frames. `None` if no port has flow control.
    pub fn new(shared: &Arc<PfcShared>, worker: usize, frames_max: usize) -> Option<Self> {
        let ports = shared.configs().count();
        (shared.slots() != 0).then(|| Self {
            shared: shared.clone(),
            worker,
            queues: Queues::new(shared.configs(), frames_max),
            watches: vec![Default::default(); ports],
            paused: vec![ClassSet::default(); ports],
            storms: vec![ClassSet::default(); ports],
            stopped: [0; CLASSES],
            wakes: 0,
            now: Nanos::ZERO,
        })
    }

    /// Slots of ports with flow control, one bit each.
    pub fn slots(&self) -> u64 {
        self.shared.slots()
    }

    /// Slots that have to be polled besides those with waiting frames, one bit each.
    #[inline]
    pub fn attention(&self) -> u64 {
        self.shared.suspended.load(Ordering::Acquire) | self.shared.stopping.load(Ordering::Acquire)
    }

    /// Called in each iteration.
    #[inline]
    pub fn set_time(&mut self, now: Nanos) {
        self.now = now;
    }

    /// Frames that wait.
    pub fn held(&self) -> usize {
        self.queues.len()
    }

    /// When frames that wait can leave.
    pub fn poll_timeout(&self) -> Option<Nanos> {
        (self.queues.len() > 0 || self.shared.stopping.load(Ordering::Relaxed) != 0).then(|| self.now + RETRY)
    }

    /// The workers to wake, one bit each.
    pub fn wakes(&mut self) -> u64 {
        std::mem::take(&mut self.wakes)
    }

    /// A PFC frame was received by a port whose link has this speed.
    pub fn received(&self, slot: usize, now: Nanos, speed_mbps: Option<u32>, pause: &Pause) {
        let Some(port) = self.shared.port(slot) else {
            return;
        };
        let speed = port.config.speed(speed_mbps);
        for class in port.config.classes.iter() {
            let Some(quanta) = pause.of(class) else { continue };
            let state = &port.classes[class.index()];
            add(&state.pause_received, 1);
            let until = match quanta {
                0 => 0,
                _ => (now + quanta_time(quanta, speed)).0,
            };
            state.until.store(until, Ordering::Relaxed);
        }
        self.shared.suspended.fetch_or(1 << slot, Ordering::AcqRel);
    }

    /// Decides on a frame to a port that is suspended for some class. Sets `unsent` for a frame that the port has not accepted.
    pub fn admit(&mut self, slot: usize, ingress: u8, frame: B, unsent: bool) -> Admitted<B> {
        let Some(port) = self.shared.port(slot) else {
            return Admitted::Send(frame);
        };
        let class = port.config.map.class_of(frame.head());
        let state = &port.classes[class.index()];
        if self.storms[slot].has(class) {
            add(&state.storm_drops, 1);
            return Admitted::Dropped(DropReason::PfcStorm);
        }
        let waits = unsent || self.paused[slot].has(class) || self.queues.waiting(slot).has(class);
        if !waits || !port.config.classes.has(class) {
            return Admitted::Send(frame);
        }
        let bytes = frame.length() as u64;
        if self.queues.push(slot, class, ingress, frame, self.now).is_err() {
            add(&state.overflows, 1);
            return Admitted::Dropped(DropReason::PfcOverflow);
        }
        add(&state.held, 1);
        add(&state.queued_bytes, bytes);
        self.publish(class);
        Admitted::Held
    }

    /// Reports changes of the ingress ports that this worker wants to be stopped.
    fn publish(&mut self, class: TrafficClass) {
        let wanted = self.queues.stopped(class) & self.shared.slots();
        let mut changed = wanted ^ std::mem::replace(&mut self.stopped[class.index()], wanted);
        while changed != 0 {
            let slot = changed.trailing_zeros() as usize;
            changed &= changed - 1;
            let Some(port) = self
                .shared
                .port(slot)
                .filter(|port| port.config.classes.has(class))
            else {
                continue;
            };
            let state = &port.classes[class.index()].stopped_by;
            match wanted >> slot & 1 {
                0 => state.fetch_and(!(1 << self.worker), Ordering::AcqRel),
                _ => state.fetch_or(1 << self.worker, Ordering::AcqRel),
            };
            self.shared.stopping.fetch_or(1 << slot, Ordering::AcqRel);
            self.wakes |= 1 << (slot % self.shared.workers);
        }
    }

    /// Work of an iteration at one port. Returns true if it stays suspended.
    pub fn poll(&mut self, slot: usize, at: &mut impl PausablePort<Buf = B>) -> bool {
        let now = self.now;
        let shared = self.shared.clone();
        let Some(port) = shared.port(slot) else {
            return false;
        };
        if at.is_owner() {
            self.watch(slot, port, at);
            self.send_pauses(slot, port, at);
        }
        (self.paused[slot], self.storms[slot]) = (port.paused(now), port.storms());
        for class in self.queues.waiting(slot).iter() {
            self.release(slot, class, port, at);
        }
        !self.paused[slot].is_empty()
            || !self.storms[slot].is_empty()
            || !self.queues.waiting(slot).is_empty()
    }

    /// Counts pauses and runs the watchdog.
    fn watch(&mut self, slot: usize, port: &PfcPort, at: &mut impl PausablePort) {
        if self.shared.suspended.load(Ordering::Acquire) >> slot & 1 == 0 {
            return;
        }
        // Cleared first: a pause that is stored meanwhile sets the bit again.
        self.shared.suspended.fetch_and(!(1 << slot), Ordering::AcqRel);
        let (now, paused) = (self.now, port.paused(self.now));
        for class in port.config.classes.iter() {
            let (state, watch) = (
                &port.classes[class.index()],
                &mut self.watches[slot][class.index()],
            );
            let limit = port.config.watchdog.unwrap_or(Nanos::MAX);
            let has_storm = port.storms().has(class);
            let mut break_since = watch.counted;
            if watch.is_paused {
                // A pause that has run out ended then, however late its port is looked at.
                break_since = match Nanos(state.until.load(Ordering::Relaxed)) {
                    Nanos::ZERO => now,
                    until => until.clamp(watch.counted, now),
                };
                let since = break_since.since(watch.counted);
                add(&state.paused_ns, since.0);
                watch.stuck += since;
            }
            let taken_back = now.since(break_since).0.saturating_mul(BREAK);
            watch.stuck = watch.stuck.since(Nanos(taken_back));
            (watch.counted, watch.is_paused) = (now, paused.has(class));
            if watch.is_paused {
                watch.quiet_since = None;
                if !has_storm && watch.stuck > limit {
                    self.begin_storm(class, port, at);
                }
            } else if has_storm {
                let since = *watch.quiet_since.get_or_insert(now);
                if now.since(since) > limit {
                    (watch.quiet_since, watch.stuck) = (None, Nanos(0));
                    port.storms.fetch_and(!(1 << class.index()), Ordering::AcqRel);
                    at.report_storm(now, class, false);
                }
            }
        }
        if !paused.is_empty() || !port.storms().is_empty() {
            self.shared.suspended.fetch_or(1 << slot, Ordering::AcqRel);
        }
    }

    fn begin_storm(&self, class: TrafficClass, port: &PfcPort, at: &mut impl PausablePort) {
        let before = ClassSet(port.storms.fetch_or(1 << class.index(), Ordering::AcqRel));
        if !before.has(class) {
            add(&port.classes[class.index()].storms, 1);
            at.report_storm(self.now, class, true);
        }
    }

    /// Sends PAUSE for the classes that a worker wants to be stopped, again before it runs out, and the end of pauses.
    fn send_pauses(&mut self, slot: usize, port: &PfcPort, at: &mut impl PausablePort) {
        if self.shared.stopping.load(Ordering::Acquire) >> slot & 1 == 0 {
            return;
        }
        self.shared.stopping.fetch_and(!(1 << slot), Ordering::AcqRel);
        let (now, watches) = (self.now, &mut self.watches[slot]);
        let mut pause = Pause::default();
        let mut stopped = ClassSet::default();
        for class in port.config.classes.iter() {
            let is_wanted = port.classes[class.index()].stopped_by.load(Ordering::Acquire) != 0;
            match watches[class.index()].refresh_at {
                None if is_wanted => pause.set(class, u16::MAX),
                Some(at) if is_wanted && at <= now => pause.set(class, u16::MAX),
                Some(_) if !is_wanted => pause.set(class, 0),
                _ => {}
            }
            if is_wanted {
                stopped.insert(class);
            }
        }
        let is_sent = pause.classes.is_empty() || at.send_pause(&pause);
        if is_sent {
            let speed = port.config.speed(at.speed_mbps());
            let refresh_at = now + Nanos(quanta_time(u16::MAX, speed).0 / 2);
            for class in pause.classes.iter() {
                let is_stop = pause.of(class) != Some(0);
                watches[class.index()].refresh_at = is_stop.then_some(refresh_at);
                add(&port.classes[class.index()].pause_sent, 1);
            }
        }
        if !is_sent || !stopped.is_empty() {
            self.shared.stopping.fetch_or(1 << slot, Ordering::AcqRel);
        }
    }

    /// Sends what waits, or drops it in a storm.
    fn release(
        &mut self,
        slot: usize,
        class: TrafficClass,
        port: &PfcPort,
        at: &mut impl PausablePort<Buf = B>,
    ) {
        let state = &port.classes[class.index()];
        if self.storms[slot].has(class) {
            while let Some((_, frame)) = self.queues.pop(slot, class) {
                state
                    .queued_bytes
                    .fetch_sub(frame.length() as u64, Ordering::Relaxed);
                add(&state.storm_drops, 1);
                at.count_drop(DropReason::PfcStorm);
            }
        } else {
            if !self.paused[slot].has(class) {
                self.send_held(slot, class, state, at);
            }
            // Nothing leaves, whatever the reason: PAUSE, a device that is paused itself, or both in turn.
            let stuck = self.queues.stuck_since(slot, class);
            let limit = port.config.watchdog.unwrap_or(Nanos::MAX);
            if stuck.is_some_and(|since| self.now.since(since) > limit) {
                self.begin_storm(class, port, at);
                self.shared.suspended.fetch_or(1 << slot, Ordering::AcqRel);
            }
        }
        self.queues.settle(slot, class);
        self.publish(class);
    }

    fn send_held(
        &mut self,
        slot: usize,
        class: TrafficClass,
        state: &ClassState,
        at: &mut impl PausablePort<Buf = B>,
    ) {
        for _ in 0..BATCHES {
            let mut batch = Batch::new();
            let mut ingresses = [0; BATCH];
            let mut bytes = 0;
            while !batch.is_full()
                && let Some((ingress, frame)) = self.queues.pop(slot, class)
            {
                ingresses[batch.len()] = ingress;
                bytes += frame.length() as u64;
                batch.push(frame);
            }
            let taken = batch.len();
            at.offer(&mut batch);
            let left = batch.len();
            if left < taken {
                self.queues.not_stuck(slot, class, self.now);
            }
            // The last ones are left.
            for ingress in ingresses[..taken].iter().rev() {
                let Some(frame) = batch.pop() else { break };
                bytes -= frame.length() as u64;
                self.queues.put_back(slot, class, *ingress, frame);
            }
            state.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
            if left > 0 || taken < BATCH {
                return;
            }
        }
    }
}
