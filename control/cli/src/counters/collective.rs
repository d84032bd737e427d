//! Counters of collective groups and of their endpoints.

use serde::Serialize;

use super::per_s;
use crate::api;
use crate::group::collective::ranks_text;
use crate::output::Row;
use crate::units::{bit_rate, bytes, count, plural};

/// What a collective group has done at a switch.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CollectiveRow {
    pub(crate) group: String,
    pub(crate) mcst_id: String,
    /// Data packets that were added or stored, and their bytes of payload.
    pub(crate) contributions: u64,
    pub(crate) contribution_bytes: u64,
    /// Data packets sent, and their bytes of payload.
    pub(crate) results: u64,
    pub(crate) result_bytes: u64,
    pub(crate) controls_in: u64,
    pub(crate) controls_out: u64,
    /// Packets that had come before.
    pub(crate) repeats: u64,
    pub(crate) acks_in: u64,
    pub(crate) acks_out: u64,
    pub(crate) naks_in: u64,
    pub(crate) naks_out: u64,
    pub(crate) rnr_naks_in: u64,
    pub(crate) rnr_naks_out: u64,
    /// Of the ACKs out: those that time alone asked for.
    pub(crate) keep_alives: u64,
    pub(crate) dropped: u64,
    /// Packets and feedback that were not sent: no buffer, or the port was down.
    pub(crate) lost: u64,
    pub(crate) stalls: u64,
    pub(crate) conflicts: u64,
    /// By endpoint, in the order of the lowest ranks behind them.
    pub(crate) endpoints: Vec<EndpointRow>,
}

impl From<api::InstalledGroup> for CollectiveRow {
    fn from(installed: api::InstalledGroup) -> Self {
        let state = installed.translated().cloned().unwrap_or_default();
        let counters = state.counters.unwrap_or_default();
        let rule = installed.rule.unwrap_or_default();
        let endpoints = state.status.unwrap_or_default().endpoints;
        Self {
            contributions: counters.contributions,
            contribution_bytes: counters.contribution_bytes,
            results: counters.results,
            result_bytes: counters.result_bytes,
            controls_in: counters.controls_in,
            controls_out: counters.controls_out,
            repeats: counters.repeats,
            acks_in: counters.acks_in,
            acks_out: counters.acks_out,
            naks_in: counters.naks_in,
            naks_out: counters.naks_out,
            rnr_naks_in: counters.rnr_naks_in,
            rnr_naks_out: counters.rnr_naks_out,
            keep_alives: counters.keep_alives,
            dropped: counters.dropped,
            lost: counters.lost,
            stalls: counters.stalls,
            conflicts: counters.conflicts,
            endpoints: endpoints
                .into_iter()
                .map(|e| EndpointRow::new(&rule.name, e))
                .collect(),
            group: rule.name,
            mcst_id: rule.mcst_id,
        }
    }
}

impl Row for CollectiveRow {
    const COLUMNS: &'static [&'static str] = &[
        "group",
        "mcst id",
        "contributions",
        "bytes in",
        "results",
        "bytes out",
        "controls in",
        "controls out",
        "repeats",
        "acks in",
        "acks out",
        "naks in",
        "naks out",
        "keep-alives",
        "dropped",
        "remark",
    ];

    fn cells(&self) -> Vec<String> {
        let told = [
            (self.stalls, "stall"),
            (self.conflicts, "conflict"),
            (self.lost, "lost frame"),
        ];
        let told = told
            .iter()
            .filter(|(n, _)| *n > 0)
            .map(|(n, what)| plural(*n as usize, what));
        vec![
            self.group.clone(),
            self.mcst_id.clone(),
            count(self.contributions),
            bytes(self.contribution_bytes),
            count(self.results),
            bytes(self.result_bytes),
            count(self.controls_in),
            count(self.controls_out),
            count(self.repeats),
            count(self.acks_in),
            count(self.acks_out),
            count(self.naks_in),
            count(self.naks_out),
            count(self.keep_alives),
            count(self.dropped),
            told.collect::<Vec<_>>().join(", "),
        ]
    }
}

/// What an endpoint of a collective group has done.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct EndpointRow {
    /// In JSON it stands in its group.
    #[serde(skip)]
    group: String,
    port: u32,
    /// The host or switch behind it.
    next_hop: String,
    ranks: Vec<u32>,
    /// Data and control packets taken from it.
    contributions: u64,
    repeats: u64,
    /// Data and control packets sent to it.
    results: u64,
    acks_in: u64,
    acks_out: u64,
    naks_in: u64,
    naks_out: u64,
    rnr_naks_in: u64,
    rnr_naks_out: u64,
    keep_alives: u64,
    lost: u64,
}

impl EndpointRow {
    fn new(group: &str, endpoint: api::EndpointStatus) -> Self {
        let counters = endpoint.counters.unwrap_or_default();
        Self {
            group: group.to_owned(),
            port: endpoint.port,
            next_hop: endpoint.next_hop,
            ranks: endpoint.ranks,
            contributions: counters.contributions,
            repeats: counters.repeats,
            results: counters.results,
            acks_in: counters.acks_in,
            acks_out: counters.acks_out,
            naks_in: counters.naks_in,
            naks_out: counters.naks_out,
            rnr_naks_in: counters.rnr_naks_in,
            rnr_naks_out: counters.rnr_naks_out,
            keep_alives: counters.keep_alives,
            lost: counters.lost,
        }
    }
}

