use std::sync::Arc;

use castnet_group::{CollectiveSettings, GivenSettings};
use castnet_proto::convert::{disagreement_to_proto, settings_to_proto};
use castnet_proto::v1;
use castnet_proto::v1::controller_event::Event;

use super::record::Collective;
use crate::state::shown::{Planned, Shown, Source};
use crate::state::view::{self, lanes, problems, tree};
use crate::state::{After, Core, Ending, Entry, News, Phase, Plan, Record, Views};
use castnet_rules::{CollectiveMode, GroupRule, HostEndpoint};

fn phase(phase: Phase) -> v1::CollectivePhase {
    match phase {
        Phase::Registered | Phase::Installing | Phase::Removing(After::Registered) => {
            v1::CollectivePhase::Waiting
        }
        Phase::Active | Phase::Degraded => v1::CollectivePhase::Active,
        Phase::Refused | Phase::Removing(After::Refused) => v1::CollectivePhase::Refused,
        Phase::Broken | Phase::Failed | Phase::Removing(After::Failed) => v1::CollectivePhase::Failed,
        Phase::Removing(After::Gone) => v1::CollectivePhase::Removing,
    }
}

/// The mode of switches that have no mode of their own; until the group is placed, the one that is tried first.
pub(crate) fn mode(settings: &CollectiveSettings, record: &Record) -> CollectiveMode {
    let augmented = record
        .plan
        .as_ref()
        .is_some_and(|plan| !plan.shortages.is_empty());
    match (settings.mode, augmented) {
        (None, true) => CollectiveMode::Augmented,
        (given, _) => given.unwrap_or_default(),
    }
}

fn settings(settings: &CollectiveSettings, record: &Record) -> v1::CollectiveSettings {
    settings_to_proto(&GivenSettings {
        mode: Some(mode(settings, record)),
        rate_limit: record.rate_limit,
        ..GivenSettings::from(settings)
    })
}

/// The request that would create it, without its limit, which may be that of its tenant. Ranks that create their job by a call may share a
/// host, and have none before that.
pub(crate) fn creation(group: &Collective, record: &Record) -> v1::CreateCollectiveRequest {
    let host = |(rank, host): (usize, &str)| match group.by_call {
        true => format!("rank{rank}"),
        false => host.into(),
    };
    let hosts = group.ranks.iter().map(|rank| rank.host.as_str());
    v1::CreateCollectiveRequest {
        name: record.name.clone(),
        ranks: hosts.enumerate().map(host).collect(),
        settings: Some(settings_to_proto(&GivenSettings::from(&group.settings))),
        ..Default::default()
    }
}

/// Why it has that mode.
pub(crate) fn mode_reason(settings: &CollectiveSettings, record: &Record) -> String {
    let shortages = record.plan.as_ref().map_or("", |plan| &plan.shortages);
    match (settings.mode, shortages) {
        (Some(_), _) => "as requested".into(),
        (None, "") => "by default".into(),
        (None, shortages) => format!("no memory for the slots of translated: {shortages}"),
    }
}

/// What one rank sees.
pub(crate) struct RankState {
    /// Without the members.
    state: v1::CollectiveState,
    shown: Arc<Shown>,
}

impl RankState {
    /// What has changed since another state.
    pub(crate) fn since(&self, sent: Option<&Self>) -> v1::CollectiveState {
        let shown = collective(self.shown.since(sent.map(|sent| sent.shown.number)));
        v1::CollectiveState {
            members: shown.members,
            difference: shown.difference,
            ..self.state.clone()
        }
    }
}

impl PartialEq for RankState {
    /// The number of the state stands for its members.
    fn eq(&self, other: &Self) -> bool {
        self.state == other.state
    }
}

fn collective(event: Event) -> v1::CollectiveState {
    match event {
        Event::Collective(state) => state,
        _ => v1::CollectiveState::default(),
    }
}

