//! The gRPC service. Calls wait for the workers, so they run on tokio's blocking threads.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use castnet_proto::access::{Caller, Role, RunningCall};
use castnet_proto::convert::{
    Invalid, RULES_TOGETHER_MAX, check_owner, filter_from_proto, install_result_to_proto, mcst_id_from_proto,
    multicast_routes_from_proto, port_from_proto, prefix_from_proto, route_from_proto, routes_from_proto,
    rule_from_proto, source_guard_from_proto,
};
use castnet_proto::term::term_of;
use castnet_proto::v1;
use castnet_proto::v1::agent_event::Event;
use castnet_rules::GroupRule;
use castnet_wire::McstId;
use castnet_worker::{InstalledGroup, Moved};
use tokio::sync::{Mutex, mpsc};
use tokio_stream::wrappers::errors::BroadcastStreamRecvError::Lagged;
use tokio_stream::wrappers::{BroadcastStream, ReceiverStream};
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status};

use crate::Shared;
use crate::shell::status::{move_refused, stopped, tap_refused};
use crate::shell::taps;
use crate::state::access::check_term;
use crate::state::core::Core;
use crate::state::pipeline::Pipeline;
use crate::state::refusal::Refusal;
use crate::state::view;

/// Longest frame of a dry run: an IPv4 packet with an Ethernet header and a tag.
const FRAME_BYTES_MAX: usize = 65_535 + 18;
type Messages<T> = ReceiverStream<Result<T, Status>>;
type Answer<T> = Result<Response<T>, Status>;

#[derive(Clone)]
pub(crate) struct Service {
    shared: Arc<Shared>,
    /// Held while everything is shown to who may only read.
    listing: Arc<Mutex<()>>,
}

impl Service {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let listing = Arc::default();
        Self { shared, listing }
    }

    async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Shared) -> Result<T, Status> + Send + 'static,
    ) -> Answer<T> {
        let (shared, call) = (self.shared.clone(), RunningCall::current());
        let asked = move || {
            let _to_its_end = call;
            question(&shared)
        };
        let answer = tokio::task::spawn_blocking(asked).await;
        answer
            .map_err(|error| Status::internal(error.to_string()))?
            .map(Response::new)
    }

    /// The same for a list of everything, which takes much memory until it is whole. Who may only read gets one at a time, also if its
    /// clients go meanwhile.
    async fn list<Q, T: Send + 'static>(
        &self,
        request: &Request<Q>,
        question: impl FnOnce(&Shared) -> Result<T, Status> + Send + 'static,
    ) -> Answer<T> {
        let turn = match Caller::of(request)?.role {
            Role::ReadOnly => Some(self.listing.clone().lock_owned().await),
            _ => None,
        };
        self.ask(move |shared| {
            let _to_its_end = turn;
            question(shared)
        })
        .await
    }

    /// Gives a request to the state.
    async fn decide<T: Send + 'static>(
        &self,
        request: impl FnOnce(&mut Core, &mut dyn Pipeline) -> Result<T, Refusal> + Send + 'static,
    ) -> Answer<T> {
        self.ask(|shared| shared.handle(request).map_err(Status::from))
            .await
    }
}

/// The term that a call carries.
fn term<T>(who: &Caller, request: &Request<T>, changes: bool) -> Result<Option<v1::ControllerTerm>, Status> {
    let term = term_of(request.metadata())?;
    check_term(who, term.as_ref(), changes)?;
    Ok(term)
}

fn owner_of(shared: &Shared, mcst_id: McstId) -> String {
    shared.handle(|core, _| core.owner_of(mcst_id).to_owned())
}

fn streamed<T>(from: mpsc::Receiver<Result<T, Status>>) -> Response<Messages<T>> {
    Response::new(ReceiverStream::new(from))
}

