use core::net::Ipv4Addr;

use castnet_rules::{Fault, FaultKind, Ipv4Net, Route, RouteHop, check_routes, is_replicable};
use castnet_wire::{MacAddr, PortId};

use super::{Invalid, Reader, ip, mac, port, port_to_proto, prefix};
use crate::v1;

/// Reads all routes of a switch. Reports every fault, with fields such as `routes[2].next_hops[0].mac`.
pub fn routes_from_proto(messages: &[v1::Route]) -> Result<Vec<Route>, Invalid> {
    let mut r = Reader::default();
    let routes = messages.iter().enumerate();
    let routes: Vec<Route> = routes.map(|(i, m)| route(i, m, &mut r)).collect();
    r.0.extend(check_routes(&routes, PortId::COUNT, &r.unread()));
    r.finish(Some(routes))
}

/// Reads the scope and the routes of a [`v1::SetMulticastRoutesRequest`]. Reports every fault.
pub fn multicast_routes_from_proto(
    message: &v1::SetMulticastRoutesRequest,
) -> Result<(Vec<Ipv4Net>, Vec<Route>), Invalid> {
    let mut r = Reader::default();
    let scope = (0..).zip(&message.scope).map(|(i, text): (usize, _)| {
        let replicable = prefix(text).and_then(|prefix| match is_replicable(&prefix) {
            true => Ok(prefix),
            false => Err(FaultKind::NotReplicable { prefix }),
        });
        r.read(format_args!("scope[{i}]"), replicable, Ipv4Net::default())
    });
    let scope: Vec<Ipv4Net> = scope.collect();
    let routes = routes_from_proto(&message.routes)?;
    for (i, route) in routes.iter().enumerate() {
        if !scope.iter().any(|scope| scope.contains(&route.prefix)) {
            let kind = FaultKind::OutOfScope { prefix: route.prefix };
            r.0.push(Fault::new(format!("routes[{i}].prefix"), kind));
        }
    }
    r.finish(Some((scope, routes)))
}

/// What a [`v1::SetSourceGuardRequest`] says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceGuardParts {
    /// The hosts, with their ports.
    pub hosts: Vec<(PortId, Ipv4Addr)>,
    /// What no other source at these ports may be within.
    pub prefixes: Vec<Ipv4Net>,
}

/// Reads a [`v1::SetSourceGuardRequest`]. Reports every fault.
pub fn source_guard_from_proto(message: &v1::SetSourceGuardRequest) -> Result<SourceGuardParts, Invalid> {
    let mut r = Reader::default();
    let mut parts = SourceGuardParts::default();
    for (i, host) in message.hosts.iter().enumerate() {
        let port = r.read(
            format_args!("hosts[{i}].port"),
            port(host.port),
            PortId::default(),
        );
        let own = r.read(format_args!("hosts[{i}].ip"), ip(&host.ip), Ipv4Addr::UNSPECIFIED);
        parts.hosts.push((port, own));
    }
    for (i, text) in message.prefixes.iter().enumerate() {
        parts
            .prefixes
            .push(r.read(format_args!("prefixes[{i}]"), prefix(text), Ipv4Net::default()));
    }
    r.finish(Some(parts))
}

/// Reads one route. Reports every fault, with fields such as `route.next_hops[0].mac`.
pub fn route_from_proto(message: Option<&v1::Route>) -> Result<Route, Invalid> {
    let message = message.ok_or_else(|| Invalid::missing("route", "a prefix and its next hops"))?;
    let mut routes = routes_from_proto(std::slice::from_ref(message)).map_err(of_one_route)?;
    Reader::default().finish(routes.pop())
}

/// Renames the fields of a list of one route to those of the request for a single route.
pub fn of_one_route(Invalid(faults): Invalid) -> Invalid {
    let rename = |mut fault: Fault| {
        fault.field = fault.field.replacen("routes[0]", "route", 1);
        fault
    };
    Invalid(faults.into_iter().map(rename).collect())
}

fn route(index: usize, message: &v1::Route, r: &mut Reader) -> Route {
    let field = format!("routes[{index}]");
    let prefix = r.read(
        format_args!("{field}.prefix"),
        prefix(&message.prefix),
        Ipv4Net::default(),
    );
    let hops = message.next_hops.iter().enumerate().map(|(i, hop)| {
        let field = format!("{field}.next_hops[{i}]");
        RouteHop {
            port: r.read(format_args!("{field}.port"), port(hop.port), PortId::default()),
            mac: r.read(format_args!("{field}.mac"), mac(&hop.mac), MacAddr::UNSPECIFIED),
        }
    });
    let next_hops = hops.collect();
    let copy_to = message.copy_to.iter().enumerate();
    let copy_to = copy_to.map(|(i, address)| {
        let field = format_args!("{field}.copy_to[{i}]");
        r.read(field, ip(address), Ipv4Addr::UNSPECIFIED)
    });
    Route {
        prefix,
        next_hops,
        replicate: message.replicate,
        copy_to: copy_to.collect(),
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
        replicate: route.replicate,
        copy_to: route.copy_to.iter().map(Ipv4Addr::to_string).collect(),
        owner: String::new(),
    }
}
