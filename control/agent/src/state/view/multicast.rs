//! State of multicast groups as messages.

use castnet_proto::convert::port_to_proto;
use castnet_proto::v1;
use castnet_rules::GroupRule;
use castnet_wire::Nanos;
use castnet_worker::engine::{
    GroupStatus, MulticastCounters, PathSnapshot, copy_multicast_counters, copy_path_counters,
};

use crate::state::view::next_hop;

pub(crate) fn state(status: &GroupStatus, now: Nanos) -> v1::MulticastState {
    let machine = &status.machine;
    let patience = Nanos::from_millis(status.rule.stall_timeout_ms.into());
    let stalls = machine.since.is_some_and(|since| now.since(since) > patience);
    let mut state = counted(&status.counters, &status.paths, Some(&status.rule));
    for (i, path) in state.paths.iter_mut().enumerate() {
        let live = machine.paths.iter().find(|p| p.path.index() == i);
        path.ack_psn = live.and_then(|p| p.ack_psn).map(|psn| psn.value());
        path.congestion = live.map_or(0, |p| p.cnps.into());
        path.stalled = stalls && machine.waiting_for.is_some_and(|p| p.index() == i);
    }
    v1::MulticastState {
        agg_ack_psn: machine.agg_ack_psn.map(|p| p.value()),
        me_psn: machine.me_psn.map(|p| p.value()),
        newest_psn: machine.newest_psn.map(|p| p.value()),
        hot_bytes: status.hot_bytes as u64,
        cold_bytes: status.cold_bytes as u64,
        ring: machine.repair.map(|ring| v1::RingStatus {
            slots: ring.slots.into(),
            held: ring.held.into(),
            missing_psn: ring.missing.map(|psn| psn.value()),
        }),
        ..state
    }
}

/// `rule`: absent if its generation is not installed any more.
pub(crate) fn counted(
    counters: &MulticastCounters,
    paths: &[PathSnapshot],
    rule: Option<&GroupRule>,
) -> v1::MulticastState {
    let path = |(i, path): (usize, &PathSnapshot)| v1::PathStatus {
        port: port_to_proto(path.port),
        next_hop: next_hop(rule, i).into(),
        source: path.source,
        counters: Some(copy_path_counters!(path.counters => v1::PathCounters {
            copies_out: path.copies_out,
        })),
        ..Default::default()
    };
    v1::MulticastState {
        paths: paths.iter().enumerate().map(path).collect(),
        counters: Some(copy_multicast_counters!(counters => v1::MulticastCounters)),
        ..Default::default()
    }
}
