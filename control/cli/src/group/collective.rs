//! Collective groups: created, listed and shown, at the controller.

use castnet_proto::transport::Security;
use castnet_rules::{LossPolicy, StragglerPolicy};
use castnet_wire::Psn;
use clap::Args;
use serde::Serialize;

use super::GroupLine;
use crate::api;
use crate::output::{Page, Report, Row};
use crate::tree::Node;
use crate::units::{bytes, count, plural};

/// What a collective group shall be.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Collective groups")]
pub(crate) struct CollectiveArgs {
    /// A collective group (AllReduce, Reduce, Broadcast ... computed in the switches) instead of a multicast group
    #[arg(long, requires = "ranks", conflicts_with_all = ["source", "members", "connection", "start_psn", "va_base", "rules"])]
    pub(crate) collective: bool,
    /// The ranks' hosts, rank 0 first; a host is one rank
    #[arg(long, value_name = "HOST,...", value_delimiter = ',', requires = "collective")]
    ranks: Vec<String>,
    /// Packets that a rank may have in flight [default: 64]; each switch sets aside slots for two windows and two messages, if it has the memory
    #[arg(long, value_name = "PACKETS", requires = "collective", value_parser = clap::value_parser!(u32).range(1..=16_384))]
    window: Option<u32>,
    /// Packets of a full message, at most the window [default: 16]
    #[arg(long, value_name = "PACKETS", requires = "collective", value_parser = clap::value_parser!(u32).range(1..=16_384))]
    message_packets: Option<u32>,
    /// Adds contributions in rank order: bit-identical results whoever comes first, for memory of one more packet per
    /// rank and slot
    #[arg(long, requires = "collective")]
    reproducible: bool,
    /// Who repairs losses: the switch (repair, the default) or the hosts (reflect)
    #[arg(long, value_name = "POLICY", requires = "collective", value_parser = loss)]
    loss_policy: Option<LossPolicy>,
    /// How ranks that wait for a late one are kept alive: keep-alive (the default), rnr or none
    #[arg(long, value_name = "POLICY", requires = "collective", value_parser = straggler)]
    straggler_policy: Option<StragglerPolicy>,
    /// The ACK time-out of the ranks' queue pairs in microseconds [default: 67108]
    #[arg(long, value_name = "US", requires = "collective", value_parser = clap::value_parser!(u32).range(4..))]
    ack_timeout_us: Option<u32>,
}

fn loss(text: &str) -> Result<LossPolicy, String> {
    text.parse()
        .map_err(|_| format!("'{text}' is no loss policy: repair or reflect"))
}

fn straggler(text: &str) -> Result<StragglerPolicy, String> {
    text.parse()
        .map_err(|_| format!("'{text}' is no straggler policy: keep-alive, rnr or none"))
}

impl CollectiveArgs {
    /// The request for it.
    pub(crate) fn request(
        self,
        name: String,
        pmtu: u32,
        mcst_id: Option<std::net::Ipv4Addr>,
        stall_timeout_ms: u32,
    ) -> api::CreateCollectiveRequest {
        use castnet_proto::convert::{loss_to_proto, straggler_to_proto};
        let settings = api::CollectiveSettings {
            pmtu,
            window_packets: self.window.unwrap_or(0),
            message_packets: self.message_packets.unwrap_or(0),
            reproducible: Some(self.reproducible),
            loss_policy: self.loss_policy.map_or(0, |p| loss_to_proto(p) as i32),
            straggler_policy: self.straggler_policy.map_or(0, |p| straggler_to_proto(p) as i32),
            ack_timeout_us: self.ack_timeout_us.unwrap_or(0),
            stall_timeout_ms,
        };
        api::CreateCollectiveRequest {
            name,
            ranks: self.ranks,
            settings: Some(settings),
            mcst_id: mcst_id.map(|ip| ip.to_string()),
        }
    }
}

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

