//! What the controller knows of a collective group, as it is stored.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use castnet_proto::convert::GivenSettings;
use castnet_rules::{CollectiveGroup, CollectiveHop, HostEndpoint, LossPolicy, StragglerPolicy, lane_name};
use castnet_wire::{Control, McstId, Pmtu, Psn};
use serde::{Deserialize, Serialize};

use super::lifecycle::Phase;
use crate::lifecycle::Cause;
use crate::record::{TreeSwitch, text};

/// Packets that a rank may have in flight where nothing else is said.
pub const DEFAULT_WINDOW_PACKETS: u16 = 64;

/// A collective group: what was asked for, who is in, how it is placed and where its rules may be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectiveRecord {
    /// Its name.
    pub name: String,
    /// Of the rules of the present or last placement; 0 before the first.
    pub generation: u64,
    /// Its address.
    #[serde(with = "text::mcst_id")]
    pub mcst_id: McstId,
    /// The addresses of its lanes after the first: sub-groups of the same ranks.
    #[serde(default, with = "text::mcst_ids")]
    pub more_lanes: Vec<McstId>,
    /// How it works.
    pub settings: Settings,
    /// The group's first PSN, drawn anew for each generation.
    #[serde(with = "text::psn")]
    pub psn_start: Psn,
    /// Whether a rank's call created it: then it is forgotten when the last has gone.
    pub by_call: bool,
    /// The ranks, rank 0 first.
    pub ranks: Vec<RankRecord>,
    /// Where in its life it is.
    pub phase: Phase,
    /// How the last generation that ended did so.
    pub ended: Option<Ending>,
    /// How it is placed, while it is installed or being so.
    pub plan: Option<Placement>,
    /// The switches that may have a rule of it. Written before the first is told, cleared as each confirms to have
    /// none.
    pub placed: BTreeSet<String>,
}

/// How a collective group works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Payload bytes of a full packet.
    #[serde(with = "text::pmtu")]
    pub pmtu: Pmtu,
    /// Packets that a rank may have in flight.
    pub window_packets: u16,
    /// Packets of a full message, at most the window.
    pub message_packets: u16,
    /// Whether contributions are added in rank order.
    pub reproducible: bool,
    /// Who repairs losses.
    pub loss_policy: LossPolicy,
    /// How ranks that wait are kept alive.
    pub straggler_policy: StragglerPolicy,
    /// The ranks' ACK time-out, in microseconds.
    pub ack_timeout_us: u32,
    /// When a collective that waits is reported, in milliseconds.
    pub stall_timeout_ms: u32,
    /// How many sub-groups it is.
    #[serde(default = "one")]
    pub lanes: u8,
}

const fn one() -> u8 {
    1
}

/// A rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankRecord {
    /// Its host; empty while nobody has called.
    pub host: String,
    /// How far it is.
    pub state: RankState,
    /// The first PSN that it receives in the present generation.
    #[serde(with = "text::psn")]
    pub rq_psn: Psn,
}

/// How far a rank is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RankState {
    /// Has not called, or must call again.
    Expected,
    /// Is in.
    Joined(Seat),
    /// Was in and has left; the rules still name it.
    Left(Seat),
}

/// A rank's place in a generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    /// Its end of the connection.
    pub endpoint: HostEndpoint,
    /// The same of the lanes after the first.
    #[serde(default)]
    pub more: Vec<HostEndpoint>,
    /// The first PSN that it sends.
    #[serde(with = "text::psn")]
    pub sq_psn: Psn,
    /// How long it may be away, in milliseconds.
    pub lease_ms: u64,
    /// The generation that it is in, or waits for.
    pub generation: u64,
}

/// How a generation ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// Which.
    pub generation: u64,
    /// Whether it never began.
    pub refused: bool,
    /// What kind of thing went wrong, where it was refused.
    pub cause: Cause,
    /// What is at fault: a field of the request, or `switches.NAME`; may be empty.
    pub field: String,
    /// The rank at fault, where one is.
    pub rank: Option<u16>,
    /// The switch at fault, where one is.
    pub switch: Option<String>,
    /// The facts, for people.
    pub reason: String,
    /// Who said what, where the ranks disagreed.
    #[serde(default, with = "text::control")]
    pub conflict: Option<Control>,
}

/// How a group is placed on the switches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// The switches of the tree, the root first, parents before children.
    pub tree: Vec<TreeSwitch>,
    /// Each switch's part, for the first lane.
    pub rules: BTreeMap<String, CollectiveGroup>,
}

