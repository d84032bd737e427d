//! What the dataplane says of multicast groups, as messages.

use castnet_proto::v1;
use castnet_rules::GroupRule;
use castnet_wire::Nanos;
use castnet_worker::engine::{GroupCounters, GroupStatus, PathSnapshot};

use crate::view::{next_hop, port_number};

pub(crate) fn state(status: &GroupStatus, now: Nanos) -> v1::MulticastState {
    v1::MulticastState {
        status: Some(live(status, now)),
        counters: Some(group_counters(&status.counters)),
    }
}

/// Counters alone; `rule` is the group's, where it is still that one.
pub(crate) fn counted(
    counters: &GroupCounters,
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
        counters: Some(group_counters(counters)),
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
    let counters = &snapshot.counters;
    v1::PathStatus {
        port: port_number(snapshot.port),
        next_hop: next_hop.into(),
        source: snapshot.source,
        ack_psn,
        stalled,
        counters: Some(v1::PathCounters {
            filtered: counters.filtered,
            acks_in: counters.acks_in,
            naks_in: counters.naks_in,
            rnr_naks_in: counters.rnr_naks_in,
            cnps_in: counters.cnps_in,
            data_out: snapshot.data_out,
            out_of_range: counters.out_of_range,
            lost: counters.lost,
        }),
    }
}

fn group_counters(counters: &GroupCounters) -> v1::MulticastCounters {
    let more = &counters.more;
    v1::MulticastCounters {
        data_in: counters.data_in,
        data_bytes_in: counters.data_bytes_in,
        copies_out: counters.data_out,
        copy_bytes_out: counters.data_bytes_out,
        retransmitted_in: more.retransmitted,
        filtered: more.filtered,
        acks_in: counters.acks_in,
        acks_out: counters.acks_out,
        naks_in: more.naks_in,
        naks_out: more.naks_out,
        rnr_naks_in: more.rnr_naks_in,
        rnr_naks_out: more.rnr_naks_out,
        cnps_in: more.cnps_in,
        cnps_out: more.cnps_out,
        dropped: more.dropped,
        out_of_range: more.out_of_range,
        lost: more.lost,
        stalls: more.stalls,
    }
}
