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
mod host;
mod log_level;
mod logging;
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

use castnet_console::output::Output;
use clap::Parser;

/// A controller of many groups spends a third of its time in the allocator of the C library.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    castnet_proto::process::set_version(cli::VERSION);
    let output = Output::new(cli.output);
    match logging::start(cli.verbose).and_then(|()| cli.run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output.failure(&failure);
            ExitCode::from(failure.code())
        }
    }
}
