//! Reports of one group: at the controller, with its tree, and at one switch.

use castnet_console::api::{self, installed_group::State};
use castnet_console::output::{Page, Report};
use castnet_console::tree::{self, Node};
use castnet_console::units::{bytes, count, first_of, plural};
use castnet_console::{connect, rate};
use castnet_group::Distribution;
use castnet_proto::transport::{Address, Security};
use castnet_worker::engine::MulticastCounters;
use serde::Serialize;
use serde_json::json;

use super::collective::{Conflict, millis, policies, policies_of_rule};
use super::facts::Facts;
use super::lanes::{self, LaneLine};
use super::lines::{RankLine, job_phase, last_word, rank_lines};
use super::progress::Progress;
use crate::counters::Counted;

#[derive(Debug, Serialize)]
pub(super) struct GroupReport {
    #[serde(skip)]
    title: String,
    #[serde(flatten)]
    facts: Facts,
    conflict: Option<Conflict>,
    /// Of a collective group.
    #[serde(skip_serializing_if = "Option::is_none")]
    ranks: Option<Vec<RankLine>>,
    lanes: Vec<LaneLine>,
    tree: Option<Node>,
    switches: Vec<SwitchPart>,
}

#[derive(Debug, Serialize)]
struct SwitchPart {
    switch: String,
    lane: String,
    /// `None` if the switch did not answer.
    worker: Option<u32>,
    installed: bool,
    /// Why the part is not installed, or why the switch did not answer.
    reason: String,
    /// Of a collective group.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_bytes: Option<u64>,
    #[serde(flatten)]
    progress: Progress,
}

/// Paths or addresses that are named, at most.
const NAMED_MAX: usize = 4;

/// What the switches do that a static core leads copies to, and that have no members.
pub(super) fn over_covered(switches: &[String]) -> String {
    let named = first_of(switches.iter(), NAMED_MAX);
    format!("{named}: no members there; a copy of each packet is dropped")
}

fn is_static(state: &api::GroupState) -> bool {
    let distribution = state.distribution.parse::<Distribution>();
    distribution.is_ok_and(|distribution| distribution.is_static())
}

/// Where the copies of a multicast group are made, in one word and in several, with the reason.
fn path(tree: &[api::TreeNode]) -> (&'static str, String) {
    let below = tree.iter().filter(|node| !node.parent.is_empty());
    let (edge, inside): (Vec<_>, Vec<_>) = below.partition(|node| !node.via.is_empty());
    if edge.is_empty() {
        return ("switches", "in the switches".into());
    }
    let (path, place) = match inside.is_empty() {
        true => ("edge", "at the edge"),
        false => ("mixed", "in the switches, and at the edge"),
    };
    let each = edge.iter();
    let each = each.map(|node| format!("{} - {} ({})", node.parent, node.switch_name, node.via.join(", ")));
    let named = first_of(each, NAMED_MAX);
    (
        path,
        format!("{place}, where no Castnet switch is on the way: {named}"),
    )
}

impl GroupReport {
    pub(super) async fn gather(
        group: api::Group,
        switches: &[api::SwitchState],
        security: &Security,
    ) -> Self {
        let state = group.state.unwrap_or_default();
        let (mut report, lanes) = match &group.collective {
            Some(group) => Self::of_collective(group),
            None => Self::of_multicast(&state),
        };
        let tree = group.collective.as_ref().map_or(&group.tree, |group| &group.tree);
        // One that is not placed has no path yet.
        if group.collective.is_none() && !is_static(&state) && !tree.is_empty() {
            let (path, words) = path(tree);
            report.facts.add_as("path", path, "path", words);
        }
        for node in tree {
            let memory_bytes = node.memory_bytes / lanes.len() as u64;
            let memory_bytes = group.collective.as_ref().map(|_| memory_bytes);
            for lane in &lanes {
                let part = SwitchPart::ask(node, lane, memory_bytes, switches, security).await;
                report.switches.push(part);
            }
        }
        if state.any_source() != api::AnySource::Unspecified {
            let sources = report.switches.iter().filter_map(|part| part.progress.source());
            let hosts = sources.map(|(name, _)| name);
            let mut hosts = hosts.filter(|name| state.members.iter().any(|m| m.host == *name));
            report
                .facts
                .add("sends_now", "sends now", hosts.next().unwrap_or("unknown"));
        }
        let parts = &report.switches;
        let workers = parts.iter();
        let workers = workers.map(|part| (part.switch.as_str(), part.lane.as_str(), part.worker));
        report.lanes = lanes::lines(&lanes, workers);
        report.tree = match &group.collective {
            Some(_) => tree::of_collective(tree, &|switch, endpoint| how_far(parts, switch, endpoint)),
            None => tree::of_multicast(&state.source, tree),
        };
        report
    }

