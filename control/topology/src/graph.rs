use core::fmt;
use core::net::Ipv4Addr;
use core::str::FromStr;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, OnceLock};

use castnet_wire::ipv4::is_forwarded_multicast;
use ipnet::Ipv4Net;

use crate::build::port_mac;
use crate::chunks::Chunks;
use crate::error::TopologyError;
use crate::index::Index;

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

    /// Whether it only forwards and runs no groups.
    pub const fn is_forwarder(self) -> bool {
        !matches!(self, Self::Castnet)
    }

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
    /// Whether a router has an agent, by which the controller gives it rules for groups (PEEL 3.3).
    pub programmable: bool,
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
pub(crate) struct Node {
    pub(crate) what: What,
    /// Its links by port; that of a host is at port 0.
    pub(crate) links: Vec<(u8, LinkId)>,
}

#[derive(Clone, Debug)]
pub(crate) enum What {
    Switch(Switch),
    Host(Host),
}

/// Where static routes lead what is sent to a multicast address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MulticastRoute {
    /// The Castnet switches that get a copy, two at least.
    pub switches: BTreeSet<String>,
    /// The only switch that may send to it, as in Shufflecast, where each source has relays of its own. A group behind it may have fewer switches
    /// than get a copy.
    pub source: Option<String>,
}

/// What a ToR of a Shufflecast sends to its splitter, and who gets a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Splitter {
    /// The ToR.
    pub from: String,
    /// Its port, and the switch and port that it leads to. An emulated splitter has a port for each copy.
    pub links: Vec<(u8, End)>,
}

/// A fabric: switches, hosts and links, each up or down.
///
/// Queries by name build an integer form of the fabric when they first need it; a change discards it, except one of
/// addresses of hosts. A clone shares with its original all that neither of them changes.
#[derive(Clone, Debug, Default)]
pub struct Topology {
    pub(crate) nodes: Chunks<Node>,
    pub(crate) links: Chunks<Link>,
    /// Places of the nodes of each link, first those of `a`.
    pub(crate) joined: Arc<Vec<[u32; 2]>>,
    pub(crate) by_name: Arc<HashMap<String, u32>>,
    /// Address of each node's host, in bits; 0: none.
    pub(crate) ips: Chunks<u32>,
    /// Number of switches of all kinds.
    switches: usize,
    /// Number of plain switches and routers.
    forwarders: usize,
    /// By address.
    multicast_routes: Arc<BTreeMap<Ipv4Addr, MulticastRoute>>,
    splitters: Arc<Vec<Splitter>>,
    group_addresses: Option<Ipv4Net>,
    /// Shared by clones until one of them changes something other than addresses.
    index: Arc<OnceLock<Index>>,
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

