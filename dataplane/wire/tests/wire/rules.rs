//! The rules of single fields, with a table for each.

use crate::support::{golden, roce, spec};
use castnet_wire::bth::pkey_matches;
use castnet_wire::udp::entropy_port;
use castnet_wire::{
    Aeth, Ethernet, Header, Headers, Kind, NakCode, Nanos, Opcode, ParseError, Parsed, Position, Qpn,
    RnrTimer, Syndrome, Transport, VlanTag, icrc, ipv4, parse_frame, parse_network,
};
use proptest::prelude::*;

#[test]
fn every_opcode_byte_is_known_by_its_name_or_unknown() {
    let known: Vec<_> = (0..=255)
        .filter_map(|b| Opcode::from_byte(b).map(|o| (b, o)))
        .collect();
    assert_eq!(known.len(), Opcode::ALL.len());
    for ((byte, opcode), listed) in known.iter().zip(Opcode::ALL) {
        assert_eq!(
            (opcode, opcode.byte(), opcode.info().opcode),
            (listed, *byte, *listed)
        );
    }
    for unknown in [0x15, 0x18, 0x1C, 0x1D, 0x40, 0x80, 0x82, 0xA0, 0xC3, 0xE0, 0xFF] {
        assert_eq!(Opcode::from_byte(unknown), None, "{unknown:#x}");
    }
}

#[test]
fn the_opcode_table_is_consistent_with_itself() {
    for opcode in Opcode::ALL {
        let info = opcode.info();
        let (name, has) = (info.name, |h| info.headers.contains(h));
        assert_eq!(
            info.transport as u8,
            opcode.byte() & 0xE0,
            "{name}: the upper bits name the transport"
        );
        assert!(
            name.starts_with(&format!("{:?}", info.transport).to_uppercase()),
            "{name}"
        );
        assert_eq!(has(Headers::IMM), name.ends_with("_IMM"), "{name}");
        assert_eq!(has(Headers::IETH), name.ends_with("_INV"), "{name}");
        assert_eq!(has(Headers::DETH), info.transport == Transport::Ud, "{name}");
        let reth =
            matches!(info.kind, Kind::Write) && info.starts_message() || info.kind == Kind::ReadRequest;
        assert_eq!(has(Headers::RETH), reth, "{name}");
        let response = info.kind == Kind::ReadResponse && info.position != Position::Middle;
        let of_switches = info.transport == Transport::Castnet;
        assert_eq!(
            has(Headers::AETH),
            response || of_switches || matches!(info.kind, Kind::Ack | Kind::AtomicAck),
            "{name}"
        );
        assert_eq!(has(Headers::CNP), info.kind == Kind::Cnp, "{name}");
        for (word, position) in [
            ("FIRST", Position::First),
            ("MIDDLE", Position::Middle),
            ("LAST", Position::Last),
            ("ONLY", Position::Only),
        ] {
            assert!(!name.contains(word) || info.position == position, "{name}");
        }
        let carries = matches!(info.kind, Kind::Send | Kind::Write | Kind::ReadResponse);
        assert_eq!(info.has_payload, carries, "{name}");
        assert_eq!(
            info.is_request(),
            !of_switches
                && !matches!(
                    info.kind,
                    Kind::ReadResponse | Kind::Ack | Kind::AtomicAck | Kind::Cnp
                )
        );
        assert!(
            !info.starts_message() || !matches!(info.position, Position::Middle | Position::Last),
            "{name}"
        );
        assert_eq!(
            info.ends_message(),
            matches!(info.position, Position::Last | Position::Only),
            "{name}"
        );
    }
}

#[test]
fn header_lengths_are_those_of_the_facts() {
    let wanted = [
        (Opcode::SendOnly, 12),
        (Opcode::SendLastInv, 16),
        (Opcode::WriteMiddle, 12),
        (Opcode::WriteOnly, 28),
        (Opcode::WriteOnlyImm, 32),
        (Opcode::WriteLastImm, 16),
        (Opcode::ReadRequest, 28),
        (Opcode::ReadResponseMiddle, 12),
        (Opcode::Ack, 16),
        (Opcode::AtomicAck, 24),
        (Opcode::CompareSwap, 40),
        (Opcode::UdSendOnlyImm, 24),
        (Opcode::Cnp, 28),
    ];
    for (opcode, length) in wanted {
        assert_eq!(opcode.info().header_len(), length, "{opcode}");
    }
}

