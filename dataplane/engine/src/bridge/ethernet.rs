//! Frames of no group: switched by Ethernet address (contract S4), or routed if the port's own address is theirs and a route matches.

use core::ops::Range;

use castnet_wire::ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, TAGS_MAX, set_macs};
use castnet_wire::ipv4::{self, PROTOCOL_UDP};
use castnet_wire::udp::ROCE_PORT;
use castnet_wire::{
    DropReason, Ethernet, FrameBuf, Ipv4, MacAddr, Nanos, Parsed, PortId, RoceHeader, VlanTag, parse_frame,
};

use crate::address;
use crate::bridge::Bridging;
use crate::egress::Egress;
use crate::group::rewrite::set_destination;
use crate::observe::counters::Counters;
use crate::observe::events::EventKind;
use crate::observe::trace::{Observer, Stage, Step, Verdict};
use crate::output::copies::Copies;
use crate::output::cx::Cx;
use crate::output::{Output, Ports};
use crate::port_set::PortSet;
use crate::tables::fdb::Learned;
use crate::tables::route::{Flow, Hop, Routed};

const PROTOCOL_TCP: u8 = 6;

/// True for addresses that a bridge never forwards (IEEE 802.1Q, table 8-1): 01:80:c2:00:00:00 to 0f.
pub(crate) fn is_reserved(mac: MacAddr) -> bool {
    mac.0[..5] == [0x01, 0x80, 0xC2, 0, 0] && mac.0[5] < 0x10
}

/// The VLAN of a frame in the FDB: 0 without a tag.
pub(crate) fn vlan(ethernet: &Ethernet) -> u16 {
    ethernet.vlan.map_or(0, |tag| tag.vid)
}

