//! Replays a capture of two Linux SoftRoCE hosts. The responder must reply byte for byte as rxe did, and the requester
//! must send the same requests.

use crate::common::describe;
use castnet_endpoint::{
    Access, Discard, Endpoint, EndpointConfig, LocalSlice, QpConfig, QpState, RecvWr, SendOp, SendWr, Status,
};
use castnet_wire::{Kind, MacAddr, Nanos, Parsed, Psn, Qpn, RoceHeader, icrc, parse_frame};
use std::net::Ipv4Addr;

/// A RoCE frame of the capture.
struct Captured {
    header: RoceHeader,
    bytes: Vec<u8>,
}

impl Captured {
    fn src(&self) -> Ipv4Addr {
        self.header.ip.v4().unwrap().0
    }

    fn qpn(&self) -> u32 {
        self.header.bth.dest_qp.value()
    }

    fn is_request(&self) -> bool {
        self.header.bth.opcode.info().is_request()
    }

    fn payload(&self) -> &[u8] {
        &self.bytes[self.header.payload_at..][..self.header.payload_len]
    }
}

fn host(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, last)
}

/// The frames between the two hosts' QPs with this number, in order. Both hosts used the same number.
fn captured(qpn: u32) -> Vec<Captured> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/rxe-sample.pcap");
    let file = std::fs::read(path).unwrap();
    assert_eq!(
        file[..4],
        0xA1B2_C3D4u32.to_le_bytes(),
        "little endian, microseconds"
    );
    let mut rest = &file[24..];
    let mut frames = Vec::new();
    while let Some((record, after)) = rest.split_at_checked(16) {
        let length = u32::from_le_bytes(record[8..12].try_into().unwrap()) as usize;
        let (bytes, after) = after.split_at(length);
        rest = after;
        if let Ok(Parsed::Roce(header)) = parse_frame(bytes, bytes.len()) {
            frames.push(Captured {
                header,
                bytes: bytes.to_vec(),
            });
        }
    }
    frames.retain(|f| f.qpn() == qpn);
    assert!(!frames.is_empty());
    frames
}

fn mac_at(frame: &[u8], at: usize) -> MacAddr {
    MacAddr(frame[at..at + 6].try_into().unwrap())
}

/// The endpoint of the host that receives `request`, with a QP that expects it.
fn responder_of(request: &Captured) -> Endpoint {
    let (src, dst) = request.header.ip.v4().unwrap();
    let mut endpoint = Endpoint::new(EndpointConfig::new(mac_at(&request.bytes, 0), dst));
    let qpn = Qpn::new(request.qpn());
    let config = QpConfig {
        rq_psn: request.header.bth.psn,
        ..QpConfig::new(qpn, src, mac_at(&request.bytes, 6), qpn)
    };
    endpoint.create_qp(config).unwrap();
    endpoint
}

/// The QP that was created by the connection manager, which chooses a flow label. The source port is derived from it.
const BY_CM: Qpn = Qpn::new(0x16);

/// Masks the fields that two hosts may choose differently: the IP identification and values derived from it.
fn settled(frame: &[u8]) -> Vec<u8> {
    let Ok(Parsed::Roce(h)) = parse_frame(frame, frame.len()) else {
        panic!()
    };
    assert!(icrc::verify_bytes(frame, h.l3, h.frame_len));
    let mut bytes = frame[..h.icrc_at()].to_vec();
    bytes[h.l3 + 4..h.l3 + 6].fill(0);
    bytes[h.l3 + 10..h.l3 + 12].fill(0);
    if h.bth.dest_qp == BY_CM {
        bytes[h.l4..h.l4 + 2].fill(0);
    }
    bytes
}

#[track_caller]
fn assert_same_frame(ours: &[u8], rxe: &[u8]) {
    assert_eq!(describe(ours), describe(rxe));
    assert_eq!(settled(ours), settled(rxe));
}

