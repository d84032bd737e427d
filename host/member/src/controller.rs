use std::time::{Duration, Instant};

use castnet_proto::convert::reason_line;
use castnet_proto::transport::{
    Clients, ControllerClient, Outage, RETRY_DELAY, TransportError, lost_connection, retry,
};
use castnet_proto::v1 as api;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::{Code, Status, Streaming};

use crate::error::MemberError;
use crate::meeting::Hosts;
use crate::member::{ReceiverState, Reports};
use crate::passing::Peer;

/// How long a call that leaves is repeated.
const LEAVE_PATIENCE: Duration = Duration::from_secs(1);
/// How often the group is looked at during a transfer.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// How long a member that was in the group, or waited in it, looks for a controller that has gone.
pub(crate) const RETURN_PATIENCE: Duration = Duration::from_secs(60);
/// How often a receiver that has everything asks whether the source has left, if no lease tells it.
const LEFT_INTERVAL: Duration = Duration::from_millis(250);
/// How long a source that has left waits for the reports of its receivers, and how often it looks for them.
const REPORT_PATIENCE: Duration = Duration::from_secs(3);
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Clone)]
pub(crate) struct Controller {
    pub(crate) clients: Clients,
    pub(crate) group: String,
    pub(crate) host: String,
    pub(crate) lease: Duration,
    pub(crate) from_next_message: bool,
    pub(crate) co_works: bool,
    pub(crate) passes_on: bool,
}

/// The states of a group, from the call that is a member's lease. They end when the group does not run with this member.
pub(crate) type States = watch::Receiver<api::GroupState>;

/// The call that keeps a member in its group. Dropping it ends the call.
#[derive(Debug)]
pub(crate) struct Lease {
    task: JoinHandle<()>,
    pub(crate) states: States,
    /// At a source: the group with all its members, when it joined.
    pub(crate) at_begin: Option<api::GroupState>,
}

impl Lease {
    /// The last state that was seen.
    pub(crate) fn state(&self) -> watch::Ref<'_, api::GroupState> {
        self.states.borrow()
    }

    /// Whether the group does not run with this member any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.states.has_changed().is_err()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Whether the controller or the group may only come later.
fn is_early(error: &MemberError) -> bool {
    match error {
        // Its name may be known only later.
        MemberError::Transport(error) => matches!(error, TransportError::Resolve(..)) || error.is_transient(),
        MemberError::NotActive { .. } => true,
        MemberError::Status { status, .. } => is_unavailable(status) || status.code() == Code::NotFound,
        _ => false,
    }
}

/// Whether the controller cannot be reached now.
fn is_away(error: &MemberError) -> bool {
    match error {
        MemberError::Transport(_) => true,
        MemberError::Status { status, .. } => is_unavailable(status),
        _ => false,
    }
}

/// What becomes of a member that has missed a run of its group: the error, or `None` if it waits for the next run. `any_source`: any member sends,
/// and none comes back by itself.
fn after_missing(lost: MemberError, any_source: bool) -> Option<MemberError> {
    match lost {
        MemberError::Diverted { .. } => Some(lost),
        MemberError::Ended { .. } if any_source => Some(lost),
        _ => None,
    }
}

/// A controller that is killed ends a call with any code.
fn is_unavailable(status: &Status) -> bool {
    status.code() == Code::Unavailable || lost_connection(status).is_some()
}

pub(crate) fn has_any_source(state: &api::GroupState) -> bool {
    state.any_source() != api::AnySource::Unspecified
}

pub(crate) fn has_source(state: &api::GroupState) -> bool {
    let source = state.members.iter().find(|m| m.host == state.source);
    source.is_some_and(|m| m.phase() == api::MemberPhase::Joined)
}

impl Controller {
    async fn client(&self) -> Result<ControllerClient, MemberError> {
        Ok(self.clients.leading().await?)
    }

    async fn state(&self, client: &mut ControllerClient) -> Result<api::GroupState, Status> {
        let group = self.group.clone();
        let answer = client.get_group(api::GetGroupRequest { group }).await?;
        Ok(answer.into_inner().state.unwrap_or_default())
    }

