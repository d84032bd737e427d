//! The slow path of a collective frame: admit and verify it, run the machine, execute the effects. Also timers and emissions.

use core::net::Ipv4Addr;

use castnet_collective::translated::{Effect, Effects, Event, PacketShape};
use castnet_collective::{EndpointId, EndpointSet};
use castnet_reduce::Checksum;
use castnet_rules::{GroupRule, NextHop};
use castnet_wire::ipv4::ECN;
use castnet_wire::{
    Aeth, Control, DropReason, FrameBuf, Headers, Kind, MacAddr, Nanos, Opcode, Psn, RoceHeader, Syndrome,
};

use super::context::{CollectiveContext, kernel_key};
use super::explain;
use super::feedback;
use super::slots;
use super::translate::{self, Packet, SendContext};
use crate::address;
use crate::egress::Egress;
use crate::group::classify::{self, Class, Refusal};
use crate::group::meter::{self, Metered};
use crate::group::services::{CollectiveEffects, EffectsOfWidth, FRAME, Services, Timers, looks};
use crate::group::verify::{self, Pieces};
use crate::observe::counters::{CollectiveCounters, EndpointCounters};
use crate::observe::events::{EventKind, Events};
use crate::observe::trace::{Observer, Stage, Step, Verdict};
use crate::output::Output;
use crate::output::acknowledge::LinkHeader;
use crate::output::cx::Cx;

/// Most packets emitted in one call, besides the effects of a frame.
const EMISSIONS_MAX: usize = 32;
/// A step of [`Translated::catch_up`](castnet_collective::Translated::catch_up) takes as long as to combine so many bytes.
const CATCH_UP: usize = 1 << 19;
/// Most timers handled in one call.
const TIMERS_MAX: usize = 64;

pub(super) struct EffectCx<'a> {
    pub(super) output: &'a mut Output,
    pub(super) events: &'a mut Events,
    /// A timer has caused the effects, not a frame.
    pub(super) timed: bool,
    /// Bytes of contributions that were combined to make results, and are not charged yet.
    pub(super) combined: usize,
}

impl<'a> EffectCx<'a> {
    pub(super) fn new(output: &'a mut Output, events: &'a mut Events, timed: bool) -> Self {
        Self {
            output,
            events,
            timed,
            combined: 0,
        }
    }
}

pub(super) struct Received<'a> {
    pub(super) payload: Pieces<'a>,
    pub(super) imm: Option<u32>,
    pub(super) length: usize,
}

