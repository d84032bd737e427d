//! The agent: the gRPC server inside a switch (EPIC's IncAgent). It serves a [`castnet_worker::Dataplane`] as
//! castnet/v1. Its only own state is the owner of each group. The dataplane does not depend on it (contract S3).
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use castnet_agent::Agent;
//! use castnet_proto::transport::Security;
//! use castnet_worker::{Dataplane, DataplaneConfig};
//!
//! # async fn serve(config: DataplaneConfig) -> Result<(), Box<dyn std::error::Error>> {
//! let dataplane = Arc::new(Dataplane::start(config)?);
//! let agent = Agent::start(dataplane, &"http://127.0.0.1:7471".parse()?, &Security::default()).await?;
//! println!("castnet port --agent {}", agent.address());
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod shell;
pub mod state;

use std::sync::Arc;

use castnet_proto::access::{Access, guard, listen};
use castnet_proto::process::{self, draw};
use castnet_proto::transport::{Address, Listener, Security, Server, TransportError};
use castnet_proto::v1::agent_server::AgentServer;
use castnet_rules::{Fault, GroupRule, Route, RuleSet};
use castnet_worker::{Dataplane, InstallError, Installed, RouteError};
use parking_lot::Mutex;
use tonic::service::Routes;

use crate::shell::events::{self, EventSender};
use crate::shell::mrp;
use crate::shell::service::Service;
use crate::state::access::right;
use crate::state::core::Core;
pub use crate::state::mrp::FabricPort;
use crate::state::pipeline::Pipeline;

pub(crate) struct Shared {
    pub(crate) dataplane: Arc<Dataplane>,
    core: Mutex<Core>,
    pub(crate) events: Arc<EventSender>,
    /// Drawn at each start.
    pub(crate) boot_id: u64,
}

impl Shared {
    pub(crate) fn new(dataplane: Arc<Dataplane>) -> Self {
        Self {
            events: events::start(&dataplane),
            dataplane,
            core: Mutex::default(),
            // 0 means unknown in messages.
            boot_id: draw() | 1,
        }
    }

    /// Gives a request to the state, which is locked until the workers have answered: requests of several clients do not mix, and an earlier
    /// one of a controller does not come after that of the next controller.
    pub(crate) fn handle<T>(&self, request: impl FnOnce(&mut Core, &mut dyn Pipeline) -> T) -> T {
        request(&mut self.core.lock(), &mut &*self.dataplane)
    }
}

/// A running agent. Dropping it disconnects its clients; the dataplane runs on.
pub struct Agent {
    server: Server,
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agent")
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

impl Agent {
    /// Serves `dataplane` to clients of this machine; they can connect when this returns. Groups that are already installed
    /// are an operator's.
    ///
    /// # Errors
    /// The address is not allowed or not free, or the certificates do not work.
    pub async fn start(
        dataplane: Arc<Dataplane>,
        address: &Address,
        security: &Security,
    ) -> Result<Self, TransportError> {
        Self::start_for(dataplane, address, security, Arc::default()).await
    }

    /// Like [`Agent::start`], for clients with certificates.
    ///
    /// # Errors
    /// As [`Agent::start`]; and with TLS, if no certificate could program the switch.
    pub async fn start_for(
        dataplane: Arc<Dataplane>,
        address: &Address,
        security: &Security,
        access: Arc<Access>,
    ) -> Result<Self, TransportError> {
        let listener = listen(address, security, &access).await?;
        Ok(Self::serve(dataplane, listener, &access))
    }

    /// Like [`Agent::start_for`], where [`listen`] has taken the address, as before the dataplane started. Call it in a runtime of tokio.
    pub fn serve(dataplane: Arc<Dataplane>, listener: Listener, access: &Arc<Access>) -> Self {
        let shared = Arc::new(Shared::new(dataplane));
        let service = guard(access, right, AgentServer::new(Service::new(shared.clone())));
        let log = guard(access, process::right, process::server());
        let routes = Routes::new(service).add_service(log);
        let server = listener.serve(routes);
        tracing::info!(switch = shared.dataplane.name(), address = %server.address(), boot_id = shared.boot_id, "agent serves");
        Self { server, shared }
    }

    /// Serves MRP from now on, for as long as this agent lives: hosts register groups from the ports and for the addresses of
    /// [`castnet_worker::engine::RegistrationConfig`]. LLDP shows the switches behind ports; `fabric` are others.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn serve_mrp(&self, limits: castnet_mrp::Limits, fabric: Vec<FabricPort>) -> std::io::Result<()> {
        mrp::start(&self.shared, limits, fabric)
    }

    /// Its address, with the real port if it was started with port 0.
    pub fn address(&self) -> &Address {
        self.server.address()
    }

    /// Stops it; the dataplane runs on.
    pub async fn stop(self) {
        self.server.stop().await;
    }
}

/// Why the rules of a file are not loaded. Nothing has changed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum LoadError {
    /// The rules are wrong for this switch.
    #[error("{} fault(s) on a switch with {ports} ports; the first: {}", .faults.len(), .faults.first().map(ToString::to_string).unwrap_or_default())]
    Faults { ports: usize, faults: Vec<Fault> },
    /// The dataplane refuses a group.
    #[error("group {name:?}: {error}")]
    Group { name: String, error: InstallError },
    /// The dataplane refuses the routes.
    #[error("routes: {0}")]
    Routes(#[from] RouteError),
}

/// Groups of a rule file that are published together.
const GROUPS_TOGETHER: usize = 256;

/// Installs all groups and routes of a rule file, or none. They belong to an operator, so no controller changes them.
/// Blocks until the workers have answered.
///
/// # Errors
/// A fault of the rules, or a refusal of the dataplane. Nothing has changed then.
pub fn load_rules(dataplane: &Dataplane, rules: &RuleSet) -> Result<(), LoadError> {
    let ports = dataplane.config().ports.len();
    let faults = rules.check(ports);
    if !faults.is_empty() {
        return Err(LoadError::Faults { ports, faults });
    }
    let routes = dataplane.routes();
    dataplane.set_routes(rules.routes.clone())?;
    let mut done = Vec::new();
    for groups in rules.groups.chunks(GROUPS_TOGETHER) {
        let refused = dataplane.install_together(|installer| {
            groups.iter().find_map(|group| {
                let before = installer.rule(group.mcst_id).cloned();
                match installer.install(group) {
                    Ok(Installed::Unchanged) => {}
                    Ok(_) => done.push((group, before)),
                    Err(error) => return Some((group.name.clone(), error)),
                }
                None
            })
        });
        if let Some((name, error)) = refused.unwrap_or_else(|e| Some((String::new(), e.into()))) {
            roll_back(dataplane, done, routes);
            return Err(LoadError::Group { name, error });
        }
    }
    Ok(())
}

/// Removes groups, and installs again those that they replaced.
fn roll_back(dataplane: &Dataplane, groups: Vec<(&GroupRule, Option<GroupRule>)>, routes: Vec<Route>) {
    for (group, before) in groups.into_iter().rev() {
        let removed = dataplane.remove_group(group.mcst_id).map_err(InstallError::from);
        let undone =
            removed.and_then(|_| before.map_or(Ok(()), |before| dataplane.install(&before).map(drop)));
        if let Err(error) = undone {
            tracing::error!(group = group.name, %error, "cannot be rolled back");
        }
    }
    if let Err(error) = dataplane.set_routes(routes) {
        tracing::error!(%error, "routes cannot be rolled back");
    }
}
