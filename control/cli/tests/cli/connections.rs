//! Connections of hosts to the controller.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use castnet_comm::Operation;
use castnet_proto::transport::{Address, Connection, Security};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use crate::fabric::{Fabric, communicator};
use crate::lives::{receive, send};

/// Passes connections on, and counts them.
async fn relay(to: &Address) -> (Address, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    let to = to.to_string().replace("http://", "");
    let accepted = Arc::new(AtomicUsize::new(0));
    let count = accepted.clone();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::Relaxed);
            let to = to.clone();
            tokio::spawn(async move {
                let mut server = TcpStream::connect(to).await.expect("the controller");
                // Either end may close it as it likes.
                let _ = copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    (address.parse().expect("an address"), accepted)
}

/// Four ranks, each with a second communicator, and then a source and three receivers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_ranks_and_members_of_a_process_share_one_connection() {
    let mut fabric = Fabric::new().await;
    let (address, accepted) = relay(fabric.controller.address().expect("an address")).await;
    fabric.controllers = address.into();
    // It ends with the last who uses it.
    let _held = Connection::to(&fabric.controllers, &Security::default()).expect("a thread");

    let ranks = (0..4).map(|rank| {
        let connect = communicator(&fabric, rank);
        spawn_blocking(move || {
            let mut all = connect();
            let mut low = all.split(Some(u32::from(rank / 2)), 0).expect("split");
            for communicator in [Some(&mut all), low.as_mut()].into_iter().flatten() {
                communicator
                    .allreduce(&mut [1.0_f32; 8], Operation::Sum)
                    .expect("sums");
            }
            low.map(|low| low.close()).transpose().expect("closed");
            all.close().expect("closed");
        })
    });
    for rank in ranks.collect::<Vec<_>>() {
        rank.await.expect("no panic");
    }
    assert_eq!(accepted.load(Ordering::Relaxed), 1, "of four ranks");

    let create = "group create g --source h0 --members h1,h2,h3";
    fabric.run(create.split(' ').collect()).await;
    let receivers: Vec<_> = (1..4).map(|host| receive(&fabric, host)).collect();
    let source = send(&fabric, vec![7; 100_000], watch::Sender::new(0));
    source.await.expect("no panic").expect("all is acknowledged");
    for receiver in receivers {
        let copy = receiver.await.expect("no panic").expect("all has come");
        assert_eq!(copy.len(), 100_000);
    }
    assert_eq!(accepted.load(Ordering::Relaxed), 1, "of ranks and members");
}
