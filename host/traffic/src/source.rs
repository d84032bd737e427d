//! The source of a multicast group: data in a window, and again from where a receiver refused it.

use castnet_wire::{FrameBuf, Nanos, Psn, Syndrome};

use crate::counts::FlowCounts;
use crate::seen::Seen;
use crate::template::Ready;

/// How long a source waits for an acknowledgement before it goes on without (or, under NAKs, back).
pub(crate) const PATIENCE: Nanos = Nanos::from_millis(20);
/// One data frame of so many carries a time.
const STAMP_EVERY: u64 = 16;

/// By size: the first of a message, those between, the last, and one that is alone; as far as they are needed.
pub(crate) type Positions<B> = [Option<Ready<B>>; 4];

/// Frame `i` of the flow has the PSN `start + (i + 1) * stride - 1`.
pub(crate) struct Source<B> {
    pub(crate) frames: Vec<Positions<B>>,
    /// Which size comes after which.
    pub(crate) turn: Vec<usize>,
    pub(crate) start: Psn,
    /// PSNs that one frame stands for: more than one only where ACKs are what is measured.
    pub(crate) stride: u32,
    /// Frames from one acknowledgement to the next.
    pub(crate) message: u64,
    /// Whether the frames of a message are one message to the receiver, which full packets can be.
    pub(crate) joined: bool,
    /// Frames that may be under way.
    pub(crate) window: u64,
    /// Whether it goes back when it is refused.
    pub(crate) goes_back: bool,
    next: u64,
    acked: u64,
    /// What is to be sent again, up to `next`.
    again: Option<u64>,
    moved: Nanos,
}

/// What a [`Source`] is made of.
pub(crate) struct SourceConfig<B> {
    pub(crate) frames: Vec<Positions<B>>,
    pub(crate) turn: Vec<usize>,
    pub(crate) start: Psn,
    pub(crate) stride: u32,
    pub(crate) message: u32,
    pub(crate) joined: bool,
    pub(crate) window: u64,
    pub(crate) goes_back: bool,
}

impl<B: FrameBuf> Source<B> {
    pub(crate) fn new(config: SourceConfig<B>) -> Self {
        Self {
            frames: config.frames,
            turn: config.turn,
            start: config.start,
            stride: config.stride.max(1),
            message: u64::from(config.message.max(1)),
            joined: config.joined,
            window: config.window.max(1),
            goes_back: config.goes_back,
            next: 0,
            acked: 0,
            again: None,
            moved: Nanos::ZERO,
        }
    }

    /// Whatever comes back is not waited for.
    pub(crate) fn unbind(&mut self) {
        self.window = u64::MAX;
    }

    /// The last PSN of the first `frames` frames.
    fn psn_before(&self, frames: u64) -> Psn {
        // The product wraps where PSNs do.
        Psn::new((frames as u32).wrapping_mul(self.stride)).add(self.start.value() as i32 - 1)
    }

    /// The next frame, and whether it is new. `None` where none may go, or there is no buffer.
    #[inline]
    pub(crate) fn next(
        &mut self,
        now: Nanos,
        stopped: bool,
        counts: &mut FlowCounts,
        make: &mut impl FnMut(&B) -> Option<B>,
    ) -> Option<(B, bool)> {
        if let Some(index) = self.again {
            let frame = self.frame(now, index, make)?;
            self.again = Some(index + 1).filter(|next| *next < self.next);
            counts.repeated += 1;
            return Some((frame, false));
        }
        if self.next.wrapping_sub(self.acked) >= self.window {
            if now.0 > self.moved.0 + PATIENCE.0 {
                counts.timeouts += 1;
                self.moved = now;
                if self.goes_back {
                    self.again = Some(self.acked);
                } else {
                    self.acked = self.next;
                }
            }
            return None;
        }
        if stopped {
            return None;
        }
        let frame = self.frame(now, self.next, make)?;
        if self.next == self.acked {
            self.moved = now;
        }
        self.next += 1;
        counts.data_sent += 1;
        counts.data_sent_bytes += frame.length() as u64;
        Some((frame, true))
    }

    #[inline]
    fn frame(&self, now: Nanos, index: u64, make: &mut impl FnMut(&B) -> Option<B>) -> Option<B> {
        let size = *self.turn.get((index % self.turn.len() as u64) as usize)?;
        let in_message = index % self.message;
        let ends = in_message + 1 == self.message;
        let position = match (self.joined, in_message == 0, ends) {
            (false, ..) | (_, true, true) => 3,
            (_, true, false) => 0,
            (_, false, false) => 1,
            (_, false, true) => 2,
        };
        let stamp = match index % STAMP_EVERY {
            0 => [(now.0 >> 32) as u32, now.0 as u32],
            _ => [0; 2],
        };
        let ready = self.frames.get(size)?.get(position)?.as_ref()?;
        ready.frame(self.psn_before(index + 1), ends, stamp, make)
    }

    pub(crate) fn take(&mut self, now: Nanos, seen: &Seen, counts: &mut FlowCounts) {
        match seen.syndrome() {
            Some(Syndrome::Ack) => {
                counts.acks_received += 1;
                self.acknowledged(now, seen.psn);
            }
            Some(_) => {
                counts.naks_received += 1;
                self.acknowledged(now, seen.psn.prev());
                if self.goes_back && self.acked < self.next {
                    self.again = Some(self.acked);
                }
            }
            None => {}
        }
    }

    fn acknowledged(&mut self, now: Nanos, psn: Psn) {
        let further = psn.diff(self.psn_before(self.acked));
        let frames = u64::try_from(further).unwrap_or(0) / u64::from(self.stride);
        if frames > 0 && self.acked + frames <= self.next {
            self.acked += frames;
            self.moved = now;
            self.again = self
                .again
                .map(|index| index.max(self.acked))
                .filter(|index| *index < self.next);
        }
    }
}
