use std::net::Ipv4Addr;

use castnet_rules::{
    CollectiveMode, Endpoint, Fault, FaultKind, ForwardingRule, GroupKind, GroupRule, HostEndpoint, HostPart,
    Limit, LossPolicy, MulticastRule, NextHop, RankPart, RemoteMemory, RepairRule, StragglerPolicy,
    TranslatedRule, bad_burst,
};
use castnet_wire::{AnySource, BitRate, MacAddr, McstId, Pmtu, PortId, Psn, Qpn, RateLimit};

use super::{
    Invalid, MAC_TEXT, Reader, ip, mac, mcst_id, missing, out_of_range, pmtu, port, port_to_proto, psn, qpn,
};
use crate::v1;
use crate::v1::endpoint::NextHop as Hop;
use crate::v1::group_rule::Kind;
use crate::v1::host_endpoint::Part;

/// Fields of all groups. In messages the other fields are below the name of the kind.
const COMMON: [&str; 8] = [
    "name",
    "generation",
    "mcst_id",
    "pmtu",
    "stall_timeout_ms",
    "rate_limit",
    "endpoints",
    "kind",
];

/// Reads a rule and checks it as for a switch with all ports; the agent checks it again for the ports of its switch.
/// Policies that are not given have their defaults. Reports every fault, with fields below `field`.
pub fn rule_from_proto(field: &str, message: Option<&v1::GroupRule>) -> Result<GroupRule, Invalid> {
    let message = message.ok_or_else(|| Invalid::missing(field, "the rule of a group"))?;
    let mut r = Reader::default();
    let kind = message.kind.as_ref().map(|kind| match kind {
        Kind::Multicast(rule) => multicast(rule, &mut r).into(),
        Kind::Translated(rule) => translated(rule, &mut r).into(),
        Kind::Forwarding(v1::ForwardingRule {}) => ForwardingRule {}.into(),
    });
    let name = kind.as_ref().map_or("", GroupKind::name);
    if kind.is_none() {
        let expected = "what its kind adds: multicast, translated or forwarding";
        r.fault("kind", missing(expected));
    }
    let endpoints = message.endpoints.iter().enumerate();
    let group = GroupRule {
        name: message.name.clone(),
        generation: message.generation,
        mcst_id: r.read(
            "mcst_id",
            mcst_id(&message.mcst_id),
            McstId(Ipv4Addr::UNSPECIFIED),
        ),
        pmtu: r.read("pmtu", pmtu(message.pmtu), Pmtu::B1024),
        stall_timeout_ms: message.stall_timeout_ms,
        rate_limit: rate_limit(message.rate_limit, &mut r),
        endpoints: endpoints.map(|(i, e)| endpoint(i, e, &mut r)).collect(),
        kind: kind.unwrap_or(ForwardingRule {}.into()),
    };
    r.0.extend(group.check_read(PortId::COUNT, &r.unread()));
    Reader(rule_faults(field, name, &r.0)).finish(Some(group))
}

/// Faults with field paths as in a message at `field`. `kind` is [`GroupKind::name`].
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

/// `None` if it is absent or after a fault.
pub(super) fn rate_limit(message: Option<v1::RateLimit>, r: &mut Reader) -> Option<RateLimit> {
    let v1::RateLimit {
        bits_per_second,
        burst_bytes,
    } = message?;
    let why = "is no rate in bits per second: 1000 to 10^12";
    let rate = BitRate::new(bits_per_second).ok_or_else(|| out_of_range(bits_per_second, why));
    let limit = RateLimit::of(r.take("rate_limit.bits_per_second", rate)?);
    Some(match burst_bytes {
        0 => limit,
        burst_bytes => RateLimit { burst_bytes, ..limit },
    })
}

/// The limit of a new group, all lanes together, must leave each lane a burst.
pub(super) fn check_burst(limit: Option<RateLimit>, pmtu: Option<Pmtu>, lanes: Option<u8>, r: &mut Reader) {
    let (pmtu, lanes) = (pmtu.unwrap_or(Pmtu::B1024), lanes.unwrap_or(1));
    if let Some(kind) = limit.and_then(|limit| bad_burst(limit, pmtu, lanes)) {
        r.fault("rate_limit.burst_bytes", kind);
    }
}

