//! A frame of a group: admit it, check what must be checked before the machine sees it, run the machine, carry its
//! effects out.

use core::net::Ipv4Addr;

use castnet_collective::{Effect, Event, Multicast, PathId, PathSet};
use castnet_wire::{DropReason, FrameBuf, Nanos, RoceHeader, Syndrome, icrc};

use crate::classify::{self, Class};
use crate::context::Context;
use crate::counters::Counters;
use crate::egress::Egress;
use crate::engine::{Engine, Ports, Shifts};
use crate::events::EventKind;
use crate::feedback::{self, Feedback};
use crate::group::Group;
use crate::next_hops::NextHops;
use crate::pipeline::Cx;
use crate::replicate;
use crate::trace::{Observer, Stage, Step, Verdict};
use crate::wheel::Wheel;

/// What carrying effects out needs beside the group.
pub(crate) struct Tools<'a> {
    pub(crate) ports: &'a Ports,
    pub(crate) next_hops: &'a NextHops,
    pub(crate) shifts: &'a mut Shifts,
    pub(crate) counters: &'a mut Counters,
}

/// The tools of an engine. No method, as a group of the same engine is borrowed meanwhile.
macro_rules! tools {
    ($engine:ident) => {
        $crate::multicast::Tools {
            ports: &$engine.ports,
            next_hops: &$engine.next_hops,
            shifts: &mut $engine.shifts,
            counters: &mut $engine.counters,
        }
    };
}

pub(crate) use tools;

impl Engine {
    /// One frame whose destination is the multicast group at `place`.
    #[inline]
    pub(crate) fn multicast_frame<E: Egress, O: Observer>(
        &mut self,
        cx: &mut Cx<'_, E, O>,
        place: u32,
        header: &RoceHeader,
        src: Ipv4Addr,
        frame: E::Buf,
    ) -> Verdict {
        let Some(Context::Multicast(group)) = self.groups.at_mut(place) else {
            return Verdict::Dropped(DropReason::NotMember);
        };
        cx.observer.group(group.hot.mcst_id);
        let admitted = admit(cx, group, header, src, &frame);
        let (from, event) = match admitted {
            Ok(admitted) => admitted,
            Err((stage, reason)) => return refuse(cx, group, stage, reason, header, src),
        };
        let before = group.hot.machine.next_psn();
        note_arrival(group, from, &event, frame.length());
        group.hot.machine.handle(cx.now, event, &mut self.effects);
        cx.observer.step(|| explain(group, &event, before, &self.effects));

        let mut tools = tools!(self);
        let verdict = match (&event, self.effects.as_slice()) {
            // The plain cases first: data that goes on, and feedback that changes nothing for the source.
            (Event::Data { psn, .. }, [Effect::Replicate { to }]) => {
                if before != Some(*psn) {
                    note_repetition(group, before, *psn, *to);
                }
                replicate::replicate(cx, &mut tools, group, header, src, *to, frame)
            }
            (_, [Effect::Absorb]) if !matches!(event, Event::Data { .. }) => Verdict::Absorbed,
            (_, effects) => {
                if let Event::Data { psn, .. } = event
                    && !matches!(effects, [Effect::Drop(_)])
                {
                    note_repetition(group, before, psn, PathSet::EMPTY);
                }
                carry_out(cx, &mut tools, group, header, effects, frame)
            }
        };
        match event {
            Event::Data { psn, .. } if before.is_none() && group.hot.machine.next_psn().is_some() => {
                self.events.push(
                    cx.now,
                    EventKind::BaselineLearned {
                        mcst_id: group.hot.mcst_id,
                        psn,
                    },
                );
            }
            Event::Feedback {
                syndrome: syndrome @ Syndrome::Nak(code),
                ..
            } if code.is_fatal() && !matches!(verdict, Verdict::Dropped(_)) => {
                let (mcst_id, endpoint) = (group.hot.mcst_id, from.index() as u16);
                self.events.push(
                    cx.now,
                    EventKind::MemberFailed {
                        mcst_id,
                        generation: group.cold.rule.generation,
                        endpoint,
                        syndrome: syndrome.byte(),
                    },
                );
            }
            _ => {}
        }
        arm(&mut self.wheel, cx.now, place, &group.hot.machine);
        verdict
    }

    /// A group has come from another engine.
    pub(crate) fn multicast_resume(&mut self, now: Nanos, place: u32) {
        if let Some(Context::Multicast(group)) = self.groups.at_mut(place) {
            arm(&mut self.wheel, now, place, &group.hot.machine);
        }
    }

