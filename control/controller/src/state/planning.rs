//! From a record to a plan: the part of planning that all kinds share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use castnet_planner::{
    Lack, LinkLoad, Member, PlanError, Request, Role, Room, Rooms, Shortage, Tree, TreeNode,
};
use castnet_proto::v1;
use castnet_rules::{HostEndpoint, HostPart, Ipv4Net};
use castnet_topology::{Cut, SwitchKind, Topology};
use castnet_wire::{MacAddr, McstId, Pmtu, Qpn};

use crate::state::fabric::Place;
use crate::state::kinds::multicast::outside::{self, Split};
use crate::state::record::TreeSwitch;
use crate::state::table::{Snapshot, Usage};
use crate::state::{Cause, Core, Detours, Failure, Kind, Multicast, Phase, Plan, Reach, Record};

/// Largest group that is planned at once, without another thread.
const MEMBERS_AT_ONCE: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoPlan {
    /// There may be one after further reports of switches.
    NotYet(Failure),
    Never(Failure),
}

impl Core {
    /// Adds the report of a switch about itself; `before`: our usage there when it was asked. Groups that came or went
    /// meanwhile are taken as counted in the report, so that no room is lost. The switch decides in the end.
    pub(crate) fn learn(&mut self, switch: &str, capabilities: v1::Capabilities, before: Usage) {
        let now = self.groups.own(switch, None);
        let used = capabilities
            .memory_bytes_max
            .saturating_sub(capabilities.memory_bytes_free);
        let foreign = Usage {
            memory: used.saturating_sub(before.memory.max(now.memory)),
            groups: capabilities.groups.saturating_sub(before.groups.max(now.groups)),
        };
        let boot_id = capabilities.boot_id;
        let before = self.capabilities.insert(switch.into(), (capabilities, foreign));
        if let Some((before, _)) = before {
            self.were_restarted
                .insert(switch.into(), before.boot_id != boot_id);
        }
    }

    /// What all groups use of a switch, without our group `but`.
    pub(crate) fn used(&self, switch: &str, but: Option<&str>) -> Usage {
        let own = self.groups.own(switch, but);
        let foreign = self.capabilities.get(switch).map(|(_, foreign)| *foreign);
        let foreign = foreign.unwrap_or_default();
        Usage {
            memory: foreign.memory + own.memory,
            groups: foreign.groups + own.groups,
        }
    }

    /// Addresses of a pool that neither groups, also those written off and those of others on switches, nor hosts have, starting after
    /// the last one given out.
    pub(crate) fn free_mcst_ids(&self, pool: Ipv4Net) -> impl Iterator<Item = McstId> {
        let last = self.last_mcst_ids.get(&pool).map(|m| m.0);
        let free = self.groups.mcst_ids().free_in(pool, last).map(McstId);
        free.filter(|m| {
            let is_taken = self.written_off.contains_key(m) || self.others.have(*m);
            !is_taken && self.facts.host_of(m.0, None).is_none()
        })
    }

    /// The pool of a switch's McstIDs, for groups whose trees pass routers: the prefix that is routed to it, or the
    /// common pool if no router leads to it.
    fn pool_of(&self, switch: &str) -> Ipv4Net {
        let filed = self.facts.file.as_ref().and_then(|file| file.switch(switch));
        filed.and_then(|s| s.mcst_prefix).unwrap_or(self.mcst_pool)
    }

    /// McstIDs for all lanes of a group at each switch, if the fabric has routers: those that it has there, or the next
    /// free ones. Switches with too few are left out.
    fn offers(&self, record: &Record) -> BTreeMap<String, Vec<McstId>> {
        let switches = || self.facts.file.iter().flat_map(Topology::switches);
        let mut offers = BTreeMap::new();
        if !switches().any(|s| s.kind == SwitchKind::Router) {
            return offers;
        }
        let mut free: BTreeMap<Ipv4Net, _> = BTreeMap::new();
        for switch in switches().filter(|s| s.kind == SwitchKind::Castnet) {
            let pool = self.pool_of(&switch.name);
            let own = record.own_mcst_ids.get(&switch.name).cloned();
            let ids = own.unwrap_or_else(|| {
                let free = free.entry(pool).or_insert_with(|| {
                    let free = self.free_mcst_ids(pool);
                    free.filter(|m| record.mcst_ids().all(|lane| lane != *m))
                });
                free.take(record.lanes().into()).collect()
            });
            if ids.len() == usize::from(record.lanes()) {
                offers.insert(switch.name.clone(), ids);
            }
        }
        offers
    }

