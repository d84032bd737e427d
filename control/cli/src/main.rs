//! The one binary: a switch, its controller, software hosts, and everything to look into them.

mod capture;
mod cli;
mod completions;
mod controller;
mod counters;
mod drops;
mod events;
mod fdb;
mod group;
mod log_level;
mod neighbours;
mod packets;
mod pick;
mod pki;
mod place;
mod port;
mod route;
mod rules;
mod runtime;
mod store;
mod switch;
mod topology;
mod trace;

use std::process::ExitCode;

use clap::Parser;

/// A controller of many groups spends a third of its time in the allocator of the C library.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    cli.everywhere.run(cli::VERSION, |output| cli.run(output))
}
