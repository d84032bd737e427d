//! Ranks of collective groups.

use castnet_proto::v1;
use castnet_proto::v1::CollectivePhase;
use tonic::Streaming;

use super::{Calls, Client, Events, Lab, in_time, moment, next};

/// A rank and the stream that is its lease.
pub(crate) struct Rank {
    pub(crate) request: v1::InitGroupRequest,
    pub(crate) stream: Streaming<v1::CollectiveState>,
}

impl Lab {
    /// A rank at `h<rank>`, with a lease that does not run out here.
    pub(crate) fn rank(&self, job: &str, rank: u32, size: u32, qpn: u32) -> v1::InitGroupRequest {
        let host = format!("h{rank}");
        v1::InitGroupRequest {
            job: job.into(),
            rank,
            size,
            connection: Some(self.connection(&host, qpn)),
            host,
            sq_psn: 1000 * (rank + 1),
            lease_ms: 600_000,
            ..Default::default()
        }
    }

    /// As [`Lab::ranks`], four ranks with requests that are changed so.
    pub(crate) async fn ranks_with(
        &self,
        client: &Client,
        job: &str,
        qpn: u32,
        change: impl Fn(&mut v1::InitGroupRequest),
    ) -> Vec<Rank> {
        let requests = (0..4).map(|rank| {
            let mut request = self.rank(job, rank, 4, qpn);
            change(&mut request);
            request
        });
        Rank::join_all(client, requests).await
    }

    /// All ranks of a job, one per host.
    pub(crate) async fn ranks(&self, client: &Client, job: &str, size: u32, qpn: u32) -> Vec<Rank> {
        Rank::join_all(client, (0..size).map(|rank| self.rank(job, rank, size, qpn))).await
    }
}

impl Rank {
    pub(crate) async fn join(client: &Client, request: v1::InitGroupRequest) -> Self {
        let stream = client
            .clone()
            .init_group(request.clone())
            .await
            .unwrap()
            .into_inner();
        Self { request, stream }
    }

    pub(crate) async fn join_all(
        client: &Client,
        requests: impl IntoIterator<Item = v1::InitGroupRequest>,
    ) -> Vec<Self> {
        let mut ranks = Vec::new();
        for request in requests {
            ranks.push(Self::join(client, request).await);
        }
        ranks
    }

    /// Waits for a phase.
    pub(crate) async fn until(&mut self, phase: CollectivePhase) -> v1::CollectiveState {
        loop {
            let state = next(&mut self.stream).await;
            if state.phase() == phase {
                return state;
            }
            let over = matches!(state.phase(), CollectivePhase::Failed | CollectivePhase::Refused);
            assert!(!over, "waits for {phase:?}, but: {state:?}");
        }
    }

    /// Waits for the end of the stream after its last message.
    pub(crate) async fn ends(mut self) {
        let end = in_time(self.stream.message()).await.unwrap();
        assert_eq!(end, None);
    }

    /// Joins again with a queue pair that was set up anew.
    pub(crate) async fn again(self, client: &Client, generation: u64) -> Self {
        let request = v1::InitGroupRequest {
            sq_psn: self.request.sq_psn + 7,
            rejoin_of: Some(generation),
            returns_to: None,
            ..self.request
        };
        drop(self.stream);
        Self::join(client, request).await
    }
}

/// All wait for a phase; what each sees.
pub(crate) async fn all(ranks: &mut [Rank], phase: CollectivePhase) -> Vec<v1::CollectiveState> {
    let mut seen = Vec::new();
    for rank in ranks {
        seen.push(rank.until(phase).await);
    }
    seen
}

/// All join again.
pub(crate) async fn join_again(ranks: Vec<Rank>, client: &Client, generation: u64) -> Vec<Rank> {
    let mut joined = Vec::new();
    for rank in ranks {
        joined.push(rank.again(client, generation).await);
    }
    joined
}

/// All join again, and wait until they are active.
pub(crate) async fn all_again(ranks: Vec<Rank>, client: &Client, generation: u64) -> Vec<Rank> {
    let mut joined = join_again(ranks, client, generation).await;
    all(&mut joined, CollectivePhase::Active).await;
    joined
}

/// A collective group as an operator sees it.
pub(crate) async fn shown(client: &Client, name: &str) -> Option<v1::Collective> {
    client.try_get(name).await.ok()?.collective
}

/// Waits until a collective group is as wanted, now or later.
pub(crate) async fn becomes(
    client: &Client,
    name: &str,
    wanted: impl Fn(&v1::Collective) -> bool,
) -> v1::Collective {
    let mut events = Events::of(client).await;
    loop {
        if let Some(group) = shown(client, name).await.filter(&wanted) {
            // What follows at once is done, too.
            moment().await;
            return group;
        }
        let changed = |event: &v1::controller_event::Event| {
            matches!(event, v1::controller_event::Event::Collective(g) if g.name == name).then_some(())
        };
        events.until(changed).await;
    }
}

/// Waits until a group is gone, now or later.
pub(crate) async fn vanishes(client: &Client, name: &str) {
    let mut events = Events::of(client).await;
    if shown(client, name).await.is_some() {
        events.gone(name).await;
    }
}
