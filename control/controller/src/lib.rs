//! The controller: knows switches and hosts, takes "a group of these members", plans its tree, programs the switches
//! all or nothing, and keeps it so.
//!
//! What is wanted is in a [`store`] on disk before a switch hears of it. A task per switch compares that with what the
//! switch reports ([`reconcile`]) whenever either may have changed: at connection, after events, now and then. So a
//! controller that was killed half-way through anything finishes or takes back what it had begun, a switch that was
//! restarted gets its groups again, and traffic does not notice (contract S3). The life of a group is one table
//! ([`lifecycle`]).
#![forbid(unsafe_code)]

pub mod collective;
mod config;
mod core;
mod driver;
mod error;
pub mod fabric;
pub mod lifecycle;
mod link;
mod planning;
pub mod reconcile;
pub mod record;
mod requests;
mod service;
pub mod store;
mod view;

use std::collections::BTreeMap;
use std::sync::Arc;

use castnet_proto::transport::{Address, Server, serve};
use castnet_proto::v1::controller_server::ControllerServer;
use tonic::service::Routes;

use crate::collective::state::CollectiveEntry;
pub use crate::config::{
    Checkpoint, Checkpoints, Config, DEFAULT_LISTEN, DEFAULT_MCST_POOL, SwitchConfig, Timeouts,
};
use crate::core::{Core, Entry, Shared, after_restart};
pub use crate::error::{Refusal, StartError};
use crate::fabric::Facts;
use crate::store::Store;

/// A running controller. Dropped, it ends where it stands, as if killed; [`Controller::stop`] waits until it has.
pub struct Controller {
    shared: Arc<Shared>,
    server: Option<Server>,
}

impl Controller {
    /// Opens the store, takes up what it finds there, connects to the switches and serves. When this returns, clients
    /// can connect; switches are connected to in the background.
    ///
    /// # Errors
    /// The configuration contradicts itself, the store does not open, or the address cannot be listened at.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        config.check()?;
        let owner = format!("controller-{:016x}", requests::draw());
        let store = match &config.store {
            Some(path) => Store::open(path, &owner)?,
            None => Store::in_memory(&owner)?,
        };
        let stored = store.load()?;
        let groups = stored.groups.into_iter().map(after_restart);
        let collectives = stored
            .collectives
            .into_iter()
            .map(collective::record::after_restart);
        let core = Core {
            facts: Facts {
                file: config.topology.clone(),
                switches: config
                    .switches
                    .iter()
                    .map(|s| (s.name.clone(), Default::default()))
                    .collect(),
                hosts: stored.hosts.into_iter().map(|h| (h.name.clone(), h)).collect(),
            },
            capabilities: BTreeMap::new(),
            groups: groups.map(|g| (g.name.clone(), Entry::new(g))).collect(),
            collectives: collectives
                .map(|g| (g.name.clone(), CollectiveEntry::new(g)))
                .collect(),
            foreign: BTreeMap::new(),
            calls: 0,
            last_mcst_id: None,
        };
        let (listen, security) = (config.listen.clone(), config.security.clone());
        let shared = Arc::new(Shared::new(config, store, core));
        let service = service::Service {
            shared: shared.clone(),
        };
        let routes = Routes::new(ControllerServer::new(service));
        let server = serve(&listen, &security, routes)
            .await
            .inspect_err(|_| shared.stop_now())?;
        tracing::info!(address = %server.address(), owner = shared.owner, "controller serves");
        for link in shared.links.values() {
            shared.spawn(link.clone().run(shared.clone()));
        }
        shared.spawn(collective::links::watch(shared.clone()));
        {
            let mut core = shared.lock();
            for name in core.groups.keys().cloned().collect::<Vec<_>>() {
                shared.drive(&mut core, &name);
            }
            for name in core.collectives.keys().cloned().collect::<Vec<_>>() {
                shared.lease_all(&mut core, &name);
                shared.drive_collective(&mut core, &name);
            }
        }
        Ok(Self {
            shared,
            server: Some(server),
        })
    }

    /// Where it serves.
    pub fn address(&self) -> Option<&Address> {
        self.server.as_ref().map(Server::address)
    }

    /// Who it is to the switches: the owner of the groups it installs.
    pub fn owner(&self) -> &str {
        &self.shared.owner
    }

    /// Ends it: the store is closed, and its address is free again. Groups stay on the switches.
    pub async fn stop(mut self) {
        self.shared.stop().await;
        if let Some(server) = self.server.take() {
            server.stop().await;
        }
    }
}

impl std::fmt::Debug for Controller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let address = self.address().map(ToString::to_string);
        f.debug_struct("Controller")
            .field("address", &address)
            .field("owner", &self.owner())
            .finish()
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.shared.stop_now();
    }
}
