//! The forwarding database: which port an Ethernet address was last seen on, per VLAN. Bounded; never allocates after
//! the start; ages by a sweep of bounded pieces.

use castnet_wire::{MacAddr, Nanos, PortId};

use crate::fixed_map::FixedMap;

/// Places that one sweep looks at.
const SWEEP_PLACES: usize = 256;

/// An address that the switch has learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FdbEntry {
    /// The VLAN it was seen in; 0 without a tag.
    pub vlan: u16,
    /// The address.
    pub mac: MacAddr,
    /// The port it was last seen on.
    pub port: PortId,
    /// When it was last seen, to a sixteenth of the ageing time.
    pub seen: Nanos,
}

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    seen: Nanos,
    port: PortId,
}

/// What learning did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Learned {
    New,
    Moved { from: PortId },
    Known,
    Full,
    NotStation,
}

/// The table.
#[derive(Clone, Debug)]
pub(crate) struct Fdb {
    map: FixedMap<Place>,
    ageing: Nanos,
}

fn key(vlan: u16, mac: MacAddr) -> u64 {
    let [a, b, c, d, e, f] = mac.0;
    u64::from_be_bytes([(vlan >> 8) as u8 & 0x0F, vlan as u8, a, b, c, d, e, f])
}

impl Fdb {
    pub(crate) fn new(capacity: usize, ageing: Nanos, seed: u64) -> Self {
        Self {
            map: FixedMap::new(capacity, seed),
            ageing,
        }
    }

    /// Notes that `mac` was seen on `port`. A known address costs a write only where it moved or its time is stale.
    pub(crate) fn learn(&mut self, now: Nanos, vlan: u16, mac: MacAddr, port: PortId) -> Learned {
        if mac.is_multicast() || mac == MacAddr::default() {
            return Learned::NotStation;
        }
        let (ageing, key) = (self.ageing, key(vlan, mac));
        if let Some(place) = self.map.get_mut(key) {
            let (from, age) = (place.port, now.since(place.seen));
            if from != port || age.0 >= ageing.0 / 16 {
                *place = Place { seen: now, port };
            }
            return match age < ageing {
                true if from != port => Learned::Moved { from },
                true => Learned::Known,
                false => Learned::New,
            };
        }
        match self.map.insert(key, Place { seen: now, port }) {
            Ok(()) => Learned::New,
            Err(_) => Learned::Full,
        }
    }

    /// The port of `mac`, where it was seen within the ageing time.
    pub(crate) fn lookup(&self, now: Nanos, vlan: u16, mac: MacAddr) -> Option<PortId> {
        let place = self.map.get(key(vlan, mac))?;
        (now.since(place.seen) < self.ageing).then_some(place.port)
    }

    /// Looks at a bounded piece of the table and forgets what is too old there.
    pub(crate) fn age(&mut self, now: Nanos) {
        let ageing = self.ageing;
        self.map
            .sweep(SWEEP_PLACES, |_, place| now.since(place.seen) < ageing);
    }

    /// How long after one sweep the next is due, so that all of the table is seen four times in an ageing time.
    pub(crate) fn sweep_interval(&self) -> Nanos {
        let sweeps = self.map.places().div_ceil(SWEEP_PLACES) as u64;
        Nanos((self.ageing.0 / (4 * sweeps)).max(1_000_000))
    }

    /// Forgets all that was seen on the ports for which `gone` says so.
    pub(crate) fn flush(&mut self, gone: impl Fn(PortId) -> bool) {
        self.map.retain(|_, place| !gone(place.port));
    }

    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    /// What is known at `now`, in no particular order.
    pub(crate) fn entries(&self, now: Nanos) -> impl Iterator<Item = FdbEntry> {
        self.map
            .iter()
            .filter(move |(_, place)| now.since(place.seen) < self.ageing)
            .map(|(key, place)| {
                let [v0, v1, a, b, c, d, e, f] = key.to_be_bytes();
                FdbEntry {
                    vlan: u16::from_be_bytes([v0, v1]),
                    mac: MacAddr([a, b, c, d, e, f]),
                    port: place.port,
                    seen: place.seen,
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
        /// The model: a map from address to port and time, read with the age compared, written with the same sixteenth.
        #[test]
        fn it_remembers_what_a_plain_map_remembers(
            ops in prop::collection::vec(op(), 1..300), capacity in 1usize..40, seed: u64,
        ) {
            const AGEING: Nanos = Nanos(1600);
            let (mut fdb, mut model) = (Fdb::new(capacity, AGEING, seed), BTreeMap::new());
            let mut now = Nanos(1_000_000);
            for op in ops {
                match op {
                    Op::Learn { vlan, mac: m, port: p } => {
                        let occupied = fdb.len();
                        let learned = fdb.learn(now, vlan, mac(m), port(p));
                        if learned == Learned::Full {
                            prop_assert_eq!(occupied, capacity);
                            prop_assert_eq!(fdb.lookup(now, vlan, mac(m)), None);
                            model.remove(&(vlan, m));
                            continue;
                        }
                        let entry = model.entry((vlan, m)).or_insert((p, now));
                        if entry.0 != p || now.since(entry.1).0 >= AGEING.0 / 16 {
                            *entry = (p, now);
                        }
                    }
                    Op::Lookup { vlan, mac: m } => {
                        let expected = model.get(&(vlan, m)).filter(|(_, seen)| now.since(*seen) < AGEING);
                        prop_assert_eq!(fdb.lookup(now, vlan, mac(m)), expected.map(|(p, _)| port(*p)));
                    }
                    Op::Wait { nanos } => now += Nanos(nanos),
                    Op::Age => fdb.age(now),
                    Op::Flush { port: p } => {
                        fdb.flush(|q| q == port(p));
                        model.retain(|_, (q, _)| *q != p);
                    }
                }
                prop_assert!(fdb.len() <= capacity);
                let live = model.values().filter(|(_, seen)| now.since(*seen) < AGEING).count();
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
        assert_eq!(fdb.len(), 0);
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
