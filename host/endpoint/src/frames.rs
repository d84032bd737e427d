//! Receiving and sending of frames.

use castnet_wire::bth::pkey_matches;
use castnet_wire::ethernet::ETHERTYPE_IPV4;
use castnet_wire::layout::PLAIN_FRAME;
use castnet_wire::roce::ICRC_LEN;
use castnet_wire::{
    Aeth, Bth, Ethernet, ExtHeaders, Ipv4, NakCode, Nanos, Network, Opcode, Parsed, Psn, Qpn, Reth,
    RoceHeader, Syndrome, Transport, emit_roce, icrc, ipv4, parse_frame,
};

use crate::config::{QpConfig, Repeat};
use crate::endpoint::{Endpoint, Qp};
use crate::packet::{DecodedPacket, Request, request_opcode};
use crate::reaction::Notifier;
use crate::requester::{OutgoingPacket, Response};
use crate::responder::{Answer, Verdict};
use crate::state::QpState;
use crate::stats::Discard;
use crate::work::{SendOp, Status};

impl Endpoint {
    /// Ethernet 14, IPv4 20, UDP 8, BTH 12, RETH 16, immediate 4, at most 4096 bytes of payload, ICRC 4.
    pub const FRAME_MAX: usize = PLAIN_FRAME + Reth::LEN + 4 + 4096 + ICRC_LEN;

    /// Processes a received Ethernet frame without FCS. Discarded frames are counted by [`Discard`].
    pub fn handle_frame(&mut self, now: Nanos, frame: &[u8]) {
        self.handle_checked(now, frame, false);
    }

    /// As [`Endpoint::handle_frame`]. With `icrc_good` the caller has verified the ICRC; false: unknown, it must be computed.
    pub fn handle_checked(&mut self, now: Nanos, frame: &[u8], icrc_good: bool) {
        self.stats.frames_in += 1;
        match self.accept(frame, icrc_good) {
            Ok((qpn, packet, marked)) => self.handle_packet(now, qpn, packet, marked),
            Err(reason) => self.stats.discard(reason),
        }
    }

    /// Processes a frame of which the caller has verified addresses, partition, checksums and ICRC, and knows the QP.
    pub fn handle_verified(&mut self, now: Nanos, qpn: Qpn, header: &RoceHeader, payload: &[u8]) {
        self.stats.frames_in += 1;
        let is_ready = self.qps.get(&qpn).is_some_and(|qp| qp.state == QpState::Ready);
        match DecodedPacket::decode(header, payload) {
            Some(packet) if is_ready => self.handle_packet(now, qpn, packet, is_marked(header)),
            Some(_) => self.stats.discard(Discard::QpNotReady),
            None => self.stats.discard(Discard::Malformed),
        }
    }

    fn handle_packet(&mut self, now: Nanos, qpn: Qpn, packet: DecodedPacket<'_>, marked: bool) {
        match packet {
            DecodedPacket::Request(request) => {
                if marked {
                    self.handle_mark(now, qpn);
                }
                self.handle_request(now, qpn, &request);
            }
            DecodedPacket::Acknowledge { psn, syndrome } => self.handle_response(now, qpn, psn, syndrome),
            DecodedPacket::RepairRequest { psn } => self.handle_repair_request(qpn, psn),
            DecodedPacket::DataResponse => self.stats.discard(Discard::UnexpectedResponse),
            DecodedPacket::Cnp => self.handle_cnp(now, qpn),
        }
        self.refresh(qpn);
    }

    /// Whether [`Endpoint::handle_frame`] would discard a frame because its QP is not connected yet.
    pub fn is_early(&self, frame: &[u8]) -> bool {
        let Ok(Parsed::Roce(header)) = parse_frame(frame, frame.len()) else {
            return false;
        };
        let is_here = header.ip.v4().is_some_and(|(_, dst)| dst == self.config.ip);
        let qp = self.qps.get(&header.bth.dest_qp);
        let is_early = is_here && qp.is_some_and(|qp| qp.state == QpState::Init);
        is_early && icrc::verify_bytes(frame, header.l3, header.frame_len)
    }

