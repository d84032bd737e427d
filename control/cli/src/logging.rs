//! The log: on stderr, for people.

use std::io::{self, IsTerminal, Write};

use tracing_subscriber::EnvFilter;

/// Levels: warnings, with `-v` what happens, with `-vv` how. RUST_LOG overrides all of them.
pub(crate) fn start(verbose: u8) {
    let level = match verbose {
        // The command itself reports which path collectives take, and why.
        0 => "warn,castnet_comm=error",
        1 => "info,h2=warn,hyper=warn,tower=warn,tonic=warn",
        _ => "debug,h2=info,hyper=info,tower=info,tonic=info",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .with_target(verbose > 1)
        .with_writer(|| Patient(io::stderr()))
        .init();
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
