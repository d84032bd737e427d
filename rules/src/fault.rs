use core::fmt;
use core::net::Ipv4Addr;

use castnet_toml_reader::join;
use castnet_wire::{CollectiveMode, MacAddr, McstId, PortId, Qpn};
use ipnet::Ipv4Net;

/// A fault of one field. Displays as `groups[0].endpoints[1].host.qpn: 0x1000000 is over the 24 bits of a QPN`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Path of the field, for example `groups[1].endpoints[2].host.qpn`; empty for a whole file.
    pub field: String,
    /// The fault, and what is allowed.
    pub kind: FaultKind,
}

/// Kinds of faults. Displays what is wrong and what is allowed.
#[allow(missing_docs, reason = "the messages show what the fields are")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultKind {
    #[error("missing: {expected}")]
    Missing { expected: &'static str },
    #[error("{value} {why}")]
    OutOfRange { value: String, why: &'static str },
    #[error("{value:?} is not {expected}")]
    BadText { value: String, expected: &'static str },
    #[error("has no next hop: give it host = {{ ... }} or switch = {{ ... }}")]
    NoNextHop,
    #[error("has two next hops: give it host or switch, not both")]
    TwoNextHops,
    #[error("{name:?} is no name: 1 to 64 printable characters without blanks")]
    BadName { name: String },
    #[error(
        "{name:?} reads as an IPv4 address or a folder: give the group a name with a letter, such as \"g1\""
    )]
    AmbiguousName { name: String },
    #[error("has {endpoints} endpoint(s): a group needs at least two")]
    TooFewEndpoints { endpoints: usize },
    #[error("has {endpoints} endpoints: a group has at most {max} on one switch")]
    TooManyEndpoints { endpoints: usize, max: usize },
    #[error("has {endpoints} endpoints: a group that forwards has exactly two")]
    NotTwoEndpoints { endpoints: usize },
    #[error("there is no endpoint {index}: the group has {endpoints}, counted from 0")]
    NoSuchEndpoint { index: u16, endpoints: usize },
    #[error("port {port} has no endpoint in this group; its ports: {}", ports_list(.ports))]
    NoEndpointAt { port: PortId, ports: Vec<PortId> },
    #[error("port {port} has several endpoints: name the one that is meant by its host or switch")]
    SeveralEndpointsAt { port: PortId },
    #[error("{name:?} is not among the endpoints of this group: {}", .names.join(", "))]
    NoEndpointOf { name: String, names: Vec<String> },
    #[error("port {port} is beyond this switch's {ports} ports (0 to {})", .ports.saturating_sub(1))]
    NoSuchPort { port: PortId, ports: usize },
    #[error(
        "frames to QPN {virtual_qpn} by port {port} could be of {first} too: give each endpoint of this port a virtual_qpn of \
         its own"
    )]
    AmbiguousEndpoint {
        port: PortId,
        virtual_qpn: Qpn,
        first: String,
    },
    #[error("{name:?} is the name of {first} too")]
    DuplicateName { name: String, first: String },
    #[error("{mcst_id} is the McstID of {first} too")]
    DuplicateMcstId { mcst_id: McstId, first: String },
    #[error("{ip} is the address of {first} too")]
    DuplicateMemberIp { ip: Ipv4Addr, first: String },
    #[error("the QP {qpn} of {ip} is that of {first} too")]
    DuplicateMember { ip: Ipv4Addr, qpn: Qpn, first: String },
    #[error("the QP {qpn} of {ip} belongs to {group} already: a QP is a member of one group")]
    DuplicateQp { ip: Ipv4Addr, qpn: Qpn, group: String },
    #[error("{ip} is the McstID of {group}: no host has that address")]
    MemberIsMcstId { ip: Ipv4Addr, group: String },
    #[error(
        "{ip} is the McstID of this group here: give its McstID at that switch, or leave ip out where no router lies between"
    )]
    SwitchIsMcstId { ip: Ipv4Addr },
    #[error("{mcst_id} is the address of a member of {group}: no host has the address of a group")]
    McstIdIsMember { mcst_id: McstId, group: String },
    #[error("{ip} is {class}: give a unicast address")]
    NotUnicastIp { ip: Ipv4Addr, class: &'static str },
    #[error("{mac} is {class}: give the address of a station")]
    NotUnicastMac { mac: MacAddr, class: &'static str },
    #[error("{qpn} is reserved (0: management, 0xffffff: multicast); a switch's QPNs are 0x1 to 0xfffffe")]
    ReservedVirtualQpn { qpn: Qpn },
    #[error("{qpn} is reserved (0 and 1: management, 0xffffff: multicast); RC QPs are 0x2 to 0xfffffe")]
    ReservedQpn { qpn: Qpn },
    #[error("is 0: leave memory out where a member takes no WRITEs")]
    EmptyMemory,
    #[error("{length} bytes from {va:#x} on run over the end of the 64-bit address space")]
    MemoryWraps { va: u64, length: u64 },
    #[error("is 0: give at least 1 millisecond")]
    ZeroStallTimeout,
    #[error(
        "is {given}: a burst has {least} bytes or more, so that it holds a full packet of each lane, and {most} or fewer"
    )]
    BadBurst { given: u64, least: u64, most: u64 },
    #[error("{name:?} is no kind of group; kinds: {}", .known.join(", "))]
    UnknownKind {
        name: String,
        known: &'static [&'static str],
    },
    #[error("is true, but only a host that receives multicast can join a running stream")]
    JoinsNoStream,
    #[error(
        "is missing: a group with any_source needs it, as each switch counts the packets of each host from there"
    )]
    AnySourceNeedsPsn,
    #[error(
        "is given in a group with any_source, whose members and state cannot change: give it a new generation instead"
    )]
    AnySourceIsFixed,
    #[error(
        "is missing: a group with any_source in which one host has memory is written by each of them, so all have it"
    )]
    AnySourceWrites,
    #[error(
        "is \"switch\" in a group whose hosts synchronize their PSNs: any_source = \"bridged\" can repair"
    )]
    AnySourceRepairs,
    #[error("is given for a switch without ip: a core lies between switches behind routers")]
    CoreNeedsIp,
    #[error(
        "{address} is no multicast address that routers forward: give one of 224.0.1.0 to 239.255.255.255"
    )]
    NotCoreAddress { address: Ipv4Addr },
    #[error("is given in a group that is not of kind \"multicast\": leave it out")]
    CoreOfNoMulticast,
    #[error("is given in a group with any_source: a static core leads from one source")]
    CoreOfAnySource,
    #[error("is the address of {first} too, which has another qpn: one copy is for both")]
    CoreQpnDiffers { first: String },
    #[error("{ip} is the source of {group}, too: data to the core's address belongs to one group")]
    DuplicateCoreSource { ip: Ipv4Addr, group: String },
    #[error("is given in a group that does not compute: leave it out")]
    RankOfNoCollective,
    #[error("has no rank: each host of a group that computes is a rank")]
    HostWithoutRank,
    #[error("{name:?} is a rank: the parent is a switch, and the root of the tree has none")]
    ParentIsRank { name: String },
    #[error("{slots} is no power of two from 2 to 32768")]
    NotPowerOfTwo { slots: u16 },
    #[error("{slots} slots are too few: messages of {message_packets} packets need {need} or more")]
    TooFewSlots {
        slots: u16,
        message_packets: u16,
        need: u32,
    },
    #[error(
        "is \"reflect\": in the mode \"{mode}\", each switch repairs. Give \"repair\", or the mode \"translated\""
    )]
    ModeReflects { mode: CollectiveMode },
    #[error("is \"{mode}\", the mode here: leave it out, it is for a switch of another mode")]
    SameMode { mode: CollectiveMode },
    #[error(
        "is \"{there}\", which cannot meet a switch with the loss policy \"reflect\": losses on this edge are repaired at \
         its ends. Give \"repair\""
    )]
    ReflectingEdge { there: CollectiveMode },
    #[error("is 0: a message has at least 1 packet")]
    EmptyMessages,
    #[error(
        "is {given}: in the mode \"terminated\", a switch adds whole messages, of at most {most} packets"
    )]
    LongMessages { given: u16, most: u16 },
    #[error("is {given}: give at least {least} microseconds")]
    ShortAckTimeout { given: u32, least: u32 },
    #[error("rank {rank} is behind {first} too")]
    DuplicateRank { rank: u16, first: String },
    #[error("there is no endpoint for rank {rank}: each rank from 0 to {most} must be behind one")]
    NoEndpointFor { rank: u16, most: u16 },
    #[error("is empty: name the ranks behind this switch")]
    NoRanks,
    #[error("{prefix} has bits set beyond its length: {network} is the network")]
    HostBits { prefix: Ipv4Net, network: Ipv4Net },
    #[error("{prefix} is routed by {first} already: list all its next hops there")]
    DuplicatePrefix { prefix: Ipv4Net, first: String },
    #[error("is empty: a route needs at least one next hop")]
    NoNextHops,
    #[error(
        "is only for multicast addresses that routers forward, 224.0.1.0 to 239.255.255.255; {prefix} has others"
    )]
    NotReplicable { prefix: Ipv4Net },
    #[error("is outside of the scope: {prefix} is in none of its prefixes")]
    OutOfScope { prefix: Ipv4Net },
    #[error("is for one multicast address, such as 239.200.0.1/32; {prefix} has more, or others")]
    NotOneAddress { prefix: Ipv4Net },
    #[error(
        "gives copies, so the route has no next hops and does not replicate: each copy takes another route"
    )]
    CopiesAndHops,
    #[error("has {count} addresses; a packet has at most {most} copies")]
    TooManyCopies { count: usize, most: usize },
    #[error("{address} is {reason}")]
    BadCopy { address: Ipv4Addr, reason: &'static str },
    #[error("is {first} again: list each next hop once")]
    DuplicateNextHop { first: String },
}

fn ports_list(ports: &[PortId]) -> String {
    if ports.is_empty() {
        return "none".into();
    }
    ports.iter().map(PortId::to_string).collect::<Vec<_>>().join(", ")
}

impl Fault {
    /// A fault of `field`, without a position.
    pub fn new(field: impl Into<String>, kind: FaultKind) -> Self {
        Self {
            field: field.into(),
            kind,
        }
    }

    /// Adds the prefix `outer` to the field.
    #[must_use]
    pub fn within(mut self, outer: &str) -> Self {
        self.field = join(outer, &self.field);
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        self.kind.fmt(f)
    }
}

impl core::error::Error for Fault {}
