//! Writes the seeds of the `wire` corpus: every golden packet, the smallest captured frame of each opcode, frames of
//! the other kinds, and some of each with a few faults.

use castnet_wire::build::{emit_arp, emit_lldp};
use castnet_wire::{
    Aeth, Arp, AtomicEth, Bth, Call, CallFlags, Control, DataType, Datagram, Deth, Ethernet, ExtHeaders,
    Lldp, LldpId, MacAddr, McstId, MrpBody, MrpCall, MrpGift, MrpMember, MrpMemory, MrpPacket, MrpPart,
    MrpReason, MrpRefusal, Network, Opcode, Operation, Parsed, Pause, Pmtu, Primitive, Psn, Qpn, Reth,
    Syndrome, TrafficClass, Verdict, VlanTag, emit_roce, parse_frame,
};
use pcap_file::pcap::PcapReader;
use std::collections::BTreeMap;
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let golden = root.join("../golden");
    let corpus = root.join("corpus/wire");
    let mut seeds: BTreeMap<String, Vec<u8>> = BTreeMap::new();

    for entry in fs::read_dir(&golden).expect("tests/golden") {
        let path = entry.expect("an entry of it").path();
        if path.extension().is_some_and(|e| e == "hex") {
            let text = fs::read_to_string(&path).expect("a golden packet");
            let bytes = text
                .split_whitespace()
                .map(|w| u8::from_str_radix(w, 16).expect("hexadecimal"))
                .collect();
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            seeds.insert(format!("golden-{name}"), bytes);
        }
    }

    let file = fs::File::open(golden.join("rxe-sample.pcap")).expect("the capture");
    let mut reader = PcapReader::new(file).expect("a pcap file");
    let mut smallest: BTreeMap<Opcode, Vec<u8>> = BTreeMap::new();
    while let Some(packet) = reader.next_packet() {
        let frame = packet.expect("a packet").data.into_owned();
        if let Ok(Parsed::Roce(header)) = parse_frame(&frame, frame.len()) {
            let best = smallest.entry(header.bth.opcode).or_insert_with(|| frame.clone());
            if frame.len() < best.len() {
                *best = frame;
            }
        }
    }
    seeds.extend(smallest.into_iter().map(|(o, frame)| (name_of("rxe", o), frame)));
    seeds.extend(Opcode::ALL.iter().map(|&o| (name_of("made", o), made(o))));
    seeds.insert("made-arp".into(), arp());
    seeds.insert("made-lldp".into(), lldp());
    seeds.insert("made-control".into(), control(Verdict::Agreed));
    let verdict = Verdict::Conflict {
        rank: 3,
        call: Call {
            operation: Operation::Max,
            ..CALL
        },
    };
    seeds.insert("made-control-conflict".into(), control(verdict));

    seeds.extend(registrations().map(|(kind, packet)| (format!("made-mrp-{kind}"), packet.to_bytes())));
    let mut pause = Pause::default();
    pause.set(TrafficClass::all().next().expect("a class"), 0xFFFF);
    seeds.insert("made-pause".into(), pause.emit(MacAddr::BROADCAST).into());
    seeds.insert("made-datagram".into(), datagram());

    let right = seeds.clone();
    let sound = |name: &str| right.get(name).expect("a seed of that name").clone();
    let write = "golden-e-rc-write-only-imm";
    let mut add_faulty = |name: &str, from: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = sound(from);
        change(&mut bytes);
        seeds.insert(format!("wrong-{name}"), bytes);
    };
    add_faulty("options", write, &|b| b[14] = 0x46);
    add_faulty("first-fragment", write, &|b| b[20] |= 0x20);
    add_faulty("later-fragment", write, &|b| b[21] = 1);
    add_faulty("ip-too-long", write, &|b| b[16] = 0xFF);
    add_faulty("ip-too-short", write, &|b| (b[16], b[17]) = (0, 20));
    add_faulty("udp-length", write, &|b| b[39] -= 4);
    add_faulty("opcode", write, &|b| b[42] = 0x15);
    add_faulty("version", write, &|b| b[43] |= 1);
    add_faulty("pad", write, &|b| (b[17], b[39]) = (b[17] - 8, b[39] - 8));
    add_faulty("icrc", write, &|b| *b.last_mut().expect("a byte") ^= 1);
    add_faulty("padding", "golden-c-rc-ack", &|b| b.extend([0; 6]));
    add_faulty("syndrome", "golden-d-rc-nak", &|b| b[54] = 0xFF);
    add_faulty("cut", "golden-f-ipv6-rc-send-only", &|b| b.truncate(60));
    add_faulty("three-tags", write, &|b| {
        drop(b.splice(12..12, [0x81, 0, 0, 1, 0x88, 0xA8, 0, 2, 0x81, 0, 0, 3]))
    });
    add_faulty("lldp-cut", "made-lldp", &|b| b.truncate(40));

    add_faulty("control-reserved", "made-control", &|b| b[CONTROL_AT + 63] = 1);
    add_faulty("control-conflict", "made-control-conflict", &|b| {
        b[CONTROL_AT + 33] = 0
    });
    add_faulty("control-packets", "made-control", &|b| b[CONTROL_AT + 23] = 200);

    fs::create_dir_all(&corpus).expect("the folder");
    for (name, bytes) in &seeds {
        fs::write(corpus.join(name), bytes).expect("writing a seed");
    }
    println!("{} seeds in {}", seeds.len(), corpus.display());
}

