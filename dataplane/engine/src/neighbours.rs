//! Who is on the links: switches and hosts that speak LLDP (one per port), and hosts that ARP shows.

use core::net::Ipv4Addr;

use arrayvec::ArrayString;
use castnet_wire::{MacAddr, Nanos, PortId};

use crate::events::{EventKind, Events};
use crate::fixed_map::FixedMap;

/// Bytes of a name that are kept.
pub const NAME_MAX: usize = 64;

/// Places that one sweep over the ARP sightings looks at.
const SWEEP_PLACES: usize = 64;

/// A short name, cut at [`NAME_MAX`] bytes.
pub type Name = ArrayString<NAME_MAX>;

/// Cuts `text` to a [`Name`].
pub(crate) fn name(text: &str) -> Name {
    let mut end = text.len().min(NAME_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    Name::from(text.get(..end).unwrap_or_default()).unwrap_or_default()
}

/// Somebody at the other end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Our port.
    pub port: PortId,
    /// How we know, and what he said.
    pub said: Said,
    /// When he was last heard.
    pub seen: Nanos,
}

/// What a neighbour said of himself.
#[expect(
    clippy::large_enum_variant,
    reason = "there are few, and a box would allocate on the path of a frame"
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// By LLDP.
    Lldp {
        /// Chassis id: an Ethernet address, or text.
        chassis: Name,
        /// Port id at his side.
        remote_port: Name,
        /// System name.
        system: Name,
        /// How long it stays true.
        ttl: Nanos,
    },
    /// By ARP.
    Arp {
        /// His address.
        ip: Ipv4Addr,
        /// His Ethernet address.
        mac: MacAddr,
    },
}

#[derive(Clone, Copy, Debug, Default)]
struct Sighting {
    mac: MacAddr,
    port: PortId,
    seen: Nanos,
}

impl Sighting {
    fn neighbour(self, ip: Ipv4Addr) -> Neighbour {
        Neighbour {
            port: self.port,
            said: Said::Arp { ip, mac: self.mac },
            seen: self.seen,
        }
    }
}

/// All of them.
#[derive(Clone, Debug)]
pub(crate) struct Neighbours {
    lldp: Box<[Option<Neighbour>; PortId::COUNT]>,
    arp: FixedMap<Sighting>,
    ageing: Nanos,
}

impl Neighbours {
    pub(crate) fn new(capacity: usize, ageing: Nanos, seed: u64) -> Self {
        Self {
            lldp: Box::new([None; PortId::COUNT]),
            arp: FixedMap::new(capacity, seed),
            ageing,
        }
    }

    /// An LLDP frame came in. A time to live of zero says goodbye. Whether it is from somebody new.
    pub(crate) fn lldp(&mut self, heard: Neighbour, events: &mut Events) -> bool {
        let place = &mut self.lldp[heard.port.index()];
        let leaves = matches!(heard.said, Said::Lldp { ttl: Nanos::ZERO, .. });
        let before = match leaves {
            true => place.take(),
            false => place.replace(heard),
        };
        let kind = match before {
            Some(old) if leaves => EventKind::NeighbourGone(old),
            None if leaves => return false,
            Some(old) if old.said == heard.said => return false,
            Some(_) => EventKind::NeighbourChanged(heard),
            None => EventKind::NeighbourAppeared(heard),
        };
        events.push(heard.seen, kind);
        !leaves
    }

    /// An ARP packet showed who has `ip`. Where there is no place for another, it is forgotten.
    pub(crate) fn arp(&mut self, now: Nanos, port: PortId, ip: Ipv4Addr, mac: MacAddr, events: &mut Events) {
        let new = Sighting { mac, port, seen: now };
        let key = u64::from(u32::from(ip));
        let old = self
            .arp
            .get(key)
            .copied()
            .filter(|s| now.since(s.seen) < self.ageing);
        if self.arp.insert(key, new).is_err() {
            return;
        }
        match old {
            None => events.push(now, EventKind::NeighbourAppeared(new.neighbour(ip))),
            Some(old) if (old.mac, old.port) != (mac, port) => {
                events.push(now, EventKind::NeighbourChanged(new.neighbour(ip)));
            }
            Some(_) => {}
        }
    }

