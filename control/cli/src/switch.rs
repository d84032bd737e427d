use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use castnet_agent::{Agent, FabricPort, LoadError};
use castnet_console::api;
use castnet_console::connect;
use castnet_console::drops;
use castnet_console::exit::{Failure, Outcome};
use castnet_console::files;
use castnet_console::output::{Output, Page, Report, named, remark};
use castnet_console::service::{Ready, Reloads, Signals, unless_stopped, until_stopped};
use castnet_console::settings;
use castnet_console::units::{plural, span};
use castnet_mrp::Limits;
use castnet_proto::access::{Access, listen};
use castnet_proto::audit::AuditLog;
use castnet_proto::transport::Address;
use castnet_rules::RuleSet;
use castnet_switch::config::SwitchConfig;
use castnet_switch::mrp::MrpRule;
use castnet_switch::{dataplane_config, start_with};
use castnet_toml_reader::SHOWN_MAX;
use castnet_worker::engine::Totals;
use castnet_worker::{Counters, Dataplane};
use clap::Args;
use serde::Serialize;

use crate::counters::totals_sentence;

/// Runs a switch on interfaces of this machine
#[derive(Debug, Args)]
#[command(
    after_help = "Ports: NAME=SPEC, numbered from 0 as they are given. A SPEC is an interface, or the whole form with options:
  af_packet:eth1,rx=4096,tx=2048   a network interface (castnet doctor --for switch)
  pcap:in.pcap,out.pcap            frames from a file, and what is sent into another
  memif:/run/castnet/h1.sock       memory shared with a process of this machine, such as castnet host or VPP (docs/memif.md)
  dpdk:0000:3b:00.0,mtu=4200       a device that DPDK drives, by PCI address or as a virtual one: dpdk:net_memif0,role=server;
                                   rx= tx= queues= mtu= promiscuous= are Castnet's options, all others the driver's (docs/dpdk.md)
After any of them: ecn=on marks packets in long send queues (docs/congestion.md; not dpdk), pfc=3 makes class 3 lossless (docs/flow-control.md).

Faults for labs, on all ports or on one ([PORT:]OPTIONS): loss=1% duplicate=1% reorder=1% corrupt=1% delay=50us jitter=1ms seed=7; rx. or tx. before an option means one direction.

It stops at SIGINT, SIGTERM or SIGQUIT with a summary; a second signal ends it at once. At SIGHUP it takes over the roles of certificates as the configuration file has them then.

Examples:
  castnet switch --port h1=veth-h1 --port h2=veth-h2
  castnet switch --config switch.toml --ready-file /run/castnet/leaf1.ready
  castnet switch --rules rules.toml --port a=eth1 --port b=eth2 --port c=eth3 --port d=eth4
  castnet switch --listen unix:/run/castnet/leaf1.sock --worker core=2 --idle busy --port ...
  castnet switch --port a=eth1 --port b=eth2 --fault a:rx.loss=1%,seed=42"
)]
pub(crate) struct SwitchCommand {
    /// Configuration file; flags win over it (an example: deploy/examples/switch.toml)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Writes the address into this file when it is ready, and removes the file when it stops
    #[arg(long, value_name = "PATH")]
    ready_file: Option<PathBuf>,
    #[command(flatten)]
    flags: SwitchConfig,
}

