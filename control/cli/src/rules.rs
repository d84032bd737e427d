mod core;

use std::path::{Path, PathBuf};

use castnet_console::exit::{self, Failure, Outcome};
use castnet_console::output::{Output, Page, Report, write_stdout};
use castnet_console::units::plural;
use castnet_rules::{COLLECTIVE_EXAMPLE, Fault, RuleSet};
use castnet_toml_reader::{Fault as FileFault, SHOWN_MAX};
use clap::{Args, Subcommand};
use serde::Serialize;

/// Checks and makes rule files
#[derive(Debug, Args)]
#[command(
    after_help = "A rule file has the groups and routes of one switch that runs without a controller.

Examples:
  castnet rules example > rules.toml
  castnet rules example --collective        a switch that computes a collective
  castnet rules core topology.toml --out core   the routes of a core that replicates for any group
  castnet rules check rules.toml            each fault with file, field and, where known, line and column; exit code 1 if there is one
  castnet switch --rules rules.toml ...     runs them"
)]
pub(crate) struct RulesCommand {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Prints file, field and, where known, line and column of each fault; exit code 1 if there is one, 2 if a file cannot be read
    Check {
        /// The files
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Ports that the switch has; without it, as many as a switch can have
        #[arg(long, value_name = "N", default_value_t = castnet_wire::PortId::COUNT, hide_default_value = true)]
        ports: usize,
    },
    /// Prints an example with remarks
    Example {
        /// Of a collective group instead of a multicast group
        #[arg(long)]
        collective: bool,
    },
    /// Writes the routes of a static core: one rule file for each router, or each ToR with a splitter, and the topology with the multicast
    /// addresses
    #[command(
        after_help = "Groups with a static core have no state in it (castnet group create --distribution static): the switch next to the source
sends one copy to a multicast address, and the routers replicate it by routes that never change. With [[splitters]] in the topology, the
switches next to hosts do so themselves, as relays of a Shufflecast.

Examples:
  castnet rules core topology.toml --out core
  castnet switch --rules core/spine1.toml ...            a router that runs Castnet
  castnet controller --topology core/topology.toml ...   knows the addresses"
    )]
    Core(core::CoreArgs),
}

#[derive(Debug, Serialize)]
struct Checked {
    files: Vec<FileReport>,
}

#[derive(Debug, Serialize)]
struct FileReport {
    file: String,
    groups: usize,
    collectives: usize,
    forwarding: usize,
    routes: usize,
    faults: Vec<FaultReport>,
}

#[derive(Debug, Serialize)]
struct FaultReport {
    line: Option<usize>,
    column: Option<usize>,
    field: String,
    message: String,
}

impl From<&Fault> for FaultReport {
    fn from(fault: &Fault) -> Self {
        Self {
            line: None,
            column: None,
            field: fault.field.clone(),
            message: fault.kind.to_string(),
        }
    }
}

impl From<FileFault> for FaultReport {
    fn from(fault: FileFault) -> Self {
        Self {
            line: Some(fault.line),
            column: Some(fault.column),
            field: fault.field,
            message: fault.message,
        }
    }
}

impl FileReport {
    fn new(path: &Path, ports: usize) -> Outcome<Self> {
        let text = exit::read_text(path)?;
        let (rules, faults) = match RuleSet::from_toml(&text) {
            Ok(rules) => {
                let faults = rules.check(ports).iter().map(FaultReport::from).collect();
                (rules, faults)
            }
            Err(faults) => {
                let faults = faults.faults.into_iter().map(FaultReport::from).collect();
                (RuleSet::default(), faults)
            }
        };
        let of_kind = |kind: &str| rules.groups.iter().filter(|g| g.kind.name() == kind).count();
        Ok(Self {
            file: path.display().to_string(),
            groups: of_kind("multicast"),
            collectives: of_kind("translated"),
            forwarding: of_kind("forwarding"),
            routes: rules.routes.len(),
            faults,
        })
    }
}

impl Report for Checked {
    fn page(&self, page: &mut Page) {
        for file in &self.files {
            for fault in file.faults.iter().take(SHOWN_MAX) {
                let place = match (fault.line, fault.column) {
                    (Some(line), Some(column)) => format!(":{line}:{column}"),
                    _ => String::new(),
                };
                let field = if fault.field.is_empty() {
                    String::new()
                } else {
                    format!("{}: ", fault.field)
                };
                page.line(format!("{}{place}: {field}{}", file.file, fault.message));
            }
            let more = file.faults.len().saturating_sub(SHOWN_MAX);
            if more > 0 {
                page.line(format!("{}: and {more} more, which --output json has", file.file));
            }
            if file.faults.is_empty() {
                let forwarding = match file.forwarding {
                    0 => String::new(),
                    n => format!(", {}", plural(n, "forwarding group")),
                };
                page.line(format!(
                    "{}: good: {}, {}{forwarding}, {}",
                    file.file,
                    plural(file.groups, "multicast group"),
                    plural(file.collectives, "collective group"),
                    plural(file.routes, "route")
                ));
            }
        }
    }
}

impl RulesCommand {
    pub(crate) fn run(self, output: Output) -> Outcome {
        match self.verb {
            Verb::Core(args) => args.run(output),
            Verb::Example { collective: false } => write_stdout(EXAMPLE),
            Verb::Example { collective: true } => write_stdout(COLLECTIVE_EXAMPLE),
            Verb::Check { files, ports } => {
                let files = files
                    .iter()
                    .map(|f| FileReport::new(f, ports))
                    .collect::<Outcome<Vec<_>>>()?;
                let faults: usize = files.iter().map(|f| f.faults.len()).sum();
                let verdict = match faults {
                    0 => Ok(()),
                    _ => Err(Failure::failed(plural(faults, "fault"))
                        .next("castnet rules example\nshows a file that is right")),
                };
                output.conclude(&Checked { files }, verdict)
            }
        }
    }
}

/// A rule file with remarks: one source, three receivers behind one switch.
pub(crate) const EXAMPLE: &str = include_str!("../../../rules/examples/star.toml");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_is_right() {
        let rules = RuleSet::from_toml(EXAMPLE).expect("no faults");
        assert_eq!(rules.check(6), vec![]);
        assert!(!rules.groups.is_empty() && !rules.routes.is_empty());
    }

    /// A file that is meant for something else does not flood the terminal.
    #[test]
    fn the_first_faults_are_shown_and_the_others_counted() {
        let shown = |faults: usize| {
            let fault = |_| FaultReport {
                line: None,
                column: None,
                field: "x".to_owned(),
                message: "unknown field".to_owned(),
            };
            let file = FileReport {
                file: "f".to_owned(),
                groups: 0,
                collectives: 0,
                forwarding: 0,
                routes: 0,
                faults: (0..faults).map(fault).collect(),
            };
            let mut page = Page::default();
            Checked { files: vec![file] }.page(&mut page);
            let lines: Vec<_> = page.text().lines().map(str::to_owned).collect();
            (lines.len(), lines.last().cloned().unwrap_or_default())
        };
        assert_eq!(shown(20), (20, "f: x: unknown field".to_owned()));
        assert_eq!(
            shown(22),
            (21, "f: and 2 more, which --output json has".to_owned())
        );
    }
}
