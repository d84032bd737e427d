//! One group: its tree drawn, and how far each path has acknowledged.

use std::collections::BTreeMap;

use castnet_console::api;
use castnet_console::columns;
use castnet_console::connect;
use castnet_console::output::{Page, Report, named};
use castnet_console::tree::{self, Node};
use castnet_proto::transport::{Address, Security};
use castnet_worker::engine::{MulticastCounters, PathCounters, copy_path_counters};
use serde::Serialize;

use super::at_switch::owner_text;
use super::collective::millis;
use super::lanes::{self, LaneLine};
use super::phase_name;
use crate::counters::Counted;

/// A group as the controller planned it and as the switches see it.
#[derive(Debug, Serialize)]
pub(crate) struct GroupReport {
    pub(crate) group: String,
    pub(crate) mcst_id: String,
    /// Where switches have McstIDs of their own, that of each member.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) mcst_ids: BTreeMap<String, String>,
    pub(crate) lanes: Vec<LaneLine>,
    pub(crate) phase: &'static str,
    pub(crate) reason: String,
    pub(crate) source: String,
    pub(crate) pmtu: u32,
    pub(crate) start_psn: u32,
    pub(crate) va_base: u64,
    pub(crate) stall_timeout_ms: u32,
    pub(crate) generation: u64,
    pub(crate) tree: Option<Node>,
    pub(crate) switches: Vec<SwitchPart>,
}

/// One switch's part in a lane of a group.
#[derive(Debug, Serialize)]
pub(crate) struct SwitchPart {
    pub(crate) switch: String,
    pub(crate) lane: String,
    /// Who has it there, where the switch answered.
    pub(crate) worker: Option<u32>,
    pub(crate) installed: bool,
    /// Why the switch has not got its part, or why it could not be asked.
    pub(crate) reason: String,
    pub(crate) progress: Option<Progress>,
    pub(crate) paths: Vec<PathRow>,
}

/// How far a group is at a switch.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Progress {
    pub(crate) newest_psn: Option<u32>,
    pub(crate) agg_ack_psn: Option<u32>,
    pub(crate) me_psn: Option<u32>,
    pub(crate) hot_bytes: u64,
    pub(crate) cold_bytes: u64,
}

/// How far a path is.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PathRow {
    pub(crate) port: u32,
    pub(crate) virtual_qpn: u32,
    pub(crate) next_hop: String,
    pub(crate) role: &'static str,
    pub(crate) ack_psn: Option<u32>,
    /// PSNs between the newest that the source sent and the newest that this path acknowledged.
    pub(crate) behind: Option<u32>,
    pub(crate) stalled: bool,
    pub(crate) copies_out: u64,
    #[serde(flatten, serialize_with = "named")]
    pub(crate) counters: PathCounters,
}

impl PathRow {
    fn remark(&self) -> &'static str {
        if self.stalled { "stalled" } else { "" }
    }
}

columns!(row: PathRow => row { port, virtual_qpn as "qpn", next_hop, role, ack_psn, behind, copies_out } (row.counters) {
    acks_in, naks_in, rnr_naks_in, filtered,
} row { remark() });

fn psn(value: Option<u32>) -> String {
    value.map_or_else(|| "-".to_owned(), |v| v.to_string())
}

impl GroupReport {
    /// The controller's view, completed by asking each switch of the tree; one that does not answer leaves a gap.
    pub(crate) async fn gather(
        group: api::Group,
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
                parts.push(SwitchPart::ask(node, endpoint, lane, security).await);
            }
        }
        let at = parts
            .iter()
            .map(|part| (part.switch.as_str(), part.lane.as_str(), part.worker));
        Self {
            lanes: lanes::lines(&lanes, at),
            phase: phase_name(state.phase()),
            tree: tree::of_multicast(&state.source, &group.tree),
            mcst_ids: super::mcst_ids(&state),
            group: state.name,
            mcst_id: state.mcst_id,
            reason: state.reason,
            source: state.source,
            pmtu: state.pmtu,
            start_psn: state.start_psn,
            va_base: state.va_base,
            stall_timeout_ms: state.stall_timeout_ms,
            generation: state.generation,
            switches: parts,
        }
    }
}

