//! ARP as a pure machine: answers requests for its own address, resolves others, announces itself (RFC 826, RFC 5227).

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use castnet_wire::{Arp, ArpOp, MacAddr, Nanos};

/// Configuration of ARP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighbourConfig {
    /// Interval between requests for the same address.
    pub retry_interval: Nanos,
    /// The number of unanswered requests after which an address is unreachable.
    pub retries: u32,
    /// Minimum interval between confirmation requests to a known neighbour. A neighbour is confirmed only
    /// after a QP had to retransmit: it may have moved, or a learned address may be wrong.
    pub confirm_interval: Nanos,
    /// Interval between announcements of the own address. Switches age out silent addresses.
    pub announce_interval: Nanos,
    /// The maximum number of addresses in the table.
    pub entries_max: usize,
}

impl Default for NeighbourConfig {
    /// Requests every 250 ms, at most 12; confirmation once a second; announcements every 30 s; 1,024 addresses.
    fn default() -> Self {
        Self {
            retry_interval: Nanos::from_millis(250),
            retries: 12,
            confirm_interval: Nanos::from_secs(1),
            announce_interval: Nanos::from_secs(30),
            entries_max: 1024,
        }
    }
}

/// State of the resolution of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// The address is resolved.
    Reachable(MacAddr),
    /// A request was sent and not answered yet.
    Pending,
    /// All requests were unanswered. The next call starts again.
    Unreachable,
    /// The table is full.
    NoRoom,
}

/// Counters of the ARP machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NeighbourStats {
    /// Requests sent for other addresses.
    pub requests_out: u64,
    /// Replies sent for the own address.
    pub replies_out: u64,
    /// Announcements sent for the own address.
    pub announcements_out: u64,
    /// ARP packets received.
    pub packets_in: u64,
    /// Packets from other hosts that claim the own address.
    pub conflicts: u64,
}

#[derive(Clone, Copy, Debug)]
enum Entry {
    Asking {
        sent: u32,
        next: Nanos,
    },
    Known {
        mac: MacAddr,
        /// The time of the last confirmation request.
        confirmed: Nanos,
        /// A confirmation request must be sent.
        unconfirmed: bool,
    },
    Unreachable,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ArpOutcome {
    pub(crate) reply: Option<Arp>,
    /// An address that was learned or has changed.
    pub(crate) learned: Option<(Ipv4Addr, MacAddr)>,
    /// The Ethernet address of another host that claims the own address.
    pub(crate) conflict: Option<MacAddr>,
}

#[derive(Debug)]
pub(crate) struct Neighbours {
    mac: MacAddr,
    ip: Ipv4Addr,
    config: NeighbourConfig,
    entries: BTreeMap<Ipv4Addr, Entry>,
    /// The time of the next announcement. The first one is due at once.
    announce: Nanos,
    stats: NeighbourStats,
}

impl Neighbours {
    pub(crate) fn new(mac: MacAddr, ip: Ipv4Addr, config: NeighbourConfig) -> Self {
        Self {
            mac,
            ip,
            config,
            entries: BTreeMap::new(),
            announce: Nanos::ZERO,
            stats: NeighbourStats::default(),
        }
    }

    pub(crate) fn stats(&self) -> NeighbourStats {
        self.stats
    }

    /// Starts the resolution if necessary.
    pub(crate) fn resolve(&mut self, now: Nanos, ip: Ipv4Addr) -> Resolution {
        match self.entries.get(&ip) {
            Some(Entry::Known { mac, .. }) => return Resolution::Reachable(*mac),
            Some(Entry::Asking { .. }) => return Resolution::Pending,
            Some(Entry::Unreachable) => {
                self.entries.remove(&ip);
                return Resolution::Unreachable;
            }
            None => {}
        }
        if self.entries.len() >= self.config.entries_max {
            return Resolution::NoRoom;
        }
        self.entries.insert(ip, Entry::Asking { sent: 0, next: now });
        Resolution::Pending
    }

