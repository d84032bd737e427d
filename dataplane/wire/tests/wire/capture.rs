//! The capture of two Linux SoftRoCE hosts, tests/golden/rxe-sample.pcap.

use crate::support::{Pieces, emit_again, golden_dir, roce};
use castnet_wire::{Arp, ArpOp, Opcode, Parsed, describe, icrc, ipv4, parse_frame};
use pcap_file::pcap::PcapReader;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;

fn frames() -> Vec<Vec<u8>> {
    let file = fs::File::open(golden_dir().join("rxe-sample.pcap")).expect("the capture");
    let mut reader = PcapReader::new(file).expect("a pcap file");
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        frames.push(packet.expect("a packet").data.into_owned());
    }
    frames
}

#[test]
fn all_325_frames_have_the_icrc_that_was_captured_and_are_written_again_byte_for_byte() {
    let mut opcodes = BTreeMap::new();
    let mut arps = Vec::new();
    for (i, frame) in frames().iter().enumerate() {
        match parse_frame(&frame[..frame.len().min(128)], frame.len()) {
            Ok(Parsed::Roce(header)) => {
                assert_eq!(header, roce(frame), "frame {i}: the first 128 bytes say all");
                *opcodes.entry(header.bth.opcode).or_insert(0) += 1;
                assert!(
                    icrc::verify_bytes(frame, header.l3, header.frame_len),
                    "frame {i}: ICRC"
                );
                assert!(
                    icrc::verify(&Pieces::new(frame), header.l3, header.frame_len),
                    "frame {i}: ICRC in pieces"
                );
                assert!(
                    ipv4::checksum_is_right(&frame[header.l3..]),
                    "frame {i}: IPv4 checksum"
                );
                let again = emit_again(frame);
                let n = again.len();
                assert_eq!(
                    &again,
                    frame,
                    "frame {i}:\n{}\n{}",
                    describe(frame, frame.len()),
                    describe(&again, n)
                );
            }
            Ok(Parsed::Arp(arp)) => arps.push(arp),
            other => panic!("frame {i}: {other:?}"),
        }
    }
    let count = |o| opcodes.get(&o).copied().unwrap_or(0);
    assert_eq!(opcodes.values().sum::<usize>(), 325);
    assert_eq!(
        (
            count(Opcode::Ack),
            count(Opcode::WriteMiddle),
            count(Opcode::UdSendOnly)
        ),
        (66, 36, 5)
    );
    assert_eq!(
        (
            count(Opcode::ReadRequest),
            count(Opcode::FetchAdd),
            count(Opcode::AtomicAck)
        ),
        (13, 10, 10)
    );

    let [request, reply]: [Arp; 2] = arps.try_into().expect("one ARP request, one reply");
    assert_eq!(
        (request.op, request.reply(reply.sender_mac)),
        (ArpOp::Request, reply)
    );
}

#[test]
fn the_capture_decodes_to_its_text() {
    let mut decoded = String::new();
    for frame in frames() {
        writeln!(decoded, "{}", describe(&frame, frame.len())).expect("writing to a string");
    }
    let path = golden_dir().join("rxe-sample.txt");
    if std::env::var_os("CASTNET_WRITE_GOLDEN").is_some() {
        fs::write(&path, &decoded).expect("writing a golden text");
    }
    let wanted = fs::read_to_string(&path).unwrap_or_default();
    for (i, (is, ought)) in decoded.lines().zip(wanted.lines()).enumerate() {
        assert_eq!(is, ought, "line {}", i + 1);
    }
    assert_eq!(decoded.lines().count(), wanted.lines().count());
}
