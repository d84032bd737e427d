//! What PEEL (HotNets 2025) counts: links, packets, rules and bits of headers. All of it is computed from fabrics, plans and
//! covers; no packets are simulated. docs/peel.md has the results.

mod broadcast;
mod group;
mod headers;
mod prefixes;
mod trees;

use castnet_console::exit::Outcome;
use castnet_console::output::Output;
use clap::{Args, ValueEnum};

use crate::figures::{Failed, FigureArgs};
use crate::report::FigureReport;

/// What PEEL counts: links of trees, packets of prefix covers, bits of headers
#[derive(Debug, Args)]
#[command(
    after_help = "Nothing is simulated: figures are computed from fabrics, plans and covers. The same seed gives the same figures.

Examples:
  castnet sim peel fig3                        one figure
  castnet sim peel trees --draws 2000 --seed 7 links that fail, and groups, are drawn more often, and others
  castnet sim peel all --svg peel.svg          all, and peel-fig1.svg and so on"
)]
pub struct PeelCommand {
    #[command(flatten)]
    figures: FigureArgs<Figure>,
    /// Seed of what is drawn: failed links and members of groups
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How often each point is drawn; default 300, with --quick 10
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    draws: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Figure {
    /// How often a Broadcast uses the links between leaf and spine switches
    Fig1,
    /// Size of headers over the ports of a switch
    Fig3,
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
