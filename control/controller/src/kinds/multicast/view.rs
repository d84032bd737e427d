use castnet_proto::v1;

use super::record::{MemberRecord, Multicast};
use crate::core::Core;
use crate::lifecycle::{After, Phase};
use crate::table::Entry;
use crate::view::{self, lanes, problems, tree};

fn phase(phase: Phase) -> v1::GroupPhase {
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
    if group.source == host {
        v1::Role::Source
    } else {
        v1::Role::Receiver
    }
}

pub(crate) fn state(group: &Multicast, core: &Core, entry: &Entry, member: Option<&str>) -> v1::GroupState {
    let record = entry.record();
    let own = member.and_then(|host| entry.mcst_ids_for(|end| end.name == host));
    let each = entry.own_mcst_ids(|end| Some(end.name.clone()));
    let mcst_ids = own.unwrap_or_else(|| record.mcst_ids().collect());
    let shown = |m: &MemberRecord| v1::MemberState {
        role: role(group, &m.host) as i32,
        mcst_id: each.get(&m.host).map(ToString::to_string),
        ..view::member(core, &m.host, &m.state, |seat| &seat.ends)
    };
    v1::GroupState {
        name: record.name.clone(),
        phase: phase(record.phase) as i32,
        reason: reason(group, entry),
        mcst_id: mcst_ids.first().map(ToString::to_string).unwrap_or_default(),
        start_psn: group.start_psn.value(),
        pmtu: group.pmtu.bytes() as u32,
        va_base: group.va_base,
        source: group.source.clone(),
        members: group.members.iter().map(shown).collect(),
        role: member.map_or(v1::Role::Unspecified, |host| role(group, host)) as i32,
        generation: record.generation,
        lanes: lanes(&record.name, mcst_ids),
        stall_timeout_ms: group.stall_timeout_ms,
        on_member_loss: match group.fails_with_receiver {
            true => v1::MemberLoss::Fail,
            false => v1::MemberLoss::Evict,
        } as i32,
        owner: record.owner.clone(),
    }
}

fn reason(group: &Multicast, entry: &Entry) -> String {
    let record = entry.record();
    match record.phase {
        Phase::Registered => format!("waits for {}", group.expected().join(", ")),
        Phase::Installing => entry.note.clone(),
        Phase::Active | Phase::Broken => String::new(),
        Phase::Removing(After::Refused | After::Failed) | Phase::Refused | Phase::Failed => {
            let failure = record.ended.as_ref().map(|ending| &ending.failure);
            failure.map_or_else(String::new, |f| match f.field.as_str() {
                "" => f.reason.clone(),
                field => format!("{field}: {}", f.reason),
            })
        }
        Phase::Degraded | Phase::Removing(_) => problems(entry, ""),
    }
}

pub(crate) fn group(group: &Multicast, core: &Core, entry: &Entry) -> v1::Group {
    v1::Group {
        state: Some(state(group, core, entry, None)),
        tree: tree(entry),
        collective: None,
    }
}
