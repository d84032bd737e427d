//! The command line.

use castnet_commands::run_until_stopped;
use castnet_console::exit::Outcome;
use castnet_console::output::Output;
use castnet_console::program::Everywhere;
use clap::{Parser, Subcommand};

use crate::bench::BenchCommand;
use crate::calibrate::CalibrateCommand;
use crate::consensus::ConsensusCommand;
use crate::sim::SimCommand;
use crate::skew::SkewCommand;

const AFTER_HELP: &str = "Start here:
  castnet-lab sim cepheus fig12 --quick      multicast to 512 simulated hosts, beside the paper
  castnet-lab sim --help                     the experiments of all papers

Between real hosts, in a lab that deploy/lab/netns.sh starts, for instance:
  castnet-lab bench --help                   all collectives over many sizes, in the network and between hosts
  castnet-lab calibrate --help               the times from which trees of relays at the edge are computed

Operators need none of this: see castnet --help. Exit codes are those of castnet.";

/// With commit and features, as that of castnet: their build script is one.
pub(crate) const VERSION: &str = env!("CASTNET_VERSION");

/// The command line.
#[derive(Debug, Parser)]
#[command(
    name = "castnet-lab",
    version = VERSION,
    about = "Experiments with Castnet: the figures of papers, and measurements in a lab"
)]
#[command(after_help = AFTER_HELP, max_term_width = 110, arg_required_else_help = true, subcommand_required = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) everywhere: Everywhere,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The experiments.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Sim(SimCommand),
    Bench(BenchCommand),
    Calibrate(CalibrateCommand),
    Skew(SkewCommand),
    Consensus(ConsensusCommand),
}

impl Command {
    pub(crate) fn run(self, output: Output) -> Outcome {
        match self {
            Self::Sim(command) => command.run(output),
            Self::Bench(command) => run_until_stopped(|stop| command.run(output, stop)),
            Self::Calibrate(command) => run_until_stopped(|stop| command.run(output, stop)),
            Self::Skew(command) => run_until_stopped(|stop| command.run(output, stop)),
            Self::Consensus(command) => run_until_stopped(|stop| command.run(output, stop)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn every_command_teaches_by_example() {
        Cli::command().debug_assert();
        for command in Cli::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string);
            let name = command.get_name();
            assert!(
                help.unwrap_or_default().contains("Examples:"),
                "castnet-lab {name} --help has no examples"
            );
            assert!(
                command.get_about().is_some(),
                "castnet-lab {name} says not what it is"
            );
        }
    }

    #[test]
    fn every_command_line_in_pages_is_one_that_the_program_takes() {
        let (count, faults) =
            castnet_house::commands::faults("castnet-lab", |words| Cli::try_parse_from(words).map(drop));
        assert!(count > 20, "only {count} are found");
        assert!(faults.is_empty(), "\n{}", faults.join("\n"));
    }
}
