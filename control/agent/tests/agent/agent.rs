//! A real dataplane over memory links, its agent on loopback, and a client.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use castnet_agent::{Agent, LoadError, load_rules};
use castnet_port::{Batch, MemEnd, MemLink, MemLinkConfig, MemPort, Pool, PoolConfig, Port, Sides};
use castnet_proto::convert::{rule_to_proto, violations};
use castnet_proto::transport::{Address, Security, connect};
use castnet_proto::v1;
use castnet_proto::v1::agent_client::AgentClient;
use castnet_proto::v1::agent_event::Event;
use castnet_proto::v1::installed_group::State;
use castnet_rules::{Endpoint, GroupRule, HostEndpoint, HostPart, MulticastRule, NextHop, RuleSet};
use castnet_wire::build::emit_arp;
use castnet_wire::{Arp, MacAddr, McstId, Pmtu, PortId, Psn, Qpn};
use castnet_worker::engine::TAPS_MAX;
use castnet_worker::{Dataplane, DataplaneConfig, PortConfig};
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

/// Longer than anything here takes; only a test that fails waits for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) struct Lab {
    pub(crate) dataplane: Arc<Dataplane>,
    agent: Agent,
    pub(crate) client: AgentClient<Channel>,
    /// The hosts' ends of the links.
    ends: Vec<MemEnd>,
}

impl Lab {
    /// A switch with three ports.
    pub(crate) async fn new(set_up: impl FnOnce(&mut DataplaneConfig)) -> Self {
        let links: Vec<(MemEnd, MemEnd)> = (0..3)
            .map(|n| MemLink::pair(&MemLinkConfig::between(&format!("p{n}"), &format!("h{n}")).mtu(1500)))
            .collect();
        let (ours, ends): (Vec<MemEnd>, Vec<MemEnd>) = links.into_iter().unzip();
        let ports = ours
            .into_iter()
            .enumerate()
            .map(|(n, end)| PortConfig::new(port(n), format!("p{n}"), end));
        let mut config = DataplaneConfig::new("leaf", ports.collect());
        set_up(&mut config);
        let start = tokio::task::spawn_blocking(move || Dataplane::start(config));
        let dataplane = Arc::new(start.await.unwrap().unwrap());
        let listen = "http://127.0.0.1:0".parse().unwrap();
        let agent = Agent::start(dataplane.clone(), &listen, &Security::default())
            .await
            .unwrap();
        let client = AgentClient::new(connect(agent.address(), &Security::default()).await.unwrap());
        Self {
            dataplane,
            agent,
            client,
            ends,
        }
    }

    pub(crate) async fn install(
        &mut self,
        rule: &GroupRule,
        owner: &str,
    ) -> Result<v1::InstallOutcome, Status> {
        let request = v1::InstallGroupRequest {
            rule: Some(rule_to_proto(rule)),
            owner: owner.into(),
        };
        Ok(self.client.install_group(request).await?.into_inner().outcome())
    }

    async fn remove(&mut self, owner: Option<&str>, generation: Option<u64>) -> Result<bool, Status> {
        let (mcst_id, owner) = ("10.200.0.1".into(), owner.map(String::from));
        let request = v1::RemoveGroupRequest {
            mcst_id,
            owner,
            generation,
        };
        Ok(self.client.remove_group(request).await?.into_inner().removed)
    }

    pub(crate) fn address(&self) -> &Address {
        self.agent.address()
    }

    pub(crate) async fn groups(&mut self) -> Vec<v1::InstalledGroup> {
        self.client
            .list_groups(v1::ListGroupsRequest::default())
            .await
            .unwrap()
            .into_inner()
            .groups
    }

    fn host(&self, n: usize) -> Host {
        Host::new(&self.ends[n], n)
    }
}

/// A host that asks for others' addresses.
struct Host {
    pool: Pool,
    port: MemPort,
    mac: MacAddr,
    ip: Ipv4Addr,
}