#[tonic::async_trait]
impl v1::agent_server::Agent for Service {
    async fn get_capabilities(
        &self,
        request: Request<v1::GetCapabilitiesRequest>,
    ) -> Answer<v1::Capabilities> {
        let caller = term(&*Caller::of(&request)?, &request, false)?;
        self.ask(move |shared| {
            shared.handle(|core, _| core.check(caller.as_ref()))?;
            let (dataplane, boot_id) = (&shared.dataplane, shared.boot_id);
            let workers = dataplane.runtime().map_err(stopped)?;
            let ports = dataplane.ports().map_err(stopped)?;
            let config = dataplane.config();
            Ok(view::capabilities(config, boot_id, &workers, &ports))
        })
        .await
    }

    async fn install_group(
        &self,
        request: Request<v1::InstallGroupRequest>,
    ) -> Answer<v1::InstallGroupResponse> {
        let who = Caller::of(&request)?;
        let caller = term(&who, &request, true)?;
        let v1::InstallGroupRequest { rule, owner } = request.into_inner();
        check_owner(&owner)?;
        let rule = rule_from_proto("rule", rule.as_ref())?;
        who.concerns(rule.name.clone());
        let (generation, boot_id) = (rule.generation, self.shared.boot_id);
        let answer =
            self.decide(move |core, pipeline| core.install_group(pipeline, caller.as_ref(), &owner, &rule));
        Ok(answer.await?.map(|outcome| v1::InstallGroupResponse {
            outcome: outcome as i32,
            generation,
            boot_id,
        }))
    }

    async fn install_groups(
        &self,
        request: Request<v1::InstallGroupsRequest>,
    ) -> Answer<v1::InstallGroupsResponse> {
        let who = Caller::of(&request)?;
        let caller = term(&who, &request, true)?;
        let v1::InstallGroupsRequest {
            rules,
            owner,
            stop_at_refusal,
        } = request.into_inner();
        check_owner(&owner)?;
        who.concerns(format!("{} groups", rules.len()));
        if rules.len() > RULES_TOGETHER_MAX {
            let value = format!("{} rules", rules.len());
            let why = "are more than 1,024: give them in several requests";
            return Err(Invalid::out_of_range("rules", value, why).into());
        }
        self.ask(move |shared| {
            let read = |rule| rule_from_proto("rule", Some(rule)).map_err(Refusal::from);
            let rules = rules.iter().map(read).collect();
            let results = shared.handle(|core, pipeline| {
                core.install_groups(pipeline, caller.as_ref(), &owner, rules, stop_at_refusal)
            })?;
            let results = results.into_iter().map(|result| result.map_err(Status::from));
            let results = results.map(install_result_to_proto).collect();
            let boot_id = shared.boot_id;
            Ok(v1::InstallGroupsResponse { results, boot_id })
        })
        .await
    }

    async fn remove_group(
        &self,
        request: Request<v1::RemoveGroupRequest>,
    ) -> Answer<v1::RemoveGroupResponse> {
        let who = Caller::of(&request)?;
        let caller = term(&who, &request, true)?;
        let v1::RemoveGroupRequest {
            mcst_id,
            owner,
            generation,
        } = request.into_inner();
        who.concerns(&mcst_id);
        let mcst_id = mcst_id_from_proto("mcst_id", &mcst_id)?;
        let answer = self.decide(move |core, pipeline| {
            core.remove_group(pipeline, caller.as_ref(), mcst_id, owner.as_deref(), generation)
        });
        Ok(answer.await?.map(|removed| v1::RemoveGroupResponse { removed }))
    }

    async fn move_group(&self, request: Request<v1::MoveGroupRequest>) -> Answer<v1::MoveGroupResponse> {
        let caller = Caller::of(&request)?;
        let v1::MoveGroupRequest { mcst_id, worker } = request.into_inner();
        caller.concerns(&mcst_id);
        let mcst_id = mcst_id_from_proto("mcst_id", &mcst_id)?;
        self.ask(move |shared| {
            let moved = shared.dataplane.move_group(mcst_id, worker as usize);
            let Moved { from, to } = moved.map_err(|error| move_refused(&error))?;
            Ok(v1::MoveGroupResponse {
                from: from as u32,
                to: to as u32,
            })
        })
        .await
    }

