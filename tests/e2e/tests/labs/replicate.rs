//! Replicated block writes: one client, three servers, real switches, and a controller.

use anyhow::{Context, Result, ensure};
use castnet_e2e::Lab;
use castnet_e2e::lab::{self, Plan, STAR, TWO_TIERS};
use castnet_e2e::process::{Process, castnet};
use serde_json::Value;

const GROUP: &str = "blocks";

/// Servers that have been started.
struct Servers(Vec<(String, Process)>);

/// Where a server listens. The hosts of these labs have no addresses in the kernel.
fn address(lab: &Lab, host: &str) -> String {
    format!("unix:{}", lab.folder().join(format!("{host}.blocks")).display())
}

impl Servers {
    fn start(lab: &Lab, hosts: &[&str], rest: &[&str]) -> Result<Self> {
        let mut servers = Vec::new();
        for host in hosts {
            let mut command = command(lab, host, "serve")?;
            let ready = lab.folder().join(format!("{host}.serves"));
            let _ = std::fs::remove_file(&ready);
            command.args(["--listen", &address(lab, host)]).args(rest);
            command.arg("--ready-file").arg(&ready);
            command.current_dir(lab.folder());
            let process = Process::start(&format!("server-{host}"), lab.folder(), command)?;
            servers.push((host.to_string(), process, ready));
        }
        for (_, process, ready) in &mut servers {
            process.wait_until("it served", |_| ready.exists())?;
        }
        let all = servers.into_iter().map(|(host, process, _)| (host, process));
        Ok(Self(all.collect()))
    }

    /// Each with a file of its own, `NAME.bin`.
    fn start_with_files(lab: &Lab, hosts: &[&str], rest: &[&str]) -> Result<Self> {
        let mut all = Vec::new();
        for &host in hosts {
            let file = format!("{host}.bin");
            let rest: Vec<_> = rest.iter().copied().chain(["--file", &file]).collect();
            all.extend(Self::start(lab, &[host], &rest)?.0);
        }
        Ok(Self(all))
    }

    fn addresses(&self, lab: &Lab) -> String {
        let all: Vec<_> = self.0.iter().map(|(host, _)| address(lab, host)).collect();
        all.join(",")
    }

    fn process(&mut self, host: &str) -> Result<&mut Process> {
        let server = self.0.iter_mut().find(|(name, _)| name == host);
        Ok(&mut server.context("a server")?.1)
    }

    fn output(&self) -> String {
        let all = self.0.iter();
        all.map(|(host, process)| format!("--- {host}\n{}", process.output()))
            .collect()
    }
}

fn command(lab: &Lab, host: &str, verb: &str) -> Result<std::process::Command> {
    let mut command = lab.host(host)?.command(castnet());
    command.args(["host", "replicate", verb, "--name", host, "--interface", "eth0"]);
    command.args(["--ip", &format!("{}/24", lab.address(host)), "--output", "json"]);
    command.args(["--controller", &lab.socket("controller")]);
    Ok(command)
}

/// Runs a client at h1, and returns what it printed as JSON: a report, or a failure.
fn client(lab: &Lab, servers: &Servers, verb: &str, rest: &[&str]) -> Result<(bool, Value)> {
    let mut command = command(lab, "h1", verb)?;
    command.args(["--servers", &servers.addresses(lab)]).args(rest);
    let out = command.output()?;
    let (stdout, stderr) = (
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr),
    );
    let text = if out.stdout.is_empty() { &stderr } else { &stdout };
    let value = serde_json::from_str(text);
    let value = value.with_context(|| format!("{verb}: {stdout}\n{stderr}\n{}", servers.output()))?;
    Ok((out.status.success(), value))
}

/// Demands that all servers hold all blocks.
fn all_there(report: &Value, servers: usize) -> Result<()> {
    let checked: Vec<&Value> = report["servers"].as_array().into_iter().flatten().collect();
    let is_right = |server: &&Value| {
        let check = server.get("checked").unwrap_or(server);
        check["blocks"].as_u64() > Some(0) && check["differing"].as_u64() == Some(0)
    };
    ensure!(
        checked.len() == servers && checked.iter().all(is_right),
        "{report:#}"
    );
    Ok(())
}