fn rank_phase_name(phase: api::RankPhase) -> &'static str {
    match phase {
        api::RankPhase::Unspecified => "unknown",
        api::RankPhase::Expected => "expected",
        api::RankPhase::Joined => "joined",
        api::RankPhase::Away => "away",
        api::RankPhase::Left => "left",
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
        .filter(|m| m.phase() == api::RankPhase::Joined)
        .count();
    GroupLine {
        kind: "collective",
        phase: phase_name(state.phase()).to_owned(),
        members: state.members.len(),
        joined,
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
    sq_psn: Option<u32>,
    rq_psn: Option<u32>,
    switch: Option<String>,
    port: Option<u32>,
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
    ];

    fn cells(&self) -> Vec<String> {
        let text = |t: &Option<String>| t.clone().unwrap_or_else(|| "-".to_owned());
        vec![
            self.rank.to_string(),
            text(&self.host),
            self.phase.to_owned(),
            text(&self.ip),
            text(&self.mac),
            self.qpn.map_or_else(|| "-".to_owned(), |q| format!("{q:#x}")),
            number(self.sq_psn),
            number(self.rq_psn),
            text(&self.switch),
            number(self.port),
        ]
    }
}

fn number(value: Option<u32>) -> String {
    value.map_or_else(|| "-".to_owned(), |v| v.to_string())
}

/// The ranks of a group.
pub(crate) fn rank_lines(state: &api::CollectiveState) -> Vec<RankLine> {
    let some = |text: &String| Some(text.clone()).filter(|t| !t.is_empty());
    let line = |member: &api::RankState| {
        let connection = member.connection.as_ref();
        RankLine {
            rank: member.rank,
            host: some(&member.host),
            phase: rank_phase_name(member.phase()),
            ip: connection.map(|c| c.ip.clone()),
            mac: connection.map(|c| c.mac.clone()),
            qpn: connection.map(|c| c.qpn),
            sq_psn: connection.map(|_| member.sq_psn),
            rq_psn: connection.map(|_| member.rq_psn),
            switch: some(&member.switch_name),
            port: member.port,
        }
    };
    state.members.iter().map(line).collect()
}

/// A collective group as the controller placed it and as the switches see it.
#[derive(Debug, Serialize)]
pub(crate) struct CollectiveReport {
    group: String,
    kind: &'static str,
    mcst_id: String,
    phase: &'static str,
    reason: String,
    generation: u64,
    psn_start: u32,
    slots: u32,
    pmtu: u32,
    window_packets: u32,
    message_packets: u32,
    reproducible: bool,
    loss_policy: &'static str,
    straggler_policy: &'static str,
    ack_timeout_us: u32,
    memory_bytes: u64,
    tree: Option<Node>,
    ranks: Vec<RankLine>,
    switches: Vec<SwitchPart>,
}

/// One switch's part in a collective group.
#[derive(Debug, Serialize)]
pub(crate) struct SwitchPart {
    switch: String,
    installed: bool,
    /// Why the switch has not got its part, or why it could not be asked.
    reason: String,
    memory_bytes: u64,
    progress: Option<Progress>,
    endpoints: Vec<EndpointRow>,
}

/// How far a collective group is at a switch.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Progress {
    pub(crate) base_psn: u32,
    pub(crate) sequence: Option<u32>,
    pub(crate) call: String,
    pub(crate) slots_used: u32,
    pub(crate) slots: u32,
    pub(crate) finished: u64,
    pub(crate) failed: bool,
    pub(crate) memory_bytes: u64,
}

/// How far an endpoint is. PSNs are the group's.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct EndpointRow {
    port: u32,
    next_hop: String,
    ranks: Vec<u32>,
    parent: bool,
    /// The next packet that is expected of it.
    expected_psn: Option<u32>,
    /// The next packet that it is sent.
    next_psn: Option<u32>,
    /// The oldest packet that it has not acknowledged.
    unacknowledged_psn: Option<u32>,
    /// Packets that it has sent fewer than the foremost endpoint here; not told of the parent, which sends results.
    behind: Option<u32>,
    waited_for: bool,
    contributions: u64,
    repeats: u64,
    results: u64,
    naks_in: u64,
    naks_out: u64,
    keep_alives: u64,
}

