//! Groups, members and ranks as lines of tables, as the controller reports them.

use castnet_console::api::{self, CollectivePhase, MemberPhase, Role};
use castnet_console::{columns, units};
use serde::Serialize;

#[derive(Debug, Serialize)]
pub(super) struct GroupLine {
    pub(super) group: String,
    kind: &'static str,
    mcst_id: String,
    lanes: usize,
    phase: String,
    source: String,
    members: usize,
    joined: usize,
    pmtu: u32,
    /// Limit of each sender; `None`: no limit.
    rate_bits_per_second: Option<u64>,
    burst_bytes: Option<u64>,
    /// On all switches together; 0 for a multicast group, whose state is small.
    memory_bytes: u64,
    switches: Vec<String>,
    reason: String,
    description: String,
}

impl GroupLine {
    fn source(&self) -> String {
        or_dash(&self.source)
    }

    fn joined(&self) -> String {
        format!("{} of {}", self.joined, self.members)
    }

    fn memory(&self) -> String {
        match self.memory_bytes {
            0 => "-".to_owned(),
            memory => units::bytes(memory),
        }
    }

    fn switches(&self) -> String {
        self.switches.join(" ")
    }
}

columns!(row: GroupLine => row {
    group, kind, mcst_id, lanes, phase, source(), joined(), pmtu, memory(), switches(), reason as "remark",
});

impl From<api::Group> for GroupLine {
    fn from(group: api::Group) -> Self {
        let state = group.state.unwrap_or_default();
        let members = state.members.iter();
        Self {
            kind: "multicast",
            phase: last_word(state.phase().as_str_name()),
            joined: members.filter(|m| m.phase() == MemberPhase::Joined).count(),
            members: state.members.len(),
            lanes: state.lanes.len().max(1),
            group: state.name,
            mcst_id: state.mcst_id,
            source: state.source,
            pmtu: state.pmtu,
            rate_bits_per_second: state.rate_limit.map(|limit| limit.bits_per_second),
            burst_bytes: state.rate_limit.map(|limit| limit.burst_bytes),
            memory_bytes: 0,
            switches: group.tree.into_iter().map(|node| node.switch_name).collect(),
            reason: state.reason,
            description: state.description,
        }
    }
}

impl From<api::Collective> for GroupLine {
    fn from(group: api::Collective) -> Self {
        let state = group.state.unwrap_or_default();
        let settings = state.settings.as_ref();
        let limit = settings.and_then(|settings| settings.rate_limit);
        let members = state.members.iter();
        Self {
            kind: "collective",
            phase: job_phase(&state),
            joined: members.filter(|m| m.phase() == MemberPhase::Joined).count(),
            members: state.members.len(),
            lanes: state.lanes.len().max(1),
            pmtu: settings.map_or(0, |s| s.pmtu),
            group: state.name,
            mcst_id: state.mcst_id,
            source: String::new(),
            rate_bits_per_second: limit.map(|limit| limit.bits_per_second),
            burst_bytes: limit.map(|limit| limit.burst_bytes),
            memory_bytes: group.tree.iter().map(|node| node.memory_bytes).sum(),
            switches: group.tree.into_iter().map(|node| node.switch_name).collect(),
            reason: state.reason,
            description: state.description,
        }
    }
}

#[derive(Debug, Serialize)]
struct Endpoint {
    ip: Option<String>,
    mac: Option<String>,
    qpn: Option<u32>,
    /// Of the lanes after the first.
    more_qpns: Vec<u32>,
    switch: Option<String>,
    port: Option<u32>,
    /// Of the first lane.
    mcst_id: String,
    remote_qpn: u32,
}

impl Endpoint {
    fn new(
        connection: Option<api::Connection>,
        switch: String,
        port: Option<u32>,
        (mcst_id, remote_qpn): (String, u32),
    ) -> Self {
        let (ip, mac, qpn, more_qpns) = match connection {
            Some(c) => {
                let more_qpns = c.more_lanes.iter().map(|lane| lane.qpn).collect();
                (Some(c.ip), Some(c.mac), Some(c.qpn), more_qpns)
            }
            None => (None, None, None, Vec::new()),
        };
        Self {
            ip,
            mac,
            qpn,
            more_qpns,
            switch: unless_empty(switch),
            port,
            mcst_id,
            remote_qpn,
        }
    }

    fn qpns(&self) -> String {
        let all = self.qpn.iter().chain(&self.more_qpns).map(|q| format!("{q:#x}"));
        or_dash(&all.collect::<Vec<_>>().join(" "))
    }

    fn connects_to(&self) -> String {
        format!("{} QP {:#x}", self.mcst_id, self.remote_qpn)
    }
}

