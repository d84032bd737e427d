//! The MFT Registration Protocol (Cepheus III.C, Fig. 5). `docs/mrp.md` has the layout, byte by byte.

use alloc::string::String;
use alloc::vec::Vec;
use core::net::Ipv4Addr;

use crate::datagram::PAYLOAD_MAX;
use crate::error::{Header, ParseError, chunk};
use crate::ids::{McstId, Pmtu, Qpn};
use crate::names;

/// Default UDP destination port.
pub const DEFAULT_PORT: u16 = 4793;
/// Most members in a packet.
pub const MEMBERS_MAX: usize = (PAYLOAD_MAX - METADATA) / MEMBER;
/// Most memory regions in a packet.
pub const REGIONS_MAX: usize = (PAYLOAD_MAX - METADATA) / REGION;

/// Longest gift of a host, and longest reason of a [`MrpBody::Call`], in bytes.
pub const GIFT_MAX: usize = 1024;
/// Most hosts that a [`MrpBody::Give`] asks for.
pub const WANTED_MAX: usize = 128;

const VERSION: u8 = 1;
const METADATA: usize = 8;
const MEMBER: usize = 8;
const REGION: usize = 24;

/// A packet: the payload of a UDP datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MrpPacket {
    /// Number of the registration. A leader gives a group a larger one each time that it registers it anew.
    pub number: u32,
    /// What the packet carries.
    pub body: MrpBody,
}

/// What a packet carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MrpBody {
    /// Members of the group, 1 to [`MEMBERS_MAX`].
    Members(MrpPart, Vec<MrpMember>),
    /// Memory for WRITEs of members, 1 to [`REGIONS_MAX`]: the second kind of registration packets.
    Memory(MrpPart, Vec<MrpMemory>),
    /// The leader withdraws the registration.
    Withdraw,
    /// A receiver has seen its own record.
    Confirm(McstId, MrpMember),
    /// A switch cannot register the group.
    Refuse(McstId, MrpRefusal),
    /// A receiver gives the leader its connection.
    Join(McstId, MrpMember, Option<MrpMemory>),
    /// The QPN of the group at the switch that sends this, for frames of the switch that receives it. Without this packet it is
    /// [`Qpn::VIRTUAL`].
    Uplink(MrpPart, Qpn),
    /// The leader goes on from host to host, and calls a receiver to do the same.
    Call(McstId, MrpCall),
    /// What a called host gives to others, and those whose gifts it still lacks.
    Give(McstId, MrpGift, Vec<u16>),
    /// Gifts of the same round, from the leader to a host that lacks them. One without bytes of the leader: all hosts have given theirs.
    Take(McstId, Vec<MrpGift>),
}

/// A receiver becomes a rank of those that go on from host to host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MrpCall {
    /// Number of the receiver among them. That of the leader is 0.
    pub rank: u16,
    /// How many they are.
    pub size: u16,
    /// Why the group is not used.
    pub reason: String,
}

/// What one host gives to others in a round of an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MrpGift {
    /// The round.
    pub round: u8,
    /// Who gives.
    pub rank: u16,
    /// What, at most [`GIFT_MAX`].
    pub bytes: Vec<u8>,
}

/// The place of a packet among those of its registration. All kinds are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MrpPart {
    /// From 0, below `total`.
    pub sequence: u8,
    /// Number of packets, at least 1.
    pub total: u8,
    /// Path MTU of the group, the same in all packets.
    pub pmtu: Pmtu,
}

/// A member's connection: 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MrpMember {
    /// Its address, by which members are told apart.
    pub ip: Ipv4Addr,
    /// Its queue pair.
    pub qpn: Qpn,
    /// True for the source of the group, which is its leader.
    pub source: bool,
}

/// Memory of a member: 24 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MrpMemory {
    /// Address of the member.
    pub ip: Ipv4Addr,
    /// Key that allows remote writes.
    pub rkey: u32,
    /// Virtual address of the first byte.
    pub va: u64,
    /// Length in bytes.
    pub length: u64,
}

/// Why a switch refused, and the address of the member concerned; 0.0.0.0: of none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MrpRefusal {
    /// The reason.
    pub reason: MrpReason,
    /// Its member.
    pub member: Ipv4Addr,
}

