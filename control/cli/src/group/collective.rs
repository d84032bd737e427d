//! Collective groups: created, listed and shown, at the controller.

mod args;
mod conflict;
mod endpoints;
mod policies;

use castnet_proto::transport::Security;
use serde::Serialize;

use super::GroupLine;
use super::lanes::{self, LaneLine};
pub(crate) use args::CollectiveArgs;
use castnet_console::api;
use castnet_console::output::{Page, Report, Row};
use castnet_console::tree::{self, Node};
use castnet_console::units::{bytes, plural};
pub(crate) use conflict::Conflict;
pub(crate) use endpoints::{EndpointRow, Progress, endpoint_rows, progress, progress_text};
pub(crate) use policies::{Policies, millis};

/// The phase's name as people read it.
pub(crate) fn phase_name(phase: api::CollectivePhase) -> &'static str {
    match phase {
        api::CollectivePhase::Unspecified => "unknown",
        api::CollectivePhase::Waiting => "waiting",
        api::CollectivePhase::Active => "active",
        api::CollectivePhase::Refused => "refused",
        api::CollectivePhase::Failed => "failed",
        api::CollectivePhase::Removing => "removing",
    }
}

/// `0-2 5`: ranks, in order, in few words.
pub(crate) fn ranks_text(ranks: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*rank) => *last = *rank,
            _ => runs.push((*rank, *rank)),
        }
    }
    let run = |(first, last): (u32, u32)| match last == first {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    runs.into_iter().map(run).collect::<Vec<_>>().join(" ")
}

/// A collective group as a line of the list of groups.
pub(super) fn group_line(group: api::Collective) -> GroupLine {
    let state = group.state.unwrap_or_default();
    let joined = state
        .members
        .iter()
        .filter(|m| m.phase() == api::MemberPhase::Joined)
        .count();
    GroupLine {
        kind: "collective",
        phase: phase_name(state.phase()).to_owned(),
        members: state.members.len(),
        joined,
        lanes: state.lanes.len().max(1),
        group: state.name,
        mcst_id: state.mcst_id,
        source: String::new(),
        pmtu: state.settings.map_or(0, |s| s.pmtu),
        memory_bytes: group.tree.iter().map(|node| node.memory_bytes).sum(),
        switches: group.tree.into_iter().map(|node| node.switch_name).collect(),
        reason: state.reason,
    }
}

/// A rank.
#[derive(Debug, Serialize)]
pub(crate) struct RankLine {
    rank: u32,
    host: Option<String>,
    phase: &'static str,
    ip: Option<String>,
    mac: Option<String>,
    qpn: Option<u32>,
    /// Those of the lanes after the first.
    more_qpns: Vec<u32>,
    sq_psn: Option<u32>,
    rq_psn: Option<u32>,
    switch: Option<String>,
    port: Option<u32>,
    /// What its queue pair of the first lane is connected to.
    mcst_id: String,
    remote_qpn: u32,
}

impl Row for RankLine {
    const COLUMNS: &'static [&'static str] = &[
        "rank",
        "host",
        "phase",
        "ip",
        "mac",
        "qpn",
        "sends from psn",
        "receives from psn",
        "switch",
        "port",
        "connects to",
    ];

    fn cells(&self) -> Vec<String> {
        let text = |t: &Option<String>| t.clone().unwrap_or_else(|| "-".to_owned());
        vec![
            self.rank.to_string(),
            text(&self.host),
            self.phase.to_owned(),
            text(&self.ip),
            text(&self.mac),
            super::qpns(self.qpn, &self.more_qpns),
            number(self.sq_psn),
            number(self.rq_psn),
            text(&self.switch),
            number(self.port),
            super::remote(&self.mcst_id, self.remote_qpn),
        ]
    }
}

fn number(value: Option<u32>) -> String {
    value.map_or_else(|| "-".to_owned(), |v| v.to_string())
}

/// The ranks of a group.
pub(crate) fn rank_lines(state: &api::CollectiveState) -> Vec<RankLine> {
    let some = |text: &String| Some(text.clone()).filter(|t| !t.is_empty());
    let line = |member: &api::MemberState| {
        let connection = member.connection.as_ref();
        RankLine {
            rank: member.rank,
            host: some(&member.host),
            phase: super::member_phase_name(member.phase()),
            ip: connection.map(|c| c.ip.clone()),
            mac: connection.map(|c| c.mac.clone()),
            qpn: connection.map(|c| c.qpn),
            more_qpns: connection.cloned().map_or_else(Vec::new, super::more_qpns),
            sq_psn: connection.map(|_| member.sq_psn),
            rq_psn: connection.map(|_| member.rq_psn),
            switch: some(&member.switch_name),
            port: member.port,
            mcst_id: member.mcst_id.clone().unwrap_or_else(|| state.mcst_id.clone()),
            remote_qpn: member.virtual_qpn.unwrap_or(1),
        }
    };
    state.members.iter().map(line).collect()
}

