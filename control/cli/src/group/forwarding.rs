//! Groups that forward, as one switch has them.

use castnet_console::api;
use castnet_console::columns;
use castnet_console::output::{Page, Report};
use castnet_console::units::{bytes, count};
use castnet_worker::engine::{ForwardingCounters, copy_forwarding_counters};
use serde::Serialize;

use crate::counters::Counted;

/// One endpoint of a group.
#[derive(Clone, Debug, Serialize)]
pub(super) struct EndpointRow {
    port: u32,
    next_hop: String,
    frames_in: u64,
    frames_out: u64,
}

columns!(row: EndpointRow => row { port, next_hop, frames_in, frames_out });

/// A group as one switch has it.
#[derive(Debug, Serialize)]
pub(super) struct SwitchForwardingReport {
    switch: String,
    kind: &'static str,
    #[serde(flatten)]
    counted: Counted<ForwardingCounters>,
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
            counted: Counted::new(
                Some(&rule),
                copy_forwarding_counters!(state => ForwardingCounters),
            ),
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
        let Counted {
            group,
            mcst_id,
            counters,
        } = &self.counted;
        page.title(format!("Forwarding group {group} at {}", self.switch));
        page.facts(&[
            ("McstID", mcst_id.clone()),
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
