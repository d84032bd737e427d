//! Each bad request: its status code, and the field that its message and details name.

use crate::common::{Lab, creation, destruction, start};
use castnet_controller::{Config, Controller, StartError};
use castnet_proto::convert::violations;
use castnet_proto::transport::Security;
use castnet_proto::v1;
use castnet_topology::Topology;
use tonic::{Code, Status};

fn assert_refused<T: std::fmt::Debug>(answer: Result<T, Status>, code: Code, field: &str, says: &str) {
    let status = answer.expect_err(field);
    assert_eq!(status.code(), code, "{}", status.message());
    assert!(
        status.message().starts_with(&format!("{field}: ")),
        "{}: {}",
        field,
        status.message()
    );
    assert_eq!(violations(&status)[0].field, field);
    assert!(status.message().contains(says), "{}", status.message());
}

#[tokio::test(start_paused = true)]
async fn bad_groups_are_refused_by_field() {
    let lab = Lab::two_tiers().await;
    let (_controller, mut client) = lab.start().await;
    client
        .create_group(lab.given("taken", &["h0", "h2"], 17))
        .await
        .unwrap();
    client
        .create_group(creation("waiting", &["h1", "h3"]))
        .await
        .unwrap();
    type Spoil = fn(&mut v1::CreateGroupRequest);
    let cases: [(Spoil, Code, &str, &str); 13] = [
        (|r| r.name = "taken".into(), Code::AlreadyExists, "name", "active"),
        (|r| r.name = "a b".into(), Code::InvalidArgument, "name", "a b"),
        (|r| r.source = "h3".into(), Code::InvalidArgument, "source", "h3"),
        (
            |r| r.members[1].host = "h0".into(),
            Code::InvalidArgument,
            "members[1].host",
            "members[0]",
        ),
        (
            |r| r.members[1].host = "h9".into(),
            Code::NotFound,
            "members[1].host",
            "h9",
        ),
        (
            |r| r.members[1].host = "leaf0".into(),
            Code::NotFound,
            "members[1].host",
            "leaf0",
        ),
        (|r| r.members.truncate(1), Code::InvalidArgument, "members", "1"),
        (|r| r.pmtu = 1500, Code::InvalidArgument, "pmtu", "1500"),
        (
            |r| r.start_psn = Some(1 << 24),
            Code::InvalidArgument,
            "start_psn",
            "24 bits",
        ),
        (
            |r| r.mcst_id = Some("10.200.0.1".into()),
            Code::AlreadyExists,
            "mcst_id",
            "taken",
        ),
        (
            |r| r.mcst_id = Some("10.0.0.4".into()),
            Code::AlreadyExists,
            "mcst_id",
            "h3",
        ),
        (
            |r| r.mcst_id = Some("239.1.1.1".into()),
            Code::InvalidArgument,
            "mcst_id",
            "239.1.1.1",
        ),
        (
            |r| {
                r.members[0].connection = Some(v1::Connection {
                    qpn: 1,
                    ..connection("10.0.0.1")
                })
            },
            Code::InvalidArgument,
            "members[0].connection.qpn",
            "reserved",
        ),
    ];
    for (spoil, code, field, says) in cases {
        let mut request = creation("g", &["h0", "h2"]);
        spoil(&mut request);
        assert_refused(client.create_group(request).await, code, field, says);
    }
    let groups = client
        .list_groups(v1::ListControllerGroupsRequest {})
        .await
        .unwrap()
        .into_inner()
        .groups;
    assert_eq!(groups.len(), 2);
    assert_eq!(lab.journal.lock().len(), 3);
}

fn connection(ip: &str) -> v1::Connection {
    let last = ip.rsplit('.').next().unwrap();
    v1::Connection {
        ip: ip.into(),
        mac: format!("02:00:0a:00:00:0{last}"),
        qpn: 17,
        ..Default::default()
    }
}

#[tokio::test(start_paused = true)]
async fn bad_joins_are_refused_by_field() {
    let lab = Lab::two_tiers().await;
    let (_controller, mut client) = lab.start().await;
    client
        .create_group(lab.given("taken", &["h0", "h2"], 17))
        .await
        .unwrap();
    client.create_group(creation("g", &["h0", "h2"])).await.unwrap();
    type Spoil = fn(&mut v1::JoinGroupRequest);
    let cases: [(Spoil, Code, &str, &str); 10] = [
        (|r| r.group = "h".into(), Code::NotFound, "group", "\"h\""),
        (
            |r| r.host = "h1".into(),
            Code::NotFound,
            "host",
            "its members: h0, h2",
        ),
        (
            |r| r.host = String::new(),
            Code::InvalidArgument,
            "host",
            "missing",
        ),
        (
            |r| r.connection = None,
            Code::InvalidArgument,
            "connection",
            "missing",
        ),
        (
            |r| of(r).ip = "10.0.0.9".into(),
            Code::InvalidArgument,
            "connection.ip",
            "10.0.0.1",
        ),
        (
            |r| of(r).mac = "02:00:00:00:00:99".into(),
            Code::InvalidArgument,
            "connection.mac",
            "02:00:0a:00:00:01",
        ),
        (
            |r| of(r).mac = "ff:ff:ff:ff:ff:ff".into(),
            Code::InvalidArgument,
            "connection.mac",
            "broadcast",
        ),
        (
            |r| of(r).qpn = 1 << 24,
            Code::InvalidArgument,
            "connection.qpn",
            "24 bits",
        ),
        (|r| of(r).qpn = 17, Code::AlreadyExists, "connection.qpn", "taken"),
        (
            |r| {
                of(r).memory = Some(v1::RemoteMemory {
                    va: u64::MAX,
                    rkey: 0,
                    length: 2,
                })
            },
            Code::InvalidArgument,
            "connection.memory.length",
            "address space",
        ),
    ];
    fn of(request: &mut v1::JoinGroupRequest) -> &mut v1::Connection {
        request.connection.as_mut().unwrap()
    }
    for (spoil, code, field, says) in cases {
        let mut request = lab.joining("g", "h0", 18);
        spoil(&mut request);
        assert_refused(client.join_group(request).await, code, field, says);
    }
    let leave = v1::LeaveGroupRequest {
        group: "g".into(),
        host: "h9".into(),
        rank: None,
        ..Default::default()
    };
    assert_refused(client.leave_group(leave).await, Code::NotFound, "host", "h9");
    let destroy = destruction("x");
    assert_refused(client.destroy_group(destroy).await, Code::NotFound, "group", "x");
}