    async fn list_groups(&self, request: Request<v1::ListGroupsRequest>) -> Answer<v1::ListGroupsResponse> {
        let v1::ListGroupsRequest { mcst_id, brief } = request.get_ref().clone();
        let only = mcst_id.map(|m| mcst_id_from_proto("mcst_id", &m)).transpose()?;
        let answer = move |shared: &Shared| {
            let (dataplane, boot_id) = (&shared.dataplane, shared.boot_id);
            if brief {
                let head = |rule: &GroupRule| (rule.mcst_id, rule.name.clone(), rule.generation);
                let heads = match only {
                    Some(mcst_id) => dataplane.rule(mcst_id).iter().map(head).collect(),
                    None => dataplane.map_rules(head),
                };
                let group = |(mcst_id, name, generation)| v1::InstalledGroup {
                    rule: Some(view::brief(mcst_id, name, generation)),
                    owner: owner_of(shared, mcst_id),
                    ..Default::default()
                };
                let groups = heads.into_iter().map(group).collect();
                return Ok(v1::ListGroupsResponse { groups, boot_id });
            }
            let groups = match only {
                Some(mcst_id) => dataplane.group(mcst_id).map_err(stopped)?.into_iter().collect(),
                None => dataplane.groups().map_err(stopped)?,
            };
            let now = dataplane.now();
            let group = |g: &InstalledGroup| view::group(g, owner_of(shared, g.rule.mcst_id), now);
            let groups = groups.iter().map(group).collect();
            Ok(v1::ListGroupsResponse { groups, boot_id })
        };
        match only {
            Some(_) => self.ask(answer).await,
            None => self.list(&request, answer).await,
        }
    }

    async fn set_routes(&self, request: Request<v1::SetRoutesRequest>) -> Answer<v1::SetRoutesResponse> {
        Caller::of(&request)?.concerns(format!("{} routes", request.get_ref().routes.len()));
        let routes = routes_from_proto(&request.get_ref().routes)?;
        let answer = self.decide(move |core, pipeline| core.set_routes(pipeline, routes));
        Ok(answer.await?.map(|()| v1::SetRoutesResponse {}))
    }

    async fn add_route(&self, request: Request<v1::AddRouteRequest>) -> Answer<v1::AddRouteResponse> {
        let route = route_from_proto(request.get_ref().route.as_ref())?;
        Caller::of(&request)?.concerns(route.prefix.to_string());
        let answer = self.decide(move |core, pipeline| core.add_route(pipeline, route));
        Ok(answer.await?.map(|replaced| v1::AddRouteResponse { replaced }))
    }

    async fn remove_route(
        &self,
        request: Request<v1::RemoveRouteRequest>,
    ) -> Answer<v1::RemoveRouteResponse> {
        let who = Caller::of(&request)?;
        let caller = term(&who, &request, true)?;
        let v1::RemoveRouteRequest { prefix, owner } = request.into_inner();
        who.concerns(&prefix);
        let prefix = prefix_from_proto("prefix", &prefix)?;
        let answer = self.decide(move |core, pipeline| {
            core.remove_route(pipeline, caller.as_ref(), prefix, owner.as_deref())
        });
        Ok(answer.await?.map(|removed| v1::RemoveRouteResponse { removed }))
    }

    async fn set_multicast_routes(
        &self,
        request: Request<v1::SetMulticastRoutesRequest>,
    ) -> Answer<v1::SetMulticastRoutesResponse> {
        let who = Caller::of(&request)?;
        let caller = term(&who, &request, true)?;
        let (scope, routes) = multicast_routes_from_proto(request.get_ref())?;
        who.concerns(format!("{} multicast routes", routes.len()));
        let answer = self.decide(move |core, pipeline| {
            core.set_multicast_routes(pipeline, caller.as_ref(), &scope, routes)
        });
        let changed = |(added, removed): (usize, usize)| v1::SetMulticastRoutesResponse {
            added: added as u32,
            removed: removed as u32,
        };
        Ok(answer.await?.map(changed))
    }

    async fn set_source_guard(
        &self,
        request: Request<v1::SetSourceGuardRequest>,
    ) -> Answer<v1::SetSourceGuardResponse> {
        let who = Caller::of(&request)?;
        let caller = term(&who, &request, true)?;
        let guard = source_guard_from_proto(request.get_ref())?;
        who.concerns(format!("ports of {} hosts", guard.hosts.len()));
        let answer =
            self.decide(move |core, pipeline| core.set_source_guard(pipeline, caller.as_ref(), guard));
        Ok(answer.await?.map(|()| v1::SetSourceGuardResponse {}))
    }

