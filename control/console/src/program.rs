//! A program with commands: its common flags, and the runtimes that its commands run on.

use std::process::ExitCode;

use clap::{ArgAction, Args};

use crate::exit::Outcome;
use crate::logging;
use crate::output::{Format, Output};

/// The flags of every command.
#[derive(Clone, Copy, Debug, Args)]
pub struct Everywhere {
    /// table for people, json for programs (output that goes on is one object a line)
    #[arg(short = 'O', long, global = true, value_enum, default_value_t = Format::Table, value_name = "FORMAT")]
    #[arg(help_heading = "Everywhere", hide_possible_values = true)]
    output: Format,
    /// More log messages on stderr; given twice, even more
    #[arg(short, long, global = true, action = ArgAction::Count, help_heading = "Everywhere")]
    verbose: u8,
}

impl Everywhere {
    /// Starts the log, runs the command, and reports its failure. `version` is what the program reports about itself.
    pub fn run(self, version: &'static str, command: impl FnOnce(Output) -> Outcome) -> ExitCode {
        castnet_proto::process::set_version(version);
        let output = Output::new(self.output);
        match logging::start(self.verbose).and_then(|()| command(output)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => {
                output.failure(&failure);
                ExitCode::from(failure.code())
            }
        }
    }
}

/// Runs a client: one thread is enough for requests.
///
/// # Errors
/// Those of `work`.
pub fn client(work: impl Future<Output = Outcome>) -> Outcome {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(work)
}

/// Runs a service, or what owns threads that forward frames: two threads for requests beside those.
///
/// # Errors
/// Those of `work`.
pub fn service(work: impl Future<Output = Outcome>) -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let outcome = runtime.block_on(work);
    // Blocking threads must not delay the end.
    runtime.shutdown_timeout(std::time::Duration::from_millis(500));
    outcome
}
