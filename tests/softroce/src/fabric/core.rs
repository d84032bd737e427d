//! Switches at the edges of a static core, which is another switch with routes alone; or the ToRs of a 2,2-Shufflecast beside that network.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, Result, bail};
use castnet_e2e::process::castnet;
use castnet_planner::shufflecast::{Shufflecast, Tor};
use serde_json::Value;

use super::{Fabric, SWITCH, inside, ready};

/// The edges of a core, or with all eight the ToRs of a 2,2-Shufflecast. The first is the switch of the [`Fabric`]. Interface `eN` of the
/// namespace leads from edge `N` to `cN` of the core.
const EDGES: [&str; 8] = [
    SWITCH, "edge1", "edge2", "edge3", "edge4", "edge5", "edge6", "edge7",
];

/// The pairs of interfaces from ToRs to those behind their splitters, of eight edges; none of fewer. A splitter is emulated by a link for each.
pub fn splitters(edges: usize) -> Vec<(usize, String, usize, String)> {
    let fabric = Shufflecast::new(2, 2)
        .ok()
        .filter(|fabric| fabric.size() == edges);
    let tors = fabric
        .into_iter()
        .flat_map(|fabric| fabric.tors().map(move |tor| (fabric, tor)));
    let link = |(fabric, tor): (Shufflecast, Tor)| {
        let links = (0..).zip(fabric.splitter(tor));
        let from = tor.number();
        links.map(move |(out, to): (usize, Tor)| {
            (
                from,
                format!("p{from}{out}"),
                to.number(),
                format!("q{from}{out}"),
            )
        })
    };
    tors.flat_map(link).collect()
}

fn prefix(edge: usize) -> String {
    format!("10.21{edge}.0.0/24")
}

