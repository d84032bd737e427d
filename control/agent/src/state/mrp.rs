//! The thread for MRP: gives registration packets to the machine, and installs the groups that it asks for by the path of the calls of
//! controllers and operators.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use castnet_mrp::{Dropped, Hop, Limits, Outgoing, Received, Registrar, Switch, Upstream};
use castnet_rules::{Endpoint, GroupRule, RouteHop};
use castnet_wire::{
    Datagram, DropReason, Limit, MacAddr, McstId, MrpPacket, MrpReason, MrpRefusal, Nanos, PortId,
};
use castnet_worker::engine::{PortSet, RegistrationFrame, Said};
use crossbeam::channel::RecvTimeoutError;
use tonic::Code;

use crate::Shared;

/// How often the thread checks whether agent and dataplane still exist.
const LOOK: Duration = Duration::from_millis(100);
/// A port's refusals in the log. The counters of drops have them all.
const LOGGED: Limit = Limit::new(1, Nanos::from_millis(1_000));
/// How long tables are used before they are read again.
const FRESH: Duration = Duration::from_millis(20);

/// A port that leads to other switches which serve MRP, where no LLDP shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FabricPort {
    /// The port.
    pub port: PortId,
    /// The Ethernet address of a switch there. `None`: only routes lead to switches there, by the addresses of their next hops.
    pub mac: Option<MacAddr>,
}

