//! A store in a redb database, a file of this machine.
//!
//! Table `meta` has the `version` of the layout. `groups`, `hosts`, `written_off` and `controller` have one value per entry: its
//! version in eight bytes, most significant first, then JSON.
//!
//! After an I/O error redb refuses every access, and the failed commit may be on disk or not. Then the file is opened
//! again before the next access, and that commit is taken back.

use std::collections::BTreeMap;
use std::fs::{Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use castnet_proto::part_file;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use parking_lot::Mutex;
use redb::backends::FileBackend;
use redb::{
    Database, DatabaseError, ReadOnlyDatabase, ReadTransaction, ReadableDatabase, ReadableTable,
    TableDefinition, TableError, WriteTransaction,
};

use super::{Batch, Entry, Key, STORE_VERSION, Store, StoreError, Table, Write, check, parts, with_version};

type Bytes = TableDefinition<'static, &'static str, &'static [u8]>;
const META: TableDefinition<'_, &str, &str> = TableDefinition::new("meta");

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
    /// Its length after the last access, in bytes; 0: none yet.
    length: AtomicU64,
    /// Locked during a commit, so that closing waits for it.
    state: Mutex<State>,
}

/// Device and inode of a file.
type Identity = (u64, u64);

#[derive(Debug)]
enum State {
    Open(Database, Identity),
    /// To be opened again, whichever file has the name then. These entries get their values back.
    Failed(Before),
    /// That of the file that was open, if one was.
    Closed(Option<Identity>),
}

impl State {
    /// That of the file which is to be opened again; `None`: of any.
    fn identity(&self) -> Option<Identity> {
        match self {
            Self::Open(_, identity) => Some(*identity),
            Self::Failed(_) => None,
            Self::Closed(identity) => *identity,
        }
    }
}

/// Entries as they were before a commit; `None`: they did not exist.
type Before = Vec<(Key, Option<Vec<u8>>)>;

impl RedbStore {
    /// Opens or creates the store at `path`.
    ///
    /// # Errors
    /// The file cannot be opened, is in use, or has another layout than [`STORE_VERSION`].
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let mut file = File::closed(path);
        let found = file.attempt(None, || match std::fs::metadata(path) {
            Ok(found) if !found.is_file() => Err(io::Error::from(ErrorKind::IsADirectory).into()),
            Ok(found) if found.len() == 0 => Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
            Ok(_) => {
                let database = Database::create(path)?;
                Ok(Some((database, identity(&std::fs::metadata(path)?))))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        })?;
        let (database, identity) = match found {
            Some((database, identity)) => {
                file.check_layout(&database)?;
                (database, identity)
            }
            None => file.create()?,
        };
        *file.state.get_mut() = State::Open(database, identity);
        Ok(Self(Arc::new(file)))
    }

    /// Whether this store could be opened again. One that was moved away would be replaced by an empty one, or by what stands there now.
    ///
    /// # Errors
    /// The file is not there any more, another file has its name, or it cannot be written.
    pub fn check_there(&self) -> Result<(), StoreError> {
        let file = &self.0;
        let opened = file.state.lock().identity();
        file.attempt(None, || {
            let there = OpenOptions::new().write(true).open(&file.path)?;
            let there = there.metadata()?;
            Ok(opened.map_or(Ok(()), |opened| file.is_same(opened, &there))?)
        })
    }

    async fn blocking<T: Send + 'static>(
        &self,
        act: impl FnOnce(&File, &Database, &mut Before) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (file, store) = (self.0.clone(), self.0.name());
        let done = tokio::task::spawn_blocking(move || file.access(act));
        done.await.unwrap_or_else(|ended| {
            Err(StoreError::Failed {
                store,
                entry: None,
                error: Box::new(ended),
            })
        })
    }
}

