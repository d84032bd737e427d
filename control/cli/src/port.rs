//! `castnet port`: the ports of a switch.

use clap::Args;
use serde::Serialize;

use crate::api;
use crate::connect::AgentArgs;
use crate::exit::{Failure, Outcome};
use crate::output::{Output, Row, Rows};
use crate::units::{bytes, count};

/// Ports of a switch: link state and counters
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  castnet port                       all ports of the switch on this machine
  castnet port h1 h2 --output json   two of them, for machines")]
pub(crate) struct PortCommand {
    /// Only these: names or numbers
    #[arg(value_name = "PORT")]
    ports: Vec<String>,
    #[command(flatten)]
    agent: AgentArgs,
}

/// A port with its counters.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PortRow {
    pub(crate) port: u32,
    pub(crate) name: String,
    pub(crate) mac: String,
    pub(crate) mtu: u32,
    pub(crate) up: bool,
    pub(crate) rx_frames: u64,
    pub(crate) rx_bytes: u64,
    pub(crate) tx_frames: u64,
    pub(crate) tx_bytes: u64,
    pub(crate) rx_missed: u64,
    pub(crate) tx_full: u64,
    pub(crate) dropped: u64,
}

impl From<api::Port> for PortRow {
    fn from(port: api::Port) -> Self {
        let counters = port.counters.unwrap_or_default();
        Self {
            port: port.port,
            name: port.name,
            mac: port.mac,
            mtu: port.mtu,
            up: port.up,
            rx_frames: counters.rx_frames,
            rx_bytes: counters.rx_bytes,
            tx_frames: counters.tx_frames,
            tx_bytes: counters.tx_bytes,
            rx_missed: counters.rx_missed,
            tx_full: counters.tx_full,
            dropped: counters.dropped,
        }
    }
}

impl Row for PortRow {
    const COLUMNS: &'static [&'static str] = &[
        "port",
        "name",
        "state",
        "mtu",
        "mac",
        "rx frames",
        "rx bytes",
        "tx frames",
        "tx bytes",
        "missed",
        "tx full",
        "dropped",
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            self.port.to_string(),
            self.name.clone(),
            if self.up { "up" } else { "down" }.to_owned(),
            self.mtu.to_string(),
            self.mac.clone(),
            count(self.rx_frames),
            bytes(self.rx_bytes),
            count(self.tx_frames),
            bytes(self.tx_bytes),
            count(self.rx_missed),
            count(self.tx_full),
            count(self.dropped),
        ]
    }
}

/// The names of a switch's ports, to read numbers as names and names as numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct PortNames(Vec<(u32, String)>);

impl PortNames {
    /// Asks the switch.
    pub(crate) async fn fetch(agent: &mut api::AgentClient) -> Outcome<Self> {
        let ports = agent
            .list_ports(api::ListPortsRequest {})
            .await?
            .into_inner()
            .ports;
        Ok(Self(ports.into_iter().map(|p| (p.port, p.name)).collect()))
    }

    /// Names by number, as a list.
    #[cfg(test)]
    pub(crate) fn of(names: &[&str]) -> Self {
        Self(
            names
                .iter()
                .enumerate()
                .map(|(i, n)| (i as u32, (*n).to_owned()))
                .collect(),
        )
    }

    /// The name of port `number`; the number where it has none.
    pub(crate) fn name(&self, number: u32) -> String {
        self.0
            .iter()
            .find(|(n, _)| *n == number)
            .map_or_else(|| number.to_string(), |(_, name)| name.clone())
    }

    /// The port that `text` means: its name, or its number.
    pub(crate) fn find(&self, text: &str) -> Outcome<u32> {
        if let Some((number, _)) = self.0.iter().find(|(_, name)| name == text) {
            return Ok(*number);
        }
        if let Ok(number) = text.parse::<u32>()
            && self.0.iter().any(|(n, _)| *n == number)
        {
            return Ok(number);
        }
        let names: Vec<_> = self.0.iter().map(|(_, name)| name.as_str()).collect();
        Err(
            Failure::refused(format!("the switch has no port '{text}'")).next(format!(
                "its ports are: {}",
                if names.is_empty() {
                    "none".to_owned()
                } else {
                    names.join(", ")
                }
            )),
        )
    }

    /// All numbers and names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &str)> {
        self.0.iter().map(|(number, name)| (*number, name.as_str()))
    }
}

impl PortCommand {
    /// Lists ports.
    pub(crate) async fn run(self, output: Output) -> Outcome {
        let mut agent = self.agent.connect().await?;
        let ports = agent
            .list_ports(api::ListPortsRequest {})
            .await?
            .into_inner()
            .ports;
        let names = PortNames(ports.iter().map(|p| (p.port, p.name.clone())).collect());
        let wanted = self
            .ports
            .iter()
            .map(|text| names.find(text))
            .collect::<Outcome<Vec<_>>>()?;
        let rows = ports
            .into_iter()
            .filter(|p| wanted.is_empty() || wanted.contains(&p.port))
            .map(PortRow::from)
            .collect();
        output.show(&Rows::new(rows, "the switch has no ports"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_named_or_numbered_and_names_win() {
        let names = PortNames::of(&["h1", "0", "spine"]);
        assert_eq!(names.find("spine").ok(), Some(2));
        assert_eq!(names.find("0").ok(), Some(1));
        assert_eq!(names.find("2").ok(), Some(2));
        let failure = names.find("h9").expect_err("no such port");
        assert_eq!(failure.code(), 3);
        assert!(failure.text().contains("h1, 0, spine"), "{}", failure.text());
        assert_eq!(
            (names.name(2), names.name(7)),
            ("spine".to_owned(), "7".to_owned())
        );
    }
}
