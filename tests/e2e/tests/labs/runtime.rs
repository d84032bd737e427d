//! A switch of two workers: its groups move between them under real programs, and what `castnet runtime` and `castnet port` say goes with what
//! was sent through it.

use anyhow::{Context, Result, ensure};
use castnet_e2e::Lab;
use castnet_e2e::lab::{self, STAR, Transfer};
use serde_json::Value;

const TRANSFER: Transfer<'static> = Transfer {
    group: "g",
    source: "h1",
    receivers: &["h2", "h3", "h4"],
    op: "write",
    size: 8 << 20,
    seed: 11,
};

#[test]
fn groups_move_between_workers_and_workers_and_ports_report_what_went_through_them() {
    let flags = ["--worker", "any", "--worker", "any", "--balance", "off"];
    lab::in_lab("workers", STAR, &flags, |lab| {
        check(lab)?;
        to_and_fro(lab)
    });
}

fn check(lab: &Lab) -> Result<()> {
    let agent = lab.socket("sw");
    lab.transfer(&TRANSFER)?;

    let received = || -> Result<u64> {
        let counters = lab.castnet_json(&["counters", "--agent", &agent])?;
        number(&counters["totals"], "received")
    };
    let before = received()?;
    let runtime = lab.castnet_json(&["runtime", "--since-start", "--agent", &agent])?;
    let after = received()?;
    workers(&runtime, before..=after)?;
    rings(&runtime)?;

    let table = lab.castnet(&["runtime", "--agent", &agent])?;
    for word in [
        "Workers, over ",
        "CLOCKS/FRAME",
        "HAND-OVER",
        "from port h4",
        "from worker 1",
    ] {
        ensure!(table.contains(word), "no '{word}' in\n{table}");
    }
    let watched = lab.castnet(&[
        "runtime", "--watch", "100ms", "--count", "2", "--agent", &agent, "-O", "json",
    ])?;
    let seconds: Vec<f64> = watched
        .lines()
        .map(|line| {
            Ok(serde_json::from_str::<Value>(line)?["seconds"]
                .as_f64()
                .unwrap_or(0.0))
        })
        .collect::<Result<_>>()?;
    let is_right = seconds.len() == 2 && seconds.iter().all(|s| *s > 0.0);
    ensure!(is_right, "readings over {seconds:?} s");
    ports(lab, &agent)
}

