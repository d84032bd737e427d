//! The figures of PEEL (HotNets 2025). What it counts, links, packets, rules and bits of headers, is computed from fabrics,
//! plans and covers. Completion times are simulated. docs/peel.md has the results.

mod broadcast;
mod group;
mod headers;
mod prefixes;
mod times;
mod trees;

use castnet_console::exit::Outcome;
use castnet_console::output::Output;
use clap::{Args, ValueEnum};

use crate::sim::figures::{Failed, FigureArgs};
use crate::sim::report::FigureReport;

/// The figures of PEEL: links of trees, packets of prefix covers, bits of headers, completion times of broadcasts
#[derive(Debug, Args)]
#[command(
    after_help = "fig4 to fig7 and guard simulate broadcasts as trains of packets, a minute or two each. The others are computed from fabrics,
plans and covers. The same seed gives the same figures.

Examples:
  castnet-lab sim peel fig3                        one figure
  castnet-lab sim peel fig5 fig7 --quick           two of completion times, with few points and broadcasts
  castnet-lab sim peel trees --draws 2000 --seed 7 links that fail, and groups, are drawn more often, and others
  castnet-lab sim peel all --svg peel.svg          all, and peel-fig1.svg and so on"
)]
pub(crate) struct PeelCommand {
    #[command(flatten)]
    figures: FigureArgs<Figure>,
    /// Seed of what is drawn: failed links, members of groups, arrivals, paths
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How often each point is drawn, and broadcasts of a run, which are at most 300; default 300, with --quick 10
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    draws: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Figure {
    /// How often a Broadcast uses the links between leaf and spine switches
    Fig1,
    /// Size of headers over the ports of a switch
    Fig3,
    /// Completion time of Orca with and without its set-up delay
    Fig4,
    /// Completion time over the message size
    Fig5,
    /// Completion time over the number of GPUs
    Fig6,
    /// Completion time where links have failed
    Fig7,
    /// Completion time with and without a guard timer at multicast sources
    Guard,
    /// Links of trees where links have failed
    Trees,
    /// Packets and links of groups that are covered by prefixes
    Prefixes,
}

/// How much is computed.
#[derive(Clone, Copy, Debug)]
struct Extent {
    quick: bool,
    seed: u64,
    draws: u32,
}

impl Figure {
    fn run(self, extent: Extent) -> Result<FigureReport, Failed> {
        match self {
            Self::Fig1 => broadcast::fig1(extent),
            Self::Fig3 => headers::fig3(),
            Self::Fig4 => times::fig4(extent),
            Self::Fig5 => times::fig5(extent),
            Self::Fig6 => times::fig6(extent),
            Self::Fig7 => times::fig7(extent),
            Self::Guard => times::guard(extent),
            Self::Trees => trees::trees(extent),
            Self::Prefixes => prefixes::prefixes(extent),
        }
    }
}

impl PeelCommand {
    pub(crate) fn run(self, output: Output) -> Outcome {
        let quick = self.figures.quick;
        let extent = Extent {
            quick,
            seed: self.seed,
            draws: self.draws.unwrap_or(if quick { 10 } else { 300 }),
        };
        self.figures.run(output, |figure| figure.run(extent))
    }
}
