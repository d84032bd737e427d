//! One direction of a link, and the fate of frames that are sent on it.

use castnet_wire::red::{Red, mark_frame};
use castnet_wire::{FrameBuf, Nanos, PortId, counters};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use crate::frame::Frame;
use crate::node::NodeId;
use crate::profile::LinkProfile;

counters! {
    /// Counters of one direction of a link, in frames unless stated otherwise.
    pub struct LinkStats {
        /// Frames sent.
        sent,
        /// Bytes sent.
        sent_bytes,
        /// Bytes that frames have found in the queue: over `sent`, the mean depth.
        queued_bytes,
        /// Frames marked as congested (ECN: CE).
        ecn_marks,
        /// Frames delivered, including duplicates.
        delivered,
        /// Frames dropped because the queue was full.
        queue_full,
        /// Frames lost.
        lost,
        /// Frames delivered twice.
        duplicated,
        /// Frames delayed.
        reordered,
        /// Frames delivered with a flipped bit.
        corrupted,
        /// Frames sent while the link was down.
        down,
    }
}

/// Fate of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Delivered unchanged.
    Delivered,
    /// Delivered twice.
    Duplicated,
    /// Delivered late; other frames overtake it.
    Reordered,
    /// Delivered with a flipped bit.
    Corrupted,
    /// Lost.
    Lost,
    /// Dropped: the queue was full.
    QueueFull,
    /// Dropped: the link is down.
    Down,
}

#[derive(Clone, Debug)]
pub(crate) struct Direction {
    pub(crate) from: (NodeId, PortId),
    pub(crate) to: (NodeId, PortId),
    pub(crate) profile: LinkProfile,
    pub(crate) up: bool,
    /// Time at which the last queued frame has been sent.
    pub(crate) busy_until: Nanos,
    red: Option<Red>,
    pub(crate) stats: LinkStats,
    /// The shard that the frames go to, if it is another one.
    pub(crate) shard: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Passage {
    pub(crate) fate: Fate,
    pub(crate) arrivals: [Option<Nanos>; 2],
    pub(crate) flipped_bit: Option<usize>,
}

impl Direction {
    pub(crate) fn new(from: (NodeId, PortId), to: (NodeId, PortId), profile: LinkProfile, up: bool) -> Self {
        let mut direction = Self {
            from,
            to,
            profile,
            up,
            busy_until: Nanos::ZERO,
            red: None,
            stats: LinkStats::default(),
            shard: None,
        };
        direction.set_profile(profile);
        direction
    }

    pub(crate) fn set_profile(&mut self, profile: LinkProfile) {
        let seed = ((self.from.0.0 as u64) << 8) + self.from.1.index() as u64;
        self.red = profile.ecn.map(|config| Red::new(config, seed));
        self.profile = profile;
    }

    pub(crate) fn is_idle(&self, now: Nanos) -> bool {
        self.busy_until <= now
    }

    /// Bytes in the queue, with the rest of the frame that is being sent.
    fn waiting(&self, now: Nanos) -> u64 {
        self.profile.bytes_in(self.busy_until.since(now))
    }

    fn fits(&self, waiting: u64, bytes: usize) -> bool {
        waiting == 0 || waiting + bytes as u64 <= self.profile.queue_bytes
    }

    /// True if the queue takes a frame of `bytes`. A link that is down takes and loses all frames.
    pub(crate) fn has_capacity(&self, now: Nanos, bytes: usize) -> bool {
        !self.up || self.fits(self.waiting(now), bytes)
    }

    /// When half of the queue has left.
    pub(crate) fn half_empty_at(&self) -> Nanos {
        Nanos(
            self.busy_until
                .0
                .saturating_sub(self.profile.time_of(self.profile.queue_bytes / 2).0),
        )
    }

    pub(crate) fn pass(&mut self, now: Nanos, frame: &mut Frame, rng: &mut ChaCha8Rng) -> Passage {
        let bytes = frame.length();
        let mut passage = Passage {
            fate: Fate::Delivered,
            arrivals: [None; 2],
            flipped_bit: None,
        };
        self.stats.sent += 1;
        self.stats.sent_bytes += bytes as u64;
        if !self.up {
            self.stats.down += 1;
            passage.fate = Fate::Down;
            return passage;
        }
        let waiting = self.waiting(now);
        if !self.fits(waiting, bytes) {
            self.stats.queue_full += 1;
            passage.fate = Fate::QueueFull;
            return passage;
        }
        self.stats.queued_bytes += waiting;
        if self.red.as_mut().is_some_and(|red| red.marks(waiting)) {
            self.stats.ecn_marks += u64::from(mark_frame(frame.head_mut()));
        }
        self.busy_until = self.busy_until.max(now) + self.profile.serialization(bytes);
        let mut occurs = |probability: f64| probability > 0.0 && rng.random_bool(probability.min(1.0));
        if occurs(self.profile.loss) {
            self.stats.lost += 1;
            passage.fate = Fate::Lost;
            return passage;
        }
        let mut arrival = self.busy_until + self.profile.delay;
        let [corrupted, reordered, duplicated] = [
            self.profile.corruption,
            self.profile.reordering,
            self.profile.duplication,
        ]
        .map(&mut occurs);
        let extra_delay =
            |rng: &mut ChaCha8Rng| Nanos(rng.random_range(0..=self.profile.reordering_delay_max.0));
        if reordered {
            self.stats.reordered += 1;
            passage.fate = Fate::Reordered;
            arrival += extra_delay(rng);
        }
        if duplicated {
            self.stats.duplicated += 1;
            passage.fate = Fate::Duplicated;
            passage.arrivals[1] = Some(arrival + extra_delay(rng));
        }
        if corrupted && bytes > 0 {
            self.stats.corrupted += 1;
            passage.fate = Fate::Corrupted;
            passage.flipped_bit = Some(rng.random_range(0..bytes * 8));
        }
        passage.arrivals[0] = Some(arrival);
        passage
    }
}