    /// Forgets who has not been heard for too long: all LLDP neighbours, and a bounded piece of the ARP sightings.
    pub(crate) fn age(&mut self, now: Nanos, events: &mut Events) {
        for place in self.lldp.iter_mut() {
            let gone =
                place.take_if(|n| matches!(n.said, Said::Lldp { ttl, .. } if now.since(n.seen) >= ttl));
            if let Some(neighbour) = gone {
                events.push(now, EventKind::NeighbourGone(neighbour));
            }
        }
        let ageing = self.ageing;
        self.arp.sweep(SWEEP_PLACES, |ip, sighting| {
            let stays = now.since(sighting.seen) < ageing;
            if !stays {
                events.push(
                    now,
                    EventKind::NeighbourGone(sighting.neighbour(Ipv4Addr::from(ip as u32))),
                );
            }
            stays
        });
    }

    /// Forgets at once who was on the ports for which `gone` says so.
    pub(crate) fn flush(&mut self, now: Nanos, gone: impl Fn(PortId) -> bool, events: &mut Events) {
        for place in self.lldp.iter_mut() {
            if let Some(neighbour) = place.take_if(|n| gone(n.port)) {
                events.push(now, EventKind::NeighbourGone(neighbour));
            }
        }
        self.arp.retain(|ip, sighting| {
            if gone(sighting.port) {
                events.push(
                    now,
                    EventKind::NeighbourGone(sighting.neighbour(Ipv4Addr::from(ip as u32))),
                );
            }
            !gone(sighting.port)
        });
    }

    /// All that are known at `now`: by LLDP in order of ports, then by ARP in no particular order.
    pub(crate) fn iter(&self, now: Nanos) -> impl Iterator<Item = Neighbour> {
        let arp = self
            .arp
            .iter()
            .filter(move |(_, s)| now.since(s.seen) < self.ageing);
        let lldp = self.lldp.iter().flatten().copied();
        lldp.chain(arp.map(|(ip, sighting)| sighting.neighbour(Ipv4Addr::from(ip as u32))))
    }

    /// Whether nobody is remembered.
    pub(crate) fn is_empty(&self) -> bool {
        self.arp.len() == 0 && self.lldp.iter().all(Option::is_none)
    }

    /// How long after one ageing the next is due.
    pub(crate) fn sweep_interval(&self) -> Nanos {
        let sweeps = self.arp.places().div_ceil(SWEEP_PLACES) as u64;
        Nanos((self.ageing.0 / (4 * sweeps)).clamp(1_000_000, 1_000_000_000))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGEING: Nanos = Nanos::from_secs(300);

    fn drain(events: &mut Events) -> Vec<EventKind> {
        core::iter::from_fn(|| events.pop()).map(|e| e.kind).collect()
    }

    fn heard(seen: u64, system: &str, ttl: u64) -> Neighbour {
        let said = Said::Lldp {
            chassis: name("02:00:00:00:00:01"),
            remote_port: name("p0"),
            system: name(system),
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
    fn a_time_to_live_of_zero_says_goodbye() {
        let (mut neighbours, mut events) = (Neighbours::new(4, AGEING, 0), Events::new(16));
        neighbours.lldp(heard(1, "leaf1", 0), &mut events);
        neighbours.lldp(heard(2, "leaf1", 9), &mut events);
        neighbours.lldp(heard(3, "leaf1", 0), &mut events);
        assert_eq!(drain(&mut events).len(), 2);
        assert_eq!(neighbours.iter(Nanos::from_secs(3)).count(), 0);
    }

    #[test]
    fn an_arp_neighbour_appears_moves_and_ages() {
        let (mut neighbours, mut events) = (Neighbours::new(4, AGEING, 0), Events::new(16));
        let (ip, mac) = (Ipv4Addr::new(10, 0, 0, 1), MacAddr([2, 0, 0, 0, 0, 1]));
        let [p0, p1] = [0, 1].map(|n| PortId::new(n).unwrap_or_default());
        neighbours.arp(Nanos::from_secs(1), p0, ip, mac, &mut events);
        neighbours.arp(Nanos::from_secs(2), p0, ip, mac, &mut events);
        neighbours.arp(Nanos::from_secs(3), p1, ip, mac, &mut events);
        let moved = Neighbour {
            port: p1,
            said: Said::Arp { ip, mac },
            seen: Nanos::from_secs(3),
        };
        neighbours.age(Nanos::from_secs(303), &mut events);
        let events = drain(&mut events);
        assert!(matches!(events[0], EventKind::NeighbourAppeared(n) if n.port == p0));
        assert_eq!(
            events[1..],
            [
                EventKind::NeighbourChanged(moved),
                EventKind::NeighbourGone(moved)
            ]
        );
    }

    #[test]
    fn names_are_cut_between_characters() {
        let long = "é".repeat(40);
        assert_eq!(name(&long).len(), NAME_MAX);
        let odd = format!("x{long}");
        assert_eq!(name(&odd).len(), NAME_MAX - 1);
    }
}