impl Row for EndpointRow {
    const COLUMNS: &'static [&'static str] = &[
        "port",
        "towards",
        "ranks",
        "expects",
        "sends",
        "unacked",
        "behind",
        "contributions",
        "repeats",
        "results",
        "naks in",
        "naks out",
        "keep-alives",
        "remark",
    ];

    fn cells(&self) -> Vec<String> {
        let remark = match (self.parent, self.waited_for) {
            (true, true) => "parent; waited for",
            (true, false) => "parent",
            (false, true) => "waited for",
            (false, false) => "",
        };
        vec![
            self.port.to_string(),
            self.next_hop.clone(),
            ranks_text(&self.ranks),
            number(self.expected_psn),
            number(self.next_psn),
            number(self.unacknowledged_psn),
            number(self.behind),
            count(self.contributions),
            count(self.repeats),
            count(self.results),
            count(self.naks_in),
            count(self.naks_out),
            count(self.keep_alives),
            remark.to_owned(),
        ]
    }
}

pub(crate) fn progress(installed: &api::InstalledCollective) -> Option<Progress> {
    installed.status.as_ref().map(|status| Progress {
        base_psn: status.base_psn,
        sequence: status.sequence,
        call: status.call.clone(),
        slots_used: status.slots_used,
        slots: status.slots,
        finished: status.finished,
        failed: status.failed,
        memory_bytes: status.memory_bytes,
    })
}

pub(crate) fn endpoint_rows(installed: &api::InstalledCollective) -> Vec<EndpointRow> {
    let status = installed.status.clone().unwrap_or_default();
    // From the lowest packet that is not finished, as PSNs wrap.
    let done = |endpoint: &api::EndpointStatus| {
        let expected = endpoint.expected_psn.filter(|_| !endpoint.parent)?;
        Some(expected.wrapping_sub(status.base_psn) & (Psn::MODULUS - 1))
    };
    let foremost = status.endpoints.iter().filter_map(done).max().unwrap_or(0);
    let row = |endpoint: &api::EndpointStatus| {
        let counters = endpoint.counters.unwrap_or_default();
        EndpointRow {
            behind: done(endpoint).map(|done| foremost - done),
            port: endpoint.port,
            next_hop: endpoint.next_hop.clone(),
            ranks: endpoint.ranks.clone(),
            parent: endpoint.parent,
            expected_psn: endpoint.expected_psn,
            next_psn: endpoint.next_psn,
            unacknowledged_psn: endpoint.unacknowledged_psn,
            waited_for: endpoint.waited_for,
            contributions: counters.contributions,
            repeats: counters.repeats,
            results: counters.results,
            naks_in: counters.naks_in,
            naks_out: counters.naks_out,
            keep_alives: counters.keep_alives,
        }
    };
    status.endpoints.iter().map(row).collect()
}

pub(crate) fn progress_text(progress: Option<&Progress>) -> String {
    let Some(p) = progress else {
        return String::new();
    };
    let call = match (&p.sequence, p.failed) {
        (Some(sequence), true) => format!(", failed at collective {sequence} ({})", p.call),
        (None, true) => ", failed".to_owned(),
        (Some(sequence), false) => format!(", now collective {sequence} ({})", p.call),
        (None, false) => ", idle".to_owned(),
    };
    format!(
        ": {} finished{call}; {} of {} slots in use from PSN {}",
        count(p.finished),
        p.slots_used,
        p.slots,
        p.base_psn
    )
}

