//! What the dataplane says of multicast groups, as messages.

use castnet_proto::v1;
use castnet_rules::GroupRule;
use castnet_wire::Nanos;
use castnet_worker::engine::{
    GroupStatus, MulticastCounters, PathSnapshot, copy_multicast_counters, copy_path_counters,
};

use crate::view::{next_hop, port_number};

pub(crate) fn state(status: &GroupStatus, now: Nanos) -> v1::MulticastState {
    v1::MulticastState {
        status: Some(live(status, now)),
        counters: Some(copy_multicast_counters!(status.counters => v1::MulticastCounters)),
    }
}

/// Counters alone; `rule` is the group's, where it is still that one.
pub(crate) fn counted(
    counters: &MulticastCounters,
    paths: &[PathSnapshot],
    rule: Option<&GroupRule>,
) -> v1::MulticastState {
    let paths = paths
        .iter()
        .enumerate()
        .map(|(i, p)| path(p, next_hop(rule, i), None, false));
    v1::MulticastState {
        status: Some(v1::MulticastStatus {
            paths: paths.collect(),
            ..Default::default()
        }),
        counters: Some(copy_multicast_counters!(counters => v1::MulticastCounters)),
    }
}

fn live(status: &GroupStatus, now: Nanos) -> v1::MulticastStatus {
    let machine = &status.machine;
    let patience = Nanos::from_millis(status.rule.stall_timeout_ms.into());
    let stalls = machine.since.is_some_and(|since| now.since(since) > patience);
    let paths = status.paths.iter().enumerate().map(|(i, snapshot)| {
        let known = machine.paths.iter().find(|p| p.path.index() == i);
        let waited_for = machine.waiting_for.is_some_and(|p| p.index() == i);
        let ack_psn = known.and_then(|p| p.ack_psn).map(|psn| psn.value());
        path(
            snapshot,
            next_hop(Some(&status.rule), i),
            ack_psn,
            waited_for && stalls,
        )
    });
    v1::MulticastStatus {
        agg_ack_psn: machine.agg_ack_psn.map(|p| p.value()),
        me_psn: machine.me_psn.map(|p| p.value()),
        newest_psn: machine.newest_psn.map(|p| p.value()),
        paths: paths.collect(),
        hot_bytes: status.hot_bytes as u64,
        cold_bytes: status.cold_bytes as u64,
    }
}

fn path(snapshot: &PathSnapshot, next_hop: &str, ack_psn: Option<u32>, stalled: bool) -> v1::PathStatus {
    v1::PathStatus {
        port: port_number(snapshot.port),
        next_hop: next_hop.into(),
        source: snapshot.source,
        ack_psn,
        stalled,
        counters: Some(copy_path_counters!(snapshot.counters => v1::PathCounters {
            copies_out: snapshot.copies_out,
        })),
    }
}
