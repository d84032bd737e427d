//! Resolves Ethernet addresses that a rule leaves open, at installation, for as long as its generation runs.

use std::borrow::Cow;
use std::net::Ipv4Addr;

use castnet_engine::{Neighbour, Said};
use castnet_rules::{Endpoint, GroupRule};
use castnet_wire::{MacAddr, PortId};

use crate::command::Command;
use crate::control::{SharedControl, State};
use crate::error::Stopped;

impl SharedControl {
    /// The sources, in order, are the running rule of the same generation, the route with the longest prefix, and ARP.
    /// Routes come before ARP because operators configure them and hosts do not.
    pub(crate) fn resolve<'r>(
        &self,
        state: &State,
        rule: &'r GroupRule,
    ) -> Result<Cow<'r, GroupRule>, Stopped> {
        let is_open = |endpoint: &Endpoint| endpoint.next_hop.mac() == MacAddr::UNSPECIFIED;
        if !rule.endpoints.iter().any(is_open) {
            return Ok(Cow::Borrowed(rule));
        }
        let running = state.groups.get(&rule.mcst_id).map(|group| &group.rule);
        let running = running.filter(|r| (&r.name, r.generation) == (&rule.name, rule.generation));
        let kept = |endpoint: &Endpoint| {
            let same = |e: &&Endpoint| {
                (e.port, e.next_hop.name(), e.next_hop.ip())
                    == (endpoint.port, endpoint.next_hop.name(), endpoint.next_hop.ip())
            };
            Some(running?.endpoints.iter().find(same)?.next_hop.mac())
        };
        let mut resolved = rule.clone();
        // Read at most once, and only if no other source has the address.
        let mut neighbours: Option<Vec<Neighbour>> = None;
        for endpoint in resolved.endpoints.iter_mut().filter(|e| is_open(e)) {
            let Some(ip) = endpoint.next_hop.ip() else {
                continue;
            };
            let mut mac = kept(endpoint).or_else(|| state.next_hop_mac(ip, endpoint.port));
            if mac.is_none() {
                if neighbours.is_none() {
                    neighbours = Some(self.neighbours()?);
                }
                mac = learned_mac(neighbours.as_deref().unwrap_or_default(), ip, endpoint.port);
            }
            if let Some(mac) = mac {
                endpoint.next_hop.set_mac(mac);
            }
        }
        Ok(Cow::Owned(resolved))
    }

    /// As worker 0 has learned them.
    pub(crate) fn neighbours(&self) -> Result<Vec<Neighbour>, Stopped> {
        let entries = Vec::with_capacity(self.config.engine.neighbours_max + PortId::COUNT);
        let worker = self.workers.first().ok_or(Stopped)?;
        worker.request(|reply| Command::Neighbours(entries, reply))
    }
}

fn learned_mac(neighbours: &[Neighbour], ip: Ipv4Addr, port: PortId) -> Option<MacAddr> {
    neighbours.iter().find_map(|neighbour| match neighbour.said {
        Said::Arp { ip: of, mac } if of == ip && neighbour.port == port => Some(mac),
        _ => None,
    })
}
