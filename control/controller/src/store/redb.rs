//! A store in a redb database, a file of this machine.
//!
//! Table `meta` has the `version` of the layout. `groups`, `hosts` and `controller` have one value per entry: its
//! version in eight bytes, most significant first, then JSON.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};

use super::{
    Batch, Entry, Key, STORE_VERSION, Store, StoreError, StoreFuture, Table, Version, Write, check, encode,
    v1,
};

type Bytes = TableDefinition<'static, &'static str, &'static [u8]>;
const META: TableDefinition<'_, &str, &str> = TableDefinition::new("meta");
/// Of layout 1.
const COLLECTIVES: Bytes = TableDefinition::new("collectives");

const fn table(table: Table) -> Bytes {
    TableDefinition::new(match table {
        Table::Meta => "controller",
        other => other.name(),
    })
}

/// An open file. It cannot be opened again while this one lives.
#[derive(Clone, Debug)]
pub struct RedbStore(Arc<File>);

#[derive(Debug)]
struct File {
    path: PathBuf,
    /// `None` once closed. Locked during a commit, so that closing waits for it.
    database: Mutex<Option<Database>>,
}

impl RedbStore {
    /// Opens or creates the store at `path`. An older layout is converted in one transaction.
    ///
    /// # Errors
    /// The file cannot be opened, is in use, or has a layout that is newer than [`STORE_VERSION`].
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let file = File {
            path: path.into(),
            database: Mutex::new(None),
        };
        let database = Database::create(path).map_err(|e| file.failed(None, e))?;
        file.prepare(&database)?;
        *file.database.lock() = Some(database);
        Ok(Self(Arc::new(file)))
    }

    fn blocking<T: Send + 'static>(
        &self,
        act: impl FnOnce(&File, &Database) -> Result<T, StoreError> + Send + 'static,
    ) -> StoreFuture<'_, T> {
        let file = self.0.clone();
        Box::pin(async move {
            let store = file.name();
            let done = tokio::task::spawn_blocking(move || {
                let database = file.database.lock();
                let database = database
                    .as_ref()
                    .ok_or_else(|| StoreError::Closed { store: file.name() })?;
                act(&file, database)
            });
            // The thread ends early only with the whole runtime.
            done.await.unwrap_or(Err(StoreError::Closed { store }))
        })
    }
}

impl Store for RedbStore {
    fn load(&self) -> StoreFuture<'_, BTreeMap<Key, Entry>> {
        self.blocking(|file, database| file.read(database))
    }

    fn commit(&self, batch: Batch) -> StoreFuture<'_, ()> {
        self.blocking(move |file, database| file.commit(database, &batch))
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        let file = self.0.clone();
        Box::pin(async move {
            // Closed in either case: the thread ends early only with the runtime.
            let _ = tokio::task::spawn_blocking(move || drop(file.database.lock().take())).await;
            Ok(())
        })
    }
}

impl File {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn failed(&self, entry: Option<&Key>, error: impl Into<redb::Error>) -> StoreError {
        StoreError::Failed {
            store: self.name(),
            entry: entry.cloned(),
            error: Box::new(error.into()),
        }
    }

    fn unreadable(&self, table: Table, name: &str, error: serde_json::Error) -> StoreError {
        StoreError::Entry {
            store: self.name(),
            entry: Key {
                table,
                name: name.into(),
            },
            error,
        }
    }

    /// Creates missing tables and converts an older layout, in one transaction.
    fn prepare(&self, database: &Database) -> Result<(), StoreError> {
        let fail = |e: redb::Error| self.failed(None, e);
        let transaction = database.begin_write().map_err(|e| fail(e.into()))?;
        let version = || {
            for each in Table::ALL {
                transaction.open_table(table(each))?;
            }
            let meta = transaction.open_table(META)?;
            let version = meta.get("version")?.map(|v| v.value().to_string());
            Ok(version)
        };
        let version = version().map_err(fail)?;
        match version.as_deref().map(str::parse::<u64>) {
            Some(Ok(STORE_VERSION)) => return Ok(()),
            Some(Ok(1)) => self.migrate(&transaction)?,
            Some(_) => {
                return Err(StoreError::Layout {
                    store: self.name(),
                    found: version.unwrap_or_default(),
                });
            }
            None => {}
        }
        let finish = || {
            let mut meta = transaction.open_table(META)?;
            meta.insert("version", STORE_VERSION.to_string().as_str())?;
            meta.remove("owner")?;
            drop(meta);
            Ok(transaction.commit()?)
        };
        finish().map_err(fail)
    }

