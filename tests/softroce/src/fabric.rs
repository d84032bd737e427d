//! One switch on the lab's interfaces, or switches around a static core, and their controller.

mod core;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use castnet_e2e::process::{PATIENCE, Process, castnet};
use serde::Deserialize;
use serde_json::Value;
use tempfile::TempDir;

use crate::capture::Capture;

pub use core::splitters;

/// The switch's name.
pub const SWITCH: &str = "sw";

/// What a group has done, as its switch counts. All are frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Counts {
    /// Data in from the source.
    pub data_in: u64,
    /// Copies out to the receivers.
    pub copies_out: u64,
    /// Of the data in: seen before.
    pub retransmitted_in: u64,
    /// Copies not sent, as the path had acknowledged them.
    pub filtered: u64,
    /// ACKs in from the receivers.
    pub acks_in: u64,
    /// ACKs out to the source.
    pub acks_out: u64,
    /// Sequence NAKs in.
    pub naks_in: u64,
    /// Sequence NAKs out.
    pub naks_out: u64,
    /// RNR NAKs in.
    pub rnr_naks_in: u64,
    /// RNR NAKs out.
    pub rnr_naks_out: u64,
}

impl Counts {
    /// ACKs and NAKs of all kinds to the source.
    pub fn answers(&self) -> u64 {
        self.acks_out + self.naks_out + self.rnr_naks_out
    }
}

/// One member of a group whose QP is made: what `castnet group create --connection` is told.
#[derive(Clone, Debug)]
pub struct Member {
    /// The host's name.
    pub host: String,
    /// Its IPv4 address.
    pub ip: String,
    /// Its Ethernet address.
    pub mac: String,
    /// Its QP.
    pub qpn: u32,
    /// Address, key and length of its memory, for WRITEs.
    pub memory: Option<(u64, u32, usize)>,
}

/// What a group is, for its members.
#[derive(Clone, Debug)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// Its address.
    pub mcst_id: String,
    /// The source's first PSN.
    pub start_psn: u32,
}

/// A switch and its controller, which live in one network namespace.
pub struct Fabric {
    // Dropped in this order: processes before the folder.
    _controller: Process,
    switch: Process,
    _others: Vec<Process>,
    namespace: String,
    folder: TempDir,
    groups_made: u32,
}

impl Fabric {
    /// Starts a switch in `namespace` on `ports` (name and interface; the names are the hosts', but where these hosts are `behind` the
    /// only port), with `faults` as `--fault` takes them, and a controller that listens at `controller` as well as on a unix socket.
    ///
    /// # Errors
    /// One of them does not become ready.
    pub fn start(
        namespace: &str,
        ports: &[(String, String)],
        behind: &[String],
        mtu: u32,
        faults: &[String],
        controller: Option<&str>,
    ) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("castnet-softroce-").tempdir()?;
        let at = |name: &str| folder.path().join(name);
        let mut command = inside(namespace, castnet());
        command.args(["switch", "--name", SWITCH, "--lldp", "0s", "--listen"]);
        command.arg(format!("unix:{}", at("switch.sock").display()));
        for (name, interface) in ports {
            command.args(["--port", &format!("{name}=af_packet:{interface},rx=8192,tx=4096")]);
        }
        for fault in faults {
            command.args(["--fault", fault]);
        }
        let switch = ready("switch", folder.path(), command)?;

