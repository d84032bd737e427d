//! One switch: the connection to its agent, what it reports, and bringing it to what is wanted there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use castnet_proto::convert::{mcst_id_from_proto, rule_to_proto, violations};
use castnet_proto::transport::connect;
use castnet_proto::v1;
use castnet_proto::v1::agent_client::AgentClient;
use castnet_proto::v1::agent_event::Event as Told;
use castnet_wire::McstId;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tonic::transport::Channel;
use tonic::{Code, Response, Status, Streaming};

use crate::config::SwitchConfig;
use crate::core::{Core, Shared};
use crate::fabric::{NeighbourReport, PortReport, Reach, SwitchReport, Who};
use crate::lifecycle::{Cause, Failure};
use crate::reconcile::{Action, Found, Wanted, diff};

/// Events come in bursts; a switch is asked once for all that come within this time.
const BURST: Duration = Duration::from_millis(20);

/// The largest answer that is taken: 100,000 groups do not fit the 4 MiB that gRPC takes by itself.
const ANSWER_BYTES_MAX: usize = 1 << 30;

type Client = AgentClient<Channel>;

/// A switch.
pub(crate) struct Link {
    config: SwitchConfig,
    connection: watch::Sender<Connection>,
    /// Whoever looks at what is wanted on the switch and makes it so holds this; so no late install follows a removal.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Clone)]
enum Connection {
    Trying,
    Up(Client),
    Down(String),
}

/// Why a switch did not do as it was told.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum SwitchError {
    #[error("{0}")]
    Unreachable(String),
    #[error("{}", .0.message())]
    Refused(Box<Status>),
}

impl SwitchError {
    /// Whether it is memory that a collective group's slots lack, so that one with fewer may fit.
    pub(crate) fn is_of_memory(&self) -> bool {
        match self {
            Self::Refused(status) if status.code() == Code::ResourceExhausted => {
                violations(status).iter().any(|v| v.field.ends_with(".slots"))
            }
            Self::Refused(_) | Self::Unreachable(_) => false,
        }
    }

    /// As the reason why a group fails.
    pub(crate) fn failure(&self, switch: &str) -> Failure {
        let (cause, reason) = match self {
            Self::Unreachable(reason) => (Cause::Unreachable, format!("cannot be reached: {reason}")),
            Self::Refused(status) if status.code() == Code::ResourceExhausted => {
                (Cause::NoRoom, format!("refuses: {}", status.message()))
            }
            Self::Refused(status) => (Cause::Refused, format!("refuses: {}", status.message())),
        };
        Failure {
            cause,
            field: format!("switches.{switch}"),
            reason,
        }
    }
}

/// A call to a switch that ends in time, one way or the other.
async fn call<T>(
    within: Duration,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, SwitchError> {
    match timeout(within, call).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => match status.code() {
            // What the connection itself comes to.
            Code::Unavailable | Code::Unknown | Code::Cancelled | Code::DeadlineExceeded | Code::Internal => {
                Err(SwitchError::Unreachable(status.message().into()))
            }
            _ => Err(SwitchError::Refused(Box::new(status))),
        },
        Err(_) => Err(SwitchError::Unreachable(format!("no answer within {within:?}"))),
    }
}

impl Link {
    pub(crate) fn new(config: SwitchConfig) -> Self {
        Self {
            config,
            connection: watch::Sender::new(Connection::Trying),
            turn: tokio::sync::Mutex::default(),
        }
    }

    pub(crate) fn endpoint(&self) -> String {
        self.config.agent.to_string()
    }

    /// The client, waiting for a first attempt to connect where that is under way.
    async fn client(&self, within: Duration) -> Result<Client, SwitchError> {
        let mut connection = self.connection.subscribe();
        let settled = connection.wait_for(|c| !matches!(c, Connection::Trying));
        match timeout(within, settled).await {
            Ok(Ok(state)) => match &*state {
                Connection::Up(client) => Ok(client.clone()),
                Connection::Down(reason) => Err(SwitchError::Unreachable(reason.clone())),
                Connection::Trying => Err(SwitchError::Unreachable("not connected yet".into())),
            },
            _ => Err(SwitchError::Unreachable(format!(
                "not connected within {within:?}"
            ))),
        }
    }

