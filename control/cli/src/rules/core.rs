//! `castnet rules core`: the routes of a static core, as files.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use castnet_console::exit::{self, Failure, Outcome};
use castnet_console::output::{Output, Page, Report};
use castnet_console::settings;
use castnet_console::units::plural;
use castnet_planner::shufflecast;
use castnet_planner::static_core::{self, Layout};
use castnet_rules::{Ipv4Net, RuleSet};
use castnet_topology::{MulticastRoute, Topology};
use clap::Args;
use serde::Serialize;

/// The files of the routers of a static core, or of the ToRs of a Shufflecast
#[derive(Debug, Args)]
pub(super) struct CoreArgs {
    /// The topology file of the controller, with the routers or splitters and the mcst_prefix of each Castnet switch
    topology: PathBuf,
    /// The multicast addresses of the core
    #[arg(long, value_name = "PREFIX", default_value = "239.0.0.0/8")]
    addresses: Ipv4Net,
    /// A folder, which is made
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
}

/// Name of the file with the new topology, beside those of the switches.
const TOPOLOGY: &str = "topology";

#[derive(Debug, Serialize)]
struct Written {
    folder: String,
    addresses: usize,
    /// Number of splitters, each emulated by a port for each copy.
    emulated_splitters: usize,
    switches: Vec<SwitchFile>,
}

#[derive(Debug, Serialize)]
struct SwitchFile {
    switch: String,
    /// Routes that replicate.
    replicate: usize,
    /// Routes to one of several next hops.
    forward: usize,
}

impl CoreArgs {
    pub(super) fn run(&self, output: Output) -> Outcome {
        let text = exit::read_text(&self.topology)?;
        let topology =
            Topology::from_toml(&text).map_err(|faults| settings::faulty(&self.topology, faults))?;
        let shown = self.topology.display();
        if topology.multicast_routes().next().is_some() {
            let what = format!("{shown} has [[multicast_routes]] already");
            return Err(Failure::refused(what).next("remove them from a copy, and give that"));
        }
        let layout = match topology.splitters() {
            [] => static_core::layout(&topology, self.addresses),
            _ => shufflecast::layout(&topology, self.addresses),
        };
        let layout = layout.map_err(|error| {
            let next = "castnet rules core --help; deploy/README.md says what a static core needs";
            Failure::refused(format!("{shown}: {}", error.reason())).next(next)
        })?;
        if let Some(block) = topology.group_addresses()
            && let Some(address) = layout.addresses.keys().find(|address| block.contains(*address))
        {
            let what = format!(
                "{shown}: {address} of {} is one of the group_addresses {block}",
                self.addresses
            );
            return Err(Failure::refused(what).next("give other addresses: --addresses PREFIX"));
        }
        let strange = |name: &&String| name.contains('/') || name.starts_with('.');
        if let Some(name) = layout.routes.keys().find(strange) {
            return Err(Failure::refused(format!(
                "{shown}: {name:?} cannot be the name of a file"
            )));
        }
        if layout.routes.contains_key(TOPOLOGY) {
            let what = format!(
                "{shown}: the rules of switch {TOPOLOGY:?} would replace {TOPOLOGY}.toml, the new topology"
            );
            return Err(Failure::refused(what).next("give the switch another name"));
        }
        fs::create_dir(&self.out).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists | ErrorKind::NotFound => {
                Failure::usage(format!("{}: {error}", self.out.display()))
                    .next("give --out a folder that is not there, in one that is")
            }
            _ => exit::cannot_write(&self.out, &error),
        })?;
        if let Err(error) = write(&self.out, &text, &layout) {
            // Half of the files would look like all of them.
            let _ = fs::remove_dir_all(&self.out);
            return Err(exit::cannot_write(&self.out, &error));
        }
        let switches = layout.routes.into_iter().map(|(switch, routes)| {
            let replicate = routes.iter().filter(|route| route.replicate).count();
            SwitchFile {
                switch,
                replicate,
                forward: routes.len() - replicate,
            }
        });
        output.show(&Written {
            folder: self.out.display().to_string(),
            addresses: layout.addresses.len(),
            emulated_splitters: topology.splitters().len(),
            switches: switches.collect(),
        })
    }
}

/// The topology as it was, with the addresses, and a rule file for each router.
fn write(folder: &Path, topology: &str, layout: &Layout) -> std::io::Result<()> {
    let mut text = topology.trim_end().to_owned();
    text.push('\n');
    for (address, MulticastRoute { switches, source }) in &layout.addresses {
        let switches: Vec<&String> = switches.iter().collect();
        text += &format!("\n[[multicast_routes]]\naddress = \"{address}\"\nswitches = {switches:?}\n");
        if let Some(source) = source {
            text += &format!("source = {source:?}\n");
        }
    }
    fs::write(folder.join(format!("{TOPOLOGY}.toml")), text)?;
    for (router, routes) in &layout.routes {
        let rules = RuleSet {
            routes: routes.clone(),
            ..RuleSet::default()
        };
        fs::write(folder.join(format!("{router}.toml")), rules.to_toml())?;
    }
    Ok(())
}

impl Report for Written {
    fn page(&self, page: &mut Page) {
        let most = |count: fn(&SwitchFile) -> usize| self.switches.iter().map(count).max().unwrap_or(0);
        let folder = &self.folder;
        page.line(format!(
            "{folder}/{TOPOLOGY}.toml: the topology with [[multicast_routes]], {} of them",
            self.addresses
        ));
        page.line(format!(
            "{folder}/SWITCH.toml, {}: {} or fewer that replicate, {} or fewer that do not",
            plural(self.switches.len(), "file"),
            plural(most(|switch| switch.replicate), "route"),
            most(|switch| switch.forward)
        ));
        if self.emulated_splitters > 0 {
            page.line(format!(
                "{} are emulated: the switch sends a copy by a port of its own to each switch behind one",
                plural(self.emulated_splitters, "splitter")
            ));
        }
    }
}