/// Whether ranks see that it waits for ranks.
pub(crate) fn waits(entry: &Entry) -> bool {
    phase(entry.record().phase) == v1::CollectivePhase::Waiting
}

impl Views for Collective {
    fn news(&self, entry: &Entry) -> News {
        match phase(entry.record().phase) {
            v1::CollectivePhase::Waiting => (v1::CollectivePhase::Waiting as i32, 0, String::new()),
            phase => (phase as i32, entry.record().generation, reason(self, entry)),
        }
    }

    fn head(&self, entry: &Entry) -> Event {
        let record = entry.record();
        let phase = phase(record.phase);
        let over = matches!(phase, v1::CollectivePhase::Refused | v1::CollectivePhase::Failed);
        let ending = record.ended.as_ref().filter(|_| over);
        Event::Collective(v1::CollectiveState {
            name: record.name.clone(),
            phase: phase as i32,
            reason: reason(self, entry),
            failed_rank: ending.and_then(|e| e.rank).map(u32::from),
            failed_switch: ending.and_then(|e| e.switch.clone()).unwrap_or_default(),
            mcst_id: record.mcst_id.to_string(),
            generation: record.generation,
            start_psn: self.start_psn.value(),
            slots: slots(self, entry).into(),
            settings: Some(settings(&self.settings, record)),
            mode_reason: mode_reason(&self.settings, record),
            waiting_for: entry.waiting_for.iter().map(|r| u32::from(*r)).collect(),
            conflict: ending.and_then(conflict),
            lanes: lanes(&record.name, record.mcst_ids().collect()),
            owner: record.owner.clone(),
            description: record.description.to_string(),
            ..Default::default()
        })
    }

    fn sources(&self, entry: &Entry) -> Vec<Source<'_>> {
        let sources = (0..).zip(&self.ranks).map(|(rank, record)| Source {
            record: record.clone(),
            host: &record.host,
            is_here: entry.present.contains_key(&rank),
        });
        sources.collect()
    }

    fn planned(&self, entry: &Entry) -> Vec<Planned> {
        let plan = entry.record().plan.as_deref();
        let qpns = plan.map(Plan::virtual_qpns).unwrap_or_default();
        let own = entry.own_mcst_ids(|end| Some(end.rank()?.rank));
        let planned = |rank: u16| Planned {
            virtual_qpn: qpns.get(&rank).map(|qpn| qpn.value()),
            mcst_id: own.get(&rank).map(ToString::to_string),
        };
        (0..self.ranks.len() as u16).map(planned).collect()
    }

    fn member(&self, core: &Core, entry: &Entry, at: usize) -> v1::MemberState {
        let (rank, member) = (at as u16, &self.ranks[at]);
        let shown = view::member(core, &member.host, &member.state, |seat| &seat.ends);
        let here = entry.present.contains_key(&rank);
        v1::MemberState {
            rank: rank.into(),
            phase: match shown.phase() {
                v1::MemberPhase::Joined if !here => v1::MemberPhase::Away,
                phase => phase,
            } as i32,
            sq_psn: member.state.seat().map_or(0, |s| s.sq_psn.value()),
            rq_psn: member.rq_psn.value(),
            ..shown
        }
    }

    fn view(&self, core: &Core, entry: &Entry) -> v1::Group {
        v1::Group {
            collective: Some(v1::Collective {
                state: Some(state(core, entry)),
                tree: tree(entry),
            }),
            ..Default::default()
        }
    }
}

/// Without what only one rank sees.
pub(crate) fn state(core: &Core, entry: &Entry) -> v1::CollectiveState {
    collective(core.whole(entry))
}

/// What a host needs to take a free rank.
pub(crate) fn to_join(group: &Collective, entry: &Entry) -> v1::CollectiveState {
    let record = entry.record();
    v1::CollectiveState {
        name: record.name.clone(),
        phase: phase(record.phase) as i32,
        settings: Some(settings(&group.settings, record)),
        lanes: lanes(&record.name, record.mcst_ids().collect()),
        ..Default::default()
    }
}

