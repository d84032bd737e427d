//! Plans of flows: a scenario on given hosts, and the groups that a switch needs for it.

use std::net::Ipv4Addr;

use castnet_port::PortLink;
use castnet_rules::{
    Endpoint, Fault, GroupKind, GroupRule, HostEndpoint, HostPart, MulticastRule, NextHop, RankPart,
    TranslatedRule,
};
use castnet_wire::{MacAddr, McstId, Pmtu, PortId, Psn, Qpn};

use crate::scenario::{Pattern, Rate, Scenario};
use crate::template::Ends;

/// Most packets of a rank in flight. More need more slots, and slots beyond the cache are slow.
const RANK_WINDOW: u32 = 96;
const RANK_MESSAGE: u32 = 16;
/// Time-out of the ranks in microseconds: short, so that losses are repaired quickly.
const ACK_TIMEOUT_US: u32 = 4_000;

/// Errors of planning.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum PlanError {
    /// There are fewer ports than members.
    #[error("{need} ports are needed, one for each member, but there are {have}")]
    TooFewPlaces { need: usize, have: usize },
    /// The groups have faults.
    #[error("the groups cannot be had: {}", .0.first().map(ToString::to_string).unwrap_or_default())]
    Rules(Vec<Fault>),
    /// A member has no port: the group would wait for it.
    #[error("group `{group}` has the member `{member}`, but no port has this name")]
    NobodyPlays { group: String, member: String },
    /// The group is of a kind without simulated hosts.
    #[error("group `{group}` is a forwarding group, which has no simulated hosts")]
    NotPlayed { group: String },
    /// The group continues to another switch.
    #[error(
        "group `{group}` goes on to the switch `{switch}`: only members next to this switch can be played"
    )]
    BehindSwitch { group: String, switch: String },
    /// The switch has no group for the pattern.
    #[error("the pattern {pattern} needs a {kind} group, and there is none")]
    NoGroup { kind: &'static str, pattern: Pattern },
    /// The payload exceeds the path MTU.
    #[error("group `{group}` has a path MTU of {pmtu} bytes, and {payload} bytes of payload are asked for")]
    OverPmtu {
        group: String,
        /// Path MTU in bytes.
        pmtu: usize,
        /// Payload in bytes.
        payload: usize,
    },
    /// The plan has no host with this index.
    #[error("the plan has no host {0}")]
    NoHost(usize),
    /// A frame cannot be built.
    #[error("a frame cannot be built: {0}")]
    Frame(String),
    /// No buffer is free, or none is long enough, for a template.
    #[error("no buffer is free or long enough for the frame templates")]
    NoBuffer,
}

/// A possible host: a port of the generator, and the switch port at its remote end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Name of the host.
    pub name: String,
    /// Port of the switch that the host is connected to.
    pub port: PortId,
    /// MAC address of the host.
    pub mac: MacAddr,
    /// MAC address of the switch at that port.
    pub gateway: MacAddr,
}

/// MAC address of switches whose address is unknown. Switches do not check the destination MAC of a group's frames.
const GATEWAY: MacAddr = MacAddr([0x02, 0xCA, 0x57, 0, 0, 1]);

impl Place {
    /// Host `n` of a star, behind port `n`. The first one is named `tx`.
    pub fn star(count: usize) -> Vec<Self> {
        (0..count.min(PortId::COUNT))
            .map(|n| Self {
                name: if n == 0 { "tx".to_owned() } else { format!("rx{n}") },
                port: PortId::new(n as u8).unwrap_or_default(),
                mac: MacAddr([0x02, 0xBE, 0, 0, 0, n as u8]),
                gateway: GATEWAY,
            })
            .collect()
    }

    /// The host behind `link`.
    pub fn at(name: impl Into<String>, port: PortId, link: &PortLink, gateway: Option<MacAddr>) -> Self {
        Self {
            name: name.into(),
            port,
            mac: link.mac,
            gateway: gateway.unwrap_or(GATEWAY),
        }
    }
}

/// The role of a member in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Role {
    /// Sends data.
    Source {
        /// PSN of the first data frame.
        start: Psn,
    },
    /// Receives data.
    Receiver {
        /// PSN of the first data frame.
        start: Psn,
        /// Index of the receiver.
        number: usize,
        /// Number of receivers.
        of: usize,
    },
    /// Contributes and receives results.
    Rank {
        /// The rank.
        rank: u16,
        /// Number of ranks.
        of: u16,
        /// PSN of the first packet that it sends.
        sq: Psn,
        /// PSN of the first packet that it receives.
        rq: Psn,
        /// Most packets in flight.
        window: u32,
        /// Packets of a message.
        message: u32,
    },
}

