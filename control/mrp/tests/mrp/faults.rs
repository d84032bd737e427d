//! Registration over links that lose, repeat, reorder and change frames.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use castnet_mrp::{LeaderError, Receiver};
use castnet_topology::Topology;
use castnet_wire::{McstId, MrpBody, MrpMember, MrpPacket, MrpPart, Nanos, Pmtu, Qpn};
use proptest::prelude::*;

use crate::net::{Faults, Net, member};
use crate::planner::group;

fn faults() -> impl Strategy<Value = Faults> {
    (any::<u64>(), 0..40_u64, 0..30_u64, 0..20_u64, 0..400_u64).prop_map(
        |(seed, loss, repeat, change, delay_ms)| Faults {
            seed,
            loss,
            repeat,
            change,
            delay_ms,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn losses_are_repaired_by_repetition((fabric, members) in group(), faults in faults()) {
        let mut perfect = Net::new(fabric.clone(), &members, 7, Faults::default());
        perfect.run(Nanos::from_secs(1), true).expect("a registration");
        let mut net = Net::new(fabric, &members, 7, faults);
        while !net.leader.is_registered() {
            prop_assert!(net.now < Nanos::from_secs(60), "{:?}", net.leader);
            net.run(Nanos::from_millis(50), true).expect("a registration");
            // A leader that has all confirmations has all switches.
            if net.leader.is_registered() {
                prop_assert_eq!(net.rules(), perfect.rules());
                prop_assert!(net.receivers.values().all(|r| r.is_registered()));
            }
        }
        // It lives as long as the leader repeats it, though packets are lost.
        for _ in 0..10 {
            net.run(Nanos::from_secs(20), true).expect("registered");
            if faults.loss + faults.change < 5 {
                prop_assert_eq!(net.rules(), perfect.rules());
            }
        }
        // Without the leader it expires, and nothing is left.
        net.run(Nanos::from_secs(62), false).expect("no leader");
        prop_assert_eq!(net.rules().len(), 0);
        prop_assert!(net.switches.values().all(|(registrar, _)| registrar.poll_timeout().is_none()));
    }

    #[test]
    fn a_withdrawn_group_stays_away((fabric, members) in group(), mut faults in faults()) {
        (faults.loss, faults.change) = (0, 0);
        let mut net = Net::new(fabric, &members, 7, faults);
        while !net.leader.is_registered() {
            net.run(Nanos::from_millis(20), true).expect("a registration");
        }
        let (source, withdraw) = (net.source.clone(), net.leader.withdraw());
        net.send_up(&source, &withdraw);
        net.run(Nanos::from_secs(3), false).expect("no leader");
        prop_assert_eq!(net.rules().len(), 0);
        for receiver in net.receivers.values_mut() {
            prop_assert_eq!(receiver.handle_timeout(net.now), Err(castnet_mrp::ReceiverError::Withdrawn));
        }
        net.run(Nanos::from_secs(60), false).expect("no leader");
        prop_assert!(net.switches.values().all(|(registrar, _)| registrar.poll_timeout().is_none()));
    }

    /// A newer registration replaces the older one everywhere, also if packets of the older one are still on their way.
    #[test]
    fn a_newer_registration_wins((fabric, members) in group(), mut faults in faults()) {
        // Each late packet of an earlier queue pair starts it anew, so it takes several times as long.
        (faults.loss, faults.change) = (faults.loss / 2, faults.change / 2);
        let mut net = Net::new(fabric.clone(), &members, 7, faults);
        let _ = net.run(Nanos::from_millis(500), true);
        let newer = Net::new(fabric, &members, 8, faults);
        (net.leader, net.receivers) = (newer.leader, newer.receivers);
        while !net.leader.is_registered() {
            prop_assert!(net.now < Nanos::from_secs(60), "{:?}", net.leader);
            net.run(Nanos::from_millis(50), true).expect("a registration");
        }
        net.run(Nanos::from_secs(1), true).expect("registered");
        let generations: BTreeSet<u64> = net.rules().values().map(|rule| rule.generation).collect();
        prop_assert!(generations.len() == 1 && generations.first() >= Some(&8), "{:?}", generations);
    }
}

#[test]
fn a_time_out_names_the_members_that_did_not_answer() {
    let fabric = Topology::leaf_spine(2, 2, 2).expect("a fabric");
    let hosts: Vec<String> = fabric.hosts().map(|h| h.name.clone()).collect();
    let ip = |host: &String| member(&fabric, host, false).ip;
    // One that never joins.
    let mut net = Net::new(fabric.clone(), &hosts, 1, Faults::default());
    net.receivers.remove(&hosts[2]);
    let error = net.run(Nanos::from_secs(61), true).expect_err("a time-out");
    assert!(matches!(&error, LeaderError::NotJoined { missing, .. } if *missing == [ip(&hosts[2])]));
    assert_eq!(
        error.to_string(),
        format!("no connection from {} within 60000 ms", ip(&hosts[2]))
    );
    // One that dies after it has joined.
    let mut net = Net::new(fabric.clone(), &hosts, 1, Faults::default());
    net.run(Nanos(3000), true).expect("joined");
    net.receivers.remove(&hosts[3]);
    let error = net.run(Nanos::from_secs(62), true).expect_err("a time-out");
    assert!(
        matches!(&error, LeaderError::NotConfirmed { missing, refused: None, .. } if *missing == [ip(&hosts[3])])
    );
}

#[test]
fn a_refusal_of_a_far_switch_reaches_the_leader() {
    let fabric = Topology::leaf_spine(2, 2, 2).expect("a fabric");
    let hosts: Vec<String> = fabric.hosts().map(|h| h.name.clone()).collect();
    let mut net = Net::new(fabric, &hosts, 1, Faults::default());
    net.switches.get_mut("leaf1").expect("leaf1").1.full = true;
    let error = net
        .run(Nanos::from_secs(62), true)
        .expect_err("a time-out")
        .to_string();
    assert!(
        error.ends_with("; a switch says: the switch has no capacity for the group"),
        "{error}"
    );
    // Its host and only its host is missing; the others have confirmed.
    assert_eq!(net.receivers.values().filter(|r| r.is_registered()).count(), 1);
    // A switch that recovers is repaired by the next repetition.
    net.switches.get_mut("leaf1").expect("leaf1").1.full = false;
}

/// A leader that has taken a late packet of an earlier queue pair would otherwise wait for a confirmation that never comes.
#[test]
fn a_receiver_that_is_known_by_another_queue_pair_joins_again() {
    let fabric = Topology::leaf_spine(2, 2, 2).expect("a fabric");
    let host = fabric.hosts().next().expect("a host").name.clone();
    let own = member(&fabric, &host, false);
    let earlier = MrpMember {
        qpn: Qpn::new(own.qpn.value() + 1),
        ..own
    };
    let leader = Ipv4Addr::new(10, 0, 0, 1);
    let (group, times) = (
        McstId([10, 200, 0, 1].into()),
        (Nanos::from_millis(100), Nanos::from_secs(60)),
    );
    let mut receiver = Receiver::new(Nanos::ZERO, (group, leader), (own, None), times);
    let part = MrpPart {
        sequence: 0,
        total: 1,
        pmtu: Pmtu::B1024,
    };
    let record = |number, member| MrpPacket {
        number,
        body: MrpBody::Members(part, vec![member]),
    };
    let confirmed = receiver.handle(leader, &record(7, own)).expect("an answer");
    assert_eq!(confirmed.body, MrpBody::Confirm(group, own));
    let joined = receiver.handle(leader, &record(8, earlier)).expect("an answer");
    assert_eq!(joined.body, MrpBody::Join(group, own, None));
    let confirmed = receiver.handle(leader, &record(9, own)).expect("an answer");
    assert_eq!(
        (confirmed.number, confirmed.body),
        (9, MrpBody::Confirm(group, own))
    );
}
