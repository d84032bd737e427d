//! Registration packets of MRP (Cepheus III.C) are checked here and taken from the path of frames: control handles them.

use core::net::Ipv4Addr;
use std::collections::VecDeque;

use arrayvec::ArrayVec;
use castnet_wire::datagram::PAYLOAD_MAX;
use castnet_wire::ipv4::PROTOCOL_UDP;
use castnet_wire::layout::{DST, PROTOCOL};
use castnet_wire::{Datagram, DropReason, Ethernet, FrameBuf, Ipv4, Limit, Nanos, PortId, Udp};

use crate::bridge::{Bridge, Bridging};
use crate::config::RegistrationConfig;
use crate::egress::Egress;
use crate::observe::trace::{Observer, Stage, Step, Verdict};
use crate::output::cx::Cx;

/// Untagged Ethernet, IP options, and the largest datagram.
const FRAME_MAX: usize = Ethernet::LEN + 60 + Udp::LEN + PAYLOAD_MAX;
/// For each port: the largest registration at once, and then 5,000 packets per second.
const RATE: Limit = Limit::new(256, Nanos::from_micros(200));
/// Packets that wait for control. A port may have as many there as are free: it takes half at most, and others find room.
const QUEUE: usize = 128;

/// Whether an IPv4 packet is for this UDP port. If the head of the frame ends before the port, as behind many tags, it may be.
fn may_be_to(udp_port: u16, packet: &[u8]) -> bool {
    let udp = packet.first().map_or(0, |first| usize::from(first & 0xF) * 4);
    let is_udp = packet.get(PROTOCOL) == Some(&PROTOCOL_UDP);
    let dport = packet.get(udp + 2..udp + 4);
    is_udp && dport.is_none_or(|dport| dport == udp_port.to_be_bytes())
}

/// A registration packet: a whole frame with right checksums.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistrationFrame {
    /// Ingress port.
    pub port: PortId,
    /// The frame. [`Datagram::parse`] succeeds.
    pub frame: ArrayVec<u8, FRAME_MAX>,
}

/// Registration packets on their way to control.
#[derive(Debug)]
pub(crate) struct Registrations {
    queue: VecDeque<RegistrationFrame>,
    limits: [Limit; PortId::COUNT],
}

impl Registrations {
    pub(crate) fn new(config: Option<&RegistrationConfig>) -> Self {
        Self {
            queue: VecDeque::with_capacity(config.map_or(0, |_| QUEUE)),
            limits: [RATE; PortId::COUNT],
        }
    }

    pub(crate) fn pop(&mut self) -> Option<RegistrationFrame> {
        self.queue.pop_front()
    }
}

impl Bridge {
    /// Whether a frame without RoCEv2 is a registration packet: by its destination address and port.
    pub(crate) fn is_registration(&self, header: &Ipv4, l3: usize, head: &[u8]) -> bool {
        let Some(config) = &self.config.registration else {
            return false;
        };
        if header.protocol != PROTOCOL_UDP || header.is_fragment() || !config.covers(header.dst) {
            return false;
        }
        let packet = head.get(l3..).unwrap_or_default();
        let ip = Ipv4::parse(packet).map_or(packet.len(), |(_, length)| length);
        let udp = packet.get(ip..).map(Udp::parse);
        matches!(udp, Some(Ok(udp)) if udp.dport == config.udp_port)
    }
}

impl Bridging<'_> {
    /// Takes a registration packet, if it may come in by this port.
    pub(crate) fn registration_frame<E: Egress, O: Observer>(
        &mut self,
        cx: &mut Cx<'_, E, O>,
        frame: E::Buf,
    ) -> Verdict {
        let refused = DropReason::RegistrationRefused;
        if !self.may_register(cx.ingress) {
            return cx.drop(Stage::Classify, refused, || {
                "groups cannot be registered from this port".into()
            });
        }
        // An ordinary switch floods what is for another switch behind it.
        let own = self.output.ports.mac(cx.ingress);
        if Ethernet::parse(frame.head()).is_ok_and(|(ethernet, _)| ethernet.dst != own) {
            return self.bridge(cx, frame);
        }
        // Before what costs more.
        let (now, ingress) = (cx.now, cx.ingress);
        let Registrations { queue, limits } = &mut self.own.registrations;
        let waiting = || queue.iter().filter(|packet| packet.port == ingress).count();
        if !limits[ingress.index()].allows(now) || waiting() + queue.len() >= QUEUE {
            return cx.drop(Stage::Classify, refused, || {
                "too many registration packets".into()
            });
        }
        let mut bytes = [0; FRAME_MAX];
        let length = frame.copy_to(&mut bytes);
        if frame.length() > FRAME_MAX || bytes[12..14] != castnet_wire::ethernet::ETHERTYPE_IPV4.to_be_bytes()
        {
            return cx.drop(Stage::Parse, DropReason::Malformed, || {
                "tagged or too long".into()
            });
        }
        if let Err(error) = Datagram::parse(&bytes[..length]) {
            return cx.drop(Stage::Parse, DropReason::Malformed, || error.to_string());
        }
        queue.push_back(RegistrationFrame {
            port: ingress,
            frame: bytes.iter().take(length).copied().collect(),
        });
        cx.observer.step(|| {
            Step::new(
                Stage::Classify,
                "register",
                "MRP, from a port where it is allowed",
            )
        });
        Verdict::Absorbed
    }

    /// Why a packet of MRP to a host does not have the source that it says: hosts believe that address.
    pub(crate) fn forged_registration(
        &self,
        config: &RegistrationConfig,
        (now, ingress): (Nanos, PortId),
        (source, packet): (Ipv4Addr, &[u8]),
    ) -> Option<&'static str> {
        let dst = packet.get(DST).and_then(|dst| dst.first_chunk::<4>());
        let is_to_group = dst.is_some_and(|dst| config.covers(Ipv4Addr::from(*dst)));
        if is_to_group || !may_be_to(config.udp_port, packet) {
            return None;
        }
        if config.covers(source) {
            return Some("of a group, for which a switch speaks only to the hosts next to it");
        }
        let (neighbours, known) = (&self.own.neighbours, config.fabric.or(self.own.core_ports()));
        // What the topology file says of a port counts more than LLDP, which a host can send.
        let is_of_hosts = || {
            self.own
                .tables
                .guards
                .iter()
                .any(|guard| guard.is_of_hosts(ingress))
        };
        let from_switch = known.contains(ingress) || neighbours.is_switch(ingress) && !is_of_hosts();
        let port = neighbours.port(now, source)?;
        (port != ingress && !from_switch).then_some("at another port by ARP, and MRP believes addresses")
    }

    fn may_register(&self, port: PortId) -> bool {
        let config = &self.own.config.registration;
        config.as_ref().is_some_and(|config| config.ports.contains(port))
    }

    /// Whether ARP requests for an address are answered because it can be registered from the port.
    pub(crate) fn is_registrable(&self, address: Ipv4Addr, port: PortId) -> bool {
        let config = &self.own.config.registration;
        config.as_ref().is_some_and(|config| config.covers(address)) && self.may_register(port)
    }
}

impl RegistrationConfig {
    /// Whether a group may have this address.
    pub fn covers(&self, address: Ipv4Addr) -> bool {
        self.pool.iter().any(|prefix| prefix.contains(&address))
    }
}
