//! The configuration of a switch: a file, and flags with the same fields. Flags win.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use castnet_console::connect::{self, ServeArgs, Tls};
use castnet_console::exit::{Failure, Outcome};
use castnet_console::settings;
use castnet_console::units::{Size, Span};
use castnet_port::{PortSpec, port_text};
use castnet_proto::access::Roles;
use castnet_proto::transport::Address;
use castnet_toml_reader::Value;
use castnet_wire::PortId;
use clap::{Args, ValueEnum};

use crate::balance::BalanceRule;
use crate::dpdk::Hugepages;
use crate::mrp::MrpRule;

/// What a worker does when it finds no frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Idle {
    /// Polls again at once: the shortest delay, and a whole core for each worker.
    Busy,
    /// Polls for a while, then sleeps until a frame comes.
    #[default]
    Adaptive,
}

impl FromStr for Idle {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        ValueEnum::from_str(text, false).map_err(|_| format!("'{text}' is neither busy nor adaptive"))
    }
}

/// A port as written: `NAME=SPEC`. A bare interface name is short for `af_packet:INTERFACE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedPort {
    /// Name of the port.
    pub name: String,
    /// Checked text for [`PortSpec`]; the port is not opened.
    pub spec: String,
}

impl FromStr for NamedPort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, spec) = match text.split_once('=') {
            Some((name, spec)) if !name.contains(':') => (name, spec),
            _ if text.contains(':') => return Err("write NAME=SPEC, such as h1=af_packet:veth-h1".to_owned()),
            _ => (text, text),
        };
        Ok(Self {
            name: port_name(name)?,
            spec: port_text(spec)?,
        })
    }
}

impl NamedPort {
    /// Without a `spec`, the name is that of the interface.
    fn read(value: Value<'_>) -> Option<Self> {
        let t = value.table("a port: [[ports]]")?;
        let name = t.need("name", "a name in quotes", Some);
        let spec = t.value("spec").or(name);
        let name = name.and_then(|v| v.accept(port_name(v.text()?)));
        let spec = spec.and_then(|v| v.accept(port_text(v.text()?)));
        Some(Self {
            name: name?,
            spec: spec?,
        })
    }
}

fn port_name(name: &str) -> Result<String, String> {
    if name.is_empty() || name.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(format!(
            "'{name}' is no name for a port: printable characters without blanks"
        ));
    }
    Ok(name.to_owned())
}

/// Faults to inject: `[PORT:]OPTIONS`, with the options of [`PortSpec`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultRule {
    /// `None`: all ports, each with its own seed derived from the given one.
    pub port: Option<String>,
    options: Vec<String>,
    seed: u64,
}

impl FromStr for FaultRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let head = text.split('=').next().unwrap_or(text);
        let (port, rest) = match head.split_once(':') {
            Some((port, _)) => (Some(port.to_owned()), &text[port.len() + 1..]),
            None => (None, text),
        };
        let mut rule = Self {
            port,
            options: Vec::new(),
            seed: 0,
        };
        for option in rest.split(',').map(str::trim) {
            match option.strip_prefix("seed=") {
                Some(seed) => {
                    rule.seed = seed
                        .parse()
                        .map_err(|_| format!("'{seed}' is no seed: a number"))?
                }
                None => rule.options.push(option.to_owned()),
            }
        }
        // Parsed with a port that always exists, so that wrong options are reported before the start.
        match format!("pcap:,x,{}", rule.text(0)).parse::<PortSpec>() {
            Ok(_) => Ok(rule),
            // That port is none of the user's.
            Err(error) => Err(match error.reason.strip_prefix("pcap has no option ") {
                Some(option) => format!(
                    "there is no fault {option}: write loss, duplicate, reorder, corrupt, delay or jitter, after rx. or tx. for one direction"
                ),
                None if error.reason.starts_with("write pcap") => {
                    "write such as loss=1%,delay=1ms".to_owned()
                }
                None => error.reason,
            }),
        }
    }
}

impl FaultRule {
    /// Options for [`PortSpec`], for port `index`.
    fn text(&self, index: usize) -> String {
        let seed = if self.port.is_some() {
            self.seed
        } else {
            self.seed.wrapping_add(index as u64)
        };
        format!("{},seed={seed}", self.options.join(","))
    }
}

impl fmt::Display for FaultRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} on {}",
            self.text(0),
            self.port.as_deref().unwrap_or("all ports")
        )
    }
}

