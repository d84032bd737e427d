use std::path::{Path, PathBuf};
use std::pin::pin;
use std::str::FromStr;

use castnet_console::connect::{self, ServeArgs, Tls};
use castnet_console::exit::{self, Failure, Outcome};
use castnet_console::files;
use castnet_console::output::{Output, remark};
use castnet_console::service::{Ready, Reloads, Signals, unless_stopped, until_stopped};
use castnet_console::settings;
use castnet_controller::store::StoreError;
use castnet_controller::{Config, ConfigFaults, Controller, DEFAULT_LISTEN, StartError, SwitchConfig};
use castnet_group::tree_latency;
use castnet_proto::transport::Address;
use castnet_rules::Ipv4Net;
use castnet_topology::Topology;
use clap::Args;

/// Runs the controller: plans groups over the fabric and programs its switches
#[derive(Debug, Args)]
#[command(
    after_help = "At SIGHUP it reads its configuration again, and goes on with that, as after a restart: switches, topology, roles, tenants, timeouts. It stops at SIGINT, SIGTERM or SIGQUIT; the switches keep their groups, and a controller that is started with the same --store continues to manage them. A controller whose store has no groups creates none where switches have groups of other controllers, as its store may be the wrong one, until it is started once with --init.

Examples:
  castnet controller --switch leaf1=http://127.0.0.1:7471
  castnet controller --config controller.toml
  castnet controller --listen unix:/run/castnet/controller.sock --store /var/lib/castnet/controller.redb \\
      --switch leaf1=unix:/run/castnet/leaf1.sock --switch spine1=unix:/run/castnet/spine1.sock"
)]
pub(crate) struct ControllerCommand {
    /// Configuration file; flags win over it (an example: deploy/examples/controller.toml)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The fabric; without it, from what the switches report by LLDP and ARP
    #[arg(long, value_name = "FILE")]
    topology: Option<PathBuf>,
    /// A switch and where its agent is; may be given again
    #[arg(long = "switch", value_name = "NAME=URL")]
    switches: Vec<NamedSwitch>,
    /// Stores groups in this file, so that a restarted controller has them; without it, in memory alone. Several controllers store them
    /// in etcd: see `store` in deploy/examples/controller.toml
    #[arg(long, value_name = "PATH")]
    store: Option<PathBuf>,
    /// A store without groups is meant to be new, although switches have groups of other controllers; to be given once
    #[arg(long)]
    init: bool,
    /// Addresses for groups; no host may have one of them. Where a group passes routers, each switch has one of the mcst_prefix that
    /// the topology file gives it
    #[arg(long, value_name = "PREFIX")]
    mcst_pool: Option<Ipv4Net>,
    /// Switches drop frames of a member that have another Ethernet address than the member; groups then do without the fast path
    #[arg(long)]
    verify_mac: bool,
    /// Time of a packet from one relay at the edge to the next one, in times of one more copy there, for groups created with --distribution edge:auto:
    /// castnet-lab calibrate measures it [default: 10]
    #[arg(long, value_name = "N", value_parser = tree_latency)]
    relay_latency: Option<u32>,
    /// Where to listen; port 0 takes any free one
    #[arg(long, value_name = "URL", help = format!("Where to listen; port 0 takes any free one [default: {DEFAULT_LISTEN}]"))]
    listen: Option<Address>,
    /// What other controllers on the same etcd tell clients, if this one leads [default: the address of --listen]
    #[arg(long, value_name = "URL")]
    advertise: Option<Address>,
    /// Writes the address into this file when it is ready, and removes the file when it stops
    #[arg(long, value_name = "PATH")]
    ready_file: Option<PathBuf>,
    #[command(flatten)]
    serve: ServeArgs,
    #[command(flatten)]
    tls: Tls,
}

#[derive(Clone, Debug)]
struct NamedSwitch(SwitchConfig);

