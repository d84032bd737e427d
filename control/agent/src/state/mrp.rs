//! Registrations of MRP: packets are given to the machine, and the groups that it asks for are installed as those of controllers and
//! operators are.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use castnet_mrp::{Dropped, Hop, Limits, Outgoing, Received, Registrar, Switch, Upstream};
use castnet_rules::{GroupRule, RouteHop};
use castnet_wire::{
    Datagram, DropReason, Limit, MacAddr, McstId, MrpPacket, MrpReason, MrpRefusal, Nanos, PortId,
};
use castnet_worker::InstallError;
use castnet_worker::engine::{InstallError as RefusedBy, PortSet, RegistrationFrame, Said};

use crate::state::core::Core;
use crate::state::pipeline::Pipeline;
use crate::state::refusal::Refusal;

/// A port's refusals in the log. The counters of drops have them all.
const LOGGED: Limit = Limit::new(1, Nanos::from_millis(1_000));
/// How long tables are used before they are read again.
const FRESH: Nanos = Nanos::from_millis(20);

/// A port that leads to other switches which serve MRP, where no LLDP shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FabricPort {
    /// The port.
    pub port: PortId,
    /// The Ethernet address of a switch there. `None`: only routes lead to switches there, by the addresses of their next hops.
    pub mac: Option<MacAddr>,
}

/// Reads a packet.
///
/// # Errors
/// [`DropReason::Malformed`].
pub fn received(RegistrationFrame { port, frame }: &RegistrationFrame) -> Result<Received, DropReason> {
    let parsed = Datagram::parse(frame).and_then(|datagram| {
        Ok(Received {
            port: *port,
            mac: datagram.macs.1,
            from: datagram.from.0,
            mcst_id: McstId(datagram.to.0),
            packet: MrpPacket::parse(datagram.payload)?,
        })
    });
    parsed.map_err(|_| DropReason::Malformed)
}

/// The registrations at a switch.
#[derive(Debug)]
pub struct Registrations {
    registrar: Registrar,
    fabric: Vec<FabricPort>,
    /// `None`: nothing is sent.
    udp_port: Option<u16>,
    tables: Tables,
    logged: BTreeMap<PortId, Limit>,
    frames: Vec<(PortId, Vec<u8>)>,
}

impl Registrations {
    /// No registrations yet. `udp_port`: that of [`castnet_worker::engine::RegistrationConfig`].
    pub fn new(limits: Limits, fabric: Vec<FabricPort>, udp_port: Option<u16>) -> Self {
        Self {
            registrar: Registrar::new(limits),
            fabric,
            udp_port,
            tables: Tables::default(),
            logged: BTreeMap::new(),
            frames: Vec::new(),
        }
    }

    /// When registrations end, unless they are repeated.
    pub fn poll_timeout(&self) -> Option<Nanos> {
        self.registrar.poll_timeout()
    }

    /// Removes the groups of some registrations that have ended.
    pub fn handle_timeout(&mut self, now: Nanos, core: &mut Core, pipeline: &mut dyn Pipeline) {
        let (registrar, mut around) = self.around(now, core, pipeline);
        registrar.handle_timeout(now, &mut around);
    }

    fn around<'a>(
        &'a mut self,
        now: Nanos,
        core: &'a mut Core,
        pipeline: &'a mut dyn Pipeline,
    ) -> (&'a mut Registrar, Around<'a>) {
        let around = Around {
            now,
            core,
            pipeline,
            fabric: &self.fabric,
            udp_port: self.udp_port,
            tables: &mut self.tables,
            frames: &mut self.frames,
        };
        (&mut self.registrar, around)
    }

    /// Handles a packet, or says why it is dropped.
    ///
    /// # Errors
    /// [`DropReason::RegistrationRefused`].
    pub fn handle(
        &mut self,
        now: Nanos,
        received: Received,
        core: &mut Core,
        pipeline: &mut dyn Pipeline,
    ) -> Result<(), DropReason> {
        let (mcst_id, leader, port) = (received.mcst_id, received.from, received.port);
        let (registrar, mut around) = self.around(now, core, pipeline);
        let Err(dropped) = registrar.handle(now, received, &mut around) else {
            return Ok(());
        };
        if matches!(dropped, Dropped::Refused(_) | Dropped::TooOften { .. })
            && self.logged.entry(port).or_insert(LOGGED).allows(now)
        {
            tracing::info!(%mcst_id, %leader, %port, %dropped, "registration");
        }
        Err(DropReason::RegistrationRefused)
    }

    /// The frames to be sent, each by its port.
    pub fn poll_transmit(&mut self) -> Vec<(PortId, Vec<u8>)> {
        std::mem::take(&mut self.frames)
    }
}

