//! Streams of live traces and captured frames.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use castnet_engine::TapId;
use crossbeam::channel::{Receiver, RecvTimeoutError, TryRecvError};

use crate::command::Command;
use crate::control::SharedControl;

/// What workers did not pass on.
#[derive(Debug, Default)]
pub(crate) struct Lost {
    /// As a queue was full. It counts in the requested number.
    pub(crate) full: AtomicU64,
    /// Traces for which there was no time.
    pub(crate) skipped: AtomicU64,
}

/// Traces or captured frames, in order per worker. The stream ends after the requested number of items, lost ones included, or when
/// the dataplane stops. Dropping it cancels the subscription.
pub struct TapStream<T> {
    pub(crate) from: Receiver<T>,
    pub(crate) left: u64,
    pub(crate) lost: Arc<Lost>,
    pub(crate) _guard: TapGuard,
}

impl<T> TapStream<T> {
    /// Waits up to `timeout` for an item. `Disconnected` at the end of the stream.
    pub fn recv_timeout(&mut self, timeout: Duration) -> Result<T, RecvTimeoutError> {
        if self.left == 0 {
            return Err(RecvTimeoutError::Disconnected);
        }
        // What was queued before these were lost is seen below.
        let lost = self.lost.full.load(Ordering::Acquire);
        let item = match self.from.try_recv() {
            Ok(item) => item,
            // Workers that have not matched as many stay subscribed.
            Err(TryRecvError::Empty) if self.left > lost => self.from.recv_timeout(timeout)?,
            Err(_) => return Err(RecvTimeoutError::Disconnected),
        };
        self.left -= 1;
        Ok(item)
    }

    /// The number of items lost because a queue was full, or because a worker had no time for more traces.
    pub fn lost(&self) -> u64 {
        self.lost.full.load(Ordering::Relaxed) + self.lost.skipped.load(Ordering::Relaxed)
    }

    /// The number of items ready to be read.
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

pub(crate) struct TapGuard {
    shared: Arc<SharedControl>,
    pub(crate) id: TapId,
}

impl TapGuard {
    pub(crate) fn take(shared: &Arc<SharedControl>) -> Option<Self> {
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