impl Row for EndpointRow {
    const COLUMNS: &'static [&'static str] = &[
        "group",
        "port",
        "towards",
        "ranks",
        "contributions",
        "repeats",
        "results",
        "acks in",
        "acks out",
        "naks in",
        "naks out",
        "rnr in",
        "rnr out",
        "keep-alives",
        "lost",
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            self.group.clone(),
            self.port.to_string(),
            self.next_hop.clone(),
            ranks_text(&self.ranks),
            count(self.contributions),
            count(self.repeats),
            count(self.results),
            count(self.acks_in),
            count(self.acks_out),
            count(self.naks_in),
            count(self.naks_out),
            count(self.rnr_naks_in),
            count(self.rnr_naks_out),
            count(self.keep_alives),
            count(self.lost),
        ]
    }
}

/// How fast a collective group's counters grow.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CollectiveRate {
    group: String,
    mcst_id: String,
    contributions_per_s: f64,
    contribution_bits_per_s: f64,
    results_per_s: f64,
    result_bits_per_s: f64,
    repeats_per_s: f64,
    naks_per_s: f64,
    keep_alives_per_s: f64,
}

impl CollectiveRate {
    /// From two looks so many seconds apart.
    pub(super) fn new(now: &CollectiveRow, before: &CollectiveRow, seconds: f64) -> Self {
        let per_s = |of: fn(&CollectiveRow) -> u64| per_s(of(now), of(before), seconds);
        Self {
            group: now.group.clone(),
            mcst_id: now.mcst_id.clone(),
            contributions_per_s: per_s(|r| r.contributions),
            contribution_bits_per_s: 8.0 * per_s(|r| r.contribution_bytes),
            results_per_s: per_s(|r| r.results),
            result_bits_per_s: 8.0 * per_s(|r| r.result_bytes),
            repeats_per_s: per_s(|r| r.repeats),
            naks_per_s: per_s(|r| r.naks_in + r.naks_out),
            keep_alives_per_s: per_s(|r| r.keep_alives),
        }
    }
}

impl Row for CollectiveRate {
    const COLUMNS: &'static [&'static str] = &[
        "group",
        "mcst id",
        "contributions/s",
        "in",
        "results/s",
        "out",
        "repeats/s",
        "naks/s",
        "keep-alives/s",
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            self.group.clone(),
            self.mcst_id.clone(),
            count(self.contributions_per_s as u64),
            bit_rate(self.contribution_bits_per_s),
            count(self.results_per_s as u64),
            bit_rate(self.result_bits_per_s),
            count(self.repeats_per_s as u64),
            count(self.naks_per_s as u64),
            count(self.keep_alives_per_s as u64),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(contributions: u64, stalls: u64) -> CollectiveRow {
        let endpoint = api::EndpointStatus {
            port: 3,
            next_hop: "h4".to_owned(),
            ranks: vec![1, 2, 3],
            counters: Some(api::EndpointCounters {
                contributions,
                acks_out: 7,
                ..Default::default()
            }),
            ..Default::default()
        };
        let state = api::TranslatedState {
            status: Some(api::TranslatedStatus {
                endpoints: vec![endpoint],
                ..Default::default()
            }),
            counters: Some(api::TranslatedCounters {
                contributions,
                contribution_bytes: 1000 * contributions,
                stalls,
                ..Default::default()
            }),
        };
        api::InstalledGroup {
            rule: Some(api::GroupRule {
                name: "job".to_owned(),
                ..Default::default()
            }),
            state: Some(api::installed_group::State::Translated(state)),
            ..Default::default()
        }
        .into()
    }

    #[test]
    fn control_messages_stand_in_the_table() {
        let row = CollectiveRow {
            controls_in: 21,
            controls_out: 34,
            ..row(5, 0)
        };
        let cell = |column| {
            let at = CollectiveRow::COLUMNS.iter().position(|c| *c == column);
            row.cells()[at.expect("a column")].clone()
        };
        assert_eq!([cell("controls in"), cell("controls out")], ["21", "34"]);
    }

    #[test]
    fn each_endpoint_stands_in_its_group() {
        let row = row(5, 2);
        assert_eq!(row.cells().last().map(String::as_str), Some("2 stalls"));
        assert_eq!(row.cells().len(), CollectiveRow::COLUMNS.len());
        let cells = row.endpoints[0].cells();
        assert_eq!(cells[..5], ["job", "3", "h4", "1-3", "5"]);
        assert_eq!(cells.len(), EndpointRow::COLUMNS.len());
        let json = serde_json::to_value(&row).expect("JSON");
        assert_eq!(
            (&json["stalls"], &json["endpoints"][0]["acks_out"]),
            (&2.into(), &7.into())
        );
    }

    #[test]
    fn rates_are_differences_and_a_group_that_counts_anew_has_none() {
        let rate = CollectiveRate::new(&row(30, 0), &row(10, 0), 2.0);
        assert_eq!(
            (rate.contributions_per_s, rate.contribution_bits_per_s),
            (10.0, 80_000.0)
        );
        assert_eq!(rate.cells().len(), CollectiveRate::COLUMNS.len());
        assert_eq!(
            CollectiveRate::new(&row(1, 0), &row(10, 0), 2.0).contributions_per_s,
            0.0
        );
    }
}
