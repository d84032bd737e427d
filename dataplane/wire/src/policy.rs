//! Policies of a collective group.

use core::str::FromStr;

use crate::names;

names! {
    /// How the switches of a collective group carry its connections (EPIC 4).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum CollectiveMode {
        /// Mode-II, connection translated (4.3): a rank's packet is acknowledged once its receivers have the result.
        #[default]
        Translated => "translated",
        /// Mode-III, connection augmented (4.4): each switch acknowledges what it has stored, and repeats it itself.
        Augmented => "augmented",
        /// Mode-I, connection terminated (4.2): each switch ends the connections, and receives, reduces and sends whole messages.
        Terminated => "terminated",
    }
}

names! {
    /// Which side repairs losses.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum LossPolicy {
        /// The switch: it keeps results until all receivers have acknowledged them, and requests missing contributions.
        #[default]
        Repair => "repair",
        /// The hosts, as in EPIC's Mode-II (4.3): NAKs are reflected, and repeated packets are answered.
        Reflect => "reflect",
    }
}

names! {
    /// How a rank that waits for a late one is kept from failing.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum StragglerPolicy {
        /// The switch repeats the last ACK on each tick, which restarts the timer of the QP.
        #[default]
        KeepAlive => "keep-alive",
        /// The switch sends an RNR NAK on each tick. On rxe, the QP survives this only with an RNR retry count of 7 and a retry
        /// count of 7.
        Rnr => "rnr",
        /// Nothing: the QP retries, and fails when its retries are used up.
        None => "none",
    }
}

names! {
    /// Which side repairs losses of a multicast group.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum MulticastRepair {
        /// The source: a NAK is sent to it when all receivers have everything before (Cepheus III.D).
        #[default]
        Source => "source",
        /// The nearest switch that has kept the packet.
        Switch => "switch",
    }
}

names! {
    /// Whose PSNs the hosts of a group with several sources have.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum AnySource {
        /// Each host counts on its own, and the switch next to it bridges its PSNs to those of the group.
        #[default]
        Bridged => "bridged",
        /// Those of the group: hosts synchronize them when the source changes (Cepheus III.E).
        Synchronized => "synchronized",
    }
}

/// Error: the text names no policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no such policy: write one of {}", .0.join(", "))]
pub struct UnknownPolicy(pub &'static [&'static str]);

macro_rules! parsed_by_name {
    ($($policy:ty),*) => {
        $(impl FromStr for $policy {
            type Err = UnknownPolicy;

            fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
                let found = Self::ALL.iter().find(|policy| policy.name() == text);
                found.copied().ok_or(UnknownPolicy(Self::NAMES))
            }
        })*
    };
}

parsed_by_name!(
    AnySource,
    CollectiveMode,
    LossPolicy,
    MulticastRepair,
    StragglerPolicy
);