impl<const W: usize> CollectiveContext<W>
where
    CollectiveEffects: EffectsOfWidth<W>,
{
    // Not inlined: most contributions take the fast path, and this large function would slow multicast down.
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
            work,
        } = services;
        let (effects, room) = (scratch.collective.of(), &mut scratch.room[..]);
        let payload = slots::payload(&frame, header.payload_at, header.payload_len, room);
        let event = match admit(cx, self, header, src, &frame, payload) {
            Ok(event) => event,
            Err(refusal) => {
                self.counters.dropped += 1;
                let who = (src, address::source_mac(frame.head()));
                return refuse(cx, &self.rule, refusal, who, header);
            }
        };
        let mut congested =
            header.tos & ECN == ECN && matches!(event, Event::Data { .. } | Event::Control { .. });
        self.congestion.marked += u64::from(congested);
        if let Event::Data { from, .. } = event
            && let Some(Some(bucket)) = self.meters.get_mut(from.index())
        {
            match meter::meter(cx, bucket, header, frame.length()) {
                Metered::Within => {}
                // The switch ends the connection of a rank, so it is the notification point of its own mark.
                Metered::Marked => {
                    self.counters.rate_marks += 1;
                    congested = true;
                }
                Metered::Over => {
                    self.counters.dropped += 1;
                    self.counters.rate_drops += 1;
                    return meter::drop_over(cx, &self.rule, frame.length());
                }
            }
        }
        self.machine.handle(cx.now, event, effects);
        cx.observer.step(|| explain::decision(self, &event, effects));
        count_arrival(self, &event, effects, header.payload_len);
        let mut effect_cx = EffectCx::new(output, events, false);
        let received = Received {
            payload,
            imm: header.imm,
            length: header.payload_len,
        };
        let verdict = carry_out(cx, &mut effect_cx, self, effects, Some(&received));
        // Frees the buffer before further frames are allocated.
        drop(frame);
        let more = emit_due(cx, &mut effect_cx, self, effects, work);
        if congested {
            let event = Event::Marked { from: sender(&event) };
            self.machine.handle(cx.now, event, effects);
            cx.observer.step(|| explain::decision(self, &event, effects));
            carry_out(cx, &mut effect_cx, self, effects, None);
        }
        self.schedule(timers, cx.now, slot, more);
        verdict
    }

    pub(super) fn on_timeout<E: Egress, O: Observer>(
        &mut self,
        services: &mut Services,
        cx: &mut Cx<'_, E, O>,
        slot: u32,
    ) {
        cx.observer.group(self.mcst_id);
        let work = &mut services.work;
        let effects = services.scratch.collective.of();
        let mut effect_cx = EffectCx::new(&mut services.output, &mut services.events, true);
        for _ in 0..TIMERS_MAX {
            if *work == 0 || self.machine.poll_timeout().is_none_or(|(at, _)| at > cx.now) {
                break;
            }
            self.machine.handle_timeout(cx.now, effects);
            charge(work, effects, self.machine.ready_count());
            cx.observer
                .step(|| Step::new(Stage::Machine, explain::all(self, effects), "a timer was due"));
            carry_out(cx, &mut effect_cx, self, effects, None);
        }
        let more = emit_due(cx, &mut effect_cx, self, effects, work);
        self.schedule(&mut services.timers, cx.now, slot, more);
    }

    pub(super) fn on_emit<E: Egress, O: Observer>(
        &mut self,
        services: &mut Services,
        cx: &mut Cx<'_, E, O>,
        slot: u32,
    ) {
        self.scheduled.emitting = false;
        cx.observer.group(self.mcst_id);
        let work = &mut services.work;
        let mut effect_cx = EffectCx::new(&mut services.output, &mut services.events, false);
        // First: what is due does not wait for a group that catches up.
        let mut more = emit_due(cx, &mut effect_cx, self, services.scratch.collective.of(), work);
        if *work > 0 && self.machine.catch_up() {
            *work = work.saturating_sub(CATCH_UP);
            more = true;
        }
        self.schedule(&mut services.timers, cx.now, slot, more);
    }

    #[inline]
    pub(super) fn schedule(&mut self, timers: &mut Timers, now: Nanos, slot: u32, more: bool) {
        let due = self.machine.poll_timeout().map(|(at, _)| at);
        timers.schedule((now, slot), &mut self.scheduled, due, more);
    }
}

/// The class of a frame of an endpoint, or why it is dropped. The whole ICRC is verified, because results get a new one (contract C3). `class` is what
/// its opcode says.
#[inline]
pub(super) fn accept<E: Egress, O: Observer>(
    cx: &mut Cx<'_, E, O>,
    rule: &GroupRule,
    checksum: &Checksum,
    (from, src): (Option<EndpointId>, Ipv4Addr),
    (header, class): (&RoceHeader, Result<Class, Refusal>),
    frame: &E::Buf,
) -> Result<(EndpointId, Class), Refusal> {
    let from = from.ok_or(classify::NOT_MEMBER)?;
    let class = class?;
    if matches!(class, Class::Data) && header.bth.opcode.info().kind != Kind::Send {
        return Err((Stage::Classify, DropReason::NotMulticastable));
    }
    cx.observer.step(|| {
        let (name, opcode) = (&rule.name, header.bth.opcode);
        let decision = format!("group {name}, {opcode} from {}", explain::name(rule, from));
        let qpn = header.bth.dest_qp;
        let why = format!("dst {} qpn {qpn}, src {src}, port {}", rule.mcst_id, cx.ingress);
        Step::new(Stage::Classify, decision, why)
    });
    classify::check_packet(header, frame, rule.pmtu.bytes())?;
    if !verify::is_sound(checksum, frame, header) {
        return Err((Stage::Verify, DropReason::BadIcrc));
    }
    cx.observer.step(|| {
        let why = "results get a new ICRC, so that of each frame is verified in full";
        Step::new(Stage::Verify, "ICRC is right", why)
    });
    Ok((from, class))
}

