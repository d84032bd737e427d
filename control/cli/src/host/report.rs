//! What a transfer came to at one host.

use std::time::Duration;

use serde::Serialize;

use super::member::{Figures, HostRnic};
use crate::output::{Page, Report};
use crate::units::{bit_rate, bytes, count, rate_of, span};

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
    frames_sent: u64,
    retransmissions: u64,
    timeouts: u64,
    naks_received: u64,
    rnr_naks_received: u64,
    duplicates_received: u64,
    naks_sent: u64,
    rnr_naks_sent: u64,
}

impl TransferReport {
    pub(crate) fn new(
        host: &str,
        role: &'static str,
        group: String,
        figures: &Figures,
        rnic: &HostRnic,
    ) -> Self {
        let (stats, seconds) = (rnic.stats(), figures.elapsed.as_secs_f64());
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
            frames_sent: stats.frames_out,
            retransmissions: stats.retransmits,
            timeouts: stats.timeouts,
            naks_received: stats.sequence_naks_in,
            rnr_naks_received: stats.rnr_naks_in,
            duplicates_received: stats.duplicates_in,
            naks_sent: stats.sequence_naks_out,
            rnr_naks_sent: stats.rnr_naks_out,
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
        if self.role == "source" {
            facts.push((
                "retransmissions",
                format!(
                    "{} frames after {} NAKs, {} RNR NAKs and {} time-outs",
                    count(self.retransmissions),
                    count(self.naks_received),
                    count(self.rnr_naks_received),
                    count(self.timeouts)
                ),
            ));
        } else {
            facts.push((
                "repairs",
                format!(
                    "{} duplicates, {} NAKs and {} RNR NAKs sent",
                    count(self.duplicates_received),
                    count(self.naks_sent),
                    count(self.rnr_naks_sent)
                ),
            ));
        }
        page.facts(&facts);
    }
}
