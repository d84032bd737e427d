//! Hosts that speak in the name of groups at other switches, which have other addresses there: groups that pass routers.

use castnet_engine::SourceGuard;
use castnet_rules::Ipv4Net;
use castnet_wire::{DropReason, MacAddr, Opcode};

use super::collective::drops;
use super::static_core::route;
use crate::common::*;

const CORE: usize = 2;

#[test]
fn a_host_does_not_speak_in_the_name_of_a_group_at_another_switch() {
    let groups = Ipv4Net::new(far_ip(0), 24).unwrap();
    let hosts = [(port(0), host_ip(0)), (port(1), far_ip(1))];
    let mut tables = tables(1, [], &[route(far_ip(CORE), [CORE])], (0..3).map(port));
    let open = tables.clone();
    tables.generation = 2;
    tables.guards = [SourceGuard::default(), SourceGuard::new(hosts, vec![groups])].into();
    let frame = |n, src, dst_mac, tags| {
        let mut frame = DataFrame::new(Opcode::SendOnly, 1, &[7; 64]);
        (frame.src, frame.dst, frame.ethernet) = (src, far_ip(CORE), ethernet(n));
        frame.ethernet.dst = dst_mac;
        let mut bytes = frame.bytes();
        for _ in 0..tags {
            bytes.splice(12..12, [0x81, 0x00, 0, 0]);
        }
        bytes
    };
    let forged = far_ip(200);
    for dst_mac in [peer_mac(CORE), MacAddr::BROADCAST] {
        for tags in 0..=3 {
            let mut engine = engine(3);
            engine.set_tables(T0, tables.clone().into());
            for n in 0..2 {
                let frame = frame(n, forged, dst_mac, tags);
                assert!(feed(&mut engine, T0, n, &frame).is_empty(), "{dst_mac} {tags}");
            }
            assert_eq!(drops(&engine, DropReason::NotMember), 2, "{dst_mac} {tags}");
            assert_eq!(engine.fdb(T0).count(), 0, "nothing was learned of it");
            // The host itself may have an address there. From elsewhere, switches speak.
            for (n, src) in [(1, far_ip(1)), (0, host_ip(9)), (CORE, forged)] {
                feed(&mut engine, T0, n, &frame(n, src, dst_mac, tags));
            }
            assert_eq!(drops(&engine, DropReason::NotMember), 2, "{dst_mac} {tags}");
            assert_conserved(&engine);
        }
    }
    // Nor does it take the address of such a group by ARP.
    let mut engine = engine(3);
    engine.set_tables(T0, tables.clone().into());
    let mut claim = arp_request(0, host_ip(5));
    claim[28..32].copy_from_slice(&forged.octets());
    assert!(feed(&mut engine, T0, 0, &claim).is_empty());
    assert_eq!(drops(&engine, DropReason::NotMember), 1);
    // A flow that was routed before is not any more.
    engine.set_tables(T0, open.into());
    let routed = frame(0, forged, port_mac(0), 0);
    for _ in 0..4 {
        assert_eq!(feed(&mut engine, T0, 0, &routed).len(), 1);
    }
    engine.set_tables(T0, tables.into());
    assert!(feed(&mut engine, T0, 0, &routed).is_empty());
    assert_eq!(drops(&engine, DropReason::NotMember), 2);
    assert_conserved(&engine);
}