    /// Plans a group under the lock.
    pub(crate) fn plan_now(&self, record: &Record) -> Result<Layout, NoPlan> {
        let draft = Draft::new(self, record)?;
        let planned = draft.plan(&Present(self, record));
        draft.layout(self, record, planned)
    }

    pub(crate) fn given_out<'i>(&mut self, own: impl IntoIterator<Item = (&'i String, &'i Vec<McstId>)>) {
        for (switch, ids) in own {
            if let Some(last) = ids.last() {
                self.last_mcst_ids.insert(self.pool_of(switch), *last);
            }
        }
    }

    fn no_mcst_id(&self, record: &Record, switch: &str) -> Failure {
        let pool = self.pool_of(switch);
        let name = match pool == self.mcst_pool {
            true => "mcst_pool",
            false => "mcst_prefix",
        };
        let lacking = match record.lanes() {
            1 => "McstID left".into(),
            lanes => format!("{lanes} McstIDs left, one for each lane"),
        };
        let reason =
            format!("switch {switch} has no {lacking}: groups and hosts have those of {name} {pool}");
        Failure::at(switch, Cause::NoRoom, reason)
    }

    /// The room of a switch for each lane of a group. Only collective groups reserve room.
    pub(crate) fn room(&self, record: &Record, switch: &str) -> Room {
        let mut room = Room::UNKNOWN;
        if record.collective().is_none() {
            return room;
        }
        if let Some((said, _)) = self.capabilities.get(switch) {
            let used = self.used(switch, Some(&record.name));
            let lanes = u64::from(record.lanes());
            // 0: not reported.
            let left = |max: u64, taken: u64| match max {
                0 => u64::MAX,
                max => max.saturating_sub(taken),
            };
            let free = left(said.memory_bytes_max, used.memory);
            let share = self.share_left(record, switch, said.memory_bytes_max);
            room = Room {
                memory_free: share.map_or(free, |share| share.min(free)) / lanes,
                groups_free: left(said.groups_max, used.groups) / lanes,
                endpoints_max: left(said.endpoints_max.into(), 0),
                pmtus: said.pmtus.iter().filter_map(|p| Pmtu::from_bytes(*p)).collect(),
            };
        }
        if let Some(entry) = self.groups.get(&record.name) {
            entry.detours.apply(switch, &mut room);
        }
        room
    }
}

/// A group to be placed, and what its place depends on. Taken under the lock.
pub(crate) struct Draft {
    request: Request,
    /// The present fabric.
    fabric: Arc<Topology>,
    /// The same without switches that have refused a multicast group.
    topology: Arc<Topology>,
    /// Receivers that may be outside of the tree, and those of them that were not seen anywhere.
    may_be_outside: BTreeSet<String>,
    unseen: Vec<(String, String)>,
    /// Why switches have refused it.
    refusals: String,
    load: Snapshot,
    /// McstIDs that it may have at each switch, if there are routers.
    offers: BTreeMap<String, Vec<McstId>>,
}

/// Where a group is placed.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) plan: Plan,
    /// Receivers of a multicast group that the tree does not reach, and why.
    pub(crate) outside: Vec<(String, String)>,
    /// McstIDs that switches newly get for it: none if its tree passes no routers.
    pub(crate) new_mcst_ids: BTreeMap<String, Vec<McstId>>,
}

/// The room as it is when the planner asks, under the lock.
struct Present<'c>(&'c Core, &'c Record);

impl Rooms for Present<'_> {
    fn room(&self, switch: &str) -> Room {
        self.0.room(self.1, switch)
    }
}

pub(crate) type Planned = Result<Split, PlanError>;

