//! The rules of groups.

use std::fmt::Display;

use castnet_rules::{
    Endpoint, EndpointDraft, EndpointRef, Fault, FaultKind, ForwardingDraft, ForwardingRule, GroupDraft,
    GroupKind, GroupRule, HopDraft, HostDraft, HostEndpoint, HostPart, KindDraft, Limit, LossPolicy,
    MulticastDraft, MulticastRule, NextHop, PartDraft, RankDraft, RankPart, RemoteMemory, StragglerPolicy,
    SwitchDraft, TranslatedDraft, TranslatedRule,
};
use castnet_wire::{MacAddr, PortId, Qpn};

use super::{Invalid, MAC_TEXT, finish, ip, mac, mcst_id, pmtu, port, port_to_proto, psn, qpn, take};
use crate::v1;
use crate::v1::endpoint::NextHop as Hop;
use crate::v1::group_rule::Kind;
use crate::v1::host_endpoint::Part;

/// Fields of a rule that all groups have. In messages the others stand below the name of the kind.
const COMMON: [&str; 7] = [
    "name",
    "generation",
    "mcst_id",
    "pmtu",
    "stall_timeout_ms",
    "endpoints",
    "kind",
];

/// A group's rule, checked as it would be for a switch with all ports; the agent checks again for its own.
/// A policy that is not given is the default one.
///
/// # Errors
/// Every fault, with fields below `field`.
pub fn rule_from_proto(field: &str, message: Option<&v1::GroupRule>) -> Result<GroupRule, Invalid> {
    let Some(message) = message else {
        let expected = "the rule of a group";
        return Err(Invalid::one(field, FaultKind::Missing { expected }));
    };
    let mut faults = Vec::new();
    let kind = message.kind.as_ref().map(|kind| match kind {
        Kind::Multicast(rule) => multicast(rule, &mut faults),
        Kind::Translated(rule) => translated(rule, &mut faults),
        Kind::Forwarding(v1::ForwardingRule {}) => KindDraft::Forwarding(ForwardingDraft {}),
    });
    let name = kind.as_ref().map_or("", KindDraft::name);
    if kind.is_none() {
        let expected = "what its kind adds: multicast, translated or forwarding";
        faults.push(Fault::new("kind", FaultKind::Missing { expected }));
    }
    let endpoints = message.endpoints.iter().enumerate();
    let draft = GroupDraft {
        name: Some(message.name.clone()),
        generation: Some(message.generation),
        mcst_id: take(&mut faults, "mcst_id", mcst_id(&message.mcst_id)),
        pmtu: take(&mut faults, "pmtu", pmtu(message.pmtu)),
        stall_timeout_ms: Some(message.stall_timeout_ms),
        endpoints: Some(endpoints.map(|(i, e)| endpoint(i, e, &mut faults)).collect()),
        kind,
    };
    faults.extend(draft.check(PortId::COUNT));
    finish(draft.finish(), rule_faults(field, name, &faults))
}

/// The faults of a group's rule, below `field` and as messages have their fields; `kind` is [`GroupKind::name`].
pub fn rule_faults(field: &str, kind: &str, faults: &[Fault]) -> Vec<Fault> {
    let below = faults.iter().cloned().map(|fault| {
        let first = fault.field.split(['.', '[']).next().unwrap_or_default();
        match COMMON.contains(&first) {
            true => fault.within(field),
            false => fault.within(kind).within(field),
        }
    });
    below.collect()
}

fn multicast(message: &v1::MulticastRule, faults: &mut Vec<Fault>) -> KindDraft {
    KindDraft::Multicast(MulticastDraft {
        start_psn: match message.start_psn {
            None => Some(None),
            Some(value) => take(faults, "start_psn", psn(value)).map(Some),
        },
        va_base: Some(message.va_base),
        source: take(faults, "source", end(message.source)),
    })
}

fn translated(message: &v1::TranslatedRule, faults: &mut Vec<Fault>) -> KindDraft {
    let packets = short(message.message_packets, &Limit::U16);
    KindDraft::Translated(TranslatedDraft {
        start_psn: take(faults, "start_psn", psn(message.start_psn)),
        slots: take(faults, "slots", short(message.slots, &Limit::SLOTS)),
        message_packets: take(faults, "message_packets", packets),
        reproducible: Some(message.reproducible),
        loss_policy: take(faults, "loss_policy", loss(message.loss_policy)).map(Option::unwrap_or_default),
        straggler_policy: take(faults, "straggler_policy", straggler(message.straggler_policy))
            .map(Option::unwrap_or_default),
        ack_timeout_us: Some(message.ack_timeout_us),
        parent: match message.parent {
            None => Some(None),
            Some(value) => take(faults, "parent", end(value)).map(Some),
        },
    })
}