impl SwitchCommand {
    pub(crate) async fn run(self, output: Output) -> Outcome {
        Ready::clear(self.ready_file.as_deref())?;
        let config = self.settings()?;
        let mut security = config.tls.security()?;
        security.socket = config.serve.socket();
        let rules = config
            .rules
            .as_deref()
            .map(settings::read_rules)
            .transpose()?
            .unwrap_or_default();
        let dataplane_config = dataplane_config(&config)?;
        check_rules(&rules, config.rules.as_deref(), dataplane_config.ports.len())?;
        let name = dataplane_config.engine.switch.clone();
        let ports: Vec<&str> = dataplane_config
            .ports
            .iter()
            .map(|port| port.name.as_str())
            .collect();
        let (fabric, _) = config.mrp.fabric(&ports);
        let fabric = fabric
            .into_iter()
            .map(|(port, mac)| FabricPort { port, mac })
            .collect();
        let (signals, mut reloads) = (Signals::catch_in_service()?, Reloads::catch()?);
        let log = config.serve.audit_log.as_deref();
        let _reader = log.map(files::await_reader).transpose()?;

        let open = |path: &Path| {
            let failed = |e| Failure::usage(format!("audit log {}: {e}", path.display()));
            AuditLog::open(path).map_err(failed)
        };
        let access = Arc::new(Access::new(config.roles(), log.map(open).transpose()?));

        // Before the ports: two switches on the same interfaces forward each frame twice.
        let listener = listen(&config.listen(), &security, &access)
            .await
            .map_err(|e| connect::listen_failure(&e))?;
        let started = std::time::Instant::now();
        let mut stop = pin!(signals.first());
        let start = async {
            let dataplane = start_with(dataplane_config, config.hugepages.unwrap_or_default()).await?;
            install(&dataplane, rules).await?;
            Ok(dataplane)
        };
        let dataplane = unless_stopped(stop.as_mut(), start).await?;
        let agent = Agent::serve(dataplane.clone(), listener, &access);
        if let Some(registration) = &dataplane.config().engine.registration {
            let served = agent.serve_mrp(limits(&config.mrp), fabric);
            served.map_err(Failure::failed)?;
            let (pool, port) = (&registration.pool, registration.udp_port);
            tracing::info!(?pool, port, "hosts may register groups");
        }
        let ready = Ready::announce(
            output,
            &name,
            &agent.address().to_string(),
            self.ready_file.as_deref(),
        )?;
        let reload = async || {
            match self.reload(&access, agent.address()) {
                Ok(()) => remark(&format!(
                    "{name}: the roles of certificates were read again; all else is read at a start"
                )),
                Err(failure) => tracing::error!("the configuration stays as it is: {failure}"),
            }
            Ok(())
        };
        let served = until_stopped(stop, dead_worker(&dataplane), &mut reloads, reload).await;

        drop(ready);
        agent.stop().await;
        access.close_log().await;
        let last = tokio::task::spawn_blocking(move || dataplane.stop())
            .await
            .map_err(Failure::failed)?;
        served?;
        let lost = || Failure::failed("a worker had died before: its last counters are lost");
        let counters = last.ok_or_else(lost)?;
        output.show_next(&Summary::new(name, started.elapsed(), &counters))
    }
}

impl SwitchCommand {
    /// The flags, and what the configuration file says now.
    fn settings(&self) -> Outcome<SwitchConfig> {
        let file = self.config.as_deref().map(SwitchConfig::read).transpose()?;
        Ok(self.flags.clone().or(file.unwrap_or_default()))
    }

    /// Takes over what the configuration file says now of who may call. Nothing changes if it has a fault.
    fn reload(&self, access: &Access, address: &Address) -> Outcome {
        access
            .set_roles(address, self.settings()?.roles())
            .map_err(|e| connect::listen_failure(&e))
    }
}

#[derive(Debug, Serialize)]
struct Summary {
    name: String,
    seconds: f64,
    #[serde(serialize_with = "named")]
    totals: Totals,
    /// Groups of all kinds.
    groups: usize,
    drops: Vec<api::DropCount>,
}

impl Summary {
    fn new(name: String, ran: Duration, counters: &Counters) -> Self {
        Self {
            name,
            seconds: ran.as_secs_f64(),
            totals: counters.totals,
            groups: counters.groups.len(),
            drops: drops::list(&counters.drops),
        }
    }
}

impl Report for Summary {
    fn page(&self, page: &mut Page) {
        let time = span(Duration::from_secs_f64(self.seconds));
        page.line(format!(
            "{}: stopped after {time} with {}: {}",
            self.name,
            plural(self.groups, "group"),
            totals_sentence(&self.totals)
        ));
        for drop in &self.drops {
            page.line(format!("  dropped {}: {}", drop.reason, drop.frames));
        }
    }
}

/// What leaders may register.
fn limits(mrp: &MrpRule) -> Limits {
    let default = Limits::default();
    Limits {
        groups_per_leader: mrp.groups_per_leader.unwrap_or(default.groups_per_leader),
        groups_per_port: mrp.groups_per_port.unwrap_or(default.groups_per_port),
        groups: mrp.groups.unwrap_or(default.groups),
        members: mrp.members.unwrap_or(default.members),
        lifetime: mrp.lifetime().unwrap_or(default.lifetime),
        ..default
    }
}

/// Checks that need the number of ports of the switch.
fn check_rules(rules: &RuleSet, path: Option<&Path>, ports: usize) -> Outcome {
    let faults = rules.check(ports);
    if faults.is_empty() {
        return Ok(());
    }
    let file = path.map(|p| p.display().to_string()).unwrap_or_default();
    let shown = faults.iter().take(SHOWN_MAX);
    let mut lines: Vec<_> = shown.map(|f| format!("{file}: {f}")).collect();
    let more = faults.len().saturating_sub(SHOWN_MAX);
    lines.extend((more > 0).then(|| format!("and {more} more")));
    Err(Failure::usage(lines.join("\n")).next(format!("castnet rules check --ports {ports} {file}")))
}

