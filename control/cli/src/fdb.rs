//! `castnet fdb`: what a switch has learnt about Ethernet addresses.

use std::time::Duration;

use castnet_console::api;
use castnet_console::connect::AgentArgs;
use castnet_console::exit::Outcome;
use castnet_console::output::{Output, Row, Rows};
use castnet_console::units;
use clap::Args;
use serde::Serialize;

use crate::port::PortNames;

/// Ethernet addresses that a switch has learnt
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  castnet fdb              all entries
  castnet fdb --port h1    only what was learnt on one port")]
pub(crate) struct FdbCommand {
    /// Only entries of this port: its name or number
    #[arg(long, value_name = "PORT")]
    port: Option<String>,
    #[command(flatten)]
    agent: AgentArgs,
}

#[derive(Debug, Serialize)]
struct FdbRow {
    mac: String,
    vlan: u32,
    port: u32,
    port_name: String,
    age_ns: u64,
}

impl Row for FdbRow {
    const COLUMNS: &'static [&'static str] = &["mac", "vlan", "port", "seen"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.mac.clone(),
            if self.vlan == 0 {
                "-".to_owned()
            } else {
                self.vlan.to_string()
            },
            self.port_name.clone(),
            format!("{} ago", units::span(Duration::from_nanos(self.age_ns))),
        ]
    }
}

impl FdbCommand {
    /// Lists entries.
    pub(crate) async fn run(self, output: Output) -> Outcome {
        let mut agent = self.agent.connect().await?;
        let names = PortNames::fetch(&mut agent).await?;
        let only = self.port.as_deref().map(|port| names.find(port)).transpose()?;
        let entries = agent.list_fdb(api::ListFdbRequest {}).await?.into_inner().entries;
        let rows = entries
            .into_iter()
            .filter(|e| only.is_none_or(|port| port == e.port))
            .map(|e| FdbRow {
                port_name: names.name(e.port),
                mac: e.mac,
                vlan: e.vlan,
                port: e.port,
                age_ns: e.age_ns,
            })
            .collect();
        output.show(&Rows::new(rows, "nothing learnt"))
    }
}