impl Bridging<'_> {
    pub(crate) fn bridge<E: Egress, O: Observer>(&mut self, cx: &mut Cx<'_, E, O>, frame: E::Buf) -> Verdict {
        // As in `address`. A function for both would cost 3 ns (bench summary, FDB hit).
        let (ethernet, l3) = match Ethernet::parse(frame.head()) {
            Ok(parsed) => parsed,
            Err(_) => match Ethernet::parse_any(frame.head()) {
                Ok(parsed) => parsed,
                Err(error) => return cx.drop(Stage::Parse, DropReason::Malformed, || error.to_string()),
            },
        };
        if is_reserved(ethernet.dst) {
            return cx.drop(Stage::Switch, DropReason::Reserved, || {
                format!("{} is link-local: a bridge never forwards it", ethernet.dst)
            });
        }
        if ethernet.src.is_multicast() {
            return cx.drop(Stage::Learn, DropReason::Malformed, || {
                format!("source {} is a group address", ethernet.src)
            });
        }
        // Only the switch next to a host sends it frames from a group address. A received one is a forgery.
        let source = address::source_behind(&ethernet, l3, frame.head());
        let forged = source.and_then(|src| {
            let why = self.forgery(cx.ingress, src).or_else(|| {
                let registration = self.own.config.registration.as_ref()?;
                let packet = frame.head().get(l3..)?;
                self.forged_registration(registration, (cx.now, cx.ingress), (src, packet))
            });
            Some((src, why?))
        });
        if let Some((src, why)) = forged {
            return cx.drop(Stage::Switch, DropReason::NotMember, || {
                format!("source {src} is {why}")
            });
        }
        self.learn(cx, &ethernet);
        if ethernet.dst == self.output.ports.mac(cx.ingress) {
            if l3 > Ethernet::LEN + TAGS_MAX * VlanTag::LEN {
                return cx.drop(Stage::Parse, DropReason::Malformed, || {
                    "for the switch itself, with more than two tags".into()
                });
            }
            return match ethernet.ethertype {
                ETHERTYPE_IPV4 => self.route(cx, l3, frame),
                ETHERTYPE_IPV6 => cx.drop(Stage::Route, DropReason::NoRoute, || "IPv6 is not routed".into()),
                other => cx.drop(Stage::Switch, DropReason::Reserved, || {
                    format!("for the switch itself, which does not read EtherType {other:#06x}")
                }),
            };
        }
        if ethernet.dst.is_multicast() {
            let why = if ethernet.dst == MacAddr::BROADCAST {
                "broadcast"
            } else {
                "group address"
            };
            return self.flood(cx, why, l3, frame);
        }
        match self.own.fdb.lookup(cx.now, vlan(&ethernet), ethernet.dst) {
            Some(port) => self.unicast(cx, &ethernet, port, l3, frame),
            None => self.flood(cx, "destination not learned", l3, frame),
        }
    }

    pub(crate) fn learn<E: Egress, O: Observer>(&mut self, cx: &mut Cx<'_, E, O>, ethernet: &Ethernet) {
        let learned = self
            .own
            .fdb
            .learn(cx.now, vlan(ethernet), ethernet.src, cx.ingress);
        match learned {
            Learned::Known | Learned::NotStation => {}
            Learned::New | Learned::Moved { .. } => self.own.start_ageing(cx.now),
            Learned::Displaced { at } => self.fdb_is_full(cx.now, at),
            Learned::Full => self.fdb_is_full(cx.now, cx.ingress),
        }
        let ingress = cx.ingress;
        cx.observer.step(|| {
            let mac = ethernet.src;
            let decision = match learned {
                Learned::New => format!("{mac} is at port {ingress}"),
                Learned::Displaced { at } => {
                    format!("{mac} is at port {ingress}, in place of the oldest of port {at}")
                }
                Learned::Moved { from } => format!("{mac} moved from port {from} to {ingress}"),
                Learned::Known => format!("{mac} stays at port {ingress}"),
                Learned::Full => format!("{mac} is not learned"),
                Learned::NotStation => format!("{mac} is no station"),
            };
            let why = match learned {
                Learned::Displaced { .. } | Learned::Full => "the table is full",
                _ => "source address",
            };
            Step::new(Stage::Learn, decision, format!("{why}, VLAN {}", vlan(ethernet)))
        });
    }

    /// Reports a full FDB, once until an entry is free. `port` has most addresses.
    fn fdb_is_full(&mut self, now: Nanos, port: PortId) {
        if !std::mem::replace(&mut self.own.fdb_full_reported, true) {
            let entries = self.own.fdb.table.len();
            self.events.push(now, EventKind::FdbFull { entries, port });
        }
    }

    fn unicast<E: Egress, O: Observer>(
        &mut self,
        cx: &mut Cx<'_, E, O>,
        ethernet: &Ethernet,
        port: PortId,
        l3: usize,
        frame: E::Buf,
    ) -> Verdict {
        let dst = ethernet.dst;
        if port == cx.ingress {
            return cx.drop(Stage::Switch, DropReason::SamePort, || {
                format!("{dst} is at the port it came in by")
            });
        }
        if !self.output.ports.up.contains(port) {
            return cx.drop(Stage::Switch, DropReason::PortDown, || {
                format!("{dst} is at port {port}, which is down")
            });
        }
        let (packet, mtu) = (frame.length().saturating_sub(l3), self.output.ports.mtu(port));
        if packet > mtu {
            return cx.drop(Stage::Switch, DropReason::TooLong, || {
                format!("{packet} bytes, and port {port} carries {mtu}")
            });
        }
        cx.observer.step(|| {
            Step::new(
                Stage::Switch,
                format!("to port {port}"),
                format!("{dst} was learned there"),
            )
        });
        cx.send(&mut self.output.counters, port, frame);
        Verdict::Switched
    }

    /// Sends to all flood ports but the ingress port.
    fn flood<E: Egress, O: Observer>(
        &mut self,
        cx: &mut Cx<'_, E, O>,
        why: &str,
        l3: usize,
        frame: E::Buf,
    ) -> Verdict {
        let candidates = self
            .output
            .ports
            .flood
            .and(self.output.ports.up)
            .without(cx.ingress);
        let packet = frame.length().saturating_sub(l3);
        let fitting: PortSet = candidates
            .into_iter()
            .filter(|p| packet <= self.output.ports.mtu(*p))
            .collect();
        if fitting.is_empty() {
            let reason = if candidates.is_empty() {
                DropReason::NoPort
            } else {
                DropReason::TooLong
            };
            return cx.drop(Stage::Switch, reason, || {
                format!("{why}, and no port to flood to takes it")
            });
        }
        cx.observer.step(|| {
            let ports: Vec<String> = fitting.into_iter().map(|p| p.to_string()).collect();
            Step::new(Stage::Switch, format!("flood to ports {}", ports.join(", ")), why)
        });
        let Output { ports, counters, .. } = &mut *self.output;
        let to = fitting.into_iter().map(|port| (port, None));
        send_by_all(cx, (ports, counters), Copies::new(frame, 0), to);
        Verdict::Flooded
    }

    fn route<E: Egress, O: Observer>(&mut self, cx: &mut Cx<'_, E, O>, l3: usize, frame: E::Buf) -> Verdict {
        let packet = frame.head().get(l3..).unwrap_or_default();
        let (ip, header_len) = match Ipv4::parse(packet) {
            Ok(parsed) => parsed,
            Err(error) => return cx.drop(Stage::Route, DropReason::Malformed, || error.to_string()),
        };
        let (said, room) = (usize::from(ip.total_len), frame.length() - l3);
        if !(header_len..=room).contains(&said) {
            return cx.drop(Stage::Route, DropReason::Malformed, || {
                format!("IPv4: total length says {said}, but there is room for {room}")
            });
        }
        if !frame.checksum_good() && !ipv4::checksum_is_right(packet) {
            return cx.drop(Stage::Route, DropReason::BadIpChecksum, || {
                "IPv4 header checksum".into()
            });
        }
        let flow = flow(&ip, packet.get(header_len..).unwrap_or_default());
        self.route_packet(cx, (l3, ip, flow), frame)
    }

    /// Of a packet at `l3` that was parsed and verified.
    fn route_packet<E: Egress, O: Observer>(
        &mut self,
        cx: &mut Cx<'_, E, O>,
        (l3, ip, flow): (usize, Ipv4, Flow),
        mut frame: E::Buf,
    ) -> Verdict {
        let (hop, prefix, of) = match self.own.tables.routes.lookup(&flow, self.output.ports.up) {
            Routed::Hop { hop, prefix, of } => (hop, prefix, of),
            Routed::All { hops, prefix } => {
                return replicate(cx, self.output, (l3, &ip), (hops, prefix), frame);
            }
            Routed::Copies(addresses) => return self.copies(cx, addresses, (ip, flow), frame),
            Routed::NoRoute
                if ip.dst.is_multicast() && (flow.protocol, flow.dst_port) == (PROTOCOL_UDP, ROCE_PORT) =>
            {
                return cx.drop(Stage::Route, DropReason::OverCovered, || {
                    format!(
                        "no group here has its source at {}, and no route leads on",
                        ip.src
                    )
                });
            }
            Routed::NoRoute => {
                return cx.drop(Stage::Route, DropReason::NoRoute, || {
                    format!("no prefix covers {}", ip.dst)
                });
            }
            Routed::AllDown { prefix } => {
                return cx.drop(Stage::Route, DropReason::PortDown, || {
                    format!("{} matches a /{prefix} whose next hops are all down", ip.dst)
                });
            }
        };
        if ip.ttl <= 1 {
            return cx.drop(Stage::Route, DropReason::TtlExpired, || format!("TTL {}", ip.ttl));
        }
        let (length, mtu) = (usize::from(ip.total_len), self.output.ports.mtu(hop.port));
        if length > mtu {
            return cx.drop(Stage::Route, DropReason::TooLong, || {
                format!("{length} bytes, and port {} carries {mtu}", hop.port)
            });
        }
        self.keep_flow(cx.now, cx.ingress, frame.head(), hop);
        let head = frame.head_mut();
        set_macs(head, hop.mac, self.output.ports.mac(hop.port));
        if let Some(packet) = head.get_mut(l3..) {
            ipv4::decrement_ttl(packet);
        }
        cx.observer.step(|| {
            let decision = format!("to port {}, next hop {}", hop.port, hop.mac);
            let why = format!("{} matches a /{prefix} with {of} next hop(s)", ip.dst);
            Step::new(Stage::Route, decision, why).with(vec![format!(
                "flow {}:{} > {}:{} protocol {}; TTL {} > {}",
                flow.src,
                flow.src_port,
                flow.dst,
                flow.dst_port,
                flow.protocol,
                ip.ttl,
                ip.ttl - 1
            )])
        });
        cx.send(&mut self.output.counters, hop.port, frame);
        Verdict::Routed
    }
}

