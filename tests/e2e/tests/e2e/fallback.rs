//! A group that the switches cannot install: its members send from host to host, or fail.

use anyhow::{Result, ensure};
use castnet_e2e::lab::{self, STAR, digest, write_random};
use castnet_e2e::{Lab, Transfer};

/// No group fits into the switch, as with too little memory (Cepheus, V.D).
const FULL: [&str; 2] = ["--memory", "1"];
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

#[test]
fn a_file_goes_from_host_to_host_if_the_switch_is_full() {
    lab::in_lab("fallback", STAR, &FULL, |lab| {
        // Several chunks by a chain, one piece by a tree, and nothing.
        for (group, size) in [("large", 9 << 20), ("small", 1000), ("empty", 0)] {
            between_hosts(lab, group, size)?;
        }
        Ok(())
    });
}

#[test]
fn a_file_goes_from_host_to_host_with_one_percent_loss() {
    let extra = [&FULL[..], &["--fault", "loss=1%,seed=42"]].concat();
    lab::in_lab("fallback", STAR, &extra, |lab| {
        between_hosts(lab, "lossy", 5 << 20)
    });
}

#[test]
fn without_fallback_a_group_that_is_not_installed_is_an_error() {
    lab::in_lab("fallback", STAR, &FULL, |lab| {
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
    });
}

/// Checks, whose bytes are known: those of one byte, in several chunks, and of no bytes.
#[test]
fn checks_go_from_host_to_host_if_the_switch_is_full() {
    lab::in_lab("fallback", STAR, &FULL, |lab| {
        for (group, size, count) in [("tiny", "1", "9"), ("large", "70000", "100"), ("empty", "0", "3")] {
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
    });
}