/// All entries of the store at `path`. Changes nothing there, and needs no permission to write unless a controller was killed.
///
/// # Errors
/// There is no such file, it is in use, or it has another layout than [`STORE_VERSION`].
pub fn content(path: &Path) -> Result<BTreeMap<Key, Entry>, StoreError> {
    let file = File::closed(path);
    let whole = file.attempt(None, || match ReadOnlyDatabase::open(path) {
        Ok(database) => Ok(Some(database)),
        Err(DatabaseError::RepairAborted) => Ok(None),
        Err(error) => Err(error.into()),
    })?;
    match whole {
        Some(database) => file.checked(&database),
        None => file.checked(&file.attempt(None, || Ok(Database::open(path)?))?),
    }
}

#[tonic::async_trait]
impl Store for RedbStore {
    async fn load(&self) -> Result<BTreeMap<Key, Entry>, StoreError> {
        self.blocking(|file, database, _| file.read(database)).await
    }

    async fn commit(&self, batch: Batch) -> Result<(), StoreError> {
        self.blocking(move |file, database, before| file.commit(database, &batch, before))
            .await
    }

    fn identity(&self) -> Option<String> {
        let identity = self.0.state.lock().identity();
        identity.map(|(device, inode)| format!("{device}:{inode}"))
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.blocking(|_, _, _| Ok(())).await
    }

    async fn close(&self) -> Result<(), StoreError> {
        let file = self.0.clone();
        // Closed in either case: the thread ends early only with the runtime.
        let closing = tokio::task::spawn_blocking(move || {
            let mut state = file.state.lock();
            *state = State::Closed(state.identity());
            // To close it may cut it.
            file.length.store(0, Ordering::Relaxed);
        });
        let _ = closing.await;
        Ok(())
    }
}

/// The owner of the folder opens the file of a store that root has made there, such as a service with a user of its own.
fn give_to_owner_of_folder(path: &Path, new: &std::fs::File) -> io::Result<()> {
    if new.metadata()?.uid() != 0 {
        return Ok(());
    }
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    let folder = std::fs::metadata(folder.unwrap_or(Path::new(".")))?;
    if folder.uid() != 0
        && let Err(error) = fchown(new, Some(folder.uid()), Some(folder.gid()))
    {
        tracing::warn!(path = %path.display(), %error, "the file stays root's: the owner of its folder cannot open it");
    }
    Ok(())
}

/// Gives a complete file its name, unless something has it.
fn place(part: &Path, path: &Path) -> io::Result<()> {
    match renameat2(AT_FDCWD, part, AT_FDCWD, path, RenameFlags::RENAME_NOREPLACE) {
        Ok(()) => Ok(()),
        Err(Errno::EEXIST) => Err(Errno::EEXIST.into()),
        // NFS has no such call, but hard links.
        Err(_) => {
            std::fs::hard_link(part, path)?;
            let _ = std::fs::remove_file(part);
            Ok(())
        }
    }
}

fn identity(file: &Metadata) -> Identity {
    (file.dev(), file.ino())
}

