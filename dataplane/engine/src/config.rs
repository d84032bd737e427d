//! The configuration of an engine, fixed at the start, because all tables are sized from it.

use core::net::Ipv4Addr;

use castnet_rules::Ipv4Net;
use castnet_wire::{MacAddr, Nanos, PortId};

use crate::port_set::PortSet;

/// A port as the engine sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// Its number.
    pub id: PortId,
    /// Its name, also the LLDP port id.
    pub name: String,
    /// Its Ethernet address: the source of rewritten frames, and the answer to ARP requests for a McstID.
    pub mac: MacAddr,
    /// The largest IP packet that the port carries, in bytes without Ethernet and VLAN headers.
    pub mtu: usize,
    /// True if frames to unknown and to group Ethernet addresses are flooded to it.
    pub flood: bool,
}

/// The registration packets of MRP (Cepheus III.C) that a switch takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistrationConfig {
    /// Their UDP destination port.
    pub udp_port: u16,
    /// The ports by which they may come in: of leaders, and between switches.
    pub ports: PortSet,
    /// Of these, those that lead to switches although LLDP does not show it.
    pub fabric: PortSet,
    /// The addresses that groups may have. ARP requests for them are answered at `ports`, also before they are registered.
    pub pool: Vec<Ipv4Net>,
}

/// The configuration of an engine. [`EngineConfig::new`] sets default sizes for a medium switch.
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
    /// Ports by which a static core may bring data although no route leads there, such as those behind the splitters of other switches.
    pub core_ports: PortSet,
    /// Most groups.
    pub groups_max: usize,
    /// Most bytes of state of all groups together.
    pub memory_bytes_max: usize,
    /// Most distinct next-hop Ethernet addresses of all groups together, at most 65,536.
    pub next_hops_max: usize,
    /// Routed flows that are cached; 0 for none.
    pub flows: usize,
    /// Most learned Ethernet addresses.
    pub fdb_capacity: usize,
    /// Time after which an Ethernet address that was not seen again is forgotten.
    pub fdb_ageing: Nanos,
    /// Most IPv4 neighbours learned from ARP.
    pub neighbours_max: usize,
    /// Interval between LLDP frames on each port; `None` for no LLDP.
    pub lldp_interval: Option<Nanos>,
    /// `None`: registration packets are frames like any other.
    pub registration: Option<RegistrationConfig>,
    /// Capacity of the event queue. Events beyond it are only counted.
    pub events_max: usize,
    /// True if only CNPs of the most congested path of a multicast group are sent to its source (M4). False, to compare: all of them.
    pub filter_cnps: bool,
    /// Seed of the table hashes, so that a host cannot choose addresses that collide.
    pub hash_seed: u64,
}

impl EngineConfig {
    /// A switch with this name and these ports. Its Ethernet address is that of its first port.
    pub fn new(switch: impl Into<String>, ports: Vec<PortInfo>) -> Self {
        Self {
            switch: switch.into(),
            mac: ports.first().map(|p| p.mac).unwrap_or_default(),
            addresses: Vec::new(),
            ports,
            core_ports: PortSet::default(),
            groups_max: 4096,
            memory_bytes_max: 64 << 20,
            next_hops_max: 4096,
            flows: 1024,
            fdb_capacity: 8192,
            fdb_ageing: Nanos::from_secs(300),
            neighbours_max: 1024,
            lldp_interval: Some(Nanos::from_secs(30)),
            registration: None,
            events_max: 1024,
            filter_cnps: true,
            hash_seed: 0,
        }
    }

    /// Checks that no port is configured twice and no size is too large.
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
            ("flows", self.flows, 1 << 20),
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

const GROUPS_LIMIT: usize = 1 << 20;

/// Why an engine cannot start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum ConfigError {
    /// Two ports have the same number.
    #[error("port {port} is configured twice")]
    DuplicatePort { port: PortId },
    /// A size is too large for its table.
    #[error("{what} is {value}: at most {max}")]
    TooLarge {
        what: &'static str,
        value: usize,
        max: usize,
    },
}
