//! A frame of a collective group: admit it, run the machine, carry its effects out; and what time asks for.

use core::net::Ipv4Addr;

use castnet_collective::translated::{Effect, Effects, Event, PacketShape};
use castnet_collective::{EndpointId, EndpointSet};
use castnet_wire::{
    Aeth, Control, DropReason, FrameBuf, Headers, MacAddr, Nanos, Opcode, Psn, RoceHeader, Syndrome,
};

use super::context::CollectiveContext;
use super::explain;
use super::feedback::{acknowledge, notify};
use super::lookup::{self, Class};
use super::slots::{self, Pieces};
use super::translate::{self, Packet, Way};
use super::verify::{self, ECN};
use crate::address;
use crate::egress::Egress;
use crate::group::classify;
use crate::group::services::{AllEffects, EffectsOf};
use crate::group::services::{Services, Timers};
use crate::observe::counters::{CollectiveCounters, EndpointCounters};
use crate::observe::events::{EventKind, Events};
use crate::observe::trace::{Observer, Stage, Step, Verdict};
use crate::output::Output;
use crate::output::acknowledge::Link;
use crate::output::cx::Cx;

/// What a group may send in one turn beyond what a frame itself brings about.
const EMISSIONS_PER_TURN: usize = 32;
/// Timers that one group has in one turn at most.
const TIMERS_PER_TURN: usize = 64;

/// What carrying effects out needs beside the group.
pub(super) struct Hands<'a> {
    pub(super) output: &'a mut Output,
    pub(super) events: &'a mut Events,
    /// Whether time asks, and no frame.
    pub(super) timed: bool,
}

/// The frame at hand.
pub(super) struct AtHand<'a> {
    pub(super) payload: Pieces<'a>,
    pub(super) imm: Option<u32>,
    pub(super) length: usize,
}

