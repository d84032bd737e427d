//! Hosts that are forgotten, and hosts that come under a new name.

use castnet_proto::v1;
use castnet_topology::Topology;
use tonic::{Code, Status};

use crate::common::ranks::Rank;
use crate::common::{Client, Lab, creation};

const IP: &str = "10.0.0.9";
const MAC: &str = "02:00:00:00:00:09";

/// A lab whose hosts are only known by what they say.
async fn without_file() -> Lab {
    let mut lab = Lab::new(Topology::star(3).unwrap()).await;
    lab.config.topology = None;
    lab
}

async fn register(client: &mut Client, name: &str, ip: &str, mac: &str) -> Result<(), Status> {
    let (name, ip, mac) = (name.into(), ip.into(), mac.into());
    let request = v1::RegisterHostRequest { name, ip, mac };
    client.register_host(request).await.map(drop)
}

async fn forget(client: &mut Client, name: &str) -> Result<(), Status> {
    let request = v1::ForgetHostRequest { name: name.into() };
    client.forget_host(request).await.map(drop)
}

async fn known(client: &mut Client) -> Vec<String> {
    let listed = client.list_hosts(v1::ListHostsRequest {}).await.unwrap();
    listed.into_inner().hosts.into_iter().map(|h| h.name).collect()
}

#[track_caller]
fn refused(result: Result<(), Status>, code: Code, words: &str) {
    let status = result.unwrap_err();
    assert_eq!(status.code(), code, "{status}");
    assert!(status.message().contains(words), "{status}");
}

#[tokio::test(start_paused = true)]
async fn a_host_is_forgotten_for_good_unless_a_group_names_it() {
    let lab = without_file().await;
    let (controller, mut client) = lab.start().await;
    register(&mut client, "h9", IP, MAC).await.unwrap();
    client.create_group(creation("g", &["h9", "x"])).await.unwrap();
    client.create_group(creation("f", &["y", "h9"])).await.unwrap();
    let words = "host \"h9\" is a member of groups: f, g";
    refused(forget(&mut client, "h9").await, Code::FailedPrecondition, words);
    refused(forget(&mut client, "h7").await, Code::NotFound, "h7");
    for group in ["f", "g"] {
        let destroy = crate::common::destruction(group);
        client.destroy_group(destroy).await.unwrap();
    }
    forget(&mut client, "h9").await.unwrap();
    assert_eq!(known(&mut client).await, [""; 0]);
    controller.stop().await;
    let (_controller, mut client) = lab.start().await;
    assert_eq!(known(&mut client).await, [""; 0]);
    // Its address is free.
    register(&mut client, "h8", IP, "02:00:00:00:00:08")
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_host_of_the_file_stays() {
    let lab = Lab::two_tiers().await;
    let (_controller, mut client) = lab.start().await;
    refused(
        forget(&mut client, "h0").await,
        Code::FailedPrecondition,
        "topology file",
    );
}

/// A pod that is started again has a new name.
#[tokio::test(start_paused = true)]
async fn a_new_name_takes_the_address_over() {
    let lab = without_file().await;
    let (controller, mut client) = lab.start().await;
    register(&mut client, "old", IP, MAC).await.unwrap();
    let other = register(&mut client, "new", IP, "02:00:00:00:00:08").await;
    refused(other, Code::AlreadyExists, "\"old\"");
    register(&mut client, "new", IP, MAC).await.unwrap();
    assert_eq!(known(&mut client).await, ["new"]);
    controller.stop().await;
    let (_controller, mut client) = lab.start().await;
    assert_eq!(known(&mut client).await, ["new"]);
}

/// As long as a group has a connection of the old name, it keeps its address: until its lease has run out.
#[tokio::test(start_paused = true)]
async fn a_new_name_waits_for_the_lease_of_the_old() {
    let lab = without_file().await;
    let (_controller, mut client) = lab.start().await;
    let connection = |qpn| v1::Connection {
        ip: IP.into(),
        mac: MAC.into(),
        qpn,
        ..Default::default()
    };
    let rank = |host: &str, qpn| v1::InitGroupRequest {
        host: host.into(),
        connection: Some(connection(qpn)),
        lease_ms: 1,
        ..lab.rank("job", 0, 2, 17)
    };
    let old = Rank::join(&client, rank("old", 17)).await;
    refused(
        register(&mut client, "new", IP, MAC).await,
        Code::AlreadyExists,
        "\"old\"",
    );
    let mut events = crate::common::Events::of(&client).await;
    drop(old);
    events.gone("job").await;
    let _new = Rank::join(&client, rank("new", 18)).await;
    assert_eq!(known(&mut client).await, ["new"]);
}
