//! The file behind a server's memory.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use castnet_rnic::{MemoryKey, Rnic, RnicError};
use nix::errno::Errno;
use nix::fcntl::posix_fallocate;

use crate::error::ReplicateError;

/// Bytes that are read or written at once. The RNIC is polled in between.
const CHUNK: usize = 256 << 10;

/// A file that holds what the memory held when it was last saved. RNICs cannot write files: pages of files cannot be registered
/// on all devices and kernels. So the memory is a copy, and is saved when a client has finished and when the server ends.
pub(crate) struct Store {
    path: PathBuf,
    file: File,
    pub(crate) bytes: u64,
}

impl Store {
    /// Opens a file, or creates one of `bytes` bytes, and reserves all its blocks. A file that is not empty keeps its length.
    ///
    /// # Errors
    /// It is no regular file, has another length than `bytes`, or has none and gets none; another server has it; or the disk is full.
    pub(crate) fn open(path: &Path, bytes: Option<u64>) -> Result<Self, ReplicateError> {
        let failed = |doing| move |error| failure(path, doing, error);
        let bad = |what: String| ReplicateError::BadFile {
            path: path.to_owned(),
            what,
        };
        let is_new = !path.exists();
        // A link that leads to no file stays a link.
        let is_link = path.is_symlink();
        if is_new && bytes.is_none() {
            return Err(bad(
                "it does not exist, and no size is given to create it".to_owned()
            ));
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(failed("opening"))?;
        let meta = file.metadata().map_err(failed("opening"))?;
        if !meta.is_file() {
            return Err(bad("it is no regular file".to_owned()));
        }
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => return Err(bad("another server has it open".to_owned())),
            Err(TryLockError::Error(error)) => return Err(failure(path, "locking", error)),
            Ok(()) => {}
        }
        let found = meta.len();
        let bytes = bytes.unwrap_or(found);
        if found > 0 && found != bytes {
            return Err(bad(format!(
                "it has {found} bytes, and {bytes} are to be served: leave the size out to serve all of it, name another file, or remove it if a start was cut off"
            )));
        }
        if bytes == 0 {
            return Err(bad("it is empty, and no size is given".to_owned()));
        }
        if let Err(error) = reserve(&file, bytes) {
            // The blocks that it got are free again.
            let _ = file.set_len(found);
            if is_new && !is_link {
                let _ = std::fs::remove_file(path);
            }
            return Err(failure(path, "reserving its blocks on the disk", error));
        }
        Ok(Self {
            path: path.to_owned(),
            file,
            bytes,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Copies the file into the memory.
    pub(crate) fn load(&self, rnic: &mut dyn Rnic, memory: MemoryKey) -> Result<(), ReplicateError> {
        let mut chunk = vec![0; CHUNK];
        for (offset, length) in chunks(self.bytes) {
            self.read(offset, &mut chunk[..length])?;
            rnic.write_memory(memory, offset, &chunk[..length])?;
            poll(rnic)?;
        }
        Ok(())
    }

    /// Copies what differs from the memory into the file, and has it written to the disk. Returns the number of bytes.
    pub(crate) fn save(&self, rnic: &mut dyn Rnic, memory: MemoryKey) -> Result<u64, ReplicateError> {
        let (mut chunk, mut before, mut saved) = (vec![0; CHUNK], vec![0; CHUNK], 0);
        for (offset, length) in chunks(self.bytes) {
            rnic.read_memory(memory, offset, &mut chunk[..length])?;
            self.read(offset, &mut before[..length])?;
            if chunk[..length] != before[..length] {
                let written = self.file.write_all_at(&chunk[..length], offset);
                written.map_err(|error| failure(&self.path, "writing", error))?;
                saved += length as u64;
            }
            poll(rnic)?;
        }
        let synced = self.file.sync_data();
        synced.map_err(|error| failure(&self.path, "writing it to the disk", error))?;
        self.check_place()?;
        Ok(saved)
    }

    /// A file that is at its path no more is gone when the server ends.
    fn check_place(&self) -> Result<(), ReplicateError> {
        let failed = |error| failure(&self.path, "looking for it after it was saved", error);
        let there = std::fs::metadata(&self.path).map_err(failed)?;
        let own = self.file.metadata().map_err(failed)?;
        match (own.dev(), own.ino()) == (there.dev(), there.ino()) {
            true => Ok(()),
            false => Err(ReplicateError::BadFile {
                path: self.path.clone(),
                what: "another file has taken its place: what was saved is lost when the server ends"
                    .to_owned(),
            }),
        }
    }

    /// Reads from `offset` on. A file that has become shorter is an error.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), ReplicateError> {
        let read = self.file.read_exact_at(out, offset);
        read.map_err(|error| failure(&self.path, "reading", error))
    }
}

fn failure(path: &Path, doing: &'static str, error: io::Error) -> ReplicateError {
    ReplicateError::File {
        path: path.to_owned(),
        doing,
        error,
    }
}

/// Gives a file its length. Reserves its blocks where the file system can, so that a full disk is an error now.
fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    let length = i64::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
    match posix_fallocate(file, 0, length) {
        Ok(()) => Ok(()),
        Err(Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::EINVAL) => file.set_len(bytes),
        Err(error) => Err(error.into()),
    }
}

/// Offsets and lengths of the pieces of `bytes`.
fn chunks(bytes: u64) -> impl Iterator<Item = (u64, usize)> {
    let piece = move |offset: u64| (offset, (bytes - offset).min(CHUNK as u64) as usize);
    (0..bytes).step_by(CHUNK).map(piece)
}

/// Other hosts must get their answers meanwhile.
pub(crate) fn poll(rnic: &mut dyn Rnic) -> Result<(), RnicError> {
    let now = rnic.now();
    rnic.poll(now).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_served_is_refused_by_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("h2.bin");
        let refused = |bytes| {
            Store::open(&path, bytes)
                .map(|_| ())
                .map_err(|error| error.to_string())
        };
        let missing = refused(None).expect_err("it does not exist");
        assert!(
            missing.contains("h2.bin") && missing.contains("no size"),
            "{missing}"
        );
        let huge = refused(Some(1 << 62)).expect_err("no disk is so large");
        assert!(huge.contains("reserving") && !path.exists(), "{huge}");
        assert_eq!(refused(Some(5000)), Ok(()));
        assert_eq!(std::fs::metadata(&path).map(|meta| meta.len()).ok(), Some(5000));
        for other in [4000, 6000] {
            let differs = refused(Some(other)).expect_err("it has another length");
            assert!(
                differs.contains(&format!("5000 bytes, and {other} ")),
                "{differs}"
            );
        }
        assert_eq!(std::fs::metadata(&path).map(|meta| meta.len()).ok(), Some(5000));
        assert_eq!(Store::open(&path, None).map(|store| store.bytes).ok(), Some(5000));
        let _first = Store::open(&path, None);
        assert!(refused(None).is_err_and(|error| error.contains("another server")));
        assert!(Store::open(folder.path(), Some(1)).is_err());
    }

    #[test]
    fn a_file_that_was_removed_or_replaced_is_not_saved() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("h2.bin");
        let store = Store::open(&path, Some(5000)).expect("a file");
        store.check_place().expect("it is there");
        std::fs::rename(&path, folder.path().join("other")).expect("renamed");
        let missing = store.check_place().expect_err("it is not there").to_string();
        assert!(missing.contains("h2.bin: looking for it"), "{missing}");
        std::fs::write(&path, "of somebody else").expect("written");
        let other = store.check_place().expect_err("it is another one").to_string();
        assert!(other.contains("has taken its place"), "{other}");
    }
}
