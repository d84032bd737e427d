//! The table of neighbours: switches and hosts known by LLDP (one per port), and hosts known by ARP.

use core::net::Ipv4Addr;

use arrayvec::ArrayVec;
use castnet_wire::{MacAddr, Nanos, PortId};

use crate::observe::events::{EventKind, Events};
use crate::observe::neighbour::{Neighbour, Said};
use crate::tables::port_table::{Entry, PortTable};
use crate::tables::published::Tables;

/// How long a host has to answer that it still has its address, and how often it is asked: a frame may be lost (RFC 5227, PROBE_NUM).
const ANSWER_WITHIN: Nanos = Nanos::from_secs(1);
const ASKS: u8 = 3;

/// Most bytes between the Ethernet addresses and an ARP packet: two tags and the EtherType.
const TAGS_LEN: usize = 10;

/// Most hosts that are asked before they age, at once.
pub(crate) const ASKS_PER_SWEEP: usize = 32;
/// Those of a port that are asked before others of a port that has more.
const ASKS_OF_PORT: usize = 2;

/// A host seen in ARP. The key is its IPv4 address.
type Sighting = Entry<Host>;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Host {
    mac: MacAddr,
    tags: Tags,
    /// When it was last asked whether it still has its address, and how often since it has spoken.
    asked: Option<Nanos>,
    unanswered: u8,
}

/// The bytes between the Ethernet addresses of a frame and its ARP packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tags {
    bytes: [u8; TAGS_LEN],
    length: u8,
}

impl Tags {
    pub(crate) fn new(of: &[u8]) -> Self {
        let mut tags = Self::default();
        for (to, from) in tags.bytes.iter_mut().zip(of) {
            *to = *from;
            tags.length += 1;
        }
        tags
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.length.into()).unwrap_or_default()
    }
}

/// A host that is to be asked for its address, in its own VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) ip: Ipv4Addr,
    pub(crate) port: PortId,
    pub(crate) mac: MacAddr,
    pub(crate) tags: Tags,
}

impl Host {
    fn is_due(&self, now: Nanos) -> bool {
        self.asked.is_none_or(|at| now.since(at) >= ANSWER_WITHIN)
    }
}

fn ask(ip: Ipv4Addr, sighting: &Sighting) -> Ask {
    let Host { mac, tags, .. } = sighting.value;
    Ask {
        ip,
        port: sighting.port,
        mac,
        tags,
    }
}

fn key(ip: Ipv4Addr) -> u64 {
    u32::from(ip).into()
}

fn host(key: u64, sighting: &Sighting) -> Neighbour {
    let ip = Ipv4Addr::from(key as u32);
    Neighbour {
        port: sighting.port,
        said: Said::Arp {
            ip,
            mac: sighting.value.mac,
        },
        seen: sighting.seen,
    }
}

fn report_gone(now: Nanos, neighbour: Neighbour, events: &mut Events) {
    events.of_port(now, neighbour.port, EventKind::NeighbourGone(neighbour));
}

#[derive(Clone, Debug)]
pub(crate) struct Neighbours {
    lldp: Box<[Option<Neighbour>; PortId::COUNT]>,
    /// When LLDP last ceased to show a switch, by port.
    left: Box<[Option<Nanos>; PortId::COUNT]>,
    pub(crate) arp: PortTable<Host>,
    full_reported: bool,
}

impl Neighbours {
    pub(crate) fn new(capacity: usize, ageing: Nanos, seed: u64) -> Self {
        Self {
            lldp: Box::new([None; PortId::COUNT]),
            left: Box::new([None; PortId::COUNT]),
            arp: PortTable::new(capacity, ageing, seed),
            full_reported: false,
        }
    }

    /// `of` has the same configuration. Does not allocate.
    pub(crate) fn copy_from(&mut self, of: &Self) {
        self.lldp.clone_from(&of.lldp);
        self.left.clone_from(&of.left);
        self.arp.copy_from(&of.arp);
        self.full_reported = of.full_reported;
    }

    /// A time to live of zero withdraws the neighbour. Returns true for a new or changed one.
    pub(crate) fn lldp(&mut self, heard: Neighbour, events: &mut Events) -> bool {
        let place = &mut self.lldp[heard.port.index()];
        let leaves = matches!(heard.said, Said::Lldp { ttl: Nanos::ZERO, .. });
        let before = match leaves {
            true => {
                self.left[heard.port.index()] = Some(heard.seen);
                place.take()
            }
            false => place.replace(heard),
        };
        let kind = match before {
            Some(old) if leaves => EventKind::NeighbourGone(old),
            None if leaves => return false,
            Some(old) if old.said == heard.said => return false,
            Some(_) => EventKind::NeighbourChanged(heard),
            None => EventKind::NeighbourAppeared(heard),
        };
        events.of_port(heard.seen, heard.port, kind);
        !leaves
    }

