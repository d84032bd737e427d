//! The record of a group, as it is stored: a common part, and a part for its kind.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use castnet_group::Description;
use castnet_planner::Edge;
use castnet_rules::lane_name;
use castnet_wire::{Control, MacAddr, McstId, Qpn, RateLimit};
use serde::{Deserialize, Serialize};

use crate::error::Refusal;
use crate::state::kinds::multicast::refine::Refinement;
use crate::state::reconcile::Version;
use crate::state::{Cause, Collective, Failure, Kind, Layout, Multicast, Phase};
use castnet_rules::{GroupRule, NextHop};

/// A group: the request, who has joined, its plan, and where its rules may be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its name.
    pub name: String,
    /// Who created it; empty: unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub owner: String,
    /// The tenant whose quotas it counts for, since it was created; empty: none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tenant: String,
    /// Limit of the data of each sender, all lanes together; `None`: no limit.
    #[serde(default, with = "text::rate_limit", skip_serializing_if = "Option::is_none")]
    pub rate_limit: Option<RateLimit>,
    /// What it is for, since it was created.
    #[serde(
        default,
        with = "text::display",
        skip_serializing_if = "Description::is_empty"
    )]
    pub description: Description,
    /// Version of the rules of the present or last plan; 0 before the first.
    pub generation: u64,
    /// Its address.
    #[serde(with = "text::display")]
    pub mcst_id: McstId,
    /// Addresses of its lanes after the first: sub-groups of the same members.
    #[serde(default, with = "text::mcst_ids")]
    pub more_lanes: Vec<McstId>,
    /// Addresses of all lanes at each switch that was part of a tree which passes routers; the group's until it ends.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        with = "text::own_mcst_ids"
    )]
    pub own_mcst_ids: BTreeMap<String, Vec<McstId>>,
    /// Its phase.
    pub phase: Phase,
    /// How the last generation ended.
    pub ended: Option<Ending>,
    /// Its layout, while it is being installed or installed.
    pub plan: Option<Arc<Plan>>,
    /// Switches that may have a rule of it. Written before the first gets its rule; each is removed when it confirms
    /// that it has none.
    pub placed: BTreeSet<String>,
    /// The part for its kind.
    pub kind: Kind,
}

/// How a generation ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// The generation that ended.
    pub generation: u64,
    /// Whether its installation failed.
    pub refused: bool,
    /// Why; the field may be empty.
    #[serde(flatten)]
    pub failure: Failure,
    /// The rank at fault, if any.
    pub rank: Option<u16>,
    /// The switch at fault, if any.
    pub switch: Option<String>,
    /// Calls of the ranks, if they disagreed.
    #[serde(default, with = "text::control")]
    pub conflict: Option<Control>,
}

/// Layout of a group over the switches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Switches of the tree, parents first; the first is the source's or the root.
    pub tree: Vec<TreeSwitch>,
    /// Rule of each switch for the first lane.
    pub rules: BTreeMap<String, GroupRule>,
    /// What switches lack for Mode-II, if a collective group is in Mode-III for that reason. Otherwise empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub shortages: String,
    /// The second stage of a group with a static core, if programmable routers have its rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refinement: Option<Refinement>,
    /// Switches without members that get copies of a static core.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub over_covered: BTreeSet<String>,
}

impl Plan {
    /// The QPN to which each rank addresses frames on the switch next to it, where it is not [`Qpn::VIRTUAL`].
    pub fn virtual_qpns(&self) -> BTreeMap<u16, Qpn> {
        let endpoints = self.rules.values().flat_map(|rule| &rule.endpoints);
        let own = endpoints.filter(|endpoint| endpoint.virtual_qpn != Qpn::VIRTUAL);
        own.filter_map(|e| Some((e.next_hop.rank()?.rank, e.virtual_qpn)))
            .collect()
    }

    /// The edges of its tree.
    pub(crate) fn edges(&self) -> impl Iterator<Item = Edge> {
        let each = |(switch, rule): (&'_ String, &'_ GroupRule)| {
            let edge = |endpoint| Edge::new(switch, rule, endpoint, |name| self.rules.get(name));
            rule.endpoints.iter().map(edge).collect::<Vec<_>>()
        };
        self.rules.iter().flat_map(each)
    }

    /// Has switches verify the Ethernet address of members that are not behind routers.
    pub(crate) fn verify_macs(&mut self) {
        for endpoint in self.rules.values_mut().flat_map(|rule| &mut rule.endpoints) {
            let is_host = endpoint.next_hop.host().is_some();
            endpoint.verify_mac = is_host && endpoint.next_hop.mac() != MacAddr::UNSPECIFIED;
        }
    }
}

/// A switch of a tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeSwitch {
    /// Its name.
    pub name: String,
    /// The switch above it; `None` for the first.
    pub parent: Option<String>,
    /// Ordinary switches and routers between them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub via: Vec<String>,
}

