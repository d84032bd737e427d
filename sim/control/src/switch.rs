//! Switches: the agent's state over an engine of the network of frames, behind the agent's gRPC.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use castnet_agent::state::core::Core;
use castnet_agent::state::events::message;
use castnet_agent::state::pipeline::Pipeline;
use castnet_agent::state::refusal::Refusal;
use castnet_proto::convert::{
    install_result_to_proto, mcst_id_from_proto, multicast_routes_from_proto, port_to_proto,
    prefix_from_proto, rule_from_proto, shown_rule, source_guard_from_proto,
};
use castnet_proto::term::term_of;
use castnet_proto::transport::{Address, Security, Server, serve};
use castnet_proto::v1;
use castnet_proto::v1::ControllerTerm;
use castnet_proto::v1::agent_server::{Agent, AgentServer};
use castnet_rules::GroupRule;
use castnet_sim::SimError;
use castnet_wire::{McstId, PortId};
use castnet_worker::engine::PortInfo;
use castnet_worker::{SwitchEvent, SwitchEventKind};
use parking_lot::Mutex;
use tokio::sync::{broadcast, mpsc};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use crate::dataplane::{Dataplane, State};
use crate::frames::Frames;
use crate::log::Log;

/// Events that wait for a controller.
const EVENTS_MAX: usize = 64;

/// A switch and its agent.
pub(crate) struct Switch {
    pub(crate) service: Service,
    address: Address,
    server: Option<Server>,
}

#[derive(Default)]
struct AgentState {
    boot_id: u64,
    core: Core,
    dataplane: State,
    /// The latest epoch of each owner that has changed something.
    epochs: BTreeMap<String, u64>,
}

/// Its agent, which clients reach while it is served.
#[derive(Clone)]
pub(crate) struct Service {
    name: Arc<str>,
    frames: Arc<Frames>,
    log: Log,
    state: Arc<Mutex<AgentState>>,
    events: broadcast::Sender<v1::AgentEvent>,
}

impl Switch {
    /// A switch of the network, which serves at this address.
    pub(crate) async fn start(name: &str, address: Address, frames: &Arc<Frames>, log: &Log) -> Self {
        let mut switch = Self {
            service: Service {
                name: name.into(),
                frames: frames.clone(),
                log: log.clone(),
                state: Arc::default(),
                events: broadcast::Sender::new(EVENTS_MAX),
            },
            address,
            server: None,
        };
        switch.service.state.lock().boot_id = 1;
        switch.serve().await;
        switch
    }

    /// Its agent serves again.
    pub(crate) async fn serve(&mut self) {
        let routes = Routes::new(AgentServer::new(self.service.clone()));
        let served = serve(&self.address, &Security::default(), routes).await;
        self.server = Some(served.expect("nobody else is there"));
    }

    /// Its agent cannot be reached, and frames go on.
    pub(crate) async fn silence(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop().await;
        }
    }

    /// It stops, and what is installed is lost.
    pub(crate) async fn stop(&mut self) {
        self.silence().await;
        let service = &self.service;
        service.frames.lock().stop_switch(&service.name);
        let mut state = service.state.lock();
        *state = AgentState {
            boot_id: state.boot_id + 1,
            ..AgentState::default()
        };
    }

    /// It starts again.
    pub(crate) async fn boot(&mut self) -> Result<(), SimError> {
        let service = &self.service;
        service.frames.lock().start_switch(&service.name)?;
        self.serve().await;
        Ok(())
    }

    /// The groups that are installed, as `address name`.
    pub(crate) fn groups(&self) -> Vec<String> {
        let state = self.service.state.lock();
        let rules = state.dataplane.rules.values();
        rules
            .map(|rule| format!("{} {}", rule.mcst_id, rule.name))
            .collect()
    }

    /// The routes that are installed.
    pub(crate) fn routes(&self) -> usize {
        self.service.state.lock().dataplane.routes.len()
    }
}

impl Service {
    /// Tells controllers what the engine has seen.
    pub(crate) fn report(&self) {
        let mut seen = Vec::new();
        self.frames.lock().with_engine(&self.name, |engine, _| {
            while let Some(event) = engine.pop_event() {
                seen.push(SwitchEventKind::Engine(event.kind));
            }
        });
        if !seen.is_empty() {
            self.handle(|_, dataplane| dataplane.state.events.extend(seen));
        }
    }