impl SwitchPart {
    async fn ask(
        node: &api::TreeNode,
        endpoint: Option<&str>,
        lane: &api::Lane,
        security: &Security,
    ) -> Self {
        let (answer, reason) = match installed(endpoint, lanes::at(lane, &node.lanes), security).await {
            Ok(answer) => (Some(answer), node.reason.clone()),
            Err(why) => (
                None,
                if node.reason.is_empty() {
                    why
                } else {
                    node.reason.clone()
                },
            ),
        };
        let worker = answer.as_ref().map(|g| g.worker);
        let (progress, paths) = answer.map(|g| (progress(&g), path_rows(&g))).unwrap_or_default();
        Self {
            switch: node.switch_name.clone(),
            lane: lane.name.clone(),
            worker,
            installed: node.installed,
            reason,
            progress,
            paths,
        }
    }
}

/// The group as its switch has it, or why it cannot be told.
pub(super) async fn installed(
    endpoint: Option<&str>,
    mcst_id: &str,
    security: &Security,
) -> Result<api::InstalledGroup, String> {
    let endpoint = endpoint.ok_or("the controller does not know where it is")?;
    let address: Address = endpoint
        .parse()
        .map_err(|_| format!("{endpoint} is no address that can be asked"))?;
    let mut agent = connect::agent(&address, security).await.map_err(|f| f.what)?;
    let request = api::ListGroupsRequest {
        mcst_id: Some(mcst_id.to_owned()),
        ..Default::default()
    };
    let answer = agent
        .list_groups(request)
        .await
        .map_err(|s| s.message().to_owned())?;
    let group = answer.into_inner().groups.pop();
    group.ok_or_else(|| "it has no such group".to_owned())
}

fn progress(installed: &api::InstalledGroup) -> Option<Progress> {
    installed.multicast().map(|state| Progress {
        newest_psn: state.newest_psn,
        agg_ack_psn: state.agg_ack_psn,
        me_psn: state.me_psn,
        hot_bytes: state.hot_bytes,
        cold_bytes: state.cold_bytes,
    })
}

/// The QPN that frames of an endpoint are addressed to.
pub(super) fn virtual_qpn(installed: &api::InstalledGroup, endpoint: usize) -> u32 {
    let rule = installed.rule.as_ref();
    let endpoint = rule.and_then(|rule| rule.endpoints.get(endpoint));
    endpoint.map_or(0, api::Endpoint::virtual_qpn_or_default)
}

fn path_rows(installed: &api::InstalledGroup) -> Vec<PathRow> {
    let state = installed.multicast().cloned().unwrap_or_default();
    let newest = state.newest_psn;
    let row = |(i, path): (usize, api::PathStatus)| {
        let counters = path.counters.unwrap_or_default();
        let behind = match (newest, path.ack_psn) {
            (Some(newest), Some(acked)) if !path.source => Some(newest.wrapping_sub(acked) & 0xFF_FFFF),
            _ => None,
        };
        PathRow {
            port: path.port,
            virtual_qpn: virtual_qpn(installed, i),
            next_hop: path.next_hop,
            role: if path.source { "source" } else { "receiver" },
            ack_psn: path.ack_psn.filter(|_| !path.source),
            behind,
            stalled: path.stalled,
            copies_out: counters.copies_out,
            counters: copy_path_counters!(counters => PathCounters),
        }
    };
    state.paths.into_iter().enumerate().map(row).collect()
}

impl Report for GroupReport {
    fn page(&self, page: &mut Page) {
        let reason = if self.reason.is_empty() {
            String::new()
        } else {
            format!(": {}", self.reason)
        };
        page.title(format!("Group {}, {}{reason}", self.group, self.phase));
        let own = self
            .mcst_ids
            .iter()
            .map(|(host, own)| (host.as_str(), Some(own.as_str())));
        page.facts(&[
            ("McstID", lanes::addresses(&self.mcst_id, own)),
            ("generation", self.generation.to_string()),
            ("source", self.source.clone()),
            ("PMTU", self.pmtu.to_string()),
            ("start PSN", self.start_psn.to_string()),
            ("address base", format!("{:#x}", self.va_base)),
            ("stall time-out", millis(self.stall_timeout_ms)),
        ]);
        page.title("Tree");
        match &self.tree {
            Some(tree) => page.line(tree.draw()),
            None => page.line("not planned yet: it is when all members have joined"),
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
                progress_text(part.progress.as_ref())
            ));
            if !part.reason.is_empty() {
                page.line(format!("  {}", part.reason));
            }
            if !part.paths.is_empty() {
                page.rows(&part.paths, "");
            }
        }
    }
}

