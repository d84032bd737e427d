//! Routes to multicast addresses that the controller keeps: those of relays, and those of groups in programmable routers.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use castnet_planner::shufflecast::{Relaying, Relays, Shufflecast};
use castnet_planner::static_core;
use castnet_proto::convert::route_to_proto;
use castnet_proto::v1;
use castnet_proto::v1::GroupPhase::Active;
use castnet_proto::v1::controller_event::Event;
use castnet_proto::v1::endpoint::NextHop;
use castnet_rules::Ipv4Net;
use castnet_topology::{MulticastRoute, Topology};
use tonic::Status;

use crate::collective_places::set_link;
use crate::common::{Calls, Client, Events, Lab, joined_by, moment, reaches, until};

/// Six leaves with a host each below a programmable router, with the addresses of `castnet rules core`.
fn star(block: &str) -> Topology {
    let file = joined_by(&[("core", "router")], 6, 1);
    let file = file.replace("\"router\"", "\"router\"\nprogrammable = true");
    let file = format!("group_addresses = \"{block}\"\n{file}");
    with_addresses(Topology::from_toml(&file).unwrap(), |t, block| {
        static_core::layout(t, block).unwrap().addresses
    })
}

fn with_addresses(
    mut topology: Topology,
    layout: impl Fn(&Topology, Ipv4Net) -> BTreeMap<std::net::Ipv4Addr, MulticastRoute>,
) -> Topology {
    for (address, route) in layout(&topology, "239.1.0.0/16".parse().unwrap()) {
        topology.add_multicast_route(address, route).unwrap();
    }
    topology
}

/// A route that the controller leaves alone.
fn operators() -> v1::Route {
    v1::Route {
        prefix: "239.9.0.0/16".into(),
        ..Default::default()
    }
}

/// Groups with a static core: the first host sends.
async fn create(lab: &Lab, client: &Client, (name, qpn): (&str, u32), hosts: &[&str]) {
    let request = v1::CreateGroupRequest {
        distribution: "static".into(),
        ..lab.given(name, hosts, qpn)
    };
    client.create(request).await;
    reaches(client, name, Active).await;
}

/// What the programmable router copies, by address.
fn copies(lab: &Lab) -> BTreeMap<String, Vec<String>> {
    let routes = lab.switch("core").with(|toy| toy.routes.clone());
    let routes = routes.into_iter();
    routes.map(|(prefix, route)| (prefix, route.copy_to)).collect()
}

/// The addresses of the core that a switch sends to for a group.
fn cores(lab: &Lab, switch: &str, group: &str) -> Vec<Option<String>> {
    let rule = lab.rules(switch).into_iter().find(|rule| rule.name == group);
    let endpoints = rule.into_iter().flat_map(|rule| rule.endpoints);
    let core = |endpoint: v1::Endpoint| match endpoint.next_hop? {
        NextHop::Host(_) => None,
        NextHop::Switch(to) => Some(to.core),
    };
    endpoints.filter_map(core).collect()
}

/// The rule is in the router before the source's switch sends to it, receivers' switches keep theirs, and all outlives restarts of both.
#[tokio::test(start_paused = true)]
async fn a_group_gets_a_rule_in_the_core_and_then_one_copy_of_its_source() {
    let mut lab = Lab::new(star("239.200.0.0/24")).await;
    let foreign = operators();
    lab.switch("core")
        .with(|toy| toy.routes.insert(foreign.prefix.clone(), foreign));
    let (controller, client) = lab.start().await;
    create(&lab, &client, ("g", 17), &["h0", "h1", "h4", "h5"]).await;
    let refined = Some("239.200.0.0".to_owned());
    let is_refined = || cores(&lab, "leaf0", "g").iter().all(|core| *core == refined);
    until("refined", is_refined).await;
    assert_eq!(cores(&lab, "leaf0", "g").len(), 3);
    let all = copies(&lab);
    let pod: Vec<&String> = all["239.200.0.0/32"].iter().collect();
    assert_eq!((pod.len(), all.len()), (2, 2), "{all:?}");
    assert_eq!(pod[0], "10.211.0.1", "leaf0 is in the block of leaf1");
    assert_eq!(cores(&lab, "leaf4", "g"), [Some(pod[1].clone())]);
    assert_eq!(cores(&lab, "leaf1", "g"), [None]);
    let journal = lab.journal.lock().clone();
    let at = |what: &str| journal.iter().position(|done| done == what);
    assert!(at("core 239.200.0.0/32") < at("leaf0 +g.2"), "{journal:?}");
    let rule = lab.rule("leaf0");
    assert_eq!(rule.multicast().unwrap().carries_on, Some(1));
    let refinement = client.get("g").await.state.unwrap().refinement.unwrap();
    assert_eq!(refinement.address, "239.200.0.0");
    let (_controller, client) = lab.restart(controller).await;
    reaches(&client, "g", Active).await;
    lab.switches.get_mut("core").unwrap().restart().await;
    until("again", || copies(&lab).contains_key("239.200.0.0/32")).await;
    assert!(lab.placed().contains(&"leaf0 g.2".to_owned()));
    client.destroy("g").await;
    until("forgotten", || copies(&lab).is_empty()).await;
}