    pub(crate) fn port_number(&self) -> u8 {
        match self {
            Self::Switch { port, .. } => *port,
            Self::Host(_) => 0,
        }
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
            What::Switch(Switch {
                name: name.into(),
                kind: SwitchKind::Castnet,
                ports,
                mcst_prefix: None,
                programmable: false,
                up: true,
            }),
        )
    }

    /// Adds a plain switch, up, with the ports `0..ports`.
    pub fn add_plain(&mut self, name: &str, ports: u8) -> Result<(), TopologyError> {
        let number = self.switch_count();
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
            What::Host(Host {
                name: name.into(),
                ip,
                mac,
            }),
        )
    }

    fn add(&mut self, name: &str, what: What) -> Result<(), TopologyError> {
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
        Arc::make_mut(&mut self.by_name).insert(name.into(), self.nodes.len() as u32);
        self.ips.push(what.ip_bits());
        self.switches += usize::from(matches!(what, What::Switch(_)));
        let links = Vec::new();
        self.nodes.push(Node { what, links });
        self.discard_index();
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
        let id = LinkId(self.links.len() as u32);
        for (node, end) in [(from, &a), (to, &b)] {
            let Some(Node { links, .. }) = self.nodes.get_mut(node) else {
                continue;
            };
            let at = links.partition_point(|(port, _)| *port < end.port_number());
            links.insert(at, (end.port_number(), id));
        }
        let up = true;
        self.links.push(Link { a, b, mtu, up });
        Arc::make_mut(&mut self.joined).push([from as u32, to as u32]);
        self.discard_index();
        Ok(id)
    }

    /// The integer form, built if a change discarded it.
    pub(crate) fn index(&self) -> &Index {
        self.index.get_or_init(|| Index::new(self))
    }

    fn discard_index(&mut self) {
        match Arc::get_mut(&mut self.index) {
            Some(index) => drop(index.take()),
            None => self.index = Arc::default(),
        }
    }

    /// Whether the integer form is there, so that queries need not build it.
    pub fn is_indexed(&self) -> bool {
        self.index.get().is_some()
    }

    pub(crate) fn switch_count(&self) -> usize {
        self.switches
    }

    /// Number of the node of an end that may be linked.
    pub(crate) fn check_end(&self, end: &End) -> Result<usize, TopologyError> {
        let name = end.node();
        let number = *self
            .by_name
            .get(name)
            .ok_or(TopologyError::UnknownNode { name: name.into() })? as usize;
        match (end, &self.nodes[number].what) {
            (End::Switch { port, .. }, What::Switch(s)) if !s.ports.contains_key(port) => {
                return Err(TopologyError::NoSuchPort {
                    switch: name.into(),
                    port: *port,
                });
            }
            (End::Switch { .. }, What::Host(_)) => {
                return Err(TopologyError::PortOfHost { name: name.into() });
            }
            (End::Host(_), What::Switch(_)) => {
                return Err(TopologyError::PortLacking { name: name.into() });
            }
            _ => {}
        }
        match self.link_at(end).and_then(|link| self.link(link)) {
            Some(link) => Err(TopologyError::EndTaken {
                end: end.clone(),
                to: link.far(name).clone(),
            }),
            None => Ok(number),
        }
    }

    /// Sets a link up or down; false if there is no such link.
    pub fn set_link_up(&mut self, link: LinkId, up: bool) -> bool {
        self.link_mut(link).map(|l| l.up = up).is_some()
    }

    /// Sets the MTU of a link in bytes; false if there is no such link.
    pub fn set_link_mtu(&mut self, link: LinkId, mtu: u32) -> bool {
        self.link_mut(link).map(|l| l.mtu = mtu).is_some()
    }

    fn link_mut(&mut self, link: LinkId) -> Option<&mut Link> {
        self.discard_index();
        self.links.get_mut(link.0 as usize)
    }

    /// Sets a switch up or down; false if there is no such switch.
    pub fn set_switch_up(&mut self, name: &str, up: bool) -> bool {
        self.switch_mut(name).map(|s| s.up = up).is_some()
    }

    /// Sets the ports of a switch; false if there is no such switch, or if a port with a link is not among them.
    pub fn set_switch_ports(&mut self, name: &str, ports: BTreeMap<u8, [u8; 6]>) -> bool {
        let number = self.by_name.get(name).map(|n| *n as usize);
        let Some(Node { what, links }) = number.and_then(|number| self.nodes.get_mut(number)) else {
            return false;
        };
        let beyond = ports
            .last_key_value()
            .is_some_and(|(p, _)| *p as usize >= PORTS_MAX);
        match what {
            What::Switch(s) if !beyond && links.iter().all(|(port, _)| ports.contains_key(port)) => {
                s.ports = ports;
                true
            }
            What::Switch(_) | What::Host(_) => false,
        }
    }

    /// Sets the kind of a switch; false if there is no such switch.
    pub fn set_switch_kind(&mut self, name: &str, kind: SwitchKind) -> bool {
        let Some(switch) = self.switch_mut(name) else {
            return false;
        };
        let before = core::mem::replace(&mut switch.kind, kind);
        self.forwarders += usize::from(kind.is_forwarder());
        self.forwarders -= usize::from(before.is_forwarder());
        true
    }

    /// Sets the McstIDs that routers route to a Castnet switch.
    ///
    /// # Errors
    /// The prefix is not unicast, or overlaps that of another switch, or the switch runs no groups.
    pub fn set_mcst_prefix(&mut self, name: &str, prefix: Ipv4Net) -> Result<(), TopologyError> {
        let bad = |reason| Err(TopologyError::BadPrefix { prefix, reason });
        if prefix != prefix.trunc() {
            return bad("it has bits beyond its length".into());
        }
        if let Some(reason) = pool_fault(&prefix) {
            return bad(reason);
        }
        let others = self.nodes.iter().filter_map(|node| match &node.what {
            What::Switch(s) if s.name != name => Some((s.name.clone(), s.mcst_prefix?)),
            _ => None,
        });
        let overlap = others.filter(|(_, theirs)| overlaps(theirs, &prefix)).min();
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

    /// Adds a multicast address.
    ///
    /// # Errors
    /// The address is no multicast address that routers forward, or has a route; there are fewer than two switches, or one of them is no
    /// Castnet switch with a prefix of McstIDs.
    pub fn add_multicast_route(
        &mut self,
        address: Ipv4Addr,
        route: MulticastRoute,
    ) -> Result<(), TopologyError> {
        let bad = |reason| TopologyError::BadMulticastRoute { address, reason };
        if !is_forwarded_multicast(address, 32) {
            return Err(bad("give an address of 224.0.1.0 to 239.255.255.255".into()));
        }
        if self.multicast_routes.contains_key(&address) {
            return Err(bad("it has a route already".into()));
        }
        if let Some(block) = self.group_addresses.filter(|block| block.contains(&address)) {
            return Err(bad(format!("it is one of the group_addresses {block}")));
        }
        if route.switches.len() < 2 {
            return Err(bad("it leads to two switches or more".into()));
        }
        for name in route.switches.iter().chain(&route.source) {
            match self.switch(name) {
                None => return Err(bad(format!("there is no switch {name:?}"))),
                Some(switch) if switch.mcst_prefix.is_none() => {
                    return Err(bad(format!(
                        "switch {name:?} has no mcst_prefix, by which it is reached over routers"
                    )));
                }
                Some(_) => {}
            }
        }
        Arc::make_mut(&mut self.multicast_routes).insert(address, route);
        Ok(())
    }

    /// The multicast addresses of the fabric.
    pub fn multicast_routes(&self) -> impl Iterator<Item = (Ipv4Addr, &MulticastRoute)> {
        self.multicast_routes
            .iter()
            .map(|(address, switches)| (*address, switches))
    }

    /// Sets whether the controller gives a router rules for groups.
    ///
    /// # Errors
    /// It is no router.
    pub fn set_programmable(&mut self, name: &str, programmable: bool) -> Result<(), TopologyError> {
        match self.switch_mut(name) {
            Some(switch) if switch.kind == SwitchKind::Router || !programmable => {
                switch.programmable = programmable;
                Ok(())
            }
            Some(_) => Err(TopologyError::NotARouter { name: name.into() }),
            None => Err(TopologyError::UnknownNode { name: name.into() }),
        }
    }

    /// The routers that the controller gives rules for groups.
    pub fn programmable(&self) -> impl Iterator<Item = &Switch> {
        self.switches().filter(|switch| switch.programmable)
    }

    /// Sets the multicast addresses of single groups, for which programmable routers have rules.
    ///
    /// # Errors
    /// They are not all multicast addresses that routers forward, or one of them has a route already.
    pub fn set_group_addresses(&mut self, block: Ipv4Net) -> Result<(), TopologyError> {
        let bad = |reason| Err(TopologyError::BadGroupAddresses { block, reason });
        if block != block.trunc() || !is_forwarded_multicast(block.addr(), block.prefix_len()) {
            return bad(
                "give a block of the addresses 224.0.1.0 to 239.255.255.255, such as 239.200.0.0/16".into(),
            );
        }
        if let Some((address, _)) = self
            .multicast_routes()
            .find(|(address, _)| block.contains(address))
        {
            return bad(format!("{address} of it is in [[multicast_routes]]"));
        }
        self.group_addresses = Some(block);
        Ok(())
    }

    /// The multicast addresses of single groups, for which programmable routers have rules.
    pub fn group_addresses(&self) -> Option<Ipv4Net> {
        self.group_addresses
    }

    /// Takes over what another description of the same fabric says of its static core.
    pub fn set_core_of(&mut self, other: &Self) {
        self.multicast_routes = other.multicast_routes.clone();
        self.splitters = other.splitters.clone();
        self.group_addresses = other.group_addresses;
    }

    /// Adds the splitter of the next ToR: their order numbers the ToRs. Groups do not use its links but by multicast addresses.
    ///
    /// # Errors
    /// A switch has no such port or is no Castnet switch with a prefix of McstIDs, the ToR has a splitter, or a port is twice in it.
    pub fn add_splitter(&mut self, splitter: Splitter) -> Result<(), TopologyError> {
        let Splitter { from, links } = &splitter;
        let bad = |reason| TopologyError::BadSplitter {
            from: from.clone(),
            reason,
        };
        if self.splitters.iter().any(|other| other.from == *from) {
            return Err(bad("it has a splitter already".into()));
        }
        let near = links.iter().map(|(port, _)| End::port(from.as_str(), *port));
        let far = links.iter().map(|(_, end)| end.clone());
        for end in near.chain(far) {
            self.check_end(&end)?;
            let switch = self.switch(end.node());
            if switch.is_none_or(|switch| switch.mcst_prefix.is_none()) {
                return Err(bad(format!(
                    "{end} is no port of a Castnet switch with an mcst_prefix"
                )));
            }
        }
        let mut ports = BTreeSet::new();
        if let Some((port, _)) = links.iter().find(|(port, _)| !ports.insert(*port)) {
            return Err(bad(format!(
                "port {port} is there twice: copies of one port would need one Ethernet address for all; give a port for each"
            )));
        }
        Arc::make_mut(&mut self.splitters).push(splitter);
        Ok(())
    }

    /// The splitters, in the order of the numbers of their ToRs.
    pub fn splitters(&self) -> &[Splitter] {
        &self.splitters
    }

    /// Sets the addresses of a host; false if there is no such host.
    pub fn set_host_addresses(&mut self, name: &str, ip: Option<Ipv4Addr>, mac: Option<[u8; 6]>) -> bool {
        let Some(number) = self.by_name.get(name).map(|n| *n as usize) else {
            return false;
        };
        let Some(Node { what, .. }) = self.nodes.get_mut(number) else {
            return false;
        };
        let What::Host(host) = what else { return false };
        (host.ip, host.mac) = (ip, mac);
        let bits = what.ip_bits();
        self.ips.get_mut(number).map(|ip| *ip = bits).is_some()
    }

    /// Whether both have the same nodes and links: one is a clone of the other, perhaps with changes of other things.
    /// Numbers of nodes and links mean the same in both.
    pub fn same_links(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.by_name, &other.by_name) && Arc::ptr_eq(&self.joined, &other.joined)
    }

    /// Whether both give the same paths: one is a clone of the other, perhaps with other addresses.
    pub fn same_paths(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.index, &other.index)
    }

    /// Whether there are plain switches or routers.
    pub fn has_forwarders(&self) -> bool {
        self.forwarders > 0
    }

    fn switch_mut(&mut self, name: &str) -> Option<&mut Switch> {
        match self.what_mut(name)? {
            What::Switch(switch) => Some(switch),
            What::Host(_) => None,
        }
    }

    fn what_mut(&mut self, name: &str) -> Option<&mut What> {
        self.discard_index();
        let number = *self.by_name.get(name)?;
        self.nodes.get_mut(number as usize).map(|node| &mut node.what)
    }
}

