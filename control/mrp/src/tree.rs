//! From a whole registration and the unicast routes to the rule of this switch, and to the packets for the next devices.

use core::net::Ipv4Addr;
use std::collections::{BTreeMap, BTreeSet};

use castnet_rules::{
    DEFAULT_STALL_TIMEOUT_MS, ENDPOINTS_MAX, Endpoint, GroupRule, HostEndpoint, MulticastRule, NextHop,
    RemoteMemory,
};
use castnet_wire::{
    MacAddr, McstId, MrpBody, MrpMember, MrpMemory, MrpPacket, MrpPart, MrpReason, MrpRefusal, Pmtu, PortId,
};

use crate::group_name;
use crate::registrar::{Hop, Outgoing, Switch};

/// The records of a packet.
#[derive(Debug)]
pub(crate) enum Records {
    Members(Vec<MrpMember>),
    Memory(Vec<MrpMemory>),
}

impl Records {
    pub(crate) fn members(&self) -> usize {
        match self {
            Self::Members(members) => members.len(),
            Self::Memory(_) => 0,
        }
    }

    pub(crate) fn regions(&self) -> usize {
        match self {
            Self::Members(_) => 0,
            Self::Memory(regions) => regions.len(),
        }
    }

    fn is_empty(&self) -> bool {
        self.members() + self.regions() == 0
    }

    /// The records of members that `keep` selects.
    fn only(&self, keep: impl Fn(Ipv4Addr) -> bool) -> Self {
        match self {
            Self::Members(all) => {
                Self::Members(all.iter().filter(|r| !r.source && keep(r.ip)).copied().collect())
            }
            Self::Memory(all) => Self::Memory(all.iter().filter(|r| keep(r.ip)).copied().collect()),
        }
    }
}

/// All packets of a registration.
pub(crate) struct Registration<'a> {
    pub(crate) mcst_id: McstId,
    pub(crate) leader: Ipv4Addr,
    pub(crate) number: u32,
    pub(crate) upstream: (PortId, MacAddr),
    pub(crate) pmtu: Pmtu,
    pub(crate) parts: &'a BTreeMap<u8, Records>,
}

/// What a switch does about a registration.
pub(crate) struct Plan {
    pub(crate) rule: GroupRule,
    /// Each with the sequence number of the packet of the registration that has its records.
    pub(crate) sent: Vec<(u8, Outgoing)>,
}

