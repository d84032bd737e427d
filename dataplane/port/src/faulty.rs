//! A fault injector: a port that drops, duplicates, delays, reorders and corrupts frames, controlled by a seed.
//!
//! The faults of a frame depend only on the seed, the direction, the port's queue and the number of earlier
//! frames in that direction. Each frame uses eight words of a ChaCha8 stream, whichever faults are enabled.
//! Changing one rate therefore does not change which frames the other faults affect.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use castnet_wire::{Batch, CounterSet, DropReason, FrameBuf, Nanos, counters};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::pool::PoolBuf;
use crate::port::{Port, PortStats, delegate_port};

/// Words of the random stream per frame.
const WORDS: usize = 8;
/// Capacity of one direction for delayed frames. Further frames are not delayed.
const HELD_MAX: usize = 4096;
/// A reordered frame is forwarded after 1 to this many later frames.
const REORDER_DISTANCE: u64 = 8;
/// A reordered frame is forwarded after this time at the latest.
const REORDER_TIME: Nanos = Nanos::from_millis(1);

/// Faults of one direction. Probabilities are per frame, 0 to 1, and independent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// Probability of loss.
    pub loss: f64,
    /// Probability that the frame is delivered twice.
    pub duplicate: f64,
    /// Probability that up to eight later frames overtake the frame.
    pub reorder: f64,
    /// Probability that one bit of the frame is inverted.
    pub corrupt: f64,
    /// Delay of all frames.
    pub delay: Nanos,
    /// Maximum additional delay, random per frame, so that frames overtake each other.
    pub jitter: Nanos,
}

impl Faults {
    /// No faults.
    pub const NONE: Self = Self {
        loss: 0.0,
        duplicate: 0.0,
        reorder: 0.0,
        corrupt: 0.0,
        delay: Nanos::ZERO,
        jitter: Nanos::ZERO,
    };

    /// Only loss, with this probability.
    pub const fn loss(probability: f64) -> Self {
        Self {
            loss: probability,
            ..Self::NONE
        }
    }

    fn is_none(&self) -> bool {
        *self == Self::NONE
    }
}

counters! {
    /// Counters of one direction, in frames.
    pub struct FaultCounts {
        /// Frames processed.
        frames,
        /// Frames dropped.
        lost,
        /// Frames duplicated.
        duplicated,
        /// Frames reordered.
        reordered,
        /// Frames corrupted.
        corrupted,
        /// Frames delayed.
        delayed,
    }
}

/// Settings and counters of one direction, shared by the control and the ports.
#[derive(Debug, Default)]
struct DirectionSettings {
    settings: [AtomicU64; 6],
    counts: [AtomicU64; 6],
}

/// A copy of the settings: probabilities scaled to 2^32 (which means certain), and times in nanoseconds.
#[derive(Clone, Copy)]
struct Thresholds {
    loss: u64,
    duplicate: u64,
    reorder: u64,
    corrupt: u64,
    delay: Nanos,
    jitter: u64,
}

impl DirectionSettings {
    fn set(&self, faults: Faults) {
        let threshold = |p: f64| (p.clamp(0.0, 1.0) * (1_u64 << 32) as f64) as u64;
        let settings = [
            threshold(faults.loss),
            threshold(faults.duplicate),
            threshold(faults.reorder),
            threshold(faults.corrupt),
            faults.delay.0,
            faults.jitter.0,
        ];
        for (setting, value) in self.settings.iter().zip(settings) {
            setting.store(value, Ordering::Relaxed);
        }
    }

    fn thresholds(&self) -> Thresholds {
        let [loss, duplicate, reorder, corrupt, delay, jitter] =
            self.settings.each_ref().map(|s| s.load(Ordering::Relaxed));
        Thresholds {
            loss,
            duplicate,
            reorder,
            corrupt,
            delay: Nanos(delay),
            jitter,
        }
    }

    fn get(&self) -> Faults {
        let t = self.thresholds();
        let probability = |t: u64| t as f64 / (1_u64 << 32) as f64;
        Faults {
            loss: probability(t.loss),
            duplicate: probability(t.duplicate),
            reorder: probability(t.reorder),
            corrupt: probability(t.corrupt),
            delay: t.delay,
            jitter: Nanos(t.jitter),
        }
    }

    fn counts(&self) -> FaultCounts {
        let [frames, lost, duplicated, reordered, corrupted, delayed] =
            self.counts.each_ref().map(|c| c.load(Ordering::Relaxed));
        FaultCounts {
            frames,
            lost,
            duplicated,
            reordered,
            corrupted,
            delayed,
        }
    }

    fn add(&self, more: &FaultCounts) {
        let more = more.fields().map(|(_, more)| more);
        for (count, more) in self.counts.iter().zip(more).filter(|(_, more)| *more > 0) {
            count.fetch_add(more, Ordering::Relaxed);
        }
    }
}

