//! Scripts of events at one RC endpoint: posted work, received frames and expired timers. The same script is played to
//! Linux rxe, whose frames are recorded, and to this crate's endpoint, which must send the same frames.
//!
//! Each line is one step. A comment starts with `#`. PSNs are relative to the first PSN of their direction (`sq`,
//! `rq`).
//!
//! ```text
//! qp sq=16777200 rq=5 pmtu=256 timeout=16 retry=7 rnr_timer=12
//! post send 5000 | post write 5000 | receive 5000
//! ack 3 | nak 3 | access 3 | invalid 3 | rnr 3 14
//! in SEND_FIRST 0 256 a          (opcode, PSN, bytes of payload, `a` for AckReq; `at OFFSET LENGTH` where it has RETH)
//! timer                          the requester's timer runs out
//! ```
#![allow(dead_code, unreachable_pub)]

use castnet_endpoint::{
    Access, Endpoint, EndpointConfig, LocalSlice, MemoryKey, QpConfig, RecvWr, SendOp, SendWr,
};
use castnet_wire::{
    Aeth, Bth, Ethernet, ExtHeaders, MacAddr, NakCode, Nanos, Network, Opcode, Parsed, Pmtu, Psn, Qpn, Reth,
    RnrTimer, Syndrome, emit_roce, icrc, parse_frame,
};
use std::net::Ipv4Addr;

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Post a SEND or WRITE with immediate, of zeros.
    Post { by_write: bool, length: usize },
    /// Post a receive.
    Receive { length: usize },
    /// Feed a response.
    Response { psn: u32, syndrome: Syndrome },
    /// Feed a request.
    Request(Request),
    /// Let the requester's timer expire.
    Timer,
}

/// A received request. Its payload is zeros.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub opcode: Opcode,
    pub psn: u32,
    pub length: usize,
    pub ack_request: bool,
    /// RETH: offset in the region, and length of the message.
    pub reth: Option<(u64, u32)>,
    /// True to use an invalid key in RETH.
    pub bad_key: bool,
}

/// A script.
#[derive(Clone, Debug)]
pub struct Script {
    pub story: String,
    pub sq: u32,
    pub rq: u32,
    pub pmtu: u32,
    pub timeout: u8,
    pub retry: u8,
    pub rnr_timer: u8,
    pub steps: Vec<Step>,
}

/// Virtual address and key of the remote in posted requests.
pub const THEIR_VA: u64 = 0x5000_0000;
pub const THEIR_RKEY: u32 = 0x1234;
/// The immediate of posted requests.
pub const IMM: u32 = 0x0A0B_0C0D;
/// Bytes of the region.
pub const REGION: usize = 256 << 10;

impl Script {
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut script = Self {
            story: String::new(),
            sq: 0,
            rq: 0,
            pmtu: 256,
            timeout: 16,
            retry: 7,
            rnr_timer: 12,
            steps: Vec::new(),
        };
        for (number, line) in text.lines().enumerate() {
            let fault = |what: &str| format!("line {}: {what}: {line}", number + 1);
            if let Some(story) = line.strip_prefix('#') {
                script.story += story.trim();
                script.story += " ";
                continue;
            }
            let words: Vec<&str> = line.split_whitespace().collect();
            let number_at = |i: usize| -> Result<u32, String> {
                let word = words.get(i).ok_or_else(|| fault("too short"))?;
                word.parse().map_err(|_| fault("no number"))
            };
            let response = |syndrome: Syndrome| -> Result<Step, String> {
                Ok(Step::Response {
                    psn: number_at(1)?,
                    syndrome,
                })
            };
            let step = match words.first().copied() {
                None => continue,
                Some("qp") => {
                    for word in &words[1..] {
                        let (name, value) = word.split_once('=').ok_or_else(|| fault("no NAME=VALUE"))?;
                        let value: u32 = value.parse().map_err(|_| fault("no number"))?;
                        match name {
                            "sq" => script.sq = value,
                            "rq" => script.rq = value,
                            "pmtu" => script.pmtu = value,
                            "timeout" => script.timeout = value as u8,
                            "retry" => script.retry = value as u8,
                            "rnr_timer" => script.rnr_timer = value as u8,
                            _ => return Err(fault("unknown name")),
                        }
                    }
                    continue;
                }
                Some("post") => Step::Post {
                    by_write: words.get(1) == Some(&"write"),
                    length: number_at(2)? as usize,
                },
                Some("receive") => Step::Receive {
                    length: number_at(1)? as usize,
                },
                Some("ack") => response(Syndrome::Ack)?,
                Some("nak") => response(Syndrome::Nak(NakCode::PsnSequenceError))?,
                Some("access") => response(Syndrome::Nak(NakCode::RemoteAccessError))?,
                Some("invalid") => response(Syndrome::Nak(NakCode::InvalidRequest))?,
                Some("rnr") => response(Syndrome::RnrNak(RnrTimer::new(number_at(2)? as u8)))?,
                Some("timer") => Step::Timer,
                Some("in") => {
                    let name = words.get(1).ok_or_else(|| fault("no opcode"))?;
                    let at = words.iter().position(|w| *w == "at");
                    Step::Request(Request {
                        opcode: opcode(name).ok_or_else(|| fault("no opcode"))?,
                        psn: number_at(2)?,
                        length: number_at(3)? as usize,
                        ack_request: words.contains(&"a"),
                        reth: match at {
                            Some(i) => Some((u64::from(number_at(i + 1)?), number_at(i + 2)?)),
                            None => None,
                        },
                        bad_key: words.contains(&"badkey"),
                    })
                }
                Some(_) => return Err(fault("unknown step")),
            };
            script.steps.push(step);
        }
        Ok(script)
    }

    /// The PSN of a step, relative to the first PSN of its direction.
    pub fn psn(first: u32, offset: u32) -> Psn {
        Psn::new((first + offset) & 0xFF_FFFF)
    }
}

