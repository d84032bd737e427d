//! The fabric as the controller knows it: the topology file, if any, and the reports of switches and hosts. Pure: facts
//! in, a [`Topology`] out.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};

use castnet_topology::{DEFAULT_MTU, End, Link, PORTS_MAX, Topology};
use serde::{Deserialize, Serialize};

mod cables;
mod cached;

pub(crate) use cached::Fabric;

/// MTU of a link whose ends report their own.
const MTU_MAX: u32 = 65_535;
/// Two sightings of a host this close together are one flooded frame, not a host that moved.
const SAME_FRAME_NS: u64 = 1_000_000_000;

/// A host that has registered or joined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostRecord {
    pub(crate) name: String,
    pub(crate) ip: Ipv4Addr,
    pub(crate) mac: [u8; 6],
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The first attempt to connect has not ended.
    #[default]
    Unknown,
    Up,
    /// With the reason.
    Down(String),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SwitchReport {
    pub(crate) ports: BTreeMap<u8, PortReport>,
    pub(crate) neighbours: Vec<NeighbourReport>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortReport {
    pub(crate) name: String,
    pub(crate) mac: [u8; 6],
    /// Bytes of an IP packet.
    pub(crate) mtu: u32,
    pub(crate) up: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NeighbourReport {
    pub(crate) port: u8,
    /// Nanoseconds since it was last seen.
    pub(crate) age_ns: u64,
    pub(crate) who: Who,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// By LLDP, with the name of its port.
    Switch { name: String, port: String },
    /// By ARP.
    Host { ip: Ipv4Addr, mac: [u8; 6] },
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    pub(crate) file: Option<Topology>,
    pub(crate) switches: BTreeMap<String, (Reach, SwitchReport)>,
    pub(crate) hosts: BTreeMap<String, HostRecord>,
    /// Names of all hosts, those of the file included, by address.
    pub(crate) names: BTreeSet<(Ipv4Addr, String)>,
    /// The same, by Ethernet address.
    pub(crate) macs: BTreeSet<([u8; 6], String)>,
    /// Hosts that have reported and are not in the file.
    pub(crate) unfiled: BTreeSet<String>,
}

/// Whether another port claims by LLDP to be at the other end of a cable there, the age in nanoseconds, switch and port.
type Sighting = (bool, u64, String, u8);

/// Where the addresses of hosts were seen.
#[derive(Default)]
pub(crate) struct Sightings {
    /// With the Ethernet address.
    by_ip: HashMap<Ipv4Addr, Vec<([u8; 6], Sighting)>>,
    /// The IP addresses that were seen with an Ethernet address, and where. Only with a file.
    by_mac: HashMap<[u8; 6], Vec<(Ipv4Addr, Place)>>,
    /// Whether a host was seen at several ports, so that the ages decide where it is.
    are_decided_by_age: AtomicBool,
}

impl Sightings {
    fn are_decided_by_age(&self) -> bool {
        self.are_decided_by_age.load(Ordering::Relaxed)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    At {
        switch: String,
        port: u8,
    },
    /// At several ports: at least one of them must be a link between switches that LLDP has not shown yet.
    Ambiguous(Vec<(String, u8)>),
    /// Only another Ethernet address was seen with its IP address, here.
    Claimed {
        mac: [u8; 6],
        switch: String,
        port: u8,
    },
    Unseen,
}

struct Seen {
    name: String,
    mtu: u32,
    up: bool,
}

impl Facts {
    pub(crate) fn new(
        file: Option<Topology>,
        switches: impl IntoIterator<Item = String>,
        hosts: impl IntoIterator<Item = HostRecord>,
    ) -> Self {
        let mut facts = Self {
            file,
            switches: switches
                .into_iter()
                .map(|name| (name, Default::default()))
                .collect(),
            ..Self::default()
        };
        let filed = facts.file.iter().flat_map(Topology::hosts);
        facts.names = filed.filter_map(|h| Some((h.ip?, h.name.clone()))).collect();
        let filed = facts.file.iter().flat_map(Topology::hosts);
        facts.macs = filed.filter_map(|h| Some((h.mac?, h.name.clone()))).collect();
        for host in hosts {
            facts.set(&host.name.clone(), Some(host));
        }
        facts
    }

    /// The file, corrected by reports of ports and links; switches that cannot be reached are down. Without a file: switches as reported, links
    /// that both ends hear by LLDP, hosts where they were seen; if several were seen at a port, an ordinary switch is assumed there.
    pub(crate) fn topology<'s>(&self, sightings: impl Fn() -> &'s Sightings) -> Topology {
        let mut topology = Topology::new();
        for (name, ports) in self.switch_ports() {
            let up = !matches!(self.switches.get(&name), Some((Reach::Down(_), _)));
            if topology.add_switch(&name, ports).is_ok() {
                topology.set_switch_up(&name, up);
            }
            if let Some(filed) = self.file.as_ref().and_then(|file| file.switch(&name)) {
                topology.set_switch_kind(&name, filed.kind);
            }
        }
        if let Some(file) = &self.file {
            topology.set_core_of(file);
        }
        for (a, b, mtu, up) in self.switch_links() {
            self.link(&mut topology, a, b, mtu, up);
        }
        let mut at_port: BTreeMap<(String, u8), Vec<Seen>> = BTreeMap::new();
        let filed = self.file.iter().flat_map(Topology::hosts).map(|host| &host.name);
        for name in filed.chain(self.hosts.keys()).collect::<BTreeSet<_>>() {
            let (ip, mac) = self.addresses(name);
            // Registration refuses hosts with the name of a switch.
            if topology.add_host(name, ip, mac).is_err() {
                continue;
            }
            let (mtu, up) = self
                .file_link(name)
                .map_or((DEFAULT_MTU, true), |l| (l.mtu, l.up));
            if let Place::At { switch, port } = self.place(name, &sightings) {
                let (name, seen) = (name.clone(), at_port.entry((switch, port)).or_default());
                seen.push(Seen { name, mtu, up });
            }
        }
        for ((switch, port), hosts) in at_port {
            self.attach(&mut topology, (&switch, port), hosts);
        }
        topology
    }

    /// Links the hosts behind a port: one to the port itself, several to an ordinary switch there, or to a row of them.
    fn attach(&self, topology: &mut Topology, (switch, port): (&str, u8), hosts: Vec<Seen>) {
        let mut up = End::port(switch, port);
        let link = |topology: &mut Topology, to: End, Seen { name, mtu, up }: Seen| {
            self.link(topology, to, End::host(name), mtu, up);
        };
        if hosts.len() == 1 {
            let hosts = hosts.into_iter();
            return hosts.for_each(|host| link(topology, up.clone(), host));
        }
        // One port leads up, one to the next switch of the row.
        const HOSTS: usize = PORTS_MAX - 2;
        let mut left = hosts.into_iter().peekable();
        for number in 0.. {
            let name = match number {
                0 => format!("{switch}.{port}"),
                more => format!("{switch}.{port}.{more}"),
            };
            // A host or a switch may have this name.
            if topology.host(&name).is_some() || topology.switch(&name).is_some() {
                continue;
            }
            if left.peek().is_none() || topology.add_plain(&name, PORTS_MAX as u8).is_err() {
                return;
            }
            self.link(topology, up, End::port(&name, 0), MTU_MAX, true);
            for (port, host) in (1..).zip(left.by_ref().take(HOSTS)) {
                link(topology, End::port(&name, port), host);
            }
            up = End::port(&name, PORTS_MAX as u8 - 1);
        }
    }

    /// By the file, else where its addresses were seen last at a port that leads to no switch.
    pub(crate) fn place<'s>(&self, host: &str, sightings: impl FnOnce() -> &'s Sightings) -> Place {
        self.place_in_file(host)
            .unwrap_or_else(|| self.place_seen(host, sightings()))
    }

    /// All sightings of hosts at ports that lead to no switch.
    pub(crate) fn sightings(&self) -> Sightings {
        let [inner, claimed] = self.inner_ports();
        let mut all = Sightings::default();
        for (switch, (_, report)) in &self.switches {
            for neighbour in &report.neighbours {
                if let Who::Host { ip, mac } = neighbour.who
                    && !inner.contains(&(switch.as_str(), neighbour.port))
                {
                    let (switch, port) = (switch.clone(), neighbour.port);
                    if self.file.is_some() {
                        let switch = switch.clone();
                        let seen = (ip, Place::At { switch, port });
                        all.by_mac.entry(mac).or_default().push(seen);
                    }
                    let is_claimed = claimed.contains(&(switch.as_str(), port));
                    let sighting = (is_claimed, neighbour.age_ns, switch, port);
                    all.by_ip.entry(ip).or_default().push((mac, sighting));
                }
            }
        }
        all
    }

    fn place_in_file(&self, host: &str) -> Option<Place> {
        let (_, switch, port) = self.file.as_ref()?.attachment(host)?;
        Some(Place::At {
            switch: switch.into(),
            port,
        })
    }

    fn place_seen(&self, host: &str, all: &Sightings) -> Place {
        let Some(record) = self.hosts.get(host) else {
            return Place::Unseen;
        };
        // Who claims its IP address has another Ethernet address. Its Ethernet address alone places nobody: with an IP address that nobody
        // has, one ARP packet of another host has it, too.
        let by_ip = all.by_ip.get(&record.ip).map_or(&[][..], Vec::as_slice);
        let own = by_ip.iter().filter(|(mac, _)| *mac == record.mac);
        let mut sightings: Vec<Sighting> = own.map(|(_, sighting)| sighting.clone()).collect();
        sightings.sort();
        let Some((is_claimed, newest, switch, port)) = sightings.first().cloned() else {
            let others = by_ip.iter().map(|(mac, at)| (&at.2, at.3, *mac));
            return match others.min() {
                Some((switch, port, mac)) => Place::Claimed {
                    mac,
                    switch: switch.clone(),
                    port,
                },
                None => Place::Unseen,
            };
        };
        // The other end may be a switch that this one, restarted a moment ago, does not hear yet: then the host was seen elsewhere, too.
        sightings.retain(|sighting| sighting.0 == is_claimed);
        if sightings.iter().any(|s| (&s.2, s.3) != (&switch, port)) {
            all.are_decided_by_age.store(true, Ordering::Relaxed);
        }
        let at: BTreeSet<(String, u8)> = sightings
            .into_iter()
            .take_while(|(_, age, ..)| *age < newest.saturating_add(SAME_FRAME_NS))
            .map(|(.., switch, port)| (switch, port))
            .collect();
        match at.first() {
            Some((switch, port)) if at.len() == 1 => Place::At {
                switch: switch.clone(),
                port: *port,
            },
            _ => Place::Ambiguous(at.into_iter().collect()),
        }
    }

    pub(crate) fn knows_host(&self, name: &str) -> bool {
        self.hosts.contains_key(name) || self.file.as_ref().is_some_and(|f| f.host(name).is_some())
    }

    pub(crate) fn knows_switch(&self, name: &str) -> bool {
        self.switches.contains_key(name) || self.file.as_ref().is_some_and(|f| f.switch(name).is_some())
    }

    /// Sets the report of a host; `None`: only the file counts.
    pub(crate) fn set(&mut self, name: &str, host: Option<HostRecord>) {
        let (ip, mac) = self.addresses(name);
        ip.map(|ip| self.names.remove(&(ip, name.to_owned())));
        mac.map(|mac| self.macs.remove(&(mac, name.to_owned())));
        if self.file.as_ref().is_none_or(|file| file.host(name).is_none()) {
            match host {
                Some(_) => self.unfiled.insert(name.into()),
                None => self.unfiled.remove(name),
            };
        }
        match host {
            Some(host) => self.hosts.insert(name.into(), host),
            None => self.hosts.remove(name),
        };
        let (ip, mac) = self.addresses(name);
        self.names.extend(ip.map(|ip| (ip, name.to_owned())));
        self.macs.extend(mac.map(|mac| (mac, name.to_owned())));
    }

    /// The hosts with an address.
    fn named(&self, ip: Ipv4Addr) -> impl Iterator<Item = &str> {
        let named = self.names.range((ip, String::new())..);
        let named = named.take_while(move |(theirs, _)| *theirs == ip);
        named.map(|(_, name)| name.as_str())
    }

    /// A host with this address, other than `but`.
    pub(crate) fn host_of(&self, ip: Ipv4Addr, but: Option<&str>) -> Option<&str> {
        self.named(ip).find(|name| Some(*name) != but)
    }

    /// The hosts with an Ethernet address, as they have reported or else as the file has it.
    pub(crate) fn hosts_with(&self, mac: [u8; 6]) -> BTreeSet<&str> {
        let named = self.macs.range((mac, String::new())..);
        let named = named.take_while(|(theirs, _)| *theirs == mac);
        named.map(|(_, name)| name.as_str()).collect()
    }

    /// The hosts that were seen with an Ethernet address where the file has them.
    fn hosts_seen_with(&self, mac: [u8; 6], all: &Sightings) -> BTreeSet<&str> {
        let mut hosts = BTreeSet::new();
        for (ip, at) in all.by_mac.get(&mac).into_iter().flatten() {
            let is_there = |name: &&str| self.place_in_file(name).as_ref() == Some(at);
            hosts.extend(self.named(*ip).filter(is_there));
        }
        hosts
    }

    /// Whether a host has reported this address.
    fn has_reported(&self, ip: Ipv4Addr) -> bool {
        self.named(ip).any(|name| self.hosts.contains_key(name))
    }

    /// The addresses of a host, if they are known. Its own report counts more than the file.
    pub(crate) fn addresses(&self, host: &str) -> (Option<Ipv4Addr>, Option<[u8; 6]>) {
        match (
            self.hosts.get(host),
            self.file.as_ref().and_then(|f| f.host(host)),
        ) {
            (Some(said), _) => (Some(said.ip), Some(said.mac)),
            (None, Some(filed)) => (filed.ip, filed.mac),
            (None, None) => (None, None),
        }
    }

    fn file_link(&self, host: &str) -> Option<&castnet_topology::Link> {
        let file = self.file.as_ref()?;
        file.link(file.attachment(host)?.0)
    }

    fn switch_ports(&self) -> BTreeMap<String, BTreeMap<u8, [u8; 6]>> {
        let filed = self.file.iter().flat_map(Topology::switches).map(|s| &s.name);
        let names = filed.chain(self.switches.keys());
        names.map(|name| (name.clone(), self.ports_of(name))).collect()
    }

    /// Those of the file and those that the switch reports. For the addresses, the report counts.
    fn ports_of(&self, switch: &str) -> BTreeMap<u8, [u8; 6]> {
        let filed = self.file.as_ref().and_then(|file| file.switch(switch));
        let mut ports = filed.map(|s| s.ports.clone()).unwrap_or_default();
        if let Some((_, report)) = self.switches.get(switch) {
            ports.extend(report.ports.iter().map(|(number, port)| (*number, port.mac)));
        }
        ports
    }

    fn switch_links(&self) -> Vec<(End, End, u32, bool)> {
        if let Some(file) = &self.file {
            let links = file.links().map(|(_, link)| link);
            let links = links.filter(|l| !matches!((&l.a, &l.b), (End::Host(_), _) | (_, End::Host(_))));
            return links.map(|l| (l.a.clone(), l.b.clone(), l.mtu, l.up)).collect();
        }
        let mut links = Vec::new();
        let mut seen = BTreeSet::new();
        for (switch, (_, report)) in &self.switches {
            for neighbour in &report.neighbours {
                let near = End::port(switch.clone(), neighbour.port);
                if let Some(far) = self.far_end(neighbour)
                    && self.believes_lldp(switch, neighbour)
                    // Else the neighbour may be a host, which would get what goes over the link.
                    && self.hears(&far, &near)
                {
                    let pair = if near < far { (near, far) } else { (far, near) };
                    if seen.insert(pair.clone()) {
                        links.push((pair.0, pair.1, DEFAULT_MTU, true));
                    }
                }
            }
        }
        links
    }

    /// The port that an LLDP neighbour is.
    fn far_end(&self, neighbour: &NeighbourReport) -> Option<End> {
        let Who::Switch { name, port } = &neighbour.who else {
            return None;
        };
        let (_, report) = self.switches.get(name)?;
        let number = report
            .ports
            .iter()
            .find(|(_, p)| p.name == *port)
            .map(|(number, _)| *number)?;
        Some(End::port(name.clone(), number))
    }

    /// Adds a link with the least MTU of its ends, up if both are. One that contradicts a known link is ignored: the
    /// first report stands until the other one ages.
    fn link(&self, topology: &mut Topology, a: End, b: End, mtu: u32, up: bool) {
        let (mtu, up) = self.as_reported(&a, &b, mtu, up);
        if let Ok(link) = topology.connect(a, b, mtu) {
            topology.set_link_up(link, up);
        }
    }

    /// MTU and state of a link, as its ends report.
    fn as_reported(&self, a: &End, b: &End, mtu: u32, up: bool) -> (u32, bool) {
        let reports = [self.port(a), self.port(b)];
        let reports = reports.iter().flatten();
        let mtu = reports.clone().map(|port| port.mtu).fold(mtu, u32::min);
        (mtu, up && reports.into_iter().all(|port| port.up))
    }

    /// A remark about ports that are down: a host that is not seen may be at one of them.
    pub(crate) fn ports_down(&self) -> String {
        let ports = self.switches.iter().flat_map(|(switch, (_, report))| {
            let down = report.ports.values().filter(|port| !port.up);
            down.map(move |port| format!("{switch}:{}", port.name))
        });
        let ports: Vec<String> = ports.collect();
        match ports.is_empty() {
            true => String::new(),
            false => format!("; ports that are down: {}", ports.join(", ")),
        }
    }

    fn port(&self, end: &End) -> Option<&PortReport> {
        match end {
            End::Switch { switch, port } => self.switches.get(switch)?.1.ports.get(port),
            End::Host(_) => None,
        }
    }
}

/// MTU of a link that the file does not have, before the reports of its ends.
fn unfiled_mtu(topology: &Topology, link: &Link) -> u32 {
    match [&link.a, &link.b].map(|end| topology.is_forwarder(end.node())) {
        // An assumed switch.
        [false, false] => DEFAULT_MTU,
        _ => MTU_MAX,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn port(name: &str, n: u8) -> (u8, PortReport) {
        (
            n,
            PortReport {
                name: name.into(),
                mac: [6, 0, 0, 0, name.len() as u8, n],
                mtu: 1500,
                up: true,
            },
        )
    }

    pub(crate) fn switch_seen(port: u8, name: &str, far: &str) -> NeighbourReport {
        let who = Who::Switch {
            name: name.into(),
            port: far.into(),
        };
        NeighbourReport { port, age_ns: 0, who }
    }

    pub(crate) fn host_seen(port: u8, last: u8, age_ns: u64) -> NeighbourReport {
        let who = Who::Host {
            ip: [10, 0, 0, last].into(),
            mac: [2, 0, 0, 0, 0, last],
        };
        NeighbourReport { port, age_ns, who }
    }

    pub(crate) fn host(name: &str, last: u8) -> HostRecord {
        HostRecord {
            name: name.into(),
            ip: [10, 0, 0, last].into(),
            mac: [2, 0, 0, 0, 0, last],
        }
    }

    /// Two switches a:1 - b:1, host h1 at a:0, h2 at b:0; every ARP is flooded over the link.
    pub(super) fn facts() -> Facts {
        let a = SwitchReport {
            ports: [port("a0", 0), port("a1", 1)].into(),
            neighbours: vec![switch_seen(1, "b", "b1"), host_seen(0, 1, 5), host_seen(1, 2, 4)],
        };
        let b = SwitchReport {
            ports: [port("b0", 0), port("b1", 1)].into(),
            neighbours: vec![switch_seen(1, "a", "a1"), host_seen(1, 1, 4), host_seen(0, 2, 5)],
        };
        let switches = [
            ("a".to_string(), (Reach::Up, a)),
            ("b".to_string(), (Reach::Up, b)),
        ];
        Facts {
            switches: switches.into(),
            ..Facts::new(None, [], [host("h1", 1), host("h2", 2)])
        }
    }

    fn topology(facts: &Facts) -> Topology {
        let sightings = facts.sightings();
        facts.topology(|| &sightings)
    }

    fn place(facts: &Facts, host: &str) -> Place {
        let sightings = facts.sightings();
        facts.place(host, || &sightings)
    }

    fn at(switch: &str, port: u8) -> Place {
        Place::At {
            switch: switch.into(),
            port,
        }
    }

    #[test]
    fn reports_alone_make_a_fabric() {
        let facts = facts();
        let topology = topology(&facts);
        assert_eq!(
            (place(&facts, "h1"), place(&facts, "h2"), place(&facts, "h3")),
            (at("a", 0), at("b", 0), Place::Unseen)
        );
        assert!(topology.connected("h1", "h2"));
        assert_eq!(topology.links().count(), 3);
        assert!(topology.links().all(|(_, l)| l.mtu == 1500 && l.up));
    }

    /// As behind the one port of a switch beside an ordinary one; more than one ordinary switch has ports for.
    #[test]
    fn where_several_hosts_are_at_a_port_an_ordinary_switch_is_behind_it() {
        let a = SwitchReport {
            ports: [port("a0", 0), port("a1", 1)].into(),
            neighbours: (1..=100).map(|n| host_seen(u8::from(n == 100), n, 5)).collect(),
        };
        let hosts = (1..=100).map(|n| host(&format!("h{n}"), n));
        let facts = Facts {
            switches: [("a".to_string(), (Reach::Up, a))].into(),
            ..Facts::new(None, [], hosts)
        };
        let topology = topology(&facts);
        assert_eq!(
            (place(&facts, "h1"), place(&facts, "h100")),
            (at("a", 0), at("a", 1))
        );
        let plain: Vec<&str> = topology
            .switches()
            .filter(|s| topology.is_plain(&s.name))
            .map(|s| &*s.name)
            .collect();
        assert_eq!(plain, ["a.0", "a.0.1"]);
        assert!((2..=100).all(|n| topology.connected("h1", &format!("h{n}"))));
        let attached = |host| topology.attachment(host).map(|(_, switch, _)| switch);
        assert_eq!([attached("h1"), attached("h100")], [Some("a.0"), Some("a")]);
        // The port of the switch is as narrow as it says, whatever is behind it.
        let up = topology
            .link_at(&End::port("a", 0))
            .and_then(|id| topology.link(id));
        assert_eq!(up.map(|link| link.mtu), Some(1500));
    }

    #[test]
    fn before_lldp_has_spoken_a_flooded_host_is_nowhere() {
        let mut facts = facts();
        let hear = |facts: &mut Facts, switch: &str, far: Option<(&str, &str)>| {
            let (_, report) = facts.switches.get_mut(switch).unwrap();
            report.neighbours.retain(|n| matches!(n.who, Who::Host { .. }));
            report
                .neighbours
                .extend(far.map(|(far, port)| switch_seen(1, far, port)));
        };
        let both = |a, b| Place::Ambiguous(vec![("a".into(), a), ("b".into(), b)]);
        let places = |facts: &Facts| (place(facts, "h1"), place(facts, "h2"));
        hear(&mut facts, "a", None);
        hear(&mut facts, "b", None);
        assert_eq!(places(&facts), (both(0, 1), both(1, 0)));
        // One side's LLDP is enough to place hosts: the other side may have been restarted a moment ago. The link takes both.
        for (far, links) in [(None, 2), (Some(("b", "b1")), 3), (None, 2)] {
            hear(&mut facts, "b", Some(("a", "a1")));
            hear(&mut facts, "a", far);
            assert_eq!(places(&facts), (at("a", 0), at("b", 0)));
            assert_eq!(topology(&facts).links().count(), links);
        }
        hear(&mut facts, "b", None);
        assert_eq!(places(&facts), (both(0, 1), both(1, 0)));
    }

    /// One frame made the port of another host one to a switch: the host was nowhere, and then where its addresses were seen elsewhere. It
    /// made a free port the end of a link, over which trees went to the host.
    #[test]
    fn what_a_host_says_by_lldp_takes_no_port_from_others() {
        for (far, named) in [("a", "a0"), ("b", "b0"), ("b", "b1"), ("b", "p2"), ("c", "c0")] {
            let mut facts = facts();
            for (_, report) in facts.switches.values_mut() {
                report.ports.extend([port("p2", 2)]);
            }
            let (_, a) = facts.switches.get_mut("a").unwrap();
            a.neighbours.insert(0, switch_seen(2, far, named));
            assert_eq!(
                (place(&facts, "h1"), place(&facts, "h2")),
                (at("a", 0), at("b", 0)),
                "{named}"
            );
            let topology = topology(&facts);
            assert!(topology.connected("h1", "h2"), "{named}");
            assert_eq!(topology.links().count(), 3, "{named}");
        }
    }

    #[test]
    fn a_port_leads_to_a_switch_that_has_not_reported_yet() {
        let mut facts = facts();
        facts.switches.insert("b".into(), Default::default());
        assert_eq!(
            (place(&facts, "h1"), place(&facts, "h2")),
            (at("a", 0), Place::Unseen)
        );
    }

    /// All at that port had no link.
    #[test]
    fn a_host_may_have_the_name_of_an_assumed_switch() {
        let a = SwitchReport {
            ports: [port("a0", 0)].into(),
            neighbours: vec![host_seen(0, 1, 5), host_seen(0, 2, 5)],
        };
        let facts = Facts {
            switches: [("a".to_string(), (Reach::Up, a))].into(),
            ..Facts::new(None, [], [host("h1", 1), host("a.0", 2)])
        };
        let topology = topology(&facts);
        assert!(topology.connected("h1", "a.0"));
        assert!(topology.is_plain("a.0.1"));
    }

    #[test]
    fn a_host_that_moved_is_where_it_was_seen_last() {
        let mut facts = facts();
        let (_, b) = facts.switches.get_mut("b").unwrap();
        b.ports.extend([port("b2", 2)]);
        b.neighbours.push(host_seen(2, 1, 0));
        let (_, a) = facts.switches.get_mut("a").unwrap();
        a.neighbours.retain(|n| n.port != 0);
        a.neighbours.push(host_seen(0, 1, 2 * SAME_FRAME_NS));
        assert_eq!(place(&facts, "h1"), at("b", 2));
    }

    /// Nor is it where another one has its address, before it has spoken itself.
    #[test]
    fn one_of_its_addresses_elsewhere_does_not_move_a_host() {
        let mut facts = facts();
        let (_, b) = facts.switches.get_mut("b").unwrap();
        b.ports.extend([port("b2", 2)]);
        let [own, other] = [1, 9].map(|number| match host_seen(2, number, 0).who {
            Who::Host { ip, mac } => (ip, mac),
            who => panic!("{who:?}"),
        });
        for (ip, mac) in [(own.0, other.1), (other.0, own.1)] {
            let who = Who::Host { ip, mac };
            let claim = NeighbourReport {
                who,
                ..host_seen(2, 1, 0)
            };
            facts.switches.get_mut("b").unwrap().1.neighbours.push(claim);
            assert_eq!(place(&facts, "h1"), at("a", 0));
        }
        let forget = |facts: &mut Facts, switch: &str, gone: fn(&NeighbourReport) -> bool| {
            facts
                .switches
                .get_mut(switch)
                .unwrap()
                .1
                .neighbours
                .retain(|n| !gone(n));
        };
        forget(&mut facts, "a", |n| n.port == 0);
        let claimed = Place::Claimed {
            mac: other.1,
            switch: "b".into(),
            port: 2,
        };
        assert_eq!(place(&facts, "h1"), claimed);
        // Its Ethernet address with a further IP address is anybody's word, too.
        forget(&mut facts, "b", |n| {
            n.port == 2 && matches!(n.who, Who::Host { ip, .. } if ip == Ipv4Addr::new(10, 0, 0, 1))
        });
        assert_eq!(place(&facts, "h1"), Place::Unseen);
    }

    #[test]
    fn what_is_down_is_down() {
        let mut facts = facts();
        facts.switches.get_mut("b").unwrap().0 = Reach::Down("connection refused".into());
        assert!(!topology(&facts).connected("h1", "h2"));
        facts.switches.get_mut("b").unwrap().0 = Reach::Unknown;
        assert!(topology(&facts).connected("h1", "h2"));
        facts
            .switches
            .get_mut("a")
            .unwrap()
            .1
            .ports
            .get_mut(&1)
            .unwrap()
            .up = false;
        assert!(!topology(&facts).connected("h1", "h2"));
        assert_eq!(facts.ports_down(), "; ports that are down: a:a1");
    }

    #[test]
    fn an_address_is_of_who_says_so_else_of_whom_the_file_says() {
        let file = Topology::star(2).unwrap();
        let filed = file.host("h0").unwrap().ip.unwrap();
        let mut facts = Facts::new(Some(file), [], []);
        let moved = HostRecord {
            name: "h0".into(),
            ..host("h9", 9)
        };
        for (said, there, gone) in [
            (None, filed, moved.ip),
            (Some(moved.clone()), moved.ip, filed),
            (None, filed, moved.ip),
        ] {
            facts.set("h0", said);
            assert_eq!(
                (facts.host_of(there, None), facts.host_of(gone, None)),
                (Some("h0"), None)
            );
            assert_eq!(facts.host_of(there, Some("h0")), None);
        }
    }

    #[test]
    fn a_file_places_hosts_and_reports_correct_it() {
        let file = Topology::leaf_spine(2, 1, 2).unwrap();
        let mut facts = Facts {
            file: Some(file.clone()),
            ..Facts::default()
        };
        assert_eq!(place(&facts, "h3"), at("leaf1", 1));
        assert!(topology(&facts).connected("h0", "h3"));
        let report = SwitchReport {
            ports: [port("eth1", 1)].into(),
            neighbours: Vec::new(),
        };
        facts.switches.insert("leaf1".into(), (Reach::Up, report));
        let topology = topology(&facts);
        assert_eq!(topology.switch("leaf1").unwrap().ports[&1], [6, 0, 0, 0, 4, 1]);
        assert_eq!(topology.switch("leaf1").unwrap().ports.len(), 3);
        let (link, ..) = topology.attachment("h3").unwrap();
        assert_eq!(topology.link(link).unwrap().mtu, 1500);
        assert_eq!(topology.links().count(), file.links().count());
    }
}