impl Draft {
    pub(crate) fn new(core: &Core, record: &Record) -> Result<Self, NoPlan> {
        let detours = core.groups.get(&record.name).map(|e| &e.detours);
        let detours = detours.filter(|_| record.phase == Phase::Installing);
        // Without a file, a switch that has not reported yet may have the missing link.
        let is_certain = core.facts.file.is_some() || detours.is_some_and(|detours| !detours.is_empty());
        let may_be_outside = match record.multicast() {
            Some(kind) if is_certain && record.phase == Phase::Installing => kind.may_be_outside(),
            _ => BTreeSet::new(),
        };
        let may_wait = detours.is_none_or(|detours| !detours.has_waited());
        let unseen = locate(core, record, |host| !may_wait && may_be_outside.contains(host))?;
        let fabric = core.facts.topology();
        let topology = match detours.filter(|_| record.multicast().is_some()) {
            Some(detours) => detours.without_switches(&fabric),
            None => fabric.clone(),
        };
        let offers = core.offers(record);
        let first = |(switch, ids): (&String, &Vec<McstId>)| Some((switch.clone(), *ids.first()?));
        let request = Request {
            generation: record.generation,
            rate_limit: record.rate_limit.map(|limit| limit.per_lane(record.lanes())),
            mcst_ids: offers.iter().filter_map(first).collect(),
            own_addresses: record.phase.has_run() && record.has_own_addresses(),
            ..record.kind.behaviour().request(record)
        };
        // A group that runs keeps to its tree.
        let load = match record.plan.as_deref().filter(|_| record.phase.has_run()) {
            Some(plan) => Snapshot::of(&fabric, LinkLoad::beside(&fabric, plan.edges())),
            None => core.groups.load(&fabric, &record.name),
        };
        Ok(Self {
            load,
            fabric,
            topology,
            may_be_outside,
            unseen,
            refusals: detours.map_or_else(String::new, Detours::words),
            request,
            offers,
        })
    }

    pub(crate) fn plan(&self, rooms: &dyn Rooms) -> Planned {
        let (topology, load) = (&*self.topology, self.load.get());
        let plan = |request: &Request| castnet_planner::plan(topology, &load, rooms, request);
        if self.may_be_outside.is_empty() {
            return plan(&self.request).map(Split::all);
        }
        let request = self.request.clone();
        let fabrics = (topology, &*self.fabric, self.refusals.as_str());
        outside::split(fabrics, request, &self.may_be_outside, self.unseen.clone(), plan)
    }

    /// Whether the plan takes less time than to hand it to another thread is worth.
    pub(crate) fn is_short(&self) -> bool {
        self.request.members.len() <= MEMBERS_AT_ONCE && self.load.is_short(&self.topology)
    }

    /// Whether a plan that was made without the lock is as good as one that is made now.
    pub(crate) fn is_current(&self, core: &Core, record: &Record, planned: &Planned) -> bool {
        let is_free = |mcst_id: &McstId| {
            let holder = core.groups.by_mcst_id(*mcst_id).map(|e| &e.record().name);
            holder.is_none_or(|name| *name == record.name)
                && !core.written_off.contains_key(mcst_id)
                && !core.others.have(*mcst_id)
                && core.facts.host_of(mcst_id.0, None).is_none()
        };
        let fits = |Split { plan, .. }: &Split| {
            let room = |switch: &str| core.room(record, switch);
            let mut rules = plan.rules.iter();
            let reserves = record.collective().is_some();
            (!reserves || rules.all(|(switch, rule)| Shortage::of(switch, &room(switch), rule).is_none()))
                && self.new_mcst_ids(record, plan).values().flatten().all(is_free)
        };
        self.fabric.same_paths(&core.facts.topology())
            && record.mcst_ids().all(|mcst_id| is_free(&mcst_id))
            && planned.as_ref().map_or(true, fits)
    }

    fn new_mcst_ids(&self, record: &Record, plan: &castnet_planner::Plan) -> BTreeMap<String, Vec<McstId>> {
        let new = plan.rules.iter().filter(|(switch, rule)| {
            rule.mcst_id != record.mcst_id && !record.own_mcst_ids.contains_key(*switch)
        });
        new.filter_map(|(switch, _)| Some((switch.clone(), self.offers.get(switch)?.clone())))
            .collect()
    }

