//! Changes on their way to the store, outside the core's lock.
//!
//! A change is made in memory and staged here under the core's lock. Staged changes are written in order, many in one
//! transaction, a batch. Until a change is on disk, nothing of it leaves the controller: events wait here, and answers and calls
//! to switches wait for the [`Pending`] batch. A change that cannot be written is taken back in memory, with all later ones, as
//! they may depend on it.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use castnet_proto::v1;
use castnet_wire::McstId;

use crate::error::Refusal;
use crate::state::core::EVENTS_MAX;
use crate::state::effect::Work;
use crate::state::written_off::WrittenOff;
use crate::state::{Core, HostRecord, Record, table};
use crate::store::{self, Entry, Key, Table, Version, Write, encode};

/// What the changes so far wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pending {
    /// They are on disk.
    Nothing,
    /// The batch with this number.
    Batch(u64),
    /// The controller stops and writes nothing more: the state in memory has changes that were dropped.
    Forever,
}

/// What there was before a batch.
pub(crate) enum Undo {
    Group(Before),
    /// `None`: not known.
    Host(Option<HostRecord>),
    /// `None`: not written off.
    WrittenOff(McstId, Option<WrittenOff>),
}

/// A group before a batch.
pub(crate) enum Before {
    Nothing,
    /// The record, and the switches that had confirmed their part. The entry is still there.
    Changed(Box<Record>, BTreeSet<String>),
    /// The entry was forgotten. Another one may have its name.
    Forgotten(Box<table::Entry>),
}

impl Before {
    /// Makes a group what it was. Returns the one that was there instead.
    pub(crate) fn restore(self, group: &mut Option<table::Entry>) -> Option<table::Entry> {
        match self {
            Self::Nothing => group.take(),
            Self::Changed(record, confirmed) => {
                if let Some(entry) = group {
                    entry.set_back(*record, confirmed);
                }
                None
            }
            Self::Forgotten(mut entry) => {
                // What was done for it has ended.
                entry.work = None;
                group.replace(*entry)
            }
        }
    }
}

pub(crate) enum Value {
    /// Shares its large parts with the group in memory.
    Group(Box<Record>),
    Host(HostRecord),
    WrittenOff(WrittenOff),
}

pub(crate) struct Staged {
    /// See [`Write::was`].
    was: Version,
    /// Its new version; `None`: it is removed.
    version: Option<Version>,
    /// Taken with the batch: of several changes only the last is written.
    value: Option<Value>,
    /// One for all writes of the entry.
    undo: Option<Undo>,
}

#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) number: u64,
    pub(crate) writes: BTreeMap<Key, Staged>,
    /// Work to try again if its changes could not be written and no client waits for them.
    pub(crate) retries: Vec<Work>,
    /// Log messages about the changes.
    pub(crate) messages: Vec<Box<dyn FnOnce() + Send>>,
    pub(crate) events: VecDeque<v1::ControllerEvent>,
    /// Earlier events that were too many.
    pub(crate) events_lost: u64,
}

impl Batch {
    fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.events.is_empty()
    }

    pub(crate) fn encoded(&self) -> store::Batch {
        let write = |(key, staged): (&Key, &Staged)| {
            let entry = staged.version.zip(staged.value.as_ref());
            let entry = entry.map(|(version, value)| Entry {
                version,
                value: match value {
                    Value::Group(record) => encode(record),
                    Value::Host(record) => encode(record),
                    Value::WrittenOff(record) => encode(record),
                },
            });
            let was = staged.was;
            (key.clone(), Write { was, entry })
        };
        self.writes.iter().map(write).collect()
    }

    /// Groups by name, as they are written; `None`: forgotten.
    pub(crate) fn groups(&self) -> impl Iterator<Item = (&str, Option<&Record>)> {
        let groups = self.writes.iter().filter(|(key, _)| key.table == Table::Groups);
        groups.map(|(key, staged)| match &staged.value {
            Some(Value::Group(record)) => (key.name.as_str(), Some(&**record)),
            _ => (key.name.as_str(), None),
        })
    }

    pub(crate) fn undo(&mut self) -> impl Iterator<Item = (Key, Undo)> {
        let writes = std::mem::take(&mut self.writes).into_iter();
        writes.filter_map(|(key, staged)| Some((key, staged.undo?)))
    }
}

