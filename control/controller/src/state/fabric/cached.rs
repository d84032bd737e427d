//! What is derived from the facts, kept as long as it is true. A change of a switch or of a host that the file has is
//! taken over into the topology; other changes make it anew when it is next needed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem::replace;
use std::net::Ipv4Addr;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use castnet_topology::{End, Topology};

use super::{Facts, HostRecord, NeighbourReport, Place, Reach, Sightings, SwitchReport, Who};

/// Changes of single hosts that are known one by one.
const MOVED_MAX: usize = 4096;

/// The facts, and what is derived from them.
pub(crate) struct Fabric {
    facts: Facts,
    /// The hosts of the file that have no link there.
    unlinked: Vec<String>,
    made: OnceLock<Made>,
    /// The last topology, if only sightings have come since. It is still true if they have moved nobody.
    before: Option<Made>,
    sightings: OnceLock<Sightings>,
    /// Number of changes of what the places of hosts depend on.
    pub(crate) version: u64,
    /// The last changes that concern one host each, without gap: the version after each, and the host.
    moved: VecDeque<(u64, String)>,
}

#[derive(Clone)]
struct Made {
    topology: Arc<Topology>,
    /// The places of the hosts that the file does not place: all else is as the file has it.
    places: Vec<(String, Place)>,
}

impl Made {
    /// Whether a host that the file does not place is at a port of a switch which the topology has not, and is to have; or the other way
    /// round. Its link is there only together with the port.
    fn has_host_at_new_port(&self, switch: &str, ports: &BTreeMap<u8, [u8; 6]>) -> bool {
        let has = self.topology.switch(switch);
        let is_new =
            |port: &u8| has.is_some_and(|has| has.ports.contains_key(port)) != ports.contains_key(port);
        let mut places = self.places.iter().map(|(_, place)| place);
        places.any(|place| matches!(place, Place::At { switch: at, port } if at == switch && is_new(port)))
    }
}

impl Deref for Fabric {
    type Target = Facts;

    fn deref(&self) -> &Facts {
        &self.facts
    }
}

impl Fabric {
    pub(crate) fn new(facts: Facts) -> Self {
        let unlinked = facts.file.iter().flat_map(|file| {
            let hosts = file.hosts().map(|host| &host.name);
            hosts.filter(|name| file.attachment(name).is_none()).cloned()
        });
        Self {
            unlinked: unlinked.collect(),
            facts,
            made: OnceLock::new(),
            before: None,
            sightings: OnceLock::new(),
            version: 0,
            moved: VecDeque::new(),
        }
    }

    fn sightings(&self) -> &Sightings {
        self.sightings.get_or_init(|| self.facts.sightings())
    }

    pub(crate) fn place(&self, host: &str) -> Place {
        self.facts.place(host, || self.sightings())
    }

    /// The hosts that were seen with an Ethernet address where the file has them.
    pub(crate) fn hosts_seen_with(&self, mac: [u8; 6]) -> BTreeSet<&str> {
        match self.facts.file {
            Some(_) => self.facts.hosts_seen_with(mac, self.sightings()),
            None => BTreeSet::new(),
        }
    }

    pub(crate) fn topology(&self) -> Arc<Topology> {
        let made = || {
            let unfiled = self.facts.unfiled.iter().filter(|_| self.facts.file.is_some());
            let unplaced = unfiled.chain(&self.unlinked);
            let places: Vec<_> = unplaced.map(|host| (host.clone(), self.place(host))).collect();
            let before = self.before.as_ref().filter(|before| before.places == places);
            before.cloned().unwrap_or_else(|| {
                let filed = self.facts.topology_of_file();
                let topology = filed.unwrap_or_else(|| self.facts.topology(|| self.sightings()));
                let topology = Arc::new(topology);
                Made { topology, places }
            })
        };
        self.made.get_or_init(made).topology.clone()
    }

    /// What was made may not be true any more: sightings have changed, or what is looked for in them.
    fn doubt(&mut self) {
        if let Some(made) = self.made.take() {
            self.before = self.facts.file.is_some().then_some(made);
        }
    }

    /// The hosts whose places may have changed since a version. `None`: any may have.
    pub(crate) fn moved_since(&self, version: u64) -> Option<BTreeSet<&str>> {
        let first = self.version - self.moved.len() as u64;
        let since = self.moved.iter().filter(|(at, _)| *at > version);
        (version >= first).then(|| since.map(|(_, host)| host.as_str()).collect())
    }