impl Bridging<'_> {
    /// A group's rule in a programmable core (PEEL 3.3): a copy to each address, by the route to it, the frame itself to the last one.
    #[inline(never)]
    fn copies<E: Egress, O: Observer>(
        &mut self,
        cx: &mut Cx<'_, E, O>,
        addresses: Range<u32>,
        packet: (Ipv4, Flow),
        frame: E::Buf,
    ) -> Verdict {
        let parsed = parse_frame(frame.head(), frame.length());
        let Ok(Parsed::Roce(header)) = &parsed else {
            return cx.drop(Stage::Route, DropReason::NoRoute, || {
                "the route is for data of a group, and this is no RoCEv2".into()
            });
        };
        let last = addresses.end.saturating_sub(1);
        for at in addresses.start..last {
            let copy = cx.egress.gather(cx.ingress, &frame.segments());
            let totals = match copy.map(|copy| self.copy(cx, (header, packet), at, copy)) {
                Some(Verdict::Routed) => &mut self.output.counters.totals.copies,
                Some(_) | None => &mut self.output.counters.totals.copies_lost,
            };
            *totals += 1;
        }
        self.copy(cx, (header, packet), last, frame)
    }

    fn copy<E: Egress, O: Observer>(
        &mut self,
        cx: &mut Cx<'_, E, O>,
        (header, (ip, flow)): (&RoceHeader, (Ipv4, Flow)),
        at: u32,
        mut frame: E::Buf,
    ) -> Verdict {
        let (routes, dst) = (&self.own.tables.routes, ip.dst);
        let Some(to) = routes.copy_to(at).filter(|to| !routes.copies(*to)) else {
            return cx.drop(Stage::Route, DropReason::NoRoute, || {
                "copies of copies are not made".into()
            });
        };
        cx.observer.step(|| {
            let why = format!("{dst} is the address of a group, which has a copy to {to}");
            Step::new(Stage::Route, format!("dst {to} instead of {dst}"), why)
        });
        set_destination(&mut frame, header, dst, to);
        let (ip, flow) = (Ipv4 { dst: to, ..ip }, Flow { dst: to, ..flow });
        self.route_packet(cx, (header.l3, ip, flow), frame)
    }
}

