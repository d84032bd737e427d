//! What is asked for.

use core::net::Ipv4Addr;
use std::collections::BTreeMap;

use castnet_rules::{DEFAULT_STALL_TIMEOUT_MS, RemoteMemory};
use castnet_wire::{MacAddr, McstId, Pmtu, Psn, Qpn};

/// A multicast group that is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The group's name.
    pub name: String,
    /// The version that the rules will carry.
    pub generation: u64,
    /// The group's address; no host of the fabric has it.
    pub mcst_id: McstId,
    /// Its address at each switch, where its tree passes routers: each switch of such a tree has one of its own.
    pub mcst_ids: BTreeMap<String, McstId>,
    /// Payload bytes of a full packet.
    pub pmtu: Pmtu,
    /// The PSN of the source's first packet; `None` where the switches shall learn it.
    pub start_psn: Option<Psn>,
    /// The virtual address, in the source's WRITEs, that means the start of each member's memory.
    pub va_base: u64,
    /// How long a path may owe acknowledgements, in milliseconds, before the operator hears of it.
    pub stall_timeout_ms: u32,
    /// Who sends.
    pub source: Member,
    /// Who receives: at least one.
    pub receivers: Vec<Member>,
}

/// A host's QP in a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The host's name in the fabric.
    pub host: String,
    /// Its address; where it is `None`, the fabric's.
    pub ip: Option<Ipv4Addr>,
    /// Its Ethernet address; where it is `None`, the fabric's.
    pub mac: Option<MacAddr>,
    /// Its QP.
    pub qpn: Qpn,
    /// Where WRITEs land.
    pub memory: Option<RemoteMemory>,
}

impl Request {
    /// A request with the usual rest: generation 1, learned PSN, VA base 0, the default stall time.
    pub fn new(name: &str, mcst_id: McstId, pmtu: Pmtu, source: Member, receivers: Vec<Member>) -> Self {
        Self {
            name: name.into(),
            generation: 1,
            mcst_id,
            mcst_ids: BTreeMap::new(),
            pmtu,
            start_psn: None,
            va_base: 0,
            stall_timeout_ms: DEFAULT_STALL_TIMEOUT_MS,
            source,
            receivers,
        }
    }

    /// Source and receivers with their fields' paths.
    pub(crate) fn members(&self) -> impl Iterator<Item = (String, &Member)> {
        let receivers = self
            .receivers
            .iter()
            .enumerate()
            .map(|(i, m)| (format!("receivers[{i}]"), m));
        core::iter::once(("source".to_string(), &self.source)).chain(receivers)
    }
}

impl Member {
    /// A host's QP, with the addresses that the fabric knows, and no memory.
    pub fn new(host: &str, qpn: Qpn) -> Self {
        Self {
            host: host.into(),
            ip: None,
            mac: None,
            qpn,
            memory: None,
        }
    }
}
