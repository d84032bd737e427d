//! Test frames: from files, and random.

use castnet_wire::{
    Aeth, AtomicEth, Bth, Deth, Ethernet, ExtHeaders, FrameBuf, Headers, IpAddrs, Ipv4, Ipv6, MacAddr,
    NakCode, Network, Opcode, Parsed, Psn, Qpn, Reth, RnrTimer, RoceHeader, Syndrome, VlanTag, emit_roce,
    parse_frame,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

/// The directory of the golden packets.
pub(crate) fn golden_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden")
}

/// Name and bytes of each golden packet, in order of names.
pub(crate) fn golden() -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(golden_dir()).expect("the folder of golden packets") {
        let path = entry.expect("an entry of it").path();
        if path.extension().is_some_and(|e| e == "hex") {
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            let text = fs::read_to_string(&path).expect("a golden packet");
            let byte = |word| u8::from_str_radix(word, 16).expect("two hexadecimal digits");
            found.push((name, text.split_whitespace().map(byte).collect()));
        }
    }
    found.sort();
    found
}

/// The headers of a frame that must be RoCEv2.
pub(crate) fn roce(frame: &[u8]) -> RoceHeader {
    match parse_frame(frame, frame.len()) {
        Ok(Parsed::Roce(header)) => header,
        other => panic!("not RoCEv2: {other:?}"),
    }
}

/// The IP header of a parsed frame, for the builder.
pub(crate) fn network(frame: &[u8], header: &RoceHeader) -> Network {
    match header.ip {
        IpAddrs::V4 { src, dst } => {
            let (ip, _) = Ipv4::parse(&frame[header.l3..]).expect("parsed before");
            Network::V4(Ipv4 {
                tos: ip.tos,
                ttl: ip.ttl,
                ident: ip.ident,
                ..Ipv4::udp(src, dst)
            })
        }
        IpAddrs::V6 { src, dst } => {
            let ip = Ipv6::parse(&frame[header.l3..]).expect("parsed before");
            // The length is that of the frame; `emit_roce` fills it in.
            Network::V6(Ipv6 {
                src,
                dst,
                payload_len: 0,
                ..ip
            })
        }
    }
}

/// Writes a parsed frame back.
pub(crate) fn emit_again(frame: &[u8]) -> Vec<u8> {
    let header = roce(frame);
    let (ethernet, _) = Ethernet::parse(frame).expect("parsed before");
    let payload = &frame[header.payload_at..][..header.payload_len];
    let (network, ext) = (network(frame, &header), header.ext(frame));
    let mut out = vec![0xAA; frame.len()];
    let n = emit_roce(
        &mut out,
        &ethernet,
        &network,
        header.sport,
        &header.bth,
        &ext,
        payload,
    );
    out.truncate(n.expect("room for what was read"));
    out
}

/// A frame in pieces, as a port may hold it: 128 bytes of head, a body, and the last four bytes by themselves.
#[derive(Clone, Debug)]
pub(crate) struct Pieces {
    head: Vec<u8>,
    body: Vec<u8>,
    trailer: Option<[u8; 4]>,
}

impl Pieces {
    pub(crate) fn new(frame: &[u8]) -> Self {
        match frame.split_at_checked(Self::HEAD + 4) {
            None => Self {
                head: frame.to_vec(),
                body: Vec::new(),
                trailer: None,
            },
            Some(_) => {
                let (head, rest) = frame.split_at(Self::HEAD);
                let (body, trailer) = rest.split_last_chunk().expect("longer than four bytes");
                Self {
                    head: head.to_vec(),
                    body: body.to_vec(),
                    trailer: Some(*trailer),
                }
            }
        }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = vec![0; self.length()];
        assert_eq!(self.copy_to(&mut out), out.len());
        out
    }
}

impl FrameBuf for Pieces {
    fn length(&self) -> usize {
        self.segments().iter().map(|s| s.len()).sum()
    }

    fn head(&self) -> &[u8] {
        &self.head
    }

    fn head_mut(&mut self) -> &mut [u8] {
        &mut self.head
    }

    fn trailer(&self) -> [u8; 4] {
        self.trailer
            .or(self.head.last_chunk().copied())
            .unwrap_or_default()
    }

    fn set_trailer(&mut self, bytes: [u8; 4]) {
        if let Some(trailer) = &mut self.trailer {
            *trailer = bytes;
        } else if let Some(last) = self.head.last_chunk_mut() {
            *last = bytes;
        }
    }

    fn segments(&self) -> [&[u8]; 3] {
        [&self.head, &self.body, self.trailer.as_ref().map_or(&[], |t| t)]
    }
}

pub(crate) fn mac() -> impl Strategy<Value = MacAddr> {
    any::<[u8; 6]>().prop_map(MacAddr)
}

pub(crate) fn ethernet() -> impl Strategy<Value = Ethernet> {
    let tpid = proptest::sample::select(&[0x8100, 0x88A8, 0x9100][..]);
    let tag =
        (tpid, 0u8..8, any::<bool>(), 0u16..4096).prop_map(|(tpid, priority, drop_eligible, vid)| VlanTag {
            tpid,
            priority,
            drop_eligible,
            vid,
        });
    (mac(), mac(), option::of(tag)).prop_map(|(dst, src, vlan)| Ethernet {
        dst,
        src,
        vlan,
        ethertype: 0x0800,
    })
}

pub(crate) fn network_v4() -> impl Strategy<Value = Network> {
    any::<([u8; 4], [u8; 4], u8, u8, u16)>().prop_map(|(src, dst, tos, ttl, ident)| {
        Network::V4(Ipv4 {
            tos,
            ttl,
            ident,
            ..Ipv4::udp(src.into(), dst.into())
        })
    })
}