    /// A path of the group at `place` may have stalled.
    pub(crate) fn multicast_timeout(&mut self, now: Nanos, place: u32) {
        let Some(Context::Multicast(group)) = self.groups.at_mut(place) else {
            return;
        };
        let machine = &mut group.hot.machine;
        if machine.poll_timeout().is_some_and(|(at, _)| at <= now) {
            machine.handle_timeout(now, &mut self.effects);
            for effect in &self.effects {
                if let Effect::Stalled { path, since } = *effect {
                    group.cold.exceptions.stalls += 1;
                    let endpoint = path.index() as u16;
                    let mcst_id = group.hot.mcst_id;
                    self.events.push(
                        now,
                        EventKind::PathStalled {
                            mcst_id,
                            endpoint,
                            since,
                        },
                    );
                }
            }
        }
        if let Some((at, _)) = group.hot.machine.poll_timeout() {
            self.wheel.arm(now, place, at);
        }
    }
}

/// Has a group come up when its machine wants to, where it does not yet.
#[inline(always)]
pub(crate) fn arm(wheel: &mut Wheel, now: Nanos, place: u32, machine: &Multicast) {
    if !wheel.is_armed(place)
        && let Some((at, _)) = machine.poll_timeout()
    {
        wheel.arm(now, place, at);
    }
}

