//! Written headers and whole frames parse back to the same values.

use crate::support::{aeth, bth, ethernet, ext_all, ext_of, ipv4, mac, opcode, roce, spec};
use castnet_wire::error::EmitError;
use castnet_wire::{
    Aeth, Arp, ArpOp, AtomicEth, Bth, Deth, Ethernet, ExtHeaders, Header, Ipv4, Ipv6, Network, Opcode,
    Parsed, Psn, Qpn, Reth, Syndrome, Udp, build, emit_roce, ipv4 as v4, parse_frame, parse_network,
};
use proptest::prelude::*;

/// Writes a header to a longer buffer and to an exact one, reads it back, and checks that every shorter buffer is refused.
macro_rules! there_and_back {
    ($type:ty, $value:expr) => {{
        let value: $type = $value;
        let mut out = [0xAA; 64];
        let n = value.emit(&mut out).expect("room enough");
        prop_assert_eq!(n, <$type>::LEN);
        prop_assert!(out[n..].iter().all(|&b| b == 0xAA));
        prop_assert_eq!(<$type>::parse(&out[..n]), Ok(value));
        for short in 0..n {
            prop_assert!(value.emit(&mut out[..short]).is_err());
            prop_assert!(<$type>::parse(&out[..short]).is_err());
        }
    }};
}

proptest! {
    #[test]
    fn ethernet_with_and_without_a_tag(value in ethernet(), ethertype in 0u16..0x8000) {
        let value = Ethernet { ethertype, ..value };
        let mut out = [0xAA; 32];
        let n = value.emit(&mut out).expect("room enough");
        prop_assert_eq!(n, value.length());
        prop_assert_eq!(Ethernet::parse(&out), Ok((value, n)));
        for short in 0..n {
            prop_assert!(value.emit(&mut out[..short]).is_err());
            prop_assert!(Ethernet::parse(&out[..short]).is_err());
        }
    }

    #[test]
    fn the_fixed_headers(b in bth(), a in aeth(), ext in ext_all(), words in any::<[u16; 3]>(), length in 8u16..) {
        there_and_back!(Bth, b);
        there_and_back!(Aeth, a);
        there_and_back!(Reth, ext.reth.expect("all headers"));
        there_and_back!(AtomicEth, ext.atomic_eth.expect("all headers"));
        there_and_back!(Deth, ext.deth.expect("all headers"));
        let [sport, dport, checksum] = words;
        there_and_back!(Udp, Udp { sport, dport, length, checksum });
    }

    #[test]
    fn arp(sender in (mac(), ipv4()), target in (mac(), ipv4()), request in any::<bool>()) {
        let op = if request { ArpOp::Request } else { ArpOp::Reply };
        let (sender_mac, sender_ip) = sender;
        let (target_mac, target_ip) = target;
        let arp = Arp { op, sender_mac, sender_ip, target_mac, target_ip };
        there_and_back!(Arp, arp);

        let mut frame = [0xAA; 60];
        prop_assert_eq!(build::emit_arp(&mut frame, target_mac, &arp), Ok(60));
        prop_assert_eq!(parse_frame(&frame, 60), Ok(Parsed::Arp(arp)));
        prop_assert!(frame[14 + Arp::LEN..].iter().all(|&b| b == 0), "padded with zeros");
        prop_assert!(build::emit_arp(&mut frame[..59], target_mac, &arp).is_err());
    }

    #[test]
    fn ip(bytes in any::<[u8; 4]>(), words in any::<[u16; 3]>(), ips in any::<([u8; 16], [u8; 16])>(), label in 0u32..1 << 20) {
        let [tos, ttl, protocol, _] = bytes;
        let [total_len, ident, flags_frag] = words;
        let (src, dst) = (ipv4_of(ips.0), ipv4_of(ips.1));
        let four = Ipv4 { tos, total_len: total_len.max(20), ident, flags_frag, ttl, protocol, src, dst };
        let mut out = [0xAA; 24];
        prop_assert_eq!(four.emit(&mut out), Ok(20));
        prop_assert_eq!(Ipv4::parse(&out), Ok((four, 20)));
        prop_assert!(v4::checksum_is_right(&out));

        let (src, dst) = (ips.0.into(), ips.1.into());
        let (traffic_class, hop_limit, next_header, flow_label) = (tos, ttl, protocol, label);
        there_and_back!(Ipv6, Ipv6 { traffic_class, flow_label, payload_len: total_len, next_header, hop_limit, src, dst });
    }

    #[test]
    fn a_whole_frame_parses_to_its_parts(spec in spec(), padding in 0usize..64) {
        let mut frame = spec.emit();
        let n = frame.len();
        prop_assert_eq!(n, build::roce_len(&spec.ethernet, &spec.network, spec.bth.opcode, spec.payload.len()));
        frame.resize(n + padding, 0);

        let header = roce(&frame);
        prop_assert_eq!(header.frame_len, n, "Ethernet padding is not counted");
        prop_assert_eq!((header.bth, header.sport), (spec.bth, spec.sport));
        prop_assert_eq!(header.ext(&frame), spec.ext);
        let kept = ExtHeaders {
            reth: header.reth, aeth: header.aeth, imm: header.imm, ieth: header.ieth, ..spec.ext
        };
        prop_assert_eq!(kept, spec.ext);
        prop_assert_eq!(&frame[header.payload_at..][..header.payload_len], &spec.payload[..]);
        prop_assert_eq!(header.payload_at + header.payload_len + usize::from(header.bth.pad), header.icrc_at());
        prop_assert_eq!(header.after_bth(), n - 4 - header.bth_at - 12);
        prop_assert_eq!(header.reth_at().is_some(), spec.ext.reth.is_some());
        prop_assert_eq!(crate::support::network(&frame, &header), spec.network);

        // A head of 128 bytes is enough.
        let short = &frame[..frame.len().min(128)];
        prop_assert_eq!(parse_frame(short, frame.len()), Ok(Parsed::Roce(header)));
        // `parse_network` takes it for a plain datagram.
        let by_address = parse_network(short, frame.len());
        let is_ip = matches!(by_address, Ok(Parsed::Ipv4 { .. } | Parsed::Ipv6 { .. }));
        prop_assert!(is_ip);
    }

    #[test]
    fn a_frame_that_does_not_fit_is_refused(spec in spec(), cut in 1usize..100) {
        let n = spec.emit().len();
        let mut out = vec![0; n - cut.min(n)];
        let got = emit_roce(&mut out, &spec.ethernet, &spec.network, 0, &spec.bth, &spec.ext, &spec.payload);
        prop_assert_eq!(got, Err(EmitError::NoRoom { header: Header::Icrc, need: n, have: out.len() }));
    }

    #[test]
    fn a_missing_header_of_the_opcode_is_refused(opcode in opcode(), all in ext_all()) {
        let bth = Bth::new(opcode, Qpn::VIRTUAL, Psn::new(0));
        let network = Network::v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let ext = ext_of(opcode, all);
        let mut out = [0; 200];
        let got = emit_roce(&mut out, &Ethernet::default(), &network, 0, &bth, &ExtHeaders::NONE, &[]);
        match ext == ExtHeaders::NONE {
            true => prop_assert!(got.is_ok()),
            false => {
                let missing = matches!(got, Err(EmitError::Missing { .. }));
                prop_assert!(missing, "{:?}", got);
            }
        }
        let payload = emit_roce(&mut out, &Ethernet::default(), &network, 0, &bth, &ext, &[1]);
        prop_assert_eq!(payload.is_ok(), opcode.info().has_payload);
    }
}