/// Starts the thread. It ends with the dataplane or with the agent.
pub(crate) fn start(shared: &Arc<Shared>, limits: Limits, fabric: Vec<FabricPort>) -> std::io::Result<()> {
    let weak = Arc::downgrade(shared);
    let packets = shared.dataplane.registrations().clone();
    let thread = std::thread::Builder::new().name("castnet-mrp".into());
    let work = move || {
        let mut registrar = Registrar::new(limits);
        let mut tables = Tables::default();
        let mut logged = BTreeMap::new();
        loop {
            let packet = packets.recv_timeout(LOOK);
            let Some(shared) = weak.upgrade() else { return };
            let mut around = Around::new(&shared, &fabric, core::mem::take(&mut tables));
            let now = shared.dataplane.now();
            if registrar.poll_timeout().is_some_and(|due| due <= now) {
                registrar.handle_timeout(now, &mut around);
            }
            match packet {
                Ok(packet) => handle(&mut registrar, now, &packet, &mut around, &mut logged),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            tables = around.flush();
        }
    };
    thread.spawn(work).map(drop)
}

/// `logged`: by port.
fn handle(
    registrar: &mut Registrar,
    now: Nanos,
    received: &RegistrationFrame,
    around: &mut Around<'_>,
    logged: &mut BTreeMap<PortId, Limit>,
) {
    let port = received.port;
    let parsed = Datagram::parse(&received.frame).and_then(|datagram| {
        let packet = MrpPacket::parse(datagram.payload)?;
        let mcst_id = McstId(datagram.to.0);
        let (mac, from) = (datagram.macs.1, datagram.from.0);
        Ok(Received {
            port,
            mac,
            from,
            mcst_id,
            packet,
        })
    });
    let reason = match parsed {
        Ok(received) => {
            let (mcst_id, leader) = (received.mcst_id, received.from);
            match registrar.handle(now, received, around) {
                Ok(()) => return,
                Err(dropped) => {
                    if matches!(dropped, Dropped::Refused(_) | Dropped::TooOften { .. })
                        && logged.entry(port).or_insert(LOGGED).allows(now)
                    {
                        tracing::info!(%mcst_id, %leader, %port, %dropped, "registration");
                    }
                    DropReason::RegistrationRefused
                }
            }
        }
        Err(_) => DropReason::Malformed,
    };
    // A dataplane that has stopped counts nothing.
    let _ = around.shared.dataplane.count_drop(port, reason);
}

/// What is known of neighbours and routes, for a short time.
#[derive(Default)]
struct Tables {
    read: Option<Instant>,
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
    shared: &'a Shared,
    fabric: &'a [FabricPort],
    tables: Tables,
    frames: Vec<(PortId, Vec<u8>)>,
}

fn owner(leader: Ipv4Addr) -> String {
    format!("MRP leader {leader}")
}

impl<'a> Around<'a> {
    const fn new(shared: &'a Shared, fabric: &'a [FabricPort], tables: Tables) -> Self {
        let frames = Vec::new();
        Self {
            shared,
            fabric,
            tables,
            frames,
        }
    }

    /// Sends what the machine has sent.
    fn flush(self) -> Tables {
        if !self.frames.is_empty()
            && let Err(error) = self.shared.dataplane.transmit(self.frames)
        {
            tracing::debug!(%error, "registration packets are not sent");
        }
        self.tables
    }

    fn tables(&mut self) -> &Tables {
        if self.tables.read.is_none_or(|at| at.elapsed() >= FRESH) {
            let dataplane = &self.shared.dataplane;
            let mut tables = Tables {
                read: Some(Instant::now()),
                ..Tables::default()
            };
            for FabricPort { port, mac } in self.fabric {
                tables.fabric.insert(*port);
                let named = mac.map(|mac| ((*port, mac), mac.to_string()));
                tables.switches.extend(named);
            }
            // The controller has hosts there by its topology file: LLDP comes from one of them.
            let guards = self.shared.guards.lock();
            let filed = guards.values().flat_map(|guard| &guard.hosts);
            let of_hosts: PortSet = filed.map(|(port, _)| *port).collect();
            drop(guards);
            for neighbour in dataplane.neighbours().unwrap_or_default() {
                match neighbour.said {
                    Said::Arp { ip, mac } => drop(tables.hosts.insert(ip, (neighbour.port, mac))),
                    Said::Lldp { .. } if of_hosts.contains(neighbour.port) => {}
                    Said::Lldp { system, mac, .. } => {
                        tables.fabric.insert(neighbour.port);
                        tables.switches.insert((neighbour.port, mac), system.to_string());
                    }
                }
            }
            let routes = dataplane.routes().into_iter();
            let keyed = routes.map(|r| ((r.prefix.prefix_len(), r.prefix.network()), r.next_hops));
            tables.routes = keyed.collect();
            self.tables = tables;
        }
        &self.tables
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
        hops.retain(|hop| self.shared.dataplane.is_up(hop.port));
        hops
    }

    fn upstream(&mut self, leader: Ipv4Addr, from: (PortId, MacAddr)) -> Option<Upstream> {
        self.tables().upstream(leader, from)
    }

    fn groups_at(&mut self, port: PortId, without: McstId) -> usize {
        let dataplane = &self.shared.dataplane;
        let uses = |rule: &GroupRule| rule.endpoints.iter().any(|e: &Endpoint| e.port == port);
        let own = dataplane.rule(without).is_some_and(|rule| uses(&rule));
        // It may have been removed since.
        dataplane.groups_per_port()[port.index()].saturating_sub(usize::from(own))
    }

    fn install(&mut self, leader: Ipv4Addr, rule: &GroupRule) -> Result<(), MrpRefusal> {
        let installed = self.shared.install(None, &owner(leader), |install| install(rule));
        let Err(status) = installed.and_then(|installed| installed) else {
            return Ok(());
        };
        // The refusal itself is in the log once in a while, by its port.
        tracing::debug!(group = rule.name, %leader, reason = status.message(), "registration is refused");
        Err(MrpRefusal::of(match status.code() {
            Code::AlreadyExists => MrpReason::Taken,
            Code::ResourceExhausted => MrpReason::NoCapacity,
            _ => MrpReason::Refused,
        }))
    }

    fn remove(&mut self, leader: Ipv4Addr, mcst_id: McstId) {
        // An operator may have removed it, and another owner taken the address.
        if let Err(status) = self.shared.remove(None, mcst_id, Some(&owner(leader)), None) {
            tracing::info!(%mcst_id, %leader, reason = status.message(), "a registration has ended, its group is kept");
        }
    }

    fn send(&mut self, packet: &Outgoing) {
        let dataplane = &self.shared.dataplane;
        let udp_port = dataplane
            .config()
            .engine
            .registration
            .as_ref()
            .map(|r| r.udp_port);
        let (Some(mac), Some(udp_port)) = (dataplane.port_mac(packet.port), udp_port) else {
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
