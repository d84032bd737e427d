//! Open vSwitch over DPDK: a group of type all, whose buckets write the destination of each receiver. It has its own
//! namespace, database and sockets.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use anyhow::{Context, Result, bail, ensure};
use castnet_e2e::net::{self, Namespace};

use super::{Frames, NO_CAPTURE, Shared, eal, sink, source};
use crate::count::{Count, dump_ports};
use crate::measure::{Ran, Running, threads};
use crate::options::Name;
use crate::process::{Process, missing, mortal, output};
use crate::report::Setting;
use crate::run::Peer;

const SWITCH: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
/// Makes malloc keep memory. Open vSwitch clones frames into it, and malloc usually returns it to the kernel after each
/// batch, which is up to six times slower.
const MALLOC: [(&str, &str); 2] = [
    ("MALLOC_TRIM_THRESHOLD_", "1073741824"),
    ("MALLOC_TOP_PAD_", "33554432"),
];
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

pub(super) struct Ovs {
    shared: Rc<Shared>,
    namespace: Rc<Namespace>,
}

impl Ovs {
    pub(super) fn new(shared: Rc<Shared>) -> Result<Self> {
        ensure!(
            Path::new(SWITCH).exists(),
            "needs {SWITCH} (package openvswitch-switch-dpdk)"
        );
        let tools = ["ovsdb-server", "ovsdb-tool", "ovs-vsctl", "ovs-ofctl"];
        if let Some(why) = tools.iter().find_map(|tool| missing(tool, "openvswitch-switch")) {
            bail!(why);
        }
        if let Some(why) = net::missing() {
            bail!("{why}: Open vSwitch makes interfaces in the kernel, which need a namespace of their own");
        }
        let namespace = Rc::new(Namespace::new("ovs")?);
        Ok(Self { shared, namespace })
    }
}

impl Peer for Ovs {
    fn name(&self) -> Name {
        Name::Ovs
    }

    fn can(&self, _: Setting) -> bool {
        true
    }

    fn start(&self, setting: Setting) -> Result<Box<dyn Running>> {
        let folder = self.shared.fresh("ovs")?;
        let at = At {
            folder: &folder,
            namespace: &self.namespace,
        };
        output(
            at.command("ovsdb-tool")
                .arg("create")
                .arg(folder.join("conf.db"))
                .arg(SCHEMA),
        )?;
        let mut command = at.command("ovsdb-server");
        command
            .arg(folder.join("conf.db"))
            .arg(format!("--remote=punix:{}", at.socket("db.sock")));
        command.args(["--no-chdir", "--log-file=/dev/null"]);
        let mut database = Process::start("ovsdb-server", &folder, command)?;
        database.wait_for(|| folder.join("db.sock").exists().then_some(()))?;
        at.vsctl(&["--no-wait", "init"])?;
        let mask = |core: usize| format!("0x{:x}", 1_u128 << core);
        let set = [
            "other_config:dpdk-init=true".to_owned(),
            format!("other_config:pmd-cpu-mask={}", mask(self.shared.cores.switch)),
            format!("other_config:dpdk-lcore-mask={}", mask(self.shared.cores.other)),
            format!(
                "other_config:dpdk-extra=--no-pci {}",
                eal::memory(self.shared.hugepages).join(" ")
            ),
        ];
        let set: Vec<_> = ["--no-wait", "set", "Open_vSwitch", "."]
            .into_iter()
            .chain(set.iter().map(String::as_str))
            .collect();
        at.vsctl(&set)?;
        let mut command = at.command(SWITCH);
        command.envs(MALLOC);
        command
            .arg(format!("unix:{}", at.socket("db.sock")))
            .args(["--no-chdir", "--log-file=/dev/null"]);
        let switch = Process::start("ovs-vswitchd", &folder, command)?;
        let mut running = OvsRunning {
            switch,
            _database: database,
            folder,
            namespace: self.namespace.clone(),
        };
        if let Err(why) = self.set_up(setting, &running) {
            running.switch.lives()?;
            return Err(why.context(running.switch.said()));
        }
        Ok(Box::new(running))
    }
}