    /// From layout 1: groups of both kinds become records of one table, and all entries get a version.
    fn migrate(&self, transaction: &WriteTransaction) -> Result<(), StoreError> {
        let fail = |e: redb::Error| self.failed(None, e);
        let read = |table: Bytes| {
            let table = transaction.open_table(table)?;
            let entries = table.iter()?.map(|entry| {
                let (name, bytes) = entry?;
                Ok((name.value().to_string(), bytes.value().to_vec()))
            });
            entries.collect::<Result<Vec<(String, Vec<u8>)>, redb::Error>>()
        };
        let mut all: Vec<(Table, String, Vec<u8>)> = Vec::new();
        for (of, kind) in [(table(Table::Groups), "Multicast"), (COLLECTIVES, "Collective")] {
            for (name, bytes) in read(of).map_err(fail)? {
                let record =
                    v1::record(kind, &bytes).map_err(|e| self.unreadable(Table::Groups, &name, e))?;
                all.push((Table::Groups, name, encode(&record)));
            }
        }
        for (name, bytes) in read(table(Table::Hosts)).map_err(fail)? {
            all.push((Table::Hosts, name, bytes));
        }
        let owner = || {
            let meta = transaction.open_table(META)?;
            let owner = meta.get("owner")?.map(|v| v.value().to_string());
            Ok(owner)
        };
        if let Some(owner) = owner().map_err(fail)? {
            all.push((Table::Meta, "owner".into(), encode(&owner)));
        }
        let write = || {
            for (of, name, value) in &all {
                let bytes = with_version(1, value);
                transaction
                    .open_table(table(*of))?
                    .insert(name.as_str(), bytes.as_slice())?;
            }
            transaction.delete_table(COLLECTIVES)?;
            Ok(())
        };
        write().map_err(fail)
    }

    fn read(&self, database: &Database) -> Result<BTreeMap<Key, Entry>, StoreError> {
        let read = || {
            let transaction = database.begin_read()?;
            let mut all = BTreeMap::new();
            for of in Table::ALL {
                for entry in transaction.open_table(table(of))?.iter()? {
                    let (name, bytes) = entry?;
                    let key = Key {
                        table: of,
                        name: name.value().into(),
                    };
                    let (version, value) = parts(bytes.value());
                    all.insert(
                        key,
                        Entry {
                            version,
                            value: value.into(),
                        },
                    );
                }
            }
            Ok(all)
        };
        read().map_err(|e: redb::Error| self.failed(None, e))
    }

    fn commit(&self, database: &Database, batch: &Batch) -> Result<(), StoreError> {
        let transaction = database.begin_write().map_err(|e| self.failed(None, e))?;
        for (key, write) in batch {
            // Dropped without a commit, the transaction changes nothing.
            self.write(&transaction, key, write)?;
        }
        transaction.commit().map_err(|e| self.failed(None, e))
    }

    fn write(&self, transaction: &WriteTransaction, key: &Key, write: &Write) -> Result<(), StoreError> {
        let fail = |e: redb::Error| self.failed(Some(key), e);
        let name = key.name.as_str();
        let mut entries = transaction
            .open_table(table(key.table))
            .map_err(|e| fail(e.into()))?;
        let found = entries
            .get(name)
            .map_err(|e| fail(e.into()))?
            .map_or(0, |bytes| parts(bytes.value()).0);
        check(&self.name(), key, write.was, found)?;
        let changed = match &write.entry {
            Some(entry) => entries.insert(name, with_version(entry.version, &entry.value).as_slice()),
            None => entries.remove(name),
        };
        changed.map(drop).map_err(|e| fail(e.into()))
    }
}

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
