//! Routes to multicast addresses that the controller keeps on switches: those of the relays of a Shufflecast, also after one has failed
//! (Algorithm 2), and those of groups in programmable routers (PEEL 3.3). All other routes are the operator's.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use castnet_planner::shufflecast::{Relaying, Relays, Tor, Update};
use castnet_proto::v1;
use castnet_proto::v1::controller_event::Event;
use castnet_rules::{Ipv4Net, Route};
use castnet_topology::{End, Splitter, Topology};

use crate::state::broken_links::silent_port;
use crate::state::kinds::multicast::refine::Refinement;
use crate::state::table::Groups;
use crate::state::{Core, Effect, Entry, Owner, Reach};

/// What the controller knows of them.
#[derive(Default)]
pub(crate) struct MulticastRoutes {
    pub(crate) relays: Option<Arc<Relays>>,
    failed: Option<FailedRelay>,
    /// ToRs of which it was not known yet whether they relay. While there are some, all keep the routes that they have: a controller
    /// before this one may have moved them.
    undecided: BTreeSet<Tor>,
    /// By address, groups of which programmable routers make copies.
    groups: BTreeMap<Ipv4Addr, CoreGroup>,
    /// Addresses of which another controller has routes.
    foreign: BTreeSet<Ipv4Addr>,
    /// The address given out last: the search continues after it, so that none is used again soon.
    last: Option<Ipv4Addr>,
    /// Groups that are looked at soon, to refine them.
    pub(crate) refined_soon: BTreeSet<String>,
}

/// A group that programmable routers know.
struct CoreGroup {
    name: String,
    copies: Vec<Ipv4Addr>,
    /// Routers are getting its rule: its plan does not have the address yet.
    is_new: bool,
}

/// The failed relay for which rules have moved. Another one that fails meanwhile keeps its rules: Algorithm 2 is for one failure.
struct FailedRelay {
    tor: Tor,
    update: Update,
    /// The others that have failed, as they were told.
    not_covered: BTreeSet<Tor>,
}

impl FailedRelay {
    fn told(&self, relays: &Relays, reason: String, rules: usize) -> Event {
        let name = |tor: Tor| relays.name(tor).to_owned();
        Event::RelayChanged(v1::RelayChanged {
            switch_name: name(self.tor),
            reason,
            mirror: name(relays.fabric().mirror(self.tor)),
            rules: rules as u32,
            not_covered: self.not_covered.iter().copied().map(name).collect(),
        })
    }
}

/// The routes that a switch should have within prefixes.
pub(crate) struct Wanted {
    pub(crate) scope: Vec<Ipv4Net>,
    pub(crate) routes: BTreeMap<Ipv4Net, Route>,
}

impl MulticastRoutes {
    /// Of the fabric in a topology file. `Err`: its splitters have no relays, and why.
    pub(crate) fn new(file: Option<&Topology>) -> Result<Self, String> {
        let relays = file.map(Relays::of).transpose().map_err(|error| error.reason())?;
        let relays = relays.flatten().map(Arc::new);
        Ok(Self {
            undecided: relays.iter().flat_map(|r| r.tors()).map(|(tor, _)| tor).collect(),
            relays,
            ..Self::default()
        })
    }

    /// Takes the next free address of `block` for a group that has copies for these addresses. `None`: all are in use.
    pub(crate) fn take(&mut self, block: Ipv4Net, group: &str, copies: &[Ipv4Addr]) -> Option<Ipv4Addr> {
        let (first, last) = (block.network().to_bits(), block.broadcast().to_bits());
        let start = self.last.map_or(first, |last| last.to_bits().wrapping_add(1));
        let start = if (first..=last).contains(&start) {
            start
        } else {
            first
        };
        let mut all = (start..=last).chain(first..start).map(Ipv4Addr::from);
        let is_free =
            |address: &Ipv4Addr| !self.groups.contains_key(address) && !self.foreign.contains(address);
        let address = all.find(is_free)?;
        self.last = Some(address);
        let (name, copies) = (group.to_owned(), copies.to_vec());
        let new = CoreGroup {
            name,
            copies,
            is_new: true,
        };
        self.groups.insert(address, new);
        Some(address)
    }

    /// Takes the address that a group has in its plan.
    fn keep(&mut self, group: &str, refinement: &Refinement) {
        let kept = CoreGroup {
            name: group.to_owned(),
            copies: refinement.copies.clone(),
            is_new: false,
        };
        self.groups.insert(refinement.address, kept);
    }

    /// Another controller has a route to an address: no group gets it.
    pub(crate) fn is_of_another(&mut self, address: Ipv4Addr) {
        self.foreign.insert(address);
    }

    /// The routers have the rule of an address, or will not get it.
    pub(crate) fn settle(&mut self, address: Ipv4Addr) {
        if let Some(group) = self.groups.get_mut(&address) {
            group.is_new = false;
        }
    }

