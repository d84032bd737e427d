//! Describes the decisions of a collective group, for traces.

use castnet_collective::translated::{Effect, Event};
use castnet_collective::{EndpointId, terminated};
use castnet_rules::GroupRule;

use super::context::CollectiveContext;
use super::frame::sender;
use crate::observe::trace::{Stage, Step};

pub(super) fn name(rule: &GroupRule, endpoint: EndpointId) -> String {
    match rule.endpoints.get(endpoint.index()) {
        Some(e) => {
            let who = match e.next_hop.rank() {
                Some(part) => format!("rank {} on {}", part.rank, e.next_hop.name()),
                None => format!("switch {}", e.next_hop.name()),
            };
            format!("endpoint {endpoint} (port {}, {who})", e.port)
        }
        None => format!("endpoint {endpoint}"),
    }
}

/// An action on a message, in Mode-I.
pub(super) fn message<const W: usize>(rule: &GroupRule, effect: &terminated::Effect<W>) -> String {
    use terminated::Effect;
    match *effect {
        Effect::Take {
            from,
            slot,
            first,
            bytes,
            ..
        } => {
            let what = if first { "copied" } else { "added" };
            format!("{bytes} bytes of {} {what} into slot {slot}", name(rule, from))
        }
        Effect::Send { slot, to, bytes } => {
            let to = names(rule, to.iter());
            format!("slot {slot}, {bytes} bytes, is sent to {to}")
        }
        Effect::SendControl { to, control, .. } => format!("{control}, to {}", names(rule, to.iter())),
        Effect::Receive { from, buffer } => format!("buffer {buffer} of {} is free", name(rule, from)),
        Effect::Refused { from } => format!("the message of {} is refused", name(rule, from)),
        Effect::Conflict { control } => format!("conflict: {control}"),
        Effect::Stalled { waiting_for, .. } => {
            format!("stalled: waits for {}", names(rule, waiting_for.iter()))
        }
    }
}

/// Most endpoints listed. Further ones are counted.
const NAMED_MAX: usize = 4;

fn names(rule: &GroupRule, set: impl ExactSizeIterator<Item = EndpointId>) -> String {
    let count = set.len();
    let mut names: Vec<String> = set.take(NAMED_MAX).map(|e| name(rule, e)).collect();
    match count.saturating_sub(NAMED_MAX) {
        0 if names.is_empty() => return "nobody".into(),
        0 => {}
        more => names.push(format!("{more} more")),
    }
    names.join(", ")
}

pub(super) fn decision<const W: usize>(
    group: &CollectiveContext<W>,
    event: &Event,
    effects: &[Effect<W>],
) -> Step {
    let what = match event {
        Event::Data { psn, shape, .. } => format!("data, PSN {psn}, {} B", shape.payload),
        Event::Control { psn, control, .. } => format!(
            "control message, PSN {psn}: collective {}, rank {}: {}",
            control.sequence, control.rank, control.call
        ),
        Event::Feedback { psn, syndrome, .. } => format!("{syndrome} of PSN {psn}"),
        Event::Request { psn, .. } => format!("request for PSN {psn}"),
        Event::Cnp { .. } => "congestion notification".into(),
        Event::Marked { .. } => "marked on its way: congestion".into(),
    };
    let status = group.machine.status();
    let mut facts = vec![format!(
        "lowest unfinished PSN {}, waiting for {}",
        status.base,
        names(&group.rule, status.waiting_for.iter().copied())
    )];
    // Only the sender: a group can have many endpoints.
    if let Some(e) = status.endpoints.get(sender(event).index()) {
        facts.push(format!(
            "{}: expects {}, unconfirmed {}, next out {}, unacknowledged {}",
            name(&group.rule, e.endpoint),
            e.expected,
            e.unconfirmed,
            e.next,
            e.unacknowledged
        ));
    }
    Step::new(Stage::Machine, all(group, effects), what).with(facts)
}

pub(super) fn all<const W: usize>(group: &CollectiveContext<W>, effects: &[Effect<W>]) -> String {
    let rule = &group.rule;
    let words: Vec<String> = effects
        .iter()
        .map(|effect| match *effect {
            Effect::Aggregate {
                slot, first: true, ..
            } => format!("first contribution into slot {slot}"),
            Effect::Aggregate { slot, .. } => format!("add to slot {slot}"),
            Effect::Store { slot } => format!("result into slot {slot}"),
            Effect::HandOver { from, to } => format!("hand slot {from} over to slot {to}"),
            Effect::Merged => "merge the control message".into(),
            Effect::Complete { slot, .. } => format!("slot {slot} is complete"),
            Effect::Emit { slot, g, to, .. } => {
                format!("send slot {slot}, PSN {g}, to {}", names(rule, to.iter()))
            }
            Effect::EmitControl { g, to, .. } => {
                format!("send the control message, PSN {g}, to {}", names(rule, to.iter()))
            }
            Effect::Acknowledge {
                to, psn, syndrome, ..
            } => {
                format!("send to {}: {syndrome} of PSN {psn}", name(rule, to))
            }
            Effect::Request { to, psn } => format!("ask {} for PSN {psn}", name(rule, to)),
            Effect::Cnp { to } => format!("send a CNP to {}", names(rule, to.iter())),
            Effect::Absorb => "absorb".into(),
            Effect::Drop(reason) => format!("drop ({reason})"),
            Effect::Stalled { waiting_for, g, .. } => {
                format!(
                    "PSN {g} has stalled, waiting for {}",
                    names(rule, waiting_for.iter())
                )
            }
            Effect::Conflict { control } => {
                format!("the ranks disagree about collective {}", control.sequence)
            }
            Effect::Refused { from, .. } => format!("{} breaks a rule of the group", name(rule, from)),
            Effect::MemberFailed { from, .. } => format!("{} has failed", name(rule, from)),
        })
        .collect();
    words.join(", then ")
}
