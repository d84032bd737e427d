//! The experiments of Cepheus (HPCA 2024, section V) on the simulated network: the real engine with its multicast machine is
//! each switch, the real endpoint each RNIC, and CommLib's machines are the chain, the tree and the unicasts.
//! docs/cepheus-figures.md has the results.

mod broadcast;
mod flows;
mod loss;
mod storage;

use castnet_console::exit::Outcome;
use castnet_console::output::Output;
use clap::{Args, ValueEnum};

use crate::sim::figures::{Failed, FigureArgs};
use crate::sim::parallel::processors;
use crate::sim::report::FigureReport;

/// The figures of Cepheus: multicast in the switches beside chain, binomial tree and unicasts
#[derive(Debug, Args)]
#[command(
    after_help = "Time is virtual: hosts, switches and links take the time that the text above each table says.
Messages over --whole MiB are continued at the rate of the second half of that message.

Examples:
  castnet-lab sim cepheus fig12                    one figure
  castnet-lab sim cepheus fig12 fig8 --quick       two, with few points, in seconds
  castnet-lab sim cepheus all --svg cepheus.svg    all, and cepheus-fig8.svg and so on"
)]
pub(crate) struct CepheusCommand {
    #[command(flatten)]
    figures: FigureArgs<Figure>,
    /// Longest message that is simulated from its first to its last packet, in MiB; default 8, with --quick 1
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1024))]
    whole: Option<u64>,
    /// Threads of a simulation, at most. The results do not depend on it. Default: the number of processors
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=64))]
    threads: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Figure {
    /// Small messages to four hosts at one switch
    Fig8,
    /// Large messages to four hosts at one switch
    Fig9,
    /// Writes of 8 KiB to three replicas per second
    Table1,
    /// Latency of a write to three replicas over its size
    Fig10,
    /// Flow completion time of a multicast to 512 hosts over the message size
    Fig12,
    /// Flow completion time of 128 MiB under packet loss, to 64 and to 512 hosts
    Fig13,
    /// Throughput of a multicast and two unicast flows under congestion control
    Fig14,
}

impl Figure {
    fn run(self, extent: Extent) -> Result<FigureReport, Failed> {
        match self {
            Self::Fig8 => broadcast::fig8(extent),
            Self::Fig9 => broadcast::fig9(extent),
            Self::Table1 => storage::table1(extent),
            Self::Fig10 => storage::fig10(extent),
            Self::Fig12 => broadcast::fig12(extent),
            Self::Fig13 => loss::fig13(extent),
            Self::Fig14 => flows::fig14(extent),
        }
    }
}

/// How much is simulated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub(crate) quick: bool,
    /// Bytes of the longest message that is simulated whole.
    pub(crate) whole: u64,
    /// Threads of a simulation.
    pub(crate) threads: usize,
}

impl CepheusCommand {
    pub(crate) fn run(self, output: Output) -> Outcome {
        let extent = Extent {
            threads: self.threads.map_or_else(processors, |threads| threads as usize),
            quick: self.figures.quick,
            whole: self.whole.unwrap_or(if self.figures.quick { 1 } else { 8 }) << 20,
        };
        self.figures.run(output, |figure| figure.run(extent))
    }
}