fn ipv4_of(bytes: [u8; 16]) -> std::net::Ipv4Addr {
    let [a, b, c, d, ..] = bytes;
    [a, b, c, d].into()
}

#[test]
fn acks_and_cnps_have_the_sizes_of_the_wire() {
    let network = Network::v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    let mut out = [0; 128];
    let aeth = Aeth {
        syndrome: Syndrome::Ack,
        msn: 7,
    };
    let qpn = Qpn::new(0x11);
    let n = build::emit_ack(
        &mut out,
        &Ethernet::default(),
        &network,
        0xC000,
        qpn,
        Psn::new(5),
        aeth,
    );
    assert_eq!(n, Ok(62));
    let header = roce(&out[..62]);
    assert_eq!(
        (header.aeth, header.bth.psn, header.bth.ack_request),
        (Some(aeth), Psn::new(5), false)
    );

    let bth = Bth {
        becn: true,
        ..Bth::new(Opcode::Cnp, qpn, Psn::new(0))
    };
    let ethernet = Ethernet::default();
    assert_eq!(
        emit_roce(&mut out, &ethernet, &network, 0, &bth, &ExtHeaders::NONE, &[]),
        Ok(74)
    );
    let header = roce(&out[..74]);
    assert_eq!(
        (header.bth.opcode.byte(), header.bth.becn, header.bth.psn.value()),
        (0x81, true, 0)
    );
}
