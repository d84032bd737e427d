//! A switch and its hosts over shared memory: no namespace, no interface, no privilege.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use castnet_e2e::lab::{digest, write_random};
use castnet_e2e::process::{Process, castnet};
use serde_json::Value;

const HOSTS: usize = 3;

/// Hosts 1 and 2 have sockets of their own. Host 3 shares one with another port.
fn socket(folder: &Path, host: usize) -> String {
    match host {
        3 => format!("memif:{},id=3,secret=s", folder.join("shared.sock").display()),
        _ => format!("memif:{}", folder.join(format!("h{host}.sock")).display()),
    }
}

fn service(folder: &Path, name: &str) -> String {
    format!("unix:{}", folder.join(format!("{name}.agent")).display())
}

fn start(folder: &Path, name: &str, mut command: Command) -> Result<Process> {
    let ready = folder.join(format!("{name}.ready"));
    let _ = std::fs::remove_file(&ready);
    command.arg("--ready-file").arg(&ready);
    let mut process = Process::start(name, folder, command)?;
    process.wait_until("it was ready", |_| ready.exists())?;
    Ok(process)
}

fn start_switch(folder: &Path, options: &[&str]) -> Result<Process> {
    let mut command = Command::new(castnet());
    command.args(["switch", "--name", "sw", "--listen", &service(folder, "sw")]);
    for host in 1..=HOSTS {
        command.args(["--port", &format!("h{host}={}", socket(folder, host))]);
    }
    let other = folder.join("shared.sock");
    command.args(["--port", &format!("other=memif:{},id=4", other.display())]);
    command.args(options);
    start(folder, "sw", command)
}

fn start_controller(folder: &Path) -> Result<Process> {
    let mut command = Command::new(castnet());
    command.args(["controller", "--listen", &service(folder, "controller")]);
    command.args(["--switch", &format!("sw={}", service(folder, "sw"))]);
    command.arg("--store").arg(folder.join("store.redb"));
    start(folder, "controller", command)
}

fn host(folder: &Path, verb: &str, host: usize, what: &str, arguments: &[&str]) -> Result<Process> {
    let mut command = Command::new(castnet());
    command.args(["host", verb, "--name", &format!("h{host}")]);
    command.args([
        "--interface",
        &socket(folder, host),
        "--ip",
        &format!("10.0.0.{host}/24"),
    ]);
    command.args(["--controller", &service(folder, "controller"), "--output", "json"]);
    command.args(arguments);
    Process::start(&format!("{what}-{host}"), folder, command)
}

