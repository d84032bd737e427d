//! Switches, hosts and a controller as an operator would start them, each in a namespace of its own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;

pub use crate::content::{Content, Sent, digest, part, write_random};
use crate::net::{self, Namespace};
use crate::process::{Process, castnet, castnet_lab};

/// MTU of the veth pairs: the largest RoCE path MTU and all headers fit.
const MTU: u32 = 4300;

/// A switch of a lab's plan: its name, and the names of what its ports lead to, hosts or switches. One whose name begins with `br` is an
/// ordinary switch, a bridge of the kernel; one with `rt` a router, of the kernel as well ([`ROUTED`], [`ROUTED_LEAVES`]). A switch `core` runs
/// no groups.
pub type Plan<'a> = &'a [(&'a str, &'a [&'a str])];

/// One switch and four hosts.
pub const STAR: Plan<'static> = &[("sw", &["h1", "h2", "h3", "h4"])];

/// Three switches in two tiers, and six hosts.
pub const TWO_TIERS: Plan<'static> = &[
    ("spine", &["leaf1", "leaf2"]),
    ("leaf1", &["h1", "h2", "h3"]),
    ("leaf2", &["h4", "h5", "h6"]),
];

/// Two leaves with two hosts each, and two spines. Where everything is flooded, one of the spines must not.
pub const TWO_SPINES: Plan<'static> = &[
    ("spine1", &["leaf1", "leaf2"]),
    ("spine2", &["leaf1", "leaf2"]),
    ("leaf1", &["h1", "h2"]),
    ("leaf2", &["h3", "h4"]),
];

/// A switch with one port, beside an ordinary switch that all hosts hang on.
pub const ONE_ARMED: Plan<'static> = &[
    ("br1", &["sw", "h1", "h2", "h3", "h4", "h5", "h6", "h7", "h8"]),
    ("sw", &[]),
];

/// A switch with one port, beside a router: hN is 10.0.N.1, its gateway 10.0.N.254, and 10.200.0.0/24 is routed to the switch.
pub const ROUTED: Plan<'static> = &[("rt1", &["sw", "h1", "h2", "h3", "h4"]), ("sw", &[])];

/// Two switches with a router between them. The hosts of leafN are in 10.20N.0.0/24, hM is 10.20N.0.M, and the group's address there
/// is in that network too; the router is 10.20N.0.254.
pub const ROUTED_LEAVES: Plan<'static> = &[
    ("rt1", &["leaf1", "leaf2"]),
    ("leaf1", &["h1", "h2"]),
    ("leaf2", &["h3", "h4"]),
];

/// One transfer of a file from a host to others.
#[derive(Clone, Copy, Debug)]
pub struct Transfer<'a> {
    /// The group's name.
    pub group: &'a str,
    /// The host that sends.
    pub source: &'a str,
    /// The hosts that receive.
    pub receivers: &'a [&'a str],
    /// `send` or `write`.
    pub op: &'a str,
    /// Bytes of the file.
    pub size: usize,
    /// What the file's bytes are drawn from.
    pub seed: u64,
}

/// A switch, and how it was started.
struct Switch {
    name: String,
    ports: Vec<String>,
    extra: Vec<String>,
    process: Process,
}

fn is_ordinary(switch: &str) -> bool {
    switch.starts_with("br") || switch.starts_with("rt")
}

fn mac(namespace: &Namespace, interface: &str) -> Result<String> {
    let path = format!("/sys/class/net/{interface}/address");
    let out = namespace.command("cat").arg(path).output()?;
    Ok(text(&out.stdout).trim().to_string())
}

/// Makes a namespace the bridge or router of that name, with these ports.
fn be_ordinary(switch: &str, namespace: &Namespace, ports: &[&str]) -> Result<()> {
    if switch.starts_with("br") {
        return net::bridge(namespace, ports, MTU);
    }
    let forward = ["-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"];
    namespace.command("sh").args(forward).output()?;
    for port in ports {
        let name = namespace.name();
        // The router asks for each group by ARP, and the switch answers.
        let line = match (port.strip_prefix('h'), port.strip_prefix("leaf")) {
            (Some(number), _) => format!("-n {name} addr add 10.0.{number}.254/24 dev {port}"),
            (_, Some(number)) => format!("-n {name} addr add 10.20{number}.0.254/24 dev {port}"),
            _ => format!("-n {name} route add 10.200.0.0/24 dev {port}"),
        };
        net::ip(&line)?;
    }
    Ok(())
}

