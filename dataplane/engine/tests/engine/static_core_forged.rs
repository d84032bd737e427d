//! Frames that only say that they come from a static core: from ports where hosts are.

use super::collective::drops;
use super::static_core::{ADDRESS, CORE, FIRST, OTHER, UP, group, lead_to_core, mcst, route};
use crate::common::*;
use castnet_engine::{Engine, EngineConfig, FrameFilter, TapId};
use castnet_rules::{Ipv4Net, Route};
use castnet_wire::{Aeth, Deth, DropReason, MacAddr, Opcode, Syndrome};

/// A frame is not believed for its addresses alone: it must come by a port that leads to the core.
#[test]
fn data_of_the_core_comes_by_ports_that_lead_there() {
    const ROUTED: usize = 3;
    const NAMED: usize = 2;
    for (slow, repair) in [(false, false), (true, false), (false, true)] {
        let named = EngineConfig {
            core_ports: [port(NAMED)].into_iter().collect(),
            ..config(CORE)
        };
        let mut engine = Engine::new(named).unwrap();
        install(&mut engine, &group(1, repair, Some(ADDRESS)));
        if slow {
            let all = FrameFilter::default();
            engine
                .taps
                .arm_capture(TapId::all().next().unwrap(), all, usize::MAX, u64::MAX);
        }
        let mut psn = FIRST;
        let mut from = |engine: &mut Engine, ingress| {
            let before = engine.group_status(mcst(1)).unwrap().machine;
            let mut frame = DataFrame::new(Opcode::SendOnly, psn, &[7; 64]);
            (frame.src, frame.dst, frame.ethernet) = (mcst(0).0, ADDRESS, ethernet(ingress));
            let trace = engine.trace(T0, port(ingress), &frame.bytes());
            let sent = feed(engine, T0, ingress, &frame.bytes());
            assert_eq!(trace.sent.len(), sent.len(), "{trace}");
            let status = engine.group_status(mcst(1)).unwrap();
            assert_eq!(status.machine == before, sent.is_empty());
            psn += u32::from(!sent.is_empty());
            (
                sent.len(),
                drops(engine, DropReason::NotMember),
                status.counters.dropped,
            )
        };
        assert_eq!(from(&mut engine, UP), (2, 0, 0));
        assert_eq!(from(&mut engine, NAMED), (2, 0, 0));
        assert_eq!(from(&mut engine, ROUTED), (0, 1, 1));
        assert_eq!(from(&mut engine, 1), (0, 2, 2));
        lead_to_core(&mut engine, 1, [ROUTED]);
        assert_eq!(from(&mut engine, ROUTED), (2, 2, 2));
        assert_eq!(from(&mut engine, 1), (0, 3, 3));
        assert_conserved(&engine);
    }
}

/// Nor does it reach another edge over one that has no part in the group. What is not for a core passes.
#[test]
fn a_host_sends_nothing_to_a_core_over_an_edge_without_its_group() {
    let frame = |opcode, dst_mac| {
        // An ACK and UD without payload are enough.
        let payload = [7; 64];
        let is_data = matches!(opcode, Opcode::SendOnly | Opcode::WriteMiddle);
        let mut frame = DataFrame::new(opcode, FIRST, &payload[..if is_data { 64 } else { 0 }]);
        (frame.src, frame.dst, frame.ethernet) = (mcst(0).0, ADDRESS, ethernet(1));
        frame.ethernet.dst = dst_mac;
        frame.ext.aeth = Some(Aeth {
            syndrome: Syndrome::Ack,
            msn: 0,
        });
        frame.ext.deth = Some(Deth {
            qkey: 1,
            source_qp: host_qpn(1),
        });
        frame
    };
    let to_group = MacAddr([1, 0, 0x5E, 1, 0, 1]);
    for dst_mac in [port_mac(1), peer_mac(UP), to_group, MacAddr::BROADCAST] {
        for tags in 0..=2 {
            let tagged = |opcode| match (frame(opcode, dst_mac), tags) {
                (frame, 0) => frame.bytes(),
                (frame, 1) => frame.vlan(7).bytes(),
                (frame, _) => {
                    let mut bytes = frame.vlan(7).bytes();
                    bytes.splice(12..12, [0x88, 0xA8, 0, 9]);
                    bytes
                }
            };
            let mut engine = engine(CORE);
            lead_to_core(&mut engine, OTHER, [UP, 3]);
            for opcode in [Opcode::SendOnly, Opcode::WriteMiddle, Opcode::Ack] {
                assert!(
                    feed(&mut engine, T0, 1, &tagged(opcode)).is_empty(),
                    "{dst_mac} {tags}"
                );
            }
            assert_eq!(drops(&engine, DropReason::NotMember), 3, "{dst_mac} {tags}");
            assert_eq!(engine.fdb(T0).count(), 0, "nothing was learned of it");
            // By the ports of the core it goes on as before, and so does multicast of other transports.
            feed(&mut engine, T0, UP, &tagged(Opcode::SendOnly));
            feed(&mut engine, T0, 1, &tagged(Opcode::UdSendOnly));
            assert_eq!(drops(&engine, DropReason::NotMember), 3);
            assert_conserved(&engine);
        }
    }
    // A cached flow, of other transports, does not take RC along.
    for ingress in [1, UP] {
        let mut engine = engine(CORE);
        lead_to_core(&mut engine, OTHER, [UP]);
        let routed = Route {
            prefix: Ipv4Net::new_assert([239, 0, 0, 0].into(), 8),
            replicate: false,
            ..route(ADDRESS, [UP])
        };
        engine.set_tables(
            T0,
            tables(2, [mcst(OTHER)], &[routed], (0..CORE).map(port)).into(),
        );
        let to_switch = |opcode| frame(opcode, port_mac(ingress)).bytes();
        for _ in 0..4 {
            assert_eq!(
                feed(&mut engine, T0, ingress, &to_switch(Opcode::UdSendOnly)).len(),
                1
            );
        }
        let rc = feed(&mut engine, T0, ingress, &to_switch(Opcode::SendOnly));
        assert_eq!(rc.len(), usize::from(ingress == UP), "by port {ingress}");
    }
    // A switch that knows of no core is an Ethernet switch.
    let mut engine = engine(CORE);
    let sent = feed(&mut engine, T0, 1, &frame(Opcode::SendOnly, to_group).bytes());
    assert_eq!(sent.len(), CORE - 1);
}
