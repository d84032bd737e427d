//! ARP as a pure machine: answers for its own address, resolves others, announces itself (RFC 826, RFC 5227).

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use castnet_wire::{Arp, ArpOp, MacAddr, Nanos};

/// How an RNIC resolves and announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighbourConfig {
    /// Between two requests for the same address.
    pub retry_interval: Nanos,
    /// Requests without an answer before the address counts as unreachable.
    pub retries: u32,
    /// Between two questions to a neighbour that is known, but in doubt because a QP had to send again: it may have
    /// moved, or what was learned of it was wrong. No question without a doubt.
    pub confirm_interval: Nanos,
    /// Between two announcements of its own address: switches forget addresses that are silent.
    pub announce_interval: Nanos,
    /// Most addresses that are resolved or being resolved.
    pub entries_max: usize,
}

impl Default for NeighbourConfig {
    /// A request every 250 ms, 12 of them; one a second to who is in doubt; an announcement every 30 s; 1,024 addresses.
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

/// Where the resolution of an address stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// Its Ethernet address.
    Reachable(MacAddr),
    /// Asked, no answer yet.
    Pending,
    /// Asked as often as configured. Asking again begins anew.
    Unreachable,
    /// The table is full.
    NoRoom,
}

/// What the ARP machine did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NeighbourStats {
    /// Requests sent for others' addresses.
    pub requests_out: u64,
    /// Answers given for its own address.
    pub replies_out: u64,
    /// Announcements of its own address.
    pub announcements_out: u64,
    /// ARP packets received.
    pub packets_in: u64,
    /// Packets of others that claim its own address.
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
        /// When it was last asked again.
        confirmed: Nanos,
        /// To be asked again.
        in_doubt: bool,
    },
    Unreachable,
}

/// What a packet told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Heard {
    /// A reply to be sent to its target.
    pub(crate) reply: Option<Arp>,
    /// An address that is somewhere, or somewhere else, now.
    pub(crate) learned: Option<(Ipv4Addr, MacAddr)>,
    /// Somebody else claims our address.
    pub(crate) conflict: Option<MacAddr>,
}

#[derive(Debug)]
pub(crate) struct Neighbours {
    mac: MacAddr,
    ip: Ipv4Addr,
    config: NeighbourConfig,
    entries: BTreeMap<Ipv4Addr, Entry>,
    /// When to announce next; the first time at once.
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

    /// Where an address stands; begins to ask where nobody has.
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

    /// A QP had to send again: those that are known are asked whether they are still there. What is known stays until
    /// an answer says otherwise.
    pub(crate) fn doubt(&mut self, now: Nanos) {
        for entry in self.entries.values_mut() {
            if let Entry::Known {
                confirmed, in_doubt, ..
            } = entry
                && now.since(*confirmed) >= self.config.confirm_interval
            {
                *confirmed = now;
                *in_doubt = true;
            }
        }
    }

    /// Takes a packet in.
    pub(crate) fn handle(&mut self, arp: &Arp) -> Heard {
        self.stats.packets_in += 1;
        let mut heard = Heard::default();
        if arp.sender_mac == self.mac || arp.sender_mac.is_multicast() {
            return heard;
        }
        if arp.sender_ip == self.ip {
            self.stats.conflicts += 1;
            heard.conflict = Some(arp.sender_mac);
            return heard;
        }
        // Only those whom we know or ask for: a table that anybody may fill is no bound.
        if let Some(entry) = self.entries.get_mut(&arp.sender_ip) {
            let mac = arp.sender_mac;
            match entry {
                Entry::Known { mac: known, .. } if *known == mac => {}
                Entry::Known { mac: known, .. } => {
                    *known = mac;
                    heard.learned = Some((arp.sender_ip, mac));
                }
                Entry::Asking { .. } | Entry::Unreachable => {
                    *entry = Entry::Known {
                        mac,
                        confirmed: Nanos::ZERO,
                        in_doubt: false,
                    };
                    heard.learned = Some((arp.sender_ip, mac));
                }
            }
        }
        if arp.op == ArpOp::Request && arp.target_ip == self.ip {
            self.stats.replies_out += 1;
            heard.reply = Some(arp.reply(self.mac));
        }
        heard
    }