    fn is_in(&self, state: &api::GroupState) -> bool {
        let own = state.members.iter().find(|m| m.host == self.host);
        own.is_some_and(|m| m.phase() != api::MemberPhase::Expected)
    }

    fn refused(&self, doing: &'static str, status: Status) -> MemberError {
        MemberError::Status {
            doing,
            group: self.group.clone(),
            status: Box::new(status),
        }
    }

    /// The number of lanes of the group. Fails if this host has another role in it and cannot do both.
    pub(crate) async fn lanes(self, role: api::Role, patience: Duration) -> Result<usize, MemberError> {
        // It begins anew, at any controller.
        self.clients.joined().clear();
        let ask = || async {
            let mut client = self.client().await?;
            let state = self.state(&mut client).await;
            let state = state.map_err(|status| self.refused("joining", status))?;
            let own = state.members.iter().find(|m| m.host == self.host);
            own.map_or(Ok(()), |own| self.check_role(role, own.role()))?;
            Ok(state.lanes.len().max(1))
        };
        retry(patience, is_early, ask).await
    }

    fn check_role(&self, wanted: api::Role, role: api::Role) -> Result<(), MemberError> {
        match role == wanted || role == api::Role::Member {
            true => Ok(()),
            false => Err(MemberError::WrongRole {
                host: self.host.clone(),
                group: self.group.clone(),
                role,
            }),
        }
    }

    /// Joins with this connection, and waits until the group is active. Leaves at once if this host has another role in
    /// it.
    pub(crate) async fn join(
        self,
        role: api::Role,
        connection: api::Connection,
        patience: Duration,
    ) -> Result<(api::GroupState, Option<Lease>), MemberError> {
        let (mut since, mut patience) = (Instant::now(), patience);
        let joined = loop {
            let mut has_waited = false;
            let joined = self.join_once(role, connection.clone(), &mut has_waited).await;
            if has_waited {
                (since, patience) = (Instant::now(), patience.max(RETURN_PATIENCE));
            }
            match joined {
                Err(error) if is_early(&error) && since.elapsed() < patience => {
                    tracing::debug!(%error, "joining again");
                    tokio::time::sleep(RETRY_DELAY).await;
                }
                joined => break joined,
            }
        };
        if matches!(joined, Err(MemberError::WrongRole { .. }))
            && let Err(error) = self.leave(None, None).await
        {
            tracing::warn!(%error, "not left");
        }
        joined
    }

    /// Follows the state of the group by a call that is this member's lease, and calls again if it ends: traffic needs no
    /// controller. Ends when the group does not run, or not with this member.
    async fn hold(
        self,
        mut states: Streaming<api::GroupState>,
        request: api::JoinGroupRequest,
        seen: watch::Sender<api::GroupState>,
    ) {
        let runs = |state: &api::GroupState| {
            seen.send_replace(state.clone());
            self.runs_with(state)
        };
        loop {
            while let Ok(Some(state)) = states.message().await {
                if !runs(&state) {
                    return;
                }
            }
            tracing::debug!(self.group, "the lease's stream broke");
            let mut outage = Outage::begin();
            states = loop {
                tokio::time::sleep(RETRY_DELAY).await;
                let again = async {
                    let mut client = self.client().await?;
                    // It takes no part in another run of the group: its QPs know the PSNs of this one.
                    match self.state(&mut client).await {
                        Ok(state) if !runs(&state) => return Ok(None),
                        Ok(_) => client.join_group(request.clone()).await.map(Some),
                        Err(status) => Err(status),
                    }
                    .map_err(|status| self.refused("holding the lease in", status))
                };
                match again.await {
                    Ok(None) => return,
                    Ok(Some(answer)) => {
                        self.clients.joined().set(answer.metadata());
                        break answer.into_inner();
                    }
                    Err(MemberError::Status { status, .. })
                        if matches!(status.code(), Code::NotFound | Code::FailedPrecondition) =>
                    {
                        return;
                    }
                    Err(error) if outage.lasts() => {
                        tracing::warn!(self.group, %error, "the member goes on without its controller");
                    }
                    Err(error) => tracing::debug!(self.group, %error, "calling again"),
                }
            };
        }
    }

