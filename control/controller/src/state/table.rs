//! All groups in memory, with an index for each frequent query, so that none walks the groups.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::Ipv4Addr;
use std::ops::Bound;
use std::sync::{Arc, Weak};

use castnet_planner::Edge;
use castnet_rules::{HostEndpoint, Ipv4Net};
use castnet_topology::Topology;
use castnet_wire::{McstId, Qpn};
use parking_lot::Mutex;

use crate::state::broken_links::DownLinks;
use crate::state::driver::Work;
use crate::state::kinds::multicast::stall::PathStall;
use crate::state::pool::AddressSet;
use crate::state::shown::Cache;
use crate::state::tenants::Quotas;
use crate::state::timers::Timers;
use crate::state::{Detours, Due, Ends, Plan, Record};

mod load;
#[cfg(test)]
mod tests;

pub(crate) use load::{Load, Snapshot};

pub(crate) struct Entry {
    record: Record,
    /// Switches that have confirmed their part of the present generation.
    pub(crate) confirmed: BTreeSet<String>,
    /// By switch: why it lacks its part.
    pub(crate) problems: BTreeMap<String, String>,
    /// What its installation waits for, or why it is not where it was placed first; may be empty.
    pub(crate) note: String,
    pub(crate) work: Option<Work>,
    /// Whom to tell of each change, while there is anybody. The shell knows who that is.
    pub(crate) followers: Weak<dyn Any + Send + Sync>,
    /// What is seen of it.
    pub(crate) shown: Mutex<Cache>,
    /// Refusals of switches since it was last active.
    pub(crate) detours: Detours,
    pub(crate) timers: Timers<Due>,
    /// Links and switches of its tree that are down, while it runs.
    pub(crate) links_down: DownLinks,
    /// Open calls of ranks, by rank. One counts while the rank has a seat, which is stored and may be taken back; without one, its lease
    /// runs.
    pub(crate) present: BTreeMap<u16, u64>,
    /// Numbers of the open calls of members with leases, in a multicast group.
    pub(crate) calls: BTreeSet<u64>,
    /// Ranks that switches wait for: the last report of each.
    pub(crate) stalls: BTreeMap<String, Vec<u16>>,
    /// Ranks that are waited for, by all of these reports.
    pub(crate) waiting_for: Vec<u16>,
    /// Paths that switches of a multicast group wait for, by switch.
    pub(crate) path_stalls: BTreeMap<String, PathStall>,
    /// If the tree passes routers: its layout as planned at its creation.
    pub(crate) foreseen: Option<Plan>,
}

impl Entry {
    pub(crate) fn new(record: Record) -> Self {
        Self {
            record,
            confirmed: BTreeSet::new(),
            problems: BTreeMap::new(),
            note: String::new(),
            work: None,
            followers: Weak::<()>::new(),
            shown: Mutex::default(),
            detours: Detours::default(),
            timers: Timers::default(),
            links_down: DownLinks::new(),
            present: BTreeMap::new(),
            calls: BTreeSet::new(),
            stalls: BTreeMap::new(),
            waiting_for: Vec::new(),
            path_stalls: BTreeMap::new(),
            foreseen: None,
        }
    }

    /// Its layout, or the foreseen one, as far as that matters to its members.
    pub(crate) fn plan(&self) -> Option<&Plan> {
        self.record.plan.as_deref().or(self.foreseen.as_ref())
    }

    /// Address of the first lane for each member, if switches have their own: that of the switch next to it.
    pub(crate) fn own_mcst_ids<K: Ord>(
        &self,
        member: impl Fn(&HostEndpoint) -> Option<K>,
    ) -> BTreeMap<K, McstId> {
        let plan = self.plan().filter(|_| !self.record.own_mcst_ids.is_empty());
        let rules = plan.iter().flat_map(|plan| plan.rules.values());
        let own = rules.filter(|rule| rule.mcst_id != self.record.mcst_id);
        let members = own.flat_map(|rule| rule.hosts().map(|(_, host)| (host, rule.mcst_id)));
        members
            .filter_map(|(host, mcst_id)| Some((member(host)?, mcst_id)))
            .collect()
    }