    /// Sets whether a switch can be reached. Returns what was known before.
    pub(crate) fn set_reach(&mut self, switch: &str, reach: Reach) -> Reach {
        let up = !matches!(reach, Reach::Down(_));
        let before = replace(
            &mut self.facts.switches.entry(switch.into()).or_default().0,
            reach,
        );
        if up == matches!(before, Reach::Down(_)) {
            self.patch(|_, last| Arc::make_mut(&mut last.topology).set_switch_up(switch, up));
        }
        before
    }

    /// Takes in the report of a switch, which can be reached. Returns whether anything is new but ages that decide nothing, and hosts that
    /// nobody knows.
    pub(crate) fn report(&mut self, switch: &str, report: SwitchReport) -> bool {
        let before = self.set_reach(switch, Reach::Up);
        let known = &mut self.facts.switches.entry(switch.into()).or_default().1;
        let old = replace(known, report);
        let ages = known.neighbours != old.neighbours;
        let ports = known.ports != old.ports;
        // LLDP names ports: with other names, links and sightings differ.
        let names = |report: &SwitchReport| -> Vec<_> {
            let each = report.ports.iter();
            each.map(|(number, port)| (*number, port.name.clone())).collect()
        };
        let names = names(known) != names(&old);
        // If no age has decided anything, only the sightings themselves are new.
        let by_age = ages && self.sightings.get().is_some_and(Sightings::are_decided_by_age);
        let seen = by_age || ages && self.facts.sees_others(switch, &old);
        if ages || names {
            self.sightings.take();
        }
        if seen || names {
            self.version += 1;
            self.moved.clear();
            self.doubt();
        }
        if ports {
            let numbers: Vec<u8> = old.ports.keys().copied().collect();
            self.patch(|facts, last| {
                !last.has_host_at_new_port(switch, &facts.ports_of(switch))
                    && facts.update_ports(Arc::make_mut(&mut last.topology), switch, numbers)
            });
        }
        before != Reach::Up || seen || ports
    }

    /// Sets what a host has reported; `None`: only the file counts.
    pub(crate) fn set_host(&mut self, name: &str, host: Option<HostRecord>) {
        let stays = host.is_some() == self.facts.hosts.contains_key(name);
        self.facts.set(name, host);
        self.version += 1;
        self.moved.push_back((self.version, name.into()));
        if self.moved.len() > MOVED_MAX {
            self.moved.pop_front();
        }
        let file = self.facts.file.as_ref();
        if file.is_none_or(|file| file.host(name).is_none() && !stays) {
            self.made.take();
            self.before = None;
            return;
        }
        // Known by other addresses, it may be elsewhere.
        self.doubt();
        self.patch(|facts, last| {
            let (ip, mac) = facts.addresses(name);
            Arc::make_mut(&mut last.topology).set_host_addresses(name, ip, mac)
        });
    }

    /// Changes the topology as the facts have changed. If `change` returns false, it is made anew when it is needed.
    fn patch(&mut self, change: impl FnOnce(&Facts, &mut Made) -> bool) {
        // What is made now is newer than what was.
        let before = self.before.take();
        let is_made = self.made.get().is_some();
        let Some(mut last) = self.made.take().or(before) else {
            return;
        };
        if !change(&self.facts, &mut last) {
            return;
        }
        match is_made {
            true => self.made = last.into(),
            false => self.before = Some(last),
        }
    }
}

impl Facts {
    /// Whether the neighbours of a switch that place somebody are others than in the report before. Hosts that are not known place nobody:
    /// anybody can make them up. [`Fabric::set_host`] doubts the topology when they become known.
    fn sees_others(&self, switch: &str, before: &SwitchReport) -> bool {
        fn who(neighbour: &NeighbourReport) -> (u8, &Who) {
            (neighbour.port, &neighbour.who)
        }
        let Some((_, now)) = self.switches.get(switch) else {
            return false;
        };
        if now
            .neighbours
            .iter()
            .map(who)
            .eq(before.neighbours.iter().map(who))
        {
            return false;
        }
        // Of switches, the first report counts; of hosts, the order says nothing.
        let switches = |report: &SwitchReport| -> Vec<(u8, Who)> {
            let each = report.neighbours.iter().map(|n| (n.port, n.who.clone()));
            each.filter(|(_, who)| matches!(who, Who::Switch { .. }))
                .collect()
        };
        let hosts = |report: &SwitchReport| -> BTreeSet<(u8, Ipv4Addr, [u8; 6])> {
            let each = report.neighbours.iter().filter_map(|n| match n.who {
                Who::Host { ip, mac } if self.has_reported(ip) => Some((n.port, ip, mac)),
                _ => None,
            });
            each.collect()
        };
        switches(now) != switches(before) || hosts(now) != hosts(before)
    }