/// The payloads of registration packets, one of each kind.
fn registrations() -> impl Iterator<Item = (&'static str, MrpPacket)> {
    let part = MrpPart {
        sequence: 0,
        total: 1,
        pmtu: Pmtu::B1024,
    };
    let member = MrpMember {
        ip: Ipv4Addr::new(10, 0, 0, 2),
        qpn: Qpn::new(0x11),
        source: false,
    };
    let memory = MrpMemory {
        ip: member.ip,
        rkey: 0x1234,
        va: 0x7F00_0000_1000,
        length: 1 << 20,
    };
    let group = McstId(Ipv4Addr::new(10, 200, 0, 1));
    let refusal = MrpRefusal {
        reason: MrpReason::ALL[0],
        member: member.ip,
    };
    let (round, rank, bytes) = (1, 2, b"any".to_vec());
    let gift = MrpGift { round, rank, bytes };
    let (size, reason) = (3, "slow".to_owned());
    let bodies = [
        ("call", MrpBody::Call(group, MrpCall { rank, size, reason })),
        ("give", MrpBody::Give(group, gift.clone(), vec![0, 1])),
        ("take", MrpBody::Take(group, vec![gift; 2])),
        ("members", MrpBody::Members(part, vec![member; 2])),
        ("memory", MrpBody::Memory(part, vec![memory])),
        ("withdraw", MrpBody::Withdraw),
        ("confirm", MrpBody::Confirm(group, member)),
        ("refuse", MrpBody::Refuse(group, refusal)),
        ("join", MrpBody::Join(group, member, Some(memory))),
        ("uplink", MrpBody::Uplink(part, Qpn::new(2))),
    ];
    bodies
        .into_iter()
        .map(|(kind, body)| (kind, MrpPacket { number: 7, body }))
}

/// A frame with a registration packet.
fn datagram() -> Vec<u8> {
    let payload = registrations().next().expect("a packet").1.to_bytes();
    let datagram = Datagram {
        macs: (MacAddr::BROADCAST, MacAddr::BROADCAST),
        from: (Ipv4Addr::new(10, 0, 0, 1), 4793),
        to: (Ipv4Addr::new(10, 200, 0, 1), 4793),
        payload: &payload,
    };
    datagram.to_frame()
}

fn name_of(prefix: &str, opcode: Opcode) -> String {
    format!(
        "{prefix}-{}",
        opcode.info().name.to_lowercase().replace([' ', '_'], "-")
    )
}