impl FromStr for NamedSwitch {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || "write NAME=URL, such as leaf1=http://127.0.0.1:7471".to_owned();
        let (name, agent) = text
            .split_once('=')
            .filter(|(name, _)| !name.is_empty())
            .ok_or_else(form)?;
        let name = castnet_console::units::name(name)?;
        let agent = agent
            .parse()
            .map_err(|e: castnet_proto::transport::BadAddress| e.to_string())?;
        Ok(Self(SwitchConfig { name, agent }))
    }
}

impl ControllerCommand {
    fn settings(&self) -> Outcome<Config> {
        let mut config = match &self.config {
            Some(path) => {
                let text = exit::read_text(path)?;
                let folder = path.parent().unwrap_or(Path::new(""));
                Config::from_toml(&text, folder).map_err(|faults| {
                    settings::faulty(path, faults).next("deploy/examples/controller.toml has all fields")
                })?
            }
            None => {
                let mut config = Config::new(Vec::new());
                config.listen = DEFAULT_LISTEN.parse().map_err(Failure::failed)?;
                config
            }
        };
        if let Some(path) = &self.topology {
            let text = exit::read_text(path)?;
            let topology = Topology::from_toml(&text).map_err(|faults| {
                settings::faulty(path, faults).next("deploy/examples/topology.toml shows the form")
            })?;
            config.topology = Some(topology);
        }
        if !self.switches.is_empty() {
            config.switches = self.switches.iter().map(|s| s.0.clone()).collect();
        }
        if config.switches.is_empty() {
            return Err(Failure::usage("a controller needs switches").next(
                "castnet controller --switch NAME=URL --switch ...\nor [[switches]] in a file: --config FILE",
            ));
        }
        if let Some(store) = &self.store {
            (config.store, config.etcd) = (Some(store.clone()), None);
        }
        if let Some(pool) = self.mcst_pool {
            config.mcst_pool = pool;
        }
        config.init = self.init;
        config.verify_mac |= self.verify_mac;
        config.relay_latency = self.relay_latency.unwrap_or(config.relay_latency);
        if let Some(listen) = &self.listen {
            config.listen = listen.clone();
        }
        config.advertise = self.advertise.clone().or(config.advertise);
        let flags = self.tls.security()?;
        config.security.tls = flags.tls.or(config.security.tls);
        config.security.insecure |= flags.insecure;
        config.audit_log = self.serve.audit_log.clone().or(config.audit_log);
        config.roles = self.serve.roles().or(config.roles);
        config.security.socket = self.serve.socket().or(config.security.socket);
        Ok(config)
    }

    pub(crate) async fn run(self, output: Output) -> Outcome {
        Ready::clear(self.ready_file.as_deref())?;
        let config = self.settings()?;
        let (signals, mut reloads) = (Signals::catch_in_service()?, Reloads::catch()?);
        let log = config.audit_log.as_deref();
        let _reader = log.map(files::await_reader).transpose()?;
        let mut stop = pin!(signals.first());
        let file = self.config.as_deref();
        let start = async {
            Controller::start(config)
                .await
                .map_err(|e| failure(in_file(e, file)))
        };
        let mut controller = unless_stopped(stop.as_mut(), start).await?;
        let address = controller.address().map(ToString::to_string).unwrap_or_default();
        let ready = Ready::announce(output, "controller", &address, self.ready_file.as_deref())?;
        let ended = controller.ended();
        let ended = async {
            ended.await;
            Failure::failed("the task that writes the store has panicked: the switches keep their groups")
        };
        let reload = async || {
            let checked = self
                .settings()
                .and_then(|config| match controller.check(&config) {
                    Ok(()) => Ok(config),
                    Err(error) => Err(failure(in_file(error, file))),
                });
            match checked {
                Ok(config) => {
                    controller.reload(config).await.map_err(failure)?;
                    remark("controller: its configuration was read again");
                }
                Err(failure) => tracing::error!("the configuration stays as it is: {failure}"),
            }
            Ok(())
        };
        let served = until_stopped(stop, ended, &mut reloads, reload).await;
        drop(ready);
        controller.stop().await;
        served?;
        remark("controller: stopped; the switches keep their groups");
        Ok(())
    }
}