/// Reads the limit of a group in its state, as the controller reports it.
pub fn rate_limit_from_proto(
    field: &str,
    message: Option<v1::RateLimit>,
) -> Result<Option<RateLimit>, Invalid> {
    let mut r = Reader::default();
    let limit = rate_limit(message, &mut r);
    r.within(field).finish(Some(limit))
}

/// A limit as a message.
pub fn rate_limit_to_proto(limit: RateLimit) -> v1::RateLimit {
    v1::RateLimit {
        bits_per_second: limit.rate.bits_per_second(),
        burst_bytes: limit.burst_bytes,
    }
}

fn multicast(message: &v1::MulticastRule, r: &mut Reader) -> MulticastRule {
    MulticastRule {
        start_psn: r.optional("start_psn", message.start_psn, psn),
        va_base: message.va_base,
        carries_on: message.carries_on,
        any_source: r.read("any_source", any_source(message.any_source), None),
        repair: message.repair.map(|message| repair(message, r)),
        hold_fatal_naks: message.hold_fatal_naks,
        source: r.read("source", short(message.source, &Limit::ENDPOINT), 0),
    }
}

/// The message of repair from the switches.
pub fn repair_to_proto(repair: RepairRule) -> v1::MulticastRepair {
    v1::MulticastRepair {
        slots: repair.slots.into(),
        ack_timeout_us: repair.ack_timeout_us,
    }
}

pub(super) fn repair(message: v1::MulticastRepair, r: &mut Reader) -> RepairRule {
    RepairRule {
        slots: r.read("repair.slots", short(message.slots, &Limit::SLOTS), 0),
        ack_timeout_us: message.ack_timeout_us,
    }
}

fn translated(message: &v1::TranslatedRule, r: &mut Reader) -> TranslatedRule {
    let parent = |index| short(index, &Limit::ENDPOINT);
    TranslatedRule {
        start_psn: r.read("start_psn", psn(message.start_psn), Psn::new(0)),
        slots: r.read("slots", short(message.slots, &Limit::SLOTS), 0),
        message_packets: r.read("message_packets", short(message.message_packets, &Limit::U16), 0),
        reproducible: message.reproducible,
        mode: r.read("mode", mode(message.mode), None).unwrap_or_default(),
        loss_policy: r
            .read("loss_policy", loss(message.loss_policy), None)
            .unwrap_or_default(),
        straggler_policy: r
            .read("straggler_policy", straggler(message.straggler_policy), None)
            .unwrap_or_default(),
        ack_timeout_us: message.ack_timeout_us,
        parent: r.optional("parent", message.parent, parent),
    }
}

fn virtual_qpn(value: Option<u32>) -> Result<Qpn, FaultKind> {
    value.map_or(Ok(Qpn::VIRTUAL), qpn)
}

fn endpoint(index: usize, message: &v1::Endpoint, r: &mut Reader) -> Endpoint {
    let field = format!("endpoints[{index}]");
    let next_hop = match &message.next_hop {
        Some(Hop::Host(host)) => NextHop::Host(read_host(&format!("{field}.host."), host, r)),
        Some(Hop::Switch(switch)) => read_switch(&format!("{field}.switch."), switch, r),
        None => {
            r.fault(&field, FaultKind::NoNextHop);
            NextHop::switch(String::new(), MacAddr::UNSPECIFIED)
        }
    };
    let virtual_qpn = virtual_qpn(message.virtual_qpn);
    Endpoint {
        port: r.read(
            format_args!("{field}.port"),
            port(message.port),
            PortId::default(),
        ),
        virtual_qpn: r.read(format_args!("{field}.virtual_qpn"), virtual_qpn, Qpn::new(0)),
        verify_mac: message.verify_mac,
        joining: message.joining,
        next_hop,
    }
}

