//! Frames that belong to no group: Ethernet switching, routing, ARP, LLDP (contract S4).

mod arp;
mod ethernet;
mod flow;
mod lldp;
mod registration;

use core::net::Ipv4Addr;
use std::sync::Arc;

use arrayvec::ArrayVec;
use castnet_wire::{Limit, Nanos, PortId, RoceHeader, Transport};

use crate::bridge::lldp::ANSWERS;
pub use crate::bridge::registration::RegistrationFrame;
use crate::bridge::registration::Registrations;
use crate::config::EngineConfig;
use crate::egress::Egress;
use crate::group::services::Services;
use crate::group::table::Groups;
use crate::observe::events::Events;
use crate::observe::trace::Observer;
use crate::output::cx::Cx;
use crate::output::{Output, Ports};
use crate::port_set::PortSet;
use crate::tables::fdb::Fdb;
use crate::tables::flows::Flows;
use crate::tables::neighbours::Neighbours;
use crate::tables::published::Tables;

#[derive(Debug)]
pub(crate) struct Bridge {
    pub(crate) config: Arc<EngineConfig>,
    pub(crate) tables: Arc<Tables>,
    pub(crate) fdb: Fdb,
    pub(crate) fdb_full_reported: bool,
    pub(crate) flows: Flows,
    pub(crate) neighbours: Neighbours,
    pub(crate) lldp_at: Option<Nanos>,
    /// Ports that have sent no LLDP since they came up.
    pub(crate) lldp_fresh: PortSet,
    pub(crate) lldp_answers: Limit,
    pub(crate) ageing_at: Option<Nanos>,
    pub(crate) registrations: Registrations,
}

impl Bridge {
    pub(crate) fn new(config: Arc<EngineConfig>) -> Self {
        let (ageing, seed) = (config.fdb_ageing, config.hash_seed);
        Self {
            tables: Arc::default(),
            fdb: Fdb::new(config.fdb_capacity, ageing, seed),
            fdb_full_reported: false,
            flows: Flows::new(config.flows),
            neighbours: Neighbours::new(config.neighbours_max, ageing, seed),
            lldp_at: config.lldp_interval.map(|_| Nanos::ZERO),
            lldp_fresh: PortSet::ALL,
            lldp_answers: ANSWERS,
            ageing_at: None,
            registrations: Registrations::new(config.registration.as_ref()),
            config,
        }
    }

    /// The ports by which a static core may bring data: those of next hops, and others that are configured. Hosts are at other ports.
    fn core_ports(&self) -> PortSet {
        self.tables.routes.ports.or(self.config.core_ports)
    }

    /// Whether a static core may bring data for a group by port `ingress`, if the endpoint towards its source is at `upstream`.
    pub(crate) fn leads_to_core(&self, ingress: PortId, upstream: PortId) -> bool {
        ingress == upstream || self.core_ports().contains(ingress)
    }

    /// Whether a port leads to a static core, or no port is known that does.
    pub(crate) fn may_lead_to_core(&self, ingress: PortId) -> bool {
        let ports = self.core_ports();
        ports.is_empty() || ports.contains(ingress)
    }

    /// The address of a static core in a packet that comes by a port which does not lead there: a host has sent it, because nothing but a core
    /// sends RC to a multicast address. A switch that knows no ports of a core has no part in one, and passes what it gets (contract S4).
    pub(crate) fn forged_core(&self, ingress: PortId, header: &RoceHeader) -> Option<Ipv4Addr> {
        let (_, dst) = header.ip.v4()?;
        let is_forged = dst.is_multicast()
            && header.bth.opcode.info().transport == Transport::Rc
            && !self.may_lead_to_core(ingress);
        is_forged.then_some(dst)
    }

    /// Forgets addresses learned on ports that went down.
    pub(crate) fn set_tables(
        &mut self,
        now: Nanos,
        tables: Arc<Tables>,
        ports: &mut Ports,
        events: &mut Events,
    ) {
        self.forget_flows();
        let up = tables.up.and(ports.present);
        let gone = PortSet(ports.up.0 & !up.0);
        if !gone.is_empty() {
            self.fdb.table.flush(|port| gone.contains(port), |_, _| {});
            self.neighbours.flush(now, |port| gone.contains(port), events);
        }
        let came = PortSet(up.0 & !ports.up.0);
        if !came.is_empty() && self.lldp_at.is_some() {
            self.lldp_at = Some(now);
        }
        self.lldp_fresh = self.lldp_fresh.or(came);
        ports.up = up;
        for (port, mtu) in &tables.mtus {
            ports.set_mtu(*port, *mtu);
        }
        self.tables = tables;
    }

    pub(crate) fn poll_timeout(&self) -> Option<Nanos> {
        self.lldp_at.into_iter().chain(self.ageing_at).min()
    }

    /// If due, sends LLDP frames and removes a bounded number of expired entries.
    pub(crate) fn handle_timeout<E: Egress, O: Observer>(
        &mut self,
        cx: &mut Cx<'_, E, O>,
        services: &mut Services,
    ) {
        if let (Some(at), Some(interval)) = (self.lldp_at, self.config.lldp_interval)
            && cx.now >= at
        {
            self.lldp_at = Some(cx.now + interval);
            self.send_lldp(cx, &mut services.output, interval);
        }
        if self.ageing_at.is_some_and(|at| cx.now >= at) {
            let mut quiet = ArrayVec::new();
            self.neighbours.quiet(cx.now, &mut quiet);
            for ask in &quiet {
                self.ask(cx, &mut services.output, ask);
            }
            self.age(cx.now, &mut services.events);
        }
    }

    /// Called when an address is learned.
    pub(crate) fn start_ageing(&mut self, now: Nanos) {
        if self.ageing_at.is_none() {
            self.ageing_at = Some(now + self.ageing_interval());
        }
    }

    fn ageing_interval(&self) -> Nanos {
        let (fdb, neighbours) = (&self.fdb.table, &self.neighbours.arp);
        fdb.sweep_interval().min(neighbours.sweep_interval())
    }

    fn age(&mut self, now: Nanos, events: &mut Events) {
        self.fdb.table.age(now, |_, _| {});
        self.neighbours.age(now, events);
        events.report_suppressed(now);
        self.fdb_full_reported &= self.fdb.table.is_full();
        let idle = self.fdb.table.len() == 0 && self.neighbours.is_empty();
        self.ageing_at = (!idle).then(|| now + self.ageing_interval());
    }
}

pub(crate) struct Bridging<'a> {
    pub(crate) own: &'a mut Bridge,
    pub(crate) output: &'a mut Output,
    pub(crate) events: &'a mut Events,
    pub(crate) groups: &'a Groups,
}

impl Bridging<'_> {
    /// True for an address of a group or the switch, for which ARP requests are answered.
    pub(crate) fn answers_for(&self, address: Ipv4Addr) -> bool {
        self.is_group(address) || self.own.config.addresses.contains(&address)
    }

    pub(crate) fn is_group(&self, address: Ipv4Addr) -> bool {
        self.groups.find(address).is_some() || self.own.tables.is_group(address)
    }

    /// Why no host may have this source: it is the address of a group here or, at a port where hosts are, of one elsewhere.
    pub(crate) fn forgery(&self, ingress: PortId, source: Ipv4Addr) -> Option<&'static str> {
        if self.is_group(source) {
            Some("a group's address, in whose name only its switches speak")
        } else if self
            .own
            .tables
            .guards
            .iter()
            .any(|guard| guard.refuses(ingress, source))
        {
            Some("within an mcst_prefix of the topology file, and the port is one of hosts")
        } else {
            None
        }
    }
}
