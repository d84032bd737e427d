//! Routed frames of flows that are cached. The slow twin is `Bridging::bridge`, which enters the flows.

use castnet_reduce::prefetch;
use castnet_wire::ethernet::set_macs;
use castnet_wire::layout::{TOTAL_LENGTH, TTL};
use castnet_wire::{Ethernet, FrameBuf, Ipv4, Nanos, PortId, ipv4};

use crate::bridge::{Bridge, Bridging};
use crate::egress::Egress;
use crate::observe::trace::{Off, Verdict};
use crate::output::Output;
use crate::output::cx::Cx;
use crate::tables::flows::{FlowHop, FlowKey};
use crate::tables::route::Hop;

impl Bridge {
    /// Called when groups, routes, ports or MTUs change.
    pub(crate) fn forget_flows(&mut self) {
        self.flows.generation += 1;
    }

    /// Of the flows that come in by a port. Both only grow, so that the sum differs after each change.
    #[inline]
    fn generation(&self, ingress: PortId) -> u64 {
        // An empty entry has generation 0.
        1 + self.flows.generation + self.fdb.lost[ingress.index()]
    }

    #[inline]
    fn hop(&self, now: Nanos, ingress: PortId, head: &[u8]) -> Option<&FlowHop> {
        let key = FlowKey::of(head, ingress)?;
        self.flows.find(now, self.generation(ingress), &key)
    }

    /// Routes a frame of a cached flow. Any other frame is returned, unchanged; no group has its destination address.
    #[inline]
    pub(crate) fn cached_frame<E: Egress>(
        &self,
        cx: &mut Cx<'_, E, Off>,
        output: &mut Output,
        mut frame: E::Buf,
    ) -> Option<E::Buf> {
        let Some(hop) = self.hop(cx.now, cx.ingress, frame.head()) else {
            return Some(frame);
        };
        let packet = frame.head().get(Ethernet::LEN..).unwrap_or_default();
        let Some(ip) = packet.first_chunk::<{ Ipv4::LEN }>() else {
            return Some(frame);
        };
        let length = usize::from(u16::from_be_bytes([
            ip[TOTAL_LENGTH.start],
            ip[TOTAL_LENGTH.start + 1],
        ]));
        let is_good = ip[TTL] > 1
            && (Ipv4::LEN..=hop.mtu as usize).contains(&length)
            && Ethernet::LEN + length <= frame.length()
            && (frame.checksum_good() || ipv4::checksum_is_right(ip));
        if !is_good {
            return Some(frame);
        }
        let head = frame.head_mut();
        set_macs(head, hop.dst, hop.src);
        if let Some(packet) = head.get_mut(Ethernet::LEN..) {
            ipv4::decrement_ttl(packet);
        }
        cx.send(&mut output.counters, hop.port, frame);
        output.counters.account(cx.ingress, Verdict::Routed);
        None
    }

    /// Prefetches what [`Bridge::cached_frame`] and [`Bridge::poll_timeout`] read.
    pub(crate) fn prefetch(&self) {
        prefetch(&self.flows);
        prefetch(&self.lldp_at);
        prefetch(&self.ageing_at);
    }

    /// Prefetches the flow of a frame.
    #[inline]
    pub(crate) fn prefetch_flow(&self, ingress: PortId, head: &[u8]) {
        if let Some(key) = FlowKey::of(head, ingress) {
            prefetch(&self.fdb.lost[ingress.index()]);
            self.flows.prefetch(&key);
        }
    }

    /// The port by which a frame of a cached flow leaves.
    #[inline]
    pub(crate) fn egress_of(&self, now: Nanos, ingress: PortId, head: &[u8]) -> Option<PortId> {
        self.hop(now, ingress, head).map(|hop| hop.port)
    }
}

impl Bridging<'_> {
    /// Enters the flow of a frame that is being routed, once the FDB has seen its source address twice.
    pub(crate) fn keep_flow(&mut self, now: Nanos, ingress: PortId, head: &[u8], hop: Hop) {
        let Some(key) = FlowKey::of(head, ingress) else {
            return;
        };
        let Some(until) = self.own.fdb.known_until(now, 0, key.src_mac(), ingress) else {
            return;
        };
        // What a host sends to a static core is decided by its opcode ([`Bridge::forged_core`]), which is not in the key.
        if key.dst_ip().is_multicast() && !self.own.may_lead_to_core(ingress) {
            return;
        }
        // Registration packets may have the port of RoCEv2.
        let registration = self.own.config.registration.as_ref();
        if registration.is_some_and(|config| config.covers(key.dst_ip())) {
            return;
        }
        let hop = FlowHop {
            port: hop.port,
            dst: hop.mac,
            src: self.output.ports.mac(hop.port),
            mtu: self.output.ports.mtus[hop.port.index()],
        };
        let generation = self.own.generation(ingress);
        self.own.flows.insert(key, hop, generation, until);
    }
}
