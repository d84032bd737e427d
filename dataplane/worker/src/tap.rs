//! Watching frames as they pass: live traces and captures.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crossbeam::channel::{Receiver, RecvTimeoutError};

use crate::command::Command;
use crate::control::Shared;

/// What was watched, in the order of each worker. Ends after as many as were asked for, or when the dataplane stops;
/// dropping it ends the watching.
pub struct TapStream<T> {
    pub(crate) from: Receiver<T>,
    pub(crate) left: u64,
    pub(crate) lost: Arc<AtomicU64>,
    /// Ends it when it is dropped.
    pub(crate) _guard: TapGuard,
}

impl<T> TapStream<T> {
    /// The next one, waiting for it for `timeout` at most.
    ///
    /// # Errors
    /// `Timeout`, or `Disconnected` at the end.
    pub fn recv_timeout(&mut self, timeout: Duration) -> Result<T, RecvTimeoutError> {
        if self.left == 0 {
            return Err(RecvTimeoutError::Disconnected);
        }
        let item = self.from.recv_timeout(timeout)?;
        self.left -= 1;
        Ok(item)
    }

    /// How many were lost because too many waited here.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

impl<T> std::fmt::Debug for TapStream<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TapStream")
            .field("left", &self.left)
            .finish_non_exhaustive()
    }
}

/// Holds the one place for a kind of watching, and gives it back.
pub(crate) struct TapGuard {
    shared: Arc<Shared>,
    place: Arc<AtomicBool>,
    disarm: fn() -> Command,
}

impl TapGuard {
    /// Takes the place, where it is free.
    pub(crate) fn take(
        shared: &Arc<Shared>,
        place: &Arc<AtomicBool>,
        disarm: fn() -> Command,
    ) -> Option<Self> {
        let free = place
            .compare_exchange(false, true, Ordering::AcqRel, Ordering::Acquire)
            .is_ok();
        free.then(|| Self {
            shared: shared.clone(),
            place: place.clone(),
            disarm,
        })
    }
}

impl Drop for TapGuard {
    fn drop(&mut self) {
        for worker in &self.shared.workers {
            // A worker that has ended has disarmed itself.
            let _ = worker.send((self.disarm)());
        }
        self.place.store(false, Ordering::Release);
    }
}
