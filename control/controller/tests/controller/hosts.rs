//! Hosts that are forgotten, and hosts that come under a new name.

use castnet_proto::v1;
use castnet_topology::Topology;
use tonic::{Code, Status};

use crate::common::ranks::Rank;
use crate::common::{Calls, Client, Events, Lab, creation, refused};

const IP: &str = "10.0.0.9";
const MAC: &str = "02:00:00:00:00:09";

/// A lab whose hosts are only known by what they say.
async fn without_file() -> Lab {
    let mut lab = Lab::new(Topology::star(3).unwrap()).await;
    lab.config.topology = None;
    lab
}

async fn register(client: &Client, name: &str, ip: &str, mac: &str) -> Result<(), Status> {
    let (name, ip, mac) = (name.into(), ip.into(), mac.into());
    let request = v1::RegisterHostRequest { name, ip, mac };
    client.clone().register_host(request).await.map(drop)
}

async fn forget(client: &Client, name: &str) -> Result<(), Status> {
    let request = v1::ForgetHostRequest { name: name.into() };
    client.clone().forget_host(request).await.map(drop)
}

#[tokio::test(start_paused = true)]
async fn a_host_is_forgotten_for_good_unless_a_group_names_it() {
    let lab = without_file().await;
    let (controller, client) = lab.start().await;
    register(&client, "h9", IP, MAC).await.unwrap();
    client.create(creation("g", &["h9", "x"])).await;
    client.create(creation("f", &["y", "h9"])).await;
    let words = "host \"h9\" is a member of groups: f, g";
    refused(forget(&client, "h9").await, Code::FailedPrecondition, words);
    refused(forget(&client, "h7").await, Code::NotFound, "h7");
    for group in ["f", "g"] {
        client.destroy(group).await;
    }
    forget(&client, "h9").await.unwrap();
    assert_eq!(client.hosts().await, [""; 0]);
    let (_controller, client) = lab.restart(controller).await;
    assert_eq!(client.hosts().await, [""; 0]);
    // Its address is free.
    let other = "02:00:00:00:00:08";
    register(&client, "h8", IP, other).await.unwrap();
}

/// A pod that is started again has a new name.
#[tokio::test(start_paused = true)]
async fn a_new_name_takes_the_address_over() {
    let lab = without_file().await;
    let (controller, client) = lab.start().await;
    register(&client, "old", IP, MAC).await.unwrap();
    let other = register(&client, "new", IP, "02:00:00:00:00:08").await;
    refused(other, Code::AlreadyExists, "\"old\"");
    register(&client, "new", IP, MAC).await.unwrap();
    assert_eq!(client.hosts().await, ["new"]);
    let (_controller, client) = lab.restart(controller).await;
    assert_eq!(client.hosts().await, ["new"]);
}

/// As long as a group has a connection of the old name, it keeps its address: until its lease has run out.
#[tokio::test(start_paused = true)]
async fn a_new_name_waits_for_the_lease_of_the_old() {
    let lab = without_file().await;
    let (_controller, client) = lab.start().await;
    let rank = |host: &str, qpn| v1::InitGroupRequest {
        host: host.into(),
        connection: Some(v1::Connection {
            ip: IP.into(),
            mac: MAC.into(),
            qpn,
            ..Default::default()
        }),
        lease_ms: 1,
        ..lab.rank("job", 0, 2, 17)
    };
    let old = Rank::join(&client, rank("old", 17)).await;
    let early = register(&client, "new", IP, MAC).await;
    refused(early, Code::AlreadyExists, "\"old\"");
    let mut events = Events::of(&client).await;
    drop(old);
    events.gone("job").await;
    let _new = Rank::join(&client, rank("new", 18)).await;
    assert_eq!(client.hosts().await, ["new"]);
}
