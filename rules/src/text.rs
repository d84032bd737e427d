//! Serde representations of small types: addresses as text, numbers as numbers.
#![allow(missing_docs, reason = "the functions are serde's")]

use core::net::Ipv4Addr;

use castnet_wire::{CollectiveMode, MacAddr, Qpn};
use serde::{Deserialize, Serialize, Serializer};

use crate::group::{HostEndpoint, HostPart, RankPart, RemoteMemory};

/// A host in files: its role as separate fields.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Host<N> {
    name: N,
    ip: Ipv4Addr,
    #[serde(with = "qpn")]
    qpn: Qpn,
    #[serde(with = "display")]
    mac: MacAddr,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    memory: Option<RemoteMemory>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rank: Option<RankPart>,
}

impl From<Host<String>> for HostEndpoint {
    fn from(host: Host<String>) -> Self {
        let memory = HostPart::from(host.memory);
        Self {
            name: host.name,
            ip: host.ip,
            qpn: host.qpn,
            mac: host.mac,
            part: host.rank.map_or(memory, HostPart::Rank),
        }
    }
}

impl Serialize for HostEndpoint {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let host = Host {
            name: self.name.as_str(),
            ip: self.ip,
            qpn: self.qpn,
            mac: self.mac,
            memory: self.memory().copied(),
            rank: self.rank().copied(),
        };
        host.serialize(s)
    }
}

/// As text: `Display` and `FromStr`.
pub mod display {
    use core::fmt::Display;
    use core::str::FromStr;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<T: Display, S: Serializer>(value: &T, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(value)
    }

    pub fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(d: D) -> Result<T, D::Error> {
        String::deserialize(d)?.parse().map_err(D::Error::custom)
    }
}

/// As a number. `$from` returns `None` for a number that has no meaning.
macro_rules! number {
    ($module:ident: $type:ident, $to:expr, $from:expr, $expected:literal) => {
        pub mod $module {
            use castnet_wire::$type;
            use serde::{Deserialize, Deserializer, Serializer, de::Error};

            #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
            pub fn serialize<S: Serializer>(value: &$type, s: S) -> Result<S::Ok, S::Error> {
                let to: fn($type) -> u32 = $to;
                s.serialize_u32(to(*value))
            }

            pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<$type, D::Error> {
                let from: fn(u32) -> Option<$type> = $from;
                from(u32::deserialize(d)?).ok_or_else(|| D::Error::custom($expected))
            }
        }
    };
}

number!(port: PortId, |port| port.index() as u32, |n| PortId::new(n.try_into().ok()?), "ports are 0 to 63");
number!(qpn: Qpn, Qpn::value, |n| (n >> 24 == 0).then(|| Qpn::new(n)), "a QPN has 24 bits");
number!(psn: Psn, Psn::value, |n| (n < Psn::MODULUS).then(|| Psn::new(n)), "a PSN has 24 bits");
number!(
    pmtu: Pmtu,
    |pmtu| pmtu.bytes() as u32,
    Pmtu::from_bytes,
    "a path MTU is 256, 512, 1024, 2048 or 4096"
);

/// Its two numbers.
pub mod rate_limit {
    use castnet_wire::{BitRate, RateLimit};
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    #[derive(Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Numbers {
        bits_per_second: u64,
        burst_bytes: u64,
    }

    pub fn serialize<S: Serializer>(value: &Option<RateLimit>, s: S) -> Result<S::Ok, S::Error> {
        let numbers = |limit: RateLimit| Numbers {
            bits_per_second: limit.rate.bits_per_second(),
            burst_bytes: limit.burst_bytes,
        };
        value.map(numbers).serialize(s)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<RateLimit>, D::Error> {
        let Some(numbers) = Option::<Numbers>::deserialize(d)? else {
            return Ok(None);
        };
        let rate = BitRate::new(numbers.bits_per_second);
        Ok(Some(RateLimit {
            rate: rate.ok_or_else(|| D::Error::custom("a rate is 1000 to 10^12 bits per second"))?,
            burst_bytes: numbers.burst_bytes,
        }))
    }
}

/// How the source of a group changes: false, true for the default way, or the name of a way.
pub mod any_source {
    use castnet_wire::AnySource;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Value {
        Flag(bool),
        Name(String),
    }

    pub fn serialize<S: Serializer>(value: &Option<AnySource>, s: S) -> Result<S::Ok, S::Error> {
        match value {
            None | Some(AnySource::Bridged) => value.is_some().serialize(s),
            Some(AnySource::Synchronized) => AnySource::Synchronized.name().serialize(s),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<AnySource>, D::Error> {
        match Value::deserialize(d)? {
            Value::Flag(flag) => Ok(flag.then_some(AnySource::default())),
            Value::Name(name) => name.parse().map(Some).map_err(Error::custom),
        }
    }
}

#[derive(Deserialize)]
struct ModeName(#[serde(with = "display")] CollectiveMode);

/// A mode by its name, or none.
pub mod optional_mode {
    use castnet_wire::CollectiveMode;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::ModeName;

    pub fn serialize<S: Serializer>(value: &Option<CollectiveMode>, s: S) -> Result<S::Ok, S::Error> {
        value.map(CollectiveMode::name).serialize(s)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<CollectiveMode>, D::Error> {
        Ok(Option::<ModeName>::deserialize(d)?.map(|ModeName(mode)| mode))
    }
}

/// Modes of switches, by their names.
pub mod modes {
    use std::collections::BTreeMap;

    use castnet_wire::CollectiveMode;
    use serde::{Deserialize, Deserializer, Serializer};

    use super::ModeName;

    pub fn serialize<S: Serializer>(
        value: &BTreeMap<String, CollectiveMode>,
        s: S,
    ) -> Result<S::Ok, S::Error> {
        s.collect_map(value.iter().map(|(switch, mode)| (switch, mode.name())))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        d: D,
    ) -> Result<BTreeMap<String, CollectiveMode>, D::Error> {
        let modes = BTreeMap::<String, ModeName>::deserialize(d)?;
        Ok(modes
            .into_iter()
            .map(|(switch, ModeName(mode))| (switch, mode))
            .collect())
    }
}

pub(crate) mod optional_psn {
    use castnet_wire::Psn;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Deserialize)]
    struct Value(#[serde(with = "super::psn")] Psn);

    pub(crate) fn serialize<S: Serializer>(value: &Option<Psn>, s: S) -> Result<S::Ok, S::Error> {
        value.map(Psn::value).serialize(s)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Psn>, D::Error> {
        Ok(Option::<Value>::deserialize(d)?.map(|Value(psn)| psn))
    }
}
