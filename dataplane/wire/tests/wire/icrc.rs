//! The ICRC and its fast paths, each compared with a slow reference.

use crate::support::{Pieces, ipv4, roce, spec, spec_v4};
use castnet_wire::icrc::{self, HeaderDelta, Shift, ShiftCache, shift};
use castnet_wire::{FrameBuf, Psn, Qpn};
use proptest::collection::vec;
use proptest::prelude::*;

/// CRC-32 of Ethernet, bit by bit, without complement.
fn bitwise(mut register: u32, bytes: &[u8]) -> u32 {
    for byte in bytes {
        register ^= u32::from(*byte);
        for _ in 0..8 {
            register = if register & 1 == 1 {
                (register >> 1) ^ 0xEDB8_8320
            } else {
                register >> 1
            };
        }
    }
    register
}

/// The ICRC by its definition: eight bytes of ones, the masked packet, complement.
fn icrc_reference(packet: &[u8]) -> u32 {
    let mut masked = packet.to_vec();
    let mut ones = |at: usize| {
        if let Some(byte) = masked.get_mut(at) {
            *byte = 0xFF;
        }
    };
    let udp = if packet.first().is_some_and(|b| b >> 4 == 6) {
        [1, 2, 3, 7].into_iter().for_each(&mut ones);
        40
    } else {
        [1, 8, 10, 11].into_iter().for_each(&mut ones);
        20
    };
    [udp + 6, udp + 7, udp + 8 + 4].into_iter().for_each(&mut ones);
    if udp == 40 {
        masked[0] |= 0x0F;
    }
    !bitwise(bitwise(!0, &[0xFF; 8]), &masked)
}

#[test]
fn the_start_state_is_eight_bytes_of_ones() {
    assert_eq!(bitwise(!0, &[0xFF; 8]), 0xDEBB_20E3);
}

