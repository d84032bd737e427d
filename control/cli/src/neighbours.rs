//! `castnet neighbours`: who is at the other end of a switch's ports.

use std::time::Duration;

use castnet_console::api;
use castnet_console::connect::AgentArgs;
use castnet_console::exit::Outcome;
use castnet_console::output::{Output, Row, Rows};
use castnet_console::units;
use clap::Args;
use serde::Serialize;

use crate::port::PortNames;

/// Who is at the other end of a switch's ports: switches by LLDP, hosts by ARP
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  castnet neighbours                 of the switch on this machine
  castnet neighbours --output json   for machines")]
pub(crate) struct NeighboursCommand {
    #[command(flatten)]
    agent: AgentArgs,
}

#[derive(Debug, Serialize)]
struct NeighbourRow {
    port: u32,
    port_name: String,
    kind: &'static str,
    name: String,
    mac: String,
    ip: Option<String>,
    remote_port: Option<String>,
    age_ns: u64,
}

impl Row for NeighbourRow {
    const COLUMNS: &'static [&'static str] = &["port", "kind", "name", "remote port", "ip", "mac", "seen"];

    fn cells(&self) -> Vec<String> {
        let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        vec![
            self.port_name.clone(),
            self.kind.to_owned(),
            if self.name.is_empty() {
                "-".to_owned()
            } else {
                self.name.clone()
            },
            or_dash(&self.remote_port),
            or_dash(&self.ip),
            self.mac.clone(),
            format!("{} ago", units::span(Duration::from_nanos(self.age_ns))),
        ]
    }
}

fn row(neighbour: api::Neighbour, names: &PortNames) -> NeighbourRow {
    use api::neighbour::Kind;
    let mut row = NeighbourRow {
        port: neighbour.port,
        port_name: names.name(neighbour.port),
        kind: "unknown",
        name: String::new(),
        mac: String::new(),
        ip: None,
        remote_port: None,
        age_ns: neighbour.age_ns,
    };
    match neighbour.kind {
        Some(Kind::Switch(switch)) => {
            (row.kind, row.name, row.mac) = ("switch", switch.name, switch.mac);
            row.remote_port = Some(switch.port);
        }
        Some(Kind::Host(host)) => {
            (row.kind, row.mac) = ("host", host.mac);
            row.ip = Some(host.ip);
        }
        None => {}
    }
    row
}

impl NeighboursCommand {
    /// Lists neighbours.
    pub(crate) async fn run(self, output: Output) -> Outcome {
        let mut agent = self.agent.connect().await?;
        let names = PortNames::fetch(&mut agent).await?;
        let found = agent
            .list_neighbours(api::ListNeighboursRequest {})
            .await?
            .into_inner()
            .neighbours;
        let rows = found.into_iter().map(|n| row(n, &names)).collect();
        output.show(&Rows::new(
            rows,
            "nobody was seen yet: hosts show with their first ARP, switches with LLDP",
        ))
    }
}
