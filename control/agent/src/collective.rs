//! State and events of collective groups as messages.

use std::collections::BTreeSet;

use castnet_proto::convert::{disagreement_to_proto, port_to_proto};
use castnet_proto::v1;
use castnet_rules::{Endpoint, GroupRule};
use castnet_wire::{Call, Control, McstId, Nanos, Pmtu, PortId, Psn, Verdict};
use castnet_worker::engine::{
    CollectiveCounters, CollectiveGroupStatus, EndpointId, EndpointSet, EndpointSnapshot, Refusal, WORDS_MAX,
    copy_collective_counters, copy_endpoint_counters,
};

use crate::view::next_hop;

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

fn ranks(endpoint: &Endpoint) -> Vec<u32> {
    endpoint.next_hop.ranks().iter().map(|r| u32::from(*r)).collect()
}

pub(crate) fn stalled(
    rule: Option<&GroupRule>,
    (mcst_id, generation): (McstId, u64),
    waiting_for: EndpointSet<WORDS_MAX>,
    psn: Psn,
    patience: Nanos,
) -> v1::CollectiveStalled {
    let endpoints = rule.into_iter().flat_map(|rule| &rule.endpoints);
    let waited = (0..).map_while(EndpointId::new).zip(endpoints);
    let waited = waited.filter(|(id, _)| waiting_for.contains(*id));
    let waited: Vec<&Endpoint> = waited.map(|(_, endpoint)| endpoint).collect();
    let ports: BTreeSet<PortId> = waited.iter().map(|e| e.port).collect();
    v1::CollectiveStalled {
        mcst_id: mcst_id.to_string(),
        group: name(rule),
        ports: ports.into_iter().map(port_to_proto).collect(),
        next_hops: waited.iter().map(|e| e.next_hop.name().to_string()).collect(),
        ranks: waited.iter().flat_map(|e| ranks(e)).collect(),
        psn: psn.value(),
        for_ns: patience.0,
        generation,
        ..Default::default()
    }
}

pub(crate) fn conflict(
    rule: Option<&GroupRule>,
    (mcst_id, generation): (McstId, u64),
    control: &Control,
) -> v1::CollectiveConflict {
    v1::CollectiveConflict {
        mcst_id: mcst_id.to_string(),
        group: name(rule),
        generation,
        disagreement: disagreement_to_proto(control),
        miscounting_ranks: rule.map(|r| miscounting(control, r.pmtu)).unwrap_or_default(),
    }
}

/// The ranks of a conflict whose number of packets does not follow from the path MTU.
fn miscounting(control: &Control, pmtu: Pmtu) -> Vec<u32> {
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

pub(crate) fn refused(
    rule: Option<&GroupRule>,
    (mcst_id, generation): (McstId, u64),
    endpoint: u16,
    sequence: u32,
    why: Refusal,
) -> v1::RankRefused {
    let index = usize::from(endpoint);
    let endpoint = rule.and_then(|r| r.endpoints.get(index));
    v1::RankRefused {
        mcst_id: mcst_id.to_string(),
        group: name(rule),
        generation,
        port: endpoint.map(|e| port_to_proto(e.port)).unwrap_or_default(),
        next_hop: next_hop(rule, index).into(),
        rank: endpoint.and_then(|e| ranks(e).first().copied()),
        sequence,
        rule: Some(match why {
            Refusal::NotReproducible => v1::rank_refused::Rule::NotReproducible(true),
            Refusal::Cut {
                packet,
                found,
                expected,
            } => v1::rank_refused::Rule::Cut(v1::MiscutPacket {
                packet,
                opcode: found.opcode.to_string(),
                payload_bytes: found.payload.into(),
                expected_opcode: expected.opcode.to_string(),
                expected_payload_bytes: expected.payload.into(),
            }),
        }),
    }
}

fn name(rule: Option<&GroupRule>) -> String {
    rule.map(|r| r.name.clone()).unwrap_or_default()
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
