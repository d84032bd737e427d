//! Tests of the observer: a switch or host that violates the contract is detected.

use castnet_endpoint::{Access, LocalSlice, QpConfig, SendOp, SendWr};
use castnet_planner::{LinkLoad, Member, Plan, Request, RoomTable, plan};
use castnet_rules::{GroupKind, MulticastRule};
use castnet_sim::{Contract, Delivery, Fate, Hop, SimConfig, Simulation, View, Watch};
use castnet_topology::Topology;
use castnet_wire::bth::Bth;
use castnet_wire::ethernet::ETHERTYPE_IPV4;
use castnet_wire::{
    Aeth, Ethernet, ExtHeaders, MacAddr, McstId, NakCode, Nanos, Network, Opcode, Pmtu, PortId, Psn, Qpn,
    RnrTimer, Syndrome, emit_roce,
};
use std::net::Ipv4Addr;

const QPN: Qpn = Qpn::new(0x11);
const MCST_ID: McstId = McstId(Ipv4Addr::new(10, 255, 0, 1));

/// Four hosts at two leaves. h0 sends to the others, with PSNs from 100.
fn group() -> (Simulation<Contract>, Plan, Request) {
    let topology = Topology::leaf_spine(2, 1, 2).expect("a fabric");
    let members = ["h0", "h1", "h2", "h3"].map(|h| Member::new(h, QPN)).to_vec();
    let rule = MulticastRule {
        start_psn: Some(Psn::new(100)),
        ..MulticastRule::default()
    };
    let request = Request::multicast("g", MCST_ID, Pmtu::B256, members, rule);
    let plan = plan(&topology, &LinkLoad::new(), &RoomTable::new(), &request).expect("a plan");
    let mut sim = Simulation::new(&topology, SimConfig::new(1), Contract::default()).expect("a network");
    *sim.watch_mut() = Contract::new(&sim, &plan);
    for host in ["h0", "h1", "h2", "h3"] {
        let mac = sim.first_hop_mac(host).expect("a first hop");
        let config = QpConfig {
            sq_psn: Psn::new(100),
            rq_psn: Psn::new(100),
            pmtu: Pmtu::B256,
            ..QpConfig::new(QPN, MCST_ID.0, mac, Qpn::VIRTUAL)
        };
        sim.with_endpoint(host, |e, _| e.create_qp(config))
            .expect("a host")
            .expect("a QP");
    }
    (sim, plan, request)
}

/// h0 sends a message of 10 packets. No receiver has posted a receive.
fn send(sim: &mut Simulation<Contract>) {
    sim.with_endpoint("h0", |e, _| {
        let key = e.register_memory(0, vec![1; 2560], Access::READ).expect("memory");
        e.post_send(
            QPN,
            SendWr::new(
                0,
                SendOp::Send,
                LocalSlice {
                    key,
                    offset: 0,
                    length: 2560,
                },
            ),
        )
    })
    .expect("a host")
    .expect("posted");
}

fn feedback(sim: &Simulation<Contract>, host: &str, psn: u32, syndrome: Syndrome) -> Vec<u8> {
    let config = sim.endpoint(host).expect("a host").config().clone();
    let mac = sim.first_hop_mac(host).expect("a first hop");
    acknowledge(config.mac, mac, config.ip, MCST_ID.0, psn, syndrome)
}

fn acknowledge(
    src: MacAddr,
    dst: MacAddr,
    from: Ipv4Addr,
    to: Ipv4Addr,
    psn: u32,
    syndrome: Syndrome,
) -> Vec<u8> {
    let ethernet = Ethernet {
        dst,
        src,
        vlan: None,
        ethertype: ETHERTYPE_IPV4,
    };
    let network = Network::v4(from, to);
    let ext = ExtHeaders {
        aeth: Some(Aeth { syndrome, msn: 0 }),
        ..ExtHeaders::NONE
    };
    let bth = Bth::new(Opcode::Ack, Qpn::VIRTUAL, Psn::new(psn));
    let mut frame = vec![0; 128];
    let length = emit_roce(&mut frame, &ethernet, &network, 0xC000, &bth, &ext, &[]).expect("it fits");
    frame.truncate(length);
    frame
}

#[track_caller]
fn assert_violated(sim: &Simulation<Contract>, rule: &str, place: &str) {
    let violations = sim.watch().violations();
    assert!(
        violations.iter().any(|v| v.contains(rule) && v.contains(place)),
        "{violations:?}"
    );
}

#[test]
fn an_undisturbed_group_keeps_the_contract() {
    let (mut sim, plan, _) = group();
    sim.install_plan(&plan).expect("installed");
    send(&mut sim);
    sim.run(Nanos::from_millis(50));
    assert_eq!(sim.watch().violations(), [] as [String; 0]);
    assert!(sim.watch().sightings().rnr_naks > 0, "no receive was posted");
}

