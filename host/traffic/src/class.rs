//! Whose turn it is at a host: patterns by weight, and the flows of a pattern one after the other.

use crate::bucket::Bucket;

/// Frames that one flow sends before it is another's turn.
pub(crate) const QUANTUM: usize = 4;
/// Flows that are asked, one after the other, before a pattern is taken to have nothing.
pub(crate) const ASKED: usize = 64;
/// One frame, in the time by which shares are reckoned, of a pattern with weight 1.
const FRAME: u64 = 1 << 20;

/// The flows of one pattern at one host.
pub(crate) struct Class {
    pub(crate) flows: Vec<usize>,
    pub(crate) cursor: usize,
    pub(crate) bucket: Option<Bucket>,
    /// Whether the bucket's units are bits.
    pub(crate) bits: bool,
    /// Frames that may still be made.
    pub(crate) left: Option<u64>,
    weight: u64,
    /// Frames made over weight: who is furthest behind is next.
    time: u64,
}

impl Class {
    /// The next flow has its turn.
    pub(crate) fn turn(&mut self) {
        self.cursor = if self.cursor + 1 == self.flows.len() {
            0
        } else {
            self.cursor + 1
        };
    }

    pub(crate) fn new(weight: u32) -> Self {
        Self {
            flows: Vec::new(),
            cursor: 0,
            bucket: None,
            bits: false,
            left: None,
            weight: u64::from(weight.max(1)),
            time: 0,
        }
    }

    pub(crate) fn served(&mut self, frames: usize) {
        self.time += frames as u64 * FRAME / self.weight;
    }
}

/// Chooses among classes: each gets its share while it has something to send, and no more for having been silent.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// The time of the one that was chosen last.
    now: u64,
}

impl Turns {
    /// The next one's place. `silent`: those that have nothing now.
    pub(crate) fn choose(&mut self, classes: &mut [Class], silent: u64) -> Option<usize> {
        let ready = classes.iter().enumerate().filter(|(i, _)| silent & (1 << i) == 0);
        let (chosen, class) = ready.min_by_key(|(_, class)| class.time)?;
        self.now = self.now.max(class.time);
        Some(chosen)
    }

    /// `class` has nothing to send: what it misses is not made up for.
    pub(crate) fn silent(&self, class: &mut Class) {
        class.time = class.time.max(self.now);
    }
}
