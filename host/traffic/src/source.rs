//! The source of a multicast group: sends data in a window, and retransmits from where a receiver refused it.

use castnet_wire::{FrameBuf, Nanos, Psn, Syndrome};

use crate::counts::FlowCounts;
use crate::seen::Seen;
use crate::template::Ready;

/// After this time without an acknowledgement a source continues (under NAKs: goes back).
pub(crate) const ACK_TIMEOUT: Nanos = Nanos::from_millis(20);
/// One data frame in so many carries a timestamp.
const STAMP_EVERY: u64 = 16;

/// Templates of one size: first, middle and last frame of a message, and a single frame; those that are needed.
pub(crate) type Positions<B> = [Option<Ready<B>>; 4];
const ONLY: usize = 3;

/// Index in [`Positions`].
#[inline]
pub(crate) const fn position(begins: bool, ends: bool) -> usize {
    match (begins, ends) {
        (true, false) => 0,
        (false, false) => 1,
        (false, true) => 2,
        (true, true) => ONLY,
    }
}

/// Frame `i` of the flow has the PSN `start + (i + 1) * stride - 1`.
pub(crate) struct Source<B> {
    config: SourceConfig<B>,
    next: u64,
    acked: u64,
    /// Next frame to retransmit, up to `next`.
    resend_from: Option<u64>,
    moved: Nanos,
}

pub(crate) struct SourceConfig<B> {
    pub(crate) frames: Vec<Positions<B>>,
    pub(crate) sequence: Vec<usize>,
    pub(crate) start: Psn,
    /// PSNs per frame: more than one only where ACKs are measured.
    pub(crate) stride: u32,
    /// At least 1.
    pub(crate) message: u64,
    /// True if the frames of a message are one message to the receiver, which requires full packets.
    pub(crate) joined: bool,
    pub(crate) window: u64,
    /// If it is refused.
    pub(crate) goes_back: bool,
}

impl<B: FrameBuf> Source<B> {
    pub(crate) fn new(config: SourceConfig<B>) -> Self {
        Self {
            config,
            next: 0,
            acked: 0,
            resend_from: None,
            moved: Nanos::ZERO,
        }
    }

    /// Acknowledgements are not waited for.
    pub(crate) fn unbind(&mut self) {
        self.config.window = u64::MAX;
    }

    /// The last PSN of the first `frames` frames.
    fn psn_before(&self, frames: u64) -> Psn {
        // Wraps like PSNs do.
        Psn::new((frames as u32).wrapping_mul(self.config.stride)).add(self.config.start.value() as i32 - 1)
    }

    /// The next frame, and whether it is new. `None` if none may be sent, or there is no buffer.
    #[inline]
    pub(crate) fn next(
        &mut self,
        now: Nanos,
        stopped: bool,
        counts: &mut FlowCounts,
        make: &mut impl FnMut(&B) -> Option<B>,
    ) -> Option<(B, bool)> {
        if let Some(index) = self.resend_from {
            let frame = self.frame(now, index, make)?;
            self.resend_from = Some(index + 1).filter(|next| *next < self.next);
            counts.repeated += 1;
            return Some((frame, false));
        }
        if self.next.wrapping_sub(self.acked) >= self.config.window {
            if now.0 > self.moved.0 + ACK_TIMEOUT.0 {
                counts.timeouts += 1;
                self.moved = now;
                if self.config.goes_back {
                    self.resend_from = Some(self.acked);
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
        let size = *self
            .config
            .sequence
            .get((index % self.config.sequence.len() as u64) as usize)?;
        let in_message = index % self.config.message;
        let ends = in_message + 1 == self.config.message;
        let position = match self.config.joined {
            true => position(in_message == 0, ends),
            false => ONLY,
        };
        let stamp = match index % STAMP_EVERY {
            0 => [(now.0 >> 32) as u32, now.0 as u32],
            _ => [0; 2],
        };
        let ready = self.config.frames.get(size)?.get(position)?.as_ref()?;
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
                if self.config.goes_back && self.acked < self.next {
                    self.resend_from = Some(self.acked);
                }
            }
            None => {}
        }
    }

    fn acknowledged(&mut self, now: Nanos, psn: Psn) {
        let further = psn.diff(self.psn_before(self.acked));
        let frames = u64::try_from(further).unwrap_or(0) / u64::from(self.config.stride);
        if frames > 0 && self.acked + frames <= self.next {
            self.acked += frames;
            self.moved = now;
            self.resend_from = self
                .resend_from
                .map(|index| index.max(self.acked))
                .filter(|index| *index < self.next);
        }
    }
}