    /// The stateless checks in rxe's order, and the ICRC check. True: the frame has a congestion mark.
    fn accept<'a>(
        &self,
        frame: &'a [u8],
        icrc_good: bool,
    ) -> Result<(Qpn, DecodedPacket<'a>, bool), Discard> {
        if frame.get(..6).is_some_and(|dst| dst != self.config.mac.0) {
            return Err(Discard::NotMyMac);
        }
        let header: RoceHeader = match parse_frame(frame, frame.len()) {
            Ok(Parsed::Roce(header)) => header,
            Ok(_) => return Err(Discard::NotRoce),
            Err(_) => return Err(Discard::Malformed),
        };
        let (src, dst) = header.ip.v4().ok_or(Discard::NotRoce)?;
        if dst != self.config.ip {
            return Err(Discard::NotMyIp);
        }
        let bth = &header.bth;
        let qp = self.qps.get(&bth.dest_qp).ok_or(Discard::UnknownQp)?;
        let is_known = match bth.opcode {
            // Others know no such packet.
            Opcode::RepairRequest => qp.config.repeat != Repeat::All,
            opcode => matches!(opcode.info().transport, Transport::Rc | Transport::Cnp),
        };
        if !is_known {
            return Err(Discard::WrongTransport);
        }
        if qp.state != QpState::Ready {
            return Err(Discard::QpNotReady);
        }
        if src != qp.config.remote_ip {
            return Err(Discard::WrongSourceIp);
        }
        if !pkey_matches(bth.pkey, self.config.pkey) {
            return Err(Discard::BadPkey);
        }
        if !frame.get(header.l3..).is_some_and(ipv4::checksum_is_right) {
            return Err(Discard::Malformed);
        }
        if !icrc_good && !icrc::verify_bytes(frame, header.l3, header.frame_len) {
            return Err(Discard::BadIcrc);
        }
        let payload = frame.get(header.payload_at..header.payload_at + header.payload_len);
        let packet = payload.and_then(|payload| DecodedPacket::decode(&header, payload));
        Ok((bth.dest_qp, packet.ok_or(Discard::Malformed)?, is_marked(&header)))
    }

    /// The switches between the sender and this host are congested, also if the request is not in order.
    pub fn handle_mark(&mut self, now: Nanos, qpn: Qpn) {
        self.stats.marked_in += 1;
        let qp = self.qps.get_mut(&qpn);
        if let Some(notifier) = qp.and_then(|qp| qp.responder.notifier.as_mut()) {
            notifier.mark(now);
        }
        self.refresh(qpn);
    }

    fn handle_cnp(&mut self, now: Nanos, qpn: Qpn) {
        self.stats.cnps_in += 1;
        let Some(qp) = self.qps.get_mut(&qpn) else { return };
        self.stats.rate_cuts += u64::from(qp.requester.handle_cnp(now));
    }

    fn handle_repair_request(&mut self, qpn: Qpn, psn: Psn) {
        let Some(qp) = self.qps.get_mut(&qpn) else { return };
        match qp.requester.handle_repair_request(psn) {
            true => self.stats.repair_requests_in += 1,
            false => self.stats.discard(Discard::AckOld),
        }
    }

    fn handle_request(&mut self, now: Nanos, qpn: Qpn, request: &Request<'_>) {
        let mut has_next = self.handle_one(now, qpn, request);
        // What was kept behind the gap that this packet has filled.
        while has_next
            && let Some(qp) = self.qps.get_mut(&qpn)
            && let Some((kept, payload)) = qp.responder.kept.take_next()
        {
            let request = Request {
                payload: &payload,
                ..kept
            };
            has_next = self.handle_one(now, qpn, &request);
        }
    }

    /// True if the packet that is expected next was kept.
    fn handle_one(&mut self, now: Nanos, qpn: Qpn, request: &Request<'_>) -> bool {
        let Some(qp) = self.qps.get_mut(&qpn) else {
            return false;
        };
        let verdict = qp.responder.handle(now, request, &mut self.memory);
        let has_next = qp.responder.kept.has_next();
        self.stats.responses_lost += core::mem::take(&mut qp.responder.answers_lost);
        match verdict {
            Verdict::Taken => self.stats.requests_in += 1,
            Verdict::Received(received) => {
                self.stats.requests_in += 1;
                self.complete(received);
            }
            // The NAK is counted when it is sent.
            Verdict::NotReady | Verdict::Gap | Verdict::Kept => {}
            Verdict::OutOfOrder => self.stats.discard(Discard::OutOfOrder),
            Verdict::Duplicate => self.stats.duplicates_in += 1,
            Verdict::DuplicateUnsupported => self.stats.discard(Discard::DuplicateUnsupported),
            Verdict::Refused(status) => self.fail(qpn, None, status),
        }
        has_next
    }

    fn handle_response(&mut self, now: Nanos, qpn: Qpn, psn: Psn, syndrome: Syndrome) {
        let Some(qp) = self.qps.get_mut(&qpn) else { return };
        let response = qp.requester.handle_response(now, psn, syndrome);
        self.complete_acknowledged(qpn);
        match response {
            Response::Acknowledged => self.stats.acks_in += 1,
            Response::GoingBack => self.stats.sequence_naks_in += 1,
            Response::NakRepeated => self.stats.discard(Discard::NakRepeated),
            Response::Waiting => self.stats.rnr_naks_in += 1,
            Response::Old => self.stats.discard(Discard::AckOld),
            Response::Ahead => self.stats.discard(Discard::AckAhead),
            Response::Failed(status) => {
                if matches!(syndrome, Syndrome::Nak(code) if code.is_fatal()) {
                    self.stats.fatal_naks_in += 1;
                }
                self.fail(qpn, Some((0, status)), None);
            }
        }
    }

    /// Writes the next Ethernet frame without FCS to the start of `out` and returns its length, `None` if there is
    /// nothing to send. CNPs precede ACKs and NAKs, which precede requests. QPs are served round robin. `out` must have
    /// [`Endpoint::FRAME_MAX`] bytes: a shorter buffer is counted, and nothing is written.
    pub fn poll_transmit(&mut self, now: Nanos, out: &mut [u8]) -> Option<usize> {
        self.poll_transmit_of(now, out).map(|(_, length)| length)
    }

    /// As [`Endpoint::poll_transmit`], with the QP that sends the frame.
    pub fn poll_transmit_of(&mut self, now: Nanos, out: &mut [u8]) -> Option<(Qpn, usize)> {
        if out.len() < Self::FRAME_MAX {
            self.stats.short_buffers += 1;
            return None;
        }
        while let Some(qpn) = self.pop_answering() {
            let Some(qp) = self.qps.get_mut(&qpn) else {
                continue;
            };
            let notifies = qp.responder.notifier.as_mut().is_some_and(Notifier::take);
            let answer = match notifies {
                true => None,
                false => qp.responder.answers.pop_front(),
            };
            self.refresh(qpn);
            let length = match answer {
                Some(answer) => self.emit_answer(qpn, answer, out),
                None if notifies => self.emit_cnp(qpn, out),
                None => None,
            };
            if let Some(length) = length {
                return Some((qpn, length));
            }
        }
        while let Some(qpn) = self.pop_requesting() {
            let packet = self
                .qps
                .get_mut(&qpn)
                .and_then(|qp| qp.requester.next_packet(now));
            self.refresh(qpn);
            let Some(packet) = packet else { continue };
            match self.emit_request(qpn, &packet, out) {
                Some(length) => {
                    if let Some(qp) = self.qps.get_mut(&qpn) {
                        qp.requester.sent_frame(now, length);
                    }
                    return Some((qpn, length));
                }
                // The memory was deregistered after the send was posted.
                None => self.fail(qpn, Some((packet.index, Status::LocalProtectionError)), None),
            }
        }
        None
    }

    fn emit_answer(&mut self, qpn: Qpn, answer: Answer, out: &mut [u8]) -> Option<usize> {
        let (ethernet, network) = self.envelope(qpn)?;
        let qp = self.qps.get(&qpn)?;
        let opcode = match answer.is_request {
            true => Opcode::RepairRequest,
            false => Opcode::Ack,
        };
        let bth = Bth {
            pkey: self.config.pkey,
            ..Bth::new(opcode, qp.config.remote_qpn, answer.psn)
        };
        let ext = ExtHeaders {
            aeth: Some(Aeth {
                syndrome: answer.syndrome,
                msn: answer.msn,
            }),
            ..ExtHeaders::NONE
        };
        let length = emit_roce(out, &ethernet, &network, qp.sport, &bth, &ext, &[]).ok()?;
        let counter = match answer.syndrome {
            _ if answer.is_request => &mut self.stats.repair_requests_out,
            Syndrome::Ack => &mut self.stats.acks_out,
            Syndrome::RnrNak(_) => &mut self.stats.rnr_naks_out,
            Syndrome::Nak(NakCode::PsnSequenceError) => &mut self.stats.sequence_naks_out,
            Syndrome::Nak(_) => &mut self.stats.fatal_naks_out,
        };
        *counter += 1;
        self.stats.frames_out += 1;
        Some(length)
    }

    fn emit_cnp(&mut self, qpn: Qpn, out: &mut [u8]) -> Option<usize> {
        let (ethernet, mut network) = self.envelope(qpn)?;
        if let Network::V4(ip) = &mut network {
            ip.tos = QpConfig::CNP_TOS;
        }
        let qp = self.qps.get(&qpn)?;
        let bth = Bth {
            becn: true,
            pkey: self.config.pkey,
            ..Bth::new(Opcode::Cnp, qp.config.remote_qpn, Psn::new(0))
        };
        let length = emit_roce(out, &ethernet, &network, qp.sport, &bth, &ExtHeaders::NONE, &[]).ok()?;
        self.stats.cnps_out += 1;
        self.stats.frames_out += 1;
        Some(length)
    }

    fn emit_request(&mut self, qpn: Qpn, packet: &OutgoingPacket, out: &mut [u8]) -> Option<usize> {
        let (ethernet, mut network) = self.envelope(qpn)?;
        if let Network::V4(ip) = &mut network {
            // Consecutive packets of a QP have consecutive identifications, so ports can send them as super-frames.
            ip.ident = packet.psn.value() as u16;
        }
        let qp = self.qps.get(&qpn)?;
        let slice = packet.payload;
        let payload = self.memory.read(slice.key, slice.offset, slice.length as usize)?;
        let opcode = request_opcode(packet.op, packet.is_first, packet.is_last);
        let bth = Bth {
            solicited: packet.solicited,
            ack_request: packet.ack_request,
            pkey: self.config.pkey,
            ..Bth::new(opcode, qp.config.remote_qpn, packet.psn)
        };
        let reth = |va, rkey| {
            Some(Reth {
                va,
                rkey,
                dma_len: packet.message_length,
            })
        };
        let (reth, imm) = match packet.op {
            SendOp::Send => (None, None),
            SendOp::SendImm(imm) => (None, Some(imm)),
            SendOp::Write { va, rkey } => (reth(va, rkey), None),
            SendOp::WriteImm { va, rkey, imm } => (reth(va, rkey), Some(imm)),
        };
        let ext = ExtHeaders {
            reth,
            imm,
            ..ExtHeaders::NONE
        };
        let length = emit_roce(out, &ethernet, &network, qp.sport, &bth, &ext, payload).ok()?;
        self.stats.frames_out += 1;
        self.stats.requests_out += 1;
        self.stats.retransmits += packet.is_retransmission as u64;
        self.stats.ack_requests_out += packet.ack_request as u64;
        Some(length)
    }

    /// The headers of the QP's next frame.
    fn envelope(&mut self, qpn: Qpn) -> Option<(Ethernet, Network)> {
        let Qp { config: remote, .. } = self.qps.get(&qpn)?;
        let ethernet = Ethernet {
            dst: remote.remote_mac,
            src: self.config.mac,
            vlan: None,
            ethertype: ETHERTYPE_IPV4,
        };
        let network = Network::V4(Ipv4 {
            tos: remote.tos,
            ttl: remote.ttl,
            ident: self.ident,
            ..Ipv4::udp(self.config.ip, remote.remote_ip)
        });
        self.ident = self.ident.wrapping_add(1);
        Some((ethernet, network))
    }
}

fn is_marked(header: &RoceHeader) -> bool {
    header.tos & ipv4::ECN == ipv4::ECN
}
