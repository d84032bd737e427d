//! Toy switches that keep the agent's contract (`agent.proto`) without a data plane, and a controller over them.
#![allow(dead_code, unused_imports, reason = "each test file uses its part")]

mod calls;
pub(crate) mod etcd;
mod events;
pub(crate) mod ranks;
pub(crate) mod tls;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use castnet_controller::store::Store;
use castnet_controller::{Config, Controller, SwitchConfig};
use castnet_proto::convert::{
    install_result_to_proto, multicast_routes_from_proto, refuse, route_to_proto, rule_from_proto,
};
use castnet_proto::term::{term_is_over, term_of};
use castnet_proto::transport::memory::{self, Network};
use castnet_proto::transport::{Address, Security, Server, connect, serve};
use castnet_proto::v1;
use castnet_proto::v1::agent_server::{Agent, AgentServer};
use castnet_proto::v1::controller_client::ControllerClient;
use castnet_rules::Ipv4Net;
use castnet_sim_control::unused;
use castnet_topology::{SwitchKind, Topology};
use tempfile::TempDir;
use tokio::sync::{Semaphore, broadcast, mpsc};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::Routes;
use tonic::{Code, Request, Response, Status, Streaming};

pub(crate) use calls::{Call, Calls, group_until, join_all, phases, reaches, refused, refused_field};
pub(crate) use events::Events;

pub(crate) use castnet_sim_control::controllers::Client;

/// Longer than anything here takes; only a test that fails waits for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// The seeds of a test whose steps are drawn: `count` of them, or `CASTNET_RUNS`; or the one that `CASTNET_SEED` names.
pub(crate) fn seeds(count: u64) -> std::ops::Range<u64> {
    let variable = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    match variable("CASTNET_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..variable("CASTNET_RUNS").unwrap_or(count),
    }
}

type Gate = (Arc<Semaphore>, mpsc::UnboundedSender<()>);

/// What a toy switch is and has.
#[derive(Default)]
pub(crate) struct Toy {
    pub(crate) boot_id: u64,
    pub(crate) groups: BTreeMap<String, (v1::GroupRule, String)>,
    /// Epoch and instance of the last controller of each owner.
    pub(crate) terms: BTreeMap<String, (u64, u64)>,
    /// What it says of itself beside its name and boot id.
    pub(crate) capabilities: v1::Capabilities,
    /// Refuses installations with this.
    pub(crate) refuse: Option<Status>,
    /// Refuses installations of rules of this name alone, for lack of room.
    pub(crate) refuse_rule: Option<String>,
    /// Refuses collective groups with more slots, as for lack of memory that it has not told of.
    pub(crate) slots_max: Option<u32>,
    pub(crate) ports: Vec<v1::Port>,
    pub(crate) neighbours: Vec<v1::Neighbour>,
    /// By prefix.
    pub(crate) routes: BTreeMap<String, v1::Route>,
    pub(crate) guard: v1::SetSourceGuardRequest,
    /// The source guard waits for a permit of this, and says so.
    guard_gate: Option<Gate>,
    /// Refuses multicast routes with this.
    pub(crate) refuse_routes: Option<Status>,
    /// How many calls it has refused so.
    pub(crate) refused_routes: usize,
    /// Installations wait for a permit of this, and say so.
    gate: Option<Gate>,
    /// How many rules each call to install had.
    pub(crate) calls: Vec<usize>,
    /// Installations and removals that changed something, such as `+g1.1` and `-g1.1`.
    pub(crate) changes: Vec<String>,
}

#[derive(Clone)]
struct ToyAgent {
    name: String,
    toy: Arc<parking_lot::Mutex<Toy>>,
    /// The same of all switches, with their names, in order.
    journal: Journal,
    events: broadcast::Sender<v1::AgentEvent>,
}

pub(crate) type Journal = Arc<parking_lot::Mutex<Vec<String>>>;

impl Toy {
    fn check<T>(&mut self, request: &Request<T>) -> Result<(), Status> {
        let Some(term) = term_of(request.metadata())? else {
            return Ok(());
        };
        let now = (term.epoch, term.instance);
        let last = self.terms.entry(term.owner).or_insert(now);
        if now.0 < last.0 || now.0 == last.0 && now.1 != last.1 {
            return Err(term_is_over("another controller has taken over"));
        }
        *last = now;
        Ok(())
    }
}