/// Control of a fault injector, from any thread. Clones and ports of one [`PortSpec`](crate::PortSpec) share it.
#[derive(Clone, Debug)]
pub struct FaultControl {
    seed: u64,
    /// Receive direction, then send direction.
    directions: Arc<[DirectionSettings; 2]>,
}

impl FaultControl {
    /// Creates an injector with this seed and no faults.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            directions: Arc::default(),
        }
    }

    /// Sets the faults for received and for sent frames.
    pub fn with(self, rx: Faults, tx: Faults) -> Self {
        self.set_rx(rx);
        self.set_tx(tx);
        self
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Sets the faults for received frames.
    pub fn set_rx(&self, faults: Faults) {
        self.directions[0].set(faults);
    }

    /// Sets the faults for sent frames.
    pub fn set_tx(&self, faults: Faults) {
        self.directions[1].set(faults);
    }

    /// The faults for received and for sent frames.
    pub fn faults(&self) -> [Faults; 2] {
        self.directions.each_ref().map(DirectionSettings::get)
    }

    /// Returns true if no faults are set.
    pub fn is_idle(&self) -> bool {
        self.faults().iter().all(Faults::is_none)
    }

    /// Counters of received and of sent frames.
    pub fn counts(&self) -> [FaultCounts; 2] {
        self.directions.each_ref().map(DirectionSettings::counts)
    }

    /// Wraps a port. `queue` is the index of the thread if several threads have opened it.
    pub fn wrap<P: Port<Buf = PoolBuf>>(&self, inner: P, queue: usize) -> Faulty<P> {
        let line = |direction: u64| DirectionState::new(self.seed, queue as u64 * 2 + direction);
        Faulty {
            inner,
            control: self.clone(),
            rx: line(0),
            tx: line(1),
            now: Nanos::ZERO,
            scratch: Batch::new(),
            lost: 0,
        }
    }
}

/// A delayed frame. The heap has the one that is due first on top.
#[derive(Debug)]
struct DelayedFrame {
    due: Nanos,
    order: u64,
    frame: PoolBuf,
}

impl Ord for DelayedFrame {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        Reverse((self.due, self.order)).cmp(&Reverse((other.due, other.order)))
    }
}

impl PartialOrd for DelayedFrame {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for DelayedFrame {
    fn eq(&self, other: &Self) -> bool {
        (self.due, self.order) == (other.due, other.order)
    }
}

impl Eq for DelayedFrame {}

#[derive(Debug)]
struct ReorderedFrame {
    /// The frame is forwarded after the frame with this number.
    after: u64,
    due: Nanos,
    frame: PoolBuf,
}

#[derive(Debug)]
struct DirectionState {
    rng: ChaCha8Rng,
    index: u64,
    delayed: BinaryHeap<DelayedFrame>,
    overtaken: VecDeque<ReorderedFrame>,
    ready: VecDeque<PoolBuf>,
}

impl DirectionState {
    fn new(seed: u64, stream: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(stream);
        Self {
            rng,
            index: 0,
            delayed: BinaryHeap::with_capacity(HELD_MAX),
            overtaken: VecDeque::with_capacity(HELD_MAX),
            ready: VecDeque::with_capacity(HELD_MAX),
        }
    }

    fn is_empty(&self) -> bool {
        self.delayed.is_empty() && self.overtaken.is_empty() && self.ready.is_empty()
    }

    fn held(&self) -> usize {
        self.delayed.len() + self.overtaken.len() + self.ready.len()
    }

    fn words(&mut self) -> [u32; WORDS] {
        [(); WORDS].map(|()| self.rng.next_u32())
    }

    fn inject(&mut self, mut frame: PoolBuf, now: Nanos, t: &Thresholds, counts: &mut FaultCounts) {
        let hit = |word: u32, threshold: u64| u64::from(word) < threshold;
        let [
            lost,
            corrupted,
            bit,
            duplicated,
            reordered,
            distance,
            jitter,
            jitter_of_copy,
        ] = self.words();
        self.index += 1;
        counts.frames += 1;
        if hit(lost, t.loss) {
            counts.lost += 1;
            self.release_overtaken(now);
            return;
        }
        if hit(corrupted, t.corrupt) && flip_bit(&mut frame, bit) {
            counts.corrupted += 1;
        }
        let copy = match hit(duplicated, t.duplicate) {
            true => frame.replicate(),
            false => None,
        };
        if hit(reordered, t.reorder) && self.overtaken.len() < HELD_MAX {
            counts.reordered += 1;
            let after = self.index + 1 + scale(distance, REORDER_DISTANCE);
            self.overtaken.push_back(ReorderedFrame {
                after,
                due: now + REORDER_TIME,
                frame,
            });
        } else {
            self.forward(frame, now, t, jitter, counts);
        }
        if let Some(copy) = copy {
            counts.duplicated += 1;
            self.forward(copy, now, t, jitter_of_copy, counts);
        }
        self.release_overtaken(now);
    }

