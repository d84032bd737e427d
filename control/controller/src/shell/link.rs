//! One switch: the connection to its agent, its reports, and the calls that bring it to the desired state.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use castnet_proto::convert::violations;
use castnet_proto::term::{WithTerm, is_term_over};
use castnet_proto::transport::connect;
use castnet_proto::v1;
use castnet_proto::v1::agent_client::AgentClient;
use castnet_proto::v1::agent_event::Event as Told;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Code, Response, Status};

use crate::config::SwitchConfig;
use crate::error::Refusal;
use crate::shell::shared::Shared;
use crate::state::driver::Declined;
use crate::state::fabric::{NeighbourReport, PortReport, SwitchReport, Who};
use crate::state::{Cause, Core, Failure, Reach};

mod install;
mod purge;
mod reconcile;
mod routes;

/// Groups that are handled together: a switch publishes them at once, which also bounds how long the core's lock is
/// held.
pub(crate) const GROUPS_TOGETHER: usize = 256;
/// Groups that are changed together, before the next wait for the store. It bounds how long other calls wait for the
/// lock, and for the batch that is written.
pub(crate) const CHANGES_TOGETHER: usize = 64;
/// A burst of events within this time causes one query of the switch.
const BURST: Duration = Duration::from_millis(20);
/// Reported changes cause the next look at the switch after this many times the duration of the last.
const PAUSE_TIMES_LOOK: u32 = 10;
/// Largest response: 100,000 groups do not fit gRPC's default of 4 MiB.
const ANSWER_BYTES_MAX: usize = 1 << 30;
type Client = AgentClient<InterceptedService<Channel, WithTerm>>;

pub(crate) struct Link {
    pub(crate) config: SwitchConfig,
    /// `None` until the first attempt to connect has ended; then the client, or why there is none.
    connection: watch::Sender<Option<Result<Client, String>>>,
    /// Held while a task changes the switch, so that no late installation follows a removal.
    turn: tokio::sync::Mutex<()>,
    /// Whether it still answers is of interest now.
    pub(crate) look: Notify,
    /// Held while a task changes the routes of the switch.
    routes_turn: tokio::sync::Mutex<()>,
    /// What the switch was told about ports of hosts since it was connected.
    guard: parking_lot::Mutex<Option<v1::SetSourceGuardRequest>>,
    /// What the log says is wrong with its cables.
    wrong_links: parking_lot::Mutex<Vec<String>>,
    /// What drivers have asked for since a task last had the turn.
    asked: parking_lot::Mutex<VecDeque<install::Asked>>,
}

#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum SwitchError {
    #[error("{0}")]
    Unreachable(String),
    #[error("{}", .0.message())]
    Refused(Box<Status>),
}

impl SwitchError {
    fn is_of_memory(&self) -> bool {
        match self {
            Self::Refused(status) if status.code() == Code::ResourceExhausted => {
                violations(status).iter().any(|v| v.field.ends_with(".slots"))
            }
            Self::Refused(_) | Self::Unreachable(_) => false,
        }
    }

    pub(crate) fn declined(&self, switch: &str) -> Declined {
        Declined {
            failure: self.failure(switch),
            words: self.to_string(),
            is_of_memory: self.is_of_memory(),
        }
    }

    pub(crate) fn failure(&self, switch: &str) -> Failure {
        let (cause, reason) = match self {
            Self::Unreachable(reason) => (Cause::Unreachable, format!("cannot be reached: {reason}")),
            Self::Refused(status) if status.code() == Code::ResourceExhausted => {
                (Cause::NoRoom, format!("refuses: {}", status.message()))
            }
            Self::Refused(status) => (Cause::Refused, format!("refuses: {}", status.message())),
        };
        Failure::at(switch, cause, reason)
    }
}

/// The desired state cannot be read.
impl From<Refusal> for SwitchError {
    fn from(refusal: Refusal) -> Self {
        Self::Unreachable(refusal.to_string())
    }
}

impl From<Status> for SwitchError {
    fn from(status: Status) -> Self {
        match status.code() {
            // Another controller has the switch now. That says nothing about the group.
            _ if is_term_over(&status) => Self::Unreachable(status.message().into()),
            // Failures of the connection itself.
            Code::Unavailable | Code::Unknown | Code::Cancelled | Code::DeadlineExceeded | Code::Internal => {
                Self::Unreachable(status.message().into())
            }
            _ => Self::Refused(Box::new(status)),
        }
    }
}

async fn call<T>(
    shared: &Shared,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, SwitchError> {
    let within = shared.config.timeouts.switch;
    match timeout(within, call).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(status.into()),
        Err(_) => Err(SwitchError::Unreachable(format!("no answer within {within:?}"))),
    }
}

/// The switch's report about itself. It refuses a controller that another one has replaced.
async fn ask_capabilities(shared: &Shared, client: &mut Client) -> Result<v1::Capabilities, SwitchError> {
    let report = async {
        let report = client.get_capabilities(v1::GetCapabilitiesRequest {}).await;
        if report.as_ref().is_err_and(is_term_over) {
            shared.superseded();
        }
        report
    };
    call(shared, report).await
}

