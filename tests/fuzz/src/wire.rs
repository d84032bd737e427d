//! Frames: parsing, writing, rewriting, ICRC.

use crate::driver::reached;
use crate::in_place::RoceV4Mut;
use castnet_wire::datagram::PAYLOAD_MAX;
use castnet_wire::ethernet::{ETHERTYPE_SERVICE_VLAN, ETHERTYPE_VLAN};
use castnet_wire::icrc::{self, HeaderDelta, shift};
use castnet_wire::ipv4::ChecksumDelta;
use castnet_wire::{
    Arp, Bth, Control, Datagram, Ethernet, ExtHeaders, FrameBuf, Header, IpAddrs, Ipv4, Ipv6, Lldp, MacAddr,
    MrpPacket, Network, Parsed, Pause, Psn, Qpn, Reth, RoceHeader, TrafficClass, Udp, describe, emit_roce,
    ipv4, parse_frame, parse_network,
};
use std::mem::discriminant;

/// Parses `data` as a frame and as each header, and with the headers of a frame all parts that they describe.
pub fn wire(data: &[u8]) {
    each_header(data);
    let whole = parse_frame(data, data.len());
    // The first 128 bytes determine the result.
    let head = data.get(..<Vec<u8> as FrameBuf>::HEAD).unwrap_or(data);
    assert_eq!(parse_frame(head, data.len()), whole);
    let text = format!("{} {:#}", describe(data, data.len()), describe(head, data.len()));
    assert!(!text.is_empty());

    match whole {
        Ok(Parsed::Roce(header)) => {
            reached((
                header.bth.opcode,
                header.l3,
                header.ip.v4().is_some(),
                header.bth.pad,
            ));
            roce(data, &header);
        }
        Ok(other) => {
            reached(discriminant(&other));
            assert_eq!(parse_network(data, data.len()), Ok(other));
        }
        Err(error) => {
            reached((discriminant(&error), format!("{:?}", error.header())));
            // Faults above IP must not affect forwarding by address.
            let above = matches!(
                error.header(),
                Header::Udp | Header::Bth | Header::Aeth | Header::Payload | Header::Icrc
            );
            assert!(!above || parse_network(data, data.len()).is_ok(), "{error}");
        }
    }
}

fn each_header(data: &[u8]) {
    let mut out = [0; 1100];
    if let Ok((header, length)) = Ethernet::parse(data) {
        let n = header.emit(&mut out).expect("a long enough buffer");
        assert!(n <= length);
        // Of three tags the second is skipped and the third becomes the EtherType: such a header is read differently.
        if !matches!(header.ethertype, ETHERTYPE_VLAN | ETHERTYPE_SERVICE_VLAN) {
            assert_eq!(Ethernet::parse(&out[..n]).map(|(h, _)| h), Ok(header));
        }
    }
    if let Ok(header) = Arp::parse(data) {
        header.emit(&mut out).expect("a long enough buffer");
        assert_eq!(&out[..Arp::LEN], &data[..Arp::LEN]);
    }
    if let Ok((header, length)) = Ipv4::parse(data) {
        header.emit(&mut out).expect("a long enough buffer");
        assert_eq!(
            out[10..12] == data[10..12] || length > Ipv4::LEN,
            ipv4::checksum_is_right(data) || length > 20
        );
    }
    if let Ok(header) = Ipv6::parse(data) {
        header.emit(&mut out).expect("a long enough buffer");
        assert_eq!(&out[..Ipv6::LEN], &data[..Ipv6::LEN]);
    }
    if let Ok(header) = Udp::parse(data) {
        header.emit(&mut out).expect("a long enough buffer");
        assert_eq!(&out[..Udp::LEN], &data[..Udp::LEN]);
    }
    control(data);
    datagrams(data);
    if let Some(pause) = Pause::parse(data) {
        reached(("pause", pause.classes.0));
        let emitted = pause.emit(MacAddr::BROADCAST);
        let again = Pause::parse(&emitted).expect("what we wrote");
        assert!(
            again.classes == pause.classes
                && TrafficClass::all().all(|class| again.of(class) == pause.of(class))
        );
    }
    if let Ok(lldp) = Lldp::parse(data) {
        let n = lldp.emit(&mut out).expect("three texts of at most 255 bytes");
        let parsed = Lldp::parse(&out[..n]).expect("what we wrote");
        assert_eq!(
            (parsed.ttl_secs, parsed.chassis.to_string().is_empty()),
            (lldp.ttl_secs, false)
        );
    }
}

/// A parsed control message is written to the same bytes. Merging it with itself changes nothing.
fn control(data: &[u8]) {
    let Ok(control) = Control::parse(data) else {
        return;
    };
    let mut out = [0xAA; Control::LEN];
    control.emit(&mut out);
    assert_eq!(&out, &data[..Control::LEN]);
    let mut merged = control;
    merged.merge(&control);
    assert_eq!(merged, control);
    assert!(!control.to_string().is_empty());
}

/// A parsed registration packet, and a frame with a datagram, are written to what is parsed to the same.
fn datagrams(data: &[u8]) {
    if let Ok(datagram) = Datagram::parse(data) {
        reached("datagram");
        let frame = datagram.to_frame();
        let again = Datagram::parse(&frame).expect("what we wrote");
        assert_eq!(
            again.payload,
            datagram.payload.get(..PAYLOAD_MAX).unwrap_or(datagram.payload)
        );
        registration(datagram.payload);
    }
    registration(data);
}

