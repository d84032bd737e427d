//! Ports on interfaces, in a network namespace of their own. Needs root; otherwise the test reports that it is skipped.

use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use castnet_agent::Agent;
use castnet_port::{AfPacketSpec, Batch, Pool, PoolConfig, Port, Sides};
use castnet_proto::transport::{Security, connect};
use castnet_proto::v1;
use castnet_proto::v1::agent_client::AgentClient;
use castnet_proto::v1::agent_event::Event;
use castnet_wire::PortId;
use castnet_worker::{Dataplane, DataplaneConfig, PortConfig, WorkerConfig};
use castnet_wrap_up::skip;
use nix::sched::{CloneFlags, unshare};

use crate::agent::{PATIENCE, until};

const GONE: Option<&str> = Some("the interface is gone");

fn ip(line: &str) {
    let status = Command::new("ip").args(line.split_whitespace()).status();
    assert!(status.expect("iproute2 is installed").success(), "ip {line}");
}

/// A link between port `p{n}` and host `h{n}`.
fn wire(n: usize) {
    ip(&format!("link add p{n} type veth peer name h{n}"));
    for end in ["p", "h"] {
        ip(&format!("link set {end}{n} up"));
    }
}

/// Waits until a broadcast of host 0 arrives at host 1.
fn until_frames_pass() {
    let pool = Pool::new(PoolConfig::default());
    let [mut from, mut to] =
        ["h0", "h1"].map(|name| AfPacketSpec::new(name).open(&pool, Sides::Both).unwrap());
    let mut frame = vec![0x5A; 60];
    frame[..14].copy_from_slice(&[255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 7, 0x88, 0xB5]);
    let (start, mut batch) = (Instant::now(), Batch::new());
    loop {
        batch.extend(pool.copy_from(&frame));
        from.send(&mut batch);
        to.receive(&mut batch);
        if batch.drain(..).any(|arrived| arrived.to_vec() == frame) {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "no frame arrives");
        std::thread::yield_now();
    }
}

/// The event that port 0 is up, or down for this reason.
fn is_now(up: bool, reason: Option<&'static str>) -> impl Fn(&Event) -> Option<()> {
    move |event| match event {
        Event::Port(p) if p.name == "p0" && p.up == up && p.reason.as_deref() == reason => Some(()),
        _ => None,
    }
}

#[test]
fn a_port_without_its_interface_says_why_and_works_on_the_next_one() {
    let thread = std::thread::spawn(|| {
        if unshare(CloneFlags::CLONE_NEWNET).is_err() {
            return skip(
                "interfaces of a switch",
                "needs root (CAP_NET_ADMIN) for network namespaces",
            );
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(interfaces_change());
    });
    thread.join().unwrap();
}

async fn interfaces_change() {
    let folder = tempfile::tempdir().unwrap();
    let port = |n: u8| {
        wire(n.into());
        let name = format!("p{n}");
        PortConfig::new(PortId::new(n).unwrap(), name.clone(), AfPacketSpec::new(name))
    };
    let mut config = DataplaneConfig::new("leaf", vec![port(0), port(1)]);
    config.workers = vec![WorkerConfig::default(); 2];
    // The workers are in this thread's namespace.
    let dataplane = Arc::new(Dataplane::start(config).unwrap());
    let listen = format!("unix:{}/s", folder.path().display()).parse().unwrap();
    let agent = Agent::start(dataplane.clone(), &listen, &Security::default())
        .await
        .unwrap();
    let mut client = AgentClient::new(connect(agent.address(), &Security::default()).await.unwrap());
    let mut events = client
        .watch_events(v1::WatchAgentEventsRequest {})
        .await
        .unwrap()
        .into_inner();
    until_frames_pass();
    let before = until_listed(&mut client, true, None).await;

    ip("link delete p0");
    until(&mut events, is_now(false, GONE)).await;
    until_listed(&mut client, false, GONE).await;

    wire(0);
    until(&mut events, is_now(true, None)).await;
    until_frames_pass();
    let again = until_listed(&mut client, true, None).await;
    // Neighbours know this address.
    assert_eq!((again.mac, again.mtu), (before.mac, before.mtu));

    for line in ["p0 down", "p0 name q0", "q0 up"] {
        ip(&format!("link set {line}"));
    }
    let renamed = Some("the interface was renamed to q0");
    until(&mut events, is_now(false, renamed)).await;
    until_listed(&mut client, false, renamed).await;
    for line in ["q0 down", "q0 name p0", "p0 up"] {
        ip(&format!("link set {line}"));
    }
    until(&mut events, is_now(true, None)).await;
    until_frames_pass();
    assert!(dataplane.stop().is_some());
}

/// Waits until port 0 is listed as up, or as down for this reason.
async fn until_listed(
    client: &mut AgentClient<tonic::transport::Channel>,
    up: bool,
    reason: Option<&str>,
) -> v1::Port {
    let start = Instant::now();
    loop {
        let answer = client.list_ports(v1::ListPortsRequest {}).await.unwrap();
        let port = answer.into_inner().ports.swap_remove(0);
        if port.up == up && port.reason.as_deref() == reason {
            return port;
        }
        assert!(start.elapsed() < PATIENCE, "{port:?}");
    }
}
