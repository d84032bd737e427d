//! What is wrong with a rule, and where.

use core::fmt;
use core::net::Ipv4Addr;

use castnet_wire::{MacAddr, McstId, PortId, Qpn};
use ipnet::Ipv4Net;

/// One fault of one field. Displays as `12:8: groups[0].paths[1].host.qpn: 0x1000000 is over the 24 bits of a QPN`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The field's path, such as `groups[1].paths[2].host.qpn`; empty for a whole file.
    pub field: String,
    /// What is wrong, and what is allowed.
    pub kind: FaultKind,
    /// Where in the file, if it came from one.
    pub at: Option<Position>,
}

/// A place in a text file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// From 1.
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
}

/// What can be wrong with a field. Displays what is wrong and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultKind {
    /// The text is not TOML.
    #[error("{message}")]
    Syntax {
        /// What the parser expected.
        message: String,
    },
    /// A field that does not exist here.
    #[error("unknown field{}; allowed: {}", did_you_mean(.suggestion.as_deref()), .allowed.join(", "))]
    UnknownField {
        /// The field that was perhaps meant.
        suggestion: Option<String>,
        /// The fields that exist here.
        allowed: Vec<&'static str>,
    },
    /// A field that must be given.
    #[error("missing: {expected}")]
    Missing {
        /// What belongs there.
        expected: &'static str,
    },
    /// A value of another type.
    #[error("{found} where {expected} belongs")]
    WrongType {
        /// What is there.
        found: &'static str,
        /// What belongs there.
        expected: &'static str,
    },
    /// A value that its type cannot hold.
    #[error("{value} {why}")]
    OutOfRange {
        /// The value as written.
        value: String,
        /// Why not, and what is allowed.
        why: &'static str,
    },
    /// A text that does not read as what it should be.
    #[error("{value:?} is not {expected}")]
    BadText {
        /// The text as written.
        value: String,
        /// What it should be, with an example.
        expected: &'static str,
    },
    /// An endpoint without `host` or `switch`.
    #[error("has no next hop: give it host = {{ ... }} or switch = {{ ... }}")]
    NoNextHop,
    /// An endpoint with both `host` and `switch`.
    #[error("has two next hops: give it host or switch, not both")]
    TwoNextHops,
    /// A name that tables cannot show.
    #[error("{name:?} is no name: 1 to 64 printable characters without blanks")]
    BadName {
        /// The name.
        name: String,
    },
    /// A group needs somebody on both sides.
    #[error("has {endpoints} endpoint(s): a group needs at least two")]
    TooFewEndpoints {
        /// How many there are.
        endpoints: usize,
    },
    /// More endpoints than sets of them can hold.
    #[error("has {endpoints} endpoints: a group has at most {max} on one switch")]
    TooManyEndpoints {
        /// How many there are.
        endpoints: usize,
        /// How many there may be.
        max: usize,
    },
    /// More endpoints than a kind knows what to do with.
    #[error("has {endpoints} endpoints: a group that forwards has exactly two")]
    NotTwoEndpoints {
        /// How many there are.
        endpoints: usize,
    },
    /// An index beyond the group's list.
    #[error("there is no endpoint {index}: the group has {endpoints}, counted from 0")]
    NoSuchEndpoint {
        /// The index.
        index: u16,
        /// How many there are.
        endpoints: usize,
    },
    /// A port that has no endpoint.
    #[error("port {port} has no endpoint in this group; its ports: {}", ports_list(.ports))]
    NoEndpointAt {
        /// The port.
        port: PortId,
        /// The ports that have one.
        ports: Vec<PortId>,
    },
    /// A port that has several endpoints.
    #[error("port {port} has several endpoints: name the one that is meant by its host or switch")]
    SeveralEndpointsAt {
        /// The port.
        port: PortId,
    },
    /// A name that no endpoint has.
    #[error("{name:?} is not among the endpoints of this group: {}", .names.join(", "))]
    NoEndpointOf {
        /// The name.
        name: String,
        /// Those that are.
        names: Vec<String>,
    },
    /// A port that the switch does not have.
    #[error("port {port} is beyond this switch's {ports} ports (0 to {})", .ports.saturating_sub(1))]
    NoSuchPort {
        /// The port.
        port: PortId,
        /// How many ports there are.
        ports: usize,
    },
    /// Two endpoints that frames could be of.
    #[error(
        "frames to QPN {virtual_qpn} by port {port} could be of {first} too: give each endpoint of this port a virtual_qpn of \
         its own"
    )]
    AmbiguousEndpoint {
        /// The port.
        port: PortId,
        /// The QPN that both have on this switch.
        virtual_qpn: Qpn,
        /// The endpoint that has both first.
        first: String,
    },
    /// The same name twice.
    #[error("{name:?} is the name of {first} too")]
    DuplicateName {
        /// The name.
        name: String,
        /// The field or group that has it first.
        first: String,
    },
    /// The same McstID for two groups.
    #[error("{mcst_id} is the McstID of {first} too")]
    DuplicateMcstId {
        /// The McstID.
        mcst_id: McstId,
        /// The group that has it first.
        first: String,
    },
    /// The same address for two hosts of a group.
    #[error("{ip} is the address of {first} too")]
    DuplicateMemberIp {
        /// The address.
        ip: Ipv4Addr,
        /// The member that has it first.
        first: String,
    },
    /// The same QP for two members of a group.
    #[error("the QP {qpn} of {ip} is that of {first} too")]
    DuplicateMember {
        /// The address.
        ip: Ipv4Addr,
        /// The QP.
        qpn: Qpn,
        /// The member that has it first.
        first: String,
    },
    /// A QP in two groups: it has one remote address only.
    #[error("the QP {qpn} of {ip} belongs to {group} already: a QP is a member of one group")]
    DuplicateQp {
        /// The host's address.
        ip: Ipv4Addr,
        /// Its QP.
        qpn: Qpn,
        /// The group that has it first.
        group: String,
    },
    /// The address of a member is a McstID.
    #[error("{ip} is the McstID of {group}: no host has that address")]
    MemberIsMcstId {
        /// The address.
        ip: Ipv4Addr,
        /// The group.
        group: String,
    },
    /// The address of another switch is the group's McstID on this one.
    #[error(
        "{ip} is the McstID of this group here: give its McstID at that switch, or leave ip out where no router lies between"
    )]
    SwitchIsMcstId {
        /// The address.
        ip: Ipv4Addr,
    },
    /// A McstID is the address of another group's member.
    #[error("{mcst_id} is the address of a member of {group}: no host has the address of a group")]
    McstIdIsMember {
        /// The McstID.
        mcst_id: McstId,
        /// The member's group.
        group: String,
    },
    /// An address that no host and no group can have.
    #[error("{ip} is {class}: give a unicast address")]
    NotUnicastIp {
        /// The address.
        ip: Ipv4Addr,
        /// What it is instead.
        class: &'static str,
    },
    /// An Ethernet address that no station can have.
    #[error("{mac} is {class}: give the address of a station")]
    NotUnicastMac {
        /// The address.
        mac: MacAddr,
        /// What it is instead.
        class: &'static str,
    },
    /// A QPN that no endpoint of a switch can have.
    #[error("{qpn} is reserved (0: management, 0xffffff: multicast); a switch's QPNs are 0x1 to 0xfffffe")]
    ReservedVirtualQpn {
        /// The QPN.
        qpn: Qpn,
    },
    /// A QPN that no RC QP can have.
    #[error("{qpn} is reserved (0 and 1: management, 0xffffff: multicast); RC QPs are 0x2 to 0xfffffe")]
    ReservedQpn {
        /// The QPN.
        qpn: Qpn,
    },
    /// Memory of no bytes.
    #[error("is 0: leave memory out where a member takes no WRITEs")]
    EmptyMemory,
    /// Memory beyond the address space.
    #[error("{length} bytes from {va:#x} on run over the end of the 64-bit address space")]
    MemoryWraps {
        /// The first address.
        va: u64,
        /// Bytes.
        length: u64,
    },
    /// A stall time of nothing.
    #[error("is 0: give at least 1 millisecond")]
    ZeroStallTimeout,
    /// A kind of group that is not known.
    #[error("{name:?} is no kind of group; kinds: {}", .known.join(", "))]
    UnknownKind {
        /// What was given.
        name: String,
        /// Those that exist.
        known: &'static [&'static str],
    },
    /// A rank in a group that has none.
    #[error("is given in a group that does not compute: leave it out")]
    RankOfNoCollective,
    /// A host in a group of ranks that is none.
    #[error("has no rank: each host of a group that computes is a rank")]
    HostWithoutRank,
    /// A rank as parent.
    #[error("{name:?} is a rank: the parent is a switch, and the root of the tree has none")]
    ParentIsRank {
        /// Its name.
        name: String,
    },
    /// Slots that are no ring.
    #[error("{slots} is no power of two from 2 to 32768")]
    NotPowerOfTwo {
        /// How many were given.
        slots: u16,
    },
    /// Fewer slots than two windows of one message.
    #[error(
        "{slots} slots are fewer than two windows: messages of {message_packets} packets need {need} or more"
    )]
    TooFewSlots {
        /// How many were given.
        slots: u16,
        /// Packets per message.
        message_packets: u16,
        /// How many it takes at least.
        need: u32,
    },
    /// Messages of nothing.
    #[error("is 0: a message has at least 1 packet")]
    EmptyMessages,
    /// A time-out too short to look after.
    #[error("is {given}: give at least {least} microseconds")]
    ShortAckTimeout {
        /// Microseconds given.
        given: u32,
        /// Microseconds at least.
        least: u32,
    },
    /// The same rank twice.
    #[error("rank {rank} is behind {first} too")]
    DuplicateRank {
        /// The rank.
        rank: u16,
        /// The endpoint that has it first.
        first: String,
    },
    /// A rank that is nowhere.
    #[error("there is no endpoint for rank {rank}: each rank from 0 to {most} must be behind one")]
    NoEndpointFor {
        /// The rank.
        rank: u16,
        /// The largest rank that is somewhere.
        most: u16,
    },
    /// A switch with nobody behind it.
    #[error("is empty: name the ranks behind this switch")]
    NoRanks,
    /// Bits beyond the length of a prefix.
    #[error("{prefix} has bits set beyond its length: {network} is the network")]
    HostBits {
        /// As written.
        prefix: Ipv4Net,
        /// The same without those bits.
        network: Ipv4Net,
    },
    /// The same prefix twice.
    #[error("{prefix} is routed by {first} already: list all its next hops there")]
    DuplicatePrefix {
        /// The prefix.
        prefix: Ipv4Net,
        /// The route that has it first.
        first: String,
    },
    /// A route to nowhere.
    #[error("is empty: a route needs at least one next hop")]
    NoNextHops,
    /// The same next hop twice in a route.
    #[error("is {first} again: list each next hop once")]
    DuplicateNextHop {
        /// The field that has it first.
        first: String,
    },
}

