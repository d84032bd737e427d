//! How far a group is at a switch, and how far each of its paths or endpoints is.

use castnet_console::api::{self, installed_group::State};
use castnet_console::columns;
use castnet_console::exit::Outcome;
use castnet_console::output::{Output, Page, Rows};
use castnet_console::units::count;
use castnet_wire::Psn;
use serde::Serialize;

use super::collective::ranks_text;

#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Progress {
    Multicast {
        progress: Option<api::MulticastState>,
        paths: Vec<PathRow>,
    },
    Collective {
        progress: Option<api::TranslatedState>,
        endpoints: Vec<EndpointRow>,
    },
    Forwarding {
        endpoints: Vec<ForwardingRow>,
    },
}

impl Progress {
    pub(super) fn of(installed: &api::InstalledGroup) -> Self {
        match installed.state.clone() {
            Some(State::Translated(state)) => Self::Collective {
                endpoints: endpoint_rows(installed, &state),
                progress: Some(state),
            },
            Some(State::Forwarding(state)) => Self::Forwarding {
                endpoints: state.endpoints.into_iter().map(ForwardingRow).collect(),
            },
            Some(State::Multicast(state)) => Self::Multicast {
                paths: path_rows(installed, &state),
                progress: Some(state),
            },
            None => Self::unknown(false),
        }
    }

    /// Of a switch that has not answered.
    pub(super) fn unknown(collective: bool) -> Self {
        match collective {
            true => Self::Collective {
                progress: None,
                endpoints: Vec::new(),
            },
            false => Self::Multicast {
                progress: None,
                paths: Vec::new(),
            },
        }
    }

    /// Text behind the title; empty if the switch has not answered.
    pub(super) fn sentence(&self) -> String {
        match self {
            Self::Multicast {
                progress: Some(p), ..
            } => {
                let psn = |psn: Option<u32>| psn.map_or_else(|| "-".to_owned(), |psn| psn.to_string());
                let (newest, acknowledged) = (psn(p.newest_psn), psn(p.agg_ack_psn));
                let lost = p.me_psn.map(|m| format!(", MePSN {m}")).unwrap_or_default();
                let ring = p.ring.as_ref().map(ring_sentence).unwrap_or_default();
                format!(": newest PSN {newest}, AggAckPSN {acknowledged}{lost}{ring}")
            }
            Self::Collective {
                progress: Some(p), ..
            } => collective_sentence(p),
            _ => String::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Multicast { paths, .. } => paths.is_empty(),
            Self::Collective { endpoints, .. } => endpoints.is_empty(),
            Self::Forwarding { endpoints } => endpoints.is_empty(),
        }
    }

    pub(super) fn table(&self, page: &mut Page) {
        match self {
            Self::Multicast { paths, .. } => page.rows(paths, "none"),
            Self::Collective { endpoints, .. } => page.rows(endpoints, "none"),
            Self::Forwarding { endpoints } => page.rows(endpoints, "none"),
        }
    }

    pub(super) fn show_table(self, output: Output) -> Outcome {
        match self {
            Self::Multicast { paths, .. } => output.show(&Rows::new(paths, "no paths")),
            Self::Collective { endpoints, .. } => output.show(&Rows::new(endpoints, "no endpoints")),
            Self::Forwarding { endpoints } => output.show(&Rows::new(endpoints, "no endpoints")),
        }
    }

    /// Name and port of the present source of a multicast group, or of the switch towards it.
    pub(super) fn source(&self) -> Option<(&str, u32)> {
        let Self::Multicast { paths, .. } = self else {
            return None;
        };
        let source = paths.iter().find(|row| row.path.source);
        source.map(|row| (row.path.next_hop.as_str(), row.path.port))
    }

    /// Packets that an endpoint of a collective group is behind the foremost one.
    pub(super) fn behind(&self, next_hop: &str) -> Option<u32> {
        let Self::Collective { endpoints, .. } = self else {
            return None;
        };
        let endpoints = endpoints.iter().filter(|e| e.status.next_hop == next_hop);
        endpoints.filter_map(|e| e.behind).max()
    }
}

