//! The one binary: a switch, its controller, software hosts, and everything to look into them.

mod api;
mod bench;
mod capture;
mod cli;
mod completions;
mod connect;
mod controller;
mod counters;
mod demo;
mod doctor;
mod drops;
mod events;
mod exit;
mod fdb;
mod group;
mod host;
mod logging;
mod neighbours;
mod output;
mod packets;
mod pick;
mod port;
mod route;
mod rules;
mod runtime;
mod service;
mod settings;
mod switch;
mod topology;
mod trace;
mod tree;
mod units;
mod watch;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    logging::start(cli.verbose);
    let output = output::Output::new(cli.output);
    match cli.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output.failure(&failure);
            ExitCode::from(failure.code())
        }
    }
}
