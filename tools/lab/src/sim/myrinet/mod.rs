//! The figures of NIC-based multicast over Myrinet (OSU-CISRC-5/03-TR33, section 7) on the simulated network. The NIC of each host is
//! a switch at it, the real engine with its multicast machine, in the planner's tree of relays; the real endpoint is the host's queue
//! pair. CommLib's machines are the tree of hosts and the unicasts. docs/myrinet.md has the results.

mod casts;
mod latency;
mod machines;
mod skew;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use castnet_console::exit::{Failure, Outcome};
use castnet_console::output::{Output, write_stdout};
use clap::{Args, ValueEnum};

use crate::sim::figures::{Failed, FigureArgs};
use crate::sim::report::FigureReport;
use machines::Costs;

/// The figures of NIC-based multicast over Myrinet: relays at the hosts beside a tree of hosts
#[derive(Debug, Args)]
#[command(
    after_help = "Time is virtual: hosts, NICs and links take the time that --costs says. The same seed gives the same figures.

Examples:
  castnet-lab sim myrinet fig5                      one figure
  castnet-lab sim myrinet fig7 fig8 --quick         two, with few points and calls
  castnet-lab sim myrinet all --svg myrinet.svg     all, and myrinet-fig4.svg and so on
  castnet-lab sim myrinet --example > ours.toml
  castnet-lab sim myrinet fig4 --costs ours.toml    with other hosts, NICs and links"
)]
pub(crate) struct MyrinetCommand {
    #[command(flatten)]
    figures: FigureArgs<Figure>,
    /// Seed of the time by which each process is late
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How often processes call at each point of fig7 and fig8; the paper has 5,000; default 1000, with --quick 50
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    calls: Option<u32>,
    /// What hosts, NICs and links cost
    #[arg(long, value_name = "FILE")]
    costs: Option<PathBuf>,
    /// Prints the file with the costs of the paper's machines
    #[arg(long, exclusive = true)]
    example: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Figure {
    /// Multisend to 3, 4 and 8 destinations, beside unicasts
    Fig4,
    /// Multicast at the GM level on 4, 8 and 16 nodes, beside a binomial tree of hosts
    Fig5,
    /// Broadcast at the MPI level on 4, 8 and 16 nodes, beside a binomial tree of hosts
    Fig6,
    /// Time of hosts in the call over the skew of processes, on 16 nodes
    Fig7,
    /// The same on 4, 8 and 16 nodes
    Fig8,
}

/// What is simulated.
#[derive(Clone, Copy, Debug)]
struct Extent {
    quick: bool,
    seed: u64,
    /// Of each point with skew.
    calls: u32,
    costs: Costs,
}

impl Extent {
    /// All values, or with `--quick` those at these indices.
    fn of<T: Copy, const N: usize>(&self, all: &[T], quick: [usize; N]) -> Vec<T> {
        match self.quick {
            true => quick
                .iter()
                .filter_map(|index| all.get(*index))
                .copied()
                .collect(),
            false => all.to_vec(),
        }
    }
}

impl Figure {
    fn run(self, extent: Extent) -> Result<FigureReport, Failed> {
        match self {
            Self::Fig4 => latency::fig4(extent),
            Self::Fig5 => latency::fig5(extent),
            Self::Fig6 => latency::fig6(extent),
            Self::Fig7 => skew::fig7(extent),
            Self::Fig8 => skew::fig8(extent),
        }
    }
}

impl MyrinetCommand {
    pub(crate) fn run(self, output: Output) -> Outcome {
        if self.example {
            return write_stdout(machines::PAPER);
        }
        let costs = match self.costs {
            Some(file) => Costs::read(&file)?,
            None => Costs::from_toml(machines::PAPER).map_err(Failure::failed)?,
        };
        let quick = self.figures.quick;
        let extent = Extent {
            quick,
            seed: self.seed,
            calls: self.calls.unwrap_or(if quick { 50 } else { 1000 }),
            costs,
        };
        self.figures.run(output, |figure| figure.run(extent))
    }
}