/// A running lab.
pub struct Lab {
    // Dropped in this order: processes before the namespaces they live in, the folder last.
    controller: Option<Process>,
    switches: Vec<Switch>,
    hosts: Vec<(String, Namespace)>,
    /// Those that are not [`Lab::ip`].
    addresses: BTreeMap<String, String>,
    _fabric: Vec<(String, Namespace)>,
    folder: TempDir,
}

/// Runs `test` in a lab of `plan`, its switches with `extra` flags; or says why `what` cannot be tested.
pub fn in_lab(what: &str, plan: Plan<'_>, extra: &[&str], test: impl FnOnce(&mut Lab) -> Result<()>) {
    in_lab_of(what, plan, |_| extra, test);
}

/// The same with flags of each switch, by its name.
pub fn in_lab_of<'f>(
    what: &str,
    plan: Plan<'_>,
    flags: impl Fn(&str) -> &'f [&'f str],
    test: impl FnOnce(&mut Lab) -> Result<()>,
) {
    let flags = |_: &Lab, switch: &str| Ok(flags(switch).iter().map(|flag| flag.to_string()).collect());
    in_lab_with(what, plan, flags, test);
}

/// The same with flags of each switch that depend on what was built, such as a rule file with the interfaces' addresses.
pub fn in_lab_with(
    what: &str,
    plan: Plan<'_>,
    flags: impl Fn(&Lab, &str) -> Result<Vec<String>>,
    test: impl FnOnce(&mut Lab) -> Result<()>,
) {
    if net::is_skipped(what) {
        return;
    }
    let mut lab = Lab::start_with(plan, flags).unwrap_or_else(|e| panic!("the lab does not start: {e:#}"));
    if let Err(error) = test(&mut lab) {
        panic!("{error:#}\n{}", lab.logs());
    }
}

impl Lab {
    /// Builds the namespaces of `plan`, starts its switches with `extra` flags and the controller, and waits until all are
    /// ready. Ports in `extra` replace those of the plan.
    fn start_with(plan: Plan<'_>, extra: impl Fn(&Self, &str) -> Result<Vec<String>>) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("castnet-e2e-").tempdir()?;
        let mut fabric = Vec::new();
        for (switch, _) in plan {
            fabric.push((switch.to_string(), Namespace::new(switch)?));
        }
        let mut hosts: Vec<(String, Namespace)> = Vec::new();
        for (switch, ends) in plan {
            for end in *ends {
                let here = &find(&fabric, switch).context("a switch of the plan")?;
                if let Some(other) = find(&fabric, end) {
                    net::veth(here, end, other, switch, MTU)?;
                    if is_ordinary(end) {
                        be_ordinary(end, other, &[switch])?;
                    }
                } else {
                    let namespace = Namespace::new(end)?;
                    net::veth(here, end, &namespace, "eth0", MTU)?;
                    hosts.push((end.to_string(), namespace));
                }
            }
            if is_ordinary(switch) {
                let namespace = find(&fabric, switch).context("a switch of the plan")?;
                be_ordinary(switch, namespace, ends)?;
            }
        }
        let routed = |leaf: &str| {
            let mut routers = plan.iter().filter(|(switch, _)| switch.starts_with("rt"));
            routers.any(|(_, ends)| ends.contains(&leaf))
        };
        let leaves = plan.iter().filter(|(switch, _)| routed(switch));
        let addresses = leaves.flat_map(|(leaf, hosts)| {
            let network = leaf.trim_start_matches("leaf");
            let ip = move |host: &str| format!("10.20{network}.0.{}", host.trim_start_matches('h'));
            hosts.iter().map(move |host| (host.to_string(), ip(host)))
        });
        let mut lab = Self {
            controller: None,
            switches: Vec::new(),
            addresses: addresses.collect(),
            hosts,
            _fabric: fabric,
            folder,
        };
        for (switch, ends) in plan.iter().filter(|(switch, _)| !is_ordinary(switch)) {
            let up = plan
                .iter()
                .filter(|(_, others)| others.contains(switch))
                .map(|(name, _)| *name);
            let ports: Vec<String> = ends.iter().copied().chain(up).map(String::from).collect();
            let extra = extra(&lab, switch)?;
            let process = lab.start_switch(switch, &ports, &extra)?;
            lab.switches.push(Switch {
                name: switch.to_string(),
                ports,
                extra,
                process,
            });
        }
        lab.start_controller()?;
        lab.wait_for_links()?;
        Ok(lab)
    }