impl Host {
    fn new(end: &MemEnd, n: usize) -> Self {
        let pool = Pool::new(PoolConfig {
            buffers: 64,
            bodies: 64,
            frame_max: 2048,
        });
        let port = end.open(&pool, Sides::Both);
        Self {
            pool,
            port,
            mac: mac(n),
            ip: Ipv4Addr::new(10, 0, 0, n as u8 + 1),
        }
    }

    fn ask_for(&mut self, ip: Ipv4Addr) -> Vec<u8> {
        let mut frame = vec![0; 60];
        emit_arp(
            &mut frame,
            MacAddr::BROADCAST,
            &Arp::request(self.mac, self.ip, ip),
        )
        .unwrap();
        let mut batch = Batch::new();
        batch.push(self.pool.copy_from(&frame).unwrap());
        self.port.send(&mut batch);
        frame
    }
}

pub(crate) fn port(n: usize) -> PortId {
    PortId::new(n as u8).unwrap()
}

pub(crate) fn mac(n: usize) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, n as u8 + 1])
}

/// From the host at port 0 to the one at port 1 and a switch at port 2.
pub(crate) fn rule(generation: u64) -> GroupRule {
    let host = |n: usize| {
        Endpoint::new(
            port(n),
            NextHop::Host(HostEndpoint {
                name: format!("h{n}"),
                ip: Ipv4Addr::new(10, 0, 0, n as u8 + 1),
                qpn: Qpn::new(17),
                mac: mac(n),
                part: HostPart::Plain,
            }),
        )
    };
    let switch = NextHop::switch("spine".into(), mac(99));
    GroupRule {
        name: "g".into(),
        generation,
        mcst_id: McstId([10, 200, 0, 1].into()),
        pmtu: Pmtu::B1024,
        stall_timeout_ms: 1000,
        rate_limit: None,
        endpoints: vec![host(0), host(1), Endpoint::new(port(2), switch)],
        kind: MulticastRule {
            start_psn: Some(Psn::new(100)),
            va_base: 0,
            carries_on: None,
            any_source: None,
            repair: None,
            hold_fatal_naks: false,
            source: 0,
        }
        .into(),
    }
}

pub(crate) fn assert_refused<T: std::fmt::Debug>(
    answer: Result<T, Status>,
    code: Code,
    field: &str,
    says: &str,
) {
    let status = answer.expect_err(field);
    assert_eq!(
        (status.code(), violations(&status)[0].field.as_str()),
        (code, field),
        "{}",
        status.message()
    );
    assert!(
        status.message().starts_with(field) && status.message().contains(says),
        "{}",
        status.message()
    );
}

async fn next<T>(stream: &mut Streaming<T>) -> T {
    tokio::time::timeout(PATIENCE, stream.message())
        .await
        .expect("in time")
        .unwrap()
        .expect("a message")
}

pub(crate) async fn until<T>(
    stream: &mut Streaming<v1::AgentEvent>,
    wanted: impl Fn(&Event) -> Option<T>,
) -> T {
    loop {
        if let Some(found) = next(stream).await.event.as_ref().and_then(&wanted) {
            return found;
        }
    }
}

