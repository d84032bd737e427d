//! Desired state on disk, written before it is sent to a switch or a client.
//!
//! A [`Store`] keeps versioned entries: bytes under a key. The journal (`journal.rs`) writes atomic batches. [`redb`]
//! is a file on this machine, [`etcd`] a cluster for several controllers, [`memory`] ends with the process. [`content`]
//! checks, exports and imports any of them.

use std::collections::BTreeMap;
use std::fmt;

use castnet_wire::McstId;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::config::SwitchConfig;
use crate::state::written_off::WrittenOff;
use crate::state::{HostRecord, Record};

pub mod content;
pub mod etcd;
pub mod memory;
pub mod redb;

/// Version of the layout that this controller reads and writes.
pub const STORE_VERSION: u64 = 3;
/// Number of writes of an entry; 0: it does not exist.
pub type Version = u64;

/// Kinds of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// Groups, by name.
    Groups,
    /// Hosts, by name.
    Hosts,
    /// McstIDs of groups that were destroyed by force, by McstID.
    WrittenOff,
    /// Of the controller itself: `owner`; `epoch` and `instance`, its term, and `file`, where that began; `init`, if the store was meant to
    /// be new; and `probe`, which has no meaning.
    Meta,
}

impl Table {
    /// All tables.
    pub const ALL: [Self; 4] = [Self::Groups, Self::Hosts, Self::WrittenOff, Self::Meta];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Groups => "groups",
            Self::Hosts => "hosts",
            Self::WrittenOff => "written_off",
            Self::Meta => "meta",
        }
    }
}

/// The name of an entry. Displays as `groups/g1`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Its table.
    pub table: Table,
    /// Name of the group or host.
    pub name: String,
}

impl Key {
    /// The name of an entry of this table.
    pub fn new(table: Table, name: impl Into<String>) -> Self {
        let name = name.into();
        Self { table, name }
    }

    /// The name of an entry of the controller itself.
    pub fn meta(name: &str) -> Self {
        Self::new(Table::Meta, name)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.table.name(), self.name)
    }
}

/// A write of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The version that it replaces. If the store has another one, somebody else writes there too.
    pub was: Version,
    /// The new value; `None`: it is removed.
    pub entry: Option<Entry>,
}

impl Write {
    /// Writes a value in place of this version.
    pub fn put(was: Version, value: Vec<u8>) -> Self {
        let version = was + 1;
        let entry = Some(Entry { version, value });
        Self { was, entry }
    }

    /// Removes this version.
    pub fn remove(was: Version) -> Self {
        Self { was, entry: None }
    }
}

/// Writes that belong together, one per entry.
pub type Batch = BTreeMap<Key, Write>;

/// An entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Number of its writes.
    pub version: Version,
    /// Its bytes.
    pub value: Vec<u8>,
}

/// A store of desired state.
#[tonic::async_trait]
pub trait Store: fmt::Debug + Send + Sync {
    /// Reads all entries.
    ///
    /// # Errors
    /// The store fails, or its layout is not known.
    async fn load(&self) -> Result<BTreeMap<Key, Entry>, StoreError>;

    /// Performs all writes or none; returns when they would survive a crash. One call at a time. If the call is
    /// dropped, the writes may have been performed or not.
    ///
    /// # Errors
    /// The store fails, or an entry has another version than expected; then nothing is written.
    async fn commit(&self, batch: Batch) -> Result<(), StoreError>;

    /// What a copy of it does not share; `None`: it has no copies.
    fn identity(&self) -> Option<String> {
        None
    }

    /// Fails if the next start would not find what was written, as the file was moved or cut. Called now and then while nothing is written.
    ///
    /// # Errors
    /// What was found.
    async fn check(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Releases the store for another controller. Later calls fail.
    ///
    /// # Errors
    /// For the log only.
    async fn close(&self) -> Result<(), StoreError>;
}

/// Why a store fails.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum StoreError {
    /// The store itself fails.
    #[error("store {store}: {}{error}", .entry.as_ref().map(|e| format!("{e}: ")).unwrap_or_default())]
    Failed {
        store: String,
        entry: Option<Key>,
        error: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Written by another version.
    #[error(
        "store {store}: its layout is {found}, and this version reads {STORE_VERSION}: use the version that wrote it, or move it away and create its groups again"
    )]
    Layout { store: String, found: String },
    /// A value cannot be decoded.
    #[error("store {store}: the entry {entry} does not read: {error}")]
    Entry {
        store: String,
        entry: Key,
        error: serde_json::Error,
    },
    /// Somebody else has written the entry.
    #[error("store {store}: {entry} was written by somebody else: version {found}, not {expected}")]
    Conflict {
        store: String,
        entry: Key,
        expected: Version,
        found: Version,
    },
    /// This controller does not lead any more.
    #[error("store {store}: another controller may lead now")]
    NotLeading { store: String },
    /// It was closed.
    #[error("store {store}: closed")]
    Closed { store: String },
    /// A switch has refused the last controller on it.
    #[error(
        "a switch has refused the controller of this store at epoch {epoch}: another one has led with a larger epoch, or runs on a copy of it"
    )]
    Refused { epoch: u64 },
}

