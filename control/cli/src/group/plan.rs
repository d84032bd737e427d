//! Where a group would be placed, before it is created.

use castnet_console::exit::{Failure, Outcome};
use castnet_console::output::{Output, Page, Report};
use castnet_console::units::bytes;
use castnet_console::{api, rate};
use castnet_console::{columns, tree};
use serde::Serialize;

use super::collective::{mode_of, mode_text};
use super::flags::flags;
use super::show::over_covered;
use super::{AtController, in_lanes, refused};

#[derive(Debug, Serialize)]
struct PlanReport {
    group: String,
    mcst_id: String,
    lanes: u32,
    /// Limit of each sender; `None`: no limit.
    rate_bits_per_second: Option<u64>,
    burst_bytes: Option<u64>,
    #[serde(skip)]
    rate_limit: String,
    /// `None`: a multicast group.
    mode: Option<&'static str>,
    mode_reason: Option<String>,
    /// Why there is no place for it.
    refusal: Option<String>,
    /// Whether it would be created nevertheless, and wait.
    may_come: bool,
    #[serde(skip)]
    drawing: Option<String>,
    #[serde(skip)]
    why: String,
    switches: Vec<SwitchLine>,
    links: Vec<LinkLine>,
    passed_over: Vec<PassedOverLine>,
    /// Switches without members that would get copies.
    over_covered: Vec<String>,
}

#[derive(Debug, Serialize)]
struct SwitchLine {
    switch: String,
    parent: Option<String>,
    endpoints: usize,
    slots: Option<u32>,
    memory_bytes: u64,
    memory_free_bytes: u64,
    memory_max_bytes: u64,
    groups_free: u64,
    groups_max: u64,
    #[serde(skip)]
    lanes: u64,
}

impl SwitchLine {
    fn memory_free(&self) -> String {
        before_and_after(
            self.memory_max_bytes,
            self.memory_free_bytes,
            self.memory_bytes,
            bytes,
        )
    }

    fn groups_left(&self) -> String {
        before_and_after(self.groups_max, self.groups_free, self.lanes, |n| n.to_string())
    }
}

/// `64 MiB, then 60 MiB`.
fn before_and_after(max: u64, before: u64, takes: u64, show: impl Fn(u64) -> String) -> String {
    match max {
        // Not reported.
        0 => "-".to_owned(),
        _ => format!("{}, then {}", show(before), show(before.saturating_sub(takes))),
    }
}

columns!(row: SwitchLine => row {
    switch, parent, endpoints, slots, memory_bytes as "memory", memory_free(), groups_left(),
});

#[derive(Debug, Serialize)]
struct LinkLine {
    switch: String,
    port: u32,
    next_hops: Vec<String>,
    /// Groups on the link now.
    groups: u32,
}

impl LinkLine {
    fn to(&self) -> String {
        self.next_hops.join(" ")
    }
}

columns!(row: LinkLine => row { switch, port, to(), groups as "groups now" });

#[derive(Debug, Serialize)]
struct PassedOverLine {
    switch: String,
    reason: String,
}

columns!(row: PassedOverLine => row { switch, reason });

