//! What a worker measures of itself: the clocks that the parts of a round take, and how full its rings are.
//!
//! Both are samples, so that they cost next to nothing: of sixteen rounds one is measured in parts, with one reading of the
//! processor's counter where a part ends, never per frame; and of 64 rounds one looks at the rings. Sums only grow, so who
//! reads them twice has the figures of the time between, and any number may read.
//!
//! The counter goes on while another thread has the core. A round in which that shows is left out: a batch takes
//! microseconds, and a thread that is given a core keeps it for milliseconds.

use std::time::Duration;

use castnet_port::RingUse;
use castnet_wire::counters;

use crate::control::Clock;

/// One round of so many is measured in parts ...
const CLOCKS_EVERY: u64 = 16;
/// ... and one of so many looks at the rings: another one, so that neither measures the other.
const RINGS_EVERY: u64 = 64;
/// A part of a round that takes longer has not had the core to itself.
const PART_MAX: Duration = Duration::from_micros(500);

counters! {
    /// Clocks of the polls that were measured and had frames and the core, by what they went to. A clock is a tick of the
    /// processor's counter (TSC), or a nanosecond on machines that have none.
    pub struct Clocks => copy_clocks {
        /// Polls that were measured.
        polls,
        /// Frames that came in them, from ports and from other workers.
        frames,
        /// Polling the ports and taking frames from them.
        receive,
        /// Handing frames over to other workers, and taking theirs over.
        hand_over,
        /// The engine: from parsing to rewriting, and its timers.
        engine,
        /// Giving frames to the ports.
        send,
        /// All of these polls; what is missing to the sum of the parts went to tables, commands and events.
        all,
    }
}

/// What the clocks of a round go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Other,
    Receive,
    HandOver,
    Engine,
    Send,
}

/// How full a ring was, each time that somebody looked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Frames that fit; 0 where there is no such ring, or it does not tell.
    pub size: usize,
    /// How often it was looked at.
    pub samples: u64,
    /// Frames that were in it then, all together.
    pub used_sum: u64,
    /// The most that were in it.
    pub used_max: usize,
    /// How often it was empty, and how often full to `i` sixteenths at most and over `i - 1`: so the maximum of any time
    /// follows from two readings, to a sixteenth.
    pub levels: [u64; Self::LEVELS],
}

impl Occupancy {
    /// Empty, and sixteen sixteenths.
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

/// Measures the rounds of one worker.
pub(crate) struct Meter {
    clock: Clock,
    /// What reading the counter takes: it is no part of what is measured.
    reading: u64,
    /// [`PART_MAX`] in ticks.
    part_max: u64,
    /// Whether this round is measured.
    on: bool,
    /// When the part before ended.
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
        // The least of many, as any may be interrupted.
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

    /// A round begins. Returns whether it is one that looks at the rings.
    #[inline]
    pub(crate) fn begin(&mut self, round: u64) -> bool {
        self.on = round.is_multiple_of(CLOCKS_EVERY);
        if self.on {
            self.at = self.clock.ticks();
            self.parts = [0; 5];
        }
        round % RINGS_EVERY == 1
    }

    /// What was done since the last call was this.
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

    /// The round is over, and had so many frames.
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
    fn a_ring_remembers_how_full_it_was() {
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
        // More than fits is what a device may say that counts what it has not yet taken back.
        ring.add(RingUse {
            used: 2000,
            size: 1024,
        });
        assert_eq!((ring.used_max, ring.levels[16]), (1024, 2));
        // One that does not tell stays as it is.
        let before = ring;
        ring.add(RingUse::default());
        assert_eq!(ring, before);
    }

    #[test]
    fn one_round_in_sixteen_is_measured_and_only_if_it_had_frames() {
        let mut meter = Meter::new(Clock::start());
        let mut looks = 0;
        for round in 0..128 {
            looks += u64::from(meter.begin(round));
            meter.lap(Part::Receive);
            meter.lap(Part::Engine);
            meter.lap(Part::Send);
            meter.end(if round < 64 { 0 } else { 32 });
        }
        let clocks = meter.clocks();
        assert_eq!((clocks.polls, clocks.frames, looks), (4, 128, 2));
        assert_eq!(clocks.hand_over, 0);
        assert!(clocks.receive + clocks.engine + clocks.send <= clocks.all);
    }

    /// A round with these parts, on a clock that nothing else moves.
    fn round(meter: &mut Meter, hand: &quanta::Mock, number: u64, parts: &[(Part, u64)]) {
        meter.begin(number);
        for (part, nanos) in parts {
            hand.increment(*nanos);
            meter.lap(*part);
        }
        hand.increment(10_u64);
        meter.end(32);
    }

    /// As a worker with a port that sends while the engine works.
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
    fn what_a_part_takes_is_counted_as_its_own_and_the_parts_are_the_whole() {
        let (clock, hand) = Clock::mock();
        let mut meter = Meter::new(clock);
        round(&mut meter, &hand, 0, &PARTS);
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

    /// `castnet bench` on a busy core reported twice what the engine takes: the time slices of others were in it.
    #[test]
    fn a_round_in_which_others_had_the_core_is_left_out() {
        let (clock, hand) = Clock::mock();
        let mut meter = Meter::new(clock);
        round(&mut meter, &hand, 0, &PARTS);
        let alone = meter.clocks();
        for at in 0..PARTS.len() {
            let mut parts = PARTS;
            parts[at].1 += 3_000_000;
            round(&mut meter, &hand, 16, &parts);
            assert_eq!(meter.clocks(), alone, "in {:?}", PARTS[at].0);
        }
        round(&mut meter, &hand, 32, &PARTS);
        let twice = meter.clocks();
        assert_eq!(
            (twice.polls, twice.engine, twice.all),
            (2, 2 * alone.engine, 2 * alone.all)
        );
    }
}