fn collective_sentence(status: &api::TranslatedState) -> String {
    let failed = if status.failed { ", failed" } else { "" };
    let call = match (status.sequence, status.failed) {
        (Some(sequence), true) => format!(" at collective {sequence} ({})", status.call),
        (Some(sequence), false) => format!(", now collective {sequence} ({})", status.call),
        (None, true) => String::new(),
        (None, false) => ", idle".to_owned(),
    };
    format!(
        ": {} finished{failed}{call}; {} of {} slots in use from PSN {}",
        count(status.finished),
        status.slots_used,
        status.slots,
        status.base_psn
    )
}

fn core(installed: &api::InstalledGroup, endpoint: usize) -> Option<String> {
    let endpoint = installed.rule.as_ref()?.endpoints.get(endpoint)?;
    match endpoint.next_hop.as_ref()? {
        api::endpoint::NextHop::Switch(switch) => switch.core.clone(),
        api::endpoint::NextHop::Host(_) => None,
    }
}

fn virtual_qpn(installed: &api::InstalledGroup, endpoint: usize) -> u32 {
    let rule = installed.rule.as_ref();
    let endpoint = rule.and_then(|rule| rule.endpoints.get(endpoint));
    endpoint.map_or(0, api::Endpoint::virtual_qpn_or_default)
}

#[derive(Debug, Serialize)]
pub(super) struct PathRow {
    #[serde(flatten)]
    path: api::PathStatus,
    virtual_qpn: u32,
    role: &'static str,
    /// PSNs from this path's last acknowledged one to the newest of the source.
    behind: Option<u32>,
    /// The multicast address of a static core that leads to it, or that its data comes to.
    #[serde(skip_serializing_if = "Option::is_none")]
    core: Option<String>,
}

impl PathRow {
    fn remark(&self) -> String {
        let stalled = self.path.stalled.then(|| "stalled".to_owned());
        let core = self.core.as_ref().map(|core| format!("core {core}"));
        let remarks: Vec<String> = stalled.into_iter().chain(core).collect();
        remarks.join("; ")
    }
}

columns!(row: PathRow => (row.path) { port } row { virtual_qpn as "qpn" } (row.path) { next_hop } row { role }
    (row.path) { ack_psn } row { behind } (row.path.counters.unwrap_or_default()) {
        copies_out, acks_in, naks_in, rnr_naks_in, filtered,
    } row { remark() });

fn ring_sentence(ring: &api::RingStatus) -> String {
    let missing = ring.missing_psn.map(|psn| format!(", PSN {psn} is missing"));
    format!(
        "; keeps {} of at most {} packets{}",
        ring.held,
        ring.slots,
        missing.unwrap_or_default()
    )
}

fn path_rows(installed: &api::InstalledGroup, state: &api::MulticastState) -> Vec<PathRow> {
    let row = |(i, path): (usize, &api::PathStatus)| {
        let ack_psn = path.ack_psn.filter(|_| !path.source);
        PathRow {
            virtual_qpn: virtual_qpn(installed, i),
            core: core(installed, i),
            role: if path.source { "source" } else { "receiver" },
            behind: state
                .newest_psn
                .zip(ack_psn)
                .map(|(newest, acknowledged)| distance(acknowledged, newest)),
            path: api::PathStatus {
                ack_psn,
                ..path.clone()
            },
        }
    };
    state.paths.iter().enumerate().map(row).collect()
}

/// PSNs are the group's.
#[derive(Debug, Serialize)]
pub(super) struct EndpointRow {
    #[serde(flatten)]
    status: api::EndpointStatus,
    virtual_qpn: u32,
    /// Packets that it is behind the foremost endpoint. Unknown for the parent, which sends results.
    behind: Option<u32>,
}

impl EndpointRow {
    fn ranks(&self) -> String {
        ranks_text(&self.status.ranks)
    }