/// Messages and work that may wait for a slow store before calls of members are refused, which add to both.
pub(crate) const WAITING_MAX: usize = 1 << 16;

/// Changes in memory that are not on disk yet.
pub(crate) struct Journal {
    versions: HashMap<Key, Version>,
    staged: Batch,
    /// The batch that is being written.
    under_way: Option<u64>,
    is_closed: bool,
    /// There is something new to write.
    is_new: bool,
}

impl Journal {
    pub(crate) fn new(versions: BTreeMap<Key, Version>) -> Self {
        Self {
            versions: versions.into_iter().collect(),
            staged: Batch::default(),
            under_way: None,
            is_closed: false,
            is_new: false,
        }
    }

    /// Whether there is something to write that was not there before.
    pub(crate) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.is_new)
    }

    /// Fails if the controller is stopping.
    pub(crate) fn check_open(&self) -> Result<(), Refusal> {
        match self.is_closed {
            true => Err(Refusal::Stopping),
            false => Ok(()),
        }
    }

    /// Fails while too much waits for the store.
    pub(crate) fn check_room(&self) -> Result<(), Refusal> {
        match self.staged.messages.len() + self.staged.retries.len() {
            waiting if waiting >= WAITING_MAX => Err(Refusal::StoreBehind { waiting }),
            _ => Ok(()),
        }
    }

    pub(crate) fn close(&mut self) {
        self.is_closed = true;
        self.next_batch();
    }

    /// Takes what is staged. The numbers go on.
    fn next_batch(&mut self) -> Batch {
        let number = self.staged.number + 1;
        let next = Batch {
            number,
            ..Batch::default()
        };
        std::mem::replace(&mut self.staged, next)
    }

    pub(crate) fn stage_added(&mut self, record: &Record) {
        let undo = self.stage(Table::Groups, &record.name, true);
        undo.get_or_insert(Undo::Group(Before::Nothing));
    }

    /// `before`: the group before the change.
    pub(crate) fn stage_changed(&mut self, before: &table::Entry) {
        let undo = self.stage(Table::Groups, &before.record().name, true);
        undo.get_or_insert_with(|| {
            let record = Box::new(before.record().clone());
            Undo::Group(Before::Changed(record, before.confirmed.clone()))
        });
    }

    pub(crate) fn stage_forgotten(&mut self, mut entry: table::Entry) {
        let undo = self.stage(Table::Groups, &entry.record().name, false);
        match undo.take() {
            None => {}
            Some(Undo::Group(Before::Changed(record, confirmed))) => entry.set_back(*record, confirmed),
            // It came with this batch.
            before => return *undo = before,
        }
        *undo = Some(Undo::Group(Before::Forgotten(Box::new(entry))));
    }

    /// `before`: the host before the change; `stays`: whether it is known now.
    pub(crate) fn stage_host(&mut self, name: &str, before: Option<HostRecord>, stays: bool) {
        let undo = self.stage(Table::Hosts, name, stays);
        undo.get_or_insert(Undo::Host(before));
    }

    /// `before`: the McstID before the change; `stays`: whether it is written off now.
    pub(crate) fn stage_written_off(&mut self, mcst_id: McstId, before: Option<WrittenOff>, stays: bool) {
        let undo = self.stage(Table::WrittenOff, &mcst_id.to_string(), stays);
        undo.get_or_insert(Undo::WrittenOff(mcst_id, before));
    }

    /// Registers work to try again if what was just staged is taken back.
    pub(crate) fn retry(&mut self, retry: impl FnOnce(&mut Core) + Send + 'static) {
        if !self.staged.writes.is_empty() {
            self.staged.retries.push(Box::new(retry));
        }
    }

    /// Logs what was just staged, once it is on disk.
    pub(crate) fn log(&mut self, message: impl FnOnce() + Send + 'static) {
        match self.staged.is_empty() {
            true => message(),
            false => self.staged.messages.push(Box::new(message)),
        }
    }

    /// Returns what takes the entry back; `None`: this is its first write in the batch.
    fn stage(&mut self, table: Table, name: &str, stays: bool) -> &mut Option<Undo> {
        let key = Key::new(table, name);
        let before = self.versions.get(&key).copied().unwrap_or(0);
        let version = stays.then_some(before + 1);
        match version {
            Some(version) => drop(self.versions.insert(key.clone(), version)),
            None => drop(self.versions.remove(&key)),
        }
        let staged = self.staged.writes.entry(key).or_insert(Staged {
            was: before,
            version: None,
            value: None,
            undo: None,
        });
        // The last write of an entry counts; it replaces what the first would have replaced.
        staged.version = version;
        self.is_new = true;
        &mut staged.undo
    }

    /// Returns the event if nothing is staged that it may depend on; else it waits.
    pub(crate) fn hold_back(&mut self, event: v1::ControllerEvent) -> Option<v1::ControllerEvent> {
        if self.staged.is_empty() && self.under_way.is_none() {
            return Some(event);
        }
        if self.staged.events.len() == EVENTS_MAX {
            self.staged.events.pop_front();
            self.staged.events_lost += 1;
        }
        self.staged.events.push_back(event);
        self.is_new = true;
        None
    }

    pub(crate) fn pending(&self) -> Pending {
        let staged = (!self.staged.is_empty()).then_some(self.staged.number);
        match staged.or(self.under_way) {
            _ if self.is_closed => Pending::Forever,
            Some(number) => Pending::Batch(number),
            None => Pending::Nothing,
        }
    }

    /// The next batch to write, with the present values of its entries.
    pub(crate) fn take(&mut self, value: impl Fn(&Key) -> Option<Value>) -> Option<Batch> {
        if self.staged.is_empty() {
            return None;
        }
        let mut batch = self.next_batch();
        for (key, staged) in &mut batch.writes {
            staged.value = value(key);
        }
        self.under_way = Some(batch.number);
        Some(batch)
    }

    /// What was being written is on disk.
    pub(crate) fn written(&mut self) {
        self.under_way = None;
    }

    /// The batch could not be written: what is staged on top of it is dropped too. Versions are those on disk again.
    pub(crate) fn failed(&mut self, batch: &Batch) -> Batch {
        self.under_way = None;
        let rest = self.next_batch();
        for (key, write) in rest.writes.iter().chain(&batch.writes) {
            match write.was {
                0 => drop(self.versions.remove(key)),
                was => drop(self.versions.insert(key.clone(), was)),
            }
        }
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A destruction was reported as complete although its last step was dropped.
    #[test]
    fn after_the_end_no_change_counts_as_written() {
        let mut journal = Journal::new(BTreeMap::new());
        assert_eq!(journal.pending(), Pending::Nothing);
        journal.stage_host("h0", None, true);
        assert!(matches!(journal.pending(), Pending::Batch(_)));
        journal.close();
        assert_eq!(journal.pending(), Pending::Forever);
    }

    /// What is on disk is on disk, whatever becomes of later changes.
    #[test]
    fn changes_wait_for_the_batch_that_they_are_in() {
        let mut journal = Journal::new(BTreeMap::new());
        journal.stage_host("h0", None, true);
        let first = journal.pending();
        let batch = journal.take(|_| None).unwrap();
        assert_eq!((first, journal.pending()), (Pending::Batch(batch.number), first));
        journal.stage_host("h1", None, true);
        let second = journal.pending();
        assert_ne!(second, first);
        let rest = journal.failed(&batch);
        assert_eq!(
            (second, journal.pending()),
            (Pending::Batch(rest.number), Pending::Nothing)
        );
        journal.stage_host("h2", None, true);
        let third = journal.pending();
        assert!(third != first && third != second, "no number comes twice");
        journal.take(|_| None).unwrap();
        journal.written();
        assert_eq!(journal.pending(), Pending::Nothing);
    }
}
