//! A program with commands: its common flags, and the runtimes that its commands run on.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Args, Command, Parser};

use crate::exit::{Failure, Outcome};
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

/// Reads the command line of the program. An empty variable of the environment counts as not set: `NAME= command` in a shell.
///
/// # Errors
/// What is wrong with it, or the help that it asks for.
pub fn parse<C: Parser>() -> Result<C, clap::Error> {
    let mut command = without_empty_variables(C::command());
    let matches = command.try_get_matches_from_mut(std::env::args_os());
    let matches = matches.map_err(|error| naming_variable(error, &command, std::env::args_os()))?;
    C::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// An error about a value that is that of a variable, and not in `args`, names the variable instead of the flag.
fn naming_variable(
    mut error: clap::Error,
    command: &Command,
    mut args: impl Iterator<Item = OsString>,
) -> clap::Error {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    let (Some(flag), Some(value)) = (text(ContextKind::InvalidArg), text(ContextKind::InvalidValue)) else {
        return error;
    };
    let variable = variable_of(command, &flag, &value);
    if let Some(variable) = variable
        && !args.any(|arg| arg.to_string_lossy().ends_with(value.as_str()))
    {
        let named = ContextValue::String(format!("{variable} (environment)"));
        error.insert(ContextKind::InvalidArg, named);
    }
    error
}

/// The variable with this value for a flag, as errors write it.
fn variable_of(command: &Command, flag: &str, value: &str) -> Option<String> {
    let of = |arg: &Arg| {
        let long = flag
            .split_whitespace()
            .next()
            .and_then(|flag| flag.strip_prefix("--"));
        let name = arg
            .get_env()
            .filter(|_| long.is_some() && arg.get_long() == long)?;
        let is_it = std::env::var_os(name).is_some_and(|set| set.to_string_lossy() == value);
        is_it.then(|| name.to_string_lossy().into_owned())
    };
    let below = || {
        command
            .get_subcommands()
            .find_map(|below| variable_of(below, flag, value))
    };
    command.get_arguments().find_map(of).or_else(below)
}

fn without_empty_variables(command: Command) -> Command {
    let is_empty = |arg: &Arg| {
        let name = arg.get_env();
        name.and_then(std::env::var_os)
            .is_some_and(|value| value.is_empty())
    };
    command
        .mut_args(|arg| if is_empty(&arg) { arg.env(None) } else { arg })
        .mut_subcommands(without_empty_variables)
}

/// The format that a command line asks for which cannot be parsed.
pub fn asked_format() -> Format {
    format_of(std::env::args_os().skip(1))
}

fn format_of(args: impl Iterator<Item = OsString>) -> Format {
    let args = args.map(|arg| arg.to_string_lossy().into_owned());
    let mut args = args.take_while(|arg| arg != "--");
    let mut format = Format::Table;
    while let Some(arg) = args.next() {
        let value = match arg.as_str() {
            "-O" | "--output" => args.next(),
            arg => arg
                .strip_prefix("--output=")
                .or_else(|| arg.strip_prefix("-O"))
                .map(|value| value.trim_start_matches('=').to_owned()),
        };
        if let Some(value) = value {
            format = if value == "json" {
                Format::Json
            } else {
                Format::Table
            };
        }
    }
    format
}

/// Ends a program whose command line is wrong, or asks for help or the version.
pub fn end(error: &clap::Error) -> ExitCode {
    let format = asked_format();
    if error.use_stderr() && format == Format::Json {
        let failure = usage(error);
        Output::new(format).failure(&failure);
        return ExitCode::from(failure.code());
    }
    let _ = error.print();
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(u8::MAX))
}

/// What is wrong with a command line, and what would be right.
fn usage(error: &clap::Error) -> Failure {
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let (what, next) = match error.kind() {
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => ("a command is missing", text),
        _ => text.split_once("\n\n").unwrap_or((text, "")),
    };
    let failure = Failure::usage(what.trim());
    match next.trim() {
        "" => failure,
        next => failure.next(next),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_known_although_the_command_line_is_wrong() {
        for (line, format) in [
            ("port --colour", Format::Table),
            ("port --colour -O json", Format::Json),
            ("-Ojson port --colour", Format::Json),
            ("-O=json port", Format::Json),
            ("port --output json --colour", Format::Json),
            ("--output=json port", Format::Json),
            ("port --output table", Format::Table),
            ("port -- --output json", Format::Table),
            ("port --output", Format::Table),
        ] {
            let args = line.split(' ').map(OsString::from);
            assert_eq!(format_of(args), format, "{line}");
        }
    }

    #[test]
    fn a_wrong_command_line_is_a_failure_with_what_would_be_right() {
        let name = || clap::Arg::new("name").long("name").value_name("NAME");
        let command = || clap::Command::new("x").arg(name().required(true));
        let of = |args: &[&str]| usage(&command().try_get_matches_from(args).expect_err("wrong"));
        let failure = of(&["x", "--fly"]);
        assert_eq!(failure.code(), 2);
        assert!(
            failure.what.starts_with("unexpected argument '--fly'"),
            "{}",
            failure.what
        );
        let next = failure.next.expect("the usage");
        assert!(next.contains("Usage: x"), "{next}");
        let failure = of(&["x"]);
        assert!(failure.what.contains("--name <NAME>"), "{}", failure.what);
        let helped = command().arg_required_else_help(true).try_get_matches_from(["x"]);
        let failure = usage(&helped.expect_err("nothing is given"));
        assert_eq!(failure.what, "a command is missing");
    }
}