fn end(index: u32) -> Result<EndpointRef, FaultKind> {
    short(index, &Limit::ENDPOINT).map(EndpointRef::Index)
}

fn virtual_qpn(value: Option<u32>) -> Result<Qpn, FaultKind> {
    value.map_or(Ok(Qpn::VIRTUAL), qpn)
}

fn endpoint(index: usize, message: &v1::Endpoint, faults: &mut Vec<Fault>) -> EndpointDraft {
    let field = format_args!("endpoints[{index}]");
    let next_hop = match &message.next_hop {
        Some(Hop::Host(message)) => Some(HopDraft::Host(host_draft(
            format_args!("{field}.host"),
            message,
            faults,
        ))),
        Some(Hop::Switch(switch)) => {
            let field = format_args!("{field}.switch");
            // Each is read, so that each fault is told.
            let ranks: Vec<Option<u16>> = switch
                .ranks
                .iter()
                .enumerate()
                .map(|(i, r)| take(faults, format_args!("{field}.ranks[{i}]"), rank(*r)))
                .collect();
            Some(HopDraft::Switch(SwitchDraft {
                name: Some(switch.name.clone()),
                ip: match &switch.ip {
                    None => Some(None),
                    Some(value) => take(faults, format_args!("{field}.ip"), ip(value)).map(Some),
                },
                qpn: take(faults, format_args!("{field}.qpn"), virtual_qpn(switch.qpn)),
                mac: take(
                    faults,
                    format_args!("{field}.mac"),
                    mac_or_none(&switch.mac, switch.ip.is_some()),
                ),
                ranks: ranks.into_iter().collect(),
            }))
        }
        None => {
            faults.push(Fault::new(field.to_string(), FaultKind::NoNextHop));
            None
        }
    };
    EndpointDraft {
        port: take(faults, format_args!("{field}.port"), port(message.port)),
        virtual_qpn: take(
            faults,
            format_args!("{field}.virtual_qpn"),
            virtual_qpn(message.virtual_qpn),
        ),
        verify_mac: Some(message.verify_mac),
        next_hop,
    }
}

fn host_draft(field: impl Display, message: &v1::HostEndpoint, faults: &mut Vec<Fault>) -> HostDraft {
    let part = match &message.part {
        None => PartDraft::Plain,
        Some(Part::Memory(memory)) => PartDraft::Memory(RemoteMemory {
            va: memory.va,
            rkey: memory.rkey,
            length: memory.length,
        }),
        Some(Part::Rank(part)) => {
            let field = format_args!("{field}.rank");
            PartDraft::Rank(RankDraft {
                rank: take(faults, field, rank(part.rank)),
                sq_psn: take(faults, format_args!("{field}.sq_psn"), psn(part.sq_psn)),
                rq_psn: take(faults, format_args!("{field}.rq_psn"), psn(part.rq_psn)),
            })
        }
    };
    HostDraft {
        name: Some(message.name.clone()),
        ip: take(faults, format_args!("{field}.ip"), ip(&message.ip)),
        qpn: take(faults, format_args!("{field}.qpn"), qpn(message.qpn)),
        mac: take(
            faults,
            format_args!("{field}.mac"),
            mac_or_none(&message.mac, true),
        ),
        part: Some(part),
    }
}

/// The Ethernet address of a next hop; the switch finds one that is not given, where the next hop has an IP address.
fn mac_or_none(text: &str, has_ip: bool) -> Result<MacAddr, FaultKind> {
    match text {
        "" if has_ip => Ok(MacAddr::UNSPECIFIED),
        text => mac(text),
    }
}

