//! The lab of `deploy/lab/netns.sh`, as an operator uses it.

use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use castnet_e2e::lab::write_random;
use castnet_e2e::net;
use castnet_e2e::process::{PATIENCE, castnet};
use castnet_wire::Psn;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde_json::Value;

/// A lab with a name of its own. It is removed on drop.
struct Lab {
    name: String,
    path: OsString,
    /// Losses on each link.
    fault: &'static str,
}

impl Lab {
    fn up(role: &str, options: &[&str]) -> Result<Self> {
        Self::with_faults("", role, options)
    }

    fn with_faults(fault: &'static str, role: &str, options: &[&str]) -> Result<Self> {
        let lab = Self {
            name: format!("{}-{role}", std::process::id()),
            path: std::env::var_os("PATH").unwrap_or_default(),
            fault,
        };
        lab.run("up", options)?;
        Ok(lab)
    }

    /// Those that run.
    fn processes(&self) -> Result<Vec<u32>> {
        let own = format!("CASTNET_LAB=/run/castnet-{}", self.name);
        let is_own = |environment: Vec<u8>| environment.split(|byte| *byte == 0).any(|v| v == own.as_bytes());
        let mut all = Vec::new();
        for process in std::fs::read_dir("/proc")? {
            let process = process?;
            let number = process.file_name().to_string_lossy().parse();
            let environment = std::fs::read(process.path().join("environ"));
            if let (Ok(number), true) = (number, environment.is_ok_and(is_own)) {
                all.push(number);
            }
        }
        all.sort_unstable();
        Ok(all)
    }

    fn command(&self, verb: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("/bin/bash");
        command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/lab/netns.sh"));
        command.arg(verb).args(arguments);
        command.env("LAB", &self.name).env("CASTNET", castnet());
        command.env("PATH", &self.path).env("FAULT", self.fault);
        command
    }

    fn run(&self, verb: &str, arguments: &[&str]) -> Result<Output> {
        let out = self.command(verb, arguments).output()?;
        let [stdout, stderr] = [&out.stdout, &out.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        ensure!(
            out.status.success(),
            "netns.sh {verb}: {}\n{stdout}\n{stderr}",
            out.status
        );
        Ok(out)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = self.command("down", &[]).output();
    }
}

const BENCH: [&str; 6] = [
    "--collectives",
    "allreduce,barrier",
    "--bytes",
    "4K",
    "--budget",
    "5ms",
];

/// The sides in a JSON file of a bench, each of which must have both collectives.
fn sides(json: &Path) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(json)?;
    let rows = text
        .lines()
        .map(serde_json::from_str::<Value>)
        .collect::<Result<Vec<_>, _>>()?;
    let mut sides: Vec<_> = rows
        .iter()
        .filter_map(|row| row["path"].as_str())
        .map(str::to_owned)
        .collect();
    sides.sort();
    let all = sides.len();
    sides.dedup();
    ensure!(all == rows.len() && all == 2 * sides.len(), "{text}");
    ensure!(
        rows.iter().all(|row| row["time_median_us"].as_f64() > Some(0.0)),
        "{text}"
    );
    Ok(sides)
}

fn is_installed(program: &str) -> bool {
    Command::new(program)
        .arg("--version")
        .output()
        .is_ok_and(|out| out.status.success())
}

