//! A group that the switches cannot install: its members send from host to host, or fail.

use std::fs::{self, File};
use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use castnet_e2e::lab::{self, STAR, digest, write_random};
use castnet_e2e::{Lab, Transfer};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

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

/// The disk of a receiver is full in the middle of a file. The others learned it when they gave up, after a minute, and not from whom.
fn full_disk(lab: &Lab) -> Result<()> {
    lab.create_group(&transfer("full"))?;
    let file = lab.folder().join("full.bin");
    write_random(&file, 9 << 20, 11)?;
    let mut all = Vec::new();
    for host in RECEIVERS {
        let out = match host {
            "h3" => "/dev/full".into(),
            _ => lab.folder().join(format!("full.{host}")),
        };
        let process = lab.start_host(host, "receive", "full", &["--out", &out.to_string_lossy()])?;
        all.push((host, process));
    }
    let file = file.to_string_lossy();
    all.push(("h1", lab.start_host("h1", "send", "full", &["--file", &*file])?));
    for (host, process) in &mut all {
        let expected = match *host {
            "h3" => "writing what arrived: No space left",
            _ => "h3 cannot write what it receives: No space left",
        };
        ensure!(!process.wait()?.success(), "{}", process.output());
        let said = process.output();
        ensure!(said.contains(expected), "{host}: {said}");
    }
    Ok(())
}

/// Nobody writes into the pipe that is sent for longer than a member waits for a step.
fn idle_pipe(lab: &Lab) -> Result<()> {
    let (give_up, idle) = (["--fallback-give-up", "5s"], Duration::from_secs(8));
    lab.create_group(&transfer("idle"))?;
    let pipe = lab.folder().join("idle.pipe");
    mkfifo(&pipe, Mode::S_IRWXU)?;
    let mut all = Vec::new();
    for host in RECEIVERS {
        let out = lab.folder().join(format!("idle.{host}"));
        let to = out.to_string_lossy();
        let process = lab.start_host(
            host,
            "receive",
            "idle",
            &[&give_up[..], &["--out", &*to]].concat(),
        )?;
        all.push((process, out.clone()));
    }
    let from = pipe.to_string_lossy();
    let mut source = lab.start_host(
        "h1",
        "send",
        "idle",
        &[&give_up[..], &["--file", &*from]].concat(),
    )?;
    let part = lab.folder().join("idle.h2.castnet-part");
    let receiver = &mut all[0].0;
    // It begins without a writer.
    receiver.wait_until("the begin of the stream", |_| part.exists())?;
    let mut writer = File::options().write(true).open(&pipe)?;
    writer.write_all(b"12345")?;
    let begun = Instant::now();
    receiver.wait_until("the end of the pause", |_| begun.elapsed() >= idle)?;
    writer.write_all(b"67890")?;
    drop(writer);
    source.succeed()?;
    for (process, out) in &mut all {
        process.succeed()?;
        ensure!(fs::read(&*out)? == b"1234567890", "{}", out.display());
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
        full_disk(lab)?;
        idle_pipe(lab)?;
        turns::from_host_to_host(lab, &["h1", "h2", "h3", "h4"], &["h4", "h1", "h3", "h3"])
    });
}
