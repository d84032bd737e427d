//! Groups, and frames of all kinds: data and feedback of groups, plain Ethernet, ARP, and what is damaged.

use std::net::Ipv4Addr;

use castnet_rules::{Endpoint, GroupRule, HostEndpoint, MulticastRule, NextHop, RemoteMemory};
use castnet_wire::build::{emit_ack, emit_arp};
use castnet_wire::{
    Aeth, Arp, Bth, Ethernet, ExtHeaders, MacAddr, McstId, NakCode, Network, Opcode, Pmtu, Psn, Qpn, Reth,
    Syndrome, emit_roce,
};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use crate::port;

/// The address of the host at port `n`.
pub fn host_mac(n: usize) -> MacAddr {
    MacAddr([0x02, 0xAA, 0, 0, 0, n as u8])
}

/// Its IP address.
pub fn host_ip(n: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, n as u8 + 1)
}

/// The address of group `n`.
pub fn mcst(n: usize) -> McstId {
    McstId(Ipv4Addr::new(10, 200, (n >> 8) as u8, n as u8))
}

/// Group `n` with packets of up to 4096 bytes, the host at the first of these ports as its source.
pub fn group(n: usize, ports: &[usize]) -> GroupRule {
    let host = |p: usize| HostEndpoint {
        name: format!("h{p}"),
        ip: host_ip(p),
        // Of each group another.
        qpn: Qpn::new(0x100 * (n as u32 + 1) + p as u32),
        mac: host_mac(p),
        part: (p % 2 == 1)
            .then_some(RemoteMemory {
                va: 0x10_0000,
                rkey: 0x77,
                length: 1 << 30,
            })
            .into(),
    };
    let path = |&p: &usize| Endpoint::new(port(p), NextHop::Host(host(p)));
    GroupRule {
        name: format!("g{n}"),
        generation: 1,
        mcst_id: mcst(n),
        pmtu: Pmtu::B4096,
        stall_timeout_ms: 60_000,
        rate_limit: None,
        endpoints: ports.iter().map(path).collect(),
        kind: MulticastRule {
            start_psn: Some(Psn::new(0)),
            va_base: 0,
            carries_on: None,
            any_source: None,
            repair: None,
            hold_fatal_naks: false,
            source: 0,
        }
        .into(),
    }
}

fn ethernet(from: usize) -> Ethernet {
    Ethernet {
        dst: MacAddr([2; 6]),
        src: host_mac(from),
        vlan: None,
        ethertype: 0x0800,
    }
}

/// A packet of the host at port `from` to a group: a WRITE where `write`, else a SEND.
pub fn data(group: usize, from: usize, psn: u32, length: usize, write: bool) -> Vec<u8> {
    let opcode = if write {
        Opcode::WriteOnly
    } else {
        Opcode::SendOnly
    };
    let bth = Bth {
        ack_request: true,
        ..Bth::new(opcode, Qpn::VIRTUAL, Psn::new(psn))
    };
    let extended = ExtHeaders {
        reth: write.then_some(Reth {
            va: u64::from(psn) * 4096,
            rkey: 0x1234,
            dma_len: length as u32,
        }),
        ..ExtHeaders::NONE
    };
    let payload: Vec<u8> = (0..length).map(|i| (i as u32 + psn) as u8).collect();
    let mut out = vec![0; length + 128];
    let network = Network::v4(host_ip(from), mcst(group).0);
    let n = emit_roce(
        &mut out,
        &ethernet(from),
        &network,
        0xC000,
        &bth,
        &extended,
        &payload,
    );
    out.truncate(n.expect("a frame"));
    out
}

/// An ACK or NAK of the host at port `from` to a group.
pub fn ack(group: usize, from: usize, psn: u32, syndrome: Syndrome) -> Vec<u8> {
    let aeth = Aeth {
        syndrome,
        msn: psn + 1,
    };
    let mut out = vec![0; 128];
    let network = Network::v4(host_ip(from), mcst(group).0);
    let n = emit_ack(
        &mut out,
        &ethernet(from),
        &network,
        0xC000,
        Qpn::VIRTUAL,
        Psn::new(psn),
        aeth,
    );
    out.truncate(n.expect("a frame"));
    out
}

/// A question of the host at port `from`.
pub fn arp(from: usize, target: Ipv4Addr) -> Vec<u8> {
    let mut out = vec![0; 64];
    let arp = Arp::request(host_mac(from), host_ip(from), target);
    let n = emit_arp(&mut out, MacAddr::BROADCAST, &arp).expect("a frame");
    out.truncate(n);
    out
}

/// An Ethernet frame of an EtherType that no switch looks into.
pub fn plain(from: MacAddr, to: MacAddr, length: usize, fill: u8) -> Vec<u8> {
    let mut out = vec![fill; length];
    let header = Ethernet {
        dst: to,
        src: from,
        vlan: None,
        ethertype: 0x88B5,
    };
    header.emit(&mut out).expect("room for a header");
    out
}

/// What the host at one of `hosts` ports sends: of all kinds, the sequence that `seed` says. The host at port 0 is the source of
/// groups 0 and 1.
pub fn mix(random: &mut ChaCha8Rng, from: usize, hosts: usize, count: usize) -> Vec<Vec<u8>> {
    let mut psns = [0_u32; 2];
    let mut frames = Vec::new();
    while frames.len() < count {
        let group = random.random_range(0..2);
        let psn = &mut psns[group];
        let mut frame = match (random.random_range(0..10), from) {
            (0..=5, 0) => {
                let length = match random.random_range(0..4) {
                    0 => random.random_range(0..80),
                    1 => 1024,
                    _ => random.random_range(0..=4096),
                };
                // Repeats and gaps, now and then.
                *psn = match random.random_range(0..20) {
                    0 => psn.saturating_sub(random.random_range(0..8)),
                    1 => *psn + 2,
                    _ => *psn + 1,
                };
                data(group, from, *psn - 1.min(*psn), length, random.random())
            }
            (0..=5, _) => {
                *psn += random.random_range(0..3);
                let syndrome = match random.random_range(0..8) {
                    0 => Syndrome::Nak(NakCode::PsnSequenceError),
                    _ => Syndrome::Ack,
                };
                ack(group, from, *psn, syndrome)
            }
            (6, _) => arp(from, mcst(group).0),
            (7, _) => plain(
                host_mac(from),
                MacAddr::BROADCAST,
                random.random_range(14..9014),
                0x5A,
            ),
            (8, _) => {
                let to = host_mac(random.random_range(0..hosts));
                plain(host_mac(from), to, random.random_range(60..9014), 0xA5)
            }
            _ => {
                let mut noise = vec![0; random.random_range(14..400)];
                random.fill(&mut noise[..]);
                noise
            }
        };
        if random.random_range(0..30) == 0 {
            let at = random.random_range(0..frame.len());
            frame[at] ^= 1 << random.random_range(0..8);
        }
        frames.push(frame);
    }
    frames
}