    /// Records the sender of an ARP packet. A full table displaces a neighbour of the port with most entries, but no member of a group.
    /// An address that was seen elsewhere, or with another Ethernet address, stays as it was until the host there has been asked three times,
    /// and was silent. Returns whom to ask; [`Self::handle_asked`] follows if that was possible.
    pub(crate) fn arp(
        &mut self,
        (now, port): (Nanos, PortId),
        ip: Ipv4Addr,
        (mac, tags): (MacAddr, Tags),
        tables: &Tables,
        events: &mut Events,
    ) -> Option<Ask> {
        let before = self.arp.get(now, key(ip)).copied();
        let claimed = before.filter(|old| (old.port, old.value.mac) != (port, mac));
        // Where it is a member, the controller has found it.
        if let Some(old) = claimed.filter(|old| old.port == port || !tables.is_member(port, ip)) {
            // A member keeps its port until it ages or the port goes down.
            let stays = old.port != port && tables.is_member(old.port, ip);
            let is_due = old.value.is_due(now);
            if stays || !is_due || old.value.unanswered < ASKS {
                let (at, said) = (old.port, Said::Arp { ip, mac });
                let claim = Neighbour {
                    port,
                    said,
                    seen: now,
                };
                return is_due.then(|| {
                    events.of_port(now, port, EventKind::AddressClaimed { claim, at });
                    ask(ip, &old)
                });
            }
        }
        let is_held = |key: u64, port| tables.is_member(port, Ipv4Addr::from(key as u32));
        let own = Host {
            mac,
            tags,
            asked: before
                .filter(|_| claimed.is_none())
                .and_then(|old| old.value.asked),
            unanswered: 0,
        };
        let noted = self.arp.see(now, key(ip), own, port, is_held);
        let displaced = noted.as_ref().ok().and_then(Option::as_ref);
        if !self.full_reported && (displaced.is_some() || noted.is_err()) {
            self.full_reported = true;
            let (entries, port) = (self.arp.len(), displaced.map_or(port, |(_, entry)| entry.port));
            events.push(now, EventKind::NeighboursFull { entries, port });
        }
        if let Some((key, entry)) = displaced {
            report_gone(now, host(*key, entry), events);
        }
        noted.ok()?;
        let new = Neighbour {
            port,
            said: Said::Arp { ip, mac },
            seen: now,
        };
        match before.filter(|old| !self.was_behind_switch(old)) {
            None => events.of_port(now, port, EventKind::NeighbourAppeared(new)),
            Some(old) if (old.value.mac, old.port) != (mac, port) => {
                events.of_port(now, port, EventKind::NeighbourChanged(new));
            }
            Some(_) => {}
        }
        None
    }

    /// The Ethernet address of a host that was seen.
    pub(crate) fn mac(&self, now: Nanos, ip: Ipv4Addr) -> Option<MacAddr> {
        self.arp.get(now, key(ip)).map(|seen| seen.value.mac)
    }

    /// The port of a host that was seen.
    pub(crate) fn port(&self, now: Nanos, ip: Ipv4Addr) -> Option<PortId> {
        self.arp.get(now, key(ip)).map(|seen| seen.port)
    }

    /// Whether a host was seen only while a switch was at its port, and that is gone: it was behind that, and may be anywhere.
    fn was_behind_switch(&self, seen: &Sighting) -> bool {
        let left = self.left[seen.port.index()];
        !self.is_switch(seen.port) && left.is_some_and(|at| seen.seen <= at)
    }

    /// Whether LLDP shows a switch at a port.
    pub(crate) fn is_switch(&self, port: PortId) -> bool {
        self.lldp[port.index()].is_some()
    }

    /// The host was asked.
    pub(crate) fn handle_asked(&mut self, now: Nanos, ip: Ipv4Addr) {
        if let Some(entry) = self.arp.get_mut(key(ip)) {
            entry.value.asked = Some(now);
            entry.value.unanswered = entry.value.unanswered.saturating_add(1);
        }
    }

