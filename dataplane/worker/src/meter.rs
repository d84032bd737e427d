//! Measurements of a worker: the clocks spent in each part of an iteration, and the occupancy of its rings.
//!
//! Both are sampled so that they cost almost nothing: one of 16 iterations reads the processor's counter at the end of
//! each part, and one of 64 samples the rings. The sums only grow, so any number of readers can compute differences.
//!
//! The counter also advances while another thread has the core. Such an iteration is recognized by its length (a batch
//! takes microseconds, a time slice milliseconds) and discarded.

use std::time::Duration;

use castnet_port::RingUse;
use castnet_wire::counters;

use crate::control::Clock;

const CLOCKS_EVERY: u64 = 16;
/// Iterations that sample the rings are never measured ones, so that neither disturbs the other.
const RINGS_EVERY: u64 = 64;
/// A part that takes longer was interrupted by another thread.
const PART_MAX: Duration = Duration::from_micros(500);

counters! {
    /// Clocks by part, in measured polls that processed frames without interruption. A clock is a tick of the
    /// processor's counter (TSC), or a nanosecond on machines without one.
    pub struct Clocks => copy_clocks {
        /// Measured polls.
        polls,
        /// Frames processed in these polls, from ports and from other workers.
        frames,
        /// Polling the ports and receiving from them.
        receive,
        /// Handing frames over to other workers and taking frames from them.
        hand_over,
        /// The engine, from parsing to rewriting, and its timers.
        engine,
        /// Sending frames to the ports.
        send,
        /// All parts. The difference to the sum of the others is tables, commands and events.
        all,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Other,
    Receive,
    HandOver,
    Engine,
    Send,
}

/// Samples of the occupancy of a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// In frames. Zero if the ring does not exist or does not report its occupancy.
    pub size: usize,
    /// The number of samples.
    pub samples: u64,
    /// Sum of the sampled occupancies, in frames.
    pub used_sum: u64,
    /// The largest sampled occupancy, in frames.
    pub used_max: usize,
    /// Histogram: element 0 counts empty rings, element `i` rings filled over `i - 1` and up to `i` sixteenths. The
    /// difference of two reads shows the maximum between them, to a sixteenth.
    pub levels: [u64; Self::LEVELS],
}

impl Occupancy {
    /// One level for empty and one per sixteenth.
    pub const LEVELS: usize = 17;

    pub(crate) fn add(&mut self, ring: RingUse) {
        if ring.size == 0 {
            return;
        }
        let used = ring.used.min(ring.size);
        self.size = ring.size;
        self.samples += 1;
        self.used_sum += used as u64;
        self.used_max = self.used_max.max(used);
        self.levels[(used * (Self::LEVELS - 1)).div_ceil(ring.size)] += 1;
    }
}

pub(crate) struct Meter {
    clock: Clock,
    /// Ticks that one read of the counter takes. They are subtracted from each part.
    reading: u64,
    /// [`PART_MAX`] in ticks.
    part_max: u64,
    on: bool,
    /// Tick at which the previous part ended.
    at: u64,
    parts: [u64; 5],
    clocks: Clocks,
}

impl Meter {
    pub(crate) fn new(clock: Clock) -> Self {
        let reading = || {
            let before = clock.ticks();
            clock.ticks().saturating_sub(before)
        };
        // The minimum, because any of the reads may be interrupted.
        let reading = (0..64).map(|_| reading()).min().unwrap_or(0);
        let part_max = u128::from(clock.ticks_per_second()) * PART_MAX.as_nanos() / 1_000_000_000;
        Self {
            clock,
            reading,
            part_max: part_max as u64,
            on: false,
            at: 0,
            parts: [0; 5],
            clocks: Clocks::default(),
        }
    }

    /// Returns true if this iteration samples the rings.
    #[inline]
    pub(crate) fn begin(&mut self, iteration: u64) -> bool {
        self.on = iteration.is_multiple_of(CLOCKS_EVERY);
        if self.on {
            self.at = self.clock.ticks();
            self.parts = [0; 5];
        }
        iteration % RINGS_EVERY == 1
    }

    /// Attributes the time since the last call to `part`.
    #[inline]
    pub(crate) fn lap(&mut self, part: Part) {
        if self.on {
            let now = self.clock.ticks();
            let took = now.saturating_sub(self.at);
            self.parts[part as usize] += took.saturating_sub(self.reading);
            self.at = now;
            self.on = took <= self.part_max;
        }
    }

