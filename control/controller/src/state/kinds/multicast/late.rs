//! Receivers that join a group while its stream runs.
//!
//! The rules of the group get the receiver as a new generation in the place of the old one, and carry on the stream: the
//! switches keep what they know of it. The switch next to the receiver waits for the next message, reports the PSN of its
//! first packet, and counts the receiver from that packet on. The receiver connects its queue pair with that PSN. No PSN is
//! translated, so nothing of it has to outlive a switch: until the report is stored the receiver is not in, and then its
//! rule is like that of the others. A report counts only for the generation of the rule that it is about.

use std::sync::Arc;

use castnet_proto::v1;
use castnet_rules::{Endpoint, GroupRule, HostEndpoint, NextHop};
use castnet_wire::Psn;
use serde::{Deserialize, Serialize};

use super::evict::Afterwards;
use super::record::{MemberRecord, Multicast, Seat};
use crate::error::Refusal;
use crate::state::record::text;
use crate::state::{Cause, Core, Entry, Failure, Joining, Kind, NoPlan, Plan, Record, planning};

/// The part of the stream that a receiver gets which joined while it ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Late {
    /// From the next message on; its switch has not reported which.
    Waiting,
    /// From this PSN on, which its queue pair expects.
    From(#[serde(with = "text::psn")] Psn),
}

impl MemberRecord {
    /// Its part of the stream, if it joined while that ran.
    pub(super) fn late(&self) -> Option<Late> {
        self.state.seat().and_then(|seat| seat.late)
    }

    /// Whether it joins the running stream, and its first PSN is not known yet.
    pub(super) fn is_waiting(&self) -> bool {
        self.state
            .joined()
            .is_some_and(|seat| seat.late == Some(Late::Waiting))
    }
}

impl Multicast {
    /// Whether this host joins the running stream, and its first PSN is not known yet.
    pub(crate) fn is_waiting(&self, host: &str) -> bool {
        self.member(host).is_some_and(|(_, m)| m.is_waiting())
    }
}

impl Core {
    /// Takes a receiver that has no part in the running stream into it. The seat has a lease.
    pub(super) fn join_running(&mut self, group: &str, host: &str, seat: Seat) -> Result<(), Refusal> {
        let refuse = |reason: &str| {
            let reason = format!("host {host:?} cannot join group {group:?} while it runs: {reason}");
            Refusal::not_now("group", reason)
        };
        let (entry, kind) = self.multicast(group)?;
        let record = entry.record();
        if kind.settings.any_source.is_some() {
            return Err(refuse(
                "each of its members may send, so they stay the same while it runs",
            ));
        }
        if record.lanes() > 1 {
            return Err(refuse(
                "it has several lanes, and their messages begin at different times",
            ));
        }
        if seat.lease_ms.is_none() {
            return Err(refuse(
                "join with a lease: without one, nobody would learn that it is gone",
            ));
        }
        let Some(before) = record.plan.clone() else {
            return Err(refuse("it has no plan"));
        };
        let changing = || {
            let reason = format!("group {group:?} is being changed at its switches: try again soon");
            Refusal::Failed(Failure::new(Cause::Unreachable, "group", reason))
        };
        if !entry.is_confirmed() {
            return Err(changing());
        }
        let placed = record.placed.clone();
        let mut wanted = record.clone();
        wanted.generation += 1;
        let mut part = kind.clone();
        let is_in = |name: &str| before.rules.values().any(|rule| has_host(rule, name));
        if let Some(member) = part.member_mut(host) {
            member.join(seat);
        }
        let members = part.members.clone();
        Arc::make_mut(&mut part.members).retain(|m| m.host == host || is_in(&m.host));
        wanted.kind = Kind::Multicast(part);
        let layout = self.plan_now(&wanted).and_then(|mut layout| {
            extend(&mut layout.plan, (&before, record.generation), host).map_err(no_plan)?;
            Ok(layout)
        });
        // Frames of a path that is being removed must not be taken for those of one that comes in its place.
        let mut new = layout.iter().flat_map(|layout| layout.plan.rules.keys());
        if new.any(|switch| placed.contains(switch) && !before.rules.contains_key(switch)) {
            return Err(changing());
        }
        match layout.and_then(|layout| planning::ready(self, layout)) {
            Ok(layout) => self.change(group, |r| {
                r.generation = wanted.generation;
                r.place(layout);
                if let Some(kind) = r.multicast_mut() {
                    kind.members = members;
                }
            })?,
            Err(NoPlan::NotYet(failure) | NoPlan::Never(failure)) => {
                let field = Some(failure.field).filter(|f| !f.is_empty());
                let field = field.map_or_else(String::new, |field| format!("{field}: "));
                return Err(refuse(&format!("{field}{}", failure.reason)));
            }
        }
        tracing::info!(group, host, "joins the running stream");
        self.update(group, true);
        Ok(())
    }

    /// No receiver that waits can join the stream: a switch cannot be reached.
    pub(crate) fn give_up_all_joining(&mut self, group: &str, reason: &str) {
        let Ok((_, kind)) = self.multicast(group) else {
            return;
        };
        let waiting = kind.members.iter().filter(|m| m.is_waiting());
        for host in waiting.map(|m| m.host.clone()).collect::<Vec<_>>() {
            self.give_up_joining(group, &host, reason);
        }
    }