    async fn list_routes(&self, request: Request<v1::ListRoutesRequest>) -> Answer<v1::ListRoutesResponse> {
        self.list(&request, |shared| {
            let routes = shared.handle(|core, pipeline| core.routes(pipeline));
            Ok(v1::ListRoutesResponse { routes })
        })
        .await
    }

    async fn list_ports(&self, _: Request<v1::ListPortsRequest>) -> Answer<v1::ListPortsResponse> {
        self.ask(|shared| {
            let ports = shared.dataplane.ports().map_err(stopped)?;
            let ports = ports.iter().map(view::port).collect();
            Ok(v1::ListPortsResponse { ports })
        })
        .await
    }

    async fn list_neighbours(
        &self,
        request: Request<v1::ListNeighboursRequest>,
    ) -> Answer<v1::ListNeighboursResponse> {
        self.list(&request, |shared| {
            let neighbours = shared.dataplane.neighbours().map_err(stopped)?;
            let now = shared.dataplane.now();
            let neighbours = neighbours.iter().map(|n| view::neighbour(n, now)).collect();
            let boot_id = shared.boot_id;
            Ok(v1::ListNeighboursResponse { neighbours, boot_id })
        })
        .await
    }

    async fn get_counters(&self, request: Request<v1::GetCountersRequest>) -> Answer<v1::Counters> {
        self.list(&request, |shared| {
            let counters = shared.dataplane.counters().map_err(stopped)?;
            let rules = shared.dataplane.rules().into_iter();
            let rules: BTreeMap<_, _> = rules.map(|r| (r.mcst_id, r)).collect();
            let group = |g| view::counted_group(g, rules.get(&g.mcst_id), owner_of(shared, g.mcst_id));
            let groups = counters.groups.iter().map(group).collect();
            Ok(view::counters(&counters, groups))
        })
        .await
    }

    async fn get_drops(&self, request: Request<v1::GetDropsRequest>) -> Answer<v1::GetDropsResponse> {
        let all = request.get_ref().all;
        self.ask(move |shared| {
            let drops = shared.dataplane.drops().map_err(stopped)?;
            let drops = view::drop_counts(&drops, all);
            Ok(v1::GetDropsResponse { drops })
        })
        .await
    }

    async fn list_fdb(&self, request: Request<v1::ListFdbRequest>) -> Answer<v1::ListFdbResponse> {
        self.list(&request, |shared| {
            let entries = shared.dataplane.fdb().map_err(stopped)?;
            let now = shared.dataplane.now();
            let entries = entries.iter().map(|e| view::fdb_entry(e, now)).collect();
            Ok(v1::ListFdbResponse { entries })
        })
        .await
    }

    type TraceStream = Messages<v1::FrameTrace>;

    async fn trace(&self, request: Request<v1::TraceRequest>) -> Answer<Self::TraceStream> {
        let v1::TraceRequest { what, frames_max } = request.into_inner();
        let expected = "a frame, or a filter for live frames";
        match what.ok_or_else(|| Invalid::missing("what", expected))? {
            v1::trace_request::What::Frame(v1::GivenFrame { port, bytes }) => {
                let port = port_from_proto("frame.port", port)?;
                if bytes.is_empty() || bytes.len() > FRAME_BYTES_MAX {
                    let value = format!("{} bytes", bytes.len());
                    let why = "are no frame: give it from the Ethernet header on, without FCS";
                    return Err(Invalid::out_of_range("frame.bytes", value, why).into());
                }
                let dry_run = self.ask(move |shared| {
                    let trace = shared.dataplane.trace(port, &bytes);
                    let trace = trace.map_err(|e| tap_refused(e, "frame.port"))?;
                    Ok(view::trace(&trace, 0))
                });
                let (to, from) = mpsc::channel(1);
                // It has room for one.
                let _ = to.try_send(Ok(dry_run.await?.into_inner()));
                Ok(streamed(from))
            }
            v1::trace_request::What::Filter(filter) => {
                let filter = filter_from_proto("filter", Some(&filter))?;
                let count = u64::from(frames_max.max(1));
                let live = self.ask(move |shared| taps::trace(&shared.dataplane, filter, count));
                Ok(streamed(live.await?.into_inner()))
            }
        }
    }