/// A group's address, or those that its ranks are told.
pub(super) fn addresses(state: &api::CollectiveState) -> String {
    let ranks: Vec<(String, Option<&str>)> = state
        .members
        .iter()
        .map(|m| (format!("rank {}", m.rank), m.mcst_id.as_deref()))
        .collect();
    let ranks = ranks.iter().map(|(rank, own)| (rank.as_str(), *own));
    lanes::addresses(&state.mcst_id, ranks)
}

/// A collective group as the controller placed it and as the switches see it.
#[derive(Debug, Serialize)]
pub(crate) struct CollectiveReport {
    group: String,
    kind: &'static str,
    /// Where switches have their own, those of the ranks are in their lines.
    mcst_id: String,
    #[serde(skip)]
    addresses: String,
    lanes: Vec<LaneLine>,
    phase: &'static str,
    reason: String,
    generation: u64,
    start_psn: u32,
    slots: u32,
    window_packets: u32,
    #[serde(flatten)]
    policies: Policies,
    /// Of a group that failed for it.
    conflict: Option<Conflict>,
    memory_bytes: u64,
    tree: Option<Node>,
    ranks: Vec<RankLine>,
    switches: Vec<SwitchPart>,
}

/// One switch's part in a lane of a collective group.
#[derive(Debug, Serialize)]
pub(crate) struct SwitchPart {
    switch: String,
    lane: String,
    /// Who has it there, where the switch answered.
    worker: Option<u32>,
    installed: bool,
    /// Why the switch has not got its part, or why it could not be asked.
    reason: String,
    memory_bytes: u64,
    progress: Option<Progress>,
    endpoints: Vec<EndpointRow>,
}

impl CollectiveReport {
    /// The controller's view, completed by asking each switch of the tree; one that does not answer leaves a gap.
    pub(crate) async fn gather(
        group: api::Collective,
        switches: &[api::SwitchState],
        security: &Security,
    ) -> Self {
        let state = group.state.unwrap_or_default();
        let lanes = lanes::of(&state.lanes, &state.name, &state.mcst_id);
        let mut parts = Vec::new();
        for node in &group.tree {
            let endpoint = switches
                .iter()
                .find(|s| s.name == node.switch_name)
                .map(|s| s.endpoint.as_str());
            for lane in &lanes {
                let memory = node.memory_bytes / lanes.len() as u64;
                parts.push(SwitchPart::ask(node, endpoint, (lane, memory), security).await);
            }
        }
        let at = parts
            .iter()
            .map(|part| (part.switch.as_str(), part.lane.as_str(), part.worker));
        let settings = state.settings.unwrap_or_default();
        Self {
            kind: "collective",
            lanes: lanes::lines(&lanes, at),
            phase: phase_name(state.phase()),
            tree: tree::of_collective(&group.tree, &|switch, endpoint| how_far(&parts, switch, endpoint)),
            ranks: rank_lines(&state),
            memory_bytes: group.tree.iter().map(|node| node.memory_bytes).sum(),
            window_packets: settings.window_packets,
            policies: Policies::from(&settings),
            conflict: state.conflict.as_ref().map(|said| {
                let member = |rank| state.members.iter().find(|m| m.rank == rank);
                Conflict::new(said, |rank| member(rank).map(|m| m.host.clone()))
            }),
            addresses: addresses(&state),
            group: state.name,
            mcst_id: state.mcst_id,
            reason: state.reason,
            generation: state.generation,
            start_psn: state.start_psn,
            slots: state.slots,
            switches: parts,
        }
    }
}

impl SwitchPart {
    async fn ask(
        node: &api::TreeNode,
        endpoint: Option<&str>,
        (lane, memory_bytes): (&api::Lane, u64),
        security: &Security,
    ) -> Self {
        let found = super::show::installed(endpoint, lanes::at(lane, &node.lanes), security).await;
        let (answer, reason) = match found {
            Ok(answer) => (Some(answer), node.reason.clone()),
            Err(why) if node.reason.is_empty() => (None, why),
            Err(_) => (None, node.reason.clone()),
        };
        let worker = answer.as_ref().map(|g| g.worker);
        let seen = answer.map(|g| (progress(&g), endpoint_rows(&g)));
        let (progress, endpoints) = seen.unwrap_or_default();
        Self {
            switch: node.switch_name.clone(),
            lane: lane.name.clone(),
            worker,
            installed: node.installed,
            reason,
            memory_bytes,
            progress,
            endpoints,
        }
    }
}

