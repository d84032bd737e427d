//! Registration packets of MRP (Cepheus III.C) are checked here and taken from the path of frames: control handles them.

use core::net::Ipv4Addr;
use std::collections::VecDeque;

use arrayvec::ArrayVec;
use castnet_wire::datagram::PAYLOAD_MAX;
use castnet_wire::ipv4::PROTOCOL_UDP;
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
