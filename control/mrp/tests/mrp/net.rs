//! Switches, a leader and receivers over links that lose, repeat, delay and change frames, in virtual time.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use castnet_mrp::{
    Hop, Leader, LeaderConfig, LeaderError, Limits, Outgoing, Received, Receiver, ReceiverError, Registrar,
    Switch, Upstream,
};
use castnet_rules::GroupRule;
use castnet_topology::{Distances, End, Topology};
use castnet_wire::{
    Datagram, MacAddr, McstId, MrpMember, MrpMemory, MrpPacket, MrpReason, MrpRefusal, Nanos, Pmtu, PortId,
    Qpn,
};

pub(crate) const MCST_ID: McstId = McstId(Ipv4Addr::new(10, 200, 0, 1));
pub(crate) const PORT: u16 = castnet_wire::mrp::DEFAULT_PORT;

pub(crate) fn port(n: u8) -> PortId {
    PortId::new(n).expect("a port")
}

/// Faults of links, each in percent of the frames.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) seed: u64,
    pub(crate) loss: u64,
    pub(crate) repeat: u64,
    pub(crate) change: u64,
    /// Most milliseconds of delay of a frame.
    pub(crate) delay_ms: u64,
}

/// The tables of a switch.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    pub(crate) groups: BTreeMap<McstId, (Ipv4Addr, GroupRule)>,
    /// It installs no group.
    pub(crate) full: bool,
}

/// A switch while it handles a packet.
pub(crate) struct Around<'a> {
    pub(crate) topology: &'a Topology,
    pub(crate) name: &'a str,
    pub(crate) tables: &'a mut Tables,
    pub(crate) out: Vec<Outgoing>,
}

fn hop(topology: &Topology, near: &End, far: &End) -> Hop {
    let End::Switch { port: n, .. } = near else {
        panic!("a port of a switch");
    };
    let (mac, switch) = match far {
        End::Host(name) => (topology.host(name).and_then(|h| h.mac), None),
        End::Switch { switch, port } => {
            let ports = &topology.switch(switch).expect("a switch").ports;
            (ports.get(port).copied(), Some(switch.clone()))
        }
    };
    Hop {
        port: port(*n),
        mac: MacAddr(mac.expect("an address")),
        switch,
    }
}

/// The hosts and Castnet switches on the way from a port of a Castnet switch, over ordinary switches, each with the port. With
/// `distances`, only those on shortest paths to their host.
fn beyond(topology: &Topology, from: &str, distances: Option<&Distances>) -> Vec<(End, End)> {
    let next = |at: &str| match distances {
        Some(distances) => topology.next_hops(at, distances),
        None => topology.neighbours(at),
    };
    let mut found = Vec::new();
    for first in next(from) {
        let mut open = vec![(from.to_owned(), first.far.clone())];
        while let Some((before, far)) = open.pop() {
            if topology.is_plain(far.node()) {
                let others = next(far.node()).into_iter().map(|n| n.far);
                let others = others.filter(|end| end.node() != before);
                open.extend(others.map(|end| (far.node().to_owned(), end)));
            } else {
                found.push((first.near.clone(), far));
            }
        }
    }
    found
}