    pub(crate) fn layout(&self, core: &Core, record: &Record, planned: Planned) -> Result<Layout, NoPlan> {
        match planned {
            Ok(Split { plan, outside }) => Ok(Layout {
                new_mcst_ids: self.new_mcst_ids(record, &plan),
                outside,
                plan: Plan {
                    tree: tree_switches(&plan.tree),
                    shortages: lacking(core, record, &plan.shortages),
                    rules: plan.rules,
                    refinement: None,
                    over_covered: plan.over_covered,
                },
            }),
            Err(error) => Err(no_plan(core, record, &error)),
        }
    }
}

/// Stores the layout of a group. From then on its switches may have a part of it.
pub(crate) fn place(core: &mut Core, name: &str, layout: Layout) -> Result<(), NoPlan> {
    let layout = ready(core, layout)?;
    let outside = outside(core, name, &layout.outside)?;
    core.try_change(name, |r| {
        if let (Kind::Multicast(kind), Some(outside)) = (&mut r.kind, outside) {
            *kind = outside;
        }
        r.place(layout);
    });
    Ok(())
}

/// The group with the receivers outside that its tree does not reach. `None`: it reaches all.
fn outside(core: &Core, name: &str, hosts: &[(String, String)]) -> Result<Option<Multicast>, NoPlan> {
    let Some((first, reason)) = hosts.first() else {
        return Ok(None);
    };
    let entry = core.groups.get(name);
    let kind = entry.and_then(|entry| entry.record().multicast().cloned());
    let put = |mut kind: Multicast| kind.put_outside(hosts, &core.facts.topology()).map(|()| kind);
    kind.and_then(put).map(Some).ok_or_else(|| {
        let reason = format!("{first}: {reason}; no receiver in the tree could pass the stream on");
        NoPlan::Never(Failure::new(Cause::Down, "members", reason))
    })
}

/// A layout that can be stored: its switches have reported, and its addresses are given out.
pub(crate) fn ready(core: &mut Core, mut layout: Layout) -> Result<Layout, NoPlan> {
    // Its report has the addresses of its ports and its free room.
    let is_silent = |s: &&TreeSwitch| !matches!(core.facts.switches.get(&s.name), Some((Reach::Up, _)));
    if let Some(switch) = layout.plan.tree.iter().find(is_silent) {
        let failure = Failure::at(&switch.name, Cause::Unreachable, "has not reported yet");
        return Err(NoPlan::NotYet(failure));
    }
    if core.config.verify_mac {
        layout.plan.verify_macs();
    }
    core.given_out(&layout.new_mcst_ids);
    Ok(layout)
}

fn lacking(core: &Core, record: &Record, shortages: &[Shortage]) -> String {
    let none = Detours::default();
    let detours = core.groups.get(&record.name).map_or(&none, |e| &e.detours);
    let mut reason = detours.explain(shortages, record.lanes());
    // Less than what the switch has left.
    let is_of_share = |short: &Shortage| {
        let said = core.capabilities.get(&short.switch);
        let max = said.map_or(0, |(said, _)| said.memory_bytes_max);
        let used = core.used(&short.switch, Some(&record.name)).memory;
        let share = core.share_left(record, &short.switch, max);
        matches!(short.lack, Lack::Memory { .. })
            && share.is_some_and(|share| share < max.saturating_sub(used))
    };
    if shortages.iter().any(is_of_share) {
        let (host, percent) = (&record.owner, core.config.host_memory);
        reason += &format!(
            "; the groups of host {host} have {percent} % of each switch at most: an operator gives it a tenant, or more host_memory"
        );
    }
    reason
}

fn no_plan(core: &Core, record: &Record, error: &PlanError) -> NoPlan {
    let none = Detours::default();
    let detours = core.groups.get(&record.name).map_or(&none, |e| &e.detours);
    let (cause, reason) = match error {
        PlanError::NoMcstId { switch } => return NoPlan::Never(core.no_mcst_id(record, switch)),
        PlanError::NoRoom { shortages } => (Cause::NoRoom, lacking(core, record, shortages)),
        _ if is_of_now(core, error) => (Cause::Down, error.reason()),
        _ => (Cause::Unfit, error.reason()),
    };
    let field = match error.field() {
        field if field.is_empty() => "topology".into(),
        field => record.kind.behaviour().request_field(field),
    };
    let failure = Failure { cause, field, reason };
    match error {
        // Without a file, a switch that has not reported yet may have the missing link.
        PlanError::NoPath { .. } if core.facts.file.is_none() && detours.is_empty() => {
            NoPlan::NotYet(failure)
        }
        _ => NoPlan::Never(detours.end(failure)),
    }
}