/// A switch whose rule lacks one receiver acknowledges without it.
#[test]
fn a_switch_that_omits_a_receiver_violates_m1() {
    let (mut sim, mut plan, _) = group();
    let rule = plan.rules.get_mut("leaf1").expect("a rule");
    let forgotten = rule
        .endpoints
        .iter()
        .position(|p| p.next_hop.name() == "h3")
        .expect("a path");
    rule.endpoints.remove(forgotten);
    if let GroupKind::Multicast(kind) = &mut rule.kind
        && usize::from(kind.source) > forgotten
    {
        kind.source -= 1;
    }
    sim.install_plan(&plan).expect("installed");
    for host in ["h1", "h2"] {
        sim.with_endpoint(host, |e, _| {
            let key = e
                .register_memory(0, vec![0; 2560], Access::LOCAL)
                .expect("memory");
            let local = LocalSlice {
                key,
                offset: 0,
                length: 2560,
            };
            e.post_recv(QPN, castnet_endpoint::RecvWr { wr_id: 0, local })
        })
        .expect("a host")
        .expect("posted");
    }
    sim.watch_mut().expect_message(0, Psn::new(109));
    send(&mut sim);
    sim.run(Nanos::from_millis(5));
    assert_violated(&sim, "M1", "leaves leaf1, but h3 expects 100");
    assert_violated(&sim, "M1", "reaches the source");
    assert_violated(&sim, "M1", "completes");
}

/// The switches cannot detect a false ACK of a receiver; the observer does.
#[test]
fn false_acks_violate_m1_and_m2() {
    for (syndrome, rule) in [
        (Syndrome::Ack, "M1"),
        (Syndrome::Nak(NakCode::PsnSequenceError), "M2"),
        (Syndrome::RnrNak(RnrTimer::new(5)), "M2"),
        (Syndrome::Nak(NakCode::RemoteAccessError), "M2"),
    ] {
        let (mut sim, plan, _) = group();
        sim.install_plan(&plan).expect("installed");
        send(&mut sim);
        for host in ["h1", "h2", "h3"] {
            let lie = feedback(&sim, host, 104, syndrome);
            sim.at(Nanos::from_micros(20), move |sim| _ = sim.inject(host, lie));
        }
        sim.run(Nanos::from_millis(1));
        assert_violated(&sim, rule, "of 104 reaches the source");
    }
}

/// Frames of a faulty switch, shown to the observer only.
#[test]
fn data_for_a_path_that_acknowledged_it_violates_m3() {
    let (mut sim, plan, _) = group();
    sim.install_plan(&plan).expect("installed");
    send(&mut sim);
    sim.run(Nanos::from_micros(200));
    let mut watch = sim.watch().clone();
    assert_eq!(watch.violations(), [] as [String; 0]);
    let view = sim.view();
    let [leaf, h1] = ["leaf0", "h1"].map(|n| sim.node(n).expect("a node"));
    let port = PortId::new(1).expect("a port");
    let hop = Hop {
        from: leaf,
        from_port: port,
        to: h1,
        to_port: PortId::default(),
    };
    let data = |psn: u32| {
        let frame = feedback(&sim, "h0", psn, Syndrome::Ack);
        let mut frame = frame[..frame.len() - 8].to_vec();
        frame[42] = Opcode::SendMiddle.byte();
        frame.extend([0; 260]);
        let length = (frame.len() - 14) as u16;
        frame[16..18].copy_from_slice(&length.to_be_bytes());
        frame[38..40].copy_from_slice(&(length - 20).to_be_bytes());
        frame
    };
    watch.sent(&view, hop, &data(103), Fate::Delivered);
    assert_eq!(
        watch.violations(),
        [] as [String; 0],
        "h1 has not acknowledged it"
    );
    let ack = feedback(&sim, "h1", 103, Syndrome::Ack);
    let deliver = |watch: &mut Contract, view: &View<'_>, frame: &[u8], untouched| {
        watch.delivered(
            view,
            Delivery {
                to: leaf,
                port,
                frame,
                untouched,
            },
        );
    };
    let mut broken = ack.clone();
    *broken.last_mut().expect("a byte") ^= 1;
    deliver(&mut watch, &view, &broken, true);
    deliver(&mut watch, &view, &ack, false);
    watch.sent(&view, hop, &data(103), Fate::Lost);
    assert_eq!(
        watch.violations(),
        [] as [String; 0],
        "damaged feedback is ignored"
    );
    deliver(&mut watch, &view, &ack, true);
    watch.sent(&view, hop, &data(104), Fate::Delivered);
    assert_eq!(watch.violations(), [] as [String; 0]);
    watch.sent(&view, hop, &data(103), Fate::Delivered);
    assert!(watch.violations()[0].contains("M3: leaf0 sends 103 by port 1, which has acknowledged 103"));
    watch.stopped(leaf);
    watch.sent(&view, hop, &data(103), Fate::Delivered);
    assert_eq!(watch.violations().len(), 1, "a stopped switch has lost its state");
}