/// Waits until a worker has ended, which only a panic does before the dataplane stops.
fn dead_worker(dataplane: &Dataplane) -> impl Future<Output = Failure> + use<> {
    let ended = dataplane.ended().clone();
    let ended = tokio::task::spawn_blocking(move || ended.recv());
    async move {
        let which = match ended.await {
            Ok(Ok(worker)) => format!("worker {worker} has"),
            _ => "all workers have".to_owned(),
        };
        Failure::failed(format!(
            "{which} died: the switch ends, as it does not forward any more"
        ))
    }
}

async fn install(dataplane: &Arc<Dataplane>, rules: RuleSet) -> Outcome {
    let dataplane = dataplane.clone();
    let loaded = tokio::task::spawn_blocking(move || castnet_agent::load_rules(&dataplane, &rules));
    loaded.await.map_err(Failure::failed)?.map_err(|e| match e {
        LoadError::Faults { .. } => Failure::usage(e).next("castnet rules check FILE"),
        _ => Failure::failed(e),
    })
}

#[cfg(test)]
mod tests {
    use castnet_console::connect::ServeArgs;
    use castnet_console::output::Format;

    use super::*;

    #[test]
    fn groups_of_either_kind_are_counted_in_the_end() {
        let sums = castnet_worker::GroupReport {
            name: "sums".to_owned(),
            mcst_id: castnet_wire::McstId([10, 200, 0, 1].into()),
            generation: 1,
            worker: 0,
            counters: castnet_worker::KindReport::Translated(Default::default(), Vec::new()),
        };
        let counters = Counters {
            at: castnet_wire::Nanos::ZERO,
            totals: Default::default(),
            drops: castnet_wire::Drops::default(),
            ports: Vec::new(),
            groups: vec![sums],
            workers: Vec::new(),
        };
        let mut page = Page::default();
        Summary::new("leaf1".to_owned(), Duration::from_secs(2), &counters).page(&mut page);
        let text = page.text();
        assert!(
            text.starts_with("leaf1: stopped after 2.00 s with 1 group: "),
            "{text}"
        );
    }

    fn switch(audit_log: Option<PathBuf>) -> SwitchCommand {
        let serve = ServeArgs {
            audit_log,
            ..ServeArgs::default()
        };
        SwitchCommand {
            config: None,
            ready_file: None,
            flags: SwitchConfig {
                ports: vec!["h1=pcap:/nowhere/in.pcap".parse().expect("a port")],
                serve,
                ..SwitchConfig::default()
            },
        }
    }

    #[tokio::test]
    async fn an_audit_log_that_cannot_be_written_is_reported_before_the_ports_open() {
        for (log, fault) in [
            (Some("/nowhere/log"), "audit log /nowhere/log"),
            (None, "in.pcap"),
        ] {
            let run = switch(log.map(PathBuf::from)).run(Output::new(Format::Table));
            let failure = run.await.expect_err("no folder").text();
            assert!(failure.contains(fault), "{failure}");
        }
    }

    #[tokio::test]
    async fn a_worker_that_ends_by_itself_is_a_failure() {
        let config = SwitchConfig {
            ports: vec!["h1=memory:dead".parse().expect("a port")],
            ..SwitchConfig::default()
        };
        let config = dataplane_config(&config).expect("a configuration");
        let dataplane = start_with(config, Default::default()).await.expect("a dataplane");
        let dead = dead_worker(&dataplane);
        dataplane.stop();
        let failure = dead.await;
        assert!(
            failure.code() == 1 && failure.what.starts_with("worker 0 has died"),
            "{failure}"
        );
    }

    #[test]
    fn rules_for_more_ports_than_there_are_do_not_start() {
        let rules = RuleSet::from_toml(crate::rules::EXAMPLE).expect("the example");
        assert!(check_rules(&rules, None, 6).is_ok());
        let failure = check_rules(&rules, Some(Path::new("r.toml")), 2).expect_err("two ports");
        assert!(
            failure.code() == 2 && failure.what.contains("r.toml: "),
            "{}",
            failure.what
        );
        let many = RuleSet {
            groups: vec![rules.groups[0].clone(); 30],
            ..rules
        };
        let what = check_rules(&many, None, 2).expect_err("two ports").what;
        assert!(
            what.lines().count() == SHOWN_MAX + 1 && what.ends_with(" more"),
            "{what}"
        );
    }
}
