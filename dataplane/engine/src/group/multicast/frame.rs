//! The slow path of a multicast frame: admit and verify it, run the machine, execute the effects.

use core::net::Ipv4Addr;

use castnet_collective::{Effect, Event, Multicast, PathId, Signal, TimerReason};
use castnet_rules::NextHop;
use castnet_wire::{Aeth, DropReason, FrameBuf, Nanos, PortId, Psn, RoceHeader, Syndrome, icrc};

use crate::address;
use crate::egress::Egress;
use crate::group::classify::{self, Class, Refusal};
use crate::group::meter::{self, Metered};
use crate::group::multicast::context::Group;
use crate::group::multicast::feedback;
use crate::group::multicast::replicate;
use crate::group::multicast::ring;
use crate::group::rewrite::set_psn;
use crate::group::services::{Services, Timers, looks};
use crate::observe::events::{EventKind, Events};
use crate::observe::trace::{Observer, Stage, Step, Verdict};
use crate::output::Output;
use crate::output::acknowledge::LinkHeader;
use crate::output::cx::Cx;

impl Group {
    #[inline]
    pub(crate) fn on_frame<E: Egress, O: Observer>(
        &mut self,
        services: &mut Services,
        cx: &mut Cx<'_, E, O>,
        slot: u32,
        header: &RoceHeader,
        src: Ipv4Addr,
        mut frame: E::Buf,
    ) -> Verdict {
        let group = self;
        let Services {
            output,
            timers,
            events,
            scratch,
            ..
        } = services;
        cx.observer.group(group.hot.mcst_id);
        let (_, dst) = header.ip.v4().unwrap_or((src, group.hot.mcst_id.0));
        let port = group.hot.origin(cx.ingress, dst);
        let (from, event) = match admit(cx, group, header, (port, src), &frame) {
            Ok(admitted) => admitted,
            Err((stage, reason)) => {
                group.cold.exceptions.dropped += 1;
                let from = (port, src, address::source_mac(frame.head()));
                return cx.drop(stage, reason, || {
                    let texts = [
                        "cannot be multicast",
                        "the ICRC is wrong, and the frame could have changed state",
                    ];
                    classify::explain_refusal(reason, &group.cold.rule, from, header, NextHop::ip, texts)
                });
            }
        };
        let switching = group.hot.machine.is_switching();
        if matches!(event, Event::Data { .. })
            && from == group.hot.source
            && (!switching || group.cold.host(from).is_some())
            && let Some(bucket) = &mut group.hot.meter
        {
            match meter::meter(cx, bucket, header, frame.length()) {
                Metered::Within => {}
                Metered::Marked => {
                    group.cold.exceptions.rate_marks += 1;
                    meter::mark(&mut frame, header);
                }
                Metered::Over => {
                    group.cold.exceptions.dropped += 1;
                    group.cold.exceptions.rate_drops += 1;
                    return meter::drop_over(cx, &group.cold.rule, frame.length());
                }
            }
        }
        let mut bridged = *header;
        if switching && let Event::Data { psn, .. } = event {
            let info = header.bth.opcode.info();
            let machine = &mut group.hot.machine;
            machine.handle_position(info.starts_message(), info.ends_message());
            if psn != header.bth.psn {
                set_psn(&mut frame, header, header.bth.psn, psn);
                bridged.bth.psn = psn;
            }
        }
        let header = &bridged;
        let before = group.hot.machine.next_psn();
        if let Event::Data { psn, .. } = event
            && group.hot.machine.is_waiting()
            && header.bth.opcode.info().starts_message()
        {
            group.hot.machine.handle_message(from, psn);
        }
        let may_fail =
            matches!(event, Event::Feedback { syndrome: Syndrome::Nak(code), .. } if code.is_fatal());
        group.hot.machine.handle(cx.now, event, &mut scratch.effects);
        // Before the source changes: it may change to this one.
        if matches!(event, Event::Data { .. }) {
            group.note_data(from, LinkHeader::of(Some(&frame), header));
        }
        if switching {
            group.adopt_source();
            report_conflict(group, cx.now, events, &scratch.effects);
        }
        count_arrival(group, from, &event, frame.length());
        cx.observer
            .step(|| explain(group, &event, before, &scratch.effects));

        let verdict = match (&event, scratch.effects.as_slice()) {
            // The usual cases first: replicated data, and feedback that causes none towards the source.
            (Event::Data { psn, .. }, [Effect::Replicate { .. }]) => {
                if before != Some(*psn) || group.hot.machine.is_waiting() {
                    count_retransmission(group, before, *psn);
                }
                replicate::replicate(cx, output, group, header, frame)
            }
            (event, [Effect::Absorb]) if !matches!(event, Event::Data { .. }) => {
                group.cold.exceptions.cnps_filtered += u64::from(matches!(event, Event::Cnp { .. }));
                Verdict::Absorbed
            }
            (_, effects) => {
                if let Event::Data { psn, .. } = event
                    && from == group.hot.source
                {
                    count_retransmission(group, before, psn);
                }
                carry_out(cx, output, group, header, effects, frame)
            }
        };
        let mcst_id = group.hot.mcst_id;
        if let Event::Data { psn, .. } = event
            && from == group.hot.source
            && group.hot.machine.joined_with(psn).next().is_some()
            && group.cold.joined.allows(cx.now)
        {
            for path in group.hot.machine.joined_with(psn) {
                let kind = EventKind::PathJoined {
                    mcst_id,
                    generation: group.cold.rule.generation,
                    endpoint: path.index() as u16,
                    psn,
                };
                events.push(cx.now, kind);
            }
        }
        match event {
            Event::Data { psn, .. } if before.is_none() && group.hot.machine.next_psn().is_some() => {
                events.push(cx.now, EventKind::BaselineLearned { mcst_id, psn });
            }
            Event::Feedback { syndrome, .. }
                if may_fail && group.hot.machine.has_failed(from) && group.cold.is_first_failure(from) =>
            {
                let is_first = group.cold.failures() == 1;
                events.failure(cx.now, &group.cold.rule, from.index(), syndrome.byte(), is_first);
            }
            _ => {}
        }
        // After the batch, because its later frames may acknowledge what would be sent.
        if group.hot.machine.has_resends() {
            group.queue(timers, slot);
        }
        // The armed timer may be a later one.
        if switching && let Some((_, TimerReason::Turn)) = group.hot.machine.poll_timeout() {
            timers.coarse.disarm(slot);
            timers.fine.disarm(slot);
        }
        arm(timers, cx.now, slot, &group.hot.machine);
        verdict
    }

