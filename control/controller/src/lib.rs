//! The controller: plans the tree of a requested group, programs its switches all or nothing, and keeps them so.
//!
//! Desired state is in a [`store`] on disk before it is sent to a switch or a client. It is written outside the lock of
//! the state in memory, many changes at once. A task per switch compares it with the switch's reports (`reconcile.rs`)
//! at connection, after events, and at intervals. So a controller that was killed finishes or takes back what it had
//! begun, a restarted switch gets its groups again, and traffic is not affected (contract S3). The life of a group of
//! any kind is one table ([`lifecycle`]); what differs between kinds is in [`kinds`].
//!
//! ```no_run
//! use castnet_controller::{Config, Controller, SwitchConfig};
//!
//! # async fn serve() -> Result<(), Box<dyn std::error::Error>> {
//! let leaf = SwitchConfig { name: "leaf1".into(), agent: "http://127.0.0.1:7471".parse()? };
//! let config = Config { store: Some("castnet.redb".into()), ..Config::new(vec![leaf]) };
//! let controller = Controller::start(config).await?;
//! println!("serves at {:?}", controller.address());
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod check;
mod config;
mod core;
mod detour;
mod driver;
mod error;
mod fabric;
mod health;
mod hosts;
mod journal;
pub mod kinds;
pub mod lifecycle;
mod link;
mod planning;
mod pool;
mod reconcile;
pub mod record;
mod requests;
mod service;
mod state;
pub mod store;
mod table;
mod view;
pub mod written_off;

use std::collections::BTreeMap;
use std::sync::Arc;

use castnet_proto::process;
use castnet_proto::transport::{Address, Server, serve};
use castnet_proto::v1::ControllerTerm;
use castnet_proto::v1::controller_server::ControllerServer;
use tokio::sync::Notify;
use tonic::service::Routes;

pub use crate::check::{ConfigFault, ConfigFaults};
pub use crate::config::{
    Checkpoint, Checkpoints, Config, DEFAULT_LISTEN, DEFAULT_MCST_POOL, SwitchConfig, Timeouts,
};
use crate::core::{Core, Shared};
pub use crate::error::StartError;
use crate::fabric::{Fabric, Facts};
use crate::health::Probe;
use crate::journal::Journal;
use crate::kinds::collective::links;
use crate::state::Postponed;
use crate::store::memory::MemoryStore;
use crate::store::redb::RedbStore;
use crate::store::{Store, Stored};
use crate::table::Groups;

/// A running controller. If dropped, it ends at once, as if killed; [`Controller::stop`] waits until it has ended.
pub struct Controller {
    shared: Arc<Shared>,
    server: Option<Server>,
}

impl Controller {
    /// Loads the store, connects to switches in the background, and serves. Clients can connect when this returns.
    ///
    /// # Errors
    /// The configuration contradicts itself, the store does not open, or the address cannot be served.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        config.check()?;
        let store: Arc<dyn Store> = match &config.store {
            Some(path) => Arc::new(RedbStore::open(path)?),
            None => Arc::new(MemoryStore::default()),
        };
        Self::start_with(config, store).await
    }

    /// Like [`Controller::start`], with this store instead of the configured one.
    pub async fn start_with(config: Config, store: Arc<dyn Store>) -> Result<Self, StartError> {
        config.check()?;
        let owner = format!("controller-{:016x}", requests::draw());
        let stored = Stored::load(&*store, &owner).await?;
        let staged = Arc::new(Notify::new());
        let probe = Probe::new(&stored.versions);
        let mut groups = Groups::default();
        for record in stored.groups {
            groups.put(record.after_restart());
        }
        let switches = config.switches.iter().map(|s| s.name.clone());
        let core = Core {
            facts: Fabric::new(Facts::new(config.topology.clone(), switches, stored.hosts)),
            capabilities: BTreeMap::new(),
            groups,
            written_off: stored.written_off,
            calls: 0,
            mcst_pool: config.mcst_pool,
            last_mcst_ids: BTreeMap::new(),
            journal: Journal::new(stored.versions, staged.clone()),
            store_error: None,
            postponed: Postponed::default(),
            links_changed: Default::default(),
        };
        let term = ControllerTerm {
            owner: stored.owner,
            epoch: stored.epoch,
            instance: requests::draw(),
            address: config.listen.to_string(),
        };
        let shared = Arc::new(Shared::new(config, &term, core, staged));
        let service = service::Service {
            shared: shared.clone(),
        };
        let routes = Routes::new(ControllerServer::new(service)).add_service(process::server());
        let server = serve(&shared.config.listen, &shared.config.security, routes);
        let server = server.await.inspect_err(|_| shared.stop_now())?;
        // It ends by itself, after the last write.
        shared.tasks.spawn(journal::write(shared.clone(), store, probe));
        tracing::info!(address = %server.address(), owner = shared.owner, epoch = term.epoch, "controller serves");
        for link in shared.links.values() {
            shared.spawn(link.clone().run(shared.clone()));
        }
        shared.spawn(links::watch(shared.clone()));
        {
            let mut core = shared.lock();
            core.forget_other_switches();
            for name in core.groups.names() {
                core.lease_absent(&name);
                core.drive(&name);
            }
        }
        Ok(Self {
            shared,
            server: Some(server),
        })
    }

    /// Its address.
    pub fn address(&self) -> Option<&Address> {
        self.server.as_ref().map(Server::address)
    }

    /// Its name as the owner of the groups that it installs.
    pub fn owner(&self) -> &str {
        &self.shared.owner
    }

    /// Stops it: closes the store and frees the address. Groups stay on the switches.
    pub async fn stop(mut self) {
        self.shared.stop().await;
        if let Some(server) = self.server.take() {
            server.stop().await;
        }
    }
}

impl std::fmt::Debug for Controller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Controller({}, {:?})", self.owner(), self.address())
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.shared.stop_now();
    }
}
