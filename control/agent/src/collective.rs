//! What the dataplane says of collective groups, as messages.

use std::collections::BTreeSet;

use castnet_proto::convert::disagreement_to_proto;
use castnet_proto::v1;
use castnet_rules::{Endpoint, GroupRule};
use castnet_wire::{Call, Control, McstId, Nanos, Pmtu, PortId, Psn, Verdict};
use castnet_worker::Dataplane;
use castnet_worker::engine::{
    CollectiveCounters, CollectiveGroupStatus, EndpointId, EndpointSet, EndpointSnapshot, Refusal, WORDS_MAX,
    copy_collective_counters, copy_endpoint_counters,
};

use crate::view::port_number;

pub(crate) fn state(status: &CollectiveGroupStatus) -> v1::TranslatedState {
    v1::TranslatedState {
        status: Some(live(status)),
        counters: Some(copy_collective_counters!(status.counters => v1::TranslatedCounters)),
    }
}

/// Counters alone; `rule` is the group's, where it is still that one.
pub(crate) fn counted(
    counters: &CollectiveCounters,
    endpoints: &[EndpointSnapshot],
    rule: Option<&GroupRule>,
) -> v1::TranslatedState {
    let endpoints = endpoints.iter().enumerate();
    let endpoints = endpoints.map(|(i, e)| endpoint_status(e, rule.and_then(|r| r.endpoints.get(i)), false));
    v1::TranslatedState {
        status: Some(v1::TranslatedStatus {
            endpoints: endpoints.collect(),
            ..Default::default()
        }),
        counters: Some(copy_collective_counters!(counters => v1::TranslatedCounters)),
    }
}

fn live(status: &CollectiveGroupStatus) -> v1::TranslatedStatus {
    let (machine, kind) = (&status.machine, status.rule.translated());
    let endpoints = status.endpoints.iter().enumerate().map(|(i, snapshot)| {
        let rule = status.rule.endpoints.get(i);
        let is_parent = kind.is_some_and(|kind| kind.parent == Some(i as u16));
        let mut message = endpoint_status(snapshot, rule, is_parent);
        if let Some(live) = machine.endpoints.iter().find(|e| e.endpoint.index() == i) {
            let number = |psn: Psn| Some(psn.value());
            message.expected_psn = number(live.expected);
            message.next_psn = number(live.next);
            message.unacknowledged_psn = number(live.unacknowledged);
            message.waited_for = machine.since.is_some() && machine.waiting_for.contains(&live.endpoint);
        }
        message
    });
    let oldest = machine.collectives.first();
    v1::TranslatedStatus {
        base_psn: machine.base.value(),
        sequence: oldest.map(|c| c.sequence),
        call: oldest.map(|c| c.call.to_string()).unwrap_or_default(),
        slots_used: status.slots_used as u32,
        slots: kind.map_or(0, |kind| kind.slots.into()),
        failed: machine.conflict.is_some(),
        memory_bytes: status.memory_bytes as u64,
        endpoints: endpoints.collect(),
        // Those in flight are numbered, and come last.
        finished: oldest.map_or(machine.next_sequence, |c| c.sequence).into(),
        conflict: machine.conflict.as_ref().and_then(disagreement_to_proto),
    }
}

fn endpoint_status(
    snapshot: &EndpointSnapshot,
    endpoint: Option<&Endpoint>,
    parent: bool,
) -> v1::EndpointStatus {
    v1::EndpointStatus {
        port: port_number(snapshot.port),
        next_hop: endpoint
            .map(|e| e.next_hop.name().to_string())
            .unwrap_or_default(),
        ranks: endpoint.map(ranks).unwrap_or_default(),
        parent,
        counters: Some(copy_endpoint_counters!(snapshot.counters => v1::EndpointCounters)),
        ..Default::default()
    }
}

fn ranks(endpoint: &Endpoint) -> Vec<u32> {
    endpoint.next_hop.ranks().iter().map(|r| u32::from(*r)).collect()
}

pub(crate) fn stalled(
    dataplane: &Dataplane,
    (mcst_id, generation): (McstId, u64),
    waiting_for: EndpointSet<WORDS_MAX>,
    psn: Psn,
    patience: Nanos,
) -> v1::CollectiveStalled {
    let rule = rule(dataplane, mcst_id, generation);
    let endpoints = rule.iter().flat_map(|rule| &rule.endpoints);
    let waited = (0..).map_while(EndpointId::new).zip(endpoints);
    let waited = waited.filter(|(id, _)| waiting_for.contains(*id));
    let waited: Vec<&Endpoint> = waited.map(|(_, endpoint)| endpoint).collect();
    let ports: BTreeSet<PortId> = waited.iter().map(|e| e.port).collect();
    v1::CollectiveStalled {
        mcst_id: mcst_id.to_string(),
        group: rule.as_ref().map(|r| r.name.clone()).unwrap_or_default(),
        ports: ports.into_iter().map(port_number).collect(),
        next_hops: waited.iter().map(|e| e.next_hop.name().to_string()).collect(),
        ranks: waited.iter().flat_map(|e| ranks(e)).collect(),
        psn: psn.value(),
        for_ns: patience.0,
        generation,
    }
}

pub(crate) fn conflict(
    dataplane: &Dataplane,
    (mcst_id, generation): (McstId, u64),
    control: &Control,
) -> v1::CollectiveConflict {
    let rule = rule(dataplane, mcst_id, generation);
    v1::CollectiveConflict {
        mcst_id: mcst_id.to_string(),
        generation,
        disagreement: disagreement_to_proto(control),
        miscounting_ranks: rule
            .as_ref()
            .map(|r| miscounting(control, r.pmtu))
            .unwrap_or_default(),
        group: rule.map(|r| r.name).unwrap_or_default(),
    }
}

/// Of the ranks that a conflict names, those whose count of packets does not follow from the path MTU.
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
    dataplane: &Dataplane,
    (mcst_id, generation): (McstId, u64),
    endpoint: u16,
    sequence: u32,
    why: Refusal,
) -> v1::RankRefused {
    let rule = rule(dataplane, mcst_id, generation);
    let endpoint = rule.as_ref().and_then(|r| r.endpoints.get(usize::from(endpoint)));
    v1::RankRefused {
        mcst_id: mcst_id.to_string(),
        generation,
        port: endpoint.map(|e| port_number(e.port)).unwrap_or_default(),
        next_hop: endpoint
            .map(|e| e.next_hop.name().to_string())
            .unwrap_or_default(),
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
        group: rule.as_ref().map(|r| r.name.clone()).unwrap_or_default(),
    }
}

/// The rule that the switch has, if it is still the one that is spoken of.
fn rule(dataplane: &Dataplane, mcst_id: McstId, generation: u64) -> Option<GroupRule> {
    dataplane.rule(mcst_id).filter(|r| r.generation == generation)
}

#[cfg(test)]
mod tests {
    use super::*;
    use castnet_wire::{CallFlags, DataType, Operation, Primitive};

    /// Whichever of the two names comes first in the message.
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
