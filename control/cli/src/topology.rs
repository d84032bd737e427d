//! `castnet topology`: the fabric as the controller sees it.

use castnet_console::api;
use castnet_console::connect::{self, CONTROLLER, Tls};
use castnet_console::exit::Outcome;
use castnet_console::output::{Output, Page, Report, Row};
use castnet_console::units::bytes;
use castnet_proto::transport::{Address, Security};
use clap::Args;
use serde::Serialize;

/// The fabric as the controller sees it: switches, hosts and links
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  castnet topology
  castnet topology --controller unix:/run/castnet/controller.sock --output json")]
pub(crate) struct TopologyCommand {
    /// The controller
    #[arg(long, value_name = "URL", env = "CASTNET_CONTROLLER", default_value = CONTROLLER)]
    controller: Address,
    #[command(flatten)]
    tls: Tls,
}

#[derive(Debug, Serialize)]
struct TopologyReport {
    from_file: bool,
    switches: Vec<SwitchRow>,
    /// Those of the topology file that run no groups.
    forwarders: Vec<ForwarderRow>,
    hosts: Vec<HostRow>,
    links: Vec<LinkRow>,
}

#[derive(Debug, Serialize)]
struct SwitchRow {
    name: String,
    endpoint: String,
    reachable: bool,
    reason: String,
    version: String,
    ports: Vec<String>,
    groups: u64,
    groups_max: u64,
    /// For groups: all of it, and what is free.
    memory_bytes_max: u64,
    memory_bytes_free: u64,
    /// The McstIDs that routers route to it.
    mcst_prefix: Option<String>,
}

impl Row for SwitchRow {
    const COLUMNS: &'static [&'static str] = &[
        "switch",
        "agent",
        "state",
        "ports",
        "groups",
        "memory free",
        "mcst ids",
        "version",
        "remark",
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            self.name.clone(),
            self.endpoint.clone(),
            if self.reachable {
                "reachable"
            } else {
                "unreachable"
            }
            .to_owned(),
            self.ports.len().to_string(),
            format!("{} of {}", self.groups, self.groups_max),
            match self.memory_bytes_max {
                // It has not been asked yet.
                0 => "-".to_owned(),
                max => format!("{} of {}", bytes(self.memory_bytes_free), bytes(max)),
            },
            self.mcst_prefix.clone().unwrap_or_else(|| "-".to_owned()),
            self.version.clone(),
            self.reason.clone(),
        ]
    }
}

#[derive(Debug, Serialize)]
struct ForwarderRow {
    name: String,
    kind: String,
}

impl Row for ForwarderRow {
    const COLUMNS: &'static [&'static str] = &["name", "kind"];

    fn cells(&self) -> Vec<String> {
        vec![self.name.clone(), self.kind.clone()]
    }
}

#[derive(Debug, Serialize)]
struct HostRow {
    name: String,
    ip: String,
    mac: String,
    switch: String,
    port: Option<u32>,
}

impl Row for HostRow {
    const COLUMNS: &'static [&'static str] = &["host", "ip", "mac", "switch", "port"];

    fn cells(&self) -> Vec<String> {
        let text = |t: &String| if t.is_empty() { "-".to_owned() } else { t.clone() };
        vec![
            text(&self.name),
            text(&self.ip),
            text(&self.mac),
            text(&self.switch),
            self.port.map_or_else(|| "-".to_owned(), |p| p.to_string()),
        ]
    }
}

#[derive(Debug, Serialize)]
struct LinkRow {
    a: String,
    a_port: u32,
    b: String,
    b_port: u32,
    up: bool,
}

impl Row for LinkRow {
    const COLUMNS: &'static [&'static str] = &["link", "state"];

    fn cells(&self) -> Vec<String> {
        vec![
            format!(
                "{} port {} - {} port {}",
                self.a, self.a_port, self.b, self.b_port
            ),
            if self.up { "up" } else { "down" }.to_owned(),
        ]
    }
}

impl From<api::Topology> for TopologyReport {
    fn from(topology: api::Topology) -> Self {
        let switch = |s: api::SwitchState| SwitchRow {
            name: s.name,
            endpoint: s.endpoint,
            reachable: s.reachable,
            reason: s.reason,
            version: s.version,
            ports: s.ports,
            groups: s.groups,
            groups_max: s.groups_max,
            memory_bytes_max: s.memory_bytes_max,
            memory_bytes_free: s.memory_bytes_free,
            mcst_prefix: s.mcst_prefix,
        };
        let forwarder = |f: api::Forwarder| ForwarderRow {
            name: f.name,
            kind: f.kind,
        };
        let host = |h: api::Host| HostRow {
            name: h.name,
            ip: h.ip,
            mac: h.mac,
            switch: h.switch_name,
            port: h.port,
        };
        let link = |l: api::Link| {
            let (a, b) = (l.a.unwrap_or_default(), l.b.unwrap_or_default());
            LinkRow {
                a: a.switch_name,
                a_port: a.port,
                b: b.switch_name,
                b_port: b.port,
                up: l.up,
            }
        };
        Self {
            from_file: topology.from_file,
            switches: topology.switches.into_iter().map(switch).collect(),
            forwarders: topology.forwarders.into_iter().map(forwarder).collect(),
            hosts: topology.hosts.into_iter().map(host).collect(),
            links: topology.links.into_iter().map(link).collect(),
        }
    }
}

impl Report for TopologyReport {
    fn page(&self, page: &mut Page) {
        page.title("Switches");
        page.rows(&self.switches, "none: castnet controller --switch NAME=URL");
        if !self.forwarders.is_empty() {
            page.title("Plain switches and routers");
            page.rows(&self.forwarders, "none");
        }
        page.title("Hosts");
        page.rows(&self.hosts, "none seen yet");
        page.title(if self.from_file {
            "Links (from the topology file)"
        } else {
            "Links (reported by the switches)"
        });
        page.rows(&self.links, "none");
    }
}

impl SwitchRow {
    /// Asks the switch itself how much room it has: the controller knows what it was told last.
    async fn refresh(&mut self, security: &Security) {
        let answer = async {
            let address: Address = self.endpoint.parse().ok()?;
            let mut agent = connect::agent(&address, security).await.ok()?;
            let request = api::GetCapabilitiesRequest {};
            Some(agent.get_capabilities(request).await.ok()?.into_inner())
        };
        if let Some(now) = answer.await {
            self.groups = now.groups;
            self.groups_max = now.groups_max;
            self.memory_bytes_max = now.memory_bytes_max;
            self.memory_bytes_free = now.memory_bytes_free;
        }
    }
}

impl TopologyCommand {
    /// Shows it.
    pub(crate) async fn run(self, output: Output) -> Outcome {
        let security = self.tls.security()?;
        let mut controller = connect::controller(&self.controller, &security).await?;
        let topology = controller
            .get_topology(api::GetTopologyRequest {})
            .await?
            .into_inner();
        let mut report = TopologyReport::from(topology);
        for switch in report.switches.iter_mut().filter(|s| s.reachable) {
            switch.refresh(&security).await;
        }
        output.show(&report)
    }
}