impl CollectiveReport {
    /// The controller's view, completed by asking each switch of the tree; one that does not answer leaves a gap.
    pub(crate) async fn gather(
        group: api::Collective,
        switches: &[api::SwitchState],
        security: &Security,
    ) -> Self {
        let state = group.state.unwrap_or_default();
        let mut parts = Vec::new();
        for node in &group.tree {
            let endpoint = switches
                .iter()
                .find(|s| s.name == node.switch_name)
                .map(|s| s.endpoint.as_str());
            parts.push(SwitchPart::ask(node, endpoint, &state.mcst_id, security).await);
        }
        let settings = state.settings.unwrap_or_default();
        Self {
            kind: "collective",
            phase: phase_name(state.phase()),
            tree: draw(&group.tree, &|switch, port| how_far(&parts, switch, port)),
            ranks: rank_lines(&state),
            memory_bytes: group.tree.iter().map(|node| node.memory_bytes).sum(),
            pmtu: settings.pmtu,
            window_packets: settings.window_packets,
            message_packets: settings.message_packets,
            reproducible: settings.reproducible(),
            loss_policy: match settings.loss_policy() {
                api::CollectiveLossPolicy::Reflect => LossPolicy::Reflect.name(),
                _ => LossPolicy::Repair.name(),
            },
            straggler_policy: match settings.straggler_policy() {
                api::CollectiveStragglerPolicy::Rnr => StragglerPolicy::Rnr.name(),
                api::CollectiveStragglerPolicy::None => StragglerPolicy::None.name(),
                _ => StragglerPolicy::KeepAlive.name(),
            },
            ack_timeout_us: settings.ack_timeout_us,
            group: state.name,
            mcst_id: state.mcst_id,
            reason: state.reason,
            generation: state.generation,
            psn_start: state.psn_start,
            slots: state.slots,
            switches: parts,
        }
    }
}

impl SwitchPart {
    async fn ask(
        node: &api::CollectiveNode,
        endpoint: Option<&str>,
        mcst_id: &str,
        security: &Security,
    ) -> Self {
        let listed = super::show::listed(endpoint, mcst_id, security).await;
        let found = listed.and_then(|mut listed| {
            let group = listed.collectives.pop();
            group.ok_or_else(|| "it has no such group".to_owned())
        });
        let (answer, reason) = match found {
            Ok(answer) => (Some(answer), node.reason.clone()),
            Err(why) if node.reason.is_empty() => (None, why),
            Err(_) => (None, node.reason.clone()),
        };
        let seen = answer.map(|g| (progress(&g), endpoint_rows(&g)));
        let (progress, endpoints) = seen.unwrap_or_default();
        Self {
            switch: node.switch_name.clone(),
            installed: node.installed,
            reason,
            memory_bytes: node.memory_bytes,
            progress,
            endpoints,
        }
    }
}

/// What the switch says of the endpoint at a port, in words; nothing where it is as far as the others.
fn how_far(parts: &[SwitchPart], switch: &str, port: u32) -> String {
    let part = parts.iter().find(|part| part.switch == switch);
    let endpoint = part.and_then(|part| part.endpoints.iter().find(|e| e.port == port));
    match endpoint.and_then(|e| e.behind).unwrap_or(0) {
        0 => String::new(),
        behind => format!("  {} behind", plural(behind as usize, "packet")),
    }
}

/// What is said of a switch's port in the drawing of a tree.
type Remark<'a> = &'a dyn Fn(&str, u32) -> String;

/// The IncTree from its root down, from the rules that the switches were told; `remark` is put behind what is at a port.
pub(crate) fn draw(tree: &[api::CollectiveNode], remark: Remark<'_>) -> Option<Node> {
    let root = tree.iter().find(|node| node.parent.is_empty())?;
    // A tree has no more levels than switches: a plan that is none must not draw for ever.
    Some(draw_switch(root, tree, remark, tree.len()))
}