    /// Makes one group on the switch what is wanted there now: has the rules of its lanes installed, or removed. Where one
    /// of them is refused, those before it stay until the group is removed.
    pub(crate) async fn sync(
        &self,
        shared: &Shared,
        group: &str,
        mcst_ids: &[McstId],
    ) -> Result<(), SwitchError> {
        let within = shared.config.timeouts.switch;
        let _turn = self.turn.lock().await;
        let mut client = self.client(within).await?;
        let wanted = shared.read(|core| core.wanted_on(group, &self.config.name)).await;
        let wanted = wanted.map_err(|e| SwitchError::Unreachable(e.to_string()))?;
        for wanted in &wanted {
            self.install(&mut client, shared, wanted).await?;
        }
        for mcst_id in mcst_ids.iter().filter(|_| wanted.is_empty()) {
            self.remove(&mut client, shared, *mcst_id, None).await?;
        }
        Ok(())
    }

    async fn install(
        &self,
        client: &mut Client,
        shared: &Shared,
        wanted: &Wanted,
    ) -> Result<(), SwitchError> {
        let request = v1::InstallGroupRequest {
            rule: Some(rule_to_proto(&wanted.to_install())),
            owner: shared.owner.clone(),
        };
        call(shared.config.timeouts.switch, client.install_group(request))
            .await
            .map(|_| ())
    }

    async fn remove(
        &self,
        client: &mut Client,
        shared: &Shared,
        mcst_id: McstId,
        generation: Option<u64>,
    ) -> Result<(), SwitchError> {
        let request = v1::RemoveGroupRequest {
            mcst_id: mcst_id.to_string(),
            owner: Some(shared.owner.clone()),
            generation,
        };
        match call(shared.config.timeouts.switch, client.remove_group(request)).await {
            // Somebody else's group by now: ours is gone.
            Err(SwitchError::Refused(status)) if status.code() == Code::FailedPrecondition => Ok(()),
            done => done.map(|_| ()),
        }
    }

    /// Stays connected to the switch for as long as the controller runs.
    pub(crate) async fn run(self: Arc<Self>, shared: Arc<Shared>) {
        let (first, longest) = shared.config.timeouts.backoff;
        let mut pause = first;
        loop {
            let began = Instant::now();
            let reason = match self.session(&shared).await {
                Ok(never) => match never {},
                Err(error) => error.to_string(),
            };
            self.lost(&shared, reason);
            // A connection that stood was no failed attempt.
            pause = if began.elapsed() > longest {
                first
            } else {
                (pause * 2).min(longest)
            };
            sleep(pause).await;
        }
    }

    fn lost(&self, shared: &Arc<Shared>, reason: String) {
        let name = &self.config.name;
        let mut core = shared.lock();
        let now = Reach::Down(reason.clone());
        let (before, _) = core.facts.switches.entry(name.clone()).or_default();
        if std::mem::replace(before, now) == Reach::Up
            || !matches!(*self.connection.borrow(), Connection::Down(_))
        {
            tracing::warn!(switch = name, reason, "switch lost");
        }
        self.connection.send_replace(Connection::Down(reason.clone()));
        shared.unsettled(&mut core, name, None, &reason);
        self.tell(shared, &mut core);
        shared.fabric_changed();
    }

    fn tell(&self, shared: &Shared, core: &mut Core) {
        let state = crate::view::switch(core, &self.config.name, self.endpoint());
        shared.publish(core, v1::controller_event::Event::Switch(state));
    }

    /// From one connection to its loss.
    async fn session(&self, shared: &Arc<Shared>) -> Result<std::convert::Infallible, SwitchError> {
        let within = shared.config.timeouts.switch;
        let unreachable = |error: &dyn std::error::Error| SwitchError::Unreachable(error.to_string());
        let channel = connect(&self.config.agent, &shared.config.security)
            .await
            .map_err(|e| unreachable(&e))?;
        let mut client = AgentClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
        let before = shared.lock().groups.own(&self.config.name, None);
        let capabilities = call(within, client.get_capabilities(v1::GetCapabilitiesRequest {})).await?;
        if capabilities.switch_name != self.config.name {
            let (found, wanted) = (&capabilities.switch_name, &self.config.name);
            let reason = format!(
                "{} is the agent of switch {found:?}, not of {wanted:?}",
                self.config.agent
            );
            return Err(SwitchError::Unreachable(reason));
        }
        // Watches first: what changes after the reports below is told.
        let mut events = call(within, client.watch_events(v1::WatchAgentEventsRequest {})).await?;
        self.next(&mut events, within).await?;
        self.report(shared, &mut client).await?;
        {
            let mut core = shared.lock();
            core.learn(&self.config.name, capabilities, before);
            self.connection.send_replace(Connection::Up(client.clone()));
            self.tell(shared, &mut core);
        }
        self.reconcile(shared, &mut client).await?;
        tracing::info!(switch = self.config.name, "switch connected");
        let period = shared.config.timeouts.reconcile;
        let mut look_at = Instant::now() + period;
        loop {
            tokio::select! {
                told = events.message() => {
                    let told = told.map_err(|status| SwitchError::Unreachable(status.message().into()))?;
                    let Some(told) = told else {
                        return Err(SwitchError::Unreachable("the agent ended the connection".into()));
                    };
                    if self.handle(shared, told) {
                        look_at = look_at.min(Instant::now() + BURST);
                    }
                }
                () = sleep_until(look_at) => {
                    self.report(shared, &mut client).await?;
                    self.reconcile(shared, &mut client).await?;
                    let before = shared.lock().groups.own(&self.config.name, None);
                    let capabilities = call(within, client.get_capabilities(v1::GetCapabilitiesRequest {})).await?;
                    shared.lock().learn(&self.config.name, capabilities, before);
                    look_at = Instant::now() + period;
                }
            }
        }
    }

