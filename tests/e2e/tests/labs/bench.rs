//! `castnet bench` against a real switch: veth pairs between two network namespaces, one with the switch, one with all hosts.

use std::fmt::Write as _;
use std::fs;
use std::process::Output;

use anyhow::{Context, Result, ensure};
use castnet_e2e::net::{self, Namespace};
use castnet_e2e::process::{Process, castnet};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

/// Ports of the switch; the host at the other end of `pN` is behind `bN`.
const PORTS: usize = 4;

/// A switch and, around it, the ports of a bench.
struct Rig {
    // Dropped in this order.
    _switch: Process,
    hosts: Namespace,
    _fabric: Namespace,
    folder: TempDir,
}

impl Rig {
    fn start(rules: impl FnOnce(&Namespace) -> Result<Option<String>>) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("castnet-bench-").tempdir()?;
        let (fabric, hosts) = (Namespace::new("sw")?, Namespace::new("hosts")?);
        for n in 0..PORTS {
            net::veth(&fabric, &format!("p{n}"), &hosts, &format!("b{n}"), 4300)?;
        }
        let mut command = fabric.command(castnet());
        command.args(["switch", "--name", "sw", "--listen", &socket(&folder)]);
        for n in 0..PORTS {
            command.args(["--port", &format!("p{n}=af_packet:p{n}")]);
        }
        if let Some(text) = rules(&hosts)? {
            let file = folder.path().join("rules.toml");
            fs::write(&file, text)?;
            command.arg("--rules").arg(file);
        }
        let ready = folder.path().join("ready");
        command.arg("--ready-file").arg(&ready);
        let mut switch = Process::start("sw", folder.path(), command)?;
        switch.wait_until("it was ready", |_| ready.exists())?;
        Ok(Self {
            _switch: switch,
            hosts,
            _fabric: fabric,
            folder,
        })
    }

    /// `castnet bench` on ports with these names and further options each.
    fn command(
        &self,
        names: [&str; PORTS],
        faults: &[(usize, &str)],
        args: &[&str],
    ) -> std::process::Command {
        let mut command = self.hosts.command(castnet());
        command.args([
            "bench",
            "-O",
            "json",
            "--switch",
            &socket(&self.folder),
            "--check",
            "all",
            "--flows",
        ]);
        for (n, name) in names.iter().enumerate() {
            let fault = faults
                .iter()
                .find(|(port, _)| *port == n)
                .map(|(_, fault)| format!(",{fault}"));
            command.args([
                "--port",
                &format!("{name}=af_packet:b{n}{}", fault.unwrap_or_default()),
            ]);
        }
        command.args(args);
        command
    }

    fn bench(&self, names: [&str; PORTS], faults: &[(usize, &str)], args: &[&str]) -> Result<Vec<Value>> {
        runs(self.command(names, faults, args).output()?)
    }

    /// Names of the groups that the switch has.
    fn groups(&self) -> Result<String> {
        let mut command = std::process::Command::new(castnet());
        let out = command
            .args(["group", "list", "-O", "json", "--agent", &socket(&self.folder)])
            .output()?;
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    }
}

fn socket(folder: &TempDir) -> String {
    format!("unix:{}", folder.path().join("sw.sock").display())
}

fn runs(out: Output) -> Result<Vec<Value>> {
    ensure!(
        out.status.success(),
        "{}: {}",
        out.status,
        String::from_utf8_lossy(&out.stderr)
    );
    let text = String::from_utf8(out.stdout)?;
    let runs = text.lines().map(serde_json::from_str);
    Ok(runs.collect::<Result<_, _>>()?)
}

const NAMES: [&str; PORTS] = ["p0", "p1", "p2", "p3"];

fn number(value: &Value, field: &str) -> u64 {
    value[field]
        .as_u64()
        .unwrap_or_else(|| panic!("{field} in {value}"))
}

fn flows<'a>(run: &'a Value, role: &str) -> Vec<&'a Value> {
    let flows = run["flows"].as_array().expect("flows");
    flows.iter().filter(|f| f["role"] == role).collect()
}

/// Without losses on the way, all is there: at each receiver each frame of the source, at each rank each result.
fn is_whole(run: &Value) -> Result<()> {
    for reasons in ["drops", "host_drops"] {
        ensure!(
            run[reasons].as_array().is_some_and(Vec::is_empty),
            "{reasons}: {run}"
        );
    }
    for field in ["missing", "bad_icrc", "wrong_results"] {
        ensure!(number(&run["total"], field) == 0, "{field}: {run}");
    }
    for source in flows(run, "source") {
        for receiver in flows(run, "receiver")
            .into_iter()
            .filter(|r| r["group"] == source["group"])
        {
            let came = number(receiver, "data_received") - number(receiver, "repeats");
            ensure!(came == number(source, "data_sent"), "{receiver} of {source}");
        }
    }
    for rank in flows(run, "rank") {
        let came = number(rank, "data_received") - number(rank, "repeats");
        ensure!(came == number(rank, "data_sent"), "{rank}");
    }
    Ok(())
}

fn groups_of_its_own_come_back_whole_and_go_in_the_end(rig: &Rig) -> Result<()> {
    let runs = rig.bench(
        NAMES,
        &[],
        &[
            "--frames",
            "2000",
            "--window",
            "64",
            "--groups",
            "2",
            "multicast",
            "ack",
            "nak",
            "aggregate",
        ],
    )?;
    ensure!(runs.len() == 4, "{} runs", runs.len());
    for run in &runs {
        is_whole(run)?;
        ensure!(number(&run["hosts"], "driven") == 2000, "{run}");
        ensure!(run["switch_read"] == true, "{run}");
    }
    ensure!(
        !rig.groups()?.contains("bench-"),
        "groups are left: {}",
        rig.groups()?
    );
    Ok(())
}