/// What is known of neighbours and routes, for a short time.
#[derive(Debug, Default)]
struct Tables {
    read: Option<Nanos>,
    /// Hosts by address.
    hosts: BTreeMap<Ipv4Addr, (PortId, MacAddr)>,
    /// Ports that lead to switches.
    fabric: PortSet,
    /// Names of the switches at a port, by the Ethernet addresses of their ports.
    switches: BTreeMap<(PortId, MacAddr), String>,
    /// By length and network, the longest prefix last.
    routes: BTreeMap<(u8, Ipv4Addr), Vec<RouteHop>>,
}

/// The switch around the machine, for one packet.
struct Around<'a> {
    now: Nanos,
    core: &'a mut Core,
    pipeline: &'a mut dyn Pipeline,
    fabric: &'a [FabricPort],
    udp_port: Option<u16>,
    tables: &'a mut Tables,
    frames: &'a mut Vec<(PortId, Vec<u8>)>,
}

fn owner(leader: Ipv4Addr) -> String {
    format!("MRP leader {leader}")
}

impl Around<'_> {
    fn tables(&mut self) -> &Tables {
        if self.tables.read.is_none_or(|at| self.now.since(at) >= FRESH) {
            let mut tables = Tables {
                read: Some(self.now),
                ..Tables::default()
            };
            for FabricPort { port, mac } in self.fabric {
                tables.fabric.insert(*port);
                let named = mac.map(|mac| ((*port, mac), mac.to_string()));
                tables.switches.extend(named);
            }
            // The controller has hosts there by its topology file: LLDP comes from one of them.
            let of_hosts = self.core.ports_of_hosts();
            for neighbour in self.pipeline.neighbours().unwrap_or_default() {
                match neighbour.said {
                    Said::Arp { ip, mac } => drop(tables.hosts.insert(ip, (neighbour.port, mac))),
                    Said::Lldp { .. } if of_hosts.contains(neighbour.port) => {}
                    Said::Lldp { system, mac, .. } => {
                        tables.fabric.insert(neighbour.port);
                        tables.switches.insert((neighbour.port, mac), system.to_string());
                    }
                }
            }
            let routes = self.pipeline.routes().into_iter();
            let keyed = routes.map(|r| ((r.prefix.prefix_len(), r.prefix.network()), r.next_hops));
            tables.routes = keyed.collect();
            *self.tables = tables;
        }
        self.tables
    }
}

impl Tables {
    /// The next hops of the route with the longest prefix.
    fn route(&self, ip: Ipv4Addr) -> &[RouteHop] {
        let network = |length: u8| u32::from(ip) & u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
        let found = (0..=32)
            .rev()
            .find_map(|length| self.routes.get(&(length, network(length).into())));
        found.map(Vec::as_slice).unwrap_or_default()
    }

    /// Name of the switch with this Ethernet address at a port; of one that is not known, its address. `None`: the port leads to hosts.
    fn switch(&self, port: PortId, mac: MacAddr) -> Option<String> {
        let known = self.switches.get(&(port, mac)).cloned();
        known.or_else(|| self.fabric.contains(port).then(|| mac.to_string()))
    }

    /// The only known switch at a port. Which of several a host is behind, only routes can say.
    fn only_switch(&self, at: PortId) -> Option<MacAddr> {
        let mut there = self.switches.keys().filter(|(port, _)| *port == at);
        let only = there.next().map(|(_, mac)| *mac);
        only.filter(|_| there.next().is_none())
    }

