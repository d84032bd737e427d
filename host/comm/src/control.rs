//! Calls to the controller, on the thread of this process's connection. Some of them hold the leases of groups (the streams
//! of InitGroup) as long as the rank is in them. The rank's thread never crosses an async boundary.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use castnet_proto::states::Assembled;
use castnet_proto::transport::{
    Call, Clients, Connection, Controllers, Outage, RETRY_DELAY, Security, retry,
};
use castnet_proto::v1 as api;
use castnet_rules::LANES_MAX;
use tonic::{Code, Status};

use crate::error::ControllerError;

pub(crate) type Answer<T> = Call<Result<T, ControllerError>>;

/// The state of the lease, as shared with the rank's thread.
#[derive(Debug)]
pub(crate) struct Lease {
    state: Mutex<LeaseState>,
    /// Of the rank that holds it.
    clients: Clients,
}

#[derive(Debug, Default)]
struct LeaseState {
    state: Option<Arc<api::CollectiveState>>,
    error: Option<ControllerError>,
}

impl Lease {
    fn lock(&self) -> MutexGuard<'_, LeaseState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn state(&self) -> Option<Arc<api::CollectiveState>> {
        self.lock().state.clone()
    }

    /// Whether the group is active, as far as is known, and no rank has left it.
    pub(crate) fn is_whole(&self) -> bool {
        let lease = self.lock();
        let is_whole = |state: &Arc<api::CollectiveState>| {
            let mut members = state.members.iter();
            state.phase() == api::CollectivePhase::Active
                && members.all(|m| m.phase() != api::MemberPhase::Left)
        };
        lease.error.is_none() && lease.state.as_ref().is_some_and(is_whole)
    }

    /// The error that ended the stream. Returned once.
    pub(crate) fn take_error(&self) -> Option<ControllerError> {
        self.lock().error.take()
    }
}

/// The part that the groups of a rank have in the connection of this process.
pub(crate) struct Control(Arc<Connection>);

impl Control {
    /// Connects with the first request, if this process has no connection then.
    pub(crate) fn new(controllers: &Controllers, security: &Security) -> Result<Self, ControllerError> {
        let connection = Connection::to(controllers, security);
        connection.map(Self).map_err(ControllerError::Thread)
    }

    /// Joins a group and holds its lease until the call is dropped. Retries for `patience` while the controller is
    /// unreachable.
    pub(crate) fn join(&self, request: api::InitGroupRequest, patience: Duration) -> (Arc<Lease>, Call<()>) {
        let lease = Arc::new(Lease {
            state: Mutex::default(),
            clients: self.0.clients(),
        });
        let held = lease.clone();
        let holding = self.0.spawn(async move {
            if let Err(error) = hold(request, &held, patience).await {
                held.lock().error = Some(error);
            }
        });
        (lease, holding)
    }

    /// The clients of a rank with this lease, or of one that has not joined.
    fn clients(&self, lease: Option<&Lease>) -> Clients {
        lease.map_or_else(|| self.0.clients(), |lease| lease.clients.clone())
    }

    /// Sends a blob to all ranks and returns the blobs of all.
    pub(crate) fn exchange(
        &self,
        request: api::ExchangeRequest,
        lease: Option<&Lease>,
        patience: Duration,
    ) -> Answer<Vec<Vec<u8>>> {
        let clients = self.clients(lease);
        self.0.spawn(async move {
            let exchange = || async {
                let answer = clients.leading().await?.exchange(request.clone()).await?;
                Ok(answer.into_inner().blobs)
            };
            retry(patience, is_transient, exchange).await
        })
    }

    /// Returns the number of lanes of a collective group; 1 where it does not exist yet.
    pub(crate) fn lanes(&self, group: String, patience: Duration) -> Answer<u8> {
        let clients = self.0.clients();
        self.0.spawn(async move {
            let lanes = || async {
                let group = group.clone();
                let request = api::GetGroupRequest { group };
                let answer = match clients.leading().await?.get_group(request).await {
                    Err(status) if status.code() == Code::NotFound => return Ok(1),
                    answer => answer?.into_inner(),
                };
                let state = answer.collective.and_then(|c| c.state);
                Ok(state.map_or(1, |s| s.lanes.len().clamp(1, LANES_MAX.into()) as u8))
            };
            retry(patience, is_transient, lanes).await
        })
    }