impl Settings {
    /// What was given, and the defaults for the rest.
    pub fn new(given: &GivenSettings) -> Self {
        // A full message is never larger than the window, whichever of the two was given.
        let window = given
            .window_packets
            .unwrap_or(DEFAULT_WINDOW_PACKETS.max(given.message_packets.unwrap_or(0)));
        Self {
            pmtu: given.pmtu.unwrap_or(Pmtu::B1024),
            window_packets: window,
            message_packets: given
                .message_packets
                .unwrap_or(castnet_rules::DEFAULT_MESSAGE_PACKETS)
                .min(window),
            reproducible: given.reproducible.unwrap_or(false),
            loss_policy: given.loss_policy.unwrap_or_default(),
            straggler_policy: given.straggler_policy.unwrap_or_default(),
            ack_timeout_us: given
                .ack_timeout_us
                .unwrap_or(castnet_rules::DEFAULT_ACK_TIMEOUT_US),
            stall_timeout_ms: given
                .stall_timeout_ms
                .unwrap_or(castnet_rules::DEFAULT_STALL_TIMEOUT_MS),
            lanes: given.lanes.unwrap_or(1),
        }
    }

    /// The first setting that somebody wants otherwise: its field, what they want, and what it is.
    pub fn differs(&self, given: &GivenSettings) -> Option<(&'static str, String, String)> {
        fn other<T: PartialEq>(
            field: &'static str,
            given: Option<T>,
            is: T,
            text: impl Fn(&T) -> String,
        ) -> Option<(&'static str, String, String)> {
            let given = given.filter(|given| *given != is)?;
            Some((field, text(&given), text(&is)))
        }
        let number = |n: &u16| n.to_string();
        let long = |n: &u32| n.to_string();
        other("settings.pmtu", given.pmtu, self.pmtu, |p| p.bytes().to_string())
            .or_else(|| {
                other(
                    "settings.window_packets",
                    given.window_packets,
                    self.window_packets,
                    number,
                )
            })
            .or_else(|| {
                other(
                    "settings.message_packets",
                    given.message_packets,
                    self.message_packets,
                    number,
                )
            })
            .or_else(|| {
                other(
                    "settings.reproducible",
                    given.reproducible,
                    self.reproducible,
                    bool::to_string,
                )
            })
            .or_else(|| {
                other("settings.loss_policy", given.loss_policy, self.loss_policy, |p| {
                    p.to_string()
                })
            })
            .or_else(|| {
                let (given, is) = (given.straggler_policy, self.straggler_policy);
                other("settings.straggler_policy", given, is, |p| p.to_string())
            })
            .or_else(|| {
                other(
                    "settings.ack_timeout_us",
                    given.ack_timeout_us,
                    self.ack_timeout_us,
                    long,
                )
            })
            .or_else(|| {
                other(
                    "settings.stall_timeout_ms",
                    given.stall_timeout_ms,
                    self.stall_timeout_ms,
                    long,
                )
            })
            .or_else(|| other("settings.lanes", given.lanes, self.lanes, u8::to_string))
    }
}

impl Seat {
    /// The rank's ends of its connections, one for each lane.
    pub fn ends(&self) -> impl Iterator<Item = &HostEndpoint> {
        std::iter::once(&self.endpoint).chain(&self.more)
    }
}

impl CollectiveRecord {
    /// A group as it begins, with the address of its first lane and those of the others: nobody is in.
    pub fn new(
        name: String,
        ranks: Vec<String>,
        settings: Settings,
        (mcst_id, more_lanes): (McstId, Vec<McstId>),
        by_call: bool,
    ) -> Self {
        let rank = |host| RankRecord {
            host,
            state: RankState::Expected,
            rq_psn: Psn::new(0),
        };
        Self {
            name,
            generation: 0,
            mcst_id,
            more_lanes,
            settings,
            psn_start: Psn::new(0),
            by_call,
            ranks: ranks.into_iter().map(rank).collect(),
            phase: Phase::Gathering,
            ended: None,
            plan: None,
            placed: BTreeSet::new(),
        }
    }

    /// The addresses of its lanes.
    pub fn mcst_ids(&self) -> impl Iterator<Item = McstId> {
        std::iter::once(self.mcst_id).chain(self.more_lanes.iter().copied())
    }

    /// A lane's part of what was placed for the first: its own name, address and queue pairs.
    fn lane_rule(&self, rule: &CollectiveGroup, lane: u8, mcst_id: McstId) -> CollectiveGroup {
        let mut rule = CollectiveGroup {
            name: lane_name(&self.name, lane, self.settings.lanes),
            mcst_id,
            ..rule.clone()
        };
        for endpoint in &mut rule.endpoints {
            if let CollectiveHop::Rank(rank) = &mut endpoint.next_hop
                && let Some(record) = self.ranks.get(usize::from(rank.rank))
                && let RankState::Joined(seat) | RankState::Left(seat) = &record.state
                && let Some(end) = seat.ends().nth(lane.into())
            {
                rank.qpn = end.qpn;
            }
        }
        rule
    }

    /// A rank's place, where it is in.
    pub fn seat(&self, rank: u16) -> Option<&Seat> {
        match &self.ranks.get(usize::from(rank))?.state {
            RankState::Joined(seat) => Some(seat),
            RankState::Expected | RankState::Left(_) => None,
        }
    }

    /// Sets a rank's state; whether there is such a rank.
    pub fn set_rank(&mut self, rank: u16, state: RankState) -> bool {
        let record = self.ranks.get_mut(usize::from(rank));
        record.map(|r| r.state = state).is_some()
    }

