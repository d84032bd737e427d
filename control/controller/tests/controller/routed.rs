//! Groups whose trees pass routers: a McstID at each switch, told to each member by its own.

use castnet_proto::v1;
use castnet_proto::v1::CollectivePhase;
use castnet_proto::v1::GroupPhase::{Active, Registered};
use castnet_proto::v1::endpoint::NextHop;
use castnet_topology::Topology;
use tonic::Code;

use crate::common::ranks::{all, shown, vanishes};
use crate::common::{Calls, Events, Lab, creation, last, reaches, refused_field, until};
use crate::lanes::ends;

/// Two leaves with a router between them: h0 and h1 at leaf0, h2 and h3 at leaf1, h4 at the router. leaf0 has two McstIDs.
async fn lab() -> Lab {
    let mut file = "[[switches]]\nname = \"rt\"\nkind = \"router\"\nports = 3\n".to_owned();
    for (leaf, prefix) in [("leaf0", "10.201.0.0/30"), ("leaf1", "10.202.0.0/24")] {
        file += &format!("[[switches]]\nname = \"{leaf}\"\nports = 3\nmcst_prefix = \"{prefix}\"\n");
    }
    let ends = ["leaf0:0", "leaf0:1", "leaf1:0", "leaf1:1", "rt:2"];
    for (host, end) in ends.iter().enumerate() {
        let last = host + 1;
        file += &format!(
            "[[hosts]]\nname = \"h{host}\"\nip = \"10.0.0.{last}\"\nmac = \"02:00:00:00:00:0{last}\"\n"
        );
        file += &format!("[[links]]\na = \"{end}\"\nb = \"h{host}\"\n");
    }
    for leaf in 0..2 {
        file += &format!("[[links]]\na = \"leaf{leaf}:2\"\nb = \"rt:{leaf}\"\n");
    }
    Lab::new(Topology::from_toml(&file).unwrap()).await
}

fn ids(lab: &Lab, switch: &str) -> Vec<String> {
    lab.rules(switch).into_iter().map(|rule| rule.mcst_id).collect()
}

/// Name, McstID and Ethernet address of each next hop of a rule, and whether the address is verified.
fn hops(rule: &v1::GroupRule) -> Vec<(String, String, String, bool)> {
    let hop = |e: &v1::Endpoint| {
        let (name, ip, mac) = match e.next_hop.clone().unwrap() {
            NextHop::Host(host) => (host.name, String::new(), host.mac),
            NextHop::Switch(switch) => (switch.name, switch.ip.unwrap_or_default(), switch.mac),
        };
        (name, ip, mac, e.verify_mac)
    };
    rule.endpoints.iter().map(hop).collect()
}

fn hop(name: &str, ip: &str, mac: &str, verify_mac: bool) -> (String, String, String, bool) {
    (name.into(), ip.into(), mac.into(), verify_mac)
}

/// What each member is told of the first lane.
fn told(state: &v1::GroupState) -> Vec<&str> {
    state.members.iter().map(v1::MemberState::mcst_id).collect()
}

/// The switch finds the Ethernet address itself.
const OPEN: &str = "";