    async fn next(
        &self,
        events: &mut Streaming<v1::AgentEvent>,
        within: Duration,
    ) -> Result<(), SwitchError> {
        let next = async { events.message().await.map(Response::new) };
        match call(within, next).await? {
            Some(_) => Ok(()),
            None => Err(SwitchError::Unreachable("the agent ended the connection".into())),
        }
    }

    /// Whether the switch is to be looked at again.
    fn handle(&self, shared: &Arc<Shared>, event: v1::AgentEvent) -> bool {
        match event.event {
            Some(Told::Port(_) | Told::Neighbour(_) | Told::NeighboursUnreported(_) | Told::Lagged(_)) => {
                true
            }
            Some(Told::Group(changed)) => changed.removed && self.misses(shared, &changed.mcst_id),
            Some(Told::PathStalled(stalled)) => {
                let v1::PathStalled {
                    group,
                    port,
                    next_hop,
                    for_ns,
                    ..
                } = stalled;
                let switch_name = self.config.name.clone();
                tracing::warn!(switch = switch_name, group, port, next_hop, "path stalled");
                let stalled = v1::StalledPath {
                    group,
                    switch_name,
                    port,
                    next_hop,
                    for_ns,
                };
                shared.publish(
                    &mut shared.lock(),
                    v1::controller_event::Event::StalledPath(stalled),
                );
                false
            }
            Some(Told::MemberFailed(failed)) => {
                shared.member_failed(&self.config.name, failed);
                false
            }
            Some(Told::CollectiveStalled(stalled)) => {
                shared.waits(&self.config.name, &stalled);
                false
            }
            Some(Told::CollectiveConflict(conflict)) => {
                shared.conflict(&self.config.name, &conflict);
                false
            }
            Some(Told::RankRefused(refused)) => {
                let v1::RankRefused {
                    group,
                    next_hop,
                    rank,
                    sequence,
                    rule,
                    ..
                } = refused;
                let switch = &self.config.name;
                tracing::warn!(
                    switch,
                    group,
                    next_hop,
                    rank,
                    sequence,
                    ?rule,
                    "a rank breaks a rule of its group"
                );
                false
            }
            // Which worker has a group is the switch's own affair.
            Some(Told::GroupMoved(_) | Told::GroupHot(_)) => false,
            Some(Told::Hello(_) | Told::BaselineLearned(_) | Told::FdbFull(_) | Told::NeighboursFull(_))
            | None => false,
        }
    }

    /// Whether that group is wanted on this switch.
    fn misses(&self, shared: &Shared, mcst_id: &str) -> bool {
        let core = shared.lock();
        let group = mcst_id_from_proto("mcst_id", mcst_id).ok();
        let entry = group.and_then(|id| core.groups.by_mcst_id(id));
        entry.is_some_and(|e| e.record().wanted_rule(&self.config.name).is_some())
    }

    /// Takes in what the switch says of ports and neighbours.
    async fn report(&self, shared: &Arc<Shared>, client: &mut Client) -> Result<(), SwitchError> {
        let within = shared.config.timeouts.switch;
        let ports = call(within, client.list_ports(v1::ListPortsRequest {})).await?;
        let neighbours = call(within, client.list_neighbours(v1::ListNeighboursRequest {})).await?;
        let report = SwitchReport {
            ports: ports.ports.into_iter().filter_map(port_report).collect(),
            neighbours: neighbours
                .neighbours
                .into_iter()
                .filter_map(neighbour_report)
                .collect(),
        };
        let mut core = shared.lock();
        let known = core.facts.switches.entry(self.config.name.clone()).or_default();
        if *known != (Reach::Up, report.clone()) {
            *known = (Reach::Up, report);
            shared.fabric_changed();
        }
        Ok(())
    }