/// Explains why [`accept`] has refused a frame, and drops it.
#[cold]
pub(super) fn refuse<E: Egress, O: Observer>(
    cx: &mut Cx<'_, E, O>,
    rule: &GroupRule,
    (stage, reason): Refusal,
    (src, mac): (Ipv4Addr, Option<MacAddr>),
    header: &RoceHeader,
) -> Verdict {
    let from = (cx.ingress, src, mac);
    cx.drop(stage, reason, || {
        // Frames of an adjacent switch have the McstID as their source.
        let speaks_as = |hop: &NextHop| Some(hop.ip().unwrap_or(rule.mcst_id.0));
        let texts = [
            "is neither SEND nor feedback",
            "the ICRC is wrong: it must not be added",
        ];
        classify::explain_refusal(reason, rule, from, header, speaks_as, texts)
    })
}

/// The event of a frame, or why it is dropped. The whole ICRC is verified first, because results get a new ICRC (contract C3).
#[inline]
fn admit<E: Egress, O: Observer, const W: usize>(
    cx: &mut Cx<'_, E, O>,
    group: &mut CollectiveContext<W>,
    header: &RoceHeader,
    src: Ipv4Addr,
    frame: &E::Buf,
    payload: Pieces<'_>,
) -> Result<Event, Refusal> {
    let mac = address::source_mac(frame.head());
    let from = group.sender(cx.ingress, src, header.bth.dest_qp, mac);
    let is_request = header.bth.opcode == Opcode::RepairRequest;
    let class = match header.aeth.filter(|_| is_request) {
        Some(aeth) => Ok(Class::Feedback(aeth)),
        None => classify::class(header),
    };
    let (from, class) = accept(
        cx,
        &group.rule,
        &group.checksum,
        (from, src),
        (header, class),
        frame,
    )?;
    let link = LinkHeader::of(Some(frame), header);
    if let Some(connection) = group.connections.get_mut(from.index()) {
        if connection.link != link {
            connection.link = link;
        }
        if matches!(class, Class::Data) {
            connection.ect = header.tos & ECN != 0;
        }
    }
    let (psn, ack_request) = (header.bth.psn, header.bth.ack_request);
    match class {
        Class::Data if header.bth.opcode == Opcode::SendOnlyImm && header.imm == Some(Control::IMMEDIATE) => {
            let mut bytes = [0; Control::LEN];
            slots::copy(&mut bytes, payload);
            let control = Control::parse(&bytes[..Control::LEN.min(header.payload_len)]);
            Ok(Event::Control {
                from,
                psn,
                control: control.map_err(|_| (Stage::Verify, DropReason::Malformed))?,
                ack_request,
            })
        }
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
        Class::Feedback(_) if is_request => Ok(Event::Request { from, psn }),
        Class::Feedback(Aeth { syndrome, msn }) => Ok(Event::Feedback {
            from,
            psn,
            msn,
            syndrome,
        }),
        Class::Cnp => Ok(Event::Cnp { from }),
    }
}

pub(super) fn sender(event: &Event) -> EndpointId {
    let (Event::Data { from, .. }
    | Event::Control { from, .. }
    | Event::Feedback { from, .. }
    | Event::Request { from, .. }
    | Event::Cnp { from }
    | Event::Marked { from }) = *event;
    from
}

#[inline]
fn count_arrival<const W: usize>(
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
        Event::Data { .. } => count_data(group, from, effects, payload),
        Event::Cnp { .. } => group.congestion.cnps_in += 1,
        Event::Request { .. } | Event::Marked { .. } => {}
        Event::Control { .. } => match effects.first() {
            Some(Effect::Merged) => {
                all.controls_in += 1;
                endpoint.contributions += 1;
            }
            _ => count_repeat(all, endpoint, effects),
        },
        Event::Feedback { syndrome, .. } => count_feedback(all, endpoint, *syndrome),
    }
}

#[inline]
pub(super) fn count_feedback(
    all: &mut CollectiveCounters,
    endpoint: &mut EndpointCounters,
    syndrome: Syndrome,
) {
    let (all, endpoint) = match syndrome {
        Syndrome::Ack => (&mut all.acks_in, &mut endpoint.acks_in),
        Syndrome::Nak(_) => (&mut all.naks_in, &mut endpoint.naks_in),
        Syndrome::RnrNak(_) => (&mut all.rnr_naks_in, &mut endpoint.rnr_naks_in),
    };
    *all += 1;
    *endpoint += 1;
}

