//! A flow: one member of one group.

use castnet_wire::{FrameBuf, Nanos, Opcode};

use crate::counts::FlowCounts;
use crate::latency::Times;
use crate::rank::Rank;
use crate::receiver::Receiver;
use crate::seen::{Seen, icrc_is_right};
use crate::source::Source;

pub(crate) enum Kind<B> {
    Source(Source<B>),
    Receiver(Receiver<B>),
    Rank(Box<Rank<B>>),
}

pub(crate) struct Flow<B> {
    pub(crate) kind: Kind<B>,
    pub(crate) counts: FlowCounts,
    pub(crate) stamped: bool,
}

impl<B: FrameBuf> Flow<B> {
    /// The next frame of the pattern, and whether it is new. `stopped`: only owed frames; `spent`: no new ones.
    #[inline]
    pub(crate) fn next(
        &mut self,
        now: Nanos,
        stopped: bool,
        spent: bool,
        make: &mut impl FnMut(&B) -> Option<B>,
    ) -> Option<(B, bool)> {
        match &mut self.kind {
            Kind::Source(source) => source.next(now, stopped || spent, &mut self.counts, make),
            Kind::Receiver(receiver) => receiver
                .next(stopped, spent, &mut self.counts, make)
                .map(|f| (f, true)),
            Kind::Rank(rank) => rank.next(now, stopped || spent, &mut self.counts, make),
        }
    }

    /// The next answer of a flow that also sends its own frames.
    #[inline]
    pub(crate) fn answer(&mut self, make: &mut impl FnMut(&B) -> Option<B>) -> Option<B> {
        match &mut self.kind {
            Kind::Rank(rank) => rank.answer(&mut self.counts, make),
            Kind::Source(_) | Kind::Receiver(_) => None,
        }
    }

    pub(crate) fn unbind(&mut self) {
        match &mut self.kind {
            Kind::Source(source) => source.unbind(),
            Kind::Receiver(receiver) => receiver.unbind(),
            Kind::Rank(rank) => rank.unbind(),
        }
    }

    #[inline]
    pub(crate) fn take(
        &mut self,
        now: Nanos,
        seen: &Seen,
        frame: &impl FrameBuf,
        check: bool,
        times: Option<&mut Times>,
    ) {
        let counts = &mut self.counts;
        if check {
            counts.checked += 1;
            if !icrc_is_right(frame) {
                // A receiver drops it: its content is unreliable.
                counts.bad_icrc += 1;
                return;
            }
        }
        if seen.is(Opcode::Cnp) {
            counts.cnps_received += 1;
            return;
        }
        // A rank goes back at the NAK that comes with it.
        if seen.is(Opcode::RepairRequest) {
            return;
        }
        let feedback = seen.is(Opcode::Ack);
        match &mut self.kind {
            Kind::Source(source) if feedback => source.take(now, seen, counts),
            Kind::Receiver(receiver) if !feedback => {
                receiver.take(now, seen, frame.length(), self.stamped, counts, times);
            }
            Kind::Rank(rank) if feedback => rank.feedback(seen, counts),
            Kind::Rank(rank) => rank.take(now, seen, frame, check, counts),
            Kind::Source(_) | Kind::Receiver(_) => {}
        }
    }
}
