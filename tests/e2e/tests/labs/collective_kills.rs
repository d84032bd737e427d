//! Switches that are killed in the middle of collectives. The ranks get the name of the switch, and the next generation of the group starts
//! afresh, on another tree where the switch is gone for good. The simulator shows that no mode continues through that.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use castnet_comm::CollectiveMode::Augmented;
use castnet_comm::{Collectives, CommError, Operation};
use castnet_e2e::Lab;
use castnet_e2e::process::PATIENCE;

use crate::collective_lab::{Job, Rank, same, sum, sum_again, value};
use crate::lost_switches::{SPINES, in_two_spines};

const RANKS: u16 = 4;
/// Many windows: a switch is always killed with packets of a sum in its slots.
const LENGTH: usize = 100_000;

/// Sums without a pause until the group fails. Returns why it did.
fn sum_until_failure(rank: &mut Rank) -> Result<String> {
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        let mut data: Vec<i32> = (0..LENGTH).map(|i| value(rank.comm.rank(), i)).collect();
        match rank.comm.allreduce(&mut data, Operation::Sum) {
            Ok(()) => same(&data, "allreduce", |i| sum(RANKS, i))?,
            Err(CommError::GroupFailed { reason }) => return Ok(reason),
            Err(error) => return Err(error.into()),
        }
    }
    bail!("the group goes on")
}

/// Waits until sums are made over one of these switches, which all ranks do without a pause from now on.
fn summing(lab: &mut Lab, job: &str, switches: &[&'static str]) -> Result<&'static str> {
    let mut found = None;
    lab.wait_for("sums were made", |lab| {
        found = switches.iter().copied().find(|switch| {
            lab.castnet_json(&["group", "show", job, "--agent", &lab.socket(switch)])
                .is_ok_and(|group| group["progress"]["finished"].as_u64() > Some(5))
        });
        found.map(drop).context("none yet")
    })?;
    found.context("a switch")
}

/// In Mode-III, which an operator would ask for: it is asked for again with the next generation.
#[test]
fn a_switch_that_is_killed_in_mid_collective_is_named_and_the_next_sum_is_right() {
    const JOB: &str = "killed";
    let mode = Augmented;
    // Its neighbours forget a switch after 20 seconds instead of two minutes. On a busy machine it takes longer than eight to start again.
    in_two_spines(false, &["--lldp", "5s"], |lab| {
        let reasons = Arc::new(Mutex::new(Vec::new()));
        let told = reasons.clone();
        let part = move |rank: &mut Rank| {
            for _ in ["a spine, for good", "a leaf, which comes back"] {
                let reason = sum_until_failure(rank)?;
                told.lock().map_err(|e| anyhow::anyhow!("{e}"))?.push(reason);
                sum_again(rank, 2)?;
                rank.pause()?;
            }
            Ok(())
        };
        let change = |config: &mut castnet_comm::CommConfig| config.mode = Some(mode);
        let job = Job::start(lab, JOB, RANKS, change, part)?;
        let all_say = |must: &str| {
            let said = std::mem::take(&mut *reasons.lock().map_err(|e| anyhow::anyhow!("{e}"))?);
            let all = said.len() == usize::from(RANKS) && said.iter().all(|reason| reason.contains(must));
            ensure!(all, "{must:?} is not what all say: {said:#?}");
            Ok(())
        };
        let lost = summing(lab, JOB, &SPINES)?;
        lab.kill_switch(lost)?;
        if job.paused().is_err() {
            return job.finish();
        }
        all_say(lost)?;
        let controller = lab.socket("controller");
        let shown = lab.castnet(&["group", "show", JOB, "--controller", &controller])?;
        let other = if lost == "spine1" { "spine2" } else { "spine1" };
        let words = format!("{mode} (as requested)");
        let is_right = |line: &str| match line.split_whitespace().next() {
            Some("mode") => line.ends_with(&words),
            Some(name) => name != format!("[{lost}]"),
            None => true,
        };
        ensure!(
            shown.contains(&format!("[{other}]")) && shown.lines().all(is_right),
            "not by {other}, or not {words}:\n{shown}"
        );
        job.go_on();
        summing(lab, JOB, &[other])?;
        lab.restart_switch("leaf1")?;
        job.paused()?;
        all_say("switch leaf1 has lost its part: it was restarted")?;
        job.go_on();
        job.finish()
    });
}