        fs::write(at("topology.toml"), topology(ports, behind, mtu))?;
        let mut command = inside(namespace, castnet());
        command
            .args(["controller", "--insecure", "--listen"])
            .arg(match controller {
                Some(address) => address.to_owned(),
                None => format!("unix:{}", at("controller.sock").display()),
            });
        command.arg("--topology").arg(at("topology.toml"));
        command.args([
            "--switch",
            &format!("{SWITCH}=unix:{}", at("switch.sock").display()),
        ]);
        let controller = ready("controller", folder.path(), command)?;
        let fabric = Self {
            _controller: controller,
            switch,
            _others: Vec::new(),
            namespace: namespace.to_owned(),
            folder,
            groups_made: 0,
        };
        fabric.wait_for_switch()?;
        Ok(fabric)
    }

    /// The controller plans only over switches that it has reached.
    fn wait_for_switch(&self) -> Result<()> {
        let start = Instant::now();
        loop {
            let shown = self.at_controller(&["group", "list"]);
            if shown.is_ok() {
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                shown?;
            }
            nix::poll::poll(&mut [], 50u8).ok();
        }
    }

    /// The lab's folder, for files of a test.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The switch's agent.
    pub fn agent(&self) -> String {
        format!("unix:{}", self.folder.path().join("switch.sock").display())
    }

    /// The controller.
    pub fn controller(&self) -> Result<String> {
        Ok(fs::read_to_string(self.folder.path().join("controller.ready"))?
            .trim()
            .to_owned())
    }

    /// What the switch has printed, for a failing test.
    pub fn log(&self) -> String {
        self.switch.output()
    }

    /// Runs `castnet` in the lab's namespace, and gives what it printed.
    ///
    /// # Errors
    /// It failed; with what it said.
    pub fn castnet(&self, args: &[&str]) -> Result<String> {
        let mut command = self.command(castnet());
        let out = command.args(args).output()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
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

    /// A command that will run in the lab's namespace.
    pub fn command(&self, program: &Path) -> Command {
        inside(&self.namespace, program)
    }

    /// A `castnet` verb that asks the switch, as JSON.
    ///
    /// # Errors
    /// As [`Fabric::castnet`].
    pub fn at_switch(&self, args: &[&str]) -> Result<Value> {
        let agent = self.agent();
        let args: Vec<&str> = args
            .iter()
            .copied()
            .chain(["--agent", &agent, "--output", "json"])
            .collect();
        Ok(serde_json::from_str(&self.castnet(&args)?)?)
    }

    /// A `castnet` verb that asks the controller, as JSON.
    ///
    /// # Errors
    /// As [`Fabric::castnet`].
    pub fn at_controller(&self, args: &[&str]) -> Result<Value> {
        let controller = self.controller()?;
        let args: Vec<&str> = args
            .iter()
            .copied()
            .chain(["--controller", &controller, "--insecure", "--output", "json"])
            .collect();
        Ok(serde_json::from_str(&self.castnet(&args)?)?)
    }

    /// Creates a group of members whose QPs exist, the first one as source, and waits until it is installed.
    ///
    /// # Errors
    /// The controller refuses it.
    pub fn create_group(
        &mut self,
        what: &str,
        members: &[Member],
        pmtu: u32,
        start_psn: u32,
    ) -> Result<Group> {
        self.groups_made += 1;
        let name = format!("{what}-{}", self.groups_made);
        let (pmtu, psn) = (pmtu.to_string(), start_psn.to_string());
        let hosts: Vec<&str> = members.iter().map(|m| m.host.as_str()).collect();
        let receivers = hosts[1..].join(",");
        let mut args = vec![
            "group",
            "create",
            &name,
            "--source",
            hosts[0],
            "--members",
            &receivers,
        ];
        args.extend([
            "--pmtu",
            &pmtu,
            "--start-psn",
            &psn,
            "--stall-timeout-ms",
            STALL_MS,
        ]);
        let connections: Vec<String> = members.iter().map(connection).collect();
        for connection in &connections {
            args.extend(["--connection", connection]);
        }
        self.at_controller(&args)?;
        let shown = self.at_controller(&["group", "show", &name])?;
        if shown["phase"] != "active" {
            bail!("group {name} is {}: {}", shown["phase"], shown["reason"]);
        }
        let mcst_id = shown["mcst_id"].as_str().context("a McstID")?.to_owned();
        Ok(Group {
            name,
            mcst_id,
            start_psn,
        })
    }

    /// Takes a group off.
    ///
    /// # Errors
    /// The controller does not know it.
    pub fn destroy_group(&self, group: &Group) -> Result<()> {
        self.at_controller(&["group", "destroy", &group.name]).map(|_| ())
    }

    /// What a group has done.
    ///
    /// # Errors
    /// The switch has no such group.
    pub fn counts(&self, group: &str) -> Result<Counts> {
        let shown = self.at_switch(&["counters"])?;
        let all = shown["groups"].as_array().context("groups")?;
        let row = all
            .iter()
            .find(|row| row["group"] == group)
            .context("the group")?;
        Ok(serde_json::from_value(row.clone())?)
    }

    /// Waits until `ready` says yes of a group's counters; an error where it does not within the tests' patience.
    ///
    /// # Errors
    /// As said, or the switch has no such group.
    pub fn wait_for(&self, group: &str, what: &str, ready: impl Fn(&Counts) -> bool) -> Result<Counts> {
        let start = Instant::now();
        loop {
            let counts = self.counts(group)?;
            if ready(&counts) {
                return Ok(counts);
            }
            if start.elapsed() > PATIENCE {
                bail!("over {PATIENCE:?} until {what}: {counts:?}");
            }
            nix::poll::poll(&mut [], 20u8).ok();
        }
    }

    /// Drops of the switch, by reason.
    ///
    /// # Errors
    /// The switch does not answer.
    pub fn drops(&self) -> Result<Vec<(String, u64)>> {
        let shown = self.at_switch(&["drops"])?;
        let all = shown.as_array().cloned().unwrap_or_default();
        Ok(all
            .iter()
            .filter_map(|row| Some((row["reason"].as_str()?.to_owned(), row["frames"].as_u64()?)))
            .collect())
    }

    /// Starts to copy the headers of a group's frames.
    ///
    /// # Errors
    /// The switch refuses.
    pub fn capture(&self, group: &Group) -> Result<Capture> {
        Capture::start(&self.agent(), &group.mcst_id, SNAP)
    }
}

