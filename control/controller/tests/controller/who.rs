//! Who may what, over TLS: a host's certificate can do nothing but join as itself.

use castnet_controller::{Config, Controller};
use castnet_proto::access::Roles;
use castnet_proto::v1;
use castnet_proto::v1::{CollectivePhase, ExchangeAmong};
use castnet_topology::Topology;
use tonic::{Code, Status};

use crate::common::ranks::Rank;
use crate::common::tls::Authority;
use crate::common::{Calls, Client, Lab, creation, destruction, refused};

struct Tls {
    lab: Lab,
    authority: Authority,
    controller: Controller,
    operator: Client,
}

impl Tls {
    async fn new() -> Self {
        Self::with(|_| {}).await
    }

    async fn with(change: impl FnOnce(&mut Config)) -> Self {
        let mut lab = Lab::new(Topology::star(4).unwrap()).await;
        let authority = Authority::new();
        lab.config = Config {
            listen: "https://127.0.0.1:0".parse().unwrap(),
            security: authority.issue(&lab.folder.path().join("server"), &["127.0.0.1", "c1"]),
            roles: Roles {
                operators: vec!["ops".into()],
                read_only: vec!["grafana".into()],
                ..Roles::default()
            },
            ..lab.config
        };
        change(&mut lab.config);
        let controller = Controller::start(lab.config.clone()).await.unwrap();
        let at = controller.address().unwrap();
        let operator = authority.client(lab.folder.path(), at, &["ops"]).await;
        Self {
            operator,
            lab,
            authority,
            controller,
        }
    }

    async fn client(&self, names: &[&str]) -> Client {
        let at = self.controller.address().unwrap();
        self.authority.client(self.lab.folder.path(), at, names).await
    }
}

fn denied<T>(answer: Result<T, Status>, words: &[&str]) {
    let status = refused(answer, Code::PermissionDenied, "");
    for word in words {
        assert!(status.message().contains(word), "{word:?} in {status}");
    }
}

fn registration(lab: &Lab, name: &str, of: &str) -> v1::RegisterHostRequest {
    let known = lab.topology.host(of).unwrap();
    v1::RegisterHostRequest {
        name: name.into(),
        ip: known.ip.unwrap().to_string(),
        mac: castnet_wire::MacAddr(known.mac.unwrap()).to_string(),
    }
}

/// Which calls are for whom is shown by tests of `access`.
#[tokio::test]
async fn a_host_joins_as_itself_and_can_do_nothing_else() {
    let tls = Tls::new().await;
    let (lab, operator) = (&tls.lab, &tls.operator);
    operator.create(creation("g", &["h0", "h1"])).await;
    operator.create(creation("other", &["h2", "h3"])).await;
    let mut h0 = tls.client(&["h0"]).await;

    // As itself.
    let joined = h0.join(lab.joining("g", "h0", 0x10)).await;
    h0.get("g").await;
    h0.register_host(registration(lab, "h0", "h0")).await.unwrap();

    // As another, or into groups of others.
    let who = "h0 (host, from 127.0.0.1:";
    let answer = h0.join_group(lab.joining("g", "h1", 0x11)).await;
    denied(answer, &[who, "join as host \"h1\"", "operator"]);
    let answer = h0.register_host(registration(lab, "h1", "h1")).await;
    denied(answer, &[who, "register as host \"h1\""]);
    let answer = h0.join_group(lab.joining("other", "h0", 0x12)).await;
    denied(answer, &[who, "join group \"other\""]);
    denied(h0.try_get("other").await, &[who, "see group \"other\""]);
    for (group, host, what) in [
        ("g", "h1", "leave as host \"h1\""),
        ("other", "h0", "leave group \"other\""),
    ] {
        let leave = v1::LeaveGroupRequest {
            group: group.into(),
            host: host.into(),
            ..Default::default()
        };
        denied(h0.leave_group(leave).await, &[who, what]);
    }

    // What is for operators, or shows all.
    let answer = h0.create_group(creation("x", &["h0", "h1"])).await;
    denied(answer, &[who, "call CreateGroup", "operator"]);
    let answer = h0.list_groups(v1::ListControllerGroupsRequest {}).await;
    let roles = "operator or controller or read-only";
    denied(answer, &[who, "call ListGroups", roles]);

    // Nothing of that has changed anything.
    assert_eq!(operator.groups().await.len(), 2);
    drop(joined);
    // A certificate without a name is nobody.
    let mut nobody = tls.client(&[]).await;
    let answer = nobody.join_group(lab.joining("g", "h0", 0x10)).await;
    denied(answer, &["without a DNS name"]);
    operator.destroy("g").await;

    let mut reader = tls.client(&["grafana"]).await;
    assert_eq!(reader.groups().await.len(), 1);
    let answer = reader.destroy_group(destruction("other")).await;
    denied(answer, &["grafana (read-only, ", "operator"]);
}

