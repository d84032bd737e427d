//! The log: on stderr, for people. The filter of a service can be changed while it runs (`castnet log-level`).

use std::collections::BTreeMap;
use std::env::VarError;
use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use castnet_wire::{Limit, Nanos};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{fmt, reload};

use crate::exit::{Failure, Outcome};

/// Lines of one place in the code: hosts can cause some at will, such as of calls that are refused and of joins.
const OF_PLACE: Limit = Limit::new(4096, Nanos::from_millis(250));

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
    tracing_subscriber::registry()
        .with(filter)
        .with(Sparing::new())
        .with(lines)
        .init();
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

/// Leaves out lines of places that log too many. Those of debugging are all there.
struct Sparing {
    begun: Instant,
    /// By target and line.
    places: Mutex<BTreeMap<(&'static str, Option<u32>), Place>>,
}

/// A place in the code that logs.
struct Place {
    limit: Limit,
    left_out: u64,
}

impl Sparing {
    fn new() -> Self {
        Self {
            begun: Instant::now(),
            places: Mutex::default(),
        }
    }
}

impl<S: Subscriber> Layer<S> for Sparing {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let of = event.metadata();
        if *of.level() > Level::INFO {
            return true;
        }
        let now = Nanos(u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX));
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let place = places.entry((of.target(), of.line())).or_insert(Place {
            limit: OF_PLACE,
            left_out: 0,
        });
        let next = place.next(now);
        drop(places);
        if let Some(left_out) = next.filter(|left_out| *left_out > 0) {
            let _ = writeln!(io::stderr(), "{left_out} lines like the next one were left out");
        }
        next.is_some()
    }
}

impl Place {
    /// How many lines were left out before this one; `None`: so is this one.
    fn next(&mut self, now: Nanos) -> Option<u64> {
        match self.limit.allows(now) {
            true => Some(std::mem::take(&mut self.left_out)),
            false => {
                self.left_out += 1;
                None
            }
        }
    }
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
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Counts the lines that come so far.
    struct Lines(Arc<AtomicUsize>);

    impl<S: Subscriber> Layer<S> for Lines {
        fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A host filled the log of a controller with `-v`, by calls that were refused.
    #[test]
    fn a_place_logs_some_lines_at_once_and_others_are_not_concerned() {
        let most = 4096;
        let count = Arc::default();
        let lines = Lines(Arc::clone(&count));
        let log = tracing_subscriber::registry().with(Sparing::new()).with(lines);
        let counted = || count.swap(0, Ordering::Relaxed);
        tracing::subscriber::with_default(log, || {
            for _ in 0..2 * most {
                tracing::info!("refused");
            }
            // A second of the test brings four more.
            let logged = counted();
            assert!((most..most + most / 2).contains(&logged), "{logged}");
            tracing::info!("another place");
            assert_eq!(counted(), 1);
            for _ in 0..2 * most {
                tracing::debug!("how it goes");
            }
            assert_eq!(counted(), 2 * most);
        });
    }

    #[test]
    fn the_next_line_of_a_place_says_how_many_were_left_out() {
        let mut place = Place {
            limit: Limit::new(2, Nanos(10)),
            left_out: 0,
        };
        let lines = [0, 1, 2, 3, 10, 11, 40].map(|at| place.next(Nanos(at)));
        assert_eq!(lines, [Some(0), Some(0), None, None, Some(2), None, Some(1)]);
    }

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
