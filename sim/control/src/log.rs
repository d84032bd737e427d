//! What happens in a run, in lines with times, and what must not happen.

use std::fmt::Arguments;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The log of a run.
#[derive(Clone)]
pub(crate) struct Log {
    began: Instant,
    said: Arc<Mutex<Said>>,
}

#[derive(Default)]
struct Said {
    lines: Vec<String>,
    violation: Option<String>,
}

impl Log {
    pub(crate) fn new() -> Self {
        Self {
            began: Instant::now(),
            said: Arc::default(),
        }
    }

    pub(crate) fn line(&self, what: Arguments<'_>) {
        let at = self.began.elapsed().as_secs_f64();
        self.said.lock().lines.push(format!("{at:10.6} {what}"));
    }

    /// The first one is why the run fails.
    pub(crate) fn violation(&self, what: Arguments<'_>) {
        self.line(what);
        self.said.lock().violation.get_or_insert_with(|| what.to_string());
    }

    /// What must not happen, if it has.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.said.lock().violation.clone().map_or(Ok(()), Err)
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.said.lock().lines.clone()
    }
}