    /// A port has lost its link, or has one again: controllers are told. A switch that has stopped says nothing.
    pub(crate) fn link_changed(&self, port: PortId) {
        self.handle(|_, dataplane| {
            let up = dataplane.is_up(port);
            let info = dataplane.infos().into_iter().find(|info| info.id == port);
            let event = info.map(|info| SwitchEventKind::Port {
                port,
                name: info.name,
                up,
                mtu: info.mtu,
                reason: None,
            });
            dataplane.state.events.extend(event);
        });
    }

    /// Installs a group for the leader of a registration.
    pub(crate) fn register(&self, leader: &str, rule: &GroupRule) -> Result<(), String> {
        let installed = self.handle(|core, dataplane| core.install_group(dataplane, None, leader, rule));
        installed.map(drop).map_err(|refusal| refusal.to_string())
    }

    /// Removes it. Returns false if it is not there.
    pub(crate) fn withdraw(&self, leader: &str, mcst_id: McstId) -> Result<bool, String> {
        let removed =
            self.handle(|core, dataplane| core.remove_group(dataplane, None, mcst_id, Some(leader), None));
        removed.map_err(|refusal| refusal.to_string())
    }

    /// Gives a request to the state, and tells what came of it.
    fn handle<T>(&self, request: impl FnOnce(&mut Core, &mut Dataplane<'_>) -> T) -> T {
        let mut frames = self.frames.lock();
        let at = frames.now();
        let state = &mut *self.state.lock();
        let mut dataplane = Dataplane {
            frames: &mut frames,
            switch: &self.name,
            state: &mut state.dataplane,
        };
        let answer = request(&mut state.core, &mut dataplane);
        for kind in std::mem::take(&mut dataplane.state.events) {
            if let Some(event) = message(&mut dataplane, SwitchEvent { at, kind }) {
                // There may be no controller.
                let _ = self.events.send(event);
            }
        }
        answer
    }

    /// The same of a request that changes something. S6: nobody changes anything after a later controller of the same groups.
    fn change<T, Q>(
        &self,
        what: &str,
        request: &Request<Q>,
        change: impl FnOnce(&mut Core, &mut dyn Pipeline, Option<&ControllerTerm>) -> Result<T, Refusal>,
    ) -> Result<T, Status> {
        let term = term_of(request.metadata())?;
        let done = self.handle(|core, dataplane| change(core, dataplane, term.as_ref()));
        let said = done.as_ref().map_or_else(ToString::to_string, |_| "done".into());
        self.log.line(format_args!("{}: {what}: {said}", self.name));
        if let (Ok(_), Some(ControllerTerm { owner, epoch, .. })) = (&done, term) {
            let mut state = self.state.lock();
            let latest = state.epochs.entry(owner).or_default();
            if *latest > epoch {
                let name = &self.name;
                self.log
                    .violation(format_args!("S6: {name}: {what} in epoch {epoch} after {latest}"));
            }
            *latest = (*latest).max(epoch);
        }
        Ok(done?)
    }

    fn boot_id(&self) -> u64 {
        self.state.lock().boot_id
    }
}

type BoxStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
type Answer<T> = Result<Response<T>, Status>;

/// Calls of an agent that a controller does not make. Where it stands, there are `v1`, `Answer`, `Pin`, `Request` and `Status`.
#[macro_export]
macro_rules! unused {
    ($($name:ident($request:ident) -> $answer:ty;)*) => {
        $(
            fn $name<'s, 'f>(
                &'s self,
                _: Request<v1::$request>,
            ) -> Pin<Box<dyn Future<Output = Answer<$answer>> + Send + 'f>>
            where
                's: 'f,
                Self: 'f,
            {
                Box::pin(std::future::ready(Err(Status::unimplemented(stringify!($name)))))
            }
        )*
    };
}

#[tonic::async_trait]
impl Agent for Service {
    async fn get_capabilities(
        &self,
        request: Request<v1::GetCapabilitiesRequest>,
    ) -> Answer<v1::Capabilities> {
        let term = term_of(request.metadata())?;
        let (boot_id, switch_name) = (self.boot_id(), self.name.to_string());
        let (ports, limits, used) = self.handle(|core, dataplane| {
            core.check(term.as_ref())?;
            let infos = dataplane.infos();
            let ports: Vec<String> = infos.into_iter().map(|info| info.name).collect();
            let engine = dataplane.frames.engine(&self.name);
            let limits = engine.map(|e| (e.config().groups_max, e.config().memory_bytes_max));
            let used = engine.map(|e| (e.group_count(), e.group_memory_bytes()));
            Ok::<_, Refusal>((ports, limits.unwrap_or_default(), used.unwrap_or_default()))
        })?;
        Ok(Response::new(v1::Capabilities {
            switch_name,
            boot_id,
            ports,
            groups_max: limits.0 as u64,
            groups: used.0 as u64,
            memory_bytes_max: limits.1 as u64,
            memory_bytes_free: limits.1.saturating_sub(used.1) as u64,
            pmtus: vec![256, 512, 1024, 2048, 4096],
            endpoints_max: 1024,
            workers: 1,
            ..Default::default()
        }))
    }

