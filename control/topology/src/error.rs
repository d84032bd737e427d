//! What can be wrong with a fabric.

use ipnet::Ipv4Net;

use crate::graph::End;

/// Why a fabric cannot be as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// No switch or host of that name.
    #[error("{name:?} is neither a switch nor a host of this fabric")]
    UnknownNode {
        /// The name.
        name: String,
    },
    /// A name twice; switches and hosts share one name space.
    #[error("the name {name:?} is taken")]
    DuplicateNode {
        /// The name.
        name: String,
    },
    /// A name that rules and `switch:port` cannot hold.
    #[error("{name:?} is no name: 1 to 64 printable characters without blanks and colons")]
    BadName {
        /// The name.
        name: String,
    },
    /// A port that the switch does not have.
    #[error("switch {switch:?} has no port {port}")]
    NoSuchPort {
        /// The switch.
        switch: String,
        /// The port.
        port: u8,
    },
    /// A port number that no switch can have.
    #[error("switch {switch:?} would have a port {port}: ports are 0 to 63")]
    PortBeyondLimit {
        /// The switch.
        switch: String,
        /// The port.
        port: usize,
    },
    /// A port, or a host, with a link already.
    #[error("{end} is linked to {to} already")]
    EndTaken {
        /// The end that was asked for.
        end: End,
        /// What it is linked to.
        to: End,
    },
    /// A switch named without a port.
    #[error("{name:?} is a switch: say which port, such as {name}:0")]
    PortLacking {
        /// The switch.
        name: String,
    },
    /// A host named with a port.
    #[error("{name:?} is a host: it has one interface and no port numbers")]
    PortOfHost {
        /// The host.
        name: String,
    },
    /// A link from a switch to itself.
    #[error("a link from {end} to its own switch")]
    Loop {
        /// One end.
        end: End,
    },
    /// A link without a switch.
    #[error("a link between the hosts {a:?} and {b:?}: one end must be a switch")]
    HostToHost {
        /// One host.
        a: String,
        /// The other.
        b: String,
    },
    /// An MTU that IPv4 cannot live with.
    #[error("an MTU of {mtu} bytes on {end}: 576 to 65535")]
    BadMtu {
        /// One end of the link.
        end: End,
        /// The MTU.
        mtu: u32,
    },
    /// A prefix that McstIDs cannot come from.
    #[error("{prefix} cannot be a prefix of McstIDs: {reason}")]
    BadPrefix {
        /// The prefix.
        prefix: Ipv4Net,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// McstIDs that would be routed to two switches.
    #[error("{prefix} of switch {switch:?} overlaps {theirs} of switch {other:?}")]
    PrefixesOverlap {
        /// The prefix.
        prefix: Ipv4Net,
        /// Its switch.
        switch: String,
        /// The prefix that was there before.
        theirs: Ipv4Net,
        /// Its switch.
        other: String,
    },
    /// McstIDs of a switch that runs no groups.
    #[error("{name:?} runs no groups: McstIDs are routed to Castnet switches")]
    PrefixOfForwarder {
        /// The plain switch or router.
        name: String,
    },
    /// A Castnet switch that a router leads to, without McstIDs that are routed to it.
    #[error("missing: the prefix of McstIDs that router {router:?} and others route to switch {switch:?}")]
    PrefixMissing {
        /// The switch.
        switch: String,
        /// A router that leads to it.
        router: String,
    },
    /// A size that a builder cannot build.
    #[error("{what} is {given}: {allowed}")]
    BadSize {
        /// The builder's argument.
        what: &'static str,
        /// Its value.
        given: usize,
        /// What is allowed.
        allowed: &'static str,
    },
}