/// A worker thread: `core=N` or `any`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerPlace {
    /// Core that the thread is pinned to; `None` for any.
    pub core: Option<usize>,
}

impl FromStr for WorkerPlace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fault = || format!("'{text}' is no place for a worker: core=N or any");
        match text.strip_prefix("core=") {
            Some(core) => Ok(Self {
                core: Some(core.parse().map_err(|_| fault())?),
            }),
            None if text == "any" => Ok(Self { core: None }),
            None => Err(fault()),
        }
    }
}

impl WorkerPlace {
    fn read(value: Value<'_>) -> Option<Self> {
        let t = value.table("a worker: {} or { core = 2 }")?;
        let core = t.get("core", |v| v.number(0..=u64::MAX, "is over 64 bits"));
        Some(Self { core })
    }
}

/// Even the rule of a group with one path takes more.
const MEMORY_MIN: u64 = 1 << 10;

/// Configuration of a switch, as flags and as the fields of a file. A field that is `None` or empty has its default.
#[derive(Args, Clone, Debug, Default)]
pub struct SwitchConfig {
    /// Its name, for the controller and for LLDP [default: this machine's]
    #[arg(long, value_parser = castnet_console::units::name)]
    pub name: Option<String>,
    /// A port; may be given again. Without NAME= it has the interface's name
    #[arg(long = "port", value_name = "NAME=SPEC")]
    pub ports: Vec<NamedPort>,
    /// Static groups and routes (castnet rules example)
    #[arg(long, value_name = "FILE")]
    pub rules: Option<PathBuf>,
    /// Where its agent listens; port 0 takes any free one
    #[arg(long, value_name = "URL", help = format!("Where its agent listens; port 0 takes any free one [default: {}]", connect::AGENT))]
    pub listen: Option<Address>,
    /// A worker thread and its core, core=N or any; may be given again [default: one, on any core]
    #[arg(long = "worker", value_name = "core=N|any")]
    pub workers: Vec<WorkerPlace>,
    /// What workers do while no frames come [default: adaptive]
    #[arg(long, value_enum)]
    pub idle: Option<Idle>,
    /// How often groups are moved off overloaded workers, or off; where there are several workers [default: 1s]
    #[arg(long, value_name = "TIME|off")]
    pub balance: Option<BalanceRule>,
    /// Faults to inject; may be given again
    #[arg(long = "fault", value_name = "[PORT:]OPTIONS")]
    pub faults: Vec<FaultRule>,
    /// A port that broadcasts and frames to unknown addresses are not sent to; may be given again. Cuts loops: give it at
    /// both ends of a link. Groups use the link all the same
    #[arg(long, value_name = "NAME")]
    pub no_flood: Vec<String>,
    /// A port by which a static core may bring data although no route leads there, such as one behind the splitter of another
    /// switch; may be given again. From other ports such data is dropped
    #[arg(long = "core-port", value_name = "NAME")]
    pub core_ports: Vec<String>,
    /// Maximal number of groups [default: 4096]
    #[arg(long, value_name = "N")]
    pub groups_max: Option<usize>,
    /// Memory for the state of all groups [default: 64MiB]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Size>,
    /// How often each port sends LLDP; 0 for never [default: 30s]
    #[arg(long, value_name = "TIME")]
    pub lldp: Option<Span>,
    /// Where DPDK's buffers live [default: auto]
    #[arg(long, value_enum)]
    pub hugepages: Option<Hugepages>,
    /// A DNS name of the certificate of a controller, which may program the switch; may be given again
    #[arg(
        long,
        value_name = "NAME",
        help_heading = "Who may call (over https://, other certificates may do nothing)"
    )]
    pub controllers: Vec<String>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "a doc would be the help of the flags")]
    pub mrp: MrpRule,
    #[command(flatten)]
    #[allow(missing_docs, reason = "a doc would be the help of the flags")]
    pub serve: ServeArgs,
    #[command(flatten)]
    #[allow(missing_docs, reason = "a doc would be the help of the flags")]
    pub tls: Tls,
}

