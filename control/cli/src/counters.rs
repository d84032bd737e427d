mod collective;

use castnet_console::api;
use castnet_console::api::installed_group::State;
use castnet_console::columns;
use castnet_console::connect::AgentArgs;
use castnet_console::exit::Outcome;
use castnet_console::output::{Output, Page, Report, named};
use castnet_console::units::{bit_rate, count};
use castnet_console::watch::WatchArgs;
use castnet_wire::CounterSet;
use castnet_worker::engine::{
    ForwardingCounters, MulticastCounters, Totals, copy_forwarding_counters, copy_multicast_counters,
    copy_totals,
};
use clap::Args;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::port::PortRow;
use collective::CollectiveRow;

/// Counters of ports, groups, collective groups with their endpoints, and drops; with --watch, rates
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  castnet counters                              since the switch started
  castnet counters --watch                      rates, each second, until Ctrl-C
  castnet counters --watch 5s --output json     one JSON object a line, for scripts")]
pub(crate) struct CountersCommand {
    #[command(flatten)]
    watch: WatchArgs,
    #[command(flatten)]
    agent: AgentArgs,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Snapshot {
    pub(crate) at_ns: u64,
    #[serde(serialize_with = "named")]
    pub(crate) totals: Totals,
    pub(crate) ports: Vec<PortRow>,
    pub(crate) groups: Vec<Counted<MulticastCounters>>,
    pub(crate) collectives: Vec<CollectiveRow>,
    pub(crate) forwarding: Vec<Counted<ForwardingCounters>>,
    pub(crate) drops: Vec<api::DropCount>,
}

/// How all frames ended, in one line.
pub(crate) fn totals_sentence(totals: &Totals) -> String {
    let ends = [
        ("switched", totals.switched),
        ("routed", totals.routed),
        ("flooded", totals.flooded),
        ("replicated", totals.replicated),
        ("absorbed", totals.absorbed),
        ("dropped", totals.dropped),
    ];
    let ends = ends.iter().filter(|(_, n)| *n > 0);
    let ends: Vec<_> = ends.map(|(name, n)| format!("{} {name}", count(*n))).collect();
    let colon = if ends.is_empty() { "" } else { ": " };
    let (received, sent) = (count(totals.received), count(totals.sent));
    format!(
        "{received} frames received{colon}{}; {sent} sent",
        ends.join(", ")
    )
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Counted<C: CounterSet> {
    pub(crate) group: String,
    pub(crate) mcst_id: String,
    #[serde(flatten, serialize_with = "named")]
    pub(crate) counters: C,
}

impl<C: CounterSet> Counted<C> {
    pub(crate) fn new(rule: Option<&api::GroupRule>, counters: C) -> Self {
        Self {
            group: rule.map(|rule| rule.name.clone()).unwrap_or_default(),
            mcst_id: rule.map(|rule| rule.mcst_id.clone()).unwrap_or_default(),
            counters,
        }
    }
}

columns!(row: Counted<MulticastCounters> => row { group, mcst_id } (row.counters) {
    data_in, data_bytes_in, copies_out, retransmitted_in, filtered, acks_in, acks_out, naks_in, naks_out, rnr_naks_in,
    rnr_naks_out, dropped, rate_drops,
});

columns!(row: Counted<ForwardingCounters> => row { group, mcst_id } (row.counters) { forwarded, dropped, rate_drops });

impl From<&api::InstalledGroup> for Counted<MulticastCounters> {
    fn from(installed: &api::InstalledGroup) -> Self {
        let counters = installed.multicast().and_then(|state| state.counters);
        let counters = copy_multicast_counters!(counters.unwrap_or_default() => MulticastCounters);
        Self::new(installed.rule.as_ref(), counters)
    }
}

impl From<api::Counters> for Snapshot {
    fn from(counters: api::Counters) -> Self {
        let (mut groups, mut collectives, mut forwarding) = (Vec::new(), Vec::new(), Vec::new());
        for group in counters.groups {
            match &group.state {
                Some(State::Translated(_)) => collectives.push(group.into()),
                Some(State::Forwarding(state)) => {
                    let counters = copy_forwarding_counters!(state => ForwardingCounters);
                    forwarding.push(Counted::new(group.rule.as_ref(), counters));
                }
                Some(State::Multicast(_)) | None => groups.push((&group).into()),
            }
        }
        Self {
            at_ns: counters.at_ns,
            totals: copy_totals!(counters.totals.unwrap_or_default() => Totals),
            ports: counters.ports.into_iter().map(PortRow).collect(),
            groups,
            collectives,
            forwarding,
            drops: counters.drops,
        }
    }
}

impl Report for Snapshot {
    fn page(&self, page: &mut Page) {
        page.title("Ports");
        page.rows(&self.ports, "none");
        page.title("Groups");
        page.rows(&self.groups, "none");
        page.title("Collective groups");
        page.rows(&self.collectives, "none");
        let endpoints = self.collectives.iter().flat_map(|group| &group.endpoints);
        let endpoints: Vec<_> = endpoints.cloned().collect();
        if !endpoints.is_empty() {
            page.title("Endpoints of collective groups");
            page.rows(&endpoints, "none");
        }
        if !self.forwarding.is_empty() {
            page.title("Forwarding groups");
            page.rows(&self.forwarding, "none");
        }
        page.title("Drops");
        page.rows(&self.drops, "none");
        page.title(totals_sentence(&self.totals));
    }
}

#[derive(Clone, Debug, Serialize)]
struct Watched {
    #[serde(flatten)]
    now: Snapshot,
    /// Since the snapshot before; absent in the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    port_rates: Vec<Rate>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    group_rates: Vec<Rate>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    collective_rates: Vec<Rate>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    forwarding_rates: Vec<Rate>,
}

/// How fast the counters of a port or group grow.
#[derive(Clone, Debug)]
struct Rate {
    /// Two fields that identify it.
    of: [(&'static str, Value); 2],
    per_s: Vec<(&'static str, f64)>,
}

impl Rate {
    /// The first rates after a restart of the switch are 0.
    fn new<C: CounterSet>(of: [(&'static str, Value); 2], now: &C, before: &C, seconds: f64) -> Self {
        let grown = now.since(before);
        let per_s = grown.fields().map(|(name, n)| (name, n as f64 / seconds));
        Self {
            of,
            per_s: per_s.collect(),
        }
    }

    fn of_group<C: CounterSet>(now: &Counted<C>, before: &[Counted<C>], seconds: f64) -> Option<Self> {
        let before = before.iter().find(|b| b.mcst_id == now.mcst_id)?;
        let of = [
            ("group", now.group.as_str().into()),
            ("mcst_id", now.mcst_id.as_str().into()),
        ];
        Some(Self::new(of, &now.counters, &before.counters, seconds))
    }

    fn table(page: &mut Page, rates: &[Self]) {
        let Some(first) = rates.first() else {
            return page.line("none");
        };
        let grows = |at: &usize| rates.iter().any(|rate| rate.per_s[*at].1 > 0.0);
        let shown: Vec<usize> = (0..first.per_s.len()).filter(grows).collect();
        let counters = shown.iter().map(|at| format!("{}/s", bits(first.per_s[*at].0)));
        let columns: Vec<String> = first
            .of
            .iter()
            .map(|(name, _)| (*name).to_owned())
            .chain(counters)
            .collect();
        let cell = |(name, rate): (&str, f64)| match bits(name) == name {
            true => count(rate as u64),
            false => bit_rate(8.0 * rate),
        };
        let row = |rate: &Self| {
            let of = rate.of.iter().map(|(_, value)| match value {
                Value::String(text) => text.clone(),
                number => number.to_string(),
            });
            of.chain(shown.iter().map(|at| cell(rate.per_s[*at]))).collect()
        };
        let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
        page.table(&columns, rates.iter().map(row).collect());
    }
}

/// Bytes are shown as bits.
fn bits(name: &str) -> String {
    name.replace("bytes", "bits")
}

impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        for (name, value) in &self.of {
            map.serialize_entry(name, value)?;
        }
        for (name, rate) in &self.per_s {
            let per_s = bits(name);
            let scale = if per_s == *name { 1.0 } else { 8.0 };
            map.serialize_entry(&format!("{per_s}_per_s"), &(scale * rate))?;
        }
        map.end()
    }
}

impl Watched {
    fn new(now: Snapshot, before: Option<&Snapshot>) -> Self {
        let span = before
            .map(|b| now.at_ns.saturating_sub(b.at_ns) as f64 / 1e9)
            .filter(|s| *s > 0.0);
        let (Some(before), Some(seconds)) = (before, span) else {
            return Self {
                now,
                seconds: None,
                port_rates: Vec::new(),
                group_rates: Vec::new(),
                collective_rates: Vec::new(),
                forwarding_rates: Vec::new(),
            };
        };
        let port = |p: &PortRow| {
            let b = before.ports.iter().find(|b| b.0.port == p.0.port)?;
            let of = [("port", p.0.port.into()), ("name", p.0.name.as_str().into())];
            Some(Rate::new(of, &p.counters(), &b.counters(), seconds))
        };
        let port_rates = now.ports.iter().filter_map(port).collect();
        let group = |g| Rate::of_group(g, &before.groups, seconds);
        let group_rates = now.groups.iter().filter_map(group).collect();
        let collectives: Vec<_> = before.collectives.iter().map(|b| b.counted.clone()).collect();
        let collective = |g: &CollectiveRow| Rate::of_group(&g.counted, &collectives, seconds);
        let collective_rates = now.collectives.iter().filter_map(collective).collect();
        let forwarding = |g| Rate::of_group(g, &before.forwarding, seconds);
        let forwarding_rates = now.forwarding.iter().filter_map(forwarding).collect();
        Self {
            now,
            seconds: Some(seconds),
            port_rates,
            group_rates,
            collective_rates,
            forwarding_rates,
        }
    }
}

impl Report for Watched {
    fn page(&self, page: &mut Page) {
        if self.seconds.is_none() {
            return self.now.page(page);
        }
        page.title("Ports");
        Rate::table(page, &self.port_rates);
        page.title("Groups");
        Rate::table(page, &self.group_rates);
        page.title("Collective groups");
        Rate::table(page, &self.collective_rates);
        if !self.forwarding_rates.is_empty() {
            page.title("Forwarding groups");
            Rate::table(page, &self.forwarding_rates);
        }
        page.title("Drops since the start");
        page.rows(&self.now.drops, "none");
    }
}

impl CountersCommand {
    pub(crate) async fn run(self, output: Output) -> Outcome {
        let mut agent = self.agent.connect().await?;
        let mut before: Option<Snapshot> = None;
        let look = async || {
            let counters = agent.get_counters(api::GetCountersRequest {}).await?.into_inner();
            let watched = Watched::new(Snapshot::from(counters), before.as_ref());
            before = Some(watched.now.clone());
            Ok(watched)
        };
        self.watch.show(output, look).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(at_ns: u64, rx_bytes: u64, acks_in: u64) -> Snapshot {
        let port = api::Port {
            name: "h1".to_owned(),
            counters: Some(api::PortCounters {
                rx_bytes,
                ..Default::default()
            }),
            ..Default::default()
        };
        let group = api::InstalledGroup {
            rule: Some(api::GroupRule {
                mcst_id: "10.200.0.1".to_owned(),
                ..Default::default()
            }),
            state: Some(api::installed_group::State::Multicast(api::MulticastState {
                counters: Some(api::MulticastCounters {
                    acks_in,
                    ..Default::default()
                }),
                ..Default::default()
            })),
            ..Default::default()
        };
        let forwarding = api::InstalledGroup {
            state: Some(State::Forwarding(api::ForwardingState {
                forwarded: 2 * acks_in,
                ..Default::default()
            })),
            ..Default::default()
        };
        api::Counters {
            ports: vec![port],
            groups: vec![group, forwarding],
            drops: vec![],
            at_ns,
            ..Default::default()
        }
        .into()
    }

    #[test]
    fn rates_are_differences_over_the_switchs_own_time() {
        let before = snapshot(1_000_000_000, 1_000, 10);
        let watched = Watched::new(snapshot(3_000_000_000, 2_000, 30), Some(&before));
        assert_eq!(watched.seconds, Some(2.0));
        let json = serde_json::to_value(&watched).expect("JSON");
        assert_eq!(json["port_rates"][0]["rx_bits_per_s"], 4_000.0);
        assert_eq!(json["group_rates"][0]["acks_in_per_s"], 10.0);
        assert_eq!(json["forwarding_rates"][0]["forwarded_per_s"], 20.0);
        let mut page = Page::default();
        watched.page(&mut page);
        for part in [
            "RX BITS/S",
            "4.00 kb/s",
            "ACKS IN/S",
            "FORWARDED/S",
            "Drops since the start",
        ] {
            assert!(page.text().contains(part), "{part} in {}", page.text());
        }
    }

    #[test]
    fn the_first_look_and_a_restarted_switch_have_no_rates_to_show() {
        assert!(Watched::new(snapshot(1, 1, 1), None).port_rates.is_empty());
        let restarted = Watched::new(
            snapshot(2_000_000_000, 5, 0),
            Some(&snapshot(1_000_000_000, 1_000, 10)),
        );
        let json = serde_json::to_value(&restarted).expect("JSON");
        assert_eq!(json["port_rates"][0]["rx_bits_per_s"], 0.0);
        let json = serde_json::to_value(Watched::new(snapshot(1, 1, 1), None)).expect("JSON");
        assert!(json.get("port_rates").is_none() && json["ports"][0]["name"] == "h1");
    }
}