impl PlanReport {
    /// `source`: of a multicast group, and its distribution.
    fn new(answer: api::PlanGroupResponse, source: Option<(&str, &str)>) -> Self {
        // Nothing is installed, which the drawing need not say.
        let node = |s: &api::PlannedSwitch| {
            Some(api::TreeNode {
                installed: true,
                ..s.node.clone()?
            })
        };
        let nodes: Vec<api::TreeNode> = answer.switches.iter().filter_map(node).collect();
        let root = match source {
            Some((source, _)) => tree::of_multicast(source, &nodes),
            None => tree::of_collective(&nodes, &|_, _| String::new()),
        };
        let mut links = Vec::new();
        let line = |switch: api::PlannedSwitch| {
            let (node, room) = (switch.node.unwrap_or_default(), switch.room.unwrap_or_default());
            let rule = node.rule.unwrap_or_default();
            links.extend(switch.links.into_iter().map(|link| LinkLine {
                switch: node.switch_name.clone(),
                port: link.port,
                next_hops: link.next_hops,
                groups: link.groups,
            }));
            SwitchLine {
                endpoints: rule.endpoints.len(),
                slots: rule.translated().map(|kind| kind.slots),
                switch: node.switch_name,
                parent: Some(node.parent).filter(|parent| !parent.is_empty()),
                memory_bytes: node.memory_bytes,
                memory_free_bytes: room.memory_bytes_free,
                memory_max_bytes: room.memory_bytes_max,
                groups_free: room.groups_free,
                groups_max: room.groups_max,
                lanes: answer.lanes.into(),
            }
        };
        let mode = Some(answer.mode()).filter(|mode| *mode != api::CollectiveMode::Unspecified);
        let switches = answer.switches.into_iter().map(line).collect();
        let passed_over = answer.passed_over.into_iter().map(|over| PassedOverLine {
            switch: over.switch_name,
            reason: over.reason,
        });
        Self {
            group: answer.name,
            mcst_id: answer.mcst_id,
            lanes: answer.lanes,
            rate_bits_per_second: answer.rate_limit.map(|limit| limit.bits_per_second),
            burst_bytes: answer.rate_limit.map(|limit| limit.burst_bytes),
            rate_limit: rate::text(answer.rate_limit),
            mode: mode.map(|mode| mode_of(mode).name()),
            mode_reason: mode.map(|_| answer.mode_reason),
            refusal: Some(flags().sentence(&answer.refusal)).filter(|why| !why.is_empty()),
            may_come: answer.may_come,
            drawing: root.map(|root| root.draw()),
            why: match source {
                Some((_, "switches")) => {
                    "along the shortest paths from the source, over the links with the fewest groups".to_owned()
                }
                Some((_, distribution)) => format!("from the source, with --distribution {distribution}"),
                None => {
                    "below the lowest switch that reaches all ranks, on switches with room, over the links with the fewest groups".to_owned()
                }
            },
            switches,
            links,
            passed_over: passed_over.collect(),
            over_covered: answer.over_covered,
        }
    }
}

fn switches(count: usize) -> String {
    match count {
        1 => "1 switch".to_owned(),
        more => format!("{more} switches"),
    }
}

impl Report for PlanReport {
    fn page(&self, page: &mut Page) {
        if let Some(refusal) = &self.refusal {
            let but = match self.may_come {
                true => "; it would be created, and wait for that",
                false => "",
            };
            page.line(format!("Group {} has no place: {refusal}{but}", self.group));
        } else {
            page.line(format!(
                "Group {} would be placed on {}{}, {}",
                self.group,
                switches(self.switches.len()),
                in_lanes(self.lanes as usize),
                self.why
            ));
        }
        if let (Some(mode), Some(reason)) = (self.mode, &self.mode_reason) {
            page.line(format!("Mode: {}", mode_text(mode, reason)));
        }
        if self.rate_bits_per_second.is_some() {
            page.line(format!("Rate limit: {}", self.rate_limit));
        }
        if !self.over_covered.is_empty() {
            page.line(format!("Over-covered: {}", over_covered(&self.over_covered)));
        }
        if let Some(drawing) = &self.drawing {
            page.title(drawing.trim_end());
        }
        if !self.switches.is_empty() {
            page.title("Switches (all lanes)");
            page.rows(&self.switches, "");
            page.title("Links");
            page.rows(&self.links, "");
        }
        if !self.passed_over.is_empty() {
            page.title("Switches that it cannot be placed on");
            page.rows(&self.passed_over, "");
        }
    }
}

pub(crate) async fn run(at: &AtController, group: api::plan_group_request::Group, output: Output) -> Outcome {
    let (name, source) = match &group {
        api::plan_group_request::Group::Multicast(request) => {
            let source = (request.source.clone(), request.distribution.clone());
            (request.name.clone(), Some(source))
        }
        api::plan_group_request::Group::Collective(request) => (request.name.clone(), None),
    };
    let request = api::PlanGroupRequest { group: Some(group) };
    let answer = at.connect().await?.plan_group(request).await;
    let answer = answer.map_err(refused)?;
    let source = source
        .as_ref()
        .map(|(source, distribution)| (&**source, &**distribution));
    let report = PlanReport::new(answer.into_inner(), source);
    let verdict = match report.refusal {
        Some(_) if !report.may_come => Err(Failure::refused(format!("group {name} has no place"))
            .next("castnet topology shows the switches, their links and what they have left")),
        _ => Ok(()),
    };
    output.conclude(&report, verdict)
}