    fn new(title: &str, name: &str, phase: String, reason: &str) -> Self {
        let colon = if reason.is_empty() { "" } else { ": " };
        let mut facts = Facts::default();
        facts.field("group", name);
        facts.field("phase", phase.as_str());
        facts.field("reason", reason);
        Self {
            title: format!("{title} {name}, {phase}{colon}{reason}"),
            facts,
            conflict: None,
            ranks: None,
            lanes: Vec::new(),
            tree: None,
            switches: Vec::new(),
        }
    }

    fn describe(&mut self, description: &str) {
        self.facts.field("description", description);
        if !description.is_empty() {
            self.facts.line("description", description);
        }
    }

    fn of_multicast(state: &api::GroupState) -> (Self, Vec<api::Lane>) {
        let phase = last_word(state.phase().as_str_name());
        let mut report = Self::new("Group", &state.name, phase, &state.reason);
        report.describe(&state.description);
        let own = super::mcst_ids(state);
        let addresses = super::member_addresses(&state.mcst_id, &own);
        let facts = &mut report.facts;
        facts.field("kind", "multicast");
        if !own.is_empty() {
            facts.field("mcst_ids", json!(own));
        }
        facts.add_as("mcst_id", state.mcst_id.as_str(), "McstID", addresses);
        facts.add("owner", "owner", state.owner.as_str());
        facts.add("generation", "generation", state.generation);
        if !state.ended.is_empty() {
            facts.add("ended", "end of the last run", state.ended.as_str());
        }
        let numbers = state.any_source();
        let is_any = numbers != api::AnySource::Unspecified;
        let source = match is_any {
            true => format!("any member, {} first", state.source),
            false => state.source.clone(),
        };
        facts.field("any_source", is_any);
        if is_any {
            facts.add("psns", "PSNs of hosts", last_word(numbers.as_str_name()));
        }
        facts.add_as("source", state.source.as_str(), "source", source);
        let words = match &state.refinement {
            None => state.distribution.clone(),
            Some(refined) => {
                let (address, copies) = (&refined.address, &refined.copies);
                facts.field("refinement", json!({ "address": address, "copies": copies }));
                let named = first_of(copies.iter(), NAMED_MAX);
                format!(
                    "{}; one copy to {address}, from which programmable routers make those for {named}",
                    state.distribution
                )
            }
        };
        facts.add_as("distribution", state.distribution.as_str(), "distribution", words);
        if !state.over_covered.is_empty() {
            let words = over_covered(&state.over_covered);
            facts.add_as("over_covered", json!(state.over_covered), "over-covered", words);
        }
        facts.add("pmtu", "PMTU", state.pmtu);
        facts.add("start_psn", "start PSN", state.start_psn);
        base_and_timeout(facts, state.va_base, state.stall_timeout_ms);
        let loss = last_word(state.on_member_loss().as_str_name());
        facts.add("on_member_loss", "on member loss", loss);
        let (after_ms, then, text) = match &state.on_member_stall {
            None => (None, "wait".to_owned(), "wait".to_owned()),
            Some(policy) => {
                let then = last_word(policy.then().as_str_name());
                let text = format!("{then} after {}", millis(policy.after_ms));
                (Some(policy.after_ms), then, text)
            }
        };
        facts.add_as("on_member_stall", then, "on member stall", text);
        facts.field("member_stall_ms", after_ms);
        if let Some(repair) = state.repair {
            let text = format!("from the switches, {} packets each", repair.slots);
            facts.add_as("repair_slots", repair.slots, "repair", text);
        }
        add_rate(facts, state.rate_limit);
        if !state.outside.is_empty() {
            let line = |out: &api::OutsideReceiver| json!({ "host": out.host, "via": out.via, "reason": out.reason });
            let text = |out: &api::OutsideReceiver| format!("{} from {}: {}", out.host, out.via, out.reason);
            let (lines, texts) = (state.outside.iter().map(line), state.outside.iter().map(text));
            let texts: Vec<_> = texts.collect();
            facts.add_as(
                "outside",
                lines.collect::<Vec<_>>(),
                "from host to host",
                texts.join("; "),
            );
        }
        (report, lanes::of(&state.lanes, &state.name, &state.mcst_id))
    }