pub(crate) fn network_v6() -> impl Strategy<Value = Network> {
    (any::<([u8; 16], [u8; 16], u8, u8)>(), 0u32..1 << 20).prop_map(
        |((src, dst, traffic_class, hop_limit), flow_label)| {
            Network::V6(Ipv6 {
                traffic_class,
                flow_label,
                hop_limit,
                ..Ipv6::udp(Ipv6Addr::from(src), Ipv6Addr::from(dst))
            })
        },
    )
}

pub(crate) fn opcode() -> impl Strategy<Value = Opcode> {
    prop::sample::select(Opcode::ALL)
}

pub(crate) fn bth() -> impl Strategy<Value = Bth> {
    (
        opcode(),
        any::<[bool; 5]>(),
        0u8..4,
        any::<u16>(),
        0u32..1 << 24,
        0u32..1 << 24,
    )
        .prop_map(
            |(opcode, [solicited, mig_req, fecn, becn, ack_request], pad, pkey, qpn, psn)| Bth {
                opcode,
                solicited,
                mig_req,
                pad,
                pkey,
                fecn,
                becn,
                dest_qp: Qpn::new(qpn),
                ack_request,
                psn: Psn::new(psn),
            },
        )
}

pub(crate) fn aeth() -> impl Strategy<Value = Aeth> {
    let nak = prop::sample::select(vec![
        NakCode::PsnSequenceError,
        NakCode::InvalidRequest,
        NakCode::RemoteAccessError,
        NakCode::RemoteOperationalError,
    ]);
    let syndrome = prop_oneof![
        Just(Syndrome::Ack),
        (0u8..32).prop_map(|t| Syndrome::RnrNak(RnrTimer::new(t))),
        nak.prop_map(Syndrome::Nak),
    ];
    (syndrome, 0u32..1 << 24).prop_map(|(syndrome, msn)| Aeth { syndrome, msn })
}

/// All extended headers. The opcode selects those that it has.
pub(crate) fn ext_all() -> impl Strategy<Value = ExtHeaders> {
    (
        aeth(),
        any::<(u64, u32, u32)>(),
        any::<(u64, u64)>(),
        any::<(u64, u32, u32)>(),
        0u32..1 << 24,
    )
        .prop_map(
            |(aeth, (va, rkey, dma_len), (swap_add, compare), (original, imm, ieth), qpn)| ExtHeaders {
                deth: Some(Deth {
                    qkey: dma_len,
                    source_qp: Qpn::new(qpn),
                }),
                reth: Some(Reth { va, rkey, dma_len }),
                atomic_eth: Some(AtomicEth {
                    va,
                    rkey,
                    swap_add,
                    compare,
                }),
                aeth: Some(aeth),
                atomic_ack: Some(original),
                imm: Some(imm),
                ieth: Some(ieth),
            },
        )
}

/// The headers that the opcode has.
pub(crate) fn ext_of(opcode: Opcode, all: ExtHeaders) -> ExtHeaders {
    let has = |h| opcode.info().headers.contains(h);
    ExtHeaders {
        deth: all.deth.filter(|_| has(Headers::DETH)),
        reth: all.reth.filter(|_| has(Headers::RETH)),
        atomic_eth: all.atomic_eth.filter(|_| has(Headers::ATOMIC_ETH)),
        aeth: all.aeth.filter(|_| has(Headers::AETH)),
        atomic_ack: all.atomic_ack.filter(|_| has(Headers::ATOMIC_ACK_ETH)),
        imm: all.imm.filter(|_| has(Headers::IMM)),
        ieth: all.ieth.filter(|_| has(Headers::IETH)),
    }
}

/// The parts of a RoCEv2 frame.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub(crate) ethernet: Ethernet,
    pub(crate) network: Network,
    pub(crate) sport: u16,
    pub(crate) bth: Bth,
    pub(crate) ext: ExtHeaders,
    pub(crate) payload: Vec<u8>,
}

impl Spec {
    pub(crate) fn emit(&self) -> Vec<u8> {
        let mut out = vec![0xAA; 2000];
        let Self {
            ethernet,
            network,
            sport,
            bth,
            ext,
            payload,
        } = self;
        let n = emit_roce(&mut out, ethernet, network, *sport, bth, ext, payload).expect("room enough");
        out.truncate(n);
        out
    }
}

fn spec_over(network: impl Strategy<Value = Network>) -> impl Strategy<Value = Spec> {
    (
        ethernet(),
        network,
        any::<u16>(),
        bth(),
        ext_all(),
        vec(any::<u8>(), 0..1100),
    )
        .prop_map(|(ethernet, network, sport, mut bth, all, mut payload)| {
            let info = bth.opcode.info();
            if !info.has_payload {
                payload.clear();
            }
            bth.pad = (payload.len().next_multiple_of(4) - payload.len()) as u8;
            let ext = ext_of(bth.opcode, all);
            Spec {
                ethernet,
                network,
                sport,
                bth,
                ext,
                payload,
            }
        })
}

pub(crate) fn spec_v4() -> impl Strategy<Value = Spec> {
    spec_over(network_v4())
}

pub(crate) fn spec() -> impl Strategy<Value = Spec> {
    spec_over(prop_oneof![network_v4(), network_v6()])
}

pub(crate) fn ipv4() -> impl Strategy<Value = Ipv4Addr> {
    any::<[u8; 4]>().prop_map(Ipv4Addr::from)
}
