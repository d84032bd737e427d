//! The table of neighbours: switches and hosts known by LLDP (one per port), and hosts known by ARP.

use core::net::Ipv4Addr;

use castnet_wire::{MacAddr, Nanos, PortId};

use crate::observe::events::{EventKind, Events};
use crate::observe::neighbour::{Neighbour, Said};
use crate::tables::port_table::{Entry, PortTable};
use crate::tables::published::Tables;

/// How long a host has to answer that it still has its address.
const ANSWER_WITHIN: Nanos = Nanos::from_secs(1);

/// A host seen in ARP. The key is its IPv4 address.
type Sighting = Entry<Host>;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Host {
    mac: MacAddr,
    /// When it was last asked whether it still has its address: another port has claimed it.
    asked: Option<Nanos>,
}

/// A host that is to be asked for its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) port: PortId,
    pub(crate) mac: MacAddr,
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
    events.neighbour(now, neighbour.port, EventKind::NeighbourGone(neighbour));
}

#[derive(Clone, Debug)]
pub(crate) struct Neighbours {
    lldp: Box<[Option<Neighbour>; PortId::COUNT]>,
    pub(crate) arp: PortTable<Host>,
    full_reported: bool,
}

impl Neighbours {
    pub(crate) fn new(capacity: usize, ageing: Nanos, seed: u64) -> Self {
        Self {
            lldp: Box::new([None; PortId::COUNT]),
            arp: PortTable::new(capacity, ageing, seed),
            full_reported: false,
        }
    }

    /// `of` has the same configuration. Does not allocate.
    pub(crate) fn copy_from(&mut self, of: &Self) {
        self.lldp.clone_from(&of.lldp);
        self.arp.copy_from(&of.arp);
        self.full_reported = of.full_reported;
    }

