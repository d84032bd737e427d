//! Hosts that come, change their names, and are forgotten.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use castnet_rules::HostEndpoint;
use castnet_wire::MacAddr;

use crate::error::{Refusal, list_text};
use crate::state::kinds::Party;
use crate::state::pace::Turn;
use crate::state::{Core, HostRecord};

/// Addresses of a host in its groups. A connection keeps its address when its host changes to another one.
const ADDRESSES_MAX: usize = 16;

/// Other addresses of a host.
pub(crate) struct HostChange {
    record: HostRecord,
    /// The name that it had before.
    old: Option<String>,
    /// `None`: it is new.
    turn: Option<Turn>,
}

impl Core {
    /// Groups that have a party of this host which is as wanted.
    fn groups_with(&self, host: &str, wanted: impl Fn(&Party<'_>, bool) -> bool) -> Vec<String> {
        let has = |e: &&crate::state::table::Entry| {
            let kind = e.record().kind.behaviour();
            let mut parties = kind.parties().into_iter();
            parties.any(|party| party.host == host && wanted(&party, kind.lingers()))
        };
        let groups = self.groups.with_host(host).filter(has);
        groups.map(|e| e.record().name.clone()).collect()
    }

    /// Whether a host that has registered loses its address to one that comes with the same Ethernet address: it is the
    /// same machine under a new name, if no group has a connection of the old one.
    pub(crate) fn gives_way(&self, old: &str, mac: MacAddr) -> bool {
        let same = |h: &HostRecord| MacAddr(h.mac) == mac;
        self.facts.hosts.get(old).is_some_and(same)
            && self.facts.unfiled.contains(old)
            && self.groups_with(old, |party, _| party.ends.is_some()).is_empty()
    }

    /// Refuses a host a further address for connections: each of them is an address that a switch gives to nobody else.
    fn check_held(&self, host: &str, ip: Ipv4Addr) -> Result<(), Refusal> {
        let mut held = BTreeSet::new();
        for entry in self.groups.with_host(host) {
            let parties = entry.record().kind.behaviour().parties();
            let own = parties.iter().filter(|party| party.host == host);
            held.extend(own.filter_map(|party| Some(party.ends?.endpoint.ip)));
        }
        match held.len() >= ADDRESSES_MAX && !held.contains(&ip) {
            true => Err(Refusal::TooManyAddresses {
                host: host.into(),
                most: ADDRESSES_MAX,
            }),
            false => Ok(()),
        }
    }

    /// What changes with the addresses of a host, if it may. A change makes the topology anew, for which all calls wait: a host has some at once,
    /// and then one in a second.
    pub(crate) fn host_change(&self, endpoint: &HostEndpoint) -> Result<Option<HostChange>, Refusal> {
        let HostEndpoint { name, ip, mac, .. } = endpoint;
        let (host, mac) = (name.clone(), *mac);
        let record = HostRecord {
            name: host.clone(),
            ip: *ip,
            mac: mac.0,
        };
        let before = self.facts.hosts.get(name);
        if before == Some(&record) {
            return Ok(None);
        }
        self.journal.check_open()?;
        let old = self.facts.host_of(*ip, Some(name));
        let old = old.filter(|old| self.gives_way(old, mac)).map(str::to_owned);
        let is_new = before.is_none() && old.is_none();
        let turn = match is_new {
            true => None,
            false => {
                let turn = self.moves.turn(name, self.now);
                Some(turn.ok_or(Refusal::TooManyMoves { host })?)
            }
        };
        if before.is_some_and(|before| before.ip != *ip) {
            self.check_held(name, *ip)?;
        }
        Ok(Some(HostChange { record, old, turn }))
    }

    /// Notes the addresses of a host. The host that had them before is forgotten, see [`Core::gives_way`].
    pub(crate) fn know(&mut self, endpoint: &HostEndpoint) -> Result<(), Refusal> {
        let name = &endpoint.name;
        let change = self.host_change(endpoint);
        if matches!(change, Err(Refusal::TooManyAddresses { .. }))
            && let Some(turn) = self.moves.turn(name, self.now)
        {
            // All its groups were gone through.
            self.moves.take(name.clone(), turn, self.now);
        }
        let Some(HostChange { record, old, turn }) = change? else {
            return Ok(());
        };
        if let Some(turn) = turn {
            self.moves.take(name.clone(), turn, self.now);
        }
        if let Some(old) = old {
            tracing::info!(host = name, old, ip = %record.ip, "takes over the address of its old name");
            self.set_host(&old, None);
        }
        self.set_host(name, Some(record));
        Ok(())
    }

    /// Forgets a host that has registered or joined.
    pub(crate) fn forget_host(&mut self, name: &str) -> Result<(), Refusal> {
        if !self.facts.hosts.contains_key(name) {
            return Err(match self.facts.knows_host(name) {
                true => {
                    let reason =
                        format!("host {name:?} is in the topology file, which is where to take it out");
                    Refusal::not_now("name", reason)
                }
                false => Refusal::missing("name", format!("there is no host {name:?}")),
            });
        }
        // A job does not keep the place of a host that has gone.
        let groups = self.groups_with(name, |party, of_job| party.ends.is_some() || !of_job);
        if !groups.is_empty() {
            let reason = format!("host {name:?} is a member of groups: {}", list_text(&groups));
            return Err(Refusal::not_now("name", reason));
        }
        self.journal.check_open()?;
        tracing::info!(host = name, "forgotten");
        self.set_host(name, None);
        Ok(())
    }

    fn set_host(&mut self, name: &str, now: Option<HostRecord>) {
        let before = self.facts.hosts.get(name).cloned();
        self.journal.stage_host(name, before, now.is_some());
        self.facts.set_host(name, now);
        self.reported();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::state::core::tests::{core, end, join};

    /// Each job kept the address that its host had when it joined: with one certificate, an address for each job.
    #[test]
    fn the_connections_of_a_host_have_so_many_addresses() {
        let mut core = core(|_| {});
        let seat = |core: &mut Core, n: u8| {
            let mut rank = join(&format!("job{n}"), 0, 2, "");
            rank.endpoint.ip = [10, 0, 1, n].into();
            core.seat_rank(rank, "h0").map(drop)
        };
        for n in 0..ADDRESSES_MAX as u8 {
            core.now += Duration::from_secs(1);
            seat(&mut core, n).unwrap();
        }
        core.now += Duration::from_secs(8);
        seat(&mut core, 0).expect("it is back with the connection that it has");
        // Counting takes a turn: it goes through all groups of the host.
        for _ in 0..8 {
            let refusal = seat(&mut core, 99).unwrap_err();
            assert!(matches!(&refusal, Refusal::TooManyAddresses { .. }), "{refusal}");
        }
        let refusal = seat(&mut core, 99).unwrap_err();
        assert!(matches!(&refusal, Refusal::TooManyMoves { .. }), "{refusal}");
        core.forget("job0").unwrap();
        core.now += Duration::from_secs(1);
        seat(&mut core, 99).expect("it has left another address");
    }

    /// Each change made the topology anew under the lock.
    #[test]
    fn a_host_changes_its_addresses_a_few_times_and_then_once_in_a_second() {
        let mut core = core(|_| {});
        let at = |core: &mut Core, name: &str, mac: u8| {
            let host = HostEndpoint {
                name: name.into(),
                mac: MacAddr([2, 0, 0, 0, 0, mac]),
                ..end(1)
            };
            core.know(&host)
        };
        for mac in 0..9 {
            at(&mut core, "h", mac).unwrap();
        }
        let refusal = at(&mut core, "h", 9).unwrap_err();
        assert!(matches!(refusal, Refusal::TooManyMoves { .. }), "{refusal}");
        at(&mut core, "h", 8).expect("no change");
        at(&mut core, "other", 0).expect("another host");
        core.now += Duration::from_secs(1);
        at(&mut core, "h", 9).unwrap();
        assert!(at(&mut core, "h", 10).is_err());
        core.now += Duration::from_secs(8);
        at(&mut core, "h", 10).unwrap();
    }
}
