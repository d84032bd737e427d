//! Scheduling at a host: patterns by weight, and the flows of a pattern in turn.

use crate::bucket::Bucket;

/// Frames that one flow sends before the next flow is selected.
pub(crate) const QUANTUM: usize = 4;
/// Flows to try before a pattern counts as idle.
pub(crate) const FLOWS_TRIED_MAX: usize = 64;
/// Virtual time of one frame of a pattern with weight 1.
const FRAME_TIME: u64 = 1 << 20;

/// The flows of one pattern at one host.
pub(crate) struct Class {
    pub(crate) flows: Vec<usize>,
    pub(crate) cursor: usize,
    pub(crate) bucket: Option<Bucket>,
    /// True if the unit of the bucket is a bit.
    pub(crate) bits: bool,
    /// Frames that may still be made; `None`: no limit.
    pub(crate) left: Option<u64>,
    weight: u64,
    /// Virtual time: frames made, divided by the weight. The class with the lowest one is next.
    time: u64,
}

impl Class {
    pub(crate) fn next_flow(&mut self) {
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

    pub(crate) fn record(&mut self, frames: usize) {
        self.time += frames as u64 * FRAME_TIME / self.weight;
    }
}

/// Weighted fair scheduling. A class gets its share while it has frames to send; an idle class gains no credit.
#[derive(Debug, Default)]
pub(crate) struct Scheduler {
    /// Virtual time of the class that was selected last.
    now: u64,
}

impl Scheduler {
    /// Index of the next class. `idle` is a bit set of classes without frames.
    pub(crate) fn choose(&mut self, classes: &mut [Class], idle: u64) -> Option<usize> {
        let ready = classes.iter().enumerate().filter(|(i, _)| idle & (1 << i) == 0);
        let (chosen, class) = ready.min_by_key(|(_, class)| class.time)?;
        self.now = self.now.max(class.time);
        Some(chosen)
    }

    /// Records that `class` is idle. It does not make up for missed time.
    pub(crate) fn skip_idle(&self, class: &mut Class) {
        class.time = class.time.max(self.now);
    }
}
