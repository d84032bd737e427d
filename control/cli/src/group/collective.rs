//! What only collective groups have: how they work, and calls of ranks that differ.

use std::time::Duration;

use castnet_console::api;
use castnet_console::columns;
use castnet_console::output::Page;
use castnet_console::units::{count, span};
use castnet_proto::convert::call_from_proto;
use castnet_rules::{
    CollectiveMode, DEFAULT_ACK_TIMEOUT_US, DEFAULT_MESSAGE_PACKETS, LossPolicy, StragglerPolicy,
};
use serde::Serialize;

use super::facts::Facts;

/// Defaults of `castnet host allreduce`.
const DEFAULT_PMTU: u32 = 1024;
const DEFAULT_WINDOW: u32 = 64;

/// The time-out that a queue pair has with a code.
pub(crate) fn timeout_us(code: u32) -> u64 {
    (4096_u64 << code) / 1000
}

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
    let neighbours = rule.endpoints.iter().filter_map(|e| match &e.next_hop {
        Some(api::endpoint::NextHop::Switch(switch)) if switch.mode != 0 => Some(api::SwitchMode {
            switch: switch.name.clone(),
            mode: switch.mode,
        }),
        _ => None,
    });
    api::CollectiveSettings {
        modes: neighbours.collect(),
        reproducible: Some(kind.reproducible),
        mode: kind.mode,
        loss_policy: kind.loss_policy,
        straggler_policy: kind.straggler_policy,
        ack_timeout_us: kind.ack_timeout_us,
        stall_timeout_ms: rule.stall_timeout_ms,
        ..Default::default()
    }
}

pub(super) fn policies(facts: &mut Facts, settings: &api::CollectiveSettings, mode_reason: &str) {
    let order = match settings.reproducible() {
        true => "in rank order (reproducible)",
        false => "as they come",
    };
    let mode = mode_of(settings.mode());
    let modes = settings.modes.iter();
    let modes: Vec<String> = modes
        .map(|at| format!("{} {}", at.switch, mode_of(at.mode())))
        .collect();
    let loss: LossPolicy = or_default(settings.loss_policy());
    let straggler: StragglerPolicy = or_default(settings.straggler_policy());
    let (ack, stall) = (settings.ack_timeout_us, settings.stall_timeout_ms);
    let ack_text = format!("{} us", count(ack.into()));
    facts.add_as("mode", mode.name(), "mode", mode_text(mode.name(), mode_reason));
    if !mode_reason.is_empty() {
        facts.field("mode_reason", mode_reason);
    }
    if !modes.is_empty() {
        let text = modes.join(", ");
        facts.add_as("modes", modes, "mode elsewhere", text);
    }
    facts.add_as("reproducible", settings.reproducible(), "contributions", order);
    facts.add("loss_policy", "losses", loss.name());
    facts.add("straggler_policy", "stragglers", straggler.name());
    facts.add_as("ack_timeout_us", ack, "ACK time-out", ack_text);
    facts.add_as("stall_timeout_ms", stall, "stall time-out", millis(stall));
}

/// `augmented (no memory for ...)`.
pub(super) fn mode_text(mode: &str, reason: &str) -> String {
    match reason {
        "" => mode.into(),
        reason => format!("{mode} ({reason})"),
    }
}

pub(super) fn mode_of(mode: api::CollectiveMode) -> CollectiveMode {
    or_default(mode)
}

/// A policy of a message, or the default if it is unspecified.
fn or_default<P: Default>(policy: impl Into<Option<P>>) -> P {
    policy.into().unwrap_or_default()
}

/// The flags by which a rank asks for the settings of its group, where they are not the default.
pub(crate) fn rank_flags(settings: &api::CollectiveSettings) -> String {
    let mut flags = String::new();
    let mut add = |flag: &str, value: &dyn std::fmt::Display| flags += &format!(" {flag} {value}");
    let (window, message) = (settings.window_packets, settings.message_packets);
    if settings.pmtu != DEFAULT_PMTU {
        add("--pmtu", &settings.pmtu);
    }
    if window != DEFAULT_WINDOW {
        add("--window", &window);
    }
    if message != u32::from(DEFAULT_MESSAGE_PACKETS).min(window) {
        add("--message-packets", &message);
    }
    if settings.reproducible() {
        flags.push_str(" --reproducible");
    }
    let mut add = |flag: &str, value: &dyn std::fmt::Display| flags += &format!(" {flag} {value}");
    let mode = mode_of(settings.mode());
    if mode != CollectiveMode::default() {
        add("--mode", &mode);
    }
    let loss: LossPolicy = or_default(settings.loss_policy());
    if loss != LossPolicy::default() {
        add("--loss", &loss);
    }
    let straggler: StragglerPolicy = or_default(settings.straggler_policy());
    if straggler != StragglerPolicy::default() {
        add("--straggler", &straggler);
    }
    let ack = settings.ack_timeout_us;
    if ack != DEFAULT_ACK_TIMEOUT_US
        && let Some(code) = (1..=31).find(|code| timeout_us(*code) == u64::from(ack))
    {
        add("--qp-timeout", &code);
    }
    flags
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
    use clap::Parser;

    /// What the line names, a rank asks for; the controller refuses a rank that asks for anything else.
    #[test]
    fn the_flags_of_a_rank_are_the_settings_of_its_group() {
        let defaults = api::CollectiveSettings {
            pmtu: 1024,
            window_packets: 64,
            message_packets: 16,
            ack_timeout_us: DEFAULT_ACK_TIMEOUT_US,
            ..Default::default()
        };
        assert_eq!(rank_flags(&defaults), "");
        let augmented = api::CollectiveSettings {
            mode: api::CollectiveMode::Augmented.into(),
            ..defaults.clone()
        };
        assert_eq!(rank_flags(&augmented), " --mode augmented");
        let other = api::CollectiveSettings {
            pmtu: 4096,
            window_packets: 8,
            message_packets: 8,
            reproducible: Some(true),
            loss_policy: api::CollectiveLossPolicy::Reflect.into(),
            straggler_policy: api::CollectiveStragglerPolicy::Rnr.into(),
            ack_timeout_us: 33_554,
            ..defaults
        };
        let flags = " --pmtu 4096 --window 8 --reproducible --loss reflect --straggler rnr --qp-timeout 13";
        assert_eq!(rank_flags(&other), flags);
        let command = format!("castnet host allreduce --job g --size 2 --rank 0 --name h{flags}");
        crate::cli::Cli::try_parse_from(command.split_whitespace()).expect("a command line");
    }

    #[test]
    fn ranks_are_ranges() {
        assert_eq!(ranks_text(&[0, 1, 2, 5, 7, 8]), "0-2 5 7-8");
        assert_eq!(ranks_text(&[u32::MAX]), u32::MAX.to_string());
        assert_eq!(ranks_text(&[]), "");
    }
}