    /// Some of the hosts that have not spoken for long, and are to be asked before they age: RDMA traffic alone shows no address.
    pub(crate) fn quiet(&self, now: Nanos, asks: &mut ArrayVec<Ask, ASKS_PER_SWEEP>) {
        let long = Nanos(self.arp.ageing.0 / 4 * 3);
        // A port with many, which may be made up, does not keep those of other ports from being asked.
        for share in [ASKS_OF_PORT, ASKS_PER_SWEEP] {
            for quiet in self.arp.oldest(now, long) {
                let due = quiet.filter(|(_, entry)| entry.value.unanswered < ASKS && entry.value.is_due(now));
                let of = |(key, entry)| ask(Ipv4Addr::from(key as u32), entry);
                let more = due.map(of).filter(|ask| !asks.contains(ask));
                let more: ArrayVec<Ask, ASKS_PER_SWEEP> =
                    more.take(share.min(asks.remaining_capacity())).collect();
                asks.extend(more);
            }
        }
    }

    /// Removes expired neighbours: all known by LLDP, and a bounded number of those known by ARP.
    pub(crate) fn age(&mut self, now: Nanos, events: &mut Events) {
        for place in self.lldp.iter_mut() {
            let gone =
                place.take_if(|n| matches!(n.said, Said::Lldp { ttl, .. } if now.since(n.seen) >= ttl));
            if let Some(gone) = gone {
                self.left[gone.port.index()] = Some(now);
                report_gone(now, gone, events);
            }
        }
        self.arp
            .age(now, |key, sighting| report_gone(now, host(key, sighting), events));
        self.full_reported &= self.arp.is_full();
    }

    /// Removes the neighbours of the ports for which `is_gone` returns true.
    pub(crate) fn flush(&mut self, now: Nanos, is_gone: impl Fn(PortId) -> bool, events: &mut Events) {
        for place in self.lldp.iter_mut() {
            let gone = place.take_if(|n| is_gone(n.port));
            gone.into_iter().for_each(|gone| report_gone(now, gone, events));
        }
        self.arp.flush(is_gone, |key, sighting| {
            report_gone(now, host(key, sighting), events)
        });
    }