impl<const W: usize> CollectiveContext<W>
where
    AllEffects: EffectsOf<W>,
{
    /// One frame of the group.
    // Apart: most contributions take the fast path, and multicast must not pay for it.
    #[inline(never)]
    pub(super) fn on_frame<E: Egress, O: Observer>(
        &mut self,
        services: &mut Services,
        cx: &mut Cx<'_, E, O>,
        slot: u32,
        header: &RoceHeader,
        src: Ipv4Addr,
        frame: E::Buf,
    ) -> Verdict {
        cx.observer.group(self.mcst_id);
        let Services {
            output,
            timers,
            events,
            scratch,
        } = services;
        let (effects, room) = (scratch.collective.of(), &mut scratch.payload[..]);
        let payload = slots::payload(&frame, header.payload_at, header.payload_len, room);
        let event = match admit(cx, self, header, src, &frame, payload) {
            Ok(event) => event,
            Err((stage, reason)) => {
                let mac = address::source_mac(frame.head());
                return refuse(cx, self, (stage, reason), header, src, mac);
            }
        };
        self.machine.handle(cx.now, event, effects);
        cx.observer.step(|| explain::decision(self, &event, effects));
        note_arrival(self, &event, effects, header.payload_len);
        let mut hands = Hands {
            output,
            events,
            timed: false,
        };
        let at_hand = AtHand {
            payload,
            imm: header.imm,
            length: header.payload_len,
        };
        let verdict = carry_out(cx, &mut hands, self, effects, Some(&at_hand));
        // Its buffer may be needed for what goes on.
        drop(frame);
        let more = emit_due(cx, &mut hands, self, effects);
        if header.tos & ECN == ECN && !matches!(event, Event::Feedback { .. } | Event::Cnp { .. }) {
            self.congestion.marked += 1;
            let event = Event::Marked { from: sender(&event) };
            self.machine.handle(cx.now, event, effects);
            cx.observer.step(|| explain::decision(self, &event, effects));
            carry_out(cx, &mut hands, self, effects, None);
        }
        self.schedule(timers, cx.now, slot, more);
        verdict
    }

    /// The group's time has come.
    pub(super) fn on_timeout<E: Egress, O: Observer>(
        &mut self,
        services: &mut Services,
        cx: &mut Cx<'_, E, O>,
        slot: u32,
    ) {
        cx.observer.group(self.mcst_id);
        let effects = services.scratch.collective.of();
        let mut hands = Hands {
            output: &mut services.output,
            events: &mut services.events,
            timed: true,
        };
        for _ in 0..TIMERS_PER_TURN {
            if self.machine.poll_timeout().is_none_or(|(at, _)| at > cx.now) {
                break;
            }
            self.machine.handle_timeout(cx.now, effects);
            cx.observer
                .step(|| Step::new(Stage::Machine, explain::all(self, effects), "a timer was due"));
            carry_out(cx, &mut hands, self, effects, None);
        }
        let more = emit_due(cx, &mut hands, self, effects);
        self.schedule(&mut services.timers, cx.now, slot, more);
    }

    /// The group has more to send, and another turn.
    pub(super) fn on_emit<E: Egress, O: Observer>(
        &mut self,
        services: &mut Services,
        cx: &mut Cx<'_, E, O>,
        slot: u32,
    ) {
        self.emitting = false;
        cx.observer.group(self.mcst_id);
        let mut hands = Hands {
            output: &mut services.output,
            events: &mut services.events,
            timed: false,
        };
        let more = emit_due(cx, &mut hands, self, services.scratch.collective.of());
        self.schedule(&mut services.timers, cx.now, slot, more);
    }

    /// The group has come from another engine, where it may have had more to send.
    pub(super) fn on_resume(&mut self, timers: &mut Timers, now: Nanos, slot: u32) {
        let more = std::mem::take(&mut self.emitting);
        self.schedule(timers, now, slot, more);
    }

    /// Queues a group that has more to send, and arms its timer.
    #[inline]
    pub(super) fn schedule(&mut self, timers: &mut Timers, now: Nanos, slot: u32, more: bool) {
        if more && !self.emitting {
            self.emitting = true;
            timers.emitting.push_back(slot);
        }
        let Some((at, _)) = self.machine.poll_timeout() else {
            return;
        };
        if at < self.armed_for || !timers.fine.is_armed(slot) {
            timers.fine.disarm(slot);
            timers.fine.arm(now, slot, at);
            self.armed_for = at;
        }
    }
}

/// What the machine is to hear of a frame; or why it ends. Every frame's whole ICRC is verified first: what is added
/// here leaves under a fresh one (contract C3).
#[inline]
fn admit<E: Egress, O: Observer, const W: usize>(
    cx: &mut Cx<'_, E, O>,
    group: &mut CollectiveContext<W>,
    header: &RoceHeader,
    src: Ipv4Addr,
    frame: &E::Buf,
    payload: Pieces<'_>,
) -> Result<Event, (Stage, DropReason)> {
    let mac = address::source_mac(frame.head());
    let (from, class) =
        lookup::lookup(group, cx.ingress, src, mac, header).map_err(|reason| (Stage::Classify, reason))?;
    cx.observer.step(|| {
        let (name, opcode) = (&group.rule.name, header.bth.opcode);
        let decision = format!("group {name}, {opcode} from {}", explain::name(&group.rule, from));
        let qpn = header.bth.dest_qp;
        let why = format!("dst {} qpn {qpn}, src {src}, port {}", group.mcst_id, cx.ingress);
        Step::new(Stage::Classify, decision, why)
    });
    let verify = |reason| (Stage::Verify, reason);
    classify::check_packet(header, frame, group.pmtu).map_err(verify)?;
    if !verify::is_sound(&group.checksum, frame, header) {
        return Err(verify(DropReason::BadIcrc));
    }
    cx.observer.step(|| {
        let why = "whatever is added leaves under a fresh one, so it was verified in full";
        Step::new(Stage::Verify, "ICRC is right", why)
    });
    let link = Link::of(Some(frame), header);
    if let Some(outlet) = group.outlets.get_mut(from.index()) {
        if outlet.link != link {
            outlet.link = link;
        }
        if matches!(class, Class::Data | Class::Control) {
            outlet.ect = header.tos & ECN != 0;
        }
    }
    let (psn, ack_request) = (header.bth.psn, header.bth.ack_request);
    match class {
        Class::Data => Ok(Event::Data {
            from,
            psn,
            shape: PacketShape {
                opcode: header.bth.opcode,
                payload: header.payload_len as u16,
                pad: header.bth.pad,
            },
            ack_request,
        }),
        Class::Control => {
            let mut bytes = [0; Control::LEN];
            slots::copy(&mut bytes, payload);
            match Control::parse(&bytes[..Control::LEN.min(header.payload_len)]) {
                Ok(control) => Ok(Event::Control {
                    from,
                    psn,
                    control,
                    ack_request,
                }),
                Err(_) => Err(verify(DropReason::Malformed)),
            }
        }
        Class::Feedback(Aeth { syndrome, msn }) => Ok(Event::Feedback {
            from,
            psn,
            msn,
            syndrome,
        }),
        Class::Cnp => Ok(Event::Cnp { from }),
    }
}