    fn start_switch(&self, name: &str, ports: &[String], extra: &[String]) -> Result<Process> {
        let namespace = find(&self._fabric, name).context("a switch of the plan")?;
        let mut command = namespace.command(castnet());
        command
            .args(["switch", "--name", name, "--listen", &self.socket(name)])
            .args(extra);
        if !extra.iter().any(|flag| flag == "--port") {
            for port in ports {
                command.args(["--port", &format!("{port}=af_packet:{port}")]);
            }
        }
        self.ready(name, command)
    }

    /// Kills a switch as `kill -9` does. Its links keep their carrier.
    pub fn kill_switch(&mut self, name: &str) -> Result<()> {
        let at = self.position(name)?;
        self.switches[at].process.kill();
        Ok(())
    }

    /// Kills a switch, and starts it again as it was started first.
    pub fn restart_switch(&mut self, name: &str) -> Result<()> {
        self.kill_switch(name)?;
        let at = self.position(name)?;
        let Switch { ports, extra, .. } = &self.switches[at];
        let process = self.start_switch(name, ports, extra)?;
        self.switches[at].process = process;
        Ok(())
    }

    fn position(&self, switch: &str) -> Result<usize> {
        let at = self.switches.iter().position(|s| s.name == switch);
        at.with_context(|| format!("no switch {switch}"))
    }

    /// The process of a switch.
    pub fn switch(&self, name: &str) -> Result<&Process> {
        Ok(&self.switches[self.position(name)?].process)
    }

    /// Takes the link of a switch's port down, or up again.
    pub fn set_link(&self, switch: &str, port: &str, up: bool) -> Result<()> {
        let namespace = find(&self._fabric, switch).context("a switch of the plan")?;
        let mut command = namespace.command("ip");
        command.args(["link", "set", port, if up { "up" } else { "down" }]);
        let out = command.output()?;
        if !out.status.success() {
            bail!("{switch}: ip link set {port}: {}", text(&out.stderr));
        }
        Ok(())
    }

    /// Limits what a switch's port sends to `rate` (as `tc` writes it), with a queue of `limit` bytes in front: a slow link.
    pub fn shape(&self, switch: &str, port: &str, rate: &str, limit: u32) -> Result<()> {
        let namespace = find(&self._fabric, switch).context("a switch of the plan")?;
        let mut command = namespace.command("tc");
        command.args(["qdisc", "replace", "dev", port, "root", "tbf", "rate", rate]);
        command.args(["burst", "16kb", "limit", &limit.to_string()]);
        let out = command.output().context("tc of iproute2")?;
        if !out.status.success() {
            bail!("{switch}: {command:?}: {}", text(&out.stderr));
        }
        Ok(())
    }

    /// Starts the controller, on the store of the one before if there was one, and with the file `topology.toml` of the lab's folder
    /// where it has one.
    pub fn start_controller(&mut self) -> Result<()> {
        let mut command = Command::new(castnet());
        command
            .arg("controller")
            .args(["--listen", &self.socket("controller")]);
        // A busy machine takes long to start a switch again.
        let config = self.folder.path().join("controller.toml");
        std::fs::write(&config, "[timeouts]\nhost_ms = 60000\n")?;
        command.arg("--config").arg(config);
        command
            .arg("--store")
            .arg(self.folder.path().join("controller.redb"));
        let topology = self.folder.path().join("topology.toml");
        if topology.exists() {
            command.arg("--topology").arg(topology);
        }
        // One that only routes is nothing to the controller.
        let only_routes = |name: &str| name == "core" || name.starts_with("agg");
        for Switch { name, .. } in self.switches.iter().filter(|switch| !only_routes(&switch.name)) {
            command.args(["--switch", &format!("{name}={}", self.socket(name))]);
        }
        self.controller = Some(self.ready("controller", command)?);
        Ok(())
    }

