//! Collective groups (EPIC): ranks that compute together.
//!
//! A rank comes by a call that is open while it is in (`requests`): its lease. When all are in, the group is placed and
//! installed; after that, events of ranks, switches (`reports`) and links (`broken_links`) decide. A generation of rules
//! serves one set of connections: ranks that join again get a new one.

use std::sync::Arc;
use std::time::Duration;

use castnet_planner::Request;
use castnet_proto::convert::DEFAULT_LEASE_MS;
use castnet_rules::{GroupRule, HostPart, NextHop, RankPart, TranslatedRule};
use castnet_wire::LossPolicy;

use self::record::{Collective, RankRecord};
use super::{GroupKind, Party};
use crate::state::planning::planned_member;
use crate::state::{Draws, Event, Phase, Record};

pub(crate) mod record;
mod reports;
pub(crate) mod requests;
pub(crate) mod secret;
#[cfg(test)]
mod tests;
pub(crate) mod view;

impl GroupKind for Collective {
    fn phase_name(&self, phase: Phase) -> &'static str {
        match phase {
            Phase::Registered => "gathering",
            other => other.name(),
        }
    }

    fn parties(&self) -> Vec<Party<'_>> {
        let all = self.ranks.iter().map(|r| Party {
            host: &r.host,
            ends: r.state.seat().map(|s| &s.ends),
        });
        all.collect()
    }

    fn party_field(&self, party: usize) -> String {
        format!("ranks[{party}]")
    }

    /// The state of a collective that a switch has lost cannot be restored.
    fn outlives_switches(&self) -> bool {
        false
    }

    fn lingers(&self) -> bool {
        self.by_call
    }

    fn notice(&self) -> Duration {
        let leases = self.ranks.iter().filter_map(|r| r.state.seat());
        let longest = leases.map(|s| s.lease_ms).max();
        Duration::from_millis(longest.unwrap_or(DEFAULT_LEASE_MS.into()))
    }

    fn address_lane(&self, rule: &mut GroupRule, lane: u8) {
        for endpoint in &mut rule.endpoints {
            if let NextHop::Host(host) = &mut endpoint.next_hop
                && let Some(part) = host.rank()
                && let Some(record) = self.ranks.get(usize::from(part.rank))
                && let Some(end) = record.state.seat().and_then(|s| s.ends.iter().nth(lane.into()))
            {
                host.qpn = end.qpn;
            }
        }
    }

    fn follows(&self, phase: Phase, generation: u64) -> Option<Event> {
        match phase {
            Phase::Failed | Phase::Refused if self.some_joined(generation) => Some(Event::Joined),
            Phase::Registered | Phase::Broken if self.all_joined(generation) => Some(Event::AllJoined),
            Phase::Registered if self.by_call && !self.some_joined(generation) => Some(Event::Destroy),
            Phase::Active | Phase::Broken if self.all_left() => Some(Event::Ended),
            _ => None,
        }
    }

    fn step(&mut self, event: Event, phase: Phase, generation: u64, draws: &mut Draws) {
        match event {
            Event::AllJoined if phase == Phase::Installing => {
                self.start_psn = draws.psn();
                for rank in &mut self.ranks {
                    Arc::make_mut(rank).rq_psn = draws.psn();
                }
            }
            Event::Withdrawn | Event::Elsewhere => self.put_off(generation),
            Event::Refused | Event::Broke | Event::Lost | Event::TimeUp | Event::Ended => {
                self.end(generation);
            }
            _ => {}
        }
    }

    fn request(&self, record: &Record) -> Request {
        let settings = &self.settings;
        let member = |(i, rank): (usize, &Arc<RankRecord>)| {
            let seat = rank.state.seat();
            let part = seat.map_or(HostPart::Plain, |seat| {
                let (sq_psn, rq_psn, rank) = (seat.sq_psn, rank.rq_psn, i as u16);
                RankPart { rank, sq_psn, rq_psn }.into()
            });
            planned_member(i, &rank.host, seat.map(|s| &s.ends.endpoint), part)
        };
        let members = self.ranks.iter().enumerate().map(member).collect();
        let rule = TranslatedRule {
            start_psn: self.start_psn,
            message_packets: settings.message_packets,
            reproducible: settings.reproducible,
            mode: settings.mode.unwrap_or_default(),
            loss_policy: settings.loss_policy,
            straggler_policy: settings.straggler_policy,
            ack_timeout_us: settings.ack_timeout_us,
            ..TranslatedRule::root(self.slots())
        };
        let window_and_rule = (settings.window_packets, rule);
        Request {
            stall_timeout_ms: settings.stall_timeout_ms,
            modes: settings.modes.clone(),
            may_augment: settings.mode.is_none() && settings.loss_policy != LossPolicy::Reflect,
            ..Request::collective(
                &record.name,
                record.mcst_id,
                settings.pmtu,
                members,
                window_and_rule,
            )
        }
    }
}