fn what_a_bad_port_loses_is_reported_and_not_hidden(rig: &Rig) -> Result<()> {
    println!("seed 42");
    let runs = rig.bench(
        NAMES,
        &[(2, "rx.loss=5%,seed=42")],
        &["--frames", "2000", "--window", "64", "multicast", "aggregate"],
    )?;
    for receiver in flows(&runs[0], "receiver") {
        let missing = number(receiver, "missing");
        let came = number(receiver, "data_received") - number(receiver, "repeats");
        ensure!(came + missing == 2000, "{receiver}");
        match receiver["host"].as_str() {
            Some("p2") => ensure!((40..200).contains(&missing), "5 % of 2000: {receiver}"),
            _ => ensure!(missing == 0, "{receiver}"),
        }
    }
    let injected = runs[0]["host_drops"].as_array().context("drops")?;
    ensure!(injected.iter().any(|d| d["reason"] == "injected"), "{injected:?}");
    // A collective is repaired, whatever was lost: all results came, and were right.
    ensure!(number(&runs[1]["total"], "wrong_results") == 0, "{}", runs[1]);
    for rank in flows(&runs[1], "rank") {
        let came = number(rank, "data_received") - number(rank, "repeats");
        ensure!(came >= number(rank, "data_sent"), "{rank}");
    }
    Ok(())
}

fn groups_of_a_rule_file_are_used_as_they_are_and_again() -> Result<()> {
    let members = ["src", "one", "two", "three"];
    let rig = Rig::start(|hosts| {
        let mut rules = String::from(
            "[[groups]]\nname = \"g\"\nmcst_id = \"10.0.0.200\"\npmtu = 1024\nstart_psn = 16777000\nsource = 0\n",
        );
        for (n, name) in members.iter().enumerate() {
            let mac = hosts
                .command("cat")
                .arg(format!("/sys/class/net/b{n}/address"))
                .output();
            // Files below /sys show the namespace of who mounted them.
            let mac = mac
                .ok()
                .filter(|out| out.status.success())
                .map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned());
            let mac = mac.unwrap_or_else(|| format!("02:00:00:00:00:0{n}"));
            write!(
                rules,
                "[[groups.endpoints]]\nport = {n}\nhost = {{ name = \"{name}\", ip = \"10.0.0.{}\", qpn = {}, mac = \"{mac}\" }}\n",
                n + 1,
                17 + n
            )?;
        }
        Ok(Some(rules))
    })?;
    let file = rig.folder.path().join("rules.toml");
    for round in 0..2 {
        let args = [
            "--group",
            &file.to_string_lossy(),
            "--frames",
            "1500",
            "--window",
            "64",
            "multicast",
        ];
        let runs = rig.bench(members, &[], &args)?;
        is_whole(&runs[0]).with_context(|| format!("round {round}"))?;
    }
    ensure!(
        rig.groups()?.contains("\"g\""),
        "the group is gone: {}",
        rig.groups()?
    );
    // Somebody whom nobody plays.
    let strangers = rig
        .command(NAMES, &[], &["--group", &file.to_string_lossy(), "multicast"])
        .output()?;
    let said = String::from_utf8_lossy(&strangers.stderr).into_owned();
    ensure!(
        strangers.status.code() == Some(2) && said.contains("src"),
        "{said}"
    );
    // The results of the first pattern are there though the file has no group for the second.
    let args = [
        "--group",
        &file.to_string_lossy(),
        "--frames",
        "1500",
        "--window",
        "64",
        "multicast",
        "aggregate",
    ];
    let half = rig.command(members, &[], &args).output()?;
    let said = String::from_utf8_lossy(&half.stderr).into_owned();
    ensure!(
        half.status.code() == Some(2) && said.contains("aggregate"),
        "{said}"
    );
    is_whole(&serde_json::from_slice(&half.stdout).context("one result")?)
}

fn a_signal_ends_it_with_a_report_and_without_groups_left(rig: &Rig) -> Result<()> {
    let mut command = rig.command(NAMES, &[], &["--time", "10m", "multicast", "ack"]);
    let child = command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()?;
    let start = std::time::Instant::now();
    while !rig.groups()?.contains("bench-") {
        ensure!(start.elapsed() < castnet_e2e::process::PATIENCE, "no group came");
    }
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT)?;
    let runs = runs(child.wait_with_output()?)?;
    ensure!(runs.len() == 1 && runs[0]["interrupted"] == true, "{runs:?}");
    ensure!(
        !rig.groups()?.contains("bench-"),
        "groups are left: {}",
        rig.groups()?
    );
    Ok(())
}

#[test]
fn a_bench_over_veth_pairs_reports_what_came_back_what_was_lost_and_its_end() {
    if net::is_skipped("bench") {
        return;
    }
    let all = || {
        let rig = Rig::start(|_| Ok(None))?;
        groups_of_its_own_come_back_whole_and_go_in_the_end(&rig)?;
        what_a_bad_port_loses_is_reported_and_not_hidden(&rig)?;
        a_signal_ends_it_with_a_report_and_without_groups_left(&rig)?;
        groups_of_a_rule_file_are_used_as_they_are_and_again()
    };
    if let Err(error) = all() {
        panic!("{error:#}");
    }
}