fn run(arguments: &[&str]) -> Result<String> {
    let out = Command::new(castnet()).args(arguments).output()?;
    ensure!(
        out.status.success(),
        "{arguments:?}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    Ok(String::from_utf8(out.stdout)?)
}

fn send_a_file(folder: &Path, group: &str) -> Result<()> {
    let controller = service(folder, "controller");
    run(&[
        "group",
        "create",
        group,
        "--source",
        "h1",
        "--members",
        "h2,h3",
        "--pmtu",
        "4096",
        "--controller",
        &controller,
    ])?;
    let file = folder.join(format!("{group}.bin"));
    let expected = write_random(&file, 4 << 20, 7)?;
    let (mut receivers, mut copies) = (Vec::new(), Vec::new());
    for receiver in 2..=HOSTS {
        let copy = folder.join(format!("{group}.{receiver}"));
        let arguments = ["--group", group, "--out", &copy.to_string_lossy()];
        receivers.push(host(folder, "receive", receiver, group, &arguments)?);
        copies.push(copy);
    }
    host(
        folder,
        "send",
        1,
        group,
        &["--group", group, "--file", &file.to_string_lossy()],
    )?
    .succeed()?;
    for (receiver, copy) in receivers.iter_mut().zip(&copies) {
        receiver.succeed()?;
        ensure!(digest(copy)? == expected, "{} is another file", copy.display());
    }
    run(&["group", "destroy", group, "--controller", &controller])?;
    Ok(())
}

fn allreduce(folder: &Path, job: &str) -> Result<()> {
    let mut ranks = (0..HOSTS)
        .map(|rank| {
            let (rank_text, size) = (rank.to_string(), HOSTS.to_string());
            let job = [
                "--job", job, "--rank", &rank_text, "--size", &size, "--pmtu", "4096",
            ];
            let more = ["--bytes", "4,16K,1M", "--iters", "10", "--fallback", "forbidden"];
            host(folder, "allreduce", rank + 1, job[1], &[&job[..], &more].concat())
        })
        .collect::<Result<Vec<_>>>()?;
    // Each rank checks every element.
    ranks.iter_mut().try_for_each(Process::succeed)
}

fn ports(folder: &Path) -> Result<Vec<Value>> {
    let text = run(&["port", "--agent", &service(folder, "sw"), "--output", "json"])?;
    let ports: Value = serde_json::from_str(&text)?;
    let rows = ports.as_array().or_else(|| ports["ports"].as_array());
    rows.cloned().with_context(|| format!("no rows: {ports}"))
}

fn in_folder(test: impl FnOnce(&Path) -> Result<()>) {
    let folder = tempfile::Builder::new()
        .prefix("castnet-memif-")
        .tempdir()
        .expect("a folder");
    if let Err(error) = test(folder.path()) {
        let logs =
            ["sw", "controller"].map(|n| std::fs::read_to_string(folder.path().join(format!("{n}.log"))));
        panic!("{error:#}\n{logs:?}");
    }
}

#[test]
fn a_file_and_sums_cross_a_switch_over_shared_memory_also_after_it_was_killed() {
    in_folder(|folder| {
        let mut switch = start_switch(folder, &[])?;
        let _controller = start_controller(folder)?;
        send_a_file(folder, "file")?;
        allreduce(folder, "sums")?;
        let rows = ports(folder)?;
        ensure!(rows.len() == HOSTS + 1, "{rows:?}");
        for row in &rows[..HOSTS] {
            ensure!(row["driver"] == "memif" && row["mtu"] == 4200, "{row}");
            ensure!(row["rx_frames"].as_u64() > Some(100), "{row}");
        }

        // Killed, it leaves its sockets, and takes their place when it comes back.
        switch.kill();
        drop(switch);
        ensure!(folder.join("h1.sock").exists(), "the socket is gone");
        // A second worker sends by the hands of the first, and the other way round.
        let _switch = start_switch(folder, &["--worker=any", "--worker=any"])?;
        send_a_file(folder, "again")?;
        allreduce(folder, "sums-again")
    });
}

/// A host that is there first, and one that is killed: the link comes up when both are there.
#[test]
fn hosts_and_switch_come_and_go_in_any_order() {
    in_folder(|folder| {
        let mut switch = start_switch(folder, &[])?;
        let controller = start_controller(folder)?;
        run(&[
            "group",
            "create",
            "g",
            "--source",
            "h1",
            "--members",
            "h2",
            "--pmtu",
            "4096",
            "--controller",
            &service(folder, "controller"),
        ])?;
        let copy = folder.join("copy");
        let arguments = ["--group", "g", "--out", &copy.to_string_lossy()];
        let is_up = |up: bool| Ok::<_, anyhow::Error>(ports(folder)?[1]["up"] == up);
        for _ in 0..3 {
            let mut receiver = host(folder, "receive", 2, "killed", &arguments)?;
            switch.wait_until("the host was there", |_| is_up(true).unwrap_or_default())?;
            receiver.kill();
            switch.wait_until("the host was gone", |_| is_up(false).unwrap_or_default())?;
        }
        let mut receiver = host(folder, "receive", 2, "waits", &arguments)?;
        switch.wait_until("the host was there", |_| is_up(true).unwrap_or_default())?;
        switch.kill();
        drop(switch);
        let mut switch = start_switch(folder, &[])?;
        switch.wait_until("the host was back", |_| is_up(true).unwrap_or_default())?;
        receiver.kill();
        drop(controller);
        Ok(())
    });
}