#[cold]
fn refuse<E: Egress, O: Observer, const W: usize>(
    cx: &mut Cx<'_, E, O>,
    group: &mut CollectiveContext<W>,
    (stage, reason): (Stage, DropReason),
    header: &RoceHeader,
    src: Ipv4Addr,
    mac: Option<MacAddr>,
) -> Verdict {
    group.note_dropped();
    let ingress = cx.ingress;
    cx.drop(stage, reason, || match reason {
        DropReason::NotMember | DropReason::NotMulticastable => {
            lookup::explain(group, ingress, src, mac, header)
        }
        DropReason::OverPmtu => format!("payload of {} bytes, path MTU {}", header.payload_len, group.pmtu),
        DropReason::BadIcrc => "the ICRC is wrong: it must not be added".into(),
        other => other.to_string(),
    })
}

/// The endpoint that an event is of.
pub(super) fn sender(event: &Event) -> EndpointId {
    let (Event::Data { from, .. }
    | Event::Control { from, .. }
    | Event::Feedback { from, .. }
    | Event::Cnp { from }
    | Event::Marked { from }) = *event;
    from
}

#[inline]
fn note_arrival<const W: usize>(
    group: &mut CollectiveContext<W>,
    event: &Event,
    effects: &[Effect<W>],
    payload: usize,
) {
    let from = sender(event);
    let Some(endpoint) = group.per_endpoint.get_mut(from.index()) else {
        debug_assert!(false, "each endpoint has counters");
        return;
    };
    let all = &mut group.counters;
    match event {
        Event::Data { .. } => note_data(group, from, effects, payload),
        Event::Cnp { .. } => group.congestion.cnps_in += 1,
        Event::Marked { .. } => {}
        Event::Control { .. } => match effects.first() {
            Some(Effect::Merged) => {
                all.controls_in += 1;
                endpoint.contributions += 1;
            }
            _ => note_repeat(all, endpoint, effects),
        },
        Event::Feedback { syndrome, .. } => match syndrome {
            Syndrome::Ack => {
                all.acks_in += 1;
                endpoint.acks_in += 1;
            }
            Syndrome::Nak(_) => {
                all.naks_in += 1;
                endpoint.naks_in += 1;
            }
            Syndrome::RnrNak(_) => {
                all.rnr_naks_in += 1;
                endpoint.rnr_naks_in += 1;
            }
        },
    }
}

