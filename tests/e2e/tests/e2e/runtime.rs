//! What `castnet runtime` and `castnet port` say of a switch of two workers goes with what was sent through it.

use anyhow::{Context, Result, ensure};
use castnet_e2e::lab::{STAR, Transfer};
use castnet_e2e::{Lab, net};
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
fn workers_and_ports_tell_what_went_through_them() {
    if net::is_skipped("runtime") {
        return;
    }
    println!("seed {}", TRANSFER.seed);
    let lab = Lab::start(STAR, &["--worker", "any", "--worker", "any"]).expect("the lab starts");
    if let Err(error) = check(&lab) {
        panic!("{error:#}\n{}", lab.logs());
    }
}

fn check(lab: &Lab) -> Result<()> {
    let agent = lab.socket("sw");
    lab.create_group(&TRANSFER)?;
    lab.start_transfer(&TRANSFER)?.finish()?;

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
    // A busy machine may make one of them long, and the next one shorter.
    let is_right =
        seconds.len() == 2 && seconds.iter().all(|s| *s > 0.0) && seconds.iter().sum::<f64>() > 0.15;
    ensure!(is_right, "readings over {seconds:?} s");
    ports(lab, &agent)
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