#[tokio::test(start_paused = true)]
async fn hosts_are_registered_once_and_for_all() {
    let mut lab = Lab::new(Topology::star(1).unwrap()).await;
    lab.config.topology = None;
    let (_controller, mut client) = lab.start().await;
    let host = |name: &str, ip: &str, mac: &str| v1::RegisterHostRequest {
        name: name.into(),
        ip: ip.into(),
        mac: mac.into(),
    };
    let good = host("a", "10.0.0.1", "02:00:00:00:00:01");
    assert_eq!(
        client
            .register_host(good.clone())
            .await
            .unwrap()
            .into_inner()
            .host
            .unwrap()
            .name,
        "a"
    );
    client.register_host(good).await.unwrap();
    let twice = host("b", "10.0.0.1", "02:00:00:00:00:02");
    assert_refused(
        client.register_host(twice).await,
        Code::AlreadyExists,
        "ip",
        "\"a\"",
    );
    let switch = host("s0", "10.0.0.2", "02:00:00:00:00:02");
    assert_refused(
        client.register_host(switch).await,
        Code::AlreadyExists,
        "name",
        "switch",
    );
    let bad = host("b", "10.0.0.256", "02:00:00:00:00:02");
    assert_refused(
        client.register_host(bad).await,
        Code::InvalidArgument,
        "ip",
        "10.0.0.256",
    );
    let group = v1::CreateGroupRequest {
        mcst_id: Some("10.0.0.1".into()),
        ..creation("g", &["a", "b"])
    };
    assert_refused(
        client.create_group(group).await,
        Code::AlreadyExists,
        "mcst_id",
        "\"a\"",
    );
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
    let request = creation("g", &["h0", "h1", "h2"]);
    assert_refused(
        client.create_group(request).await,
        Code::InvalidArgument,
        "members[2].host",
        "no path",
    );
    let request = v1::CreateGroupRequest {
        pmtu: 4096,
        ..creation("g", &["h0", "h1"])
    };
    assert_refused(
        client.create_group(request).await,
        Code::InvalidArgument,
        "pmtu",
        "1500",
    );
    client.create_group(creation("g", &["h0", "h1"])).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn mcst_ids_end_and_come_back() {
    let mut lab = Lab::new(Topology::star(3).unwrap()).await;
    lab.config.mcst_pool = "10.200.0.0/30".parse().unwrap();
    let (_controller, mut client) = lab.start().await;
    for name in ["a", "b"] {
        client.create_group(creation(name, &["h0", "h1"])).await.unwrap();
    }
    let third = client.create_group(creation("c", &["h0", "h1"])).await;
    assert_refused(
        third,
        Code::ResourceExhausted,
        "mcst_id",
        "all 2 McstIDs are in use",
    );
    client.destroy_group(destruction("a")).await.unwrap();
    let third = client
        .create_group(creation("c", &["h0", "h1"]))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(third.group.unwrap().mcst_id, "10.200.0.1");
}

#[tokio::test(start_paused = true)]
async fn an_agent_of_another_switch_is_not_believed() {
    let mut lab = Lab::new(Topology::star(2).unwrap()).await;
    lab.config.topology = None;
    lab.config.switches[0].name = "other".into();
    let (_controller, mut client) = start(lab.config.clone()).await;
    let mut events = crate::common::Events::of(&client).await;
    let mut switch = client
        .list_switches(v1::ListSwitchesRequest {})
        .await
        .unwrap()
        .into_inner()
        .switches
        .remove(0);
    if switch.reason == "not tried yet" {
        switch = events.switch("other", false).await;
    }
    assert!(
        switch
            .reason
            .contains("is the agent of switch \"s0\", not of \"other\""),
        "{}",
        switch.reason
    );
}

#[tokio::test(start_paused = true)]
async fn plaintext_beyond_this_machine_needs_the_flag() {
    let listen = "http://0.0.0.0:0".parse().unwrap();
    let config = Config {
        listen,
        ..Config::new(Vec::new())
    };
    match Controller::start(config.clone()).await {
        Err(StartError::Transport(error)) => assert!(error.to_string().contains("--insecure"), "{error}"),
        other => panic!("{:?}", other.map(|_| ())),
    }
    let security = Security {
        insecure: true,
        ..Security::default()
    };
    Controller::start(Config { security, ..config })
        .await
        .unwrap()
        .stop()
        .await;
}