/// Routers that refuse, are away, or have no address left: groups stay with the addresses of the static core, and one that waits for a router
/// is refined when that comes.
#[tokio::test(start_paused = true)]
async fn a_group_that_no_router_takes_stays_as_it_is() {
    let mut lab = Lab::new(star("239.200.0.0/31")).await;
    lab.switch("core")
        .with(|toy| toy.refuse_routes = Some(Status::resource_exhausted("no room")));
    let (controller, client) = lab.start().await;
    create(&lab, &client, ("g", 17), &["h0", "h1", "h4", "h5"]).await;
    // It is tried again some time after: the first attempt has changed nothing.
    let refused_twice = || lab.switch("core").with(|toy| toy.refused_routes) > 1;
    until("refused twice", refused_twice).await;
    let own = cores(&lab, "leaf0", "g");
    assert!(
        own.contains(&None) && own.iter().flatten().all(|core| core.starts_with("239.1.")),
        "{own:?}"
    );
    // A controller that has taken no address for it waits for the router.
    controller.stop().await;
    let core = lab.switches.get_mut("core").unwrap();
    core.stop().await;
    core.with(|toy| toy.refuse_routes = None);
    let (_controller, client) = lab.start().await;
    reaches(&client, "g", Active).await;
    lab.switches.get_mut("core").unwrap().start().await;
    let address = |name: &str| {
        let own = cores(&lab, "leaf0", name);
        let first = own.first().cloned().flatten()?;
        let is_its_own =
            first.starts_with("239.200.") && own.iter().all(|core| core.as_deref() == Some(&first));
        is_its_own.then_some(first)
    };
    until("refined", || address("g").is_some()).await;
    // One edge, or one address: there is nothing to refine, before a group that gets the other address.
    create(&lab, &client, ("near", 19), &["h0", "h1"]).await;
    create(&lab, &client, ("pod", 20), &["h0", "h2", "h3"]).await;
    create(&lab, &client, ("second", 18), &["h0", "h1", "h4", "h5"]).await;
    until("refined", || address("second").is_some()).await;
    let (first, second) = (address("g"), address("second"));
    assert_ne!(first, second);
    // The next one gets no address that is in use.
    create(&lab, &client, ("third", 21), &["h0", "h1", "h4", "h5"]).await;
    client.destroy("second").await;
    until("its turn", || address("third").is_some()).await;
    assert_eq!((address("third"), address("g")), (second, first));
    assert_eq!(copies(&lab).len(), 2);
    for gone in ["g", "third"] {
        client.destroy(gone).await;
    }
    until("forgotten", || copies(&lab).is_empty()).await;
}