    /// A host that is directly connected, else routes, else the switch behind which ARP has seen the host.
    fn hops(&self, ip: Ipv4Addr) -> Vec<Hop> {
        let seen = self.hosts.get(&ip);
        if let Some((port, mac)) = seen.filter(|(port, _)| !self.fabric.contains(*port)) {
            return vec![Hop {
                port: *port,
                mac: *mac,
                switch: None,
            }];
        }
        let hop = |port, mac| Hop {
            port,
            mac,
            switch: self.switch(port, mac),
        };
        let mut hops: Vec<Hop> = self
            .route(ip)
            .iter()
            .map(|next| hop(next.port, next.mac))
            .collect();
        if hops.is_empty()
            && let Some((port, _)) = seen
        {
            hops.extend(self.only_switch(*port).map(|mac| hop(*port, mac)));
        }
        hops.sort_by_key(|hop| (hop.port, hop.mac));
        hops
    }

    fn upstream(&self, leader: Ipv4Addr, (port, mac): (PortId, MacAddr)) -> Option<Upstream> {
        // Beside switches, the leader itself is known by its own Ethernet address.
        if self.hosts.get(&leader) == Some(&(port, mac)) {
            return Some(Upstream::Leader);
        }
        let of_leader = || self.hops(leader).iter().any(|hop| hop.port == port);
        match self.switch(port, mac) {
            Some(name) => Some(Upstream::Switch(name)),
            None => of_leader().then_some(Upstream::Leader),
        }
    }
}

impl Switch for Around<'_> {
    fn hops(&mut self, ip: Ipv4Addr) -> Vec<Hop> {
        let mut hops = self.tables().hops(ip);
        hops.retain(|hop| self.pipeline.is_up(hop.port));
        hops
    }

    fn upstream(&mut self, leader: Ipv4Addr, from: (PortId, MacAddr)) -> Option<Upstream> {
        self.tables().upstream(leader, from)
    }

    fn groups_at(&mut self, port: PortId, without: McstId) -> usize {
        let (mut own, pipeline) = (false, &mut self.pipeline);
        pipeline.read_rule(without, &mut |rule| {
            own = rule.endpoints.iter().any(|e| e.port == port)
        });
        // It may have been removed since.
        pipeline.groups_per_port()[port.index()].saturating_sub(usize::from(own))
    }

    fn install(&mut self, leader: Ipv4Addr, rule: &GroupRule) -> Result<(), MrpRefusal> {
        let installed = self.core.install_group(self.pipeline, None, &owner(leader), rule);
        let Err(refusal) = installed else {
            return Ok(());
        };
        // The refusal itself is in the log once in a while, by its port.
        tracing::debug!(group = rule.name, %leader, reason = %refusal, "registration is refused");
        Err(MrpRefusal::of(reason(&refusal)))
    }

    fn remove(&mut self, leader: Ipv4Addr, mcst_id: McstId) {
        let owner = owner(leader);
        let removed = self
            .core
            .remove_group(self.pipeline, None, mcst_id, Some(&owner), None);
        // An operator may have removed it, and another owner taken the address.
        if let Err(refusal) = removed {
            tracing::info!(%mcst_id, %leader, reason = %refusal, "a registration has ended, its group is kept");
        }
    }

    fn send(&mut self, packet: &Outgoing) {
        let (Some(mac), Some(udp_port)) = (self.pipeline.port_mac(packet.port), self.udp_port) else {
            return;
        };
        let payload = packet.packet.to_bytes();
        let datagram = Datagram {
            macs: (packet.mac, mac),
            from: (packet.from, udp_port),
            to: (packet.to, udp_port),
            payload: &payload,
        };
        self.frames.push((packet.port, datagram.to_frame()));
    }
}

fn reason(refusal: &Refusal) -> MrpReason {
    use InstallError::{Clash, Refused};
    use RefusedBy::{GroupsFull, NextHopsFull, NoMemory};
    match refusal {
        Refusal::AddressTaken { .. } | Refusal::Install(_, Clash(_)) => MrpReason::Taken,
        Refusal::Install(_, Refused(GroupsFull { .. } | NoMemory { .. } | NextHopsFull)) => {
            MrpReason::NoCapacity
        }
        _ => MrpReason::Refused,
    }
}