#[test]
fn a_bench_over_veth_pairs_has_open_mpi_beside_it() -> Result<()> {
    if net::is_skipped("netns.sh over veth pairs") {
        return Ok(());
    }
    let needed = [
        ("mpirun", "openmpi-bin"),
        ("mpicc", "libopenmpi-dev"),
        ("ethtool", "ethtool"),
    ];
    if let Some((program, package)) = needed.into_iter().find(|(program, _)| !is_installed(program)) {
        net::skip(
            "netns.sh bench --mpi",
            &format!("needs {program} (package {package})"),
        );
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let [json, svg] = ["all.json", "all.svg"].map(|name| folder.path().join(name));
    let lab = Lab::up("veth", &["--hosts", "3"])?;
    let files = ["--json", &json.to_string_lossy(), "--svg", &svg.to_string_lossy()];
    let out = lab.run("bench", &[&["--mpi"][..], &BENCH, &files].concat())?;
    let table = String::from_utf8_lossy(&out.stdout);
    ensure!(
        table.contains("OPEN MPI, GSO OFF") && table.lines().count() == 6,
        "{table}"
    );
    ensure!(sides(&json)? == ["Open MPI", "Open MPI, gso off", "between-hosts", "in-network"]);
    ensure!(std::fs::read_to_string(&svg)?.contains("Open MPI, gso off"));
    // With more ranks than hosts there is nothing between hosts.
    let mut more = lab.command("bench", &[&BENCH[..], &files].concat());
    let out = more.env("RANKS", "4").output()?;
    ensure!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    ensure!(sides(&json)? == ["in-network"]);
    replicated(&lab, 2)?;
    // Once more: the servers of before have ended.
    replicated(&lab, 2)
}

/// Two leaves with two hosts each, and a spine, in both modes of collectives.
#[test]
fn a_tree_of_switches_sums_for_all_hosts() -> Result<()> {
    if net::is_skipped("netns.sh up tree") {
        return Ok(());
    }
    let lab = Lab::up("tree", &["tree"])?;
    for mode in ["translated", "augmented"] {
        let flags = ["--bytes", "64K", "--iters", "3", "--mode", mode];
        let out = lab.run("allreduce", &flags)?;
        let table = String::from_utf8_lossy(&out.stdout);
        let is_right = table.contains("wrong elements: 0") && table.contains("at leaf1, leaf2");
        ensure!(is_right, "{mode}: {table}");
    }
    Ok(())
}

/// Sends a file, and returns what the members say. `group` are flags of `castnet group create`.
fn send(lab: &Lab, file: &Path, group: &str) -> Result<Output> {
    let mut command = lab.command("send", &[&file.to_string_lossy()]);
    Ok(command.env("GROUP", group).output()?)
}

/// Bytes that a switch has sent by a port.
fn sent(lab: &Lab, switch: &str, port: &str) -> Result<u64> {
    let agent = format!("unix:/run/castnet-{}/{switch}.sock", lab.name);
    let out = Command::new(castnet())
        .args(["port", "--agent", &agent, "--output", "json"])
        .output()?;
    let ports: Value = serde_json::from_slice(&out.stdout)?;
    let mut ports = ports.as_array().into_iter().flatten();
    let port = ports.find(|found| found["name"] == port).context("a port")?;
    port["tx_bytes"].as_u64().with_context(|| port.to_string())
}

/// Those of the switch at h1 to the network.
fn sent_by_first(lab: &Lab) -> Result<u64> {
    sent(lab, "relay1", "net")
}

/// Waits until something holds.
fn until(what: &str, is: &dyn Fn() -> Result<bool>) -> Result<()> {
    let begun = Instant::now();
    while !is()? {
        ensure!(begun.elapsed() < PATIENCE, "not {what}");
        nix::poll::poll(&mut [], 20_u8).ok();
    }
    Ok(())
}

/// There is no Castnet switch between the hosts: those next to them pass the file on. Each copy of the first relay leaves it once at least.
fn shapes(lab: &Lab, file: &Path, size: u64) -> Result<()> {
    for (shape, copies) in [("star", 3), ("chain", 1), ("auto", 2)] {
        let before = sent_by_first(lab)?;
        let out = send(lab, file, &format!("--distribution edge:{shape} --repair switch"))?;
        let [said, errors] = [&out.stdout, &out.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        ensure!(out.status.success(), "{shape}: {said}\n{errors}");
        let bytes = sent_by_first(lab)? - before;
        ensure!(
            bytes > copies * size,
            "{shape}: {bytes} bytes for {copies} copies"
        );
    }
    Ok(())
}

/// The last packet that a host has acknowledged to the switch next to it.
fn acknowledged(lab: &Lab, host: &str) -> Result<Psn> {
    let controller = format!("unix:/run/castnet-{}/controller.sock", lab.name);
    let out = Command::new(castnet())
        .args(["group", "show", "lab-file", "--controller", &controller])
        .args(["--output", "json"])
        .output()?;
    let shown: Value = serde_json::from_slice(&out.stdout)?;
    let switches = shown["switches"].as_array().into_iter().flatten();
    let mut paths = switches.flat_map(|switch| switch["paths"].as_array().into_iter().flatten());
    let path = paths.find(|path| path["next_hop"] == host);
    let path = path.with_context(|| format!("{host}: {shown}"))?;
    let psn = path["ack_psn"].as_u64().with_context(|| path.to_string())?;
    Ok(Psn::new(u32::try_from(psn)?))
}

/// The receiver at the second relay of a chain hangs. Those below it get what its relay has got, and the file goes on with it.
fn an_application_hangs(lab: &Lab, file: &Path) -> Result<()> {
    let mut command = lab.command("send", &[&file.to_string_lossy()]);
    let group = "--distribution edge:chain --repair switch --rate 10M";
    let command = command.env("GROUP", group).stdout(Stdio::piped());
    let (running, before) = (command.stderr(Stdio::piped()).spawn()?, sent_by_first(lab)?);
    until("sent", &|| Ok(sent_by_first(lab)? > before + 200_000))?;
    // The programs of h2 but its relay.
    let relay = std::fs::read_to_string(format!("/run/castnet-{}/relay2.pid", lab.name))?;
    let pids = Command::new("ip")
        .args(["netns", "pids", &format!("castnet-{}-h2", lab.name)])
        .output()?;
    let pids = String::from_utf8(pids.stdout)?;
    let pids: Vec<&str> = pids.lines().filter(|pid| *pid != relay.trim()).collect();
    let signal = |signal: &str| Command::new("kill").arg(signal).args(&pids).status();
    ensure!(signal("-STOP")?.success(), "{pids:?}");
    // The last one of the chain gets packets that h2 does not take. Those without a request for an acknowledgement may not be acknowledged.
    let ends = || ["h2", "h4"].map(|host| acknowledged(lab, host));
    until("sent to h4 beyond h2", &|| {
        let [Ok(h2), Ok(h4)] = ends() else {
            return Ok(false);
        };
        Ok(h4.diff(h2) >= 8)
    })
    .with_context(|| format!("{:?}", ends()))?;
    ensure!(signal("-CONT")?.success(), "{pids:?}");
    let out = running.wait_with_output()?;
    let [said, errors] = [&out.stdout, &out.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    ensure!(out.status.success(), "{said}\n{errors}");
    Ok(())
}

/// A relay in the middle of a chain dies. The receiver behind it is put out, and the others get every byte over the relays that are left.
fn a_relay_dies(lab: &Lab, file: &Path) -> Result<()> {
    let mut command = lab.command("send", &[&file.to_string_lossy()]);
    let group =
        "--distribution edge:chain --repair switch --rate 10M --on-member-stall evict --member-stall-ms 3000";
    let running = command
        .env("GROUP", group)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let before = sent_by_first(lab)?;
    until("sent", &|| Ok(sent_by_first(lab)? > before + 500_000))?;
    let pid = std::fs::read_to_string(format!("/run/castnet-{}/relay3.pid", lab.name))?;
    ensure!(Command::new("kill").args(["-9", pid.trim()]).status()?.success());
    let out = running.wait_with_output()?;
    let [said, errors] = [&out.stdout, &out.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    let has = |host: &str| said.contains(&format!("{host} has every byte"));
    ensure!(has("h2") && has("h4") && !has("h3"), "{said}\n{errors}");
    ensure!(
        errors.contains("host h3 is cut off: switch relay3 is down"),
        "{errors}"
    );
    Ok(())
}

#[test]
fn relays_at_hosts_pass_a_file_on_also_past_one_that_hangs_or_dies() -> Result<()> {
    if net::is_skipped("netns.sh up relays") {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let [small, large] = ["small", "large"].map(|name| folder.path().join(name));
    let size = 2_000_001;
    write_random(&small, size, 5)?;
    // At 10 Mb/s it takes 8 s: nobody is late for its middle.
    write_random(&large, 10_000_000, 6)?;
    let lab = Lab::with_faults("loss=0.1%,seed=4", "relays", &["relays", "--hosts", "4"])?;
    shapes(&lab, &small, size as u64)?;
    an_application_hangs(&lab, &large)?;
    a_relay_dies(&lab, &large)?;
    // By now the number of the dead relay may be that of any other process.
    let mut other = Command::new("sleep").arg("600").spawn()?;
    let file = format!("/run/castnet-{}/relay3.pid", lab.name);
    std::fs::write(file, other.id().to_string())?;
    lab.run("down", &[])?;
    let lives = other.try_wait()?.is_none();
    other.kill()?;
    other.wait()?;
    ensure!(lives, "a process that is none of the lab was killed with it");
    Ok(())
}

/// The times between hosts and what trees make of them, and the figures of NIC-based multicast over Myrinet: a row for each size, with the
/// times of relays and of hosts.
#[test]
fn the_times_of_relays_are_measured_and_stand_beside_those_of_hosts() -> Result<()> {
    if net::is_skipped("netns.sh calibrate, multisend, multicast, skew") {
        return Ok(());
    }
    let lab = Lab::up("times", &["relays", "--hosts", "4"])?;
    let out = lab.run(
        "calibrate",
        &[
            "--bytes",
            "1K,1M",
            "--output",
            "json",
            "--iters",
            "50",
            "--qp-timeout",
            "18",
        ],
    )?;
    let found: Value = serde_json::from_slice(&out.stdout)?;
    let [hop, copy, latency] =
        ["hop_us", "copy_us", "latency"].map(|name| found[name].as_f64().unwrap_or(0.0));
    ensure!(hop > 0.0 && copy > 0.0 && latency >= 1.0, "{found}");
    let messages = found["messages"].as_array().context("messages")?;
    ensure!(messages.len() == 2, "{found}");
    for message in messages {
        ensure!(
            message["auto_us"].as_f64() <= message["chain_us"].as_f64(),
            "{message}"
        );
    }
    for (verb, hosts) in [("multisend", "3"), ("multicast", "4")] {
        let out = lab.command(verb, &[]).env("COUNT", "10").output()?;
        let text = String::from_utf8_lossy(&out.stdout);
        ensure!(out.status.success(), "{verb}: {out:?}");
        let rows: Vec<Vec<&str>> = text
            .lines()
            .skip(1)
            .map(|row| row.split_whitespace().collect())
            .collect();
        ensure!(rows.len() == 6, "{text}");
        for row in rows {
            let [relay, host, factor] = [2, 3, 4].map(|at| row[at].parse::<f64>().unwrap_or(0.0));
            let is_ratio = (factor - host / relay).abs() <= 0.01 * (factor + 1.0);
            ensure!(row[0] == hosts && relay > 0.0 && host > 0.0 && is_ratio, "{text}");
        }
    }
    let flags = [
        "--bytes", "1,8K", "--skew", "0,2ms", "--iters", "10", "--output", "json",
    ];
    let out = lab.command("skew", &flags).output()?;
    ensure!(out.status.success(), "skew: {out:?}");
    let skews: Value = serde_json::from_slice(&out.stdout)?;
    let points = skews["points"].as_array().context("no points")?;
    ensure!(points.len() == 4, "{skews}");
    for point in points {
        let time = |way: &str, which: &str| point[way][which].as_f64().unwrap_or(0.0);
        let times =
            ["multicast", "hosts"].map(|way| time(way, "mean_us") > 0.0 && time(way, "last_us") > 0.0);
        ensure!(
            point["ranks"] == 4 && point["wrong"] == 0 && times == [true; 2],
            "{point}"
        );
    }
    Ok(())
}

/// Servers that hold all that was written in one way.
fn right(row: &Value) -> usize {
    let servers = row["servers"].as_array().into_iter().flatten();
    servers
        .filter(|server| server["checked"]["differing"] == 0)
        .count()
}

/// Block writes by all three ways of Table I; each server holds all blocks of each.
fn replicated(lab: &Lab, servers: usize) -> Result<()> {
    let out = lab.run(
        "replicate",
        &["--size", "4KiB", "--count", "200", "--output", "json"],
    )?;
    let rows: Vec<Value> = serde_json::from_slice(&out.stdout)?;
    let ways = ["one", "unicasts", "multicast"];
    ensure!(rows.len() == 3, "{rows:#?}");
    for ((row, way), servers) in rows.iter().zip(ways).zip([1, servers, servers]) {
        ensure!(
            row["by"] == way && row["writes"] == 200 && right(row) == servers,
            "{row:#}"
        );
        ensure!(
            row["iops"].as_f64() > Some(0.0) && row["latency_us"]["p99"].as_f64() > Some(0.0),
            "{row:#}"
        );
    }
    Ok(())
}

/// Values to acceptors and a model to readers over the ToRs of a Shufflecast.
#[test]
fn values_and_a_model_go_over_splitters_that_lose() -> Result<()> {
    if net::is_skipped("netns.sh up shufflecast") {
        return Ok(());
    }
    let lab = Lab::with_faults("loss=0.1%,seed=42", "splitters", &["shufflecast"])?;
    let flags = ["--acceptors", "3,7", "--count", "5", "--output", "json"];
    let out = lab.run("consensus", &flags)?;
    let shown: Value = serde_json::from_slice(&out.stdout)?;
    let runs = shown["runs"].as_array().into_iter().flatten().map(|run| {
        let by = run["by"].as_str().unwrap_or_default();
        let has_all = run["writes"] == 5 && run["acceptors"] == right(run);
        (by, run["accepted_by"].as_u64(), has_all)
    });
    let ways = [2, 3, 3, 4, 7, 7]
        .into_iter()
        .zip(["unicasts", "unicasts", "multicast"].into_iter().cycle());
    ensure!(
        runs.eq(ways.map(|(accepted_by, by)| (by, Some(accepted_by), true))),
        "{shown:#}"
    );
    let times = shown["improvements"].as_array().into_iter().flatten();
    ensure!(
        times.filter(|times| times["p99"].as_f64() > Some(0.0)).count() == 4,
        "{shown:#}"
    );

    let out = lab.run("model", &["1", "--output", "json"])?;
    let shown = serde_json::Deserializer::from_slice(&out.stdout).into_iter();
    let shown = shown.collect::<Result<Vec<Value>, _>>()?;
    let [unicasts, multicast, chain] = &shown[..] else {
        bail!("{shown:#?}");
    };
    for (row, way) in [(unicasts, "unicasts"), (multicast, "multicast")] {
        ensure!(
            row["by"] == way && row["writes"] == 1 && right(row) == 7,
            "{row:#}"
        );
    }
    ensure!(
        chain["ranks"] == 8 && chain["path"] == "between-hosts" && chain["wrong"] == 0,
        "{chain:#}"
    );
    // What h2 has got came from h1 over the splitters of its ToR and of a relay.
    let relayed = [("tor1", "to5"), ("tor5", "to2")].map(|(tor, port)| sent(&lab, tor, port));
    for bytes in relayed {
        ensure!(bytes? > 1_000_000);
    }
    let out = lab.run("consensus", &["--acceptors", "3", "--count", "2"])?;
    let [table, bounds] = [&out.stdout, &out.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    let has_last = table
        .lines()
        .last()
        .is_some_and(|line| line.starts_with("paper: Paxos"));
    ensure!(
        has_last && bounds.contains("Splitters are emulated"),
        "{table}\n{bounds}"
    );
    Ok(())
}

/// A core without state over two pods: the ToR of the source sends two copies and then, when the router above the pods has a rule, one.
#[test]
fn a_file_goes_over_a_core_of_pods() -> Result<()> {
    if net::is_skipped("netns.sh up pods") {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("file");
    let size = 20_000_000;
    write_random(&file, size, 7)?;
    let lab = Lab::up("pods", &["pods"])?;
    let out = send(&lab, &file, "--distribution static --rate 80M")?;
    let [said, errors] = [&out.stdout, &out.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    ensure!(out.status.success(), "{said}\n{errors}");
    ensure!(said.matches("has every byte").count() == 7, "{said}");
    let copies = sent(&lab, "tor1", "pod1")? as f64 / size as f64;
    ensure!(copies > 1.0, "{copies} copies");
    Ok(())
}

/// A folder with all programs of this machine but Open MPI's.
fn programs_without_mpi(folder: &Path) -> Result<PathBuf> {
    let programs = folder.join("bin");
    std::fs::create_dir(&programs)?;
    for path in std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()) {
        for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
            if !entry.file_name().to_string_lossy().starts_with("mpi") {
                let _ = symlink(entry.path(), programs.join(entry.file_name()));
            }
        }
    }
    Ok(programs)
}

#[test]
fn hosts_over_shared_memory_do_all_that_hosts_over_veth_pairs_do() -> Result<()> {
    if net::is_skipped("netns.sh over memif") {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let mut lab = Lab::up("memif", &["--memif", "--hosts", "3"])?;
    let file = folder.path().join("file");
    write_random(&file, 1 << 20, 5)?;
    let out = lab.run("send", &[&file.to_string_lossy()])?;
    let text = String::from_utf8_lossy(&out.stdout);
    ensure!(
        ["h2", "h3"]
            .iter()
            .all(|host| text.contains(&format!("{host} has every byte"))),
        "{text}"
    );
    lab.run("allreduce", &["--bytes", "4K", "--iters", "3"])?;
    replicated(&lab, 2)?;
    let out = lab.command("allreduce", &[]).env("RANKS", "4").output()?;
    ensure!(String::from_utf8_lossy(&out.stderr).contains("--memif --hosts 4"));

    lab.path = programs_without_mpi(folder.path())?.into();
    let json = folder.path().join("all.json");
    let out = lab.run(
        "bench",
        &[&["--mpi", "--json", &json.to_string_lossy()][..], &BENCH].concat(),
    )?;
    let remarks = String::from_utf8_lossy(&out.stderr);
    ensure!(
        remarks.contains("which needs the packages: openmpi-bin libopenmpi-dev\n"),
        "{remarks}"
    );
    ensure!(sides(&json)? == ["between-hosts", "in-network"]);

    // Its result beside another one.
    let beside = format!("before=cat {}", json.display());
    let again = folder.path().join("again.json");
    let files = ["--json", &again.to_string_lossy(), "--beside", &beside];
    lab.run("bench", &[&files[..], &BENCH].concat())?;
    ensure!(sides(&again)? == ["before", "between-hosts", "in-network"]);
    ends_in_the_middle(&lab, &folder.path().join("long"))
}

/// A `send` that is ended leaves no process and no group.
fn ends_in_the_middle(lab: &Lab, file: &Path) -> Result<()> {
    std::fs::File::create(file)?.set_len(1 << 30)?;
    let controller = std::fs::read_to_string(format!("/run/castnet-{}/controllers", lab.name))?;
    let is_at = |phase: &str| -> Result<bool> {
        let list = [
            "group",
            "list",
            "--output",
            "json",
            "--controller",
            controller.trim(),
        ];
        let out = Command::new(castnet()).args(list).output()?;
        let groups: Value = serde_json::from_slice(&out.stdout)?;
        let groups = groups.as_array().context("a list")?;
        Ok(match phase {
            "" => groups.is_empty(),
            phase => groups.iter().any(|group| group["phase"] == phase),
        })
    };
    let until = |phase: &str| -> Result<()> {
        let start = Instant::now();
        while !is_at(phase)? {
            ensure!(start.elapsed() < PATIENCE, "no group is {phase:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    };
    let before = lab.processes()?;
    let mut send = lab.command("send", &[&file.to_string_lossy()]);
    send.env("GROUP", "--rate 1M")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut send = send.spawn()?;
    until("active")?;
    nix::sys::signal::kill(Pid::from_raw(send.id() as i32), Signal::SIGTERM)?;
    let status = send.wait()?;
    ensure!(status.code() == Some(143), "{status}");
    let after = lab.processes()?;
    ensure!(after == before, "{after:?}, before {before:?}");
    until("")
}

#[test]
fn what_is_wrong_with_a_lab_is_named() -> Result<()> {
    if net::is_skipped("netns.sh with wrong flags") {
        return Ok(());
    }
    let lab = Lab {
        name: format!("{}-none", std::process::id()),
        fault: "",
        path: std::env::var_os("PATH").unwrap_or_default(),
    };
    for (verb, flags, wrong) in [
        ("up", &["--hosts", "1"][..], "--hosts takes 2 to 32, not \"1\""),
        ("up", &["--hosts", "08"], "not \"08\""),
        ("up", &["--hosts", "33"], "not \"33\""),
        ("up", &["--memif", "one-armed"], "--memif"),
        ("up", &["--shared"], "not --shared"),
        ("up", &["shufflecast", "--hosts", "4"], "has 8 hosts, not 4"),
        ("up", &["pods", "tree"], "takes one of"),
        ("model", &["0"], "not \"0\""),
        ("bench", &["--mpi"], "netns.sh up"),
    ] {
        let out = lab.command(verb, flags).output()?;
        let text = String::from_utf8_lossy(&out.stderr);
        ensure!(
            !out.status.success() && text.contains(wrong),
            "{verb} {flags:?}: {text}"
        );
    }
    // It can be repeated.
    let out = lab.run("down", &[])?;
    let text = String::from_utf8_lossy(&out.stderr);
    ensure!(
        out.stdout.is_empty() && text.contains(&format!("no lab {}", lab.name)),
        "{out:?}"
    );
    for ranks in ["0", "x", "08", "-1"] {
        for verb in ["allreduce", "bench"] {
            let out = lab.command(verb, &[]).env("RANKS", ranks).output()?;
            let text = String::from_utf8_lossy(&out.stderr);
            ensure!(
                !out.status.success() && text.contains(&format!("not \"{ranks}\"")),
                "{verb}: {text}"
            );
        }
    }
    for name in ["switch/", "../castnet-switch", "a b", "."] {
        let out = lab.command("status", &[]).env("LAB", name).output()?;
        let text = String::from_utf8_lossy(&out.stderr);
        ensure!(
            !out.status.success() && text.contains("letters, digits"),
            "{name}: {text}"
        );
    }
    // Without the refusal, this verb would do no harm to a service of this machine.
    for service in ["switch", "controller"] {
        let out = lab.command("status", &[]).env("LAB", service).output()?;
        let text = String::from_utf8_lossy(&out.stderr);
        ensure!(
            !out.status.success() && text.contains("the folder of a service"),
            "{text}"
        );
    }
    Ok(())
}
