//! A group on its way from one engine to another, with all its state: machine, slots, counters and timers.
//!
//! Whoever moves it asks the engine that will get it first ([`Engine::expect`]), so that nothing can be refused once the
//! group is under way. Taking it out is [`Engine::remove`]; what that returns goes on as if nothing had happened where it
//! is put in again ([`Engine::attach`]). Neither takes memory.

use castnet_wire::{MacAddr, McstId, Nanos};

use crate::engine::Engine;
use crate::group::context::Context;
use crate::group::install::InstallError;

/// What an engine must have for a group that will come, and then keeps for it. Made, and freed, where time does not
/// matter.
#[derive(Clone, Debug)]
pub struct Expected {
    mcst_id: McstId,
    memory_bytes: usize,
    /// The Ethernet addresses of its next hops.
    macs: Box<[MacAddr]>,
    /// The places that the engine keeps for them.
    places: Box<[u16]>,
}

impl Expected {
    /// A group of this address, which takes so much of the memory for groups and has these next hops.
    pub fn new(mcst_id: McstId, memory_bytes: usize, next_hops: impl IntoIterator<Item = MacAddr>) -> Self {
        let macs: Box<[MacAddr]> = next_hops.into_iter().collect();
        Self {
            mcst_id,
            memory_bytes,
            places: vec![0; macs.len()].into_boxed_slice(),
            macs,
        }
    }

    /// The group's address.
    pub fn mcst_id(&self) -> McstId {
        self.mcst_id
    }
}

impl Engine {
    /// Keeps places for a group that will come. Until it has come, or [`Engine::unexpect`] has said that it will not, no
    /// other group may be installed here.
    ///
    /// # Errors
    /// There is no place or memory for it; nothing is kept then.
    pub fn expect(&mut self, group: &mut Expected) -> Result<(), InstallError> {
        self.groups.room(group.mcst_id, group.memory_bytes)?;
        let Expected { macs, places, .. } = group;
        let next_hops = &mut self.services.output.next_hops;
        next_hops.acquire_all(macs.iter().copied(), |i, place| places[i] = place)?;
        Ok(())
    }

    /// Gives back what was kept.
    pub fn unexpect(&mut self, group: &Expected) {
        group
            .places
            .iter()
            .for_each(|place| self.services.output.next_hops.release(*place));
    }

    /// Puts a group in service that another engine had, and goes on with it: its timers run, and what it had yet to send
    /// goes out.
    ///
    /// # Errors
    /// No place for it, which cannot be where it was [expected](Engine::expect). It comes back unharmed.
    pub fn attach(
        &mut self,
        now: Nanos,
        mut group: Context,
        expected: &Expected,
    ) -> Result<(), (InstallError, Context)> {
        let own = self.config.addresses.first().copied();
        let room = self.groups.room_for(&group);
        let bound = room.and_then(|()| Ok(group.bind(&mut self.services.output.next_hops, own)?));
        self.unexpect(expected);
        if let Err(error) = bound {
            return Err((error, group));
        }
        let (place, _) = self.groups.insert(group);
        self.groups
            .with(place, |group| group.resume(&mut self.services, now, place));
        Ok(())
    }
}
