//! `castnet port`: the ports of a switch.

use castnet_console::api;
use castnet_console::columns;
use castnet_console::connect::AgentArgs;
use castnet_console::exit::{Failure, Outcome};
use castnet_console::output::{Output, Page, Report, named};
use castnet_console::units::bit_rate;
use castnet_worker::{PortTotals, copy_port_totals};
use clap::Args;
use serde::Serialize;

/// Ports of a switch: link, device and counters
#[derive(Debug, Args)]
#[command(
    after_help = "mtu: follows the interface's while the switch runs, up to what it was at the start; for more, restart the switch.
rx missed: frames that the device or the kernel lost before the switch took them (castnet runtime says whether its workers keep up).
steering: how frames get to one of several receive queues: flow rules or rss keep a group on its worker, none leaves it to hand-over.
segments: a device that sends frames of several lets replicas share their payload.

Examples:
  castnet port                       all ports of the switch on this machine
  castnet port h1 h2 --output json   two of them, for machines"
)]
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
    #[serde(flatten, serialize_with = "named")]
    pub(crate) counters: PortTotals,
    pub(crate) driver: String,
    /// Mb/s; none where it is unknown.
    pub(crate) speed_mbps: Option<u32>,
    pub(crate) rx_queues: u32,
    /// None where each worker has one of its own.
    pub(crate) tx_queues: Option<u32>,
    pub(crate) steering: String,
    pub(crate) multi_segment: bool,
    pub(crate) numa_node: Option<u32>,
}

impl From<api::Port> for PortRow {
    fn from(port: api::Port) -> Self {
        Self {
            port: port.port,
            name: port.name,
            mac: port.mac,
            mtu: port.mtu,
            up: port.up,
            counters: copy_port_totals!(port.counters.unwrap_or_default() => PortTotals),
            driver: port.driver,
            speed_mbps: port.speed_mbps,
            rx_queues: port.rx_queues,
            tx_queues: port.tx_queues,
            steering: port.steering,
            multi_segment: port.multi_segment,
            numa_node: port.numa_node,
        }
    }
}

impl PortRow {
    const DEVICE: &'static [&'static str] = &[
        "port",
        "name",
        "state",
        "speed",
        "mtu",
        "mac",
        "driver",
        "rx queues",
        "tx queues",
        "steering",
        "segments",
        "numa",
    ];

    fn state(&self) -> &'static str {
        if self.up { "up" } else { "down" }
    }

    /// What it is.
    fn device(&self) -> Vec<String> {
        let number = |n: Option<u32>, none: &str| n.map_or_else(|| none.to_owned(), |n| n.to_string());
        vec![
            self.port.to_string(),
            self.name.clone(),
            self.state().to_owned(),
            self.speed_mbps
                .map_or_else(|| "-".to_owned(), |mbps| bit_rate(f64::from(mbps) * 1e6)),
            self.mtu.to_string(),
            self.mac.clone(),
            self.driver.clone(),
            self.rx_queues.to_string(),
            number(self.tx_queues, "per worker"),
            self.steering.clone(),
            if self.multi_segment { "several" } else { "one" }.to_owned(),
            number(self.numa_node, "-"),
        ]
    }
}

/// The ports of a switch: in JSON a list.
#[derive(Debug, Serialize)]
#[serde(transparent)]
struct Ports(Vec<PortRow>);

impl Report for Ports {
    fn page(&self, page: &mut Page) {
        if self.0.is_empty() {
            return page.line("the switch has no ports");
        }
        page.table(PortRow::DEVICE, self.0.iter().map(PortRow::device).collect());
        page.title("Counters");
        page.rows(&self.0, "none");
    }
}

columns!(row: PortRow => row { port, name, state() } (row.counters) {
    rx_frames, rx_bytes, tx_frames, tx_bytes, rx_missed, tx_full, dropped,
});

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
        let ports = ports
            .into_iter()
            .filter(|p| wanted.is_empty() || wanted.contains(&p.port))
            .map(PortRow::from)
            .collect();
        output.show(&Ports(ports))
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
