//! The configuration of a controller.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use castnet_group::{DEFAULT_RELAY_LATENCY, tree_latency};
use castnet_proto::access::Roles;
use castnet_proto::convert::name_from_proto;
use castnet_proto::transport::{Address, Security, SocketAccess, TlsFiles};
use castnet_rules::{Ipv4Net, PREFIX_TEXT};
use castnet_toml_reader::{Faults, Value};
use castnet_topology::{Topology, pool_fault};

use crate::check::{TIMEOUT_MAX, timeout_text};
use crate::state::tenants::Tenant;
use crate::store::etcd::{DEFAULT_LEAD_TTL, EtcdConfig};

/// Default pool of McstIDs: 65,534 of them. No host may have an address of it.
pub const DEFAULT_MCST_POOL: &str = "10.200.0.0/16";
/// Default number of groups that a host may have created: a 64th of the default pool.
const DEFAULT_HOST_GROUPS: u64 = 1024;
/// Percent of the memory of a switch that a host has, if it has no tenant.
const DEFAULT_HOST_MEMORY: u64 = 50;
/// Default address of a controller.
pub const DEFAULT_LISTEN: &str = "http://127.0.0.1:7470";

/// The configuration of a controller.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to serve.
    pub listen: Address,
    /// What protects the own service and the calls to agents.
    pub security: Security,
    /// What certificates of clients may do, with TLS.
    pub roles: Roles,
    /// Has a line for each call that is more than reading. `None`: there is no audit log.
    pub audit_log: Option<PathBuf>,
    /// Those who share the fabric, with their quotas.
    pub tenants: Vec<Tenant>,
    /// Maximum number of groups that a host has created, if it has no tenant; each lane of a group counts, once for each 64
    /// ranks. A host is who calls with a certificate that is in no list of `roles`.
    pub host_groups: u64,
    /// Percent of the memory of each switch that groups of a host without a tenant may have, 1 to 100.
    pub host_memory: u64,
    /// The switches.
    pub switches: Vec<SwitchConfig>,
    /// The fabric; `None`: from the switches' reports.
    pub topology: Option<Topology>,
    /// The pool of McstIDs; its first and last address are left out.
    pub mcst_pool: Ipv4Net,
    /// Whether switches drop frames of a member that come from another Ethernet address than its own.
    pub verify_mac: bool,
    /// File of the store; `None`: desired state ends with the process.
    pub store: Option<PathBuf>,
    /// The store of several controllers, instead of a file.
    pub etcd: Option<EtcdConfig>,
    /// A store without groups is meant to be a new one, although switches may have groups of other controllers. It is stored.
    pub init: bool,
    /// The address that other controllers give to clients; `None`: that of `listen`.
    pub advertise: Option<Address>,
    /// Time of a packet from one relay at the edge to the next one, in hundredths of the time that one more copy of it takes there. The
    /// controller chooses trees by it.
    pub relay_latency: u32,
    /// How long things may take.
    pub timeouts: Timeouts,
    /// For tests: places to stand still at.
    pub checkpoints: Checkpoints,
}

/// A switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchConfig {
    /// Its name; its agent must report the same.
    pub name: String,
    /// Address of its agent.
    pub agent: Address,
}

/// Time limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Limit of one call to a switch.
    pub switch: Duration,
    /// Limit until each member is seen at a switch, once all have joined.
    pub host: Duration,
    /// Pause between reconciliations of a switch that reports nothing.
    pub reconcile: Duration,
    /// First and longest pause before the next attempt to connect to a switch.
    pub backoff: (Duration, Duration),
    /// After a link of its tree is down for so long, a collective group fails.
    pub link: Duration,
    /// How long a failed or refused collective group that a rank created is kept, for people to see why.
    pub linger: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            switch: Duration::from_secs(5),
            host: Duration::from_secs(15),
            reconcile: Duration::from_secs(10),
            backoff: (Duration::from_millis(50), Duration::from_secs(2)),
            link: Duration::from_secs(5),
            linger: Duration::from_secs(60),
        }
    }
}