fn did_you_mean(suggestion: Option<&str>) -> String {
    suggestion
        .map(|s| format!(", did you mean {s:?}?"))
        .unwrap_or_default()
}

fn ports_list(ports: &[PortId]) -> String {
    if ports.is_empty() {
        return "none".into();
    }
    ports.iter().map(PortId::to_string).collect::<Vec<_>>().join(", ")
}

impl Fault {
    /// A fault of `field`, at no place in a file.
    pub fn new(field: impl Into<String>, kind: FaultKind) -> Self {
        Self {
            field: field.into(),
            kind,
            at: None,
        }
    }

    /// The same fault seen from outside: its field prefixed by `outer`.
    #[must_use]
    pub fn within(mut self, outer: &str) -> Self {
        self.field = join(outer, &self.field);
        self
    }
}

/// `outer.inner`, without a dot where either is empty.
pub(crate) fn join(outer: &str, inner: &str) -> String {
    match (outer.is_empty(), inner.is_empty()) {
        (true, _) => inner.into(),
        (_, true) => outer.into(),
        _ => format!("{outer}.{inner}"),
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(at) = self.at {
            write!(f, "{at}: ")?;
        }
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        self.kind.fmt(f)
    }
}

impl core::error::Error for Fault {}

/// All faults of one text, in the order of their places. Displays one line per fault, like a compiler's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults {
    /// What to call the text in front of line and column.
    pub file: Option<String>,
    /// At least one.
    pub faults: Vec<Fault>,
}

impl Faults {
    /// The same faults with the name of their file.
    #[must_use]
    pub fn in_file(mut self, file: impl Into<String>) -> Self {
        self.file = Some(file.into());
        self
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, fault) in self.faults.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            if let Some(file) = &self.file {
                write!(f, "{file}:{}", if fault.at.is_some() { "" } else { " " })?;
            }
            write!(f, "{fault}")?;
        }
        Ok(())
    }
}

impl core::error::Error for Faults {}

impl core::ops::Deref for Faults {
    type Target = [Fault];
    fn deref(&self) -> &[Fault] {
        &self.faults
    }
}

impl IntoIterator for Faults {
    type Item = Fault;
    type IntoIter = std::vec::IntoIter<Fault>;
    fn into_iter(self) -> Self::IntoIter {
        self.faults.into_iter()
    }
}