    fn runs_with(&self, state: &api::GroupState) -> bool {
        use api::GroupPhase::{Active, Degraded};
        matches!(state.phase(), Active | Degraded) && self.is_in(state)
    }

    async fn join_once(
        &self,
        role: api::Role,
        connection: api::Connection,
        has_waited: &mut bool,
    ) -> Result<(api::GroupState, Option<Lease>), MemberError> {
        let group = &self.group;
        let refused = |status| self.refused("joining", status);
        let request = api::JoinGroupRequest {
            group: group.clone(),
            host: self.host.clone(),
            connection: Some(connection),
            lease_ms: Some(self.lease.as_millis() as u32),
            brief: true,
            from_next_message: self.from_next_message,
            co_works: self.co_works,
            passes_on: self.passes_on,
        };
        let mut client = self.client().await?;
        let answer = client.join_group(request.clone()).await.map_err(refused)?;
        let at = answer.metadata().clone();
        let (mut states, mut last) = (answer.into_inner(), None);
        while let Some(state) = states.message().await.map_err(refused)? {
            *has_waited = true;
            self.check_role(role, state.role())?;
            match state.phase() {
                api::GroupPhase::Active | api::GroupPhase::Degraded => {
                    self.clients.joined().set(&at);
                    // Earlier controllers do not know leases.
                    let has_lease = state.on_member_loss() != api::MemberLoss::Unspecified;
                    let at_begin = match role {
                        api::Role::Source => self.state(&mut client).await.ok(),
                        _ => None,
                    };
                    let lease = has_lease.then(|| {
                        let (seen, all) = watch::channel(state.clone());
                        let task = tokio::spawn(self.clone().hold(states, request, seen));
                        Lease {
                            task,
                            states: all,
                            at_begin,
                        }
                    });
                    return Ok((state, lease));
                }
                api::GroupPhase::Failed if state.ended.is_empty() => {
                    // The states of a join have this member only.
                    let all = self.state(&mut client).await.map_err(refused)?;
                    let hosts = all.members.into_iter().map(|member| member.host);
                    let (mut members, others): (Vec<_>, Vec<_>) =
                        hosts.partition(|host| *host == state.source);
                    members.extend(others);
                    return Err(MemberError::NotInstalled {
                        group: group.clone(),
                        reason: state.reason,
                        hosts: Hosts::named(members),
                    });
                }
                phase => tracing::debug!(group, ?phase, reason = state.reason, "waiting"),
            }
            last = Some(state);
        }
        // States may have been left out: the group may have run with this member.
        let missed = match last.filter(|state| !self.is_in(state)) {
            Some(state) => self.clone().missed(has_any_source(&state)).await,
            None => None,
        };
        Err(missed.unwrap_or_else(|| MemberError::NotActive { group: group.clone() }))
    }

    /// Waits until it is known how the run ended that this member has missed. `None`: it waits for the next run.
    pub(crate) async fn missed(self, any_source: bool) -> Option<MemberError> {
        after_missing(self.lost(None).await, any_source)
    }

    /// Leaves the group; as its source, which goes on from host to host, with the reason; as a receiver, with what it has. A group that does
    /// not exist any more is left.
    pub(crate) async fn leave(
        self,
        diverts: Option<String>,
        received: Option<api::Received>,
    ) -> Result<Option<api::Diversion>, MemberError> {
        let request = api::LeaveGroupRequest {
            group: self.group.clone(),
            host: self.host.clone(),
            rank: None,
            diverts,
            received,
        };
        let leave = || async {
            match self.client().await?.leave_group(request.clone()).await {
                Ok(left) => Ok(left.into_inner().diversion),
                Err(status) if status.code() == Code::NotFound => Ok(None),
                Err(status) => Err(self.refused("leaving", status)),
            }
        };
        // A source that goes on from host to host cannot do so alone.
        let patience = match request.diverts {
            Some(_) => RETURN_PATIENCE,
            None => LEAVE_PATIENCE,
        };
        retry(patience, |_| true, leave).await
    }

