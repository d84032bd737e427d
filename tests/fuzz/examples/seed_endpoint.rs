//! Writes the seeds of the `endpoint` corpus: scripts of frames, work requests and time. The name of each file says
//! what it tests.

use castnet_fuzz::endpoint::{IP, MAC, PEER_IP, PEER_MAC, QPN, RKEY, RQ_PSN, SQ_PSN, Step, VA, record};
use castnet_wire::{
    Aeth, AtomicEth, Bth, Ethernet, ExtHeaders, NakCode, Network, Opcode, Reth, RnrTimer, Syndrome, emit_roce,
};
use std::fs;
use std::path::Path;

/// A frame of the peer: opcode, PSN relative to the first of its direction, payload bytes, length in the RETH.
fn frame(opcode: Opcode, psn: i32, length: usize, dma_len: u32, syndrome: Syndrome) -> Vec<u8> {
    let info = opcode.info();
    let first = if info.is_request() { RQ_PSN } else { SQ_PSN };
    let mut bth = Bth::new(opcode, QPN, first.add(psn));
    bth.ack_request = info.ends_message() && info.is_request();
    let ext = ExtHeaders {
        reth: Some(Reth {
            va: VA + 5,
            rkey: RKEY,
            dma_len,
        }),
        atomic_eth: Some(AtomicEth {
            va: VA,
            rkey: RKEY,
            swap_add: 1,
            compare: 0,
        }),
        aeth: Some(Aeth { syndrome, msn: 0 }),
        imm: Some(9),
        ieth: Some(RKEY),
        ..ExtHeaders::NONE
    };
    let ethernet = Ethernet {
        dst: MAC,
        src: PEER_MAC,
        vlan: None,
        ethertype: 0,
    };
    let payload: Vec<u8> = (0..length).map(|i| i as u8).collect();
    let mut out = vec![0; 2000];
    let n = emit_roce(
        &mut out,
        &ethernet,
        &Network::v4(PEER_IP, IP),
        0xC121,
        &bth,
        &ext,
        &payload,
    )
    .expect("a valid frame");
    out.truncate(n);
    record(Step::Repaired, &out)
}

fn request(opcode: Opcode, psn: i32, length: usize, dma_len: u32) -> Vec<u8> {
    frame(opcode, psn, length, dma_len, Syndrome::Ack)
}

fn answer(psn: i32, syndrome: Syndrome) -> Vec<u8> {
    frame(Opcode::Ack, psn, 0, 0, syndrome)
}

fn send(kind: u8, length: u16) -> Vec<u8> {
    let [l0, l1] = length.to_be_bytes();
    record(Step::Send, &[kind, l0, l1])
}

fn receive(length: u16) -> Vec<u8> {
    record(Step::Receive, &length.to_be_bytes())
}

fn time() -> Vec<u8> {
    record(Step::Time, &[])
}

fn main() {
    use Opcode::*;
    let ack = Syndrome::Ack;
    let gap = Syndrome::Nak(NakCode::PsnSequenceError);
    let rnr = Syndrome::RnrNak(RnrTimer::new(3));
    let fatal = Syndrome::Nak(NakCode::RemoteAccessError);
    let seeds: Vec<(&str, Vec<Vec<u8>>)> = vec![
        (
            "receive-send",
            vec![
                receive(1100),
                request(SendFirst, 0, 1024, 0),
                request(SendLastImm, 1, 9, 0),
            ],
        ),
        (
            "receive-send-too-long",
            vec![receive(4), receive(4), request(SendOnly, 0, 5, 0)],
        ),
        (
            "receive-none-posted",
            vec![request(SendOnly, 0, 5, 0), receive(5), request(SendOnly, 0, 5, 0)],
        ),
        (
            "receive-gap",
            vec![
                request(WriteOnly, 1, 4, 4),
                request(WriteOnly, 2, 4, 4),
                request(WriteOnly, 0, 4, 4),
                request(WriteOnly, 0, 4, 4),
                request(WriteOnly, 1, 4, 4),
            ],
        ),
        (
            "receive-write",
            vec![
                receive(0),
                request(WriteFirst, 0, 1024, 2000),
                request(WriteLastImm, 1, 976, 0),
                request(WriteOnly, 2, 0, 0),
            ],
        ),
        ("receive-write-outside", vec![request(WriteFirst, 0, 1024, 9000)]),
        (
            "receive-wrong-order",
            vec![
                receive(3000),
                request(SendFirst, 0, 1024, 0),
                request(WriteOnly, 1, 4, 4),
            ],
        ),
        ("receive-read", vec![send(0, 3000), request(ReadRequest, 0, 0, 4)]),
        ("receive-atomic", vec![request(CompareSwap, 0, 0, 0)]),
        (
            "receive-invalidate",
            vec![receive(10), request(SendOnlyInv, 0, 4, 0)],
        ),
        (
            "receive-cnp-and-responses",
            vec![request(Cnp, 0, 0, 0), request(ReadResponseOnly, 0, 8, 0)],
        ),
        (
            "send-ack",
            vec![send(0, 3000), send(3, 10), answer(1, ack), answer(3, ack)],
        ),
        (
            "send-nak",
            vec![
                send(1, 3000),
                answer(1, gap),
                answer(2, gap),
                answer(1, ack),
                answer(2, gap),
            ],
        ),
        (
            "send-rnr",
            vec![
                send(2, 3000),
                answer(1, rnr),
                time(),
                answer(1, rnr),
                answer(2, ack),
            ],
        ),
        (
            "send-fatal",
            vec![
                send(0, 3000),
                send(0, 1),
                receive(1),
                answer(1, fatal),
                send(0, 1),
            ],
        ),
        (
            "send-ack-ahead",
            vec![send(0, 10), answer(1, ack), answer(100, ack), answer(0, ack)],
        ),
        ("send-time-out", [vec![send(0, 3000)], vec![time(); 8]].concat()),
        (
            "both-ways",
            vec![
                send(0, 1500),
                receive(100),
                request(SendOnly, 0, 100, 0),
                answer(1, ack),
                send(3, 2048),
                request(WriteOnly, 1, 8, 8),
                time(),
                answer(3, ack),
            ],
        ),
    ];
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/endpoint");
    fs::create_dir_all(&corpus).expect("the corpus");
    for (name, script) in seeds {
        fs::write(corpus.join(name), script.concat()).expect("a file of the corpus");
    }
}