    /// Requests confirmation of all known neighbours, which stay valid until a reply changes them.
    pub(crate) fn confirm_all(&mut self, now: Nanos) {
        for entry in self.entries.values_mut() {
            if let Entry::Known {
                confirmed,
                unconfirmed,
                ..
            } = entry
                && now.since(*confirmed) >= self.config.confirm_interval
            {
                *confirmed = now;
                *unconfirmed = true;
            }
        }
    }

    pub(crate) fn handle(&mut self, arp: &Arp) -> ArpOutcome {
        self.stats.packets_in += 1;
        let mut outcome = ArpOutcome::default();
        if arp.sender_mac == self.mac || arp.sender_mac.is_multicast() {
            return outcome;
        }
        if arp.sender_ip == self.ip {
            self.stats.conflicts += 1;
            outcome.conflict = Some(arp.sender_mac);
            return outcome;
        }
        // Only known or requested addresses are updated. Otherwise any host could fill the table.
        if let Some(entry) = self.entries.get_mut(&arp.sender_ip) {
            let mac = arp.sender_mac;
            match entry {
                Entry::Known { mac: known, .. } if *known == mac => {}
                Entry::Known { mac: known, .. } => {
                    *known = mac;
                    outcome.learned = Some((arp.sender_ip, mac));
                }
                Entry::Asking { .. } | Entry::Unreachable => {
                    *entry = Entry::Known {
                        mac,
                        confirmed: Nanos::ZERO,
                        unconfirmed: false,
                    };
                    outcome.learned = Some((arp.sender_ip, mac));
                }
            }
        }
        if arp.op == ArpOp::Request && arp.target_ip == self.ip {
            self.stats.replies_out += 1;
            outcome.reply = Some(arp.reply(self.mac));
        }
        outcome
    }

    pub(crate) fn announce(&mut self, now: Nanos) {
        self.announce = self.announce.min(now);
    }

    pub(crate) fn poll_transmit(&mut self, now: Nanos) -> Option<(MacAddr, Arp)> {
        if self.announce <= now {
            self.announce = now + self.config.announce_interval;
            self.stats.announcements_out += 1;
            return Some((MacAddr::BROADCAST, Arp::request(self.mac, self.ip, self.ip)));
        }
        for (&ip, entry) in &mut self.entries {
            match entry {
                Entry::Known { unconfirmed, .. } if *unconfirmed => *unconfirmed = false,
                Entry::Asking { sent, next } if *next <= now => {
                    if *sent >= self.config.retries {
                        *entry = Entry::Unreachable;
                        continue;
                    }
                    *sent += 1;
                    *next = now + self.config.retry_interval;
                }
                Entry::Known { .. } | Entry::Asking { .. } | Entry::Unreachable => continue,
            }
            self.stats.requests_out += 1;
            return Some((MacAddr::BROADCAST, Arp::request(self.mac, self.ip, ip)));
        }
        None
    }

