//! State of collective groups as messages, and facts of their events.

use castnet_proto::convert::{disagreement_to_proto, port_to_proto};
use castnet_proto::v1;
use castnet_rules::{Endpoint, GroupRule};
use castnet_wire::{Call, Control, Pmtu, Verdict};
use castnet_worker::engine::{
    CollectiveCounters, CollectiveGroupStatus, EndpointSnapshot, copy_collective_counters,
    copy_endpoint_counters,
};

use crate::state::view::next_hop;

pub(crate) fn state(status: &CollectiveGroupStatus) -> v1::TranslatedState {
    let (machine, kind) = (&status.machine, status.rule.translated());
    let oldest = machine.collectives.first();
    let mut state = counted(&status.counters, &status.endpoints, Some(&status.rule));
    for (i, endpoint) in state.endpoints.iter_mut().enumerate() {
        endpoint.parent = kind.is_some_and(|kind| kind.parent == Some(i as u16));
        let Some(live) = machine.endpoints.iter().find(|e| e.endpoint.index() == i) else {
            continue;
        };
        endpoint.expected_psn = Some(live.expected.value());
        endpoint.next_psn = Some(live.next.value());
        endpoint.unacknowledged_psn = Some(live.unacknowledged.value());
        endpoint.waited_for = machine.since.is_some() && machine.waiting_for.contains(&live.endpoint);
    }
    v1::TranslatedState {
        base_psn: machine.base.value(),
        sequence: oldest.map(|c| c.sequence),
        call: oldest.map(|c| c.call.to_string()).unwrap_or_default(),
        slots_used: status.slots_used as u32,
        slots: kind.map_or(0, |kind| kind.slots.into()),
        failed: machine.conflict.is_some(),
        memory_bytes: status.memory_bytes as u64,
        // Running collectives have the highest numbers.
        finished: oldest.map_or(machine.next_sequence, |c| c.sequence).into(),
        conflict: machine.conflict.as_ref().and_then(disagreement_to_proto),
        ..state
    }
}

/// `rule`: absent if its generation is not installed any more.
pub(crate) fn counted(
    counters: &CollectiveCounters,
    endpoints: &[EndpointSnapshot],
    rule: Option<&GroupRule>,
) -> v1::TranslatedState {
    let endpoint = |(i, endpoint): (usize, &EndpointSnapshot)| v1::EndpointStatus {
        port: port_to_proto(endpoint.port),
        next_hop: next_hop(rule, i).into(),
        ranks: rule
            .and_then(|r| r.endpoints.get(i))
            .map(ranks)
            .unwrap_or_default(),
        counters: Some(copy_endpoint_counters!(endpoint.counters => v1::EndpointCounters)),
        ..Default::default()
    };
    v1::TranslatedState {
        endpoints: endpoints.iter().enumerate().map(endpoint).collect(),
        counters: Some(copy_collective_counters!(counters => v1::TranslatedCounters)),
        ..Default::default()
    }
}

pub(crate) fn ranks(endpoint: &Endpoint) -> Vec<u32> {
    endpoint.next_hop.ranks().iter().map(|r| u32::from(*r)).collect()
}

/// The ranks of a conflict whose number of packets does not follow from the path MTU.
pub(crate) fn miscounting(control: &Control, pmtu: Pmtu) -> Vec<u32> {
    let other = match control.verdict {
        Verdict::Conflict { rank, call } => Some((rank, call)),
        Verdict::Agreed => None,
    };
    let counts = |call: &Call| u64::from(call.packets) == call.bytes().div_ceil(pmtu.bytes() as u64);
    std::iter::once((control.rank, control.call))
        .chain(other)
        .filter(|(_, call)| !counts(call))
        .map(|(rank, _)| rank.into())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use castnet_wire::{CallFlags, DataType, Operation, Primitive};

    #[test]
    fn who_counts_packets_otherwise_than_the_path_mtu_is_named() {
        let call = |elements, packets| Call {
            primitive: Primitive::AllReduce,
            root: 0,
            roots: 1,
            operation: Operation::Sum,
            data_type: DataType::F32,
            flags: CallFlags::NONE,
            elements,
            packets,
        };
        let (right, wrong) = (call(1000, 4), call(1000, 8));
        for (first, second, named) in [
            (right, wrong, vec![5]),
            (wrong, right, vec![2]),
            (right, call(900, 4), vec![]),
        ] {
            let control = Control {
                sequence: 0,
                rank: 2,
                call: first,
                verdict: Verdict::Conflict {
                    rank: 5,
                    call: second,
                },
            };
            assert_eq!(miscounting(&control, Pmtu::B1024), named);
        }
    }
}
