//! Writes what the journal has, and takes back what cannot be written.
//!
//! If a write fails, changes are refused without a write until a probe succeeds, after pauses that grow (`health.rs`). Then the postponed
//! work is resumed.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::health::{Health, Own, Probe};
use super::shared::Shared;
use crate::state::journal::Batch;
use crate::store::{self, Store, StoreError, encode};

/// A write that takes longer is worth a word in the log.
const SLOW: Duration = Duration::from_secs(5);

/// How often the store is looked at while nothing is written: its file may have been moved or cut.
const LOOK: Duration = Duration::from_secs(5);

/// Writes until the controller stops, then closes the store. Changes that arrive during a write are the next batch.
/// `mark`: the entry that says of a controller that a switch has refused it.
pub(crate) async fn write(shared: Arc<Shared>, store: Arc<dyn Store>, probe: Probe, mark: Own) {
    tokio::select! {
        biased;
        // As if killed: the outcome of a write under way is not reported.
        () = shared.stopped.cancelled() => {}
        () = write_all(&shared, &*store, probe, mark) => {}
    }
    if let Err(error) = store.close().await {
        tracing::warn!(%error, "store not closed");
    }
}

async fn write_all(shared: &Arc<Shared>, store: &dyn Store, mut probe: Probe, mark: Own) {
    let (mut health, mut mark) = (
        Health::new(shared.config.timeouts.backoff, Instant::now()),
        Some(mark),
    );
    loop {
        if let Some(refused) = mark
            .as_mut()
            .filter(|_| shared.is_superseded() && health.retry_at.is_none())
        {
            match refused.write(store, encode(&shared.term.epoch)).await {
                Ok(()) => {
                    tracing::error!(
                        "a switch has refused this controller: none begins on this store until it is imported"
                    );
                    mark = None;
                }
                // Another one has the lead: that it was refused is then as it should be.
                Err(error) if shared.give_up_lead() => {
                    tracing::info!(%error, "not noted in the store: a switch has refused this controller");
                    mark = None;
                }
                Err(error) => store_fails(shared, &mut health, Arc::new(error)),
            }
            shared.give_up_lead();
        }
        if health.retry_at.is_some_and(|at| at <= Instant::now()) {
            match probe.write(store).await {
                Ok(()) => {
                    if health.works(Instant::now()) {
                        tracing::warn!("the store works again");
                    }
                    shared.lock().store_error = None;
                }
                Err(error) => store_fails(shared, &mut health, Arc::new(error)),
            }
        }
        let (batch, failing) = {
            let mut core = shared.lock();
            (core.next_batch(), core.store_error.clone())
        };
        let Some(batch) = batch else {
            match health.retry_at {
                None if shared.lock().resume() => {}
                None => tokio::select! {
                    biased;
                    () = shared.staged.notified() => {}
                    () = sleep(LOOK) => {
                        if let Err(error) = store.check().await {
                            store_fails(shared, &mut health, Arc::new(error));
                        }
                    }
                },
                Some(at) => tokio::select! {
                    biased;
                    () = shared.staged.notified() => {}
                    () = sleep_until(at) => {}
                },
            }
            continue;
        };
        let written = match (batch.writes.is_empty(), failing) {
            (true, _) => Ok(()),
            (false, Some(error)) => Err(error),
            (false, None) => {
                let writes = batch.encoded();
                probe.set_size(&writes);
                commit(store, writes).await.map_err(Arc::new)
            }
        };
        if let Err(error) = &written
            && health.retry_at.is_none()
        {
            store_fails(shared, &mut health, error.clone());
        }
        ended(shared, batch, written);
    }
}

/// Commits, and says if that takes long: switches and hosts wait for it.
async fn commit(store: &dyn Store, writes: store::Batch) -> Result<(), StoreError> {
    let mut commit = std::pin::pin!(store.commit(writes));
    if let Ok(done) = timeout(SLOW, &mut commit).await {
        return done;
    }
    tracing::warn!("the store has not confirmed a write for {SLOW:?}: changes wait for it");
    let begun = Instant::now();
    let done = commit.await;
    tracing::warn!("the store took {:.1?} for a write", begun.elapsed() + SLOW);
    done
}

fn store_fails(shared: &Arc<Shared>, health: &mut Health, error: Arc<StoreError>) {
    if health.fails(Instant::now()) {
        tracing::error!(%error, "the store fails: changes are refused until it works again");
    }
    shared.lock().store_error = Some(error);
}

/// A batch is on disk, or cannot be written. Who waits for it learns that when the state knows it.
pub(super) fn ended(shared: &Arc<Shared>, batch: Batch, written: Result<(), Arc<StoreError>>) {
    let numbers = {
        let mut core = shared.lock();
        if written.is_ok() {
            for (name, record) in batch.groups() {
                // Seats may have changed. A change that is taken back ends nobody's round.
                shared.exchanges.forget_strangers(name, record);
            }
        }
        core.handle_stored(batch, written.is_ok())
    };
    for number in numbers {
        shared.batches.end(number, written.clone());
    }
}