fn in_lab(plan: Plan<'_>, extra: &[&str], test: impl FnOnce(&mut Lab) -> Result<()>) {
    lab::in_lab("replicated writes", plan, extra, test);
}

fn create(lab: &Lab, receivers: &str) -> Result<()> {
    let controller = lab.socket("controller");
    let create = ["group", "create", GROUP, "--source", "h1", "--members", receivers];
    let rest = ["--pmtu", "4096", "--controller", &controller];
    lab.castnet(&create.into_iter().chain(rest).collect::<Vec<_>>())
        .map(drop)
}

/// By all three ways, with files at the servers; then the servers are started again, and still hold what was written last.
fn three_replicas(lab: &Lab, hosts: [&str; 3], count: &str) -> Result<()> {
    create(lab, &hosts.join(","))?;
    let mut servers = Servers::start(lab, &hosts, &["--size", "4MiB", "--file", "blocks.bin"]);
    // One file for all would be one server's.
    let refused = servers
        .as_ref()
        .err()
        .map(|error| format!("{error:#}"))
        .unwrap_or_default();
    ensure!(
        refused.contains("blocks.bin: another server has it open"),
        "{refused}"
    );
    servers = Servers::start(lab, &hosts, &["--size", "4MiB"]);
    let servers = servers?;
    let load = [
        "--size", "8KiB", "--count", count, "--depth", "32", "--group", GROUP,
    ];
    let (ok, rows) = client(lab, &servers, "compare", &load)?;
    let rows = rows.as_array().cloned().unwrap_or_default();
    ensure!(ok && rows.len() == 3, "{rows:#?}");
    let mut sent = Vec::new();
    for (row, (by, servers)) in rows.iter().zip([("one", 1), ("unicasts", 3), ("multicast", 3)]) {
        ensure!(
            row["by"] == by && row["writes"].as_u64() == count.parse().ok(),
            "{row:#}"
        );
        all_there(row, servers)?;
        let new = row["frames_sent"].as_u64().zip(row["frames_again"].as_u64());
        sent.push(new.map(|(all, again)| all - again).context("frames")?);
    }
    // The frames of the client: three times as many over three connections, and no more than for one server by multicast.
    ensure!(
        sent[1] > 2 * sent[0] && sent[2] < sent[0] + sent[0] / 2,
        "{sent:?}"
    );
    // What the last run has left, with its seed.
    let verify = ["--size", "8KiB", "--count", count, "--seed", "3"];
    let (ok, report) = client(lab, &servers, "verify", &verify)?;
    ensure!(ok, "{report:#}");
    all_there(&report, 3)?;
    // As if one write more had been made.
    let more = (count.parse::<u64>()? + 1).to_string();
    let (ok, report) = client(
        lab,
        &servers,
        "verify",
        &["--size", "8KiB", "--count", &more, "--seed", "3"],
    )?;
    ensure!(!ok, "{report:#}");
    for server in report["servers"].as_array().context("servers")? {
        ensure!(
            server["differing"] == 1 && server["first"][0]["write"].as_u64() == count.parse().ok(),
            "{report:#}"
        );
    }
    Ok(())
}

#[test]
fn three_servers_behind_three_switches_hold_every_block_with_one_percent_loss() {
    in_lab(TWO_TIERS, &["--fault", "loss=1%,seed=42"], |lab| {
        three_replicas(lab, ["h3", "h4", "h6"], "1000")
    });
}

/// Files of the servers' own, served again by other processes.
fn what_was_written_is_in_the_files(lab: &Lab) -> Result<()> {
    let hosts = ["h2", "h3", "h4"];
    let mut servers = Servers::start_with_files(lab, &hosts, &["--size", "1MiB"])?;
    let load = ["--size", "4KiB", "--count", "2000", "--group", GROUP];
    let (ok, report) = client(lab, &servers, "write", &load)?;
    ensure!(ok, "{report:#}");
    all_there(&report, 3)?;
    for (host, process) in &mut servers.0 {
        process.interrupt()?;
        process.succeed().with_context(|| format!("{host} ends"))?;
    }
    let servers = Servers::start_with_files(lab, &hosts, &[])?;
    let (ok, report) = client(lab, &servers, "verify", &["--size", "4KiB", "--count", "2000"])?;
    ensure!(ok, "{report:#}");
    all_there(&report, 3)?;
    let small = ["--size", "4KiB", "--span", "2MiB", "--group", GROUP];
    let (ok, failure) = client(lab, &servers, "write", &small)?;
    ensure!(
        !ok && failure
            .to_string()
            .contains("serves 1048576 bytes, and 2097152 bytes"),
        "{failure}"
    );
    Ok(())
}