/// Whether there may be a place at another time. Names that nobody has were refused before.
fn is_of_now(core: &Core, error: &PlanError) -> bool {
    match error {
        PlanError::NoPath { cut, .. } => matches!(cut, Cut::Down(_)) || core.facts.file.is_none(),
        PlanError::NoCastnetSwitch => core.facts.file.is_none(),
        PlanError::UnknownHost { .. } | PlanError::UnknownSwitch { .. } => true,
        _ => false,
    }
}

/// Members that were not seen at any switch, and need not be.
fn locate(
    core: &Core,
    record: &Record,
    may_be_outside: impl Fn(&str) -> bool,
) -> Result<Vec<(String, String)>, NoPlan> {
    let kind = record.kind.behaviour();
    let mut unseen = Vec::new();
    for (i, party) in kind.parties().into_iter().enumerate() {
        let host = party.host;
        let reason = match core.facts.place(host) {
            Place::At { .. } => continue,
            Place::Ambiguous(ports) => {
                let ports: Vec<String> = ports.iter().map(|(s, p)| format!("{s}:{p}")).collect();
                format!(
                    "host {host:?} was seen at {} at once; waits for LLDP to tell which of them is a link between switches",
                    ports.join(" and ")
                )
            }
            Place::Claimed { mac, switch, port } => format!(
                "host {host:?} was not seen yet with its own Ethernet address; {} at {switch}:{port} claims its IP address",
                MacAddr(mac)
            ),
            Place::Unseen => {
                let end = party.ends.map(|ends| &ends.endpoint);
                format!(
                    "host {host:?}{} was not seen yet; looked for its ARP at the ports without LLDP neighbours of {}{}",
                    end.map(|e| format!(" ({}, {})", e.ip, e.mac)).unwrap_or_default(),
                    core.facts.switches.keys().cloned().collect::<Vec<_>>().join(", "),
                    core.facts.ports_down()
                )
            }
        };
        if may_be_outside(host) {
            unseen.push((host.to_owned(), reason));
            continue;
        }
        let failure = Failure::new(Cause::Unseen, kind.party_field(i), reason);
        return Err(NoPlan::NotYet(failure));
    }
    Ok(unseen)
}

/// A member for the planner. Until it has joined, it has stand-in addresses from 198.18.0.0/15 (RFC 2544, benchmarks),
/// which no host has.
pub(crate) fn planned_member(index: usize, host: &str, end: Option<&HostEndpoint>, part: HostPart) -> Member {
    let [hi, lo] = (index as u16).to_be_bytes();
    let stand_in = (
        [198, 18, hi, lo].into(),
        MacAddr([2, 0, 198, 18, hi, lo]),
        Qpn::new(2),
    );
    let (ip, mac, qpn) = end.map_or(stand_in, |e| (e.ip, e.mac, e.qpn));
    Member {
        host: host.into(),
        ip: Some(ip),
        mac: Some(mac),
        qpn,
        part,
    }
}

fn tree_switches(tree: &Tree) -> Vec<TreeSwitch> {
    let mut all = Vec::new();
    let mut next: Vec<(&TreeNode, Option<&str>)> = vec![(&tree.root, None)];
    let mut at = 0;
    while let Some((node, parent)) = next.get(at).copied() {
        at += 1;
        let here = (node.role == Role::Switch).then_some(node.name.as_str());
        let via = node.up.as_ref().filter(|_| parent.is_some());
        all.extend(here.map(|name| TreeSwitch {
            name: name.into(),
            parent: parent.map(String::from),
            via: via.map_or_else(Vec::new, |up| up.via.clone()),
        }));
        next.extend(node.children.iter().map(|child| (child, here)));
    }
    all
}