    /// Addresses of its lanes for a member, if switches have their own: those of the switch next to it.
    pub(crate) fn mcst_ids_for(&self, member: impl Fn(&HostEndpoint) -> bool) -> Option<Vec<McstId>> {
        if self.record.own_mcst_ids.is_empty() {
            return None;
        }
        let mut rules = self.plan()?.rules.iter();
        let (switch, _) = rules.find(|(_, rule)| rule.hosts().any(|(_, host)| member(host)))?;
        Some(self.record.mcst_ids_by(self.plan(), switch).collect())
    }

    /// The stored part. [`Groups::put`] changes it.
    pub(crate) fn record(&self) -> &Record {
        &self.record
    }

    pub(crate) fn is_confirmed(&self) -> bool {
        let mut tree = self.record.plan.iter().flat_map(|p| p.rules.keys());
        tree.all(|s| self.confirmed.contains(s))
    }

    /// The rules have ended or been replaced: earlier reports no longer apply.
    pub(crate) fn rules_ended(&mut self) {
        self.stalls.clear();
        self.path_stalls.clear();
        self.waiting_for.clear();
    }

    /// Takes back changes of which no switch has got any.
    pub(crate) fn set_back(&mut self, record: Record, confirmed: BTreeSet<String>) {
        self.record = record;
        self.confirmed = confirmed;
        self.confirmed
            .retain(|switch| !self.problems.contains_key(switch));
    }

    pub(crate) fn phase_name(&self) -> &'static str {
        self.record.kind.behaviour().phase_name(self.record.phase)
    }

    /// Whether a switch has a part of it, or may have one.
    pub(crate) fn concerns(&self, switch: &str) -> bool {
        self.record.placed.contains(switch) || self.record.wanted_rule(switch).is_some()
    }
}

/// Usage of a switch by groups: bytes of group state, and their number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) memory: u64,
    pub(crate) groups: u64,
}

#[derive(Default)]
pub(crate) struct Groups {
    entries: BTreeMap<String, Entry>,
    indexes: Indexes,
}

/// A group, and the host of its member.
type Holder = (Arc<str>, String);

#[derive(Default)]
struct Indexes {
    by_mcst_id: HashMap<McstId, Arc<str>>,
    mcst_ids: AddressSet,
    /// McstIDs of this pool are counted by owner; outside of tests there is one.
    pool: Option<Ipv4Net>,
    of_pool: BTreeMap<String, u64>,
    by_switch: BTreeMap<String, BTreeSet<String>>,
    own: BTreeMap<String, Usage>,
    tenants: BTreeMap<String, Quotas>,
    /// Number of groups by owner, as quotas count them.
    owners: BTreeMap<String, u64>,
    /// Bytes at each switch, by owner and switch.
    memory: BTreeMap<(String, String), u64>,
    load: load::Index,
    queue_pairs: HashMap<(Ipv4Addr, Qpn), Vec<Holder>>,
    /// Groups by host, with the number of its members or ranks there.
    by_host: HashMap<String, BTreeMap<Arc<str>, u64>>,
}