    /// Reports stalled paths, repeats for silent ones, and re-arms the timer.
    pub(crate) fn on_timeout<E: Egress, O: Observer>(
        &mut self,
        services: &mut Services,
        cx: &mut Cx<'_, E, O>,
        slot: u32,
    ) {
        let Services {
            output,
            timers,
            events,
            scratch,
            work,
        } = services;
        let now = cx.now;
        cx.observer.group(self.hot.mcst_id);
        let due = self.hot.machine.poll_timeout().is_some_and(|(at, _)| at <= now);
        if due {
            *work = work.saturating_sub(looks(self.cold.rule.endpoints.len()));
            self.hot.machine.handle_timeout(now, &mut scratch.effects);
            self.adopt_source();
            for effect in &scratch.effects {
                match *effect {
                    Effect::Stalled { path, since, tries } => {
                        self.cold.exceptions.stalls += 1;
                        let kind = EventKind::PathStalled {
                            mcst_id: self.hot.mcst_id,
                            generation: self.cold.rule.generation,
                            endpoint: path.index() as u16,
                            since,
                            tries,
                        };
                        events.push(now, kind);
                    }
                    Effect::Signal {
                        to,
                        signal,
                        psn,
                        epoch,
                    } => {
                        let link = self.link_to(to);
                        feedback::send_signal(cx, output, self, &link, (to, signal, psn, epoch));
                    }
                    Effect::Acknowledge {
                        to,
                        psn,
                        msn,
                        syndrome,
                    } => {
                        let ack = Some((psn, Aeth { syndrome, msn }));
                        let link = self.link_to(to);
                        feedback::send(cx, output, self, &link, (to, ack), None);
                    }
                    _ => {}
                }
            }
            if self.cold.ring.is_some() && ring::resend(cx, output, work, self) {
                self.queue(timers, slot);
            }
        }
        arm(timers, now, slot, &self.hot.machine);
    }

