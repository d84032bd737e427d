//! An endpoint and a scripted peer. Frames are short lines of text.
#![allow(dead_code, unreachable_pub)]

pub mod pipe;

use castnet_endpoint::{
    Access, Completion, Endpoint, EndpointConfig, LocalSlice, MemoryKey, QpConfig, RecvWr, SendOp, SendWr,
    Status,
};
use castnet_wire::{
    Aeth, Bth, Ethernet, ExtHeaders, MacAddr, NakCode, Nanos, Network, Opcode, Parsed, Psn, Qpn, Reth,
    RnrTimer, Syndrome, emit_roce, parse_frame,
};
use std::net::Ipv4Addr;

pub const MY_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
pub const PEER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
pub const MY_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub const PEER_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
pub const MY_QPN: Qpn = Qpn::new(0x11);
pub const PEER_QPN: Qpn = Qpn::new(0x12);
/// Virtual address of the region that the peer may write.
pub const VA: u64 = 0x1000_0000;
/// Bytes of that region.
pub const REGION: usize = 64 * 1024;

/// The endpoint under test. One of its QPs is connected to the scripted peer.
pub struct Bench {
    pub endpoint: Endpoint,
    pub now: Nanos,
    /// A region for work requests and the peer. Byte i is initially `pattern(i)`.
    pub key: MemoryKey,
    pub pmtu: usize,
}

/// The byte at `i` of a region or a scripted payload.
pub fn pattern(i: usize) -> u8 {
    (i as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0]
}

pub fn config() -> QpConfig {
    QpConfig::new(MY_QPN, PEER_IP, PEER_MAC, PEER_QPN)
}

impl Bench {
    pub fn new(config: QpConfig) -> Self {
        Self::with(config, EndpointConfig::new(MY_MAC, MY_IP))
    }

    pub fn with(config: QpConfig, endpoint: EndpointConfig) -> Self {
        let mut endpoint = Endpoint::new(endpoint);
        let pmtu = config.pmtu.bytes();
        endpoint.create_qp(config).unwrap();
        let bytes = (0..REGION).map(pattern).collect();
        let key = endpoint.register_memory(VA, bytes, Access::REMOTE_WRITE).unwrap();
        Self {
            endpoint,
            now: Nanos::from_millis(1),
            key,
            pmtu,
        }
    }

    pub fn slice(&self, offset: u64, length: u32) -> LocalSlice {
        LocalSlice {
            key: self.key,
            offset,
            length,
        }
    }

    pub fn post(&mut self, wr_id: u64, op: SendOp, length: u32) {
        let wr = SendWr::new(wr_id, op, self.slice(0, length));
        self.endpoint.post_send(MY_QPN, wr).unwrap();
    }

    pub fn post_recv(&mut self, wr_id: u64, length: u32) {
        let local = self.slice(32 * 1024, length);
        self.endpoint.post_recv(MY_QPN, RecvWr { wr_id, local }).unwrap();
    }

    /// All frames that the endpoint sends now, as text.
    pub fn drain(&mut self) -> Vec<String> {
        let mut out = [0; Endpoint::FRAME_MAX];
        let mut lines = Vec::new();
        while let Some(length) = self.endpoint.poll_transmit(self.now, &mut out) {
            lines.push(describe(&out[..length]));
        }
        lines
    }

    #[track_caller]
    pub fn sends(&mut self, expected: &[&str]) {
        assert_eq!(self.drain(), expected);
    }

    #[track_caller]
    pub fn completes(&mut self, expected: &[(u64, Status)]) {
        let got: Vec<_> = self.completions().iter().map(|c| (c.wr_id, c.status)).collect();
        assert_eq!(got, expected);
    }

    pub fn completions(&mut self) -> Vec<Completion> {
        std::iter::from_fn(|| self.endpoint.poll_completion()).collect()
    }

    pub fn feed(&mut self, packet: &Packet) {
        self.endpoint.handle_frame(self.now, &packet.frame());
    }

    pub fn ack(&mut self, psn: u32) {
        self.feed(&Packet::response(psn, Syndrome::Ack));
    }

    pub fn nak(&mut self, psn: u32, code: NakCode) {
        self.feed(&Packet::response(psn, Syndrome::Nak(code)));
    }