fn progress_text(progress: Option<&Progress>) -> String {
    progress.map_or_else(String::new, |p| {
        let waiting = p.me_psn.map_or_else(String::new, |m| format!(", MePSN {m}"));
        format!(
            ": newest PSN {}, AggAckPSN {}{waiting}",
            psn(p.newest_psn),
            psn(p.agg_ack_psn)
        )
    })
}

/// A group as one switch has it.
#[derive(Debug, Serialize)]
pub(crate) struct SwitchGroupReport {
    pub(crate) switch: String,
    pub(crate) group: String,
    pub(crate) mcst_id: String,
    pub(crate) owner: String,
    pub(crate) generation: u64,
    pub(crate) pmtu: u32,
    /// `None` where it is learned from the first data.
    pub(crate) start_psn: Option<u32>,
    pub(crate) va_base: u64,
    pub(crate) stall_timeout_ms: u32,
    /// The endpoint that data comes from, and its port.
    pub(crate) source: String,
    pub(crate) source_port: u32,
    pub(crate) worker: u32,
    pub(crate) progress: Option<Progress>,
    pub(crate) counters: Counted<MulticastCounters>,
    pub(crate) paths: Vec<PathRow>,
}

impl SwitchGroupReport {
    pub(crate) fn new(switch: String, installed: api::InstalledGroup) -> Self {
        let (progress, paths) = (progress(&installed), path_rows(&installed));
        let counters = Counted::from(&installed);
        let rule = installed.rule.unwrap_or_default();
        let kind = rule.multicast().copied().unwrap_or_default();
        let source = rule.upstream();
        let source_port = source.map_or(0, |endpoint| endpoint.port);
        let source = source.map_or_else(String::new, |endpoint| endpoint.name().to_owned());
        Self {
            switch,
            group: rule.name,
            mcst_id: rule.mcst_id,
            owner: installed.owner,
            generation: rule.generation,
            pmtu: rule.pmtu,
            start_psn: kind.start_psn,
            va_base: kind.va_base,
            stall_timeout_ms: rule.stall_timeout_ms,
            source,
            source_port,
            worker: installed.worker,
            progress,
            counters,
            paths,
        }
    }
}

impl Report for SwitchGroupReport {
    fn page(&self, page: &mut Page) {
        page.title(format!(
            "Group {} at {}{}",
            self.group,
            self.switch,
            progress_text(self.progress.as_ref())
        ));
        let start_psn = self
            .start_psn
            .map_or_else(|| "learned from the first data".to_owned(), |p| p.to_string());
        let mut facts = vec![
            ("McstID", self.mcst_id.clone()),
            ("owner", owner_text(&self.owner)),
            ("generation", self.generation.to_string()),
            ("PMTU", self.pmtu.to_string()),
            ("start PSN", start_psn),
            ("address base", format!("{:#x}", self.va_base)),
            ("stall time-out", millis(self.stall_timeout_ms)),
            ("source", format!("{}, port {}", self.source, self.source_port)),
            ("worker", self.worker.to_string()),
        ];
        if let Some(progress) = &self.progress {
            facts.push((
                "state",
                format!(
                    "{} bytes hot, {} bytes cold",
                    progress.hot_bytes, progress.cold_bytes
                ),
            ));
        }
        page.facts(&facts);
        page.title("Paths");
        page.rows(&self.paths, "none");
        page.title("Counters");
        page.rows(std::slice::from_ref(&self.counters), "none");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_path_is_behind_wraps_with_the_psns() {
        let path = |ack_psn, source| api::PathStatus {
            ack_psn,
            source,
            ..Default::default()
        };
        let state = api::MulticastState {
            newest_psn: Some(4),
            paths: vec![
                path(Some(0xFF_FFFE), false),
                path(None, false),
                path(Some(1), true),
            ],
            ..Default::default()
        };
        let installed = api::InstalledGroup {
            state: Some(api::installed_group::State::Multicast(state)),
            ..Default::default()
        };
        let behind: Vec<_> = path_rows(&installed).iter().map(|p| p.behind).collect();
        assert_eq!(behind, [Some(6), None, None]);
    }
}