/// `prefix` is put before field names.
fn read_switch(prefix: &str, message: &v1::SwitchEndpoint, r: &mut Reader) -> NextHop {
    let mut ranks = Vec::with_capacity(message.ranks.len());
    for (i, value) in message.ranks.iter().enumerate() {
        ranks.push(r.read(format_args!("{prefix}ranks[{i}]"), rank(*value), u16::MAX));
    }
    let mac = mac_or_none(&message.mac, message.ip.is_some());
    let core = message.core.as_deref().map(ip).transpose();
    let ip = message.ip.as_deref().map(ip).transpose();
    NextHop::Switch {
        name: message.name.clone(),
        ip: r.read(format_args!("{prefix}ip"), ip, Some(Ipv4Addr::UNSPECIFIED)),
        qpn: r.read(format_args!("{prefix}qpn"), virtual_qpn(message.qpn), Qpn::new(0)),
        mac: r.read(format_args!("{prefix}mac"), mac, MacAddr::UNSPECIFIED),
        ranks,
        mode: r.read(format_args!("{prefix}mode"), mode(message.mode), None),
        core: r.read(format_args!("{prefix}core"), core, Some(Ipv4Addr::UNSPECIFIED)),
    }
}

/// `prefix` is put before field names.
fn read_host(prefix: &str, message: &v1::HostEndpoint, r: &mut Reader) -> HostEndpoint {
    let part = match &message.part {
        None => HostPart::Plain,
        Some(Part::Memory(v1::RemoteMemory { va, rkey, length })) => HostPart::Memory(RemoteMemory {
            va: *va,
            rkey: *rkey,
            length: *length,
        }),
        Some(Part::Rank(part)) => HostPart::Rank(RankPart {
            rank: r.read(format_args!("{prefix}rank"), rank(part.rank), u16::MAX),
            sq_psn: r.read(format_args!("{prefix}rank.sq_psn"), psn(part.sq_psn), Psn::new(0)),
            rq_psn: r.read(format_args!("{prefix}rank.rq_psn"), psn(part.rq_psn), Psn::new(0)),
        }),
    };
    let mac = mac_or_none(&message.mac, true);
    HostEndpoint {
        name: message.name.clone(),
        ip: r.read(format_args!("{prefix}ip"), ip(&message.ip), Ipv4Addr::UNSPECIFIED),
        qpn: r.read(format_args!("{prefix}qpn"), qpn(message.qpn), Qpn::new(0)),
        mac: r.read(format_args!("{prefix}mac"), mac, MacAddr::UNSPECIFIED),
        part,
    }
}

/// May be empty if the next hop has an IP address: the switch finds it then.
fn mac_or_none(text: &str, has_ip: bool) -> Result<MacAddr, FaultKind> {
    match text {
        "" if has_ip => Ok(MacAddr::UNSPECIFIED),
        text => mac(text),
    }
}

/// A member with a known Ethernet address, checked like a member of any group.
pub(super) fn host(field: &str, message: &v1::HostEndpoint) -> Result<HostEndpoint, Invalid> {
    let mut r = Reader::default();
    let host = read_host("", message, &mut r);
    let unread = r.unread();
    let no_mac = (host.mac == MacAddr::UNSPECIFIED).then(|| Fault::new("mac", missing(MAC_TEXT)));
    let faults = no_mac.into_iter().chain(host.check());
    r.0.extend(faults.filter(|fault| !unread.has(&fault.field)));
    r.within(field).finish(Some(host))
}

fn short(value: u32, limit: &Limit) -> Result<u16, FaultKind> {
    limit.admit(value.into(), value).map(|number| number as u16)
}

fn rank(value: u32) -> Result<u16, FaultKind> {
    short(value, &Limit::RANK)
}

macro_rules! policy {
    ($from_proto:ident, $to_proto:ident: $policy:ident, $message:ident { $($name:ident),+ }) => {
        /// `None` if it is unspecified.
        impl From<v1::$message> for Option<$policy> {
            fn from(message: v1::$message) -> Self {
                match message {
                    v1::$message::Unspecified => None,
                    $(v1::$message::$name => Some($policy::$name),)+
                }
            }
        }

        /// `None` if it is unspecified.
        pub(super) fn $from_proto(value: i32) -> Result<Option<$policy>, FaultKind> {
            let message = v1::$message::try_from(value);
            message.map(Into::into).map_err(|_| out_of_range(value, "is no policy that is known here"))
        }

        /// The policy in messages.
        pub fn $to_proto(policy: $policy) -> v1::$message {
            match policy {
                $($policy::$name => v1::$message::$name,)+
            }
        }
    };
}

