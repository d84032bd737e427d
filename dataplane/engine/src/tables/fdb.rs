//! The forwarding database: the port at which an Ethernet address was last seen, per VLAN. It never allocates after the start. If it is
//! full, a new address displaces one of the port with most addresses ([`PortTable`]).

use castnet_wire::{MacAddr, Nanos, PortId};

use crate::tables::port_table::PortTable;

/// An address that the switch has learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FdbEntry {
    /// The VLAN it was seen in; 0 without a tag.
    pub vlan: u16,
    /// The address.
    pub mac: MacAddr,
    /// The port it was last seen on.
    pub port: PortId,
    /// When it was last seen, with a precision of a sixteenth of the ageing time.
    pub seen: Nanos,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Learned {
    New,
    /// New. It has displaced the oldest address of this port.
    Displaced {
        at: PortId,
    },
    Moved {
        from: PortId,
    },
    Known,
    Full,
    NotStation,
}

#[derive(Clone, Debug)]
pub(crate) struct Fdb {
    pub(crate) table: PortTable<()>,
    /// For each port: how many times an address that was known there moved away or was displaced.
    pub(crate) lost: [u64; PortId::COUNT],
}

fn key(vlan: u16, mac: MacAddr) -> u64 {
    let [a, b, c, d, e, f] = mac.0;
    u64::from_be_bytes([(vlan >> 8) as u8 & 0x0F, vlan as u8, a, b, c, d, e, f])
}

impl Fdb {
    pub(crate) fn new(capacity: usize, ageing: Nanos, seed: u64) -> Self {
        Self {
            table: PortTable::new(capacity, ageing, seed),
            lost: [0; PortId::COUNT],
        }
    }

    /// A known address causes a write only at the second sight, if it has moved, or if its time is too old.
    pub(crate) fn learn(&mut self, now: Nanos, vlan: u16, mac: MacAddr, port: PortId) -> Learned {
        if mac.is_multicast() || mac == MacAddr::default() {
            return Learned::NotStation;
        }
        let key = key(vlan, mac);
        if self.is_known(now, key, port).is_some_and(|until| now < until) {
            return Learned::Known;
        }
        self.note(now, key, port)
    }

    /// Until when a known address need not be noted again.
    #[inline]
    fn is_known(&self, now: Nanos, key: u64, port: PortId) -> Option<Nanos> {
        let entry = self.table.get(now, key)?;
        let until = entry.seen + Nanos(self.table.ageing.0 / 16);
        (entry.port == port && entry.is_seen_again()).then_some(until)
    }

    /// Until when [`Fdb::learn`] changes nothing for this address at this port, if the port loses no address before.
    pub(crate) fn known_until(&self, now: Nanos, vlan: u16, mac: MacAddr, port: PortId) -> Option<Nanos> {
        self.is_known(now, key(vlan, mac), port)
    }

    #[inline(never)]
    fn note(&mut self, now: Nanos, key: u64, port: PortId) -> Learned {
        let before = self.table.get(now, key).map(|entry| entry.port);
        let learned = match (self.table.see(now, key, (), port, |_, _| false), before) {
            (Err(_), _) => Learned::Full,
            (Ok(Some((_, displaced))), _) => Learned::Displaced { at: displaced.port },
            (Ok(None), Some(from)) if from != port => Learned::Moved { from },
            (Ok(None), Some(_)) => Learned::Known,
            (Ok(None), None) => Learned::New,
        };
        if let Learned::Displaced { at } | Learned::Moved { from: at } = learned {
            self.lost[at.index()] += 1;
        }
        learned
    }

    /// The port of `mac`, if it was seen within the ageing time.
    pub(crate) fn lookup(&self, now: Nanos, vlan: u16, mac: MacAddr) -> Option<PortId> {
        self.table.get(now, key(vlan, mac)).map(|entry| entry.port)
    }

