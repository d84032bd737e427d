use core::net::Ipv4Addr;

use ipnet::Ipv4Net;

use crate::graph::End;

/// Why a change to a fabric is refused.
#[allow(missing_docs, reason = "the messages show what the fields are")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// No switch or host has that name.
    #[error("{name:?} is neither a switch nor a host of this fabric")]
    UnknownNode { name: String },
    /// The name is in use; switches and hosts share one name space.
    #[error("the name {name:?} is taken")]
    DuplicateNode { name: String },
    /// Two hosts have the address, an IPv4 or an Ethernet address.
    #[error("{address} of host {host:?} is the address of host {first:?} too: leave out what hosts share")]
    DuplicateAddress {
        address: String,
        host: String,
        first: String,
    },
    /// The name is not allowed in rules or in `switch:port`.
    #[error("{name:?} is no name: 1 to 64 printable characters without blanks and colons")]
    BadName { name: String },
    /// The switch does not have the port.
    #[error("switch {switch:?} has no port {port}")]
    NoSuchPort { switch: String, port: u8 },
    /// The number is too high for a port.
    #[error("switch {switch:?} would have a port {port}: ports are 0 to 63")]
    PortBeyondLimit { switch: String, port: usize },
    /// The port or host already has a link.
    #[error("{end} is linked to {to} already")]
    EndTaken { end: End, to: End },
    /// A switch without a port.
    #[error("{name:?} is a switch: say which port, such as {name}:0")]
    PortLacking { name: String },
    /// A host with a port.
    #[error("{name:?} is a host: it has one interface and no port numbers")]
    PortOfHost { name: String },
    /// The link is from a switch to itself.
    #[error("a link from {end} to its own switch")]
    Loop { end: End },
    /// Neither end of the link is a switch.
    #[error("a link between the hosts {a:?} and {b:?}: one end must be a switch")]
    HostToHost { a: String, b: String },
    /// The MTU is out of range.
    #[error("an MTU of {mtu} bytes on {end}: 576 to 65535")]
    BadMtu { end: End, mtu: u32 },
    /// The prefix is not allowed for McstIDs.
    #[error("{prefix} cannot be a prefix of McstIDs: {reason}")]
    BadPrefix { prefix: Ipv4Net, reason: String },
    /// Routers would route a McstID to two switches.
    #[error("{prefix} of switch {switch:?} overlaps {theirs} of switch {other:?}")]
    PrefixesOverlap {
        prefix: Ipv4Net,
        switch: String,
        theirs: Ipv4Net,
        other: String,
    },
    /// A switch that runs no groups has no McstIDs.
    #[error("{name:?} runs no groups: McstIDs are routed to Castnet switches")]
    PrefixOfForwarder { name: String },
    /// Routers lead to a Castnet switch that has no prefix of McstIDs.
    #[error("missing: the prefix of McstIDs that router {router:?} and others route to switch {switch:?}")]
    PrefixMissing { switch: String, router: String },
    /// Routers cannot lead the address to these switches.
    #[error("{address}: {reason}")]
    BadMulticastRoute { address: Ipv4Addr, reason: String },
    /// Only routers are programmable.
    #[error(
        "{name:?} is no router: only kind = \"router\" may be programmable, Castnet switches have groups anyway"
    )]
    NotARouter { name: String },
    /// Groups cannot have these addresses.
    #[error("{block} cannot be the addresses of groups: {reason}")]
    BadGroupAddresses { block: Ipv4Net, reason: String },
    /// A ToR cannot have this splitter.
    #[error("splitter of {from:?}: {reason}")]
    BadSplitter { from: String, reason: String },
    /// A builder is asked for a size that it does not support.
    #[error("{what} is {given}: {allowed}")]
    BadSize {
        what: &'static str,
        given: usize,
        allowed: &'static str,
    },
}