fn draw_switch(
    node: &api::CollectiveNode,
    tree: &[api::CollectiveNode],
    remark: Remark<'_>,
    depth_left: usize,
) -> Node {
    use api::collective_endpoint::NextHop;
    let missing = match (node.installed, node.reason.as_str()) {
        (true, _) => String::new(),
        (false, "") => "  (not installed)".to_owned(),
        (false, reason) => format!("  (not installed: {reason})"),
    };
    let memory = bytes(node.memory_bytes);
    let mut out = Node::new(format!("[{}] {memory}{missing}", node.switch_name));
    let Some(rule) = &node.rule else { return out };
    for endpoint in rule.endpoints.iter().filter(|e| Some(e.port) != rule.parent) {
        match &endpoint.next_hop {
            Some(NextHop::Rank(rank)) => {
                let far = remark(&node.switch_name, endpoint.port);
                let label = format!("rank {}: {} ({}){far}", rank.rank, rank.name, rank.ip);
                out.children.push(Node::new(label));
            }
            Some(NextHop::Switch(switch)) => {
                let next = tree.iter().find(|n| n.switch_name == switch.name);
                let mut next = match next {
                    Some(next) if depth_left > 0 => draw_switch(next, tree, remark, depth_left - 1),
                    _ => Node::new(format!("[{}]", switch.name)),
                };
                next.label.push_str(&remark(&node.switch_name, endpoint.port));
                out.children.push(next);
            }
            None => {}
        }
    }
    out
}