impl Config {
    /// Defaults for all but the switches: loopback, no topology file, store in memory.
    pub fn new(switches: Vec<SwitchConfig>) -> Self {
        Self {
            listen: Address::Tcp {
                tls: false,
                host: "127.0.0.1".into(),
                port: 0,
            },
            security: Security::default(),
            roles: Roles::default(),
            audit_log: None,
            tenants: Vec::new(),
            host_groups: DEFAULT_HOST_GROUPS,
            host_memory: DEFAULT_HOST_MEMORY,
            switches,
            topology: None,
            // A private range that is rarely in use.
            mcst_pool: Ipv4Net::new_assert([10, 200, 0, 0].into(), 16),
            verify_mac: false,
            store: None,
            etcd: None,
            init: false,
            advertise: None,
            relay_latency: DEFAULT_RELAY_LATENCY,
            timeouts: Timeouts::default(),
            checkpoints: Checkpoints::default(),
        }
    }

    /// Reads a configuration file; paths in it are relative to `folder`. `deploy/examples/controller.toml` has all its fields.
    ///
    /// # Errors
    /// All faults, each with line, column and field.
    pub fn from_toml(text: &str, folder: &Path) -> Result<Self, Faults> {
        let path = |v: Value<'_>| {
            let text = v.text()?;
            let named = match text.is_empty() {
                true => Err("is empty: write a path"),
                false => Ok(folder.join(text)),
            };
            v.accept(named)
        };
        let tls = |v: Value<'_>| {
            let t = v.table("a table: { ca, cert, key }")?;
            let files = ["ca", "cert", "key"].map(|name| t.need(name, "the path of a file", path));
            let [ca, cert, key] = files;
            Some(TlsFiles {
                ca: ca?,
                cert: cert?,
                key: key?,
            })
        };
        castnet_toml_reader::read(text, &[], |t| {
            let mut config = Self::new(Vec::new());
            config.listen = t.get("listen", Value::parse).or(DEFAULT_LISTEN.parse().ok())?;
            config.advertise = t.get("advertise", Value::parse);
            t.get("store", |v| {
                if v.is_text() {
                    config.store = path(v);
                    return Some(());
                }
                let t = v.table("a path in quotes, or a table: { etcd, prefix, tls, insecure }")?;
                let members = t.need("etcd", "a list of addresses of etcd's members", |v| {
                    let members = v.list("a list of addresses of etcd's members")?;
                    let members: Vec<Option<Address>> = members.map(Value::parse).collect();
                    if members.is_empty() {
                        v.fault("names no member");
                    }
                    Some(members.into_iter().flatten().collect::<Vec<_>>())
                });
                let prefix = t.get("prefix", Value::string);
                let tls = t.get("tls", tls);
                let insecure = t.get("insecure", Value::flag).unwrap_or_default();
                config.etcd = Some(EtcdConfig {
                    members: members?,
                    prefix: prefix.unwrap_or_else(|| "castnet".into()),
                    security: Security {
                        tls,
                        insecure,
                        ..Security::default()
                    },
                    answer_within: Duration::from_secs(2),
                    lead_ttl: DEFAULT_LEAD_TTL,
                });
                Some(())
            });
            config.topology = t.get("topology", |v| {
                let file = path(v)?;
                let shown = file.display().to_string();
                let text = std::fs::read_to_string(&file).map_err(|e| format!("{shown}: {e}"));
                v.accept(Topology::from_toml(&v.accept(text)?).map_err(|faults| faults.in_file(shown)))
            });
            let pool = t.get("mcst_pool", |v| {
                let pool: Ipv4Net = v.parsed(PREFIX_TEXT)?;
                let fault = pool_fault(&pool);
                v.accept(fault.map_or(Ok(pool), |why| {
                    Err(format!("{pool} cannot be a pool of McstIDs: {why}"))
                }))
            });
            if let Some(pool) = pool {
                config.mcst_pool = pool;
            }
            config.verify_mac = t.get("verify_mac", Value::flag).unwrap_or_default();
            let latency = t.get("relay_latency", |v| v.accept(tree_latency(v.text()?)));
            config.relay_latency = latency.unwrap_or(DEFAULT_RELAY_LATENCY);
            config.security.insecure = t.get("insecure", Value::flag).unwrap_or_default();
            config.security.socket = SocketAccess {
                group: t.get("socket_group", Value::string),
                mode: t.get("socket_mode", Value::parse),
            };
            config.security.tls = t.get("tls", tls);
            config.audit_log = t.get("audit_log", path);
            config.roles = t.get("roles", |v| Roles::read(v, false)).unwrap_or_default();
            let timeouts = &mut config.timeouts;
            t.get("timeouts", |v| {
                let t = v.table("a table: { switch_ms, host_ms, reconcile_ms, link_ms }")?;
                for (name, least, timeout) in [
                    ("switch_ms", 1, &mut timeouts.switch),
                    ("host_ms", 1, &mut timeouts.host),
                    ("reconcile_ms", 1, &mut timeouts.reconcile),
                    ("link_ms", 0, &mut timeouts.link),
                ] {
                    let range = least..=TIMEOUT_MAX.as_millis() as u64;
                    if let Some(ms) = t.get(name, |v| v.number(range, &timeout_text(least))) {
                        *timeout = Duration::from_millis(ms);
                    }
                }
                Some(())
            });
            config.tenants = t.items("tenants", "a list of tenants: [[tenants]]", Tenant::read);
            let host_groups = t.get("host_groups", |v| {
                v.number(0..=u64::MAX, "is no number of groups")
            });
            config.host_groups = host_groups.unwrap_or(config.host_groups);
            let host_memory = t.get("host_memory", |v| {
                v.number(1..=100, "is out of range: 1 to 100 percent")
            });
            config.host_memory = host_memory.unwrap_or(config.host_memory);
            config.switches = t.items("switches", "a list of switches: [[switches]]", |v| {
                let t = v.table("a switch: [[switches]]")?;
                let name = t.need("name", "a name in quotes", |v| v.accept(name_of(v.text()?)));
                let agent = t.need("agent", "the address of its agent", Value::parse);
                Some(SwitchConfig {
                    name: name?,
                    agent: agent?,
                })
            });
            Some(config)
        })
    }
}

