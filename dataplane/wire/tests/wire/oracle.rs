//! etherparse parses frames of this crate, and this crate parses frames of etherparse.

use crate::support::{ethernet, roce, spec};
use castnet_wire::{Ethernet, Ipv4, Ipv6, Network, Parsed, Udp, ipv4, parse_frame};
use etherparse::{
    EtherType, Ethernet2Header, IpFragOffset, IpNumber, Ipv4Header, Ipv4Options, Ipv6FlowLabel, Ipv6Header,
    LinkExtSlice, LinkSlice, NetSlice, SingleVlanHeader, SlicedPacket, TransportSlice, UdpHeader, VlanId,
    VlanPcp,
};
use proptest::collection::vec;
use proptest::prelude::*;

proptest! {
    #[test]
    fn it_reads_what_we_write(spec in spec()) {
        let frame = spec.emit();
        let sliced = SlicedPacket::from_ethernet(&frame).expect("a frame that etherparse reads");

        let Some(LinkSlice::Ethernet2(link)) = sliced.link else { panic!("no Ethernet header") };
        prop_assert_eq!((link.destination(), link.source()), (spec.ethernet.dst.0, spec.ethernet.src.0));
        let tag = sliced.link_exts.first().map(|ext| match ext {
            LinkExtSlice::Vlan(tag) => tag.to_header(),
            other => panic!("not a VLAN tag: {other:?}"),
        });
        let seen = tag.map(|t| (t.pcp.value(), t.drop_eligible_indicator, t.vlan_id.value()));
        prop_assert_eq!(seen, spec.ethernet.vlan.map(|t| (t.priority, t.drop_eligible, t.vid)));
        if let Some(tag) = spec.ethernet.vlan {
            prop_assert_eq!(link.ether_type().0, tag.tpid);
        }

        match (sliced.net, spec.network) {
            (Some(NetSlice::Ipv4(ip)), Network::V4(Ipv4 { src, dst, tos, ttl, ident, .. })) => {
                let ip = ip.header().to_header();
                prop_assert_eq!((ip.source, ip.destination), (src.octets(), dst.octets()));
                prop_assert_eq!((ip.dscp.value() << 2 | ip.ecn.value(), ip.time_to_live, ip.identification), (tos, ttl, ident));
                prop_assert_eq!((ip.dont_fragment, ip.more_fragments), (true, false));
                prop_assert_eq!(ip.header_checksum, ip.calc_header_checksum());
            }
            (Some(NetSlice::Ipv6(ip)), Network::V6(Ipv6 { src, dst, traffic_class, flow_label, hop_limit, .. })) => {
                let ip = ip.header().to_header();
                prop_assert_eq!((ip.source, ip.destination), (src.octets(), dst.octets()));
                prop_assert_eq!((ip.traffic_class, ip.flow_label.value(), ip.hop_limit), (traffic_class, flow_label, hop_limit));
            }
            (net, network) => panic!("{net:?} for {network:?}"),
        }

        let Some(TransportSlice::Udp(udp)) = sliced.transport else { panic!("no UDP header") };
        prop_assert_eq!((udp.source_port(), udp.destination_port(), udp.checksum()), (spec.sport, 4791, 0));
        prop_assert_eq!(udp.payload(), &frame[roce(&frame).bth_at..]);
    }

    #[test]
    fn we_read_its_ipv4_options_included(
        ether in ethernet(), ips in any::<([u8; 4], [u8; 4])>(), bytes in any::<(u8, u8, u16)>(), flags in any::<(bool, bool)>(),
        offset in 0u16..1 << 13, options in 0usize..11, body in vec(any::<u8>(), 0..80), protocol in any::<u8>(),
    ) {
        let (tos, ttl, ident) = bytes;
        let mut ip = Ipv4Header::new(body.len() as u16, ttl, IpNumber(protocol), ips.0, ips.1).expect("short enough");
        ip.options = Ipv4Options::try_from(&[1u8; 40][..4 * options]).expect("a multiple of four, at most forty");
        ip.total_len = (20 + 4 * options + body.len()) as u16;
        ip.dscp = (tos >> 2).try_into().expect("six bits");
        ip.ecn = (tos & 3).try_into().expect("two bits");
        ip.identification = ident;
        (ip.dont_fragment, ip.more_fragments) = flags;
        ip.fragment_offset = IpFragOffset::try_new(offset).expect("thirteen bits");
        ip.header_checksum = ip.calc_header_checksum();
        let mut bytes = link(&ether, EtherType::IPV4);
        let l3 = bytes.len();
        bytes.extend(ip.to_bytes());
        bytes.extend(&body);

        let (header, length) = Ipv4::parse(&bytes[l3..]).expect("an IPv4 header");
        prop_assert_eq!(length, ip.header_len());
        prop_assert_eq!((header.src.octets(), header.dst.octets(), header.protocol), (ips.0, ips.1, protocol));
        prop_assert_eq!((header.tos, header.ttl, header.ident, header.total_len), (tos, ttl, ident, ip.total_len));
        let wanted = u16::from(flags.0) << 14 | u16::from(flags.1) << 13 | offset;
        prop_assert_eq!((header.flags_frag, header.is_fragment()), (wanted, ip.is_fragmenting_payload()));
        prop_assert!(ipv4::checksum_is_right(&bytes[l3..]));
        prop_assert_eq!(Ethernet::parse(&bytes), Ok((ether, l3)));
        if options == 0 {
            prop_assert_eq!(&header.to_bytes()[..], &bytes[l3..l3 + 20]);
        }
        if protocol != 17 {
            prop_assert_eq!(parse_frame(&bytes, bytes.len()), Ok(Parsed::Ipv4 { l3, header }));
        }
        bytes[l3 + 8] ^= 1;
        prop_assert!(!ipv4::checksum_is_right(&bytes[l3..]));
    }

    #[test]
    fn we_read_its_ipv6_and_udp(
        ether in ethernet(), ips in any::<([u8; 16], [u8; 16])>(), class in any::<u8>(), label in 0u32..1 << 20,
        hops in any::<u8>(), body in vec(any::<u8>(), 0..80), ports in any::<(u16, u16)>(),
    ) {
        prop_assume!(ports.1 != 4791);
        let udp = UdpHeader::without_ipv4_checksum(ports.0, ports.1, body.len()).expect("short enough");
        let ip = Ipv6Header {
            traffic_class: class,
            flow_label: Ipv6FlowLabel::try_new(label).expect("twenty bits"),
            payload_length: udp.length,
            next_header: IpNumber::UDP,
            hop_limit: hops,
            source: ips.0,
            destination: ips.1,
        };
        let mut bytes = link(&ether, EtherType::IPV6);
        let l3 = bytes.len();
        bytes.extend(ip.to_bytes());
        bytes.extend(udp.to_bytes());
        bytes.extend(&body);

        let header = Ipv6::parse(&bytes[l3..]).expect("an IPv6 header");
        prop_assert_eq!((header.src.octets(), header.dst.octets(), header.next_header), (ips.0, ips.1, 17));
        prop_assert_eq!((header.traffic_class, header.flow_label, header.hop_limit), (class, label, hops));
        prop_assert_eq!(&header.to_bytes()[..], &bytes[l3..l3 + 40]);
        let ours = Udp::parse(&bytes[l3 + 40..]).expect("a UDP header");
        prop_assert_eq!((ours.sport, ours.dport, ours.length), (ports.0, ports.1, udp.length));
        prop_assert_eq!(parse_frame(&bytes, bytes.len()), Ok(Parsed::Ipv6 { l3, header }));
    }
}

/// The Ethernet header with its tag, written by etherparse.
fn link(ether: &Ethernet, ether_type: EtherType) -> Vec<u8> {
    let outer = ether.vlan.map_or(ether_type, |t| EtherType(t.tpid));
    let header = Ethernet2Header {
        source: ether.src.0,
        destination: ether.dst.0,
        ether_type: outer,
    };
    let mut bytes = header.to_bytes().to_vec();
    if let Some(tag) = ether.vlan {
        let tag = SingleVlanHeader {
            pcp: VlanPcp::try_new(tag.priority).expect("three bits"),
            drop_eligible_indicator: tag.drop_eligible,
            vlan_id: VlanId::try_new(tag.vid).expect("twelve bits"),
            ether_type,
        };
        bytes.extend(tag.to_bytes());
    }
    bytes
}