    pub(crate) fn is_being_refined(&self, group: &str) -> bool {
        self.groups
            .values()
            .any(|known| known.is_new && known.name == group)
    }

    /// Takes the addresses that groups had before the controller was restarted.
    pub(crate) fn keep_all(&mut self, groups: &Groups) {
        for entry in groups.after(None) {
            if let Some(own) = refinement(entry) {
                self.keep(&entry.record().name, own);
            }
        }
    }

    fn relaying(&self, relays: &Relays) -> Relaying {
        let mut relaying = Relaying::of(relays.fabric());
        if let Some(failed) = &self.failed {
            relaying.apply(&failed.update);
        }
        relaying
    }
}

fn refinement(entry: &Entry) -> Option<&Refinement> {
    entry.record().plan.as_ref()?.refinement.as_ref()
}

impl Core {
    /// The routes that a switch should have, or the one of `only`. `None`: all routes there are the operator's.
    pub(crate) fn wanted_routes(&self, switch: &str, only: Option<Ipv4Addr>) -> Option<Wanted> {
        let known = &self.multicast_routes;
        let file = self.facts.file.as_ref()?;
        let mut wanted = Wanted {
            scope: Vec::new(),
            routes: BTreeMap::new(),
        };
        let is_decided = only.is_none() && known.undecided.is_empty();
        let relays = known.relays.as_deref().filter(|_| is_decided);
        if let Some((relays, tor)) = relays.and_then(|relays| Some((relays, relays.tor(switch)?))) {
            let all: Vec<Ipv4Net> = relays.addresses().iter().map(|a| Ipv4Net::from(*a)).collect();
            wanted.scope.extend(Ipv4Net::aggregate(&all));
            let routes = relays.routes(&self.facts.topology(), &known.relaying(relays), tor);
            wanted
                .routes
                .extend(routes.into_iter().map(|route| (route.prefix, route)));
        }
        if file.switch(switch).is_some_and(|switch| switch.programmable) {
            let route = |(address, group): (&Ipv4Addr, &CoreGroup)| Route {
                prefix: (*address).into(),
                next_hops: Vec::new(),
                replicate: false,
                copy_to: group.copies.clone(),
            };
            let routes: Vec<Route> = match only {
                None => known.groups.iter().map(route).collect(),
                Some(only) => known.groups.get_key_value(&only).map(route).into_iter().collect(),
            };
            // Where groups may run that are not known, their addresses stay.
            let is_doubtful = self.others.doubt().is_some() || self.others.has_unexplained();
            let all_are_known = !is_doubtful && self.set_apart.is_empty() && !self.waits_for_lists();
            match only.map(Ipv4Net::from) {
                None if all_are_known => wanted.scope.extend(file.group_addresses()),
                None => wanted.scope.extend(routes.iter().map(|route| route.prefix)),
                Some(only) => wanted.scope.push(only),
            }
            wanted
                .routes
                .extend(routes.into_iter().map(|route| (route.prefix, route)));
        }
        (!wanted.scope.is_empty()).then_some(wanted)
    }
}

impl Core {
    /// Why a relay no longer sends to its splitter, or when it will be taken for dead. `None`: it sends.
    fn relay_fault(&self, splitter: &Splitter) -> Option<Result<String, Instant>> {
        let name = &splitter.from;
        if let Some((Reach::Down(gone), _)) = self.facts.switches.get(name) {
            // One whose agent alone is gone relays on.
            let since = self.signs.silent_since(name)?;
            return Some(match since + self.config.timeouts.link {
                at if at <= self.now => Ok(format!("its agent cannot be reached ({gone})")),
                at => Err(at),
            });
        }
        let near = splitter.links.iter().map(|(port, _)| (name.as_str(), *port));
        let far = splitter.links.iter().filter_map(|(_, end)| match end {
            End::Switch { switch, port } => Some((switch.as_str(), *port)),
            End::Host(_) => None,
        });
        near.chain(far)
            .find_map(|end| silent_port(&self.facts, end))
            .map(Ok)
    }

    /// Moves rules if a relay has failed or works again. Returns the switches whose routes change. One that is silent is looked at again when it
    /// will be taken for dead.
    pub(crate) fn look_at_relays(&mut self, relays: &Relays) -> BTreeSet<String> {
        let (changed, due) = self.moved_relays(relays);
        match due {
            Some(at) => self.timers.set(Owner::Relays, at),
            None => drop(self.timers.cancel(&Owner::Relays)),
        }
        changed
    }