policy!(mode, mode_to_proto: CollectiveMode, CollectiveMode { Translated, Augmented, Terminated });
policy!(loss, loss_to_proto: LossPolicy, CollectiveLossPolicy { Repair, Reflect });
policy!(any_source, any_source_to_proto: AnySource, AnySource { Bridged, Synchronized });
policy!(straggler, straggler_to_proto: StragglerPolicy, CollectiveStragglerPolicy { KeepAlive, Rnr, None });

/// The rule of a group as a message.
pub fn rule_to_proto(group: &GroupRule) -> v1::GroupRule {
    v1::GroupRule {
        name: group.name.clone(),
        generation: group.generation,
        mcst_id: group.mcst_id.to_string(),
        pmtu: group.pmtu.bytes() as u32,
        stall_timeout_ms: group.stall_timeout_ms,
        rate_limit: group.rate_limit.map(rate_limit_to_proto),
        endpoints: group.endpoints.iter().map(endpoint_to_proto).collect(),
        kind: Some(match &group.kind {
            GroupKind::Multicast(rule) => Kind::Multicast(v1::MulticastRule {
                start_psn: rule.start_psn.map(|p| p.value()),
                va_base: rule.va_base,
                carries_on: rule.carries_on,
                any_source: rule
                    .any_source
                    .map_or(0, |numbers| any_source_to_proto(numbers).into()),
                repair: rule.repair.map(repair_to_proto),
                hold_fatal_naks: rule.hold_fatal_naks,
                source: rule.source.into(),
            }),
            GroupKind::Translated(rule) => Kind::Translated(v1::TranslatedRule {
                start_psn: rule.start_psn.value(),
                slots: rule.slots.into(),
                message_packets: rule.message_packets.into(),
                reproducible: rule.reproducible,
                mode: mode_to_proto(rule.mode).into(),
                loss_policy: loss_to_proto(rule.loss_policy).into(),
                straggler_policy: straggler_to_proto(rule.straggler_policy).into(),
                ack_timeout_us: rule.ack_timeout_us,
                parent: rule.parent.map(u32::from),
            }),
            GroupKind::Forwarding(ForwardingRule {}) => Kind::Forwarding(v1::ForwardingRule {}),
        }),
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
            mode,
            core,
        } => Hop::Switch(v1::SwitchEndpoint {
            name: name.clone(),
            ip: ip.map(|ip| ip.to_string()),
            qpn: Some(qpn.value()),
            mac: mac_to_proto(*mac),
            ranks: ranks.iter().map(|r| u32::from(*r)).collect(),
            mode: mode.map_or(0, |mode| mode_to_proto(mode).into()),
            core: core.map(|core| core.to_string()),
        }),
    };
    v1::Endpoint {
        port: port_to_proto(endpoint.port),
        virtual_qpn: Some(endpoint.virtual_qpn.value()),
        verify_mac: endpoint.verify_mac,
        joining: endpoint.joining,
        next_hop: Some(next_hop),
    }
}

fn mac_to_proto(mac: MacAddr) -> String {
    match mac {
        MacAddr::UNSPECIFIED => String::new(),
        mac => mac.to_string(),
    }
}

fn host_to_proto(host: &HostEndpoint) -> v1::HostEndpoint {
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

/// The rule of a group as it is shown, without the keys of its members' memory: with them, whoever may look could write there.
pub fn shown_rule(group: &GroupRule) -> v1::GroupRule {
    let mut rule = rule_to_proto(group);
    for endpoint in &mut rule.endpoints {
        if let Some(Hop::Host(v1::HostEndpoint {
            part: Some(Part::Memory(memory)),
            ..
        })) = &mut endpoint.next_hop
        {
            *memory = without_keys(memory);
        }
    }
    rule
}

pub(super) fn without_keys(memory: &v1::RemoteMemory) -> v1::RemoteMemory {
    v1::RemoteMemory {
        length: memory.length,
        ..Default::default()
    }
}

/// The memory of a member as a message.
pub fn memory_to_proto(memory: &RemoteMemory) -> v1::RemoteMemory {
    v1::RemoteMemory {
        va: memory.va,
        rkey: memory.rkey,
        length: memory.length,
    }
}