    pub(crate) fn poll_timeout(&self) -> Nanos {
        let asking = self.entries.values().filter_map(|entry| match entry {
            Entry::Asking { next, .. } => Some(*next),
            Entry::Known { .. } | Entry::Unreachable => None,
        });
        asking.fold(self.announce, Nanos::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const OTHER: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
    const IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const THERE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

    fn machine() -> Neighbours {
        let config = NeighbourConfig {
            retries: 3,
            entries_max: 2,
            ..NeighbourConfig::default()
        };
        let mut machine = Neighbours::new(MAC, IP, config);
        let announced = machine.poll_transmit(Nanos(1));
        assert_eq!(announced, Some((MacAddr::BROADCAST, Arp::request(MAC, IP, IP))));
        machine
    }

    #[test]
    fn replies_are_for_the_own_address_only() {
        let mut m = machine();
        let request = Arp::request(OTHER, THERE, IP);
        assert_eq!(m.handle(&request).reply, Some(request.reply(MAC)));
        assert_eq!(
            m.handle(&Arp::request(OTHER, THERE, Ipv4Addr::new(10, 0, 0, 3))),
            ArpOutcome::default()
        );
        assert_eq!(
            m.resolve(Nanos(2), THERE),
            Resolution::Pending,
            "a request adds no entry to the table"
        );
    }

    #[test]
    fn requests_are_sent_as_often_as_configured() {
        let mut m = machine();
        let mut now = Nanos(2);
        assert_eq!(m.resolve(now, THERE), Resolution::Pending);
        for _ in 0..3 {
            assert_eq!(
                m.poll_transmit(now),
                Some((MacAddr::BROADCAST, Arp::request(MAC, IP, THERE)))
            );
            assert_eq!(m.poll_transmit(now), None);
            assert_eq!(m.resolve(now, THERE), Resolution::Pending);
            now = m.poll_timeout();
        }
        assert_eq!(m.poll_transmit(now), None);
        assert_eq!(m.resolve(now, THERE), Resolution::Unreachable);
        assert_eq!(m.resolve(now, THERE), Resolution::Pending);
        assert!(m.poll_transmit(now).is_some());
        let learned = m.handle(&Arp::request(MAC, IP, THERE).reply(OTHER)).learned;
        assert_eq!(learned, Some((THERE, OTHER)));
        assert_eq!(m.resolve(now, THERE), Resolution::Reachable(OTHER));
    }

    #[test]
    fn a_neighbour_that_moves_is_learned_once() {
        let mut m = machine();
        m.resolve(Nanos(2), THERE);
        let gratuitous = |mac| Arp::request(mac, THERE, THERE);
        assert_eq!(m.handle(&gratuitous(OTHER)).learned, Some((THERE, OTHER)));
        assert_eq!(m.handle(&gratuitous(OTHER)).learned, None);
        let new = MacAddr([2, 0, 0, 0, 0, 9]);
        assert_eq!(m.handle(&gratuitous(new)).learned, Some((THERE, new)));
    }

    #[test]
    fn an_unconfirmed_neighbour_is_asked_periodically_and_stays_known() {
        let mut m = machine();
        let now = Nanos::from_secs(5);
        m.resolve(now, THERE);
        let asked = m.poll_transmit(now).map(|(_, arp)| arp.reply(OTHER)).unwrap();
        m.handle(&asked);
        assert_eq!(m.poll_transmit(now), None);
        m.confirm_all(now);
        assert_eq!(
            m.poll_transmit(now),
            Some((MacAddr::BROADCAST, Arp::request(MAC, IP, THERE)))
        );
        for step in 1..10 {
            m.confirm_all(now + Nanos::from_millis(step * 100));
            assert_eq!(m.poll_transmit(now + Nanos::from_millis(step * 100)), None);
        }
        m.confirm_all(now + Nanos::from_secs(1));
        assert!(m.poll_transmit(now + Nanos::from_secs(1)).is_some());
        assert_eq!(m.resolve(now, THERE), Resolution::Reachable(OTHER));
    }

    #[test]
    fn the_table_is_bounded_and_conflicts_are_reported() {
        let mut m = machine();
        m.resolve(Nanos(2), THERE);
        m.resolve(Nanos(2), Ipv4Addr::new(10, 0, 0, 3));
        assert_eq!(
            m.resolve(Nanos(2), Ipv4Addr::new(10, 0, 0, 4)),
            Resolution::NoRoom
        );
        assert_eq!(m.handle(&Arp::request(OTHER, IP, THERE)).conflict, Some(OTHER));
        assert_eq!(m.stats().conflicts, 1);
    }

    #[test]
    fn announcements_are_periodic() {
        let mut m = machine();
        let at = m.poll_timeout();
        assert_eq!(at, Nanos(1) + Nanos::from_secs(30));
        assert_eq!(m.poll_transmit(Nanos(at.0 - 1)), None);
        assert!(m.poll_transmit(at).is_some());
        assert_eq!(m.poll_transmit(at), None);
        // An explicit announcement.
        m.announce(at);
        assert_eq!(m.poll_timeout(), at);
        assert!(m.poll_transmit(at).is_some());
        assert_eq!(m.poll_timeout(), at + Nanos::from_secs(30));
    }
}
