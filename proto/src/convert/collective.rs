//! The rules of collective groups.

use castnet_rules::{
    CollectiveDraft, CollectiveEndpoint, CollectiveGroup, CollectiveHop, CollectiveHopDraft, EndpointDraft,
    Fault, FaultKind, Limit, LossPolicy, RankDraft, RankEndpoint, StragglerPolicy,
};
use castnet_wire::PortId;

use super::group::port_to_proto;
use super::{Invalid, finish, ip, mac, mcst_id, pmtu, port, psn, qpn, rule_faults, take};
use crate::v1;

/// A collective group's rule, checked as it would be for a switch with all ports; the agent checks again for its own.
/// A policy that is not given is the default one.
///
/// # Errors
/// Every fault, with fields below `field`.
pub fn collective_from_proto(field: &str, message: &v1::CollectiveGroup) -> Result<CollectiveGroup, Invalid> {
    let mut faults = Vec::new();
    let parent = match message.parent {
        None => Some(None),
        Some(value) => take(&mut faults, "parent", port(value)).map(Some),
    };
    let endpoints = message.endpoints.iter().enumerate();
    let draft = CollectiveDraft {
        name: Some(message.name.clone()),
        generation: Some(message.generation),
        mcst_id: take(&mut faults, "mcst_id", mcst_id(&message.mcst_id)),
        pmtu: take(&mut faults, "pmtu", pmtu(message.pmtu)),
        psn_start: take(&mut faults, "psn_start", psn(message.psn_start)),
        slots: take(&mut faults, "slots", short(message.slots, &Limit::SLOTS)),
        message_packets: take(
            &mut faults,
            "message_packets",
            short(message.message_packets, &Limit::U16),
        ),
        reproducible: Some(message.reproducible),
        loss_policy: take(&mut faults, "loss_policy", loss(message.loss_policy))
            .map(Option::unwrap_or_default),
        straggler_policy: take(
            &mut faults,
            "straggler_policy",
            straggler(message.straggler_policy),
        )
        .map(Option::unwrap_or_default),
        ack_timeout_us: Some(message.ack_timeout_us),
        stall_timeout_ms: Some(message.stall_timeout_ms),
        parent,
        endpoints: Some(endpoints.map(|(i, e)| endpoint(i, e, &mut faults)).collect()),
    };
    faults.extend(draft.check(PortId::COUNT));
    finish(draft.finish(), rule_faults(field, &faults))
}

fn endpoint(index: usize, message: &v1::CollectiveEndpoint, faults: &mut Vec<Fault>) -> EndpointDraft {
    use v1::collective_endpoint::NextHop;
    let field = format!("endpoints[{index}]");
    let next_hop = match &message.next_hop {
        Some(NextHop::Rank(host)) => {
            let field = format!("{field}.rank");
            Some(CollectiveHopDraft::Rank(RankDraft {
                rank: take(faults, &format!("{field}.rank"), rank(host.rank)),
                name: Some(host.name.clone()),
                ip: take(faults, &format!("{field}.ip"), ip(&host.ip)),
                qpn: take(faults, &format!("{field}.qpn"), qpn(host.qpn)),
                mac: take(faults, &format!("{field}.mac"), mac(&host.mac)),
                sq_psn: take(faults, &format!("{field}.sq_psn"), psn(host.sq_psn)),
                rq_psn: take(faults, &format!("{field}.rq_psn"), psn(host.rq_psn)),
            }))
        }
        Some(NextHop::Switch(switch)) => {
            let field = format!("{field}.switch");
            // Each is read, so that each fault is told.
            let ranks: Vec<Option<u16>> = switch
                .ranks
                .iter()
                .enumerate()
                .map(|(i, r)| take(faults, &format!("{field}.ranks[{i}]"), rank(*r)))
                .collect();
            Some(CollectiveHopDraft::Switch {
                name: Some(switch.name.clone()),
                mac: take(faults, &format!("{field}.mac"), mac(&switch.mac)),
                ranks: ranks.into_iter().collect(),
            })
        }
        None => {
            faults.push(Fault::new(field.clone(), FaultKind::NoCollectiveHop));
            None
        }
    };
    EndpointDraft {
        port: take(faults, &format!("{field}.port"), port(message.port)),
        next_hop,
    }
}

