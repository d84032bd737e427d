//! Moves a group from one engine to another, with all its state: machine, slots, counters and timers.
//!
//! The mover first reserves capacity in the target engine ([`Engine::expect`]), so that the move cannot fail later. Then it
//! removes the group from the source engine ([`Engine::remove`]) and attaches it to the target ([`Engine::attach`]), where the
//! group continues without interruption. None of these functions allocates.

use castnet_wire::{MacAddr, McstId, Nanos};

use crate::engine::Engine;
use crate::group::context::{Context, with_group};
use crate::group::install::InstallError;
use crate::group::kind::Kind;

/// The resources that an engine reserves for a group that will be attached. Create and free it outside the worker threads.
#[derive(Clone, Debug)]
pub struct Expected {
    mcst_id: McstId,
    memory_bytes: usize,
    /// The Ethernet addresses of its next hops.
    macs: Box<[MacAddr]>,
    /// The indexes that the engine reserves for these addresses.
    indexes: Box<[u16]>,
}

impl Expected {
    /// Describes a group: its address, the bytes of group memory that it uses, and its next hops.
    pub fn new(mcst_id: McstId, memory_bytes: usize, next_hops: impl IntoIterator<Item = MacAddr>) -> Self {
        let macs: Box<[MacAddr]> = next_hops.into_iter().collect();
        Self {
            mcst_id,
            memory_bytes,
            indexes: vec![0; macs.len()].into_boxed_slice(),
            macs,
        }
    }

    /// The group's address.
    pub fn mcst_id(&self) -> McstId {
        self.mcst_id
    }
}

impl Engine {
    /// Reserves capacity for a group that will be attached. Until [`Engine::attach`] or [`Engine::unexpect`], no other group may be
    /// installed in this engine.
    ///
    /// # Errors
    /// There is no capacity or memory for the group. Nothing is reserved then.
    pub fn expect(&mut self, group: &mut Expected) -> Result<(), InstallError> {
        self.groups.check_capacity(group.mcst_id, group.memory_bytes)?;
        let Expected { macs, indexes, .. } = group;
        let next_hops = &mut self.services.output.next_hops;
        next_hops.acquire_all(macs.iter().copied(), |i, index| indexes[i] = index)?;
        Ok(())
    }

    /// Releases the reservation.
    pub fn unexpect(&mut self, group: &Expected) {
        group
            .indexes
            .iter()
            .for_each(|index| self.services.output.next_hops.release(*index));
    }

    /// Installs a group that was removed from another engine. Its timers are armed and its pending emissions are queued.
    ///
    /// # Errors
    /// No capacity for the group. This cannot happen after [`Engine::expect`]. The group is returned unchanged.
    pub fn attach(
        &mut self,
        now: Nanos,
        mut group: Context,
        expected: &Expected,
    ) -> Result<(), (InstallError, Context)> {
        let own = self.config.addresses.first().copied();
        let room = self.groups.check_capacity(group.mcst_id(), group.memory_bytes());
        let next_hops = &mut self.services.output.next_hops;
        let bound = room.and_then(|()| Ok(with_group!(&mut group, group => group.bind(next_hops, own))?));
        self.unexpect(expected);
        if let Err(error) = bound {
            return Err((error, group));
        }
        let (index, _) = self.groups.insert(group);
        let services = &mut self.services;
        self.groups.with(
            index,
            |group| with_group!(group, group => group.resume(services, now, index)),
        );
        Ok(())
    }
}