impl Role {
    /// Name of the role.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Source { .. } => "source",
            Self::Receiver { .. } => "receiver",
            Self::Rank { .. } => "rank",
        }
    }
}

/// The plan of one member of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowPlan {
    /// Name of the group.
    pub group: String,
    /// Address of the group.
    pub mcst_id: McstId,
    /// Pattern of the flow.
    pub pattern: Pattern,
    /// Role of the member.
    pub role: Role,
    /// QPN of the member.
    pub qpn: Qpn,
    /// Addresses of its frames.
    pub ends: Ends,
    /// Path MTU of the group.
    pub pmtu: Pmtu,
}

/// The members behind one port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPlan {
    /// Name of the host.
    pub name: String,
    /// Plans of its members.
    pub flows: Vec<FlowPlan>,
}

/// All hosts, and the groups that the switch must have installed.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The planned scenario.
    pub scenario: Scenario,
    /// Hosts, by index of their place.
    pub hosts: Vec<HostPlan>,
    /// Groups that the switch must have installed.
    pub groups: Vec<GroupRule>,
}

pub(crate) struct HostShare {
    pub(crate) weight: u32,
    pub(crate) frames: Option<u64>,
    pub(crate) each: Option<u64>,
    pub(crate) rate: Option<f64>,
    pub(crate) bits: bool,
}

/// Address of host `n`, from the block reserved for benchmarks (RFC 2544, C.2.2).
fn host_ip(n: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(Ipv4Addr::new(198, 18, 0, 1).to_bits() + n as u32)
}

/// Address of group `n`, from the other half of that block.
fn group_ip(n: usize) -> McstId {
    McstId(Ipv4Addr::from_bits(
        Ipv4Addr::new(198, 19, 0, 1).to_bits() + n as u32,
    ))
}

fn sport(qpn: Qpn, mcst_id: McstId) -> u16 {
    // A dynamic port that depends on the QP, as RNICs choose it.
    let mixed = (qpn.value() ^ mcst_id.0.to_bits()).wrapping_mul(0x9E37_79B1);
    0xC000 | (mixed >> 18) as u16
}

impl Scenario {
    /// Number of ports needed: one for each member. Multicast groups have a source in addition to their receivers.
    pub fn places(&self) -> usize {
        self.receivers + usize::from(self.workload.has_multicast())
    }

    fn rank_window(&self) -> (u32, u32) {
        let window = self.window.clamp(2, RANK_WINDOW);
        let message = 1 << (window / 2).min(RANK_MESSAGE).ilog2();
        (window, message)
    }
}

impl Plan {
    /// Plans with its own groups. The first place has all sources, the last places have the receivers and ranks. Fails
    /// if there are too few places, or a group has too many members.
    pub fn own(scenario: &Scenario, places: &[Place]) -> Result<Self, PlanError> {
        let need = scenario.places();
        if places.len() < need {
            return Err(PlanError::TooFewPlaces {
                need,
                have: places.len(),
            });
        }
        let places = &places[..need];
        let mut groups = Vec::new();
        let mut number = 0;
        for share in scenario.workload.shares() {
            for n in 0..scenario.groups {
                let name = format!("bench-{}-{n}", share.pattern);
                let qpn = Qpn::new(0x1000 + number as u32);
                let rule = rule(scenario, share.pattern, (name, group_ip(number)), qpn, places);
                groups.push((rule, share.pattern));
                number += 1;
            }
        }
        let faults: Vec<Fault> = groups
            .iter()
            .flat_map(|(group, _)| group.check(PortId::COUNT))
            .collect();
        if !faults.is_empty() {
            return Err(PlanError::Rules(faults));
        }
        let mut plan = Self::empty(scenario, places);
        for (group, pattern) in groups {
            plan.add(group, pattern, places, Psn::new(0))?;
        }
        Ok(plan)
    }

