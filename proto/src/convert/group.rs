//! Groups and routes.

use castnet_rules::{
    Fault, FaultKind, GroupDraft, HopDraft, HostEndpoint, Ipv4Net, MemberDraft, MulticastGroup, NextHop,
    PathDraft, RemoteMemory, Route, RouteHop, RuleSet,
};
use castnet_wire::PortId;

use super::{Invalid, finish, ip, mac, mcst_id, pmtu, port, prefix, psn, qpn, rule_faults, take};
use crate::v1;

/// A group's rule, checked as it would be for a switch with all ports; the agent checks again for its own.
///
/// # Errors
/// Every fault, with fields below `field`.
pub fn group_from_proto(field: &str, message: &v1::MulticastGroup) -> Result<MulticastGroup, Invalid> {
    let mut faults = Vec::new();
    let start_psn = match message.start_psn {
        None => Some(None),
        Some(value) => take(&mut faults, "start_psn", psn(value)).map(Some),
    };
    let draft = GroupDraft {
        name: Some(message.name.clone()),
        generation: Some(message.generation),
        mcst_id: take(&mut faults, "mcst_id", mcst_id(&message.mcst_id)),
        pmtu: take(&mut faults, "pmtu", pmtu(message.pmtu)),
        start_psn,
        va_base: Some(message.va_base),
        source: take(&mut faults, "source_port", port(message.source_port)),
        paths: Some(
            message
                .paths
                .iter()
                .enumerate()
                .map(|(i, p)| path(i, p, &mut faults))
                .collect(),
        ),
        stall_timeout_ms: Some(message.stall_timeout_ms),
    };
    faults.extend(draft.check(PortId::COUNT));
    finish(draft.finish(), rule_faults(field, &faults))
}

fn path(index: usize, message: &v1::Path, faults: &mut Vec<Fault>) -> PathDraft {
    let field = format!("paths[{index}]");
    let next_hop = match &message.next_hop {
        Some(v1::path::NextHop::Host(host)) => {
            Some(HopDraft::Host(member(&format!("{field}.host"), host, faults)))
        }
        Some(v1::path::NextHop::Switch(switch)) => Some(HopDraft::Switch {
            name: Some(switch.name.clone()),
            mac: take(faults, &format!("{field}.switch.mac"), mac(&switch.mac)),
        }),
        None => {
            faults.push(Fault::new(field.clone(), FaultKind::NoNextHop));
            None
        }
    };
    PathDraft {
        port: take(faults, &format!("{field}.port"), port(message.port)),
        next_hop,
    }
}

fn member(field: &str, message: &v1::HostEndpoint, faults: &mut Vec<Fault>) -> MemberDraft {
    MemberDraft {
        name: Some(message.name.clone()),
        ip: take(faults, &format!("{field}.ip"), ip(&message.ip)),
        qpn: take(faults, &format!("{field}.qpn"), qpn(message.qpn)),
        mac: take(faults, &format!("{field}.mac"), mac(&message.mac)),
        memory: Some(message.memory.as_ref().map(memory)),
    }
}

/// One member alone, by the rules that hold for it within any group.
pub(super) fn host(field: &str, message: &v1::HostEndpoint) -> Result<HostEndpoint, Invalid> {
    let mut faults = Vec::new();
    let member = member("", message, &mut faults);
    for fault in &mut faults {
        fault.field = fault.field.trim_start_matches('.').into();
    }
    // The checker knows groups only: a group of which nothing is known but this member shows the member's faults.
    let hop = Some(HopDraft::Host(member.clone()));
    let draft = GroupDraft {
        paths: Some(vec![PathDraft {
            port: None,
            next_hop: hop,
        }]),
        ..GroupDraft::default()
    };
    for mut fault in draft.check(PortId::COUNT) {
        if let Some(inner) = fault.field.strip_prefix("paths[0].host.") {
            fault.field = inner.into();
            faults.push(fault);
        }
    }
    let MemberDraft {
        name: Some(name),
        ip: Some(ip),
        qpn: Some(qpn),
        mac: Some(mac),
        memory: Some(memory),
    } = member
    else {
        return finish(None, faults.into_iter().map(|f| f.within(field)).collect());
    };
    finish(
        Some(HostEndpoint {
            name,
            ip,
            qpn,
            mac,
            memory,
        }),
        faults.into_iter().map(|f| f.within(field)).collect(),
    )
}

fn memory(message: &v1::RemoteMemory) -> RemoteMemory {
    RemoteMemory {
        va: message.va,
        rkey: message.rkey,
        length: message.length,
    }
}

