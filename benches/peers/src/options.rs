//! What can be asked for.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};

use crate::report::Setting;

/// Castnet beside other switches: the same frames, the same devices, the same core, in one run.
#[derive(Clone, Debug, Parser)]
#[command(name = "peers", after_help = EXAMPLES)]
pub struct Options {
    /// How long each switch is measured at a time, in seconds
    #[arg(long, default_value_t = 1.0, value_parser = seconds)]
    pub seconds: f64,
    /// How often each switch has its turn; medians count
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    pub turns: u32,
    /// The core that every switch runs on; the last one that may be used, if nobody says otherwise
    #[arg(long)]
    pub core: Option<usize>,
    /// Only these switches, with commas between
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<Name>,
    /// Only payloads of so many bytes
    #[arg(long, value_delimiter = ',', default_values_t = [64, 1024, 4096], value_parser = payload)]
    pub payloads: Vec<usize>,
    /// Only one to so many
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 8], value_parser = fanout)]
    pub fanouts: Vec<usize>,
    /// Where buffers live, for all switches alike; auto: in hugepages that are reserved for the run, if root may do so
    #[arg(long, value_enum, default_value_t = Hugepages::Auto)]
    pub hugepages: Hugepages,
    /// Draw what came out into this file
    #[arg(long)]
    pub svg: Option<PathBuf>,
    /// A table for people, or JSON
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub output: Format,
    /// What cargo says to every bench
    #[arg(long, hide = true)]
    pub bench: bool,
}

const EXAMPLES: &str = "\
Examples:
  cargo bench -p castnet-peers --features dpdk
  cargo bench -p castnet-peers --features dpdk -- --only castnet,ovs --payloads 1024 --fanouts 8 --turns 1
  cargo bench -p castnet-peers --features dpdk -- --seconds 3 --turns 5 --svg peers.svg --output json";

impl Options {
    /// How long each switch is measured at a time.
    pub fn time(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// Whether this switch was asked for.
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

/// Who takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Name {
    /// A loop that copies and does nothing else: a yardstick
    Copy,
    /// Castnet with everything
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
}

impl Name {
    /// As tables and plots have it.
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
        }
    }

    /// Whether it is of the second table, that over the kernel's veth pairs.
    pub const fn over_veth(self) -> bool {
        matches!(self, Self::Bridge | Self::CastnetVeth)
    }
}

/// Where buffers live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Hugepages {
    /// In hugepages where they can be had
    Auto,
    /// In hugepages, or not at all
    Yes,
    /// In ordinary memory
    No,
}

/// Who reads the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// People
    Table,
    /// Machines
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
