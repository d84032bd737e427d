use std::time::Duration;

use castnet_console::api;
use castnet_console::columns;
use castnet_console::connect::AgentArgs;
use castnet_console::exit::Outcome;
use castnet_console::output::{Output, Rows};
use castnet_console::units;
use clap::Args;

use crate::port::{AtPort, PortNames};

/// Ethernet addresses that a switch has learnt
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  castnet fdb              all entries
  castnet fdb --port h1    those of one port")]
pub(crate) struct FdbCommand {
    /// Only entries of this port: its name or number
    #[arg(long, value_name = "PORT")]
    port: Option<String>,
    #[command(flatten)]
    agent: AgentArgs,
}

impl AtPort<api::FdbEntry> {
    fn vlan(&self) -> Option<u32> {
        Some(self.of.vlan).filter(|vlan| *vlan > 0)
    }

    fn seen(&self) -> String {
        ago(self.of.age_ns)
    }
}

columns!(row: AtPort<api::FdbEntry> => (row.of) { mac } row { vlan(), port_name as "port", seen() });

pub(crate) fn ago(age_ns: u64) -> String {
    format!("{} ago", units::span(Duration::from_nanos(age_ns)))
}

impl FdbCommand {
    pub(crate) async fn run(self, output: Output) -> Outcome {
        let mut agent = self.agent.connect().await?;
        let names = PortNames::fetch(&mut agent).await?;
        let only = self.port.as_deref().map(|port| names.find(port)).transpose()?;
        let listed = agent.list_fdb(api::ListFdbRequest {}).await?.into_inner();
        let rows = listed
            .entries
            .into_iter()
            .filter(|e| only.is_none_or(|port| port == e.port))
            .map(|e| names.at(e.port, e))
            .collect();
        output.show(&Rows::new(rows, "nothing learnt"))
    }
}
