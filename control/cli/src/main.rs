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
mod job;
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

use castnet_console::exit::Failure;
use castnet_console::output::Output;
use castnet_console::program;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// A controller of many groups spends a third of its time in the allocator of the C library.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = match program::parse::<cli::Cli>() {
        Ok(cli) => cli,
        Err(error) => {
            let failure = match elsewhere(&error) {
                Some("plan") => {
                    Failure::usage("no command plan here").next("castnet group plan, or castnet job plan")
                }
                Some(name) => {
                    Failure::usage(format!("no command {name} here: experiments are in castnet-lab")).next(
                        format!("castnet-lab {name} (cargo build --release -p castnet-lab)"),
                    )
                }
                None => return program::end(&error),
            };
            Output::new(program::asked_format()).failure(&failure);
            return ExitCode::from(failure.code());
        }
    };
    cli.everywhere.run(cli::VERSION, |output| cli.run(output))
}

/// The command of `castnet-lab` or of a group that was looked for here, if one was.
fn elsewhere(error: &clap::Error) -> Option<&str> {
    match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(name)) if error.kind() == ErrorKind::InvalidSubcommand => {
            ["plan", "sim", "bench", "skew", "calibrate", "consensus"]
                .into_iter()
                .find(|known| known == name)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn commands_that_are_elsewhere_are_known() {
        for (line, name) in [
            (&["castnet", "sim", "epic"][..], Some("sim")),
            (&["castnet", "host", "bench", "--name", "h1"], Some("bench")),
            (&["castnet", "plan", "g"], Some("plan")),
            (&["castnet", "sims"], None),
            (&["castnet", "group", "--rank"], None),
        ] {
            let error = cli::Cli::try_parse_from(line).expect_err("no such command");
            assert_eq!(elsewhere(&error), name, "{line:?}");
        }
    }
}