impl SwitchConfig {
    /// The set fields of `self`, the others from `other`.
    pub fn or(self, other: Self) -> Self {
        fn list<T>(mine: Vec<T>, other: Vec<T>) -> Vec<T> {
            if mine.is_empty() { other } else { mine }
        }
        Self {
            name: self.name.or(other.name),
            ports: list(self.ports, other.ports),
            rules: self.rules.or(other.rules),
            listen: self.listen.or(other.listen),
            tls: self.tls.or(other.tls),
            controllers: list(self.controllers, other.controllers),
            serve: self.serve.or(other.serve),
            workers: list(self.workers, other.workers),
            idle: self.idle.or(other.idle),
            balance: match (self.balance, other.balance) {
                (Some(mine), Some(other)) => Some(mine.or(other)),
                (mine, other) => mine.or(other),
            },
            faults: list(self.faults, other.faults),
            no_flood: list(self.no_flood, other.no_flood),
            core_ports: list(self.core_ports, other.core_ports),
            groups_max: self.groups_max.or(other.groups_max),
            memory: self.memory.or(other.memory),
            lldp: self.lldp.or(other.lldp),
            hugepages: self.hugepages.or(other.hugepages),
            mrp: self.mrp.or(other.mrp),
        }
    }

    /// What certificates of clients may do.
    pub fn roles(&self) -> Roles {
        Roles {
            controllers: self.controllers.clone(),
            ..self.serve.roles()
        }
    }

    /// Address of the agent.
    pub fn listen(&self) -> Address {
        let default = || Address::Tcp {
            tls: false,
            host: "127.0.0.1".to_owned(),
            port: 7471,
        };
        self.listen
            .clone()
            .or_else(|| connect::AGENT.parse().ok())
            .unwrap_or_else(default)
    }

    /// Sizes with which the switch could have no group, and cores that are given twice.
    pub(crate) fn check_sizes(&self) -> Outcome {
        let mut faults: Vec<String> = Vec::new();
        if let Some(memory) = self.memory.filter(|memory| memory.0 < MEMORY_MIN) {
            faults.push(format!(
                "memory {memory}: no group fits into less than {}; write such as 64MiB",
                Size(MEMORY_MIN)
            ));
        }
        if self.groups_max == Some(0) {
            faults.push("groups_max 0: the switch could have no group".to_owned());
        }
        let mut cores = BTreeSet::new();
        for core in self.workers.iter().filter_map(|worker| worker.core) {
            if !cores.insert(core) {
                faults.push(format!(
                    "two workers on core {core}: each would wait for the other; give each a core of its own, or any"
                ));
            }
        }
        match faults.is_empty() {
            true => Ok(()),
            false => Err(Failure::usage(faults.join("\n"))),
        }
    }

    /// Ports with their faults, in the order of their numbers, ready to be opened.
    pub fn port_specs(&self) -> Outcome<Vec<(String, PortSpec)>> {
        if self.ports.is_empty() {
            return Err(Failure::usage("a switch needs ports").next(
                "castnet switch --port NAME=INTERFACE --port ...\nor [[ports]] in a file: --config FILE",
            ));
        }
        if self.ports.len() > PortId::COUNT {
            return Err(Failure::usage(format!(
                "{} ports: a switch has {} at most",
                self.ports.len(),
                PortId::COUNT
            )));
        }
        let mut faults: Vec<String> = Vec::new();
        let has = |name: &str| self.ports.iter().any(|p| p.name == name);
        let mut with_faults = BTreeSet::new();
        for rule in &self.faults {
            if !with_faults.insert(&rule.port) {
                let at = rule.port.as_deref().unwrap_or("all ports");
                faults.push(format!(
                    "faults are asked for twice on {at}: write them as one, such as loss=1%,delay=1ms"
                ));
            }
        }
        for port in self.faults.iter().filter_map(|rule| rule.port.as_deref()) {
            if !has(port) {
                faults.push(format!(
                    "faults are asked for on port {port}, which this switch has not"
                ));
            }
        }
        for port in self.no_flood.iter().filter(|port| !has(port)) {
            faults.push(format!(
                "no flooding is asked for on port {port}, which this switch has not"
            ));
        }
        for port in self.core_ports.iter().filter(|port| !has(port)) {
            faults.push(format!(
                "port {port} is to lead to a static core, and this switch has none of that name"
            ));
        }
        let mut specs: Vec<(String, PortSpec)> = Vec::new();
        let (mut names, mut interfaces, mut outputs) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
        for (index, port) in self.ports.iter().enumerate() {
            if !names.insert(&port.name) {
                faults.push(format!("two ports have the name {}", port.name));
                continue;
            }
            let rule_of = |port: Option<&str>| self.faults.iter().find(|rule| rule.port.as_deref() == port);
            let rule = rule_of(Some(&port.name)).or_else(|| rule_of(None));
            let text = match rule {
                Some(rule) => format!("{},{}", port.spec, rule.text(index)),
                None => port.spec.clone(),
            };
            match text.parse() {
                Ok(spec) => {
                    let interface = PortSpec::interface(&spec);
                    if let Some(interface) = interface
                        && let Some(other) = interfaces.insert(interface.to_owned(), &port.name)
                    {
                        let name = &port.name;
                        faults.push(format!(
                            "ports {other} and {name} are the same interface, {interface}"
                        ));
                    }
                    // A device or a pipe has what both write, one after the other.
                    let output = spec.output_file().filter(|file| !file.exists() || file.is_file());
                    if let Some(output) = output
                        && let Some(other) = outputs.insert(output.to_owned(), &port.name)
                    {
                        let (name, output) = (&port.name, output.display());
                        faults.push(format!("ports {other} and {name} write the same file, {output}"));
                    }
                    specs.push((port.name.clone(), spec));
                }
                Err(error) => faults.push(format!("port {}: {error}", port.name)),
            }
        }
        match faults.is_empty() {
            true => Ok(specs),
            false => Err(Failure::usage(faults.join("\n"))),
        }
    }