/// Content of a store.
#[derive(Debug, Default)]
pub struct Stored {
    /// Name of this controller as the owner of the rules that it installs.
    pub owner: String,
    /// Number of starts of a controller on this store, with this one. It is larger after an import.
    pub epoch: u64,
    /// Drawn at each start: two controllers with the same epoch run on copies of one store.
    pub instance: u64,
    /// Groups by name.
    pub groups: Vec<Record>,
    /// Hosts by name.
    pub hosts: Vec<HostRecord>,
    /// McstIDs of groups that were destroyed by force.
    pub written_off: BTreeMap<McstId, WrittenOff>,
    /// Entries of groups, hosts and McstIDs that do not read, and why.
    pub set_apart: BTreeMap<Key, String>,
    /// It has no groups, and nobody has said that this is meant.
    pub is_new: bool,
    /// Versions of all entries.
    pub versions: BTreeMap<Key, Version>,
}

/// The entry of [`Table::Meta`] with the epoch that a switch has refused last.
pub(crate) const REFUSED: &str = "refused";

/// The entry of [`Table::Meta`] with the [identity](Store::identity) of the store at the last start.
pub(crate) const FILE: &str = "file";

impl Stored {
    /// Reads everything for a controller that starts: a new store gets `owner`, and the term is the next one. If this cannot be written,
    /// the controller has the term of the last one, unless that began on another file: this one is a copy then, and the last controller
    /// may run. `may_continue`: no other controller has the store open. `init`: if it has no groups, this is meant. An entry of a group,
    /// a host or a McstID that does not read is set apart: the others go on.
    ///
    /// # Errors
    /// The store fails, an entry about the controller cannot be decoded, or a switch has refused the last controller.
    pub async fn load(
        store: &dyn Store,
        owner: &str,
        may_continue: bool,
        init: bool,
    ) -> Result<Self, StoreError> {
        let mut entries = store.load().await?;
        let number = |name| {
            let key = Key::meta(name);
            let entry = entries.get(&key);
            entry.map(|entry| parse::<u64>(&key, entry)).transpose()
        };
        let (epoch, instance) = (number("epoch")?.unwrap_or_default(), number("instance")?);
        // Each start has a larger epoch, and one would be accepted at last, although this store knows nothing of the groups of the other.
        if number(REFUSED)? == Some(epoch) {
            return Err(StoreError::Refused { epoch });
        }
        let file = store.identity();
        let key = Key::meta(FILE);
        let began_on = entries
            .get(&key)
            .map(|entry| parse::<String>(&key, entry))
            .transpose()?;
        let mut new = vec![
            ("epoch", encode(&(epoch + 1))),
            ("instance", encode(&crate::draw())),
        ];
        new.extend(file.as_ref().map(|file| (FILE, encode(file))));
        if !entries.contains_key(&Key::meta("owner")) {
            new.push(("owner", encode(&owner)));
        }
        if init && !entries.contains_key(&Key::meta("init")) {
            new.push(("init", encode(&true)));
        }
        let (mut batch, mut changed) = (Batch::new(), BTreeMap::new());
        for (name, value) in new {
            let key = Key::meta(name);
            let write = Write::put(entries.get(&key).map_or(0, |e| e.version), value);
            changed.extend(write.entry.clone().map(|entry| (key.clone(), entry)));
            batch.insert(key, write);
        }
        match store.commit(batch).await {
            Ok(()) => entries.extend(changed),
            Err(error @ StoreError::Failed { .. })
                if may_continue && instance.is_some() && began_on == file =>
            {
                tracing::warn!(%error, epoch, "the controller continues the term of the last one");
            }
            Err(error) => return Err(error),
        }
        let is_content = |key: &Key| matches!(key.table, Table::Groups | Table::WrittenOff);
        let mut stored = Self {
            is_new: !entries.contains_key(&Key::meta("init")) && !entries.keys().any(is_content),
            ..Self::default()
        };
        for (key, entry) in entries {
            match key.table {
                Table::Meta if key.name == "owner" => stored.owner = parse(&key, &entry)?,
                Table::Meta if key.name == "epoch" => stored.epoch = parse(&key, &entry)?,
                Table::Meta if key.name == "instance" => stored.instance = parse(&key, &entry)?,
                Table::Meta => {}
                _ => {
                    if let Err(reason) = stored.take(&key, &entry) {
                        stored.set_apart.insert(key.clone(), reason);
                    }
                }
            }
            stored.versions.insert(key, entry.version);
        }
        Ok(stored)
    }