fn opcode(name: &str) -> Option<Opcode> {
    (0..=u8::MAX)
        .filter_map(Opcode::from_byte)
        .find(|o| o.info().name == format!("RC {name}"))
}

/// The addresses of the endpoint under test and of the script.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    pub mac: MacAddr,
    pub ip: Ipv4Addr,
    pub qpn: Qpn,
    /// Virtual address of the endpoint's region.
    pub va: u64,
    pub rkey: u32,
    pub script_mac: MacAddr,
    pub script_ip: Ipv4Addr,
    pub script_qpn: Qpn,
}

impl Ends {
    /// The frame of a step, if the step has one.
    pub fn frame(&self, script: &Script, step: &Step) -> Option<Vec<u8>> {
        let mut ext = ExtHeaders::NONE;
        let (bth, length) = match step {
            Step::Response { psn, syndrome } => {
                ext.aeth = Some(Aeth {
                    syndrome: *syndrome,
                    msn: 0,
                });
                (Bth::new(Opcode::Ack, self.qpn, Script::psn(script.sq, *psn)), 0)
            }
            Step::Request(r) => {
                ext.imm = Some(0x0102_0304);
                ext.reth = r.reth.map(|(offset, dma_len)| Reth {
                    va: self.va + offset,
                    rkey: if r.bad_key { self.rkey ^ 0xFF00 } else { self.rkey },
                    dma_len,
                });
                let bth = Bth {
                    ack_request: r.ack_request,
                    ..Bth::new(r.opcode, self.qpn, Script::psn(script.rq, r.psn))
                };
                (bth, r.length)
            }
            Step::Post { .. } | Step::Receive { .. } | Step::Timer => return None,
        };
        let ethernet = Ethernet {
            dst: self.mac,
            src: self.script_mac,
            vlan: None,
            ethertype: 0x0800,
        };
        let network = Network::v4(self.script_ip, self.ip);
        let mut out = vec![0; 9000];
        let payload = vec![0; length];
        let n = emit_roce(&mut out, &ethernet, &network, 0xC001, &bth, &ext, &payload).expect("it fits");
        out.truncate(n);
        Some(out)
    }
}

/// This crate's endpoint, playing a script.
pub struct Twin {
    pub endpoint: Endpoint,
    qpn: Qpn,
    pub now: Nanos,
    key: MemoryKey,
}

impl Twin {
    pub fn new(script: &Script, ends: &Ends) -> Self {
        let mut endpoint = Endpoint::new(EndpointConfig::new(ends.mac, ends.ip));
        let config = QpConfig {
            sq_psn: Psn::new(script.sq),
            rq_psn: Psn::new(script.rq),
            pmtu: Pmtu::from_bytes(script.pmtu).expect("a path MTU"),
            timeout: script.timeout,
            retry_cnt: script.retry,
            min_rnr_timer: script.rnr_timer,
            ..QpConfig::new(ends.qpn, ends.script_ip, ends.script_mac, ends.script_qpn)
        };
        endpoint.create_qp(config).expect("a QP");
        let key = endpoint
            .register_memory(ends.va, vec![0; REGION], Access::REMOTE_WRITE)
            .expect("a region");
        Self {
            endpoint,
            qpn: ends.qpn,
            now: Nanos::from_millis(1),
            key,
        }
    }