    async fn install_groups(
        &self,
        request: Request<v1::InstallGroupsRequest>,
    ) -> Answer<v1::InstallGroupsResponse> {
        let v1::InstallGroupsRequest {
            rules,
            owner,
            stop_at_refusal,
        } = request.get_ref();
        let names: Vec<String> = rules
            .iter()
            .map(|r| format!("+{}.{}", r.name, r.generation))
            .collect();
        let read = |rule| rule_from_proto("rule", Some(rule)).map_err(Refusal::from);
        let read = rules.iter().map(read).collect();
        let results = self.change(&names.join(" "), &request, |core, pipeline, term| {
            core.install_groups(pipeline, term, owner, read, *stop_at_refusal)
        })?;
        let results = results.into_iter().map(|result| result.map_err(Status::from));
        Ok(Response::new(v1::InstallGroupsResponse {
            results: results.map(install_result_to_proto).collect(),
            boot_id: self.boot_id(),
        }))
    }

    async fn remove_group(
        &self,
        request: Request<v1::RemoveGroupRequest>,
    ) -> Answer<v1::RemoveGroupResponse> {
        let v1::RemoveGroupRequest {
            mcst_id,
            owner,
            generation,
        } = request.get_ref();
        let id = mcst_id_from_proto("mcst_id", mcst_id)?;
        let removed = self.change(&format!("-{mcst_id}"), &request, |core, pipeline, term| {
            core.remove_group(pipeline, term, id, owner.as_deref(), *generation)
        })?;
        Ok(Response::new(v1::RemoveGroupResponse { removed }))
    }

    async fn list_groups(&self, request: Request<v1::ListGroupsRequest>) -> Answer<v1::ListGroupsResponse> {
        let only = request.get_ref().mcst_id.as_ref();
        let only = only.map(|id| mcst_id_from_proto("mcst_id", id)).transpose()?;
        let groups = self.handle(|core, dataplane| {
            let rules = dataplane.state.rules.values();
            let rules = rules.filter(|rule| only.is_none_or(|only| only == rule.mcst_id));
            let group = |rule| v1::InstalledGroup {
                rule: Some(shown_rule(rule)),
                owner: core.owner_of(rule.mcst_id).to_owned(),
                ..Default::default()
            };
            rules.map(group).collect()
        });
        let boot_id = self.boot_id();
        Ok(Response::new(v1::ListGroupsResponse { groups, boot_id }))
    }

    async fn list_routes(&self, _: Request<v1::ListRoutesRequest>) -> Answer<v1::ListRoutesResponse> {
        let routes = self.handle(|core, dataplane| core.routes(dataplane));
        Ok(Response::new(v1::ListRoutesResponse { routes }))
    }