fn registration(payload: &[u8]) {
    if let Ok(packet) = MrpPacket::parse(payload) {
        reached((discriminant(&packet.body), payload.len() / 8));
        let written = packet.to_bytes();
        assert_eq!(MrpPacket::parse(&written), Ok(packet));
        assert_eq!(written.len(), payload.len());
    }
}

fn roce(frame: &[u8], header: &RoceHeader) {
    control(&frame[header.payload_at..][..header.payload_len]);
    // Lengths and offsets are consistent.
    let info = header.bth.opcode.info();
    assert!(header.frame_len <= frame.len());
    assert_eq!(header.bth_at, header.l4 + Udp::LEN);
    assert_eq!(header.payload_at, header.bth_at + info.header_len());
    assert_eq!(
        header.payload_at + header.payload_len + usize::from(header.bth.pad),
        header.icrc_at()
    );
    assert!(info.has_payload || header.payload_len == 0);

    emit_and_parse(frame, header);
    if let IpAddrs::V4 { src, dst } = header.ip {
        rewrite(frame, header, src, dst);
    }
}

/// A parsed frame that is written is parsed to the same headers.
fn emit_and_parse(frame: &[u8], header: &RoceHeader) {
    let network = match header.ip {
        IpAddrs::V4 { src, dst } => Network::V4(Ipv4 {
            tos: header.tos,
            ttl: 1,
            ident: 2,
            ..Ipv4::udp(src, dst)
        }),
        IpAddrs::V6 { src, dst } => Network::V6(Ipv6 {
            traffic_class: header.tos,
            flow_label: 3,
            hop_limit: 4,
            ..Ipv6::udp(src, dst)
        }),
    };
    let payload = &frame[header.payload_at..][..header.payload_len];
    let ext = header.ext(frame);
    let mut out = vec![0; frame.len()];
    let n = emit_roce(
        &mut out,
        &Ethernet::default(),
        &network,
        header.sport,
        &header.bth,
        &ext,
        payload,
    )
    .expect("it was there before, with as many or more bytes of Ethernet header");
    out.truncate(n);
    let Ok(Parsed::Roce(parsed)) = parse_frame(&out, n) else {
        panic!("{}", describe(&out, n))
    };
    assert_eq!(
        (parsed.bth, parsed.ip, parsed.sport, parsed.tos, parsed.ext(&out)),
        (header.bth, header.ip, header.sport, header.tos, ext)
    );
    assert_eq!(&out[parsed.payload_at..][..parsed.payload_len], payload);
    assert!(icrc::verify(&out, parsed.l3, parsed.frame_len));
}

/// A copy to an endpoint of a group: the incremental ICRC is right if and only if the ICRC was right.
fn rewrite(frame: &[u8], header: &RoceHeader, src: std::net::Ipv4Addr, dst: std::net::Ipv4Addr) {
    let (was_right, sum_was_right) = (
        icrc::verify_bytes(frame, header.l3, header.frame_len),
        ipv4::checksum_is_right(&frame[header.l3..]),
    );
    let (new_src, new_dst) = (dst, std::net::Ipv4Addr::new(10, 0, 0, 9));
    let (qpn, psn) = (
        Qpn::new(header.bth.psn.value()),
        Psn::new(header.bth.dest_qp.value()),
    );
    let reth = Reth {
        va: 0x1122_3344_5566_7788,
        rkey: 0x99AA_BBCC,
        dma_len: 0,
    };

    let mut copy = frame.to_vec();
    let mut packet = RoceV4Mut::new(&mut copy, header).expect("IPv4, and all headers there");
    packet.set_addresses(
        new_src,
        new_dst,
        ChecksumDelta::address(src, new_src).and(ChecksumDelta::address(dst, new_dst)),
    );
    packet.set_dest_qp(qpn);
    packet.set_psn(psn);
    let has_reth = packet.set_memory(reth.va, reth.rkey);

    let change = HeaderDelta::src(src, new_src)
        .and(HeaderDelta::dst(dst, new_dst))
        .and(HeaderDelta::dest_qp(header.bth.dest_qp, qpn))
        .and(HeaderDelta::psn(header.bth.psn, psn));
    let change = match (header.reth, header.after_reth()) {
        (Some(old), Some(n)) => {
            let memory = HeaderDelta::va(old.va, reth.va).and(HeaderDelta::rkey(old.rkey, reth.rkey));
            shift(change.and(memory).at_reth(), n)
        }
        _ => shift(change.at_bth(), header.after_bth()),
    };
    let icrc = icrc::read(&copy, header.frame_len).expect("four bytes at the end") ^ change;
    assert!(icrc::write(&mut copy, header.frame_len, icrc));
    assert_eq!(icrc::verify_bytes(&copy, header.l3, header.frame_len), was_right);
    assert_eq!(ipv4::checksum_is_right(&copy[header.l3..]), sum_was_right);

    let Ok(Parsed::Roce(after)) = parse_frame(&copy, copy.len()) else {
        panic!("{}", describe(&copy, copy.len()))
    };
    let wanted = RoceHeader {
        ip: IpAddrs::V4 {
            src: new_src,
            dst: new_dst,
        },
        bth: Bth {
            dest_qp: qpn,
            psn,
            ..header.bth
        },
        reth: header.reth.map(|old| Reth {
            dma_len: old.dma_len,
            ..reth
        }),
        ..*header
    };
    assert_eq!((after, has_reth), (wanted, header.reth.is_some()));
    let _: ExtHeaders = after.ext(&copy);
}
