//! What control publishes to all workers at once: an immutable snapshot with a generation.

use core::net::Ipv4Addr;

use castnet_rules::Route;
use castnet_wire::McstId;

use crate::port_set::PortSet;
use crate::route::Routes;

/// Routes, the addresses of all groups of the switch whichever worker has them, and which ports are up. Built by
/// control, read by every worker, never changed: a new one takes its place between two batches.
#[derive(Clone, Debug)]
pub struct Tables {
    generation: u64,
    /// Sorted.
    groups: Vec<Ipv4Addr>,
    pub(crate) routes: Routes,
    pub(crate) up: PortSet,
}

impl Default for Tables {
    /// No routes, no groups, every port up.
    fn default() -> Self {
        Self {
            generation: 0,
            groups: Vec::new(),
            routes: Routes::default(),
            up: PortSet::ALL,
        }
    }
}

impl Tables {
    /// The tables of this generation. `routes` are checked already; of two with one prefix the later counts.
    pub fn new(
        generation: u64,
        groups: impl IntoIterator<Item = McstId>,
        routes: &[Route],
        up: impl IntoIterator<Item = castnet_wire::PortId>,
    ) -> Self {
        let mut groups: Vec<Ipv4Addr> = groups.into_iter().map(|m| m.0).collect();
        groups.sort_unstable();
        Self {
            generation,
            groups,
            routes: Routes::new(routes),
            up: up.into_iter().collect(),
        }
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
}
