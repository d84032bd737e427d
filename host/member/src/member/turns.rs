//! Members that receive and send: groups whose source changes (Cepheus III.E).

use std::io::{BufRead, Read};
use std::time::Duration;

use castnet_rnic::stream::{self, StreamError, StreamHeader, StreamReceiver};
use castnet_wire::Psn;

use super::{Member, Transferred, TurnHooks};
use crate::error::MemberError;
use crate::safeguard::{Safeguard, Unsent};

/// The PSNs of a QP in a group with switches that do not bridge them. All hosts must have those of the group: the old source sets its
/// rqPSN to its sqPSN, and the new source its sqPSN to its rqPSN. An RNIC takes a PSN when it connects, so the QP is reset and
/// connected again. It keeps its number, and switches and other hosts do not take part.
#[derive(Clone, Copy, Debug)]
pub(super) struct Psns {
    /// Of the next packet that is sent.
    sq: Psn,
    /// Of the next packet that is expected.
    rq: Psn,
    /// Of the next packet of the group.
    group: Psn,
    /// Packets that the receiver had consumed when `rq` was noted.
    consumed: u64,
}

impl Psns {
    pub(super) fn starting_at(start: Psn) -> Self {
        Self {
            sq: start,
            rq: start,
            group: start,
            consumed: 0,
        }
    }
}

/// `psn` after so many packets.
fn after(psn: Psn, packets: u64) -> Psn {
    Psn::new(psn.value().wrapping_add(packets as u32))
}

impl Member<'_, StreamReceiver> {
    /// Sends all of `source` as one stream over the queue pair that receives, as [`Member<Source>::send`](Member::send). The switches
    /// must let each host send (`any_source` in the rule of the group). Before, this member has received all streams that
    /// others have sent; members agree by themselves on who sends next. Then it can receive again.
    ///
    /// # Errors
    /// [`MemberError::CannotSend`] for a group with several lanes; [`StreamError::OutOfTurn`] if another member sends: then this one
    /// has sent nothing, and can receive what the other one sends, and then [`Member::leave_out_of_turn`]. Otherwise as a source.
    pub fn send(
        &mut self,
        header: &StreamHeader,
        source: &mut dyn Read,
        progress: &mut dyn FnMut(u64, Duration),
    ) -> Result<Transferred, MemberError> {
        let source = &mut self.buffered(source);
        Ok(self.send_guarded(header, source, None, progress)?)
    }

    /// As [`Member::send`], and with a safeguard as [`Member<Source>::send_guarded`](Member::send_guarded).
    pub fn send_guarded(
        &mut self,
        header: &StreamHeader,
        source: &mut dyn BufRead,
        guard: Option<Safeguard>,
        progress: &mut dyn FnMut(u64, Duration),
    ) -> Result<Transferred, Box<Unsent>> {
        let begun = self.begin_to_send();
        begun.map_err(|error| Unsent::before(error, header))?;
        let first = self.side.messages();
        let mut late = self.late.take();
        let (is_bridged, mut is_noted) = (self.psns.is_none(), false);
        let turns = TurnHooks {
            take: &mut |rnic, side: &mut StreamReceiver, sender, step| {
                // Its turn is now, and those that receive it discard it.
                while let Some(before) = &mut late {
                    before.poll(rnic)?;
                    if before.is_drained() {
                        late.take().map_or(Ok(()), |before| before.release(rnic))?;
                        break;
                    }
                    rnic.poll_or_wait(super::SLEEP_MAX)?;
                    if step(rnic, 0) == stream::Flow::Stop {
                        return Err(StreamError::Stopped);
                    }
                }
                stream::take_turn(rnic, sender, side, is_bridged, &mut |rnic| step(rnic, 0))
            },
            is_followed: &mut |rnic, side: &mut StreamReceiver, messages| {
                if !std::mem::replace(&mut is_noted, true) {
                    side.note_sent(messages);
                }
                // Without bridging, nothing of the next source is taken before its PSNs are synchronized.
                Ok(is_bridged && side.next_turn(rnic)?)
            },
        };
        let sent = self.send_stream(first, header, source, guard, turns, progress);
        self.late = self.late.take().or(late);
        let (transferred, packets) = sent.inspect_err(|_| {
            // Its turn has taken a PSN.
            if let Some(psns) = &mut self.psns {
                psns.sq = after(psns.sq, 1);
            }
        })?;
        if let Some(psns) = &mut self.psns {
            psns.sq = after(psns.sq, packets);
            psns.group = psns.sq;
        }
        self.has_all = false;
        Ok(transferred)
    }

    /// Leaves the group after [`StreamError::OutOfTurn`] and the stream of the other member, which this one has received. The group ends with each
    /// member, and the rest may lack data of that stream. So this one waits first, as in [`Member::leave`], and until another message comes.
    /// `why`: the reason that the others get, if the group ends with this one.
    ///
    /// # Errors
    /// As [`Member::leave`].
    pub fn leave_out_of_turn(mut self, why: &str) -> Result<(), MemberError> {
        let waited = self.await_source_left_or(&mut |rnic, side| side.next_turn(rnic));
        waited.and(self.give_up(0, why))
    }

    fn begin_to_send(&mut self) -> Result<(), MemberError> {
        if self.qpns.len() > 1 {
            return Err(MemberError::CannotSend {
                why: "it has several lanes, on which messages of several senders have no common order",
            });
        }
        self.host.rnic.poll(self.host.rnic.now())?;
        if self.side.next_turn(self.host.rnic)? {
            return Err(StreamError::OutOfTurn.into());
        }
        match self.psns {
            Some(Psns { sq, group, .. }) if sq != group => self.synchronize(),
            _ => Ok(()),
        }
    }

    /// The old source expects what the next one sends.
    pub(super) fn begin_to_receive(&mut self) -> Result<(), MemberError> {
        self.side.set_pmtu(self.group.pmtu);
        match self.psns {
            Some(Psns { rq, group, .. }) if rq != group => self.synchronize(),
            _ => Ok(()),
        }
    }

    pub(super) fn note_received(&mut self) {
        if let Some(psns) = &mut self.psns {
            let consumed = self.side.packets();
            psns.rq = after(psns.rq, consumed - psns.consumed);
            (psns.group, psns.consumed) = (psns.rq, consumed);
        }
    }

    /// Sets the PSNs of both directions to that of the group.
    fn synchronize(&mut self) -> Result<(), MemberError> {
        let Some(psns) = &mut self.psns else {
            return Ok(());
        };
        let next = psns.group;
        (psns.sq, psns.rq) = (next, next);
        self.host.rnic.reset_qp(self.qpns[0])?;
        self.side.post_again(self.host.rnic)?;
        self.release_late()?;
        self.connect_lane(0, next)
    }
}