impl Switch for Around<'_> {
    fn hops(&mut self, ip: Ipv4Addr) -> Vec<Hop> {
        let Some(host) = self.topology.host_with(ip) else {
            return Vec::new();
        };
        let distances = self.topology.distances(&host.name);
        let found = beyond(self.topology, self.name, Some(&distances));
        let mut hops: Vec<Hop> = found
            .iter()
            .map(|(near, far)| hop(self.topology, near, far))
            .collect();
        hops.sort_by_key(|hop| (hop.port, hop.mac));
        hops.dedup();
        hops
    }

    fn upstream(&mut self, leader: Ipv4Addr, from: (PortId, MacAddr)) -> Option<Upstream> {
        let found = beyond(self.topology, self.name, None);
        let hops = found
            .iter()
            .map(|(near, far)| (hop(self.topology, near, far), far));
        let there: Vec<_> = hops.filter(|(hop, _)| hop.port == from.0).collect();
        let is_alone = there.len() == 1;
        let (hop, far) = there.into_iter().find(|(hop, _)| is_alone || hop.mac == from.1)?;
        match hop.switch {
            Some(name) => Some(Upstream::Switch(name)),
            None => {
                let host = self.topology.host_with(leader);
                host.filter(|host| host.name == far.node())
                    .map(|_| Upstream::Leader)
            }
        }
    }

    fn groups_at(&mut self, at: PortId, without: McstId) -> usize {
        let rules = self.tables.groups.values();
        rules
            .filter(|(_, rule)| rule.mcst_id != without && rule.endpoints.iter().any(|e| e.port == at))
            .count()
    }

    fn install(&mut self, leader: Ipv4Addr, rule: &GroupRule) -> Result<(), MrpRefusal> {
        if self.tables.full {
            return Err(MrpRefusal::of(MrpReason::NoCapacity));
        }
        assert_eq!(rule.check(PortId::COUNT), [], "{rule:?}");
        let before = self.tables.groups.insert(rule.mcst_id, (leader, rule.clone()));
        assert!(before.is_none_or(|(of, old)| of == leader && old.generation < rule.generation));
        Ok(())
    }

    fn remove(&mut self, leader: Ipv4Addr, mcst_id: McstId) {
        let removed = self.tables.groups.remove(&mcst_id).expect("an installed group");
        assert_eq!(removed.0, leader);
    }

    fn send(&mut self, packet: &Outgoing) {
        self.out.push(packet.clone());
    }
}

/// A fabric with a leader, its receivers, and frames on their way.
pub(crate) struct Net {
    pub(crate) topology: Topology,
    pub(crate) now: Nanos,
    pub(crate) leader: Leader,
    pub(crate) source: String,
    pub(crate) receivers: BTreeMap<String, Receiver>,
    pub(crate) switches: BTreeMap<String, (Registrar, Tables)>,
    faults: Faults,
    random: u64,
    /// By time and number: the end where it arrives, the frame. `None`: unicast between hosts.
    frames: BTreeMap<(Nanos, u64), (End, Vec<u8>)>,
    sent: u64,
    pub(crate) dropped: u64,
}

pub(crate) fn member(topology: &Topology, host: &str, source: bool) -> MrpMember {
    let ip = topology.host(host).and_then(|h| h.ip).expect("an address");
    MrpMember {
        ip,
        qpn: Qpn::new(u32::from(ip) & 0xFFFF | 0x1_0000),
        source,
    }
}

/// Memory of each second member.
pub(crate) fn memory(member: &MrpMember) -> Option<MrpMemory> {
    (member.qpn.value() % 2 == 1).then(|| MrpMemory {
        ip: member.ip,
        rkey: member.qpn.value() * 3,
        va: 0x1000,
        length: 0x10_0000,
    })
}