#[tokio::test(start_paused = true)]
async fn each_switch_has_a_mcst_id_of_its_own_prefix_and_tells_it_to_its_members() {
    let mut lab = lab().await;
    lab.config.verify_mac = true;
    let (controller, client) = lab.start().await;
    let members = ["h0", "h2", "h3", "h4"];
    let created = client.create(creation("g", &members)).await;
    let own = ["10.201.0.1", "10.202.0.1", "10.202.0.1", "10.201.0.1"];
    assert_eq!(created.phase(), Registered, "before they join");
    assert_eq!(told(&created), own);
    // What was promised stays, whatever becomes of the controller.
    let (controller, client) = lab.restart(controller).await;
    let mut streams = Vec::new();
    for host in members {
        streams.push(client.join(lab.joining("g", host, 17)).await);
    }
    for (stream, own) in streams.iter_mut().zip(own) {
        let state = last(stream).await;
        assert_eq!((state.phase(), state.mcst_id.as_str()), (Active, own));
        assert_eq!(state.lanes[0].mcst_id, own);
    }
    let [at0, at1] = ["leaf0", "leaf1"].map(|leaf| lab.rule(leaf));
    assert_eq!((at0.mcst_id.as_str(), at1.mcst_id.as_str()), (own[0], own[1]));
    let mac = |n| format!("02:00:00:00:00:0{n}");
    assert_eq!(
        hops(&at0),
        [
            hop("h0", "", &mac(1), true),
            hop("h4", "", OPEN, false),
            hop("leaf1", "10.202.0.1", OPEN, false)
        ]
    );
    assert_eq!(
        hops(&at1),
        [
            hop("h2", "", &mac(3), true),
            hop("h3", "", &mac(4), true),
            hop("leaf0", "10.201.0.1", OPEN, false)
        ]
    );
    let tree = client.get("g").await.tree.into_iter();
    let at: Vec<String> = tree.map(|node| node.lanes[0].mcst_id.clone()).collect();
    assert_eq!(at, ["10.201.0.1", "10.202.0.1"]);
    // Neither a restart of the controller nor one of a switch changes them.
    controller.stop().await;
    lab.switches.get_mut("leaf1").unwrap().restart().await;
    let (_controller, client) = lab.start().await;
    reaches(&client, "g", Active).await;
    let mut events = Events::of(&client).await;
    let again = loop {
        let group = client.get("g").await;
        if group.tree.iter().all(|node| node.installed) {
            break group.state.unwrap();
        }
        events.until(|_| Some(())).await;
    };
    assert_eq!(told(&again), own);
    for (leaf, own) in [("leaf0", own[0]), ("leaf1", own[1])] {
        assert_eq!(ids(&lab, leaf), [own]);
    }
    // Without a router in the tree all is as ever.
    client.create(lab.given("flat", &["h2", "h3"], 18)).await;
    let flat = reaches(&client, "flat", Active).await;
    let state = flat.state.unwrap();
    assert_eq!(state.mcst_id, "10.200.0.2");
    assert_eq!(told(&state), [""; 2]);
    assert!(flat.tree[0].lanes.is_empty());
    assert_eq!(ids(&lab, "leaf1"), ["10.200.0.2", own[1]]);
    for group in ["g", "flat"] {
        client.destroy(group).await;
    }
    assert_eq!(lab.placed(), [""; 0], "nothing is left under any McstID");
}

#[tokio::test(start_paused = true)]
async fn an_exhausted_prefix_is_named_and_is_free_again_when_groups_end() {
    let lab = lab().await;
    let (_controller, mut client) = lab.start().await;
    for (n, own) in [(1, "10.201.0.1"), (2, "10.201.0.2")] {
        let given = lab.given(&format!("g{n}"), &["h0", "h2"], 16 + n);
        let state = client.create(given).await;
        assert_eq!(told(&state)[0], own);
    }
    let says = "switches.leaf0: switch leaf0 has no McstID left: groups and hosts have those of mcst_prefix 10.201.0.0/30";
    let third = lab.given("g3", &["h0", "h2"], 19);
    let answer = client.create_group(third.clone()).await;
    let status = refused_field(answer, Code::ResourceExhausted, "switches.leaf0", says);
    assert_eq!(status.message(), says);
    // Two lanes take two at each switch.
    let mut two = creation("two", &["h0", "h2"]);
    two.lanes = 2;
    client.destroy("g1").await;
    let status = client.create_group(two).await.unwrap_err();
    let two_left = says.replace("no McstID left", "no 2 McstIDs left, one for each lane");
    assert_eq!(status.message(), two_left);
    let state = client.create(third).await;
    // Freed, and not used again soon.
    assert_eq!(told(&state), ["10.201.0.1", "10.202.0.3"]);
    for group in ["g2", "g3"] {
        client.destroy(group).await;
    }
    // Ranks that come without a group hear it too.
    let mut jobs = lab.ranks(&client, "job", 4, 30).await;
    all(&mut jobs, CollectivePhase::Active).await;
    client.create(lab.given("g4", &["h0", "h2"], 20)).await;
    let mut late = lab.ranks(&client, "late", 4, 40).await;
    let seen = late[0].until(CollectivePhase::Refused).await;
    assert_eq!((&*seen.reason, &*seen.failed_switch), (&says[16..], "leaf0"));
}