    /// Plans on groups that the switch has. Members are matched to places by name; patterns that are not collective use
    /// the multicast groups in turn. `start` returns the PSN of a group's next data frame. Fails if a member has no
    /// place, a group continues to other switches, a payload exceeds the path MTU, or a pattern has no group.
    pub fn on_groups(
        scenario: &Scenario,
        places: &[Place],
        groups: &[GroupRule],
        start: impl Fn(&GroupRule) -> Psn,
    ) -> Result<Self, PlanError> {
        let mut plan = Self::empty(scenario, places);
        let multicast: Vec<Pattern> = scenario
            .workload
            .shares()
            .iter()
            .map(|s| s.pattern)
            .filter(|p| !p.is_collective())
            .collect();
        let casts: Vec<_> = groups.iter().filter(|g| g.multicast().is_some()).collect();
        let sums: Vec<_> = groups.iter().filter(|g| g.translated().is_some()).collect();
        if let Some(pattern) = multicast.get(casts.len()) {
            return Err(PlanError::NoGroup {
                kind: "multicast",
                pattern: *pattern,
            });
        }
        if !multicast.is_empty() {
            for (group, pattern) in casts.into_iter().zip(multicast.iter().cycle()) {
                plan.add(group.clone(), *pattern, places, start(group))?;
            }
        }
        if scenario.workload.has_collectives() {
            if sums.is_empty() {
                return Err(PlanError::NoGroup {
                    kind: "collective",
                    pattern: Pattern::Aggregate,
                });
            }
            for group in sums {
                plan.add(group.clone(), Pattern::Aggregate, places, start(group))?;
            }
        }
        Ok(plan)
    }

    fn empty(scenario: &Scenario, places: &[Place]) -> Self {
        let host = |place: &Place| HostPlan {
            name: place.name.clone(),
            flows: Vec::new(),
        };
        Self {
            scenario: scenario.clone(),
            hosts: places.iter().map(host).collect(),
            groups: Vec::new(),
        }
    }

    fn add(
        &mut self,
        group: GroupRule,
        pattern: Pattern,
        places: &[Place],
        start: Psn,
    ) -> Result<(), PlanError> {
        match &group.kind {
            GroupKind::Multicast(kind) => self.add_multicast((&group, kind), pattern, places, start)?,
            GroupKind::Translated(kind) => self.add_collective((&group, kind), places)?,
            GroupKind::Forwarding(_) => return Err(PlanError::NotPlayed { group: group.name }),
        }
        self.groups.push(group);
        Ok(())
    }

    fn add_multicast(
        &mut self,
        (group, kind): (&GroupRule, &MulticastRule),
        pattern: Pattern,
        places: &[Place],
        start: Psn,
    ) -> Result<(), PlanError> {
        let payload = self.scenario.sizes.largest();
        if payload > group.pmtu.bytes() {
            return Err(PlanError::OverPmtu {
                group: group.name.clone(),
                pmtu: group.pmtu.bytes(),
                payload,
            });
        }
        let of = group.endpoints.len() - 1;
        let mut number = 0;
        for (i, endpoint) in group.endpoints.iter().enumerate() {
            let role = if i == usize::from(kind.source) {
                Role::Source { start }
            } else {
                number += 1;
                Role::Receiver {
                    start,
                    number: number - 1,
                    of,
                }
            };
            self.add_member(group, endpoint, places, pattern, role)?;
        }
        Ok(())
    }

    fn add_collective(
        &mut self,
        (group, kind): (&GroupRule, &TranslatedRule),
        places: &[Place],
    ) -> Result<(), PlanError> {
        let of = u16::try_from(group.size()).unwrap_or(u16::MAX);
        let message = u32::from(kind.message_packets);
        // With two windows and two messages of slots the switch never refuses a packet.
        let window = (u32::from(kind.slots) / 2).saturating_sub(message).max(message);
        for endpoint in &group.endpoints {
            let rank = endpoint
                .next_hop
                .rank()
                .ok_or_else(|| behind_switch(group, endpoint))?;
            let role = Role::Rank {
                rank: rank.rank,
                of,
                sq: rank.sq_psn,
                rq: rank.rq_psn,
                window,
                message,
            };
            self.add_member(group, endpoint, places, Pattern::Aggregate, role)?;
        }
        Ok(())
    }

    fn add_member(
        &mut self,
        group: &GroupRule,
        endpoint: &Endpoint,
        places: &[Place],
        pattern: Pattern,
        role: Role,
    ) -> Result<(), PlanError> {
        let host = endpoint
            .next_hop
            .host()
            .ok_or_else(|| behind_switch(group, endpoint))?;
        let found = places.iter().position(|p| p.name == host.name);
        let place = found.ok_or_else(|| PlanError::NobodyPlays {
            group: group.name.clone(),
            member: host.name.clone(),
        })?;
        self.hosts[place].flows.push(FlowPlan {
            group: group.name.clone(),
            mcst_id: group.mcst_id,
            pattern,
            role,
            qpn: host.qpn,
            ends: Ends {
                from: host.mac,
                to: places[place].gateway,
                src: host.ip,
                dst: group.mcst_id.0,
                qpn: endpoint.virtual_qpn,
                sport: sport(host.qpn, group.mcst_id),
            },
            pmtu: group.pmtu,
        });
        Ok(())
    }

