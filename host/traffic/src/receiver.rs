//! A receiver of a multicast group: counts data, and acknowledges or refuses it.

use castnet_wire::{FrameBuf, NakCode, Nanos, Psn, Syndrome};

use crate::counts::FlowCounts;
use crate::latency::Times;
use crate::seen::Seen;
use crate::template::{Ready, aeth};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answers {
    /// Every `every`-th PSN.
    Acks,
    /// Refuses the middle of each window once, with a burst of NAKs. Acknowledges the window when it arrives again.
    Naks {
        /// PSNs from the refused one to the end of its window.
        back: i32,
        burst: u32,
    },
    /// Sends CNPs, independent of the data.
    Cnps,
}

pub(crate) struct Receiver<B> {
    pub(crate) answers: Answers,
    /// Template of an acknowledgement or a CNP.
    answer: Ready<B>,
    /// PSNs per data frame.
    stride: i32,
    expected: Psn,
    every: i32,
    /// The next PSN to acknowledge, and the last one that may be acknowledged.
    due: Psn,
    seen: Psn,
    msn: u32,
    /// End of the window that was refused last.
    refused: Option<Psn>,
    naks_left: u32,
    endless: bool,
}

impl<B: FrameBuf> Receiver<B> {
    pub(crate) fn new(answers: Answers, answer: Ready<B>, start: Psn, stride: u32, every: u32) -> Self {
        let (stride, every) = (stride.max(1) as i32, every.max(1) as i32);
        Self {
            answers,
            answer,
            stride,
            expected: start.add(stride - 1),
            every,
            due: start.add(every - 1),
            seen: start.prev(),
            msn: 0,
            refused: None,
            naks_left: 0,
            endless: false,
        }
    }

    /// Answers as if data arrived without end.
    pub(crate) fn unbind(&mut self) {
        self.endless = true;
    }

    /// The next answer; `None` if none is due, or there is no buffer.
    #[inline]
    pub(crate) fn next(
        &mut self,
        stopped: bool,
        spent: bool,
        counts: &mut FlowCounts,
        make: &mut impl FnMut(&B) -> Option<B>,
    ) -> Option<B> {
        if spent {
            return None;
        }
        match self.answers {
            Answers::Cnps => {
                if stopped {
                    return None;
                }
                let frame = self.answer.frame(Psn::new(0), false, [0; 2], make)?;
                counts.cnps_sent += 1;
                return Some(frame);
            }
            Answers::Naks { back, burst } => {
                if self.endless && self.naks_left == 0 {
                    self.seen = self.due.add(back);
                    self.due = self.seen.next();
                    (self.refused, self.naks_left) = (Some(self.seen), burst);
                }
                if let Some(end) = self.refused.filter(|_| self.naks_left > 0) {
                    let word = aeth(Syndrome::Nak(NakCode::PsnSequenceError), self.msn);
                    let frame = self.answer.frame(end.add(-back), false, [word, 0], make)?;
                    self.naks_left -= 1;
                    counts.naks_sent += 1;
                    return Some(frame);
                }
            }
            Answers::Acks => {}
        }
        if !self.endless && self.due.is_after(self.seen) {
            return None;
        }
        let word = aeth(Syndrome::Ack, self.msn.wrapping_add(1));
        let frame = self.answer.frame(self.due, false, [word, 0], make)?;
        self.msn = self.msn.wrapping_add(1) & 0xFF_FFFF;
        self.due = self.due.add(self.every);
        counts.acks_sent += 1;
        Some(frame)
    }

    pub(crate) fn take(
        &mut self,
        now: Nanos,
        seen: &Seen,
        length: usize,
        stamped: bool,
        counts: &mut FlowCounts,
        times: Option<&mut Times>,
    ) {
        counts.data_received += 1;
        counts.data_received_bytes += length as u64;
        let ahead = seen.psn.diff(self.expected);
        if ahead >= 0 {
            counts.missing += (ahead / self.stride) as u64;
            self.expected = seen.psn.add(self.stride);
        } else {
            counts.repeats += 1;
        }
        if stamped && ahead >= 0 && seen.words != [0; 2] {
            let at = u64::from(seen.words[0]) << 32 | u64::from(seen.words[1]);
            if let Some(times) = times {
                times.record(now.0.saturating_sub(at));
            }
        }
        if seen.ack_request {
            self.ack_requested(seen.psn);
        }
    }

    /// The source requests an acknowledgement of `psn`.
    fn ack_requested(&mut self, psn: Psn) {
        if let Answers::Naks { burst, .. } = self.answers
            && psn.is_after(self.seen)
            && self.refused != Some(psn)
        {
            (self.refused, self.naks_left) = (Some(psn), burst);
            return;
        }
        if psn.is_after(self.seen) {
            self.seen = psn;
            return;
        }
        // The source asks again for acknowledged data: repeat the newest acknowledgement.
        if self.answers != Answers::Cnps && self.every > 1 && self.due.is_after(self.seen) {
            self.due = self.due.add(-self.every);
        }
    }
}
