//! Frames and timers of a group of Mode-I, and its counters.

use core::net::Ipv4Addr;

use castnet_collective::EndpointId;
use castnet_collective::terminated::Message;
use castnet_rules::GroupRule;
use castnet_wire::ipv4::ECN;
use castnet_wire::layout::{self, PLAIN_FRAME};
use castnet_wire::{
    Control, DropReason, Ethernet, FrameBuf, Kind as PacketKind, Nanos, Opcode, Psn, RoceHeader, Syndrome,
};

use super::{TerminatedContext, qpn};
use crate::address;
use crate::egress::Egress;
use crate::group::classify::{self, Class};
use crate::group::collective::context::CollectiveGroupStatus;
use crate::group::collective::feedback;
use crate::group::collective::frame::{self, accept};
use crate::group::collective::slots;
use crate::group::collective::translate::ECT_0;
use crate::group::install::macs;
use crate::group::kind::Kind;
use crate::group::meter::{self, Metered};
use crate::group::services::{Services, looks};
use crate::group::verify;
use crate::observe::counters::{CollectiveCounters, CongestionCounters, CountersSnapshot, EndpointCounters};
use crate::observe::trace::{Observer, Stage, Verdict};
use crate::output::acknowledge::LinkHeader;
use crate::output::cx::Cx;
use crate::tables::next_hops::{NextHops, NextHopsFull};

impl Kind for Box<TerminatedContext> {
    type Status = CollectiveGroupStatus;

    fn rule(&self) -> &GroupRule {
        &self.rule
    }

    fn memory_bytes(&self) -> usize {
        self.rule.reserved_bytes() as usize
    }

    fn bind(&mut self, next_hops: &mut NextHops, _: Option<Ipv4Addr>) -> Result<(), NextHopsFull> {
        let TerminatedContext { rule, neighbours, .. } = &mut **self;
        next_hops.acquire_all(macs(rule), |i, index| neighbours[i].next_hop = index)
    }

    fn unbind(&self, next_hops: &mut NextHops) {
        self.neighbours
            .iter()
            .for_each(|neighbour| next_hops.release(neighbour.next_hop));
    }

    fn frame<E: Egress, O: Observer>(
        &mut self,
        services: &mut Services,
        cx: &mut Cx<'_, E, O>,
        slot: u32,
        header: &RoceHeader,
        src: Ipv4Addr,
        frame: E::Buf,
    ) -> Verdict {
        cx.observer.group(self.mcst_id);
        let mac = address::source_mac(frame.head());
        let from = self.senders.find(cx.ingress, src, header.bth.dest_qp, mac);
        let from = from.and_then(EndpointId::new);
        let class = classify::class(header);
        let (from, class) = match accept(
            cx,
            &self.rule,
            &self.checksum,
            (from, src),
            (header, class),
            &frame,
        ) {
            Ok(accepted) => accepted,
            Err(refusal) => {
                self.counters.dropped += 1;
                return frame::refuse(cx, &self.rule, refusal, (src, mac), header);
            }
        };
        if self.machine.has_ended(from) {
            self.counters.dropped += 1;
            return cx.drop(Stage::Machine, DropReason::GroupFailed, || {
                "the connection of its endpoint has ended".into()
            });
        }
        let marked = header.tos & ECN == ECN && class == Class::Data;
        self.congestion.marked += u64::from(marked);
        if class == Class::Data
            && header.imm.is_none()
            && let Some(Some(bucket)) = self.meters.get_mut(from.index())
        {
            match meter::meter(cx, bucket, header, frame.length()) {
                Metered::Within => {}
                Metered::Marked => {
                    self.counters.rate_marks += 1;
                    self.connections.handle_mark(cx.now, qpn(from));
                }
                Metered::Over => {
                    self.counters.dropped += 1;
                    self.counters.rate_drops += 1;
                    return meter::drop_over(cx, &self.rule, frame.length());
                }
            }
        }
        if let Some(neighbour) = self.neighbours.get_mut(from.index()) {
            let link = LinkHeader::of(Some(&frame), header);
            let ect = match class {
                Class::Data => header.tos & ECN != 0,
                Class::Feedback(_) | Class::Cnp => neighbour.ect,
            };
            if neighbour.link != link || neighbour.ect != ect {
                (neighbour.link, neighbour.ect) = (link, ect);
                let tos = link.tos() | if ect { ECT_0 } else { 0 };
                let changed = self.connections.set_tos(qpn(from), tos);
                debug_assert!(changed.is_ok(), "each endpoint has a QP");
            }
        }
        let before = (
            self.connections.stats().requests_in,
            self.connections.stats().duplicates_in,
        );
        let (at, length) = (header.payload_at, header.payload_len);
        let payload = match verify::pieces(&frame, at, length) {
            Some((payload, [])) => payload,
            _ => slots::gathered(&frame, at, length, &mut services.scratch.room[..]),
        };
        if header.imm.is_some() {
            let is_control =
                header.bth.opcode == Opcode::SendOnlyImm && header.imm == Some(Control::IMMEDIATE);
            let control = is_control.then(|| Control::parse(payload).ok()).flatten();
            self.control = control.map_or(Message::Invalid, Message::Control);
        }
        self.connections
            .handle_verified(cx.now, qpn(from), header, payload);
        let stats = self.connections.stats();
        let (taken, repeated) = (stats.requests_in > before.0, stats.duplicates_in > before.1);
        drop(frame);
        self.count(from, class, header, (taken, repeated));
        self.finish(services, cx, slot);
        Verdict::Absorbed
    }

