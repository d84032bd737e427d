//! Connections of hosts to the controller.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io::{self, Read};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll};

use castnet_comm::{Collectives, Operation};
use castnet_member::StreamHeader;
use castnet_proto::term::{joined_at, joined_elsewhere};
use castnet_proto::transport::{Address, Connection, Security, Server, serve};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;
use tonic::service::Routes;

use crate::fabric::{Fabric, PATIENCE, communicator};
use crate::lives::{part, receive, send};

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
    let (address, accepted) = relay(fabric.controller().address().expect("an address")).await;
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

/// Answers as a controller on another store, and notes the calls of those who say where they have joined. Who does not say so is told that its
/// group is gone.
#[derive(Clone)]
struct Elsewhere(mpsc::UnboundedSender<()>);

impl NamedService for Elsewhere {
    const NAME: &'static str = "castnet.v1.Controller";
}

impl Service<http::Request<Body>> for Elsewhere {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let status = match joined_at(request.headers()).expect("a term") {
            Some(_) => {
                let _ = self.0.send(());
                joined_elsewhere("it has another store")
            }
            None => Status::not_found("there is no such group"),
        };
        ready(Ok(status.into_http()))
    }
}

/// Stops the controller, lets one on another store answer at `elsewhere` until those who have joined have asked it some times, and starts
/// the one that knows their groups again. The other one stays.
async fn answer_elsewhere(fabric: &mut Fabric, elsewhere: &Address) -> Server {
    let (to, mut from) = mpsc::unbounded_channel();
    let other = serve(elsewhere, &Security::default(), Routes::new(Elsewhere(to))).await;
    let other = other.expect("a server");
    fabric.stop_controller().await;
    for _ in 0..8 {
        timeout(PATIENCE, from.recv())
            .await
            .expect("in time")
            .expect("a call");
    }
    fabric.start_controller().await;
    other
}

/// A source's bytes: most come when the others agree.
struct Halting(Arc<Barrier>, usize);

impl Read for Halting {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.1 == 0 {
            return Ok(0);
        }
        if self.1 == 100_000 {
            self.0.wait();
            self.0.wait();
        }
        let bytes = self.1.min(buffer.len()).min(1000);
        buffer[..bytes].fill(7);
        self.1 -= bytes;
        Ok(bytes)
    }
}

/// Who has joined says so to each controller that leads then, so that one on another store does not end what it does not know. The stream and
/// the job go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_joined_believes_no_controller_on_another_store() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut fabric = Fabric::new().await;
    fabric.stop_controller().await;
    let at = |name: &str| format!("unix:{}", folder.path().join(name).display());
    let (place, elsewhere): (Address, Address) =
        (at("c").parse().expect("one"), at("x").parse().expect("one"));
    // The other one is asked first.
    fabric.controllers = format!("{elsewhere},{place}").parse().expect("a list");
    (fabric.config.listen, fabric.config.store) = (place, Some(folder.path().join("c.redb")));
    fabric.start_controller().await;

    let barrier = Arc::new(Barrier::new(5));
    let ranks: Vec<_> = (0..4)
        .map(|rank| {
            let (connect, barrier) = (communicator(&fabric, rank), barrier.clone());
            spawn_blocking(move || {
                let mut all = connect();
                let mut sum = || all.allreduce(&mut [1.0_f32; 8], Operation::Sum).expect("sums");
                sum();
                barrier.wait();
                barrier.wait();
                sum();
                all.close().expect("closed");
            })
        })
        .collect();
    let meet = || {
        let barrier = barrier.clone();
        spawn_blocking(move || barrier.wait())
    };
    meet().await.expect("no panic");
    let other = answer_elsewhere(&mut fabric, &elsewhere).await;
    meet().await.expect("no panic");
    for rank in ranks {
        rank.await.expect("no panic");
    }
    other.stop().await;

    let create = "group create g --source h0 --members h1,h2,h3";
    fabric.run(create.split(' ').collect()).await;
    let receivers: Vec<_> = (1..4).map(|host| receive(&fabric, host)).collect();
    let barrier = Arc::new(Barrier::new(2));
    let ((open, config), mut bytes) = (part(&fabric, 0), Halting(barrier.clone(), 200_000));
    let source = spawn_blocking(move || {
        let mut rnic = open();
        let mut source = castnet_member::source(config, &mut rnic)?.join()?;
        source.send(&StreamHeader::default(), &mut bytes, &mut |_, _| {})?;
        source.leave()
    });
    let meet = || {
        let barrier = barrier.clone();
        spawn_blocking(move || barrier.wait())
    };
    meet().await.expect("no panic");
    let _other = answer_elsewhere(&mut fabric, &elsewhere).await;
    meet().await.expect("no panic");
    source.await.expect("no panic").expect("all is acknowledged");
    for receiver in receivers {
        let copy = receiver.await.expect("no panic").expect("all has come");
        assert!(copy == [7; 200_000], "{} bytes", copy.len());
    }
}
