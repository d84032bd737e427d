//! What a transfer came to at one host.

use std::time::Duration;

use castnet_console::api;
use castnet_console::output::{Page, Report};
use castnet_console::units::{bit_rate, bytes, count, rate_of, span};
use castnet_member::{Figures, HostDevice, Traffic};
use serde::Serialize;

use super::device::Kind;

/// What a transfer came to at one host.
#[derive(Debug, Serialize)]
pub(crate) struct TransferReport {
    host: String,
    role: &'static str,
    group: String,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) file: Option<String>,
    bytes: u64,
    sha256: String,
    seconds: f64,
    goodput_bits_per_s: f64,
    #[serde(flatten)]
    traffic: Traffic,
}

impl TransferReport {
    pub(crate) fn new(
        host: &str,
        role: &'static str,
        group: String,
        figures: &Figures,
        rnic: &impl HostDevice,
    ) -> Self {
        let seconds = figures.elapsed.as_secs_f64();
        Self {
            host: host.to_owned(),
            role,
            group,
            name: figures.summary.name.clone(),
            file: None,
            bytes: figures.summary.bytes,
            sha256: figures.summary.digest.to_string(),
            seconds,
            goodput_bits_per_s: rate_of(figures.summary.bytes, seconds),
            traffic: rnic.traffic(),
        }
    }
}

impl Report for TransferReport {
    fn page(&self, page: &mut Page) {
        let did = if self.role == "source" { "sent" } else { "received" };
        page.line(format!(
            "{} {did} {} ({})",
            self.host,
            self.name,
            bytes(self.bytes)
        ));
        let mut facts = vec![
            ("SHA-256", self.sha256.clone()),
            ("time", span(Duration::from_secs_f64(self.seconds))),
            ("goodput", bit_rate(self.goodput_bits_per_s)),
        ];
        if let Some(file) = &self.file {
            facts.push(("file", file.clone()));
        }
        facts.push(repairs(&self.traffic, self.role));
        page.facts(&facts);
    }
}

/// Retransmissions and repeated packets, as a line of a report.
pub(super) fn repairs(traffic: &Traffic, role: &str) -> (&'static str, String) {
    let told = |what: &str, value: Option<u64>| value.map(|v| format!("{} {what}", count(v)));
    let (name, facts) = if role == "source" {
        let facts = [
            told("frames again", traffic.retransmissions),
            told("NAKs", traffic.naks_received),
            told("RNR NAKs", traffic.rnr_naks_received),
            told("time-outs", traffic.timeouts),
        ];
        ("retransmissions", facts)
    } else {
        let facts = [
            told("duplicates", traffic.duplicates_received),
            told("NAKs sent", traffic.naks_sent),
            told("RNR NAKs sent", traffic.rnr_naks_sent),
            None,
        ];
        ("repairs", facts)
    };
    let facts: Vec<_> = facts.into_iter().flatten().collect();
    (
        name,
        if facts.is_empty() {
            "not counted by this device".to_owned()
        } else {
            facts.join(", ")
        },
    )
}

/// This end of a connection, for those who write rule files.
#[derive(Debug, Serialize)]
pub(crate) struct Facts<'a> {
    host: &'a str,
    rnic: Kind,
    device: &'a str,
    ip: &'a str,
    mac: &'a str,
    qpn: u32,
    active_pmtu: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<MemoryFacts>,
}

#[derive(Debug, Serialize)]
struct MemoryFacts {
    va: u64,
    rkey: u32,
    length: u64,
}

impl<'a> Facts<'a> {
    pub(crate) fn new(
        host: &'a str,
        kind: Kind,
        rnic: &'a impl HostDevice,
        connection: &'a api::Connection,
    ) -> Self {
        Self {
            host,
            rnic: kind,
            device: &rnic.attributes().name,
            ip: &connection.ip,
            mac: &connection.mac,
            qpn: connection.qpn,
            active_pmtu: rnic.attributes().active_pmtu.bytes(),
            memory: connection.memory.as_ref().map(|m| MemoryFacts {
                va: m.va,
                rkey: m.rkey,
                length: m.length,
            }),
        }
    }

    /// A line of JSON.
    pub(crate) fn text(&self) -> String {
        serde_json::json!(self).to_string() + "\n"
    }
}