impl File {
    fn closed(path: &Path) -> Self {
        Self {
            path: path.into(),
            length: AtomicU64::new(0),
            state: Mutex::new(State::Closed(None)),
        }
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// A new store, for this user only: groups have keys of their members' memory. It is complete before it has its name: one that a full
    /// disk or a kill has cut off would be a file that is no store.
    fn create(&self) -> Result<(Database, Identity), StoreError> {
        let (part, new) = self.attempt(None, || {
            let mut options = OpenOptions::new();
            Ok(part_file::create(&self.path, options.read(true).mode(0o600))?)
        })?;
        let create = || {
            let (database, identity) = self.attempt(None, || {
                give_to_owner_of_folder(&self.path, &new)?;
                let identity = identity(&new.metadata()?);
                let database = Database::builder().create_with_backend(FileBackend::new(new)?)?;
                Ok((database, identity))
            })?;
            self.prepare(&database)?;
            self.attempt(None, || Ok(place(&part, &self.path)?))?;
            Ok((database, identity))
        };
        let made = create();
        if made.is_err() {
            let _ = std::fs::remove_file(&part);
        }
        made
    }

    /// The result of `act`; an error gets the names of the store and of the entry.
    fn attempt<T>(
        &self,
        entry: Option<&Key>,
        act: impl FnOnce() -> Result<T, redb::Error>,
    ) -> Result<T, StoreError> {
        // redb panics at some bytes that it cannot have written.
        let done = catch_unwind(AssertUnwindSafe(act));
        let damaged = || redb::Error::Corrupted("it is damaged".into());
        done.unwrap_or_else(|_| Err(damaged()))
            .map_err(|error| StoreError::Failed {
                store: self.name(),
                entry: entry.cloned(),
                error: format!("{error}{}", advice(&error)).into(),
            })
    }

    fn access<T>(
        &self,
        act: impl FnOnce(&Self, &Database, &mut Before) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut state = self.state.lock();
        // Stays so if `act` panics: then the database is dropped.
        let (database, identity) = match std::mem::replace(&mut *state, State::Failed(Before::new())) {
            State::Open(database, identity) => match self.check_same(identity) {
                Ok(()) => (database, identity),
                // It stays open: it may be put back.
                Err(error) => {
                    *state = State::Open(database, identity);
                    return Err(error);
                }
            },
            State::Failed(before) => match self.reopen(&before) {
                Ok(opened) => opened,
                Err(error) => {
                    *state = State::Failed(before);
                    return Err(error);
                }
            },
            State::Closed(identity) => {
                *state = State::Closed(identity);
                return Err(StoreError::Closed { store: self.name() });
            }
        };
        let mut before = Before::new();
        let done = act(self, &database, &mut before);
        let length = std::fs::metadata(&self.path).map_or(0, |there| there.len());
        self.length.store(length, Ordering::Relaxed);
        *state = match done {
            Err(StoreError::Failed { .. }) => State::Failed(before),
            _ => State::Open(database, identity),
        };
        done
    }

    /// Fails if the open file does not have its name any more, or was cut: what is written there would be gone at the next start.
    fn check_same(&self, opened: Identity) -> Result<(), StoreError> {
        self.attempt(
            None,
            || Ok(self.is_same(opened, &std::fs::metadata(&self.path)?)?),
        )
    }

    fn is_same(&self, opened: Identity, there: &Metadata) -> io::Result<()> {
        let (before, now) = (self.length.load(Ordering::Relaxed), there.len());
        if identity(there) != opened {
            return Err(io::Error::other(
                "another file stands there now: put back that of this controller, or restart it with the new one",
            ));
        }
        match now < before {
            true => Err(io::Error::other(format!(
                "it was cut from {before} to {now} bytes: stop the controller, and restore it from a copy or an export"
            ))),
            false => Ok(()),
        }
    }

    fn reopen(&self, before: &Before) -> Result<(Database, Identity), StoreError> {
        self.attempt(None, || {
            let database = Database::open(&self.path)?;
            let identity = identity(&std::fs::metadata(&self.path)?);
            let transaction = database.begin_write()?;
            let mut is_changed = false;
            for (key, value) in before {
                let (mut entries, name) = (transaction.open_table(table(key.table))?, key.name.as_str());
                if entries.get(name)?.map(|bytes| bytes.value().to_vec()) == *value {
                    continue;
                }
                is_changed = true;
                match value {
                    Some(value) => entries.insert(name, value.as_slice())?,
                    None => entries.remove(name)?,
                };
            }
            match is_changed {
                true => transaction.commit()?,
                false => transaction.abort()?,
            }
            Ok((database, identity))
        })
    }

    /// Creates the tables of a new store.
    fn prepare(&self, database: &Database) -> Result<(), StoreError> {
        self.attempt(None, || {
            let transaction = database.begin_write()?;
            for each in Table::ALL {
                transaction.open_table(table(each))?;
            }
            transaction
                .open_table(META)?
                .insert("version", STORE_VERSION.to_string().as_str())?;
            Ok(transaction.commit()?)
        })
    }

    /// Refuses a store that another version has written, or that is none.
    fn check_layout(&self, database: &impl ReadableDatabase) -> Result<(), StoreError> {
        let found = self.attempt(None, || match database.begin_read()?.open_table(META) {
            Ok(meta) => Ok(meta.get("version")?.map(|value| value.value().to_owned())),
            Err(TableError::TableDoesNotExist(_)) => Ok(None),
            Err(error) => Err(error.into()),
        })?;
        super::check_layout(&self.name(), found.as_deref().unwrap_or("none"))
    }

    fn checked(&self, database: &impl ReadableDatabase) -> Result<BTreeMap<Key, Entry>, StoreError> {
        self.check_layout(database)?;
        self.read(database)
    }

    fn read(&self, database: &impl ReadableDatabase) -> Result<BTreeMap<Key, Entry>, StoreError> {
        self.attempt(None, || read(&database.begin_read()?))
    }

    fn commit(&self, database: &Database, batch: &Batch, before: &mut Before) -> Result<(), StoreError> {
        let transaction = self.attempt(None, || Ok(database.begin_write()?))?;
        for (key, write) in batch {
            // Dropped without a commit, the transaction changes nothing.
            before.push((key.clone(), self.write(&transaction, key, write)?));
        }
        self.attempt(None, || Ok(transaction.commit()?))
    }

    /// Returns what it replaces.
    fn write(
        &self,
        transaction: &WriteTransaction,
        key: &Key,
        write: &Write,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let name = key.name.as_str();
        let (mut entries, before) = self.attempt(Some(key), || {
            let entries = transaction.open_table(table(key.table))?;
            let before = entries.get(name)?.map(|bytes| bytes.value().to_vec());
            Ok((entries, before))
        })?;
        let found = before.as_ref().map_or(0, |bytes| parts(bytes).0);
        check(&self.name(), key, write.was, found)?;
        self.attempt(Some(key), || {
            match &write.entry {
                Some(entry) => entries.insert(name, with_version(entry.version, &entry.value).as_slice())?,
                None => entries.remove(name)?,
            };
            Ok(before)
        })
    }
}

fn read(transaction: &ReadTransaction) -> Result<BTreeMap<Key, Entry>, redb::Error> {
    let mut all = BTreeMap::new();
    for of in Table::ALL {
        for entry in transaction.open_table(table(of))?.iter()? {
            let (name, bytes) = entry?;
            let (version, value) = parts(bytes.value());
            let value = value.into();
            all.insert(Key::new(of, name.value()), Entry { version, value });
        }
    }
    Ok(all)
}

/// What to do about an error of the file.
fn advice(error: &redb::Error) -> &'static str {
    let error = match error {
        redb::Error::Io(error) => error,
        redb::Error::Corrupted(_) => return ": move it away, then castnet store import it from a copy",
        redb::Error::DatabaseAlreadyOpen => return " See that no other controller has the same store",
        _ => return "",
    };
    match error.kind() {
        ErrorKind::StorageFull => ": free space on its file system",
        ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => ": raise the limit of the controller's user",
        ErrorKind::ReadOnlyFilesystem => ": mount its file system for writing",
        ErrorKind::PermissionDenied => ": let the controller's user write to it",
        ErrorKind::NotFound => ": make its folder, or put it back",
        ErrorKind::InvalidData => ": it is no store",
        ErrorKind::UnexpectedEof => ": restore it from a copy, or remove it if there were no groups",
        ErrorKind::IsADirectory => ": give the path of a file",
        ErrorKind::AlreadyExists => {
            ": where a link leads nowhere, give the path that it leads to; where another controller was faster, start again"
        }
        // The error has its own advice.
        ErrorKind::Other => "",
        _ => ": check its disk",
    }
}

