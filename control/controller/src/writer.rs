//! The task that writes staged changes: those that arrive during a write are the next batch.

use std::sync::Arc;

use castnet_proto::v1;
use castnet_proto::v1::controller_event::Event;

use crate::core::Shared;
use crate::journal::{Batch, Value};
use crate::store::{Store, StoreError, Table};

/// Writes until the controller stops, then closes the store.
pub(crate) async fn write(shared: Arc<Shared>, store: Arc<dyn Store>) {
    while !shared.stopped.is_cancelled() {
        let batch = {
            let core = &mut *shared.lock();
            let (groups, facts) = (&core.groups, &core.facts);
            core.journal.take(|key| match key.table {
                Table::Groups => groups
                    .get(&key.name)
                    .map(|e| Value::Group(Box::new(e.record().clone()))),
                Table::Hosts => facts.hosts.get(&key.name).cloned().map(Value::Host),
                Table::Meta => None,
            })
        };
        let Some(batch) = batch else {
            tokio::select! {
                () = shared.stopped.cancelled() => {}
                () = shared.staged.notified() => {}
            }
            continue;
        };
        let writes = batch.encoded();
        let written = match writes.is_empty() {
            true => Ok(()),
            false => tokio::select! {
                biased;
                // As if killed: the outcome is not reported.
                () = shared.stopped.cancelled() => break,
                written = store.commit(writes) => written,
            },
        };
        match written {
            Ok(()) => release(&shared, batch),
            Err(error) => take_back(&shared, batch, error),
        }
    }
    if let Err(error) = store.close().await {
        tracing::warn!(%error, "store not closed");
    }
}

fn release(shared: &Arc<Shared>, mut batch: Batch) {
    let mut core = shared.lock();
    core.journal.written();
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

fn take_back(shared: &Arc<Shared>, mut batch: Batch, error: StoreError) {
    let error = Arc::new(error);
    tracing::error!(%error, "changes cannot be written, and are taken back");
    let mut core = shared.lock();
    let mut rest = core.journal.failed(&batch);
    let undone = batch.undo.drain(..).chain(rest.undo.drain(..));
    core.take_back(undone.rev());
    for retry in batch.retries.drain(..).chain(rest.retries.drain(..)) {
        shared.after(shared.config.timeouts.backoff.1, retry);
    }
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
