//! `castnet doctor`: what this machine has and lacks for each use of Castnet, and what to do about it.

mod cpu;
mod dpdk;
mod kernel;
mod machine;
mod network;
mod plan;
mod reach;

use std::net::Ipv4Addr;
use std::path::PathBuf;

use castnet_console::exit::{Failure, Outcome};
use castnet_console::output::{Output, Page, Report, Row};
use castnet_port::DpdkSpec;
use castnet_switch::config::SwitchConfig;
use castnet_wire::PortId;
use castnet_worker::{DataplaneConfig, PortConfig};
use clap::{Args, ValueEnum};
use serde::Serialize;

use dpdk::Need;
use machine::Machine;

/// Checks what this machine has and lacks for Castnet, and says what to do about it
#[derive(Debug, Args)]
#[command(
    after_help = "Exit code 1: something is missing that the use of --for needs. Without --for, the use is the demo; with --config, it is the switch of that file.

Examples:
  castnet doctor
  castnet doctor --for switch           can this machine run a switch on its interfaces?
  castnet doctor --for dpdk             can it drive NICs by DPDK? Hugepages, IOMMU, drivers
  castnet doctor --for speed            what slows workers down: cores, clocks, instructions
  castnet doctor --config switch.toml   will the switch of this file start here, and be fast?
  castnet doctor --for lab              can it run the lab in network namespaces?
  castnet doctor --mcst-id 10.0.0.200   at a host: does what it sends to this group reach a switch?"
)]
pub struct DoctorCommand {
    /// The use that the exit code is about
    #[arg(long = "for", value_enum, value_name = "USE")]
    purpose: Option<Use>,
    /// Also checks what the switch of this configuration file needs
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// At a host: checks only the path to the group of this address: the route, and who answers ARP
    #[arg(long, value_name = "IP", conflicts_with_all = ["purpose", "config"])]
    mcst_id: Option<Ipv4Addr>,
}

/// What somebody wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Use {
    /// `castnet demo`: no privileges, no interfaces
    Demo,
    /// `castnet switch` and `castnet host` on interfaces of this machine
    Switch,
    /// Switch and hosts in network namespaces of this machine
    Lab,
    /// As fast as this machine can
    Speed,
    /// Ports that DPDK drives
    Dpdk,
    /// The switch of the file that was given
    #[value(skip)]
    File,
    /// A host of the group whose address was given
    #[value(skip)]
    Group,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum Level {
    Ok,
    /// It works but could be better, or it is not known.
    Warn,
    Missing,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Check {
    pub(crate) what: String,
    pub(crate) level: Level,
    #[serde(rename = "for")]
    pub(crate) purpose: Use,
    pub(crate) found: String,
    /// Empty if all is well.
    pub(crate) advice: String,
}

impl Check {
    pub(crate) fn of(purpose: Use, what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            level: Level::Ok,
            purpose,
            found: String::new(),
            advice: String::new(),
        }
    }

    pub(crate) fn ok(mut self, found: impl Into<String>) -> Self {
        self.found = found.into();
        self
    }

    pub(crate) fn warn(mut self, found: impl Into<String>, advice: impl Into<String>) -> Self {
        self.level = Level::Warn;
        self.advice = advice.into();
        self.ok(found)
    }

    pub(crate) fn missing(mut self, found: impl Into<String>, advice: impl Into<String>) -> Self {
        self.level = Level::Missing;
        self.advice = advice.into();
        self.ok(found)
    }
}

impl Row for Check {
    const COLUMNS: &'static [&'static str] = &["", "what", "for", "found", "what to do"];

    fn cells(&self) -> Vec<String> {
        let level = match self.level {
            Level::Ok => "OK",
            Level::Warn => "WARN",
            Level::Missing => "MISSING",
        };
        let purpose = match self.purpose {
            Use::File => "file".to_owned(),
            Use::Group => "group".to_owned(),
            other => other
                .to_possible_value()
                .map_or_else(String::new, |v| v.get_name().to_owned()),
        };
        vec![
            level.to_owned(),
            self.what.clone(),
            purpose,
            self.found.clone(),
            self.advice.clone(),
        ]
    }
}

#[derive(Debug, Serialize)]
struct Examination {
    #[serde(rename = "for")]
    purpose: Use,
    missing: Vec<String>,
    checks: Vec<Check>,
}

impl Examination {
    fn new(purpose: Use, checks: Vec<Check>) -> Self {
        let missing = checks
            .iter()
            .filter(|c| c.level == Level::Missing && needs(purpose, c.purpose))
            .map(|c| c.what.clone())
            .collect();
        Self {
            purpose,
            missing,
            checks,
        }
    }
}

/// Whether `purpose` needs the checks of `other`.
fn needs(purpose: Use, other: Use) -> bool {
    match purpose {
        _ if other == Use::File => true,
        Use::Demo | Use::File => other == Use::Demo,
        Use::Group => other == Use::Group,
        Use::Switch => matches!(other, Use::Demo | Use::Switch),
        Use::Lab => matches!(other, Use::Demo | Use::Switch | Use::Lab),
        Use::Speed => matches!(other, Use::Demo | Use::Switch | Use::Speed),
        Use::Dpdk => matches!(other, Use::Demo | Use::Dpdk),
    }
}

