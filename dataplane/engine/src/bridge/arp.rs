//! Answers ARP requests for McstIDs and own addresses with the address of the ingress port. Switches all other ARP. Learns the senders.

use core::net::Ipv4Addr;

use castnet_wire::{Arp, ArpOp, DropReason, Ethernet, FrameBuf};

use crate::bridge::{Bridge, Bridging};
use crate::egress::Egress;
use crate::observe::trace::{Observer, Stage, Step, Verdict};
use crate::output::Output;
use crate::output::cx::Cx;
use crate::tables::neighbours::{Ask, Tags};
use castnet_wire::ethernet::{FRAME_MIN, MACS_LEN, set_macs};

impl Bridging<'_> {
    pub(crate) fn arp_frame<E: Egress, O: Observer>(
        &mut self,
        cx: &mut Cx<'_, E, O>,
        arp: &Arp,
        mut frame: E::Buf,
    ) -> Verdict {
        let Ok((ethernet, l3)) = Ethernet::parse(frame.head()) else {
            return cx.drop(Stage::Parse, DropReason::Malformed, || {
                "no Ethernet header".into()
            });
        };
        if let Some(why) = self.forgery(cx.ingress, arp.sender_ip) {
            return cx.drop(Stage::Arp, DropReason::NotMember, || {
                format!("{} claims {}, which is {why}", arp.sender_mac, arp.sender_ip)
            });
        }
        let tags = Tags::new(frame.head().get(MACS_LEN..l3).unwrap_or_default());
        self.learn_neighbour(cx, arp, &ethernet, tags);
        let mac = self.output.ports.mac(cx.ingress);
        if arp.op == ArpOp::Request
            && (self.answers_for(arp.target_ip) || self.is_registrable(arp.target_ip, cx.ingress))
            && !ethernet.src.is_multicast()
        {
            self.learn(cx, &ethernet);
            set_macs(frame.head_mut(), ethernet.src, mac);
            if let Some(room) = frame.head_mut().get_mut(l3..l3 + Arp::LEN) {
                room.copy_from_slice(&arp.reply(mac).to_bytes());
            }
            cx.observer.step(|| {
                let what = if self.is_group(arp.target_ip) {
                    "a McstID"
                } else if self.is_registrable(arp.target_ip, cx.ingress) {
                    "a McstID that can be registered"
                } else {
                    "an address of this switch"
                };
                let decision = format!("answer: {} is at {mac}", arp.target_ip);
                Step::new(Stage::Arp, decision, format!("request for {what}"))
            });
            self.output.counters.totals.originated += 1;
            cx.send(&mut self.output.counters, cx.ingress, frame);
            return Verdict::Absorbed;
        }
        if arp.op == ArpOp::Reply && ethernet.dst == mac {
            self.learn(cx, &ethernet);
            cx.observer
                .step(|| Step::new(Stage::Arp, "absorb", "a reply to this switch"));
            return Verdict::Absorbed;
        }
        // Hosts believe what they are told. One that has moved says it again, and is believed when its old place is silent.
        if let Some(mac) = self.own.neighbours.mac(cx.now, arp.sender_ip)
            && mac != arp.sender_mac
        {
            return cx.drop(Stage::Arp, DropReason::NotMember, || {
                format!("{} claims {}, which {mac} has", arp.sender_mac, arp.sender_ip)
            });
        }
        cx.observer.step(|| {
            Step::new(
                Stage::Arp,
                "switch on",
                format!("{} is no address of this switch", arp.target_ip),
            )
        });
        self.bridge(cx, frame)
    }

    /// Learns the sender of an ARP packet as a neighbour, if the packet does not contradict its frame.
    fn learn_neighbour<E: Egress, O: Observer>(
        &mut self,
        cx: &mut Cx<'_, E, O>,
        arp: &Arp,
        ethernet: &Ethernet,
        tags: Tags,
    ) {
        let (ip, mac) = (arp.sender_ip, arp.sender_mac);
        let is_host = !ip.is_unspecified() && !ip.is_multicast() && !ip.is_broadcast();
        if !is_host || mac != ethernet.src || mac.is_multicast() || self.own.config.addresses.contains(&ip) {
            return;
        }
        let at = (cx.now, cx.ingress);
        let neighbours = &mut self.own.neighbours;
        let asks = neighbours.arp(at, ip, (mac, tags), &self.own.tables, self.events);
        self.own.start_ageing(cx.now);
        if let Some(ask) = asks {
            cx.observer.step(|| {
                let decision = format!("ask {} at port {}", ask.mac, ask.port);
                let reason = format!("{mac} claims {ip}, which was seen there");
                Step::new(Stage::Arp, decision, reason)
            });
            self.own.ask(cx, self.output, &ask);
        }
    }
}

impl Bridge {
    /// Asks a host whether it still has its address (an ARP probe, RFC 5227). The reply is learned.
    pub(crate) fn ask<E: Egress, O: Observer>(
        &mut self,
        cx: &mut Cx<'_, E, O>,
        output: &mut Output,
        ask: &Ask,
    ) {
        let own = output.ports.mac(ask.port);
        let probe = Arp::request(own, Ipv4Addr::UNSPECIFIED, ask.ip).to_bytes();
        let padding = [0; FRAME_MIN - Ethernet::LEN - Arp::LEN];
        let parts = [&ask.mac.0[..], &own.0, ask.tags.as_slice(), &probe, &padding];
        match cx.egress.gather(ask.port, &parts) {
            Some(frame) => {
                self.neighbours.handle_asked(cx.now, ask.ip);
                output.counters.totals.originated += 1;
                cx.send(&mut output.counters, ask.port, frame);
            }
            None => output.counters.totals.copies_lost += 1,
        }
    }
}