    fn of_collective(group: &api::Collective) -> (Self, Vec<api::Lane>) {
        let state = group.state.clone().unwrap_or_default();
        let settings = state.settings.clone().unwrap_or_default();
        let phase = job_phase(&state);
        let mut report = Self::new("Collective group", &state.name, phase, &state.reason);
        report.describe(&state.description);
        report.ranks = Some(rank_lines(&state));
        let host = |rank| {
            let member = state.members.iter().find(|m| m.rank == rank)?;
            Some(member.host.clone())
        };
        report.conflict = state.conflict.as_ref().map(|c| Conflict::new(c, host));
        let (window, slots) = (settings.window_packets, state.slots);
        let window_text = format!(
            "{window} packets in messages of {}; {slots} slots per switch",
            settings.message_packets
        );
        let memory_bytes: u64 = group.tree.iter().map(|node| node.memory_bytes).sum();
        let memory = match memory_bytes {
            0 => "none set aside yet".to_owned(),
            memory => format!("{} on all switches", bytes(memory)),
        };
        let facts = &mut report.facts;
        facts.field("kind", "collective");
        facts.add_as(
            "mcst_id",
            state.mcst_id.as_str(),
            "McstID",
            super::rank_addresses(&state),
        );
        facts.add("owner", "owner", state.owner.as_str());
        facts.add("generation", "generation", state.generation);
        facts.add("start_psn", "start PSN", state.start_psn);
        facts.add("pmtu", "PMTU", settings.pmtu);
        facts.field("slots", slots);
        facts.field("message_packets", settings.message_packets);
        facts.add_as("window_packets", window, "window", window_text);
        policies(facts, &settings, &state.mode_reason);
        add_rate(facts, settings.rate_limit);
        facts.add_as("memory_bytes", memory_bytes, "memory", memory);
        (report, lanes::of(&state.lanes, &state.name, &state.mcst_id))
    }
}

fn base_and_timeout(facts: &mut Facts, va_base: u64, stall_timeout_ms: u32) {
    facts.add_as("va_base", va_base, "address base", format!("{va_base:#x}"));
    facts.add_as(
        "stall_timeout_ms",
        stall_timeout_ms,
        "stall time-out",
        millis(stall_timeout_ms),
    );
}

impl SwitchPart {
    async fn ask(
        node: &api::TreeNode,
        lane: &api::Lane,
        memory_bytes: Option<u64>,
        switches: &[api::SwitchState],
        security: &Security,
    ) -> Self {
        let address = switches.iter().find(|s| s.name == node.switch_name);
        let address = address.map(|s| s.endpoint.as_str());
        let (answer, why) = match installed(address, lanes::at(lane, &node.lanes), security).await {
            Ok(group) => (Some(group), String::new()),
            Err(why) => (None, why),
        };
        Self {
            switch: node.switch_name.clone(),
            lane: lane.name.clone(),
            worker: answer.as_ref().map(|group| group.worker),
            installed: node.installed,
            reason: match node.reason.as_str() {
                "" => why,
                reason => reason.to_owned(),
            },
            memory_bytes,
            progress: match answer {
                Some(group) => Progress::of(&group),
                None => Progress::unknown(memory_bytes.is_some()),
            },
        }
    }
}

async fn installed(
    address: Option<&str>,
    mcst_id: &str,
    security: &Security,
) -> Result<api::InstalledGroup, String> {
    let address = address.ok_or("the controller does not know its address")?;
    let address: Address = address
        .parse()
        .map_err(|_| format!("{address} is not an address of a switch"))?;
    let mut agent = connect::agent(&address, security).await.map_err(|f| f.what)?;
    let request = api::ListGroupsRequest {
        mcst_id: Some(mcst_id.to_owned()),
        ..Default::default()
    };
    let answer = agent.list_groups(request).await;
    let group = answer
        .map_err(|s| s.message().to_owned())?
        .into_inner()
        .groups
        .pop();
    group.ok_or_else(|| "it has no such group".to_owned())
}

