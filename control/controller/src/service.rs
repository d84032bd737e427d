//! The gRPC service: messages in, calls on the state, messages out.

use std::pin::Pin;
use std::sync::Arc;

use castnet_proto::convert::{
    connection_from_proto, exchange_from_proto, name_from_proto, new_collective_from_proto,
    new_group_from_proto, rank_join_from_proto, registration_from_proto,
};
use castnet_proto::v1;
use castnet_proto::v1::controller_server::Controller;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::collective;
use crate::collective::requests::{Attendance, Seen};
use crate::core::Shared;
use crate::error::Refusal;
use crate::requests::{Join, missing};
use crate::view;

/// Messages that wait for a slow client.
const STREAM_DEPTH: usize = 64;

type BoxStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
type Answer<T> = Result<Response<T>, Status>;

/// The service.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) shared: Arc<Shared>,
}

impl Service {
    fn state(&self, group: &str) -> Result<v1::GroupState, Refusal> {
        let core = self.shared.lock();
        Ok(view::group_state(&core, core.group(group)?, None))
    }

    fn switches(&self) -> Vec<v1::SwitchState> {
        let core = self.shared.lock();
        self.shared
            .links
            .iter()
            .map(|(name, link)| view::switch(&core, name, link.endpoint()))
            .collect()
    }
}

/// Tells a joining member each change until the group is active or has failed. When the client goes first, the join is
/// dropped with this task, and so withdrawn.
async fn tell(mut join: Join, to: mpsc::Sender<Result<v1::GroupState, Status>>) {
    let mut told = None;
    loop {
        join.changed.mark_unchanged();
        let Some((state, last)) = join.state() else {
            let reason = format!(
                "host {:?} is not in group {:?} by this call any more",
                join.host, join.group
            );
            // The client may be gone too.
            let _ = to.send(Err(Status::aborted(reason))).await;
            return;
        };
        if told.as_ref() != Some(&state) {
            told = Some(state.clone());
            if to.send(Ok(state)).await.is_err() {
                return;
            }
        }
        if last {
            return;
        }
        tokio::select! {
            () = to.closed() => return,
            _ = join.changed.changed() => {}
        }
    }
}

/// Tells a rank each change of its group for as long as it is in. When the client goes first, the attendance is dropped
/// with this task, and the rank's lease begins to run.
async fn attend(mut attendance: Attendance, to: mpsc::Sender<Result<v1::CollectiveState, Status>>) {
    let mut told = None;
    loop {
        attendance.changed.mark_unchanged();
        let (state, last) = match attendance.look() {
            Seen::State(state) => (state, false),
            Seen::Last(state) => (state, true),
            Seen::Nothing => return,
            Seen::Superseded => {
                let (rank, group) = (attendance.rank, &attendance.group);
                let reason = format!("rank {rank} of group {group:?} is in by another call");
                // The client may be gone too.
                let _ = to.send(Err(Status::aborted(reason))).await;
                return;
            }
        };
        if told.as_ref() != Some(&state) {
            told = Some(state.clone());
            if to.send(Ok(*state)).await.is_err() {
                return;
            }
        }
        if last {
            return;
        }
        tokio::select! {
            () = to.closed() => return,
            _ = attendance.changed.changed() => {}
        }
    }
}

#[tonic::async_trait]
impl Controller for Service {
    async fn create_group(
        &self,
        request: Request<v1::CreateGroupRequest>,
    ) -> Answer<v1::CreateGroupResponse> {
        let group = new_group_from_proto(request.get_ref())?;
        let name = group.name.clone();
        if self.shared.create(group)?
            && let Err(failure) = self.shared.installed(&name).await
        {
            // Everything was given, and it cannot be: refused whole, and nothing stays.
            let changed = self.shared.destroy(&name)?;
            self.shared.gone(&name, changed).await;
            return Err(Refusal::Failed(failure).into());
        }
        let group = self.state(&name)?;
        Ok(Response::new(v1::CreateGroupResponse { group: Some(group) }))
    }

    type JoinGroupStream = BoxStream<v1::GroupState>;

    async fn join_group(&self, request: Request<v1::JoinGroupRequest>) -> Answer<Self::JoinGroupStream> {
        let v1::JoinGroupRequest {
            group,
            host,
            connection,
        } = request.into_inner();
        let host = name_from_proto("host", &host)?;
        let ends = connection_from_proto("connection", &host, connection.as_ref())?;
        let join = self.shared.join(&group, host, ends)?;
        let (to, from) = mpsc::channel(STREAM_DEPTH);
        self.shared.spawn(tell(join, to));
        Ok(Response::new(Box::pin(ReceiverStream::new(from))))
    }

    async fn leave_group(&self, request: Request<v1::LeaveGroupRequest>) -> Answer<v1::LeaveGroupResponse> {
        let v1::LeaveGroupRequest { group, host, rank } = request.into_inner();
        let left = match rank {
            Some(rank) => self.shared.leave_collective(&group, rank)?,
            None => self.shared.leave(&group, &host)?,
        };
        Ok(Response::new(v1::LeaveGroupResponse { left }))
    }

