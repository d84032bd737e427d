//! What a switch is: fixed when the engine starts, because all tables are sized from it.

use core::net::Ipv4Addr;

use castnet_wire::{MacAddr, Nanos, PortId};

/// A port as the engine sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// Its number.
    pub id: PortId,
    /// Its name: LLDP's port id, and what people read.
    pub name: String,
    /// Its Ethernet address: the source of what leaves rewritten, and the answer to ARP for a McstID.
    pub mac: MacAddr,
    /// The largest IP packet it carries, in bytes; Ethernet and VLAN headers come on top.
    pub mtu: usize,
    /// Whether frames to unknown and to group Ethernet addresses are flooded to it.
    pub flood: bool,
}

/// What an engine starts with. [`EngineConfig::new`] fills in sizes for a middling switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// The switch's name: LLDP's system name.
    pub switch: String,
    /// The switch's own Ethernet address: LLDP's chassis id.
    pub mac: MacAddr,
    /// The switch's own IPv4 addresses: ARP requests for them are answered.
    pub addresses: Vec<Ipv4Addr>,
    /// Its ports, each number once.
    pub ports: Vec<PortInfo>,
    /// Groups that fit.
    pub groups_max: usize,
    /// Bytes that the state of all groups may take together.
    pub memory_bytes_max: usize,
    /// Distinct next-hop Ethernet addresses that all groups may use together, at most 65,536.
    pub next_hops_max: usize,
    /// Ethernet addresses that are remembered.
    pub fdb_capacity: usize,
    /// How long an Ethernet address is remembered after it was last seen.
    pub fdb_ageing: Nanos,
    /// IPv4 neighbours, sighted in ARP, that are remembered.
    pub neighbours_max: usize,
    /// How often each port says who it is; `None` for never.
    pub lldp_interval: Option<Nanos>,
    /// Events that wait for a reader before further ones are only counted.
    pub events_max: usize,
    /// Seeds the hashes of the tables, so that a host cannot choose addresses that collide.
    pub hash_seed: u64,
}

impl EngineConfig {
    /// The configuration of a switch of this name with these ports; its Ethernet address is that of its first port.
    pub fn new(switch: impl Into<String>, ports: Vec<PortInfo>) -> Self {
        Self {
            switch: switch.into(),
            mac: ports.first().map(|p| p.mac).unwrap_or_default(),
            addresses: Vec::new(),
            ports,
            groups_max: 4096,
            memory_bytes_max: 64 << 20,
            next_hops_max: 4096,
            fdb_capacity: 8192,
            fdb_ageing: Nanos::from_secs(300),
            neighbours_max: 1024,
            lldp_interval: Some(Nanos::from_secs(30)),
            events_max: 1024,
            hash_seed: 0,
        }
    }

    /// Whether an engine can run with it.
    pub fn check(&self) -> Result<(), ConfigError> {
        let mut seen = 0u64;
        for port in &self.ports {
            let bit = 1 << port.id.index();
            if seen & bit != 0 {
                return Err(ConfigError::DuplicatePort { port: port.id });
            }
            seen |= bit;
        }
        for (what, value, max) in [
            ("groups_max", self.groups_max, GROUPS_LIMIT),
            ("next_hops_max", self.next_hops_max, 1 << 16),
            ("fdb_capacity", self.fdb_capacity, 1 << 24),
            ("neighbours_max", self.neighbours_max, 1 << 20),
            ("events_max", self.events_max, 1 << 20),
        ] {
            if value > max {
                return Err(ConfigError::TooLarge { what, value, max });
            }
        }
        Ok(())
    }
}

/// Groups that any engine can hold.
const GROUPS_LIMIT: usize = 1 << 20;

/// Why an engine cannot start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Two ports have one number.
    #[error("port {port} is configured twice")]
    DuplicatePort {
        /// The number.
        port: PortId,
    },
    /// A size is beyond what the tables can be built for.
    #[error("{what} is {value}: at most {max}")]
    TooLarge {
        /// The field.
        what: &'static str,
        /// Its value.
        value: usize,
        /// The largest that is allowed.
        max: usize,
    },
}