    /// The addresses known at `now`, in no particular order.
    pub(crate) fn entries(&self, now: Nanos) -> impl Iterator<Item = FdbEntry> {
        self.table.iter(now).map(|(key, entry)| {
            let [v0, v1, a, b, c, d, e, f] = key.to_be_bytes();
            FdbEntry {
                vlan: u16::from_be_bytes([v0, v1]),
                mac: MacAddr([a, b, c, d, e, f]),
                port: entry.port,
                seen: entry.seen,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn mac(n: u8) -> MacAddr {
        MacAddr([2, 0, 0, 0, 0, n])
    }

    fn port(n: u8) -> PortId {
        PortId::new(n).unwrap_or_default()
    }

    #[derive(Clone, Debug)]
    enum Op {
        Learn { vlan: u16, mac: u8, port: u8 },
        Lookup { vlan: u16, mac: u8 },
        Wait { nanos: u64 },
        Age,
        Flush { port: u8 },
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => (0u16..3, 0u8..12, 0u8..4).prop_map(|(vlan, mac, port)| Op::Learn { vlan, mac, port }),
            4 => (0u16..3, 0u8..12).prop_map(|(vlan, mac)| Op::Lookup { vlan, mac }),
            2 => (0u64..900).prop_map(|nanos| Op::Wait { nanos }),
            1 => Just(Op::Age),
            1 => (0u8..4).prop_map(|port| Op::Flush { port }),
        ]
    }

    proptest! {
        /// The model is a map from address to port and time, with the same time precision, and a flag for addresses seen twice.
        #[test]
        fn it_agrees_with_a_plain_map(ops in prop::collection::vec(op(), 1..300), seed: u64) {
            const AGEING: Nanos = Nanos(1600);
            let (mut fdb, mut model) = (Fdb::new(36, AGEING, seed), BTreeMap::new());
            let mut now = Nanos(1_000_000);
            for op in ops {
                match op {
                    Op::Learn { vlan, mac: m, port: p } => {
                        let learned = fdb.learn(now, vlan, mac(m), port(p));
                        let live = |(_, seen, _): &(u8, Nanos, bool)| now.since(*seen) < AGEING;
                        let before = model.get(&(vlan, m)).copied().filter(live);
                        let expected = match before {
                            None => Learned::New,
                            Some((from, ..)) if from != p => Learned::Moved { from: port(from) },
                            Some(_) => Learned::Known,
                        };
                        prop_assert_eq!(learned, expected);
                        match before {
                            Some((at, seen, true)) if at == p && now.since(seen).0 < AGEING.0 / 16 => {}
                            before => {
                                let again = before.is_some_and(|(at, ..)| at == p);
                                model.insert((vlan, m), (p, now, again));
                            }
                        }
                    }
                    Op::Lookup { vlan, mac: m } => {
                        let expected = model.get(&(vlan, m)).filter(|(_, seen, _)| now.since(*seen) < AGEING);
                        prop_assert_eq!(fdb.lookup(now, vlan, mac(m)), expected.map(|(p, ..)| port(*p)));
                    }
                    Op::Wait { nanos } => now += Nanos(nanos),
                    Op::Age => fdb.table.age(now, |_, _| {}),
                    Op::Flush { port: p } => {
                        fdb.table.flush(|q| q == port(p), |_, _| {});
                        model.retain(|_, (q, ..)| *q != p);
                    }
                }
                let live = model.values().filter(|(_, seen, _)| now.since(*seen) < AGEING).count();
                prop_assert_eq!(fdb.entries(now).count(), live);
            }
        }
    }

    #[test]
    fn group_addresses_are_no_stations() {
        let mut fdb = Fdb::new(4, Nanos::from_secs(1), 0);
        assert_eq!(
            fdb.learn(Nanos(1), 0, MacAddr::BROADCAST, port(1)),
            Learned::NotStation
        );
        assert_eq!(
            fdb.learn(Nanos(1), 0, MacAddr::default(), port(1)),
            Learned::NotStation
        );
        assert_eq!(fdb.table.len(), 0);
    }

    #[test]
    fn the_same_address_lives_apart_in_two_vlans() {
        let mut fdb = Fdb::new(4, Nanos::from_secs(1), 0);
        fdb.learn(Nanos(1), 0, mac(1), port(1));
        fdb.learn(Nanos(1), 7, mac(1), port(2));
        assert_eq!(fdb.lookup(Nanos(2), 0, mac(1)), Some(port(1)));
        assert_eq!(fdb.lookup(Nanos(2), 7, mac(1)), Some(port(2)));
        assert_eq!(
            fdb.learn(Nanos(3), 7, mac(1), port(3)),
            Learned::Moved { from: port(2) }
        );
    }
}