impl Record {
    /// A new group, with the addresses of its first and other lanes.
    pub fn new(name: String, (mcst_id, more_lanes): (McstId, Vec<McstId>), kind: Kind) -> Self {
        Self {
            name,
            owner: String::new(),
            tenant: String::new(),
            rate_limit: None,
            description: Description::default(),
            generation: 0,
            mcst_id,
            more_lanes,
            own_mcst_ids: BTreeMap::new(),
            phase: Phase::Registered,
            ended: None,
            plan: None,
            placed: BTreeSet::new(),
            kind,
        }
    }

    /// `None` for other kinds.
    pub fn multicast(&self) -> Option<&Multicast> {
        match &self.kind {
            Kind::Multicast(kind) => Some(kind),
            Kind::Collective(_) => None,
        }
    }

    pub(crate) fn multicast_mut(&mut self) -> Option<&mut Multicast> {
        match &mut self.kind {
            Kind::Multicast(kind) => Some(kind),
            Kind::Collective(_) => None,
        }
    }

    /// `None` for other kinds.
    pub fn collective(&self) -> Option<&Collective> {
        match &self.kind {
            Kind::Collective(kind) => Some(kind),
            Kind::Multicast(_) => None,
        }
    }

    /// Addresses of its lanes, if its tree passes no routers.
    pub fn mcst_ids(&self) -> impl Iterator<Item = McstId> {
        std::iter::once(self.mcst_id).chain(self.more_lanes.iter().copied())
    }

    /// All its addresses at any switch.
    pub fn all_mcst_ids(&self) -> impl Iterator<Item = McstId> {
        let own = self.own_mcst_ids.values().flatten();
        self.mcst_ids().chain(own.copied())
    }

    /// Addresses of its lanes at a switch, by a plan.
    pub(crate) fn mcst_ids_by(&self, plan: Option<&Plan>, switch: &str) -> impl Iterator<Item = McstId> {
        let rule = plan.and_then(|p| p.rules.get(switch));
        let is_own = rule.is_some_and(|rule| rule.mcst_id != self.mcst_id);
        let own = self.own_mcst_ids.get(switch).filter(|_| is_own);
        let (first, more) = own
            .and_then(|own| own.split_first())
            .unwrap_or((&self.mcst_id, &self.more_lanes));
        std::iter::once(*first).chain(more.iter().copied())
    }

    /// Addresses of its lanes at a switch, by its present plan.
    pub(crate) fn mcst_ids_on(&self, switch: &str) -> impl Iterator<Item = McstId> {
        self.mcst_ids_by(self.plan.as_deref(), switch)
    }

    /// Addresses of rules that a switch may have of it, by this plan or an earlier one.
    pub(crate) fn mcst_ids_left_on(&self, switch: &str) -> Vec<McstId> {
        let own = self.own_mcst_ids.get(switch).into_iter().flatten();
        self.mcst_ids().chain(own.copied()).collect()
    }

    /// Whether its switches have addresses of their own, by its plan.
    pub(crate) fn has_own_addresses(&self) -> bool {
        let mut rules = self.plan.iter().flat_map(|plan| plan.rules.values());
        rules.any(|rule| rule.mcst_id != self.mcst_id)
    }

    /// Number of its lanes.
    pub fn lanes(&self) -> u8 {
        1 + self.more_lanes.len() as u8
    }

    /// The switch's rule for the first lane; `None` if no rules belong there.
    pub fn wanted_rule(&self, switch: &str) -> Option<&GroupRule> {
        let rule = self.plan.as_ref()?.rules.get(switch);
        rule.filter(|_| self.phase.wants_rules())
    }

    /// The switch's rules for all lanes, as they are installed if they are missing; empty if no rules belong there.
    pub fn wanted_on(&self, switch: &str) -> Vec<GroupRule> {
        let Some((rule, version)) = self.wanted_rule(switch).zip(self.wanted_version(switch)) else {
            return Vec::new();
        };
        let kind = self.kind.behaviour();
        let wanted = |(lane, mcst_id): (u8, McstId)| {
            let mut rule = rule.clone();
            rule.name = lane_name(&self.name, lane, self.lanes());
            rule.mcst_id = mcst_id;
            for endpoint in &mut rule.endpoints {
                if let NextHop::Switch {
                    name, ip: Some(ip), ..
                } = &mut endpoint.next_hop
                    && let Some(there) = self.mcst_ids_on(name).nth(lane.into())
                {
                    *ip = there.0;
                }
            }
            kind.address_lane(&mut rule, lane);
            version.rule(rule)
        };
        (0..).zip(self.mcst_ids_on(switch)).map(wanted).collect()
    }

    /// From now on the switches of this layout may have a part of it.
    pub(crate) fn place(&mut self, layout: Layout) {
        self.own_mcst_ids.extend(layout.new_mcst_ids);
        self.placed.extend(layout.plan.rules.keys().cloned());
        self.plan = Some(Arc::new(layout.plan));
    }

    /// Whether it has this plan: a later group of its name has another one.
    pub(crate) fn is_placed_by(&self, plan: &Arc<Plan>) -> bool {
        self.plan.as_ref().is_some_and(|own| Arc::ptr_eq(own, plan))
    }

