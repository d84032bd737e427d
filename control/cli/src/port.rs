use std::time::Duration;

use castnet_console::api;
use castnet_console::columns;
use castnet_console::connect::AgentArgs;
use castnet_console::exit::{Failure, Outcome};
use castnet_console::output::{Output, Page, Report};
use castnet_console::units::{self, bit_rate};
use castnet_worker::{PortTotals, copy_port_totals};
use clap::Args;
use serde::Serialize;

/// Ports of a switch: link, device and counters
#[derive(Debug, Args)]
#[command(after_help = "Columns:
  state      up or down; with a reason if the interface was deleted or renamed, or cannot be used. The
             port works again when there is an interface with its name
  mtu        that of the interface, at most what it was when the switch started; for more, restart
             the switch
  rx missed  frames that the device or the kernel lost before the switch received them (castnet
             runtime shows the load of the workers)
  steering   how a device chooses one of several receive queues: by flow rules or rss, the queue of
             the group's worker; with none, any, and workers hand frames over to each other
  segments   several: the device can send a frame from several buffers, so that replicas share
             their payload
  gso        on: runs of packets are sent as one frame of the kernel (UDP GSO); off: the port was
             configured with gso=off; refused, with the reason: packets are sent one by one, as the
             kernel or the device takes no such frames; none: the port's kind has none
  tx gso     packets that left in such frames

Flow control (PFC), for ports with pfc=CLASSES:
  state      paused: by the device at the other end; stopping: the switch has paused that device; storm:
             paused for so long that the watchdog drops the frames of the class
  paused     time for which the class was paused
  held       frames that have waited
  overflows  frames dropped because a sender went on in spite of PAUSE for longer than the headroom

Examples:
  castnet port                       all ports of the switch on this machine
  castnet port h1 h2 --output json   two of them, for machines")]
pub(crate) struct PortCommand {
    /// Names or numbers of ports [default: all]
    #[arg(value_name = "PORT")]
    ports: Vec<String>,
    #[command(flatten)]
    agent: AgentArgs,
}

#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct PortRow(pub(crate) api::Port);

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
        "gso",
        "numa",
    ];

    fn state(&self) -> String {
        match &self.0.reason {
            Some(reason) => format!("down: {reason}"),
            None if self.0.up => "up".to_owned(),
            None => "down".to_owned(),
        }
    }

    pub(crate) fn counters(&self) -> PortTotals {
        copy_port_totals!(self.0.counters.clone().unwrap_or_default() => PortTotals)
    }

    fn device(&self) -> Vec<String> {
        let port = &self.0;
        let number = |n: Option<u32>, none: &str| n.map_or_else(|| none.to_owned(), |n| n.to_string());
        let speed = port.speed_mbps.map(|mbps| bit_rate(f64::from(mbps) * 1e6));
        vec![
            port.port.to_string(),
            port.name.clone(),
            self.state(),
            speed.unwrap_or_else(|| "-".to_owned()),
            port.mtu.to_string(),
            port.mac.clone(),
            port.driver.clone(),
            port.rx_queues.to_string(),
            number(port.tx_queues, "per worker"),
            port.steering.clone(),
            if port.multi_segment { "several" } else { "one" }.to_owned(),
            port.gso.clone(),
            number(port.numa_node, "-"),
        ]
    }
}

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
        let classes = self.0.iter().flat_map(|port| {
            port.0.pfc.iter().map(|of| PfcRow {
                port: &port.0.name,
                of,
            })
        });
        let classes: Vec<_> = classes.collect();
        if !classes.is_empty() {
            page.title("Flow control");
            page.rows(&classes, "none");
        }
    }
}

/// A lossless class of a port.
#[derive(Serialize)]
struct PfcRow<'p> {
    port: &'p str,
    of: &'p api::PfcClass,
}