/// Bytes of a frame that hold all headers.
const SNAP: u32 = 128;

/// After how long a path that does not acknowledge is reported; scheduling of many machines on few cores is no stall.
const STALL_MS: &str = "4000";

fn inside(namespace: &str, program: &Path) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace]).arg(program);
    command
}

/// Starts `command` and waits for its ready file.
fn ready(name: &str, folder: &Path, mut command: Command) -> Result<Process> {
    let file = folder.join(format!("{name}.ready"));
    command.arg("--ready-file").arg(&file);
    let mut process = Process::start(name, folder, command)?;
    process.wait_until("it was ready", |_| {
        fs::read_to_string(&file).is_ok_and(|t| t.ends_with('\n'))
    })?;
    Ok(process)
}

fn connection(member: &Member) -> String {
    let Member {
        host, ip, mac, qpn, ..
    } = member;
    match member.memory {
        None => format!("{host}={ip},{mac},{qpn}"),
        Some((va, rkey, length)) => format!("{host}={ip},{mac},{qpn},{va},{rkey},{length}"),
    }
}

/// The fabric as a topology file: one switch, and a host at each port; or hosts at an ordinary switch behind its only port.
fn topology(ports: &[(String, String)], behind: &[String], mtu: u32) -> String {
    let mut text = format!("[[switches]]\nname = \"{SWITCH}\"\nports = {}\n", ports.len());
    let link =
        |a: &str, port: usize, b: &str| format!("[[links]]\na = \"{a}:{port}\"\nb = \"{b}\"\nmtu = {mtu}\n");
    let host = |name: &str| format!("[[hosts]]\nname = \"{name}\"\n");
    if behind.is_empty() {
        for (port, (name, _)) in ports.iter().enumerate() {
            text += &(host(name) + &link(SWITCH, port, name));
        }
        return text;
    }
    let count = behind.len() + 1;
    text += &format!("[[switches]]\nname = \"bridge\"\nkind = \"plain\"\nports = {count}\n");
    text += &link(SWITCH, 0, "bridge:0");
    for (name, port) in behind.iter().zip(1..) {
        text += &(host(name) + &link("bridge", port, name));
    }
    text
}