    /// Makes the switch have all rules that are wanted there, and no others of ours.
    async fn reconcile(&self, shared: &Arc<Shared>, client: &mut Client) -> Result<(), SwitchError> {
        let within = shared.config.timeouts.switch;
        let _turn = self.turn.lock().await;
        let listed = call(
            within,
            client.list_groups(v1::ListGroupsRequest { mcst_id: None }),
        )
        .await?;
        let found: Vec<Found> = found(listed);
        let wanted = shared.read(|core| self.wanted(core)).await;
        let wanted = wanted.map_err(|e| SwitchError::Unreachable(e.to_string()))?;
        let lanes = || {
            wanted
                .iter()
                .flat_map(|(name, lanes)| lanes.iter().map(move |w| (name, w)))
        };
        let by_mcst_id = lanes().map(|(_, w)| (w.rule.mcst_id, w.clone())).collect();
        let has = |w: &Wanted| {
            let (mcst_id, generation) = (w.rule.mcst_id, w.rule.generation);
            found
                .iter()
                .any(|f| (f.mcst_id, f.generation, f.owner.as_str()) == (mcst_id, generation, &shared.owner))
        };
        // The generation that all lanes of each have when this is through; none for those that are still to be installed.
        let whole = |lanes: &Vec<Wanted>| {
            let generation = lanes.first().map(|w| w.rule.generation);
            generation.filter(|_| lanes.iter().all(|w| w.has_run || has(w)))
        };
        let mut settled: BTreeMap<String, Option<u64>> = wanted
            .iter()
            .map(|(name, lanes)| (name.clone(), whole(lanes)))
            .collect();
        let mut refused = Vec::new();
        for action in diff(&shared.owner, &by_mcst_id, &found) {
            tracing::info!(switch = self.config.name, ?action, "reconciling");
            let (name, done) = match action {
                Action::Remove { mcst_id, generation } => {
                    (None, self.remove(client, shared, mcst_id, Some(generation)).await)
                }
                Action::Install(rule) => {
                    let Some((name, wanted)) = lanes().find(|(_, w)| w.rule.mcst_id == rule.mcst_id) else {
                        continue;
                    };
                    (Some(name.clone()), self.install(client, shared, wanted).await)
                }
            };
            match (name, done) {
                (_, Ok(())) => {}
                (_, Err(error @ SwitchError::Unreachable(_))) => return Err(error),
                (Some(name), Err(error)) => {
                    settled.insert(name.clone(), None);
                    refused.push((name, error.failure(&self.config.name).reason));
                }
                (None, Err(error)) => {
                    tracing::warn!(switch = self.config.name, %error, "removal refused");
                }
            }
        }
        let mut core = shared.lock();
        for (name, reason) in &refused {
            shared.unsettled(&mut core, &self.config.name, Some(name), reason);
        }
        shared.settled(&mut core, &self.config.name, &settled);
        Ok(())
    }

    /// What is wanted on the switch, by group: a rule for each lane.
    fn wanted(&self, core: &Core) -> BTreeMap<String, Vec<Wanted>> {
        let switch = &self.config.name;
        let names = core.groups.on_switch(switch).into_iter();
        let wanted = names.map(|name| {
            let lanes = core.wanted_on(&name, switch);
            (name, lanes)
        });
        wanted.filter(|(_, lanes)| !lanes.is_empty()).collect()
    }
}

fn port_report(port: v1::Port) -> Option<(u8, PortReport)> {
    let mac: castnet_wire::MacAddr = port.mac.parse().ok()?;
    let number = u8::try_from(port.port).ok()?;
    Some((
        number,
        PortReport {
            name: port.name,
            mac: mac.0,
            mtu: port.mtu,
            up: port.up,
        },
    ))
}

fn neighbour_report(neighbour: v1::Neighbour) -> Option<NeighbourReport> {
    let who = match neighbour.kind? {
        v1::neighbour::Kind::Switch(switch) => Who::Switch {
            name: switch.name,
            port: switch.port,
        },
        v1::neighbour::Kind::Host(host) => {
            let mac: castnet_wire::MacAddr = host.mac.parse().ok()?;
            Who::Host {
                ip: host.ip.parse().ok()?,
                mac: mac.0,
            }
        }
    };
    Some(NeighbourReport {
        port: u8::try_from(neighbour.port).ok()?,
        age_ns: neighbour.age_ns,
        who,
    })
}

/// The rules that a switch has.
fn found(listed: v1::ListGroupsResponse) -> Vec<Found> {
    let read = |group: v1::InstalledGroup| {
        let rule = group.rule?;
        Some(Found {
            mcst_id: mcst_id_from_proto("mcst_id", &rule.mcst_id).ok()?,
            generation: rule.generation,
            owner: group.owner,
        })
    };
    listed.groups.into_iter().filter_map(read).collect()
}