/// Sends a frame by all these ports, with the next hop's Ethernet address if there is one: copies, and the frame itself by the last one.
fn send_by_all<E: Egress, O: Observer>(
    cx: &mut Cx<'_, E, O>,
    (ports, counters): (&Ports, &mut Counters),
    mut copies: Copies<E::Buf, Option<MacAddr>>,
    to: impl Iterator<Item = (PortId, Option<MacAddr>)>,
) {
    let send = |cx: &mut Cx<'_, E, O>,
                counters: &mut Counters,
                (port, mac): (PortId, Option<MacAddr>),
                mut frame: E::Buf| {
        if let Some(mac) = mac {
            set_macs(frame.head_mut(), mac, ports.mac(port));
        }
        cx.send(counters, port, frame);
    };
    for (port, mac) in to {
        match copies.add(cx.egress, port, mac) {
            Some((port, mac, Some(copy))) => {
                counters.totals.copies += 1;
                send(cx, counters, (port, mac), copy);
            }
            Some((_, _, None)) => counters.totals.copies_lost += 1,
            None => {}
        }
    }
    if let Some((port, mac, frame)) = copies.finish() {
        send(cx, counters, (port, mac), frame);
    }
}

/// Most routers behind one that replicates. Rules of relays can lead a forged packet round, where each round makes copies.
const COPIES_TTL_MAX: u8 = 16;

/// A static replicate rule: to all hops but those at the ingress port.
fn replicate<E: Egress, O: Observer>(
    cx: &mut Cx<'_, E, O>,
    output: &mut Output,
    (l3, ip): (usize, &Ipv4),
    (hops, prefix): (&[Hop], u8),
    mut frame: E::Buf,
) -> Verdict {
    if ip.ttl <= 1 {
        return cx.drop(Stage::Route, DropReason::TtlExpired, || format!("TTL {}", ip.ttl));
    }
    if let Some(packet) = frame.head_mut().get_mut(l3..) {
        ipv4::lower_ttl(packet, COPIES_TTL_MAX);
    }
    let Output { ports, counters, .. } = output;
    let (length, ingress) = (usize::from(ip.total_len), cx.ingress);
    let others = hops.iter().filter(|hop| hop.port != ingress);
    let fits = |hop: &&Hop| ports.up.contains(hop.port) && length <= ports.mtu(hop.port);
    let lost = others.clone().filter(|hop| !fits(hop)).count();
    counters.totals.copies_lost += lost as u64;
    let to = others.clone().filter(fits);
    let taking = to.clone().count();
    if taking == 0 {
        let reason = match others.last() {
            None => DropReason::SamePort,
            Some(hop) if ports.up.contains(hop.port) => DropReason::TooLong,
            Some(_) => DropReason::PortDown,
        };
        return cx.drop(Stage::Route, reason, || {
            format!("no next hop of the /{prefix} of {} takes it", ip.dst)
        });
    }
    cx.observer.step(|| {
        let decision = format!("to {taking} next hops");
        let why = format!("{} matches a /{prefix} that replicates", ip.dst);
        Step::new(Stage::Route, decision, why)
    });
    let to = to.map(|hop| (hop.port, Some(hop.mac)));
    send_by_all(cx, (ports, counters), Copies::new(frame, l3), to);
    Verdict::Routed
}

/// Selects among equal next hops. A fragment has only addresses, so that all fragments of a packet take the same path.
fn flow(ip: &Ipv4, payload: &[u8]) -> Flow {
    let ports = match ip.protocol {
        PROTOCOL_UDP | PROTOCOL_TCP if !ip.is_fragment() => {
            payload.first_chunk::<4>().copied().unwrap_or_default()
        }
        _ => [0; 4],
    };
    let [s0, s1, d0, d1] = ports;
    Flow {
        src: ip.src,
        dst: ip.dst,
        protocol: ip.protocol,
        src_port: u16::from_be_bytes([s0, s1]),
        dst_port: u16::from_be_bytes([d0, d1]),
    }
}
