//! Time to start and to end a collective job over the number of its ranks. One process plays all ranks, by gRPC, and the
//! switches' agents; the store is on disk. The baseline is the smallest job of the same run, with linear growth.
//!
//! `cargo bench -p castnet-controller --bench ranks [-- RANKS]`

#[path = "../tests/controller/common/mod.rs"]
mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use castnet_proto::transport::{Security, connect};
use castnet_proto::v1;
use castnet_proto::v1::CollectivePhase::Active;
use castnet_proto::v1::controller_client::ControllerClient;
use castnet_topology::Topology;
use tokio::task::JoinSet;

use common::ranks::Rank;
use common::{Client, Lab};

/// Hosts per leaf, one rank each. They share a connection.
const HOSTS: u32 = 32;
const SPINES: usize = 4;
/// The fastest of this many jobs counts: other programs slow some down.
const JOBS: u32 = 3;
/// A job that takes longer counts as one that never starts.
const NEVER: Duration = Duration::from_secs(120);

async fn join(client: Client, request: v1::InitGroupRequest) -> Rank {
    let mut rank = Rank::join(&client, request).await;
    while let Ok(Some(state)) = rank.stream.message().await
        && state.phase() != Active
    {}
    rank
}

async fn leave(mut client: Client, mut rank: Rank) -> Result<(), tonic::Status> {
    let request = v1::LeaveGroupRequest {
        group: rank.request.job,
        host: String::new(),
        rank: Some(rank.request.rank),
        ..Default::default()
    };
    client.leave_group(request).await?;
    while rank.stream.message().await?.is_some() {}
    Ok(())
}

/// The times from the first call until all ranks are active, and from the first that leaves until all have left.
async fn job(lab: &Lab, clients: &[Client], number: u32, size: u32) -> (Duration, Duration) {
    let client = |rank: u32| clients[(rank / HOSTS) as usize].clone();
    let requests: Vec<_> = (0..size)
        .map(|rank| lab.rank(&format!("job{number}"), rank, size, 17 + number))
        .collect();
    let began = Instant::now();
    let joining = requests
        .into_iter()
        .map(|request| join(client(request.rank), request));
    let ranks = joining.collect::<JoinSet<_>>().join_all().await;
    let start = began.elapsed();
    let began = Instant::now();
    let leaving = ranks
        .into_iter()
        .map(|rank| leave(client(rank.request.rank), rank));
    let left = leaving.collect::<JoinSet<_>>().join_all().await;
    assert!(left.iter().all(Result::is_ok), "{left:?}");
    (start, began.elapsed())
}

async fn measure(size: u32) -> Result<Option<(f64, f64)>, Box<dyn std::error::Error>> {
    let leaves = size.div_ceil(HOSTS) as usize;
    let lab = Arc::new(Lab::new(Topology::leaf_spine(leaves, SPINES, HOSTS as usize)?).await);
    let (controller, _) = lab.start().await;
    let address = controller.address().ok_or("not listening")?;
    let mut clients = Vec::new();
    for _ in 0..leaves {
        clients.push(ControllerClient::new(
            connect(address, &Security::default()).await?,
        ));
    }
    let mut best: Option<(f64, f64)> = None;
    for number in 0..JOBS {
        let (lab, clients) = (lab.clone(), clients.clone());
        let job = tokio::spawn(async move { job(&lab, &clients, number, size).await });
        let Ok(done) = tokio::time::timeout(NEVER, job).await else {
            return Ok(None);
        };
        let (start, end) = done.map(|(start, end)| (start.as_secs_f64(), end.as_secs_f64()))?;
        best = Some(best.map_or((start, end), |(s, e)| (s.min(start), e.min(end))));
    }
    controller.stop().await;
    Ok(best)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let ranks = std::env::args().find_map(|a| a.parse().ok()).unwrap_or(1024);
    println!("best of {JOBS} jobs; ratio: to linear growth from the first line");
    println!(
        "{:>6}  {:>14}  {:>14}",
        "ranks", "start    ratio", "end      ratio"
    );
    let mut baseline = None;
    for size in [64, 256, 512, 1024]
        .into_iter()
        .filter(|size| *size < ranks)
        .chain([ranks])
    {
        let Some((start, end)) = measure(size).await? else {
            println!("{size:>6}  not within {NEVER:?}");
            break;
        };
        let n = f64::from(size);
        let (start_each, end_each) = *baseline.get_or_insert((start / n, end / n));
        let ratio = |time: f64, each: f64| time / (each * n);
        println!(
            "{size:>6}  {start:>6.3} s {:>5.2}  {end:>6.3} s {:>5.2}",
            ratio(start, start_each),
            ratio(end, end_each)
        );
    }
    Ok(())
}
