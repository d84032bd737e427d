//! Serde representations of small types: addresses as text, numbers as numbers.

use core::net::Ipv4Addr;

use castnet_wire::{MacAddr, Qpn};
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

/// As text: `Display` and `FromText`.
pub(crate) mod display {
    use core::fmt::Display;

    use castnet_wire::{MacAddr, McstId};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    /// Replaces `FromStr`, which `McstId` does not implement.
    pub(crate) trait FromText: Sized {
        fn from_text(text: &str) -> Result<Self, String>;
    }

    impl FromText for MacAddr {
        fn from_text(text: &str) -> Result<Self, String> {
            text.parse()
                .map_err(|e: castnet_wire::ids::BadMacAddr| e.to_string())
        }
    }

    impl FromText for McstId {
        fn from_text(text: &str) -> Result<Self, String> {
            text.parse()
                .map(McstId)
                .map_err(|_| format!("not an IPv4 address: {text}"))
        }
    }

    pub(crate) fn serialize<T: Display, S: Serializer>(value: &T, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(value)
    }

    pub(crate) fn deserialize<'de, T: FromText, D: Deserializer<'de>>(d: D) -> Result<T, D::Error> {
        T::from_text(&String::deserialize(d)?).map_err(D::Error::custom)
    }
}

pub(crate) mod port {
    use castnet_wire::PortId;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
    pub(crate) fn serialize<S: Serializer>(value: &PortId, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_u64(value.index() as u64)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<PortId, D::Error> {
        PortId::new(u8::deserialize(d)?).ok_or_else(|| D::Error::custom("ports are 0 to 63"))
    }
}

pub(crate) mod qpn {
    use castnet_wire::Qpn;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(value: &Qpn, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_u32(value.value())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Qpn, D::Error> {
        let value = u32::deserialize(d)?;
        if value >> 24 != 0 {
            return Err(D::Error::custom("a QPN has 24 bits"));
        }
        Ok(Qpn::new(value))
    }
}

pub(crate) mod psn {
    use castnet_wire::Psn;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(value: &Option<Psn>, s: S) -> Result<S::Ok, S::Error> {
        value.map(Psn::value).serialize(s)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Psn>, D::Error> {
        match Option::<u32>::deserialize(d)? {
            Some(value) if value >= Psn::MODULUS => Err(D::Error::custom("a PSN has 24 bits")),
            value => Ok(value.map(Psn::new)),
        }
    }
}

pub(crate) mod psn_value {
    use castnet_wire::Psn;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(value: &Psn, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_u32(value.value())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Psn, D::Error> {
        let value = u32::deserialize(d)?;
        if value >= Psn::MODULUS {
            return Err(D::Error::custom("a PSN has 24 bits"));
        }
        Ok(Psn::new(value))
    }
}

/// In bytes.
pub(crate) mod pmtu {
    use castnet_wire::Pmtu;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
    pub(crate) fn serialize<S: Serializer>(value: &Pmtu, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_u64(value.bytes() as u64)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Pmtu, D::Error> {
        Pmtu::from_bytes(u32::deserialize(d)?)
            .ok_or_else(|| D::Error::custom("a path MTU is 256, 512, 1024, 2048 or 4096"))
    }
}
