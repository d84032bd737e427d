//! Two groups over one switch, one of them with a rate limit. Bytes are compared with the switch's own clock.

use anyhow::{Context, Result, ensure};
use castnet_e2e::lab::{self, STAR};
use castnet_e2e::{Lab, Transfer};
use serde_json::Value;

const MBPS: u64 = 50;
const BURST: u64 = 256 << 10;

/// The time of a snapshot of the switch's counters, and its groups.
fn counters(lab: &Lab) -> Result<(u64, Value)> {
    let counters = lab.castnet_json(&["counters", "--agent", &lab.socket("sw")])?;
    let at = counters["at_ns"].as_u64().context("no time")?;
    Ok((at, counters["groups"].clone()))
}

fn of(groups: &Value, group: &str, counter: &str) -> u64 {
    let mut all = groups.as_array().into_iter().flatten();
    let found = all.find(|g| g["group"] == group);
    found.and_then(|g| g[counter].as_u64()).unwrap_or(0)
}

#[test]
fn a_limited_group_gets_at_most_its_rate_beside_another_one() {
    lab::in_lab_alone("rates", STAR, &[], |lab| {
        let transfer = |group, source, receivers, size| Transfer {
            group,
            source,
            receivers,
            op: "send",
            size,
            seed: 5,
        };
        let slow = transfer("slow", "h1", &["h2", "h3"], 16 << 20);
        let free = transfer("free", "h4", &["h2", "h3"], 32 << 20);
        let controller = lab.socket("controller");
        let rate = format!("{MBPS}M");
        let create = [
            "group",
            "create",
            "slow",
            "--source",
            "h1",
            "--members",
            "h2,h3",
            "--rate",
            &rate,
            "--controller",
            &controller,
        ];
        lab.castnet(&create)?;
        lab.create_group(&free)?;
        let shown = lab.castnet(&["group", "show", "slow", "--controller", &controller])?;
        ensure!(
            shown.contains("50.00 Mb/s for each sender, in bursts of at most 256 KiB"),
            "{shown}"
        );

        let (begin, _) = counters(lab)?;
        let mut running = lab.start_transfer(&slow)?;
        let other = lab.start_transfer(&free)?;
        // Rules and their counters go with the members.
        let (mut seen, mut free_drops) = (Vec::new(), 0);
        running.source.wait_until("an eighth of the data came in", |_| {
            let now = counters(lab);
            let eighth = now
                .as_ref()
                .is_ok_and(|(_, groups)| of(groups, "slow", "data_bytes_in") > 2 << 20);
            if let Ok((at, groups)) = now {
                seen.push((at, of(&groups, "slow", "data_bytes_in")));
                free_drops = free_drops.max(of(&groups, "free", "rate_drops"));
            }
            eighth
        })?;
        running.finish()?;
        other.finish()?;
        let (end, _) = counters(lab)?;
        // The counters of a snapshot were read before the time of the next one.
        let next = seen.iter().skip(1).map(|(at, _)| *at).chain([end]);
        for ((_, bytes), at) in seen.iter().zip(next) {
            let allowed = BURST + (at - begin) * MBPS / 8_000;
            ensure!(*bytes <= allowed, "{bytes} of {allowed} bytes");
        }
        ensure!(
            free_drops == 0,
            "{free_drops} frames of the other group were over a rate"
        );
        Ok(())
    });
}