names! {
    /// Why a switch refuses a registration.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[repr(u8)]
    pub enum MrpReason {
        /// The packets of the registration contradict each other, or its source is not its leader.
        Contradiction = 1 => "the packets of the registration contradict each other",
        /// The address belongs to another leader, to a controller or to an operator.
        Taken = 2 => "the McstID belongs to somebody else",
        /// The leader has as many groups as the switch allows.
        TooManyGroups = 3 => "the leader or the switch has too many groups",
        /// More members than the switch allows.
        TooManyMembers = 4 => "the group has too many members",
        /// No route leads to the member, or the Ethernet address of its next hop is unknown.
        NoRoute = 5 => "the switch does not know where a member is",
        /// The switch has no memory or no capacity for the group.
        NoCapacity = 6 => "the switch has no capacity for the group",
        /// The rules of the switch do not allow the group.
        Refused = 7 => "the switch cannot serve such a group",
    }
}

impl MrpRefusal {
    /// A refusal that concerns no single member.
    pub const fn of(reason: MrpReason) -> Self {
        let member = Ipv4Addr::UNSPECIFIED;
        Self { reason, member }
    }
}

impl MrpPacket {
    /// Reads a payload.
    ///
    /// # Errors
    /// Another version, an unknown kind, a length that no packet of this kind has, or a field with a value that is not allowed.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let [first, pmtu, sequence, total, number @ ..] = *chunk::<METADATA>(bytes, Header::Mrp)?;
        let number = u32::from_be_bytes(number);
        let field = |field, value: u8| ParseError::field(Header::Mrp, field, value.into());
        if first >> 4 != VERSION {
            return Err(field("version", first >> 4));
        }
        let rest = &bytes[METADATA..];
        let kind = first & 0xF;
        let part = || {
            let shift = usize::from(pmtu).wrapping_sub(8);
            Ok(MrpPart {
                sequence,
                total: match sequence < total {
                    true => total,
                    false => return Err(field("sequence", sequence)),
                },
                pmtu: *Pmtu::ALL.get(shift).ok_or(field("path MTU", pmtu))?,
            })
        };
        // The fields of a part are zero in the other kinds.
        let has_part = matches!(kind, KIND_MEMBERS | KIND_MEMORY | KIND_UPLINK);
        if !has_part && (pmtu, sequence, total) != (0, 0, 0) {
            return Err(ParseError::rule(Header::Mrp, "reserved bytes are not zero"));
        }
        let body = match kind {
            KIND_MEMBERS => MrpBody::Members(part()?, records(rest, MEMBERS_MAX, member)?),
            KIND_MEMORY => MrpBody::Memory(part()?, records(rest, REGIONS_MAX, memory)?),
            KIND_WITHDRAW => {
                exactly(rest, 0)?;
                MrpBody::Withdraw
            }
            KIND_CONFIRM => {
                exactly(rest, 4 + MEMBER)?;
                MrpBody::Confirm(group(rest)?, member(chunk(&rest[4..], Header::Mrp)?)?)
            }
            KIND_REFUSE => {
                exactly(rest, 12)?;
                let [a, b, c, d, reason, zeros @ ..] = *chunk::<8>(&rest[4..], Header::Mrp)?;
                let known = MrpReason::ALL.iter().find(|known| **known as u8 == reason);
                let reason = *known.ok_or(field("reason", reason))?;
                if zeros != [0; 3] {
                    return Err(ParseError::rule(Header::Mrp, "reserved bytes are not zero"));
                }
                let member = Ipv4Addr::new(a, b, c, d);
                MrpBody::Refuse(group(rest)?, MrpRefusal { reason, member })
            }
            KIND_JOIN => {
                let with_memory = rest.len() != 4 + MEMBER;
                exactly(rest, 4 + MEMBER + if with_memory { REGION } else { 0 })?;
                let own = member(chunk(&rest[4..], Header::Mrp)?)?;
                let region = rest[4 + MEMBER..].first_chunk().map(memory).transpose()?;
                MrpBody::Join(group(rest)?, own, region)
            }
            KIND_UPLINK => {
                exactly(rest, 4)?;
                let [zero, qpn @ ..] = *chunk::<4>(rest, Header::Mrp)?;
                if zero != 0 {
                    return Err(ParseError::rule(Header::Mrp, "reserved bytes are not zero"));
                }
                let [q0, q1, q2] = qpn;
                MrpBody::Uplink(part()?, Qpn::new(u32::from_be_bytes([0, q0, q1, q2])))
            }
            KIND_CALL => {
                let group = group(rest)?;
                let size = u16::from_be_bytes(*chunk(&rest[4..], Header::Mrp)?);
                let (MrpGift { rank, bytes, .. }, rest) = gift(0, &rest[6..])?;
                exactly(rest, 0)?;
                let reason = String::from_utf8(bytes)
                    .ok()
                    .filter(|_| (1..size).contains(&rank));
                let reason = reason.ok_or(ParseError::rule(Header::Mrp, "no rank, or no reason in UTF-8"))?;
                MrpBody::Call(group, MrpCall { rank, size, reason })
            }
            KIND_GIVE => {
                let group = group(rest)?;
                let [round] = *chunk::<1>(&rest[4..], Header::Mrp)?;
                let (gift, wanted) = gift(round, &rest[5..])?;
                MrpBody::Give(group, gift, wanted_ranks(wanted)?)
            }
            KIND_TAKE => {
                let group = group(rest)?;
                let [round] = *chunk::<1>(&rest[4..], Header::Mrp)?;
                let (mut gifts, mut left) = (Vec::new(), &rest[5..]);
                loop {
                    let (next, after) = gift(round, left)?;
                    gifts.push(next);
                    left = after;
                    if left.is_empty() {
                        break;
                    }
                }
                MrpBody::Take(group, gifts)
            }
            kind => return Err(field("kind", kind)),
        };
        Ok(Self { number, body })
    }

    /// The payload. Records beyond the most that a packet has are left out.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (kind, part) = match &self.body {
            MrpBody::Members(part, _) => (KIND_MEMBERS, Some(part)),
            MrpBody::Memory(part, _) => (KIND_MEMORY, Some(part)),
            MrpBody::Withdraw => (KIND_WITHDRAW, None),
            MrpBody::Confirm(..) => (KIND_CONFIRM, None),
            MrpBody::Refuse(..) => (KIND_REFUSE, None),
            MrpBody::Join(..) => (KIND_JOIN, None),
            MrpBody::Uplink(part, _) => (KIND_UPLINK, Some(part)),
            MrpBody::Call(..) => (KIND_CALL, None),
            MrpBody::Give(..) => (KIND_GIVE, None),
            MrpBody::Take(..) => (KIND_TAKE, None),
        };
        let mut out = alloc::vec![VERSION << 4 | kind, 0, 0, 0];
        if let Some(part) = part {
            out[1..].copy_from_slice(&[8 + part.pmtu as u8, part.sequence, part.total]);
        }
        out.extend(self.number.to_be_bytes());
        match &self.body {
            MrpBody::Members(_, members) => {
                out.extend(members.iter().take(MEMBERS_MAX).flat_map(member_bytes))
            }
            MrpBody::Memory(_, regions) => {
                out.extend(regions.iter().take(REGIONS_MAX).flat_map(memory_bytes))
            }
            MrpBody::Withdraw => {}
            MrpBody::Confirm(group, member) => {
                out.extend(group.0.octets());
                out.extend(member_bytes(member));
            }
            MrpBody::Refuse(group, MrpRefusal { reason, member }) => {
                out.extend(group.0.octets());
                out.extend(member.octets());
                out.extend([*reason as u8, 0, 0, 0]);
            }
            MrpBody::Join(group, member, memory) => {
                out.extend(group.0.octets());
                out.extend(member_bytes(member));
                out.extend(memory.iter().flat_map(memory_bytes));
            }
            MrpBody::Uplink(_, qpn) => out.extend(qpn.value().to_be_bytes()),
            MrpBody::Call(group, call) => {
                out.extend(group.0.octets());
                out.extend(call.size.to_be_bytes());
                let ends = (0..=call.reason.len().min(GIFT_MAX)).rev();
                let whole = ends.filter_map(|end| call.reason.get(..end)).next();
                out.extend(record(call.rank, whole.unwrap_or_default().as_bytes()));
            }
            MrpBody::Give(group, gift, wanted) => {
                out.extend(group.0.octets());
                out.push(gift.round);
                out.extend(record(gift.rank, &gift.bytes));
                out.extend(wanted.iter().take(WANTED_MAX).flat_map(|rank| rank.to_be_bytes()));
            }
            MrpBody::Take(group, gifts) => {
                out.extend(group.0.octets());
                out.push(gifts.first().map_or(0, |gift| gift.round));
                out.extend(gifts.iter().flat_map(|gift| record(gift.rank, &gift.bytes)));
            }
        }
        out
    }
}

