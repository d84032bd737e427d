//! How a collective group works: what is settled when it is created.

use std::time::Duration;

use castnet_console::api;
use castnet_console::units::{count, span};
use castnet_rules::{LossPolicy, StragglerPolicy};
use serde::Serialize;

/// How a collective group works.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Policies {
    pub(crate) pmtu: u32,
    pub(crate) message_packets: u32,
    reproducible: bool,
    loss_policy: &'static str,
    straggler_policy: &'static str,
    ack_timeout_us: u32,
    stall_timeout_ms: u32,
}

impl From<&api::CollectiveSettings> for Policies {
    fn from(settings: &api::CollectiveSettings) -> Self {
        Self {
            pmtu: settings.pmtu,
            message_packets: settings.message_packets,
            reproducible: settings.reproducible(),
            loss_policy: loss(settings.loss_policy()),
            straggler_policy: straggler(settings.straggler_policy()),
            ack_timeout_us: settings.ack_timeout_us,
            stall_timeout_ms: settings.stall_timeout_ms,
        }
    }
}

impl From<&api::GroupRule> for Policies {
    fn from(rule: &api::GroupRule) -> Self {
        let kind = rule.translated().copied().unwrap_or_default();
        Self {
            pmtu: rule.pmtu,
            message_packets: kind.message_packets,
            reproducible: kind.reproducible,
            loss_policy: loss(kind.loss_policy()),
            straggler_policy: straggler(kind.straggler_policy()),
            ack_timeout_us: kind.ack_timeout_us,
            stall_timeout_ms: rule.stall_timeout_ms,
        }
    }
}

fn loss(policy: api::CollectiveLossPolicy) -> &'static str {
    match policy {
        api::CollectiveLossPolicy::Reflect => LossPolicy::Reflect.name(),
        _ => LossPolicy::Repair.name(),
    }
}

fn straggler(policy: api::CollectiveStragglerPolicy) -> &'static str {
    match policy {
        api::CollectiveStragglerPolicy::Rnr => StragglerPolicy::Rnr.name(),
        api::CollectiveStragglerPolicy::None => StragglerPolicy::None.name(),
        _ => StragglerPolicy::KeepAlive.name(),
    }
}

impl Policies {
    /// For people.
    pub(crate) fn facts(&self) -> [(&'static str, String); 5] {
        let order = match self.reproducible {
            true => "in rank order (reproducible)",
            false => "as they come",
        };
        [
            ("contributions", order.to_owned()),
            ("losses", self.loss_policy.to_owned()),
            ("stragglers", self.straggler_policy.to_owned()),
            (
                "ACK time-out",
                format!("{} us", count(self.ack_timeout_us.into())),
            ),
            ("stall time-out", millis(self.stall_timeout_ms)),
        ]
    }
}

/// A time-out in milliseconds, for people.
pub(crate) fn millis(ms: u32) -> String {
    span(Duration::from_millis(ms.into()))
}
