//! LLDP: own data units round-trip, and foreign ones are parsed.

use crate::support::mac;
use castnet_wire::build::emit_lldp;
use castnet_wire::lldp::NEAREST_BRIDGE;
use castnet_wire::{Ethernet, Header, Lldp, LldpId, MacAddr, Parsed, parse_frame};
use proptest::prelude::*;

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 7]);

proptest! {
    #[test]
    fn ours_go_there_and_back(mac in mac(), port in "[a-z0-9.]{1,20}", name in "\\PC{0,40}", ttl_secs in any::<u16>()) {
        let ours = Lldp { chassis: LldpId::Mac(mac), port: LldpId::Text(&port), ttl_secs, system_name: &name };
        let mut frame = [0xAA; 600];
        let n = emit_lldp(&mut frame, mac, &ours).expect("room enough");
        prop_assert!(n >= 60);
        let frame = &frame[..n];
        prop_assert_eq!(parse_frame(frame, n), Ok(Parsed::Lldp { at: 14 }));
        let (ethernet, _) = Ethernet::parse(frame).expect("an Ethernet header");
        prop_assert_eq!((ethernet.dst, ethernet.src), (NEAREST_BRIDGE, mac));
        prop_assert_eq!(Lldp::parse(&frame[14..]), Ok(ours));
        for short in 0..n {
            prop_assert!(emit_lldp(&mut vec![0; short], mac, &ours).is_err());
        }
    }

    #[test]
    fn a_text_too_long_is_cut_between_characters(extra in 0usize..3) {
        let name = format!("{}{}", "x".repeat(extra), "\u{20ac}".repeat(200));
        let ours = Lldp { chassis: LldpId::Text("sw"), port: LldpId::Mac(MAC), ttl_secs: 1, system_name: &name };
        let mut out = [0; 600];
        let n = ours.emit(&mut out).expect("room enough");
        let back = Lldp::parse(&out[..n]).expect("what we wrote");
        prop_assert!(name.starts_with(back.system_name));
        prop_assert!((253..=255).contains(&back.system_name.len()));
        prop_assert_eq!((back.chassis, back.port), (ours.chassis, ours.port));
    }

    #[test]
    fn any_bytes_at_all(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Lldp::parse(&bytes);
    }
}

/// Chassis and port by address, as lldpd sends them; then unknown TLVs, organisation-specific TLVs, and a last one
/// that is cut off.
#[test]
fn a_foreign_data_unit_is_parsed() {
    let mut bytes = vec![];
    bytes.extend([0x02, 7, 4, 2, 0, 0, 0, 0, 7]);
    bytes.extend([0x04, 7, 3, 2, 0, 0, 0, 0, 8]);
    bytes.extend([0x06, 2, 0, 120]);
    bytes.extend([0x08, 4, b'e', b't', b'h', b'0']);
    bytes.extend([0x0A, 3, b't', b'o', b'r']);
    bytes.extend([0xFE, 4, 0, 0x12, 0x0F, 1]);
    bytes.extend([0x0C, 200, b'c', b'u', b't']);
    let lldp = Lldp::parse(&bytes).expect("the three that must be there");
    assert_eq!(
        (lldp.chassis, lldp.port),
        (LldpId::Mac(MAC), LldpId::Mac(MacAddr([2, 0, 0, 0, 0, 8])))
    );
    assert_eq!((lldp.ttl_secs, lldp.system_name), (120, "tor"));

    // A network address of a chassis is kept and written back unchanged.
    let mut bytes = vec![0x02, 6, 5, 1, 10, 0, 0, 1];
    bytes.extend([0x04, 3, 5, b'p', b'1']);
    bytes.extend([0x06, 2, 0, 0, 0, 0]);
    let lldp = Lldp::parse(&bytes).expect("the three that must be there");
    assert_eq!(
        lldp.chassis,
        LldpId::Other {
            subtype: 5,
            bytes: &[1, 10, 0, 0, 1]
        }
    );
    assert_eq!(
        (lldp.chassis.to_string(), lldp.port.to_string()),
        ("5:010a000001".into(), "p1".into())
    );
    let mut out = [0; 64];
    let n = lldp.emit(&mut out).expect("room enough");
    assert_eq!(&out[..n], &bytes[..]);
}

#[test]
fn order_and_lengths_of_the_first_three_matter() {
    let parts: [&[u8]; 3] = [&[0x02, 2, 7, b'a'], &[0x04, 2, 5, b'b'], &[0x06, 2, 0, 9]];
    let join = |order: &[usize]| order.iter().flat_map(|&i| parts[i]).copied().collect::<Vec<_>>();
    assert!(Lldp::parse(&join(&[0, 1, 2])).is_ok());
    for order in [&[1, 0, 2][..], &[0, 2, 1], &[0, 1], &[]] {
        assert_eq!(
            Lldp::parse(&join(order)).map_err(|e| e.header()),
            Err(Header::Lldp)
        );
    }
    assert!(
        Lldp::parse(&[0x02, 1, 7, 0x04, 2, 5, b'b', 0x06, 2, 0, 9]).is_err(),
        "a chassis of no bytes"
    );
}
