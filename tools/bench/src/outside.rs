//! A real switch behind ports. Each port simulates the host at one port of the switch.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use castnet_console::api;
use castnet_console::exit::{Failure, Outcome};
use castnet_console::output::{Output, remark};
use castnet_console::service::Signals;
use castnet_console::{connect, settings};
use castnet_port::{PoolConfig, PortSpec};
use castnet_proto::convert::rule_to_proto;
use castnet_proto::v1::installed_group::State;
use castnet_rules::{GroupKind, GroupRule, RuleSet};
use castnet_switch::dpdk::Hugepages;
use castnet_traffic::{Place, Plan, Scenario};
use castnet_wire::{MacAddr, PortId, Psn};

use super::measure::{Run, Watched};
use super::players::{Part, Players};
use super::report::{BenchReport, RunReport};
use super::{OutsideArgs, no_plan};

/// Owner of the groups that a bench installs. Nobody else removes them.
const OWNER: &str = "castnet bench";

struct Switch {
    agent: api::AgentClient,
    /// Name and Ethernet address, by number.
    ports: Vec<(String, MacAddr)>,
}

impl Switch {
    async fn connect(args: &OutsideArgs) -> Outcome<Option<Self>> {
        let Some(address) = &args.switch else {
            return Ok(None);
        };
        let mut agent = connect::agent(address, &args.tls.security()?).await?;
        let answer = agent.list_ports(api::ListPortsRequest {}).await?;
        let mut ports = answer.into_inner().ports;
        ports.sort_by_key(|p| p.port);
        let ports = ports
            .into_iter()
            .map(|p| (p.name, p.mac.parse().unwrap_or_default()));
        Ok(Some(Self {
            ports: ports.collect(),
            agent,
        }))
    }

    fn port(&self, name: &str) -> Outcome<(PortId, MacAddr)> {
        let found = self.ports.iter().position(|(n, _)| n == name);
        let found = found.and_then(|i| Some((PortId::new(u8::try_from(i).ok()?)?, self.ports[i].1)));
        found.ok_or_else(|| {
            let names: Vec<_> = self.ports.iter().map(|(n, _)| n.as_str()).collect();
            Failure::usage(format!("the switch has no port '{name}'")).next(format!(
                "name each --port after the port that it is cabled to: {}",
                names.join(", ")
            ))
        })
    }

    /// If a group is refused, those before it stay installed.
    async fn install(&mut self, plan: &Plan) -> Outcome {
        // Higher than in groups that an earlier bench has left.
        let generation = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(1, |d| d.as_secs());
        for group in &plan.groups {
            let name = group.name.clone();
            let rule = GroupRule {
                generation,
                ..group.clone()
            };
            let request = api::InstallGroupRequest {
                rule: Some(rule_to_proto(&rule)),
                owner: OWNER.to_owned(),
            };
            let installed = self.agent.install_group(request).await;
            installed.map_err(|s| Failure::from(s).while_doing(format!("group {name}")))?;
        }
        Ok(())
    }

    /// A group that does not exist is no failure.
    async fn remove(&mut self, plan: &Plan) -> Outcome {
        let mut failed = Ok(());
        for mcst_id in plan.groups.iter().map(|g| g.mcst_id) {
            let request = api::RemoveGroupRequest {
                mcst_id: mcst_id.to_string(),
                owner: Some(OWNER.to_owned()),
                generation: None,
            };
            match self.agent.remove_group(request).await {
                Ok(_) => {}
                // Its owner is another one: it was refused on installation.
                Err(status) if status.code() == tonic::Code::FailedPrecondition => {}
                Err(status) => {
                    let doing = format!("group {mcst_id} may still be on the switch");
                    failed = Err(Failure::from(status).while_doing(doing));
                }
            }
        }
        failed
    }

    /// Next PSN of each source that has sent data.
    async fn starts(
        &mut self,
        rules: &RuleSet,
        scenario: &Scenario,
    ) -> Outcome<Vec<(castnet_wire::McstId, Psn)>> {
        let listed = self.agent.list_groups(api::ListGroupsRequest::default());
        let listed = listed.await?.into_inner();
        let not_there = |name: &str| {
            Failure::usage(format!("the switch has no group '{name}' of this file"))
                .next("castnet group install FILE --agent URL installs them")
        };
        let mut starts = Vec::new();
        let workload = &scenario.workload;
        for group in &rules.groups {
            let is_used = match &group.kind {
                GroupKind::Multicast(_) => workload.has_multicast(),
                GroupKind::Translated(_) => workload.has_collectives(),
                // It has no simulated hosts.
                GroupKind::Forwarding(_) => false,
            };
            if !is_used {
                continue;
            }
            let address = group.mcst_id.to_string();
            let found = listed
                .groups
                .iter()
                .find(|g| g.rule.as_ref().is_some_and(|r| r.mcst_id == address));
            match (&group.kind, found.and_then(|g| g.state.as_ref())) {
                (GroupKind::Multicast(_), Some(State::Multicast(state))) => {
                    let newest = state.newest_psn;
                    starts.extend(newest.map(|psn| (group.mcst_id, Psn::new(psn).next())));
                }
                (GroupKind::Translated(rule), Some(State::Translated(state))) => {
                    if state.base_psn != rule.start_psn.value() {
                        return Err(Failure::usage(format!("ranks have used the group '{}' already", group.name)).next(
                            "install it anew under a higher generation: castnet group install FILE --agent URL",
                        ));
                    }
                }
                _ => return Err(not_there(&group.name)),
            }
        }
        Ok(starts)
    }
}

