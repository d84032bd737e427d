use std::collections::BTreeSet;

use castnet_proto::convert::{connection_to_proto, shown_rule};
use castnet_proto::v1;
use castnet_rules::{BitRate, lane_name};
use castnet_topology::{End, Link, Topology};
use castnet_wire::{MacAddr, McstId};

use crate::config::SwitchConfig;
use crate::state::fabric::Place;
use crate::state::record::TreeSwitch;
use crate::state::tenants::Tenant;
use crate::state::{Core, Ends, Entry, Joining, Reach};

pub(crate) fn lanes(group: &str, mcst_ids: Vec<McstId>) -> Vec<v1::Lane> {
    let count = mcst_ids.len() as u8;
    let lane = |(lane, mcst_id): (u8, McstId)| v1::Lane {
        name: lane_name(group, lane, count),
        mcst_id: mcst_id.to_string(),
    };
    (0..).zip(mcst_ids).map(lane).collect()
}

pub(crate) fn tree(entry: &Entry) -> Vec<v1::TreeNode> {
    let record = entry.record();
    let Some(plan) = &record.plan else {
        return Vec::new();
    };
    let node = |switch: &TreeSwitch| {
        let rule = plan.rules.get(&switch.name);
        v1::TreeNode {
            switch_name: switch.name.clone(),
            parent: switch.parent.clone().unwrap_or_default(),
            installed: entry.confirmed.contains(&switch.name),
            reason: entry.problems.get(&switch.name).cloned().unwrap_or_default(),
            rule: rule.map(shown_rule),
            lanes: match record.own_mcst_ids.is_empty() {
                true => Vec::new(),
                false => lanes(&record.name, record.mcst_ids_on(&switch.name).collect()),
            },
            via: switch.via.clone(),
            memory_bytes: rule.map_or(0, |rule| u64::from(record.lanes()) * rule.reserved_bytes()),
        }
    };
    plan.tree.iter().map(node).collect()
}

pub(crate) fn problems(entry: &Entry, switch: &str) -> String {
    let each = entry
        .problems
        .iter()
        .map(|(name, why)| format!("{switch}{name}: {why}"));
    each.collect::<Vec<_>>().join("; ")
}

/// What a group waits for; of many members, the first.
pub(crate) fn waits_for<M>(members: &[M], name: impl Fn(&M) -> String) -> String {
    match members.is_empty() {
        true => "all have joined".to_owned(),
        false => format!("waits for {}", first_of(members, name)),
    }
}

/// The names of some; of many, the first.
pub(crate) fn first_of<M>(members: &[M], name: impl Fn(&M) -> String) -> String {
    const NAMED_MAX: usize = 8;
    let named: Vec<String> = members.iter().take(NAMED_MAX).map(name).collect();
    let more = match members.len() - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{}{more}", named.join(", "))
}

fn place(core: &Core, host: &str) -> (String, Option<u32>) {
    match core.facts.place(host) {
        Place::At { switch, port } => (switch, Some(port.into())),
        Place::Ambiguous(_) | Place::Claimed { .. } | Place::Unseen => (String::new(), None),
    }
}

/// What groups of all kinds show of a member.
pub(crate) fn member<S>(
    core: &Core,
    host: &str,
    state: &Joining<S>,
    ends: impl FnOnce(&S) -> &Ends,
) -> v1::MemberState {
    let (switch_name, port) = place(core, host);
    let phase = match state {
        Joining::Expected => v1::MemberPhase::Expected,
        Joining::Joined(_) => v1::MemberPhase::Joined,
        Joining::Left(_) => v1::MemberPhase::Left,
    };
    v1::MemberState {
        host: host.into(),
        phase: phase as i32,
        connection: state.seat().map(|seat| connection_to_proto(ends(seat).iter())),
        switch_name,
        port,
        ..Default::default()
    }
}

/// `written_off`: destroyed groups that it may still have.
pub(crate) fn switch(
    core: &Core,
    SwitchConfig { name, agent }: &SwitchConfig,
    written_off: Vec<String>,
) -> v1::SwitchState {
    let known = core.facts.switches.get(name);
    let reach = known.map(|(reach, _)| reach.clone()).unwrap_or_default();
    // What groups use is known without the switch.
    let used = core.used(name, None);
    let said = core.capabilities.get(name).map(|(said, _)| said.clone());
    let said = said.unwrap_or_default();
    let filed = core.facts.file.as_ref().and_then(|file| file.switch(name));
    v1::SwitchState {
        name: name.into(),
        endpoint: agent.to_string(),
        reachable: reach == Reach::Up,
        reason: match reach {
            Reach::Up => String::new(),
            Reach::Unknown => "not tried yet".into(),
            Reach::Down(reason) => reason,
        },
        boot_id: said.boot_id,
        version: said.version,
        ports: said.ports,
        groups: used.groups,
        groups_max: said.groups_max,
        memory_bytes_max: said.memory_bytes_max,
        memory_bytes_free: said.memory_bytes_max.saturating_sub(used.memory),
        written_off,
        wrong_links: core.facts.wrong_links(name),
        unknown_groups: unknown_groups(core, name),
        mcst_prefix: filed.and_then(|s| s.mcst_prefix).map(|prefix| prefix.to_string()),
    }
}

/// Groups of this controller at a switch that its store does not explain.
pub(crate) fn unknown_groups(core: &Core, switch: &str) -> Vec<String> {
    let found = core.others.unexplained_on(switch);
    let names: BTreeSet<&String> = found.map(|found| &found.group).collect();
    names.into_iter().cloned().collect()
}

pub(crate) fn host(core: &Core, name: &str) -> Option<v1::Host> {
    if !core.facts.knows_host(name) {
        return None;
    }
    let (ip, mac) = core.facts.addresses(name);
    let (switch_name, port) = place(core, name);
    Some(v1::Host {
        name: name.into(),
        ip: ip.map(|ip| ip.to_string()).unwrap_or_default(),
        mac: mac.map(|m| MacAddr(m).to_string()).unwrap_or_default(),
        switch_name,
        port,
    })
}

pub(crate) fn forwarders(core: &Core) -> Vec<v1::Forwarder> {
    let all = core.facts.file.iter().flat_map(Topology::switches);
    let all = all.filter(|s| s.kind.is_forwarder());
    all.map(|s| v1::Forwarder {
        name: s.name.clone(),
        kind: s.kind.name().into(),
    })
    .collect()
}

pub(crate) fn tenants(core: &Core, tenants: &[Tenant]) -> Vec<v1::Tenant> {
    let tenant = |tenant: &Tenant| {
        let used = core.groups.used_by(&tenant.name);
        v1::Tenant {
            name: tenant.name.clone(),
            groups: used.groups,
            groups_max: tenant.groups,
            slots: used.slots,
            slots_max: tenant.slots,
            bandwidth: used.bandwidth,
            bandwidth_max: tenant.bandwidth.map(BitRate::bits_per_second),
            group_bandwidth: tenant.group_bandwidth.map(BitRate::bits_per_second),
        }
    };
    tenants.iter().map(tenant).collect()
}

pub(crate) fn links(topology: &Topology) -> Vec<v1::Link> {
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
    let link = |(_, link): (_, &Link)| {
        Some(v1::Link {
            a: Some(end(&link.a)?),
            b: Some(end(&link.b)?),
            up: link.up,
        })
    };
    topology.links().filter_map(link).collect()
}