impl Net {
    pub(crate) fn new(topology: Topology, members: &[String], number: u32, faults: Faults) -> Self {
        let now = Nanos::ZERO;
        let [source, receivers @ ..] = members else {
            panic!("a source");
        };
        let ips = receivers.iter().map(|r| member(&topology, r, false).ip);
        let config = LeaderConfig {
            mcst_id: MCST_ID,
            number,
            pmtu: Pmtu::B1024,
            source: member(&topology, source, true),
            receivers: ips.collect::<BTreeSet<_>>(),
            repeat: Nanos::from_millis(100),
            refresh: Nanos::from_secs(10),
            patience: Nanos::from_secs(60),
            refusals: Nanos::from_secs(60),
        };
        let group = (MCST_ID, config.source.ip);
        let join = |name: &String| {
            // Who connects again has a new queue pair.
            let own = member(&topology, name, false);
            let qpn = Qpn::new(own.qpn.value() + ((number - 1) << 20));
            let own = MrpMember { qpn, ..own };
            let times = (Nanos::from_millis(100), Nanos::from_secs(60));
            let receiver = Receiver::new(now, group, (own, memory(&own)), times);
            (name.clone(), receiver)
        };
        let receivers = receivers.iter().map(join).collect();
        let limits = Limits {
            members: 100_000,
            ..Limits::default()
        };
        let switch = |name: &String| (name.clone(), (Registrar::new(limits), Tables::default()));
        let names: Vec<String> = topology.switches().map(|s| s.name.clone()).collect();
        Self {
            now,
            leader: Leader::new(now, config),
            source: source.clone(),
            receivers,
            switches: names.iter().map(switch).collect(),
            faults,
            random: faults.seed | 1,
            frames: BTreeMap::new(),
            sent: 0,
            dropped: 0,
            topology,
        }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) % below.max(1)
    }

    /// Puts a frame on a link, with its faults.
    fn transmit(&mut self, to: End, frame: &[u8]) {
        let Faults {
            loss,
            repeat,
            change,
            delay_ms,
            ..
        } = self.faults;
        let copies = if self.draw(100) < loss {
            0
        } else {
            1 + u64::from(self.draw(100) < repeat)
        };
        for _ in 0..copies {
            let mut frame = frame.to_vec();
            if self.draw(100) < change {
                let bit = 14 * 8 + self.draw((frame.len() as u64 - 14) * 8) as usize;
                frame[bit / 8] ^= 1 << (bit % 8);
            }
            let at = self.now + Nanos(1000 + self.draw(delay_ms * 1_000_000));
            self.sent += 1;
            self.frames.insert((at, self.sent), (to.clone(), frame));
        }
    }

    fn host(&self, name: &str) -> (Ipv4Addr, MacAddr) {
        let host = self.topology.host(name).expect("a host");
        (
            host.ip.expect("an address"),
            MacAddr(host.mac.expect("an address")),
        )
    }

    /// From a host to the address of the group: to its switch.
    pub(crate) fn send_up(&mut self, name: &str, packet: &MrpPacket) {
        let (ip, mac) = self.host(name);
        let found = beyond(&self.topology, name, None);
        let switch = found
            .iter()
            .map(|(_, far)| far)
            .find(|far| matches!(far, End::Switch { .. }));
        let to = self.mac(switch.expect("a switch"));
        let frame = frame((mac, to), (ip, MCST_ID.0), packet);
        self.arrives_beyond(&End::host(name), &frame);
    }

    fn mac(&self, end: &End) -> MacAddr {
        match end {
            End::Host(name) => self.host(name).1,
            End::Switch { switch, port } => {
                MacAddr(self.topology.switch(switch).expect("a switch").ports[port])
            }
        }
    }

    /// Puts a frame on the link at `near`. Ordinary switches behind it know no address: each host and Castnet switch there gets the frame.
    fn arrives_beyond(&mut self, near: &End, frame: &[u8]) {
        let found = beyond(&self.topology, near.node(), None);
        for (_, far) in found.into_iter().filter(|(at, _)| at == near) {
            self.transmit(far, frame);
        }
    }

    /// Unicast between hosts, which this network does not simulate.
    fn between_hosts(&mut self, from: &str, to: &str, packet: &MrpPacket) {
        let ((src, mac), (dst, to_mac)) = (self.host(from), self.host(to));
        let frame = frame((mac, to_mac), (src, dst), packet);
        self.transmit(End::Host(to.into()), &frame);
    }

    fn arrives(&mut self, to: &End, bytes: &[u8]) {
        let parsed = Datagram::parse(bytes).ok();
        let packet = parsed.and_then(|d| Some((d, MrpPacket::parse(d.payload).ok()?)));
        let Some((datagram, packet)) = packet else {
            self.dropped += 1;
            return;
        };
        // What is for others is ignored: by the engine, and by RNICs.
        if datagram.macs.0 != self.mac(to) {
            return;
        }
        match to {
            End::Host(name) if *name == self.source => {
                self.leader.handle(self.now, datagram.from.0, &packet);
            }
            End::Host(name) => {
                let receiver = self.receivers.get_mut(name);
                let Some(answer) = receiver.and_then(|r| r.handle(datagram.from.0, &packet)) else {
                    return;
                };
                let leader = self.source.clone();
                self.between_hosts(name, &leader, &answer);
            }
            End::Switch { switch, port: n } => {
                let received = Received {
                    port: port(*n),
                    mac: datagram.macs.1,
                    from: datagram.from.0,
                    mcst_id: McstId(datagram.to.0),
                    packet,
                };
                self.at_switch(switch, |registrar, now, around| {
                    // What is dropped has no effect.
                    let _ = registrar.handle(now, received, around);
                });
            }
        }
    }

    fn at_switch(&mut self, name: &str, act: impl FnOnce(&mut Registrar, Nanos, &mut Around<'_>)) {
        let (registrar, tables) = self.switches.get_mut(name).expect("a switch");
        let mut around = Around {
            topology: &self.topology,
            name,
            tables,
            out: Vec::new(),
        };
        act(registrar, self.now, &mut around);
        for out in around.out {
            let near = End::Switch {
                switch: name.into(),
                port: out.port.index() as u8,
            };
            let own = self.topology.switch(name).expect("a switch").ports[&(out.port.index() as u8)];
            let frame = frame((MacAddr(own), out.mac), (out.from, out.to), &out.packet);
            self.arrives_beyond(&near, &frame);
        }
    }

    /// Runs for a time. The leader and the receivers act when they are due.
    pub(crate) fn run(&mut self, length: Nanos, leads: bool) -> Result<(), LeaderError> {
        let end = self.now + length;
        loop {
            let frame = self.frames.keys().next().map(|(at, _)| *at);
            let leader = leads.then(|| self.leader.poll_timeout());
            let receivers = self.receivers.values().filter_map(Receiver::poll_timeout);
            let switches = self.switches.values().filter_map(|(r, _)| r.poll_timeout());
            let due = receivers.chain(switches).chain(frame).chain(leader).min();
            let Some(at) = due.filter(|at| *at <= end) else {
                self.now = end;
                return Ok(());
            };
            self.now = self.now.max(at);
            if let Some(entry) = self.frames.first_entry().filter(|e| e.key().0 <= self.now) {
                let (to, frame) = entry.remove();
                self.arrives(&to, &frame);
                continue;
            }
            if leads {
                let packets = self.leader.handle_timeout(self.now)?.to_vec();
                let source = self.source.clone();
                packets.iter().for_each(|packet| self.send_up(&source, packet));
            }
            let names: Vec<String> = self.receivers.keys().cloned().collect();
            for name in names {
                let receiver = self.receivers.get_mut(&name).expect("a receiver");
                match receiver.handle_timeout(self.now) {
                    Ok(Some(join)) => {
                        let leader = self.source.clone();
                        self.between_hosts(&name, &leader, &join);
                    }
                    Ok(None) | Err(ReceiverError::Withdrawn | ReceiverError::Called(_)) => {}
                    Err(ReceiverError::NotRegistered { .. }) => drop(self.receivers.remove(&name)),
                }
            }
            let names: Vec<String> = self.switches.keys().cloned().collect();
            for name in names {
                self.at_switch(&name, |registrar, now, around| {
                    registrar.handle_timeout(now, around)
                });
            }
        }
    }

    /// The rules by name of the switch.
    pub(crate) fn rules(&self) -> BTreeMap<String, GroupRule> {
        let installed = |(name, (_, tables)): (&String, &(Registrar, Tables))| {
            let (_, rule) = tables.groups.get(&MCST_ID)?;
            Some((name.clone(), rule.clone()))
        };
        self.switches.iter().filter_map(installed).collect()
    }
}

pub(crate) fn frame(
    (src, dst): (MacAddr, MacAddr),
    (from, to): (Ipv4Addr, Ipv4Addr),
    packet: &MrpPacket,
) -> Vec<u8> {
    let payload = packet.to_bytes();
    let datagram = Datagram {
        macs: (dst, src),
        from: (from, PORT),
        to: (to, PORT),
        payload: &payload,
    };
    datagram.to_frame()
}