    /// Waits until `done` returns no error, while the controller runs: for what it refuses until switches have reported their links.
    pub fn wait_for(&mut self, what: &str, mut done: impl FnMut(&Self) -> Result<()>) -> Result<()> {
        let mut controller = self.controller.take().context("a controller")?;
        let mut last = None;
        let waited = controller.wait_until(what, |_| {
            last = done(self).err();
            last.is_none()
        });
        self.controller = Some(controller);
        waited.with_context(|| last.map_or_else(String::new, |error| format!("{error:#}")))
    }

    /// Waits until each switch has reported its links, and all links are up. Before, a group can be created, and its installation
    /// be refused, or be without the members behind a link that is still down.
    fn wait_for_links(&mut self) -> Result<()> {
        self.wait_for("all links were up", |lab| {
            let shown = lab.castnet_json(&["topology", "--controller", &lab.socket("controller")])?;
            let all = |what: &str, is: fn(&Value) -> bool| {
                shown[what].as_array().is_some_and(|all| all.iter().all(is))
            };
            let reported = all("switches", |s| {
                s["ports"].as_array().is_some_and(|ports| !ports.is_empty())
            });
            ensure!(reported && all("links", |link| link["up"] == true), "{shown}");
            Ok(())
        })
    }

    /// Kills the controller as `kill -9` does.
    pub fn kill_controller(&mut self) {
        self.controller = None;
    }

    /// Starts `command` and waits for its ready file.
    fn ready(&self, name: &str, mut command: Command) -> Result<Process> {
        let file = self.folder.path().join(format!("{name}.ready"));
        let _ = std::fs::remove_file(&file);
        command.arg("--ready-file").arg(&file);
        let mut process = Process::start(name, self.folder.path(), command)?;
        process.wait_until("it was ready", |_| file.exists())?;
        Ok(process)
    }

    /// The address of a switch's agent, or of the controller.
    pub fn socket(&self, name: &str) -> String {
        format!(
            "unix:{}",
            self.folder.path().join(format!("{name}.sock")).display()
        )
    }

    /// The lab's folder, for files of the test.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The namespace of a host.
    pub fn host(&self, name: &str) -> Result<&Namespace> {
        find(&self.hosts, name).with_context(|| format!("no host {name}"))
    }

    /// The Ethernet address of a host's interface.
    pub fn mac(&self, name: &str) -> Result<String> {
        mac(self.host(name)?, "eth0")
    }

    /// The Ethernet address of a switch's port, by what it leads to.
    pub fn port_mac(&self, switch: &str, port: &str) -> Result<String> {
        mac(find(&self._fabric, switch).context("a switch of the plan")?, port)
    }

    /// The IP address of a host: 10.0.0.N for hN.
    pub fn ip(name: &str) -> String {
        format!("10.0.0.{}", name.trim_start_matches('h'))
    }

    /// The IP address of a host in this lab.
    pub fn address(&self, name: &str) -> String {
        self.addresses
            .get(name)
            .cloned()
            .unwrap_or_else(|| Self::ip(name))
    }

    /// Runs `castnet` with `args` here, outside of all namespaces, and gives what it printed.
    pub fn castnet(&self, args: &[&str]) -> Result<String> {
        let out = Command::new(castnet()).args(args).output()?;
        if !out.status.success() {
            bail!(
                "castnet {}: {}{}",
                args.join(" "),
                text(&out.stdout),
                text(&out.stderr)
            );
        }
        Ok(text(&out.stdout))
    }

    /// The same with `--output json`, parsed.
    pub fn castnet_json(&self, args: &[&str]) -> Result<Value> {
        let args: Vec<&str> = args.iter().copied().chain(["--output", "json"]).collect();
        Ok(serde_json::from_str(&self.castnet(&args)?)?)
    }

    /// Data frames of a group that a switch has taken in.
    pub fn data_in(&self, group: &str, switch: &str) -> Option<u64> {
        let socket = self.socket(switch);
        let shown = self.castnet_json(&["group", "show", group, "--agent", &socket]);
        find_number(&shown.ok()?, "data_in")
    }