impl ToyAgent {
    fn note(&self, toy: &mut Toy, sign: char, name: &str, generation: u64) {
        let what = format!("{sign}{name}.{generation}");
        self.journal.lock().push(format!("{} {what}", self.name));
        toy.changes.push(what);
    }
}

type Answer<T> = Result<Response<T>, Status>;
type BoxStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Agent for ToyAgent {
    async fn get_capabilities(
        &self,
        request: Request<v1::GetCapabilitiesRequest>,
    ) -> Answer<v1::Capabilities> {
        let mut toy = self.toy.lock();
        toy.check(&request)?;
        let mut said = toy.capabilities.clone();
        if said.memory_bytes_max > 0 {
            let used = |(group, _): &(v1::GroupRule, String)| memory(group);
            said.memory_bytes_free -= toy.groups.values().map(used).sum::<u64>();
        }
        Ok(Response::new(v1::Capabilities {
            switch_name: self.name.clone(),
            boot_id: toy.boot_id,
            groups: toy.groups.len() as u64,
            ..said
        }))
    }

    async fn install_group(
        &self,
        request: Request<v1::InstallGroupRequest>,
    ) -> Answer<v1::InstallGroupResponse> {
        let gate = self.toy.lock().gate.clone();
        pass(gate).await;
        self.toy.lock().check(&request)?;
        let v1::InstallGroupRequest { rule, owner } = request.into_inner();
        let rule = rule.ok_or_else(|| Status::invalid_argument("rule: missing"))?;
        let (name, mcst_id, generation) = (rule.name.clone(), rule.mcst_id.clone(), rule.generation);
        let toy = &mut *self.toy.lock();
        let outcome = match toy.groups.get(&mcst_id).map(|(g, o)| (g.generation, o)) {
            Some((_, other)) if *other != owner => {
                return Err(Status::already_exists("rule.mcst_id: of another owner"));
            }
            Some((old, _)) if old > generation => {
                return Err(Status::failed_precondition(
                    "rule.generation: older than what is installed",
                ));
            }
            Some((old, _)) if old == generation => v1::InstallOutcome::Unchanged,
            old => {
                if let Some(status) = &toy.refuse {
                    return Err(status.clone());
                }
                if toy.refuse_rule.as_deref() == Some(&name) {
                    return Err(Status::resource_exhausted(format!("no room for {name}")));
                }
                if let (Some(kind), Some(max)) = (rule.translated(), toy.slots_max)
                    && kind.slots > max
                {
                    let reason = format!("{} are too many", kind.slots);
                    return Err(refuse(Code::ResourceExhausted, "rule.translated.slots", reason));
                }
                if old.is_some() {
                    v1::InstallOutcome::Replaced
                } else {
                    v1::InstallOutcome::Installed
                }
            }
        };
        let boot_id = toy.boot_id;
        if outcome != v1::InstallOutcome::Unchanged {
            self.note(toy, '+', &name, generation);
            rule_from_proto("rule", Some(&rule))?;
            toy.groups.insert(mcst_id, (rule, owner));
        }
        Ok(Response::new(v1::InstallGroupResponse {
            outcome: outcome as i32,
            generation,
            boot_id,
        }))
    }

    async fn install_groups(
        &self,
        request: Request<v1::InstallGroupsRequest>,
    ) -> Answer<v1::InstallGroupsResponse> {
        self.toy.lock().check(&request)?;
        let v1::InstallGroupsRequest { rules, owner, .. } = request.into_inner();
        self.toy.lock().calls.push(rules.len());
        let mut results = Vec::new();
        for rule in rules {
            let (rule, owner) = (Some(rule), owner.clone());
            let request = Request::new(v1::InstallGroupRequest { rule, owner });
            let result = self.install_group(request).await;
            results.push(install_result_to_proto(result.map(|r| r.into_inner().outcome())));
        }
        let boot_id = self.toy.lock().boot_id;
        Ok(Response::new(v1::InstallGroupsResponse { results, boot_id }))
    }

    async fn remove_group(
        &self,
        request: Request<v1::RemoveGroupRequest>,
    ) -> Answer<v1::RemoveGroupResponse> {
        self.toy.lock().check(&request)?;
        let v1::RemoveGroupRequest {
            mcst_id,
            owner,
            generation,
        } = request.into_inner();
        let toy = &mut *self.toy.lock();
        let found = toy.groups.get(&mcst_id);
        let Some((name, is, has)) = found.map(|(g, o)| (g.name.clone(), g.generation, o)) else {
            return Ok(Response::new(v1::RemoveGroupResponse { removed: false }));
        };
        if owner.is_some_and(|o| o != *has) || generation.is_some_and(|g| g != is) {
            return Err(Status::failed_precondition("of another owner or generation"));
        }
        toy.groups.remove(&mcst_id);
        self.note(toy, '-', &name, is);
        let changed = v1::GroupChanged {
            mcst_id,
            removed: true,
            ..Default::default()
        };
        let event = Some(v1::agent_event::Event::Group(changed));
        let _ = self.events.send(v1::AgentEvent { at_ns: 0, event });
        Ok(Response::new(v1::RemoveGroupResponse { removed: true }))
    }

    async fn list_groups(&self, _: Request<v1::ListGroupsRequest>) -> Answer<v1::ListGroupsResponse> {
        let toy = self.toy.lock();
        let installed = |(rule, owner): &(v1::GroupRule, String)| v1::InstalledGroup {
            rule: Some(rule.clone()),
            owner: owner.clone(),
            ..Default::default()
        };
        Ok(Response::new(v1::ListGroupsResponse {
            groups: toy.groups.values().map(installed).collect(),
            boot_id: toy.boot_id,
        }))
    }

    async fn list_ports(&self, _: Request<v1::ListPortsRequest>) -> Answer<v1::ListPortsResponse> {
        Ok(Response::new(v1::ListPortsResponse {
            ports: self.toy.lock().ports.clone(),
        }))
    }

    async fn list_neighbours(
        &self,
        _: Request<v1::ListNeighboursRequest>,
    ) -> Answer<v1::ListNeighboursResponse> {
        let toy = self.toy.lock();
        let (neighbours, boot_id) = (toy.neighbours.clone(), toy.boot_id);
        Ok(Response::new(v1::ListNeighboursResponse { neighbours, boot_id }))
    }

    type WatchEventsStream = BoxStream<v1::AgentEvent>;

    async fn watch_events(&self, _: Request<v1::WatchAgentEventsRequest>) -> Answer<Self::WatchEventsStream> {
        let (to, from) = mpsc::channel(8);
        let mut events = self.events.subscribe();
        let hello = v1::agent_event::Event::Hello(v1::Hello {
            boot_id: self.toy.lock().boot_id,
        });
        let mut next = v1::AgentEvent {
            at_ns: 0,
            event: Some(hello),
        };
        tokio::spawn(async move {
            while to.send(Ok(next)).await.is_ok() {
                match events.recv().await {
                    Ok(event) => next = event,
                    Err(_) => return,
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(from))))
    }

    type TraceStream = BoxStream<v1::FrameTrace>;
    type CaptureStream = BoxStream<v1::CapturedFrame>;

    unused! {
        set_routes(SetRoutesRequest) -> v1::SetRoutesResponse;
        add_route(AddRouteRequest) -> v1::AddRouteResponse;
        get_counters(GetCountersRequest) -> v1::Counters;
        get_drops(GetDropsRequest) -> v1::GetDropsResponse;
        list_fdb(ListFdbRequest) -> v1::ListFdbResponse;
        trace(TraceRequest) -> Self::TraceStream;
        capture(CaptureRequest) -> Self::CaptureStream;
        move_group(MoveGroupRequest) -> v1::MoveGroupResponse;
        get_runtime_stats(GetRuntimeStatsRequest) -> v1::RuntimeStats;
    }

    async fn remove_route(
        &self,
        request: Request<v1::RemoveRouteRequest>,
    ) -> Answer<v1::RemoveRouteResponse> {
        let mut toy = self.toy.lock();
        toy.check(&request)?;
        if let Some(status) = toy.refuse_routes.clone() {
            return Err(status);
        }
        let v1::RemoveRouteRequest { prefix, owner } = request.into_inner();
        let is_of_others = |route: &v1::Route| owner.as_ref() != Some(&route.owner);
        if toy.routes.get(&prefix).is_some_and(is_of_others) {
            return Err(refuse(Code::FailedPrecondition, "owner", "of another one"));
        }
        let removed = toy.routes.remove(&prefix).is_some();
        Ok(Response::new(v1::RemoveRouteResponse { removed }))
    }

    async fn list_routes(&self, _: Request<v1::ListRoutesRequest>) -> Answer<v1::ListRoutesResponse> {
        let routes = self.toy.lock().routes.values().cloned().collect();
        Ok(Response::new(v1::ListRoutesResponse { routes }))
    }

    async fn set_multicast_routes(
        &self,
        request: Request<v1::SetMulticastRoutesRequest>,
    ) -> Answer<v1::SetMulticastRoutesResponse> {
        let mut toy = self.toy.lock();
        toy.check(&request)?;
        if let Some(status) = toy.refuse_routes.clone() {
            toy.refused_routes += 1;
            return Err(status);
        }
        let (scope, routes) = multicast_routes_from_proto(request.get_ref())?;
        let is_within = |prefix: &Ipv4Net| scope.iter().any(|scope| scope.contains(prefix));
        // Those that it sets have no owner.
        let there = |prefix: String| {
            toy.routes
                .get(&prefix)
                .is_some_and(|route| !route.owner.is_empty())
        };
        if routes.iter().any(|route| there(route.prefix.to_string())) {
            return Err(Status::already_exists("of another controller"));
        }
        toy.routes
            .retain(|prefix, _| !is_within(&prefix.parse().unwrap()));
        for route in &routes {
            let prefix = route.prefix.to_string();
            self.journal.lock().push(format!("{} {prefix}", self.name));
            toy.routes.insert(prefix, route_to_proto(route));
        }
        Ok(Response::new(v1::SetMulticastRoutesResponse::default()))
    }

    async fn set_source_guard(
        &self,
        request: Request<v1::SetSourceGuardRequest>,
    ) -> Answer<v1::SetSourceGuardResponse> {
        let gate = self.toy.lock().guard_gate.clone();
        pass(gate).await;
        let mut toy = self.toy.lock();
        toy.check(&request)?;
        toy.guard = request.into_inner();
        Ok(Response::new(v1::SetSourceGuardResponse::default()))
    }
}

async fn pass(gate: Option<Gate>) {
    if let Some((permits, waits)) = gate {
        let _ = waits.send(());
        permits.acquire().await.unwrap().forget();
    }
}

/// What a group that computes takes of a switch's memory.
pub(crate) fn memory(group: &v1::GroupRule) -> u64 {
    rule_from_proto("group", Some(group)).unwrap().reserved_bytes()
}

/// A toy switch that is served at a Unix socket, and can be stopped and started again there.
pub(crate) struct Switch {
    agent: ToyAgent,
    address: Address,
    server: Option<Server>,
}

impl Switch {
    pub(crate) fn with<T>(&self, look: impl FnOnce(&mut Toy) -> T) -> T {
        look(&mut self.agent.toy.lock())
    }

    /// The groups that it has, as `name.generation`.
    pub(crate) fn groups(&self) -> Vec<String> {
        self.with(|t| {
            let each = t.groups.values();
            each.map(|(g, _)| format!("{}.{}", g.name, g.generation))
                .collect()
        })
    }

    pub(crate) fn changes(&self) -> Vec<String> {
        self.with(|t| t.changes.clone())
    }

    /// Holds installations back; tells of each that waits.
    pub(crate) fn hold(&self) -> (Arc<Semaphore>, mpsc::UnboundedReceiver<()>) {
        self.close(|t| &mut t.gate)
    }

    /// The same of what ports may send: a controller tells it when it has listed the groups.
    pub(crate) fn hold_guard(&self) -> (Arc<Semaphore>, mpsc::UnboundedReceiver<()>) {
        self.close(|t| &mut t.guard_gate)
    }

    fn close(
        &self,
        gate: impl Fn(&mut Toy) -> &mut Option<Gate>,
    ) -> (Arc<Semaphore>, mpsc::UnboundedReceiver<()>) {
        let (waits, told) = mpsc::unbounded_channel();
        let permits = Arc::new(Semaphore::new(0));
        self.with(|t| *gate(t) = Some((permits.clone(), waits)));
        (permits, told)
    }

    pub(crate) async fn start(&mut self) {
        let routes = Routes::new(AgentServer::new(self.agent.clone()));
        self.server = Some(serve(&self.address, &Security::default(), routes).await.unwrap());
    }

    pub(crate) async fn stop(&mut self) {
        self.server.take().unwrap().stop().await;
    }

    /// Stops it and starts it again as a new process would: without groups.
    pub(crate) async fn restart(&mut self) {
        self.stop().await;
        self.with(|t| {
            t.boot_id += 1;
            t.groups.clear();
            t.routes.clear();
        });
        self.start().await;
    }

    /// Something about its ports or neighbours is new.
    pub(crate) fn tell(&self) {
        self.report(v1::agent_event::Event::Neighbour(v1::NeighbourChanged::default()));
    }

    /// Something happened.
    pub(crate) fn report(&self, event: v1::agent_event::Event) {
        let event = Some(event);
        let _ = self.agent.events.send(v1::AgentEvent { at_ns: 0, event });
    }

    /// From now on it says that it has so much memory, all free but for collective groups.
    pub(crate) fn set_memory(&self, bytes: u64) {
        self.with(|t| (t.capabilities.memory_bytes_max, t.capabilities.memory_bytes_free) = (bytes, bytes));
    }
}

/// Whether the clock of this test goes on when everybody waits, and only then.
fn is_in_virtual_time() -> bool {
    let (now, began) = (tokio::time::Instant::now(), std::time::Instant::now());
    while began.elapsed().is_zero() {}
    now == tokio::time::Instant::now()
}

/// Switches and what a controller over them needs. In virtual time nothing of it has a socket.
pub(crate) struct Lab {
    network: Option<Network>,
    pub(crate) folder: TempDir,
    pub(crate) switches: BTreeMap<String, Switch>,
    pub(crate) topology: Topology,
    pub(crate) config: Config,
    pub(crate) journal: Journal,
}

impl Lab {
    /// The Castnet switches and programmable routers of a topology, all running; the controller gets the topology as from a file, and a store.
    pub(crate) async fn new(topology: Topology) -> Self {
        let network = is_in_virtual_time().then(Network::join);
        let folder = tempfile::tempdir().unwrap();
        let journal = Journal::default();
        let mut switches = BTreeMap::new();
        let mut configs = Vec::new();
        let has_agent = |s: &&castnet_topology::Switch| s.kind == SwitchKind::Castnet || s.programmable;
        for known in topology.switches().filter(has_agent) {
            let path: PathBuf = folder.path().join(format!("{}.sock", known.name));
            let port = |(number, mac): (&u8, &[u8; 6])| v1::Port {
                port: u32::from(*number),
                name: format!("{}-p{number}", known.name),
                mac: castnet_wire::MacAddr(*mac).to_string(),
                mtu: 9000,
                up: true,
                ..Default::default()
            };
            let toy = Toy {
                boot_id: 1,
                ports: known.ports.iter().map(port).collect(),
                ..Toy::default()
            };
            let agent = ToyAgent {
                name: known.name.clone(),
                toy: Arc::new(parking_lot::Mutex::new(toy)),
                journal: journal.clone(),
                events: broadcast::Sender::new(16),
            };
            let address = Address::Unix(path);
            configs.push(SwitchConfig {
                name: known.name.clone(),
                agent: address.clone(),
            });
            let mut switch = Switch {
                agent,
                address,
                server: None,
            };
            switch.start().await;
            switches.insert(known.name.clone(), switch);
        }
        let config = config(folder.path(), configs, &topology);
        Self {
            network,
            folder,
            switches,
            topology,
            config,
            journal,
        }
    }

    /// Two leaves with two hosts each, one spine: h0 and h1 at leaf0, h2 and h3 at leaf1.
    pub(crate) async fn two_tiers() -> Self {
        Self::new(Topology::leaf_spine(2, 1, 2).unwrap()).await
    }

    /// The configuration of a controller over the switches of [`Lab::two_tiers`] in `folder`.
    pub(crate) fn two_tiers_config(folder: &Path) -> Config {
        let topology = Topology::leaf_spine(2, 1, 2).unwrap();
        let switch = |known: &castnet_topology::Switch| SwitchConfig {
            name: known.name.clone(),
            agent: Address::Unix(folder.join(format!("{}.sock", known.name))),
        };
        config(folder, topology.switches().map(switch).collect(), &topology)
    }

    pub(crate) async fn start(&self) -> (Controller, Client) {
        start(self.config.clone()).await
    }

    /// As a new process, after this one has ended.
    pub(crate) async fn restart(&self, controller: Controller) -> (Controller, Client) {
        controller.stop().await;
        self.start().await
    }

    pub(crate) fn switch(&self, name: &str) -> &Switch {
        &self.switches[name]
    }

    /// The rules of a switch, by McstID.
    pub(crate) fn rules(&self, switch: &str) -> Vec<v1::GroupRule> {
        self.switch(switch)
            .with(|toy| toy.groups.values().map(|(rule, _)| rule.clone()).collect())
    }

    /// The first rule of a switch.
    pub(crate) fn rule(&self, switch: &str) -> v1::GroupRule {
        let mut rules = self.rules(switch).into_iter();
        rules.next().unwrap_or_else(|| panic!("{switch} has no rule"))
    }

    pub(crate) fn refuses(&self, switch: &str, why: Option<Status>) {
        self.switch(switch).with(|toy| toy.refuse = why);
    }

    /// Stops the agent of a switch. Returns when the controller knows.
    pub(crate) async fn lose(&mut self, client: &Client, switch: &str) {
        let mut events = Events::of(client).await;
        self.switches.get_mut(switch).unwrap().stop().await;
        events.switch(switch, false).await;
    }

    /// Each switch has done this, and nothing else.
    pub(crate) fn all_did(&self, changes: &[&str], why: &str) {
        for (name, switch) in &self.switches {
            assert_eq!(switch.changes(), changes, "{name} {why}");
        }
    }

    /// The groups of each switch that has any.
    pub(crate) fn placed(&self) -> Vec<String> {
        let all = self.switches.iter();
        all.flat_map(|(name, s)| s.groups().into_iter().map(move |g| format!("{name} {g}")))
            .collect()
    }

    /// A host's end of a connection, with the addresses of the topology.
    pub(crate) fn connection(&self, host: &str, qpn: u32) -> v1::Connection {
        let known = self.topology.host(host).unwrap();
        v1::Connection {
            ip: known.ip.unwrap().to_string(),
            mac: castnet_wire::MacAddr(known.mac.unwrap()).to_string(),
            qpn,
            ..Default::default()
        }
    }

    pub(crate) fn joining(&self, group: &str, host: &str, qpn: u32) -> v1::JoinGroupRequest {
        let connection = Some(self.connection(host, qpn));
        v1::JoinGroupRequest {
            group: group.into(),
            host: host.into(),
            connection,
            ..Default::default()
        }
    }

    /// With a lease that does not end here.
    pub(crate) fn leased(&self, group: &str, host: &str, qpn: u32) -> v1::JoinGroupRequest {
        v1::JoinGroupRequest {
            lease_ms: Some(600_000),
            ..self.joining(group, host, qpn)
        }
    }

    /// A group whose members all give their connections at once.
    pub(crate) fn given(&self, name: &str, members: &[&str], qpn: u32) -> v1::CreateGroupRequest {
        let mut request = creation(name, members);
        for member in &mut request.members {
            member.connection = Some(self.connection(&member.host, qpn));
        }
        request
    }
}

/// A topology file: `leaf0` ... with so many hosts each, and a link of each to each of the others, names and kinds of which are given.
/// McstIDs are routed to leaf N: 10.21N.0.0/24. The first ports of a leaf lead to its hosts.
pub(crate) fn joined_by(others: &[(&str, &str)], leaves: usize, hosts: usize) -> String {
    let mut file = String::new();
    for (name, kind) in others {
        file += &format!("[[switches]]\nname = \"{name}\"\nkind = \"{kind}\"\nports = {leaves}\n");
    }
    for leaf in 0..leaves {
        let ports = hosts + others.len();
        file += &format!(
            "[[switches]]\nname = \"leaf{leaf}\"\nports = {ports}\nmcst_prefix = \"10.21{leaf}.0.0/24\"\n"
        );
        for port in 0..hosts {
            let host = hosts * leaf + port;
            let n = host + 1;
            file += &format!(
                "[[hosts]]\nname = \"h{host}\"\nip = \"10.0.0.{n}\"\nmac = \"02:00:00:00:00:0{n}\"\n\
                 [[links]]\na = \"leaf{leaf}:{port}\"\nb = \"h{host}\"\n"
            );
        }
        for (port, (name, _)) in (hosts..).zip(others) {
            file += &format!("[[links]]\na = \"leaf{leaf}:{port}\"\nb = \"{name}:{leaf}\"\n");
        }
    }
    file
}

fn config(folder: &Path, switches: Vec<SwitchConfig>, topology: &Topology) -> Config {
    let mut config = Config::new(switches);
    config.topology = Some(topology.clone());
    config.store = Some(folder.join("controller.redb"));
    // They do not save a test in which something was missed.
    config.timeouts.switch = 5 * PATIENCE;
    config.timeouts.host = 5 * PATIENCE;
    config.timeouts.reconcile = 30 * PATIENCE;
    config.timeouts.backoff = (Duration::from_millis(5), Duration::from_millis(20));
    config
}

/// Without a socket, if there is a network without.
fn somewhere(mut config: Config) -> Config {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    if memory::is_here() && matches!(config.listen, Address::Tcp { .. }) {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        config.listen = Address::Unix(format!("controller{number}").into());
    }
    config
}

/// A controller over [`Lab::two_tiers`].
pub(crate) async fn two_tiers() -> (Lab, Controller, Client) {
    let lab = Lab::two_tiers().await;
    let (controller, client) = lab.start().await;
    (lab, controller, client)
}

pub(crate) async fn start(config: Config) -> (Controller, Client) {
    serving(Controller::start(somewhere(config)).await.unwrap()).await
}

/// As [`start`], with this store.
pub(crate) async fn start_with(config: Config, store: Arc<dyn Store>) -> (Controller, Client) {
    serving(Controller::start_with(somewhere(config), store).await.unwrap()).await
}

pub(crate) async fn serving(controller: Controller) -> (Controller, Client) {
    let channel = connect(controller.address().unwrap(), &Security::default())
        .await
        .unwrap();
    (controller, ControllerClient::new(channel))
}

/// A group of these members, the first of which sends.
pub(crate) fn creation(name: &str, members: &[&str]) -> v1::CreateGroupRequest {
    v1::CreateGroupRequest {
        name: name.into(),
        source: members[0].into(),
        members: members
            .iter()
            .map(|h| v1::NewMember {
                host: (*h).into(),
                connection: None,
            })
            .collect(),
        start_psn: Some(100),
        ..Default::default()
    }
}

/// The same, with what becomes of it when a member is lost.
pub(crate) fn creation_with(loss: v1::MemberLoss, name: &str, members: &[&str]) -> v1::CreateGroupRequest {
    v1::CreateGroupRequest {
        on_member_loss: loss.into(),
        ..creation(name, members)
    }
}

pub(crate) fn destruction(name: &str) -> v1::DestroyGroupRequest {
    v1::DestroyGroupRequest {
        group: name.into(),
        ..Default::default()
    }
}

pub(crate) fn phase(state: &v1::GroupState) -> v1::GroupPhase {
    state.phase()
}

/// What does not come about is a failure.
pub(crate) async fn in_time<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("in time")
}

/// The next message of a stream, which must come.
pub(crate) async fn next<T>(stream: &mut Streaming<T>) -> T {
    in_time(stream.message()).await.unwrap().expect("a message")
}

/// The last message of a stream that ends.
pub(crate) async fn last<T>(stream: &mut Streaming<T>) -> T {
    let mut last = next(stream).await;
    while let Some(message) = in_time(stream.message()).await.unwrap() {
        last = message;
    }
    last
}

/// In virtual time it is over when everybody else waits: to ask again and again stops the clock.
pub(crate) async fn moment() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

/// Waits until a switch is as wanted. The controller says that a switch is up before it has installed groups there.
pub(crate) async fn until(what: &str, mut is: impl FnMut() -> bool) {
    let waited = async {
        while !is() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waited)
        .await
        .unwrap_or_else(|_| panic!("{what}"));
}
