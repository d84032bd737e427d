//! The RC endpoint: frames, work requests and time in any order.

use crate::driver::reached;
use castnet_endpoint::{
    Access, CompletionOp, Endpoint, EndpointConfig, LocalSlice, MemoryKey, QpConfig, QpState, RecvWr, Repeat,
    SendOp, SendWr,
};
use castnet_wire::{MacAddr, Nanos, Parsed, Pmtu, Psn, Qpn, icrc, ipv4, parse_frame};
use std::net::Ipv4Addr;

/// MAC address of the endpoint: host 2 of the captured frames.
pub const MAC: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 2]);
/// IP address of the endpoint.
pub const IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
/// MAC address of the peer.
pub const PEER_MAC: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 1]);
/// IP address of the peer.
pub const PEER_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// QPN of both QPs.
pub const QPN: Qpn = Qpn::new(0x11);
/// First PSN that it expects, as in the capture.
pub const RQ_PSN: Psn = Psn::new(3_892_600);
/// First PSN that it sends.
pub const SQ_PSN: Psn = Psn::new(0xFF_FFFE);
/// Key of the memory region that the peer may write.
pub const RKEY: u32 = 0x101;
/// Virtual address of the region.
pub const VA: u64 = 0x1000;
/// Bytes of the region.
pub const REGION: usize = 8192;

/// Kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Step {
    /// The bytes are a frame.
    Frame = 0,
    /// The bytes are a frame whose IPv4 checksum and ICRC are corrected first.
    Repaired = 1,
    /// Posts a send: kind, length (2 bytes).
    Send = 2,
    /// Posts a receive: length (2 bytes).
    Receive = 3,
    /// The next timer expires.
    Time = 4,
}

/// A record: step, length (2 bytes, big endian), bytes.
pub fn record(step: Step, bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).expect("a short record");
    [&[step as u8], &length.to_be_bytes()[..], bytes].concat()
}

/// Runs `data` as a sequence of records, on a QP of each kind. Checks after each step that completions come once and in order, that every
/// sent frame is valid, and that memory without rights is unchanged.
pub fn endpoint(data: &[u8]) {
    for (repeat, probes) in [
        (Repeat::All, false),
        (Repeat::All, true),
        (Repeat::One, true),
        (Repeat::Requested, true),
    ] {
        run(World::new(repeat, probes), data);
    }
}

fn run(mut world: World, data: &[u8]) {
    let mut rest = data;
    while let Some((&[step, l0, l1], after)) = rest.split_first_chunk() {
        let length = usize::from(u16::from_be_bytes([l0, l1])).min(after.len());
        let (bytes, after) = after.split_at(length);
        rest = after;
        world.step(step, bytes);
        world.check();
    }
    world.end();
}

struct World {
    endpoint: Endpoint,
    now: Nanos,
    key: MemoryKey,
    guarded: MemoryKey,
    sends: [u64; 2],
    receives: [u64; 2],
}

impl World {
    fn new(repeat: Repeat, probes: bool) -> Self {
        let mut endpoint = Endpoint::new(EndpointConfig::new(MAC, IP));
        let key = endpoint
            .register_memory(VA, vec![0; REGION], Access::REMOTE_WRITE)
            .expect("room");
        assert_eq!(key.rkey(), RKEY);
        let guarded = endpoint
            .register_memory(VA, vec![0xA5; REGION], Access::READ)
            .expect("room");
        let config = QpConfig {
            sq_psn: SQ_PSN,
            rq_psn: RQ_PSN,
            pmtu: Pmtu::B1024,
            window: 16,
            retry_cnt: 5,
            rnr_retry: 5,
            repeat,
            probes,
            ..QpConfig::new(QPN, PEER_IP, PEER_MAC, QPN)
        };
        endpoint.create_qp(config).expect("a valid configuration");
        Self {
            endpoint,
            now: Nanos::from_millis(1),
            key,
            guarded,
            sends: [0; 2],
            receives: [0; 2],
        }
    }

    fn slice(&self, length: u16) -> LocalSlice {
        LocalSlice {
            key: self.key,
            offset: 0,
            length: u32::from(length),
        }
    }