    /// Creates the group of `transfer`.
    pub fn create_group(&self, transfer: &Transfer<'_>) -> Result<()> {
        self.create_group_with(transfer, &[])
    }

    /// The same with more flags of `castnet group create`.
    pub fn create_group_with(&self, transfer: &Transfer<'_>, more: &[&str]) -> Result<()> {
        let members = transfer.receivers.join(",");
        let controller = self.socket("controller");
        let flags = [
            "group",
            "create",
            transfer.group,
            "--source",
            transfer.source,
            "--members",
            &members,
            "--pmtu",
            "4096",
            "--controller",
            &controller,
        ];
        self.castnet(&[&flags, more].concat())?;
        Ok(())
    }

    /// Starts `castnet host` at a host, to send to a group or to receive from it.
    pub fn start_host(&self, host: &str, verb: &str, group: &str, rest: &[&str]) -> Result<Process> {
        let mut command = self.host(host)?.command(castnet());
        command.args(["host", verb, "--name", host, "--interface", "eth0"]);
        command.args(["--ip", &format!("{}/24", self.address(host)), "--group", group]);
        command
            .args(["--controller", &self.socket("controller"), "--output", "json"])
            .args(rest);
        Process::start(&format!("{group}-{host}"), self.folder(), command)
    }

    /// Starts `castnet host allreduce` or one of the other five collectives at host h`rank + 1`, as that rank of `size` of a job.
    pub fn start_rank(
        &self,
        verb: &str,
        job: &str,
        rank: usize,
        size: usize,
        rest: &[&str],
    ) -> Result<Process> {
        self.start_rank_at(&format!("h{}", rank + 1), verb, job, (rank, size), rest)
    }

    /// The same at any host; with `bench`, `castnet-lab bench`.
    pub fn start_rank_at(
        &self,
        host: &str,
        verb: &str,
        job: &str,
        (rank, size): (usize, usize),
        rest: &[&str],
    ) -> Result<Process> {
        let (program, noun) = match verb {
            "bench" => (castnet_lab(), None),
            _ => (castnet().to_owned(), Some("host")),
        };
        let mut command = self.host(host)?.command(program);
        command.args(noun);
        command.args([verb, "--name", host, "--interface", "eth0"]);
        command.args(["--ip", &format!("{}/24", self.address(host)), "--job", job]);
        command.args(["--rank", &rank.to_string(), "--size", &size.to_string()]);
        command
            .args(["--controller", &self.socket("controller"), "--output", "json"])
            .args(rest);
        Process::start(&format!("{job}-{rank}"), self.folder(), command)
    }

    /// Starts the hosts of `transfer`, receivers first. Each joins the group by itself.
    pub fn start_transfer(&self, transfer: &Transfer<'_>) -> Result<RunningTransfer> {
        self.start_transfer_with(transfer, &[])
    }

    /// The same with more flags of all hosts.
    pub fn start_transfer_with(&self, transfer: &Transfer<'_>, more: &[&str]) -> Result<RunningTransfer> {
        let file = self.folder().join(format!("{}.bin", transfer.group));
        let content = Content::file(&file, transfer.size, transfer.seed)?;
        self.start_with_content(transfer, content, more)
    }

    /// Starts the hosts of a transfer that lasts until the test ends it, whatever its size: see [`RunningTransfer::finish`]. The group's rate
    /// should have a limit, as the source has always something to send.
    pub fn start_stream(&self, transfer: &Transfer<'_>, more: &[&str]) -> Result<RunningTransfer> {
        let pipe = self.folder().join(format!("{}.pipe", transfer.group));
        let content = Content::stream(&pipe, transfer.seed)?;
        self.start_with_content(transfer, content, more)
    }

    fn start_with_content(
        &self,
        transfer: &Transfer<'_>,
        content: Content,
        more: &[&str],
    ) -> Result<RunningTransfer> {
        let mut receivers = Vec::new();
        for host in transfer.receivers {
            let out = self.folder().join(format!("{}.{host}.out", transfer.group));
            let path = out.to_string_lossy();
            let rest = [&["--op", transfer.op, "--out", &path], more].concat();
            let process = self.start_host(host, "receive", transfer.group, &rest)?;
            receivers.push((host.to_string(), process, out));
        }
        let path = content.path().to_string_lossy();
        let send = [&["--op", transfer.op, "--file", &path], more].concat();
        let source = self.start_host(transfer.source, "send", transfer.group, &send)?;
        drop(path);
        Ok(RunningTransfer {
            source,
            receivers,
            content,
        })
    }