/// Two controllers with one router: each leaves the routes of the other there, and its groups get other addresses.
#[tokio::test(start_paused = true)]
async fn routes_of_another_controller_stay_until_they_are_purged() {
    let lab = Lab::new(star("239.200.0.0/31")).await;
    let foreign = v1::Route {
        prefix: "239.200.0.0/32".into(),
        copy_to: vec!["10.9.9.9".into()],
        owner: "controller-x".into(),
        ..Default::default()
    };
    lab.switch("core")
        .with(|toy| toy.routes.insert(foreign.prefix.clone(), foreign.clone()));
    let (_controller, client) = lab.start().await;
    create(&lab, &client, ("g", 17), &["h0", "h1", "h4", "h5"]).await;
    until("refined", || copies(&lab).contains_key("239.200.0.1/32")).await;
    assert_eq!(copies(&lab)["239.200.0.0/32"], foreign.copy_to);
    let left = |remove| {
        let (mut client, owner) = (client.clone(), Some(foreign.owner.clone()));
        async move {
            let request = v1::PurgeGroupsRequest { owner, remove };
            let left = client.purge_groups(request).await.unwrap();
            let left = left.into_inner().switches.into_iter();
            let left = left.map(|left| (left.routes, left.refuses, left.reason));
            let left = left.filter(|(routes, _, reason)| !routes.is_empty() || !reason.is_empty());
            left.collect::<Vec<_>>()
        }
    };
    let refuse = |status| lab.switch("core").with(|toy| toy.refuse_routes = status);
    refuse(Some(Status::permission_denied("not you")));
    assert_eq!(left(true).await, [(vec![], true, "refuses: not you".to_owned())]);
    refuse(None);
    for remove in [false, true] {
        let found = (vec![foreign.prefix.clone()], false, String::new());
        assert_eq!(left(remove).await, [found]);
    }
    assert_eq!(left(false).await, []);
    assert_eq!(copies(&lab).keys().collect::<Vec<_>>(), ["239.200.0.1/32"]);
}

/// Packing (PEEL 3.2): fewer copies, and switches without members that get some. With one copy there is nothing to refine.
#[tokio::test(start_paused = true)]
async fn a_group_with_few_copies_says_which_switches_get_them_for_nothing() {
    let lab = Lab::new(star("239.200.0.0/24")).await;
    let (controller, client) = lab.start().await;
    let request = |name: &str, copies: u16, qpn| v1::CreateGroupRequest {
        distribution: format!("static:{copies}"),
        ..lab.given(name, &["h0", "h1", "h4"], qpn)
    };
    client.create(request("g", 1, 17)).await;
    reaches(&client, "g", Active).await;
    let (_controller, client) = lab.restart(controller).await;
    let state = reaches(&client, "g", Active).await.state.unwrap();
    assert_eq!(state.over_covered, ["leaf2", "leaf3", "leaf5"]);
    assert_eq!(state.distribution, "static:1");
    let planned = v1::PlanGroupRequest {
        group: Some(v1::plan_group_request::Group::Multicast(request("other", 1, 19))),
    };
    let planned = client.clone().plan_group(planned).await.unwrap().into_inner();
    assert_eq!(planned.over_covered, ["leaf2", "leaf3", "leaf5"], "{planned:?}");
    let own = cores(&lab, "leaf0", "g");
    assert!(own.len() == 2 && own[0].is_some() && own[0] == own[1], "{own:?}");
    // An exact cover needs no more than two.
    client.create(request("exact", 2, 18)).await;
    let state = reaches(&client, "exact", Active).await.state.unwrap();
    assert!(state.over_covered.is_empty());
    let is_refined = || cores(&lab, "leaf0", "exact").iter().all(Option::is_some);
    until("refined", is_refined).await;
    assert_eq!(cores(&lab, "leaf0", "g"), own);
}

/// The eight ToRs of a 2,2-Shufflecast.
fn shufflecast() -> Topology {
    let fabric = Shufflecast::new(2, 2).unwrap();
    let mut file = String::new();
    let mut splitters = String::new();
    for tor in fabric.tors() {
        let name = format!("tor{tor}");
        let _ = write!(
            file,
            "[[switches]]\nname = \"{name}\"\nports = 6\nmcst_prefix = \"10.21{tor}.0.0/24\"\n"
        );
        // Ports 0 and 1 send, 2 to 5 receive.
        let links = (0..).zip(fabric.splitter(tor));
        let links = links.map(|(port, to): (usize, _)| {
            let far = 2 + fabric.partition(tor);
            format!("{{ port = {port}, to = \"tor{to}:{far}\" }}")
        });
        let links: Vec<String> = links.collect();
        let _ = write!(
            splitters,
            "[[splitters]]\nfrom = \"{name}\"\nlinks = [{}]\n",
            links.join(", ")
        );
    }
    with_addresses(Topology::from_toml(&(file + &splitters)).unwrap(), |t, block| {
        castnet_planner::shufflecast::layout(t, block).unwrap().addresses
    })
}

