//! Groups that forward, as one switch has them.

use serde::Serialize;

use crate::api;
use crate::output::{Page, Report, Row};
use crate::units::{bytes, count};

/// What a group has done at a switch, in `castnet counters`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ForwardingRow {
    group: String,
    mcst_id: String,
    forwarded: u64,
    dropped: u64,
}

impl ForwardingRow {
    pub(crate) fn new(rule: Option<&api::GroupRule>, state: &api::ForwardingState) -> Self {
        Self {
            group: rule.map(|rule| rule.name.clone()).unwrap_or_default(),
            mcst_id: rule.map(|rule| rule.mcst_id.clone()).unwrap_or_default(),
            forwarded: state.forwarded,
            dropped: state.dropped,
        }
    }
}

impl Row for ForwardingRow {
    const COLUMNS: &'static [&'static str] = &["group", "mcst id", "forwarded", "dropped"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.group.clone(),
            self.mcst_id.clone(),
            count(self.forwarded),
            count(self.dropped),
        ]
    }
}

/// One endpoint of a group.
#[derive(Clone, Debug, Serialize)]
pub(super) struct EndpointRow {
    port: u32,
    next_hop: String,
    frames_in: u64,
    frames_out: u64,
}

impl Row for EndpointRow {
    const COLUMNS: &'static [&'static str] = &["port", "next hop", "frames in", "frames out"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.port.to_string(),
            self.next_hop.clone(),
            count(self.frames_in),
            count(self.frames_out),
        ]
    }
}

/// A group as one switch has it.
#[derive(Debug, Serialize)]
pub(super) struct SwitchForwardingReport {
    switch: String,
    kind: &'static str,
    #[serde(flatten)]
    counters: ForwardingRow,
    generation: u64,
    pmtu: u32,
    worker: u32,
    memory_bytes: u64,
    pub(super) endpoints: Vec<EndpointRow>,
}

impl SwitchForwardingReport {
    pub(super) fn new(
        switch: String,
        (rule, worker): (api::GroupRule, u32),
        state: api::ForwardingState,
    ) -> Self {
        Self {
            switch,
            kind: "forwarding",
            counters: ForwardingRow::new(Some(&rule), &state),
            generation: rule.generation,
            pmtu: rule.pmtu,
            worker,
            memory_bytes: state.memory_bytes,
            endpoints: state
                .endpoints
                .into_iter()
                .map(|endpoint| EndpointRow {
                    port: endpoint.port,
                    next_hop: endpoint.next_hop,
                    frames_in: endpoint.frames_in,
                    frames_out: endpoint.frames_out,
                })
                .collect(),
        }
    }
}

impl Report for SwitchForwardingReport {
    fn page(&self, page: &mut Page) {
        let counters = &self.counters;
        page.title(format!("Forwarding group {} at {}", counters.group, self.switch));
        page.facts(&[
            ("McstID", counters.mcst_id.clone()),
            ("generation", self.generation.to_string()),
            ("PMTU", self.pmtu.to_string()),
            ("memory", bytes(self.memory_bytes)),
            ("worker", self.worker.to_string()),
            ("forwarded", count(counters.forwarded)),
            ("dropped", count(counters.dropped)),
        ]);
        page.title("Endpoints");
        page.rows(&self.endpoints, "none");
    }
}