    /// The same as [`Facts::topology`], made from a copy of the file, which shares with it all that no report changes.
    /// `None`: there is no file, or it lacks a switch, a host or the place of a host.
    fn topology_of_file(&self) -> Option<Topology> {
        let file = self.file.as_ref().filter(|_| self.unfiled.is_empty())?;
        let has_place = |name: &str| file.attachment(name).is_some();
        let is_whole = self.switches.keys().all(|name| file.switch(name).is_some())
            && file.hosts().all(|host| has_place(&host.name));
        let mut topology = is_whole.then(|| file.clone())?;
        for switch in file.switches() {
            let known = self.switches.get(&switch.name);
            let up = !matches!(known, Some((Reach::Down(_), _)));
            if up != switch.up {
                topology.set_switch_up(&switch.name, up);
            }
            let reports = known.is_some_and(|(_, report)| !report.ports.is_empty());
            if reports && !self.update_ports(&mut topology, &switch.name, Vec::new()) {
                return None;
            }
        }
        for host in self.hosts.values() {
            topology.set_host_addresses(&host.name, Some(host.ip), Some(host.mac));
        }
        Some(topology)
    }

    /// Takes over the ports of a switch into a topology. `before`: the numbers that the last report had.
    fn update_ports(&self, topology: &mut Topology, switch: &str, before: Vec<u8>) -> bool {
        let ports = self.ports_of(switch);
        let numbers: Vec<u8> = ports.keys().copied().chain(before).collect();
        if !topology.set_switch_ports(switch, ports) {
            return false;
        }
        for end in numbers.into_iter().map(|number| End::port(switch, number)) {
            let Some(id) = topology.link_at(&end) else {
                continue;
            };
            let Some(link) = topology.link(id).cloned() else {
                continue;
            };
            let filed = self.file.as_ref().and_then(|file| file.link(file.link_at(&end)?));
            // A switch may be assumed between the port and the host of the file.
            let filed = filed.filter(|filed| filed.far(switch) == link.far(switch));
            let (mtu, up) = match filed {
                Some(filed) => (filed.mtu, filed.up),
                None => (super::unfiled_mtu(topology, &link), true),
            };
            let (mtu, up) = self.as_reported(&link.a, &link.b, mtu, up);
            if link.mtu != mtu {
                topology.set_link_mtu(id, mtu);
            }
            if link.up != up {
                topology.set_link_up(id, up);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::PortReport;
    use super::super::tests::switch_seen;
    use super::*;

    /// A host at 10.9.0.<ip>.
    fn known(name: &str, ip: u8, mac: u8) -> HostRecord {
        HostRecord {
            name: name.into(),
            ip: [10, 9, 0, ip].into(),
            mac: [2, 9, 0, 0, 0, mac],
        }
    }

    fn port(number: u8, mtu: u32) -> (u8, PortReport) {
        let port = PortReport {
            name: format!("p{number}"),
            mac: [2, 7, 0, 0, 0, number],
            mtu,
            up: true,
        };
        (number, port)
    }

    /// What happens to the facts.
    #[derive(Clone, Debug)]
    enum Change {
        Reach(u8, Reach),
        Report(u8, SwitchReport),
        Host(u8, Option<u8>),
        /// The last report of a switch comes again, with other ages.
        Older(u8, u64),
    }

    fn switch(number: u8) -> String {
        ["leaf0", "leaf1", "spine0"][usize::from(number) % 3].into()
    }

    fn neighbour() -> impl Strategy<Value = NeighbourReport> {
        let host = (0u8..6, 0u8..6).prop_map(|(ip, mac)| Who::Host {
            ip: [10, 9, 0, ip].into(),
            mac: [2, 9, 0, 0, 0, mac],
        });
        let far = (0u8..3, 0u8..4).prop_map(|(far, port)| Who::Switch {
            name: switch(far),
            port: format!("p{port}"),
        });
        let age = prop_oneof![Just(0), Just(500_000_000), Just(3_000_000_000)];
        (0u8..4, age, prop_oneof![host, far]).prop_map(|(port, age_ns, who)| NeighbourReport {
            port,
            age_ns,
            who,
        })
    }

    fn report() -> impl Strategy<Value = SwitchReport> {
        let port = (0u8..6, 0u8..6, any::<bool>(), any::<bool>(), any::<bool>());
        let ports = proptest::collection::vec(port, 0..5);
        (ports, proptest::collection::vec(neighbour(), 0..6)).prop_map(|(ports, neighbours)| {
            let port = |(number, name, wide, up, own): (u8, u8, bool, bool, bool)| {
                let mtu = if wide { 9000 } else { 1500 };
                let mac = [2, 7, 0, u8::from(own), 0, number];
                let name = format!("p{}", if own { number } else { name });
                (number, PortReport { name, mac, mtu, up })
            };
            let ports = ports.into_iter().map(port).collect();
            SwitchReport { ports, neighbours }
        })
    }

    fn change() -> impl Strategy<Value = Change> {
        let reach = prop_oneof![Just(Reach::Up), Just(Reach::Down("gone".into()))];
        prop_oneof![
            (0u8..3, reach).prop_map(|(s, r)| Change::Reach(s, r)),
            (0u8..3, report()).prop_map(|(s, r)| Change::Report(s, r)),
            (0u8..6, proptest::option::of(0u8..6)).prop_map(|(h, at)| Change::Host(h, at)),
            (0u8..3, 0u64..4_000_000_000).prop_map(|(s, age)| Change::Older(s, age)),
        ]
    }

    fn apply(fabric: &mut Fabric, change: Change) {
        match change {
            Change::Reach(at, reach) => drop(fabric.set_reach(&switch(at), reach)),
            Change::Report(at, report) => drop(fabric.report(&switch(at), report)),
            Change::Host(number, at) => {
                let name = format!("h{number}");
                fabric.set_host(&name, at.map(|at| known(&name, at, at)));
            }
            Change::Older(at, age) => {
                let known = fabric.switches.get(&switch(at)).cloned();
                let (_, mut report) = known.unwrap_or_default();
                for (n, neighbour) in (1..).zip(&mut report.neighbours) {
                    neighbour.age_ns = age * n;
                }
                fabric.report(&switch(at), report);
            }
        }
    }

    /// All that a topology says, whatever the order in which it was made.
    fn words(topology: &Topology) -> Vec<String> {
        let switches = topology.switches().map(|s| format!("{s:?}"));
        let hosts = topology.hosts().map(|h| format!("{h:?}"));
        let links = topology.links().map(|(_, link)| format!("{link:?}"));
        let mut all: Vec<String> = switches.chain(hosts).chain(links).collect();
        all.sort();
        all
    }

    proptest! {
        /// Whatever changes, the fabric is that of the facts as they are, and so are the paths in it.
        #[test]
        fn the_fabric_follows_the_facts(
            (filed, unlinked) in any::<(bool, bool)>(),
            changes in proptest::collection::vec((change(), any::<bool>()), 1..24),
        ) {
            let mut file = filed.then(|| Topology::leaf_spine(2, 1, 2).unwrap());
            if let (Some(file), true) = (&mut file, unlinked) {
                file.add_host("h4", Some([10, 9, 0, 4].into()), None).unwrap();
            }
            let names = (0..3).map(switch);
            let mut fabric = Fabric::new(Facts::new(file, names, []));
            for (change, looks) in changes {
                let before = fabric.topology();
                let said = words(&before);
                let names = || (0..6).map(|n| format!("h{n}"));
                let (version, places): (_, Vec<_>) = (fabric.version, names().map(|h| fabric.place(&h)).collect());
                apply(&mut fabric, change);
                if let Some(moved) = fabric.moved_since(version) {
                    for (host, place) in names().zip(places).filter(|(host, _)| !moved.contains(host.as_str())) {
                        prop_assert_eq!(fabric.place(&host), place, "{} has moved", host);
                    }
                }
                prop_assert_eq!(words(&before), said, "a snapshot stays as it is");
                if !looks {
                    continue;
                }
                let fresh = Fabric::new(fabric.facts.clone());
                prop_assert_eq!(words(&fabric.topology()), words(&fresh.topology()), "of the file");
                let whole = fresh.facts.topology(|| fresh.sightings());
                prop_assert_eq!(words(&fabric.topology()), words(&whole));
                for host in (0..6).map(|n| format!("h{n}")) {
                    prop_assert_eq!(fabric.place(&host), fresh.place(&host));
                    for other in (0..6).map(|n| format!("h{n}")) {
                        let distance = |f: &Fabric| {
                            let topology = f.topology();
                            topology.distance(&host, &topology.distances(&other))
                        };
                        prop_assert_eq!(distance(&fabric), distance(&fresh));
                    }
                }
            }
        }
    }

    proptest! {
        /// All known hosts were gone through at each report, under the lock: a host changes its ARP at will.
        #[test]
        fn who_has_reported_is_found_without_going_through_all(
            filed in any::<bool>(),
            changes in proptest::collection::vec((0u8..6, proptest::option::of((0u8..6, 0u8..6))), 0..12),
            ip in 0u8..6,
        ) {
            let mut file = filed.then(|| Topology::leaf_spine(2, 1, 2).unwrap());
            if let Some(file) = &mut file {
                file.add_host("h5", Some([10, 9, 0, 5].into()), Some([2, 9, 0, 0, 0, 5])).unwrap();
            }
            let (mut facts, five) = (Facts::new(file, (0..3).map(switch), []), "h5".to_owned());
            for (host, at) in changes {
                let name = format!("h{host}");
                facts.set(&name, at.map(|(ip, mac)| known(&name, ip, mac)));
            }
            let (ip, mac) = (Ipv4Addr::from([10, 9, 0, ip]), [2, 9, 0, 0, 0, ip]);
            let slowly = facts.hosts.values().any(|host| host.ip == ip);
            prop_assert_eq!(facts.has_reported(ip), slowly);
            let names = facts.hosts.keys().chain(filed.then_some(&five)).collect::<BTreeSet<_>>();
            let with = names.into_iter().filter(|name| facts.addresses(name).1 == Some(mac));
            prop_assert_eq!(facts.hosts_with(mac), with.map(String::as_str).collect::<BTreeSet<_>>());
        }
    }

    /// A report of hosts: the port of each, and the last bytes of its IP and Ethernet addresses.
    fn arp_seen(hosts: &[(u8, u8, u8)]) -> SwitchReport {
        let host = |&(port, ip, mac): &(u8, u8, u8)| {
            let (ip, mac) = ([10, 9, 0, ip].into(), [2, 9, 0, 0, 0, mac]);
            let who = Who::Host { ip, mac };
            NeighbourReport { port, age_ns: 0, who }
        };
        SwitchReport {
            ports: [3, 4].map(|number| port(number, 9000)).into(),
            neighbours: hosts.iter().map(host).collect(),
        }
    }

    /// The first report of the port came after that of the host, and the host had no link.
    #[test]
    fn a_host_at_a_port_that_appears_is_linked() {
        let mut fabric = Fabric::new(Facts::new(Topology::leaf_spine(2, 1, 2).ok(), [], []));
        fabric.set_host("h4", Some(known("h4", 4, 4)));
        for (port, is_linked) in [(None, false), (Some(port(3, 1500)), true), (None, false)] {
            let ports = port.into_iter().collect();
            let SwitchReport { neighbours, .. } = arp_seen(&[(3, 4, 4)]);
            fabric.report("leaf1", SwitchReport { ports, neighbours });
            assert_eq!(fabric.topology().attachment("h4").is_some(), is_linked);
        }
    }

    /// One host could have it made anew all the time.
    #[test]
    fn arp_of_hosts_that_nobody_knows_makes_no_topology() {
        let mut fabric = Fabric::new(Facts::new(None, (0..3).map(switch), [known("h1", 1, 1)]));
        let port_of = |fabric: &Fabric, host| fabric.topology().attachment(host).map(|(_, _, port)| port);
        fabric.report("leaf0", arp_seen(&[]));
        let (first, version) = (fabric.topology(), fabric.version);
        for made_up in [&[(3, 7, 7)][..], &[(4, 8, 8), (3, 9, 9)], &[(3, 9, 9)]] {
            assert!(!fabric.report("leaf0", arp_seen(made_up)));
        }
        assert!(Arc::ptr_eq(&first, &fabric.topology()));
        assert_eq!(fabric.version, version);
        // Who was seen before is there as soon as it is known.
        assert_eq!(port_of(&fabric, "h9"), None);
        fabric.set_host("h9", Some(known("h9", 9, 9)));
        assert_eq!(port_of(&fabric, "h9"), Some(3));
        assert!(fabric.report("leaf0", arp_seen(&[(3, 9, 9), (4, 1, 1)])));
        assert_eq!(port_of(&fabric, "h1"), Some(4));
        assert!(!fabric.report("leaf0", arp_seen(&[(4, 1, 1), (3, 9, 9)])));
        // Its IP address alone may displace it, its Ethernet address alone may not.
        for (half, matters) in [((4, 1, 7), true), ((4, 7, 1), false)] {
            fabric.report("leaf0", arp_seen(&[]));
            assert_eq!(fabric.report("leaf0", arp_seen(&[half])), matters);
        }
    }

    /// Each rack may have a host that the file lacks: what is seen of others is nothing new for it.
    #[test]
    fn who_is_not_filed_costs_nothing_until_it_moves() {
        let file = Some(Topology::leaf_spine(2, 1, 2).unwrap());
        let mut fabric = Fabric::new(Facts::new(file, (0..3).map(switch), []));
        let guest = |mac| Some(known("guest", 1, mac));
        fabric.set_host("guest", guest(1));
        // The file places it.
        fabric.set_host("h0", Some(known("h0", 7, 7)));
        fabric.report("leaf1", arp_seen(&[]));
        fabric.report("leaf0", arp_seen(&[(3, 1, 1)]));
        let there = fabric.topology();
        assert_eq!(
            there.attachment("guest").map(|(_, at, port)| (at, port)),
            Some(("leaf0", 3))
        );
        assert!(fabric.report("leaf0", arp_seen(&[(3, 1, 1), (4, 7, 7)])));
        assert!(!fabric.report("leaf1", arp_seen(&[(3, 8, 8)])));
        assert!(Arc::ptr_eq(&there, &fabric.topology()));
        // Its address changes while what was seen is looked at, and changes back.
        fabric.set_host("guest", guest(9));
        let claimed = fabric.topology();
        assert_eq!(claimed.attachment("guest"), None);
        fabric.set_host("guest", guest(1));
        assert!(fabric.topology().attachment("guest").is_some());
        fabric.report("leaf0", arp_seen(&[(4, 1, 1)]));
        let moved = fabric.topology();
        assert_eq!(moved.attachment("guest").map(|(_, _, port)| port), Some(4));
        fabric.set_host("guest", None);
        assert!(fabric.topology().host("guest").is_none());
    }

    /// A guest is seen at the port of a host of the file, and that port reports its MTU, and then another, and then none.
    #[test]
    fn the_cable_to_an_assumed_switch_is_not_the_one_of_the_file() {
        let mut file = Topology::new();
        file.add_switch("leaf", (0..2).map(|port| (port, [6, 0, 0, 1, 0, port])))
            .unwrap();
        file.add_host("filed", Some([10, 0, 0, 1].into()), Some([2, 0, 0, 0, 0, 1]))
            .unwrap();
        file.connect(End::port("leaf", 0), End::host("filed"), 4200)
            .unwrap();
        let guest = known("guest", 2, 2);
        let mut fabric = Fabric::new(Facts::new(Some(file), ["leaf".into()], [guest]));
        for (reported, cable, hosts_own) in [
            (None, 65_535, 4200),
            (Some(9000), 9000, 4200),
            (Some(1500), 1500, 4200),
            (None, 65_535, 4200),
        ] {
            let ports = reported.map(|mtu| port(0, mtu)).into_iter().collect();
            let SwitchReport { neighbours, .. } = arp_seen(&[(0, 2, 2)]);
            fabric.report("leaf", SwitchReport { ports, neighbours });
            let topology = fabric.topology();
            let mtu = |end: &End| topology.link(topology.link_at(end).unwrap()).unwrap().mtu;
            assert_eq!(mtu(&End::port("leaf", 0)), cable, "{reported:?}");
            assert_eq!(mtu(&End::host("filed")), hosts_own, "{reported:?}");
        }
    }

    #[test]
    fn what_the_file_has_is_not_made_anew() {
        let file = Some(Topology::leaf_spine(2, 1, 2).unwrap());
        let mut fabric = Fabric::new(Facts::new(file, (0..3).map(switch), []));
        let first = fabric.topology();
        fabric.set_host("h0", Some(known("h0", 1, 1)));
        assert!(first.same_paths(&fabric.topology()), "an address is no path");
        fabric.set_reach("spine0", Reach::Down("gone".into()));
        let down = fabric.topology();
        assert!(first.same_links(&down) && !first.same_paths(&down));
        // An age decides nothing.
        let seen = |age_ns| {
            let heard = switch_seen(2, "spine0", "p0");
            SwitchReport {
                ports: BTreeMap::new(),
                neighbours: vec![NeighbourReport { age_ns, ..heard }],
            }
        };
        assert!(fabric.report("leaf0", seen(1)));
        assert!(!fabric.report("leaf0", seen(2)));
        assert!(Arc::ptr_eq(&down, &fabric.topology()));
    }
}