    fn timeout<E: Egress, O: Observer>(&mut self, services: &mut Services, cx: &mut Cx<'_, E, O>, slot: u32) {
        cx.observer.group(self.mcst_id);
        services.work = services.work.saturating_sub(looks(self.rule.endpoints.len()));
        self.connections.handle_timeout(cx.now);
        if let Some(stalled) = self.machine.handle_timeout(cx.now) {
            self.carry_out(cx.now, &stalled, cx.observer, &mut services.events);
        }
        self.finish(services, cx, slot);
    }

    fn emit<E: Egress, O: Observer>(&mut self, services: &mut Services, cx: &mut Cx<'_, E, O>, slot: u32) {
        self.scheduled.emitting = false;
        cx.observer.group(self.mcst_id);
        self.finish(services, cx, slot);
    }

    fn resume(&mut self, services: &mut Services, now: Nanos, slot: u32) {
        let more = std::mem::take(&mut self.scheduled.emitting);
        self.schedule(services, now, slot, more);
    }

    fn note_dropped(&mut self) {
        self.counters.dropped += 1;
    }

    fn snapshot(&self, into: &mut CountersSnapshot) -> bool {
        into.collective.add(&self.rule, self.counters, self.endpoints())
    }

    fn status(&self) -> CollectiveGroupStatus {
        let mut machine = self.machine.status();
        for endpoint in &mut machine.endpoints {
            if let Ok(qp) = self.connections.qp_status(qpn(endpoint.endpoint)) {
                let start = self.rule.endpoints.get(endpoint.endpoint.index());
                let rank = start.and_then(|e| e.next_hop.rank());
                let since =
                    |psn: Psn, start: Psn| u64::from(psn.value().wrapping_sub(start.value()) % Psn::MODULUS);
                if let Some(rank) = rank {
                    endpoint.packets = (
                        since(qp.psn_expected, rank.sq_psn),
                        since(qp.psn_unacked, rank.rq_psn),
                    );
                }
            }
        }
        let packets = self.rule.translated().map_or(0, |kind| kind.message_packets);
        CollectiveGroupStatus {
            rule: self.rule.clone(),
            machine,
            counters: self.counters,
            congestion: self.congestion,
            endpoints: self.endpoints().collect(),
            slots_used: self.machine.slots_used() * usize::from(packets),
            memory_bytes: self.memory_bytes(),
        }
    }
}

impl TerminatedContext {
    fn count(
        &mut self,
        from: EndpointId,
        class: Class,
        header: &RoceHeader,
        (taken, repeated): (bool, bool),
    ) {
        let Some(endpoint) = self.per_endpoint.get_mut(from.index()) else {
            return;
        };
        let all = &mut self.counters;
        match class {
            Class::Data if taken => {
                endpoint.contributions += 1;
                match header.imm {
                    Some(_) => all.controls_in += 1,
                    None => {
                        all.contributions += 1;
                        all.contribution_bytes += header.payload_len as u64;
                    }
                }
            }
            Class::Data => {
                all.repeats += u64::from(repeated);
                endpoint.repeats += u64::from(repeated);
            }
            Class::Cnp => self.congestion.cnps_in += 1,
            Class::Feedback(aeth) => frame::count_feedback(all, endpoint, aeth.syndrome),
        }
    }
}

/// A frame that a connection has written, without tags.
pub(super) fn count_sent(
    bytes: &[u8],
    all: &mut CollectiveCounters,
    endpoint: &mut EndpointCounters,
    congestion: &mut CongestionCounters,
) {
    let opcode = bytes
        .get(Ethernet::LEN + layout::OPCODE)
        .copied()
        .and_then(Opcode::from_byte);
    match opcode.map(|opcode| opcode.info().kind) {
        Some(PacketKind::Ack) => {
            let syndrome = bytes.get(PLAIN_FRAME).and_then(|byte| Syndrome::from_byte(*byte));
            feedback::count(all, endpoint, syndrome.unwrap_or(Syndrome::Ack));
        }
        Some(PacketKind::Cnp) => congestion.cnps_out += 1,
        _ if opcode == Some(Opcode::SendOnlyImm) => all.controls_out += 1,
        _ => {
            all.results += 1;
            all.result_bytes += bytes.len().saturating_sub(PLAIN_FRAME + 4) as u64;
            endpoint.results += 1;
        }
    }
}