/// Feeds the requests of host `source` and expects the ACKs that rxe sent.
fn replay(frames: &[Captured], source: u8, endpoint: &mut Endpoint) {
    let mut acks = frames
        .iter()
        .filter(|f| f.src() != host(source) && f.header.bth.opcode.info().kind == Kind::Ack);
    let mut out = [0; Endpoint::FRAME_MAX];
    for request in frames
        .iter()
        .filter(|f| f.src() == host(source) && f.is_request())
    {
        endpoint.handle_frame(Nanos(1), &request.bytes);
        while let Some(length) = endpoint.poll_transmit(Nanos(1), &mut out) {
            let expected = acks.next().expect("rxe also sent an ACK");
            assert_same_frame(&out[..length], &expected.bytes);
        }
    }
    assert!(acks.next().is_none(), "rxe answered more");
}

#[test]
fn sends_and_duplicates_are_acknowledged_as_by_rxe() {
    // Host 1 went back once (PSNs 3892633 to 3892635 were sent twice). Each duplicate was acknowledged with the newest
    // PSN.
    for source in [1, 2] {
        let frames = captured(0x11);
        let first = frames
            .iter()
            .find(|f| f.src() == host(source) && f.is_request())
            .unwrap();
        let mut endpoint = responder_of(first);
        let key = endpoint
            .register_memory(0, vec![0; 3000 * 12], Access::LOCAL)
            .unwrap();
        for i in 0..12 {
            let local = LocalSlice {
                key,
                offset: i * 3000,
                length: 3000,
            };
            endpoint
                .post_recv(Qpn::new(0x11), RecvWr { wr_id: i, local })
                .unwrap();
        }
        replay(&frames, source, &mut endpoint);
        let done: Vec<_> = std::iter::from_fn(|| endpoint.poll_completion()).collect();
        assert_eq!(done.len(), 12);
        assert!(
            done.iter()
                .enumerate()
                .all(|(i, c)| c.wr_id == i as u64 && c.byte_len == 3000)
        );
        assert_eq!(endpoint.stats().duplicates_in, if source == 1 { 3 } else { 0 });
    }
}

#[test]
fn small_sends_are_answered_one_by_one() {
    for (qpn, count) in [(0x13, 12), (0x16, 6)] {
        let frames = captured(qpn);
        let first = frames
            .iter()
            .find(|f| f.src() == host(1) && f.is_request())
            .unwrap();
        let mut endpoint = responder_of(first);
        let key = endpoint.register_memory(0, vec![0; 1000], Access::LOCAL).unwrap();
        for wr_id in 0..count {
            let local = LocalSlice {
                key,
                offset: 0,
                length: 1000,
            };
            endpoint
                .post_recv(Qpn::new(qpn), RecvWr { wr_id, local })
                .unwrap();
        }
        // The other direction of QP 0x16 has READs. Host 1's responses to them are not ACKs of host 1's requests.
        replay(&frames, 1, &mut endpoint);
        assert_eq!(endpoint.qp_status(Qpn::new(qpn)).unwrap().msn as u64, count);
    }
}

#[test]
fn writes_are_placed_and_acknowledged_as_by_rxe() {
    let mut frames = captured(0x12);
    let first = frames.iter().find(|f| f.is_request()).unwrap();
    let va = first.header.reth.unwrap().va;
    let mut endpoint = responder_of(first);
    let key = endpoint
        .register_memory(va, vec![0; 5000], Access::REMOTE_WRITE)
        .unwrap();
    // The capture contains rxe's key for the region, which differs from this endpoint's key.
    for frame in &mut frames {
        if let Some(at) = frame.header.reth_at() {
            frame.bytes[at + 8..at + 12].copy_from_slice(&key.rkey().to_be_bytes());
            let end = frame.header.icrc_at();
            let icrc = icrc::full(&[&frame.bytes[frame.header.l3..end]]);
            frame.bytes[end..end + 4].copy_from_slice(&icrc.to_le_bytes());
        }
    }
    replay(&frames, 1, &mut endpoint);
    let sent: Vec<u8> = frames
        .iter()
        .filter(|f| f.is_request())
        .take(5)
        .flat_map(|f| f.payload().to_vec())
        .collect();
    assert_eq!(sent.len(), 5000);
    assert_eq!(endpoint.memory(key).unwrap(), sent);
    assert_eq!(endpoint.stats().discards().count(), 0);
}

