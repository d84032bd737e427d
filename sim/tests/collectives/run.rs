//! One run of a scenario, from the plan to the last byte.

use castnet_planner::CollectivePlan;
use castnet_sim::{End, LinkStats, SimConfig, Simulation};
use castnet_topology::LinkId;
use castnet_wire::Nanos;

use crate::scenario::Scenario;
use crate::values;

/// No run may take longer than this much virtual time: every collective ends (C2).
const DEADLINE: Nanos = Nanos::from_secs(5);

/// What a run came to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) links: LinkStats,
    pub(crate) events: u64,
    pub(crate) calls: u64,
    pub(crate) bytes: u64,
    pub(crate) retransmits: u64,
    pub(crate) switches: usize,
    pub(crate) virtual_time: Nanos,
}

/// Runs it; what went wrong, if something did. With a trace the last frames stand below it.
pub(crate) fn run(scenario: &Scenario, trace_frames_max: usize) -> Result<Outcome, String> {
    let config = SimConfig {
        poll_delay: scenario.poll_delay,
        trace_frames_max,
        ..SimConfig::new(scenario.seed)
    };
    let mut sim = Simulation::new(&scenario.topology, config, ()).map_err(|e| e.to_string())?;
    play(scenario, &mut sim).map_err(|wrong| match trace_frames_max {
        0 => wrong,
        _ => format!("{wrong}\nthe last frames:\n{}", sim.trace()),
    })
}

fn play(scenario: &Scenario, sim: &mut Simulation) -> Result<Outcome, String> {
    for (i, profiles) in scenario.links.iter().enumerate() {
        sim.set_profile(LinkId(i as u32), *profiles);
    }
    let Scenario {
        topology,
        request,
        machine,
        qp,
        ..
    } = scenario;
    let plan = sim
        .join_group(topology, request, *machine, *qp)
        .map_err(|e| e.to_string())?;
    let size = request.ranks.len() as u16;
    let mut calls = 0;
    for (call, step) in scenario.steps.iter().enumerate() {
        for (rank, host) in (0..).zip(scenario.hosts()) {
            let (host, task) = (host.to_owned(), step.task);
            let input = values::input(&task, call, rank, size);
            sim.at(step.at[usize::from(rank)], move |sim| {
                sim.start_task(&host, task, Some(input));
            });
        }
        calls += 1;
    }
    let count = scenario.steps.len();
    let done = |sim: &Simulation| {
        scenario.hosts().all(|host| {
            sim.rank(host)
                .is_some_and(|r| !r.faults().is_empty() || r.tasks().count() == count && r.is_done())
        })
    };
    let end = sim.run_until(DEADLINE, done);
    let finished = sim.now();
    let mut bytes = 0;
    for (rank, host) in (0..).zip(scenario.hosts()) {
        let here = sim.rank(host).ok_or("no rank")?;
        if let Some(fault) = here.faults().first() {
            return Err(format!("rank {rank} ({host}): {fault}"));
        }
        for (call, task) in here.tasks().enumerate() {
            match task.ended {
                None => {}
                Some((at, Err(failure))) => {
                    return Err(format!("call {call} failed at rank {rank} at {at}: {failure}"));
                }
                Some((at, Ok(()))) => {
                    let expected = values::output(&task.task, call, rank, size);
                    let got = task.output();
                    bytes += got.len() as u64;
                    if got != expected {
                        let byte = got.iter().zip(&expected).position(|(a, b)| a != b);
                        return Err(format!(
                            "C1: call {call} at rank {rank}, at {at}: {} bytes, should be {}; the first wrong one is {byte:?}",
                            got.len(),
                            expected.len()
                        ));
                    }
                }
            }
        }
    }
    if end != End::Done {
        let progress = progress(scenario, sim, &plan);
        return Err(format!(
            "C2: the run ended with {end:?} at {}:{progress}",
            sim.now()
        ));
    }
    // What was sent is acknowledged in the end, and then no frame travels any more.
    sim.run(finished + Nanos::from_millis(500));
    let before = sim.totals().sent;
    sim.run(finished + Nanos::from_secs(2));
    if sim.totals().sent != before {
        let progress = progress(scenario, sim, &plan);
        return Err(format!("no silence half a second after the end:{progress}"));
    }
    if !scenario
        .hosts()
        .all(|h| sim.rank(h).is_some_and(|r| r.is_drained()))
    {
        let progress = progress(scenario, sim, &plan);
        return Err(format!("something was never acknowledged:{progress}"));
    }
    let retransmits = scenario.hosts().filter_map(|h| sim.endpoint(h));
    Ok(Outcome {
        links: sim.totals(),
        events: sim.events(),
        calls,
        bytes,
        retransmits: retransmits.map(|e| e.stats().retransmits).sum(),
        switches: plan.rules.len(),
        virtual_time: finished,
    })
}

/// Where everybody stands.
fn progress(scenario: &Scenario, sim: &Simulation, plan: &CollectivePlan) -> String {
    let mut text = String::new();
    for (rank, host) in scenario.hosts().enumerate() {
        let Some(here) = sim.rank(host) else { continue };
        let done = here.tasks().filter(|t| t.ended.is_some()).count();
        let qp = scenario.request.ranks[rank].qpn;
        let status = sim.endpoint(host).and_then(|e| e.qp_status(qp).ok());
        text += &format!(
            "\n  rank {rank} ({host}): {done} done, waits for {:?}; {status:?}",
            here.waiting_for()
        );
    }
    for switch in plan.rules.keys() {
        let status = sim
            .engine(switch)
            .and_then(|e| e.collective_status(scenario.request.mcst_id));
        text += &format!("\n  {switch}: {status:?}");
    }
    text
}