    /// By LLDP in order of ports, then those known by ARP at `now` in no particular order, but for hosts that were behind a switch that is gone.
    pub(crate) fn iter(&self, now: Nanos) -> impl Iterator<Item = Neighbour> {
        let arp = self.arp.iter(now);
        let arp = arp.filter(|(_, sighting)| !self.was_behind_switch(sighting));
        let arp = arp.map(|(key, sighting)| host(key, sighting));
        self.lldp.iter().flatten().copied().chain(arp)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.arp.len() == 0 && self.lldp.iter().all(Option::is_none)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::neighbour::{NAME_MAX, name};
    use castnet_wire::lldp::Printable;

    const AGEING: Nanos = Nanos::from_secs(300);

    fn drain(events: &mut Events) -> Vec<EventKind> {
        core::iter::from_fn(|| events.pop()).map(|e| e.kind).collect()
    }

    fn heard(seen: u64, system: &str, ttl: u64) -> Neighbour {
        let said = Said::Lldp {
            chassis: name("02:00:00:00:00:01"),
            remote_port: name("p0"),
            system: name(system),
            mac: MacAddr([2; 6]),
            ttl: Nanos::from_secs(ttl),
        };
        Neighbour {
            port: PortId::default(),
            said,
            seen: Nanos::from_secs(seen),
        }
    }

    #[test]
    fn an_lldp_neighbour_appears_changes_and_goes() {
        let (mut neighbours, mut events) = (Neighbours::new(4, AGEING, 0), Events::new(16));
        neighbours.lldp(heard(1, "leaf1", 120), &mut events);
        neighbours.lldp(heard(2, "leaf1", 120), &mut events);
        neighbours.lldp(heard(3, "leaf2", 120), &mut events);
        neighbours.age(Nanos::from_secs(122), &mut events);
        assert_eq!(neighbours.iter(Nanos::from_secs(122)).count(), 1);
        neighbours.age(Nanos::from_secs(123), &mut events);
        assert_eq!(
            drain(&mut events),
            [
                EventKind::NeighbourAppeared(heard(1, "leaf1", 120)),
                EventKind::NeighbourChanged(heard(3, "leaf2", 120)),
                EventKind::NeighbourGone(heard(3, "leaf2", 120)),
            ]
        );
        assert_eq!(neighbours.iter(Nanos::from_secs(123)).count(), 0);
    }

    #[test]
    fn a_time_to_live_of_zero_withdraws_a_neighbour() {
        let (mut neighbours, mut events) = (Neighbours::new(4, AGEING, 0), Events::new(16));
        neighbours.lldp(heard(1, "leaf1", 0), &mut events);
        neighbours.lldp(heard(2, "leaf1", 9), &mut events);
        neighbours.lldp(heard(3, "leaf1", 0), &mut events);
        assert_eq!(drain(&mut events).len(), 2);
        assert_eq!(neighbours.iter(Nanos::from_secs(3)).count(), 0);
    }

    const IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const OTHER: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

    struct Scene {
        neighbours: Neighbours,
        events: Events,
    }

    impl Scene {
        fn new() -> Self {
            let (neighbours, events) = (Neighbours::new(4, AGEING, 0), Events::new(64));
            Self { neighbours, events }
        }

        /// Whether the host that has the address is asked.
        fn arp(&mut self, ms: u64, port: u8, mac: MacAddr) -> Option<Ask> {
            let at = (Nanos::from_millis(ms), PortId::new(port).unwrap_or_default());
            let tags = Tags::new(&[8, port]);
            let ask = self
                .neighbours
                .arp(at, IP, (mac, tags), &Tables::default(), &mut self.events);
            if ask.is_some() {
                self.neighbours.handle_asked(at.0, IP);
            }
            ask
        }

        fn place(&self, ms: u64) -> Option<(usize, MacAddr)> {
            let all = self.neighbours.iter(Nanos::from_millis(ms));
            let mut places = all.filter_map(|n| match n.said {
                Said::Arp { mac, .. } => Some((n.port.index(), mac)),
                Said::Lldp { .. } => None,
            });
            places.next()
        }
    }

    fn seen(port: u8, mac: MacAddr, ms: u64) -> Neighbour {
        Neighbour {
            port: PortId::new(port).unwrap_or_default(),
            said: Said::Arp { ip: IP, mac },
            seen: Nanos::from_millis(ms),
        }
    }

    /// A neighbour of a switch that had died was found at the port to that switch, and a tree led there.
    #[test]
    fn a_host_behind_a_switch_that_is_gone_is_at_no_port_until_it_is_seen_there() {
        for withdrawn in [false, true] {
            let mut scene = Scene::new();
            // It may have spoken before the switch did.
            scene.arp(500, 0, MAC);
            scene.neighbours.lldp(heard(1, "spine", 4), &mut scene.events);
            let mut again = scene.neighbours.clone();
            assert_eq!(scene.place(4000), Some((0, MAC)));
            drain(&mut scene.events);
            match withdrawn {
                true => _ = scene.neighbours.lldp(heard(5, "spine", 0), &mut scene.events),
                false => scene.neighbours.age(Nanos::from_secs(5), &mut scene.events),
            }
            let gone = EventKind::NeighbourGone(heard(1, "spine", 4));
            assert_eq!(drain(&mut scene.events), [gone]);
            assert_eq!(scene.place(5000), None);
            again.copy_from(&scene.neighbours);
            assert_eq!(again.iter(Nanos::from_secs(5)).count(), 0);
            for (ms, events) in [
                (7000, &[EventKind::NeighbourAppeared(seen(0, MAC, 7000))][..]),
                (8000, &[]),
            ] {
                scene.arp(ms, 0, MAC);
                assert_eq!(drain(&mut scene.events), events);
                assert_eq!(scene.place(ms), Some((0, MAC)));
            }
        }
    }

    /// By another port, or with another Ethernet address by the same one. It is asked as it speaks, at most once a second.
    #[test]
    fn an_address_moves_after_three_unanswered_asks() {
        for (port, mac) in [(1, MAC), (0, OTHER), (1, OTHER)] {
            let mut scene = Scene::new();
            let ask = Some(Ask {
                ip: IP,
                port: PortId::default(),
                mac: MAC,
                tags: Tags::new(&[8, 0]),
            });
            assert_eq!(scene.arp(1000, 0, MAC), None);
            assert_eq!(scene.arp(2000, 0, MAC), None);
            for (ms, asks) in [(3000, ask), (3500, None), (4000, ask), (5000, ask), (5999, None)] {
                assert_eq!(scene.arp(ms, port, mac), asks, "{ms}");
            }
            // It answers the last one.
            assert_eq!(scene.arp(5999, 0, MAC), None);
            for (ms, asks) in [(6000, ask), (7000, ask), (8000, ask), (8999, None)] {
                assert_eq!(scene.arp(ms, port, mac), asks, "{ms}");
                assert_eq!(scene.place(ms), Some((0, MAC)));
            }
            assert_eq!(scene.arp(9000, port, mac), None);
            assert_eq!(scene.place(9000), Some((port.into(), mac)));
            scene.neighbours.age(Nanos::from_secs(309), &mut scene.events);
            let claimed = |ms| EventKind::AddressClaimed {
                claim: seen(port, mac, ms),
                at: PortId::default(),
            };
            assert_eq!(
                drain(&mut scene.events),
                [
                    EventKind::NeighbourAppeared(seen(0, MAC, 1000)),
                    claimed(3000),
                    claimed(4000),
                    claimed(5000),
                    claimed(6000),
                    claimed(7000),
                    claimed(8000),
                    EventKind::NeighbourChanged(seen(port, mac, 9000)),
                    EventKind::NeighbourGone(seen(port, mac, 9000)),
                ]
            );
        }
    }

    /// What was asked of another host does not count, nor what could not be asked.
    #[test]
    fn a_host_that_has_moved_is_asked_anew_and_only_asks_count() {
        let mut scene = Scene::new();
        scene.arp(0, 0, MAC);
        for ms in [1000, 2000, 3000, 4000] {
            scene.arp(ms, 1, OTHER);
        }
        assert_eq!(scene.place(4000), Some((1, OTHER)));
        assert!(scene.arp(4000, 0, MAC).is_some_and(|ask| ask.mac == OTHER));
        let tables = Tables::default();
        for ms in (5000..9000).step_by(1000) {
            let at = (Nanos::from_millis(ms), PortId::default());
            let ask = scene
                .neighbours
                .arp(at, IP, (MAC, Tags::default()), &tables, &mut scene.events);
            assert!(ask.is_some(), "{ms}");
        }
        assert_eq!(scene.place(9000), Some((1, OTHER)));
    }

    /// Whoever makes up many hosts at its port does not keep others from being asked.
    #[test]
    fn quiet_hosts_of_each_port_are_asked() {
        let (mut neighbours, mut events) = (Neighbours::new(1024, AGEING, 0), Events::new(64));
        let tables = Tables::default();
        for n in 0..600_u32 {
            let (at, ip) = ((Nanos::ZERO, PortId::default()), Ipv4Addr::from(0x0a01_0000 + n));
            neighbours.arp(at, ip, (OTHER, Tags::default()), &tables, &mut events);
        }
        let port = PortId::new(9).expect("a port");
        neighbours.arp(
            (Nanos::from_secs(1), port),
            IP,
            (MAC, Tags::default()),
            &tables,
            &mut events,
        );
        let mut asks = ArrayVec::new();
        neighbours.quiet(Nanos::from_secs(230), &mut asks);
        assert_eq!(asks.len(), ASKS_PER_SWEEP);
        assert!(asks.iter().any(|ask| ask.ip == IP), "{asks:?}");
    }

    #[test]
    fn a_quiet_host_is_asked_before_it_ages() {
        let mut scene = Scene::new();
        scene.arp(0, 0, MAC);
        let asked_at = |scene: &mut Scene, ms: u64| {
            let mut asks = ArrayVec::new();
            scene.neighbours.quiet(Nanos::from_millis(ms), &mut asks);
            for ask in &asks {
                scene.neighbours.handle_asked(Nanos::from_millis(ms), ask.ip);
            }
            asks.len()
        };
        let times = [224_999, 225_000, 225_500, 226_000, 227_000, 228_000];
        assert_eq!(times.map(|ms| asked_at(&mut scene, ms)), [0, 1, 0, 1, 1, 0]);
        scene.arp(228_000, 0, MAC);
        assert_eq!(asked_at(&mut scene, 452_999), 0);
        assert_eq!(asked_at(&mut scene, 453_000), 1);
        assert_eq!(scene.place(527_999), Some((0, MAC)));
        assert_eq!(scene.place(528_000), None);
    }

    #[test]
    fn names_are_cut_between_characters() {
        let long = "é".repeat(40);
        assert_eq!(name(Printable(&long)).len(), NAME_MAX);
        let odd = format!("x{long}");
        assert_eq!(name(Printable(&odd)).len(), NAME_MAX - 1);
    }
}
