//! The machine of a switch.

use core::net::Ipv4Addr;
use std::collections::BTreeMap;

use castnet_rules::GroupRule;
use castnet_wire::{
    Limit, MacAddr, McstId, MrpBody, MrpPacket, MrpPart, MrpReason, MrpRefusal, Nanos, PortId,
};

use crate::tree::{self, Plan, Records, Registration};

/// How long a withdrawn registration is remembered, so that repeated and late packets do not install it again.
const WITHDRAWN: Nanos = Nanos::from_secs(10);
/// A repeated packet causes its own packets again after so long: one of a leader can cause hundreds. Leaders repeat more slowly.
const REPEATED_AFTER: Nanos = Nanos::from_millis(50);
/// Groups that are removed together when they have ended.
const EXPIRED_TOGETHER: usize = 16;
/// Groups of the leaders at a port that are installed or changed: so many at once, and then one every so often.
const INSTALLS: Limit = Limit::new(256, Nanos::from_millis(50));

/// Bounds of what leaders can make a switch keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most groups of a leader.
    pub groups_per_leader: usize,
    /// Most groups of all leaders at a port, with those withdrawn in the last ten seconds: leaders are known by ARP, which a host can forge.
    pub groups_per_port: usize,
    /// Most groups of all leaders together, with those withdrawn in the last ten seconds.
    pub groups: usize,
    /// Most members of a group.
    pub members: usize,
    /// Most members of all groups of the leaders at a port, if one group may not have more: each takes a next hop, and memory of its group.
    pub members_per_port: usize,
    /// A registration that is not repeated for so long is removed with its group, or with the packets that have come.
    pub lifetime: Nanos,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            groups_per_leader: 16,
            groups_per_port: 256,
            groups: 1024,
            members: 1024,
            members_per_port: 4096,
            lifetime: Nanos::from_secs(60),
        }
    }
}

/// One of the next hops of equal cost to an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    /// Egress port.
    pub port: PortId,
    /// Ethernet address behind it.
    pub mac: MacAddr,
    /// Name of the switch at the port that takes part in MRP. `None`: the address is there, or behind an ordinary router.
    pub switch: Option<String>,
}

/// Who has sent a packet of a leader to this switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Upstream {
    /// The leader itself.
    Leader,
    /// The switch of this name.
    Switch(String),
}

/// The switch around the machine.
pub trait Switch {
    /// The next hops to a host, in order of their ports. Empty if there is none.
    fn hops(&mut self, ip: Ipv4Addr) -> Vec<Hop>;

    /// Who has sent a packet of this leader, by ingress port and source Ethernet address. `None`: neither the leader nor a switch.
    fn upstream(&mut self, leader: Ipv4Addr, from: (PortId, MacAddr)) -> Option<Upstream>;

    /// Number of groups that use a port, without the given one.
    fn groups_at(&mut self, port: PortId, without: McstId) -> usize;

    /// Installs a group of a leader, or a newer generation of it.
    fn install(&mut self, leader: Ipv4Addr, rule: &GroupRule) -> Result<(), MrpRefusal>;

    /// Removes a group of a leader.
    fn remove(&mut self, leader: Ipv4Addr, mcst_id: McstId);

    /// Sends a packet.
    fn send(&mut self, packet: &Outgoing);
}

/// A packet that was received, with its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// Ingress port.
    pub port: PortId,
    /// Source Ethernet address.
    pub mac: MacAddr,
    /// Source address: of the leader.
    pub from: Ipv4Addr,
    /// Destination address.
    pub mcst_id: McstId,
    /// The payload.
    pub packet: MrpPacket,
}

/// A packet to be sent, with its addresses. The source Ethernet address is that of the port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Egress port.
    pub port: PortId,
    /// Destination Ethernet address.
    pub mac: MacAddr,
    /// Source address.
    pub from: Ipv4Addr,
    /// Destination address: the McstID to a switch, its own address to a host.
    pub to: Ipv4Addr,
    /// The payload.
    pub packet: MrpPacket,
}

/// Why a packet changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum Dropped {
    /// The leader was told.
    #[error("refused: {}, member {}", .0.reason, .0.member)]
    Refused(MrpRefusal),
    /// A newer registration of the group is known, or this one is withdrawn.
    #[error("registration {number} is over")]
    Stale { number: u32 },
    /// The registration came in by another port, or the leader is not at this port.
    #[error("port {port} is not where the leader's packets come in")]
    WrongPort { port: PortId },
    /// No registration is known, or the kind of packet is not for a switch.
    #[error("the packet is not for this switch")]
    NotExpected,
    /// The leaders at this port change their groups too often. A repetition may succeed.
    #[error("port {port} changes its groups too often")]
    TooOften { port: PortId },
}