proptest! {
    #[test]
    fn full_icrc_equals_the_reference_for_all_cuts(bytes in vec(any::<u8>(), 0..300), cuts in any::<[prop::sample::Index; 3]>()) {
        let mut cuts = cuts.map(|i| i.index(bytes.len() + 1));
        cuts.sort_unstable();
        let [a, b, c] = cuts;
        let wanted = icrc_reference(&bytes);
        prop_assert_eq!(icrc::full(&[&bytes]), wanted);
        prop_assert_eq!(icrc::full(&[&bytes[..a], &bytes[a..b], &bytes[b..c], &bytes[c..]]), wanted);
    }

    #[test]
    fn of_a_frame_in_pieces(spec in spec(), padding in prop_oneof![Just(0usize), 0usize..8]) {
        let mut bytes = spec.emit();
        bytes.resize(bytes.len() + padding, 0x55);
        let header = roce(&bytes);
        let (l3, end) = (header.l3, header.frame_len);
        let wanted = icrc_reference(&bytes[l3..end - 4]);

        let mut frame = Pieces::new(&bytes);
        prop_assert_eq!(frame.bytes(), bytes.clone());
        prop_assert_eq!(icrc::of_frame(&frame, l3, end), wanted);
        prop_assert_eq!(icrc::read(&frame, end), Some(wanted));
        prop_assert_eq!(icrc::read(&bytes, end), Some(wanted));
        prop_assert!(icrc::verify(&frame, l3, end) && icrc::verify_bytes(&bytes, l3, end));

        // A long frame with padding has no private bytes for the ICRC.
        let private = padding == 0 || end <= Pieces::HEAD || bytes.len() < Pieces::HEAD + 4;
        prop_assert_eq!(icrc::write(&mut frame, end, !wanted), private);
        prop_assert_eq!(icrc::read(&frame, end), Some(if private { !wanted } else { wanted }));
        prop_assert_eq!(icrc::verify(&frame, l3, end), !private);
        prop_assert_eq!(frame.length(), bytes.len());
    }

    #[test]
    fn exactly_the_covered_bits_change_the_icrc(spec in spec(), at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let mut bytes = spec.emit();
        let header = roce(&bytes);
        let at = header.l3 + at.index(bytes.len() - header.l3);
        bytes[at] ^= 1 << bit;
        let relative = at - header.l3;
        let masked = match header.l4 - header.l3 {
            20 => matches!(relative, 1 | 8 | 10 | 11 | 26 | 27 | 32),
            _ => matches!(relative, 1 | 2 | 3 | 7 | 46 | 47 | 52) || relative == 0 && bit < 4,
        };
        // A version that is neither 4 nor 6 moves the mask: such a frame does not parse at all.
        prop_assume!(relative != 0 || masked);
        prop_assert_eq!(icrc::verify_bytes(&bytes, header.l3, header.frame_len), masked);
    }

    #[test]
    fn delta_is_the_crc_of_the_difference(pair in vec(any::<(u8, u8)>(), 0..200), after in vec(any::<u8>(), 0..40)) {
        let (old, new): (Vec<u8>, Vec<u8>) = pair.iter().copied().unzip();
        let difference: Vec<u8> = pair.iter().map(|(a, b)| a ^ b).collect();
        let delta = icrc::delta(&old, &new);
        prop_assert_eq!(delta, bitwise(0, &difference));
        prop_assert_eq!(icrc::delta(&old, &old), 0);

        // The CRC of the new bytes follows from the CRC of the old ones.
        let whole = |first: &[u8]| !bitwise(bitwise(!0, first), &after);
        prop_assert_eq!(whole(&new), whole(&old) ^ shift(delta, after.len()));
    }

    #[test]
    fn shift_is_so_many_zeros(crc in any::<u32>(), n in 0usize..9000) {
        let wanted = bitwise(crc, &vec![0; n]);
        prop_assert_eq!(shift(crc, n), wanted);
        prop_assert_eq!(Shift::by_bytes(n).apply(crc), wanted);
    }

    #[test]
    fn shifts_add_up_however_long(crc in any::<u32>(), a in 0usize..1 << 40, b in 0usize..1 << 40) {
        prop_assert_eq!(shift(shift(crc, a), b), shift(crc, a + b));
        prop_assert_eq!(Shift::by_bytes(a).apply(crc), shift(crc, a));
    }

    #[test]
    fn the_cache_agrees_with_shift(asked in vec((any::<u32>(), 0usize..40, any::<bool>()), 1..80)) {
        let mut cache = ShiftCache::<4>::new();
        for (crc, n, table) in asked {
            let got = if table { cache.get(n).apply(crc) } else { cache.apply(crc, n) };
            prop_assert_eq!(got, bitwise(crc, &vec![0; n]));
        }
    }

    #[test]
    fn difference_equals_full_icrc_for_every_rewritten_field(
        spec in spec_v4(),
        src in ipv4(),
        dst in ipv4(),
        qpn in 0u32..1 << 24,
        psn in 0u32..1 << 24,
        memory in any::<(u64, u32)>(),
        which in any::<[bool; 6]>(),
    ) {
        let mut bytes = spec.emit();
        let header = roce(&bytes);
        let (old_src, old_dst) = header.ip.v4().expect("IPv4");
        let (l3, bth) = (header.l3, header.bth);
        let old = icrc::of_frame(&bytes, l3, header.frame_len);

        // Writes at literal offsets, without the code under test.
        let mut change = HeaderDelta::NONE;
        let [with_src, with_dst, with_qpn, with_psn, with_ack, with_memory] = which;
        if with_src {
            bytes[l3 + 12..l3 + 16].copy_from_slice(&src.octets());
            change = change.and(HeaderDelta::src(old_src, src));
        }
        if with_dst {
            bytes[l3 + 16..l3 + 20].copy_from_slice(&dst.octets());
            change = change.and(HeaderDelta::dst(old_dst, dst));
        }
        if with_qpn {
            bytes[l3 + 33..l3 + 36].copy_from_slice(&qpn.to_be_bytes()[1..]);
            change = change.and(HeaderDelta::dest_qp(bth.dest_qp, Qpn::new(qpn)));
        }
        if with_psn {
            bytes[l3 + 37..l3 + 40].copy_from_slice(&psn.to_be_bytes()[1..]);
            change = change.and(HeaderDelta::psn(bth.psn, Psn::new(psn)));
        }
        if with_ack {
            bytes[l3 + 36] ^= 0x80;
            change = change.and(HeaderDelta::ack_request_flips());
        }
        if let Some(reth) = header.reth && with_memory {
            let (va, rkey) = memory;
            bytes[l3 + 40..l3 + 48].copy_from_slice(&va.to_be_bytes());
            bytes[l3 + 48..l3 + 52].copy_from_slice(&rkey.to_be_bytes());
            change = change.and(HeaderDelta::va(reth.va, va)).and(HeaderDelta::rkey(reth.rkey, rkey));
        }

        let new = icrc::of_frame(&bytes, l3, header.frame_len);
        prop_assert_eq!(new, icrc_reference(&bytes[l3..header.frame_len - 4]));
        match header.after_reth() {
            Some(n) => {
                prop_assert_eq!(old ^ Shift::by_bytes(n).apply(change.at_reth()), new);
                prop_assert_eq!(old ^ shift(change.at_reth(), n), new);
            }
            None => {
                let n = header.after_bth();
                prop_assert_eq!(old ^ Shift::by_bytes(n).apply(change.at_bth()), new);
                prop_assert_eq!(old ^ shift(change.at_bth(), n), new);
            }
        }
    }

    #[test]
    fn a_corrupted_frame_stays_corrupted_by_difference(spec in spec_v4(), flip in any::<prop::sample::Index>(), qpn in 0u32..1 << 24) {
        let mut bytes = spec.emit();
        let header = roce(&bytes);
        let (l3, end) = (header.l3, header.frame_len);
        let from = l3 + 40;
        bytes[from + flip.index(end - from)] ^= 1;
        prop_assert!(!icrc::verify_bytes(&bytes, l3, end));

        let change = HeaderDelta::dest_qp(header.bth.dest_qp, Qpn::new(qpn));
        bytes[l3 + 33..l3 + 36].copy_from_slice(&qpn.to_be_bytes()[1..]);
        let icrc = icrc::read(&bytes, end).expect("long enough") ^ shift(change.at_bth(), header.after_bth());
        prop_assert!(icrc::write(&mut bytes, end, icrc));
        prop_assert!(!icrc::verify_bytes(&bytes, l3, end));
    }
}