fn short(value: u32, limit: &Limit) -> Result<u16, FaultKind> {
    limit.admit(value.into(), value).map(|number| number as u16)
}

fn rank(value: u32) -> Result<u16, FaultKind> {
    short(value, &Limit::RANK)
}

fn policy<T>(value: i32, known: Option<T>) -> Result<T, FaultKind> {
    known.ok_or_else(|| FaultKind::OutOfRange {
        value: value.to_string(),
        why: "is no policy that is known here",
    })
}

/// A loss policy; `None` where none is given.
pub(super) fn loss(value: i32) -> Result<Option<LossPolicy>, FaultKind> {
    use v1::CollectiveLossPolicy as P;
    let known = P::try_from(value).ok().map(|policy| match policy {
        P::Unspecified => None,
        P::Repair => Some(LossPolicy::Repair),
        P::Reflect => Some(LossPolicy::Reflect),
    });
    policy(value, known)
}

/// A straggler policy; `None` where none is given.
pub(super) fn straggler(value: i32) -> Result<Option<StragglerPolicy>, FaultKind> {
    use v1::CollectiveStragglerPolicy as P;
    let known = P::try_from(value).ok().map(|policy| match policy {
        P::Unspecified => None,
        P::KeepAlive => Some(StragglerPolicy::KeepAlive),
        P::Rnr => Some(StragglerPolicy::Rnr),
        P::None => Some(StragglerPolicy::None),
    });
    policy(value, known)
}

/// A loss policy as a message has it.
pub fn loss_to_proto(policy: LossPolicy) -> v1::CollectiveLossPolicy {
    match policy {
        LossPolicy::Repair => v1::CollectiveLossPolicy::Repair,
        LossPolicy::Reflect => v1::CollectiveLossPolicy::Reflect,
    }
}

/// A straggler policy as a message has it.
pub fn straggler_to_proto(policy: StragglerPolicy) -> v1::CollectiveStragglerPolicy {
    match policy {
        StragglerPolicy::KeepAlive => v1::CollectiveStragglerPolicy::KeepAlive,
        StragglerPolicy::Rnr => v1::CollectiveStragglerPolicy::Rnr,
        StragglerPolicy::None => v1::CollectiveStragglerPolicy::None,
    }
}

/// A collective group's rule as a message.
pub fn collective_to_proto(group: &CollectiveGroup) -> v1::CollectiveGroup {
    v1::CollectiveGroup {
        name: group.name.clone(),
        generation: group.generation,
        mcst_id: group.mcst_id.to_string(),
        pmtu: group.pmtu.bytes() as u32,
        psn_start: group.psn_start.value(),
        slots: group.slots.into(),
        message_packets: group.message_packets.into(),
        reproducible: group.reproducible,
        loss_policy: loss_to_proto(group.loss_policy).into(),
        straggler_policy: straggler_to_proto(group.straggler_policy).into(),
        ack_timeout_us: group.ack_timeout_us,
        stall_timeout_ms: group.stall_timeout_ms,
        parent: group.parent.map(port_to_proto),
        endpoints: group.endpoints.iter().map(endpoint_to_proto).collect(),
    }
}

fn endpoint_to_proto(endpoint: &CollectiveEndpoint) -> v1::CollectiveEndpoint {
    let next_hop = match &endpoint.next_hop {
        CollectiveHop::Rank(rank) => v1::collective_endpoint::NextHop::Rank(rank_to_proto(rank)),
        CollectiveHop::Switch { name, mac, ranks } => {
            v1::collective_endpoint::NextHop::Switch(v1::CollectiveSwitch {
                name: name.clone(),
                mac: mac.to_string(),
                ranks: ranks.iter().map(|r| u32::from(*r)).collect(),
            })
        }
    };
    v1::CollectiveEndpoint {
        port: port_to_proto(endpoint.port),
        next_hop: Some(next_hop),
    }
}

/// A rank as a message.
pub fn rank_to_proto(rank: &RankEndpoint) -> v1::RankEndpoint {
    v1::RankEndpoint {
        rank: rank.rank.into(),
        name: rank.name.clone(),
        ip: rank.ip.to_string(),
        qpn: rank.qpn.value(),
        mac: rank.mac.to_string(),
        sq_psn: rank.sq_psn.value(),
        rq_psn: rank.rq_psn.value(),
    }
}