#[cfg(test)]
mod tests {
    use super::super::Version;

    use super::*;

    fn write(name: &str, was: Version) -> (Key, Write) {
        let value = format!("{name} {}", was + 1).into_bytes();
        (Key::new(Table::Hosts, name), Write::put(was, value))
    }

    /// An error of a flush can come after the file has changed.
    #[tokio::test]
    async fn a_failed_commit_that_is_on_disk_is_taken_back() {
        let folder = tempfile::tempdir().unwrap();
        let store = RedbStore::open(&folder.path().join("c.redb")).unwrap();
        store.commit([write("a", 0), write("b", 0)].into()).await.unwrap();
        let before = store.load().await.unwrap();
        let mut remove = write("b", 1);
        remove.1.entry = None;
        let batch = [write("a", 1), remove, write("c", 0)].into();
        let failed = store.blocking(move |file, database, before| {
            file.commit(database, &batch, before)?;
            file.attempt(None, || -> Result<(), redb::Error> {
                Err(redb::Error::PreviousIo)
            })
        });
        assert!(matches!(failed.await, Err(StoreError::Failed { .. })));
        assert_eq!(store.load().await.unwrap(), before);
        store.commit([write("a", 1)].into()).await.unwrap();
    }

    #[test]
    fn an_empty_file_is_no_new_store_and_a_new_one_is_for_its_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c.redb");
        std::fs::write(&path, "").unwrap();
        let error = RedbStore::open(&path).unwrap_err().to_string();
        assert!(
            error.contains("c.redb: I/O error: unexpected end of file: restore it"),
            "{error}"
        );
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
        std::fs::remove_file(&path).unwrap();
        RedbStore::open(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        RedbStore::open(&path).unwrap();
    }