    fn step(&mut self, step: u8, bytes: &[u8]) {
        let short = |at| {
            bytes
                .get(at..at + 2)
                .map_or(0, |b| u16::from_be_bytes([b[0], b[1]]))
        };
        match step % 5 {
            0 => self.endpoint.handle_frame(self.now, bytes),
            1 => self.endpoint.handle_frame(self.now, &repaired(bytes)),
            2 => {
                let (va, rkey, imm) = (VA, RKEY, 7);
                let op = match bytes.first().map_or(0, |b| b % 4) {
                    0 => SendOp::Send,
                    1 => SendOp::SendImm(imm),
                    2 => SendOp::Write { va, rkey },
                    _ => SendOp::WriteImm { va, rkey, imm },
                };
                let wr = SendWr::new(self.sends[0], op, self.slice(short(1)));
                self.sends[0] += u64::from(self.endpoint.post_send(QPN, wr).is_ok());
            }
            3 => {
                let wr = RecvWr {
                    wr_id: self.receives[0],
                    local: self.slice(short(0)),
                };
                self.receives[0] += u64::from(self.endpoint.post_recv(QPN, wr).is_ok());
            }
            _ => {
                if let Some((at, _)) = self.endpoint.poll_timeout() {
                    self.now = self.now.max(at);
                    self.endpoint.handle_timeout(self.now);
                }
            }
        }
    }

    fn check(&mut self) {
        let mut out = [0; Endpoint::FRAME_MAX];
        let mut frames = 0;
        while let Some(length) = self.endpoint.poll_transmit(self.now, &mut out) {
            let Ok(Parsed::Roce(header)) = parse_frame(&out[..length], length) else {
                panic!("not RoCE: {:02x?}", &out[..length]);
            };
            assert!(icrc::verify_bytes(&out[..length], header.l3, length));
            frames += 1;
            assert!(frames <= 16 + 256, "more frames than a window and all answers");
        }
        while let Some(c) = self.endpoint.poll_completion() {
            let count = match c.op {
                CompletionOp::Send | CompletionOp::Write => &mut self.sends,
                CompletionOp::Recv | CompletionOp::RecvWriteImm => &mut self.receives,
            };
            assert_eq!(c.wr_id, count[1], "in order, once");
            count[1] += 1;
            assert!(count[1] <= count[0], "only posted requests complete");
        }
        let status = self.endpoint.qp_status(QPN).expect("the QP");
        reached((
            status.state,
            frames.min(3),
            status.sends.min(3),
            status.receives.min(3),
        ));
        assert!(status.psn_next.diff(status.psn_unacked) >= 0);
        assert!(status.state != QpState::Error || status.sends + status.receives == 0);
        assert!(
            self.endpoint
                .memory(self.guarded)
                .expect("the region")
                .iter()
                .all(|&b| b == 0xA5)
        );
        if let Some((at, _)) = self.endpoint.poll_timeout() {
            assert!(at > self.now, "a timer does not advance");
        }
    }

    fn end(&mut self) {
        self.endpoint.fail_qp(QPN).expect("the QP");
        self.check();
        assert_eq!(
            (self.sends[0], self.receives[0]),
            (self.sends[1], self.receives[1])
        );
        assert_eq!(self.endpoint.poll_timeout(), None);
    }
}

/// Corrects the IPv4 checksum and ICRC of a frame, so that later checks are reached.
pub(crate) fn repaired(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    if let Ok(Parsed::Roce(h)) = parse_frame(&frame, frame.len()) {
        let end = h.icrc_at();
        if h.ip.v4().is_some() {
            frame[h.l3 + 10..h.l3 + 12].fill(0);
            let sum = ipv4::checksum(&frame[h.l3..h.l3 + 20]);
            frame[h.l3 + 10..h.l3 + 12].copy_from_slice(&sum.to_be_bytes());
        }
        let icrc = icrc::full(&[&frame[h.l3..end]]);
        frame[end..end + 4].copy_from_slice(&icrc.to_le_bytes());
    }
    frame
}
