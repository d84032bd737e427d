//! The machine of the leader: the source of the group.

use core::net::Ipv4Addr;
use std::collections::{BTreeMap, BTreeSet};

use castnet_wire::mrp::{MEMBERS_MAX, REGIONS_MAX};
use castnet_wire::{McstId, MrpBody, MrpMember, MrpMemory, MrpPacket, MrpPart, MrpRefusal, Nanos, Pmtu};

use crate::meeting::Roll;

/// Configuration of a leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderConfig {
    /// Address of the group.
    pub mcst_id: McstId,
    /// Number of the registration: larger than all that this group had before. It grows if a receiver changes its connection
    /// before all have confirmed.
    pub number: u32,
    /// Path MTU of the group.
    pub pmtu: Pmtu,
    /// The source: this host.
    pub source: MrpMember,
    /// Addresses of the receivers, which join one by one.
    pub receivers: BTreeSet<Ipv4Addr>,
    /// Interval of repetition until all receivers have confirmed.
    pub repeat: Nanos,
    /// Interval of repetition afterwards: a fraction of the lifetime of a registration on the switches.
    pub refresh: Nanos,
    /// How long receivers may take to join, and then to confirm.
    pub patience: Nanos,
    /// How long switches may refuse the registration while no further receiver confirms. Some reasons pass, such as a route that is not
    /// known yet.
    pub refusals: Nanos,
}

/// Why a group could not be registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum LeaderError {
    /// Not all receivers have given their connections.
    #[error("no connection from {} within {} ms", list(.missing), .after.0 / 1_000_000)]
    NotJoined { missing: Vec<Ipv4Addr>, after: Nanos },
    /// Not all receivers have confirmed.
    #[error(
        "no confirmation from {} within {} ms{}", list(.missing), .after.0 / 1_000_000,
        .refused.as_ref().map(refusal).unwrap_or_default()
    )]
    NotConfirmed {
        missing: Vec<Ipv4Addr>,
        after: Nanos,
        /// What a switch has last said.
        refused: Option<MrpRefusal>,
    },
    /// The registration does not fit into 255 packets.
    #[error("{members} members need {packets} packets: 255 at most")]
    TooManyMembers { members: usize, packets: usize },
}

/// Whether a host that leads a group takes such a packet from this address.
fn may_send(from: Ipv4Addr, body: &MrpBody) -> bool {
    match body {
        MrpBody::Join(_, member, _) | MrpBody::Confirm(_, member) => member.ip == from,
        // Switches refuse in the name of the group.
        MrpBody::Refuse(mcst_id, _) => mcst_id.0 == from,
        _ => false,
    }
}

fn list(missing: &[Ipv4Addr]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<String> = missing.iter().take(SHOWN).map(Ipv4Addr::to_string).collect();
    let more = match missing.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    shown.join(", ") + &more
}

fn refusal(refusal: &MrpRefusal) -> String {
    match refusal.member {
        Ipv4Addr::UNSPECIFIED => format!("; a switch says: {}", refusal.reason),
        member => format!("; a switch says: {} ({member})", refusal.reason),
    }
}

/// The machine of a leader. It waits for the connections of all receivers, sends them to the address of the group until all receivers
/// have confirmed, and then repeats them as long as the group shall live.
///
/// Call [`Leader::handle`] for each packet to this host, and [`Leader::handle_timeout`] when [`Leader::poll_timeout`] is due.
#[derive(Debug)]
pub struct Leader {
    config: LeaderConfig,
    joined: BTreeMap<Ipv4Addr, (MrpMember, Option<MrpMemory>)>,
    /// Those that receivers have chosen; 0: that takes no call.
    keys: BTreeMap<Ipv4Addr, u32>,
    confirmed: BTreeSet<Ipv4Addr>,
    refused: Option<MrpRefusal>,
    /// Since when it is refused and nobody confirms.
    refused_since: Option<Nanos>,
    /// Empty until all receivers have joined.
    packets: Vec<MrpPacket>,
    next: Nanos,
    deadline: Nanos,
}

impl Leader {
    /// A leader that waits for its receivers.
    pub fn new(now: Nanos, config: LeaderConfig) -> Self {
        Self {
            joined: BTreeMap::new(),
            keys: BTreeMap::new(),
            confirmed: BTreeSet::new(),
            refused: None,
            refused_since: None,
            packets: Vec::new(),
            next: now,
            deadline: now + config.patience,
            config,
        }
    }