impl What {
    fn ip_bits(&self) -> u32 {
        match self {
            Self::Host(Host { ip: Some(ip), .. }) => ip.to_bits(),
            Self::Host(_) | Self::Switch(_) => 0,
        }
    }
}

/// Whether an address is in both. Of two prefixes that overlap, one contains the other.
pub fn overlaps(a: &Ipv4Net, b: &Ipv4Net) -> bool {
    a.contains(b) || b.contains(a)
}

/// Why no host can have some addresses of a prefix, so that it cannot be a pool of McstIDs; `None`: it can.
pub fn pool_fault(prefix: &Ipv4Net) -> Option<String> {
    // RFC 6890. The controller plans with 198.18.0.0/15 for members that have not joined.
    const SPECIAL: [([u8; 4], u8, &str); 6] = [
        ([0, 0, 0, 0], 8, "this network"),
        ([127, 0, 0, 0], 8, "loopback"),
        ([169, 254, 0, 0], 16, "link-local"),
        ([198, 18, 0, 0], 15, "benchmarks"),
        ([224, 0, 0, 0], 4, "multicast"),
        ([240, 0, 0, 0], 4, "reserved"),
    ];
    let special = SPECIAL
        .iter()
        .map(|(ip, bits, what)| (Ipv4Net::new_assert((*ip).into(), *bits), what));
    let hit = special.filter(|(special, _)| overlaps(special, prefix));
    let hit: Vec<String> = hit.map(|(special, what)| format!("{special} ({what})")).collect();
    (!hit.is_empty()).then(|| {
        format!(
            "it contains addresses that no host can have: of {}",
            hit.join(", ")
        )
    })
}