#[tokio::test]
async fn the_same_rule_again_is_no_change_and_others_rules_are_safe() {
    use v1::InstallOutcome::{Installed, Replaced, Unchanged};
    let mut lab = Lab::new(|_| {}).await;
    assert_eq!(lab.install(&rule(2), "us").await.unwrap(), Installed);
    let tables = lab.dataplane.generation();
    assert_eq!(lab.install(&rule(2), "us").await.unwrap(), Unchanged);
    // After a restart of the controller the start PSN is not known any more: the running one stays.
    let learning = rule(2).with_multicast(|rule| rule.start_psn = None);
    assert_eq!(lab.install(&learning, "us").await.unwrap(), Unchanged);
    let other = rule(2).with_multicast(|rule| rule.va_base = 1);
    assert_refused(
        lab.install(&other, "us").await,
        Code::FailedPrecondition,
        "rule.generation",
        "another rule",
    );
    assert_refused(
        lab.install(&rule(1), "us").await,
        Code::FailedPrecondition,
        "rule.generation",
        "2",
    );
    assert_refused(
        lab.install(&rule(3), "them").await,
        Code::AlreadyExists,
        "rule.mcst_id",
        "\"us\"",
    );
    assert_refused(
        lab.install(&rule(3), "").await,
        Code::AlreadyExists,
        "rule.mcst_id",
        "\"us\"",
    );
    let named = GroupRule {
        mcst_id: McstId([10, 200, 0, 2].into()),
        ..rule(1)
    };
    assert_refused(
        lab.install(&named, "us").await,
        Code::AlreadyExists,
        "rule.name",
        "10.200.0.1",
    );
    assert_eq!(lab.dataplane.generation(), tables, "nothing was touched");

    let groups = lab.groups().await;
    assert_eq!((groups.len(), groups[0].owner.as_str()), (1, "us"));
    assert_eq!(groups[0].rule, Some(rule_to_proto(&rule(2))));
    let Some(State::Multicast(state)) = &groups[0].state else {
        panic!("{groups:?}");
    };
    let paths: Vec<_> = state
        .paths
        .iter()
        .map(|p| (p.next_hop.as_str(), p.source, p.stalled))
        .collect();
    assert_eq!(
        paths,
        [("h0", true, false), ("h1", false, false), ("spine", false, false)]
    );
    assert!(state.hot_bytes > 0 && state.cold_bytes > 0);

    assert_eq!(lab.install(&rule(3), "us").await.unwrap(), Replaced);
    assert_refused(
        lab.remove(Some("them"), None).await,
        Code::FailedPrecondition,
        "owner",
        "\"us\"",
    );
    assert_refused(
        lab.remove(Some("us"), Some(2)).await,
        Code::FailedPrecondition,
        "generation",
        "3",
    );
    assert!(lab.remove(Some("us"), Some(3)).await.unwrap());
    assert!(!lab.remove(None, None).await.unwrap());
    assert!(lab.groups().await.is_empty());
    // An operator's group is an operator's.
    assert_eq!(lab.install(&rule(1), "").await.unwrap(), Installed);
    assert_refused(
        lab.remove(Some("us"), None).await,
        Code::FailedPrecondition,
        "owner",
        "operator",
    );
    assert!(lab.remove(None, None).await.unwrap());
}

#[tokio::test]
async fn what_does_not_fit_names_the_field() {
    let mut lab = Lab::new(|config| config.engine.groups_max = 1).await;
    let with = |change: fn(&mut GroupRule)| {
        let mut rule = rule(1);
        change(&mut rule);
        rule
    };
    type Change = fn(&mut GroupRule);
    let cases: [(Change, &str, &str); 4] = [
        (|r| r.endpoints[2].port = port(7), "rule.endpoints[2].port", "7"),
        (|r| r.pmtu = Pmtu::B4096, "rule.pmtu", "1500"),
        (
            |r| *r = r.clone().with_multicast(|rule| rule.source = 9),
            "rule.multicast.source",
            "9",
        ),
        (|r| r.endpoints.truncate(1), "rule.endpoints", "1"),
    ];
    for (change, field, says) in cases {
        assert_refused(
            lab.install(&with(change), "us").await,
            Code::InvalidArgument,
            field,
            says,
        );
    }
    let answer = lab.client.install_group(v1::InstallGroupRequest::default()).await;
    assert_refused(answer, Code::InvalidArgument, "rule", "missing");
    lab.install(&rule(1), "us").await.unwrap();
    let second = with(|r| {
        r.name = "h".into();
        r.mcst_id = McstId([10, 200, 0, 2].into());
        for path in &mut r.endpoints {
            if let NextHop::Host(host) = &mut path.next_hop {
                host.qpn = Qpn::new(18);
            }
        }
    });
    assert_refused(
        lab.install(&second, "us").await,
        Code::ResourceExhausted,
        "rule",
        "1 groups",
    );
    assert_eq!(lab.groups().await.len(), 1);

    let mut small = Lab::new(|config| config.engine.memory_bytes_max = 16).await;
    assert_refused(
        small.install(&rule(1), "us").await,
        Code::ResourceExhausted,
        "rule",
        "of 16 are left",
    );
}