/// The number after `key` in a text.
fn number_after(text: &str, key: &str) -> Option<String> {
    let rest = text.split_once(key)?.1.trim_start();
    Some(rest.chars().take_while(char::is_ascii_digit).collect())
}

/// Starts a client that writes for long, and waits until data is under way.
fn start_writing(lab: &Lab, servers: &Servers, by: &str) -> Result<Process> {
    let mut command = command(lab, "h1", "write")?;
    command.args(["--servers", &servers.addresses(lab), "--group", GROUP, "--by", by]);
    command.args(["--size", "8KiB", "--duration", "10m"]);
    let mut client = Process::start("client", lab.folder(), command)?;
    if by == "multicast" {
        client.wait_until("data was under way", |_| lab.data_in(GROUP, "sw") > Some(1000))?;
    }
    Ok(client)
}

/// The client of a server that is killed ends with the server's name. The others hold all that was acknowledged, in their files of an earlier
/// transfer.
fn a_server_is_killed(lab: &Lab) -> Result<()> {
    let hosts = ["h2", "h3", "h4"];
    let mut servers = Servers::start_with_files(lab, &hosts, &[])?;
    let mut writing = start_writing(lab, &servers, "multicast")?;
    servers.process("h3")?.kill();
    let status = writing.wait()?;
    let said = writing.output();
    ensure!(
        !status.success() && said.contains("h3 has ended its connection"),
        "{said}"
    );
    let number = |key| number_after(&said, key).with_context(|| said.clone());
    let (count, under_way) = (number("--count")?, number("--under-way")?);
    let dead = servers.0.remove(1);
    let verify = ["--size", "8KiB", "--count", &count, "--under-way", &under_way];
    let (ok, report) = client(lab, &servers, "verify", &verify)?;
    ensure!(ok, "{report:#}");
    all_there(&report, 2)?;
    // The way to the first server is measured before the one that fails.
    servers.0.push(dead);
    let load = ["--size", "8KiB", "--count", "100", "--group", GROUP];
    let (ok, rows) = client(lab, &servers, "compare", &load)?;
    let rows = rows.as_array().cloned().unwrap_or_default();
    ensure!(!ok && rows.len() == 1 && rows[0]["by"] == "one", "{rows:#?}");
    Ok(())
}

/// A server that is stopped for longer than its lease is put out of the group, and the group goes on without it: writes are
/// acknowledged that it lacks. The client must not end with success.
fn a_server_is_stopped(lab: &Lab) -> Result<()> {
    let hosts = ["h2", "h3", "h4"];
    let mut servers = Servers::start(lab, &hosts, &["--size", "4MiB"])?;
    let mut writing = start_writing(lab, &servers, "multicast")?;
    servers.process("h3")?.stop()?;
    writing.wait_until("h3 was put out", |_| lab.logs().contains("member lost"))?;
    let before = lab.data_in(GROUP, "sw");
    writing.wait_until("the others went on", |_| {
        lab.data_in(GROUP, "sw") > before.map(|frames| frames + 100)
    })?;
    servers.process("h3")?.go_on()?;
    let status = writing.wait()?;
    let said = writing.output();
    ensure!(
        !status.success() && said.contains("h3 was put out of group blocks"),
        "{said}"
    );
    Ok(())
}

#[test]
fn what_was_written_is_in_the_files_and_a_server_that_dies_or_hangs_is_an_error_of_the_client() {
    in_lab(STAR, &[], |lab| {
        create(lab, "h2,h3,h4")?;
        what_was_written_is_in_the_files(lab)?;
        a_server_is_killed(lab)?;
        a_server_is_stopped(lab)
    });
}
