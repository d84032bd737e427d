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
mod error;
mod shell;
mod state;
pub mod store;

use std::path::PathBuf;
use std::sync::Arc;

use castnet_proto::access::{Access, check_roles, guard, serve};
use castnet_proto::audit::AuditLog;
use castnet_proto::process::{self, draw};
use castnet_proto::transport::{Address, Server};
use castnet_proto::v1::ControllerTerm;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

pub use crate::check::ConfigFaults;
pub use crate::config::{
    Checkpoint, Checkpoints, Config, DEFAULT_LISTEN, DEFAULT_MCST_POOL, SwitchConfig, Timeouts,
};
pub use crate::error::StartError;
use crate::shell::election::Present;
use crate::shell::front::Front;
use crate::shell::health::{Own, Probe};
use crate::shell::shared::Shared;
use crate::shell::{tasks, write};
use crate::state::Core;
pub use crate::state::tenants::Tenant;
pub use crate::state::{kinds, lifecycle, record, written_off};
use crate::store::etcd::{EtcdConfig, Lead};
use crate::store::memory::MemoryStore;
use crate::store::redb::RedbStore;
use crate::store::{REFUSED, Store, StoreError, Stored};

/// A running controller. If dropped, it ends at once, as if killed; [`Controller::stop`] waits until it has ended.
pub struct Controller {
    config: Config,
    place: Place,
    /// The present store, if it is a file.
    file: Option<RedbStore>,
    access: Arc<Access>,
    front: Front,
    /// While it leads, which a controller without others always does.
    present: Present,
    election: Option<(CancellationToken, JoinHandle<()>)>,
    server: Option<Server>,
    /// The task that writes the store has panicked.
    dead: CancellationToken,
}

/// Where its store is.
enum Place {
    /// It outlives the work on it: in memory, or of a test.
    Given(Arc<dyn Store>),
    /// It is closed when the work ends.
    File(PathBuf),
    /// There are several controllers.
    Etcd(EtcdConfig),
}

impl Controller {
    /// Loads the store, connects to switches in the background, and serves. Clients can connect when this returns. One of
    /// several controllers on etcd does so when it leads; otherwise it refuses all calls, and names the one that leads.
    ///
    /// # Errors
    /// The configuration contradicts itself, the store does not open or is that of another fabric, or the address cannot be served.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        config.check()?;
        let place = match (&config.etcd, &config.store) {
            (Some(etcd), _) => Place::Etcd(etcd.clone()),
            (None, Some(path)) => Place::File(path.clone()),
            (None, None) => Place::Given(Arc::new(MemoryStore::default())),
        };
        Self::serve(config, place).await
    }

    /// Like [`Controller::start`], with this store instead of the configured one. Members take it for one in memory: their groups end with it.
    pub async fn start_with(config: Config, store: Arc<dyn Store>) -> Result<Self, StartError> {
        config.check()?;
        Self::serve(config, Place::Given(store)).await
    }

    async fn serve(config: Config, place: Place) -> Result<Self, StartError> {
        let front = Front::new();
        let (server, access) = listen(&config, &front).await?;
        let mut controller = Self {
            config,
            place,
            file: None,
            access,
            front,
            present: Present::default(),
            election: None,
            server: Some(server),
            dead: CancellationToken::new(),
        };
        controller.work().await?;
        Ok(controller)
    }

    /// Begins to work by its configuration.
    async fn work(&mut self) -> Result<(), StartError> {
        let config = self.config.clone();
        let served = self.server.as_ref().map(Server::address);
        let Some(address) = config.advertise.as_ref().or(served).cloned() else {
            return Ok(());
        };
        let store: Arc<dyn Store> = match &self.place {
            Place::Given(store) => store.clone(),
            Place::File(path) => Arc::new(self.file.insert(RedbStore::open(path)?).clone()),
            Place::Etcd(etcd) => {
                let (to, stop) = (
                    (self.front.clone(), self.present.clone(), self.dead.clone()),
                    CancellationToken::new(),
                );
                let election = crate::shell::election::run(config, etcd.clone(), address, to, stop.clone());
                self.election = Some((stop, tokio::spawn(election)));
                return Ok(());
            }
        };
        let shared = begin(config, store, &address, None, &self.dead).await?;
        self.front.lead(&shared);
        *self.present.lock() = Some(shared);
        Ok(())
    }

    /// Ends its work. Groups stay on the switches.
    async fn rest(&mut self) {
        if let Some((stop, election)) = self.election.take() {
            stop.cancel();
            // It ends early only with the runtime.
            let _ = election.await;
        }
        let shared = self.present.lock().take();
        if let Some(shared) = shared {
            shared.stop().await;
        }
    }

    /// Whether it may go on with this configuration.
    ///
    /// # Errors
    /// The configuration contradicts itself, changes what a running controller keeps, or lacks a switch that has groups.
    pub fn check(&self, config: &Config) -> Result<(), StartError> {
        config.check()?;
        let now = &self.config;
        let kept = [
            ("listen", config.listen == now.listen),
            (
                "the certificate files or the mode of the socket",
                config.security == now.security,
            ),
            ("audit_log", config.audit_log == now.audit_log),
            ("store", config.store == now.store && config.etcd == now.etcd),
        ];
        match kept.into_iter().find(|(_, same)| !same) {
            Some((what, _)) => return Err(StartError::Kept(what)),
            None => check_roles(&config.listen, &config.roles)?,
        }
        // It would not begin again on its store.
        if let Some(epoch) = self.present.lock().as_ref().and_then(|now| now.refused_epoch()) {
            return Err(StoreError::Refused { epoch }.into());
        }
        // One that does not lead has no groups: `begin` looks at those of the store.
        let shared = self.present.lock().clone();
        let used = shared
            .as_ref()
            .and_then(|now| now.lock().used_beside(&config.switches));
        if let Some((switch, group)) = used {
            return Err(StartError::SwitchInUse { switch, group });
        }
        // It is closed and opened again.
        match &self.file {
            Some(file) => file.check_there().map_err(StartError::from),
            None => Ok(()),
        }
    }

    /// Goes on as if it had been started with a [checked](Self::check) configuration. Traffic and groups stay, and so do connections of clients; their
    /// calls end as when a controller stops.
    ///
    /// # Errors
    /// It does not accept the configuration, and goes on as before; or the store fails, and it serves no longer.
    pub async fn reload(&mut self, config: Config) -> Result<(), StartError> {
        self.check(&config)?;
        self.access.set_roles(&config.listen, config.roles.clone())?;
        self.front
            .wait("the controller takes over a configuration".into(), None);
        self.rest().await;
        self.config = config;
        self.work().await
    }

    /// Its address.
    pub fn address(&self) -> Option<&Address> {
        self.server.as_ref().map(Server::address)
    }

    /// Its name as the owner of the groups that it installs; empty while it does not lead.
    pub fn owner(&self) -> String {
        let present = self.present.lock();
        present
            .as_ref()
            .map(|shared| shared.term.owner.clone())
            .unwrap_or_default()
    }

    /// Waits until it has ended by a fault of its own. It still has to be stopped.
    pub fn ended(&self) -> impl Future<Output = ()> + use<> {
        self.dead.clone().cancelled_owned()
    }

    /// Stops it: closes the store and frees the address. Groups stay on the switches.
    pub async fn stop(mut self) {
        self.rest().await;
        if let Some(server) = self.server.take() {
            server.stop().await;
        }
        self.access.close_log().await;
    }
}