/// Whether all ToRs have the routes of these rules, and each one the operator's, too.
fn has(lab: &Lab, relays: &Relays, relaying: &Relaying) -> bool {
    relays.tors().all(|(tor, splitter)| {
        let wanted = relays.routes(&lab.topology, relaying, tor);
        let mut wanted: BTreeMap<String, v1::Route> = wanted
            .iter()
            .map(|route| (route.prefix.to_string(), route_to_proto(route)))
            .collect();
        wanted.insert("239.9.0.0/16".into(), operators());
        lab.switch(&splitter.from).with(|toy| toy.routes == wanted)
    })
}

/// ToRs get their routes, each relay fails in turn: by a port without link, or dead. Of two, one is recovered from.
#[tokio::test(start_paused = true)]
async fn relays_get_their_routes_and_those_of_a_failed_one_move() {
    let mut lab = Lab::new(shufflecast()).await;
    lab.config.timeouts.link = Duration::from_millis(100);
    for switch in lab.switches.values() {
        let foreign = operators();
        // One of Castnet's is wrong.
        let hop = v1::RouteHop {
            port: 4,
            mac: "02:00:00:00:00:99".into(),
        };
        let wrong = v1::Route {
            prefix: "239.1.0.1/32".into(),
            next_hops: vec![hop],
            ..foreign.clone()
        };
        switch.with(|toy| {
            toy.routes
                .extend([foreign, wrong].map(|route| (route.prefix.clone(), route)))
        });
    }
    let (_controller, client) = lab.start().await;
    let relays = Relays::of(&lab.topology).unwrap().unwrap();
    let fabric = relays.fabric();
    let fixed = Relaying::of(fabric);
    until("static rules", || has(&lab, &relays, &fixed)).await;
    let mut events = Events::of(&client).await;
    for (tor, splitter) in relays.tors() {
        let mut recovered = fixed.clone();
        recovered.apply(&fabric.recovery(tor));
        set_link(lab.switch(&splitter.from), 1, false);
        until("Algorithm 2", || has(&lab, &relays, &recovered)).await;
        set_link(lab.switch(&splitter.from), 1, true);
        until("static rules", || has(&lab, &relays, &fixed)).await;
    }
    let relay = |event: &Event| match event {
        Event::RelayChanged(change) => Some(change.clone()),
        _ => None,
    };
    let said = events.until(relay).await;
    assert_eq!(
        (said.switch_name.as_str(), said.mirror.as_str(), said.rules > 0),
        ("tor0", "tor2", true)
    );
    assert_eq!(said.reason, "port tor0-p1 of switch tor0 has no link");
    assert_eq!(
        events.until(relay).await,
        v1::RelayChanged {
            switch_name: "tor0".into(),
            ..Default::default()
        }
    );
    // tor5 fails, then tor3, too; tor5 comes back.
    let after = |number: usize| {
        let mut recovered = fixed.clone();
        recovered.apply(&fabric.recovery(fabric.tor(number).unwrap()));
        recovered
    };
    let mut events = Events::of(&client).await;
    lab.switches.get_mut("tor5").unwrap().stop().await;
    let others = |relaying: &Relaying| {
        relays
            .tors()
            .filter(|(tor, _)| tor.number() != 5)
            .all(|(tor, splitter)| {
                let routes = lab.switch(&splitter.from).with(|toy| toy.routes.len());
                routes == 1 + relaying.sources(tor).count()
            })
    };
    until("tor5 is dead", || others(&after(5))).await;
    // A controller asks for the version after it has looked at the ports.
    let version = "with a port that is down";
    lab.switch("tor3")
        .with(|toy| toy.capabilities.version = version.into());
    set_link(lab.switch("tor3"), 0, false);
    while client.switches().await.iter().all(|s| s.version != version) {
        moment().await;
    }
    assert!(others(&after(5)), "one failure is recovered from");
    let of_both = |event: &Event| relay(event).filter(|change| !change.not_covered.is_empty());
    let said = events.until(of_both).await;
    assert_eq!(
        (said.switch_name.as_str(), said.not_covered, said.rules),
        ("tor5", vec!["tor3".to_owned()], 0)
    );
    let tor5 = lab.switches.get_mut("tor5").unwrap();
    tor5.with(|toy| toy.routes.retain(|prefix, _| prefix == "239.9.0.0/16"));
    tor5.start().await;
    until("tor3 alone", || has(&lab, &relays, &after(3))).await;
    let of_tor3 = |event: &Event| relay(event).filter(|change| change.switch_name == "tor3");
    let said = events.until(of_tor3).await;
    assert!(said.not_covered.is_empty(), "tor5 was first: {said:?}");
}
