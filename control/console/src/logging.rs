//! The log: on stderr, for people. The filter of a service can be changed while it runs (`castnet log-level`).

use std::env::VarError;
use std::io::{self, IsTerminal, Write};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{fmt, reload};

use crate::exit::{Failure, Outcome};

/// Levels: warnings, with `-v` what happens, with `-vv` how. RUST_LOG overrides all of them, unless it is empty.
pub fn start(verbose: u8) -> Outcome {
    let level = match verbose {
        // The command itself reports which path collectives take, and why.
        0 => "warn,castnet_comm=error",
        1 => "info,h2=warn,hyper=warn,tower=warn,tonic=warn",
        _ => "debug,h2=info,hyper=info,tower=info,tonic=info",
    };
    let text = match std::env::var("RUST_LOG") {
        Ok(text) if !text.is_empty() => text,
        Err(VarError::NotUnicode(text)) => {
            return Err(Failure::usage(format!("RUST_LOG: {text:?} is no text")));
        }
        _ => level.to_owned(),
    };
    let filter = parse(&text).map_err(|why| Failure::usage(format!("RUST_LOG: {why}")))?;
    let (filter, handle) = reload::Layer::new(filter);
    let lines = fmt::layer()
        .with_ansi(io::stderr().is_terminal())
        .with_target(verbose > 1)
        .with_writer(|| Patient(io::stderr()));
    tracing_subscriber::registry().with(filter).with(lines).init();
    castnet_proto::process::control_log(text, move |text| {
        handle.reload(parse(text)?).map_err(|error| error.to_string())
    });
    Ok(())
}

/// Stricter than [`Targets`], which takes a misspelled level for a target.
fn parse(text: &str) -> Result<Targets, String> {
    for directive in text.split(',') {
        let (target, level) = directive.rsplit_once('=').unwrap_or(("", directive));
        // An empty text parses as a level.
        let level = level.trim();
        if level.is_empty()
            || level.parse::<LevelFilter>().is_err()
            || (target.is_empty() && directive.contains('='))
            || target.contains(['[', ']', '='])
        {
            return Err(format!(
                "{directive:?} is no filter of the log: write a level (off, error, warn, info, debug or trace), or TARGET=LEVEL \
                 such as castnet_controller=debug, with commas between several"
            ));
        }
    }
    text.parse()
        .map_err(|error| format!("{text:?} is no filter of the log: {error}"))
}

/// A stderr whose errors are ignored.
struct Patient(io::Stderr);

impl Write for Patient {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = self.0.write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_has_levels_and_nothing_is_guessed() {
        for good in [
            "info",
            "WARN",
            "warn,castnet_controller=debug",
            "off,castnet_controller::shell::link=trace",
        ] {
            assert!(parse(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "debgu",
            "castnet_controller",
            "castnet_controller=",
            "=info",
            "info,",
            "castnet_controller=loud",
            "a[{b=info",
            "info,[{group}]=debug",
            "a=b=info",
        ] {
            assert!(parse(bad).is_err_and(|why| why.contains("no filter")), "{bad}");
        }
    }
}