    fn remark(&self) -> &'static str {
        match (self.status.parent, self.status.waited_for) {
            (true, true) => "parent; waited for",
            (true, false) => "parent",
            (false, true) => "waited for",
            (false, false) => "",
        }
    }
}

columns!(row: EndpointRow => (row.status) { port } row { virtual_qpn as "qpn" } (row.status) { next_hop } row { ranks() }
    (row.status) { expected_psn, next_psn, unacknowledged_psn } row { behind } (row.status.counters.unwrap_or_default()) {
        contributions, repeats, results, naks_in, naks_out, keep_alives,
    } row { remark() });

fn endpoint_rows(installed: &api::InstalledGroup, state: &api::TranslatedState) -> Vec<EndpointRow> {
    let done = |endpoint: &api::EndpointStatus| {
        let expected = endpoint.expected_psn.filter(|_| !endpoint.parent)?;
        Some(distance(state.base_psn, expected))
    };
    let foremost = state.endpoints.iter().filter_map(done).max().unwrap_or(0);
    let row = |(i, endpoint): (usize, &api::EndpointStatus)| EndpointRow {
        behind: done(endpoint).map(|done| foremost - done),
        virtual_qpn: virtual_qpn(installed, i),
        status: endpoint.clone(),
    };
    state.endpoints.iter().enumerate().map(row).collect()
}

/// PSNs wrap.
fn distance(from: u32, to: u32) -> u32 {
    to.wrapping_sub(from) & (Psn::MODULUS - 1)
}

#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(super) struct ForwardingRow(api::ForwardingEndpoint);

columns!(row: ForwardingRow => (row.0) { port, next_hop, frames_in, frames_out });

#[cfg(test)]
mod tests {
    use super::*;
    use castnet_console::output::Row;

    fn installed(state: State) -> api::InstalledGroup {
        api::InstalledGroup {
            state: Some(state),
            ..Default::default()
        }
    }

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
        let rows = path_rows(&api::InstalledGroup::default(), &state);
        let behind: Vec<_> = rows.iter().map(|row| row.behind).collect();
        assert_eq!(behind, [Some(6), None, None]);
    }

    #[test]
    fn behind_wraps_with_the_psns_and_is_not_known_of_the_parent() {
        let endpoint = |port: u32, expected_psn, parent| api::EndpointStatus {
            port,
            next_hop: format!("h{port}"),
            expected_psn,
            parent,
            ..Default::default()
        };
        let state = api::TranslatedState {
            base_psn: 0xFF_FFF0,
            endpoints: vec![
                endpoint(0, Some(0xFF_FFF0), false),
                endpoint(1, Some(4), false),
                endpoint(2, None, false),
                endpoint(3, Some(0xFF_FFF0), true),
            ],
            ..Default::default()
        };
        let rows = endpoint_rows(&api::InstalledGroup::default(), &state);
        let behind: Vec<_> = rows.iter().map(|row| row.behind).collect();
        assert_eq!(behind, [Some(20), Some(0), None, None]);
        assert_eq!(rows[0].cells().len(), EndpointRow::COLUMNS.len());
        let progress = Progress::of(&installed(State::Translated(state)));
        let behind = ["h0", "h1", "h3", "h9"].map(|name| progress.behind(name));
        assert_eq!(behind, [Some(20), Some(0), None, None]);
    }

    #[test]
    fn progress_is_a_sentence() {
        let mut status = api::TranslatedState {
            base_psn: 77,
            sequence: Some(3),
            call: "allreduce sum f32".to_owned(),
            slots_used: 5,
            slots: 128,
            finished: 3,
            ..Default::default()
        };
        let says = ": 3 finished, now collective 3 (allreduce sum f32); 5 of 128 slots in use from PSN 77";
        assert_eq!(collective_sentence(&status), says);
        (status.sequence, status.failed) = (None, true);
        assert!(collective_sentence(&status).contains("finished, failed; "));
        assert_eq!(Progress::unknown(true).sentence(), "");
    }
}
