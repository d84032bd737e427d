//! `castnet rules core`: the routes of a static core, as files.

use std::fs;
use std::path::{Path, PathBuf};

use castnet_console::exit::{self, Failure, Outcome};
use castnet_console::output::{Output, Page, Report};
use castnet_console::settings;
use castnet_console::units::plural;
use castnet_planner::static_core::{Layout, layout};
use castnet_rules::{Ipv4Net, RuleSet};
use castnet_topology::{MulticastRoute, Topology};
use clap::Args;
use serde::Serialize;

/// The files of the routers of a static core
#[derive(Debug, Args)]
pub(super) struct CoreArgs {
    /// The topology file of the controller, with the routers and the mcst_prefix of each Castnet switch
    topology: PathBuf,
    /// The multicast addresses of the core
    #[arg(long, value_name = "PREFIX", default_value = "239.0.0.0/8")]
    addresses: Ipv4Net,
    /// A folder, which is made
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
}

#[derive(Debug, Serialize)]
struct Written {
    folder: String,
    addresses: usize,
    routers: Vec<RouterFile>,
}

#[derive(Debug, Serialize)]
struct RouterFile {
    router: String,
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
        let layout = layout(&topology, self.addresses).map_err(|error| {
            let next = "castnet rules core --help; deploy/README.md says what a static core needs";
            Failure::refused(format!("{shown}: {}", error.reason())).next(next)
        })?;
        let strange = |name: &&String| name.contains('/') || name.starts_with('.');
        if let Some(name) = layout.routes.keys().find(strange) {
            return Err(Failure::refused(format!(
                "{shown}: {name:?} cannot be the name of a file"
            )));
        }
        let cannot = |error| Failure::failed(format!("{}: {error}", self.out.display()));
        fs::create_dir(&self.out).map_err(cannot)?;
        if let Err(error) = write(&self.out, &text, &layout) {
            // Half of the files would look like all of them.
            let _ = fs::remove_dir_all(&self.out);
            return Err(cannot(error));
        }
        let routers = layout.routes.into_iter().map(|(router, routes)| {
            let replicate = routes.iter().filter(|route| route.replicate).count();
            RouterFile {
                router,
                replicate,
                forward: routes.len() - replicate,
            }
        });
        output.show(&Written {
            folder: self.out.display().to_string(),
            addresses: layout.addresses.len(),
            routers: routers.collect(),
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
    fs::write(folder.join("topology.toml"), text)?;
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
        let most = |count: fn(&RouterFile) -> usize| self.routers.iter().map(count).max().unwrap_or(0);
        let folder = &self.folder;
        page.line(format!(
            "{folder}/topology.toml: {} that lead to switches",
            plural(self.addresses, "multicast address")
        ));
        page.line(format!(
            "{folder}/ROUTER.toml for {}: at most {} that replicate and {} that do not",
            plural(self.routers.len(), "router"),
            plural(most(|router| router.replicate), "route"),
            most(|router| router.forward)
        ));
    }
}