    /// Reads a file. Paths in it are relative to its folder.
    pub fn read(path: &Path) -> Outcome<Self> {
        let file_path = |v: Value<'_>| settings::beside(path, v);
        settings::read(path, |t| {
            let tls = t.get("tls", |v| {
                let t = v.table("a table: { ca, cert, key }")?;
                Some(Tls {
                    ca: t.get("ca", file_path),
                    cert: t.get("cert", file_path),
                    key: t.get("key", file_path),
                    insecure: false,
                })
            });
            let roles = t.get("roles", |v| Roles::read(v, true)).unwrap_or_default();
            Some(Self {
                name: t.get("name", |v| v.accept(castnet_console::units::name(v.text()?))),
                controllers: roles.controllers,
                serve: ServeArgs {
                    operators: roles.operators,
                    read_only: roles.read_only,
                    socket_group: t.get("socket_group", Value::string),
                    socket_mode: t.get("socket_mode", Value::parse),
                    audit_log: t.get("audit_log", file_path),
                },
                listen: t.get("listen", Value::parse),
                rules: t.get("rules", file_path),
                idle: t.get("idle", Value::parse),
                tls: Tls {
                    insecure: t.get("insecure", Value::flag).unwrap_or_default(),
                    ..tls.unwrap_or_default()
                },
                workers: t.items(
                    "workers",
                    "a list of workers: [{ core = 2 }, {}]",
                    WorkerPlace::read,
                ),
                balance: t.get("balance", BalanceRule::read),
                faults: t.items("faults", "a list of faults: [\"PORT:loss=1%\"]", |v| v.parse()),
                no_flood: t.items("no_flood", "a list of ports: [\"PORT\"]", |v| v.string()),
                core_ports: t.items("core_ports", "a list of ports: [\"PORT\"]", |v| v.string()),
                groups_max: t.get("groups_max", |v| v.number(0..=u64::MAX, "is over 64 bits")),
                memory: t.get("memory", Value::number_or_text),
                lldp: t.get("lldp", Value::number_or_text),
                hugepages: t.get("hugepages", Value::parse),
                mrp: t.get("mrp", MrpRule::read).unwrap_or_default(),
                ports: t.items("ports", "a list of ports: [[ports]]", NamedPort::read),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_written_short_or_whole() {
        let port = |text: &str| text.parse::<NamedPort>().map(|p| (p.name, p.spec));
        let whole = |name: &str, spec: &str| Ok((name.to_owned(), spec.to_owned()));
        assert_eq!(port("eth0"), whole("eth0", "af_packet:eth0"));
        assert_eq!(port("h1=veth-h1"), whole("h1", "af_packet:veth-h1"));
        assert_eq!(port("h1=af_packet:v,rx=64"), whole("h1", "af_packet:v,rx=64"));
        assert_eq!(
            port("h1=veth1,loss=1%,seed=7"),
            whole("h1", "af_packet:veth1,loss=1%,seed=7")
        );
        assert_eq!(port("cap=pcap:in.pcap"), whole("cap", "pcap:in.pcap"));
        for bad in [
            "",
            "=eth0",
            "h 1=eth0",
            "h1=",
            "h1=carrier:pigeon",
            "af_packet:eth0",
            "h1=eth0,colour=red",
        ] {
            assert!(port(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn faults_are_for_one_port_or_for_all_with_seeds_of_their_own() {
        let config = SwitchConfig {
            ports: vec![
                "a=eth0".parse().expect("a port"),
                "b=eth1".parse().expect("a port"),
            ],
            faults: vec!["loss=1%,seed=42".parse().expect("faults")],
            ..SwitchConfig::default()
        };
        let seeds: Vec<_> = config
            .port_specs()
            .expect("ports")
            .iter()
            .map(|(_, s)| s.faults().map(|f| f.seed()))
            .collect();
        assert_eq!(seeds, [Some(42), Some(43)]);
        let one = SwitchConfig {
            faults: vec!["b:rx.loss=1%".parse().expect("faults")],
            ..config.clone()
        };
        let specs = one.port_specs().expect("ports");
        assert!(specs[0].1.faults().is_none() && specs[1].1.faults().is_some());
        let other = SwitchConfig {
            faults: vec!["c:loss=1%".parse().expect("faults")],
            ..config
        };
        assert_eq!(other.port_specs().expect_err("no port c").code(), 2);
        let other = SwitchConfig {
            no_flood: vec!["c".into()],
            faults: Vec::new(),
            ..other
        };
        assert_eq!(other.port_specs().expect_err("no port c").code(), 2);
        for bad in ["loss=200%", "gremlins=1%", "", "b:", "loss=1%,seed=x"] {
            let fault = bad.parse::<FaultRule>().expect_err(bad);
            assert!(!fault.contains("pcap"), "{bad}: {fault}");
        }
    }

    #[test]
    fn workers_have_a_core_or_none() {
        assert_eq!("core=3".parse(), Ok(WorkerPlace { core: Some(3) }));
        assert_eq!("any".parse(), Ok(WorkerPlace { core: None }));
        assert!("core=x".parse::<WorkerPlace>().is_err() && "3".parse::<WorkerPlace>().is_err());
    }

    #[test]
    fn a_switch_without_ports_or_with_two_of_one_name_does_not_start() {
        assert_eq!(
            SwitchConfig::default()
                .port_specs()
                .map(|_| ())
                .map_err(|f| f.code()),
            Err(2)
        );
        let twice = SwitchConfig {
            ports: vec![
                "a=eth0".parse().expect("a port"),
                "a=eth1".parse().expect("a port"),
            ],
            ..SwitchConfig::default()
        };
        assert!(twice.port_specs().is_err_and(|f| f.what.contains("two ports")));
        let ports = ["a=eth0", "b=memif:/s", "c=af_packet:eth0,loss=1%", "d=eth1"];
        let same = SwitchConfig {
            ports: ports.iter().map(|port| port.parse().expect("a port")).collect(),
            ..SwitchConfig::default()
        };
        let failure = same.port_specs().expect_err("one interface");
        assert_eq!(failure.what, "ports a and c are the same interface, eth0");
        let ports = [
            "a=pcap:,out.pcap",
            "b=pcap:,/dev/null",
            "c=pcap:,/dev/null",
            "d=pcap:x,out.pcap,loss=1%",
        ];
        let same = SwitchConfig {
            ports: ports.iter().map(|port| port.parse().expect("a port")).collect(),
            ..SwitchConfig::default()
        };
        let failure = same.port_specs().expect_err("one file");
        assert_eq!(failure.what, "ports a and d write the same file, out.pcap");
        let all = SwitchConfig {
            no_flood: vec!["c".into()],
            core_ports: vec!["e".into()],
            faults: vec!["d:loss=1%".parse().expect("faults")],
            ..twice
        };
        let failure = all.port_specs().expect_err("four faults");
        assert_eq!(failure.what.lines().count(), 4, "{failure}");
    }

    #[test]
    fn faults_of_a_port_come_before_those_of_all_and_are_given_once() {
        let specs = |rules: &[&str]| {
            let config = SwitchConfig {
                ports: ["a=eth0", "b=eth1"].map(|p| p.parse().expect("a port")).into(),
                faults: rules.iter().map(|rule| rule.parse().expect("faults")).collect(),
                ..SwitchConfig::default()
            };
            let specs = config.port_specs().map_err(|failure| failure.what)?;
            let losses = specs
                .iter()
                .map(|(_, spec)| spec.faults().map(|f| f.faults()[0].loss));
            Ok::<_, String>(losses.collect::<Vec<_>>())
        };
        assert_eq!(
            specs(&["loss=25%", "b:loss=50%"]),
            Ok(vec![Some(0.25), Some(0.5)])
        );
        for (rules, at) in [
            (["a:loss=1%", "a:delay=1ms"], "twice on a:"),
            (["loss=1%", "delay=1ms"], "twice on all ports:"),
        ] {
            let what = specs(&rules).expect_err("one would be left out");
            assert!(what.contains(at), "{what}");
        }
    }

    #[test]
    fn a_switch_that_could_have_no_group_or_with_two_workers_on_a_core_does_not_start() {
        let place = |core| WorkerPlace { core };
        let check = |memory, groups_max, workers: &[Option<usize>]| {
            let config = SwitchConfig {
                memory,
                groups_max,
                workers: workers.iter().copied().map(place).collect(),
                ..SwitchConfig::default()
            };
            config.check_sizes().map_err(|failure| failure.what)
        };
        assert_eq!(check(None, None, &[None, None]), Ok(()));
        assert_eq!(check(Some(Size(64 << 20)), Some(1), &[Some(0), Some(1)]), Ok(()));
        for bytes in [0, 1, 64] {
            assert!(check(Some(Size(bytes)), None, &[]).is_err_and(|what| what.contains("no group fits")));
        }
        assert!(check(None, Some(0), &[]).is_err_and(|what| what.contains("groups_max 0")));
        let twice = check(None, None, &[Some(0), None, Some(0)]);
        assert!(twice.is_err_and(|what| what.contains("two workers on core 0")));
    }

    #[test]
    fn the_file_has_the_fields_of_the_flags_and_flags_win() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(
            file.path(),
            "name = \"leaf1\"\nlisten = \"unix:/run/l.sock\"\nrules = \"r.toml\"\nidle = \"busy\"\nworkers = [{ core = 2 }, {}]\n\
             faults = [\"h1:loss=1%\"]\nlldp = \"5s\"\nmemory = \"1MiB\"\ntls = { ca = \"ca.pem\" }\n\
             [[ports]]\nname = \"h1\"\nspec = \"veth1\"\n[[ports]]\nname = \"eth7\"\n",
        )
        .expect("written");
        let read = SwitchConfig::read(file.path()).expect("no fault");
        assert_eq!(
            read.ports[1],
            NamedPort {
                name: "eth7".to_owned(),
                spec: "af_packet:eth7".to_owned()
            }
        );
        assert_eq!(
            read.workers,
            [WorkerPlace { core: Some(2) }, WorkerPlace { core: None }]
        );
        assert_eq!(read.rules, file.path().parent().map(|f| f.join("r.toml")));
        assert_eq!(read.tls.ca, file.path().parent().map(|f| f.join("ca.pem")));
        let flags = SwitchConfig {
            name: Some("other".to_owned()),
            ..SwitchConfig::default()
        };
        let both = flags.or(read);
        assert_eq!(
            (both.name.as_deref(), both.idle),
            (Some("other"), Some(Idle::Busy))
        );
        assert_eq!(both.listen().to_string(), "unix:/run/l.sock");
        assert_eq!(SwitchConfig::default().listen().to_string(), connect::AGENT);
    }

    #[test]
    fn every_fault_of_a_file_is_named_with_line_and_field() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(
            file.path(),
            "name = \"l 1\"\nlisten = \"here\"\nidle = \"lazy\"\nfaults = [\"loss=300%\"]\n[[ports]]\nname = \"h1\"\nspec = \"x:y\"\n\
             [balance]\ninterval = \"1ms\"\nthreshold = 1.5\n[[ports]]\n[tsl]\n",
        )
        .expect("written");
        let failure = SwitchConfig::read(file.path()).expect_err("faults");
        for part in [
            ":1:8: name: \"l 1\" is not a name",
            ":2:10: listen: ",
            ":3:8: idle: ",
            ":4:11: faults[0]: ",
            ":7:8: ports[0].spec: ",
            ":9:12: balance.interval: ",
            ":10:13: balance.threshold: ",
            ":11:1: ports[1].name: missing: a name in quotes",
            ":12:2: tsl: unknown field; allowed: tls, roles, name, ",
        ] {
            assert!(failure.what.contains(part), "{part} in {}", failure.what);
        }
    }
}