    /// A whole transfer: create the group, send, check each receiver's bytes, destroy the group.
    pub fn transfer(&self, transfer: &Transfer<'_>) -> Result<()> {
        self.create_group(transfer)?;
        self.start_transfer(transfer)?.finish()?;
        self.castnet(&[
            "group",
            "destroy",
            transfer.group,
            "--controller",
            &self.socket("controller"),
        ])?;
        Ok(())
    }

    /// All that the switches and the controller have printed, for a failing test.
    pub fn logs(&self) -> String {
        let switches = self
            .switches
            .iter()
            .map(|switch| (switch.name.as_str(), &switch.process));
        let all = switches.chain(self.controller.as_ref().map(|c| ("controller", c)));
        all.map(|(name, process)| format!("--- {name}\n{}", process.log()))
            .collect()
    }
}

/// A transfer under way.
pub struct RunningTransfer {
    /// The sending host.
    pub source: Process,
    receivers: Vec<(String, Process, PathBuf)>,
    content: Content,
}

impl RunningTransfer {
    /// The process of a receiver.
    pub fn receiver(&mut self, host: &str) -> Result<&mut Process> {
        let of_host = self.receivers.iter_mut().find(|(name, ..)| name == host);
        of_host
            .map(|(_, process, _)| process)
            .with_context(|| format!("no receiver {host}"))
    }

    /// The process of a receiver that is not to get the file.
    pub fn take(&mut self, host: &str) -> Result<Process> {
        let at = self.receivers.iter().position(|(name, ..)| name == host);
        let at = at.with_context(|| format!("no receiver {host}"))?;
        Ok(self.receivers.remove(at).1)
    }

    /// Ends a stream, waits for the end, and demands that each receiver has exactly the bytes that were sent. Returns what the source
    /// reports.
    pub fn finish(self) -> Result<Value> {
        self.finish_without(&[])
    }

    /// The same, where the source must report that these receivers have not everything.
    pub fn finish_without(mut self, missing: &[&str]) -> Result<Value> {
        // If the source has failed, that says more.
        let sent = self.content.end().with_context(|| self.source.output())?.digest;
        let report = without(&mut self.source, missing)?;
        for (host, process, out) in &mut self.receivers {
            process.succeed()?;
            let got = digest(out)?;
            ensure!(got == sent, "{host} has SHA-256 {got}, sent was {sent}");
        }
        Ok(report)
    }
}

/// Waits for the end of a source, which must report that all receivers but these have everything, and fail if there are any. Returns its
/// report.
pub fn without(source: &mut Process, missing: &[&str]) -> Result<Value> {
    let (status, output) = (source.wait()?, source.output());
    let code = i32::from(!missing.is_empty());
    ensure!(
        status.code() == Some(code),
        "the source ended ({status}):\n{output}"
    );
    let mut lines = output.lines().filter_map(|line| serde_json::from_str(line).ok());
    let report: Option<Value> = lines.find(|line: &Value| line["role"] == "source");
    let report = report.with_context(|| output.clone())?;
    let receivers = report["receivers"].as_array().into_iter().flatten();
    let lacking = receivers.filter(|receiver| receiver["outcome"] != "all");
    let lacking: Vec<_> = lacking.map(|receiver| receiver["host"].clone()).collect();
    ensure!(lacking == missing, "{missing:?} have not everything: {report:#}");
    Ok(report)
}

fn find<'a>(all: &'a [(String, Namespace)], name: &str) -> Option<&'a Namespace> {
    all.iter()
        .find(|(n, _)| n == name)
        .map(|(_, namespace)| namespace)
}

/// The first number called `name` anywhere in `value`.
fn find_number(value: &Value, name: &str) -> Option<u64> {
    match value {
        Value::Array(all) => all.iter().find_map(|v| find_number(v, name)),
        Value::Object(fields) => fields
            .get(name)
            .and_then(Value::as_u64)
            .or_else(|| fields.values().find_map(|v| find_number(v, name))),
        _ => None,
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
