//! One direction of a link: what becomes of a frame that is sent on it.

use castnet_wire::{Nanos, PortId};
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use crate::node::NodeId;
use crate::profile::LinkProfile;

/// What happened on one direction of a link. All count frames, unless said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Given to the link.
    pub sent: u64,
    /// Bytes of those.
    pub sent_bytes: u64,
    /// Arrived, duplicates included.
    pub delivered: u64,
    /// Found the queue full.
    pub queue_full: u64,
    /// Lost on the way.
    pub lost: u64,
    /// Arrived twice.
    pub duplicated: u64,
    /// Held up.
    pub reordered: u64,
    /// Arrived with a bit turned.
    pub corrupted: u64,
    /// Sent while the link was down.
    pub down: u64,
}

/// What becomes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It arrives as it was sent.
    Delivered,
    /// It arrives twice.
    Duplicated,
    /// It arrives late, and others overtake it.
    Reordered,
    /// It arrives with a bit turned.
    Corrupted,
    /// It is lost.
    Lost,
    /// The queue was full.
    QueueFull,
    /// The link is down.
    Down,
}

/// One direction of a link.
#[derive(Debug)]
pub(crate) struct Direction {
    pub(crate) from: (NodeId, PortId),
    pub(crate) to: (NodeId, PortId),
    pub(crate) profile: LinkProfile,
    pub(crate) up: bool,
    /// When the last frame that was given to it will have been sent.
    pub(crate) busy_until: Nanos,
    pub(crate) stats: LinkStats,
}

/// When a frame arrives, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passage {
    pub(crate) fate: Fate,
    pub(crate) arrivals: [Option<Nanos>; 2],
    /// The bit that is turned, of all bits of the frame.
    pub(crate) turned: Option<usize>,
}

impl Direction {
    pub(crate) fn new(from: (NodeId, PortId), to: (NodeId, PortId), profile: LinkProfile, up: bool) -> Self {
        Self {
            from,
            to,
            profile,
            up,
            busy_until: Nanos::ZERO,
            stats: LinkStats::default(),
        }
    }

    /// Whether a frame that is sent now leaves at once.
    pub(crate) fn is_idle(&self, now: Nanos) -> bool {
        self.busy_until <= now
    }

    /// Takes a frame of `bytes`, and draws its fate.
    pub(crate) fn pass(&mut self, now: Nanos, bytes: usize, rng: &mut ChaCha8Rng) -> Passage {
        let mut passage = Passage {
            fate: Fate::Delivered,
            arrivals: [None; 2],
            turned: None,
        };
        self.stats.sent += 1;
        self.stats.sent_bytes += bytes as u64;
        if !self.up {
            self.stats.down += 1;
            passage.fate = Fate::Down;
            return passage;
        }
        let waiting = self.profile.bytes_in(self.busy_until.since(now));
        if waiting > 0 && waiting + bytes as u64 > self.profile.queue_bytes {
            self.stats.queue_full += 1;
            passage.fate = Fate::QueueFull;
            return passage;
        }
        self.busy_until = self.busy_until.max(now) + self.profile.serialization(bytes);
        let mut happens = |probability: f64| probability > 0.0 && rng.random_bool(probability.min(1.0));
        if happens(self.profile.loss) {
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
        .map(&mut happens);
        let held_up = |rng: &mut ChaCha8Rng| Nanos(rng.random_range(0..=self.profile.reordering_delay_max.0));
        if reordered {
            self.stats.reordered += 1;
            passage.fate = Fate::Reordered;
            arrival += held_up(rng);
        }
        if duplicated {
            self.stats.duplicated += 1;
            passage.fate = Fate::Duplicated;
            passage.arrivals[1] = Some(arrival + held_up(rng));
        }
        if corrupted && bytes > 0 {
            self.stats.corrupted += 1;
            passage.fate = Fate::Corrupted;
            passage.turned = Some(rng.random_range(0..bytes * 8));
        }
        passage.arrivals[0] = Some(arrival);
        passage
    }
}
