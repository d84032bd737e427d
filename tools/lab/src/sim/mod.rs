//! `castnet-lab sim`: experiments of papers, beside the papers' numbers. [`cepheus`] has those of Cepheus, on the simulated
//! network, and [`myrinet`] those of multicast by NICs. [`peel`] has what PEEL counts, and its completion times; [`shufflecast`] has what that paper counts. [`epic`] has the experiments of EPIC's appendix K.

mod cepheus;
mod epic;
mod figures;
mod lab;
mod myrinet;
mod parallel;
mod peel;
mod report;
mod shufflecast;

use castnet_console::exit::Outcome;
use castnet_console::output::Output;
use clap::{Args, Subcommand};

/// Experiments of papers, beside the papers' numbers
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  castnet-lab sim cepheus fig12                       multicast to 512 hosts, 64 B to 1 GiB, beside chain and binomial tree
  castnet-lab sim cepheus all --quick                 all figures in a few points
  castnet-lab sim cepheus fig12 --svg fig12.svg       and a plot
  castnet-lab sim cepheus table1 --output json
  castnet-lab sim epic --quick                        collectives in three modes, beside tables 25 to 35
  castnet-lab sim peel fig3 trees                     headers beside Bloom filters, trees where links have failed
  castnet-lab sim peel fig5                           completion times of PEEL, Orca, ring and tree
  castnet-lab sim myrinet fig5                        multicast by relays at the hosts, beside a tree of hosts
  castnet-lab sim shufflecast cost                    power and cost of Shufflecast, beside IP multicast")]
pub(crate) struct SimCommand {
    #[command(subcommand)]
    paper: Paper,
}

#[derive(Debug, Subcommand)]
enum Paper {
    Cepheus(cepheus::CepheusCommand),
    Epic(epic::EpicCommand),
    Myrinet(myrinet::MyrinetCommand),
    Peel(peel::PeelCommand),
    Shufflecast(shufflecast::ShufflecastCommand),
}

impl SimCommand {
    /// Runs the experiments and prints their reports.
    ///
    /// # Errors
    /// A file cannot be written, or an experiment failed.
    pub(crate) fn run(self, output: Output) -> Outcome {
        match self.paper {
            Paper::Cepheus(command) => command.run(output),
            Paper::Epic(command) => command.run(output),
            Paper::Myrinet(command) => command.run(output),
            Paper::Peel(command) => command.run(output),
            Paper::Shufflecast(command) => command.run(output),
        }
    }
}