    /// Ends a rank's part of its group, so that no lease runs. A group that no operator made is removed when all have left.
    pub(crate) fn end(&self, group: String, rank: u16, lease: Option<&Lease>) -> Answer<()> {
        let clients = self.clients(lease);
        self.0.spawn(async move {
            let mut client = clients.leading().await?;
            let leave = api::LeaveGroupRequest {
                group,
                rank: Some(rank.into()),
                ..Default::default()
            };
            match client.leave_group(leave).await {
                Err(status) if status.code() != Code::NotFound => Err(status.into()),
                _ => Ok(()),
            }
        })
    }
}

fn is_transient(error: &ControllerError) -> bool {
    match error {
        ControllerError::Transport(error) => error.is_transient(),
        ControllerError::Status { code, .. } => {
            matches!(
                code,
                Code::Unavailable | Code::Unknown | Code::Cancelled | Code::Internal
            )
        }
        _ => false,
    }
}

/// Whether the next call may succeed. Once the group was active, whatever is between it and its controller may be mended: a certificate that
/// is not valid any more, a name that is not known.
fn goes_on(error: &ControllerError, was_active: bool) -> bool {
    is_transient(error) || was_active && matches!(error, ControllerError::Transport(_))
}

/// Holds the lease until the group fails or is refused. Once the group was active, it retries without limit: traffic
/// needs no controller.
async fn hold(
    mut request: api::InitGroupRequest,
    lease: &Lease,
    patience: Duration,
) -> Result<(), ControllerError> {
    let start = Instant::now();
    let (mut active, mut outage) = (None, Outage::begin());
    loop {
        let mut is_accepted = false;
        let ended = follow(&request, lease, (&mut active, &mut is_accepted)).await;
        if is_accepted {
            outage = Outage::begin();
        }
        let error = match ended {
            Ok(true) => return Ok(()),
            Ok(false) => ControllerError::Status {
                code: Code::Unavailable,
                message: "the stream has ended".into(),
            },
            Err(error) => error,
        };
        if !goes_on(&error, active.is_some()) || active.is_none() && start.elapsed() >= patience {
            return Err(error);
        }
        match active.is_some() && outage.lasts() {
            true => {
                tracing::warn!(%error, job = request.job, "the rank goes on without its controller");
            }
            false => tracing::debug!(%error, job = request.job, "the lease's stream broke"),
        }
        if active.is_some() {
            (request.rejoin_of, request.returns_to) = (None, active);
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }
}

/// Returns true if the group has failed or was refused, false if the stream ended. Stores the active generation, and whether the controller has
/// accepted the call.
async fn follow(
    request: &api::InitGroupRequest,
    lease: &Lease,
    (active, is_accepted): (&mut Option<u64>, &mut bool),
) -> Result<bool, ControllerError> {
    use api::CollectivePhase::{Active, Failed, Refused, Removing};
    let mut client = lease.clients.leading().await?;
    let answer = client.init_group(request.clone()).await?;
    *is_accepted = true;
    let at = answer.metadata().clone();
    let mut states = answer.into_inner();
    let mut group = Assembled::default();
    while let Some(message) = states.message().await? {
        let state: &api::CollectiveState = group.apply(message).map_err(Status::from)?;
        let phase = state.phase();
        tracing::debug!(job = request.job, ?phase, reason = state.reason, "group");
        if phase == Active {
            *active = Some(state.generation);
            lease.clients.joined().set(&at);
        }
        lease.lock().state = Some(Arc::new(state.clone()));
        if matches!(phase, Failed | Refused | Removing) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use castnet_proto::transport::TransportError;

    use super::*;

    /// A controller that was started again with a certificate that had ended failed all running jobs.
    #[test]
    fn a_running_job_outlives_what_keeps_it_from_its_controller() {
        let address = "https://c1:7470".parse().expect("an address");
        let error = ControllerError::from(TransportError::Tls(address, "they have ended".into()));
        assert!(!goes_on(&error, false) && goes_on(&error, true));
        let refused = |code| ControllerError::from(Status::new(code, "no"));
        assert!(!goes_on(&refused(Code::PermissionDenied), true));
        assert!(goes_on(&refused(Code::Unavailable), false));
    }
}
