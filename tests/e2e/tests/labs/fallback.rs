//! A group that the switches cannot install: its members send from host to host, or fail.

use anyhow::{Result, ensure};
use castnet_e2e::lab::{self, STAR, digest, write_random};
use castnet_e2e::{Lab, Transfer};

use crate::turns;

/// No group fits into the switch, as with too little memory (Cepheus, V.D).
const FULL: [&str; 2] = ["--memory", "1KiB"];
const RECEIVERS: [&str; 3] = ["h2", "h3", "h4"];

fn transfer(group: &str) -> Transfer<'_> {
    Transfer {
        group,
        source: "h1",
        receivers: &RECEIVERS,
        op: "send",
        size: 9 << 20,
        seed: 11,
    }
}

/// Sends a file of `size` bytes, and demands that all members have it and say why no switch copied it.
fn between_hosts(lab: &Lab, group: &str, size: usize) -> Result<()> {
    lab.create_group(&transfer(group))?;
    let file = lab.folder().join(format!("{group}.bin"));
    let sent = write_random(&file, size, 11)?;
    let mut all = Vec::new();
    for host in RECEIVERS {
        let out = lab.folder().join(format!("{group}.{host}"));
        let process = lab.start_host(host, "receive", group, &["--out", &out.to_string_lossy()])?;
        all.push((process, Some(out)));
    }
    all.push((
        lab.start_host("h1", "send", group, &["--file", &file.to_string_lossy()])?,
        None,
    ));
    for (process, out) in &mut all {
        process.succeed()?;
        let report = process.report()?;
        let why = report["between_hosts"].as_str().unwrap_or_default();
        ensure!(!why.is_empty() && report["sha256"] == sent.as_str(), "{report:#}");
        if let Some(out) = out {
            ensure!(digest(out)? == sent, "{}", out.display());
        }
    }
    Ok(())
}

/// Without fallback it is an error, which says why.
fn without_fallback(lab: &Lab) -> Result<()> {
    lab.create_group(&transfer("g"))?;
    let file = lab.folder().join("g.bin");
    write_random(&file, 1000, 1)?;
    let mut all = Vec::new();
    for host in RECEIVERS {
        let out = lab.folder().join(format!("g.{host}"));
        all.push(lab.start_host(
            host,
            "receive",
            "g",
            &["--fallback", "off", "--out", &out.to_string_lossy()],
        )?);
    }
    all.push(lab.start_host(
        "h1",
        "send",
        "g",
        &["--fallback", "off", "--file", &file.to_string_lossy()],
    )?);
    for process in &mut all {
        let status = process.wait()?;
        let said = process.output();
        ensure!(
            !status.success() && said.contains("could not be installed"),
            "{said}"
        );
    }
    Ok(())
}

/// Checks, whose bytes are known: those of one byte, in several chunks, and of no bytes.
fn checks(lab: &Lab) -> Result<()> {
    for (group, size, count) in [("one", "1", "9"), ("many", "70000", "100"), ("none", "0", "3")] {
        lab.create_group(&transfer(group))?;
        let flags = ["--size", size, "--count", count];
        let mut all = Vec::new();
        for host in RECEIVERS {
            all.push(lab.start_host(host, "receive", group, &flags)?);
        }
        all.push(lab.start_host("h1", "send", group, &flags)?);
        let mut digests = Vec::new();
        for process in &mut all {
            process.succeed()?;
            let report = process.report()?;
            let why = report["between_hosts"].as_str().unwrap_or_default();
            ensure!(
                !why.is_empty() && report["count"].to_string().as_str() == count,
                "{report:#}"
            );
            digests.push(report["sha256"].to_string());
        }
        digests.dedup();
        ensure!(digests.len() == 1, "{digests:?}");
    }
    Ok(())
}

#[test]
fn what_the_switches_have_no_room_for_goes_from_host_to_host_over_links_that_lose() {
    let extra = [&FULL[..], &["--fault", "loss=1%,seed=42"]].concat();
    lab::in_lab("fallback", STAR, &extra, |lab| {
        without_fallback(lab)?;
        // Several chunks by a chain, one piece by a tree, and nothing.
        for (group, size) in [("large", 5 << 20), ("small", 1000), ("empty", 0)] {
            between_hosts(lab, group, size)?;
        }
        checks(lab)?;
        turns::from_host_to_host(lab, &["h1", "h2", "h3", "h4"], &["h4", "h1", "h3", "h3"])
    });
}
