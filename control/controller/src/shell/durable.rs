//! Calls that wait until what they depend on is on disk.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::error::Refusal;
use crate::state::journal::{Journal, Pending};
use crate::store::StoreError;

/// The outcome of a batch; `None` while it is being written.
type Outcome = Option<Result<(), Arc<StoreError>>>;

/// The batches that something waits for, by number.
#[derive(Default)]
pub(crate) struct Batches(Mutex<BTreeMap<u64, watch::Sender<Outcome>>>);

/// Stands for all changes that were staged before it was issued.
pub(crate) struct Ticket(Option<watch::Receiver<Outcome>>);

impl Batches {
    /// The state is locked: the batch has not ended yet.
    pub(crate) fn ticket(&self, journal: &Journal) -> Ticket {
        Ticket(match journal.pending() {
            Pending::Nothing => None,
            Pending::Batch(number) => Some(self.0.lock().entry(number).or_default().subscribe()),
            Pending::Forever => Some(watch::Sender::default().subscribe()),
        })
    }

    pub(crate) fn end(&self, number: u64, outcome: Result<(), Arc<StoreError>>) {
        if let Some(batch) = self.0.lock().remove(&number) {
            batch.send_replace(Some(outcome));
        }
    }

    /// The controller stops and writes nothing more.
    pub(crate) fn close(&self) {
        self.0.lock().clear();
    }
}

impl Ticket {
    pub(crate) async fn durable(self) -> Result<(), Refusal> {
        let Some(mut outcome) = self.0 else {
            return Ok(());
        };
        match outcome.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(Err(error))) => Err(Refusal::Store(error.clone())),
            Ok(_) => Ok(()),
            Err(_) => Err(Refusal::Stopping),
        }
    }
}