/// Faults of a configuration, with the file that most of it is from.
fn in_file(error: StartError, file: Option<&Path>) -> StartError {
    match (error, file) {
        (StartError::Config(ConfigFaults(faults)), Some(file)) => {
            let named = faults.iter().map(|fault| format!("{}: {fault}", file.display()));
            ConfigFaults(named.collect()).into()
        }
        (error, _) => error,
    }
}

fn failure(error: StartError) -> Failure {
    match error {
        StartError::Config(_)
        | StartError::AuditLog { .. }
        | StartError::Kept(_)
        | StartError::SwitchInUse { .. }
        | StartError::OtherFabric { .. } => Failure::usage(error),
        StartError::Store(StoreError::Refused { .. }) => Failure::failed(error).next(
            "use the store of the other controller; or stop that one, and give this store a larger epoch (groups that it does not know run on, until castnet group purge):\n\
             castnet store export ..., then castnet store import --force ...",
        ),
        // These messages already contain the next step.
        StartError::Store(_) => Failure::failed(error),
        StartError::Transport(error) => connect::listen_failure(&error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use castnet_proto::transport::TransportError;
    use clap::Parser;

    fn settings(args: &[&str]) -> Outcome<Config> {
        let args = ["castnet", "controller"].iter().chain(args);
        let cli = Cli::try_parse_from(args).map_err(Failure::usage)?;
        let Command::Controller(command) = cli.command else {
            return Err(Failure::usage("another command"));
        };
        command.settings()
    }

    #[test]
    fn flags_win_over_the_file_and_the_examples_are_valid() {
        let example = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../deploy/examples/controller.toml"
        );
        let config = settings(&["--config", example]).expect("a valid example");
        assert_eq!(config.switches.len(), 1);
        assert!(
            config.topology.is_none(),
            "the recipe for services has no such file"
        );
        let topology = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/examples/topology.toml");
        let topology = std::fs::read_to_string(topology).expect("an example");
        let topology = castnet_topology::Topology::from_toml(&topology).expect("a valid example");
        assert_eq!(topology.hosts().count(), 4);
        let config = settings(&[
            "--config",
            example,
            "--switch",
            "a=unix:/run/a.sock",
            "--mcst-pool",
            "10.9.0.0/24",
        ])
        .expect("flags");
        assert_eq!(
            (config.switches.len(), config.mcst_pool.to_string()),
            (1, "10.9.0.0/24".to_owned())
        );
    }

    #[test]
    fn an_address_that_is_none_of_this_machine_is_a_fault_of_usage() {
        let address = "http://nowhere:1".parse().expect("an address");
        let unknown = std::io::Error::from(std::io::ErrorKind::NotFound);
        let error = TransportError::Resolve(address, "nowhere".into(), unknown.into());
        let failure = failure(error.into());
        assert!(
            failure.code() == 2 && failure.text().contains("--listen"),
            "{}",
            failure.text()
        );
    }

    #[test]
    fn a_contradiction_names_the_file() {
        let faults = || ConfigFaults(vec!["switches[1].name: \"a\" is there twice".to_owned()]).into();
        let text = |file| failure(in_file(faults(), file)).what;
        assert!(text(Some(Path::new("c.toml"))).starts_with("c.toml: switches[1].name: "));
        assert!(text(None).starts_with("switches[1].name: "));
    }

    #[test]
    fn what_is_wrong_is_told_before_anything_starts() {
        let what = |args: &[&str]| settings(args).map(|_| ()).map_err(|f| (f.code(), f.what));
        assert!(what(&[]).is_err_and(|(code, what)| code == 2 && what.contains("needs switches")));
        for bad in ["leaf1", "=unix:/x", "leaf1=here"] {
            assert!(what(&["--switch", bad]).is_err(), "{bad}");
        }
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "[[switches]]\nname = \"a\"\nagent = \"here\"\n").expect("written");
        let path = file.path().display().to_string();
        let (code, text) = what(&["--config", &path]).expect_err("a bad address");
        assert!(code == 2 && text.contains("switches[0].agent"), "{text}");
    }
}
