//! The way of changes to the store, outside the core's lock.
//!
//! A change is made in memory and staged here in one go, under the core's lock. Staged changes are written in their
//! order, many in one transaction. Until a change is on disk nothing of it leaves the controller: events wait here, and
//! answers and calls to switches wait for the [`Ticket`] of what they were made from. A change that cannot be written is
//! taken back in memory, with all that were made after it: they may rest on it.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use castnet_proto::v1;
use tokio::sync::watch;

use crate::core::{Core, EVENTS_MAX, Shared};
use crate::error::Refusal;
use crate::fabric::HostRecord;
use crate::record::Record;
use crate::store::{self, Entry, Key, StoreError, Table, Version, Write, encode};
use crate::table;

/// The outcome of a batch; `None` while it is under way.
type Outcome = Option<Result<(), Arc<StoreError>>>;

/// Stands for all changes that were staged before it was given out.
pub(crate) struct Ticket(Option<watch::Receiver<Outcome>>);

impl Ticket {
    /// Waits until all of it is on disk.
    pub(crate) async fn durable(self) -> Result<(), Refusal> {
        let Some(mut outcome) = self.0 else {
            return Ok(());
        };
        match outcome.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(Err(error))) => Err(Refusal::Store(error.clone())),
            Ok(_) => Ok(()),
            // The controller stops, and nothing more is written.
            Err(_) => Err(Refusal::Stopping),
        }
    }
}

/// What was before a change.
pub(crate) enum Undo {
    /// There was no such group.
    Added(String),
    /// The group had this record, and these switches had confirmed to have its part.
    Changed(Box<Record>, BTreeSet<String>),
    /// There was this group.
    Forgotten(Box<table::Entry>),
    /// The host was this, or not known.
    Host(String, Option<HostRecord>),
}

/// What is tried again after a pause where its changes could not be written and no client waits for them.
pub(crate) type Retry = Box<dyn FnOnce(&Arc<Shared>, &mut Core) + Send>;

/// What an entry is to be from then on.
pub(crate) enum Value {
    /// A group, which shares its large parts with the one in memory.
    Group(Box<Record>),
    /// A host.
    Host(HostRecord),
}

/// A write of an entry.
pub(crate) struct Staged {
    /// See [`Write::was`].
    was: Version,
    /// Its version from then on; `None`: it is removed.
    version: Option<Version>,
    /// Its value as it is when the batch is taken: of several changes the last is written alone.
    value: Option<Value>,
}

/// Changes that are written together.
#[derive(Default)]
pub(crate) struct Batch {
    writes: BTreeMap<Key, Staged>,
    pub(crate) undo: Vec<Undo>,
    pub(crate) retries: Vec<Retry>,
    pub(crate) events: VecDeque<v1::ControllerEvent>,
    /// Events before those, that were too many.
    pub(crate) events_lost: u64,
    outcome: watch::Sender<Outcome>,
}

impl Batch {
    fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.events.is_empty()
    }

    /// The writes as a store takes them.
    pub(crate) fn encoded(&self) -> store::Batch {
        let write = |(key, staged): (&Key, &Staged)| {
            let entry = staged.version.zip(staged.value.as_ref());
            let entry = entry.map(|(version, value)| Entry {
                version,
                value: match value {
                    Value::Group(record) => encode(record),
                    Value::Host(record) => encode(record),
                },
            });
            let was = staged.was;
            (key.clone(), Write { was, entry })
        };
        self.writes.iter().map(write).collect()
    }

    /// Reports the outcome to all that wait for it.
    pub(crate) fn end(self, outcome: Result<(), Arc<StoreError>>) {
        self.outcome.send_replace(Some(outcome));
    }
}

/// Changes that are made in memory and not on disk yet.
pub(crate) struct Journal {
    versions: HashMap<Key, Version>,
    staged: Batch,
    /// What is being written.
    under_way: Option<watch::Receiver<Outcome>>,
    is_closed: bool,
    /// Ticks when there is something to write.
    wake: Arc<tokio::sync::Notify>,
}

impl Journal {
    pub(crate) fn new(versions: BTreeMap<Key, Version>, wake: Arc<tokio::sync::Notify>) -> Self {
        Self {
            versions: versions.into_iter().collect(),
            staged: Batch::default(),
            under_way: None,
            is_closed: false,
            wake,
        }
    }