#[inline]
pub(super) fn note_data<const W: usize>(
    group: &mut CollectiveContext<W>,
    from: EndpointId,
    effects: &[Effect<W>],
    payload: usize,
) {
    let Some(endpoint) = group.per_endpoint.get_mut(from.index()) else {
        debug_assert!(false, "each endpoint has counters");
        return;
    };
    let all = &mut group.counters;
    // What the machine takes in comes first, what it refuses says so.
    match effects.first() {
        Some(Effect::Aggregate { .. } | Effect::Store { .. }) => {
            all.contributions += 1;
            all.contribution_bytes += payload as u64;
            endpoint.contributions += 1;
        }
        _ => note_repeat(all, endpoint, effects),
    }
}

/// What was neither taken in nor dropped had come before.
fn note_repeat<const W: usize>(
    all: &mut CollectiveCounters,
    endpoint: &mut EndpointCounters,
    effects: &[Effect<W>],
) {
    if !effects.iter().any(|e| matches!(e, Effect::Drop(_))) {
        all.repeats += 1;
        endpoint.repeats += 1;
    }
}

/// Effects in their order.
#[inline(never)]
pub(super) fn carry_out<E: Egress, O: Observer, const W: usize>(
    cx: &mut Cx<'_, E, O>,
    hands: &mut Hands<'_>,
    group: &mut CollectiveContext<W>,
    effects: &[Effect<W>],
    at_hand: Option<&AtHand<'_>>,
) -> Verdict {
    let mut verdict = Verdict::Absorbed;
    for effect in effects {
        match *effect {
            Effect::Aggregate {
                slot,
                from,
                first,
                kernel,
            } => {
                let Some(at_hand) = at_hand else { continue };
                let run = group.kernels.select(group.machine.call(kernel));
                group.slots.aggregate(slot, from, first, &run, at_hand.payload);
                if first {
                    note_imm(group, slot, at_hand);
                }
                cx.observer.step(|| {
                    let what = if first { "copied" } else { "added" };
                    let decision = format!("{} bytes {what} into slot {slot}", at_hand.length);
                    Step::new(
                        Stage::Aggregate,
                        decision,
                        explain::call(group.machine.call(kernel)),
                    )
                });
            }
            Effect::Store { slot } => {
                let Some(at_hand) = at_hand else { continue };
                group.slots.store(slot, at_hand.payload);
                note_imm(group, slot, at_hand);
                cx.observer.step(|| {
                    let decision = format!("{} bytes copied into slot {slot}", at_hand.length);
                    Step::new(Stage::Aggregate, decision, "it is the result already")
                });
            }
            Effect::Complete { slot, kernel } => {
                let kernel = group.kernels.select(group.machine.call(kernel));
                let length = usize::from(group.machine.shape(slot).payload);
                group.slots.complete(slot, &kernel, length);
            }
            Effect::Emit {
                slot,
                g,
                to,
                ack_request,
            } => emit(cx, hands, group, slot, (g, to, ack_request)),
            Effect::EmitControl { g, to, control } => emit_control(cx, hands, group, &control, g, to),
            Effect::Acknowledge {
                to,
                psn,
                msn,
                syndrome,
            } => acknowledge(cx, hands, group, to, psn, Aeth { syndrome, msn }),
            Effect::Cnp { to } => {
                for endpoint in to {
                    notify(cx, hands, group, endpoint);
                }
            }
            Effect::Merged | Effect::Absorb => {}
            Effect::Drop(reason) => {
                group.note_dropped();
                verdict = cx.drop(Stage::Machine, reason, || "the group's machine refused it".into());
            }
            Effect::Stalled {
                waiting_for,
                g,
                since,
            } => {
                group.counters.stalls += 1;
                let kind = EventKind::CollectiveStalled {
                    mcst_id: group.mcst_id,
                    generation: group.rule.generation,
                    waiting_for: waiting_for.iter().collect(),
                    psn: g,
                    since,
                };
                hands.events.push(cx.now, kind);
            }
            Effect::Conflict { control } => {
                group.counters.conflicts += 1;
                let kind = EventKind::CollectiveConflict {
                    mcst_id: group.mcst_id,
                    generation: group.rule.generation,
                    control,
                };
                hands.events.push(cx.now, kind);
            }
            Effect::Refused { from, sequence, why } => {
                let kind = EventKind::RankRefused {
                    mcst_id: group.mcst_id,
                    generation: group.rule.generation,
                    endpoint: from.index() as u16,
                    sequence,
                    why,
                };
                hands.events.push(cx.now, kind);
            }
            Effect::MemberFailed { from, syndrome } => {
                let kind = EventKind::MemberFailed {
                    mcst_id: group.mcst_id,
                    generation: group.rule.generation,
                    endpoint: from.index() as u16,
                    syndrome: syndrome.byte(),
                };
                hands.events.push(cx.now, kind);
            }
        }
    }
    verdict
}