impl Report for CollectiveReport {
    fn page(&self, page: &mut Page) {
        let reason = match self.reason.as_str() {
            "" => String::new(),
            reason => format!(": {reason}"),
        };
        page.title(format!("Collective group {}, {}{reason}", self.group, self.phase));
        let order = match self.reproducible {
            true => "in rank order (reproducible)",
            false => "as they come",
        };
        page.facts(&[
            ("McstID", self.mcst_id.clone()),
            ("generation", self.generation.to_string()),
            ("first PSN", self.psn_start.to_string()),
            ("PMTU", self.pmtu.to_string()),
            (
                "window",
                format!(
                    "{} packets in messages of {}; {} slots per switch",
                    self.window_packets, self.message_packets, self.slots
                ),
            ),
            ("contributions", order.to_owned()),
            ("losses", self.loss_policy.to_owned()),
            ("stragglers", self.straggler_policy.to_owned()),
            (
                "memory",
                match self.memory_bytes {
                    0 => "none set aside yet".to_owned(),
                    memory => format!("{} on all switches", bytes(memory)),
                },
            ),
        ]);
        page.title("Tree");
        match &self.tree {
            Some(tree) => page.line(tree.draw()),
            None => page.line("not placed: it is when all ranks have joined"),
        }
        page.title("Ranks");
        page.rows(&self.ranks, "none");
        for part in &self.switches {
            page.title(format!(
                "Switch {}{}",
                part.switch,
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

    fn rank(port: u32, rank: u32) -> api::CollectiveEndpoint {
        let rank = api::RankEndpoint {
            rank,
            name: format!("h{rank}"),
            ip: format!("10.0.0.{rank}"),
            ..Default::default()
        };
        api::CollectiveEndpoint {
            port,
            next_hop: Some(api::collective_endpoint::NextHop::Rank(rank)),
        }
    }

    fn switch(port: u32, name: &str) -> api::CollectiveEndpoint {
        let switch = api::CollectiveSwitch {
            name: name.to_owned(),
            ..Default::default()
        };
        api::CollectiveEndpoint {
            port,
            next_hop: Some(api::collective_endpoint::NextHop::Switch(switch)),
        }
    }

    fn node(
        name: &str,
        parent: Option<(&str, u32)>,
        endpoints: Vec<api::CollectiveEndpoint>,
    ) -> api::CollectiveNode {
        api::CollectiveNode {
            switch_name: name.to_owned(),
            parent: parent.map(|p| p.0.to_owned()).unwrap_or_default(),
            installed: true,
            memory_bytes: 4096,
            rule: Some(api::CollectiveGroup {
                parent: parent.map(|p| p.1),
                endpoints,
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    #[test]
    fn the_tree_is_drawn_from_its_root_to_the_ranks() {
        let mut tree = vec![
            node("spine", None, vec![switch(0, "leaf1"), switch(1, "leaf2")]),
            node(
                "leaf1",
                Some(("spine", 3)),
                vec![rank(1, 0), rank(2, 1), switch(3, "spine")],
            ),
            node("leaf2", Some(("spine", 3)), vec![switch(3, "spine"), rank(1, 2)]),
        ];
        tree[2].installed = false;
        let far = |switch: &str, port| match (switch, port) {
            ("leaf1", 2) => "  3 packets behind".to_owned(),
            ("spine", 0) => "  7 packets behind".to_owned(),
            _ => String::new(),
        };
        let drawn = draw(&tree, &far).expect("a tree").draw();
        let expected = "\
[spine] 4 KiB
├─ [leaf1] 4 KiB  7 packets behind
│  ├─ rank 0: h0 (10.0.0.0)
│  └─ rank 1: h1 (10.0.0.1)  3 packets behind
└─ [leaf2] 4 KiB  (not installed)
   └─ rank 2: h2 (10.0.0.2)
";
        assert_eq!(drawn, expected);
        assert_eq!(draw(&[], &far), None);
        let circle = [
            node("a", None, vec![switch(1, "b")]),
            node("b", Some(("a", 9)), vec![switch(1, "a")]),
        ];
        assert!(draw(&circle, &far).expect("a tree").draw().lines().count() < 10);
    }

    #[test]
    fn who_is_behind_is_told_over_the_wrap_of_the_psns_and_not_of_the_parent() {
        let endpoint = |port, expected_psn, parent| api::EndpointStatus {
            port,
            expected_psn,
            parent,
            ..Default::default()
        };
        let installed = api::InstalledCollective {
            status: Some(api::CollectiveStatus {
                base_psn: 0xFF_FFF0,
                endpoints: vec![
                    endpoint(0, Some(0xFF_FFF0), false),
                    endpoint(1, Some(4), false),
                    endpoint(2, None, false),
                    endpoint(3, Some(0xFF_FFF0), true),
                ],
                ..Default::default()
            }),
            ..Default::default()
        };
        let rows = endpoint_rows(&installed);
        let behind: Vec<_> = rows.iter().map(|row| row.behind).collect();
        assert_eq!(behind, [Some(20), Some(0), None, None]);
        assert_eq!(rows[0].cells().len(), EndpointRow::COLUMNS.len());
        let part = SwitchPart {
            switch: "leaf1".to_owned(),
            installed: true,
            reason: String::new(),
            memory_bytes: 0,
            progress: None,
            endpoints: rows,
        };
        let far = |port| how_far(std::slice::from_ref(&part), "leaf1", port);
        assert_eq!(
            (far(0).as_str(), far(1).as_str(), far(9).as_str()),
            ("  20 packets behind", "", "")
        );
    }

    #[test]
    fn ranks_are_told_in_few_words() {
        assert_eq!(ranks_text(&[0, 1, 2, 5, 7, 8]), "0-2 5 7-8");
        assert_eq!(ranks_text(&[u32::MAX]), u32::MAX.to_string());
        assert_eq!(ranks_text(&[]), "");
    }

    #[test]
    fn progress_is_a_sentence() {
        let mut progress = Progress {
            base_psn: 77,
            sequence: Some(3),
            call: "allreduce sum f32".to_owned(),
            slots_used: 5,
            slots: 128,
            finished: 3,
            failed: false,
            memory_bytes: 0,
        };
        let says = ": 3 finished, now collective 3 (allreduce sum f32); 5 of 128 slots in use from PSN 77";
        assert_eq!(progress_text(Some(&progress)), says);
        (progress.sequence, progress.failed) = (None, true);
        assert!(progress_text(Some(&progress)).contains("finished, failed; "));
        assert_eq!(progress_text(None), "");
    }
}