    fn moved_relays(&mut self, relays: &Relays) -> (BTreeSet<String>, Option<Instant>) {
        let (mut failed, mut due) = (BTreeMap::new(), None::<Instant>);
        let mut open = BTreeSet::new();
        for (tor, splitter) in relays.tors() {
            let known = self.facts.switches.get(&splitter.from);
            match self.relay_fault(splitter) {
                Some(Ok(why)) => drop(failed.insert(tor, why)),
                Some(Err(at)) => {
                    due = Some(due.map_or(at, |due| due.min(at)));
                    open.insert(tor);
                }
                None if known.is_some_and(|(reach, _)| *reach == Reach::Unknown) => drop(open.insert(tor)),
                None => {}
            }
        }
        let routes = &mut self.multicast_routes;
        let mut changed = BTreeSet::new();
        if !routes.undecided.is_empty() {
            // One that has been known once does not keep the others waiting.
            routes.undecided.retain(|tor| open.contains(tor));
            if !routes.undecided.is_empty() {
                return (BTreeSet::new(), due);
            }
            changed.extend(relays.tors().map(|(tor, _)| tor));
        }
        let names = |tors: BTreeSet<Tor>| tors.into_iter().map(|tor| relays.name(tor).to_owned()).collect();
        let mut before = routes.failed.take();
        if before.is_none() && failed.is_empty() {
            return (names(changed), due);
        }
        if let Some(relay) = &mut before
            && let Some(reason) = failed.remove(&relay.tor)
        {
            let (first, others): (_, BTreeSet<Tor>) =
                (relays.name(relay.tor), failed.keys().copied().collect());
            for (tor, reason) in failed.iter().filter(|(tor, _)| !relay.not_covered.contains(*tor)) {
                let relay = relays.name(*tor);
                tracing::warn!(
                    relay,
                    reason,
                    first,
                    "another relay has failed, and nobody relays in its place"
                );
            }
            let is_news = others != relay.not_covered;
            relay.not_covered = others;
            let told = is_news.then(|| relay.told(relays, reason, 0));
            routes.failed = before;
            if let Some(told) = told {
                self.publish(told);
            }
            return (names(changed), due);
        }
        changed.extend(before.iter().flat_map(|before| before.update.tors()));
        if let Some(FailedRelay { tor, .. }) = before {
            tracing::info!(relay = relays.name(tor), "sends to its splitter again");
            self.publish(Event::RelayChanged(v1::RelayChanged {
                switch_name: relays.name(tor).to_owned(),
                ..Default::default()
            }));
        }
        if let Some((tor, reason)) = failed.pop_first() {
            let update = relays.fabric().recovery(tor);
            let mirror = relays.name(relays.fabric().mirror(tor));
            tracing::warn!(relay = relays.name(tor), reason, mirror, "a relay has failed");
            changed.extend(update.tors());
            let rules = update.rules();
            let not_covered = failed.into_keys().collect();
            let relay = FailedRelay {
                tor,
                update,
                not_covered,
            };
            self.publish(relay.told(relays, reason, rules));
            self.multicast_routes.failed = Some(relay);
        }
        (names(changed), due)
    }
}

/// Pause before addresses that no group uses any more are taken from the routers: its source's switch stops sending to them first.
const SWEEP: Duration = Duration::from_secs(2);

/// Looks soon for addresses that no group uses any more.
pub(crate) fn sweep_soon(core: &mut Core) {
    if core.timers.time(&Owner::Routes).is_none() {
        core.timers.set(Owner::Routes, core.now + SWEEP);
    }
}

pub(crate) fn sweep(core: &mut Core) {
    let (mut gone, mut again) = (Vec::new(), false);
    for (address, known) in &core.multicast_routes.groups {
        let entry = core.groups.get(&known.name);
        let used = entry.and_then(refinement).map(|own| own.address);
        // Its switches may still have the rules of the plan before.
        let changes = entry.is_some_and(|entry| !entry.is_confirmed());
        match known.is_new || used == Some(*address) || changes {
            false => gone.push(*address),
            true => again |= used != Some(*address),
        }
    }
    if again {
        sweep_soon(core);
    }
    if gone.is_empty() {
        return;
    }
    for address in gone {
        core.multicast_routes.groups.remove(&address);
    }
    for router in core.programmable_routers() {
        core.effects.push(Effect::SyncRoutes(router));
    }
    // Those that found no free address.
    core.refine_all();
}

/// Changes of a group were taken back: an address that it had is its own again, and it may be refined.
pub(crate) fn taken_back(core: &mut Core, name: &str) {
    let routes = &mut core.multicast_routes;
    let own = core.groups.get(name).and_then(refinement);
    if let Some(own) = own.filter(|own| !routes.groups.contains_key(&own.address)) {
        routes.keep(name, own);
        for router in core.programmable_routers() {
            core.effects.push(Effect::SyncRoutes(router));
        }
    }
    if !core.multicast_routes.groups.is_empty() {
        sweep_soon(core);
    }
    core.refine_soon(name);
}

#[cfg(test)]
mod tests;
