//! Rewriting in place changes only the fields, and all checksums stay right.

use crate::in_place::RoceV4Mut;
use crate::support::{Spec, aeth, ipv4 as address, mac, roce, spec_v4};
use castnet_wire::ethernet::set_macs;
use castnet_wire::icrc::{self, HeaderDelta, shift};
use castnet_wire::ipv4::ChecksumDelta;
use castnet_wire::{Bth, ExtHeaders, Ipv4, Network, Psn, Qpn, Reth, ipv4};
use proptest::prelude::*;

fn with_addresses(spec: &Spec, new_src: std::net::Ipv4Addr, new_dst: std::net::Ipv4Addr) -> Network {
    match spec.network {
        Network::V4(ip) => Network::V4(Ipv4 {
            src: new_src,
            dst: new_dst,
            ..ip
        }),
        other => other,
    }
}

proptest! {
    #[test]
    fn a_frame_rewritten_in_place_equals_a_new_frame(
        spec in spec_v4(), macs in (mac(), mac()), src in address(), dst in address(),
        qpn in 0u32..1 << 24, psn in 0u32..1 << 24, memory in any::<(u64, u32)>(), ack in any::<bool>(), one_by_one in any::<bool>(),
    ) {
        let mut frame = spec.emit();
        let header = roce(&frame);
        let (old_src, old_dst) = header.ip.v4().expect("IPv4");
        let (qpn, psn) = (Qpn::new(qpn), Psn::new(psn));

        // The way of the engine: headers in place, ICRC by difference.
        frame[header.l4 + 6] = 0x77; // a UDP checksum that the rewrite would leave wrong
        prop_assert!(set_macs(&mut frame, macs.0, macs.1));
        let mut packet = RoceV4Mut::new(&mut frame, &header).expect("IPv4");
        if one_by_one {
            packet.set_src(src);
            packet.set_dst(dst);
        } else {
            let sum = ChecksumDelta::address(old_src, src).and(ChecksumDelta::address(old_dst, dst));
            packet.set_addresses(src, dst, sum);
        }
        packet.set_dest_qp(qpn);
        packet.set_psn(psn);
        packet.set_ack_request(ack);
        prop_assert_eq!(packet.set_memory(memory.0, memory.1), header.reth.is_some());
        let mut change = HeaderDelta::src(old_src, src)
            .and(HeaderDelta::dst(old_dst, dst))
            .and(HeaderDelta::dest_qp(header.bth.dest_qp, qpn))
            .and(HeaderDelta::psn(header.bth.psn, psn));
        if ack != header.bth.ack_request {
            change = change.and(HeaderDelta::ack_request_flips());
        }
        let register = match (header.reth, header.after_reth()) {
            (Some(reth), Some(n)) => {
                let (va, rkey) = memory;
                shift(change.and(HeaderDelta::va(reth.va, va)).and(HeaderDelta::rkey(reth.rkey, rkey)).at_reth(), n)
            }
            _ => shift(change.at_bth(), header.after_bth()),
        };
        let icrc = icrc::read(&frame, header.frame_len).expect("long enough");
        prop_assert!(icrc::write(&mut frame, header.frame_len, icrc ^ register));

        // Built from scratch.
        let reth = spec.ext.reth.map(|r| Reth { va: memory.0, rkey: memory.1, ..r });
        let wanted = Spec {
            ethernet: castnet_wire::Ethernet { dst: macs.0, src: macs.1, ..spec.ethernet },
            network: with_addresses(&spec, src, dst),
            bth: Bth { dest_qp: qpn, psn, ack_request: ack, ..spec.bth },
            ext: ExtHeaders { reth, ..spec.ext },
            ..spec
        };
        prop_assert!(ipv4::checksum_is_right(&frame[header.l3..]));
        prop_assert_eq!(frame, wanted.emit());
    }

    #[test]
    fn an_aeth_is_written_if_present(spec in spec_v4(), new in aeth(), sport in any::<u16>()) {
        let mut frame = spec.emit();
        let header = roce(&frame);
        let mut packet = RoceV4Mut::new(&mut frame, &header).expect("IPv4");
        prop_assert_eq!(packet.set_aeth(new), header.aeth.is_some());
        packet.set_sport(sport);
        let after = roce(&frame);
        prop_assert_eq!((after.aeth, after.sport), (header.aeth.map(|_| new), sport));
        prop_assert_eq!((after.bth, after.reth, after.imm), (header.bth, header.reth, header.imm));
    }

    #[test]
    fn a_head_too_short_for_its_headers_is_refused(spec in spec_v4(), keep in any::<prop::sample::Index>()) {
        let mut frame = spec.emit();
        let header = roce(&frame);
        let keep = keep.index(header.l3 + 40);
        prop_assert!(RoceV4Mut::new(&mut frame[..keep], &header).is_none());
        prop_assert!(set_macs(&mut frame[..keep.min(11)], spec.ethernet.src, spec.ethernet.dst) == (keep.min(11) >= 12));
    }
}