    async fn remove_route(
        &self,
        request: Request<v1::RemoveRouteRequest>,
    ) -> Answer<v1::RemoveRouteResponse> {
        let v1::RemoveRouteRequest { prefix, owner } = request.get_ref();
        let prefix = prefix_from_proto("prefix", prefix)?;
        let removed = self.change("-route", &request, |core, pipeline, term| {
            core.remove_route(pipeline, term, prefix, owner.as_deref())
        })?;
        Ok(Response::new(v1::RemoveRouteResponse { removed }))
    }

    async fn set_multicast_routes(
        &self,
        request: Request<v1::SetMulticastRoutesRequest>,
    ) -> Answer<v1::SetMulticastRoutesResponse> {
        let (scope, routes) = multicast_routes_from_proto(request.get_ref())?;
        let done = self.change("routes", &request, |core, pipeline, term| {
            core.set_multicast_routes(pipeline, term, &scope, routes)
        })?;
        Ok(Response::new(v1::SetMulticastRoutesResponse {
            added: done.0 as u32,
            removed: done.1 as u32,
        }))
    }

    async fn set_source_guard(
        &self,
        request: Request<v1::SetSourceGuardRequest>,
    ) -> Answer<v1::SetSourceGuardResponse> {
        let guard = source_guard_from_proto(request.get_ref())?;
        self.change("source guard", &request, |core, pipeline, term| {
            core.set_source_guard(pipeline, term, guard)
        })?;
        Ok(Response::new(v1::SetSourceGuardResponse::default()))
    }

    async fn list_ports(&self, _: Request<v1::ListPortsRequest>) -> Answer<v1::ListPortsResponse> {
        let ports = self.handle(|_, dataplane| {
            let infos = dataplane.infos();
            let port = |info: PortInfo| v1::Port {
                port: port_to_proto(info.id),
                up: dataplane.is_up(info.id),
                name: info.name,
                mac: info.mac.to_string(),
                mtu: info.mtu as u32,
                ..Default::default()
            };
            infos.into_iter().map(port).collect()
        });
        Ok(Response::new(v1::ListPortsResponse { ports }))
    }

    /// The controllers have a topology file.
    async fn list_neighbours(
        &self,
        _: Request<v1::ListNeighboursRequest>,
    ) -> Answer<v1::ListNeighboursResponse> {
        Ok(Response::new(v1::ListNeighboursResponse {
            neighbours: Vec::new(),
            boot_id: self.boot_id(),
        }))
    }

    type WatchEventsStream = BoxStream<v1::AgentEvent>;

    async fn watch_events(&self, _: Request<v1::WatchAgentEventsRequest>) -> Answer<Self::WatchEventsStream> {
        let (to, from) = mpsc::channel(1);
        let mut events = self.events.subscribe();
        let boot_id = self.boot_id();
        let mut next = Some(v1::agent_event::Event::Hello(v1::Hello { boot_id }));
        tokio::spawn(async move {
            while let Some(event) = next {
                let event = v1::AgentEvent {
                    at_ns: 0,
                    event: Some(event),
                };
                if to.send(Ok(event)).await.is_err() {
                    return;
                }
                next = match events.recv().await {
                    Ok(event) => event.event,
                    Err(broadcast::error::RecvError::Lagged(events)) => {
                        Some(v1::agent_event::Event::Lagged(events))
                    }
                    Err(broadcast::error::RecvError::Closed) => None,
                };
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(from))))
    }

    type TraceStream = BoxStream<v1::FrameTrace>;
    type CaptureStream = BoxStream<v1::CapturedFrame>;

    unused! {
        install_group(InstallGroupRequest) -> v1::InstallGroupResponse;
        move_group(MoveGroupRequest) -> v1::MoveGroupResponse;
        set_routes(SetRoutesRequest) -> v1::SetRoutesResponse;
        add_route(AddRouteRequest) -> v1::AddRouteResponse;
        get_counters(GetCountersRequest) -> v1::Counters;
        get_drops(GetDropsRequest) -> v1::GetDropsResponse;
        list_fdb(ListFdbRequest) -> v1::ListFdbResponse;
        trace(TraceRequest) -> Self::TraceStream;
        capture(CaptureRequest) -> Self::CaptureStream;
        get_runtime_stats(GetRuntimeStatsRequest) -> v1::RuntimeStats;
    }
}