impl Groups {
    /// No groups yet; their McstIDs of this pool are counted by owner.
    pub(crate) fn new(pool: Ipv4Net) -> Self {
        let mut groups = Self::default();
        groups.indexes.pool = Some(pool);
        groups
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Entry> {
        self.entries.get(name)
    }

    pub(crate) fn get_mut(&mut self, name: &str) -> Option<&mut Entry> {
        let entry = self.entries.get_mut(name)?;
        entry.shown.get_mut().is_stale = true;
        Some(entry)
    }

    /// The groups after a name, or all, by name.
    pub(crate) fn after(&self, name: Option<&str>) -> impl Iterator<Item = &Entry> {
        let from = name.map_or(Bound::Unbounded, Bound::Excluded);
        self.entries
            .range::<str, _>((from, Bound::Unbounded))
            .map(|(_, entry)| entry)
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.entries.keys().cloned().collect()
    }

    /// Adds a group, or replaces its record.
    pub(crate) fn put(&mut self, record: Record) {
        let name = record.name.clone();
        if let Some(entry) = self.entries.get_mut(&name) {
            entry.shown.get_mut().is_stale = true;
            let old = std::mem::replace(&mut entry.record, record);
            let new = &entry.record;
            // Most changes are of the phase or of a member only.
            let same_place = old.all_mcst_ids().eq(new.all_mcst_ids())
                && (&old.plan, &old.placed) == (&new.plan, &new.placed);
            if same_place && old.kind == new.kind {
                return;
            }
            let of = match same_place {
                true => Footprint::of_members,
                false => Footprint::of,
            };
            let (mut old, mut new) = (of(&old), of(new));
            old.leave_differences(&mut new);
            self.indexes.set(&name, &old, false);
            self.indexes.set(&name, &new, true);
        } else {
            self.indexes.set(&name, &Footprint::of(&record), true);
            self.entries.insert(name, Entry::new(record));
        }
    }

    pub(crate) fn put_back(&mut self, entry: Entry) {
        let name = entry.record.name.clone();
        self.indexes.set(&name, &Footprint::of(&entry.record), true);
        self.entries.insert(name, entry);
    }

    pub(crate) fn remove(&mut self, name: &str) -> Option<Entry> {
        let entry = self.entries.remove(name)?;
        self.indexes.set(name, &Footprint::of(&entry.record), false);
        Some(entry)
    }

    pub(crate) fn by_mcst_id(&self, mcst_id: McstId) -> Option<&Entry> {
        self.get(self.indexes.by_mcst_id.get(&mcst_id)?)
    }

    pub(crate) fn mcst_ids(&self) -> &AddressSet {
        &self.indexes.mcst_ids
    }

    /// Groups that have a part on a switch, or may have one.
    pub(crate) fn on_switch(&self, switch: &str) -> Vec<String> {
        let names = self.indexes.by_switch.get(switch).into_iter().flatten();
        names.cloned().collect()
    }

    /// Groups with a member or rank at a host.
    pub(crate) fn with_host(&self, host: &str) -> impl Iterator<Item = &Entry> {
        let names = self.indexes.by_host.get(host).into_iter().flatten();
        names.filter_map(|(name, _)| self.get(name))
    }

    /// What the groups of a tenant use of its quotas.
    pub(crate) fn used_by(&self, tenant: &str) -> Quotas {
        self.indexes.tenants.get(tenant).copied().unwrap_or_default()
    }

    /// The number of groups of an owner, as quotas count them.
    pub(crate) fn owned_by(&self, owner: &str) -> u64 {
        self.indexes.owners.get(owner).copied().unwrap_or_default()
    }

    /// The number of McstIDs of the common pool that groups of an owner have.
    pub(crate) fn of_pool(&self, owner: &str) -> u64 {
        self.indexes.of_pool.get(owner).copied().unwrap_or_default()
    }

    /// Our usage of a switch, without group `but`.
    pub(crate) fn own(&self, switch: &str, but: Option<&str>) -> Usage {
        let mut own = self.indexes.own.get(switch).copied().unwrap_or_default();
        if let Some(entry) = but.and_then(|name| self.get(name))
            && let Some(share) = usage(&entry.record, switch)
        {
            own.memory = count(own.memory, share.memory, false);
            own.groups = count(own.groups, share.groups, false);
        }
        own
    }

    /// Bytes that groups of an owner have of a switch, without group `but`.
    pub(crate) fn memory_of(&self, owner: &str, switch: &str, but: &str) -> u64 {
        let key = (owner.to_owned(), switch.to_owned());
        let all = self.indexes.memory.get(&key).copied().unwrap_or_default();
        let own = self.get(but).filter(|entry| entry.record.owner == owner);
        let own = own.and_then(|entry| usage(&entry.record, switch));
        all.saturating_sub(own.unwrap_or_default().memory)
    }

    /// The number of groups per link, without group `but`. Each lane counts as a group.
    pub(crate) fn load(&self, topology: &Arc<Topology>, but: &str) -> Snapshot {
        let own = self.get(but).map(|e| Footprint::of(&e.record).load);
        self.indexes.load.snapshot(topology, own.unwrap_or_default())
    }

    /// The group that has this queue pair, other than for this member of `group`.
    pub(crate) fn of_queue_pair(&self, end: &HostEndpoint, group: Option<&str>) -> Option<&str> {
        let holders = self.indexes.queue_pairs.get(&(end.ip, end.qpn))?;
        let mut others = holders
            .iter()
            .filter(|(name, host)| group != Some(&**name) || *host != end.name);
        others.next().map(|(name, _)| &**name)
    }

    /// Whether a group has this connection of this host.
    pub(crate) fn has_queue_pair(&self, end: &HostEndpoint, group: &str) -> bool {
        let holders = self.indexes.queue_pairs.get(&(end.ip, end.qpn));
        let mut holders = holders.into_iter().flatten();
        holders.any(|(name, host)| **name == *group && *host == end.name)
    }
}

impl Indexes {
    fn set(&mut self, name: &str, footprint: &Footprint<'_>, add: bool) {
        let shared: Arc<str> = name.into();
        let owner = || footprint.owner.to_owned();
        for mcst_id in &footprint.mcst_ids {
            match add {
                true => drop(self.by_mcst_id.insert(*mcst_id, shared.clone())),
                false => drop(self.by_mcst_id.remove(mcst_id)),
            }
            self.mcst_ids.set(mcst_id.0, add);
            if self.pool.is_some_and(|pool| pool.contains(&mcst_id.0)) {
                tally(&mut self.of_pool, owner(), 1, add);
            }
        }
        for switch in &footprint.switches {
            let names = self.by_switch.entry((*switch).into()).or_default();
            match add {
                true => names.insert(name.into()),
                false => names.remove(name),
            };
            if names.is_empty() {
                self.by_switch.remove(*switch);
            }
        }
        for (switch, share) in &footprint.own {
            let own = self.own.entry((*switch).into()).or_default();
            own.memory = count(own.memory, share.memory, add);
            own.groups = count(own.groups, share.groups, add);
            let key = (owner(), (*switch).to_owned());
            tally(&mut self.memory, key, share.memory, add);
        }
        if let Some((tenant, uses)) = footprint.tenant {
            let used = self.tenants.entry(tenant.into()).or_default();
            used.groups = count(used.groups, uses.groups, add);
            used.slots = count(used.slots, uses.slots, add);
            used.bandwidth = count(used.bandwidth, uses.bandwidth, add);
            if used.groups == 0 {
                self.tenants.remove(tenant);
            }
        }
        if footprint.groups > 0 {
            tally(&mut self.owners, owner(), footprint.groups, add);
        }
        self.load.set(&footprint.load, add);
        for (queue_pair, host) in &footprint.queue_pairs {
            let holders = self.queue_pairs.entry(*queue_pair).or_default();
            let holder = (shared.clone(), (*host).into());
            match holders.iter().position(|h| *h == holder) {
                _ if add => holders.push(holder),
                Some(at) => drop(holders.swap_remove(at)),
                None => {}
            }
            if holders.is_empty() {
                self.queue_pairs.remove(queue_pair);
            }
        }
        for host in &footprint.hosts {
            let groups = self.by_host.entry((*host).into()).or_default();
            tally(groups, shared.clone(), 1, add);
            if groups.is_empty() {
                self.by_host.remove(*host);
            }
        }
    }
}

/// Counts up or down; a key without any is removed.
fn tally<K: Ord>(counts: &mut BTreeMap<K, u64>, key: K, share: u64, add: bool) {
    let before = counts.get(&key).copied().unwrap_or_default();
    match count(before, share, add) {
        0 => drop(counts.remove(&key)),
        left => drop(counts.insert(key, left)),
    }
}

fn count(before: u64, share: u64, add: bool) -> u64 {
    match add {
        true => before + share,
        false => before.saturating_sub(share),
    }
}

/// What a group uses of a switch that may have a part of it.
fn usage(record: &Record, switch: &str) -> Option<Usage> {
    record.placed.contains(switch).then(|| Usage {
        memory: record.reserved_on(switch),
        groups: record.lanes().into(),
    })
}

/// What a record has in the indexes.
#[derive(Default)]
struct Footprint<'r> {
    /// It never changes.
    owner: &'r str,
    /// The number of groups that it counts as.
    groups: u64,
    mcst_ids: Vec<McstId>,
    switches: BTreeSet<&'r str>,
    /// By switch.
    own: BTreeMap<&'r str, Usage>,
    tenant: Option<(&'r str, Quotas)>,
    load: Load,
    queue_pairs: Vec<((Ipv4Addr, Qpn), &'r str)>,
    /// Of all members and ranks.
    hosts: Vec<&'r str>,
}

impl<'r> Footprint<'r> {
    /// Clears what is equal in both: most changes affect few indexes.
    fn leave_differences(&mut self, other: &mut Self) {
        fn part<T: Default + PartialEq>(one: &mut T, other: &mut T) {
            if one == other {
                (*one, *other) = Default::default();
            }
        }
        part(&mut self.mcst_ids, &mut other.mcst_ids);
        part(&mut self.switches, &mut other.switches);
        part(&mut self.own, &mut other.own);
        part(&mut self.tenant, &mut other.tenant);
        part(&mut self.groups, &mut other.groups);
        part(&mut self.load, &mut other.load);
        // A member that joins or leaves changes only its own.
        fn ends<T: PartialEq>(one: &mut Vec<T>, other: &mut Vec<T>) {
            let head = one.iter().zip(&*other).take_while(|(a, b)| a == b).count();
            one.drain(..head);
            other.drain(..head);
            let tails = one.iter().rev().zip(other.iter().rev());
            let tail = tails.take_while(|(a, b)| a == b).count();
            one.truncate(one.len() - tail);
            other.truncate(other.len() - tail);
        }
        ends(&mut self.queue_pairs, &mut other.queue_pairs);
        ends(&mut self.hosts, &mut other.hosts);
    }

    fn of(record: &'r Record) -> Self {
        let rules = || record.plan.iter().flat_map(|p| &p.rules);
        let lanes = record.lanes();
        let load = rules().flat_map(|(switch, rule)| {
            let other = |name: &str| record.plan.as_ref()?.rules.get(name);
            let edge = move |endpoint| Edge::new(switch, rule, endpoint, other);
            rule.endpoints.iter().map(move |e| (edge(e), u32::from(lanes)))
        });
        Self {
            groups: Quotas::of(record).groups,
            mcst_ids: record.all_mcst_ids().collect(),
            switches: rules()
                .map(|(s, _)| s)
                .chain(&record.placed)
                .map(String::as_str)
                .collect(),
            own: record
                .placed
                .iter()
                .filter_map(|s| Some((s.as_str(), usage(record, s)?)))
                .collect(),
            tenant: (!record.tenant.is_empty()).then(|| (record.tenant.as_str(), Quotas::of(record))),
            load: load.collect(),
            ..Self::of_members(record)
        }
    }

    /// Without what depends on its addresses and its place.
    fn of_members(record: &'r Record) -> Self {
        let parties = record.kind.behaviour().parties();
        let ends = parties.iter().filter_map(|p| p.ends).flat_map(Ends::iter);
        // A rank that no host has yet has an empty name.
        let hosts = parties.iter().map(|p| p.host).filter(|host| !host.is_empty());
        Self {
            owner: &record.owner,
            queue_pairs: ends.map(|e| ((e.ip, e.qpn), e.name.as_str())).collect(),
            hosts: hosts.collect(),
            ..Self::default()
        }
    }
}
