//! What a switch or a controller says about its own process: its version, and the filter of its log.
//!
//! Both belong to the process, not to one of its services: the binary sets them once, all services show them.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::OnceLock;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::{Request, Response, Status};

use crate::access::Right;
use crate::convert::Invalid;
use crate::v1;
use crate::v1::process_server::{Process, ProcessServer};

static VERSION: OnceLock<String> = OnceLock::new();
static LOG: OnceLock<Log> = OnceLock::new();

/// Longest time of a temporary filter, in milliseconds.
pub const FOR_MS_MAX: u32 = 24 * 60 * 60 * 1000;

/// An unpredictable number, from the seed of the standard library's hash maps; in a network in memory, the next one of its seed.
pub fn draw() -> u64 {
    #[cfg(feature = "memory")]
    if let Some(drawn) = crate::transport::memory::draw() {
        return drawn;
    }
    RandomState::new().build_hasher().finish()
}

/// Sets the version that is reported; the first call counts.
pub fn set_version(version: impl Into<String>) {
    let _ = VERSION.set(version.into());
}

/// The version of the program; that of this crate if none was set.
pub fn version() -> &'static str {
    VERSION.get().map_or(env!("CARGO_PKG_VERSION"), String::as_str)
}

/// Lets clients show and set the filter of the log. `filter` is the present one; `set` sets another, or says what is
/// wrong with it. The first call counts.
pub fn control_log(
    filter: impl Into<String>,
    set: impl Fn(&str) -> Result<(), String> + Send + Sync + 'static,
) {
    let _ = LOG.set(Log::new(filter, set));
}

/// The right that a method needs.
pub fn right(method: &str) -> Option<Right> {
    match method {
        "GetLogFilter" => Some(Right::Read),
        "SetLogFilter" => Some(Right::Operate),
        _ => None,
    }
}

/// The service, to be served beside others.
pub fn server() -> ProcessServer<impl Process> {
    ProcessServer::new(Service)
}

type SetFilter = dyn Fn(&str) -> Result<(), String> + Send + Sync;

struct Log {
    set: Box<SetFilter>,
    state: Mutex<State>,
}

struct State {
    filter: String,
    /// The filter before a temporary one, and when it returns.
    before: Option<(String, Instant)>,
    /// Number of changes: an older timer does nothing.
    changes: u64,
}

impl Log {
    fn new(
        filter: impl Into<String>,
        set: impl Fn(&str) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        let state = State {
            filter: filter.into(),
            before: None,
            changes: 0,
        };
        Self {
            set: Box::new(set),
            state: Mutex::new(state),
        }
    }

    fn show(&self) -> v1::LogFilter {
        let state = self.state.lock();
        let now = Instant::now();
        let left = |at: &Instant| at.saturating_duration_since(now).as_millis() as u64;
        v1::LogFilter {
            filter: state.filter.clone(),
            then: state.before.as_ref().map(|(filter, _)| filter.clone()),
            then_in_ms: state.before.as_ref().map_or(0, |(_, at)| left(at)),
        }
    }

    /// Sets a filter, `within` a time or for good. Returns the number of the change.
    fn change(&self, filter: &str, within: Option<Duration>) -> Result<u64, String> {
        let mut state = self.state.lock();
        (self.set)(filter)?;
        let present = std::mem::replace(&mut state.filter, filter.into());
        let lasting = state.before.take().map_or(present, |(before, _)| before);
        state.before = within.map(|within| (lasting, Instant::now() + within));
        state.changes += 1;
        Ok(state.changes)
    }

    /// Ends the temporary filter of a change, if no other came.
    fn restore(&self, change: u64) {
        let mut state = self.state.lock();
        if state.changes != change {
            return;
        }
        if let Some((filter, _)) = state.before.take() {
            match (self.set)(&filter) {
                Ok(()) => state.filter = filter,
                Err(error) => tracing::error!(filter, error, "log filter not restored"),
            }
        }
    }
}

struct Service;

fn log() -> Result<&'static Log, Status> {
    LOG.get()
        .ok_or_else(|| Status::failed_precondition("this process does not control its log"))
}

#[tonic::async_trait]
impl Process for Service {
    async fn get_log_filter(
        &self,
        _: Request<v1::GetLogFilterRequest>,
    ) -> Result<Response<v1::LogFilter>, Status> {
        Ok(Response::new(log()?.show()))
    }

    async fn set_log_filter(
        &self,
        request: Request<v1::SetLogFilterRequest>,
    ) -> Result<Response<v1::LogFilter>, Status> {
        let v1::SetLogFilterRequest { filter, for_ms } = request.into_inner();
        if for_ms > FOR_MS_MAX {
            let why = "milliseconds are over a day: at most 86400000";
            return Err(Invalid::out_of_range("for_ms", for_ms, why).into());
        }
        let within = Duration::from_millis(for_ms.into());
        let log = log()?;
        let change = log.change(&filter, (for_ms > 0).then_some(within));
        let change = change.map_err(|why| Status::invalid_argument(format!("filter: {why}")))?;
        tracing::warn!(filter, for_ms, "log filter set by a client");
        if for_ms > 0 {
            tokio::spawn(async move {
                tokio::time::sleep(within).await;
                log.restore(change);
            });
        }
        Ok(Response::new(log.show()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn each_method_needs_a_right() {
        for method in crate::access::methods(include_str!("../castnet/v1/process.proto")) {
            assert!(right(method).is_some(), "{method} has no row");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_temporary_filter_ends_with_what_was_there_before_it() {
        let present = Arc::new(Mutex::new(String::new()));
        let set = {
            let present = present.clone();
            move |filter: &str| match filter {
                "" => Err("is empty".into()),
                filter => {
                    *present.lock() = filter.into();
                    Ok(())
                }
            }
        };
        let log = Log::new("warn", set);
        let minute = Some(Duration::from_secs(60));
        let first = log.change("info", minute).unwrap();
        let second = log.change("debug", minute).unwrap();
        assert_eq!(log.change("", None), Err("is empty".into()));
        let shown = log.show();
        let expected = v1::LogFilter {
            filter: "debug".into(),
            then: Some("warn".into()),
            then_in_ms: 60_000,
        };
        assert_eq!(shown, expected);
        log.restore(first);
        assert_eq!(
            *present.lock(),
            "debug",
            "the timer of an earlier change does nothing"
        );
        log.restore(second);
        assert_eq!((present.lock().as_str(), log.show().then), ("warn", None));
        let third = log.change("info", minute).unwrap();
        log.change("error", None).unwrap();
        log.restore(third);
        assert_eq!(present.lock().as_str(), "error", "a lasting filter stays");
        assert_eq!(log.show().then, None);
    }
}
