//! `castnet host replicate` inside the machines: replicated block writes on the kernel's RNIC, as in table I of Cepheus.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use castnet_e2e::process::castnet;
use serde_json::Value;

use crate::scene::Scene;

const LONG: Duration = Duration::from_secs(120);
const SERVERS: [&str; 3] = ["h2", "h3", "h4"];

/// Writes from h1 to h2, over connections to all three servers, and by multicast. Each server holds every block.
pub(crate) fn blocks(scene: &mut Scene) -> Result<String> {
    let fabric = scene.fabric(&[])?;
    let controller = fabric.controller()?;
    let members = SERVERS.join(",");
    fabric.at_controller(&[
        "group",
        "create",
        "blocks",
        "--source",
        "h1",
        "--members",
        &members,
        "--pmtu",
        "1024",
    ])?;
    let program = scene.lab.share(castnet())?;
    let line = |verb: &str, name: &str, rest: &str| {
        format!(
            "exec {program} host replicate {verb} --rnic verbs --name {name} --controller {controller} --insecure --qp-timeout 18 \
             --connect-timeout 30s {rest}"
        )
    };
    let (mut jobs, mut addresses) = (Vec::new(), Vec::new());
    for name in SERVERS {
        let machine = scene.machine(name)?;
        addresses.push(machine.ip().to_string());
        jobs.push(machine.spawn(&line("serve", name, "--size 512KiB"))?);
    }
    for (job, name) in jobs.iter_mut().zip(SERVERS) {
        let ready = job.wait_for_output("listening", LONG);
        ready.with_context(|| format!("the server {name}"))?;
    }
    let rest = format!(
        "--servers {} --group blocks --size 8KiB --count 200 --depth 8 --pmtu 1024 --output json",
        addresses.join(",")
    );
    let client = scene.machine("h1")?.run(&line("compare", "h1", &rest), LONG)?;
    for job in &jobs {
        job.kill()?;
    }
    let said = || {
        jobs.iter()
            .map(|job| job.output_so_far().to_string())
            .collect::<Vec<_>>()
            .join("; ")
    };
    ensure!(client.code == 0, "the client: {client}; the servers: {}", said());
    scene.running()?.at_controller(&["group", "destroy", "blocks"])?;
    let rows: Vec<Value> = serde_json::from_str(&client.stdout).with_context(|| client.stdout.clone())?;
    let mut told = Vec::new();
    for (row, (by, servers)) in rows.iter().zip([("one", 1), ("unicasts", 3), ("multicast", 3)]) {
        let checked = row["servers"].as_array().into_iter().flatten();
        let right = checked
            .filter(|server| server["checked"]["differing"] == 0)
            .count();
        ensure!(
            row["by"] == by && row["writes"] == 200 && right == servers,
            "{row:#}"
        );
        told.push(format!("{by} {:.0}", row["iops"].as_f64().unwrap_or_default()));
    }
    ensure!(rows.len() == 3, "{rows:?}");
    Ok(format!("writes of 8 KiB per second: {}", told.join(", ")))
}
