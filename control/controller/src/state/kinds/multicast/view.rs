use std::sync::Arc;

use castnet_proto::convert::{creation_with, rate_limit_to_proto, state_with};
use castnet_proto::v1;
use castnet_proto::v1::controller_event::Event;

use super::late::Late;
use super::outside::Outside;
use super::record::{Diverted, MemberRecord, Multicast, Received};
use super::refine::Refinement;
use crate::state::shown::{Planned, Source};
use crate::state::view::{self, lanes, problems, tree};
use crate::state::{After, Core, Ending, Entry, News, Phase, Record, Views};

pub(super) fn phase(phase: Phase) -> v1::GroupPhase {
    match phase {
        Phase::Registered => v1::GroupPhase::Registered,
        Phase::Installing => v1::GroupPhase::Installing,
        Phase::Active | Phase::Broken => v1::GroupPhase::Active,
        Phase::Degraded => v1::GroupPhase::Degraded,
        Phase::Removing(_) => v1::GroupPhase::Removing,
        Phase::Refused | Phase::Failed => v1::GroupPhase::Failed,
    }
}

fn role(group: &Multicast, host: &str) -> v1::Role {
    if group.settings.any_source.is_some() {
        v1::Role::Member
    } else if group.source == host {
        v1::Role::Source
    } else {
        v1::Role::Receiver
    }
}

impl Views for Multicast {
    fn news(&self, entry: &Entry) -> News {
        match phase(entry.record().phase) {
            v1::GroupPhase::Registered => (v1::GroupPhase::Registered as i32, 0, String::new()),
            phase => {
                let waiting = self.members.iter().filter(|m| m.is_waiting());
                let waiting: String = waiting.map(|m| format!(" {}", m.host)).collect();
                (
                    phase as i32,
                    entry.record().generation,
                    reason(self, entry) + &waiting,
                )
            }
        }
    }

    fn head(&self, entry: &Entry) -> Event {
        let record = entry.record();
        let mcst_ids: Vec<_> = record.mcst_ids().collect();
        Event::Group(v1::GroupState {
            name: record.name.clone(),
            phase: phase(record.phase) as i32,
            reason: reason(self, entry),
            mcst_id: mcst_ids.first().map(ToString::to_string).unwrap_or_default(),
            start_psn: self.start_psn.value(),
            source: self.source.clone(),
            generation: record.generation,
            lanes: lanes(&record.name, mcst_ids),
            rate_limit: record.rate_limit.map(rate_limit_to_proto),
            refinement: refinement(record),
            over_covered: record
                .plan
                .iter()
                .flat_map(|plan| plan.over_covered.iter().cloned())
                .collect(),
            diversion: diversion(self),
            ended: ended(record),
            outside: self.outside.iter().map(outside).collect(),
            owner: record.owner.clone(),
            description: record.description.to_string(),
            ..state_with(&self.settings)
        })
    }

    fn sources(&self, _entry: &Entry) -> Vec<Source<'_>> {
        let sources = self.members.iter().map(|m| Source {
            record: m.clone(),
            host: &m.host,
            is_here: false,
        });
        sources.collect()
    }

    fn planned(&self, entry: &Entry) -> Vec<Planned> {
        let own = entry.own_mcst_ids(|end| Some(end.name.clone()));
        let planned = |m: &Arc<MemberRecord>| Planned {
            mcst_id: own.get(&m.host).map(ToString::to_string),
            virtual_qpn: None,
        };
        self.members.iter().map(planned).collect()
    }

    fn member(&self, core: &Core, _entry: &Entry, at: usize) -> v1::MemberState {
        let member = &self.members[at];
        let mut state = v1::MemberState {
            role: role(self, &member.host) as i32,
            ..view::member(core, &member.host, &member.state, |seat| &seat.ends)
        };
        if member.is_waiting() {
            state.set_phase(v1::MemberPhase::Joining);
        }
        state.put_out = member.put_out.clone().unwrap_or_default();
        if let Some(Late::From(psn)) = member.late() {
            state.from_psn = Some(psn.value());
        }
        let received = member.received.as_ref();
        state.received = received.map(|Received { bytes, lacks }| v1::Received {
            bytes: *bytes,
            lacks: lacks.clone(),
        });
        state
    }

    fn view(&self, core: &Core, entry: &Entry) -> v1::Group {
        v1::Group {
            state: Some(state(core, entry)),
            tree: tree(entry),
            collective: None,
        }
    }
}

fn multicast(event: Event) -> v1::GroupState {
    match event {
        Event::Group(state) => state,
        _ => v1::GroupState::default(),
    }
}

/// Without what only one member sees.
pub(crate) fn state(core: &Core, entry: &Entry) -> v1::GroupState {
    multicast(core.whole(entry))
}

/// What one member sees.
#[derive(PartialEq)]
pub(crate) struct MemberView {
    /// Without the members.
    state: v1::GroupState,
    members: Vec<Arc<v1::MemberState>>,
}

impl MemberView {
    pub(crate) fn message(&self) -> v1::GroupState {
        let members = self.members.iter().map(|member| member.as_ref().clone());
        v1::GroupState {
            members: members.collect(),
            ..self.state.clone()
        }
    }
}