impl Link {
    pub(crate) fn new(config: SwitchConfig) -> Self {
        Self {
            config,
            connection: watch::Sender::new(None),
            turn: tokio::sync::Mutex::default(),
            look: Notify::new(),
            routes_turn: tokio::sync::Mutex::default(),
            guard: parking_lot::Mutex::default(),
            wrong_links: parking_lot::Mutex::default(),
            asked: parking_lot::Mutex::default(),
        }
    }

    /// The client; waits for a first attempt to connect that is under way.
    async fn client(&self, shared: &Shared) -> Result<Client, SwitchError> {
        let within = shared.config.timeouts.switch;
        let mut connection = self.connection.subscribe();
        let tried = timeout(within, connection.wait_for(Option::is_some)).await;
        let reason = match tried.ok().and_then(Result::ok).as_deref() {
            Some(Some(Ok(client))) => return Ok(client.clone()),
            Some(Some(Err(reason))) => reason.clone(),
            Some(None) | None => format!("not connected within {within:?}"),
        };
        Err(SwitchError::Unreachable(reason))
    }

    pub(crate) async fn run(self: Arc<Self>, shared: Arc<Shared>) {
        let (first, longest) = shared.config.timeouts.backoff;
        let mut pause = first;
        loop {
            let began = Instant::now();
            let Err(error) = self.session(&shared).await;
            self.lost(&shared, error.to_string()).await;
            // A connection that lasted was no failed attempt.
            pause = if began.elapsed() > longest {
                first
            } else {
                (pause * 2).min(longest)
            };
            sleep(pause).await;
        }
    }

    async fn lost(&self, shared: &Arc<Shared>, reason: String) {
        let name = &self.config.name;
        let groups = {
            let mut core = shared.lock();
            let before = core.facts.set_reach(name, Reach::Down(reason.clone()));
            if before == Reach::Up || !matches!(*self.connection.borrow(), Some(Err(_))) {
                tracing::warn!(switch = name, reason, "switch lost");
            }
            let now = core.now;
            core.signs.lost(name, now);
            self.connection.send_replace(Some(Err(reason.clone())));
            core.links_changed.switches.insert(name.clone());
            core.groups.on_switch(name)
        };
        for groups in groups.chunks(CHANGES_TOGETHER) {
            {
                let mut core = shared.lock();
                for group in groups {
                    core.unsettled(name, group, &reason);
                }
            }
            shared.let_others().await;
        }
        let mut core = shared.lock();
        self.tell(&mut core);
        core.reported();
    }

    fn tell(&self, core: &mut Core) {
        let state = crate::state::view::switch(core, &self.config, core.written_off_on(&self.config.name));
        core.publish(v1::controller_event::Event::Switch(state));
    }

    async fn session(&self, shared: &Arc<Shared>) -> Result<std::convert::Infallible, SwitchError> {
        let ended = || SwitchError::Unreachable("the agent ended the connection".into());
        let channel = connect(&self.config.agent, &shared.config.security)
            .await
            .map_err(|e| SwitchError::Unreachable(e.to_string()))?;
        let client = AgentClient::with_interceptor(channel, shared.with_term.clone());
        let mut client = client.max_decoding_message_size(ANSWER_BYTES_MAX);
        let before = shared.lock().groups.own(&self.config.name, None);
        let capabilities = ask_capabilities(shared, &mut client).await?;
        if capabilities.switch_name != self.config.name {
            let (found, wanted) = (&capabilities.switch_name, &self.config.name);
            let reason = format!(
                "{} is the agent of switch {found:?}, not of {wanted:?}",
                self.config.agent
            );
            return Err(SwitchError::Unreachable(reason));
        }
        // Subscribes first: changes after the reports below arrive as events.
        let mut events = call(shared, client.watch_events(v1::WatchAgentEventsRequest {})).await?;
        let first = async { events.message().await.map(Response::new) };
        call(shared, first).await?.ok_or_else(ended)?;
        *self.guard.lock() = None;
        self.report(shared, &mut client).await?;
        {
            let mut core = shared.lock();
            core.learn(&self.config.name, capabilities, before);
            self.connection.send_replace(Some(Ok(client.clone())));
            self.tell(&mut core);
        }
        self.reconcile(shared, &mut client).await?;
        tracing::info!(switch = self.config.name, "switch connected");
        let file = shared.config.topology.as_ref();
        let known = file.and_then(|file| file.switch(&self.config.name));
        if known.is_some_and(|switch| switch.programmable) {
            shared.lock().refine_all();
        }
        let period = shared.config.timeouts.reconcile;
        let (mut look_at, mut pause) = (Instant::now() + period, BURST);
        loop {
            tokio::select! {
                // A switch that always has an event is looked at nevertheless.
                biased;
                () = sleep_until(look_at) => {
                    let began = Instant::now();
                    self.report(shared, &mut client).await?;
                    self.reconcile(shared, &mut client).await?;
                    let before = shared.lock().groups.own(&self.config.name, None);
                    let capabilities = ask_capabilities(shared, &mut client).await?;
                    shared.lock().learn(&self.config.name, capabilities, before);
                    // A switch with many groups is not queried all the time, whatever it reports.
                    pause = (began.elapsed() * PAUSE_TIMES_LOOK).clamp(BURST, period.max(BURST));
                    look_at = Instant::now() + period;
                }
                () = self.look.notified() => look_at = look_at.min(Instant::now() + pause),
                told = events.message() => {
                    let told = told.map_err(|status| SwitchError::Unreachable(status.message().into()))?;
                    if self.handle(shared, told.ok_or_else(ended)?) {
                        look_at = look_at.min(Instant::now() + pause);
                    }
                }
            }
        }
    }

