//! Several controllers in this thread, over the model of etcd. Each leads if it can.

use std::path::Path;
use std::time::Duration;

use castnet_controller::store::etcd::EtcdConfig;
use castnet_controller::{Config, Controller};
use castnet_proto::transport::{Address, Security, connect};
use castnet_proto::v1;
use castnet_proto::v1::controller_client::ControllerClient;
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
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        for n in (0..all.len()).filter(|n| Some(*n) != not) {
            if let Some(mut client) = client(&all[n]).await
                && client.find_leader(v1::FindLeaderRequest {}).await.is_ok()
            {
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
}

impl Candidates {
    /// So many controllers with this configuration, but for their addresses and their store. The names of their sockets are below `folder`.
    ///
    /// # Panics
    /// One does not start.
    pub async fn start(config: &Config, folder: &Path, etcd: &EtcdModel, count: usize) -> Self {
        let mut candidates = Self {
            net: Net::default(),
            addresses: Vec::new(),
            configs: Vec::new(),
            all: Vec::new(),
        };
        for n in 0..count {
            let (node, etcd) = (format!("c{n}"), etcd.config());
            let net = &mut candidates.net;
            let (folder, members) = net.surround(&node, folder, &config.switches, &etcd.members);
            let mut config = config.clone();
            config.store = None;
            config.etcd = Some(EtcdConfig { members, ..etcd });
            config.listen = Address::Unix(folder.join("controller.sock"));
            for switch in &mut config.switches {
                switch.agent = Address::Unix(folder.join(format!("{}.sock", switch.name)));
            }
            candidates.addresses.push(config.listen.clone());
            candidates.configs.push(config);
            candidates.all.push(None);
            candidates.begin(n).await;
        }
        candidates
    }

    async fn begin(&mut self, n: usize) {
        self.all[n] = Some(Controller::start(self.configs[n].clone()).await.unwrap());
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
    pub async fn leader(&self, not: Option<usize>) -> (usize, Client) {
        leader(&self.addresses, not).await
    }
}