    type CaptureStream = Messages<v1::CapturedFrame>;

    async fn capture(&self, request: Request<v1::CaptureRequest>) -> Answer<Self::CaptureStream> {
        let v1::CaptureRequest {
            filter,
            snap_length,
            frames_max,
        } = request.into_inner();
        let filter = filter_from_proto("filter", filter.as_ref())?;
        let count = if frames_max == 0 { u64::MAX } else { frames_max };
        let live =
            self.ask(move |shared| taps::capture(&shared.dataplane, filter, snap_length as usize, count));
        Ok(streamed(live.await?.into_inner()))
    }

    type WatchEventsStream = Pin<Box<dyn Stream<Item = Result<v1::AgentEvent, Status>> + Send>>;

    async fn watch_events(&self, _: Request<v1::WatchAgentEventsRequest>) -> Answer<Self::WatchEventsStream> {
        let events = BroadcastStream::new(self.shared.events.subscribe());
        let event = |at_ns, event| v1::AgentEvent {
            at_ns,
            event: Some(event),
        };
        let boot_id = self.shared.boot_id;
        let hello = event(self.shared.dataplane.now().0, Event::Hello(v1::Hello { boot_id }));
        let lagged = move |Lagged(events)| event(0, Event::Lagged(events));
        let events = events.map(move |event| event.unwrap_or_else(lagged));
        let events = tokio_stream::once(hello).chain(events).map(Ok);
        Ok(Response::new(Box::pin(events)))
    }

    async fn get_runtime_stats(&self, _: Request<v1::GetRuntimeStatsRequest>) -> Answer<v1::RuntimeStats> {
        self.ask(|shared| {
            let workers = shared.dataplane.workers().map_err(stopped)?;
            Ok(v1::RuntimeStats {
                workers: workers.iter().map(view::worker).collect(),
                uptime_ns: shared.dataplane.now().0,
            })
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use castnet_proto::transport::Peer;
    use castnet_worker::{Dataplane, DataplaneConfig};

    use super::*;

    fn request(role: Role) -> Request<()> {
        let peer = Peer {
            address: "127.0.0.1:1".into(),
            names: None,
        };
        let mut request = Request::new(());
        let caller = Caller::new(Arc::new(peer), role);
        request.extensions_mut().insert(Arc::new(caller));
        request
    }

    /// 64 calls of a reader made 64 lists of all groups at a time.
    #[tokio::test]
    async fn a_reader_gets_one_list_at_a_time_also_if_its_client_goes() {
        let config = DataplaneConfig::new("leaf", Vec::new());
        let start = tokio::task::spawn_blocking(move || Dataplane::start(config));
        let dataplane = Arc::new(start.await.unwrap().unwrap());
        let service = Service::new(Arc::new(Shared::new(dataplane)));
        let (reader, operator) = (request(Role::ReadOnly), request(Role::Operator));
        let ((goes_on, may_go_on), (starts, mut started)) = (channel::<()>(), mpsc::channel(1));
        let first = service.list(&reader, move |_| {
            starts.blocking_send(()).unwrap();
            may_go_on.recv().unwrap();
            Ok(())
        });
        // Its client goes when the work has begun.
        tokio::select! {
            _ = first => panic!("it cannot be over"),
            begun = started.recv() => assert!(begun.is_some()),
        }
        assert!(service.listing.try_lock().is_err());
        let mut second = Box::pin(service.list(&reader, |_| Ok(2)));
        tokio::select! {
            biased;
            _ = &mut second => panic!("two at a time"),
            third = service.list(&operator, |_| Ok(3)) => assert_eq!(third.unwrap().into_inner(), 3),
        }
        goes_on.send(()).unwrap();
        assert_eq!(second.await.unwrap().into_inner(), 2);
    }
}