/// A small frame of the opcode. Every second one has a VLAN tag, every third is over IPv6.
fn made(opcode: Opcode) -> Vec<u8> {
    let ext = ExtHeaders {
        deth: Some(Deth {
            qkey: 0x8001_0000,
            source_qp: Qpn::new(1),
        }),
        reth: Some(Reth {
            va: 0x7F00_0000_1000,
            rkey: 0x1234,
            dma_len: 7,
        }),
        atomic_eth: Some(AtomicEth {
            va: 0x1000,
            rkey: 1,
            swap_add: 2,
            compare: 3,
        }),
        aeth: Some(Aeth {
            syndrome: Syndrome::Ack,
            msn: 3,
        }),
        atomic_ack: Some(4),
        imm: Some(0x0102_0304),
        ieth: Some(5),
    };
    let vlan = (opcode.byte().is_multiple_of(2)).then(|| VlanTag::new(7));
    let ethernet = Ethernet {
        dst: MacAddr([2, 0, 0, 0, 0, 2]),
        src: MacAddr([2, 0, 0, 0, 0, 1]),
        vlan,
        ethertype: 0,
    };
    let network = match opcode.byte() % 3 {
        0 => Network::v6("fd00::1".parse().expect("IPv6"), "fd00::2".parse().expect("IPv6")),
        _ => Network::v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into()),
    };
    let payload: &[u8] = if opcode.info().has_payload {
        b"castnet"
    } else {
        b""
    };
    let bth = Bth {
        ack_request: true,
        ..Bth::new(opcode, Qpn::VIRTUAL, Psn::new(0xFF_FFFF))
    };
    let mut out = [0; 256];
    let n =
        emit_roce(&mut out, &ethernet, &network, 0xC001, &bth, &ext, payload).expect("a long enough buffer");
    out[..n].to_vec()
}

const CALL: Call = Call {
    primitive: Primitive::AllReduce,
    root: 0,
    roots: 1,
    operation: Operation::Sum,
    data_type: DataType::F32,
    flags: CallFlags::NONE,
    elements: 1 << 14,
    packets: 64,
};

/// Offset of a control message in an untagged IPv4 frame.
const CONTROL_AT: usize = 14 + 20 + 8 + 12 + 4;

fn control(verdict: Verdict) -> Vec<u8> {
    let message = Control {
        sequence: 7,
        rank: 1,
        call: CALL,
        verdict,
    };
    let mut payload = [0; Control::LEN];
    message.emit(&mut payload);
    let mac = |n| MacAddr([2, 0, 0, 0, 0, n]);
    let ethernet = Ethernet {
        dst: mac(2),
        src: mac(1),
        vlan: None,
        ethertype: 0,
    };
    let network = Network::v4([10, 0, 0, 1].into(), [10, 9, 0, 1].into());
    let bth = Bth::new(Opcode::SendOnlyImm, Qpn::VIRTUAL, Psn::new(7));
    let ext = ExtHeaders {
        imm: Some(Control::IMMEDIATE),
        ..ExtHeaders::NONE
    };
    let mut out = [0; 256];
    let n =
        emit_roce(&mut out, &ethernet, &network, 0xC001, &bth, &ext, &payload).expect("a long enough buffer");
    out[..n].to_vec()
}

fn arp() -> Vec<u8> {
    let request = Arp::request(
        MacAddr([2, 0, 0, 0, 0, 1]),
        [10, 0, 0, 1].into(),
        [10, 0, 0, 200].into(),
    );
    let mut out = [0; 60];
    emit_arp(&mut out, MacAddr::BROADCAST, &request).expect("a long enough buffer");
    out.to_vec()
}

fn lldp() -> Vec<u8> {
    let mac = MacAddr([2, 0, 0, 0, 0, 1]);
    let lldp = Lldp {
        chassis: LldpId::Mac(mac),
        port: LldpId::Text("p7"),
        ttl_secs: 120,
        system_name: "leaf-1",
    };
    let mut out = [0; 128];
    let n = emit_lldp(&mut out, mac, &lldp).expect("a long enough buffer");
    out[..n].to_vec()
}
