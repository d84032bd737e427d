//! From a whole registration and the unicast routes to the rule of this switch, and to the packets for the next devices.

use core::net::Ipv4Addr;
use std::collections::{BTreeMap, BTreeSet};

use castnet_rules::{
    DEFAULT_STALL_TIMEOUT_MS, ENDPOINTS_MAX, Endpoint, GroupRule, HostEndpoint, MulticastRule, NextHop,
    RemoteMemory,
};
use castnet_wire::{
    MacAddr, McstId, MrpBody, MrpMember, MrpMemory, MrpPacket, MrpPart, MrpReason, MrpRefusal, Pmtu, PortId,
    Qpn,
};

use crate::group_name;
use crate::registrar::{Hop, Outgoing, Switch, Upstream};

/// The records of a packet.
#[derive(Debug)]
pub(crate) enum Records {
    Members(Vec<MrpMember>),
    Memory(Vec<MrpMemory>),
    /// The QPN of the switch upstream for this one.
    Uplink(Qpn),
}

impl Records {
    pub(crate) fn members(&self) -> usize {
        match self {
            Self::Members(members) => members.len(),
            Self::Memory(_) | Self::Uplink(_) => 0,
        }
    }

    pub(crate) fn regions(&self) -> usize {
        match self {
            Self::Members(_) | Self::Uplink(_) => 0,
            Self::Memory(regions) => regions.len(),
        }
    }

    fn is_empty(&self) -> bool {
        self.members() + self.regions() == 0
    }

    /// The records of receivers that `keep` selects.
    fn only(&self, keep: impl Fn(Ipv4Addr) -> bool) -> Self {
        match self {
            Self::Uplink(_) => Self::Members(Vec::new()),
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
    /// Where the packets came in, and from whom.
    pub(crate) from: (PortId, MacAddr),
    pub(crate) upstream: Upstream,
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
    let mut uplink: Option<Qpn> = None;
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
            Records::Uplink(qpn) => uplink.replace(*qpn).map(|_| Ipv4Addr::UNSPECIFIED),
        };
        twice.map_or(Ok(()), |ip| Err(contradiction(ip)))?;
    }
    if let Some((ip, _)) = memory
        .iter()
        .find(|(ip, _)| members.get(ip).is_none_or(|m| m.source))
    {
        return Err(contradiction(*ip));
    }
    let (port_above, mac) = of.from;
    let above = match &of.upstream {
        Upstream::Switch(name) => switch_hop(name.clone(), mac, uplink.unwrap_or(Qpn::VIRTUAL)),
        Upstream::Leader => match members.get(&of.leader).filter(|m| m.source && uplink.is_none()) {
            Some(source) => NextHop::Host(host(source, mac, None)),
            None => return Err(contradiction(of.leader)),
        },
    };
    // Not back to where the data comes from. Behind one port, only a host and switches are told apart in both directions.
    let is_back = |hop: &Hop| match of.upstream {
        Upstream::Switch(_) => hop.port == port_above,
        Upstream::Leader => (hop.port, hop.mac) == of.from,
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
                None => hops.retain(|hop| !is_back(hop)),
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
    let mut used: BTreeSet<(PortId, MacAddr)> = forced.map(|(_, hops)| (hops[0].port, hops[0].mac)).collect();
    let mut endpoints: Vec<Endpoint> = vec![Endpoint::new(port_above, above)];
    // The next switches, and the members behind each; next hops that are members.
    let mut switches: BTreeMap<(PortId, MacAddr), BTreeSet<Ipv4Addr>> = BTreeMap::new();
    let mut hosts: Vec<(Ipv4Addr, PortId, MacAddr)> = Vec::new();
    for (member, hops) in &choices {
        let shared = hops.iter().find(|hop| used.contains(&(hop.port, hop.mac)));
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
                let to = (hop.port, hop.mac);
                used.insert(to);
                let behind = switches.entry(to).or_insert_with(|| {
                    endpoints.push(Endpoint::new(hop.port, NextHop::switch(name.clone(), hop.mac)));
                    BTreeSet::new()
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
    for (to, behind) in switches {
        let parts = of
            .parts
            .iter()
            .map(|(cause, records)| (*cause, records.only(|ip| behind.contains(&ip))));
        let mut parts: Vec<(u8, Records)> = parts.filter(|(_, records)| !records.is_empty()).collect();
        let is_to = |e: &&Endpoint| (e.port, e.next_hop.mac()) == to && e.next_hop.host().is_none();
        let own = rule.endpoints.iter().find(is_to).map(|e| e.virtual_qpn);
        if let Some(qpn) = own.filter(|qpn| *qpn != Qpn::VIRTUAL) {
            // It comes again with the first of the others.
            let uplink = parts.first().map(|(cause, _)| (*cause, Records::Uplink(qpn)));
            parts.extend(uplink);
        }
        let total = u8::try_from(parts.len()).map_err(|_| MrpRefusal::of(MrpReason::TooManyMembers))?;
        sent.extend((0..).zip(parts).map(|(n, (cause, records))| {
            let part = of.part(n, total);
            let body = match records {
                Records::Members(members) => MrpBody::Members(part, members),
                Records::Memory(regions) => MrpBody::Memory(part, regions),
                Records::Uplink(qpn) => MrpBody::Uplink(part, qpn),
            };
            (cause, of.outgoing(to, of.mcst_id.0, body))
        }));
    }
    let causes: BTreeMap<Ipv4Addr, u8> = of
        .parts
        .iter()
        .filter_map(|(cause, records)| match records {
            Records::Members(all) => Some(all.iter().map(|m| (m.ip, *cause))),
            Records::Memory(_) | Records::Uplink(_) => None,
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

/// The rule with its endpoints in the order that the planner gives them; the first one leads to the source. A switch that shares its port
/// has a virtual QPN of its own, as frames between switches have no address that tells them apart.
fn rule(of: &Registration<'_>, endpoints: Vec<Endpoint>) -> GroupRule {
    let mut order: Vec<usize> = (0..endpoints.len()).collect();
    order.sort_by_key(|i| (endpoints[*i].port, endpoints[*i].next_hop.name()));
    let source = order.iter().position(|i| *i == 0).unwrap_or_default() as u16;
    let mut at_port: BTreeMap<PortId, (usize, u32)> = BTreeMap::new();
    for endpoint in &endpoints {
        at_port
            .entry(endpoint.port)
            .or_insert((0, Qpn::VIRTUAL.value()))
            .0 += 1;
    }
    let numbered = |i: usize| {
        let mut endpoint = endpoints[i].clone();
        if i != 0
            && endpoint.next_hop.host().is_none()
            && let Some((2.., last)) = at_port.get_mut(&endpoint.port)
        {
            *last += 1;
            endpoint.virtual_qpn = Qpn::new(*last);
        }
        endpoint
    };
    let endpoints = order.into_iter().map(numbered).collect();
    GroupRule {
        name: group_name(of.mcst_id),
        generation: of.number.into(),
        mcst_id: of.mcst_id,
        pmtu: of.pmtu,
        stall_timeout_ms: DEFAULT_STALL_TIMEOUT_MS,
        rate_limit: None,
        endpoints,
        kind: MulticastRule {
            source,
            ..MulticastRule::default()
        }
        .into(),
    }
}

fn switch_hop(name: String, mac: MacAddr, qpn: Qpn) -> NextHop {
    NextHop::Switch {
        name,
        ip: None,
        qpn,
        mac,
        ranks: Vec::new(),
        mode: None,
        core: None,
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
