//! A group's life over switches that do as they are told, or refuse, or go away.

use crate::common::{Calls, Events, Lab, creation, last, next, phase, refused, refused_field, two_tiers};
use castnet_proto::v1;
use castnet_proto::v1::GroupPhase::{Active, Failed, Installing, Registered, Removing};
use castnet_topology::Topology;
use tonic::{Code, Status};

#[tokio::test(start_paused = true)]
async fn members_join_switches_confirm_and_destruction_leaves_nothing() {
    let (lab, _controller, client) = two_tiers().await;
    let group = client.create(creation("g", &["h0", "h2", "h1", "h3"])).await;
    assert_eq!(phase(&group), Registered);
    assert_eq!(group.mcst_id, "10.200.0.1");
    assert_eq!(group.pmtu, 1024);
    let mut streams = Vec::new();
    for (i, host) in ["h0", "h1", "h2", "h3"].into_iter().enumerate() {
        let mut stream = client.join(lab.joining("g", host, 17 + i as u32)).await;
        let first = next(&mut stream).await;
        if host != "h3" {
            assert_eq!(phase(&first), Registered);
            assert!(first.reason.ends_with("h3"), "{}", first.reason);
        }
        streams.push((host, stream));
    }
    for (host, mut stream) in streams {
        let state = last(&mut stream).await;
        assert_eq!((phase(&state), state.start_psn), (Active, 100), "{host}");
        let role = match host {
            "h0" => v1::Role::Source,
            _ => v1::Role::Receiver,
        };
        assert_eq!(state.role(), role);
        assert_eq!(state.members.len(), 4);
    }
    // Downstream first: each switch is told when all below it are ready.
    assert_eq!(*lab.journal.lock(), ["leaf1 +g.1", "spine0 +g.1", "leaf0 +g.1"]);
    let group = client.get("g").await;
    let tree = group.tree.iter();
    let tree: Vec<_> = tree.map(|n| (&*n.switch_name, &*n.parent)).collect();
    let wanted = [("leaf0", ""), ("spine0", "leaf0"), ("leaf1", "spine0")];
    assert_eq!(tree, wanted);
    assert!(group.tree.iter().all(|n| n.installed));
    let rule = group.tree[2].rule.clone().unwrap();
    let kind = rule.multicast().unwrap();
    assert_eq!(rule.endpoints.len(), 3);
    assert_eq!(kind.start_psn, Some(100));
    assert_eq!(kind.source, 2);

    let destroyed = client.destroy("g").await;
    assert!(destroyed.complete);
    assert!(lab.placed().is_empty());
    // The source's switch first: from then on nothing flows.
    let wanted = ["leaf0 -g.1", "spine0 -g.1", "leaf1 -g.1"];
    assert_eq!(lab.journal.lock()[3..], wanted);
    refused(client.try_get("g").await, Code::NotFound, "");
}

#[tokio::test(start_paused = true)]
async fn one_switch_that_refuses_leaves_nothing_anywhere() {
    let lab = Lab::two_tiers().await;
    let full = Status::resource_exhausted("0 groups fit: no place for another");
    lab.refuses("spine0", Some(full));
    let (_controller, client) = lab.start().await;
    client.create(creation("g", &["h0", "h2"])).await;
    let mut source = client.join(lab.joining("g", "h0", 17)).await;
    let mut receiver = client.join(lab.joining("g", "h2", 17)).await;
    for stream in [&mut source, &mut receiver] {
        let state = last(stream).await;
        assert_eq!(phase(&state), Failed);
        let says = "switches.spine0: refuses: 0 groups fit: no place for another";
        assert_eq!(state.reason, says);
    }
    assert!(lab.placed().is_empty());
    assert_eq!(lab.switch("leaf1").changes(), ["+g.1", "-g.1"]);
    assert!(lab.switch("leaf0").changes().is_empty());

    // It can be tried again: all must join again.
    lab.refuses("spine0", None);
    let mut source = client.join(lab.joining("g", "h0", 18)).await;
    let first = next(&mut source).await;
    assert_eq!(phase(&first), Registered);
    assert_eq!(first.reason, "waits for h2");
    let mut receiver = client.join(lab.joining("g", "h2", 18)).await;
    assert_eq!(phase(&last(&mut receiver).await), Active);
    assert_eq!(lab.placed(), ["leaf0 g.2", "leaf1 g.2", "spine0 g.2"]);
}