    async fn destroy_group(
        &self,
        request: Request<v1::DestroyGroupRequest>,
    ) -> Answer<v1::DestroyGroupResponse> {
        let v1::DestroyGroupRequest { group } = request.into_inner();
        let collective = self.shared.lock().collectives.contains_key(&group);
        let changed = match collective {
            true => self.shared.destroy_collective(&group)?,
            false => self.shared.destroy(&group)?,
        };
        let pending_switches = self.shared.gone(&group, changed).await;
        Ok(Response::new(v1::DestroyGroupResponse {
            complete: pending_switches.is_empty(),
            pending_switches,
        }))
    }

    async fn get_group(&self, request: Request<v1::GetGroupRequest>) -> Answer<v1::Group> {
        let core = self.shared.lock();
        let name = &request.get_ref().group;
        if let Ok(entry) = core.collective(name) {
            return Ok(Response::new(v1::Group {
                collective: Some(collective::view::group(&core, entry)),
                ..Default::default()
            }));
        }
        let entry = core.group(name)?;
        Ok(Response::new(view::group(&core, entry)))
    }

    async fn list_groups(
        &self,
        _: Request<v1::ListControllerGroupsRequest>,
    ) -> Answer<v1::ListControllerGroupsResponse> {
        let core = self.shared.lock();
        let groups = core.groups.values().map(|e| view::group(&core, e)).collect();
        Ok(Response::new(v1::ListControllerGroupsResponse {
            groups,
            collectives: core
                .collectives
                .values()
                .map(|e| collective::view::group(&core, e))
                .collect(),
        }))
    }

    async fn list_switches(&self, _: Request<v1::ListSwitchesRequest>) -> Answer<v1::ListSwitchesResponse> {
        Ok(Response::new(v1::ListSwitchesResponse {
            switches: self.switches(),
        }))
    }

    async fn list_hosts(&self, _: Request<v1::ListHostsRequest>) -> Answer<v1::ListHostsResponse> {
        Ok(Response::new(v1::ListHostsResponse {
            hosts: view::hosts(&self.shared.lock()),
        }))
    }

    async fn register_host(
        &self,
        request: Request<v1::RegisterHostRequest>,
    ) -> Answer<v1::RegisterHostResponse> {
        let host = registration_from_proto(request.get_ref())?;
        self.shared.register(&host)?;
        let known = view::hosts(&self.shared.lock())
            .into_iter()
            .find(|h| h.name == host.name);
        let host = known.ok_or_else(|| missing("name", "a host"))?;
        Ok(Response::new(v1::RegisterHostResponse { host: Some(host) }))
    }

    async fn get_topology(&self, _: Request<v1::GetTopologyRequest>) -> Answer<v1::Topology> {
        let switches = self.switches();
        let core = self.shared.lock();
        let (hosts, links) = (view::hosts(&core), view::links(&core));
        Ok(Response::new(v1::Topology {
            switches,
            hosts,
            links,
            from_file: core.facts.file.is_some(),
        }))
    }

    async fn create_collective(
        &self,
        request: Request<v1::CreateCollectiveRequest>,
    ) -> Answer<v1::CreateCollectiveResponse> {
        let new = new_collective_from_proto(request.get_ref())?;
        let group = self.shared.create_collective(new)?;
        Ok(Response::new(v1::CreateCollectiveResponse { group: Some(group) }))
    }

    type InitGroupStream = BoxStream<v1::CollectiveState>;

    async fn init_group(&self, request: Request<v1::InitGroupRequest>) -> Answer<Self::InitGroupStream> {
        let attendance = self.shared.init(rank_join_from_proto(request.get_ref())?)?;
        let (to, from) = mpsc::channel(STREAM_DEPTH);
        self.shared.spawn(attend(attendance, to));
        Ok(Response::new(Box::pin(ReceiverStream::new(from))))
    }

    async fn exchange(&self, request: Request<v1::ExchangeRequest>) -> Answer<v1::ExchangeResponse> {
        let call = exchange_from_proto(request.into_inner())?;
        Ok(Response::new(self.shared.exchanges.exchange(call).await?))
    }

    type WatchEventsStream = BoxStream<v1::ControllerEvent>;

    async fn watch_events(
        &self,
        _: Request<v1::WatchControllerEventsRequest>,
    ) -> Answer<Self::WatchEventsStream> {
        let mut events = self.shared.subscribe();
        let (to, from) = mpsc::channel(STREAM_DEPTH);
        let event = |event| v1::ControllerEvent {
            at_unix_ns: 0,
            event: Some(event),
        };
        self.shared.spawn(async move {
            let mut next = event(v1::controller_event::Event::Started(v1::WatchStarted {}));
            while to.send(Ok(next)).await.is_ok() {
                next = tokio::select! {
                    () = to.closed() => return,
                    told = events.recv() => match told {
                        Ok(told) => told,
                        Err(RecvError::Lagged(lost)) => event(v1::controller_event::Event::Lagged(lost)),
                        Err(RecvError::Closed) => return,
                    },
                };
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(from))))
    }
}