const KIND_MEMBERS: u8 = 1;
const KIND_MEMORY: u8 = 2;
const KIND_WITHDRAW: u8 = 3;
const KIND_CONFIRM: u8 = 4;
const KIND_REFUSE: u8 = 5;
const KIND_JOIN: u8 = 6;
const KIND_UPLINK: u8 = 7;
const KIND_CALL: u8 = 8;
const KIND_GIVE: u8 = 9;
const KIND_TAKE: u8 = 10;

fn exactly(bytes: &[u8], need: usize) -> Result<(), ParseError> {
    match bytes.len() {
        have if have == need => Ok(()),
        have => Err(ParseError::length(Header::Mrp, "kind", need, have)),
    }
}

/// One to `max` whole records.
fn records<T, const N: usize>(
    bytes: &[u8],
    max: usize,
    read: impl Fn(&[u8; N]) -> Result<T, ParseError>,
) -> Result<Vec<T>, ParseError> {
    let (records, rest) = bytes.as_chunks::<N>();
    if !rest.is_empty() || !(1..=max).contains(&records.len()) {
        return Err(ParseError::rule(
            Header::Mrp,
            "no whole number of records, none, or too many",
        ));
    }
    records.iter().map(read).collect()
}

fn group(bytes: &[u8]) -> Result<McstId, ParseError> {
    chunk::<4>(bytes, Header::Mrp).map(|ip| McstId((*ip).into()))
}