    /// Whether changes are still taken.
    ///
    /// # Errors
    /// The controller is stopping.
    pub(crate) fn check_open(&self) -> Result<(), Refusal> {
        match self.is_closed {
            true => Err(Refusal::Stopping),
            false => Ok(()),
        }
    }

    /// Nothing is staged any more; what was is not written.
    pub(crate) fn close(&mut self) {
        self.is_closed = true;
        self.staged = Batch::default();
    }

    /// Stages a new group.
    pub(crate) fn stage_added(&mut self, record: &Record) {
        self.stage(Table::Groups, &record.name, true);
        self.staged.undo.push(Undo::Added(record.name.clone()));
    }

    /// Stages that a group's record changes; `before` is what it was.
    pub(crate) fn stage_changed(&mut self, before: &table::Entry) {
        // One is enough to take all changes of a batch back: so what is staged is bounded by the number of groups.
        if self.stage(Table::Groups, &before.record().name, true) {
            let undo = Undo::Changed(Box::new(before.record().clone()), before.confirmed.clone());
            self.staged.undo.push(undo);
        }
    }

    /// Stages that a group is forgotten.
    pub(crate) fn stage_forgotten(&mut self, entry: table::Entry) {
        self.stage(Table::Groups, &entry.record().name, false);
        self.staged.undo.push(Undo::Forgotten(Box::new(entry)));
    }

    /// Stages a host; `before` is what it was.
    pub(crate) fn stage_host(&mut self, host: &HostRecord, before: Option<HostRecord>) {
        self.stage(Table::Hosts, &host.name, true);
        self.staged.undo.push(Undo::Host(host.name.clone(), before));
    }

    /// Has what was just staged tried again should it be taken back.
    pub(crate) fn retry(&mut self, retry: impl FnOnce(&Arc<Shared>, &mut Core) + Send + 'static) {
        if !self.staged.writes.is_empty() {
            self.staged.retries.push(Box::new(retry));
        }
    }

    /// Whether it is the first write of this entry in the batch.
    fn stage(&mut self, table: Table, name: &str, stays: bool) -> bool {
        let key = Key {
            table,
            name: name.into(),
        };
        let before = self.versions.get(&key).copied().unwrap_or(0);
        let version = stays.then_some(before + 1);
        match version {
            Some(version) => drop(self.versions.insert(key.clone(), version)),
            None => drop(self.versions.remove(&key)),
        }
        let count = self.staged.writes.len();
        let staged = self.staged.writes.entry(key).or_insert(Staged {
            was: before,
            version: None,
            value: None,
        });
        // Of several writes of an entry the last counts, in place of what the first replaces.
        staged.version = version;
        self.wake.notify_one();
        self.staged.writes.len() > count
    }

    /// Hands an event back where nothing is staged that it may rest on; else it waits.
    pub(crate) fn hold_back(&mut self, event: v1::ControllerEvent) -> Option<v1::ControllerEvent> {
        if self.staged.is_empty() && self.under_way.is_none() {
            return Some(event);
        }
        if self.staged.events.len() == EVENTS_MAX {
            self.staged.events.pop_front();
            self.staged.events_lost += 1;
        }
        self.staged.events.push_back(event);
        self.wake.notify_one();
        None
    }

    /// Stands for all that is staged by now.
    pub(crate) fn ticket(&self) -> Ticket {
        Ticket(match self.staged.is_empty() {
            true => self.under_way.clone(),
            false => Some(self.staged.outcome.subscribe()),
        })
    }

    /// What is to be written next, with the values that entries have now.
    pub(crate) fn take(&mut self, value: impl Fn(&Key) -> Option<Value>) -> Option<Batch> {
        if self.staged.is_empty() {
            return None;
        }
        let mut batch = std::mem::take(&mut self.staged);
        for (key, staged) in &mut batch.writes {
            staged.value = value(key);
        }
        self.under_way = Some(batch.outcome.subscribe());
        Some(batch)
    }

    /// The batch that was under way is on disk.
    pub(crate) fn written(&mut self) {
        self.under_way = None;
    }

    /// The batch that was under way could not be written: what is staged on top of it goes with it. The versions are those
    /// on disk again.
    pub(crate) fn failed(&mut self, batch: &Batch) -> Batch {
        self.under_way = None;
        let rest = std::mem::take(&mut self.staged);
        for (key, write) in rest.writes.iter().chain(&batch.writes) {
            match write.was {
                0 => drop(self.versions.remove(key)),
                was => drop(self.versions.insert(key.clone(), was)),
            }
        }
        rest
    }
}
