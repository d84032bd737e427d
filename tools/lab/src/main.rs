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

use clap::Parser;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    cli.everywhere
        .run(env!("CARGO_PKG_VERSION"), |output| cli.command.run(output))
}
