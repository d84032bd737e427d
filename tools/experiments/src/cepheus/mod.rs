//! The experiments of Cepheus (HPCA 2024, section V) on the simulated network: the real engine with its multicast machine is
//! each switch, the real endpoint each RNIC, and CommLib's machines are the chain, the tree and the unicasts.
//! docs/cepheus-figures.md has the results.

mod broadcast;
mod flows;
mod lab;
mod loss;
mod storage;

use std::path::PathBuf;

use castnet_console::exit::{Failure, Outcome};
use castnet_console::output::Output;
use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};

use crate::report::{FigureReport, Reports};
use lab::Failed;

/// The figures of Cepheus: multicast in the switches beside chain, binomial tree and unicasts
#[derive(Debug, Args)]
#[command(
    after_help = "Time is virtual: hosts, switches and links take the time that the text above each table says.
Messages over --whole MiB are continued at the rate of the second half of that message.

Examples:
  castnet sim cepheus fig12                    one figure
  castnet sim cepheus fig12 fig8 --quick       two, with few points, in seconds
  castnet sim cepheus all --svg cepheus.svg    all, and cepheus-fig8.svg and so on"
)]
pub struct CepheusCommand {
    /// Figures and tables of the paper
    #[arg(value_enum, value_name = "FIGURE", required = true)]
    figures: Vec<Choice>,
    /// Few points, small groups: seconds instead of minutes
    #[arg(long)]
    quick: bool,
    /// Longest message that is simulated from its first to its last packet, in MiB; default 8, with --quick 1
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1024))]
    whole: Option<u64>,
    /// Threads of a simulation, at most. The results do not depend on it. Default: the number of processors
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=64))]
    threads: Option<u64>,
    /// Draws a plot; of several figures one each, with the name of the figure before the extension
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
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

/// What is run.
#[derive(Clone, Copy, Debug)]
enum Choice {
    All,
    One(Figure),
}

impl ValueEnum for Choice {
    fn value_variants<'a>() -> &'a [Self] {
        const ALL: [Choice; Figure::EACH.len() + 1] = {
            let mut all = [Choice::All; Figure::EACH.len() + 1];
            let mut i = 0;
            while i < Figure::EACH.len() {
                all[i] = Choice::One(Figure::EACH[i]);
                i += 1;
            }
            all
        };
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            Self::All => Some(PossibleValue::new("all").help("Each of them")),
            Self::One(figure) => figure.to_possible_value(),
        }
    }
}

impl Figure {
    const EACH: [Self; 7] = [
        Self::Fig8,
        Self::Fig9,
        Self::Table1,
        Self::Fig10,
        Self::Fig12,
        Self::Fig13,
        Self::Fig14,
    ];

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
        let processors = || std::thread::available_parallelism().map_or(1, usize::from);
        let extent = Extent {
            threads: self.threads.map_or_else(processors, |threads| threads as usize),
            quick: self.quick,
            whole: self.whole.unwrap_or(if self.quick { 1 } else { 8 }) << 20,
        };
        let of = |choice: Choice| match choice {
            Choice::All => Figure::EACH.to_vec(),
            Choice::One(figure) => vec![figure],
        };
        let mut figures: Vec<Figure> = self.figures.into_iter().flat_map(of).collect();
        figures.sort_unstable();
        figures.dedup();
        let reports = figures.into_iter().map(|figure| figure.run(extent));
        let reports: Result<Vec<_>, _> = reports.collect();
        Reports::of(reports.map_err(Failure::failed)?).show(self.svg, output)
    }
}