#[test]
fn reads_and_atomics_are_refused() {
    for qpn in [0x14, 0x15] {
        let frames = captured(qpn);
        let first = frames.iter().find(|f| f.is_request()).unwrap();
        let mut endpoint = responder_of(first);
        let mut out = [0; Endpoint::FRAME_MAX];
        for request in frames.iter().filter(|f| f.is_request()) {
            endpoint.handle_frame(Nanos(1), &request.bytes);
        }
        let length = endpoint.poll_transmit(Nanos(1), &mut out).unwrap();
        assert_eq!(
            describe(&out[..length]),
            format!("NAK1 {} #0", first.header.bth.psn)
        );
        assert_eq!(endpoint.poll_transmit(Nanos(1), &mut out), None);
        assert_eq!(endpoint.qp_status(Qpn::new(qpn)).unwrap().state, QpState::Error);
        assert!(endpoint.stats().discarded(Discard::QpNotReady) > 0);
    }
}

/// Posts the work of host `source` and expects the requests that rxe sent.
fn resend(qpn: u32, source: u8, messages: &[(SendOp, usize)]) {
    let frames = captured(qpn);
    let first = frames
        .iter()
        .find(|f| f.src() == host(source) && f.is_request())
        .unwrap();
    let (src, dst) = first.header.ip.v4().unwrap();
    let mut endpoint = Endpoint::new(EndpointConfig::new(mac_at(&first.bytes, 6), src));
    let number = Qpn::new(qpn);
    let remote_mac = mac_at(&first.bytes, 0);
    let sq_psn = first.header.bth.psn;
    endpoint
        .create_qp(QpConfig {
            sq_psn,
            ..QpConfig::new(number, dst, remote_mac, number)
        })
        .unwrap();

    let mut out = [0; Endpoint::FRAME_MAX];
    let mut newest: Option<Psn> = None;
    let mut requests = frames.iter().filter(|f| {
        let is_new = newest.is_none_or(|n| f.header.bth.psn.is_after(n));
        let takes = f.src() == host(source) && f.is_request() && is_new;
        if takes {
            newest = Some(f.header.bth.psn);
        }
        takes
    });
    for (wr_id, &(op, length)) in messages.iter().enumerate() {
        let mut message = Vec::new();
        let mut packets = Vec::new();
        while message.len() < length {
            let packet = requests.next().unwrap();
            message.extend_from_slice(packet.payload());
            packets.push(packet);
        }
        let key = endpoint.register_memory(0, message, Access::READ).unwrap();
        let local = LocalSlice {
            key,
            offset: 0,
            length: length as u32,
        };
        endpoint
            .post_send(number, SendWr::new(wr_id as u64, op, local))
            .unwrap();
        for packet in packets {
            let sent = endpoint.poll_transmit(Nanos(1), &mut out).unwrap();
            assert_same_frame(&out[..sent], &packet.bytes);
        }
        assert_eq!(endpoint.poll_transmit(Nanos(1), &mut out), None);
    }
    assert!(requests.next().is_none());
    for ack in frames
        .iter()
        .filter(|f| f.src() != host(source) && f.header.aeth.is_some())
    {
        endpoint.handle_frame(Nanos(2), &ack.bytes);
    }
    let done: Vec<_> = std::iter::from_fn(|| endpoint.poll_completion()).collect();
    assert_eq!(done.len(), messages.len());
    assert!(
        done.iter()
            .enumerate()
            .all(|(i, c)| c.wr_id == i as u64 && c.status == Status::Success)
    );
}

#[test]
fn requests_are_those_of_rxe() {
    resend(0x11, 1, &[(SendOp::Send, 3000); 12]);
    resend(0x11, 2, &[(SendOp::Send, 3000); 12]);
    let write = SendOp::Write {
        va: 0x564c_1f32_0388,
        rkey: 0x3ac,
    };
    resend(0x12, 1, &[(write, 5000); 12]);
    resend(0x13, 1, &[(SendOp::Send, 700); 12]);
}