#[tokio::test]
async fn a_job_is_made_of_the_ranks_of_its_hosts() {
    let tls = Tls::new().await;
    let lab = &tls.lab;
    let (h0, h1, mut h2) = (
        tls.client(&["h0"]).await,
        tls.client(&["h1"]).await,
        tls.client(&["h2"]).await,
    );
    let exchange = |rank| v1::ExchangeRequest {
        job: "job".into(),
        rank,
        size: 2,
        blob: vec![rank as u8],
        ..Default::default()
    };
    // Who calls for a rank before there is a group has its place until then.
    let of_three = move |rank, timeout_ms| v1::ExchangeRequest {
        size: 3,
        timeout_ms,
        ..exchange(rank)
    };
    let mut early = h2.clone();
    let early = tokio::spawn(async move { early.exchange(of_three(0, 60_000)).await });
    let mut asks = h1.clone();
    while asks
        .exchange(of_three(1, 1))
        .await
        .unwrap_err()
        .message()
        .contains("rank 0")
    {}
    let mut first = Rank::join(&h0, lab.rank("job", 0, 2, 0x10)).await;
    assert_eq!(early.await.unwrap().unwrap_err().code(), Code::Unavailable);

    // Who could still join sees what it needs for that alone.
    let state = h2.get("job").await.collective.unwrap().state.unwrap();
    assert_eq!((state.lanes.len(), state.members.len()), (1, 0));

    // Nobody takes the place of another host, whatever it says.
    let mut taken = lab.rank("job", 0, 2, 0x20);
    (taken.host, taken.connection) = ("h2".into(), Some(lab.connection("h2", 0x20)));
    taken.rejoin_of = Some(0);
    let answer = h2.init_group(taken).await;
    denied(answer, &["h2 (host, ", "join as rank 0 of group \"job\""]);
    let answer = h2.init_group(lab.rank("job", 0, 2, 0x20)).await;
    denied(answer, &["join as host \"h0\""]);
    let leave = |rank| v1::LeaveGroupRequest {
        group: "job".into(),
        host: "h2".into(),
        rank: Some(rank),
        ..Default::default()
    };
    denied(h2.leave_group(leave(0)).await, &["leave as rank 0"]);
    let nameless = v1::LeaveGroupRequest {
        group: "job\0".into(),
        ..leave(0)
    };
    refused(h2.leave_group(nameless).await, Code::InvalidArgument, "");
    denied(h2.exchange(exchange(0)).await, &["exchange as rank 0"]);

    let mut second = Rank::join(&h1, lab.rank("job", 1, 2, 0x11)).await;
    first.until(CollectivePhase::Active).await;
    second.until(CollectivePhase::Active).await;
    denied(h2.try_get("job").await, &["see group \"job\""]);
    // Nor does it learn how many ranks there are.
    let beyond = v1::ExchangeRequest {
        size: 12,
        ..exchange(9)
    };
    denied(h2.exchange(beyond).await, &["exchange as rank 9"]);
    denied(h2.leave_group(leave(9)).await, &["leave as rank 9"]);
    h1.get("job").await;
    let (mut a, mut b) = (h0.clone(), h1.clone());
    let (a, b) = tokio::join!(a.exchange(exchange(0)), b.exchange(exchange(1)));
    assert_eq!(a.unwrap().into_inner().blobs, b.unwrap().into_inner().blobs);

    // The job ends with its last rank; no operator is needed.
    for (rank, client) in [(0, h0), (1, h1)] {
        let left = client.clone().leave_group(leave(rank)).await;
        assert!(left.unwrap().into_inner().left);
    }
    crate::common::ranks::vanishes(&tls.operator, "job").await;
    drop((first, second));
}

