//! The report of the demo.

use std::time::Duration;

use castnet_console::api;
use castnet_console::columns;
use castnet_console::drops;
use castnet_console::output::{Page, Report, Row, named};
use castnet_console::tree::Node;
use castnet_console::units::{Ratio, bit_rate, bytes, count, span};
use castnet_wire::CounterSet;
use castnet_worker::engine::{CollectiveCounters, MulticastCounters};
use serde::Serialize;

use crate::links::AllReduceReport;

#[derive(Debug, Serialize)]
pub(crate) struct DemoReport {
    pub(crate) size: u64,
    pub(crate) pmtu: u32,
    pub(crate) seed: u64,
    pub(crate) source: String,
    pub(crate) receivers: Vec<String>,
    pub(crate) sha256: String,
    pub(crate) tree: Option<Node>,
    pub(crate) acts: Vec<ActReport>,
    pub(crate) collective_tree: Option<Node>,
    pub(crate) collectives: Vec<AllReduceReport>,
    pub(crate) ok: bool,
    pub(crate) seconds: f64,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct ActReport {
    pub(crate) name: &'static str,
    pub(crate) group: String,
    pub(crate) mcst_id: String,
    pub(crate) loss: Ratio,
    pub(crate) ok: bool,
    pub(crate) seconds: f64,
    /// Of the file, at each receiver, until the last one had it.
    pub(crate) goodput_bits_per_s: f64,
    pub(crate) source: SourceReport,
    /// Bytes of the file that all receivers together have.
    pub(crate) bytes_received: u64,
    pub(crate) receivers: Vec<ReceiverReport>,
    pub(crate) switches: Vec<SwitchReport<MulticastCounters>>,
    /// In all switches, injected losses included.
    pub(crate) drops: Vec<api::DropCount>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct SourceReport {
    pub(crate) host: String,
    /// Frames and bytes sent, with retransmissions.
    pub(crate) frames_sent: u64,
    pub(crate) bytes_sent: u64,
    pub(crate) retransmissions: u64,
    pub(crate) timeouts: u64,
    pub(crate) acks_received: u64,
    pub(crate) naks_received: u64,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct ReceiverReport {
    pub(crate) host: String,
    pub(crate) switch: String,
    pub(crate) bytes: u64,
    pub(crate) sha256: String,
    pub(crate) ok: bool,
    /// Frames received again, and ACKs and NAKs sent.
    pub(crate) duplicates: u64,
    pub(crate) acks_sent: u64,
    pub(crate) naks_sent: u64,
    /// Why bytes are missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

impl Row for ReceiverReport {
    const COLUMNS: &'static [&'static str] = &[
        "receiver",
        "at",
        "bytes",
        "sha-256",
        "duplicates",
        "acks sent",
        "naks sent",
        "",
    ];

    fn cells(&self) -> Vec<String> {
        let end = match (&self.error, self.ok) {
            (Some(error), _) => error.clone(),
            (None, true) => "every byte".to_owned(),
            (None, false) => "WRONG BYTES".to_owned(),
        };
        vec![
            self.host.clone(),
            self.switch.clone(),
            bytes(self.bytes),
            self.sha256.chars().take(16).collect(),
            count(self.duplicates),
            count(self.acks_sent),
            count(self.naks_sent),
            end,
        ]
    }
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct SwitchReport<C: CounterSet> {
    pub(crate) switch: String,
    #[serde(flatten, serialize_with = "named")]
    pub(crate) counters: C,
}

columns!(row: SwitchReport<MulticastCounters> => row { switch } (row.counters) {
    data_in, copies_out, retransmitted_in, filtered, kept, resent, acks_in, acks_out, naks_in, naks_out,
});

columns!(row: SwitchReport<CollectiveCounters> => row { switch } (row.counters) {
    contributions, results, repeats, acks_in, acks_out, naks_in, naks_out,
});

pub(crate) fn losses(loss: Ratio) -> String {
    if loss.0 > 0.0 {
        format!("{loss} loss on every link, both ways")
    } else {
        "no loss".to_owned()
    }
}

pub(crate) fn time(seconds: f64) -> String {
    span(Duration::from_secs_f64(seconds.max(0.0)))
}

impl ActReport {
    /// This act for people.
    fn section(&self, page: &mut Page) {
        page.title(format!(
            "{}: {} (group {}, McstID {})",
            self.name,
            losses(self.loss),
            self.group,
            self.mcst_id
        ));
        let source = &self.source;
        let times = if source.bytes_sent > 0 {
            self.bytes_received as f64 / source.bytes_sent as f64
        } else {
            0.0
        };
        page.facts(&[
            (
                &format!("{} sent", source.host),
                format!(
                    "{} in {} frames",
                    bytes(source.bytes_sent),
                    count(source.frames_sent)
                ),
            ),
            (
                "all received",
                format!("{}, {times:.2} times what was sent", bytes(self.bytes_received)),
            ),
            ("time", time(self.seconds)),
            (
                "goodput",
                format!("{} at each receiver", bit_rate(self.goodput_bits_per_s)),
            ),
            (
                "retransmissions",
                format!(
                    "{} frames after {} NAKs and {} time-outs",
                    count(source.retransmissions),
                    count(source.naks_received),
                    count(source.timeouts)
                ),
            ),
        ]);
        page.line("");
        page.rows(&self.switches, "no switch took part");
        page.line("");
        page.rows(&self.receivers, "nobody received");
        page.line("");
        page.line(drops::sentence(&self.drops));
    }
}

impl Report for DemoReport {
    fn page(&self, page: &mut Page) {
        page.title(format!(
            "{} from {} to {}, over three switches in two tiers:",
            bytes(self.size),
            self.source,
            self.receivers.join(", ")
        ));
        if let Some(tree) = &self.tree {
            page.line("");
            page.line(tree.draw());
        }
        for act in &self.acts {
            act.section(page);
        }
        if let Some(first) = self.collectives.first() {
            let hosts: Vec<_> = first.ranks.iter().map(|rank| rank.host.as_str()).collect();
            page.title(format!(
                "Sums of what {} have, {} each, added up in the switches:",
                hosts.join(", "),
                bytes(first.bytes)
            ));
        }
        if let Some(tree) = &self.collective_tree {
            page.line("");
            page.line(tree.draw());
        }
        for act in &self.collectives {
            act.section(page);
        }
        let times = |good: usize, all: usize| {
            format!("{good} {} out of {all}", if good == 1 { "time" } else { "times" })
        };
        let good = self.acts.iter().filter(|act| act.ok).count();
        page.title(if good == self.acts.len() {
            format!("Every receiver has every byte, {}.", times(good, good))
        } else {
            format!(
                "NOT every receiver has every byte: {}.",
                times(good, self.acts.len())
            )
        });
        if !self.collectives.is_empty() {
            let good = self.collectives.iter().filter(|act| act.ok).count();
            page.line(if good == self.collectives.len() {
                format!("Every rank has every sum, bit for bit, {}.", times(good, good))
            } else {
                format!(
                    "NOT every rank has every sum: {}.",
                    times(good, self.collectives.len())
                )
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn act(ok: bool) -> ActReport {
        ActReport {
            name: "Act 1",
            group: "demo-1".to_owned(),
            mcst_id: "10.200.0.1".to_owned(),
            loss: Ratio(0.01),
            ok,
            seconds: 2.0,
            goodput_bits_per_s: 4e6,
            source: SourceReport {
                host: "h1".to_owned(),
                bytes_sent: 1 << 20,
                ..SourceReport::default()
            },
            bytes_received: 4 << 20,
            receivers: vec![ReceiverReport {
                host: "h2".to_owned(),
                switch: "leaf1".to_owned(),
                bytes: 1 << 20,
                sha256: "ab".repeat(32),
                ok,
                duplicates: 0,
                acks_sent: 3,
                naks_sent: 1,
                error: None,
            }],
            switches: vec![],
            drops: vec![api::DropCount {
                reason: "injected".to_owned(),
                frames: 12,
            }],
        }
    }

    fn text(ok: bool) -> String {
        let report = DemoReport {
            size: 1 << 20,
            pmtu: 4096,
            seed: 1,
            source: "h1".to_owned(),
            receivers: vec!["h2".to_owned()],
            sha256: String::new(),
            tree: Some(Node::new("h1")),
            acts: vec![act(ok)],
            collective_tree: None,
            collectives: vec![],
            ok,
            seconds: 3.0,
        };
        let json = serde_json::to_value(&report).expect("JSON");
        assert_eq!(json["acts"][0]["receivers"][0]["ok"], ok);
        assert_eq!(json["acts"][0]["drops"][0]["frames"], 12);
        let mut page = Page::default();
        report.page(&mut page);
        page.text().to_owned()
    }

    #[test]
    fn the_visitor_sees_what_was_sent_against_what_arrived() {
        let text = text(true);
        for part in [
            "1% loss on every link",
            "4.00 times what was sent",
            "every byte",
            "drops: injected 12",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn wrong_bytes_are_not_to_be_overlooked() {
        assert!(text(false).contains("WRONG BYTES"));
    }
}
