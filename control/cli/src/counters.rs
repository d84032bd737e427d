//! `castnet counters`: what a switch has counted, and how fast it grows.

mod collective;

use clap::Args;
use serde::Serialize;

use crate::api;
use crate::api::installed_group::State;
use crate::connect::AgentArgs;
use crate::drops::DropRow;
use crate::exit::Outcome;
use crate::group::forwarding::ForwardingRow;
use crate::output::{Output, Page, Report, Row};
use crate::port::PortRow;
use crate::units::{bit_rate, bytes, count};
use crate::watch::WatchArgs;
use collective::{CollectiveRate, CollectiveRow};

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

/// All counters of a switch at one moment.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Snapshot {
    pub(crate) at_ns: u64,
    pub(crate) totals: Totals,
    pub(crate) ports: Vec<PortRow>,
    pub(crate) groups: Vec<GroupRow>,
    pub(crate) collectives: Vec<CollectiveRow>,
    pub(crate) forwarding: Vec<ForwardingRow>,
    pub(crate) drops: Vec<DropRow>,
}

/// How all frames ended: each one received is exactly one of the next six.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Totals {
    pub(crate) received: u64,
    pub(crate) switched: u64,
    pub(crate) routed: u64,
    pub(crate) flooded: u64,
    pub(crate) replicated: u64,
    pub(crate) absorbed: u64,
    pub(crate) dropped: u64,
    pub(crate) copies: u64,
    pub(crate) copies_lost: u64,
    pub(crate) originated: u64,
    pub(crate) sent: u64,
}

impl From<api::Totals> for Totals {
    fn from(t: api::Totals) -> Self {
        Self {
            received: t.received,
            switched: t.switched,
            routed: t.routed,
            flooded: t.flooded,
            replicated: t.replicated,
            absorbed: t.absorbed,
            dropped: t.dropped,
            copies: t.copies,
            copies_lost: t.copies_lost,
            originated: t.originated,
            sent: t.sent,
        }
    }
}

impl Totals {
    /// In one line.
    pub(crate) fn sentence(&self) -> String {
        let ends = [
            ("switched", self.switched),
            ("routed", self.routed),
            ("flooded", self.flooded),
            ("replicated", self.replicated),
            ("absorbed", self.absorbed),
            ("dropped", self.dropped),
        ];
        let ends: Vec<_> = ends
            .iter()
            .filter(|(_, n)| *n > 0)
            .map(|(name, n)| format!("{} {name}", count(*n)))
            .collect();
        let ends = if ends.is_empty() {
            String::new()
        } else {
            format!(": {}", ends.join(", "))
        };
        format!(
            "{} frames received{ends}; {} sent",
            count(self.received),
            count(self.sent)
        )
    }
}

/// What a group has done at a switch.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct GroupRow {
    pub(crate) group: String,
    pub(crate) mcst_id: String,
    pub(crate) data_in: u64,
    pub(crate) data_bytes_in: u64,
    pub(crate) copies_out: u64,
    pub(crate) copy_bytes_out: u64,
    pub(crate) retransmitted_in: u64,
    pub(crate) filtered: u64,
    pub(crate) acks_in: u64,
    pub(crate) acks_out: u64,
    pub(crate) naks_in: u64,
    pub(crate) naks_out: u64,
    pub(crate) rnr_naks_in: u64,
    pub(crate) rnr_naks_out: u64,
    pub(crate) cnps_in: u64,
    pub(crate) cnps_out: u64,
    pub(crate) dropped: u64,
}