/// Who sent it, and what the machine is to hear of it; or why it ends. Whatever may change more of the machine's state
/// than the count of plain new data has its whole ICRC verified first, so that corruption never does.
#[inline]
fn admit<E: Egress, O: Observer>(
    cx: &mut Cx<'_, E, O>,
    group: &Group,
    header: &RoceHeader,
    src: Ipv4Addr,
    frame: &E::Buf,
) -> Result<(PathId, Event), (Stage, DropReason)> {
    let hot = &group.hot;
    let (from, class) =
        classify::classify(hot, cx.ingress, src, header).map_err(|reason| (Stage::Classify, reason))?;
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
    classify::check_packet(header, frame, hot.pmtu.into()).map_err(|reason| (Stage::Verify, reason))?;
    let psn = header.bth.psn;
    let (event, trusted) = match class {
        Class::Data => {
            let trusted = hot.machine.next_psn() == Some(psn);
            (
                Event::Data {
                    from,
                    psn,
                    ack_request: header.bth.ack_request,
                },
                trusted,
            )
        }
        Class::Feedback(aeth) => (
            Event::Feedback {
                from,
                psn,
                msn: aeth.msn,
                syndrome: aeth.syndrome,
            },
            false,
        ),
        Class::Cnp => (Event::Cnp { from }, false),
    };
    if !trusted && !icrc::verify(frame, header.l3, header.frame_len) {
        return Err((Stage::Verify, DropReason::BadIcrc));
    }
    cx.observer.step(|| match trusted {
        true => Step::new(
            Stage::Verify,
            "ICRC not looked at",
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

#[cold]
fn refuse<E: Egress, O: Observer>(
    cx: &mut Cx<'_, E, O>,
    group: &mut Group,
    stage: Stage,
    reason: DropReason,
    header: &RoceHeader,
    src: Ipv4Addr,
) -> Verdict {
    group.cold.exceptions.dropped += 1;
    let (ingress, pmtu) = (cx.ingress, group.hot.pmtu);
    cx.drop(stage, reason, || match reason {
        DropReason::NotMember | DropReason::NotMulticastable => {
            classify::explain(group, ingress, src, header)
        }
        DropReason::OverPmtu => format!("payload of {} bytes, path MTU {pmtu}", header.payload_len),
        DropReason::BadIcrc => "the ICRC is wrong, and the frame could have changed state".into(),
        other => other.to_string(),
    })
}

#[inline]
pub(crate) fn note_arrival(group: &mut Group, from: PathId, event: &Event, length: usize) {
    let source = group.hot.source;
    let Group { hot, paths, cold } = group;
    let hot = &mut hot.counters;
    match event {
        // From others it ends at the machine, and no path counts on it.
        Event::Data { .. } if from == source => {
            hot.data_in += 1;
            hot.data_bytes_in += length as u64;
        }
        Event::Data { .. } => {}
        Event::Feedback { syndrome, .. } => {
            let Some(path) = paths.get_mut(from.index()) else {
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
    }
}

/// Counts data that came before, and the paths that did not need it: also of what is so far behind that it looks new.
#[cold]
fn note_repetition(
    group: &mut Group,
    expected: Option<castnet_wire::Psn>,
    psn: castnet_wire::Psn,
    to: PathSet,
) {
    if expected.is_some_and(|e| psn.is_before(e)) {
        group.cold.exceptions.retransmitted_in += 1;
    }
    let Group { hot, paths, cold } = group;
    for (i, path) in paths.iter_mut().enumerate() {
        let skipped = PathId::new(i as u8).is_some_and(|id| id != hot.source && !to.contains(id));
        if skipped {
            path.filtered += 1;
            cold.exceptions.filtered += 1;
        }
    }
}

/// Effects in their order. The incoming frame becomes the last that leaves, where its bytes fit.
pub(crate) fn carry_out<E: Egress, O: Observer>(
    cx: &mut Cx<'_, E, O>,
    tools: &mut Tools<'_>,
    group: &mut Group,
    header: &RoceHeader,
    effects: &[Effect],
    frame: E::Buf,
) -> Verdict {
    let src = header.ip.v4().map_or(Ipv4Addr::UNSPECIFIED, |(src, _)| src);
    let replicates = effects.iter().any(|e| matches!(e, Effect::Replicate { .. }));
    let makers = effects
        .iter()
        .filter(|e| matches!(e, Effect::Acknowledge { .. } | Effect::Cnp { .. }))
        .count();
    let (mut frame, mut made) = (Some(frame), 0);
    let link = feedback::Link::of(frame.as_ref(), header);
    let mut verdict = Verdict::Absorbed;
    for effect in effects {
        let wanted = match *effect {
            Effect::Acknowledge {
                to,
                psn,
                msn,
                syndrome,
            } => Feedback::Acknowledge {
                to,
                psn,
                msn,
                syndrome,
            },
            Effect::Cnp { to } => Feedback::Cnp { to },
            Effect::Replicate { to } => {
                if let Some(frame) = frame.take() {
                    verdict = replicate::replicate(cx, tools, group, header, src, to, frame);
                }
                continue;
            }
            Effect::Drop(reason) => {
                group.cold.exceptions.dropped += 1;
                verdict = cx.drop(Stage::Machine, reason, || "the group's machine refused it".into());
                continue;
            }
            Effect::Absorb | Effect::Stalled { .. } => continue,
        };
        made += 1;
        let reuse = if made == makers && !replicates {
            frame.take()
        } else {
            None
        };
        feedback::send(cx, tools, group, &link, wanted, reuse);
    }
    verdict
}

/// The machine's decision, for people.
fn explain(group: &Group, event: &Event, expected: Option<castnet_wire::Psn>, effects: &[Effect]) -> Step {
    let what = match event {
        Event::Data { psn, .. } => match expected.map(|e| psn.diff(e)) {
            Some(0) => format!("PSN {psn} is the next expected"),
            Some(d) if d < 0 => format!("PSN {psn} came before"),
            Some(d) => format!("PSN {psn} leaves a gap of {d}"),
            None => format!("PSN {psn} is the first seen"),
        },
        Event::Feedback { psn, syndrome, .. } => format!("{syndrome} of PSN {psn}"),
        Event::Cnp { .. } => "congestion notification".into(),
    };
    let decisions: Vec<String> = effects
        .iter()
        .map(|effect| match effect {
            Effect::Replicate { to } => format!("replicate to {} path(s)", to.len()),
            Effect::Acknowledge { psn, syndrome, .. } => format!("tell the source: {syndrome} of PSN {psn}"),
            Effect::Cnp { .. } => "pass the CNP to the source".into(),
            Effect::Absorb => "absorb".into(),
            Effect::Drop(reason) => format!("drop ({reason})"),
            Effect::Stalled { path, .. } => format!("path {path} has stalled"),
        })
        .collect();
    let to = effects.iter().find_map(|e| match e {
        Effect::Replicate { to } => Some(*to),
        _ => None,
    });
    let status = group.hot.machine.status();
    let psn_text = |psn: Option<castnet_wire::Psn>| psn.map_or("unknown".into(), |p| p.to_string());
    let mut facts = vec![format!(
        "AggAckPSN {}, newest data {}, MePSN {}",
        psn_text(status.agg_ack_psn),
        psn_text(status.newest_psn),
        status.me_psn.map_or("none".into(), |p| p.to_string()),
    )];
    for path in &status.paths {
        let ack = psn_text(path.ack_psn);
        let who = group.cold.describe(path.path);
        facts.push(match (event, to) {
            (Event::Data { psn, .. }, _) if !to.is_some_and(|to| to.contains(path.path)) => {
                format!("{who} skipped: AckPSN {ack}, packet {psn}")
            }
            (Event::Data { .. }, _) => format!("{who} gets it: AckPSN {ack}"),
            _ => format!("{who}: AckPSN {ack}"),
        });
    }
    Step::new(Stage::Machine, decisions.join(", then "), what).with(facts)
}
