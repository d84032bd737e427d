//! MRP packets and their datagrams: round trips, random bytes, changed bits, and the UDP checksum of another library.

use castnet_wire::datagram::PAYLOAD_MAX;
use castnet_wire::mrp::{GIFT_MAX, MEMBERS_MAX, REGIONS_MAX, WANTED_MAX};
use castnet_wire::{
    Datagram, MacAddr, McstId, MrpBody, MrpCall, MrpGift, MrpMember, MrpMemory, MrpPacket, MrpPart,
    MrpReason, MrpRefusal, Pmtu, Qpn,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

fn member() -> impl Strategy<Value = MrpMember> {
    (any::<u32>(), 0..=0xFF_FFFF_u32, any::<bool>()).prop_map(|(ip, qpn, source)| MrpMember {
        ip: ip.into(),
        qpn: Qpn::new(qpn),
        source,
    })
}

fn memory() -> impl Strategy<Value = MrpMemory> {
    any::<(u32, u32, u64, u64)>().prop_map(|(ip, rkey, va, length)| MrpMemory {
        ip: ip.into(),
        rkey,
        va,
        length,
    })
}

fn part() -> impl Strategy<Value = MrpPart> {
    (1..=u8::MAX, any::<u8>(), 0..Pmtu::ALL.len()).prop_map(|(total, sequence, pmtu)| MrpPart {
        sequence: sequence % total,
        total,
        pmtu: Pmtu::ALL[pmtu],
    })
}

fn gift(round: u8, most: usize) -> impl Strategy<Value = MrpGift> {
    (any::<u16>(), vec(any::<u8>(), 0..=most)).prop_map(move |(rank, bytes)| MrpGift { round, rank, bytes })
}

fn packet() -> impl Strategy<Value = MrpPacket> {
    let group = || any::<u32>().prop_map(|ip| McstId(ip.into()));
    let refusal = (0..MrpReason::ALL.len(), any::<u32>()).prop_map(|(reason, member)| MrpRefusal {
        reason: MrpReason::ALL[reason],
        member: member.into(),
    });
    let call = (1..=u16::MAX, any::<u16>(), ".{0,200}").prop_map(|(size, rank, reason)| MrpCall {
        size: size.max(2),
        rank: 1 + rank % (size.max(2) - 1),
        reason,
    });
    let gifts = any::<u8>().prop_flat_map(|round| vec(gift(round, 200), 1..7));
    let gift = any::<u8>().prop_flat_map(|round| gift(round, GIFT_MAX));
    let body = prop_oneof![
        (group(), call).prop_map(|(group, call)| MrpBody::Call(group, call)),
        (group(), gift, vec(any::<u16>(), 0..=WANTED_MAX))
            .prop_map(|(group, gift, wanted)| MrpBody::Give(group, gift, wanted)),
        (group(), gifts).prop_map(|(group, gifts)| MrpBody::Take(group, gifts)),
        (part(), vec(member(), 1..=MEMBERS_MAX)).prop_map(|(part, all)| MrpBody::Members(part, all)),
        (part(), vec(memory(), 1..=REGIONS_MAX)).prop_map(|(part, all)| MrpBody::Memory(part, all)),
        Just(MrpBody::Withdraw),
        (group(), member()).prop_map(|(group, member)| MrpBody::Confirm(group, member)),
        (group(), refusal).prop_map(|(group, refusal)| MrpBody::Refuse(group, refusal)),
        (group(), member(), option::of(memory()))
            .prop_map(|(g, member, memory)| MrpBody::Join(g, member, memory)),
        (part(), 0..=0xFF_FFFF_u32).prop_map(|(part, qpn)| MrpBody::Uplink(part, Qpn::new(qpn))),
    ];
    (any::<u32>(), body).prop_map(|(number, body)| MrpPacket { number, body })
}

fn frame(payload: &[u8]) -> Vec<u8> {
    let datagram = Datagram {
        macs: (MacAddr([2; 6]), MacAddr([4; 6])),
        from: ([10, 0, 0, 1].into(), 50_000),
        to: ([10, 200, 0, 1].into(), castnet_wire::mrp::DEFAULT_PORT),
        payload,
    };
    let frame = datagram.to_frame();
    assert_eq!(Datagram::parse(&frame), Ok(datagram));
    frame
}

proptest! {
    #[test]
    fn what_is_written_is_read(packet in packet()) {
        let bytes = packet.to_bytes();
        prop_assert!(bytes.len() <= PAYLOAD_MAX);
        prop_assert_eq!(MrpPacket::parse(&bytes), Ok(packet));
        // No part of a packet is another packet, but for fewer records.
        let shorter = MrpPacket::parse(&bytes[..bytes.len() - 1]);
        prop_assert!(shorter.is_err(), "{:?}", shorter);
    }

    #[test]
    fn all_bytes_are_refused_or_are_what_is_written(
        first in 0..12_u8, pmtu in 7..14_u8, mut bytes in vec(any::<u8>(), 0..1600), zeros in any::<bool>(),
    ) {
        prop_assert!(MrpPacket::parse(&bytes).is_ok_and(|p| p.to_bytes() == bytes) || MrpPacket::parse(&bytes).is_err());
        if let [kind, p, sequence, total, ..] = bytes.as_mut_slice() {
            (*kind, *p) = (0x10 | first, pmtu);
            if zeros {
                (*p, *sequence, *total) = (0, 0, 0);
            }
        }
        let cut = bytes.len() - bytes.len() % 8;
        for bytes in [&bytes[..], &bytes[..cut]] {
            if let Ok(packet) = MrpPacket::parse(bytes) {
                prop_assert_eq!(packet.to_bytes(), bytes);
            }
        }
    }

    #[test]
    fn a_changed_bit_is_found(packet in packet(), bit in any::<prop::sample::Index>()) {
        let mut frame = frame(&packet.to_bytes());
        // The Ethernet header has no checksum of its own but for the FCS.
        let bit = bit.index((frame.len() - 14) * 8);
        frame[14 + bit / 8] ^= 1 << (bit % 8);
        prop_assert!(Datagram::parse(&frame).is_err());
    }

    #[test]
    fn random_frames_are_no_datagrams(bytes in vec(any::<u8>(), 0..200), cut in any::<prop::sample::Index>()) {
        let _ = Datagram::parse(&bytes);
        let frame = frame(&bytes);
        prop_assert!(Datagram::parse(&frame[..cut.index(frame.len())]).is_err());
        prop_assert_eq!(Datagram::parse(&[&frame[..], &[0; 9]].concat()).map(|d| d.payload.len()), Ok(bytes.len()));
    }

    #[test]
    fn another_library_computes_the_same_checksum(payload in vec(any::<u8>(), 0..PAYLOAD_MAX)) {
        let frame = frame(&payload);
        let sliced = etherparse::SlicedPacket::from_ethernet(&frame).expect("a frame");
        let (Some(etherparse::NetSlice::Ipv4(ip)), Some(etherparse::TransportSlice::Udp(udp))) =
            (&sliced.net, &sliced.transport)
        else {
            panic!("no UDP over IPv4");
        };
        let header = udp.to_header();
        prop_assert_eq!(header.calc_checksum_ipv4(&ip.header().to_header(), &payload), Ok(header.checksum));
    }
}
