//! Each bad request that the messages alone do not show: its status code, and the field that its message and details name. The others are
//! tests of `castnet_proto::convert`.

use crate::common::{Calls, Events, Lab, creation, destruction, refused, refused_field, start, two_tiers};
use castnet_proto::v1;
use castnet_topology::Topology;
use tonic::Code;

#[tokio::test(start_paused = true)]
async fn bad_groups_are_refused_by_field() {
    let (lab, _controller, mut client) = two_tiers().await;
    client.create(lab.given("taken", &["h0", "h2"], 17)).await;
    client.create(creation("waiting", &["h1", "h3"])).await;
    type Spoil = fn(&mut v1::CreateGroupRequest);
    let cases: [(Code, &str, &str, Spoil); 6] = [
        (Code::AlreadyExists, "name", "active", |r| {
            r.name = "taken".into();
        }),
        (Code::NotFound, "members[1].host", "h9", |r| {
            r.members[1].host = "h9".into();
        }),
        (Code::NotFound, "members[1].host", "leaf0", |r| {
            r.members[1].host = "leaf0".into();
        }),
        (Code::InvalidArgument, "members", "1", |r| {
            r.members.truncate(1);
        }),
        (Code::AlreadyExists, "mcst_id", "taken", |r| {
            r.mcst_id = Some("10.200.0.1".into());
        }),
        (Code::AlreadyExists, "mcst_id", "h3", |r| {
            r.mcst_id = Some("10.0.0.4".into());
        }),
    ];
    for (code, field, says, spoil) in cases {
        let mut request = creation("g", &["h0", "h2"]);
        spoil(&mut request);
        refused_field(client.create_group(request).await, code, field, says);
    }
    assert_eq!(client.groups().await.len(), 2);
    assert_eq!(lab.journal.lock().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn bad_joins_are_refused_by_field() {
    let (lab, _controller, mut client) = two_tiers().await;
    client.create(lab.given("taken", &["h0", "h2"], 17)).await;
    client.create(creation("g", &["h0", "h2"])).await;
    fn of(request: &mut v1::JoinGroupRequest) -> &mut v1::Connection {
        request.connection.as_mut().unwrap()
    }
    type Spoil = fn(&mut v1::JoinGroupRequest);
    let cases: [(Code, &str, &str, Spoil); 6] = [
        (Code::NotFound, "group", "\"h\"", |r| r.group = "h".into()),
        (Code::NotFound, "host", "its members: h0, h2", |r| {
            r.host = "h1".into();
        }),
        (Code::InvalidArgument, "connection", "missing", |r| {
            r.connection = None;
        }),
        (Code::InvalidArgument, "connection.ip", "10.0.0.1", |r| {
            of(r).ip = "10.0.0.9".into();
        }),
        (
            Code::InvalidArgument,
            "connection.mac",
            "02:00:0a:00:00:01",
            |r| {
                of(r).mac = "02:00:00:00:00:99".into();
            },
        ),
        (Code::AlreadyExists, "connection.qpn", "taken", |r| {
            of(r).qpn = 17;
        }),
    ];
    for (code, field, says, spoil) in cases {
        let mut request = lab.joining("g", "h0", 18);
        spoil(&mut request);
        refused_field(client.join_group(request).await, code, field, says);
    }
    let leave = v1::LeaveGroupRequest {
        group: "g".into(),
        host: "h9".into(),
        ..Default::default()
    };
    refused_field(client.leave_group(leave).await, Code::NotFound, "host", "h9");
    let destroy = destruction("x");
    refused_field(client.destroy_group(destroy).await, Code::NotFound, "group", "x");
    let forget = v1::ForgetHostRequest { name: "h3".into() };
    let answer = client.forget_host(forget).await;
    refused(answer, Code::FailedPrecondition, "topology file");
}

#[tokio::test(start_paused = true)]
async fn a_host_has_no_address_or_name_of_others() {
    let mut lab = Lab::new(Topology::star(1).unwrap()).await;
    lab.config.topology = None;
    let (_controller, mut client) = lab.start().await;
    let host = |name: &str, ip: &str, n: u8| v1::RegisterHostRequest {
        name: name.into(),
        ip: ip.into(),
        mac: format!("02:00:00:00:00:0{n}"),
    };
    for _ in 0..2 {
        let known = client.register_host(host("a", "10.0.0.1", 1)).await;
        assert_eq!(known.unwrap().into_inner().host.unwrap().name, "a");
    }
    let twice = client.register_host(host("b", "10.0.0.1", 2)).await;
    refused_field(twice, Code::AlreadyExists, "ip", "\"a\"");
    let switch = client.register_host(host("s0", "10.0.0.2", 2)).await;
    refused_field(switch, Code::AlreadyExists, "name", "switch");
    let group = v1::CreateGroupRequest {
        mcst_id: Some("10.0.0.1".into()),
        ..creation("g", &["a", "b"])
    };
    let answer = client.create_group(group).await;
    refused_field(answer, Code::AlreadyExists, "mcst_id", "\"a\"");
}

#[tokio::test(start_paused = true)]
async fn the_fabric_is_looked_at_before_anybody_joins() {
    // Two stars without a link between them, and a narrow link.
    let text = r#"
        switches = [{ name = "a", ports = 3 }, { name = "b", ports = 2 }]
        hosts = [{ name = "h0" }, { name = "h1" }, { name = "h2" }]
        links = [{ a = "a:0", b = "h0" }, { a = "a:1", b = "h1", mtu = 1500 }, { a = "b:0", b = "h2" }]
    "#;
    let lab = Lab::new(Topology::from_toml(text).unwrap()).await;
    let (_controller, mut client) = lab.start().await;
    let answer = client.create_group(creation("g", &["h0", "h1", "h2"])).await;
    refused_field(answer, Code::InvalidArgument, "members[2].host", "no path");
    let request = v1::CreateGroupRequest {
        pmtu: 4096,
        ..creation("g", &["h0", "h1"])
    };
    let answer = client.create_group(request).await;
    refused_field(answer, Code::InvalidArgument, "pmtu", "1500");
    client.create(creation("g", &["h0", "h1"])).await;
}

#[tokio::test(start_paused = true)]
async fn mcst_ids_end_and_come_back() {
    let mut lab = Lab::new(Topology::star(3).unwrap()).await;
    lab.config.mcst_pool = "10.200.0.0/30".parse().unwrap();
    let (_controller, mut client) = lab.start().await;
    for name in ["a", "b"] {
        client.create(creation(name, &["h0", "h1"])).await;
    }
    let third = client.create_group(creation("c", &["h0", "h1"])).await;
    let says = "all 2 McstIDs are in use";
    refused_field(third, Code::ResourceExhausted, "mcst_id", says);
    client.destroy("a").await;
    let third = client.create(creation("c", &["h0", "h1"])).await;
    assert_eq!(third.mcst_id, "10.200.0.1");
}

#[tokio::test(start_paused = true)]
async fn an_agent_of_another_switch_is_not_believed() {
    let mut lab = Lab::new(Topology::star(2).unwrap()).await;
    lab.config.topology = None;
    lab.config.switches[0].name = "other".into();
    let (_controller, client) = start(lab.config.clone()).await;
    let mut events = Events::of(&client).await;
    let mut switch = client.switches().await.remove(0);
    if switch.reason == "not tried yet" {
        switch = events.switch("other", false).await;
    }
    let says = "is the agent of switch \"s0\", not of \"other\"";
    assert!(switch.reason.contains(says), "{}", switch.reason);
}