#[test]
fn every_syndrome_byte_means_one_thing() {
    for byte in 0..=255u8 {
        let wanted = match byte {
            0x00..=0x1F => Some(Syndrome::Ack),
            0x20..=0x3F => Some(Syndrome::RnrNak(RnrTimer::new(byte & 31))),
            0x60 => Some(Syndrome::Nak(NakCode::PsnSequenceError)),
            0x61 => Some(Syndrome::Nak(NakCode::InvalidRequest)),
            0x62 => Some(Syndrome::Nak(NakCode::RemoteAccessError)),
            0x63 => Some(Syndrome::Nak(NakCode::RemoteOperationalError)),
            _ => None,
        };
        assert_eq!(Syndrome::from_byte(byte), wanted, "{byte:#x}");
        match wanted {
            Some(Syndrome::Ack) => assert_eq!(Syndrome::Ack.byte(), 0x1F),
            Some(syndrome) => assert_eq!(syndrome.byte(), byte),
            None => assert_eq!(
                Aeth::parse(&[byte, 0, 0, 1]).map_err(|e| e.header()),
                Err(Header::Aeth)
            ),
        }
    }
    assert_eq!(RnrTimer::new(0).wait(), Nanos::from_micros(655_360));
    assert_eq!(RnrTimer::new(1).wait(), Nanos::from_micros(10));
    assert_eq!(RnrTimer::new(31).wait(), Nanos::from_micros(491_520));
}

#[test]
fn partition_keys_match_as_the_specification_says() {
    for (a, b, wanted) in [
        (0xFFFF, 0xFFFF, true),
        (0xFFFF, 0x7FFF, true),
        (0x7FFF, 0x7FFF, false),
        (0x8000, 0x8000, false),
        (0x0000, 0x8000, false),
        (0x8001, 0x0001, true),
        (0x8001, 0x8002, false),
    ] {
        assert_eq!(pkey_matches(a, b), wanted, "{a:#x} {b:#x}");
        assert_eq!(pkey_matches(b, a), wanted, "{b:#x} {a:#x}");
    }
}

#[test]
fn the_entropy_port_is_the_one_that_linux_chooses() {
    assert_eq!(entropy_port(0, Qpn::new(0x11), Qpn::new(0x12)), 0xC132);
    // For a virtual remote it is the QPN itself.
    assert_eq!(entropy_port(0, Qpn::new(0x11), Qpn::VIRTUAL), 0xC011);
    assert_eq!(
        entropy_port(0x12345, Qpn::new(1), Qpn::new(2)),
        0xC000 | (0x2345 ^ 4)
    );
    assert_eq!(
        entropy_port(0xF_FFFF, Qpn::new(1), Qpn::new(2)),
        0xC000 | (0x3FFF ^ 0x3F)
    );
}

/// A valid frame that tests corrupt: RC WRITE_ONLY_IMM of five bytes.
fn good() -> Vec<u8> {
    let (_, frame) = golden()
        .into_iter()
        .find(|(n, _)| n == "e-rc-write-only-imm")
        .expect("golden E");
    frame
}

fn refused(frame: &[u8]) -> ParseError {
    match parse_frame(frame, frame.len()) {
        Err(error) => error,
        Ok(parsed) => panic!("taken: {parsed:?}"),
    }
}

#[test]
fn errors_name_the_header_that_is_wrong() {
    type Spoil = fn(&mut Vec<u8>);
    let cases: [(&str, Spoil, Header); 15] = [
        ("no Ethernet header", |f| f.truncate(13), Header::Ethernet),
        ("no IP header", |f| f.truncate(33), Header::Ipv4),
        ("IP version 5", |f| f[14] = 0x55, Header::Ipv4),
        ("IP header length 4", |f| f[14] = 0x44, Header::Ipv4),
        ("IP longer than the frame", |f| f[17] += 4, Header::Ipv4),
        (
            "IP shorter than its header",
            |f| f[16..18].copy_from_slice(&[0, 19]),
            Header::Ipv4,
        ),
        ("a first fragment", |f| f[20] = 0x20, Header::Ipv4),
        ("UDP shorter than IP", |f| f[39] -= 4, Header::Udp),
        (
            "UDP shorter than itself",
            |f| f[38..40].copy_from_slice(&[0, 7]),
            Header::Udp,
        ),
        ("an opcode that nobody knows", |f| f[42] = 0x15, Header::Bth),
        ("a transport version", |f| f[43] |= 1, Header::Bth),
        (
            "pad but no payload",
            |f| (f[17], f[39]) = (f[17] - 8, f[39] - 8),
            Header::Bth,
        ),
        (
            "room for no ICRC",
            |f| (f[17], f[39]) = (f[17] - 12, f[39] - 12),
            Header::Icrc,
        ),
        ("payload behind a READ request", |f| f[42] = 0x0C, Header::Payload),
        (
            "a payload that is no multiple of four",
            |f| (f[17], f[39]) = (f[17] - 1, f[39] - 1),
            Header::Payload,
        ),
    ];
    for (what, spoil, header) in cases {
        let mut frame = good();
        spoil(&mut frame);
        let error = refused(&frame);
        assert_eq!(error.header(), header, "{what}: {error}");
        assert!(error.to_string().starts_with(header.name()), "{what}: {error}");
    }
}