    /// A running group, if no running group may have a rule on any of these switches: the store is that of another fabric.
    pub(crate) fn of_other_fabric(&self, switches: &[SwitchConfig]) -> Option<&Record> {
        // One that is not planned yet has no switches.
        let is_running = |record: &&Record| record.phase.wants_rules() && !record.placed.is_empty();
        let running: Vec<&Record> = self.groups.iter().filter(is_running).collect();
        let is_known = |name: &String| switches.iter().any(|switch| switch.name == *name);
        let is_here = |record: &&Record| record.placed.iter().any(is_known);
        running.first().copied().filter(|_| !running.iter().any(is_here))
    }

    /// Takes an entry that is not about the controller, or says why it does not read.
    fn take(&mut self, key: &Key, entry: &Entry) -> Result<(), String> {
        let unread = |error| format!("does not read: {error}");
        let named = |name: &str| match name == key.name {
            true => Ok(()),
            false => Err(format!("is that of {name:?}")),
        };
        match key.table {
            Table::Groups => {
                let record: Record = serde_json::from_slice(&entry.value).map_err(unread)?;
                named(&record.name)?;
                self.groups.push(record);
            }
            Table::Hosts => {
                let host: HostRecord = serde_json::from_slice(&entry.value).map_err(unread)?;
                named(&host.name)?;
                self.hosts.push(host);
            }
            Table::WrittenOff => {
                let mcst_id = key.name.parse().map_err(|_| "has a name that is no McstID")?;
                let of = serde_json::from_slice(&entry.value).map_err(unread)?;
                self.written_off.insert(McstId(mcst_id), of);
            }
            Table::Meta => {}
        }
        Ok(())
    }
}

pub(crate) fn encode(value: &impl Serialize) -> Vec<u8> {
    // Cannot fail: all keys are strings, and it writes to memory.
    serde_json::to_vec(value).unwrap_or_default()
}

fn parse<T: DeserializeOwned>(key: &Key, entry: &Entry) -> Result<T, StoreError> {
    serde_json::from_slice(&entry.value).map_err(|error| StoreError::Entry {
        store: "of the controller".into(),
        entry: key.clone(),
        error,
    })
}

/// An entry as bytes.
fn with_version(version: Version, value: &[u8]) -> Vec<u8> {
    let mut bytes = version.to_be_bytes().to_vec();
    bytes.extend_from_slice(value);
    bytes
}

/// Version and value of an entry; version 0 if it is too short, which cannot be decoded either.
fn parts(bytes: &[u8]) -> (Version, &[u8]) {
    match bytes.split_first_chunk() {
        Some((version, value)) => (Version::from_be_bytes(*version), value),
        None => (0, bytes),
    }
}

fn check_layout(store: &str, found: &str) -> Result<(), StoreError> {
    match found == STORE_VERSION.to_string() {
        true => Ok(()),
        false => Err(StoreError::Layout {
            store: store.into(),
            found: found.into(),
        }),
    }
}

/// Fails unless the stored version is the expected one.
fn check(store: &str, key: &Key, expected: Version, found: Version) -> Result<(), StoreError> {
    match found == expected {
        true => Ok(()),
        false => Err(StoreError::Conflict {
            store: store.into(),
            entry: key.clone(),
            expected,
            found,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::core::tests::{core, join};
    use crate::state::{After, Phase};

    /// One group that has a switch here is enough: the others may have theirs on switches that were taken out of the configuration.
    #[test]
    fn a_store_is_of_another_fabric_if_no_running_group_has_a_switch_here() {
        let mut core = core(|_| {});
        core.seat_rank(join("job", 0, 2, ""), "h0").map(drop).unwrap();
        let record = core.group("job").unwrap().record().clone();
        let group = |name: &str, phase, on: &[&str]| Record {
            name: name.into(),
            phase,
            placed: on.iter().map(|switch| (*switch).into()).collect(),
            ..record.clone()
        };
        let (active, removed) = (Phase::Active, Phase::Removing(After::Gone));
        for (groups, found) in [
            (vec![], None),
            (vec![group("a", active, &["x", "y"])], Some("a")),
            (vec![group("a", active, &["s", "x"])], None),
            (vec![group("a", active, &["x"]), group("b", active, &["s"])], None),
            (
                vec![group("a", Phase::Installing, &[]), group("b", active, &["x"])],
                Some("b"),
            ),
            (
                vec![group("a", Phase::Failed, &["x"]), group("b", removed, &["x"])],
                None,
            ),
        ] {
            let stored = Stored {
                groups,
                ..Stored::default()
            };
            let other = stored.of_other_fabric(&core.config.switches);
            assert_eq!(other.map(|record| &*record.name), found, "{:?}", stored.groups);
        }
    }
}