impl From<&api::InstalledGroup> for GroupRow {
    fn from(installed: &api::InstalledGroup) -> Self {
        let counters = installed.multicast().and_then(|state| state.counters);
        let counters = counters.unwrap_or_default();
        let (group, mcst_id) = installed
            .rule
            .as_ref()
            .map(|g| (g.name.clone(), g.mcst_id.clone()))
            .unwrap_or_default();
        Self {
            group,
            mcst_id,
            data_in: counters.data_in,
            data_bytes_in: counters.data_bytes_in,
            copies_out: counters.copies_out,
            copy_bytes_out: counters.copy_bytes_out,
            retransmitted_in: counters.retransmitted_in,
            filtered: counters.filtered,
            acks_in: counters.acks_in,
            acks_out: counters.acks_out,
            naks_in: counters.naks_in,
            naks_out: counters.naks_out,
            rnr_naks_in: counters.rnr_naks_in,
            rnr_naks_out: counters.rnr_naks_out,
            cnps_in: counters.cnps_in,
            cnps_out: counters.cnps_out,
            dropped: counters.dropped,
        }
    }
}

impl Row for GroupRow {
    const COLUMNS: &'static [&'static str] = &[
        "group",
        "mcst id",
        "data in",
        "bytes in",
        "copies out",
        "again",
        "filtered",
        "acks in",
        "acks out",
        "naks in",
        "naks out",
        "rnr in",
        "rnr out",
        "dropped",
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            self.group.clone(),
            self.mcst_id.clone(),
            count(self.data_in),
            bytes(self.data_bytes_in),
            count(self.copies_out),
            count(self.retransmitted_in),
            count(self.filtered),
            count(self.acks_in),
            count(self.acks_out),
            count(self.naks_in),
            count(self.naks_out),
            count(self.rnr_naks_in),
            count(self.rnr_naks_out),
            count(self.dropped),
        ]
    }
}

impl From<api::Counters> for Snapshot {
    fn from(counters: api::Counters) -> Self {
        let (mut groups, mut collectives, mut forwarding) = (Vec::new(), Vec::new(), Vec::new());
        for group in counters.groups {
            match &group.state {
                Some(State::Translated(_)) => collectives.push(group.into()),
                Some(State::Forwarding(state)) => {
                    forwarding.push(ForwardingRow::new(group.rule.as_ref(), state));
                }
                Some(State::Multicast(_)) | None => groups.push((&group).into()),
            }
        }
        Self {
            at_ns: counters.at_ns,
            totals: counters.totals.unwrap_or_default().into(),
            ports: counters.ports.into_iter().map(PortRow::from).collect(),
            groups,
            collectives,
            forwarding,
            drops: counters.drops.into_iter().map(DropRow::from).collect(),
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
        page.title(self.totals.sentence());
    }
}

/// A snapshot with what changed since the one before.
#[derive(Clone, Debug, Serialize)]
struct Watched {
    #[serde(flatten)]
    now: Snapshot,
    /// Seconds since the one before; absent in the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    port_rates: Vec<PortRate>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    group_rates: Vec<GroupRate>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    collective_rates: Vec<CollectiveRate>,
}

#[derive(Clone, Debug, Serialize)]
struct PortRate {
    port: u32,
    name: String,
    rx_frames_per_s: f64,
    rx_bits_per_s: f64,
    tx_frames_per_s: f64,
    tx_bits_per_s: f64,
    dropped_per_s: f64,
}

impl Row for PortRate {
    const COLUMNS: &'static [&'static str] = &[
        "port",
        "name",
        "rx frames/s",
        "rx",
        "tx frames/s",
        "tx",
        "dropped/s",
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            self.port.to_string(),
            self.name.clone(),
            count(self.rx_frames_per_s as u64),
            bit_rate(self.rx_bits_per_s),
            count(self.tx_frames_per_s as u64),
            bit_rate(self.tx_bits_per_s),
            count(self.dropped_per_s as u64),
        ]
    }
}

#[derive(Clone, Debug, Serialize)]
struct GroupRate {
    group: String,
    mcst_id: String,
    data_frames_per_s: f64,
    data_bits_per_s: f64,
    copies_per_s: f64,
    retransmitted_per_s: f64,
    acks_in_per_s: f64,
    acks_out_per_s: f64,
}

