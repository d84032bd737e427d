//! Random bytes, and frames with changed bytes: parsing returns an error or a frame and never panics, and the lengths of
//! an accepted RoCEv2 frame are consistent.

use crate::in_place::RoceV4Mut;
use crate::support::{emit_again, golden};
use castnet_wire::{
    Arp, Ethernet, Ipv4, Ipv6, Parsed, RoceHeader, describe, icrc, ipv4, parse_frame, parse_network,
};
use proptest::collection::vec;
use proptest::prelude::*;

/// Passes the bytes to every parser.
fn throw(frame: &[u8], frame_len: usize) {
    let _ = (
        Ethernet::parse(frame),
        Ipv4::parse(frame),
        Ipv6::parse(frame),
        Arp::parse(frame),
    );
    let _ = (
        ipv4::checksum_is_right(frame),
        icrc::full(&[frame]),
        icrc::delta(frame, &frame[frame.len() / 2..]),
    );
    let text = format!("{} {:#}", describe(frame, frame_len), describe(frame, frame_len));
    assert!(!text.is_empty());
    let _ = parse_network(frame, frame_len);
    if let Ok(Parsed::Roce(header)) = parse_frame(frame, frame_len) {
        hold_together(frame, frame_len, &header);
    }
}

fn hold_together(frame: &[u8], frame_len: usize, header: &RoceHeader) {
    let info = header.bth.opcode.info();
    assert!(header.frame_len <= frame_len);
    assert_eq!(header.bth_at, header.l4 + 8);
    assert_eq!(header.payload_at, header.bth_at + info.header_len());
    assert_eq!(
        header.payload_at + header.payload_len + usize::from(header.bth.pad) + 4,
        header.frame_len
    );
    assert!(header.payload_at <= frame.len().min(128));
    let ext = header.ext(frame);
    assert_eq!(
        (ext.reth, ext.aeth, ext.imm, ext.ieth),
        (header.reth, header.aeth, header.imm, header.ieth)
    );

    let mut owned = frame.to_vec();
    let _ = icrc::verify(&owned, header.l3, header.frame_len);
    let _ = icrc::write(&mut owned, header.frame_len, 7);
    let _ = RoceV4Mut::new(&mut owned, header);
    if frame.len() == header.frame_len && header.l3 <= 18 {
        // A header that is written back parses to the same value.
        let again = emit_again(frame);
        let Ok(Parsed::Roce(second)) = parse_frame(&again, again.len()) else {
            panic!("written, but not read: {}", describe(&again, again.len()));
        };
        assert_eq!(second, *header);
        assert!(icrc::verify_bytes(&again, second.l3, second.frame_len));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_bytes(bytes in vec(any::<u8>(), 0..200), extra in 0usize..64) {
        throw(&bytes, bytes.len());
        throw(&bytes, bytes.len() + extra);
        throw(&bytes, bytes.len().saturating_sub(extra));
        throw(&bytes, usize::MAX);
    }

    /// Random bytes behind valid headers, since random EtherTypes are seldom valid.
    #[test]
    fn random_bytes_behind_valid_headers(bytes in vec(any::<u8>(), 0..120), v6 in any::<bool>()) {
        let (_, frame) = golden().swap_remove(if v6 { 5 } else { 4 });
        for keep in [14, 15, 34, 42, 54, 62] {
            let mut frame = frame[..keep].to_vec();
            frame.extend(&bytes);
            let ip = frame.len() - 14;
            if let Some(total) = frame.get_mut(if v6 { 18..20 } else { 16..18 }) {
                total.copy_from_slice(&(if v6 { ip.saturating_sub(40) } else { ip } as u16).to_be_bytes());
            }
            let l4 = if v6 { 54 } else { 34 };
            let datagram = (frame.len().saturating_sub(l4) as u16).to_be_bytes();
            if let Some(length) = frame.get_mut(l4 + 4..l4 + 6) {
                length.copy_from_slice(&datagram);
            }
            throw(&frame, frame.len());
        }
    }

    #[test]
    fn golden_frames_with_changed_bytes(
        which in any::<prop::sample::Index>(),
        wrong in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        keep in prop::option::of(any::<prop::sample::Index>()),
        extra in 0usize..8,
    ) {
        let golden = golden();
        let (_, mut frame) = golden[which.index(golden.len())].clone();
        for (at, byte) in wrong {
            let at = at.index(frame.len());
            frame[at] = byte;
        }
        if let Some(keep) = keep {
            frame.truncate(keep.index(frame.len()));
        }
        let whole = frame.len();
        frame.resize(whole + extra, 0);
        throw(&frame, frame.len());
        throw(&frame[..whole], frame.len());
    }
}
