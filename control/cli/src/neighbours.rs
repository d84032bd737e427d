use castnet_console::api;
use castnet_console::columns;
use castnet_console::connect::AgentArgs;
use castnet_console::exit::Outcome;
use castnet_console::output::{Output, Rows};
use clap::Args;
use serde::Serialize;

use crate::fdb::ago;
use crate::group::or_dash;
use crate::port::PortNames;

/// The switches and hosts at the other ends of a switch's ports, by LLDP and ARP
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  castnet neighbours                 of the switch on this machine
  castnet neighbours --output json   for programs")]
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

impl NeighbourRow {
    fn name(&self) -> String {
        or_dash(&self.name)
    }

    fn seen(&self) -> String {
        ago(self.age_ns)
    }
}

columns!(row: NeighbourRow => row {
    port_name as "port", kind, name(), remote_port, ip, mac, seen(),
});

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
    pub(crate) async fn run(self, output: Output) -> Outcome {
        let mut agent = self.agent.connect().await?;
        let names = PortNames::fetch(&mut agent).await?;
        let found = agent.list_neighbours(api::ListNeighboursRequest {}).await?;
        let neighbours = found.into_inner().neighbours.into_iter();
        let rows = neighbours.map(|n| row(n, &names)).collect();
        output.show(&Rows::new(
            rows,
            "none seen yet: a host is seen with its first ARP frame, a switch with its first LLDP frame",
        ))
    }
}