fn name_of(text: &str) -> Result<String, String> {
    name_from_proto("name", text).map_err(|invalid| invalid.faults()[0].kind.to_string())
}

/// A point of an installation at which tests can halt a controller, as if killed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Checkpoint {
    /// The plan is stored; no switch has it yet.
    Planned,
    /// This switch has confirmed; that is not stored.
    Installed(String),
    /// The removal is stored; no switch knows of it yet.
    Removing,
    /// This switch has confirmed that it has no rule; that is not stored.
    Removed(String),
}

type StandStill = dyn Fn(&Checkpoint) -> bool + Send + Sync;

/// For tests: decides at each [`Checkpoint`] whether to halt there for good, as if killed. Default: never.
#[derive(Clone, Default)]
pub struct Checkpoints(Option<Arc<StandStill>>);

impl Checkpoints {
    /// Halts where `stand_still` returns true.
    pub fn new(stand_still: impl Fn(&Checkpoint) -> bool + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(stand_still)))
    }

    pub(crate) async fn pass(&self, checkpoint: Option<Checkpoint>) {
        if let (Some(stand_still), Some(checkpoint)) = (&self.0, &checkpoint)
            && stand_still(checkpoint)
        {
            std::future::pending::<()>().await;
        }
    }
}

impl fmt::Debug for Checkpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Checkpoints").field(&self.0.is_some()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_reads_and_its_paths_are_relative_to_it() {
        let text = r#"
            listen = "unix:/run/c.sock"
            store = "state.redb"
            verify_mac = true
            relay_latency = "2.5"
            tls = { ca = "ca.pem", cert = "c.pem", key = "/abs/c.key" }
            timeouts = { switch_ms = 7 }
            [[switches]]
            name = "s0"
            agent = "https://s0:1"
        "#;
        let config = Config::from_toml(text, Path::new("/etc/castnet")).unwrap();
        config.check().unwrap();
        assert_eq!(config.store, Some("/etc/castnet/state.redb".into()));
        assert!(config.verify_mac && !Config::new(Vec::new()).verify_mac);
        assert_eq!(config.relay_latency, 250);
        let tls = config.security.tls.unwrap();
        assert_eq!(
            (tls.ca, tls.key),
            ("/etc/castnet/ca.pem".into(), "/abs/c.key".into())
        );
        assert_eq!(config.timeouts.switch, Duration::from_millis(7));
        assert_eq!(config.mcst_pool.to_string(), DEFAULT_MCST_POOL);
    }

    #[test]
    fn a_store_is_a_file_or_etcd() {
        let config = |text| Config::from_toml(text, Path::new("/etc"));
        let text = r#"
            advertise = "https://c1:7470"
            store = { etcd = ["http://127.0.0.1:2379", "http://127.0.0.1:2380"], tls = { ca = "a", cert = "b", key = "c" } }
        "#;
        let read = config(text).unwrap();
        let etcd = read.etcd.unwrap();
        assert_eq!(
            (etcd.members.len(), etcd.prefix.as_str(), read.store),
            (2, "castnet", None)
        );
        assert_eq!(etcd.security.tls.unwrap().cert, Path::new("/etc/b"));
        assert_eq!(read.advertise.unwrap().to_string(), "https://c1:7470");
        let cases = [
            ("store = { etcd = [] }", "1:18: store.etcd: names no member"),
            ("store = { etcd = [\"here\"] }", "1:19: store.etcd[0]: "),
            ("store = { prefix = \"x\" }", "1:9: store.etcd: missing: "),
            ("store = 7", "1:9: store: "),
            ("store = \"\"", "1:9: store: is empty: write a path"),
        ];
        for (text, start) in cases {
            let error = config(text).unwrap_err().to_string();
            assert!(error.starts_with(start), "{error}");
        }
    }

    #[test]
    fn bad_files_name_the_field() {
        let cases = [
            ("listen = \"localhost\"", "1:10: listen: "),
            (
                "mcst_pool = \"x\"",
                "1:13: mcst_pool: \"x\" is not an IPv4 prefix",
            ),
            ("topology = \"/nowhere\"", "1:12: topology: /nowhere: "),
            (
                "[[switches]]\nname = \"a\"\nagent = \"b\"",
                "3:9: switches[0].agent: ",
            ),
            (
                "mcst_pool = \"224.0.0.0/4\"",
                "1:13: mcst_pool: 224.0.0.0/4 cannot be a pool of McstIDs: it contains",
            ),
            (
                "timeouts = { reconcile_ms = 0 }",
                "1:29: timeouts.reconcile_ms: 0 is no time limit: 1 to ",
            ),
            (
                "[[switches]]\nname = \"a b\"\nagent = \"unix:/b\"",
                "2:8: switches[0].name: \"a b\" is not a name: 1 to 63 ",
            ),
            ("relay_latency = \"0\"", "1:17: relay_latency: is no latency"),
            ("colour = 1", "1:1: colour: unknown field; allowed: listen, "),
        ];
        for (text, start) in cases {
            let error = Config::from_toml(text, Path::new("/")).unwrap_err();
            assert!(error.to_string().starts_with(start), "{error}");
        }
    }

    #[test]
    fn all_faults_of_a_file_are_reported_at_once() {
        let text = "listen = 7\ntls = { ca = \"ca.pem\" }\ntimeouts = { host_ms = -1 }\n[[switches]]\nnmae = \"a\"\n";
        let faults = Config::from_toml(text, Path::new("/")).unwrap_err();
        let expected = "controller.toml:1:10: listen: a whole number where a text in quotes belongs
controller.toml:2:7: tls.cert: missing: the path of a file
controller.toml:2:7: tls.key: missing: the path of a file
controller.toml:3:24: timeouts.host_ms: -1 is no time limit: 1 to 86400000 milliseconds
controller.toml:4:1: switches[0].name: missing: a name in quotes
controller.toml:4:1: switches[0].agent: missing: the address of its agent
controller.toml:5:1: switches[0].nmae: unknown field; allowed: name, agent";
        assert_eq!(faults.in_file("controller.toml").to_string(), expected);
    }
}