/// As a member sees it; `brief`: of the members only itself and the source.
pub(crate) fn state_for(
    group: &Multicast,
    core: &Core,
    entry: &Entry,
    host: &str,
    brief: bool,
) -> MemberView {
    let (record, shown) = (entry.record(), core.shown(entry));
    let is_seen = |member: &&Arc<v1::MemberState>| !brief || [host, &group.source].contains(&&*member.host);
    let members = shown.members().filter(is_seen).cloned().collect();
    let mut state = multicast(shown.head());
    if let Some(own) = entry.mcst_ids_for(|end| end.name == host) {
        state.mcst_id = own.first().map(ToString::to_string).unwrap_or_default();
        state.lanes = lanes(&record.name, own);
    }
    state.role = role(group, host) as i32;
    let own = group.member(host).and_then(|(_, m)| m.late());
    match own {
        // A member takes an active group as one that it is in.
        Some(Late::Waiting) if record.phase.has_run() => {
            state.set_phase(v1::GroupPhase::Installing);
            state.reason = format!("waits for the next message of {}, to join with it", group.source);
        }
        Some(Late::From(psn)) => state.start_psn = psn.value(),
        _ => {}
    }
    // A change that the member does not see is none.
    state.number = 0;
    MemberView { state, members }
}

/// The request that would create it. Without connections, which are checked when members join, and without its limit, which may be that of
/// its tenant.
pub(crate) fn creation(group: &Multicast, record: &Record) -> v1::CreateGroupRequest {
    let member = |member: &Arc<MemberRecord>| v1::NewMember {
        host: member.host.clone(),
        connection: None,
    };
    v1::CreateGroupRequest {
        name: record.name.clone(),
        source: group.source.clone(),
        members: group.members.iter().map(member).collect(),
        lanes: 1 + record.more_lanes.len() as u32,
        ..creation_with(&group.settings)
    }
}

fn refinement(record: &Record) -> Option<v1::CoreRefinement> {
    let Refinement { address, copies } = record.plan.as_ref()?.refinement.as_ref()?;
    Some(v1::CoreRefinement {
        address: address.to_string(),
        copies: copies.iter().map(ToString::to_string).collect(),
    })
}

/// How its source has left the group, and those that were put out before that.
pub(super) fn diversion(group: &Multicast) -> Option<v1::Diversion> {
    let Diverted { reason, hosts } = group.diverted.clone()?;
    let is_out = |m: &&Arc<MemberRecord>| !hosts.contains(&m.host);
    let out = group.members.iter().filter(is_out).filter_map(|member| {
        Some(v1::PutOut {
            host: member.host.clone(),
            reason: member.put_out.clone()?,
        })
    });
    let put_out = out.collect();
    Some(v1::Diversion {
        reason,
        hosts,
        put_out,
    })
}

fn outside(out: &Outside) -> v1::OutsideReceiver {
    v1::OutsideReceiver {
        host: out.host.clone(),
        reason: out.reason.clone(),
        via: out.via.clone(),
        number: out.number,
    }
}

/// Who is outside, from whom each has the stream, and why.
fn outside_text(group: &Multicast) -> String {
    let mut reasons: Vec<&str> = group.outside.iter().map(|out| out.reason.as_str()).collect();
    reasons.dedup();
    let each = group.outside.iter().map(|out| match out.via.as_str() {
        "" => format!("{} from nobody", out.host),
        via => format!("{} from {via}", out.host),
    });
    let each: Vec<_> = each.collect();
    match each.is_empty() {
        true => String::new(),
        false => format!(
            "from host to host gets {}: {}",
            each.join(", "),
            reasons.join("; ")
        ),
    }
}

/// Why a receiver has left before it had everything.
pub(super) fn left(host: &str, received: Option<&Received>) -> Option<String> {
    let lacks = &received?.lacks;
    (!lacks.is_empty()).then(|| format!("host {host} has left before the end: {lacks}"))
}

/// Why the last run has ended, until all have joined again.
fn ended(record: &Record) -> String {
    let ending = record.ended.as_ref();
    let ending = ending.filter(|ending| !ending.refused && ending.generation == record.generation);
    ending.map(Ending::words).unwrap_or_default()
}

fn reason(group: &Multicast, entry: &Entry) -> String {
    let record = entry.record();
    match record.phase {
        Phase::Registered => {
            let waits = view::waits_for(&group.expected(), ToString::to_string);
            match diversion(group) {
                Some(v1::Diversion {
                    reason,
                    hosts,
                    put_out,
                }) => {
                    let source = hosts.first().map_or("", |source| source);
                    let without: String = put_out.iter().map(|out| format!("; {}", out.reason)).collect();
                    format!("{source} went on from host to host: {reason}{without}; {waits}")
                }
                None => waits,
            }
        }
        Phase::Installing => entry.note.clone(),
        Phase::Removing(After::Refused | After::Failed) | Phase::Refused | Phase::Failed => {
            let failure = record.ended.as_ref().map(|ending| &ending.failure);
            failure.map_or_else(String::new, |f| match f.field.as_str() {
                "" => f.reason.clone(),
                field => format!("{field}: {}", f.reason),
            })
        }
        Phase::Active | Phase::Degraded => {
            let links = entry.links_down.values().map(|(_, link)| link.words());
            let out = group
                .members
                .iter()
                .filter_map(|m| m.put_out.clone().or_else(|| left(&m.host, m.received.as_ref())));
            let outside = outside_text(group);
            let note = Some(entry.note.clone()).filter(|_| outside.is_empty());
            let parts = links
                .chain([outside, note.unwrap_or_default(), problems(entry, "")])
                .chain(out);
            let parts: Vec<_> = parts.filter(|part| !part.is_empty()).collect();
            parts.join("; ")
        }
        Phase::Broken => String::new(),
        Phase::Removing(_) => problems(entry, ""),
    }
}
