//! Ports, next hops and counters for sending frames of all kinds.

pub(crate) mod acknowledge;
pub(crate) mod copies;
pub(crate) mod cx;

use std::sync::Arc;

use castnet_wire::icrc::ShiftCache;
use castnet_wire::{MacAddr, PortId};

use crate::config::{EngineConfig, PortInfo};
use crate::observe::counters::Counters;
use crate::port_set::PortSet;
use crate::tables::next_hops::NextHops;
use crate::tables::route::Routes;

/// Cached ICRC operators for 16 frame lengths, 4 KiB each.
pub(crate) type Shifts = ShiftCache<16>;

#[derive(Clone, Debug)]
pub(crate) struct Ports {
    pub(crate) macs: [MacAddr; PortId::COUNT],
    pub(crate) mtus: [u32; PortId::COUNT],
    pub(crate) present: PortSet,
    /// Present ports that are up.
    pub(crate) up: PortSet,
    /// Present ports that are flooded to, up or not.
    pub(crate) flood: PortSet,
}

impl Ports {
    fn new(ports: &[PortInfo]) -> Self {
        let mut table = Self {
            macs: [MacAddr::default(); PortId::COUNT],
            mtus: [0; PortId::COUNT],
            present: ports.iter().map(|p| p.id).collect(),
            up: ports.iter().map(|p| p.id).collect(),
            flood: ports.iter().filter(|p| p.flood).map(|p| p.id).collect(),
        };
        for port in ports {
            table.macs[port.id.index()] = port.mac;
            table.set_mtu(port.id, port.mtu);
        }
        table
    }

    pub(crate) fn set_mtu(&mut self, port: PortId, mtu: usize) {
        self.mtus[port.index()] = u32::try_from(mtu).unwrap_or(u32::MAX);
    }

    #[inline]
    pub(crate) fn mac(&self, port: PortId) -> MacAddr {
        self.macs[port.index()]
    }

    pub(crate) fn mtu(&self, port: PortId) -> usize {
        self.mtus[port.index()] as usize
    }
}

#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) ports: Ports,
    pub(crate) next_hops: NextHops,
    /// Those of the tables in use.
    pub(crate) routes: Arc<Routes>,
    pub(crate) shifts: Shifts,
    pub(crate) counters: Counters,
}

impl Output {
    pub(crate) fn new(config: &EngineConfig) -> Self {
        Self {
            ports: Ports::new(&config.ports),
            next_hops: NextHops::new(config.next_hops_max, config.hash_seed),
            routes: Arc::default(),
            shifts: Shifts::new(),
            counters: Counters::new(),
        }
    }
}
