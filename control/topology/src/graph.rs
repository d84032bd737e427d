use core::fmt;
use core::net::Ipv4Addr;
use core::str::FromStr;
use std::collections::BTreeMap;

use ipnet::Ipv4Net;
use petgraph::graph::{EdgeIndex, NodeIndex, UnGraph};

use crate::build::port_mac;
use crate::error::TopologyError;

/// Maximum number of ports of a switch.
pub const PORTS_MAX: usize = 64;
/// Default MTU of a link in bytes; fits a RoCE path MTU of 4096.
pub const DEFAULT_MTU: u32 = 9000;
const NAME_LENGTH_MAX: usize = 64;

/// Kind of a switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SwitchKind {
    /// Runs groups.
    #[default]
    Castnet,
    /// Forwards Ethernet frames; runs no groups.
    Plain,
    /// Forwards by IP address, with Ethernet addresses of its own; runs no groups.
    Router,
}

impl SwitchKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Castnet, Self::Plain, Self::Router];

    /// Its name in files and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Castnet => "castnet",
            Self::Plain => "plain",
            Self::Router => "router",
        }
    }
}

impl FromStr for SwitchKind {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or(())
    }
}

/// A switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switch {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: SwitchKind,
    /// Ethernet address of each port; numbers below [`PORTS_MAX`]. Not used for plain switches and routers.
    pub ports: BTreeMap<u8, [u8; 6]>,
    /// McstIDs that routers route to it, for groups that pass routers. Only Castnet switches have it.
    pub mcst_prefix: Option<Ipv4Net>,
    /// Whether it forwards.
    pub up: bool,
}

/// A host: one network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// Its address, if known.
    pub ip: Option<Ipv4Addr>,
    /// Its Ethernet address, if known.
    pub mac: Option<[u8; 6]>,
}

/// One end of a link.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum End {
    /// A switch's port.
    Switch {
        /// The switch's name.
        switch: String,
        /// Its port.
        port: u8,
    },
    /// A host.
    Host(String),
}

/// Number of a link in its topology; never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

/// A link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// One end.
    pub a: End,
    /// The other.
    pub b: End,
    /// Longest IP packet in bytes.
    pub mtu: u32,
    /// Whether it carries frames.
    pub up: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Node {
    Switch(Switch),
    Host(Host),
}

/// A fabric: switches, hosts and links, each up or down.
#[derive(Clone, Debug, Default)]
pub struct Topology {
    pub(crate) graph: UnGraph<Node, Link>,
    pub(crate) by_name: BTreeMap<String, NodeIndex>,
    pub(crate) by_end: BTreeMap<End, EdgeIndex>,
}

impl End {
    /// A switch's port.
    pub fn port(switch: impl Into<String>, port: u8) -> Self {
        Self::Switch {
            switch: switch.into(),
            port,
        }
    }

    /// A host.
    pub fn host(name: impl Into<String>) -> Self {
        Self::Host(name.into())
    }

    /// Name of its switch or host.
    pub fn node(&self) -> &str {
        match self {
            Self::Switch { switch, .. } => switch,
            Self::Host(name) => name,
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Switch { switch, port } => write!(f, "{switch}:{port}"),
            Self::Host(name) => f.write_str(name),
        }
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} - {}", self.a, self.b)
    }
}

impl Link {
    /// The end that is not at `node`.
    pub fn far(&self, node: &str) -> &End {
        if self.a.node() == node { &self.b } else { &self.a }
    }

    /// The end at `node`.
    pub fn near(&self, node: &str) -> &End {
        if self.a.node() == node { &self.a } else { &self.b }
    }
}

impl Topology {
    /// An empty fabric.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a switch, up, with its ports (number and Ethernet address).
    pub fn add_switch(
        &mut self,
        name: &str,
        ports: impl IntoIterator<Item = (u8, [u8; 6])>,
    ) -> Result<(), TopologyError> {
        let ports: BTreeMap<u8, [u8; 6]> = ports.into_iter().collect();
        if let Some((port, _)) = ports.last_key_value().filter(|(p, _)| **p as usize >= PORTS_MAX) {
            return Err(TopologyError::PortBeyondLimit {
                switch: name.into(),
                port: *port as usize,
            });
        }
        self.add(
            name,
            Node::Switch(Switch {
                name: name.into(),
                kind: SwitchKind::Castnet,
                ports,
                mcst_prefix: None,
                up: true,
            }),
        )
    }

    /// Adds a plain switch, up, with the ports `0..ports`.
    pub fn add_plain(&mut self, name: &str, ports: u8) -> Result<(), TopologyError> {
        let number = self.switches().count();
        self.add_switch(name, (0..ports).map(|port| (port, port_mac(number, port))))?;
        self.set_switch_kind(name, SwitchKind::Plain);
        Ok(())
    }

    /// Adds a host; `None`: address unknown.
    pub fn add_host(
        &mut self,
        name: &str,
        ip: Option<Ipv4Addr>,
        mac: Option<[u8; 6]>,
    ) -> Result<(), TopologyError> {
        self.add(
            name,
            Node::Host(Host {
                name: name.into(),
                ip,
                mac,
            }),
        )
    }

    fn add(&mut self, name: &str, node: Node) -> Result<(), TopologyError> {
        let fits = (1..=NAME_LENGTH_MAX).contains(&name.chars().count());
        if !fits
            || name
                .chars()
                .any(|c| c.is_control() || c.is_whitespace() || c == ':')
        {
            return Err(TopologyError::BadName { name: name.into() });
        }
        if self.by_name.contains_key(name) {
            return Err(TopologyError::DuplicateNode { name: name.into() });
        }
        let index = self.graph.add_node(node);
        self.by_name.insert(name.into(), index);
        Ok(())
    }