pub(super) async fn run(
    output: Output,
    scenarios: &[Scenario],
    time: Option<Duration>,
    args: &OutsideArgs,
    threads: Option<u32>,
    signals: &mut Signals,
) -> Outcome<BenchReport> {
    let rules = args.rules.as_deref().map(settings::read_rules).transpose()?;
    let mut switch = Switch::connect(args).await?;
    let mut wiring = Vec::new();
    for port in &args.ports {
        let at = match (&switch, &rules) {
            (Some(switch), None) => Some(switch.port(&port.name)?),
            _ => None,
        };
        wiring.push((port.name.clone(), at));
    }
    let threads = vec![None; threads.unwrap_or(1) as usize];
    let players = open(&args.ports, &threads, args.hugepages, scenarios)?;
    let mut places = Vec::new();
    for (n, ((name, at), link)) in wiring.iter().zip(players.links()).enumerate() {
        let own = PortId::new(n as u8).unwrap_or_default();
        let (port, gateway) = at.map_or((own, None), |(port, mac)| (port, Some(mac)));
        places.push(Place::at(name, port, link, gateway));
    }
    for link in players.links().iter().filter(|link| !link.up) {
        remark(&format!("{} has no link", link.name));
    }

    let ports: Vec<_> = args.ports.iter().map(|p| p.name.as_str()).collect();
    let mut report = BenchReport::new(match &args.switch {
        Some(address) => format!("the switch at {address}, hosts at its ports {}", ports.join(", ")),
        None => format!("a switch whose members {} are simulated here", ports.join(", ")),
    });
    for scenario in scenarios {
        let planned = plan(scenario, rules.as_ref(), &places, switch.as_mut()).await;
        let part = match planned {
            Ok(plan) => Part::new(plan),
            Err(failure) => {
                report.add(Err(failure), Ok(()));
                break;
            }
        };
        let own = rules.is_none();
        let installed = match &mut switch {
            Some(switch) if own => switch.install(&part.plan).await,
            _ => Ok(()),
        };
        let ran = match installed {
            Ok(()) => one(output, scenario, time, &part, &players, switch.as_ref(), signals).await,
            Err(failure) => Err(failure),
        };
        // Also after a failure or a signal.
        let removed = match &mut switch {
            Some(switch) if own => switch.remove(&part.plan).await,
            _ => Ok(()),
        };
        if !report.add(ran, removed) {
            break;
        }
    }
    Ok(report)
}

/// What the hosts do: on groups of the rule file, from where the switch is, or on groups of their own.
async fn plan(
    scenario: &Scenario,
    rules: Option<&RuleSet>,
    places: &[Place],
    switch: Option<&mut Switch>,
) -> Outcome<Plan> {
    let plan = match rules {
        None => Plan::own(scenario, places),
        Some(rules) => {
            let starts = match switch {
                Some(switch) => switch.starts(rules, scenario).await?,
                None => Vec::new(),
            };
            let start = |group: &GroupRule| {
                let running = starts.iter().find(|(mcst_id, _)| *mcst_id == group.mcst_id);
                running
                    .map(|(_, psn)| *psn)
                    .or(group.multicast().and_then(|kind| kind.start_psn))
                    .unwrap_or_default()
            };
            Plan::on_groups(scenario, places, &rules.groups, start)
        }
    };
    plan.map_err(|error| no_plan(&error))
}

async fn one(
    output: Output,
    scenario: &Scenario,
    time: Option<Duration>,
    part: &Part,
    players: &Players,
    switch: Option<&Switch>,
    signals: &mut Signals,
) -> Outcome<RunReport> {
    players.begin(part)?;
    let run = Run {
        output,
        scenario,
        time,
        part,
        watched: &mut switch.map_or(Watched::None, |s| Watched::Agent(s.agent.clone())),
    };
    let course = run.watch(signals).await;
    // Also after a failure: the threads wait for it.
    let played = players.end(part);
    Ok(RunReport::new(scenario, &course?, &played?, false))
}

fn open(
    ports: &[castnet_switch::config::NamedPort],
    threads: &[Option<usize>],
    hugepages: Hugepages,
    scenarios: &[Scenario],
) -> Outcome<Players> {
    let mut specs = Vec::new();
    for port in ports {
        let spec: PortSpec = port.spec.parse().map_err(Failure::usage)?;
        specs.push(spec);
    }
    // Templates of every flow, four of each size, and frames in flight.
    let templates = scenarios
        .iter()
        .map(|s| 4 * s.groups * s.workload.shares().len() * s.sizes.parts().len().max(2));
    let templates = templates.max().unwrap_or_default() * ports.len();
    let pool = PoolConfig {
        buffers: 4096 + templates,
        bodies: 1024 + templates,
        ..PoolConfig::default()
    };
    open_specs(specs, threads, pool, hugepages)
}

#[cfg(feature = "dpdk")]
fn open_specs(
    specs: Vec<PortSpec>,
    threads: &[Option<usize>],
    pool: PoolConfig,
    hugepages: Hugepages,
) -> Outcome<Players> {
    let devices: Vec<_> = specs.iter().filter_map(|s| s.dpdk().cloned()).collect();
    if devices.is_empty() {
        return Players::open(specs, threads, pool);
    }
    let runtime = castnet_dpdk::Runtime::start(&castnet_dpdk::Config {
        threads: threads.len(),
        pool,
        // Hosts stay on their threads.
        hand_over: 0,
        hugepages: hugepages.into(),
        devices,
    });
    let runtime = runtime.map_err(|e| Failure::failed(e).next("castnet doctor --for switch"))?;
    Players::open_in(specs, threads, move || Ok(runtime.memory()?))
}

#[cfg(not(feature = "dpdk"))]
fn open_specs(
    specs: Vec<PortSpec>,
    threads: &[Option<usize>],
    pool: PoolConfig,
    _hugepages: Hugepages,
) -> Outcome<Players> {
    Players::open(specs, threads, pool)
}
