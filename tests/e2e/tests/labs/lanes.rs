//! Groups that are too hot for one core: their lanes are on different workers of a switch, and hosts use them as one.

use anyhow::{Context, Result, ensure};
use castnet_e2e::lab::{self, TWO_TIERS};
use castnet_e2e::process::Process;
use castnet_e2e::{Lab, Transfer};
use serde_json::Value;

/// `castnet group create` with these flags.
fn create(lab: &Lab, noun: &str, group: &str, flags: &[&str]) -> Result<String> {
    let controller = lab.socket("controller");
    let first = [noun, "create", group, "--controller", &controller];
    let args: Vec<&str> = first.into_iter().chain(flags.iter().copied()).collect();
    lab.castnet(&args)
}

/// The worker that has a lane at a switch, and the frames of data or contributions that came in there.
fn lane_at(lab: &Lab, switch: &str, lane: &str, counter: &str) -> Option<(u64, u64)> {
    let agent = lab.socket(switch);
    let shown = lab
        .castnet_json(&["group", "show", lane, "--agent", &agent])
        .ok()?;
    Some((shown["worker"].as_u64()?, number(&shown, counter)?))
}

/// The first number called `name` anywhere in `value`.
fn number(value: &Value, name: &str) -> Option<u64> {
    match value {
        Value::Array(all) => all.iter().find_map(|v| number(v, name)),
        Value::Object(fields) => fields
            .get(name)
            .and_then(Value::as_u64)
            .or_else(|| fields.values().find_map(|v| number(v, name))),
        _ => None,
    }
}

/// Whether both lanes of `group` carry frames at `switch`, each on a worker of its own.
fn both_carry(lab: &Lab, switch: &str, group: &str, counter: &str) -> bool {
    let lane = |n: u8| lane_at(lab, switch, &format!("{group}/{n}"), counter);
    match (lane(0), lane(1)) {
        (Some((here, a)), Some((there, b))) => here != there && a > 0 && b > 0,
        _ => false,
    }
}

/// A file to three receivers by the two lanes of a group, each on its own worker of each switch; and what an operator
/// sees of it.
fn a_file(lab: &Lab, op: &str, switches: &[&str], receivers: &[&str]) -> Result<()> {
    let transfer = Transfer {
        group: "hot",
        source: "h1",
        receivers,
        op,
        size: 0,
        seed: 11,
    };
    let members = receivers.join(",");
    let flags = [
        "--source",
        "h1",
        "--members",
        &members,
        "--pmtu",
        "4096",
        "--lanes",
        "2",
        "--rate",
        "20M",
    ];
    let told = create(lab, "group", "hot", &flags)?;
    ensure!(told.contains("2 lanes"), "the lanes are not told:\n{told}");
    let mut running = lab.start_stream(&transfer, &["--fallback", "off"])?;
    running
        .source
        .wait_until("both workers of each switch carried data", |_| {
            switches
                .iter()
                .all(|switch| both_carry(lab, switch, "hot", "data_in"))
        })?;
    let controller = lab.socket("controller");
    let shown = lab.castnet_json(&["group", "show", "hot", "--controller", &controller])?;
    let lanes = shown["lanes"].as_array().context("no lanes")?;
    ensure!(lanes.len() == 2 && lanes[1]["lane"] == "hot/1", "{shown}");
    let listed = lab.castnet_json(&["group", "list", "--controller", &controller])?;
    let groups = listed.as_array().context("no list")?;
    ensure!(groups.len() == 1 && groups[0]["lanes"] == 2, "{listed}");
    running.finish()?;
    lab.castnet(&["group", "destroy", "hot", "--controller", &controller])?;
    for switch in switches {
        let left = lab.castnet(&["group", "list", "--agent", &lab.socket(switch)])?;
        ensure!(!left.contains("hot"), "{switch} still has a lane:\n{left}");
    }
    Ok(())
}

/// Sums of 4 MiB over the two lanes of a group, element by element right at all ranks; lanes that ranks ask for otherwise are refused by name.
fn sums(lab: &Lab) -> Result<()> {
    let ranks = ["--ranks", "h1,h2,h3", "--pmtu", "4096", "--lanes", "2"];
    create(lab, "job", "job", &ranks)?;
    let run = |iters: &str, more: &[&str]| -> Result<Vec<Process>> {
        let args = [
            "--bytes",
            "4M",
            "--type",
            "i32",
            "--pmtu",
            "4096",
            "--fallback",
            "forbidden",
        ];
        let args: Vec<&str> = args
            .into_iter()
            .chain(["--iters", iters])
            .chain(more.iter().copied())
            .collect();
        let rank = |rank| lab.start_rank("allreduce", "job", rank, 3, &args);
        (0..3).map(rank).collect()
    };
    // They must not end before anyone has looked.
    let mut ranks = run("100000000", &[])?;
    ranks[0].wait_until("both workers computed", |_| {
        both_carry(lab, "leaf1", "job", "contributions")
    })?;
    let controller = lab.socket("controller");
    let shown = lab.castnet(&["group", "show", "job", "--controller", &controller])?;
    ensure!(shown.contains("lane job/1, worker"), "{shown}");
    ranks.iter().try_for_each(Process::interrupt)?;
    for mut rank in ranks {
        rank.wait()?;
    }
    run("2", &[])?.iter_mut().try_for_each(Process::succeed)?;
    let mut refused = run("1", &["--lanes", "3"])?.remove(0);
    ensure!(
        !refused.wait()?.success() && refused.output().contains("lanes"),
        "{}",
        refused.output()
    );
    lab.castnet(&["group", "destroy", "job", "--controller", &controller])?;
    let left = lab.castnet(&["group", "list", "--agent", &lab.socket("leaf1")])?;
    ensure!(!left.contains("job"), "a lane is left:\n{left}");
    Ok(())
}

#[test]
fn a_group_of_several_lanes_uses_all_workers_of_its_switches() {
    let flags = [
        "--worker",
        "any",
        "--worker",
        "any",
        "--fault",
        "loss=0.5%,seed=7",
    ];
    lab::in_lab("lanes", TWO_TIERS, &flags, |lab| {
        a_file(lab, "send", &["leaf1", "spine", "leaf2"], &["h2", "h4", "h6"])?;
        sums(lab)?;
        for bad in ["0", "17", "x"] {
            let flags = ["--source", "h1", "--members", "h2", "--lanes", bad];
            let refused = create(lab, "group", "g", &flags).err().context("it was taken")?;
            let text = format!("{refused:#}");
            ensure!(text.contains("--lanes") && text.contains(bad), "{text}");
        }
        Ok(())
    });
}