impl Ovs {
    /// Adds the sinks, the group and its flow; then the source, so that no frame arrives before.
    fn set_up(&self, setting: Setting, running: &OvsRunning) -> Result<()> {
        let at = At {
            folder: &running.folder,
            namespace: &self.namespace,
        };
        at.vsctl(&[
            "add-br",
            "br0",
            "--",
            "set",
            "bridge",
            "br0",
            "datapath_type=netdev",
            "fail_mode=secure",
        ])?;
        let file = self.shared.file(Frames::Group(0), setting.payload);
        let (mut sinks, mut buckets) = (Vec::new(), String::new());
        for n in 1..=setting.fanout {
            sinks.extend(port(&format!("out{n}"), n + 1, &sink(n)));
            buckets.push_str(&format!(
                ",bucket=set_field:02:aa:00:00:00:{n:02x}->eth_dst,set_field:10.0.0.{}->ip_dst,output:{}",
                n + 1,
                n + 1
            ));
        }
        at.add_ports(&sinks)?;
        at.ofctl("add-group", &[&format!("group_id=1,type=all{buckets}")])?;
        at.ofctl("add-flow", &["in_port=1,actions=group:1"])?;
        at.add_ports(&port("in", 1, &source(0, &file, NO_CAPTURE)))
    }
}

fn port(name: &str, number: usize, device: &str) -> Vec<String> {
    // Commas are part of the value.
    let line = [
        "--",
        "add-port",
        "br0",
        name,
        "--",
        "set",
        "Interface",
        name,
        "type=dpdk",
        "mtu_request=9000",
    ];
    let rest = [
        format!("ofport_request={number}"),
        format!("options:dpdk-devargs=\"{device}\""),
    ];
    line.into_iter().map(String::from).chain(rest).collect()
}

struct At<'a> {
    folder: &'a Path,
    namespace: &'a Namespace,
}

impl At<'_> {
    fn socket(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    fn command(&self, program: &str) -> Command {
        let mut command = mortal(Some(self.namespace), program);
        for variable in [
            "OVS_RUNDIR",
            "OVS_DBDIR",
            "OVS_LOGDIR",
            "OVS_SYSCONFDIR",
            "RUNTIME_DIRECTORY",
        ] {
            command.env(variable, self.folder);
        }
        command
    }

    fn vsctl(&self, words: &[&str]) -> Result<String> {
        let database = format!("--db=unix:{}", self.socket("db.sock"));
        output(
            self.command("ovs-vsctl")
                .args([&database, "--timeout=60"])
                .args(words),
        )
    }

    fn add_ports(&self, words: &[String]) -> Result<()> {
        self.vsctl(&words.iter().map(String::as_str).collect::<Vec<_>>())?;
        // It waits for new ports, but reports no failures.
        let errors = self.vsctl(&["--bare", "--columns=error", "list", "Interface"])?;
        ensure!(errors.trim().is_empty(), "{}", errors.trim());
        Ok(())
    }

    fn ofctl(&self, verb: &str, words: &[&str]) -> Result<String> {
        let bridge = format!("unix:{}", self.socket("br0.mgmt"));
        let mut command = self.command("ovs-ofctl");
        command
            .args(["-O", "OpenFlow13", "--timeout=60", verb, &bridge])
            .args(words);
        output(&mut command)
    }
}

struct OvsRunning {
    switch: Process,
    _database: Process,
    folder: PathBuf,
    namespace: Rc<Namespace>,
}

impl Running for OvsRunning {
    fn ran(&mut self) -> Result<Ran> {
        // Its main thread is busy at first.
        threads(self.switch.pid(), "pmd")
    }

    fn count(&mut self) -> Result<Count> {
        self.switch.lives()?;
        let at = At {
            folder: &self.folder,
            namespace: &self.namespace,
        };
        dump_ports(&at.ofctl("dump-ports", &[]).context("asking Open vSwitch")?)
    }
}
