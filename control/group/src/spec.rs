//! The settings of groups: type, unit and default of each.

use castnet_rules::{AnySource, DEFAULT_STALL_TIMEOUT_MS, RepairRule, text};
use castnet_wire::Pmtu;
use serde::{Deserialize, Serialize};

use crate::Distribution;

/// Default of [`StallPolicy::after_ms`]: before a source goes on from host to host.
pub const DEFAULT_MEMBER_STALL_MS: u32 = 5_000;

/// The settings of a multicast group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MulticastSettings {
    /// Payload bytes of a full packet; 1024 by default.
    #[serde(with = "text::pmtu")]
    pub pmtu: Pmtu,
    /// What the source's virtual addresses are relative to; 0 by default.
    pub va_base: u64,
    /// Milliseconds after which a stalled path is reported; 2000 by default.
    pub stall_timeout_ms: u32,
    /// Whether it fails with a receiver; otherwise, and by default, it goes on without.
    pub fails_with_receiver: bool,
    /// What becomes of it when a receiver stalls; `None`, the default: it waits.
    pub on_stall: Option<StallPolicy>,
    /// Whether each member may send, and whose PSNs they have; `None`, the default: only its source sends. Switches cannot change the members of
    /// such a group while it runs.
    #[serde(with = "text::any_source", default)]
    pub any_source: Option<AnySource>,
    /// Where its copies are made; in the switches by default.
    #[serde(with = "text::display")]
    pub distribution: Distribution,
    /// Repair from the switches; `None`, the default: the source repeats what is lost.
    pub repair: Option<RepairRule>,
}

/// What becomes of a group when a receiver stalls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StallPolicy {
    /// Milliseconds without progress, at most 600000; 5000 by default.
    pub after_ms: u32,
    /// Whether it fails; otherwise it goes on without the receiver.
    pub fails: bool,
}

impl Default for MulticastSettings {
    fn default() -> Self {
        Self {
            pmtu: Pmtu::B1024,
            va_base: 0,
            stall_timeout_ms: DEFAULT_STALL_TIMEOUT_MS,
            fails_with_receiver: false,
            on_stall: None,
            any_source: None,
            distribution: Distribution::default(),
            repair: None,
        }
    }
}
