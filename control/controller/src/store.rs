//! Desired state on disk: what is wanted is written here before any switch hears of it.
//!
//! A redb database. Table `meta` has `version` (of this layout) and `owner` (who this controller is to the switches);
//! `groups`, `collectives` and `hosts` have one JSON value per name. A write returns when it is on the disk.

use std::path::{Path, PathBuf};

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use serde::de::DeserializeOwned;

use crate::collective::record::CollectiveRecord;
use crate::fabric::HostRecord;
use crate::record::GroupRecord;

/// The version of the layout that this controller reads and writes.
pub const STORE_VERSION: u64 = 1;

const META: TableDefinition<'_, &str, &str> = TableDefinition::new("meta");
const GROUPS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("groups");
const COLLECTIVES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("collectives");
const HOSTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("hosts");

/// Why the store does not work.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database.
    #[error("store {}: {error}", path.display())]
    Database {
        /// Its file.
        path: PathBuf,
        /// Why.
        error: redb::Error,
    },
    /// Written by a newer Castnet.
    #[error("store {}: layout {found} is newer than {STORE_VERSION}, the newest that this version reads", path.display())]
    Version {
        /// Its file.
        path: PathBuf,
        /// Its layout.
        found: String,
    },
    /// A value that does not read.
    #[error("store {}: the entry {name:?} does not read: {error}", path.display())]
    Entry {
        /// Its file.
        path: PathBuf,
        /// The name of the group or host.
        name: String,
        /// Why.
        error: serde_json::Error,
    },
}

/// All that was stored.
#[derive(Debug, Default)]
pub struct Stored {
    /// The groups, by name.
    pub groups: Vec<GroupRecord>,
    /// The collective groups, by name.
    pub collectives: Vec<CollectiveRecord>,
    /// The hosts, by name.
    pub hosts: Vec<HostRecord>,
}

/// An open store. A second one on the same file is refused while this one lives.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    database: Database,
    owner: String,
}

impl Store {
    /// Opens the store at `path`, or makes it; a new one gets `owner`.
    ///
    /// # Errors
    /// The file cannot be opened, is in use, or has a layout that is newer than [`STORE_VERSION`].
    pub fn open(path: &Path, owner: &str) -> Result<Self, StoreError> {
        let database = Database::create(path).map_err(|e| failed(path, e))?;
        Self::prepare(path.into(), database, owner)
    }

    /// A store that ends with the process: for demonstrations.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn in_memory(owner: &str) -> Result<Self, StoreError> {
        let path = PathBuf::from("(memory)");
        let backend = redb::backends::InMemoryBackend::new();
        let database = Database::builder()
            .create_with_backend(backend)
            .map_err(|e| failed(&path, e))?;
        Self::prepare(path, database, owner)
    }

    fn prepare(path: PathBuf, database: Database, owner: &str) -> Result<Self, StoreError> {
        let mut store = Self {
            path,
            database,
            owner: owner.into(),
        };
        let known = store.write(|transaction| {
            transaction.open_table(GROUPS)?;
            transaction.open_table(COLLECTIVES)?;
            transaction.open_table(HOSTS)?;
            let mut meta = transaction.open_table(META)?;
            let known = |key: &str| Ok::<_, redb::Error>(meta.get(key)?.map(|v| v.value().to_string()));
            let (version, known_owner) = (known("version")?, known("owner")?);
            if version.is_none() {
                meta.insert("version", STORE_VERSION.to_string().as_str())?;
                meta.insert("owner", owner)?;
            }
            Ok((version, known_owner))
        })?;
        if let (Some(found), known_owner) = known {
            if found != STORE_VERSION.to_string() {
                return Err(StoreError::Version {
                    path: store.path,
                    found,
                });
            }
            store.owner = known_owner.unwrap_or_else(|| owner.into());
        }
        Ok(store)
    }

    /// Who this controller is to the switches: the owner of the rules it installs.
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// Reads all.
    ///
    /// # Errors
    /// The database fails, or an entry does not read.
    pub fn load(&self) -> Result<Stored, StoreError> {
        Ok(Stored {
            groups: self.all(GROUPS)?,
            collectives: self.all(COLLECTIVES)?,
            hosts: self.all(HOSTS)?,
        })
    }

    /// Writes a group.
    ///
    /// # Errors
    /// The database fails; nothing is written then.
    pub fn put_group(&self, group: &GroupRecord) -> Result<(), StoreError> {
        self.put(GROUPS, &group.name, group)
    }

    /// Forgets a group.
    ///
    /// # Errors
    /// The database fails; nothing is forgotten then.
    pub fn remove_group(&self, name: &str) -> Result<(), StoreError> {
        self.write(|transaction| {
            transaction.open_table(GROUPS)?.remove(name)?;
            Ok(())
        })
    }

    /// Writes a collective group.
    ///
    /// # Errors
    /// The database fails; nothing is written then.
    pub fn put_collective(&self, group: &CollectiveRecord) -> Result<(), StoreError> {
        self.put(COLLECTIVES, &group.name, group)
    }

    /// Forgets a collective group.
    ///
    /// # Errors
    /// The database fails; nothing is forgotten then.
    pub fn remove_collective(&self, name: &str) -> Result<(), StoreError> {
        self.write(|transaction| {
            transaction.open_table(COLLECTIVES)?.remove(name)?;
            Ok(())
        })
    }

    /// Writes a host.
    ///
    /// # Errors
    /// The database fails; nothing is written then.
    pub fn put_host(&self, host: &HostRecord) -> Result<(), StoreError> {
        self.put(HOSTS, &host.name, host)
    }

    fn put(&self, table: Table, name: &str, value: &impl serde::Serialize) -> Result<(), StoreError> {
        let bytes = serde_json::to_vec(value).map_err(|error| self.entry(name, error))?;
        self.write(|transaction| {
            transaction.open_table(table)?.insert(name, bytes.as_slice())?;
            Ok(())
        })
    }

    fn all<T: DeserializeOwned>(&self, table: Table) -> Result<Vec<T>, StoreError> {
        let read = || {
            let transaction = self.database.begin_read()?;
            let table = transaction.open_table(table)?;
            let entries = table.iter()?.map(|entry| {
                let (name, bytes) = entry?;
                Ok((name.value().to_string(), bytes.value().to_vec()))
            });
            entries.collect::<Result<Vec<_>, redb::Error>>()
        };
        let entries = read().map_err(|e| failed(&self.path, e))?;
        let parse = |(name, bytes): (String, Vec<u8>)| {
            serde_json::from_slice(&bytes).map_err(|error| self.entry(&name, error))
        };
        entries.into_iter().map(parse).collect()
    }

    fn write<T>(
        &self,
        change: impl FnOnce(&redb::WriteTransaction) -> Result<T, redb::Error>,
    ) -> Result<T, StoreError> {
        let write = || {
            let transaction = self.database.begin_write()?;
            let value = change(&transaction)?;
            transaction.commit()?;
            Ok(value)
        };
        write().map_err(|e: redb::Error| failed(&self.path, e))
    }

    fn entry(&self, name: &str, error: serde_json::Error) -> StoreError {
        StoreError::Entry {
            path: self.path.clone(),
            name: name.into(),
            error,
        }
    }
}

type Table = TableDefinition<'static, &'static str, &'static [u8]>;

fn failed(path: &Path, error: impl Into<redb::Error>) -> StoreError {
    StoreError::Database {
        path: path.into(),
        error: error.into(),
    }
}