fn to_and_fro(lab: &Lab) -> Result<()> {
    let agent = lab.socket("sw");
    let transfer = Transfer {
        group: "m",
        size: 0,
        ..TRANSFER
    };
    lab.create_group_with(&transfer, &["--rate", "20M"])?;
    let mut running = lab.start_stream(&transfer, &["--fallback", "off"])?;
    let group = || lab.castnet_json(&["group", "show", "m", "--agent", &agent]);
    let number = |value: &Value, path: &str| value.pointer(path).and_then(Value::as_u64);
    let mut more_data = |before: u64| {
        let mut seen = before;
        running.source.wait_until("more data came", |_| {
            seen = lab.data_in("m", "sw").unwrap_or(before);
            seen > before
        })?;
        anyhow::Ok(seen)
    };
    let mut seen = more_data(100)?;
    let mut worker = number(&group()?, "/worker").context("a worker")?;
    refusals(lab, &agent, worker)?;

    const MOVES: u64 = 10;
    for _ in 0..MOVES {
        let to = 1 - worker;
        let words = [
            "group",
            "move",
            "m",
            "--worker",
            &to.to_string(),
            "--agent",
            &agent,
        ];
        let moved = lab.castnet_json(&words)?;
        ensure!(
            (number(&moved, "/from"), number(&moved, "/to")) == (Some(worker), Some(to)),
            "{moved}"
        );
        worker = to;
        seen = more_data(seen)?;
    }
    running.finish()?;

    // Whatever else may lose frames on the way, the move does not.
    let drops = lab.castnet_json(&["drops", "--agent", &agent])?.to_string();
    for reason in ["hand-over-full", "no-buffer"] {
        ensure!(!drops.contains(reason), "after {MOVES} moves: {drops}");
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
    ensure!(came.iter().sum::<u64>() == MOVES, "{came:?} for {MOVES} moves");
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

fn number(object: &Value, name: &str) -> Result<u64> {
    object[name]
        .as_u64()
        .with_context(|| format!("no number {name} in {object}"))
}

/// The sum of a field of all workers.
fn sum(runtime: &Value, name: &str) -> Result<u64> {
    let workers = runtime["workers"].as_array().context("workers")?;
    workers.iter().map(|worker| number(worker, name)).sum()
}

fn workers(runtime: &Value, received: std::ops::RangeInclusive<u64>) -> Result<()> {
    let workers = runtime["workers"].as_array().context("workers")?;
    ensure!(workers.len() == 2, "{} workers", workers.len());
    let frames = sum(runtime, "frames")?;
    ensure!(
        received.contains(&frames),
        "{frames} frames, received were {received:?}"
    );
    let (handed, taken) = (sum(runtime, "handed_over")?, sum(runtime, "taken_over")?);
    // The workers are asked one after the other, so a frame may be between them; and the group belongs to one of them, so the
    // others' feedback goes over.
    ensure!(
        taken > 0 && handed.abs_diff(taken) <= 64,
        "{handed} handed over, {taken} taken over"
    );
    for worker in workers {
        let (frames, batches) = (number(worker, "frames")?, number(worker, "batches")?);
        let sizes = worker["batch_sizes"].as_array().context("sizes")?;
        let (mut all, mut least, mut most) = (0, 0, 0);
        for size in sizes {
            let n = number(size, "batches")?;
            all += n;
            least += n * number(size, "from")?;
            most += n * number(size, "to")?;
        }
        ensure!(all == batches && (least..=most).contains(&frames), "{worker}");
        let mean = worker["batch_mean"].as_f64().context("a mean")?;
        ensure!(
            (mean * batches as f64 - frames as f64).abs() < 1.0,
            "mean {mean}: {worker}"
        );

        let (all, idle) = (&worker["clocks_per_frame"], &worker["idle_share"]);
        ensure!(all.as_f64() > Some(0.0), "{worker}");
        // The parts are of one round in 16: a worker of few rounds may have had none of these.
        if batches > 1000 || !worker["parts"].is_null() {
            let part = |name: &str| {
                let clocks = worker["parts"][name].as_f64();
                clocks.with_context(|| format!("{name} in {worker}"))
            };
            let parts = ["receive", "hand_over", "engine", "send", "other"].map(part);
            let parts: f64 = parts.into_iter().sum::<Result<f64>>()?;
            ensure!(parts > 0.0, "{worker}");
        }
        ensure!(
            idle.as_f64().is_some_and(|share| (0.0..=1.0).contains(&share)),
            "{worker}"
        );
        ensure!(
            number(worker, "buffers_free")? <= number(worker, "buffers")?,
            "{worker}"
        );
    }
    Ok(())
}

/// Each port's ring is one worker's, and each worker has one from the other.
fn rings(runtime: &Value) -> Result<()> {
    let rings = runtime["rings"].as_array().context("rings")?;
    let from = |kind: &str| {
        let mut names: Vec<_> = rings
            .iter()
            .filter(|ring| ring["kind"] == kind)
            .filter_map(|ring| ring["from"].as_str())
            .collect();
        names.sort_unstable();
        names
    };
    ensure!(
        from("port") == ["h1", "h2", "h3", "h4"] && from("worker") == ["0", "1"],
        "{rings:?}"
    );
    for ring in rings {
        let (size, used) = (number(ring, "size")?, number(ring, "used_max")?);
        ensure!(number(ring, "samples")? > 0 && used <= size && size > 0, "{ring}");
    }
    Ok(())
}

fn ports(lab: &Lab, agent: &str) -> Result<()> {
    let ports = lab.castnet_json(&["port", "--agent", agent])?;
    let ports = ports.as_array().context("ports")?;
    ensure!(ports.len() == 4, "{ports:?}");
    for port in ports {
        // The kernel says 10 Gb/s of any veth pair.
        let told = port["driver"] == "veth" && port["speed_mbps"] == 10_000 && port["steering"] == "none";
        let queues = port["rx_queues"] == 1 && port["tx_queues"].is_null();
        ensure!(
            told && queues && port["numa_node"].is_null() && port["gso"] == "on",
            "{port}"
        );
        ensure!(
            number(port, "rx_frames")? > 0 && number(port, "mtu")? > 4096,
            "{port}"
        );
    }
    let table = lab.castnet(&["port", "--agent", agent])?;
    for word in ["10.00 Gb/s", "veth", "per worker", "MISSED"] {
        ensure!(table.contains(word), "no '{word}' in\n{table}");
    }
    Ok(())
}
