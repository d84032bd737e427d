//! One run of a scenario, from the plan to the last byte.

use castnet_planner::Plan;
use castnet_sim::{End, LinkStats, SimConfig, Simulation, TaskMemory};
use castnet_topology::LinkId;
use castnet_wire::Nanos;

use super::scenario::{Group, Scenario};
use super::values;

/// Most virtual time of a run: every collective ends (C2).
const DEADLINE: Nanos = Nanos::from_secs(5);

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

/// Runs a scenario. The error says what went wrong; with a trace it includes the last frames.
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
    let kinds = [TaskMemory::InPlace, TaskMemory::Slots, TaskMemory::Regions];
    let (mut plans, mut calls) = (Vec::new(), 0);
    for group in &scenario.groups {
        let plan = sim
            .join_group(&scenario.topology, &group.request, group.machine, group.qp)
            .map_err(|e| e.to_string())?;
        plans.push(plan);
        let size = group.request.members.len() as u16;
        for (call, step) in group.steps.iter().enumerate() {
            for (rank, host) in (0..).zip(group.hosts()) {
                let (host, task) = (host.to_owned(), step.task);
                let input = values::input(&task, call, rank, size);
                // Ranks with memory of different kinds take part in the same call.
                let kind = kinds[(scenario.seed as usize + call + usize::from(rank)) % kinds.len()];
                sim.at(step.at[usize::from(rank)], move |sim| {
                    sim.start_task(&host, task, Some((input, kind)));
                });
            }
            calls += 1;
        }
    }
    let ranks = || {
        let ranks = |g| Group::hosts(g).map(move |host| (host, g.steps.len()));
        scenario.groups.iter().flat_map(ranks)
    };
    let done = |sim: &Simulation| {
        ranks().all(|(host, count)| {
            sim.rank(host)
                .is_some_and(|r| !r.faults().is_empty() || r.tasks().count() == count && r.is_done())
        })
    };
    let end = sim.run_until(DEADLINE, done);
    let finished = sim.now();
    let mut bytes = 0;
    for group in &scenario.groups {
        bytes += results(group, sim)?;
    }
    if end != End::Done {
        let progress = progress(scenario, sim, &plans);
        return Err(format!(
            "C2: the run ended with {end:?} at {}:{progress}",
            sim.now()
        ));
    }
    // Everything sent is acknowledged in the end, and then no more frames are sent.
    sim.run(finished + Nanos::from_millis(500));
    let before = sim.totals().sent;
    sim.run(finished + Nanos::from_secs(2));
    if sim.totals().sent != before {
        let progress = progress(scenario, sim, &plans);
        return Err(format!(
            "frames are still sent half a second after the end:{progress}"
        ));
    }
    if !ranks().all(|(host, _)| sim.rank(host).is_some_and(|r| r.is_drained())) {
        let progress = progress(scenario, sim, &plans);
        return Err(format!("something was not acknowledged:{progress}"));
    }
    let retransmits = ranks().filter_map(|(host, _)| sim.endpoint(host));
    Ok(Outcome {
        links: sim.totals(),
        events: sim.events(),
        calls,
        bytes,
        retransmits: retransmits.map(|e| e.stats().retransmits).sum(),
        switches: plans.iter().map(|p| p.rules.len()).max().unwrap_or_default(),
        virtual_time: finished,
    })
}

/// Number of result bytes of a group, if all available results are right.
fn results(group: &Group, sim: &Simulation) -> Result<u64, String> {
    let size = group.request.members.len() as u16;
    let mut bytes = 0;
    for (rank, host) in (0..).zip(group.hosts()) {
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
    Ok(bytes)
}

fn progress(scenario: &Scenario, sim: &Simulation, plans: &[Plan]) -> String {
    let mut text = String::new();
    for (group, plan) in scenario.groups.iter().zip(plans) {
        for (rank, host) in group.hosts().enumerate() {
            let Some(here) = sim.rank(host) else { continue };
            let done = here.tasks().filter(|t| t.ended.is_some()).count();
            let qp = group.request.members[rank].qpn;
            let status = sim.endpoint(host).and_then(|e| e.qp_status(qp).ok());
            text += &format!(
                "\n  rank {rank} ({host}): {done} done, waits for {:?}; {status:?}",
                here.waiting_for()
            );
        }
        for switch in plan.rules.keys() {
            let status = sim
                .engine(switch)
                .and_then(|e| e.collective_status(group.request.mcst_id));
            text += &format!("\n  {switch}: {status:?}");
        }
    }
    text
}