/// One member alone, by the rules that hold for it within any group; its Ethernet address is known.
pub(super) fn host(field: impl Display, message: &v1::HostEndpoint) -> Result<HostEndpoint, Invalid> {
    let mut faults = Vec::new();
    let host = host_draft("", message, &mut faults);
    if host.mac == Some(MacAddr::UNSPECIFIED) {
        let expected = MAC_TEXT;
        faults.push(Fault::new("mac", FaultKind::Missing { expected }));
    }
    for fault in &mut faults {
        fault.field = fault.field.trim_start_matches('.').into();
    }
    // The checker knows groups only: a group of which nothing is known but this member shows the member's faults.
    let draft = GroupDraft {
        endpoints: Some(vec![EndpointDraft {
            next_hop: Some(HopDraft::Host(host.clone())),
            ..EndpointDraft::default()
        }]),
        ..GroupDraft::default()
    };
    for mut fault in draft.check(PortId::COUNT) {
        if let Some(inner) = fault.field.strip_prefix("endpoints[0].host.") {
            fault.field = inner.into();
            faults.push(fault);
        }
    }
    let faults = faults.into_iter().map(|f| f.within(&field.to_string())).collect();
    finish(host.finish(), faults)
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

/// A group's rule as a message.
pub fn rule_to_proto(group: &GroupRule) -> v1::GroupRule {
    v1::GroupRule {
        name: group.name.clone(),
        generation: group.generation,
        mcst_id: group.mcst_id.to_string(),
        pmtu: group.pmtu.bytes() as u32,
        stall_timeout_ms: group.stall_timeout_ms,
        endpoints: group.endpoints.iter().map(endpoint_to_proto).collect(),
        kind: Some(match &group.kind {
            GroupKind::Multicast(rule) => Kind::Multicast(multicast_to_proto(rule)),
            GroupKind::Translated(rule) => Kind::Translated(translated_to_proto(rule)),
            GroupKind::Forwarding(ForwardingRule {}) => Kind::Forwarding(v1::ForwardingRule {}),
        }),
    }
}

fn multicast_to_proto(rule: &MulticastRule) -> v1::MulticastRule {
    v1::MulticastRule {
        start_psn: rule.start_psn.map(|p| p.value()),
        va_base: rule.va_base,
        source: rule.source.into(),
    }
}

fn translated_to_proto(rule: &TranslatedRule) -> v1::TranslatedRule {
    v1::TranslatedRule {
        start_psn: rule.start_psn.value(),
        slots: rule.slots.into(),
        message_packets: rule.message_packets.into(),
        reproducible: rule.reproducible,
        loss_policy: loss_to_proto(rule.loss_policy).into(),
        straggler_policy: straggler_to_proto(rule.straggler_policy).into(),
        ack_timeout_us: rule.ack_timeout_us,
        parent: rule.parent.map(u32::from),
    }
}

fn endpoint_to_proto(endpoint: &Endpoint) -> v1::Endpoint {
    let next_hop = match &endpoint.next_hop {
        NextHop::Host(host) => Hop::Host(host_to_proto(host)),
        NextHop::Switch {
            name,
            ip,
            qpn,
            mac,
            ranks,
        } => Hop::Switch(v1::SwitchEndpoint {
            name: name.clone(),
            ip: ip.map(|ip| ip.to_string()),
            qpn: Some(qpn.value()),
            mac: mac_to_proto(*mac),
            ranks: ranks.iter().map(|r| u32::from(*r)).collect(),
        }),
    };
    v1::Endpoint {
        port: port_to_proto(endpoint.port),
        virtual_qpn: Some(endpoint.virtual_qpn.value()),
        verify_mac: endpoint.verify_mac,
        next_hop: Some(next_hop),
    }
}

fn mac_to_proto(mac: MacAddr) -> String {
    match mac {
        MacAddr::UNSPECIFIED => String::new(),
        mac => mac.to_string(),
    }
}

/// A member as a message.
pub fn host_to_proto(host: &HostEndpoint) -> v1::HostEndpoint {
    v1::HostEndpoint {
        name: host.name.clone(),
        ip: host.ip.to_string(),
        qpn: host.qpn.value(),
        mac: mac_to_proto(host.mac),
        part: match &host.part {
            HostPart::Plain => None,
            HostPart::Memory(memory) => Some(Part::Memory(memory_to_proto(memory))),
            HostPart::Rank(RankPart { rank, sq_psn, rq_psn }) => Some(Part::Rank(v1::RankPart {
                rank: u32::from(*rank),
                sq_psn: sq_psn.value(),
                rq_psn: rq_psn.value(),
            })),
        },
    }
}

/// A member's memory as a message.
pub fn memory_to_proto(memory: &RemoteMemory) -> v1::RemoteMemory {
    v1::RemoteMemory {
        va: memory.va,
        rkey: memory.rkey,
        length: memory.length,
    }
}