    /// A time to live of zero withdraws the neighbour. Returns true for a new or changed one.
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
        events.neighbour(heard.seen, heard.port, kind);
        !leaves
    }

    /// Records the sender of an ARP packet. A full table displaces a neighbour of the port with most entries, but no member of a group.
    /// An address that was seen at another port stays there until the host there is silent when it is asked; returns whom to ask.
    pub(crate) fn arp(
        &mut self,
        (now, port): (Nanos, PortId),
        ip: Ipv4Addr,
        mac: MacAddr,
        tables: &Tables,
        events: &mut Events,
    ) -> Option<Ask> {
        let before = self.arp.get(now, key(ip)).copied();
        if let Some(old) = before.filter(|old| old.port != port)
            && !tables.is_member(port, ip)
        {
            // A member keeps its port until it ages or the port goes down.
            let is_member = tables.is_member(old.port, ip);
            let asked = old.value.asked;
            if asked.is_some_and(|at| now.since(at) < ANSWER_WITHIN) {
                return None;
            }
            let is_silent = asked.is_some_and(|at| old.seen < at);
            if is_member || !is_silent {
                let ask = self.ask((now, port), (ip, mac), old, events);
                return (!is_member).then_some(ask);
            }
        }
        let is_held = |key: u64, port| tables.is_member(port, Ipv4Addr::from(key as u32));
        let asked = before
            .filter(|old| old.port == port)
            .and_then(|old| old.value.asked);
        let noted = self.arp.see(now, key(ip), Host { mac, asked }, port, is_held);
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
        match before {
            None => events.neighbour(now, port, EventKind::NeighbourAppeared(new)),
            Some(old) if (old.value.mac, old.port) != (mac, port) => {
                events.neighbour(now, port, EventKind::NeighbourChanged(new));
            }
            Some(_) => {}
        }
        None
    }

    fn ask(
        &mut self,
        (now, port): (Nanos, PortId),
        (ip, mac): (Ipv4Addr, MacAddr),
        old: Sighting,
        events: &mut Events,
    ) -> Ask {
        if let Some(entry) = self.arp.get_mut(key(ip)) {
            entry.value.asked = Some(now);
        }
        let claim = Neighbour {
            port,
            said: Said::Arp { ip, mac },
            seen: now,
        };
        let at = old.port;
        events.neighbour(now, port, EventKind::AddressClaimed { claim, at });
        Ask {
            port: old.port,
            mac: old.value.mac,
        }
    }

    /// Removes expired neighbours: all known by LLDP, and a bounded number of those known by ARP.
    pub(crate) fn age(&mut self, now: Nanos, events: &mut Events) {
        for place in self.lldp.iter_mut() {
            let gone =
                place.take_if(|n| matches!(n.said, Said::Lldp { ttl, .. } if now.since(n.seen) >= ttl));
            gone.into_iter().for_each(|gone| report_gone(now, gone, events));
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

    /// By LLDP in order of ports, then those known by ARP at `now` in no particular order.
    pub(crate) fn iter(&self, now: Nanos) -> impl Iterator<Item = Neighbour> {
        let arp = self.arp.iter(now).map(|(key, sighting)| host(key, sighting));
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

    #[test]
    fn an_arp_neighbour_appears_moves_when_it_is_silent_and_ages() {
        let (mut neighbours, mut events) = (Neighbours::new(4, AGEING, 0), Events::new(16));
        let (ip, mac) = (Ipv4Addr::new(10, 0, 0, 1), MacAddr([2, 0, 0, 0, 0, 1]));
        let [p0, p1] = [0, 1].map(|n| PortId::new(n).unwrap_or_default());
        let tables = Tables::default();
        let ask = Some(Ask { port: p0, mac });
        for (ms, port, asks) in [
            (1000, p0, None),
            (2000, p0, None),
            // A claim asks the old place, at most once a second.
            (3000, p1, ask),
            (3500, p1, None),
            // It answers: it keeps the address.
            (3600, p0, None),
            (3999, p1, None),
            (4000, p1, ask),
            (4999, p1, None),
            // Silent.
            (5000, p1, None),
        ] {
            let at = (Nanos::from_millis(ms), port);
            assert_eq!(neighbours.arp(at, ip, mac, &tables, &mut events), asks, "{ms}");
        }
        let seen = |port, seen| Neighbour {
            port,
            said: Said::Arp { ip, mac },
            seen: Nanos::from_millis(seen),
        };
        neighbours.age(Nanos::from_secs(305), &mut events);
        let claimed = |ms| EventKind::AddressClaimed {
            claim: seen(p1, ms),
            at: p0,
        };
        assert_eq!(
            drain(&mut events),
            [
                EventKind::NeighbourAppeared(seen(p0, 1000)),
                claimed(3000),
                claimed(4000),
                EventKind::NeighbourChanged(seen(p1, 5000)),
                EventKind::NeighbourGone(seen(p1, 5000)),
            ]
        );
    }

    /// What was asked before, at another place, does not count.
    #[test]
    fn a_host_that_has_moved_is_asked_anew() {
        let (mut neighbours, mut events) = (Neighbours::new(4, AGEING, 0), Events::new(16));
        let (ip, mac) = (Ipv4Addr::new(10, 0, 0, 1), MacAddr([2, 0, 0, 0, 0, 1]));
        let [p0, p1] = [0, 1].map(|n| PortId::new(n).unwrap_or_default());
        let tables = Tables::default();
        let mut arp = |secs, port| {
            let at = (Nanos::from_secs(secs), port);
            neighbours.arp(at, ip, mac, &tables, &mut events)
        };
        assert_eq!(
            [arp(1, p0), arp(2, p1), arp(3, p1)].map(|ask| ask.is_some()),
            [false, true, false]
        );
        assert_eq!(arp(4, p0), Some(Ask { port: p1, mac }));
    }

    #[test]
    fn names_are_cut_between_characters() {
        let long = "é".repeat(40);
        assert_eq!(name(Printable(&long)).len(), NAME_MAX);
        let odd = format!("x{long}");
        assert_eq!(name(Printable(&odd)).len(), NAME_MAX - 1);
    }
}