#[tokio::test]
async fn it_says_what_the_switch_is_and_how_it_fares() {
    let mut lab = Lab::new(|_| {}).await;
    let said = lab
        .client
        .get_capabilities(v1::GetCapabilitiesRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        (said.switch_name.as_str(), said.workers, said.endpoints_max),
        ("leaf", 1, 1024)
    );
    assert_eq!(said.ports, ["p0", "p1", "p2"]);
    assert_eq!(said.pmtus, [256, 512, 1024]);
    assert_eq!(said.memory_bytes_free, said.memory_bytes_max);
    assert_ne!(said.boot_id, 0);
    lab.install(&rule(1), "us").await.unwrap();
    let now = lab
        .client
        .get_capabilities(v1::GetCapabilitiesRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!((now.groups, now.boot_id), (1, said.boot_id));
    assert!(now.memory_bytes_free < now.memory_bytes_max);
    let ports = lab
        .client
        .list_ports(v1::ListPortsRequest {})
        .await
        .unwrap()
        .into_inner()
        .ports;
    assert_eq!(
        ports
            .iter()
            .map(|p| (p.name.as_str(), p.mtu, p.up))
            .collect::<Vec<_>>()[2],
        ("p2", 1500, true)
    );
    let stats = lab
        .client
        .get_runtime_stats(v1::GetRuntimeStatsRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!((stats.workers.len(), stats.workers[0].groups), (1, 1));
    let none = lab
        .client
        .get_drops(v1::GetDropsRequest { all: false })
        .await
        .unwrap()
        .into_inner();
    let all = lab
        .client
        .get_drops(v1::GetDropsRequest { all: true })
        .await
        .unwrap()
        .into_inner();
    assert!(none.drops.is_empty() && all.drops.iter().any(|d| d.reason == "bad-icrc"));
}

/// One ARP request, from every side: event, neighbour, forwarding entry, counters, live trace, capture, dry run.
#[tokio::test]
async fn a_frame_shows_wherever_one_looks() {
    let mut lab = Lab::new(|config| config.engine.lldp_interval = None).await;
    let mut events = lab
        .client
        .watch_events(v1::WatchAgentEventsRequest {})
        .await
        .unwrap()
        .into_inner();
    assert!(matches!(next(&mut events).await.event, Some(Event::Hello(_))));
    lab.install(&rule(1), "us").await.unwrap();
    let installed = |event: &Event| match event {
        Event::Group(g) if !g.removed => Some((g.group.clone(), g.generation)),
        _ => None,
    };
    assert_eq!(until(&mut events, installed).await, ("g".to_string(), 1));

    let from_h1 = v1::FrameFilter {
        src_ip: Some("10.0.0.2".into()),
        ..Default::default()
    };
    let what = Some(v1::trace_request::What::Filter(from_h1.clone()));
    let mut traces = lab
        .client
        .trace(v1::TraceRequest { what, frames_max: 1 })
        .await
        .unwrap()
        .into_inner();
    let capture = v1::CaptureRequest {
        filter: Some(from_h1),
        snap_length: 20,
        frames_max: 1,
    };
    let mut captured = lab.client.capture(capture).await.unwrap().into_inner();

    // Not from there: sorted out. Then one that is.
    lab.host(0).ask_for([10, 200, 0, 1].into());
    let frame = lab.host(1).ask_for([10, 200, 0, 1].into());
    let seen = |event: &Event| match event {
        Event::Neighbour(v1::NeighbourChanged {
            neighbour: Some(n),
            gone: false,
        }) if n.port == 1 => n.kind.clone(),
        _ => None,
    };
    let host = v1::HostNeighbour {
        ip: "10.0.0.2".into(),
        mac: mac(1).to_string(),
    };
    assert_eq!(until(&mut events, seen).await, v1::neighbour::Kind::Host(host));
    let neighbours = lab
        .client
        .list_neighbours(v1::ListNeighboursRequest {})
        .await
        .unwrap()
        .into_inner()
        .neighbours;
    assert_eq!(neighbours.iter().map(|n| n.port).collect::<Vec<_>>(), [0, 1]);
    let fdb = lab
        .client
        .list_fdb(v1::ListFdbRequest {})
        .await
        .unwrap()
        .into_inner()
        .entries;
    assert_eq!(
        fdb.iter().map(|e| (e.mac.clone(), e.port)).collect::<Vec<_>>()[1],
        (mac(1).to_string(), 1)
    );

    let trace = next(&mut traces).await;
    assert_eq!(
        (trace.ingress, trace.outputs.len(), trace.drop_reason),
        (1, 1, None)
    );
    assert!(trace.steps.iter().any(|s| s.stage == "arp"), "{:?}", trace.steps);
    assert!(traces.message().await.unwrap().is_none(), "ends after one");
    let captured = next(&mut captured).await;
    assert_eq!((captured.port, captured.direction()), (1, v1::Direction::In));
    assert_eq!(
        (&captured.bytes[..], captured.length as usize),
        (&frame[..20], frame.len())
    );
    assert!(captured.at_unix_ns > 0);

    let counters = lab
        .client
        .get_counters(v1::GetCountersRequest {})
        .await
        .unwrap()
        .into_inner();
    let totals = counters.totals.unwrap();
    assert_eq!((totals.received, totals.absorbed, totals.originated), (2, 2, 2));
    assert_eq!(counters.ports[1].counters.as_ref().unwrap().rx_frames, 1);
    assert_eq!(counters.groups[0].rule.as_ref().unwrap().name, "g");

    let dry_run = |bytes, port| {
        let what = Some(v1::trace_request::What::Frame(v1::GivenFrame { port, bytes }));
        v1::TraceRequest { what, frames_max: 0 }
    };
    let mut dry = lab
        .client
        .trace(dry_run(frame.clone(), 1))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(next(&mut dry).await.outputs.len(), 1);
    let after = lab
        .client
        .get_counters(v1::GetCountersRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(after.totals, Some(totals), "a dry run changes nothing");
    assert_refused(
        lab.client.trace(dry_run(Vec::new(), 1)).await,
        Code::InvalidArgument,
        "frame.bytes",
        "0 bytes",
    );
    assert_refused(
        lab.client.trace(dry_run(frame, 7)).await,
        Code::InvalidArgument,
        "frame.port",
        "7",
    );
}

/// A client that goes gives its place back though no frame matches; one that takes nothing is ended, and reads how much it
/// lost. Meanwhile one more is refused with the number of places.
#[tokio::test]
async fn clients_that_go_or_take_nothing_give_their_places_back() {
    let mut lab = Lab::new(|config| config.engine.lldp_interval = None).await;
    let mut host = lab.host(0);
    let capture = |src_ip: Option<&str>| v1::CaptureRequest {
        filter: Some(v1::FrameFilter {
            src_ip: src_ip.map(String::from),
            ..Default::default()
        }),
        ..Default::default()
    };
    let nobody = capture(Some("192.0.2.1"));
    let mut stalled = lab.client.capture(capture(None)).await.unwrap().into_inner();
    let mut others = Vec::new();
    for _ in 1..TAPS_MAX {
        others.push(lab.client.capture(nobody.clone()).await.unwrap().into_inner());
    }
    drop(others.pop());
    // First the place of the one that went is free again, then that of the one that takes nothing.
    for _ in 0..2 {
        let retry = async {
            loop {
                for _ in 0..32 {
                    host.ask_for([10, 0, 0, 9].into());
                }
                match lab.client.capture(nobody.clone()).await {
                    Ok(stream) => return stream.into_inner(),
                    Err(status) => {
                        assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
                        let says = "8 live traces and captures are running";
                        assert!(status.message().starts_with(says), "{status}");
                    }
                }
            }
        };
        others.push(tokio::time::timeout(PATIENCE, retry).await.expect("a free place"));
    }
    let end = loop {
        match stalled.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it ended without a word"),
            Err(status) => break status,
        }
    };
    assert_eq!(end.code(), Code::ResourceExhausted, "{end}");
    assert!(end.message().ends_with("frames were lost"), "{end}");
}

#[tokio::test]
async fn a_rule_file_is_loaded_whole_or_not_at_all() {
    let lab = Lab::new(|config| config.engine.groups_max = 1).await;
    let groups = vec![rule(0), {
        let mut second = rule(0);
        second.name = "h".into();
        second.mcst_id = McstId([10, 200, 0, 2].into());
        for path in &mut second.endpoints {
            if let NextHop::Host(host) = &mut path.next_hop {
                host.qpn = Qpn::new(18);
            }
        }
        second
    }];
    let load = |groups: &[GroupRule]| {
        let (dataplane, rules) = (
            lab.dataplane.clone(),
            RuleSet {
                groups: groups.to_vec(),
                ..RuleSet::default()
            },
        );
        tokio::task::spawn_blocking(move || load_rules(&dataplane, &rules))
    };
    let refused = load(&groups).await.unwrap().unwrap_err();
    assert!(
        matches!(&refused, LoadError::Group { name, .. } if name == "h"),
        "{refused}"
    );
    assert!(lab.dataplane.rules().is_empty());
    let mut beyond = rule(0);
    beyond.endpoints[2].port = port(3);
    assert!(matches!(
        load(&[beyond]).await.unwrap(),
        Err(LoadError::Faults { ports: 3, .. })
    ));
    load(&groups[..1]).await.unwrap().unwrap();
    assert_eq!(lab.dataplane.rules(), [rule(0)]);
}

#[tokio::test]
async fn a_group_moves_to_another_worker_and_all_are_told() {
    let mut lab = Lab::new(|config| {
        config.workers = vec![Default::default(); 2];
        config.balance = None;
    })
    .await;
    let mut events = lab
        .client
        .watch_events(v1::WatchAgentEventsRequest {})
        .await
        .unwrap()
        .into_inner();
    assert!(matches!(next(&mut events).await.event, Some(Event::Hello(_))));
    lab.install(&rule(1), "us").await.unwrap();
    let mut move_to = async |mcst_id: &str, worker| {
        let request = v1::MoveGroupRequest {
            mcst_id: mcst_id.into(),
            worker,
        };
        let answer = lab.client.move_group(request).await;
        answer.map(|answer| answer.into_inner())
    };
    let moved = move_to("10.200.0.1", 1).await.unwrap();
    assert_eq!((moved.from, moved.to), (0, 1));
    let told = |event: &Event| match event {
        Event::GroupMoved(m) => Some((m.group.clone(), m.from, m.to, m.busy_percent)),
        _ => None,
    };
    assert_eq!(until(&mut events, told).await, ("g".to_string(), 0, 1, None));
    for (mcst_id, worker, code, text) in [
        (
            "10.200.0.1",
            1,
            Code::FailedPrecondition,
            "worker: group `g` is at worker 1 already",
        ),
        (
            "10.200.0.1",
            2,
            Code::InvalidArgument,
            "worker: there is no worker 2: this switch has 2, counted from 0",
        ),
        (
            "10.200.0.9",
            1,
            Code::NotFound,
            "mcst_id: there is no group 10.200.0.9",
        ),
        ("here", 1, Code::InvalidArgument, "mcst_id"),
    ] {
        let status = move_to(mcst_id, worker).await.unwrap_err();
        assert!(
            status.code() == code && status.message().starts_with(text),
            "{status}"
        );
    }
    assert_eq!(lab.groups().await[0].worker, 1);
    let stats = lab
        .client
        .get_runtime_stats(v1::GetRuntimeStatsRequest {})
        .await
        .unwrap()
        .into_inner();
    let moves: Vec<_> = stats
        .workers
        .iter()
        .map(|w| (w.groups_in, w.groups_out))
        .collect();
    assert_eq!(moves, [(0, 1), (1, 0)]);
}