#[tokio::test(start_paused = true)]
async fn a_join_whose_call_ends_is_withdrawn() {
    let (lab, _controller, mut client) = two_tiers().await;
    client.create(creation("g", &["h0", "h2"])).await;
    let mut events = Events::of(&client).await;
    let waits_for = |hosts: &'static str| {
        move |event: &v1::controller_event::Event| match event {
            v1::controller_event::Event::Group(g) if g.reason == format!("waits for {hosts}") => Some(()),
            _ => None,
        }
    };
    let mut stream = client.join(lab.joining("g", "h0", 17)).await;
    next(&mut stream).await;
    events.until(waits_for("h2")).await;
    drop(stream);
    events.until(waits_for("h0, h2")).await;

    // A second call of the same host takes the place of the first, which is told.
    let mut first = client.join(lab.joining("g", "h0", 17)).await;
    next(&mut first).await;
    let mut second = client.join(lab.joining("g", "h0", 18)).await;
    next(&mut second).await;
    let ended = loop {
        match first.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("ended without a word"),
            Err(status) => break status,
        }
    };
    assert_eq!(ended.code(), Code::Aborted);
    assert!(ended.message().contains("another call has joined"), "{ended}");
    let mut receiver = client.join(lab.joining("g", "h2", 17)).await;
    assert_eq!(phase(&last(&mut receiver).await), Active);
    assert_eq!(phase(&last(&mut second).await), Active);
    // After that, calls come and go.
    drop(second);
    let mut again = client.join(lab.joining("g", "h0", 18)).await;
    assert_eq!(phase(&last(&mut again).await), Active);
    let other = client.join_group(lab.joining("g", "h0", 19)).await;
    refused(other, Code::FailedPrecondition, "");
}

/// A member whose call ends while the switches are being programmed: what was installed is taken back, and the others
/// wait on.
#[tokio::test(start_paused = true)]
async fn a_member_lost_during_installation_takes_it_back() {
    let lab = Lab::two_tiers().await;
    let (gate, mut waits) = lab.switch("spine0").hold();
    let (_controller, client) = lab.start().await;
    client.create(creation("g", &["h0", "h2"])).await;
    let source = client.join(lab.joining("g", "h0", 17)).await;
    let mut receiver = client.join(lab.joining("g", "h2", 17)).await;
    waits.recv().await.unwrap();
    assert_eq!(lab.placed(), ["leaf1 g.1"]);
    let mut events = Events::of(&client).await;
    drop(source);
    events.group("g", Removing).await;
    gate.add_permits(100);
    let state = events.group("g", Registered).await;
    assert_eq!(state.reason, "waits for h0");
    assert!(lab.placed().is_empty());
    let mut source = client.join(lab.joining("g", "h0", 18)).await;
    for stream in [&mut source, &mut receiver] {
        assert_eq!(phase(&last(stream).await), Active);
    }
    assert_eq!(lab.placed(), ["leaf0 g.2", "leaf1 g.2", "spine0 g.2"]);
}

#[tokio::test(start_paused = true)]
async fn a_switch_that_never_answers_fails_the_group() {
    let mut lab = Lab::two_tiers().await;
    lab.config.timeouts.switch = std::time::Duration::from_secs(5);
    let (_gate, _waits) = lab.switch("leaf0").hold();
    let (_controller, mut client) = lab.start().await;
    let answer = client.create_group(lab.given("g", &["h0", "h2"], 17)).await;
    let says = "switches.leaf0: cannot be reached: no answer within 5s";
    let status = refused_field(answer, Code::Unavailable, "switches.leaf0", says);
    assert_eq!(status.message(), says);
    assert!(lab.placed().is_empty());
}