/// As a rank in `generation` sees it, also after that one has ended.
pub(crate) fn state_for(
    group: &Collective,
    core: &Core,
    entry: &Entry,
    rank: u16,
    generation: u64,
) -> RankState {
    let record = entry.record();
    let shown = core.shown(entry);
    let mut seen = collective(shown.head());
    seen.rank = Some(rank.into());
    let is_own = |end: &HostEndpoint| end.rank().is_some_and(|part| part.rank == rank);
    if let Some(own) = entry.mcst_ids_for(is_own) {
        seen.mcst_id = own.first().map(ToString::to_string).unwrap_or_default();
        seen.lanes = lanes(&record.name, own);
    }
    seen.rq_psn = group.ranks.get(usize::from(rank)).map_or(0, |r| r.rq_psn.value());
    match &record.ended {
        Some(ending) if ending.generation >= generation => {
            let phase = match ending.refused {
                true => v1::CollectivePhase::Refused,
                false => v1::CollectivePhase::Failed,
            };
            seen.phase = phase as i32;
            seen.reason = ending.words();
            seen.failed_rank = ending.rank.map(u32::from);
            seen.failed_switch = ending.switch.clone().unwrap_or_default();
            seen.generation = ending.generation;
            seen.conflict = conflict(ending);
        }
        // It waits for the next generation; the end of the last does not concern it.
        _ if generation > record.generation && record.phase != Phase::Removing(After::Gone) => {
            seen.phase = v1::CollectivePhase::Waiting as i32;
            seen.reason = waits_for(group, record.generation);
            (seen.failed_rank, seen.failed_switch, seen.conflict) = (None, String::new(), None);
        }
        _ => {}
    }
    RankState { state: seen, shown }
}

fn conflict(ending: &Ending) -> Option<v1::Disagreement> {
    disagreement_to_proto(&ending.conflict?)
}

/// Slots at each of its switches; until it is placed, the requested number.
fn slots(group: &Collective, entry: &Entry) -> u16 {
    let placed = entry.record().plan.as_ref().and_then(|p| p.rules.values().next());
    placed
        .and_then(GroupRule::translated)
        .map_or_else(|| group.slots(), |rule| rule.slots)
}

fn waits_for(group: &Collective, generation: u64) -> String {
    match *group.expected(generation) {
        [] => "all ranks are in".into(),
        ref ranks => view::waits_for(ranks, |rank| group.rank_name(*rank)),
    }
}

fn reason(group: &Collective, entry: &Entry) -> String {
    let record = entry.record();
    let problems = || problems(entry, "switch ");
    match record.phase {
        Phase::Registered => waits_for(group, record.generation),
        Phase::Installing => joined([again(&entry.detours.words()), entry.note.clone()]),
        Phase::Active | Phase::Degraded => {
            let waits = match entry.waiting_for.is_empty() {
                true => String::new(),
                false => {
                    let named = view::first_of(&entry.waiting_for, |rank| group.rank_name(*rank));
                    format!("a collective waits for {named}")
                }
            };
            let links = entry.links_down.values().map(|(_, link)| link.words());
            joined([
                waits,
                links.collect::<Vec<_>>().join("; "),
                problems(),
                again(&entry.note),
            ])
        }
        Phase::Removing(After::Registered) => joined([again(&entry.detours.words()), problems()]),
        Phase::Removing(After::Gone) => problems(),
        Phase::Broken | Phase::Failed | Phase::Refused | Phase::Removing(_) => {
            record.ended.as_ref().map(Ending::words).unwrap_or_default()
        }
    }
}

fn again(detours: &str) -> String {
    match detours {
        "" => String::new(),
        said => format!("placed again, as {said}"),
    }
}

fn joined<const N: usize>(parts: [String; N]) -> String {
    let parts = parts.into_iter().filter(|p| !p.is_empty());
    parts.collect::<Vec<_>>().join("; ")
}
