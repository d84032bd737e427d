//! Writes what the journal has, and takes back what cannot be written.
//!
//! If a write fails, changes are refused without a write until a probe succeeds, after pauses that grow (`health.rs`). Then the postponed
//! work is resumed.

use std::sync::Arc;
use std::time::Duration;

use castnet_proto::v1;
use castnet_proto::v1::controller_event::Event;
use castnet_wire::McstId;
use tokio::time::{Instant, sleep_until, timeout};

use super::health::{Health, Mark, Probe};
use super::shared::Shared;
use crate::state::core::Core;
use crate::state::journal::{Batch, Value};
use crate::store::{self, Store, StoreError, Table};

/// A write that takes longer is worth a word in the log.
const SLOW: Duration = Duration::from_secs(5);

/// Writes until the controller stops, then closes the store. Changes that arrive during a write are the next batch.
pub(crate) async fn write(shared: Arc<Shared>, store: Arc<dyn Store>, probe: Probe, mark: Mark) {
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

async fn write_all(shared: &Arc<Shared>, store: &dyn Store, mut probe: Probe, mark: Mark) {
    let (mut health, mut mark) = (
        Health::new(shared.config.timeouts.backoff, Instant::now()),
        Some(mark),
    );
    loop {
        if let Some(refused) = mark
            .as_ref()
            .filter(|_| shared.is_superseded() && health.retry_at.is_none())
        {
            match refused.write(store).await {
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
            (next_batch(&mut core), core.store_error.clone())
        };
        let Some(batch) = batch else {
            match health.retry_at {
                None if shared.lock().resume() => {}
                None => shared.staged.notified().await,
                Some(at) => tokio::select! {
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
        match written {
            Ok(()) => release(shared, batch),
            Err(error) => {
                if health.retry_at.is_none() {
                    store_fails(shared, &mut health, error.clone());
                }
                take_back(shared, batch, error);
            }
        }
    }
}

/// What is staged, with the present values.
pub(super) fn next_batch(core: &mut Core) -> Option<Batch> {
    let (groups, facts, written_off) = (&core.groups, &core.facts, &core.written_off);
    core.journal.take(|key| match key.table {
        Table::Groups => groups
            .get(&key.name)
            .map(|e| Value::Group(Box::new(e.record().clone()))),
        Table::Hosts => facts.hosts.get(&key.name).cloned().map(Value::Host),
        Table::WrittenOff => {
            let mcst_id = key.name.parse().ok().map(McstId);
            let entry = mcst_id.and_then(|id| written_off.get(&id));
            entry.cloned().map(Value::WrittenOff)
        }
        Table::Meta => None,
    })
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

pub(super) fn release(shared: &Arc<Shared>, mut batch: Batch) {
    let mut core = shared.lock();
    core.journal.under_way = None;
    for (name, record) in batch.groups() {
        // Seats may have changed. A change that is taken back ends nobody's round.
        shared.exchanges.forget_strangers(name, record);
    }
    for message in batch.messages.drain(..) {
        message();
    }
    if batch.events_lost > 0 {
        shared.release(v1::ControllerEvent {
            at_unix_ns: 0,
            event: Some(Event::Lagged(batch.events_lost)),
        });
    }
    for event in batch.events.drain(..) {
        shared.release(event);
    }
    drop(core);
    batch.end(Ok(()));
}

pub(super) fn take_back(shared: &Arc<Shared>, mut batch: Batch, error: Arc<StoreError>) {
    let mut core = shared.lock();
    let mut rest = core.take_back(&mut batch);
    let works = batch.retries.drain(..).chain(rest.retries.drain(..));
    core.postponed.works.extend(works);
    for event in batch.events.drain(..).chain(rest.events.drain(..)) {
        // Reports of switches stay true; states of groups are reported anew.
        match &event.event {
            Some(Event::GroupGone(_)) => {}
            Some(Event::Group(state)) => core.notify(&state.name),
            Some(Event::Collective(state)) => core.notify(&state.name),
            _ => shared.release(event),
        }
    }
    drop(core);
    batch.end(Err(error.clone()));
    rest.end(Err(error));
}
