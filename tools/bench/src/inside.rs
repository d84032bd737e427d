//! A switch inside this process: how fast is this machine's switch?

use std::sync::mpsc::channel;
use std::time::Duration;

use castnet_console::exit::{Failure, Outcome};
use castnet_console::output::{Output, remark};
use castnet_console::service::Signals;
use castnet_port::PoolConfig;
use castnet_traffic::drive::{InCore, Lane};
use castnet_traffic::{Place, Plan, Scenario};
use castnet_wire::{MacAddr, PortId};
use castnet_worker::{DataplaneConfig, Idle, PortConfig, WorkerConfig};

use super::measure::{Run, Watched};
use super::players::{Part, Players, cores};
use super::report::{BenchReport, RunReport};
use super::{InsideArgs, Over, no_plan};

/// Most bytes of an IP packet beside its payload: headers, immediate data, ICRC.
const OVERHEAD: usize = 128;

struct Where {
    over: Over,
    core: Option<usize>,
    /// Cores of the hosts' threads.
    others: Vec<Option<usize>>,
}

impl Where {
    fn choose(args: &InsideArgs) -> Outcome<Self> {
        let cores = cores();
        let over = args
            .over
            .unwrap_or(if cores.len() > 1 { Over::Memory } else { Over::Core });
        if let Some(core) = args.core.filter(|core| !cores.contains(core)) {
            let all: Vec<_> = cores.iter().map(ToString::to_string).collect();
            return Err(Failure::usage(format!("this process may not use core {core}"))
                .next(format!("give one of these: {}", all.join(", "))));
        }
        if over == Over::Core && args.threads.is_some() {
            return Err(Failure::usage(
                "--over core simulates the hosts in the worker, without threads of their own",
            )
            .next("leave --threads out, or give --over memory"));
        }
        let core = args.core.or(cores.last().copied());
        let mut free: Vec<usize> = cores.into_iter().filter(|c| Some(*c) != core).collect();
        if free.is_empty() {
            if over == Over::Memory {
                remark("switch and hosts share one core: the figures are those of both together");
            }
            free.extend(core);
        }
        let threads = args.threads.map_or(free.len().min(4), |t| t as usize);
        Ok(Self {
            over,
            core,
            others: free
                .iter()
                .cycle()
                .take(threads.max(1))
                .map(|c| Some(*c))
                .collect(),
        })
    }
}

pub(super) async fn run(
    output: Output,
    scenarios: &[Scenario],
    time: Option<Duration>,
    args: &InsideArgs,
    signals: &mut Signals,
) -> Outcome<BenchReport> {
    let place = Where::choose(args)?;
    let mut report = BenchReport::new(match place.over {
        Over::Memory => format!(
            "a switch inside, its worker on core {}; hosts on {} other thread(s), rings between",
            place.core.unwrap_or_default(),
            place.others.len()
        ),
        Over::Core => format!(
            "a switch inside, its worker on core {}, which simulates the hosts as well",
            place.core.unwrap_or_default()
        ),
    });
    for scenario in scenarios {
        if !report.add(one(output, scenario, time, &place, signals).await, Ok(())) {
            break;
        }
    }
    Ok(report)
}

fn config(plan: &Plan, place: &Where, ports: Vec<PortConfig>, frame_max: usize) -> DataplaneConfig {
    let mut config = DataplaneConfig::new("bench", ports);
    config.engine.lldp_interval = None;
    config.engine.hash_seed = castnet_switch::hash_seed();
    config.engine.mac = MacAddr([0x02, 0xCA, 0x57, 0, 0, 1]);
    config.engine.groups_max = plan.groups.len();
    config.engine.memory_bytes_max = usize::MAX / 2;
    config.workers = vec![WorkerConfig {
        core: place.core,
        idle: Idle::Busy,
    }];
    config.pool = pool(plan, frame_max);
    config
}

/// Buffers for templates and frames in flight.
fn pool(plan: &Plan, frame_max: usize) -> PoolConfig {
    let templates: usize = (0..plan.hosts.len()).map(|place| plan.templates(place)).sum();
    PoolConfig {
        buffers: 4096 + templates,
        bodies: 1024 + templates,
        frame_max,
    }
}

async fn one(
    output: Output,
    scenario: &Scenario,
    time: Option<Duration>,
    place: &Where,
    signals: &mut Signals,
) -> Outcome<RunReport> {
    let places = Place::star(scenario.places());
    let part = Part::new(Plan::own(scenario, &places).map_err(|e| no_plan(&e))?);
    let plan = part.plan.clone();
    let mtu = scenario.sizes.pmtu().bytes() + OVERHEAD;
    let frame_max = mtu + 18;
    let mac = |n: usize| MacAddr([0x02, 0xCA, 0x57, 0, 1, n as u8]);
    let (report, reports) = channel();
    let (mut ports, mut ends) = (Vec::new(), Vec::new());
    for (n, host) in plan.hosts.iter().enumerate() {
        let id = PortId::new(n as u8).unwrap_or_default();
        ports.push(match place.over {
            Over::Core => {
                let (stage, live) = (part.stage.clone(), part.lives[n].clone());
                let port = InCore::new(plan.clone(), n, mac(n), stage, live, report.clone());
                PortConfig::new(id, &host.name, port)
            }
            Over::Memory => {
                let (near, far) = Lane::pair(&host.name, mac(n), mtu);
                ends.push(far.into());
                PortConfig::new(id, &host.name, near)
            }
        });
    }
    drop(report);
    let players = match place.over {
        Over::Core => None,
        Over::Memory => Some(Players::open(ends, &place.others, pool(&plan, frame_max))?),
    };
    let dataplane = castnet_switch::start(config(&plan, place, ports, frame_max)).await?;
    for rule in &plan.groups {
        dataplane.install(rule).map_err(Failure::failed)?;
    }
    if let Some(players) = &players {
        players.begin(&part)?;
    }
    let run = Run {
        output,
        scenario,
        time,
        part: &part,
        watched: &mut Watched::Inside(dataplane.clone()),
    };
    let course = run.watch(signals).await?;
    let mut played = match &players {
        Some(players) => players.end(&part)?,
        None => Vec::new(),
    };
    part.stage.end();
    let stopped = tokio::task::spawn_blocking(move || {
        dataplane.stop();
        drop(dataplane);
    });
    stopped.await.map_err(Failure::failed)?;
    if players.is_none() {
        // Ports report when they are closed.
        played = reports.try_iter().collect();
        part.sort(&mut played);
    }
    let one_core = place.over == Over::Core;
    Ok(RunReport::new(scenario, &course, &played, one_core))
}
