//! Command line options.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};

use crate::report::Setting;

/// Compares Castnet with other switches in one run: the same frames, devices and core
#[derive(Clone, Debug, Parser)]
#[command(name = "peers", after_help = EXAMPLES)]
pub struct Options {
    /// Duration of each measurement, in seconds
    #[arg(long, default_value_t = 1.0, value_parser = seconds)]
    pub seconds: f64,
    /// Measurements of each switch; the median counts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    pub turns: u32,
    /// The core of all switches [default: the last usable one]
    #[arg(long)]
    pub core: Option<usize>,
    /// Only these switches, separated by commas
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<Name>,
    /// Only these payloads, in bytes
    #[arg(long, value_delimiter = ',', default_values_t = [64, 1024, 4096], value_parser = payload)]
    pub payloads: Vec<usize>,
    /// Only these numbers of output ports
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 8], value_parser = fanout)]
    pub fanouts: Vec<usize>,
    /// Memory of buffers of all switches; auto: hugepages that are reserved for the run, if possible
    #[arg(long, value_enum, default_value_t = Hugepages::Auto)]
    pub hugepages: Hugepages,
    /// Writes a plot to this SVG file
    #[arg(long)]
    pub svg: Option<PathBuf>,
    /// A table for people, or JSON
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub output: Format,
    /// Passed by cargo
    #[arg(long, hide = true)]
    pub bench: bool,
}

const EXAMPLES: &str = "\
Examples:
  cargo bench -p castnet-peers --features dpdk
  cargo bench -p castnet-peers --features dpdk -- --only castnet,ovs --payloads 1024 --fanouts 8 --turns 1
  cargo bench -p castnet-peers --features dpdk -- --seconds 3 --turns 5 --svg peers.svg --output json";

impl Options {
    /// Duration of each measurement.
    pub fn time(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// Whether to measure this switch.
    pub fn wants(&self, name: Name) -> bool {
        self.only.is_empty() || self.only.contains(&name)
    }

    /// The cells of the tables, in their order.
    pub fn settings(&self) -> Vec<Setting> {
        let of = |&payload: &usize| {
            self.fanouts
                .iter()
                .map(move |&fanout| Setting { payload, fanout })
        };
        self.payloads.iter().flat_map(of).collect()
    }
}

/// The switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Name {
    /// A loop that only copies: a reference
    Copy,
    /// Castnet
    Castnet,
    /// Castnet with two workers, each with a group and a core of its own
    CastnetTwo,
    /// DPDK's testpmd, which swaps the addresses of each frame (macswap)
    Testpmd,
    /// DPDK's example of that name
    #[value(name = "ipv4_multicast")]
    #[serde(rename = "ipv4_multicast")]
    Ipv4Multicast,
    /// Open vSwitch over DPDK
    Ovs,
    /// The kernel's bridge
    Bridge,
    /// Castnet over the same veth pairs as the kernel's bridge
    CastnetVeth,
    /// The kernel's bridge, with runs of packets of one flow, which travel as super-frames
    BridgeRuns,
    /// Castnet over the same veth pairs, with the same runs
    CastnetVethRuns,
}

impl Name {
    /// Name in tables and plots.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Copy => "copy loop",
            Self::Castnet => "castnet",
            Self::CastnetTwo => "castnet, two workers",
            Self::Testpmd => "testpmd",
            Self::Ipv4Multicast => "ipv4_multicast",
            Self::Ovs => "OVS-DPDK",
            Self::Bridge => "Linux bridge",
            Self::CastnetVeth => "castnet",
            Self::BridgeRuns => "Linux bridge, runs",
            Self::CastnetVethRuns => "castnet, runs",
        }
    }

    /// Whether it is in the second table, over the kernel's veth pairs.
    pub const fn over_veth(self) -> bool {
        matches!(self, Self::Bridge | Self::CastnetVeth) || self.in_runs()
    }

    /// Whether its frames are runs of one flow, which the generator sends as super-frames.
    pub const fn in_runs(self) -> bool {
        matches!(self, Self::BridgeRuns | Self::CastnetVethRuns)
    }
}

/// Memory of buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Hugepages {
    /// Hugepages if possible
    Auto,
    /// Hugepages
    Yes,
    /// Ordinary memory
    No,
}

/// Output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    Table,
    /// For machines
    Json,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.05..=600.0).contains(&seconds) => Ok(seconds),
        _ => Err("0.05 to 600 seconds".into()),
    }
}

fn payload(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(bytes) if (64..=4096).contains(&bytes) && bytes % 4 == 0 => Ok(bytes),
        _ => Err("64 to 4096 bytes, a multiple of 4".into()),
    }
}

fn fanout(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(ports) if (1..=8).contains(&ports) => Ok(ports),
        _ => Err("1 to 8 ports".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_words_every_switch_is_measured_in_every_cell() {
        let options = Options::parse_from(["peers", "--bench"]);
        assert!(options.wants(Name::Ovs) && options.wants(Name::CastnetVeth));
        assert_eq!(options.settings().len(), 9);
        assert_eq!(
            options.settings()[1],
            Setting {
                payload: 64,
                fanout: 4
            }
        );
    }

    #[test]
    fn what_cannot_be_measured_is_refused_with_what_can() {
        let only = Options::parse_from(["peers", "--only", "castnet,ipv4_multicast,ovs", "--fanouts", "8"]);
        assert!(only.wants(Name::Ipv4Multicast) && !only.wants(Name::Testpmd));
        for words in [
            ["--payloads", "63"],
            ["--fanouts", "9"],
            ["--seconds", "0"],
            ["--only", "vpp"],
        ] {
            let error = Options::try_parse_from(["peers"].iter().chain(&words)).expect_err(words[1]);
            assert!(error.to_string().contains(words[0]), "{error}");
        }
    }
}