    /// Adds a link, up. Each port and each host has one link at most.
    pub fn connect(&mut self, a: End, b: End, mtu: u32) -> Result<LinkId, TopologyError> {
        let (from, to) = (self.check_end(&a)?, self.check_end(&b)?);
        match (&a, &b) {
            (End::Host(a), End::Host(b)) => {
                return Err(TopologyError::HostToHost {
                    a: a.clone(),
                    b: b.clone(),
                });
            }
            _ if from == to => return Err(TopologyError::Loop { end: a }),
            _ => {}
        }
        if !(576..=65535).contains(&mtu) {
            return Err(TopologyError::BadMtu { end: a, mtu });
        }
        let edge = self.graph.add_edge(
            from,
            to,
            Link {
                a: a.clone(),
                b: b.clone(),
                mtu,
                up: true,
            },
        );
        self.by_end.insert(a, edge);
        self.by_end.insert(b, edge);
        Ok(LinkId(edge.index() as u32))
    }

    pub(crate) fn check_end(&self, end: &End) -> Result<NodeIndex, TopologyError> {
        let name = end.node();
        let index = *self
            .by_name
            .get(name)
            .ok_or(TopologyError::UnknownNode { name: name.into() })?;
        match (end, self.graph.node_weight(index)) {
            (End::Switch { port, .. }, Some(Node::Switch(s))) if !s.ports.contains_key(port) => {
                return Err(TopologyError::NoSuchPort {
                    switch: name.into(),
                    port: *port,
                });
            }
            (End::Switch { .. }, Some(Node::Host(_))) => {
                return Err(TopologyError::PortOfHost { name: name.into() });
            }
            (End::Host(_), Some(Node::Switch(_))) => {
                return Err(TopologyError::PortLacking { name: name.into() });
            }
            _ => {}
        }
        match self.by_end.get(end).and_then(|e| self.graph.edge_weight(*e)) {
            Some(link) => Err(TopologyError::EndTaken {
                end: end.clone(),
                to: link.far(name).clone(),
            }),
            None => Ok(index),
        }
    }

    /// Sets a link up or down; false if there is no such link.
    pub fn set_link_up(&mut self, link: LinkId, up: bool) -> bool {
        self.graph
            .edge_weight_mut(EdgeIndex::new(link.0 as usize))
            .map(|l| l.up = up)
            .is_some()
    }

    /// Sets a switch up or down; false if there is no such switch.
    pub fn set_switch_up(&mut self, name: &str, up: bool) -> bool {
        self.switch_mut(name).map(|s| s.up = up).is_some()
    }

    /// Sets the kind of a switch; false if there is no such switch.
    pub fn set_switch_kind(&mut self, name: &str, kind: SwitchKind) -> bool {
        self.switch_mut(name).map(|s| s.kind = kind).is_some()
    }

    /// Sets the McstIDs that routers route to a Castnet switch.
    ///
    /// # Errors
    /// The prefix is not unicast, or overlaps that of another switch, or the switch runs no groups.
    pub fn set_mcst_prefix(&mut self, name: &str, prefix: Ipv4Net) -> Result<(), TopologyError> {
        let bad = |reason| Err(TopologyError::BadPrefix { prefix, reason });
        let [first, last] = [prefix.network(), prefix.broadcast()].map(|ip| ip.octets()[0]);
        if prefix != prefix.trunc() {
            return bad("it has bits beyond its length");
        }
        if first == 0 || last >= 224 || (first..=last).contains(&127) {
            return bad("it has addresses that are none of a host");
        }
        let all = self.switches().filter(|s| s.name != name);
        let overlap = all
            .filter_map(|s| Some((s.name.clone(), s.mcst_prefix?)))
            .find(|(_, theirs)| overlaps(theirs, &prefix));
        if let Some((other, theirs)) = overlap {
            return Err(TopologyError::PrefixesOverlap {
                prefix,
                switch: name.into(),
                theirs,
                other,
            });
        }
        match self.switch_mut(name) {
            Some(switch) if switch.kind == SwitchKind::Castnet => switch.mcst_prefix = Some(prefix),
            Some(_) => return Err(TopologyError::PrefixOfForwarder { name: name.into() }),
            None => return Err(TopologyError::UnknownNode { name: name.into() }),
        }
        Ok(())
    }

    /// Sets the addresses of a host; false if there is no such host.
    pub fn set_host_addresses(&mut self, name: &str, ip: Option<Ipv4Addr>, mac: Option<[u8; 6]>) -> bool {
        match self
            .by_name
            .get(name)
            .and_then(|i| self.graph.node_weight_mut(*i))
        {
            Some(Node::Host(host)) => {
                (host.ip, host.mac) = (ip, mac);
                true
            }
            _ => false,
        }
    }

    fn switch_mut(&mut self, name: &str) -> Option<&mut Switch> {
        match self
            .by_name
            .get(name)
            .and_then(|i| self.graph.node_weight_mut(*i))
        {
            Some(Node::Switch(switch)) => Some(switch),
            _ => None,
        }
    }
}

/// Whether an address is in both. Of two prefixes that overlap, one contains the other.
pub fn overlaps(a: &Ipv4Net, b: &Ipv4Net) -> bool {
    a.contains(b) || b.contains(a)
}