    /// Continues to send from the ring.
    pub(crate) fn on_emit<E: Egress, O: Observer>(
        &mut self,
        services: &mut Services,
        cx: &mut Cx<'_, E, O>,
        slot: u32,
    ) {
        cx.observer.group(self.hot.mcst_id);
        if let Some(ring) = &mut self.cold.ring {
            ring.emitting = false;
        }
        if ring::resend(cx, &mut services.output, &mut services.work, self) {
            self.queue(&mut services.timers, slot);
        }
    }

    /// Queues the group, because it has more to send.
    pub(super) fn queue(&mut self, timers: &mut Timers, slot: u32) {
        if let Some(ring) = self.cold.ring.as_mut().filter(|ring| !ring.emitting) {
            ring.emitting = true;
            timers.emitting.push_back(slot);
        }
    }
}

/// Arms the timer for the next deadline of the machine, unless it is armed.
#[inline(always)]
pub(crate) fn arm(timers: &mut Timers, now: Nanos, slot: u32, machine: &Multicast) {
    let wheel = match machine.repairs() {
        false => &mut timers.coarse,
        true => &mut timers.fine,
    };
    if !wheel.is_armed(slot)
        && let Some((at, _)) = machine.poll_timeout()
    {
        wheel.arm(now, slot, at);
    }
}

/// The ingress path and the event of a frame, or why it is dropped. The whole ICRC is verified first, except of data with the next
/// expected PSN while no path waits to join, so a corrupted frame never changes other state.
#[inline]
fn admit<E: Egress, O: Observer>(
    cx: &mut Cx<'_, E, O>,
    group: &Group,
    header: &RoceHeader,
    (port, src): (PortId, Ipv4Addr),
    frame: &E::Buf,
) -> Result<(PathId, Event), Refusal> {
    let hot = &group.hot;
    let mac = address::source_mac(frame.head());
    let from = hot.sender(port, src, header.bth.dest_qp, mac);
    let from = from.ok_or(classify::NOT_MEMBER)?;
    let switching = hot.machine.is_switching();
    let signal = feedback::signal_of(header.bth.opcode, &hot.machine);
    // Only switches send them.
    let signal = signal
        .filter(|_| group.cold.host(from).is_none())
        .zip(header.aeth);
    let class = match signal {
        Some(_) => Class::Data,
        None => classify::class(header)?,
    };
    cx.observer.step(|| {
        let decision = format!(
            "group {}, {} from {}",
            group.cold.rule.name,
            header.bth.opcode,
            group.cold.describe(from)
        );
        Step::new(
            Stage::Classify,
            decision,
            format!(
                "dst {} qpn {}, src {src}, port {}",
                hot.mcst_id, header.bth.dest_qp, cx.ingress
            ),
        )
    });
    classify::check_packet(header, frame, hot.pmtu.into())?;
    let psn = header.bth.psn;
    let (event, trusted) = match (class, signal) {
        (_, Some((signal, aeth))) => {
            let epoch = aeth.msn;
            let event = Event::Signal {
                from,
                signal,
                psn,
                epoch,
            };
            (event, false)
        }
        (Class::Data, None) => {
            let psn = hot.machine.group_psn(from, psn);
            let next = hot.machine.next_psn() == Some(psn) && !hot.machine.is_waiting();
            let event = Event::Data {
                from,
                psn,
                ack_request: header.bth.ack_request,
            };
            // It could change the source or where a message ends, or is kept.
            (event, next && !switching && !hot.machine.repairs())
        }
        (Class::Feedback(Aeth { syndrome, msn }), None) => {
            let (psn, msn) = hot.machine.group_feedback(from, psn, msn);
            let event = Event::Feedback {
                from,
                psn,
                msn,
                syndrome,
            };
            (event, false)
        }
        (Class::Cnp, None) => (Event::Cnp { from }, false),
    };
    if !trusted && !icrc::verify(frame, header.l3, header.frame_len) {
        return Err((Stage::Verify, DropReason::BadIcrc));
    }
    cx.observer.step(|| match trusted {
        true => Step::new(
            Stage::Verify,
            "ICRC not checked",
            format!("PSN {psn} is the next expected; replicas keep a wrong ICRC wrong"),
        ),
        false => Step::new(
            Stage::Verify,
            "ICRC is right",
            "this frame may change state, so it was verified in full",
        ),
    });
    Ok((from, event))
}