/// Also where no topology file says which host has which address.
#[tokio::test]
async fn a_host_has_one_name_and_nobody_takes_its_address() {
    let tls = Tls::with(|config| config.topology = None).await;
    let lab = &tls.lab;
    let (mut h1, mut h2) = (tls.client(&["H1", "old"]).await, tls.client(&["h2"]).await);
    h1.register_host(registration(lab, "h1", "h1")).await.unwrap();
    for (name, code) in [("h2", Code::AlreadyExists), ("H2", Code::InvalidArgument)] {
        let status = refused(h2.register_host(registration(lab, name, "h1")).await, code, "");
        assert!(!status.message().contains("\"h1\""), "{status}");
    }
    let other = h2.register_host(registration(lab, "H2", "h2")).await;
    let says = "has the name \"h2\": use this one";
    refused(other, Code::InvalidArgument, says);
    let mut job = lab.rank("job", 2, 4, 0x12);
    job.connection = Some(lab.connection("h1", 0x12));
    let says = "address of another host";
    refused(h2.init_group(job).await, Code::AlreadyExists, says);
    h2.register_host(registration(lab, "h2", "h2")).await.unwrap();
    // A machine that has got another name, and an operator.
    h1.register_host(registration(lab, "old", "h1")).await.unwrap();
    let mut operator = tls.operator.clone();
    let again = operator.register_host(registration(lab, "h1", "h1")).await;
    again.unwrap();
    assert_eq!(operator.hosts().await, ["h1", "h2"]);
}

#[tokio::test]
async fn no_host_takes_all_groups() {
    let tls = Tls::with(|config| config.host_groups = 3).await;
    let lab = &tls.lab;
    let (h0, h1) = (tls.client(&["h0"]).await, tls.client(&["h1"]).await);
    let job = |name: &str, rank, lanes: u32| {
        let mut job = lab.rank(name, rank, 2, 0x10);
        job.settings = Some(v1::CollectiveSettings {
            lanes,
            ..Default::default()
        });
        let more = (1..lanes).map(|lane| v1::LaneConnection {
            qpn: 0x10 + lane,
            memory: None,
        });
        job.connection.as_mut().unwrap().more_lanes = more.collect();
        job
    };
    let first = Rank::join(&h0, job("a", 0, 2)).await;
    let mut more = job("b", 0, 2);
    more.connection.as_mut().unwrap().qpn = 0x20;
    more.connection.as_mut().unwrap().more_lanes[0].qpn = 0x21;
    let reason = "host \"h0\" may have created 3 groups, has 2, and this one needs 2";
    let answer = h0.clone().init_group(more).await;
    refused(answer, Code::ResourceExhausted, reason);
    let other = Rank::join(&h1, job("c", 1, 2)).await;
    // An operator is no host, whichever name of the certificate is listed.
    let operator = tls.client(&["h0", "ops"]).await;
    for name in ["d", "e", "f", "g"] {
        operator.create(creation(name, &["h0", "h1"])).await;
    }
    for group in operator.groups().await {
        assert_eq!(group.state.unwrap().owner, "ops");
    }
    drop((first, other));
}