#[tokio::test(start_paused = true)]
async fn without_a_file_hosts_are_found_where_they_are_seen() {
    let mut lab = Lab::new(Topology::leaf_spine(2, 1, 1).unwrap()).await;
    lab.config.topology = None;
    let (_controller, client) = lab.start().await;
    client.create(creation("g", &["h0", "h1"])).await;
    let mut source = client.join(lab.joining("g", "h0", 17)).await;
    let mut receiver = client.join(lab.joining("g", "h1", 17)).await;
    let waiting = loop {
        let state = next(&mut source).await;
        if phase(&state) == Installing && !state.reason.is_empty() {
            break state;
        }
    };
    let says = "\"h0\" (10.0.0.1, 02:00:0a:00:00:01) was not seen";
    assert!(waiting.reason.contains(says), "{}", waiting.reason);
    // Frames of both hosts are flooded through the fabric: seen at every port on their way.
    let neighbour = |port: u32, kind: v1::neighbour::Kind| v1::Neighbour {
        port,
        kind: Some(kind),
        age_ns: 0,
    };
    let seen = |port: u32, host: &str| {
        let v1::Connection { ip, mac, .. } = lab.connection(host, 0);
        neighbour(port, v1::neighbour::Kind::Host(v1::HostNeighbour { ip, mac }))
    };
    let linked = |port: u32, to: &str, far: u32| {
        let switch = v1::SwitchNeighbour {
            name: to.into(),
            mac: String::new(),
            port: format!("{to}-p{far}"),
        };
        neighbour(port, v1::neighbour::Kind::Switch(switch))
    };
    let mut at_spine = vec![seen(0, "h0"), seen(1, "h1")];
    at_spine.extend([linked(0, "leaf0", 1), linked(1, "leaf1", 1)]);
    let at_leaf = |n: u32| vec![seen(n, "h0"), seen(1 - n, "h1"), linked(1, "spine0", n)];
    let reports = [("leaf0", at_leaf(0)), ("leaf1", at_leaf(1)), ("spine0", at_spine)];
    for (name, neighbours) in reports {
        lab.switch(name).with(|t| t.neighbours = neighbours);
        lab.switch(name).tell();
    }
    for stream in [&mut source, &mut receiver] {
        assert_eq!(phase(&last(stream).await), Active);
    }
    assert_eq!(lab.placed(), ["leaf0 g.1", "leaf1 g.1", "spine0 g.1"]);
    let topology = client.topology().await;
    assert!(!topology.from_file);
    let hosts = topology.hosts.iter();
    let places: Vec<_> = hosts.map(|h| (&*h.name, &*h.switch_name, h.port)).collect();
    assert_eq!(places, [("h0", "leaf0", Some(0)), ("h1", "leaf1", Some(0))]);
    assert_eq!(topology.links.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_host_that_is_never_seen_fails_the_group_and_says_where_it_was_looked_for() {
    let mut lab = Lab::new(Topology::star(2).unwrap()).await;
    lab.config.topology = None;
    lab.config.timeouts.host = std::time::Duration::from_millis(50);
    let (_controller, client) = lab.start().await;
    client.create(creation("g", &["h0", "h1"])).await;
    let mut source = client.join(lab.joining("g", "h0", 17)).await;
    let _receiver = client.join(lab.joining("g", "h1", 17)).await;
    let state = last(&mut source).await;
    assert_eq!(phase(&state), Failed);
    let wanted = "members[0].host: host \"h0\" (10.0.0.1, 02:00:0a:00:00:01) was not seen yet; looked for its ARP at the \
                  ports without LLDP neighbours of s0; waited 50ms";
    assert_eq!(state.reason, wanted);
}
