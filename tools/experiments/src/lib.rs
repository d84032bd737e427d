//! `castnet sim`: experiments of papers, beside the papers' numbers. [`cepheus`] has those of Cepheus, on the simulated
//! network, and [`myrinet`] those of multicast by NICs. [`peel`] has what PEEL counts, and its completion times; [`shufflecast`] has what that paper counts. The program of
//! this crate has the experiments of EPIC's appendix K.
#![forbid(unsafe_code)]

pub mod cepheus;
mod figures;
mod lab;
pub mod myrinet;
pub mod parallel;
pub mod peel;
mod report;
pub mod shufflecast;

use castnet_console::exit::Outcome;
use castnet_console::output::Output;
use clap::{Args, Subcommand};

/// Experiments of papers, beside the papers' numbers
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  castnet sim cepheus fig12                       multicast to 512 hosts, 64 B to 1 GiB, beside chain and binomial tree
  castnet sim cepheus all --quick                 all figures in a few points
  castnet sim cepheus fig12 --svg fig12.svg       and a plot
  castnet sim cepheus table1 --output json
  castnet sim peel fig3 trees                     headers beside Bloom filters, trees where links have failed
  castnet sim peel fig5                           completion times of PEEL, Orca, ring and tree
  castnet sim myrinet fig5                        multicast by relays at the hosts, beside a tree of hosts
  castnet sim shufflecast cost                    power and cost of Shufflecast, beside IP multicast")]
pub struct SimCommand {
    #[command(subcommand)]
    paper: Paper,
}

#[derive(Debug, Subcommand)]
enum Paper {
    Cepheus(cepheus::CepheusCommand),
    Myrinet(myrinet::MyrinetCommand),
    Peel(peel::PeelCommand),
    Shufflecast(shufflecast::ShufflecastCommand),
}

impl SimCommand {
    /// Runs the experiments and prints their reports.
    ///
    /// # Errors
    /// A file cannot be written, or an experiment failed.
    pub fn run(self, output: Output) -> Outcome {
        match self.paper {
            Paper::Cepheus(command) => command.run(output),
            Paper::Myrinet(command) => command.run(output),
            Paper::Peel(command) => command.run(output),
            Paper::Shufflecast(command) => command.run(output),
        }
    }
}
