//! Moves a group from one engine to another, with all its state: machine, slots, counters and timers.
//!
//! [`Engine::expect`] reserves capacity in the target, so that the move cannot fail later; [`Engine::remove`] takes the group from the
//! source; [`Engine::attach`] continues it in the target without interruption. None of them allocates.

use castnet_rules::GroupRule;
use castnet_wire::{MacAddr, McstId, Nanos};

use crate::address::GroupKey;
use crate::engine::Engine;
use crate::group::context::{Context, with_group};
use crate::group::install::{InstallError, macs};
use crate::group::kind::Kind;

/// What an engine reserves for a group. Create and free it outside the worker threads.
#[derive(Clone, Debug)]
pub struct Expected {
    mcst_id: McstId,
    keys: [GroupKey; 2],
    memory_bytes: usize,
    macs: Box<[MacAddr]>,
    indexes: Box<[u16]>,
}

impl Expected {
    /// `memory_bytes` is the group memory in use.
    pub fn new(rule: &GroupRule, memory_bytes: usize) -> Self {
        let macs: Box<[MacAddr]> = macs(rule).collect();
        let own = GroupKey::from(rule.mcst_id);
        let first = GroupKey::of_group(rule).next().unwrap_or(own);
        Self {
            mcst_id: rule.mcst_id,
            keys: [first, own],
            memory_bytes,
            indexes: vec![0; macs.len()].into_boxed_slice(),
            macs,
        }
    }

    /// What frames find the group by.
    pub fn keys(&self) -> [GroupKey; 2] {
        self.keys
    }

    /// The group's address.
    pub fn mcst_id(&self) -> McstId {
        self.mcst_id
    }
}

impl Engine {
    /// Reserves capacity for a group. Until [`Engine::attach`] or [`Engine::unexpect`], no other group may be installed here.
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

    /// Installs a group that was removed from another engine, arms its timers and queues its pending emissions. Without capacity, which
    /// cannot happen after [`Engine::expect`], the error is the unchanged group.
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
        self.bridge.forget_flows();
        self.resume(now, index);
        Ok(())
    }

    /// Arms the timers of a group that has come with its state, and queues its pending emissions.
    pub(crate) fn resume(&mut self, now: Nanos, slot: u32) {
        let services = &mut self.services;
        self.groups.with(
            slot,
            |group| with_group!(group, group => group.resume(services, now, slot)),
        );
    }
}