    /// Gives another member this end of a connection, and gets its. The receiver outside is rank 0, who passes the stream on 1; `number` is
    /// of the choice of that member.
    pub(crate) async fn meet(
        self,
        rank: usize,
        number: u64,
        own: Peer,
        patience: Duration,
    ) -> Result<Peer, MemberError> {
        let request = api::ExchangeRequest {
            job: self.group.clone(),
            among: api::ExchangeAmong::Outside.into(),
            rank: rank as u32,
            size: 2,
            round: number,
            blob: own.to_bytes(),
            timeout_ms: patience.as_millis() as u32,
            ..Default::default()
        };
        let exchange = || async {
            let answer = self.client().await?.exchange(request.clone()).await;
            answer.map_err(|status| self.refused("meeting another member of", status))
        };
        let answer = retry(RETURN_PATIENCE, is_away, exchange).await?;
        let blobs = answer.into_inner().blobs;
        let peer = blobs.get(1 - rank).and_then(|blob| Peer::from_bytes(blob));
        peer.ok_or_else(|| MemberError::Invalid {
            what: "another member's end of a connection".into(),
        })
    }

    /// This member does not reach a receiver to which it passes the stream on.
    pub(crate) async fn report_unreached(self, receiver: String, number: u64, reason: String) {
        let request = api::ReportUnreachedRequest {
            group: self.group.clone(),
            host: self.host.clone(),
            receiver,
            number,
            reason: reason_line(&reason),
        };
        let report = || async {
            let answer = self.client().await?.report_unreached(request.clone()).await;
            answer.map_err(|status| self.refused("reporting about", status))
        };
        if let Err(error) = retry(RETURN_PATIENCE, is_away, report).await {
            tracing::warn!(%error, "not reported");
        }
    }

    /// Whether the group runs with this member and its source.
    fn carries(&self, state: &api::GroupState) -> bool {
        self.runs_with(state) && has_source(state)
    }

    /// Waits until the source has left the group, or the group is destroyed: the source has every acknowledgement then.
    pub(crate) async fn source_left(self, states: Option<States>) -> Result<(), MemberError> {
        if let Some(mut states) = states
            && states.wait_for(|state| !self.carries(state)).await.is_ok()
        {
            return Ok(());
        }
        let mut client = self.client().await?;
        loop {
            match self.state(&mut client).await {
                Ok(state) if self.carries(&state) => {}
                Ok(_) => return Ok(()),
                Err(status) if status.code() == Code::NotFound => return Ok(()),
                Err(status) => {
                    tracing::debug!(self.group, %status, "asking whether the source has left");
                    // Another controller may lead now.
                    client = self.client().await.unwrap_or(client);
                }
            }
            tokio::time::sleep(LEFT_INTERVAL).await;
        }
    }

    /// Waits until all receivers of a source that has left have reported, for some seconds at most.
    pub(crate) async fn await_reports(self, mut reports: Reports) -> Vec<ReceiverState> {
        let look = async {
            // A group that is gone after its end has no reports.
            while let Ok(state) = self.clone().look().await {
                reports.handle_state(&state);
                if reports.are_complete() {
                    return;
                }
                tokio::time::sleep(REPORT_INTERVAL).await;
            }
        };
        if tokio::time::timeout(REPORT_PATIENCE, look).await.is_err() {
            tracing::debug!(self.group, "not all receivers have reported");
        }
        reports.into_receivers()
    }

    /// Waits until the group is destroyed, goes on without this member, or has ended, and returns which.
    pub(crate) async fn lost(self, mut states: Option<States>) -> MemberError {
        loop {
            if let Some(states) = &mut states {
                // Until then there is nothing to look at. The group itself tells more once its states have ended.
                let _ = states.wait_for(|state| !self.carries(state)).await;
            }
            tokio::time::sleep(WATCH_INTERVAL).await;
            let Ok(mut client) = self.client().await else {
                continue;
            };
            match self.state(&mut client).await {
                Ok(state) => {
                    if let Some(lost) = self.lost_by(&state) {
                        return lost;
                    }
                }
                Err(status) if status.code() == Code::NotFound => {
                    return MemberError::Destroyed { group: self.group };
                }
                Err(_) => {}
            }
        }
    }