#[inline]
pub(super) fn count_data<const W: usize>(
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
    // The first effect of an accepted contribution is to store or add it.
    match effects.first() {
        Some(Effect::Aggregate { .. } | Effect::Store { .. }) => {
            all.contributions += 1;
            all.contribution_bytes += payload as u64;
            endpoint.contributions += 1;
        }
        _ => count_repeat(all, endpoint, effects),
    }
}

fn count_repeat<const W: usize>(
    all: &mut CollectiveCounters,
    endpoint: &mut EndpointCounters,
    effects: &[Effect<W>],
) {
    if !effects.iter().any(|e| matches!(e, Effect::Drop(_))) {
        all.repeats += 1;
        endpoint.repeats += 1;
    }
}

#[inline(never)]
pub(super) fn carry_out<E: Egress, O: Observer, const W: usize>(
    cx: &mut Cx<'_, E, O>,
    effect_cx: &mut EffectCx<'_>,
    group: &mut CollectiveContext<W>,
    effects: &[Effect<W>],
    received: Option<&Received<'_>>,
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
                let Some(received) = received else { continue };
                let run = group.kernels.select(kernel_key(group.machine.call(kernel)));
                group.slots.aggregate(slot, from, first, &run, received.payload);
                if first {
                    store_imm(group, slot, received);
                }
                cx.observer.step(|| {
                    let what = if first { "copied" } else { "added" };
                    let decision = format!("{} bytes {what} into slot {slot}", received.length);
                    Step::new(Stage::Aggregate, decision, group.machine.call(kernel).to_string())
                });
            }
            Effect::Store { slot } => {
                let Some(received) = received else { continue };
                group.slots.store(slot, received.payload);
                store_imm(group, slot, received);
                cx.observer.step(|| {
                    let decision = format!("{} bytes copied into slot {slot}", received.length);
                    Step::new(Stage::Aggregate, decision, "it is already the result")
                });
            }
            Effect::HandOver { from, to } => {
                // The machine may have recycled `from`.
                let length = usize::from(group.machine.shape(to).payload);
                effect_cx.combined += group.slots.make(from, length, &mut group.kernels);
                group.slots.hand_over(from, to, length);
            }
            Effect::Complete { slot, kernel } => {
                group.slots.complete(slot, kernel_key(group.machine.call(kernel)));
            }
            Effect::Emit {
                slot,
                g,
                to,
                ack_request,
            } => emit(cx, effect_cx, group, slot, (g, to, ack_request)),
            Effect::EmitControl { g, to, control } => emit_control(cx, effect_cx, group, &control, g, to),
            Effect::Acknowledge {
                to,
                psn,
                msn,
                syndrome,
            } => feedback::send(cx, effect_cx, group, to, Some((psn, Aeth { syndrome, msn }))),
            Effect::Request { to, psn } => feedback::request(cx, effect_cx, group, to, psn),
            Effect::Cnp { to } => {
                for endpoint in to {
                    feedback::send(cx, effect_cx, group, endpoint, None);
                }
            }
            Effect::Merged | Effect::Absorb => {}
            Effect::Drop(reason) => {
                group.counters.dropped += 1;
                verdict = cx.drop(Stage::Machine, reason, || "the group's machine refused it".into());
            }
            Effect::Stalled {
                waiting_for,
                g,
                since,
            } => {
                group.counters.stalls += 1;
                if group.stalls.allows(cx.now) {
                    let all = waiting_for.iter().collect();
                    effect_cx.events.stall(cx.now, &group.rule, all, (g, since));
                }
            }
            Effect::Conflict { control } => {
                group.counters.conflicts += 1;
                effect_cx.events.conflict(cx.now, &group.rule, control);
            }
            Effect::Refused { from, sequence, why } => {
                let kind = EventKind::RankRefused {
                    mcst_id: group.mcst_id,
                    generation: group.rule.generation,
                    endpoint: from.index() as u16,
                    sequence,
                    why,
                };
                effect_cx
                    .events
                    .of_endpoint(cx.now, &group.rule, from.index(), kind);
            }
            Effect::MemberFailed { from, syndrome } => {
                let is_first = !core::mem::replace(&mut group.failure_reported, true);
                effect_cx
                    .events
                    .failure(cx.now, &group.rule, from.index(), syndrome.byte(), is_first);
            }
        }
    }
    verdict
}