#[inline]
pub(crate) fn count_arrival(group: &mut Group, from: PathId, event: &Event, length: usize) {
    let source = group.hot.source;
    let Group { hot, paths, cold } = group;
    let hot = &mut hot.counters;
    match event {
        // The machine drops data of other endpoints.
        Event::Data { .. } if from == source => {
            hot.data_in += 1;
            hot.data_bytes_in += length as u64;
        }
        Event::Data { .. } => {}
        Event::Feedback { syndrome, .. } => {
            let Some(path) = paths.get_mut(from.index()) else {
                debug_assert!(false, "each path has counters");
                return;
            };
            match syndrome {
                Syndrome::Ack => {
                    hot.acks_in += 1;
                    path.acks_in += 1;
                }
                Syndrome::Nak(_) => {
                    cold.exceptions.naks_in += 1;
                    path.naks_in += 1;
                }
                Syndrome::RnrNak(_) => {
                    cold.exceptions.rnr_naks_in += 1;
                    path.rnr_naks_in += 1;
                }
            }
        }
        Event::Cnp { .. } => {
            cold.exceptions.cnps_in += 1;
            if let Some(path) = paths.get_mut(from.index()) {
                path.cnps_in += 1;
            }
        }
        Event::Signal { signal, .. } => {
            cold.exceptions.requests_in += u64::from(*signal == Signal::Resend);
        }
    }
}

/// Reports a member that wants to send while another one does.
fn report_conflict(group: &mut Group, now: Nanos, events: &mut Events, effects: &[Effect]) {
    for effect in effects {
        if let Effect::Compete { path } = effect
            && group.cold.competed.allows(now)
        {
            let kind = EventKind::SourcesCompete {
                mcst_id: group.hot.mcst_id,
                generation: group.cold.rule.generation,
                endpoint: path.index() as u16,
            };
            events.of_endpoint(now, &group.cold.rule, path.index(), kind);
        }
    }
}

/// Counts retransmitted data, and the paths that do not take it now.
#[cold]
fn count_retransmission(group: &mut Group, expected: Option<Psn>, psn: Psn) {
    if expected.is_some_and(|e| psn.is_before(e)) {
        group.cold.exceptions.retransmitted_in += 1;
    }
    let Group { hot, paths, cold } = group;
    for (i, path) in paths.iter_mut().enumerate() {
        let skipped = PathId::new(i).is_some_and(|path| path != hot.source && !hot.machine.takes(path, psn));
        if skipped {
            path.filtered += 1;
            cold.exceptions.filtered += 1;
        }
    }
}

/// The last sent frame reuses the received one, if the lengths match.
pub(crate) fn carry_out<E: Egress, O: Observer>(
    cx: &mut Cx<'_, E, O>,
    output: &mut Output,
    group: &mut Group,
    header: &RoceHeader,
    effects: &[Effect],
    frame: E::Buf,
) -> Verdict {
    let replicates = effects.iter().any(|e| matches!(e, Effect::Replicate { .. }));
    let makers = effects
        .iter()
        .filter(|e| matches!(e, Effect::Acknowledge { .. } | Effect::Cnp { .. }))
        .count();
    let (mut frame, mut made) = (Some(frame), 0);
    let own = LinkHeader::of(frame.as_ref(), header);
    let mut verdict = Verdict::Absorbed;
    for effect in effects {
        let wanted = match *effect {
            Effect::Acknowledge {
                to,
                psn,
                msn,
                syndrome,
            } => (to, Some((psn, Aeth { syndrome, msn }))),
            Effect::Cnp { to } => (to, None),
            Effect::Keep { slot, .. } => {
                if let (Some(ring), Some(frame)) = (&mut group.cold.ring, &frame) {
                    ring.keep(slot, frame, header.frame_len);
                    group.cold.exceptions.kept += 1;
                }
                continue;
            }
            Effect::Replicate { .. } => {
                if let Some(frame) = frame.take() {
                    verdict = replicate::replicate(cx, output, group, header, frame);
                }
                continue;
            }
            Effect::Drop(reason) => {
                group.cold.exceptions.dropped += 1;
                verdict = cx.drop(Stage::Machine, reason, || "the group's machine refused it".into());
                continue;
            }
            Effect::Signal {
                to,
                signal,
                psn,
                epoch,
            } => {
                // Requests and grants are for switches, which take any tags.
                let link = match signal {
                    Signal::Resend => group.link_to(to),
                    Signal::Request | Signal::Grant => own,
                };
                feedback::send_signal(cx, output, group, &link, (to, signal, psn, epoch));
                continue;
            }
            Effect::Absorb | Effect::Compete { .. } | Effect::Stalled { .. } => continue,
        };
        made += 1;
        let reuse = if made == makers && !replicates {
            frame.take()
        } else {
            None
        };
        let link = group.link_to(wanted.0);
        feedback::send(cx, output, group, &link, wanted, reuse);
    }
    verdict
}

