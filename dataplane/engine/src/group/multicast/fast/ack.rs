//! The fast path of a plain ACK of a member. It changes state, so its whole ICRC is verified first. Slow twin: `multicast::frame`.

use castnet_collective::{Effect, Event, PathId};
use castnet_wire::icrc::{self, ACK_LEN, AckWords};
use castnet_wire::{Aeth, DropReason, FrameBuf, Parsed, Syndrome, parse_frame};

use crate::egress::Egress;
use crate::group::headers::{Headers, L3};
use crate::group::multicast::context::Group;
use crate::group::multicast::feedback;
use crate::group::multicast::frame as slow;
use crate::group::services::Services;
use crate::observe::trace::{Observer, Verdict};
use crate::output::cx::Cx;

#[derive(Debug)]
pub(super) struct Previous {
    words: AckWords,
    from: PathId,
}

impl Group {
    /// An error is the frame, with nothing changed, if it needs the slow path.
    #[inline(always)]
    pub(super) fn try_ack<E: Egress, O: Observer>(
        &mut self,
        services: &mut Services,
        cx: &mut Cx<'_, E, O>,
        slot: u32,
        previous: &mut Option<Previous>,
        (frame, headers): (E::Buf, &Headers),
    ) -> Result<(), E::Buf> {
        let group = self;
        let packet = frame.head().get(L3..).and_then(|b| b.first_chunk());
        let Some(packet) = packet.filter(|_| headers.is_ack() && headers.is_sound(&frame)) else {
            return Err(frame);
        };
        let words = ack_words(packet);
        // ACKs of a member often follow each other, and differ only in PSN and AETH.
        let from = match previous
            .as_ref()
            .and_then(|like| Some((like.from, icrc::follows(&like.words, &words)?)))
        {
            Some((from, right)) => Some(from).filter(|_| right),
            None => group
                .hot
                .sender(cx.ingress, headers.src(), headers.qpn(), None)
                .filter(|_| {
                    let (covered, icrc) = packet.split_at(ACK_LEN);
                    let covered = covered.first_chunk().map(icrc::of_ack);
                    covered.map(u32::to_le_bytes).is_some_and(|right| right == *icrc)
                }),
        };
        let Some(from) = from else {
            return Err(frame);
        };
        let [.., a, b, c, _, _, _, _] = *packet;
        *previous = Some(Previous { words, from });
        let event = Event::Feedback {
            from,
            psn: headers.psn(),
            msn: u32::from_be_bytes([0, a, b, c]),
            syndrome: Syndrome::Ack,
        };
        slow::count_arrival(group, from, &event, frame.length());
        let Services {
            output,
            timers,
            scratch,
            ..
        } = services;
        group.hot.machine.handle(cx.now, event, &mut scratch.effects);
        let verdict = match scratch.effects.as_slice() {
            [Effect::Absorb] => Verdict::Absorbed,
            [
                Effect::Acknowledge {
                    to,
                    psn,
                    msn,
                    syndrome,
                },
            ] => {
                let link = group.link_to(*to);
                let aeth = Aeth {
                    syndrome: *syndrome,
                    msn: *msn,
                };
                feedback::send(cx, output, group, &link, (*to, Some((*psn, aeth))), Some(frame));
                Verdict::Absorbed
            }
            effects => match parse_frame(frame.head(), frame.length()) {
                Ok(Parsed::Roce(header)) => slow::carry_out(cx, output, group, &header, effects, frame),
                _ => {
                    debug_assert!(false, "a plain ACK can be parsed");
                    Verdict::Dropped(DropReason::Malformed)
                }
            },
        };
        if group.hot.machine.has_resends() {
            group.queue(timers, slot);
        }
        slow::arm(timers, cx.now, slot, &group.hot.machine);
        output.counters.account(cx.ingress, verdict);
        Ok(())
    }
}

#[inline(always)]
fn ack_words(packet: &[u8; ACK_LEN + 4]) -> AckWords {
    let (chunks, _) = packet.as_chunks();
    core::array::from_fn(|i| u64::from_le_bytes(chunks[i]))
}