/// All routes of a switch.
///
/// # Errors
/// Every fault, with fields such as `routes[2].next_hops[0].mac`.
pub fn routes_from_proto(messages: &[v1::Route]) -> Result<Vec<Route>, Invalid> {
    let mut faults = Vec::new();
    let read = messages
        .iter()
        .enumerate()
        .map(|(i, m)| route(&format!("routes[{i}]"), m, &mut faults));
    let routes: Option<Vec<Route>> = read.collect::<Vec<_>>().into_iter().collect();
    let routes = routes.map(|routes| RuleSet {
        routes,
        ..RuleSet::default()
    });
    faults.extend(routes.iter().flat_map(|r| r.check(PortId::COUNT)));
    finish(routes.map(|r| r.routes), faults)
}

/// One route.
///
/// # Errors
/// Every fault, with fields such as `route.next_hops[0].mac`.
pub fn route_from_proto(message: Option<&v1::Route>) -> Result<Route, Invalid> {
    let Some(message) = message else {
        return Err(Invalid::one(
            "route",
            FaultKind::Missing {
                expected: "a prefix and its next hops",
            },
        ));
    };
    let mut routes = routes_from_proto(std::slice::from_ref(message)).map_err(of_one_route)?;
    finish(routes.pop(), Vec::new())
}

/// A refusal of routes, with fields as the message of a single one has them.
pub fn of_one_route(Invalid(faults): Invalid) -> Invalid {
    let rename = |mut fault: Fault| {
        fault.field = fault.field.replacen("routes[0]", "route", 1);
        fault
    };
    Invalid(faults.into_iter().map(rename).collect())
}

/// A route's prefix.
///
/// # Errors
/// Names `field`.
pub fn prefix_from_proto(field: &str, text: &str) -> Result<Ipv4Net, Invalid> {
    prefix(text).map_err(|kind| Invalid::one(field, kind))
}

fn route(field: &str, message: &v1::Route, faults: &mut Vec<Fault>) -> Option<Route> {
    let prefix = take(faults, &format!("{field}.prefix"), prefix(&message.prefix));
    let mut hops = Vec::with_capacity(message.next_hops.len());
    for (i, hop) in message.next_hops.iter().enumerate() {
        let field = format!("{field}.next_hops[{i}]");
        let port = take(faults, &format!("{field}.port"), port(hop.port));
        let mac = take(faults, &format!("{field}.mac"), mac(&hop.mac));
        hops.push(port.zip(mac).map(|(port, mac)| RouteHop { port, mac }));
    }
    Some(Route {
        prefix: prefix?,
        next_hops: hops.into_iter().collect::<Option<_>>()?,
    })
}

/// A rule as a message.
pub fn group_to_proto(group: &MulticastGroup) -> v1::MulticastGroup {
    let paths = group.paths.iter().map(|path| {
        let next_hop = match &path.next_hop {
            NextHop::Host(host) => v1::path::NextHop::Host(host_to_proto(host)),
            NextHop::Switch { name, mac } => v1::path::NextHop::Switch(v1::SwitchEndpoint {
                name: name.clone(),
                mac: mac.to_string(),
            }),
        };
        v1::Path {
            port: port_to_proto(path.port),
            next_hop: Some(next_hop),
        }
    });
    v1::MulticastGroup {
        name: group.name.clone(),
        generation: group.generation,
        mcst_id: group.mcst_id.to_string(),
        pmtu: group.pmtu.bytes() as u32,
        start_psn: group.start_psn.map(|p| p.value()),
        va_base: group.va_base,
        source_port: port_to_proto(group.source),
        paths: paths.collect(),
        stall_timeout_ms: group.stall_timeout_ms,
    }
}

pub(super) fn port_to_proto(port: PortId) -> u32 {
    port.index() as u32
}

/// A member as a message.
pub fn host_to_proto(host: &HostEndpoint) -> v1::HostEndpoint {
    v1::HostEndpoint {
        name: host.name.clone(),
        ip: host.ip.to_string(),
        qpn: host.qpn.value(),
        mac: host.mac.to_string(),
        memory: host.memory.as_ref().map(memory_to_proto),
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

/// A route as a message.
pub fn route_to_proto(route: &Route) -> v1::Route {
    let hops = route.next_hops.iter().map(|h| v1::RouteHop {
        port: port_to_proto(h.port),
        mac: h.mac.to_string(),
    });
    v1::Route {
        prefix: route.prefix.to_string(),
        next_hops: hops.collect(),
    }
}
