//! Groups that change workers while real programs send over them.

use anyhow::{Context, Result, ensure};
use castnet_e2e::lab::STAR;
use castnet_e2e::{Lab, Transfer, net};
use serde_json::Value;

const TWO_WORKERS: [&str; 6] = ["--worker", "any", "--worker", "any", "--balance", "off"];

#[test]
fn a_group_goes_to_and_fro_between_workers_under_a_transfer() {
    if net::is_skipped("moving groups") {
        return;
    }
    let lab = Lab::start(STAR, &TWO_WORKERS).expect("the lab starts");
    if let Err(error) = to_and_fro(&lab) {
        panic!("{error:#}\n{}", lab.logs());
    }
}

fn to_and_fro(lab: &Lab) -> Result<()> {
    let agent = lab.socket("sw");
    let transfer = Transfer {
        group: "m",
        source: "h1",
        receivers: &["h2", "h3", "h4"],
        op: "write",
        size: 96 << 20,
        seed: 7,
    };
    // It takes four seconds, so that there is time for moves on a busy machine.
    lab.create_group_with(&transfer, &["--rate", "200M"])?;
    let mut running = lab.start_transfer(&transfer)?;
    running
        .source
        .wait_until("data was under way", |_| lab.data_in("m", "sw") > Some(1000))?;
    let group = || lab.castnet_json(&["group", "show", "m", "--agent", &agent]);
    let number = |value: &Value, path: &str| value.pointer(path).and_then(Value::as_u64);
    let mut shown = group()?;
    let mut worker = number(&shown, "/worker").context("a worker")?;
    refusals(lab, &agent, worker)?;

    let mut moves = 0;
    while !running.source.has_ended()? {
        // A group whose members leave goes from the switch.
        let (Ok(now), to) = (group(), 1 - worker) else {
            break;
        };
        shown = now;
        match lab.castnet_json(&[
            "group",
            "move",
            "m",
            "--worker",
            &to.to_string(),
            "--agent",
            &agent,
        ]) {
            Ok(moved) => ensure!(
                (number(&moved, "/from"), number(&moved, "/to")) == (Some(worker), Some(to)),
                "{moved}"
            ),
            Err(error) if error.to_string().contains("no group") => break,
            Err(error) => return Err(error),
        }
        worker = to;
        moves += 1;
    }
    running.finish()?;
    ensure!(moves >= 2, "the transfer was over after {moves} moves");

    // Whatever else may lose frames on the way, the move does not.
    let drops = lab.castnet_json(&["drops", "--agent", &agent])?.to_string();
    for reason in ["hand-over-full", "no-buffer"] {
        ensure!(!drops.contains(reason), "after {moves} moves: {drops}");
    }
    let runtime = lab.castnet_json(&["runtime", "--since-start", "--agent", &agent])?;
    let workers = runtime
        .pointer("/workers")
        .and_then(Value::as_array)
        .context("workers")?;
    let came: Vec<_> = workers
        .iter()
        .map(|w| number(w, "/groups_in").unwrap_or(0))
        .collect();
    ensure!(came.iter().sum::<u64>() == moves, "{came:?} for {moves} moves");
    let counters = shown.pointer("/counters").unwrap_or(&Value::Null);
    eprintln!("{moves} moves under a transfer; {drops}; {counters}");
    Ok(())
}

/// What cannot be is refused in words that say why.
fn refusals(lab: &Lab, agent: &str, worker: u64) -> Result<()> {
    let here = worker.to_string();
    for (group, worker, words) in [
        ("m", "2", "there is no worker 2: this switch has 2"),
        ("m", here.as_str(), "is at worker"),
        ("nobody", "0", "the switch has no group 'nobody'"),
        ("10.9.9.9", "0", "there is no group 10.9.9.9"),
    ] {
        let refused = lab.castnet(&["group", "move", group, "--worker", worker, "--agent", agent]);
        let error = refused.err().context("it is refused")?.to_string();
        ensure!(error.contains(words), "{error}");
    }
    Ok(())
}