/// What the switch says of an endpoint, in words, in the lane where it is least far; nothing where it is as far as the others.
fn how_far(parts: &[SwitchPart], switch: &str, endpoint: &str) -> String {
    let parts = parts.iter().filter(|part| part.switch == switch);
    let endpoints = parts.flat_map(|part| part.endpoints.iter().filter(|e| e.next_hop == endpoint));
    match endpoints.filter_map(|e| e.behind).max().unwrap_or(0) {
        0 => String::new(),
        behind => format!("  {} behind", plural(behind as usize, "packet")),
    }
}

impl Report for CollectiveReport {
    fn page(&self, page: &mut Page) {
        let reason = match self.reason.as_str() {
            "" => String::new(),
            reason => format!(": {reason}"),
        };
        page.title(format!("Collective group {}, {}{reason}", self.group, self.phase));
        let Policies {
            pmtu,
            message_packets,
            ..
        } = &self.policies;
        let memory = match self.memory_bytes {
            0 => "none set aside yet".to_owned(),
            memory => format!("{} on all switches", bytes(memory)),
        };
        let (window, slots) = (self.window_packets, self.slots);
        let facts = [
            ("McstID", self.addresses.clone()),
            ("generation", self.generation.to_string()),
            ("start PSN", self.start_psn.to_string()),
            ("PMTU", pmtu.to_string()),
            (
                "window",
                format!("{window} packets in messages of {message_packets}; {slots} slots per switch"),
            ),
        ];
        let memory = [("memory", memory)];
        page.facts(
            &facts
                .into_iter()
                .chain(self.policies.facts())
                .chain(memory)
                .collect::<Vec<_>>(),
        );
        if let Some(conflict) = &self.conflict {
            conflict.page(page);
        }
        page.title("Tree");
        match &self.tree {
            Some(tree) => page.line(tree.draw()),
            None => page.line("not placed: it is when all ranks have joined"),
        }
        page.title("Ranks");
        page.rows(&self.ranks, "none");
        if self.lanes.len() > 1 {
            page.title("Lanes");
            page.rows(&self.lanes, "none");
        }
        for part in &self.switches {
            page.title(format!(
                "Switch {}{}{}",
                part.switch,
                lanes::title(self.lanes.len(), &part.lane, part.worker),
                progress_text(part.progress.as_ref())
            ));
            if !part.reason.is_empty() {
                page.line(format!("  {}", part.reason));
            }
            if !part.endpoints.is_empty() {
                page.rows(&part.endpoints, "");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(port: u32, rank: u32) -> api::Endpoint {
        let part = api::RankPart {
            rank,
            ..Default::default()
        };
        let host = api::HostEndpoint {
            name: format!("h{rank}"),
            ip: format!("10.0.0.{rank}"),
            part: Some(api::host_endpoint::Part::Rank(part)),
            ..Default::default()
        };
        api::Endpoint {
            port,
            next_hop: Some(api::endpoint::NextHop::Host(host)),
            ..Default::default()
        }
    }

    #[test]
    fn the_drawing_says_who_is_behind() {
        let endpoint = |port: u32, expected_psn| api::EndpointStatus {
            port,
            next_hop: format!("h{port}"),
            expected_psn: Some(expected_psn),
            ..Default::default()
        };
        let state = api::TranslatedState {
            endpoints: vec![endpoint(0, 0), endpoint(1, 20)],
            ..Default::default()
        };
        let installed = api::InstalledGroup {
            rule: Some(api::GroupRule {
                endpoints: vec![rank(0, 0), rank(1, 1)],
                ..Default::default()
            }),
            state: Some(api::installed_group::State::Translated(state)),
            ..Default::default()
        };
        let part = SwitchPart {
            switch: "leaf1".to_owned(),
            lane: "job".to_owned(),
            worker: Some(0),
            installed: true,
            reason: String::new(),
            memory_bytes: 0,
            progress: None,
            endpoints: endpoint_rows(&installed),
        };
        let far = |endpoint| how_far(std::slice::from_ref(&part), "leaf1", endpoint);
        assert_eq!(
            (far("h0").as_str(), far("h1").as_str(), far("h9").as_str()),
            ("  20 packets behind", "", "")
        );
    }

    #[test]
    fn ranks_are_told_in_few_words() {
        assert_eq!(ranks_text(&[0, 1, 2, 5, 7, 8]), "0-2 5 7-8");
        assert_eq!(ranks_text(&[u32::MAX]), u32::MAX.to_string());
        assert_eq!(ranks_text(&[]), "");
    }
}
