//! Running multicast groups whose tree loses a link, in fabrics with routers: members keep the addresses of their switches.

use castnet_proto::v1;
use castnet_proto::v1::GroupPhase::Active;
use castnet_proto::v1::endpoint::NextHop;
use castnet_topology::Topology;

use crate::collective_places::set_link;
use crate::common::{Calls, Client, Lab, joined_by, moment, reaches};
use crate::replan::until;

/// Ports of a leaf after those of its two hosts.
const FIRST: u32 = 2;
const SECOND: u32 = 3;

/// Two leaves with two hosts each, joined by two others.
async fn lab(others: [(&str, &str); 2]) -> Lab {
    Lab::new(Topology::from_toml(&joined_by(&others, 2, 2)).unwrap()).await
}

/// Port and address of the switches that a rule leads to.
fn edges(rule: &v1::GroupRule) -> Vec<(String, u32, String)> {
    let edge = |e: &v1::Endpoint| match e.next_hop.clone()? {
        NextHop::Host(_) => None,
        NextHop::Switch(to) => Some((to.name, e.port, to.ip.unwrap_or_default())),
    };
    rule.endpoints.iter().filter_map(edge).collect()
}

/// A running group of all four hosts.
async fn group(lab: &Lab, client: &Client) -> v1::GroupState {
    client.create(lab.given("g", &["h0", "h1", "h2", "h3"], 17)).await;
    reaches(client, "g", Active).await.state.unwrap()
}

/// Waits until all switches of the next generation have it, and none has more.
async fn moved(lab: &Lab, client: &Client, before: &v1::GroupState, switches: &[&str]) {
    let generation = before.generation + 1;
    let placed: Vec<String> = switches.iter().map(|s| format!("{s} g.{generation}")).collect();
    let state = until(client, |s| s.generation == generation && lab.placed() == placed).await;
    assert_eq!((state.phase(), state.reason.as_str()), (Active, ""));
    // Each with the address that it has connected to.
    assert_eq!(state.mcst_id, before.mcst_id);
    assert_eq!(state.members, before.members);
    assert_eq!(state.start_psn, before.start_psn);
}

#[tokio::test(start_paused = true)]
async fn a_group_goes_on_over_another_router() {
    let lab = lab([("rt0", "router"), ("rt1", "router")]).await;
    let (controller, client) = lab.start().await;
    let mut before = group(&lab, &client).await;
    // Once more after a restart of the controller: what it has stored is enough.
    let (_controller, client) = lab.restart(controller).await;
    reaches(&client, "g", Active).await;
    for _ in 0..2 {
        let [(_, port, _)] = &edges(&lab.rule("leaf0"))[..] else {
            panic!("one edge")
        };
        let (lost, other) = (*port, FIRST + SECOND - *port);
        set_link(lab.switch("leaf0"), lost, false);
        moved(&lab, &client, &before, &["leaf0", "leaf1"]).await;
        for (switch, far, ip) in [("leaf0", "leaf1", "10.211.0.1"), ("leaf1", "leaf0", "10.210.0.1")] {
            assert_eq!(edges(&lab.rule(switch)), [(far.into(), other, ip.into())]);
        }
        before.generation += 1;
        set_link(lab.switch("leaf0"), lost, true);
    }
}

/// The new tree passes no routers, but its members have connected to the addresses of their switches.
#[tokio::test(start_paused = true)]
async fn a_group_that_loses_its_router_goes_on_over_a_switch() {
    let lab = lab([("rt", "router"), ("spine", "castnet")]).await;
    set_link(lab.switch("spine"), 0, false);
    let (_controller, client) = lab.start().await;
    until_link(&client, "spine", 0, false).await;
    let before = group(&lab, &client).await;
    assert_eq!(before.members[2].mcst_id(), "10.211.0.1");
    set_link(lab.switch("spine"), 0, true);
    until_link(&client, "spine", 0, true).await;
    set_link(lab.switch("leaf1"), FIRST, false);
    moved(&lab, &client, &before, &["leaf0", "leaf1", "spine"]).await;
    let spine = lab.rule("spine");
    let ends = |leaf: &str, n: u32| (leaf.to_owned(), n, format!("10.21{n}.0.1"));
    assert_eq!(edges(&spine), [ends("leaf0", 0), ends("leaf1", 1)]);
    let up = ("spine".to_owned(), SECOND, spine.mcst_id.clone());
    assert_eq!(edges(&lab.rule("leaf0")), std::slice::from_ref(&up));
    assert_eq!(edges(&lab.rule("leaf1")), [up]);
}

/// Waits until the controller knows that a link of a switch is up, or is not.
pub(crate) async fn until_link(client: &Client, switch: &str, port: u32, up: bool) {
    let is_end = |end: &Option<v1::LinkEnd>| {
        let end = end.as_ref().map(|e| (e.switch_name.as_str(), e.port));
        end == Some((switch, port))
    };
    loop {
        let links = client.topology().await.links;
        let mut links = links.iter().filter(|l| is_end(&l.a) || is_end(&l.b));
        if links.next().expect("a link").up == up {
            return;
        }
        moment().await;
    }
}

/// Routers would not lead to its members' switches what they send to the address that they have connected to.
#[tokio::test(start_paused = true)]
async fn a_group_that_has_one_address_does_not_go_over_routers() {
    let lab = lab([("rt", "router"), ("spine", "castnet")]).await;
    let (_controller, client) = lab.start().await;
    set_link(lab.switch("leaf1"), FIRST, false);
    until_link(&client, "leaf1", FIRST, false).await;
    let before = group(&lab, &client).await;
    assert!(before.members.iter().all(|m| m.mcst_id.is_none()));
    set_link(lab.switch("leaf1"), FIRST, true);
    until_link(&client, "leaf1", FIRST, true).await;
    set_link(lab.switch("leaf1"), SECOND, false);
    let state = until(&client, |s| s.reason.contains("no other tree")).await;
    let says = "no other tree: the other one passes routers, and the address that its members connected to is not routed \
                to their switches";
    assert!(state.reason.contains(says), "{}", state.reason);
    assert_eq!(state.generation, before.generation);
}