    /// Version of the switch's rules; `None` if no rules belong there.
    pub(crate) fn wanted_version(&self, switch: &str) -> Option<Version> {
        self.wanted_rule(switch).map(|rule| Version {
            generation: rule.generation,
            has_run: self.phase.has_run() && self.kind.behaviour().outlives_switches(),
        })
    }

    /// Bytes that the group reserves on a switch while it may have a rule there.
    pub fn reserved_on(&self, switch: &str) -> u64 {
        let rule = self.plan.as_ref().and_then(|p| p.rules.get(switch));
        let bytes = rule
            .filter(|_| self.placed.contains(switch))
            .map(GroupRule::reserved_bytes);
        u64::from(self.lanes()) * bytes.unwrap_or(0)
    }

    /// Refuses a group that could take more than `most` bytes as a record when all its members have joined.
    pub(crate) fn check_size(&self, most: usize) -> Result<(), Refusal> {
        // With names and addresses as long as they can be, in JSON: a seat, its part of the plan, and each further lane.
        const NAME: usize = 63;
        const MEMBER: usize = 500 + 3 * NAME;
        const LANE: usize = 120 + NAME;
        let members = self.kind.behaviour().parties().len();
        let bytes = members * (MEMBER + LANE * self.more_lanes.len());
        match bytes > most {
            true => {
                let reason = format!(
                    "group {:?} could take {bytes} bytes in the store, and etcd takes {most} in an entry: fewer members or lanes, or a store \
                     on a file",
                    self.name
                );
                Err(Refusal::no_room("size", reason))
            }
            false => Ok(()),
        }
    }

    pub(crate) fn after_restart(mut self) -> Self {
        self.kind.behaviour_mut().after_restart(self.phase);
        self.phase = match self.phase {
            // Reachability of switches is not known yet.
            Phase::Degraded => Phase::Active,
            // Members get the reason when they call again.
            Phase::Broken => Phase::Removing(crate::state::lifecycle::After::Failed),
            phase => phase,
        };
        self
    }
}

impl Ending {
    pub(crate) fn refused(generation: u64, failure: Failure) -> Self {
        let rank = failure.field.strip_prefix("ranks[");
        let rank = rank.and_then(|field| field.split_once(']')?.0.parse().ok());
        Self {
            generation,
            refused: true,
            rank,
            switch: failure.field.strip_prefix("switches.").map(String::from),
            failure,
            conflict: None,
        }
    }

    /// The end of a generation that ran.
    pub(crate) fn failed(generation: u64, rank: Option<u16>, switch: Option<&str>, reason: String) -> Self {
        Self {
            generation,
            refused: false,
            failure: Failure::new(Cause::Refused, "", reason),
            rank,
            switch: switch.map(String::from),
            conflict: None,
        }
    }

    pub(crate) fn words(&self) -> String {
        match &self.switch {
            // The planner's reason already names the switch.
            Some(name) if self.refused && !self.failure.reason.starts_with("switch ") => {
                format!("switch {name} {}", self.failure.reason)
            }
            _ => self.failure.reason.clone(),
        }
    }
}

pub(crate) mod text {
    use std::collections::BTreeMap;
    use std::net::Ipv4Addr;

    use castnet_wire::{Control, McstId};
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub(crate) use castnet_rules::text::{display, psn, rate_limit};

    pub(crate) mod mcst_ids {
        use super::*;

        pub(crate) fn serialize<S: Serializer>(ids: &[McstId], s: S) -> Result<S::Ok, S::Error> {
            s.collect_seq(ids.iter().map(|id| id.0))
        }

        pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<McstId>, D::Error> {
            let ips = Vec::<Ipv4Addr>::deserialize(d)?;
            Ok(ips.into_iter().map(McstId).collect())
        }
    }

    pub(crate) mod own_mcst_ids {
        use super::*;

        type Own<T> = BTreeMap<String, Vec<T>>;

        pub(crate) fn serialize<S: Serializer>(own: &Own<McstId>, s: S) -> Result<S::Ok, S::Error> {
            let ips = |ids: &Vec<McstId>| ids.iter().map(|id| id.0).collect::<Vec<_>>();
            s.collect_map(own.iter().map(|(switch, ids)| (switch, ips(ids))))
        }

        pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Own<McstId>, D::Error> {
            let own = Own::<Ipv4Addr>::deserialize(d)?.into_iter();
            Ok(own
                .map(|(switch, ips)| (switch, ips.into_iter().map(McstId).collect()))
                .collect())
        }
    }

    /// As on the wire: that layout has its own version.
    pub(crate) mod control {
        use super::*;

        pub(crate) fn serialize<S: Serializer>(control: &Option<Control>, s: S) -> Result<S::Ok, S::Error> {
            let bytes = control.map(|control| {
                let mut bytes = [0; Control::LEN];
                control.emit(&mut bytes);
                bytes.to_vec()
            });
            bytes.serialize(s)
        }

        pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Control>, D::Error> {
            let bytes = Option::<Vec<u8>>::deserialize(d)?;
            let control = bytes.map(|bytes| Control::parse(&bytes)).transpose();
            control.map_err(|_| D::Error::custom("not a control message"))
        }
    }
}
