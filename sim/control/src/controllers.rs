//! Several controllers in this thread, over the model of etcd. Each leads if it can.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use castnet_controller::store::Store;
use castnet_controller::store::etcd::EtcdConfig;
use castnet_controller::{Config, Controller};
use castnet_proto::transport::{Address, Security, connect};
use castnet_proto::v1;
use castnet_proto::v1::controller_client::ControllerClient;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use tonic::transport::Channel;

use crate::etcd::EtcdModel;
use crate::net::{Fault, Net};

/// A client of a controller.
pub type Client = ControllerClient<Channel>;

/// One leads within this time.
const PATIENCE: Duration = Duration::from_secs(120);
/// Pause between looks at who leads.
const LOOK: Duration = Duration::from_millis(50);

/// A client of the controller at an address, if there is one.
pub async fn client(address: &Address) -> Option<Client> {
    let channel = connect(address, &Security::default()).await.ok()?;
    Some(ControllerClient::new(channel))
}

/// The one of these that leads, other than `not`, and a client of it.
///
/// # Panics
/// None does, for a long time.
pub async fn leader(all: &[Address], not: Option<usize>) -> (usize, Client) {
    leader_of(all, &Mutex::new(vec![None; all.len()]), not).await
}

/// The same, with the clients that are known, and those that become known.
async fn leader_of(
    all: &[Address],
    clients: &Mutex<Vec<Option<Client>>>,
    not: Option<usize>,
) -> (usize, Client) {
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        for n in (0..all.len()).filter(|n| Some(*n) != not) {
            let known = clients.lock()[n].take();
            let known = match known {
                Some(client) => Some(client),
                None => client(&all[n]).await,
            };
            let Some(mut client) = known else { continue };
            let leads = client.find_leader(v1::FindLeaderRequest {}).await;
            clients.lock()[n] = Some(client.clone());
            if leads.is_ok() {
                return (n, client);
            }
        }
        sleep(LOOK).await;
    }
    panic!("nobody leads");
}

/// Controllers of this thread.
#[derive(Debug)]
pub struct Candidates {
    /// By it they reach switches and etcd, as nodes `c0`, `c1` ...
    pub net: Net,
    /// Where they serve.
    pub addresses: Vec<Address>,
    configs: Vec<Config>,
    all: Vec<Option<Controller>>,
    /// Of the only one, which is on no etcd.
    store: Option<Arc<dyn Store>>,
    /// Of each, while it can be reached.
    clients: Mutex<Vec<Option<Client>>>,
}

impl Candidates {
    /// So many controllers with this configuration, but for their addresses and their store. The names of their sockets are below `folder`.
    ///
    /// # Panics
    /// One does not start.
    pub async fn start(config: &Config, folder: &Path, etcd: &EtcdModel, count: usize) -> Self {
        let mut candidates = Self::none();
        for _ in 0..count {
            candidates.add(config, folder, Some(etcd.config())).await;
        }
        candidates
    }

    /// The only controller, on a store of its own.
    ///
    /// # Panics
    /// It does not start.
    pub async fn alone(config: &Config, folder: &Path, store: Arc<dyn Store>) -> Self {
        let mut candidates = Self::none();
        candidates.store = Some(store);
        candidates.add(config, folder, None).await;
        candidates
    }

    fn none() -> Self {
        Self {
            net: Net::default(),
            addresses: Vec::new(),
            configs: Vec::new(),
            all: Vec::new(),
            store: None,
            clients: Mutex::default(),
        }
    }

    async fn add(&mut self, config: &Config, folder: &Path, etcd: Option<EtcdConfig>) {
        let n = self.all.len();
        let members = etcd.as_ref().map_or(&[][..], |etcd| &etcd.members);
        let (folder, members) = self
            .net
            .surround(&format!("c{n}"), folder, &config.switches, members);
        let mut config = config.clone();
        // Members would take one in memory for gone with the controller.
        config.store = etcd.is_none().then(|| folder.join("controller.redb"));
        config.etcd = etcd.map(|etcd| EtcdConfig { members, ..etcd });
        config.listen = Address::Unix(folder.join("controller.sock"));
        for switch in &mut config.switches {
            switch.agent = Address::Unix(folder.join(format!("{}.sock", switch.name)));
        }
        self.addresses.push(config.listen.clone());
        self.configs.push(config);
        self.all.push(None);
        self.clients.lock().push(None);
        self.begin(n).await;
    }

    async fn begin(&mut self, n: usize) {
        let config = self.configs[n].clone();
        let started = match &self.store {
            Some(store) => Controller::start_with(config, store.clone()).await,
            None => Controller::start(config).await,
        };
        self.all[n] = Some(started.unwrap());
    }

    /// As `kill -9`: what it does at its end reaches nobody.
    pub async fn kill(&mut self, n: usize) {
        let node = format!("c{n}");
        self.net.fail(&node, None, Fault::Cut);
        drop(self.all[n].take());
        // All who were connected know it then, and what it does at its end has failed.
        sleep(Duration::from_millis(100)).await;
        self.net.fail(&node, None, Fault::None);
    }

    /// Kills one, and starts it again.
    ///
    /// # Panics
    /// It does not start.
    pub async fn restart(&mut self, n: usize) {
        self.kill(n).await;
        self.begin(n).await;
    }

    /// As [`leader`].
    ///
    /// # Panics
    /// None leads, for a long time.
    pub async fn leader(&self, not: Option<usize>) -> (usize, Client) {
        leader_of(&self.addresses, &self.clients, not).await
    }
}
