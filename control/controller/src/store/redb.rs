//! A store in a redb database, a file of this machine.
//!
//! Table `meta` has the `version` of the layout. `groups`, `hosts` and `controller` have one value per entry: its
//! version in eight bytes, most significant first, then JSON.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};

use super::{Batch, Entry, Key, STORE_VERSION, Store, StoreError, Table, Version, Write, check, encode, v1};

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
        let database = file.attempt(None, || Ok(Database::create(path)?))?;
        file.prepare(&database)?;
        *file.database.lock() = Some(database);
        Ok(Self(Arc::new(file)))
    }

    async fn blocking<T: Send + 'static>(
        &self,
        act: impl FnOnce(&File, &Database) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (file, store) = (self.0.clone(), self.0.name());
        let done = tokio::task::spawn_blocking(move || match &*file.database.lock() {
            Some(database) => act(&file, database),
            None => Err(StoreError::Closed { store: file.name() }),
        });
        // The thread ends early only with the whole runtime.
        done.await.unwrap_or(Err(StoreError::Closed { store }))
    }
}

#[tonic::async_trait]
impl Store for RedbStore {
    async fn load(&self) -> Result<BTreeMap<Key, Entry>, StoreError> {
        self.blocking(File::read).await
    }

    async fn commit(&self, batch: Batch) -> Result<(), StoreError> {
        self.blocking(move |file, database| file.commit(database, &batch))
            .await
    }

    async fn close(&self) -> Result<(), StoreError> {
        let file = self.0.clone();
        // Closed in either case: the thread ends early only with the runtime.
        let _ = tokio::task::spawn_blocking(move || drop(file.database.lock().take())).await;
        Ok(())
    }
}

impl File {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// The result of `act`; an error gets the names of the store and of the entry.
    fn attempt<T>(
        &self,
        entry: Option<&Key>,
        act: impl FnOnce() -> Result<T, redb::Error>,
    ) -> Result<T, StoreError> {
        act().map_err(|error| StoreError::Failed {
            store: self.name(),
            entry: entry.cloned(),
            error: Box::new(error),
        })
    }

    /// Creates missing tables and converts an older layout, in one transaction.
    fn prepare(&self, database: &Database) -> Result<(), StoreError> {
        let (transaction, version) = self.attempt(None, || {
            let transaction = database.begin_write()?;
            for each in Table::ALL {
                transaction.open_table(table(each))?;
            }
            let version = text(&transaction, "version")?;
            Ok((transaction, version))
        })?;
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
        self.attempt(None, || {
            let mut meta = transaction.open_table(META)?;
            meta.insert("version", STORE_VERSION.to_string().as_str())?;
            meta.remove("owner")?;
            drop(meta);
            Ok(transaction.commit()?)
        })
    }

    /// From layout 1: groups of both kinds become records of one table, and all entries get a version.
    fn migrate(&self, transaction: &WriteTransaction) -> Result<(), StoreError> {
        let read = |table: Bytes| {
            self.attempt(None, || {
                let table = transaction.open_table(table)?;
                let entries = table.iter()?.map(|entry| {
                    let (name, bytes) = entry?;
                    Ok((name.value().to_string(), bytes.value().to_vec()))
                });
                entries.collect::<Result<Vec<(String, Vec<u8>)>, redb::Error>>()
            })
        };
        let mut all: Vec<(Table, String, Vec<u8>)> = Vec::new();
        for (of, kind) in [(table(Table::Groups), "Multicast"), (COLLECTIVES, "Collective")] {
            for (name, bytes) in read(of)? {
                let table = Table::Groups;
                let record = v1::record(kind, &bytes).map_err(|error| StoreError::Entry {
                    store: self.name(),
                    entry: Key {
                        table,
                        name: name.clone(),
                    },
                    error,
                })?;
                all.push((table, name, encode(&record)));
            }
        }
        for (name, bytes) in read(table(Table::Hosts))? {
            all.push((Table::Hosts, name, bytes));
        }
        self.attempt(None, || {
            if let Some(owner) = text(transaction, "owner")? {
                all.push((Table::Meta, "owner".into(), encode(&owner)));
            }
            for (of, name, value) in &all {
                let bytes = with_version(1, value);
                transaction
                    .open_table(table(*of))?
                    .insert(name.as_str(), bytes.as_slice())?;
            }
            transaction.delete_table(COLLECTIVES)?;
            Ok(())
        })
    }

    fn read(&self, database: &Database) -> Result<BTreeMap<Key, Entry>, StoreError> {
        self.attempt(None, || {
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
                    let value = value.into();
                    all.insert(key, Entry { version, value });
                }
            }
            Ok(all)
        })
    }

    fn commit(&self, database: &Database, batch: &Batch) -> Result<(), StoreError> {
        let transaction = self.attempt(None, || Ok(database.begin_write()?))?;
        for (key, write) in batch {
            // Dropped without a commit, the transaction changes nothing.
            self.write(&transaction, key, write)?;
        }
        self.attempt(None, || Ok(transaction.commit()?))
    }

    fn write(&self, transaction: &WriteTransaction, key: &Key, write: &Write) -> Result<(), StoreError> {
        let name = key.name.as_str();
        let (mut entries, found) = self.attempt(Some(key), || {
            let entries = transaction.open_table(table(key.table))?;
            let found = entries.get(name)?.map_or(0, |bytes| parts(bytes.value()).0);
            Ok((entries, found))
        })?;
        check(&self.name(), key, write.was, found)?;
        self.attempt(Some(key), || {
            match &write.entry {
                Some(entry) => entries.insert(name, with_version(entry.version, &entry.value).as_slice())?,
                None => entries.remove(name)?,
            };
            Ok(())
        })
    }
}

/// A value of table `meta`.
fn text(transaction: &WriteTransaction, key: &str) -> Result<Option<String>, redb::Error> {
    let meta = transaction.open_table(META)?;
    let value = meta.get(key)?.map(|value| value.value().to_string());
    Ok(value)
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