/// Most paths whose state a trace shows, beside the one that the frame came by.
const NAMED_MAX: usize = 16;

fn explain(group: &Group, event: &Event, expected: Option<Psn>, effects: &[Effect]) -> Step {
    let what = match event {
        Event::Data { psn, .. } => match expected.map(|e| psn.diff(e)) {
            Some(0) => format!("PSN {psn} is the next expected"),
            Some(d) if d < 0 => format!("PSN {psn} came before"),
            Some(d) => format!("PSN {psn} leaves a gap of {d}"),
            None => format!("PSN {psn} is the first seen"),
        },
        Event::Feedback { psn, syndrome, .. } => format!("{syndrome} of PSN {psn}"),
        Event::Cnp { .. } => "congestion notification".into(),
        Event::Signal {
            signal: Signal::Resend,
            psn,
            ..
        } => format!("a switch lacks PSN {psn}"),
        Event::Signal { signal, epoch, .. } => format!("source {signal:?}, epoch {epoch}"),
    };
    let decisions: Vec<String> = effects
        .iter()
        .map(|effect| match effect {
            Effect::Keep { slot, .. } => format!("keep in slot {slot}"),
            Effect::Replicate { psn } => {
                let paths = (0..group.paths.len()).filter_map(PathId::new);
                let paths = paths.filter(|path| group.hot.machine.takes(*path, *psn)).count();
                format!("replicate to {paths} path(s)")
            }
            Effect::Acknowledge { psn, syndrome, .. } => {
                format!("send to the source: {syndrome} of PSN {psn}")
            }
            Effect::Cnp { .. } => "pass the CNP to the source".into(),
            Effect::Absorb if matches!(event, Event::Cnp { .. }) => {
                "absorb: another path is more congested".into()
            }
            Effect::Absorb => "absorb".into(),
            Effect::Drop(reason) => format!("drop ({reason})"),
            Effect::Signal {
                signal: Signal::Resend,
                psn,
                ..
            } => format!("ask the switch towards the source for PSN {psn}"),
            Effect::Signal { to, signal, .. } => format!("send source {signal:?} to path {to}"),
            Effect::Compete { path } => format!("path {path} wants to send, too"),
            Effect::Stalled { path, .. } => format!("path {path} has stalled"),
        })
        .collect();
    let status = group.hot.machine.status();
    let psn_text = |psn: Option<Psn>| psn.map_or("unknown".into(), |p| p.to_string());
    let mut facts = vec![format!(
        "AggAckPSN {}, newest data {}, MePSN {}",
        psn_text(status.agg_ack_psn),
        psn_text(status.newest_psn),
        status.me_psn.map_or("none".into(), |p| p.to_string()),
    )];
    let replicated = effects.iter().any(|e| matches!(e, Effect::Replicate { .. }));
    let (Event::Data { from, .. }
    | Event::Feedback { from, .. }
    | Event::Cnp { from }
    | Event::Signal { from, .. }) = *event;
    let mut left_out = 0;
    for (i, path) in status.paths.iter().enumerate() {
        if i >= NAMED_MAX && path.path != from {
            left_out += 1;
            continue;
        }
        let ack = psn_text(path.ack_psn);
        let who = group.cold.describe(path.path);
        facts.push(match event {
            Event::Data { psn, .. } if replicated && group.hot.machine.takes(path.path, *psn) => {
                format!("{who} gets it: AckPSN {ack}")
            }
            Event::Data { psn, .. } => format!("{who} skipped: AckPSN {ack}, packet {psn}"),
            _ => format!("{who}: AckPSN {ack}"),
        });
    }
    if left_out > 0 {
        facts.push(format!("{left_out} more paths"));
    }
    Step::new(Stage::Machine, decisions.join(", then "), what).with(facts)
}