    /// Returns whether to query the switch again.
    fn handle(&self, shared: &Arc<Shared>, event: v1::AgentEvent) -> bool {
        let switch = &self.config.name;
        match event.event {
            Some(Told::Port(_) | Told::Neighbour(_) | Told::NeighboursUnreported(_) | Told::Lagged(_)) => {
                return true;
            }
            Some(Told::Group(changed)) => return changed.removed && self.misses(shared, &changed.mcst_id),
            Some(Told::PathStalled(stalled)) => return shared.lock().path_stalled(switch, stalled),
            Some(Told::MemberFailed(failed)) => shared.lock().member_failed(switch, failed),
            Some(Told::PathJoined(joined)) => shared.lock().path_joined(switch, &joined),
            Some(Told::CollectiveStalled(stalled)) => shared.lock().waits(switch, &stalled),
            Some(Told::CollectiveConflict(conflict)) => shared.lock().conflict(switch, &conflict),
            Some(Told::RankRefused(refused)) => {
                if shared.lock().may_warn_of(&refused.group) {
                    tracing::warn!(switch, ?refused, "a rank breaks a rule of its group");
                }
            }
            Some(Told::PfcStorm(storm)) => {
                if shared.lock().may_warn(&format!("{switch}:{}", storm.port)) {
                    tracing::warn!(switch, ?storm, "a class is paused for too long");
                }
            }
            Some(Told::AddressClaimed(claimed)) => {
                let port = claimed.claim.as_ref().map_or(0, |claim| claim.port);
                if shared.lock().may_warn(&format!("{switch}:{port}")) {
                    tracing::warn!(
                        switch,
                        ?claimed,
                        "a host claims an address that was seen elsewhere"
                    );
                }
            }
            Some(
                Told::SourcesCompete(_)
                | Told::GroupMoved(_)
                | Told::GroupHot(_)
                | Told::Hello(_)
                | Told::BaselineLearned(_)
                | Told::FdbFull(_)
                | Told::NeighboursFull(_),
            )
            | None => {}
        }
        false
    }

    fn misses(&self, shared: &Arc<Shared>, mcst_id: &str) -> bool {
        let core = shared.lock();
        let entry = core.at_address(mcst_id);
        entry.is_some_and(|e| e.record().wanted_rule(&self.config.name).is_some())
    }

    async fn report(&self, shared: &Arc<Shared>, client: &mut Client) -> Result<(), SwitchError> {
        let ports = call(shared, client.list_ports(v1::ListPortsRequest {})).await?;
        let neighbours = call(shared, client.list_neighbours(v1::ListNeighboursRequest {})).await?;
        let report = SwitchReport {
            ports: ports.ports.into_iter().filter_map(port_report).collect(),
            neighbours: neighbours
                .neighbours
                .into_iter()
                .filter_map(neighbour_report)
                .collect(),
        };
        let core = &mut *shared.lock();
        let (name, now) = (&self.config.name, core.now);
        let (stalled, silent) = core.signs.report(&core.facts, name, &report, now);
        let changed = core.facts.report(&self.config.name, report);
        let wrong = core.facts.wrong_links(&self.config.name);
        let told = std::mem::replace(&mut *self.wrong_links.lock(), wrong.clone());
        for wrong in wrong.iter().filter(|wrong| !told.contains(wrong)) {
            // What a host says by LLDP can change all the time.
            if core.may_warn(name) {
                tracing::warn!(switch = self.config.name, "{wrong}");
            }
        }
        if changed {
            core.links_changed.switches.insert(self.config.name.clone());
            core.links_changed.switches.extend(silent);
        }
        let stalls = !stalled.is_empty();
        core.links_changed.groups.extend(stalled);
        if changed || stalls {
            core.reported();
        }
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::shared::tests::shared;
    use crate::state::core::tests::warnings;

    /// A host filled the log with storms that it began and ended.
    #[tokio::test]
    async fn a_port_has_some_warnings_at_once() {
        let shared = shared();
        let link = &shared.links["s"];
        let storm = |port, ended| v1::AgentEvent {
            event: Some(Told::PfcStorm(v1::PfcStorm {
                port,
                ended,
                ..Default::default()
            })),
            ..Default::default()
        };
        let storms = |port| {
            warnings(|| {
                for ended in [false, true].repeat(500) {
                    assert!(!link.handle(&shared, storm(port, ended)));
                }
            })
        };
        for port in [1, 2] {
            let logged = storms(port);
            assert!((1..100).contains(&logged), "port {port}: {logged}");
        }
    }
}