    /// Whether every rank waits for the next generation.
    pub fn all_joined(&self) -> bool {
        self.ranks
            .iter()
            .all(|r| matches!(&r.state, RankState::Joined(seat) if seat.generation > self.generation))
    }

    /// Whether some rank waits for the next generation.
    pub fn some_joined(&self) -> bool {
        self.ranks
            .iter()
            .any(|r| matches!(&r.state, RankState::Joined(seat) if seat.generation > self.generation))
    }

    /// Whether every rank has left.
    pub fn all_left(&self) -> bool {
        self.ranks.iter().all(|r| matches!(r.state, RankState::Left(_)))
    }

    /// The ranks that are waited for.
    pub fn expected(&self) -> Vec<u16> {
        let waits = |r: &&(usize, &RankRecord)| match &r.1.state {
            RankState::Joined(seat) => seat.generation <= self.generation,
            RankState::Expected | RankState::Left(_) => true,
        };
        let ranks: Vec<(usize, &RankRecord)> = self.ranks.iter().enumerate().collect();
        ranks.iter().filter(waits).map(|(rank, _)| *rank as u16).collect()
    }

    /// The present generation is over: whoever was in it must call again.
    pub fn end(&mut self) {
        for rank in &mut self.ranks {
            let over = match &rank.state {
                RankState::Joined(seat) | RankState::Left(seat) => seat.generation <= self.generation,
                RankState::Expected => false,
            };
            if over {
                rank.state = RankState::Expected;
            }
        }
    }

    /// The present generation came to nothing: whoever is in it waits for the next.
    pub fn put_off(&mut self) {
        let next = self.generation + 1;
        for rank in &mut self.ranks {
            if let RankState::Joined(seat) = &mut rank.state {
                seat.generation = seat.generation.max(next);
            }
        }
    }

    /// `rank 2 (host h3)`.
    pub fn rank_name(&self, rank: u16) -> String {
        match self.ranks.get(usize::from(rank)).map(|r| r.host.as_str()) {
            None | Some("") => format!("rank {rank}"),
            Some(host) => format!("rank {rank} (host {host})"),
        }
    }

    /// The rank at a host.
    pub fn rank_at(&self, host: &str) -> Option<u16> {
        self.ranks.iter().position(|r| r.host == host).map(|r| r as u16)
    }

    /// Slots at each of its switches; while it is not placed, those that it wants.
    pub fn slots(&self) -> u16 {
        let placed = self.plan.as_ref().and_then(|p| p.rules.values().next());
        let Settings {
            window_packets,
            message_packets,
            ..
        } = self.settings;
        placed.map_or_else(
            || castnet_planner::slots(window_packets, message_packets),
            |rule| rule.slots,
        )
    }

    /// The longest lease of a rank that is in.
    pub fn longest_lease(&self) -> Duration {
        let leases = self.ranks.iter().filter_map(|r| match &r.state {
            RankState::Joined(seat) | RankState::Left(seat) => Some(seat.lease_ms),
            RankState::Expected => None,
        });
        Duration::from_millis(
            leases
                .max()
                .unwrap_or(castnet_proto::convert::DEFAULT_LEASE_MS.into()),
        )
    }

    /// What the group has set aside on that switch, in bytes, for as long as it may have its part there.
    pub fn reserved_on(&self, switch: &str) -> Option<u64> {
        let rule = self.plan.as_ref()?.rules.get(switch)?;
        let lanes = u64::from(self.settings.lanes);
        self.placed.contains(switch).then(|| lanes * rule.memory_bytes())
    }

    /// The switch's part of each lane, where the group's rules belong on its switches and this is one of them; else
    /// nothing.
    pub fn wanted_on(&self, switch: &str) -> Vec<crate::reconcile::Wanted> {
        let rule = self.plan.as_ref().and_then(|p| p.rules.get(switch));
        let Some(rule) = rule.filter(|_| self.phase.wants_rules()) else {
            return Vec::new();
        };
        let wanted = |(lane, mcst_id)| crate::reconcile::Wanted {
            rule: crate::reconcile::Rule::Collective(self.lane_rule(rule, lane, mcst_id)),
            // Never installed by reconciliation: what a switch has lost of a collective cannot be had again.
            has_run: false,
        };
        (0..).zip(self.mcst_ids()).map(wanted).collect()
    }
}

impl Placement {
    /// The switches from the leaves to the root.
    pub fn leaves_first(&self) -> impl Iterator<Item = &str> {
        self.tree.iter().rev().map(|s| s.name.as_str())
    }
}

/// The groups of the store, as they are after a restart of the controller.
pub(crate) fn after_restart(mut record: CollectiveRecord) -> CollectiveRecord {
    // Whoever was to hear of it hears of it by calling again.
    if record.phase == Phase::Broken {
        record.phase = Phase::Removing(super::lifecycle::After::Failed);
    }
    record
}