    /// As a folder's owner may prepare them for root, or a kill leaves them.
    #[test]
    fn a_new_one_is_made_beside_links_and_leftovers_that_stay_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let [path, other] = ["c.redb", "other"].map(|name| folder.path().join(name));
        RedbStore::open(&other).unwrap();
        let bytes = std::fs::read(&other).unwrap();
        std::os::unix::fs::symlink(&other, part_file::name(&path, 0)).unwrap();
        std::fs::hard_link(&other, part_file::name(&path, 1)).unwrap();
        RedbStore::open(&path).unwrap();
        assert_eq!(std::fs::read(&other).unwrap(), bytes);
        assert_eq!(
            std::fs::read_dir(folder.path()).unwrap().count(),
            4,
            "these and the store"
        );
    }

    #[test]
    fn a_new_one_replaces_nothing_that_has_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c.redb");
        std::os::unix::fs::symlink("missing", &path).unwrap();
        let error = RedbStore::open(&path).unwrap_err().to_string();
        assert!(error.contains("where a link leads nowhere"), "{error}");
        assert!(path.is_symlink());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    /// As `castnet store import` as root, into the folder of a service.
    #[test]
    fn a_file_that_root_makes_is_its_folders_owners() {
        let folder = tempfile::tempdir().unwrap();
        if std::fs::metadata(folder.path()).unwrap().uid() != 0 {
            eprintln!("not tested: needs root");
            return;
        }
        std::os::unix::fs::chown(folder.path(), Some(1234), Some(2345)).unwrap();
        let path = folder.path().join("c.redb");
        RedbStore::open(&path).unwrap();
        let file = std::fs::metadata(&path).unwrap();
        assert_eq!((file.uid(), file.gid(), file.mode() & 0o777), (1234, 2345, 0o600));
    }

    /// An import onto it would be refused as well.
    #[test]
    fn a_damaged_file_is_to_be_moved_away_first() {
        let damaged = || -> Result<(), redb::Error> { Err(redb::Error::Corrupted("a page".into())) };
        let error = File::closed(Path::new("c.redb"))
            .attempt(None, damaged)
            .unwrap_err();
        let said = error.to_string();
        assert!(
            said.ends_with(": move it away, then castnet store import it from a copy"),
            "{said}"
        );
    }

    /// Whatever is in the file: it is read, or refused.
    #[test]
    fn a_file_of_another_layout_is_refused_and_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c.redb");
        drop(RedbStore::open(&path).unwrap());
        for version in [None, Some(STORE_VERSION - 1), Some(STORE_VERSION + 1)] {
            let database = Database::open(&path).unwrap();
            let transaction = database.begin_write().unwrap();
            let mut meta = transaction.open_table(META).unwrap();
            meta.remove("version").unwrap();
            let found = version.map_or("none".into(), |version| version.to_string());
            if version.is_some() {
                meta.insert("version", found.as_str()).unwrap();
            }
            drop(meta);
            transaction.commit().unwrap();
            drop(database);
            let refused = [content(&path).map(drop), RedbStore::open(&path).map(drop)];
            for refused in refused {
                let is_named = |error: &StoreError| matches!(error, StoreError::Layout { found: named, .. } if *named == found);
                assert!(refused.as_ref().is_err_and(is_named), "{refused:?}");
            }
        }
    }

    #[tokio::test]
    async fn a_damaged_file_is_an_error_and_no_panic() {
        let folder = tempfile::tempdir().unwrap();
        let (whole, path) = (folder.path().join("whole.redb"), folder.path().join("c.redb"));
        let store = RedbStore::open(&whole).unwrap();
        let names: Vec<String> = (0..200).map(|n| format!("host{n}")).collect();
        store
            .commit(names.iter().map(|name| write(name, 0)).collect())
            .await
            .unwrap();
        store.close().await.unwrap();
        let bytes = std::fs::read(&whole).unwrap();
        // The header, and each byte near another one that means something.
        let used = (0..bytes.len())
            .filter(|at| *at < 320 || bytes[*at] != 0)
            .step_by(97);
        let mut read = [0; 2];
        for at in used {
            let mut bytes = bytes.clone();
            bytes[at] ^= 0xA5;
            std::fs::write(&path, &bytes).unwrap();
            read[0] += usize::from(content(&path).is_ok());
            if let Ok(store) = RedbStore::open(&path) {
                read[1] += usize::from(store.load().await.is_ok());
            }
        }
        assert!(read.iter().all(|n| *n > 10), "most bytes are of values: {read:?}");
    }

    /// As an operator does after a full disk: to a larger one, with a link to it.
    #[tokio::test]
    async fn a_store_that_was_moved_after_a_failure_is_known_at_its_new_place() {
        let folder = tempfile::tempdir().unwrap();
        let [path, larger] = ["c.redb", "larger.redb"].map(|name| folder.path().join(name));
        let store = RedbStore::open(&path).unwrap();
        let failed = store.blocking(|_, _, _| -> Result<(), StoreError> { panic!("a fault in redb") });
        assert!(matches!(failed.await, Err(StoreError::Failed { .. })));
        std::fs::copy(&path, &larger).unwrap();
        // The old inode is not given to another file.
        std::fs::rename(&path, folder.path().join("old")).unwrap();
        std::os::unix::fs::symlink(&larger, &path).unwrap();
        store.check_there().unwrap();
        store.load().await.unwrap();
        store.check_there().unwrap();
        std::fs::rename(folder.path().join("old"), &path).unwrap();
        let error = store.check_there().unwrap_err().to_string();
        assert!(error.contains("another file stands there now"), "{error}");
        store.close().await.unwrap();
        assert!(store.check_there().is_err(), "it is still another one");
    }

    #[tokio::test]
    async fn a_store_outlives_a_panic_and_a_failed_reopening() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c.redb");
        let store = RedbStore::open(&path).unwrap();
        store.commit([write("a", 0)].into()).await.unwrap();
        let before = store.load().await.unwrap();
        let failed = store.blocking(|_, _, _| -> Result<(), StoreError> { panic!("a fault in redb") });
        assert!(matches!(failed.await, Err(StoreError::Failed { .. })));
        let aside = folder.path().join("aside");
        std::fs::rename(&path, &aside).unwrap();
        let error = store
            .commit([write("a", 1)].into())
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.ends_with("(os error 2): make its folder, or put it back"),
            "{error}"
        );
        std::fs::rename(&aside, &path).unwrap();
        assert_eq!(store.load().await.unwrap(), before);
        store.close().await.unwrap();
        assert!(matches!(store.load().await, Err(StoreError::Closed { .. })));
    }
}
