//! The settings of groups: type, unit and default of each.

use std::collections::BTreeMap;

use castnet_rules::{
    AnySource, CollectiveMode, DEFAULT_ACK_TIMEOUT_US, DEFAULT_MESSAGE_PACKETS, DEFAULT_STALL_TIMEOUT_MS,
    LossPolicy, RateLimit, RepairRule, StragglerPolicy, text,
};
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

impl MulticastSettings {
    /// Whether it goes on without a receiver that ends its connection with a NAK: as without one that stalls.
    pub fn outlives_refusals(&self) -> bool {
        self.any_source.is_none() && self.on_stall.is_some_and(|policy| !policy.fails)
    }
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

/// Declares the settings of a collective group and, with the same fields, what a call gives of them: `name: Type [serde attribute] = default`.
macro_rules! collective_settings {
    ($($(#[$doc:meta])* $name:ident: $type:ty [$($serde:tt)*] = $default:expr;)*) => {
        /// The settings of a collective group.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub struct CollectiveSettings {
            $($(#[$doc])* #[serde($($serde)*)] pub $name: $type,)*
            /// How switches carry the connections; `None`, the default: Mode-II or, where that has no room, Mode-III.
            #[serde(with = "text::optional_mode", default, skip_serializing_if = "Option::is_none")]
            pub mode: Option<CollectiveMode>,
            /// Switches with another mode; none by default.
            #[serde(with = "text::modes", default, skip_serializing_if = "BTreeMap::is_empty")]
            pub modes: BTreeMap<String, CollectiveMode>,
        }

        /// The settings of a collective group that a call gives. `None`: that of the group, or the default for a new group.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct GivenSettings {
            $($(#[$doc])* pub $name: Option<$type>,)*
            /// How switches carry the connections.
            pub mode: Option<CollectiveMode>,
            /// Switches with another mode; ranks do not ask for them.
            pub modes: BTreeMap<String, CollectiveMode>,
            /// Limit of the data of each rank, all lanes together. Records have it in their common part.
            pub rate_limit: Option<RateLimit>,
        }

        impl Default for CollectiveSettings {
            fn default() -> Self {
                Self { $($name: $default,)* mode: None, modes: BTreeMap::new() }
            }
        }

        impl From<&CollectiveSettings> for GivenSettings {
            fn from(settings: &CollectiveSettings) -> Self {
                Self {
                    $($name: Some(settings.$name),)*
                    mode: settings.mode,
                    modes: settings.modes.clone(),
                    rate_limit: None,
                }
            }
        }

        impl CollectiveSettings {
            /// The given settings, and the defaults of all others.
            pub fn new(given: &GivenSettings) -> Self {
                let default = Self::default();
                let mut settings = Self {
                    $($name: given.$name.unwrap_or(default.$name),)*
                    mode: given.mode,
                    modes: given.modes.clone(),
                };
                // A full message is never larger than the window, whichever of the two was given.
                if given.window_packets.is_none() {
                    settings.window_packets = settings.window_packets.max(settings.message_packets);
                }
                settings.message_packets = settings.message_packets.min(settings.window_packets);
                settings
            }

            /// The first given setting that differs from these, with the limit of the group: field, given value, present value.
            pub fn differs(
                &self,
                given: &GivenSettings,
                rate_limit: Option<RateLimit>,
            ) -> Option<(&'static str, String, String)> {
                let all = [
                    $((
                        concat!("settings.", stringify!($name)),
                        given.$name.map(|given| given.to_string()),
                        self.$name.to_string(),
                    ),)*
                    (
                        "settings.mode",
                        given.mode.map(|given| given.to_string()),
                        self.mode.map_or_else(|| "the controller's choice".into(), |mode| mode.to_string()),
                    ),
                    (
                        "settings.rate_limit",
                        given.rate_limit.map(|given| given.to_string()),
                        rate_limit.map_or_else(|| "no limit".into(), |limit| limit.to_string()),
                    ),
                ];
                let mut all = all.into_iter();
                all.find_map(|(field, given, is)| Some((field, given.filter(|given| *given != is)?, is)))
            }
        }
    };
}

collective_settings! {
    /// Payload bytes of a full packet; 1024 by default.
    pmtu: Pmtu [with = "text::pmtu"] = Pmtu::B1024;
    /// Packets that a rank may have in flight; by default 64, or those of a message if they are more.
    window_packets: u16 [] = 64;
    /// Packets of a full message, at most the window; by default 16, or the window if it is smaller.
    message_packets: u16 [] = DEFAULT_MESSAGE_PACKETS;
    /// Whether contributions are reduced in rank order; by default they are not.
    reproducible: bool [] = false;
    /// Who repairs losses; the switches by default.
    loss_policy: LossPolicy [with = "text::display"] = LossPolicy::default();
    /// How ranks that wait for a late rank are kept alive; by repeated ACKs by default.
    straggler_policy: StragglerPolicy [with = "text::display"] = StragglerPolicy::default();
    /// ACK timeout of the ranks, in microseconds; 67108 by default.
    ack_timeout_us: u32 [] = DEFAULT_ACK_TIMEOUT_US;
    /// Milliseconds after which a stalled collective is reported; 2000 by default.
    stall_timeout_ms: u32 [] = DEFAULT_STALL_TIMEOUT_MS;
    /// Number of lanes, 1 to [`castnet_rules::LANES_MAX`]; 1 by default.
    lanes: u8 [default = "one"] = one();
}

const fn one() -> u8 {
    1
}

#[cfg(test)]
mod tests {
    use castnet_wire::BitRate;

    use super::*;

    /// A message is never longer than the window, whichever of the two was given.
    #[test]
    fn settings_that_are_not_given_fit_those_that_are() {
        let of = |window_packets, message_packets| {
            let settings = CollectiveSettings::new(&GivenSettings {
                window_packets,
                message_packets,
                ..Default::default()
            });
            (settings.window_packets, settings.message_packets)
        };
        let (window, message) = of(None, None);
        assert!(message <= window);
        assert_eq!(of(Some(8), None), (8, message.min(8)));
        assert_eq!(of(None, Some(window + 1)), (window + 1, window + 1));
        assert_eq!(of(None, Some(window - 1)), (window, window - 1));
        assert_eq!(of(Some(200), Some(100)), (200, 100));
        assert_eq!(of(Some(100), Some(200)), (100, 100));
    }

    type Change<'c> = &'c dyn Fn(&mut GivenSettings);

    /// What a rank gives must be what the group has. What it does not give is the group's.
    #[test]
    fn each_setting_that_differs_is_named_with_both_values() {
        let rate = |bits| {
            Some(RateLimit {
                rate: BitRate::new(bits).expect("a rate"),
                burst_bytes: 4096,
            })
        };
        let same = GivenSettings {
            pmtu: Some(Pmtu::B1024),
            window_packets: Some(64),
            message_packets: Some(16),
            reproducible: Some(false),
            mode: Some(CollectiveMode::Translated),
            modes: BTreeMap::new(),
            loss_policy: Some(LossPolicy::Repair),
            straggler_policy: Some(StragglerPolicy::KeepAlive),
            ack_timeout_us: Some(1000),
            stall_timeout_ms: Some(2000),
            lanes: Some(2),
            rate_limit: rate(1_000_000_000),
        };
        let is = CollectiveSettings::new(&same);
        let limit = same.rate_limit;
        let unlimited = GivenSettings {
            rate_limit: None,
            ..same.clone()
        };
        assert_eq!(GivenSettings::from(&is), unlimited);
        assert_eq!(is.differs(&same, limit), None);
        assert_eq!(is.differs(&GivenSettings::default(), limit), None);
        let changed = |change: Change<'_>| {
            let mut given = same.clone();
            change(&mut given);
            let (field, given, is) = is.differs(&given, limit).expect("a difference");
            format!("{field} {given} {is}")
        };
        let rows: [(Change<'_>, &str); 10] = [
            (&|g| g.pmtu = Some(Pmtu::B2048), "settings.pmtu 2048 1024"),
            (&|g| g.window_packets = Some(65), "settings.window_packets 65 64"),
            (
                &|g| g.message_packets = Some(15),
                "settings.message_packets 15 16",
            ),
            (
                &|g| g.reproducible = Some(true),
                "settings.reproducible true false",
            ),
            (
                &|g| g.mode = Some(CollectiveMode::Augmented),
                "settings.mode augmented translated",
            ),
            (
                &|g| g.loss_policy = Some(LossPolicy::Reflect),
                "settings.loss_policy reflect repair",
            ),
            (
                &|g| g.straggler_policy = Some(StragglerPolicy::Rnr),
                "settings.straggler_policy rnr keep_alive",
            ),
            (
                &|g| g.ack_timeout_us = Some(1001),
                "settings.ack_timeout_us 1001 1000",
            ),
            (
                &|g| g.stall_timeout_ms = Some(0),
                "settings.stall_timeout_ms 0 2000",
            ),
            (&|g| g.lanes = Some(1), "settings.lanes 1 2"),
        ];
        for (change, wanted) in rows {
            let text = changed(change).replace('-', "_");
            assert_eq!(text, wanted);
        }
        let given = GivenSettings {
            rate_limit: rate(2_000_000_000),
            ..Default::default()
        };
        assert_eq!(
            is.differs(&given, limit).expect("a difference").0,
            "settings.rate_limit"
        );
        assert_eq!(is.differs(&given, None).expect("a difference").2, "no limit");
        let any = CollectiveSettings { mode: None, ..is };
        assert_eq!(
            any.differs(&same, limit).expect("a difference").2,
            "the controller's choice"
        );
    }
}
