//! State as messages.

use castnet_proto::convert::{connection_to_proto, group_to_proto};
use castnet_proto::v1;
use castnet_rules::lane_name;
use castnet_topology::End;
use castnet_wire::{MacAddr, McstId};

use crate::core::{Core, Entry};
use crate::fabric::{Place, Reach};
use crate::lifecycle::{After, Phase};
use crate::record::{GroupRecord, MemberRecord, MemberState};

/// A phase in one word.
pub(crate) fn phase_name(phase: &Phase) -> &'static str {
    match phase {
        Phase::Registered => "registered",
        Phase::Installing => "installing",
        Phase::Active => "active",
        Phase::Degraded => "degraded",
        Phase::Removing(_) => "removing",
        Phase::Failed(_) => "failed",
    }
}

fn phase(phase: &Phase) -> v1::GroupPhase {
    match phase {
        Phase::Registered => v1::GroupPhase::Registered,
        Phase::Installing => v1::GroupPhase::Installing,
        Phase::Active => v1::GroupPhase::Active,
        Phase::Degraded => v1::GroupPhase::Degraded,
        Phase::Removing(_) => v1::GroupPhase::Removing,
        Phase::Failed(_) => v1::GroupPhase::Failed,
    }
}

fn role(record: &GroupRecord, host: &str) -> v1::Role {
    if record.source == host {
        v1::Role::Source
    } else {
        v1::Role::Receiver
    }
}

/// A group's state, as `member` sees it.
pub(crate) fn group_state(core: &Core, entry: &Entry, member: Option<&str>) -> v1::GroupState {
    let record = &entry.record;
    v1::GroupState {
        name: record.name.clone(),
        phase: phase(&record.phase) as i32,
        reason: reason(entry),
        mcst_id: record.mcst_id.to_string(),
        start_psn: record.start_psn.value(),
        pmtu: record.pmtu.bytes() as u32,
        va_base: record.va_base,
        source: record.source.clone(),
        members: record
            .members
            .iter()
            .map(|m| member_state(core, record, m))
            .collect(),
        role: member.map_or(v1::Role::Unspecified, |host| role(record, host)) as i32,
        generation: record.generation,
        lanes: lanes(&record.name, record.mcst_ids().collect()),
        stall_timeout_ms: record.stall_timeout_ms,
    }
}

/// The lanes of a group.
pub(crate) fn lanes(group: &str, mcst_ids: Vec<McstId>) -> Vec<v1::Lane> {
    let count = mcst_ids.len() as u8;
    let lane = |(lane, mcst_id): (u8, McstId)| v1::Lane {
        name: lane_name(group, lane, count),
        mcst_id: mcst_id.to_string(),
    };
    (0..).zip(mcst_ids).map(lane).collect()
}

/// Why a group is where it is, for people.
fn reason(entry: &Entry) -> String {
    let record = &entry.record;
    let problems = || {
        let each = entry
            .problems
            .iter()
            .map(|(switch, why)| format!("{switch}: {why}"));
        each.collect::<Vec<_>>().join("; ")
    };
    match &record.phase {
        Phase::Registered => format!("waits for {}", record.expected().join(", ")),
        Phase::Installing => entry.note.clone(),
        Phase::Active => String::new(),
        Phase::Degraded => problems(),
        Phase::Removing(After::Failed(failure)) | Phase::Failed(failure) => {
            format!("{}: {}", failure.field, failure.reason)
        }
        Phase::Removing(_) => problems(),
    }
}

fn member_state(core: &Core, record: &GroupRecord, member: &MemberRecord) -> v1::MemberState {
    let (switch_name, port) = place(core, &member.host);
    let phase = match member.state {
        MemberState::Expected => v1::MemberPhase::Expected,
        MemberState::Joined { .. } => v1::MemberPhase::Joined,
        MemberState::Left { .. } => v1::MemberPhase::Left,
    };
    v1::MemberState {
        host: member.host.clone(),
        role: role(record, &member.host) as i32,
        phase: phase as i32,
        connection: member
            .state
            .endpoint()
            .map(|_| connection_to_proto(member.state.ends())),
        switch_name,
        port,
    }
}

pub(crate) fn place(core: &Core, host: &str) -> (String, Option<u32>) {
    match core.facts.place(host) {
        Place::At { switch, port } => (switch, Some(port.into())),
        Place::Ambiguous(_) | Place::Unseen => (String::new(), None),
    }
}

/// A group with its tree.
pub(crate) fn group(core: &Core, entry: &Entry) -> v1::Group {
    let node = |switch: &crate::record::TreeSwitch| v1::TreeNode {
        switch_name: switch.name.clone(),
        parent: switch.parent.clone().unwrap_or_default(),
        installed: entry.confirmed.contains(&switch.name),
        reason: entry.problems.get(&switch.name).cloned().unwrap_or_default(),
        rule: entry
            .record
            .plan
            .as_ref()
            .and_then(|p| p.rules.get(&switch.name))
            .map(group_to_proto),
    };
    let tree = entry.record.plan.iter().flat_map(|p| &p.tree).map(node).collect();
    v1::Group {
        state: Some(group_state(core, entry, None)),
        tree,
        collective: None,
    }
}

/// A switch.
pub(crate) fn switch(core: &Core, name: &str, endpoint: String) -> v1::SwitchState {
    let reach = core
        .facts
        .switches
        .get(name)
        .map(|(reach, _)| reach.clone())
        .unwrap_or_default();
    let said = core.capabilities.get(name).cloned().unwrap_or_default();
    v1::SwitchState {
        name: name.into(),
        endpoint,
        reachable: reach == Reach::Up,
        reason: match reach {
            Reach::Up => String::new(),
            Reach::Unknown => "not tried yet".into(),
            Reach::Down(reason) => reason,
        },
        boot_id: said.boot_id,
        version: said.version,
        ports: said.ports,
        groups: said.groups,
        groups_max: said.groups_max,
        memory_bytes_max: said.memory_bytes_max,
        memory_bytes_free: said.memory_bytes_free,
    }
}

/// All hosts.
pub(crate) fn hosts(core: &Core) -> Vec<v1::Host> {
    let host = |(name, ip, mac): (String, Option<std::net::Ipv4Addr>, Option<[u8; 6]>)| {
        let (switch_name, port) = place(core, &name);
        let ip = ip.map(|ip| ip.to_string()).unwrap_or_default();
        v1::Host {
            name,
            ip,
            mac: mac.map(|m| MacAddr(m).to_string()).unwrap_or_default(),
            switch_name,
            port,
        }
    };
    core.facts.all_hosts().into_iter().map(host).collect()
}

/// The links between switches.
pub(crate) fn links(core: &Core) -> Vec<v1::Link> {
    let topology = core.facts.topology();
    let end = |end: &End| match end {
        End::Switch { switch, port } => {
            let mac = topology.switch(switch).and_then(|s| s.ports.get(port));
            let mac = mac.map(|m| MacAddr(*m).to_string()).unwrap_or_default();
            Some(v1::LinkEnd {
                switch_name: switch.clone(),
                port: u32::from(*port),
                mac,
            })
        }
        End::Host(_) => None,
    };
    let between = topology
        .links()
        .filter_map(|(_, l)| end(&l.a).zip(end(&l.b)).map(|(a, b)| (a, b, l.up)));
    between
        .map(|(a, b, up)| v1::Link {
            a: Some(a),
            b: Some(b),
            up,
        })
        .collect()
}