#[derive(Debug, Serialize)]
pub(super) struct MemberLine {
    host: String,
    role: String,
    phase: String,
    #[serde(flatten)]
    endpoint: Endpoint,
}

columns!(row: MemberLine => row { host, role, phase } (row.endpoint) {
    ip, mac, qpns() as "qpn", switch, port, connects_to(),
});

pub(super) fn member_lines(state: api::GroupState) -> Vec<MemberLine> {
    let line = |member: api::MemberState| MemberLine {
        role: role_name(member.role()),
        phase: last_word(member.phase().as_str_name()),
        host: member.host,
        endpoint: Endpoint::new(
            member.connection,
            member.switch_name,
            member.port,
            (member.mcst_id.unwrap_or_else(|| state.mcst_id.clone()), 1),
        ),
    };
    state.members.into_iter().map(line).collect()
}

#[derive(Debug, Serialize)]
pub(super) struct RankLine {
    rank: u32,
    host: Option<String>,
    phase: String,
    #[serde(flatten)]
    endpoint: Endpoint,
    sq_psn: Option<u32>,
    rq_psn: Option<u32>,
}

columns!(row: RankLine => row { rank, host, phase } (row.endpoint) { ip, mac, qpns() as "qpn" } row {
    sq_psn as "sends from psn", rq_psn as "receives from psn",
} (row.endpoint) { switch, port, connects_to() });

pub(super) fn rank_lines(state: &api::CollectiveState) -> Vec<RankLine> {
    let line = |member: api::MemberState| RankLine {
        rank: member.rank,
        phase: last_word(member.phase().as_str_name()),
        host: unless_empty(member.host),
        sq_psn: member.connection.as_ref().map(|_| member.sq_psn),
        rq_psn: member.connection.as_ref().map(|_| member.rq_psn),
        endpoint: Endpoint::new(
            member.connection,
            member.switch_name,
            member.port,
            (
                member.mcst_id.unwrap_or_else(|| state.mcst_id.clone()),
                member.virtual_qpn.unwrap_or(1),
            ),
        ),
    };
    state.members.iter().cloned().map(line).collect()
}

pub(crate) fn or_dash(text: &str) -> String {
    if text.is_empty() { "-" } else { text }.to_owned()
}

fn unless_empty(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

/// The last word of an enum value's name: `active` for `GROUP_PHASE_ACTIVE`.
pub(crate) fn last_word(name: &str) -> String {
    match name.rsplit('_').next() {
        None | Some("UNSPECIFIED") => "unknown".to_owned(),
        Some(word) => word.to_lowercase(),
    }
}

/// The phase of a job, in the word of the controller's messages while ranks are missing.
pub(crate) fn job_phase(state: &api::CollectiveState) -> String {
    let is_missing = |m: &api::MemberState| m.phase() == MemberPhase::Expected;
    match state.phase() {
        CollectivePhase::Waiting if state.members.iter().any(is_missing) => "gathering".to_owned(),
        phase => last_word(phase.as_str_name()),
    }
}

pub(crate) fn role_name(role: Role) -> String {
    match role {
        Role::Unspecified => "-".to_owned(),
        role => last_word(role.as_str_name()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use castnet_console::api::GroupPhase;

    #[test]
    fn phases_are_single_words() {
        assert_eq!(last_word(GroupPhase::Unspecified.as_str_name()), "unknown");
        assert_eq!(last_word(CollectivePhase::Waiting.as_str_name()), "waiting");
        assert_eq!(
            (role_name(Role::Unspecified), role_name(Role::Source)),
            ("-".to_owned(), "source".to_owned())
        );
    }

    #[test]
    fn a_job_gathers_its_ranks_and_then_waits_for_its_switches() {
        let word = |phase: CollectivePhase, ranks: [MemberPhase; 2]| {
            let member = |phase: MemberPhase| api::MemberState {
                phase: phase.into(),
                ..Default::default()
            };
            let state = api::CollectiveState {
                phase: phase.into(),
                members: ranks.map(member).to_vec(),
                ..Default::default()
            };
            let group = api::Collective {
                state: Some(state.clone()),
                ..Default::default()
            };
            let listed = GroupLine::from(group).phase;
            assert_eq!(listed, job_phase(&state));
            listed
        };
        use MemberPhase::{Away, Expected, Joined};
        assert_eq!(word(CollectivePhase::Waiting, [Joined, Expected]), "gathering");
        assert_eq!(word(CollectivePhase::Waiting, [Joined, Away]), "waiting");
        assert_eq!(word(CollectivePhase::Active, [Joined, Expected]), "active");
    }
}