#[test]
fn options_and_later_fragments() {
    // IPv4 options before RoCE are refused, although they move the offset of UDP.
    let mut frame = good();
    frame[14] = 0x46;
    frame[17] += 4;
    frame.splice(34..34, [1, 1, 1, 1]);
    assert_eq!(refused(&frame).header(), Header::Ipv4);
    assert!(matches!(
        parse_network(&frame, frame.len()),
        Ok(Parsed::Ipv4 { l3: 14, .. })
    ));
    // Options before other protocols are accepted.
    frame[14 + 24 + 2] ^= 1;
    assert!(matches!(
        parse_frame(&frame, frame.len()),
        Ok(Parsed::Ipv4 { .. })
    ));
    // A later fragment has no UDP header, whatever its bytes look like.
    let mut frame = good();
    frame[21] = 1;
    assert!(matches!(
        parse_frame(&frame, frame.len()),
        Ok(Parsed::Ipv4 { .. })
    ));
    // A frame that `parse_frame` refuses can still be forwarded by its address.
    let mut frame = good();
    frame[42] = 0xE0;
    assert_eq!(refused(&frame).header(), Header::Bth);
    assert!(matches!(
        parse_network(&frame, frame.len()),
        Ok(Parsed::Ipv4 { .. })
    ));
}

#[test]
fn two_tags_are_skipped_and_a_third_is_malformed() {
    let plain = good();
    let mut frame = plain.clone();
    frame.splice(12..12, [0x88, 0xA8, 0x60, 0x05, 0x81, 0x00, 0x10, 0x07]);
    let header = roce(&frame);
    assert_eq!((header.l3, header.bth), (22, roce(&plain).bth));
    let (ethernet, length) = Ethernet::parse(&frame).expect("an Ethernet header");
    let outer = VlanTag {
        tpid: 0x88A8,
        priority: 3,
        drop_eligible: false,
        vid: 5,
    };
    assert_eq!(
        (ethernet.vlan, ethernet.ethertype, length),
        (Some(outer), 0x0800, 22)
    );
    // For a third tag of each kind, with and without a body.
    for tpid in [0x8100_u16, 0x88A8, 0x9100, 0x9200, 0x9300] {
        let [a, b] = tpid.to_be_bytes();
        let mut tagged = plain.clone();
        tagged.splice(12..12, [a, b, 0, 0]);
        assert_eq!(roce(&tagged).l3, 18, "{tpid:#x}");
        let mut third = frame.clone();
        third.splice(20..20, [a, b, 0, 0]);
        for bytes in [&third[..], &third[..22]] {
            let error = ParseError::Rule {
                header: Header::Vlan,
                rule: "more than two tags",
            };
            assert_eq!(parse_frame(bytes, bytes.len()), Err(error));
            assert_eq!(parse_network(bytes, bytes.len()), Err(error));
            let text = castnet_wire::describe(bytes, bytes.len()).to_string();
            assert!(text.starts_with("not read: 802.1Q: more than two tags"), "{text}");
        }
    }
}

#[test]
fn a_head_that_is_too_short_is_an_error_and_not_a_guess() {
    let frame = good();
    let header = roce(&frame);
    for n in 0..frame.len() {
        match parse_frame(&frame[..n], frame.len()) {
            Ok(Parsed::Roce(parsed)) => {
                assert!(n >= header.payload_at, "{n}");
                assert_eq!(parsed, header);
            }
            // Without a whole UDP header it cannot be known.
            Ok(Parsed::Ipv4 { .. }) => assert!((34..42).contains(&n), "{n}"),
            Ok(other) => panic!("{n}: {other:?}"),
            Err(error) => assert!(n < header.payload_at, "{n}: {error}"),
        }
    }
}

proptest! {
    #[test]
    fn checksum_by_difference_is_the_checksum(header in any::<[u8; 20]>(), words in any::<[(u16, u16); 2]>(), at in (0usize..5, 6usize..10)) {
        let mut header = header;
        header[10..12].fill(0);
        header[0] = 0x45; // never all zeros
        let before = ipv4::checksum(&header);
        header[10..12].copy_from_slice(&before.to_be_bytes());
        prop_assert!(ipv4::checksum_is_right(&header));

        let mut change = ipv4::ChecksumDelta::NONE;
        for (at, (word, _)) in [at.0, at.1].into_iter().zip(words) {
            if at == 0 { continue; }
            let old = u16::from_be_bytes([header[2 * at], header[2 * at + 1]]);
            header[2 * at..][..2].copy_from_slice(&word.to_be_bytes());
            change = change.and(ipv4::ChecksumDelta::word(old, word));
        }
        header[10..12].fill(0);
        prop_assert_eq!(change.apply(before), ipv4::checksum(&header));
    }

    #[test]
    fn decrementing_the_ttl_keeps_checksum_and_icrc_right(spec in spec()) {
        let mut frame = spec.emit();
        let header = roce(&frame);
        if let castnet_wire::Network::V4(ip) = spec.network {
            let left = ipv4::decrement_ttl(&mut frame[header.l3..]);
            prop_assert_eq!(left, ip.ttl.checked_sub(1));
            prop_assert!(ipv4::checksum_is_right(&frame[header.l3..]));
            prop_assert!(icrc::verify_bytes(&frame, header.l3, header.frame_len));
        }
    }
}