    pub fn rnr(&mut self, psn: u32, code: u8) {
        self.feed(&Packet::response(psn, Syndrome::RnrNak(RnrTimer::new(code))));
    }

    /// Advances the time to the next timer and processes it. Returns the time passed.
    pub fn wait(&mut self) -> Nanos {
        let (at, _) = self.endpoint.poll_timeout().expect("a timer");
        let waited = at.since(self.now);
        self.now = at;
        self.endpoint.handle_timeout(at);
        waited
    }
}

/// A scripted frame from the peer.
#[derive(Clone, Debug)]
pub struct Packet {
    pub ethernet: Ethernet,
    pub src: Ipv4Addr,
    pub dst: Ipv4Addr,
    pub bth: Bth,
    pub ext: ExtHeaders,
    pub payload: Vec<u8>,
}

impl Packet {
    pub fn new(opcode: Opcode, psn: u32) -> Self {
        Self {
            ethernet: Ethernet {
                dst: MY_MAC,
                src: PEER_MAC,
                vlan: None,
                ethertype: 0x0800,
            },
            src: PEER_IP,
            dst: MY_IP,
            bth: Bth::new(opcode, MY_QPN, Psn::new(psn)),
            ext: ExtHeaders::NONE,
            payload: Vec::new(),
        }
    }

    pub fn response(psn: u32, syndrome: Syndrome) -> Self {
        let mut packet = Self::new(Opcode::Ack, psn);
        packet.ext.aeth = Some(Aeth { syndrome, msn: 0 });
        packet
    }

    /// A request that carries `length` bytes of the pattern.
    pub fn request(opcode: Opcode, psn: u32, length: usize) -> Self {
        let mut packet = Self::new(opcode, psn);
        packet.payload = (0..length).map(pattern).collect();
        packet.ext.imm = Some(0xABCD);
        packet
    }

    pub fn with(mut self, opcode: Opcode) -> Self {
        self.bth.opcode = opcode;
        self
    }

    pub fn ack_request(mut self) -> Self {
        self.bth.ack_request = true;
        self
    }

    pub fn reth(mut self, va: u64, rkey: u32, dma_len: u32) -> Self {
        self.ext.reth = Some(Reth { va, rkey, dma_len });
        self
    }

    pub fn frame(&self) -> Vec<u8> {
        let mut out = vec![0; 9000];
        let network = Network::v4(self.src, self.dst);
        let length = emit_roce(
            &mut out,
            &self.ethernet,
            &network,
            0xC000,
            &self.bth,
            &self.ext,
            &self.payload,
        )
        .unwrap();
        out.truncate(length);
        out
    }
}

/// Describes a frame: opcode, PSN, `A` for AckReq, `S` for solicited, RETH, immediate, payload bytes; or ACK, NAK, RNR
/// with PSN and `#` MSN; or a repair request with its PSN.
pub fn describe(frame: &[u8]) -> String {
    let Ok(Parsed::Roce(h)) = parse_frame(frame, frame.len()) else {
        panic!("no RoCE: {frame:?}")
    };
    assert!(castnet_wire::icrc::verify_bytes(frame, h.l3, h.frame_len), "ICRC");
    let psn = h.bth.psn.value();
    if h.bth.opcode == Opcode::RepairRequest {
        return format!("REQUEST {psn}");
    }
    if let Some(Aeth { syndrome, msn }) = h.aeth {
        return match syndrome {
            Syndrome::Ack => format!("ACK {psn} #{msn}"),
            Syndrome::Nak(code) => format!("NAK{} {psn} #{msn}", code as u8),
            Syndrome::RnrNak(t) => format!("RNR{} {psn} #{msn}", t.code()),
        };
    }
    let mut line = format!("{} {psn}", h.bth.opcode.info().name.trim_start_matches("RC "));
    if h.bth.ack_request {
        line += " A";
    }
    if h.bth.solicited {
        line += " S";
    }
    if let Some(r) = h.reth {
        line += &format!(" {:#x}/{:#x}/{}", r.va, r.rkey, r.dma_len);
    }
    if let Some(imm) = h.imm {
        line += &format!(" imm {imm:#x}");
    }
    format!("{line} [{}]", h.payload_len)
}