impl Row for GroupRate {
    const COLUMNS: &'static [&'static str] = &[
        "group",
        "mcst id",
        "data/s",
        "data",
        "copies/s",
        "again/s",
        "acks in/s",
        "acks out/s",
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            self.group.clone(),
            self.mcst_id.clone(),
            count(self.data_frames_per_s as u64),
            bit_rate(self.data_bits_per_s),
            count(self.copies_per_s as u64),
            count(self.retransmitted_per_s as u64),
            count(self.acks_in_per_s as u64),
            count(self.acks_out_per_s as u64),
        ]
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
            };
        };
        let per_s = |now, before| per_s(now, before, seconds);
        let port = |p: &PortRow| {
            let b = before.ports.iter().find(|b| b.port == p.port)?;
            Some(PortRate {
                port: p.port,
                name: p.name.clone(),
                rx_frames_per_s: per_s(p.rx_frames, b.rx_frames),
                rx_bits_per_s: 8.0 * per_s(p.rx_bytes, b.rx_bytes),
                tx_frames_per_s: per_s(p.tx_frames, b.tx_frames),
                tx_bits_per_s: 8.0 * per_s(p.tx_bytes, b.tx_bytes),
                dropped_per_s: per_s(p.dropped, b.dropped),
            })
        };
        let group = |g: &GroupRow| {
            let b = before.groups.iter().find(|b| b.mcst_id == g.mcst_id)?;
            Some(GroupRate {
                group: g.group.clone(),
                mcst_id: g.mcst_id.clone(),
                data_frames_per_s: per_s(g.data_in, b.data_in),
                data_bits_per_s: 8.0 * per_s(g.data_bytes_in, b.data_bytes_in),
                copies_per_s: per_s(g.copies_out, b.copies_out),
                retransmitted_per_s: per_s(g.retransmitted_in, b.retransmitted_in),
                acks_in_per_s: per_s(g.acks_in, b.acks_in),
                acks_out_per_s: per_s(g.acks_out, b.acks_out),
            })
        };
        let collective = |g: &CollectiveRow| {
            let b = before.collectives.iter().find(|b| b.mcst_id == g.mcst_id)?;
            Some(CollectiveRate::new(g, b, seconds))
        };
        let collective_rates = now.collectives.iter().filter_map(collective).collect();
        let port_rates = now.ports.iter().filter_map(port).collect();
        let group_rates = now.groups.iter().filter_map(group).collect();
        Self {
            now,
            seconds: Some(seconds),
            port_rates,
            group_rates,
            collective_rates,
        }
    }
}

/// How fast a counter grows. A restarted switch counts from nothing: its first rates are 0, not huge.
fn per_s(now: u64, before: u64, seconds: f64) -> f64 {
    now.saturating_sub(before) as f64 / seconds
}

impl Report for Watched {
    fn page(&self, page: &mut Page) {
        if self.seconds.is_none() {
            return self.now.page(page);
        }
        page.title("Ports");
        page.rows(&self.port_rates, "none");
        page.title("Groups");
        page.rows(&self.group_rates, "none");
        page.title("Collective groups");
        page.rows(&self.collective_rates, "none");
        page.title("Drops");
        page.rows(&self.now.drops, "none");
    }
}

impl CountersCommand {
    /// Shows counters once, or, with rates, again and again.
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
        api::Counters {
            ports: vec![port],
            groups: vec![group],
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
        assert_eq!(watched.port_rates[0].rx_bits_per_s, 4_000.0);
        assert_eq!(watched.group_rates[0].acks_in_per_s, 10.0);
    }

    #[test]
    fn the_first_look_and_a_restarted_switch_have_no_rates_to_show() {
        assert!(Watched::new(snapshot(1, 1, 1), None).port_rates.is_empty());
        let restarted = Watched::new(
            snapshot(2_000_000_000, 5, 0),
            Some(&snapshot(1_000_000_000, 1_000, 10)),
        );
        assert_eq!(restarted.port_rates[0].rx_bits_per_s, 0.0);
        let json = serde_json::to_value(Watched::new(snapshot(1, 1, 1), None)).expect("JSON");
        assert!(json.get("port_rates").is_none() && json["ports"][0]["name"] == "h1");
    }
}
