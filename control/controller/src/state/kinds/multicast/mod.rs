//! Multicast groups (Cepheus): one source, or one after the other, and many receivers. Members join by a call that is open until the group is
//! active, or, with a lease, as long as they are in.

use std::sync::Arc;

use castnet_planner::Request;
use castnet_rules::{GroupRule, HostEndpoint, HostPart, MulticastRule, NextHop};

use self::record::{JoinedBy, MemberRecord, Multicast, is_by_call};
use super::{GroupKind, Joining, Party};
use crate::state::planning::planned_member;
use crate::state::{After, Draws, Event, Phase, Record};

mod add;
pub(crate) mod evict;
pub mod late;
mod lease;
pub mod outside;
mod prune;
pub mod record;
pub mod refine;
pub(crate) mod replan;
pub(crate) mod requests;
pub(crate) mod stall;
#[cfg(test)]
mod tests;
pub(crate) mod view;

impl GroupKind for Multicast {
    fn phase_name(&self, phase: Phase) -> &'static str {
        match phase {
            Phase::Refused => "failed",
            other => other.name(),
        }
    }

    fn parties(&self) -> Vec<Party<'_>> {
        let all = self.members.iter().map(|m| Party {
            host: &m.host,
            ends: m.state.seat().map(|s| &s.ends),
        });
        all.collect()
    }

    fn party_field(&self, party: usize) -> String {
        format!("members[{party}].host")
    }

    /// A switch that was restarted has lost how many packets each host has sent, which is needed if several send.
    fn outlives_switches(&self) -> bool {
        self.settings.any_source.is_none()
    }

    fn address_lane(&self, rule: &mut GroupRule, lane: u8) {
        let hosts = rule
            .endpoints
            .iter_mut()
            .filter_map(|end| match &mut end.next_hop {
                NextHop::Host(host) => Some(host),
                NextHop::Switch { .. } => None,
            });
        let mut hosts: Vec<&mut HostEndpoint> = hosts.collect();
        hosts.sort_by(|a, b| a.name.cmp(&b.name));
        for member in self.members.iter() {
            if let Ok(at) = hosts.binary_search_by(|host| host.name.as_str().cmp(&member.host))
                && let Some(end) = member.state.seat().and_then(|s| s.ends.iter().nth(lane.into()))
                && let Some(host) = hosts.get_mut(at).filter(|host| **host != end)
            {
                // Behind routers the rule has no Ethernet address.
                let mac = host.mac;
                **host = HostEndpoint { mac, ..end.clone() };
            }
        }
    }

    /// When a member withdraws, the others may be complete again.
    fn follows(&self, phase: Phase, _generation: u64) -> Option<Event> {
        (phase == Phase::Registered && self.all_joined()).then_some(Event::AllJoined)
    }

    fn step(&mut self, event: Event, phase: Phase, _generation: u64, _draws: &mut Draws) {
        if event == Event::AllJoined || !phase.wants_rules() {
            self.outside.clear();
        }
        match (event, phase) {
            // Connections of one group start and end together, as they share one PSN space.
            (Event::Ended | Event::Lost, _) => self.forget(|_| true),
            (Event::Cleared, Phase::Refused) => self.forget(is_by_call),
            (Event::AllJoined, _) => self.diverted = None,
            _ => {}
        }
    }

    fn after_restart(&mut self, phase: Phase) {
        if matches!(phase, Phase::Registered | Phase::Removing(After::Registered)) {
            self.forget(is_by_call);
        }
        for member in Arc::make_mut(&mut self.members) {
            if let Joining::Joined(seat) = &mut Arc::make_mut(member).state
                && seat.by != JoinedBy::Creation
            {
                seat.by = JoinedBy::Call(0);
            }
        }
    }

    fn request(&self, record: &Record) -> Request {
        let member = |(i, m): (usize, &Arc<MemberRecord>)| {
            let end = m.state.seat().map(|s| &s.ends.endpoint);
            planned_member(i, &m.host, end, end.map_or(HostPart::Plain, |e| e.part))
        };
        let members = self.members.iter().enumerate().map(member).collect();
        let rule = MulticastRule {
            start_psn: Some(self.start_psn),
            va_base: self.settings.va_base,
            carries_on: None,
            any_source: self.settings.any_source,
            repair: self.settings.repair,
            hold_fatal_naks: self.settings.outlives_refusals(),
            source: self.member(&self.source).map_or(0, |(i, _)| i as u16),
        };
        Request {
            stall_timeout_ms: self.report_stalls_ms(),
            distribution: self.settings.distribution,
            ..Request::multicast(&record.name, record.mcst_id, self.settings.pmtu, members, rule)
        }
    }

    fn request_field(&self, planned: String) -> String {
        match planned.split_once("].") {
            Some((member, "name")) => format!("{member}].host"),
            Some((member, field)) => format!("{member}].connection.{field}"),
            None if planned.starts_with("members[") => format!("{planned}.host"),
            None => planned,
        }
    }
}