    #[inline]
    pub(crate) fn end(&mut self, frames: usize) {
        if self.on {
            self.lap(Part::Other);
            self.on = false;
            if frames > 0 {
                let [_, receive, hand_over, engine, send] = self.parts;
                let clocks = &mut self.clocks;
                clocks.polls += 1;
                clocks.frames += frames as u64;
                clocks.receive += receive;
                clocks.hand_over += hand_over;
                clocks.engine += engine;
                clocks.send += send;
                clocks.all += self.parts.iter().sum::<u64>();
            }
        }
    }

    pub(crate) fn clocks(&self) -> Clocks {
        self.clocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn occupancy_samples_fill_the_histogram() {
        let mut ring = Occupancy::default();
        for used in [0, 0, 1, 512, 513, 1024] {
            ring.add(RingUse { used, size: 1024 });
        }
        assert_eq!(
            (ring.samples, ring.used_sum, ring.used_max, ring.size),
            (6, 2050, 1024, 1024)
        );
        assert_eq!((ring.levels[0], ring.levels[1], ring.levels[8]), (2, 1, 1));
        assert_eq!((ring.levels[9], ring.levels[16]), (1, 1));
        assert_eq!(ring.levels.iter().sum::<u64>(), ring.samples);
        // A device may report more than fits when it counts frames that it has not yet freed.
        ring.add(RingUse {
            used: 2000,
            size: 1024,
        });
        assert_eq!((ring.used_max, ring.levels[16]), (1024, 2));
        // A ring that does not report its occupancy is not sampled.
        let before = ring;
        ring.add(RingUse::default());
        assert_eq!(ring, before);
    }

    #[test]
    fn one_of_16_iterations_is_measured_if_it_processed_frames() {
        let mut meter = Meter::new(Clock::start());
        let mut samples = 0;
        for n in 0..128 {
            samples += u64::from(meter.begin(n));
            meter.lap(Part::Receive);
            meter.lap(Part::Engine);
            meter.lap(Part::Send);
            meter.end(if n < 64 { 0 } else { 32 });
        }
        let clocks = meter.clocks();
        assert_eq!((clocks.polls, clocks.frames, samples), (4, 128, 2));
        assert_eq!(clocks.hand_over, 0);
        assert!(clocks.receive + clocks.engine + clocks.send <= clocks.all);
    }

    /// Runs an iteration with these parts on the mock clock.
    fn iteration(meter: &mut Meter, hand: &quanta::Mock, number: u64, parts: &[(Part, u64)]) {
        meter.begin(number);
        for (part, nanos) in parts {
            hand.increment(*nanos);
            meter.lap(*part);
        }
        hand.increment(10_u64);
        meter.end(32);
    }

    /// The parts of an iteration in which a port sends while the engine works.
    const PARTS: [(Part, u64); 7] = [
        (Part::Other, 70),
        (Part::Receive, 300),
        (Part::HandOver, 20),
        (Part::Engine, 4_000),
        (Part::Send, 900),
        (Part::Engine, 5_000),
        (Part::Send, 100),
    ];

    #[test]
    fn each_part_is_measured_and_the_parts_sum_to_the_whole() {
        let (clock, hand) = Clock::mock();
        let mut meter = Meter::new(clock);
        iteration(&mut meter, &hand, 0, &PARTS);
        let expected = Clocks {
            polls: 1,
            frames: 32,
            receive: 300,
            hand_over: 20,
            engine: 9_000,
            send: 1_000,
            all: 70 + 300 + 20 + 9_000 + 1_000 + 10,
        };
        assert_eq!(meter.clocks(), expected);
    }

    /// Regression: on a busy core, `castnet bench` reported twice the engine's time because it included other
    /// threads' time slices.
    #[test]
    fn an_interrupted_iteration_is_discarded() {
        let (clock, hand) = Clock::mock();
        let mut meter = Meter::new(clock);
        iteration(&mut meter, &hand, 0, &PARTS);
        let alone = meter.clocks();
        for at in 0..PARTS.len() {
            let mut parts = PARTS;
            parts[at].1 += 3_000_000;
            iteration(&mut meter, &hand, 16, &parts);
            assert_eq!(meter.clocks(), alone, "in {:?}", PARTS[at].0);
        }
        iteration(&mut meter, &hand, 32, &PARTS);
        let twice = meter.clocks();
        assert_eq!(
            (twice.polls, twice.engine, twice.all),
            (2, 2 * alone.engine, 2 * alone.all)
        );
    }
}