#[tokio::test(start_paused = true)]
async fn each_rank_is_told_the_mcst_id_of_its_switch() {
    let lab = lab().await;
    let (controller, mut client) = lab.start().await;
    let request = v1::CreateCollectiveRequest {
        name: "job".into(),
        ranks: (0..4).map(|n| format!("h{n}")).collect(),
        ..Default::default()
    };
    let created = client.create_collective(request).await.unwrap();
    let created = created.into_inner().group.unwrap();
    let own = ["10.201.0.1", "10.201.0.1", "10.202.0.1", "10.202.0.1"];
    let told = |state: &v1::CollectiveState| -> Vec<String> {
        state.members.iter().map(|m| m.mcst_id().to_owned()).collect()
    };
    assert_eq!(told(&created), own);
    let mut ranks = lab.ranks(&client, "job", 4, 17).await;
    for (state, own) in all(&mut ranks, CollectivePhase::Active).await.iter().zip(own) {
        assert_eq!((&*state.mcst_id, &*state.lanes[0].mcst_id), (own, own));
    }
    let (_controller, client) = lab.restart(controller).await;
    let group = shown(&client, "job").await.unwrap();
    assert_eq!(told(&group.state.unwrap()), own);
    let rule = lab.rule("leaf1");
    let edge = hops(&rule).into_iter().find(|(name, ..)| name == "leaf0");
    assert_eq!(edge, Some(hop("leaf0", "10.201.0.1", OPEN, false)));
    client.destroy("job").await;
    vanishes(&client, "job").await;
    assert_eq!(lab.placed(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn each_lane_has_its_own_at_each_switch() {
    let lab = lab().await;
    let (_controller, client) = lab.start().await;
    let mut request = creation("g", &["h1", "h2"]);
    request.lanes = 2;
    client.create(request).await;
    let mut streams = Vec::new();
    for host in ["h1", "h2"] {
        let mut joining = lab.joining("g", host, 17);
        joining.connection = joining.connection.map(|c| ends(c, 2));
        streams.push(client.join(joining).await);
    }
    let lanes = |state: &v1::GroupState| -> Vec<String> {
        state.lanes.iter().map(|lane| lane.mcst_id.clone()).collect()
    };
    assert_eq!(lanes(&last(&mut streams[0]).await), ["10.201.0.1", "10.201.0.2"]);
    assert_eq!(lanes(&last(&mut streams[1]).await), ["10.202.0.1", "10.202.0.2"]);
    for (n, rule) in (1..).zip(lab.rules("leaf1")) {
        let edge = hops(&rule).into_iter().find(|(name, ..)| name == "leaf0");
        assert_eq!(edge, Some(hop("leaf0", &format!("10.201.0.{n}"), OPEN, false)));
        let Some(NextHop::Host(host)) = &rule.endpoints[0].next_hop else {
            panic!("h2")
        };
        assert_eq!((&*rule.mcst_id, host.qpn), (&*format!("10.202.0.{n}"), 16 + n));
    }
}

#[tokio::test(start_paused = true)]
async fn a_mcst_id_that_no_switch_would_have_is_refused() {
    let lab = lab().await;
    let (_controller, mut client) = lab.start().await;
    let with = |members: &[&str]| v1::CreateGroupRequest {
        mcst_id: Some("10.9.0.1".into()),
        ..creation("g", members)
    };
    let answer = client.create_group(with(&["h0", "h2"])).await;
    let says = "10.9.0.1 cannot be had: ";
    refused_field(answer, Code::InvalidArgument, "mcst_id", says);
    client.create(with(&["h0", "h1"])).await;
    let fabric = client.topology().await;
    assert_eq!(fabric.switches[0].mcst_prefix(), "10.201.0.0/30");
    let forwarder = v1::Forwarder {
        name: "rt".into(),
        kind: "router".into(),
    };
    assert_eq!(fabric.forwarders, [forwarder]);
}

/// A switch does not know the addresses that a routed group has elsewhere, so it is told which sources its hosts may not have.
#[tokio::test(start_paused = true)]
async fn switches_learn_which_sources_their_hosts_may_not_have() {
    let lab = lab().await;
    let (_controller, _client) = lab.start().await;
    for (leaf, hosts) in [
        ("leaf0", ["10.0.0.1", "10.0.0.2"]),
        ("leaf1", ["10.0.0.3", "10.0.0.4"]),
    ] {
        let hosts = hosts.iter().enumerate().map(|(port, ip)| v1::HostPort {
            port: port as u32,
            ip: (*ip).into(),
        });
        let wanted = v1::SetSourceGuardRequest {
            hosts: hosts.collect(),
            prefixes: ["10.201.0.0/30", "10.202.0.0/24"].map(String::from).into(),
        };
        let is_told = || lab.switch(leaf).with(|toy| toy.guard == wanted);
        until("it is told", is_told).await;
    }
}