impl Report for Examination {
    fn page(&self, page: &mut Page) {
        page.rows(&self.checks, "nothing was checked");
        page.title(if self.missing.is_empty() {
            "Nothing that is needed is missing.".to_owned()
        } else {
            format!("Missing: {}.", self.missing.join(", "))
        });
    }
}

/// All checks except those of a file.
fn general(machine: &Machine, need: Option<&Need>) -> Vec<Check> {
    let mut checks = kernel::checks(machine);
    checks.extend(cpu::checks(machine));
    checks.extend(network::checks(machine));
    checks.extend(dpdk::checks(machine, castnet_switch::dpdk::version(), need));
    checks
}

/// Hugepages that a switch needs.
fn need(dataplane: &DataplaneConfig, of: &str) -> Option<Need> {
    castnet_switch::dpdk::bytes(dataplane).map(|bytes| Need {
        bytes,
        of: of.to_owned(),
    })
}

/// For two NICs and one worker.
fn usual_need() -> Option<Need> {
    let nic = |n: u8| {
        let spec = DpdkSpec::new(format!("0000:00:00.{n}"), "");
        Some(PortConfig::new(PortId::new(n)?, "nic", spec))
    };
    let ports = (0..2).filter_map(nic).collect();
    need(
        &DataplaneConfig::new("", ports),
        "a switch of two NICs with one worker",
    )
}

/// A switch needs no raw sockets if DPDK drives all its ports.
fn purpose_of(dataplane: &DataplaneConfig) -> Use {
    let dpdk = |port: &PortConfig| port.spec.dpdk().is_some();
    if dataplane.ports.iter().all(dpdk) {
        Use::Dpdk
    } else {
        Use::Switch
    }
}

impl DoctorCommand {
    /// Runs the command.
    pub fn run(self, output: Output) -> Outcome {
        if let Some(mcst_id) = self.mcst_id {
            return show(Examination::new(Use::Group, reach::checks(mcst_id)), output);
        }
        let machine = Machine::this();
        let config = self.config.as_deref().map(SwitchConfig::read).transpose()?;
        let dataplane = config
            .as_ref()
            .map(castnet_switch::dataplane_config)
            .transpose()?;
        let need = match &dataplane {
            Some(dataplane) => need(dataplane, "the switch of the file"),
            None => usual_need(),
        };
        let mut checks = general(&machine, need.as_ref());
        let mut purpose = self.purpose.unwrap_or(Use::Demo);
        if let (Some(config), Some(dataplane)) = (&config, &dataplane) {
            let hugepages = config.hugepages.unwrap_or_default();
            let built_in = castnet_switch::dpdk::version().is_some();
            let need = need.as_ref();
            checks.extend(plan::checks(&machine, dataplane, hugepages, built_in, need));
            purpose = self.purpose.unwrap_or_else(|| purpose_of(dataplane));
        }
        show(Examination::new(purpose, checks), output)
    }
}

fn show(examination: Examination, output: Output) -> Outcome {
    let verdict = match examination.missing.is_empty() {
        true => Ok(()),
        false => Err(Failure::failed("something that is needed is missing").next(advice(&examination))),
    };
    output.conclude(&examination, verdict)
}

/// What to do about what is missing. Several checks may have the same remedy.
fn advice(examination: &Examination) -> String {
    let missing = examination
        .checks
        .iter()
        .filter(|c| c.level == Level::Missing && examination.missing.contains(&c.what));
    let mut all: Vec<&str> = Vec::new();
    for check in missing {
        if !all.contains(&check.advice.as_str()) {
            all.push(&check.advice);
        }
    }
    all.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_purpose_needs_decides() {
        let checks = vec![
            Check::of(Use::Switch, "raw sockets").missing("not permitted", "run as root"),
            Check::of(Use::Demo, "cores").warn("1", "use more"),
        ];
        assert!(Examination::new(Use::Demo, checks.clone()).missing.is_empty());
        assert_eq!(
            Examination::new(Use::Switch, checks.clone()).missing,
            ["raw sockets"]
        );
        assert_eq!(Examination::new(Use::Lab, checks).missing, ["raw sockets"]);
    }

    #[test]
    fn a_remedy_is_given_once() {
        let checks = vec![
            Check::of(Use::Demo, "raw sockets").missing("not permitted", "run as root"),
            Check::of(Use::File, "port h1").missing("not permitted", "run as root"),
            Check::of(Use::File, "port h2").missing("there is none", "ip link"),
            Check::of(Use::Speed, "port h2").warn("slow", "another one"),
        ];
        let examination = Examination::new(Use::Demo, checks);
        assert_eq!(advice(&examination), "run as root\nip link");
    }

    #[test]
    fn every_warning_says_what_to_do() {
        let machine = Machine::this();
        for check in general(&machine, usual_need().as_ref()) {
            assert_eq!(check.level == Level::Ok, check.advice.is_empty(), "{check:?}");
        }
    }
}