#[derive(Debug)]
struct Group {
    leader: Ipv4Addr,
    /// Of the newest registration.
    number: u32,
    /// Where that came in, and whether from the leader itself.
    upstream: (PortId, MacAddr),
    from_leader: bool,
    expires: Nanos,
    /// A rule is installed: of this registration, or of an older one.
    installed: bool,
    /// Members that have come so far.
    members: usize,
    /// When the packets of each received one were last sent; of a withdrawal, those of 0.
    sent: BTreeMap<u8, Nanos>,
    state: State,
}

impl Group {
    /// Whether the packets that are caused by those with this number are to be sent again.
    fn is_due(&mut self, now: Nanos, sequence: u8) -> bool {
        let is_due = self
            .sent
            .get(&sequence)
            .is_none_or(|at| now.since(*at) >= REPEATED_AFTER);
        if is_due {
            self.sent.insert(sequence, now);
        }
        is_due
    }
}

#[derive(Debug)]
enum State {
    /// Packets are missing.
    Gathering(MrpPart, BTreeMap<u8, Records>),
    /// The group is installed. Each packet is sent with the sequence number of the received packet that causes it.
    Registered(Vec<(u8, Outgoing)>),
    /// The group is removed. The packets repeat that to the next devices.
    Withdrawn(Vec<Outgoing>),
}

/// The machine of a switch: builds rules from registrations and unicast routes, and packets for the next devices. Its memory is bounded
/// by [`Limits`].
///
/// Call [`Registrar::handle`] for each packet, and [`Registrar::handle_timeout`] when [`Registrar::poll_timeout`] is due.
#[derive(Debug)]
pub struct Registrar {
    limits: Limits,
    /// Of the leaders at each port. An install costs all workers of a switch, and one packet of a leader causes it.
    installs: BTreeMap<PortId, Limit>,
    groups: BTreeMap<McstId, Group>,
}