/// Cepheus III.C: a member that is not directly connected uses a port that is already in the tree, else the one of its ports that the
/// fewest groups use. Members that have only one port choose first, so that others can use it, too.
pub(crate) fn plan(of: &Registration<'_>, switch: &mut dyn Switch) -> Result<Plan, MrpRefusal> {
    let contradiction = |member| MrpRefusal {
        reason: MrpReason::Contradiction,
        member,
    };
    let mut members: BTreeMap<Ipv4Addr, MrpMember> = BTreeMap::new();
    let mut memory: BTreeMap<Ipv4Addr, RemoteMemory> = BTreeMap::new();
    for records in of.parts.values() {
        let twice = match records {
            Records::Members(all) => all
                .iter()
                .find(|m| members.insert(m.ip, **m).is_some())
                .map(|m| m.ip),
            Records::Memory(all) => all
                .iter()
                .find(|m| memory.insert(m.ip, region(m)).is_some())
                .map(|m| m.ip),
        };
        twice.map_or(Ok(()), |ip| Err(contradiction(ip)))?;
    }
    if let Some((ip, _)) = memory
        .iter()
        .find(|(ip, _)| members.get(ip).is_none_or(|m| m.source))
    {
        return Err(contradiction(*ip));
    }
    let (upstream, mac) = of.upstream;
    let above = match switch.switch_at(upstream) {
        Some(name) => NextHop::switch(name, mac),
        None => match members.get(&of.leader).filter(|m| m.source) {
            Some(source) => NextHop::Host(host(source, mac, None)),
            None => return Err(contradiction(of.leader)),
        },
    };
    members.retain(|_, member| !member.source);
    if members.is_empty() {
        return Err(contradiction(of.leader));
    }

    let choices: Vec<(MrpMember, Vec<Hop>)> = members
        .values()
        .map(|member| {
            let mut hops = switch.hops(member.ip);
            match hops.iter().position(|hop| hop.switch.is_none()) {
                Some(direct) => hops = vec![hops.swap_remove(direct)],
                // Not back to where the data comes from.
                None => hops.retain(|hop| hop.port != upstream),
            }
            match hops.is_empty() {
                false => Ok((*member, hops)),
                true => Err(MrpRefusal {
                    reason: MrpReason::NoRoute,
                    member: member.ip,
                }),
            }
        })
        .collect::<Result<_, _>>()?;
    let is_forced = |hops: &[Hop]| hops.len() == 1 && hops[0].switch.is_some();
    let forced = choices.iter().filter(|(_, hops)| is_forced(hops));
    let mut used: BTreeSet<PortId> = forced.map(|(_, hops)| hops[0].port).collect();
    let mut endpoints: Vec<Endpoint> = vec![Endpoint::new(upstream, above)];
    // The next switch at each port, and the members behind it; next hops that are members.
    let mut switches: BTreeMap<PortId, (MacAddr, BTreeSet<Ipv4Addr>)> = BTreeMap::new();
    let mut hosts: Vec<(Ipv4Addr, PortId, MacAddr)> = Vec::new();
    for (member, hops) in &choices {
        let shared = hops.iter().find(|hop| used.contains(&hop.port));
        let least = || {
            hops.iter()
                .min_by_key(|hop| (switch.groups_at(hop.port, of.mcst_id), hop.port))
        };
        let Some(hop) = shared.or_else(least) else {
            continue;
        };
        match &hop.switch {
            None => {
                let next = host(member, hop.mac, memory.get(&member.ip).copied());
                endpoints.push(Endpoint::new(hop.port, NextHop::Host(next)));
                hosts.push((member.ip, hop.port, hop.mac));
            }
            Some(name) => {
                used.insert(hop.port);
                let (_, behind) = switches.entry(hop.port).or_insert_with(|| {
                    endpoints.push(Endpoint::new(hop.port, NextHop::switch(name.clone(), hop.mac)));
                    (hop.mac, BTreeSet::new())
                });
                behind.insert(member.ip);
            }
        }
    }
    if endpoints.len() > ENDPOINTS_MAX {
        return Err(MrpRefusal::of(MrpReason::TooManyMembers));
    }
    let rule = rule(of, endpoints);
    let mut sent = Vec::new();
    for (port, (mac, behind)) in switches {
        let parts = of
            .parts
            .iter()
            .map(|(cause, records)| (*cause, records.only(|ip| behind.contains(&ip))));
        let parts: Vec<(u8, Records)> = parts.filter(|(_, records)| !records.is_empty()).collect();
        let total = parts.len() as u8;
        let packets = parts.into_iter().enumerate();
        sent.extend(packets.map(|(n, (cause, records))| {
            let part = of.part(n as u8, total);
            let body = match records {
                Records::Members(members) => MrpBody::Members(part, members),
                Records::Memory(regions) => MrpBody::Memory(part, regions),
            };
            (cause, of.outgoing((port, mac), of.mcst_id.0, body))
        }));
    }
    let causes: BTreeMap<Ipv4Addr, u8> = of
        .parts
        .iter()
        .filter_map(|(cause, records)| match records {
            Records::Members(all) => Some(all.iter().map(|m| (m.ip, *cause))),
            Records::Memory(_) => None,
        })
        .flatten()
        .collect();
    for (ip, port, mac) in hosts {
        let body = MrpBody::Members(of.part(0, 1), vec![members[&ip]]);
        sent.push((causes[&ip], of.outgoing((port, mac), ip, body)));
    }
    Ok(Plan { rule, sent })
}

impl Registration<'_> {
    fn part(&self, sequence: u8, total: u8) -> MrpPart {
        MrpPart {
            sequence,
            total,
            pmtu: self.pmtu,
        }
    }

    fn outgoing(&self, (port, mac): (PortId, MacAddr), to: Ipv4Addr, body: MrpBody) -> Outgoing {
        Outgoing {
            port,
            mac,
            from: self.leader,
            to,
            packet: MrpPacket {
                number: self.number,
                body,
            },
        }
    }
}

/// The rule with its endpoints in the order that the planner gives them; the first one leads to the source.
fn rule(of: &Registration<'_>, endpoints: Vec<Endpoint>) -> GroupRule {
    let mut order: Vec<usize> = (0..endpoints.len()).collect();
    order.sort_by_key(|i| (endpoints[*i].port, endpoints[*i].next_hop.name()));
    let source = order.iter().position(|i| *i == 0).unwrap_or_default() as u16;
    GroupRule {
        name: group_name(of.mcst_id),
        generation: of.number.into(),
        mcst_id: of.mcst_id,
        pmtu: of.pmtu,
        stall_timeout_ms: DEFAULT_STALL_TIMEOUT_MS,
        rate_limit: None,
        endpoints: order.into_iter().map(|i| endpoints[i].clone()).collect(),
        kind: MulticastRule {
            source,
            ..MulticastRule::default()
        }
        .into(),
    }
}

fn host(member: &MrpMember, mac: MacAddr, memory: Option<RemoteMemory>) -> HostEndpoint {
    HostEndpoint {
        name: member.ip.to_string(),
        ip: member.ip,
        qpn: member.qpn,
        mac,
        part: memory.into(),
    }
}

const fn region(memory: &MrpMemory) -> RemoteMemory {
    RemoteMemory {
        va: memory.va,
        rkey: memory.rkey,
        length: memory.length,
    }
}
