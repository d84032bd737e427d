//! Watching frames as they pass: live traces and captures.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use castnet_engine::TapId;
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

    /// How many were lost because too many waited here or at a worker.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// How many wait here.
    pub fn waiting(&self) -> usize {
        self.from.len()
    }
}

impl<T> std::fmt::Debug for TapStream<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TapStream")
            .field("left", &self.left)
            .finish_non_exhaustive()
    }
}

/// Holds a subscriber's number, and gives it back.
pub(crate) struct TapGuard {
    shared: Arc<Shared>,
    pub(crate) id: TapId,
}

impl TapGuard {
    /// Takes a number, where one is free.
    pub(crate) fn take(shared: &Arc<Shared>) -> Option<Self> {
        let id = TapId::all().find(|id| {
            let bit = 1 << id.index();
            shared.taps.fetch_or(bit, Ordering::AcqRel) & bit == 0
        })?;
        let shared = shared.clone();
        Some(Self { shared, id })
    }
}

impl Drop for TapGuard {
    fn drop(&mut self) {
        for worker in &self.shared.workers {
            // A worker that has ended has no subscribers.
            let _ = worker.send(Command::Disarm(self.id));
        }
        self.shared
            .taps
            .fetch_and(!(1 << self.id.index()), Ordering::AcqRel);
    }
}