impl Registrar {
    /// Without registrations.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            groups: BTreeMap::new(),
            installs: BTreeMap::new(),
        }
    }

    /// Handles a packet.
    ///
    /// # Errors
    /// The packet changed nothing.
    pub fn handle(&mut self, now: Nanos, received: Received, switch: &mut dyn Switch) -> Result<(), Dropped> {
        let Received {
            port,
            mac,
            from,
            mcst_id,
            packet: MrpPacket { number, body },
        } = received;
        let at = Origin {
            mcst_id,
            leader: from,
            number,
            upstream: (port, mac),
        };
        match body {
            MrpBody::Members(part, members) => {
                self.register(now, &at, part, Records::Members(members), switch)
            }
            MrpBody::Memory(part, regions) => self.register(now, &at, part, Records::Memory(regions), switch),
            MrpBody::Uplink(part, qpn) => self.register(now, &at, part, Records::Uplink(qpn), switch),
            MrpBody::Withdraw => self.withdraw(now, &at, switch),
            MrpBody::Refuse(_, refusal) => self.refused_below(&at, refusal, switch),
            MrpBody::Confirm(..)
            | MrpBody::Join(..)
            | MrpBody::Call(..)
            | MrpBody::Give(..)
            | MrpBody::Take(..) => Err(Dropped::NotExpected),
        }
    }

    /// The earliest time at which a registration ends unless it is repeated.
    pub fn poll_timeout(&self) -> Option<Nanos> {
        self.groups.values().map(|group| group.expires).min()
    }

    /// Removes some groups that have not been repeated: others may use the switch before the next are removed.
    pub fn handle_timeout(&mut self, now: Nanos, switch: &mut dyn Switch) {
        let expired = self.groups.iter().filter(|(_, group)| group.expires <= now);
        let expired: Vec<McstId> = expired.map(|(id, _)| *id).take(EXPIRED_TOGETHER).collect();
        for mcst_id in expired {
            if let Some(group) = self.groups.remove(&mcst_id)
                && group.installed
            {
                switch.remove(group.leader, mcst_id);
            }
        }
    }

    /// The installed groups, with their leaders.
    pub fn groups(&self) -> impl Iterator<Item = (McstId, Ipv4Addr)> {
        let installed = self.groups.iter().filter(|(_, group)| group.installed);
        installed.map(|(mcst_id, group)| (*mcst_id, group.leader))
    }

    fn register(
        &mut self,
        now: Nanos,
        at: &Origin,
        part: MrpPart,
        records: Records,
        switch: &mut dyn Switch,
    ) -> Result<(), Dropped> {
        let (port, _) = at.upstream;
        // A host speaks only for itself: its address is known at its port since it asked for the address of the group.
        let Some(upstream) = switch.upstream(at.leader, at.upstream) else {
            return Err(Dropped::WrongPort { port });
        };
        let from_leader = upstream == Upstream::Leader;
        let refused =
            |reason, switch: &mut dyn Switch| Err(at.refuse(MrpRefusal::of(reason), from_leader, switch));
        if let Some(group) = self.groups.get(&at.mcst_id) {
            if group.leader != at.leader {
                return refused(MrpReason::Taken, switch);
            }
            let is_over = matches!(group.state, State::Withdrawn(_)) && at.number == group.number;
            if at.number < group.number || is_over {
                return Err(Dropped::Stale { number: at.number });
            }
            // Between switches a new registration may take another path.
            if group.is_from_elsewhere(at) && (at.number == group.number || from_leader || group.from_leader)
            {
                return Err(Dropped::WrongPort { port });
            }
        } else {
            let of_leader = self.groups.values().filter(|group| group.leader == at.leader);
            let live = of_leader.filter(|group| !matches!(group.state, State::Withdrawn(_)));
            let all = self.groups.values();
            let at_port = all
                .filter(|group| group.from_leader && group.upstream.0 == port)
                .count();
            if live.count() >= self.limits.groups_per_leader
                || from_leader && at_port >= self.limits.groups_per_port
                || self.groups.len() >= self.limits.groups
            {
                return refused(MrpReason::TooManyGroups, switch);
            }
        }
        let others = self.groups.iter().filter(|(mcst_id, group)| {
            **mcst_id != at.mcst_id && group.from_leader && group.upstream.0 == port
        });
        let others: usize = others.map(|(_, group)| group.members).sum();
        let group = self.groups.entry(at.mcst_id).or_insert_with(|| Group {
            leader: at.leader,
            number: at.number,
            upstream: at.upstream,
            from_leader,
            expires: now + self.limits.lifetime,
            installed: false,
            members: 0,
            sent: BTreeMap::new(),
            state: State::Gathering(part, BTreeMap::new()),
        });
        if at.number != group.number {
            (group.number, group.upstream, group.from_leader) = (at.number, at.upstream, from_leader);
            (group.expires, group.state) = (
                now + self.limits.lifetime,
                State::Gathering(part, BTreeMap::new()),
            );
        }
        let repeats = matches!(group.state, State::Registered(_)) && group.is_due(now, part.sequence);
        let (first, parts) = match &mut group.state {
            State::Gathering(first, parts) => (*first, parts),
            State::Registered(sent) => {
                group.expires = now + self.limits.lifetime;
                let caused = sent
                    .iter()
                    .filter(|(cause, _)| repeats && *cause == part.sequence);
                caused.for_each(|(_, packet)| switch.send(packet));
                return Ok(());
            }
            State::Withdrawn(_) => return Err(Dropped::Stale { number: at.number }),
        };
        let result = if (first.total, first.pmtu) != (part.total, part.pmtu) {
            Err(MrpRefusal::of(MrpReason::Contradiction))
        } else {
            parts.entry(part.sequence).or_insert(records);
            let members: usize = parts.values().map(Records::members).sum();
            let regions: usize = parts.values().map(Records::regions).sum();
            group.members = members.max(regions);
            let at_port = if from_leader { others + group.members } else { 0 };
            let per_port = self.limits.members_per_port.max(self.limits.members);
            // The source is a member, too.
            if group.members > self.limits.members || at_port > per_port {
                Err(MrpRefusal::of(MrpReason::TooManyMembers))
            } else if parts.len() < usize::from(part.total) {
                return Ok(());
            } else if from_leader && !self.installs.entry(port).or_insert(INSTALLS).allows(now) {
                return Err(Dropped::TooOften { port });
            } else {
                let registration = Registration {
                    mcst_id: at.mcst_id,
                    leader: at.leader,
                    number: at.number,
                    from: at.upstream,
                    upstream,
                    pmtu: part.pmtu,
                    parts,
                };
                tree::plan(&registration, switch)
                    .and_then(|plan| switch.install(at.leader, &plan.rule).map(|()| plan))
            }
        };
        match result {
            Ok(Plan { sent, .. }) => {
                sent.iter().for_each(|(_, packet)| switch.send(packet));
                group.sent = sent.iter().map(|(cause, _)| (*cause, now)).collect();
                (group.installed, group.expires) = (true, now + self.limits.lifetime);
                group.state = State::Registered(sent);
                Ok(())
            }
            // A repetition may succeed: routes and neighbours change.
            Err(refusal) => {
                parts.clear();
                if !group.installed {
                    self.groups.remove(&at.mcst_id);
                }
                Err(at.refuse(refusal, from_leader, switch))
            }
        }
    }

    fn withdraw(&mut self, now: Nanos, at: &Origin, switch: &mut dyn Switch) -> Result<(), Dropped> {
        let group = self.groups.get_mut(&at.mcst_id).ok_or(Dropped::NotExpected)?;
        if group.leader != at.leader || group.number != at.number {
            return Err(Dropped::Stale { number: at.number });
        }
        if group.is_from_elsewhere(at) {
            let port = at.upstream.0;
            return Err(Dropped::WrongPort { port });
        }
        if let State::Gathering(..) | State::Registered(_) = group.state {
            if core::mem::take(&mut group.installed) {
                switch.remove(at.leader, at.mcst_id);
            }
            group.expires = now + WITHDRAWN;
            let below = match core::mem::replace(&mut group.state, State::Withdrawn(Vec::new())) {
                State::Registered(sent) => sent,
                _ => Vec::new(),
            };
            // One packet to each next device.
            let below = below
                .into_iter()
                .map(|(_, out)| ((out.port, out.mac, out.to), out));
            let below: BTreeMap<_, _> = below.collect();
            let packet = || MrpPacket {
                number: at.number,
                body: MrpBody::Withdraw,
            };
            let packets = below.into_values().map(|out| Outgoing {
                packet: packet(),
                ..out
            });
            group.state = State::Withdrawn(packets.collect());
            (group.members, group.sent) = (0, BTreeMap::new());
        }
        if group.is_due(now, 0)
            && let State::Withdrawn(packets) = &group.state
        {
            packets.iter().for_each(|packet| switch.send(packet));
        }
        Ok(())
    }

    /// A switch below has refused: its packet goes on to the leader.
    fn refused_below(
        &mut self,
        at: &Origin,
        refusal: MrpRefusal,
        switch: &mut dyn Switch,
    ) -> Result<(), Dropped> {
        let group = self.groups.get(&at.mcst_id).ok_or(Dropped::NotExpected)?;
        let (port, mac) = at.upstream;
        let is_below = |(_, out): &(u8, Outgoing)| (out.port, out.mac, out.to) == (port, mac, at.mcst_id.0);
        match &group.state {
            State::Registered(sent) if group.number == at.number && sent.iter().any(is_below) => {
                let at = Origin {
                    leader: group.leader,
                    upstream: group.upstream,
                    ..*at
                };
                at.refuse(refusal, group.from_leader, switch);
                Ok(())
            }
            _ => Err(Dropped::NotExpected),
        }
    }
}

/// The group and registration of a packet, and where it came from.
#[derive(Clone, Copy)]
struct Origin {
    mcst_id: McstId,
    leader: Ipv4Addr,
    number: u32,
    upstream: (PortId, MacAddr),
}

impl Group {
    /// Whether a packet came in elsewhere than the newest registration. A host may get another Ethernet address; behind a port of switches
    /// it tells them apart.
    fn is_from_elsewhere(&self, at: &Origin) -> bool {
        self.upstream.0 != at.upstream.0 || (!self.from_leader && self.upstream.1 != at.upstream.1)
    }
}

impl Origin {
    /// Sends a refusal upstream: to the leader, or to the switch there.
    fn refuse(&self, refusal: MrpRefusal, to_leader: bool, switch: &mut dyn Switch) -> Dropped {
        let (port, mac) = self.upstream;
        let to = if to_leader { self.leader } else { self.mcst_id.0 };
        switch.send(&Outgoing {
            port,
            mac,
            from: self.mcst_id.0,
            to,
            packet: MrpPacket {
                number: self.number,
                body: MrpBody::Refuse(self.mcst_id, refusal),
            },
        });
        Dropped::Refused(refusal)
    }
}
