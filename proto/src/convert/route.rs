//! Routes.

use castnet_rules::{Fault, FaultKind, Ipv4Net, Route, RouteHop, RuleSet};
use castnet_wire::PortId;

use super::{Invalid, finish, mac, port, port_to_proto, prefix, take};
use crate::v1;

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
    let prefix = take(faults, format_args!("{field}.prefix"), prefix(&message.prefix));
    let mut hops = Vec::with_capacity(message.next_hops.len());
    for (i, hop) in message.next_hops.iter().enumerate() {
        let field = format!("{field}.next_hops[{i}]");
        let port = take(faults, format_args!("{field}.port"), port(hop.port));
        let mac = take(faults, format_args!("{field}.mac"), mac(&hop.mac));
        hops.push(port.zip(mac).map(|(port, mac)| RouteHop { port, mac }));
    }
    Some(Route {
        prefix: prefix?,
        next_hops: hops.into_iter().collect::<Option<_>>()?,
    })
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