async fn listen(config: &Config, front: &Front) -> Result<(Server, Arc<Access>), StartError> {
    let audit = config.audit_log.as_ref().map(|path| {
        AuditLog::open(path).map_err(|error| StartError::AuditLog {
            path: path.clone(),
            error,
        })
    });
    let access = Arc::new(Access::new(config.roles.clone(), audit.transpose()?));
    let service = guard(&access, crate::state::access::right, front.clone());
    let log = guard(&access, process::right, process::server());
    let routes = Routes::new(service).add_service(log);
    let server = serve(&config.listen, &config.security, &access, routes).await?;
    Ok((server, access))
}

/// Loads the store and starts all tasks. `address`: where clients reach the controller.
async fn begin(
    config: Config,
    store: Arc<dyn Store>,
    address: &Address,
    lead: Option<Arc<Lead>>,
    dead: &CancellationToken,
) -> Result<Arc<Shared>, StartError> {
    let config = Arc::new(config);
    let owner = format!("controller-{:016x}", draw());
    let stored = Stored::load(&*store, &owner, lead.is_none(), config.init).await?;
    if let Some(record) = stored.of_other_fabric(&config.switches) {
        return Err(StartError::OtherFabric {
            store: match (&config.etcd, &config.store) {
                (Some(etcd), _) => format!("the store at {:?} in etcd", etcd.prefix),
                (None, Some(path)) => format!("the store {}", path.display()),
                (None, None) => "the store".into(),
            },
            group: record.name.clone(),
            switches: record.placed.iter().cloned().collect(),
        });
    }
    let (probe, mark) = (Probe::new(&stored.versions), Own::new(REFUSED, &stored.versions));
    let term = ControllerTerm {
        owner: stored.owner.clone(),
        epoch: stored.epoch,
        instance: stored.instance,
        address: address.to_string(),
        in_memory: config.store.is_none() && config.etcd.is_none(),
    };
    let core = Core::new(
        config.clone(),
        stored,
        tokio::time::Instant::now().into_std(),
        draw(),
    );
    let shared = Arc::new(Shared::new(config, term, lead, core));
    // It ends by itself, after the last write.
    let writer = write::write(shared.clone(), store, probe, mark);
    let writer = shared.tasks.spawn(writer);
    let time = shared.tasks.spawn(tasks::keep_time(shared.clone()));
    for (task, which) in [(writer, "that writes the store"), (time, "that keeps the time")] {
        tokio::spawn(await_panic(task, which, shared.clone(), dead.clone()));
    }
    tracing::info!(%address, owner = shared.term.owner, epoch = shared.term.epoch, "controller serves");
    for link in shared.links.values() {
        shared.spawn(link.clone().run(shared.clone()));
    }
    shared.spawn(tasks::watch_links(shared.clone()));
    shared.spawn(tasks::watch_relays(shared.clone()));
    {
        let mut core = shared.lock();
        core.forget_other_switches();
        for name in core.groups.names() {
            core.arm(&name);
            core.lease_absent(&name);
            core.run_leases(&name);
            core.drive(&name);
        }
    }
    Ok(shared)
}

/// Without the tasks that write the store and keep the time, all changes would wait for ever: all calls end.
async fn await_panic(task: JoinHandle<()>, which: &str, shared: Arc<Shared>, dead: CancellationToken) {
    if task.await.is_err_and(|ended| ended.is_panic()) {
        tracing::error!("the task {which} has panicked: the controller ends");
        shared.stop_now();
        dead.cancel();
    }
}

impl std::fmt::Debug for Controller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Controller({}, {:?})", self.owner(), self.address())
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        if let Some((_, election)) = self.election.take() {
            election.abort();
        }
        if let Some(shared) = self.present.lock().take() {
            shared.stop_now();
        }
    }
}