#[tokio::test]
async fn over_tls_somebody_must_be_an_operator() {
    let tls = Tls::new().await;
    let config = Config {
        roles: Roles {
            read_only: vec!["grafana".into()],
            ..Roles::default()
        },
        store: None,
        ..tls.lab.config.clone()
    };
    let refused = Controller::start(config).await.unwrap_err().to_string();
    assert!(refused.contains("--operators"), "{refused}");
}

/// Members that go on from host to host meet at the controller, each at its own place.
#[tokio::test]
async fn nobody_takes_the_place_of_a_member_beside_its_group() {
    let tls = Tls::new().await;
    tls.operator.create(creation("g", &["h0", "h1", "h2"])).await;
    let [mut h0, mut h1, mut h2, mut h3] = [
        tls.client(&["h0"]).await,
        tls.client(&["h1"]).await,
        tls.client(&["h2"]).await,
        tls.client(&["h3"]).await,
    ];
    let exchange = |rank: u32, among: ExchangeAmong| v1::ExchangeRequest {
        job: "g".into(),
        rank,
        size: 3,
        round: 1,
        blob: vec![rank as u8],
        among: among.into(),
        ..Default::default()
    };
    let members = |rank| exchange(rank, ExchangeAmong::Members);
    for among in [ExchangeAmong::Members, ExchangeAmong::Outside] {
        for (rank, size) in [(0, 2), (0, 3), (1, 3), (2, 3), (0, 4)] {
            let call = v1::ExchangeRequest {
                size,
                ..exchange(rank, among)
            };
            let status = refused(h3.exchange(call).await, Code::PermissionDenied, "no member");
            let said = status.message();
            assert!(
                !["h0", "h1", "h2"].into_iter().any(|h| said.contains(h)),
                "{said}"
            );
        }
    }
    denied(
        h1.exchange(members(0)).await,
        &["rank 0 beside group \"g\"", "host \"h0\""],
    );
    denied(h1.exchange(members(2)).await, &["rank 2"]);
    let other_size = v1::ExchangeRequest {
        size: 2,
        ..members(0)
    };
    refused(h0.exchange(other_size).await, Code::InvalidArgument, "");
    let no_group = v1::ExchangeRequest {
        job: "none".into(),
        ..members(0)
    };
    refused(h0.exchange(no_group).await, Code::NotFound, "");
    // Nobody is outside of the tree.
    let outside = h1.exchange(exchange(1, ExchangeAmong::Outside)).await;
    refused(outside, Code::Unavailable, "");

    // A job of that name is another exchange.
    let _other = tokio::spawn({
        let mut h3 = h3.clone();
        let call = exchange(0, ExchangeAmong::Unspecified);
        async move { h3.exchange(call).await }
    });
    let (a, b, c) = tokio::join!(
        h0.exchange(members(0)),
        h1.exchange(members(1)),
        h2.exchange(members(2))
    );
    for blobs in [a, b, c].map(|answer| answer.unwrap().into_inner().blobs) {
        assert_eq!(blobs, [[0], [1], [2]]);
    }
}

#[tokio::test]
async fn a_group_has_its_owner_and_its_description_also_after_a_restart() {
    let tls = Tls::new().await;
    let (lab, mut operator) = (&tls.lab, tls.operator.clone());
    let group = v1::CreateGroupRequest {
        description: "weights".into(),
        ..creation("g", &["h0", "h1"])
    };
    operator.create(group).await;
    let training = v1::CreateCollectiveRequest {
        name: "train".into(),
        ranks: vec!["h0".into(), "h1".into()],
        description: "nightly training".into(),
        ..Default::default()
    };
    operator.create_collective(training).await.unwrap();
    let h0 = tls.client(&["h0"]).await;
    let _rank = Rank::join(&h0, lab.rank("job", 0, 2, 0x10)).await;
    tls.controller.stop().await;
    let controller = Controller::start(lab.config.clone()).await.unwrap();
    let at = controller.address().unwrap();
    let mut operator = tls.authority.client(lab.folder.path(), at, &["ops"]).await;
    let listed = operator.list_groups(v1::ListControllerGroupsRequest {}).await;
    let listed = listed.unwrap().into_inner();
    let group = listed.groups[0].state.as_ref().unwrap();
    assert_eq!((&*group.owner, &*group.description), ("ops", "weights"));
    let jobs = listed.collectives.iter().map(|job| job.state.as_ref().unwrap());
    let jobs: Vec<_> = jobs.map(|job| (&*job.owner, &*job.description)).collect();
    assert_eq!(jobs, [("h0", ""), ("ops", "nightly training")]);
}

