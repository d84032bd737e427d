//! Jobs. Their ranks hold leases as CommLib does: a rank that has been in goes on without a controller, and comes back to it.

use std::sync::Arc;
use std::time::Duration;

use castnet_proto::transport::Address;
use castnet_proto::v1;
use castnet_proto::v1::CollectivePhase;
use castnet_topology::Topology;
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tonic::{Code, Status};

use crate::controllers::leader;
use crate::log::Log;

/// Pause before a call is made again.
const RETRY: Duration = Duration::from_millis(200);
/// No fault lasts so long, until another controller leads.
const LEASE_MS: u32 = 8000;

/// A job of some ranks, one at each of the first hosts.
pub(crate) struct Job {
    pub(crate) name: String,
    ranks: Vec<Rank>,
    /// A switch has stopped: what it has added up is lost.
    pub(crate) may_fail: bool,
}

struct Rank {
    task: JoinHandle<()>,
    seen: Arc<Mutex<Seen>>,
}

/// What a rank has been told.
#[derive(Clone, Default)]
struct Seen {
    /// The generation that runs.
    active: Option<u64>,
    /// Why the group has failed, and is refused.
    failed: Option<String>,
    refused: Option<String>,
}

impl Job {
    pub(crate) fn start(
        name: String,
        size: u32,
        qpn: u32,
        (topology, controllers, log): (&Topology, &[Address], &Log),
    ) -> Self {
        let rank = |rank| {
            let host = format!("h{rank}");
            let request = v1::InitGroupRequest {
                job: name.clone(),
                rank,
                size,
                connection: connection(topology, &host, qpn),
                host,
                sq_psn: 1000 * (rank + 1),
                lease_ms: LEASE_MS,
                ..Default::default()
            };
            let seen = Arc::<Mutex<Seen>>::default();
            let task = tokio::spawn(hold(request, controllers.to_vec(), seen.clone(), log.clone()));
            Rank { task, seen }
        };
        Self {
            ranks: (0..size).map(rank).collect(),
            may_fail: false,
            name,
        }
    }

    /// S10: without a reason in the data plane, no job that has run fails. Returns whether it goes on.
    pub(crate) fn check(&self) -> Result<bool, String> {
        for (number, Rank { seen, .. }) in self.ranks.iter().enumerate() {
            let Seen { failed, refused, .. } = &*seen.lock();
            match failed {
                Some(reason) if !self.may_fail => {
                    return Err(format!("S10: {}: rank {number}: {reason}", self.name));
                }
                Some(_) => return Ok(false),
                None if refused.is_some() => return Ok(false),
                None => {}
            }
        }
        Ok(true)
    }

    /// All ranks know that it runs, with one generation.
    pub(crate) fn runs(&self) -> bool {
        let generations: Vec<Option<u64>> = self.ranks.iter().map(|rank| rank.seen.lock().active).collect();
        generations[0].is_some() && generations.iter().all(|one| *one == generations[0])
    }

    /// All ranks leave.
    pub(crate) async fn end(self, controllers: &[Address]) {
        for (number, Rank { task, .. }) in (0..).zip(self.ranks) {
            task.abort();
            let request = v1::LeaveGroupRequest {
                group: self.name.clone(),
                rank: Some(number),
                ..Default::default()
            };
            loop {
                let (_, mut leader) = leader(controllers, None).await;
                match leader.leave_group(request.clone()).await {
                    Err(status) if is_transient(&status) => sleep(RETRY).await,
                    _ => break,
                }
            }
        }
    }
}

/// A host's end of a connection, with the addresses of the topology.
pub(crate) fn connection(topology: &Topology, host: &str, qpn: u32) -> Option<v1::Connection> {
    let known = topology.host(host)?;
    Some(v1::Connection {
        ip: known.ip?.to_string(),
        mac: castnet_wire::MacAddr(known.mac?).to_string(),
        qpn,
        ..Default::default()
    })
}

fn is_transient(status: &Status) -> bool {
    use Code::{Cancelled, Internal, Unavailable, Unknown};
    matches!(status.code(), Unavailable | Unknown | Cancelled | Internal)
}

/// Holds the lease of a rank until its group fails or is refused.
async fn hold(
    mut request: v1::InitGroupRequest,
    controllers: Vec<Address>,
    seen: Arc<Mutex<Seen>>,
    log: Log,
) {
    loop {
        let ended = follow(&request, &controllers, &seen).await;
        let who = format!("{}: rank {}", request.job, request.rank);
        match ended {
            Ok(true) => return,
            Ok(false) => log.line(format_args!("{who}: the stream has ended")),
            Err(status) => {
                log.line(format_args!("{who}: {status}"));
                if !is_transient(&status) {
                    seen.lock().failed = Some(status.to_string());
                    return;
                }
            }
        }
        if let Some(active) = seen.lock().active {
            request.returns_to = Some(active);
        }
        sleep(RETRY).await;
    }
}

/// Returns true if the group has failed or was refused, false if the stream has ended.
async fn follow(
    request: &v1::InitGroupRequest,
    controllers: &[Address],
    seen: &Mutex<Seen>,
) -> Result<bool, Status> {
    let (_, mut client) = leader(controllers, None).await;
    let mut states = client.init_group(request.clone()).await?.into_inner();
    while let Some(state) = states.message().await? {
        let mut seen = seen.lock();
        match state.phase() {
            CollectivePhase::Active => seen.active = Some(state.generation),
            CollectivePhase::Failed | CollectivePhase::Removing => {
                seen.failed = Some(format!("{:?}: {}", state.phase(), state.reason));
                return Ok(true);
            }
            CollectivePhase::Refused => {
                seen.refused = Some(state.reason);
                return Ok(true);
            }
            _ => {}
        }
    }
    Ok(false)
}
