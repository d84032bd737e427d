//! The log: on stderr, for people. The filter of a service can be changed while it runs (`castnet log-level`).

use std::env::VarError;
use std::io::{self, IsTerminal, Write};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{fmt, reload};

use crate::exit::{Failure, Outcome};

/// Logs at a level. RUST_LOG overrides it, unless it is empty.
pub fn start(verbose: u8) -> Outcome {
    let text = match std::env::var("RUST_LOG") {
        Ok(text) if !text.is_empty() => text,
        Err(VarError::NotUnicode(text)) => {
            return Err(Failure::usage(format!("RUST_LOG: {text:?} is no text")));
        }
        _ => directives(verbose).to_owned(),
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

/// Levels: warnings, with `-v` what happens, with `-vv` how. Libraries may report errors only, and rustls nothing: clients, some without a
/// certificate, cause what they warn of, as often and as long as they like.
fn directives(verbose: u8) -> &'static str {
    match verbose {
        // The command itself reports which path collectives take, and why.
        0 => "error,rustls=off,castnet=warn,castnet_comm=error",
        1 => "error,rustls=off,castnet=info",
        _ => "error,rustls=off,castnet=debug",
    }
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
    use tracing::Level;

    use super::*;

    /// A ClientHello with a wrong server name was a warning of rustls with all of that name; an unasked PING ACK was one of h2.
    #[test]
    fn no_level_has_warnings_of_libraries() {
        for (verbose, own) in [
            (0, Level::WARN),
            (1, Level::INFO),
            (2, Level::DEBUG),
            (9, Level::DEBUG),
        ] {
            let filter = parse(directives(verbose)).expect("a filter");
            for library in [
                "h2::proto",
                "hyper",
                "hyper_util",
                "tonic",
                "tower",
                "axum",
                "tokio",
                "log",
            ] {
                let logs = |level| filter.would_enable(library, &level);
                assert!(logs(Level::ERROR) && !logs(Level::WARN), "{verbose} {library}");
            }
            assert!(!filter.would_enable("rustls::server", &Level::ERROR), "{verbose}");
            for target in ["castnet", "castnet_controller::shell", "castnet_proto"] {
                assert!(filter.would_enable(target, &own), "{verbose} {target}");
            }
        }
        let shown = |verbose, level| {
            let filter = parse(directives(verbose)).expect("a filter");
            filter.would_enable("castnet_comm", &level)
        };
        assert!(shown(0, Level::ERROR) && !shown(0, Level::WARN) && shown(1, Level::INFO));
    }

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