    /// Most frames that the templates of a host occupy in the memory of its port.
    pub fn templates(&self, place: usize) -> usize {
        let flows = self.hosts.get(place).map_or(0, |host| host.flows.len());
        flows * 4 * self.scenario.sizes.parts().len().max(2)
    }

    pub(crate) fn share(&self, place: usize, pattern: Pattern) -> HostShare {
        let drives = |host: &HostPlan| host.flows.iter().any(|f| f.pattern == pattern && f.drives());
        let hosts = self.hosts.iter().filter(|h| drives(h)).count().max(1) as u64;
        let before = self.hosts.iter().take(place).filter(|h| drives(h)).count() as u64;
        let shares = self.scenario.workload.shares();
        let total: u64 = shares.iter().map(|s| u64::from(s.weight)).sum();
        let weight = shares
            .iter()
            .find(|s| s.pattern == pattern)
            .map_or(1, |s| s.weight);
        let part = |all: f64| all * f64::from(weight) / total as f64 / hosts as f64;
        let mut frames = self.scenario.frames.map(|frames| {
            let all = (u128::from(frames) * u128::from(weight) / u128::from(total)) as u64;
            all / hosts + u64::from(before < all % hosts)
        });
        let mut each = None;
        if pattern.is_collective() {
            // All ranks of a group send the same number of packets: rounded up.
            let flows = self
                .hosts
                .iter()
                .flat_map(|h| &h.flows)
                .filter(|f| f.pattern == pattern)
                .count();
            let all =
                |frames: u64| (u128::from(frames) * u128::from(weight)).div_ceil(u128::from(total)) as u64;
            each = self
                .scenario
                .frames
                .map(|frames| all(frames).div_ceil(flows.max(1) as u64));
            frames = None;
        }
        let (rate, bits) = match self.scenario.rate {
            Rate::Flat => (None, false),
            Rate::Frames(rate) => (Some(part(rate)), false),
            Rate::Bits(rate) => (Some(part(rate)), true),
        };
        HostShare {
            weight,
            frames,
            each,
            rate,
            bits,
        }
    }
}

fn behind_switch(group: &GroupRule, endpoint: &Endpoint) -> PlanError {
    PlanError::BehindSwitch {
        group: group.name.clone(),
        switch: endpoint.next_hop.name().to_owned(),
    }
}

/// A group for a pattern. A multicast group is at all places, its source at the first; ranks are at the last places.
fn rule(
    scenario: &Scenario,
    pattern: Pattern,
    (name, mcst_id): (String, McstId),
    qpn: Qpn,
    places: &[Place],
) -> GroupRule {
    let (first, kind) = if pattern.is_collective() {
        let (window, message) = scenario.rank_window();
        let slots = (2 * (window + message)).next_power_of_two() as u16;
        let kind = TranslatedRule {
            message_packets: message as u16,
            ack_timeout_us: ACK_TIMEOUT_US,
            ..TranslatedRule::root(slots)
        };
        (places.len() - scenario.receivers, GroupKind::from(kind))
    } else {
        let kind = MulticastRule {
            start_psn: Some(Psn::new(0)),
            va_base: 0,
            carries_on: None,
            any_source: None,
            repair: None,
            hold_fatal_naks: false,
            source: 0,
        };
        (0, kind.into())
    };
    let endpoint = |(n, place): (usize, &Place)| {
        let part = if pattern.is_collective() {
            HostPart::from(RankPart {
                rank: (n - first) as u16,
                sq_psn: Psn::new(0),
                rq_psn: Psn::new(0),
            })
        } else {
            HostPart::Plain
        };
        let host = HostEndpoint {
            name: place.name.clone(),
            ip: host_ip(n),
            qpn,
            mac: place.mac,
            part,
        };
        Endpoint::new(place.port, NextHop::Host(host))
    };
    GroupRule {
        name,
        generation: 1,
        mcst_id,
        pmtu: scenario.sizes.pmtu(),
        stall_timeout_ms: castnet_rules::DEFAULT_STALL_TIMEOUT_MS,
        rate_limit: None,
        endpoints: places.iter().enumerate().skip(first).map(endpoint).collect(),
        kind,
    }
}