#[inline]
fn store_imm<const W: usize>(group: &mut CollectiveContext<W>, slot: u16, received: &Received<'_>) {
    if let (Some(imm), Some(metadata)) = (received.imm, group.slots.metadata_mut(slot)) {
        metadata.imm = imm;
    }
}

/// Charges a step of the machine to the work of this iteration, by the frames that it sends. An emission looks at all endpoints that are
/// `ready`.
fn charge<const W: usize>(work: &mut usize, effects: &[Effect<W>], ready: usize) {
    let frames = effects.iter().map(|effect| match effect {
        Effect::Emit { to, .. } | Effect::EmitControl { to, .. } | Effect::Cnp { to } => to.len(),
        Effect::Acknowledge { .. } | Effect::Request { .. } => 1,
        _ => 0,
    });
    *work = work.saturating_sub(looks(ready).max(frames.sum::<usize>() * FRAME));
}

/// Sends pending packets while work is left for this iteration. True if there may be more.
#[inline]
pub(super) fn emit_due<E: Egress, O: Observer, const W: usize>(
    cx: &mut Cx<'_, E, O>,
    effect_cx: &mut EffectCx<'_>,
    group: &mut CollectiveContext<W>,
    effects: &mut Effects<W>,
    work: &mut usize,
) -> bool {
    for _ in 0..EMISSIONS_MAX {
        if *work == 0 {
            return group.machine.has_more() || group.machine.is_behind();
        }
        let ready = group.machine.ready_count();
        if !group.machine.poll_emit(cx.now, effects) {
            return group.machine.is_behind();
        }
        charge(work, effects, ready);
        carry_out(cx, effect_cx, group, effects, None);
        *work = work.saturating_sub(std::mem::take(&mut effect_cx.combined));
    }
    true
}

/// Sends the payload of a slot (EPIC 4.1: ReplicateData).
#[inline]
fn emit<E: Egress, O: Observer, const W: usize>(
    cx: &mut Cx<'_, E, O>,
    effect_cx: &mut EffectCx<'_>,
    group: &mut CollectiveContext<W>,
    slot: u16,
    what: (Psn, EndpointSet<W>, bool),
) {
    let shape = group.machine.shape(slot);
    effect_cx.combined += group.slots.make(slot, shape.payload.into(), &mut group.kernels);
    let metadata = group.slots.metadata(slot);
    let has_imm = shape.opcode.info().headers.contains(Headers::IMM);
    let packet = Packet {
        opcode: shape.opcode,
        pad: shape.pad,
        imm: has_imm.then_some(metadata.imm),
        payload: group.slots.result(slot, shape.payload.into()),
    };
    let icrc = metadata
        .icrc
        .unwrap_or_else(|| packet.icrc(&mut group.group_header, &group.checksum));
    let mut send_cx = SendContext {
        machine: &group.machine,
        connections: &group.connections,
        counters: &mut group.per_endpoint,
        rule: &group.rule,
    };
    let (sent, lost) = translate::send(cx, effect_cx.output, &mut send_cx, &packet, icrc, what);
    group.counters.results += sent;
    group.counters.result_bytes += sent * u64::from(shape.payload);
    group.counters.lost += lost;
    if let Some(metadata) = group.slots.metadata_mut(slot) {
        metadata.icrc = Some(icrc);
    }
}

#[cold]
fn emit_control<E: Egress, O: Observer, const W: usize>(
    cx: &mut Cx<'_, E, O>,
    effect_cx: &mut EffectCx<'_>,
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
    let icrc = packet.icrc(&mut group.group_header, &group.checksum);
    let mut send_cx = SendContext {
        machine: &group.machine,
        connections: &group.connections,
        counters: &mut group.per_endpoint,
        rule: &group.rule,
    };
    let (sent, lost) = translate::send(cx, effect_cx.output, &mut send_cx, &packet, icrc, (g, to, true));
    group.counters.controls_out += sent;
    group.counters.lost += lost;
}
