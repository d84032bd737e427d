//! Joining and leaving a group at the controller.

use std::time::{Duration, Instant};

use castnet_console::api;
use castnet_console::connect;
use castnet_console::exit::{Failure, Outcome};
use castnet_proto::transport::{Address, Security};

/// How to reach the controller.
#[derive(Clone, Debug)]
pub struct Dial {
    /// Where it listens.
    pub address: Address,
    /// TLS.
    pub security: Security,
}

impl Dial {
    /// A client of the controller.
    ///
    /// # Errors
    /// The controller cannot be reached.
    pub async fn connect(&self) -> Outcome<api::ControllerClient> {
        connect::controller(&self.address, &self.security).await
    }
}

/// Interval of attempts to join or leave.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

enum JoinFailure {
    /// It may succeed later: the controller or the group may not exist yet.
    Early(Failure),
    Final(Failure),
}

/// Repeats `attempt` for `patience` as long as it fails early.
async fn retry<T, F>(patience: Duration, attempt: impl Fn() -> F) -> Outcome<T>
where
    F: Future<Output = Result<T, JoinFailure>>,
{
    let start = Instant::now();
    loop {
        match attempt().await {
            Ok(value) => return Ok(value),
            Err(JoinFailure::Early(_)) if start.elapsed() < patience => {}
            Err(JoinFailure::Early(failure) | JoinFailure::Final(failure)) => return Err(failure),
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

/// Joins a group with this end of a connection, and waits until the group is active. Retries for `patience` if the
/// controller cannot be reached or does not know the group yet.
///
/// # Errors
/// The controller cannot be reached or refuses; the group could not be installed.
pub async fn join(
    controller: Dial,
    request: api::JoinGroupRequest,
    patience: Duration,
) -> Outcome<api::GroupState> {
    retry(patience, || join_once(&controller, request.clone())).await
}

/// Number of lanes of a group. Retries as [`join`] does.
///
/// # Errors
/// Those of [`join`].
pub async fn lanes(controller: Dial, group: String, patience: Duration) -> Outcome<usize> {
    retry(patience, || lanes_once(&controller, &group)).await
}

async fn lanes_once(controller: &Dial, group: &str) -> Result<usize, JoinFailure> {
    let request = api::GetGroupRequest {
        group: group.to_owned(),
    };
    let mut client = controller.connect().await.map_err(JoinFailure::Early)?;
    let answer = client.get_group(request).await;
    let answer = answer.map_err(|status| not_joined(status, group))?;
    let state = answer.into_inner().state.unwrap_or_default();
    Ok(state.lanes.len().max(1))
}

fn not_joined(status: tonic::Status, group: &str) -> JoinFailure {
    let code = status.code();
    let failure = Failure::from(status).while_doing(format!("joining group {group}"));
    match code {
        tonic::Code::Unavailable => JoinFailure::Early(failure),
        tonic::Code::NotFound => JoinFailure::Early(failure.next(format!(
            "castnet group create {group} --source HOST --members HOST,...\nor wait for it: --wait 1m"
        ))),
        _ => JoinFailure::Final(failure),
    }
}

async fn join_once(
    controller: &Dial,
    request: api::JoinGroupRequest,
) -> Result<api::GroupState, JoinFailure> {
    let group = request.group.clone();
    let joining = |status| not_joined(status, &group);
    let mut client = controller.connect().await.map_err(JoinFailure::Early)?;
    let mut states = client.join_group(request).await.map_err(joining)?.into_inner();
    while let Some(state) = states.message().await.map_err(joining)? {
        match state.phase() {
            api::GroupPhase::Active | api::GroupPhase::Degraded => return Ok(state),
            api::GroupPhase::Failed => {
                let failure =
                    Failure::refused(format!("group {group} could not be installed: {}", state.reason));
                return Err(JoinFailure::Final(
                    failure.next(format!("castnet group show {group}")),
                ));
            }
            _ => tracing::debug!(group, phase = ?state.phase(), reason = state.reason, "waiting"),
        }
    }
    let failure = Failure::failed(format!(
        "the controller ended the call before group {group} was active"
    ));
    Err(JoinFailure::Early(
        failure.next("castnet group show tells who is missing"),
    ))
}

/// Waits until the source of a group has left it: it has every acknowledgement then.
///
/// # Errors
/// The controller cannot be reached at first.
pub async fn source_left(controller: Dial, group: String) -> Outcome {
    let mut controller = controller.connect().await?;
    loop {
        let request = api::GetGroupRequest { group: group.clone() };
        match controller.get_group(request).await {
            Ok(answer) => {
                let state = answer.into_inner().state.unwrap_or_default();
                let source = state.members.iter().find(|m| m.host == state.source);
                if source.is_none_or(|m| m.phase() != api::MemberPhase::Joined) {
                    return Ok(());
                }
            }
            Err(status) if status.code() == tonic::Code::NotFound => return Ok(()),
            // The controller may come back. If it does not, [`crate::linger`] ends for lack of requests.
            Err(status) => tracing::debug!(group, %status, "asking whether the source has left"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Leaves a group. Waits for a moment for a controller that cannot be reached.
///
/// # Errors
/// The controller cannot be reached or refuses.
pub async fn leave(controller: Dial, group: String, host: String) -> Outcome {
    let mut tries = 0;
    loop {
        tries += 1;
        let request = api::LeaveGroupRequest {
            group: group.clone(),
            host: host.clone(),
            rank: None,
        };
        let failure = match controller.connect().await {
            Ok(mut client) => match client.leave_group(request).await {
                Ok(_) => return Ok(()),
                // The group is destroyed.
                Err(status) if status.code() == tonic::Code::NotFound => return Ok(()),
                Err(status) => Failure::from(status),
            },
            Err(failure) => failure,
        };
        if tries == 5 {
            return Err(failure.while_doing(format!("leaving group {group}")));
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}
