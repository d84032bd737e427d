//! Experiments: those of papers on the simulated network, and measurements between the hosts of a lab.
#![forbid(unsafe_code)]

mod bench;
mod beside;
mod calibrate;
mod cli;
mod consensus;
mod help;
mod sim;
mod skew;

use std::process::ExitCode;

use castnet_console::program;

fn main() -> ExitCode {
    match program::parse::<cli::Cli>() {
        Ok(cli) => cli.everywhere.run(cli::VERSION, |output| cli.command.run(output)),
        Err(error) => program::end(&error),
    }
}
