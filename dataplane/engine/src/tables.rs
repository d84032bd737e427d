//! What control publishes to all workers at once: an immutable snapshot with a generation.

use core::net::Ipv4Addr;

use castnet_rules::Route;
use castnet_wire::{McstId, PortId};

use crate::port_set::PortSet;
use crate::route::Routes;

/// Routes, the addresses of all groups of the switch whichever worker has them and their members, which ports are up, and
/// their MTUs. Built by control, read by every worker, never changed: a new one takes its place between two batches.
#[derive(Clone, Debug)]
pub struct Tables {
    generation: u64,
    /// Sorted.
    groups: Vec<Ipv4Addr>,
    /// Sorted.
    members: Vec<(PortId, Ipv4Addr)>,
    pub(crate) routes: Routes,
    pub(crate) up: PortSet,
    pub(crate) mtus: Vec<(PortId, usize)>,
}

impl Default for Tables {
    /// No routes, no groups, every port up with the MTU that it had.
    fn default() -> Self {
        Self {
            generation: 0,
            groups: Vec::new(),
            members: Vec::new(),
            routes: Routes::default(),
            up: PortSet::ALL,
            mtus: Vec::new(),
        }
    }
}

impl Tables {
    /// The tables of this generation. `routes` are checked already; of two with one prefix the later counts.
    pub fn new(
        generation: u64,
        groups: impl IntoIterator<Item = McstId>,
        routes: &[Route],
        up: impl IntoIterator<Item = PortId>,
    ) -> Self {
        let mut groups: Vec<Ipv4Addr> = groups.into_iter().map(|m| m.0).collect();
        groups.sort_unstable();
        Self {
            generation,
            groups,
            members: Vec::new(),
            routes: Routes::new(routes),
            up: up.into_iter().collect(),
            mtus: Vec::new(),
        }
    }

    /// The same, with the hosts next to the switch that are members of its groups, and their ports.
    #[must_use]
    pub fn with_members(mut self, members: impl IntoIterator<Item = (PortId, Ipv4Addr)>) -> Self {
        self.members = members.into_iter().collect();
        self.members.sort_unstable();
        self.members.dedup();
        self
    }

    /// The same with these MTUs, in bytes; ports that are not named keep theirs.
    #[must_use]
    pub fn with_mtus(mut self, mtus: impl IntoIterator<Item = (PortId, usize)>) -> Self {
        self.mtus = mtus.into_iter().collect();
        self
    }

    /// Counts the publications.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The ports that are up.
    pub fn up(&self) -> PortSet {
        self.up
    }

    /// Whether `address` is the McstID of a group of this switch.
    pub fn is_group(&self, address: Ipv4Addr) -> bool {
        self.groups.binary_search(&address).is_ok()
    }

    /// Whether the host of this address at `port` is a member of a group of this switch.
    pub fn is_member(&self, port: PortId, address: Ipv4Addr) -> bool {
        self.members.binary_search(&(port, address)).is_ok()
    }
}