    /// Handles a packet with its source address. Packets of other groups, registrations and hosts change nothing.
    pub fn handle(&mut self, now: Nanos, from: Ipv4Addr, packet: &MrpPacket) {
        if !may_send(from, &packet.body) {
            return;
        }
        let current = packet.number == self.config.number;
        match packet.body {
            MrpBody::Join(mcst_id, member, memory) => {
                let fits = mcst_id == self.config.mcst_id
                    && self.config.receivers.contains(&member.ip)
                    && memory.is_none_or(|memory| memory.ip == member.ip)
                    && !member.source;
                let connection = (member, memory);
                // The first key of a connection stays. A receiver that was started again has another queue pair.
                if !fits || self.is_registered() || self.joined.get(&member.ip) == Some(&connection) {
                    return;
                }
                self.keys.insert(member.ip, packet.number);
                // The first connection may have been that of an earlier queue pair, from a packet that was late.
                self.joined.insert(member.ip, connection);
                if !core::mem::take(&mut self.packets).is_empty() {
                    self.config.number = self.config.number.wrapping_add(1);
                    self.confirmed.clear();
                    self.refused_since = None;
                }
                self.next = self.next.min(now);
            }
            MrpBody::Confirm(mcst_id, member)
                if current
                    && mcst_id == self.config.mcst_id
                    && self
                        .joined
                        .get(&member.ip)
                        .is_some_and(|(known, _)| *known == member) =>
            {
                let is_new = self.confirmed.insert(member.ip);
                self.refused_since = self.refused_since.filter(|_| !is_new);
            }
            MrpBody::Refuse(mcst_id, refusal) if current && mcst_id == self.config.mcst_id => {
                self.refused = Some(refusal);
                self.refused_since.get_or_insert(now);
            }
            _ => {}
        }
    }

    /// When [`Leader::handle_timeout`] is due.
    pub const fn poll_timeout(&self) -> Nanos {
        self.next
    }

    /// The packets to be sent to the address of the group now.
    ///
    /// # Errors
    /// Receivers have not joined or not confirmed in time, or they are too many.
    pub fn handle_timeout(&mut self, now: Nanos) -> Result<&[MrpPacket], LeaderError> {
        if now < self.next {
            return Ok(&[]);
        }
        let LeaderConfig {
            repeat,
            refresh,
            patience,
            refusals,
            ..
        } = self.config;
        if self.packets.is_empty() {
            let missing = self.missing(|ip| self.joined.contains_key(ip));
            if !missing.is_empty() {
                self.next = now + repeat;
                return match now < self.deadline {
                    true => Ok(&[]),
                    false => Err(LeaderError::NotJoined {
                        missing,
                        after: patience,
                    }),
                };
            }
            self.packets = self.write()?;
            self.deadline = now + patience;
        }
        let is_refused = self.refused_since.is_some_and(|since| now >= since + refusals);
        if !self.is_registered() && (now >= self.deadline || is_refused) {
            return Err(LeaderError::NotConfirmed {
                missing: self.missing(|ip| self.confirmed.contains(ip)),
                after: (now + patience).since(self.deadline),
                refused: self.refused,
            });
        }
        self.next = now + if self.is_registered() { refresh } else { repeat };
        Ok(&self.packets)
    }

    /// Whether all receivers have confirmed: the source may send.
    pub fn is_registered(&self) -> bool {
        !self.packets.is_empty() && self.confirmed.len() == self.config.receivers.len()
    }

    /// Those that can go on from host to host. `None`: a receiver has not joined, or takes no call.
    pub fn roll(&self) -> Option<Roll> {
        let keys = self.config.receivers.iter();
        let keys = keys.map(|ip| Some((*ip, self.keys.get(ip).copied().filter(|key| *key != 0)?)));
        keys.collect::<Option<_>>().map(Roll::Leader)
    }

    /// The packet that withdraws the registration. It should be sent several times: if all are lost, the registration expires.
    pub const fn withdraw(&self) -> MrpPacket {
        MrpPacket {
            number: self.config.number,
            body: MrpBody::Withdraw,
        }
    }

    fn missing(&self, has: impl Fn(&Ipv4Addr) -> bool) -> Vec<Ipv4Addr> {
        self.config
            .receivers
            .iter()
            .filter(|ip| !has(ip))
            .copied()
            .collect()
    }

    fn write(&self) -> Result<Vec<MrpPacket>, LeaderError> {
        let receivers = self.joined.values().map(|(member, _)| *member);
        let members: Vec<MrpMember> = core::iter::once(self.config.source).chain(receivers).collect();
        let memory: Vec<MrpMemory> = self.joined.values().filter_map(|(_, memory)| *memory).collect();
        let (members, memory) = (members.chunks(MEMBERS_MAX), memory.chunks(REGIONS_MAX));
        let packets = members.len() + memory.len();
        let total = u8::try_from(packets).map_err(|_| LeaderError::TooManyMembers {
            members: self.joined.len() + 1,
            packets,
        })?;
        let part = |sequence| MrpPart {
            sequence,
            total,
            pmtu: self.config.pmtu,
        };
        let first = members.len() as u8;
        let members = (0..)
            .zip(members)
            .map(|(n, all)| MrpBody::Members(part(n), all.to_vec()));
        let memory = (first..=u8::MAX)
            .zip(memory)
            .map(|(n, all)| MrpBody::Memory(part(n), all.to_vec()));
        let number = self.config.number;
        Ok(members
            .chain(memory)
            .map(|body| MrpPacket { number, body })
            .collect())
    }
}