fn member(bytes: &[u8; MEMBER]) -> Result<MrpMember, ParseError> {
    let [a, b, c, d, q0, q1, q2, role] = *bytes;
    Ok(MrpMember {
        ip: Ipv4Addr::new(a, b, c, d),
        qpn: Qpn::new(u32::from_be_bytes([0, q0, q1, q2])),
        source: match role {
            0 => false,
            1 => true,
            role => return Err(ParseError::field(Header::Mrp, "role", role.into())),
        },
    })
}

fn member_bytes(member: &MrpMember) -> [u8; MEMBER] {
    let [a, b, c, d] = member.ip.octets();
    let [_, q0, q1, q2] = member.qpn.value().to_be_bytes();
    [a, b, c, d, q0, q1, q2, member.source.into()]
}

/// A gift, and the bytes behind it.
fn gift(round: u8, bytes: &[u8]) -> Result<(MrpGift, &[u8]), ParseError> {
    let [r0, r1, l0, l1] = *chunk::<4>(bytes, Header::Mrp)?;
    let (rank, length) = (u16::from_be_bytes([r0, r1]), u16::from_be_bytes([l0, l1]));
    let split = bytes[4..].split_at_checked(length.into());
    let split = split.filter(|_| usize::from(length) <= GIFT_MAX);
    let (bytes, rest) = split.ok_or(ParseError::rule(
        Header::Mrp,
        "a gift that is cut off, or too long",
    ))?;
    let bytes = bytes.to_vec();
    Ok((MrpGift { round, rank, bytes }, rest))
}

fn record(rank: u16, bytes: &[u8]) -> Vec<u8> {
    let bytes = &bytes[..bytes.len().min(GIFT_MAX)];
    let mut out = rank.to_be_bytes().to_vec();
    out.extend((bytes.len() as u16).to_be_bytes());
    out.extend(bytes);
    out
}

fn wanted_ranks(bytes: &[u8]) -> Result<Vec<u16>, ParseError> {
    let (ranks, rest) = bytes.as_chunks::<2>();
    if !rest.is_empty() || ranks.len() > WANTED_MAX {
        return Err(ParseError::rule(
            Header::Mrp,
            "no whole number of ranks, or too many",
        ));
    }
    Ok(ranks.iter().copied().map(u16::from_be_bytes).collect())
}

fn memory(bytes: &[u8; REGION]) -> Result<MrpMemory, ParseError> {
    let word = |at: usize| chunk::<4>(&bytes[at..], Header::Mrp).copied();
    let long = |at: usize| chunk::<8>(&bytes[at..], Header::Mrp).copied();
    Ok(MrpMemory {
        ip: word(0)?.into(),
        rkey: u32::from_be_bytes(word(4)?),
        va: u64::from_be_bytes(long(8)?),
        length: u64::from_be_bytes(long(16)?),
    })
}

fn memory_bytes(memory: &MrpMemory) -> [u8; REGION] {
    let mut out = [0; REGION];
    out[..4].copy_from_slice(&memory.ip.octets());
    out[4..8].copy_from_slice(&memory.rkey.to_be_bytes());
    out[8..16].copy_from_slice(&memory.va.to_be_bytes());
    out[16..].copy_from_slice(&memory.length.to_be_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_has_as_many_records_as_the_paper_says() {
        assert_eq!((PAYLOAD_MAX, MEMBERS_MAX, REGIONS_MAX), (1472, 183, 61));
    }
}