    /// Announces itself at the next [`Neighbours::poll_transmit`].
    pub(crate) fn announce(&mut self, now: Nanos) {
        self.announce = self.announce.min(now);
    }

    /// The next packet that is due, with the Ethernet address it goes to.
    pub(crate) fn poll_transmit(&mut self, now: Nanos) -> Option<(MacAddr, Arp)> {
        if self.announce <= now {
            self.announce = now + self.config.announce_interval;
            self.stats.announcements_out += 1;
            return Some((MacAddr::BROADCAST, Arp::request(self.mac, self.ip, self.ip)));
        }
        for (&ip, entry) in &mut self.entries {
            match entry {
                Entry::Known { in_doubt, .. } if *in_doubt => *in_doubt = false,
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

    /// When [`Neighbours::poll_transmit`] has something next.
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
    fn it_answers_for_its_own_address_only() {
        let mut m = machine();
        let request = Arp::request(OTHER, THERE, IP);
        assert_eq!(m.handle(&request).reply, Some(request.reply(MAC)));
        assert_eq!(
            m.handle(&Arp::request(OTHER, THERE, Ipv4Addr::new(10, 0, 0, 3))),
            Heard::default()
        );
        assert_eq!(
            m.resolve(Nanos(2), THERE),
            Resolution::Pending,
            "a request to us fills no table"
        );
    }

    #[test]
    fn it_asks_as_often_as_configured_and_again_when_asked_again() {
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
    fn a_neighbour_that_moves_is_learned_anew_and_one_that_repeats_itself_is_no_news() {
        let mut m = machine();
        m.resolve(Nanos(2), THERE);
        let gratuitous = |mac| Arp::request(mac, THERE, THERE);
        assert_eq!(m.handle(&gratuitous(OTHER)).learned, Some((THERE, OTHER)));
        assert_eq!(m.handle(&gratuitous(OTHER)).learned, None);
        let new = MacAddr([2, 0, 0, 0, 0, 9]);
        assert_eq!(m.handle(&gratuitous(new)).learned, Some((THERE, new)));
    }

    #[test]
    fn a_neighbour_in_doubt_is_asked_again_now_and_then_and_stays_known() {
        let mut m = machine();
        let now = Nanos::from_secs(5);
        m.resolve(now, THERE);
        let asked = m.poll_transmit(now).map(|(_, arp)| arp.reply(OTHER)).unwrap();
        m.handle(&asked);
        assert_eq!(m.poll_transmit(now), None);
        m.doubt(now);
        assert_eq!(
            m.poll_transmit(now),
            Some((MacAddr::BROADCAST, Arp::request(MAC, IP, THERE)))
        );
        for step in 1..10 {
            m.doubt(now + Nanos::from_millis(step * 100));
            assert_eq!(m.poll_transmit(now + Nanos::from_millis(step * 100)), None);
        }
        m.doubt(now + Nanos::from_secs(1));
        assert!(m.poll_transmit(now + Nanos::from_secs(1)).is_some());
        assert_eq!(m.resolve(now, THERE), Resolution::Reachable(OTHER));
    }

    #[test]
    fn the_table_is_bounded_and_conflicts_are_told() {
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
    fn it_announces_itself_again_and_again() {
        let mut m = machine();
        let at = m.poll_timeout();
        assert_eq!(at, Nanos(1) + Nanos::from_secs(30));
        assert_eq!(m.poll_transmit(Nanos(at.0 - 1)), None);
        assert!(m.poll_transmit(at).is_some());
        assert_eq!(m.poll_transmit(at), None);
        // When it is asked to.
        m.announce(at);
        assert_eq!(m.poll_timeout(), at);
        assert!(m.poll_transmit(at).is_some());
        assert_eq!(m.poll_timeout(), at + Nanos::from_secs(30));
    }
}