#[tokio::test]
async fn a_job_with_a_secret_takes_only_ranks_that_know_it() {
    let lab = Lab::new(Topology::star(4).unwrap()).await;
    let (controller, client) = lab.start().await;
    let with = |rank: u32, secret: &str| v1::InitGroupRequest {
        secret: secret.into(),
        ..lab.rank("job", rank, 2, 0x10 + rank)
    };
    let mut first = Rank::join(&client, with(0, "s3cret")).await;
    for bad in ["", "S3cret"] {
        let answer = client.clone().init_group(with(1, bad)).await;
        denied(answer, &["secret", "\"job\"", "rank 1"]);
    }
    let mut second = Rank::join(&client, with(1, "s3cret")).await;
    first.until(CollectivePhase::Active).await;
    second.until(CollectivePhase::Active).await;
    let exchange = |job: &str, rank, secret: &str| v1::ExchangeRequest {
        job: job.into(),
        rank,
        size: 2,
        secret: secret.into(),
        ..Default::default()
    };
    denied(client.clone().exchange(exchange("job", 1, "")).await, &["secret"]);

    // The store has no secret, and knows it after a restart.
    drop((first, second));
    controller.stop().await;
    let stored = std::fs::read(lab.folder.path().join("controller.redb")).unwrap();
    assert!(!stored.windows(6).any(|w| w == b"s3cret"));
    let (_controller, client) = lab.start().await;
    denied(client.clone().init_group(with(0, "other")).await, &["secret"]);
}

#[tokio::test]
async fn each_change_is_in_the_audit_log_with_who_what_and_how_it_ended() {
    let mut lab = Lab::new(Topology::star(4).unwrap()).await;
    let path = lab.folder.path().join("audit.jsonl");
    lab.config.audit_log = Some(path.clone());
    let (controller, mut client) = lab.start().await;
    client.create(creation("g", &["h0", "h1"])).await;
    let again = client.create_group(creation("g", &["h0", "h1"])).await;
    refused(again, Code::AlreadyExists, "");
    client.groups().await;
    let lines = |path: &std::path::Path, least: usize| -> Vec<serde_json::Value> {
        let start = std::time::Instant::now();
        loop {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            let whole = text.matches('\n').count();
            if whole >= least {
                return text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
            }
            assert!(start.elapsed() < crate::common::PATIENCE, "{text}");
            std::thread::yield_now();
        }
    };
    let seen = lines(&path, 2);
    let part = |line: &serde_json::Value| {
        ["identity", "role", "method", "object", "outcome"].map(|f| line[f].as_str().unwrap().to_owned())
    };
    let wanted = ["127.0.0.1", "operator", "CreateGroup", "g", "ok"];
    assert_eq!(part(&seen[0]), wanted);
    assert_eq!(part(&seen[1])[4], "AlreadyExists");
    assert!(seen[1]["reason"].as_str().unwrap().contains("there is a group"));

    // The file is rotated; the next line makes a new one.
    std::fs::rename(&path, path.with_extension("old")).unwrap();
    client.destroy("g").await;
    let seen = lines(&path, 1);
    assert_eq!(part(&seen[0])[2], "DestroyGroup");
    assert_eq!(lines(&path.with_extension("old"), 2).len(), 2);

    // A disk that is full stops nothing.
    controller.stop().await;
    lab.config.audit_log = Some("/dev/full".into());
    let (_controller, client) = lab.start().await;
    client.create(creation("g2", &["h0", "h1"])).await;
}