impl Fabric {
    /// As [`Fabric::start`], with the hosts of `ports` at so many edges in turn, 3 or 8. The interfaces between edges and core exist, and those of
    /// [`splitters`].
    ///
    /// # Errors
    /// One of the programs does not become ready.
    pub fn over_core(
        namespace: &str,
        ports: &[(String, String)],
        mtu: u32,
        faults: &[String],
        controller: &str,
        edges: usize,
    ) -> Result<Self> {
        let names = &EDGES[..edges];
        let folder = tempfile::Builder::new().prefix("castnet-softroce-").tempdir()?;
        let at = |name: &str| folder.path().join(name);
        let mac = |interface: &str| mac(namespace, interface);
        let edge = |number: usize| ports.iter().skip(number).step_by(edges);
        let up = |number: usize| edge(number).count();

        let wires = splitters(edges);
        let splitter_ports = |number: usize| -> Vec<String> {
            let near = wires.iter().filter(|wire| wire.0 == number).map(|wire| &wire.1);
            let far = wires.iter().filter(|wire| wire.2 == number).map(|wire| &wire.3);
            near.chain(far).cloned().collect()
        };
        // Behind those of hosts and of the core.
        let port_of = |number: usize, interface: &str| {
            let at = splitter_ports(number).iter().position(|own| own == interface);
            at.map(|at| up(number) + 1 + at).unwrap_or_default()
        };
        let (mut switches, mut links) = (String::new(), String::new());
        let mut macs = Vec::new();
        for (number, name) in names.iter().enumerate() {
            macs.push(format!("\"{}\"", mac(&format!("c{number}"))?));
            let mut own = Vec::new();
            for (port, (host, interface)) in edge(number).enumerate() {
                own.push(format!("\"{}\"", mac(interface)?));
                let _ = write!(switches, "[[hosts]]\nname = \"{host}\"\n");
                let _ = write!(
                    links,
                    "[[links]]\na = \"{name}:{port}\"\nb = \"{host}\"\nmtu = {mtu}\n"
                );
            }
            own.push(format!("\"{}\"", mac(&format!("e{number}"))?));
            for interface in splitter_ports(number) {
                own.push(format!("\"{}\"", mac(&interface)?));
            }
            let (own, prefix) = (own.join(", "), prefix(number));
            let _ = write!(
                switches,
                "[[switches]]\nname = \"{name}\"\nports = [{own}]\nmcst_prefix = \"{prefix}\"\n"
            );
            let port = up(number);
            let _ = write!(
                links,
                "[[links]]\na = \"{name}:{port}\"\nb = \"core:{number}\"\nmtu = {mtu}\n"
            );
        }
        for (number, name) in names.iter().enumerate().filter(|_| !wires.is_empty()) {
            let own = wires.iter().filter(|wire| wire.0 == number);
            let link = |(from, near, to, far): &(usize, String, usize, String)| {
                let (near, far) = (port_of(*from, near), port_of(*to, far));
                format!("{{ port = {near}, to = \"{}:{far}\" }}", names[*to])
            };
            let own: Vec<String> = own.map(link).collect();
            let _ = write!(
                links,
                "[[splitters]]\nfrom = \"{name}\"\nlinks = [{}]\n",
                own.join(", ")
            );
        }
        let macs = macs.join(", ");
        let core = format!("[[switches]]\nname = \"core\"\nkind = \"router\"\nports = [{macs}]\n");
        fs::write(at("base.toml"), core + &switches + &links)?;
        let mut command = std::process::Command::new(castnet());
        command
            .args(["rules", "core"])
            .arg(at("base.toml"))
            .arg("--out")
            .arg(at("core"));
        let out = command.output()?;
        if !out.status.success() {
            bail!("castnet rules core: {}", String::from_utf8_lossy(&out.stderr));
        }

        let route = |prefix: &str, port: usize, mac: String| {
            format!("[[routes]]\nprefix = \"{prefix}\"\nnext_hops = [{{ port = {port}, mac = \"{mac}\" }}]\n")
        };
        // The controller gives ToRs the routes of their relays.
        let mut core = match wires.is_empty() {
            true => fs::read_to_string(at("core/core.toml"))?,
            false => String::new(),
        };
        let mut processes = Vec::new();
        for (number, name) in names.iter().enumerate() {
            core += &route(&prefix(number), number, mac(&format!("e{number}"))?);
            let up = route("0.0.0.0/0", up(number), mac(&format!("c{number}"))?);
            fs::write(at(&format!("{name}.toml")), up)?;
        }
        fs::write(at("core.toml"), core)?;
        let cores: Vec<(String, String)> = (0..edges)
            .map(|n| (EDGES[n].to_owned(), format!("c{n}")))
            .collect();
        let up = |number: usize| {
            let splitters = splitter_ports(number).into_iter();
            [("core".to_owned(), format!("e{number}"))]
                .into_iter()
                .chain(splitters.map(|interface| (interface.clone(), interface)))
        };
        let edges = (0..edges).map(|n| (EDGES[n], edge(n).cloned().chain(up(n)).collect()));
        for (name, ports) in edges.chain([("core", cores)]) {
            let mut command = inside(namespace, castnet());
            let socket = if name == SWITCH { "switch" } else { name };
            command.args(["switch", "--name", name, "--lldp", "0s", "--listen"]);
            command.arg(format!("unix:{}", at(&format!("{socket}.sock")).display()));
            command.arg("--rules").arg(at(&format!("{name}.toml")));
            let ports: Vec<(String, String)> = ports;
            for (port, interface) in ports {
                if port == interface {
                    command.args(["--no-flood", &port, "--core-port", &port]);
                }
                command.args(["--port", &format!("{port}=af_packet:{interface},rx=8192,tx=4096")]);
            }
            for fault in faults {
                command.args(["--fault", fault]);
            }
            processes.push(ready(name, folder.path(), command)?);
        }
        let mut command = inside(namespace, castnet());
        command.args(["controller", "--insecure", "--listen", controller]);
        command.arg("--topology").arg(at("core/topology.toml"));
        for name in names {
            let socket = if *name == SWITCH { "switch" } else { name };
            command.args([
                "--switch",
                &format!("{name}=unix:{}", at(&format!("{socket}.sock")).display()),
            ]);
        }
        let controller = ready("controller", folder.path(), command)?;
        let switch = processes.remove(0);
        let fabric = Self {
            _controller: controller,
            switch,
            _others: processes,
            namespace: namespace.to_owned(),
            folder,
            groups_made: 0,
        };
        fabric.wait_for_switch()?;
        Ok(fabric)
    }

    /// A `castnet` verb that asks another switch than the first, as JSON.
    ///
    /// # Errors
    /// As [`Fabric::castnet`].
    pub fn at_other(&self, switch: &str, args: &[&str]) -> Result<Value> {
        let agent = format!(
            "unix:{}",
            self.folder.path().join(format!("{switch}.sock")).display()
        );
        let args = [args, &["--agent", &agent, "--output", "json"]].concat();
        Ok(serde_json::from_str(&self.castnet(&args)?)?)
    }
}

/// The Ethernet address of an interface.
fn mac(namespace: &str, interface: &str) -> Result<String> {
    let mut command = std::process::Command::new("ip");
    let out = command
        .args(["-n", namespace, "-j", "link", "show", "dev", interface])
        .output()?;
    let shown: Value =
        serde_json::from_slice(&out.stdout).with_context(|| format!("ip link show dev {interface}"))?;
    let mac = shown[0]["address"].as_str();
    mac.map(String::from)
        .with_context(|| format!("{interface}: {shown}"))
}