    /// Forwards a frame at once or after its delay.
    fn forward(&mut self, frame: PoolBuf, now: Nanos, t: &Thresholds, jitter: u32, counts: &mut FaultCounts) {
        let delay = t.delay + Nanos(scale(jitter, t.jitter.saturating_add(1)));
        if delay == Nanos::ZERO || self.delayed.len() == HELD_MAX {
            self.ready.push_back(frame);
        } else {
            counts.delayed += 1;
            let (due, order) = (now + delay, self.index);
            self.delayed.push(DelayedFrame { due, order, frame });
        }
    }

    fn release_overtaken(&mut self, now: Nanos) {
        let mut at = 0;
        while let Some(held) = self.overtaken.get(at) {
            if held.after <= self.index || held.due <= now {
                self.ready
                    .extend(self.overtaken.remove(at).map(|held| held.frame));
            } else {
                at += 1;
            }
        }
    }

    fn release(&mut self, now: Nanos) {
        self.release_overtaken(now);
        while self.delayed.peek().is_some_and(|held| held.due <= now) {
            self.ready.extend(self.delayed.pop().map(|held| held.frame));
        }
    }

    fn timeout(&self) -> Option<Nanos> {
        let overtaken = self.overtaken.iter().map(|held| held.due);
        overtaken.chain(self.delayed.peek().map(|held| held.due)).min()
    }
}

fn scale(word: u32, below: u64) -> u64 {
    ((u128::from(word) * u128::from(below)) >> 32) as u64
}

/// Inverts the bit of the frame that `word` selects.
fn flip_bit(frame: &mut PoolBuf, word: u32) -> bool {
    let bit = scale(word, frame.length() as u64 * 8) as usize;
    let Some(byte) = frame.byte(bit / 8) else {
        return false;
    };
    frame.write_at(bit / 8, &[byte ^ (1 << (bit % 8))])
}

/// A port behind a fault injector.
#[derive(Debug)]
pub struct Faulty<P> {
    inner: P,
    control: FaultControl,
    rx: DirectionState,
    tx: DirectionState,
    now: Nanos,
    scratch: Batch<PoolBuf>,
    lost: u64,
}

impl<P: Port<Buf = PoolBuf>> Faulty<P> {
    /// The control of the injector.
    pub fn control(&self) -> &FaultControl {
        &self.control
    }

    /// Delayed frames: received and to be sent. Received ones are lost when the port is dropped, as on a cut wire.
    pub fn held(&self) -> [usize; 2] {
        [self.rx.held(), self.tx.held()]
    }

    fn flush(&mut self) {
        while !self.tx.ready.is_empty() {
            while !self.scratch.is_full()
                && let Some(frame) = self.tx.ready.pop_front()
            {
                self.scratch.push(frame);
            }
            self.inner.send(&mut self.scratch);
        }
    }
}

impl<P: Port<Buf = PoolBuf>> Port for Faulty<P> {
    type Buf = PoolBuf;

    fn receive(&mut self, batch: &mut Batch<PoolBuf>) {
        let thresholds = self.control.directions[0].thresholds();
        let mut counts = FaultCounts::default();
        self.rx.release(self.now);
        // Bounded, because a fast sender whose frames are all dropped would otherwise keep this thread here.
        for _ in 0..2 {
            while !batch.is_full()
                && let Some(frame) = self.rx.ready.pop_front()
            {
                batch.push(frame);
            }
            if batch.is_full() {
                break;
            }
            self.inner.receive(&mut self.scratch);
            if self.scratch.is_empty() {
                break;
            }
            for frame in self.scratch.drain(..) {
                self.rx.inject(frame, self.now, &thresholds, &mut counts);
            }
        }
        self.lost += counts.lost;
        self.control.directions[0].add(&counts);
    }

    fn send(&mut self, batch: &mut Batch<PoolBuf>) {
        let thresholds = self.control.directions[1].thresholds();
        let mut counts = FaultCounts::default();
        for frame in batch.drain(..) {
            self.tx.inject(frame, self.now, &thresholds, &mut counts);
        }
        self.flush();
        self.lost += counts.lost;
        self.control.directions[1].add(&counts);
    }

    delegate_port!(|this| this.inner);

    fn stats(&self) -> PortStats {
        let mut stats = self.inner.stats();
        stats.drops[DropReason::Injected] += self.lost;
        stats
    }

    fn ready(&self) -> bool {
        !self.rx.ready.is_empty()
            || self.inner.ready()
            || self.rx.timeout().is_some_and(|due| due <= self.now)
    }

    fn poll(&mut self, now: Nanos) {
        self.now = now;
        self.inner.poll(now);
        if !self.tx.is_empty() {
            self.tx.release(now);
            self.flush();
        }
    }

    fn poll_timeout(&self) -> Option<Nanos> {
        [self.rx.timeout(), self.tx.timeout(), self.inner.poll_timeout()]
            .into_iter()
            .flatten()
            .min()
    }

    fn pending(&self) -> usize {
        self.tx.held() + self.inner.pending()
    }
}