impl PfcRow<'_> {
    fn state(&self) -> String {
        let states = [
            (self.of.storm, "storm"),
            (self.of.paused, "paused"),
            (self.of.stopping, "stopping"),
        ];
        let states: Vec<_> = states
            .iter()
            .filter(|(is, _)| *is)
            .map(|(_, name)| *name)
            .collect();
        match states.is_empty() {
            true => "-".to_owned(),
            false => states.join(", "),
        }
    }

    fn paused(&self) -> String {
        units::span(Duration::from_nanos(self.of.paused_ns))
    }
}

columns!(row: PfcRow<'_> => row { port } (row.of) { traffic_class as "class" } row { state() } (row.of) {
    queued_bytes, pause_received, pause_sent } row { paused() } (row.of) {
    held, storms, storm_drops, overflows,
});

columns!(row: PortRow => (row.0) { port, name } row { state() } (row.counters()) {
    rx_frames, rx_bytes, tx_frames, tx_bytes, tx_gso, rx_missed, tx_full, ecn_marks, dropped,
});

async fn list(agent: &mut api::AgentClient) -> Outcome<Vec<api::Port>> {
    let answer = agent.list_ports(api::ListPortsRequest {}).await?;
    Ok(answer.into_inner().ports)
}

#[derive(Debug, Serialize)]
pub(crate) struct AtPort<T> {
    #[serde(flatten)]
    pub(crate) of: T,
    pub(crate) port_name: String,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct PortNames(Vec<(u32, String)>);

impl PortNames {
    pub(crate) async fn fetch(agent: &mut api::AgentClient) -> Outcome<Self> {
        Ok(Self::of_ports(&list(agent).await?))
    }

    fn of_ports(ports: &[api::Port]) -> Self {
        Self(ports.iter().map(|p| (p.port, p.name.clone())).collect())
    }

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

    /// The number if the port has no name.
    pub(crate) fn name(&self, number: u32) -> String {
        self.0
            .iter()
            .find(|(n, _)| *n == number)
            .map_or_else(|| number.to_string(), |(_, name)| name.clone())
    }

    pub(crate) fn at<T>(&self, number: u32, of: T) -> AtPort<T> {
        let port_name = self.name(number);
        AtPort { of, port_name }
    }

    /// By name or number.
    pub(crate) fn find(&self, text: &str) -> Outcome<u32> {
        if let Some((number, _)) = self.0.iter().find(|(_, name)| name == text) {
            return Ok(*number);
        }
        if let Ok(number) = text.parse::<u32>()
            && self.0.iter().any(|(n, _)| *n == number)
        {
            return Ok(number);
        }
        Err(none_of("port", text, self.iter().map(|(_, name)| name)))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &str)> {
        self.0.iter().map(|(number, name)| (*number, name.as_str()))
    }
}

/// A switch may have 100,000 groups.
const NAMED_MAX: usize = 32;

/// `names` are those that exist.
pub(crate) fn none_of<'n>(what: &str, name: &str, names: impl Iterator<Item = &'n str>) -> Failure {
    let names = match names.collect::<Vec<_>>() {
        none if none.is_empty() => "none".to_owned(),
        names => units::first_of(names.iter(), NAMED_MAX),
    };
    Failure::refused(format!("the switch has no {what} '{name}'")).next(format!("its {what}s are: {names}"))
}

impl PortCommand {
    pub(crate) async fn run(self, output: Output) -> Outcome {
        let mut agent = self.agent.connect().await?;
        let ports = list(&mut agent).await?;
        let names = PortNames::of_ports(&ports);
        let wanted = self
            .ports
            .iter()
            .map(|text| names.find(text))
            .collect::<Outcome<Vec<_>>>()?;
        let ports = ports
            .into_iter()
            .filter(|p| wanted.is_empty() || wanted.contains(&p.port))
            .map(PortRow)
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
        let many = none_of("group", "typo", std::iter::repeat_n("g", NAMED_MAX + 7)).text();
        assert!(many.ends_with(" g, g and 7 more\n"), "{many}");
        let none = none_of("group", "typo", std::iter::empty()).text();
        assert!(none.ends_with("its groups are: none\n"), "{none}");
        assert_eq!(
            (names.name(2), names.name(7)),
            ("spine".to_owned(), "7".to_owned())
        );
    }
}