/// Packets that an endpoint is behind the foremost one, in its worst lane; empty if it is not behind.
fn how_far(parts: &[SwitchPart], switch: &str, endpoint: &str) -> String {
    let parts = parts.iter().filter(|part| part.switch == switch);
    match parts.filter_map(|part| part.progress.behind(endpoint)).max() {
        None | Some(0) => String::new(),
        Some(behind) => format!("  {} behind", plural(behind as usize, "packet")),
    }
}

impl Report for GroupReport {
    fn page(&self, page: &mut Page) {
        page.title(&self.title);
        self.facts.page(page);
        if let Some(conflict) = &self.conflict {
            conflict.page(page);
        }
        page.title("Tree");
        match (&self.tree, &self.ranks) {
            (Some(tree), _) => page.line(tree.draw()),
            (None, Some(_)) => page.line("not placed: it is when all ranks have joined"),
            (None, None) => page.line("not planned yet: it is when all members have joined"),
        }
        if let Some(ranks) = &self.ranks {
            page.title("Ranks");
            page.rows(ranks, "none");
        }
        if self.lanes.len() > 1 {
            page.title("Lanes");
            page.rows(&self.lanes, "none");
        }
        for part in &self.switches {
            page.title(format!(
                "Switch {}{}{}",
                part.switch,
                lanes::title(self.lanes.len(), &part.lane, part.worker),
                part.progress.sentence()
            ));
            if !part.reason.is_empty() {
                page.line(format!("  {}", part.reason));
            }
            if !part.progress.is_empty() {
                part.progress.table(page);
            }
        }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct SwitchReport {
    #[serde(skip)]
    title: &'static str,
    switch: String,
    group: String,
    #[serde(flatten)]
    facts: Facts,
    conflict: Option<Conflict>,
    /// Of a multicast group.
    #[serde(skip_serializing_if = "Option::is_none")]
    counters: Option<Counted<MulticastCounters>>,
    #[serde(flatten)]
    progress: Progress,
}

impl SwitchReport {
    pub(super) fn new(switch: String, installed: api::InstalledGroup) -> Self {
        let progress = Progress::of(&installed);
        let mut counters = None;
        let mut conflict = None;
        let mut facts = Facts::default();
        let rule = installed.rule.clone().unwrap_or_default();
        facts.add("mcst_id", "McstID", rule.mcst_id.as_str());
        let owner = installed.owner.as_str();
        facts.add_as("owner", owner, "owner", owner_text(owner));
        facts.add("generation", "generation", rule.generation);
        facts.add("pmtu", "PMTU", rule.pmtu);
        add_rate(&mut facts, rule.rate_limit);
        let port = rule.upstream().map(|endpoint| endpoint.port);
        let name = rule.upstream().map(|endpoint| endpoint.name().to_owned());
        let title = match &installed.state {
            Some(State::Translated(state)) => {
                let kind = rule.translated().copied().unwrap_or_default();
                let parent = match (&name, port) {
                    (Some(name), Some(port)) => format!("{name}, port {port}"),
                    _ => "none: the tree's root".to_owned(),
                };
                let message = format!("{} packets", kind.message_packets);
                facts.field("kind", "collective");
                facts.add("start_psn", "start PSN", kind.start_psn);
                facts.add_as("message_packets", kind.message_packets, "message", message);
                policies(&mut facts, &policies_of_rule(&rule), "");
                facts.field("parent_port", port);
                facts.add_as("parent", name, "parent", parent);
                facts.line("memory", bytes(state.memory_bytes));
                let host = |rank| host_of(&rule, rank);
                conflict = state.conflict.as_ref().map(|c| Conflict::new(c, host));
                "Collective group"
            }
            Some(State::Forwarding(state)) => {
                facts.field("kind", "forwarding");
                facts.add_as(
                    "memory_bytes",
                    state.memory_bytes,
                    "memory",
                    bytes(state.memory_bytes),
                );
                facts.add_as("forwarded", state.forwarded, "forwarded", count(state.forwarded));
                facts.add_as("dropped", state.dropped, "dropped", count(state.dropped));
                "Forwarding group"
            }
            Some(State::Multicast(_)) | None => {
                let kind = rule.multicast().copied().unwrap_or_default();
                let learned = || "learned from the first data".to_owned();
                let start_psn = kind.start_psn.map_or_else(learned, |psn| psn.to_string());
                let planned = (name.as_deref().unwrap_or_default(), port.unwrap_or_default());
                let (name, port) = progress.source().unwrap_or(planned);
                facts.field("kind", "multicast");
                facts.field("any_source", kind.any_source != 0);
                facts.add_as("start_psn", kind.start_psn, "start PSN", start_psn);
                base_and_timeout(&mut facts, kind.va_base, rule.stall_timeout_ms);
                facts.field("source_port", port);
                let may = match kind.any_source() {
                    api::AnySource::Unspecified => String::new(),
                    numbers => format!("; any host may send, PSNs {}", last_word(numbers.as_str_name())),
                };
                facts.add_as("source", name, "source", format!("{name}, port {port}{may}"));
                if let Progress::Multicast {
                    progress: Some(p), ..
                } = &progress
                {
                    let state = format!("{} bytes hot, {} bytes cold", p.hot_bytes, p.cold_bytes);
                    facts.line("state", state);
                }
                counters = Some(Counted::from(&installed));
                "Group"
            }
        };
        facts.add("worker", "worker", installed.worker);
        Self {
            title,
            switch,
            group: rule.name,
            facts,
            conflict,
            counters,
            progress,
        }
    }
}

fn host_of(rule: &api::GroupRule, rank: u32) -> Option<String> {
    rule.endpoints
        .iter()
        .find_map(|endpoint| match &endpoint.next_hop {
            Some(api::endpoint::NextHop::Host(host)) if host.rank()?.rank == rank => Some(host.name.clone()),
            _ => None,
        })
}

impl Report for SwitchReport {
    fn page(&self, page: &mut Page) {
        let sentence = self.progress.sentence();
        page.title(format!(
            "{} {} at {}{sentence}",
            self.title, self.group, self.switch
        ));
        self.facts.page(page);
        if let Some(conflict) = &self.conflict {
            conflict.page(page);
        }
        page.title(match &self.progress {
            Progress::Multicast { .. } => "Paths",
            _ => "Endpoints",
        });
        self.progress.table(page);
        if let Some(counters) = &self.counters {
            page.title("Counters");
            page.rows(std::slice::from_ref(counters), "none");
        }
    }
}

/// The word for the owner of what operators and rule files have installed, which has no name.
pub(super) const OPERATOR: &str = "operator";

pub(super) fn owner_text(owner: &str) -> String {
    if owner.is_empty() { OPERATOR } else { owner }.to_owned()
}

fn add_rate(facts: &mut Facts, limit: Option<api::RateLimit>) {
    let rate = limit.map(|limit| limit.bits_per_second);
    facts.add_as("rate_bits_per_second", rate, "rate limit", rate::text(limit));
    facts.field("burst_bytes", limit.map(|limit| limit.burst_bytes));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For programs that read groups of both kinds, as in the list.
    #[test]
    fn a_report_has_the_kind_of_its_group() {
        let kind = |(report, _): (GroupReport, Vec<api::Lane>)| {
            let json = serde_json::to_value(&report).expect("JSON");
            json["kind"].clone()
        };
        let multicast = GroupReport::of_multicast(&api::GroupState::default());
        assert_eq!(kind(multicast), "multicast");
        let collective = GroupReport::of_collective(&api::Collective::default());
        assert_eq!(kind(collective), "collective");
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
            state: Some(State::Translated(state)),
            ..Default::default()
        };
        let part = SwitchPart {
            switch: "leaf1".to_owned(),
            lane: "job".to_owned(),
            worker: Some(0),
            installed: true,
            reason: String::new(),
            memory_bytes: Some(0),
            progress: Progress::of(&installed),
        };
        let far = |endpoint| how_far(std::slice::from_ref(&part), "leaf1", endpoint);
        assert_eq!(
            (far("h0").as_str(), far("h1").as_str(), far("h9").as_str()),
            ("  20 packets behind", "", "")
        );
    }
}