    /// A receiver that waits to join the stream cannot: its call has ended, or a switch cannot be reached.
    pub(crate) fn give_up_joining(&mut self, group: &str, host: &str, reason: &str) {
        let kind = self.multicast(group).map(|(_, kind)| kind);
        let member = kind.ok().filter(|kind| kind.is_waiting(host));
        let Some(by) = member.and_then(|kind| Some(kind.member(host)?.1.state.seat()?.by)) else {
            return;
        };
        tracing::info!(group, host, reason, "does not join the running stream");
        let why = format!("host {host} does not join: {reason}");
        if let Err(error) = self.evict_host(group, host, Afterwards::Member, &why) {
            tracing::error!(group, host, %error, "cannot take out a member");
        }
        let (group, host, reason) = (group.to_owned(), host.to_owned(), reason.to_owned());
        self.journal.retry(move |core| {
            let kind = core.multicast(&group).map(|(_, kind)| kind);
            let seat = kind.ok().and_then(|kind| kind.member(&host)?.1.state.seat());
            // It may have come again since.
            if seat.is_some_and(|seat| seat.by == by) {
                core.give_up_joining(&group, &host, &reason);
            }
        });
    }

    /// A switch reports the first packet of a receiver that joins.
    pub(crate) fn path_joined(&mut self, switch: &str, joined: &v1::PathJoined) {
        let Some(record) = self.at_address(&joined.mcst_id).map(Entry::record) else {
            return;
        };
        let (group, host) = (record.name.clone(), joined.next_hop.as_str());
        let present = record.phase.has_run() && record.generation == joined.generation;
        let waits = record.multicast().is_some_and(|kind| kind.is_waiting(host));
        let here = record
            .wanted_rule(switch)
            .is_some_and(|rule| has_host(rule, host));
        if !(present && waits && here) {
            tracing::debug!(
                group,
                switch,
                host,
                joined.generation,
                "a late report of a first packet"
            );
            return;
        }
        let psn = Psn::new(joined.psn);
        tracing::info!(group, host, %psn, "is in the running stream");
        // The switch reports it again if this is not stored.
        self.try_change(&group, |r| take_in(r, host, psn));
    }
}

fn no_plan(reason: &str) -> NoPlan {
    NoPlan::Never(Failure::new(Cause::Unfit, "", reason))
}

pub(super) fn has_host(rule: &GroupRule, name: &str) -> bool {
    rule.hosts().any(|(_, host)| host.name == name)
}

fn is_host<'e>(name: &str) -> impl Fn(&&'e mut Endpoint) -> bool {
    move |endpoint| {
        endpoint
            .next_hop
            .host()
            .is_some_and(|host: &HostEndpoint| host.name == name)
    }
}

/// From now on the member is like the others.
fn take_in(record: &mut Record, host: &str, psn: Psn) {
    if let Some(member) = record.multicast_mut().and_then(|kind| kind.member_mut(host))
        && let Joining::Joined(seat) = &mut member.state
    {
        seat.late = Some(Late::From(psn));
    }
    if let Some(plan) = &mut record.plan {
        let endpoints = Arc::make_mut(plan)
            .rules
            .values_mut()
            .flat_map(|rule| &mut rule.endpoints);
        endpoints
            .filter(is_host(host))
            .for_each(|endpoint| endpoint.joining = false);
    }
}

/// Makes a new plan one that carries on the stream of the one `before`, of `generation`, with one more receiver. Fails if
/// it changes anything for the others: their state at the switches would be lost.
fn extend(plan: &mut Plan, (before, generation): (&Plan, u64), host: &str) -> Result<(), &'static str> {
    for (switch, old) in &before.rules {
        let Some(new) = plan
            .rules
            .get_mut(switch)
            .filter(|new| new.mcst_id == old.mcst_id)
        else {
            return Err("the tree of the group would have to change");
        };
        let source = |rule: &GroupRule| rule.upstream().map(|e| e.next_hop.name().to_owned());
        if source(new) != source(old) {
            return Err("the tree of the group would have to change");
        }
        for endpoint in old
            .endpoints
            .iter()
            .filter(|e| e.next_hop.host().is_none_or(|h| h.name != host))
        {
            // An address of a static core may change: what is lost on the way to another one is sent again.
            let hop = without_core(&endpoint.next_hop);
            let same = |e: &&mut Endpoint| {
                (e.port, e.virtual_qpn, e.next_hop.name())
                    == (endpoint.port, endpoint.virtual_qpn, hop.name())
                    && without_core(&e.next_hop) == hop
            };
            match new.endpoints.iter_mut().find(same) {
                Some(same) => same.joining = endpoint.joining,
                None => return Err("the paths to the other members would have to change"),
            }
        }
    }
    let endpoints = plan.rules.values_mut().flat_map(|rule| &mut rule.endpoints);
    endpoints
        .filter(is_host(host))
        .for_each(|endpoint| endpoint.joining = true);
    carry_on(plan, before, generation);
    Ok(())
}

fn without_core(hop: &NextHop) -> NextHop {
    let mut hop = hop.clone();
    if let NextHop::Switch { core, .. } = &mut hop {
        *core = None;
    }
    hop
}

/// Gives a running group a further generation, of another plan, that carries on the stream of the plan `before`.
pub(super) fn replace(record: &mut Record, before: &Plan, mut plan: Plan) {
    carry_on(&mut plan, before, record.generation);
    record.generation += 1;
    for rule in plan.rules.values_mut() {
        rule.generation = record.generation;
    }
    record.plan = Some(Arc::new(plan));
}

/// Lets the rules of a plan carry on the stream of the one `before`, of `generation`.
fn carry_on(plan: &mut Plan, before: &Plan, generation: u64) {
    let since = before
        .rules
        .values()
        .find_map(|rule| rule.multicast()?.carries_on);
    let since = since.unwrap_or(generation);
    for rule in plan.rules.values_mut() {
        *rule = rule.clone().with_multicast(|kind| kind.carries_on = Some(since));
    }
}
