use castnet_console::api;
use castnet_console::columns;
use castnet_console::output::named;
use castnet_console::units::plural;
use castnet_worker::engine::{
    CollectiveCounters, EndpointCounters, copy_collective_counters, copy_endpoint_counters,
};
use serde::Serialize;

use super::Counted;
use crate::group::collective::ranks_text;

#[derive(Clone, Debug, Serialize)]
pub(crate) struct CollectiveRow {
    #[serde(flatten)]
    pub(super) counted: Counted<CollectiveCounters>,
    /// In the order of the lowest ranks behind them.
    pub(crate) endpoints: Vec<EndpointRow>,
}

impl From<api::InstalledGroup> for CollectiveRow {
    fn from(installed: api::InstalledGroup) -> Self {
        let state = installed.translated().cloned().unwrap_or_default();
        let counters = copy_collective_counters!(state.counters.unwrap_or_default() => CollectiveCounters);
        let counted = Counted::new(installed.rule.as_ref(), counters);
        let endpoints = state.endpoints.into_iter();
        Self {
            endpoints: endpoints.map(|e| EndpointRow::new(&counted.group, e)).collect(),
            counted,
        }
    }
}

impl CollectiveRow {
    fn remark(&self) -> String {
        let counters = &self.counted.counters;
        let told = [
            (counters.stalls, "stall"),
            (counters.conflicts, "conflict"),
            (counters.lost, "lost frame"),
            (counters.rate_drops, "rate drop"),
        ];
        let told = told.iter().filter(|(n, _)| *n > 0);
        let told: Vec<_> = told.map(|(n, what)| plural(*n as usize, what)).collect();
        told.join(", ")
    }
}

columns!(row: CollectiveRow => (row.counted) { group, mcst_id } (row.counted.counters) {
    contributions, contribution_bytes, results, result_bytes, controls_in, controls_out, repeats, acks_in, acks_out,
    naks_in, naks_out, keep_alives, dropped,
} row { remark() });

#[derive(Clone, Debug, Serialize)]
pub(crate) struct EndpointRow {
    /// In JSON it stands in its group.
    #[serde(skip)]
    group: String,
    port: u32,
    next_hop: String,
    ranks: Vec<u32>,
    #[serde(flatten, serialize_with = "named")]
    counters: EndpointCounters,
}

impl EndpointRow {
    fn new(group: &str, endpoint: api::EndpointStatus) -> Self {
        Self {
            group: group.to_owned(),
            port: endpoint.port,
            next_hop: endpoint.next_hop,
            ranks: endpoint.ranks,
            counters: copy_endpoint_counters!(endpoint.counters.unwrap_or_default() => EndpointCounters),
        }
    }

    fn ranks(&self) -> String {
        ranks_text(&self.ranks)
    }
}

columns!(row: EndpointRow => row { group, port, next_hop, ranks() } (row.counters) {
    contributions, repeats, results, acks_in, acks_out, naks_in, naks_out, rnr_naks_in, rnr_naks_out, keep_alives, lost,
});

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::Rate;
    use castnet_console::output::Row;

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
            endpoints: vec![endpoint],
            counters: Some(api::TranslatedCounters {
                contributions,
                contribution_bytes: 1000 * contributions,
                stalls,
                ..Default::default()
            }),
            ..Default::default()
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
        let mut row = row(5, 0);
        (
            row.counted.counters.controls_in,
            row.counted.counters.controls_out,
        ) = (21, 34);
        let cell = |column| {
            let at = CollectiveRow::COLUMNS.iter().position(|c| *c == column);
            row.cells()[at.expect("a column")].clone()
        };
        assert_eq!([cell("controls_in"), cell("controls_out")], ["21", "34"]);
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
        let rate = |now: u64| {
            let (now, before) = (row(now, 0), row(10, 0));
            let rate = Rate::of_group(&now.counted, &[before.counted], 2.0).expect("the same group");
            serde_json::to_value(rate).expect("JSON")
        };
        assert_eq!(
            (
                &rate(30)["contributions_per_s"],
                &rate(30)["contribution_bits_per_s"]
            ),
            (&10.0.into(), &80_000.0.into())
        );
        assert_eq!(rate(1)["contributions_per_s"], 0.0);
    }
}
