//! Next hops whose Ethernet address a rule leaves open.

use castnet_proto::convert::rule_to_proto;
use castnet_proto::v1;
use castnet_wire::MacAddr;
use tonic::Code;

use crate::agent::{Lab, assert_refused, mac, rule};

/// A rule may leave the Ethernet address of a next hop to the switch; the same rule again is no change then either.
#[tokio::test]
async fn a_next_hop_is_found_in_the_routes_or_named() {
    use v1::InstallOutcome::{Installed, Unchanged};
    let mut lab = Lab::new(|_| {}).await;
    let mut open = rule(1);
    open.endpoints[1].next_hop.set_mac(MacAddr::UNSPECIFIED);
    assert_refused(
        lab.install(&open, "us").await,
        Code::FailedPrecondition,
        "rule.endpoints[1].host.mac",
        "castnet route add",
    );
    let hop = v1::RouteHop {
        port: 1,
        mac: mac(50).to_string(),
    };
    let route = v1::Route {
        prefix: "10.0.0.0/24".into(),
        next_hops: vec![hop],
        ..Default::default()
    };
    let request = v1::AddRouteRequest { route: Some(route) };
    lab.client.add_route(request).await.unwrap();
    assert_eq!(lab.install(&open, "us").await.unwrap(), Installed);
    assert_eq!(lab.install(&open, "us").await.unwrap(), Unchanged);
    let mut found = rule(1);
    found.endpoints[1].next_hop.set_mac(mac(50));
    assert_eq!(lab.groups().await[0].rule, Some(rule_to_proto(&found)));
}
