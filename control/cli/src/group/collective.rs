//! What only collective groups have: how they work, and calls of ranks that differ.

mod args;

use std::time::Duration;

use castnet_console::api;
use castnet_console::columns;
use castnet_console::output::Page;
use castnet_console::units::{count, span};
use castnet_proto::convert::call_from_proto;
use castnet_rules::{LossPolicy, StragglerPolicy};
use serde::Serialize;

use super::facts::Facts;
pub(crate) use args::CollectiveArgs;

/// Ranks in order as ranges: `0-2 5`.
pub(crate) fn ranks_text(ranks: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*rank) => *last = *rank,
            _ => runs.push((*rank, *rank)),
        }
    }
    let run = |(first, last): (u32, u32)| match last == first {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    runs.into_iter().map(run).collect::<Vec<_>>().join(" ")
}

pub(super) fn millis(ms: u32) -> String {
    span(Duration::from_millis(ms.into()))
}

pub(super) fn policies_of_rule(rule: &api::GroupRule) -> api::CollectiveSettings {
    let kind = rule.translated().copied().unwrap_or_default();
    api::CollectiveSettings {
        reproducible: Some(kind.reproducible),
        loss_policy: kind.loss_policy,
        straggler_policy: kind.straggler_policy,
        ack_timeout_us: kind.ack_timeout_us,
        stall_timeout_ms: rule.stall_timeout_ms,
        ..Default::default()
    }
}

pub(super) fn policies(facts: &mut Facts, settings: &api::CollectiveSettings) {
    let order = match settings.reproducible() {
        true => "in rank order (reproducible)",
        false => "as they come",
    };
    let loss = match settings.loss_policy() {
        api::CollectiveLossPolicy::Reflect => LossPolicy::Reflect.name(),
        _ => LossPolicy::Repair.name(),
    };
    let straggler = match settings.straggler_policy() {
        api::CollectiveStragglerPolicy::Rnr => StragglerPolicy::Rnr.name(),
        api::CollectiveStragglerPolicy::None => StragglerPolicy::None.name(),
        _ => StragglerPolicy::KeepAlive.name(),
    };
    let (ack, stall) = (settings.ack_timeout_us, settings.stall_timeout_ms);
    let ack_text = format!("{} us", count(ack.into()));
    facts.add_as("reproducible", settings.reproducible(), "contributions", order);
    facts.add("loss_policy", "losses", loss);
    facts.add("straggler_policy", "stragglers", straggler);
    facts.add_as("ack_timeout_us", ack, "ACK time-out", ack_text);
    facts.add_as("stall_timeout_ms", stall, "stall time-out", millis(stall));
}

#[derive(Debug, Serialize)]
pub(super) struct Conflict {
    /// In its group.
    sequence: u32,
    /// The lower rank first.
    callers: [Caller; 2],
}

#[derive(Debug, Serialize)]
struct Caller {
    rank: u32,
    host: Option<String>,
    call: String,
}

columns!(row: Caller => row { rank, host, call as "called" });

impl Conflict {
    pub(super) fn new(from: &api::Disagreement, host: impl Fn(u32) -> Option<String>) -> Self {
        let caller = |rank, call: Option<api::CollectiveCall>| {
            let read = call_from_proto("call", &call.unwrap_or_default());
            Caller {
                rank,
                host: host(rank).filter(|name| !name.is_empty()),
                call: read.map_or_else(|invalid| invalid.to_string(), |call| call.to_string()),
            }
        };
        Self {
            sequence: from.sequence,
            callers: [
                caller(from.rank, from.call),
                caller(from.other_rank, from.other_call),
            ],
        }
    }

    pub(super) fn page(&self, page: &mut Page) {
        page.title(format!("The ranks disagree about collective {}", self.sequence));
        page.rows(&self.callers, "");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_ranges() {
        assert_eq!(ranks_text(&[0, 1, 2, 5, 7, 8]), "0-2 5 7-8");
        assert_eq!(ranks_text(&[u32::MAX]), u32::MAX.to_string());
        assert_eq!(ranks_text(&[]), "");
    }
}