/// A packet's immediate data stays with it.
#[inline]
fn note_imm<const W: usize>(group: &mut CollectiveContext<W>, slot: u16, at_hand: &AtHand<'_>) {
    if let (Some(imm), Some(note)) = (at_hand.imm, group.slots.note_mut(slot)) {
        note.imm = imm;
    }
}

/// What the group has to send by itself, as much as one turn may. Whether there is more.
#[inline]
pub(super) fn emit_due<E: Egress, O: Observer, const W: usize>(
    cx: &mut Cx<'_, E, O>,
    hands: &mut Hands<'_>,
    group: &mut CollectiveContext<W>,
    effects: &mut Effects<W>,
) -> bool {
    for _ in 0..EMISSIONS_PER_TURN {
        if !group.machine.poll_emit(cx.now, effects) {
            return false;
        }
        carry_out(cx, hands, group, effects, None);
    }
    true
}

/// Sends the payload of a slot (EPIC 4.1: ReplicateData).
#[inline]
fn emit<E: Egress, O: Observer, const W: usize>(
    cx: &mut Cx<'_, E, O>,
    hands: &mut Hands<'_>,
    group: &mut CollectiveContext<W>,
    slot: u16,
    what: (Psn, EndpointSet<W>, bool),
) {
    let shape = group.machine.shape(slot);
    let note = group.slots.note(slot);
    let has_imm = shape.opcode.info().headers.contains(Headers::IMM);
    let packet = Packet {
        opcode: shape.opcode,
        pad: shape.pad,
        imm: has_imm.then_some(note.imm),
        payload: group.slots.result(slot, shape.payload.into()),
    };
    let icrc = note
        .icrc
        .unwrap_or_else(|| packet.icrc(&mut group.own, &group.checksum));
    let mut way = Way {
        machine: &group.machine,
        outlets: &group.outlets,
        counters: &mut group.per_endpoint,
        rule: &group.rule,
    };
    let (sent, lost) = translate::send(cx, hands.output, &mut way, &packet, icrc, what);
    group.counters.results += sent;
    group.counters.result_bytes += sent * u64::from(shape.payload);
    group.counters.lost += lost;
    if let Some(note) = group.slots.note_mut(slot) {
        note.icrc = Some(icrc);
    }
}

#[cold]
fn emit_control<E: Egress, O: Observer, const W: usize>(
    cx: &mut Cx<'_, E, O>,
    hands: &mut Hands<'_>,
    group: &mut CollectiveContext<W>,
    control: &Control,
    g: Psn,
    to: EndpointSet<W>,
) {
    let mut bytes = [0; Control::LEN];
    control.emit(&mut bytes);
    let packet = Packet {
        opcode: Opcode::SendOnlyImm,
        pad: 0,
        imm: Some(Control::IMMEDIATE),
        payload: &bytes,
    };
    let icrc = packet.icrc(&mut group.own, &group.checksum);
    let mut way = Way {
        machine: &group.machine,
        outlets: &group.outlets,
        counters: &mut group.per_endpoint,
        rule: &group.rule,
    };
    let (sent, lost) = translate::send(cx, hands.output, &mut way, &packet, icrc, (g, to, true));
    group.counters.controls_out += sent;
    group.counters.lost += lost;
}