    /// The group with all its members.
    pub(crate) async fn look(self) -> Result<api::GroupState, MemberError> {
        let ask = || async {
            let state = self.state(&mut self.client().await?).await;
            state.map_err(|status| self.refused("looking at", status))
        };
        retry(RETURN_PATIENCE, is_away, ask).await
    }

    /// Fails if the group does not run with this member.
    pub(crate) async fn confirm(self) -> Result<(), MemberError> {
        let state = self.clone().look().await?;
        match self.lost_by(&state) {
            Some(lost) => Err(lost),
            None if self.runs_with(&state) => Ok(()),
            None => Err(MemberError::NotActive { group: self.group }),
        }
    }

    /// Why this member can do nothing more in the group. `None`: it can, or it is not certain yet.
    fn lost_by(&self, state: &api::GroupState) -> Option<MemberError> {
        use api::GroupPhase::{Active, Degraded, Failed, Removing};
        let (group, host) = (self.group.clone(), self.host.clone());
        let own = state.members.iter().find(|m| m.host == host);
        let put_out = || own.map(|m| m.put_out.clone()).unwrap_or_default();
        let is_listed = own.is_some();
        let diversion = state.diversion.as_ref().filter(|d| d.hosts.contains(&host));
        if let Some(diversion) = diversion.filter(|_| !self.runs_with(state)) {
            return Some(MemberError::diverted(group, diversion.clone()));
        }
        match state.phase() {
            _ if !is_listed => Some(MemberError::Evicted {
                host,
                group,
                reason: String::new(),
            }),
            Active | Degraded if self.is_in(state) => None,
            Active | Degraded => Some(MemberError::Evicted {
                reason: put_out(),
                host,
                group,
            }),
            // Its run has ended without it.
            _ if !put_out().is_empty() => Some(MemberError::Evicted {
                reason: put_out(),
                host,
                group,
            }),
            // The rules of its last run are being removed.
            Removing => None,
            phase => {
                let reason = match phase {
                    Failed => state.reason.clone(),
                    _ if state.ended.is_empty() => {
                        "a member that it needs has left, or is back with a new connection".to_owned()
                    }
                    _ => state.ended.clone(),
                };
                Some(MemberError::Ended { group, reason })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use castnet_proto::transport::{Connection, Security, TransportError};

    use super::*;

    fn state(source: api::MemberPhase) -> api::GroupState {
        let member = |host: &str, phase: api::MemberPhase| api::MemberState {
            host: host.into(),
            phase: phase.into(),
            ..Default::default()
        };
        api::GroupState {
            phase: api::GroupPhase::Active.into(),
            source: "h1".into(),
            members: vec![member("h1", source), member("h2", api::MemberPhase::Joined)],
            ..Default::default()
        }
    }

    /// A member whose controller does not exist.
    fn member(host: &str) -> Controller {
        let nowhere = "unix:/nonexistent/castnet".parse().expect("an address");
        let connection = Connection::to(&nowhere, &Security::default()).expect("a thread");
        Controller {
            clients: connection.clients(),
            group: "g".into(),
            host: host.into(),
            lease: Duration::from_secs(5),
            from_next_message: false,
            co_works: false,
            passes_on: false,
        }
    }

    #[test]
    fn what_became_of_a_group_says_whether_a_member_joins_again() {
        use api::GroupPhase::{Active, Degraded, Failed, Installing, Registered, Removing};
        use api::MemberPhase::{Expected, Joined};
        let lost_out = |host: &str, phase: api::GroupPhase, own: api::MemberPhase, put_out: &str| {
            let mut state = state(Joined);
            state.set_phase(phase);
            (state.reason, state.ended) = ("h3 is gone".into(), "host h1 has left".into());
            let own = (host, own);
            for member in state.members.iter_mut().filter(|m| m.host == own.0) {
                member.set_phase(own.1);
                member.put_out = put_out.into();
            }
            member(host).lost_by(&state)
        };
        let lost = |host: &str, phase, own| lost_out(host, phase, own, "");
        for phase in [Active, Degraded] {
            assert!(lost("h2", phase, Joined).is_none());
            let evicted = lost_out("h2", phase, Expected, "it stalls").expect("it is out");
            assert!(matches!(evicted, MemberError::Evicted { .. }) && !evicted.may_join_again());
            assert_eq!(evicted.to_string(), "h2 was put out of group g: it stalls");
        }
        assert!(lost("h2", Removing, Expected).is_none());
        for (host, phase, reason) in [
            ("h2", Registered, "host h1 has left"),
            ("h2", Failed, "h3 is gone"),
            ("h1", Registered, "host h1 has left"),
        ] {
            let ended = lost(host, phase, Expected).expect("it has ended");
            assert!(
                ended.may_join_again() && ended.to_string().contains(reason),
                "{ended}"
            );
        }
        for phase in [Removing, Registered, Installing, Failed] {
            let evicted = lost_out("h2", phase, Expected, "it is cut off").expect("it is out");
            assert_eq!(evicted.to_string(), "h2 was put out of group g: it is cut off");
        }
        // All others have joined again by now.
        let mut again = state(Joined);
        again.set_phase(Installing);
        let unknown = member("h2").lost_by(&again).expect("it has ended");
        assert!(
            unknown
                .to_string()
                .ends_with("has left, or is back with a new connection")
        );
        let gone = lost("h4", Registered, Expected);
        assert!(matches!(gone, Some(MemberError::Evicted { .. })), "{gone:?}");
    }

    /// Receivers wait for their source again. Members that all send do not come back, and who goes on from host to host is waited for there.
    #[test]
    fn a_member_that_has_missed_a_run_waits_for_the_next_one_or_not() {
        let (group, reason) = (|| "g".to_owned(), || "host h1 has left".to_owned());
        let ended = || MemberError::Ended {
            group: group(),
            reason: reason(),
        };
        let diverted = || MemberError::Diverted {
            group: group(),
            reason: reason(),
            hosts: Hosts::named(vec!["h1".to_owned(), "h2".to_owned()]),
        };
        let destroyed = || MemberError::Destroyed { group: group() };
        assert!(after_missing(ended(), false).is_none());
        assert!(matches!(
            after_missing(ended(), true),
            Some(MemberError::Ended { .. })
        ));
        for any_source in [false, true] {
            let missed = after_missing(diverted(), any_source);
            assert!(matches!(missed, Some(MemberError::Diverted { .. })), "{missed:?}");
            assert!(after_missing(destroyed(), any_source).is_none());
        }
    }

    #[test]
    fn what_can_never_succeed_is_not_waited_for() {
        let address = || "https://controller:7470".parse().expect("an address");
        let timeout = TransportError::Timeout(address(), Duration::from_secs(1));
        assert!(is_early(&timeout.into()));
        let missing = Arc::new(io::ErrorKind::NotFound.into());
        for never in [
            TransportError::NoCertificates(address()),
            TransportError::File("ca.pem".into(), missing),
            TransportError::Tls(address(), "it has no authority".into()),
            TransportError::Plaintext(address(), ([10, 0, 0, 1], 7470).into()),
        ] {
            assert!(!is_early(&never.into()));
        }
    }

    /// Its calls end while their answer is read.
    #[test]
    fn a_controller_that_is_killed_is_waited_for() {
        let of = |status| member("h2").refused("joining", status);
        let killed =
            || Status::from_error(Box::new(io::Error::other("error reading a body from connection")));
        assert_eq!(killed().code(), Code::Unknown);
        assert!(is_early(&of(killed())) && is_away(&of(killed())));
        let says = || Status::new(Code::Unknown, "error reading a body from connection");
        assert!(!is_early(&of(says())) && !is_away(&of(says())));
    }

    /// There is no controller: to ask it is an error.
    #[tokio::test]
    async fn a_receiver_with_a_lease_waits_for_the_source_without_asking() {
        let controller = member("h2");
        let (seen, states) = watch::channel(state(api::MemberPhase::Joined));
        let left = tokio::spawn(controller.clone().source_left(Some(states)));
        seen.send_replace(state(api::MemberPhase::Joined));
        tokio::task::yield_now().await;
        assert!(!left.is_finished());
        seen.send_replace(state(api::MemberPhase::Left));
        left.await.expect("no panic").expect("the source has left");
        let asked = controller.source_left(None).await;
        assert!(matches!(asked, Err(MemberError::Transport(_))), "{asked:?}");
    }
}