    /// The region's remote key, which differs from the key in recorded frames.
    pub fn rkey(&self) -> u32 {
        self.key.rkey()
    }

    /// Plays one step. `frame` is the received frame, if there is one. Returns the frames sent.
    pub fn step(&mut self, step: &Step, frame: Option<&[u8]>) -> Vec<Vec<u8>> {
        let slice = |length: usize| LocalSlice {
            key: self.key,
            offset: 0,
            length: length as u32,
        };
        match step {
            Step::Post { by_write, length } => {
                let op = if *by_write {
                    SendOp::WriteImm {
                        va: THEIR_VA,
                        rkey: THEIR_RKEY,
                        imm: IMM,
                    }
                } else {
                    SendOp::SendImm(IMM)
                };
                let wr = SendWr::new(0, op, slice(*length));
                self.endpoint.post_send(self.qpn, wr).expect("posted");
            }
            Step::Receive { length } => {
                let local = slice(*length);
                self.endpoint
                    .post_recv(self.qpn, RecvWr { wr_id: 0, local })
                    .expect("posted");
            }
            Step::Timer => {
                let (at, _) = self.endpoint.poll_timeout().expect("a timer");
                self.now = self.now.max(at);
                self.endpoint.handle_timeout(self.now);
            }
            Step::Response { .. } | Step::Request(_) => {}
        }
        if let Some(frame) = frame {
            self.now += Nanos::from_micros(1);
            self.endpoint.handle_frame(self.now, frame);
        }
        let mut out = [0; Endpoint::FRAME_MAX];
        let mut frames = Vec::new();
        while let Some(length) = self.endpoint.poll_transmit(self.now, &mut out) {
            frames.push(out[..length].to_vec());
        }
        while self.endpoint.poll_completion().is_some() {}
        frames
    }
}

/// Masks the fields that implementations may choose: the IP identification and values derived from it.
pub fn settled(frame: &[u8]) -> Vec<u8> {
    let Ok(Parsed::Roce(h)) = parse_frame(frame, frame.len()) else {
        return frame.to_vec();
    };
    assert!(icrc::verify_bytes(frame, h.l3, h.frame_len), "ICRC");
    let mut bytes = frame[..h.icrc_at()].to_vec();
    bytes[h.l3 + 4..h.l3 + 6].fill(0);
    bytes[h.l3 + 10..h.l3 + 12].fill(0);
    bytes
}

/// Opcode, PSN, AckReq, response and RETH of a frame as a line.
pub fn line(frame: &[u8]) -> String {
    let Ok(Parsed::Roce(h)) = parse_frame(frame, frame.len()) else {
        return format!("no RoCE: {frame:02x?}");
    };
    let mut line = format!("{} {}", h.bth.opcode.info().name, h.bth.psn.value());
    if h.bth.ack_request {
        line += " A";
    }
    if let Some(aeth) = h.aeth {
        line += &format!(" {:?} msn {}", aeth.syndrome, aeth.msn);
    }
    if let Some(reth) = h.reth {
        line += &format!(" {reth:?}");
    }
    format!("{line} [{}]", h.payload_len)
}

/// The frame with another key in its RETH.
pub fn with_key(frame: &[u8], rkey: u32) -> Vec<u8> {
    let mut bytes = frame.to_vec();
    if let Ok(Parsed::Roce(h)) = parse_frame(frame, frame.len())
        && let Some(at) = h.reth_at()
    {
        bytes[at + 8..at + 12].copy_from_slice(&rkey.to_be_bytes());
        let end = h.icrc_at();
        let icrc = icrc::full(&[&bytes[h.l3..end]]);
        bytes[end..end + 4].copy_from_slice(&icrc.to_le_bytes());
    }
    bytes
}

/// Writes a classic pcap file with times in microseconds.
pub fn write_pcap(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    for word in [0xA1B2_C3D4u32, 0x0004_0002, 0, 0, 65535, 1] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    for (i, frame) in frames.iter().enumerate() {
        for word in [0, i as u32, frame.len() as u32, frame.len() as u32] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(frame);
    }
    out
}

/// Reads the frames of a classic pcap file.
pub fn read_pcap(file: &[u8]) -> Vec<Vec<u8>> {
    assert_eq!(file[..4], 0xA1B2_C3D4u32.to_le_bytes(), "little endian");
    let (mut rest, mut frames) = (&file[24..], Vec::new());
    while let Some((record, after)) = rest.split_at_checked(16) {
        let length = u32::from_le_bytes([record[8], record[9], record[10], record[11]]) as usize;
        let (bytes, after) = after.split_at(length);
        frames.push(bytes.to_vec());
        rest = after;
    }
    frames
}
