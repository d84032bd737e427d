//! Desired state on disk: what is wanted is written here before it is sent to a switch or a client.
//!
//! A [`Store`] keeps entries: bytes under a key, each with the number of its writes. The journal (`journal.rs`) hands it
//! batches; each is written whole or not at all. [`redb`] is a file on this machine, [`memory`] ends with the process.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::fabric::HostRecord;
use crate::record::Record;

pub mod memory;
pub mod redb;
mod v1;

/// The version of the layout that this controller reads and writes.
pub const STORE_VERSION: u64 = 2;

/// How often an entry was written; 0: it is not there.
pub type Version = u64;

/// What entries are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// Groups, by name.
    Groups,
    /// Hosts, by name.
    Hosts,
    /// The controller itself: `owner`.
    Meta,
}

impl Table {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Groups, Self::Hosts, Self::Meta];

    /// Its name in a store.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Groups => "groups",
            Self::Hosts => "hosts",
            Self::Meta => "meta",
        }
    }
}

/// The name of an entry. Displays as `groups/g1`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// What it is of.
    pub table: Table,
    /// The group's or host's name.
    pub name: String,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.table.name(), self.name)
    }
}

/// One write of one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The version that this replaces. Another one in the store means that somebody else writes there too.
    pub was: Version,
    /// What it is from then on; `None`: it is removed.
    pub entry: Option<Entry>,
}

/// Writes that belong together, one for each entry.
pub type Batch = BTreeMap<Key, Write>;

/// An entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// How often it was written.
    pub version: Version,
    /// Its bytes.
    pub value: Vec<u8>,
}

/// What a store's calls return.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Where desired state is kept.
pub trait Store: fmt::Debug + Send + Sync {
    /// Reads all entries.
    ///
    /// # Errors
    /// The store fails, or its layout is not known.
    fn load(&self) -> StoreFuture<'_, BTreeMap<Key, Entry>>;

    /// Carries out all writes, or none of them, and returns when they would outlive a crash. One call at a time. A call
    /// that is dropped may have been carried out or not.
    ///
    /// # Errors
    /// The store fails, or an entry has another version than expected; nothing is written then.
    fn commit(&self, batch: Batch) -> StoreFuture<'_, ()>;

    /// Lets go of the store, so that another controller can open it. Calls after this one fail.
    ///
    /// # Errors
    /// None that a caller could do anything about; they are for the log.
    fn close(&self) -> StoreFuture<'_, ()>;
}

/// Why the store does not work.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The store itself.
    #[error("store {store}: {}{error}", .entry.as_ref().map(|e| format!("{e}: ")).unwrap_or_default())]
    Failed {
        /// Which store.
        store: String,
        /// The entry that was read or written, where it was a single one.
        entry: Option<Key>,
        /// Why.
        error: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Written by a newer Castnet.
    #[error(
        "store {store}: layout {found} is newer than {STORE_VERSION}, the newest that this version reads"
    )]
    Layout {
        /// Which store.
        store: String,
        /// Its layout.
        found: String,
    },
    /// A value that does not read.
    #[error("store {store}: the entry {entry} does not read: {error}")]
    Entry {
        /// Which store.
        store: String,
        /// Which entry.
        entry: Key,
        /// Why.
        error: serde_json::Error,
    },
    /// Somebody else has written the entry.
    #[error("store {store}: {entry} was written by somebody else: version {found}, not {expected}")]
    Conflict {
        /// Which store.
        store: String,
        /// Which entry.
        entry: Key,
        /// The version that it should have.
        expected: Version,
        /// The version that it has.
        found: Version,
    },
    /// It was let go of.
    #[error("store {store}: closed")]
    Closed {
        /// Which store.
        store: String,
    },
}

/// All that was stored.
#[derive(Debug, Default)]
pub struct Stored {
    /// Who this controller is to the switches: the owner of the rules it installs.
    pub owner: String,
    /// The groups, by name.
    pub groups: Vec<Record>,
    /// The hosts, by name.
    pub hosts: Vec<HostRecord>,
    /// The versions of all entries.
    pub versions: BTreeMap<Key, Version>,
}

impl Stored {
    /// Reads all; a new store gets `owner`.
    ///
    /// # Errors
    /// The store fails, or an entry does not read.
    pub async fn load(store: &dyn Store, owner: &str) -> Result<Self, StoreError> {
        let mut entries = store.load().await?;
        let meta = Key {
            table: Table::Meta,
            name: "owner".into(),
        };
        let known = match entries.get(&meta) {
            Some(entry) => parse(&meta, entry)?,
            None => {
                let entry = Entry {
                    version: 1,
                    value: encode(&owner),
                };
                let write = Write {
                    was: 0,
                    entry: Some(entry.clone()),
                };
                store.commit([(meta.clone(), write)].into()).await?;
                entries.insert(meta, entry);
                owner.to_owned()
            }
        };
        let mut stored = Self {
            owner: known,
            ..Self::default()
        };
        for (key, entry) in entries {
            match key.table {
                Table::Groups => stored.groups.push(parse(&key, &entry)?),
                Table::Hosts => stored.hosts.push(parse(&key, &entry)?),
                Table::Meta => {}
            }
            stored.versions.insert(key, entry.version);
        }
        Ok(stored)
    }
}

/// An entry's bytes.
pub(crate) fn encode(value: &impl Serialize) -> Vec<u8> {
    // What is stored has string keys only, and writes to memory do not fail.
    serde_json::to_vec(value).unwrap_or_default()
}

fn parse<T: DeserializeOwned>(key: &Key, entry: &Entry) -> Result<T, StoreError> {
    serde_json::from_slice(&entry.value).map_err(|error| StoreError::Entry {
        store: "of the controller".into(),
        entry: key.clone(),
        error,
    })
}

/// Whether a write fits the version that is stored.
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
