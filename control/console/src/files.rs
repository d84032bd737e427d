//! Where a file that a user names is written, and how it is opened.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use castnet_proto::part_file;

use crate::exit::{self, Failure, Outcome};
use crate::service::is_stopped;

/// What stands at a path, or will.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A regular file, or nothing yet: it may be replaced by a whole one. Links are followed.
    File(PathBuf),
    /// A device, a pipe, a socket: it is written to, never replaced.
    Special,
}

/// As many links as Linux follows.
const LINKS_MAX: usize = 40;

/// What stands at `path`. A link may lead to a file that is not there yet.
///
/// # Errors
/// Links that go round, or a folder that may not be read.
pub fn place(path: &Path) -> io::Result<Place> {
    // /dev/stdout may lead to a pipe. Such a link cannot be followed by its text.
    if std::fs::metadata(path).is_ok_and(|file| !file.is_file() && !file.is_dir()) {
        return Ok(Place::Special);
    }
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        match std::fs::symlink_metadata(&path) {
            Ok(file) if file.is_symlink() => {
                let target = std::fs::read_link(&path)?;
                path = path.parent().unwrap_or(Path::new("")).join(target);
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => return Ok(Place::File(path)),
        }
    }
    Err(io::Error::other("too many links"))
}

/// How often a program that waits for the other end of a pipe looks whether a signal has asked it to end.
const LOOK: Duration = Duration::from_millis(50);

/// A signal has ended a wait.
#[derive(Debug)]
struct Stopped;

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("stopped by a signal")
    }
}

impl std::error::Error for Stopped {}

/// A signal has ended what waited. Not [`io::ErrorKind::Interrupted`], after which callers try again.
pub fn stopped() -> io::Error {
    io::Error::other(Stopped)
}

/// Whether an error is [`stopped`].
pub fn is_by_signal(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Stopped>())
}

/// Opens a file that a user names. A pipe waits for its other end, and a signal ends the wait, with [`stopped`].
pub fn open(path: &Path, options: &OpenOptions) -> io::Result<File> {
    open_until(path, options, is_stopped)
}

fn open_until(path: &Path, options: &OpenOptions, is_stopped: impl Fn() -> bool) -> io::Result<File> {
    if !is_pipe(path) {
        return options.open(path);
    }
    let (to, opened) = channel();
    let (path, options) = (path.to_owned(), options.clone());
    // Nothing ends the system call, so the thread may stay until the process ends.
    let thread = std::thread::Builder::new().name("castnet-open".into());
    thread.spawn(move || to.send(options.open(path)))?;
    loop {
        match opened.recv_timeout(LOOK) {
            Ok(file) => return file,
            Err(RecvTimeoutError::Timeout) if is_stopped() => return Err(stopped()),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

/// Whether a path is, or leads to, a pipe.
pub fn is_pipe(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_fifo())
}

/// Fails if a standard stream is closed. Then there is `/dev/null` in its place, open for both ways, where the runtime of Rust has opened
/// it; a shell opens it for one way. Bytes would come from nowhere, or go there, and all would seem well.
///
/// # Errors
/// The stream is closed. `flag` is what asks for it.
pub fn check_open(stream: impl AsRawFd, name: &str, flag: &str) -> Outcome {
    let descriptor = stream.as_raw_fd();
    let device = |path: &str| {
        let file = std::fs::metadata(path).ok()?;
        file.file_type().is_char_device().then_some(file.rdev())
    };
    let there = device(&format!("/proc/self/fd/{descriptor}"));
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{descriptor}")).unwrap_or_default();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    // O_RDWR of O_ACCMODE.
    let is_both = flags.is_some_and(|flags| flags & 3 == 2);
    match is_both && there.is_some() && there == device("/dev/null") {
        true => Err(Failure::usage(format!("{flag} -: {name} is closed")).next("give a file, or open it")),
        false => Ok(()),
    }
}

/// Reads all of a file that a user names, which may be a pipe: see [`open`].
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path, File::options().read(true))?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Writes a file that a user names, which may be a pipe: see [`open`].
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = File::options();
    options.write(true).create(true).truncate(true);
    open(path, &options)?.write_all(bytes)
}

/// Replaces a file that a user names by a whole one: atomically, and only if nothing is lost with what stands there, which is nothing, an
/// empty file, or what `is_own` says that Castnet has written. `is_own` gets its first 4096 bytes. A device or a pipe is written to, see
/// [`write()`].
///
/// Returns the new file and where it is, or `None` for a device or a pipe.
pub fn replace(path: &Path, text: &str, is_own: fn(&str) -> bool) -> io::Result<Option<(PathBuf, File)>> {
    replace_by(path, text, is_own, &mut OpenOptions::new())
}

/// [`replace`], of a file that only this user may read, if it is a new one.
pub fn replace_secret(
    path: &Path,
    text: &str,
    is_own: fn(&str) -> bool,
) -> io::Result<Option<(PathBuf, File)>> {
    replace_by(path, text, is_own, OpenOptions::new().mode(0o600))
}

fn replace_by(
    path: &Path,
    text: &str,
    is_own: fn(&str) -> bool,
    options: &mut OpenOptions,
) -> io::Result<Option<(PathBuf, File)>> {
    match place(path)? {
        Place::Special => write(path, text.as_bytes()).map(|()| None),
        Place::File(path) => {
            check_nothing_lost(&path, is_own)?;
            let (part, mut file) = part_file::create(&path, options)?;
            // Who may not read the old one may not read the new one.
            let written = match std::fs::metadata(&path) {
                Ok(old) => file.set_permissions(old.permissions()),
                Err(_) => Ok(()),
            };
            let written = written.and_then(|()| file.write_all(text.as_bytes()));
            let written = written.and_then(|()| std::fs::rename(&part, &path));
            if written.is_err() {
                let _ = std::fs::remove_file(&part);
            }
            written.map(|()| Some((path, file)))
        }
    }
}

/// As many bytes as a line with an address has.
const LINE: usize = 64;

/// Fails if [`replace`] would fail now with a file, also if the disk has no space for a line. Changes nothing.
pub fn check_replaceable(path: &Path, is_own: fn(&str) -> bool) -> io::Result<()> {
    match place(path)? {
        Place::Special => Ok(()),
        Place::File(path) => {
            check_nothing_lost(&path, is_own)?;
            let (part, mut file) = part_file::create(&path, &mut OpenOptions::new())?;
            // A full disk takes an empty file.
            let written = file.write_all(&[b'\n'; LINE]);
            written.and(std::fs::remove_file(part))
        }
    }
}

/// Fails if something is lost with what stands at `path`.
fn check_nothing_lost(path: &Path, is_own: fn(&str) -> bool) -> io::Result<()> {
    let mut begin = Vec::new();
    match File::open(path) {
        Ok(file) => file.take(4096).read_to_end(&mut begin)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    match begin.is_empty() || is_own(&String::from_utf8_lossy(&begin)) {
        true => Ok(()),
        false => Err(io::Error::other(
            "there is another file: nothing is written over it",
        )),
    }
}

/// Waits for the reader of a pipe. While the result is held, it can be opened again without a wait. `None`: it is no pipe, or cannot be opened.
///
/// # Errors
/// A signal has ended the wait.
pub fn await_reader(path: &Path) -> Outcome<Option<File>> {
    if !is_pipe(path) {
        return Ok(None);
    }
    match open(path, File::options().append(true)) {
        Err(error) if is_by_signal(&error) => Err(exit::interrupted()),
        opened => Ok(opened.ok()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::process::Command;

    fn pipe(folder: &Path, name: &str) -> PathBuf {
        let path = folder.join(name);
        let made = Command::new("mkfifo").arg(&path).status();
        assert!(made.expect("mkfifo").success());
        path
    }

    #[test]
    fn a_wait_for_the_other_end_of_a_pipe_ends_at_a_signal() {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, reads) in [("in", true), ("out", false)] {
            let path = pipe(folder.path(), name);
            let mut options = File::options();
            options.read(reads).write(!reads);
            let error = open_until(&path, &options, || true).expect_err("there is no other end");
            assert!(is_by_signal(&error), "{error}");
            let failures = [
                exit::cannot_read(&path, &error),
                exit::cannot_write(&path, &error),
            ];
            for failure in failures {
                assert_eq!((failure.code(), failure.what), (1, exit::interrupted().what));
            }
        }
    }

    #[test]
    fn a_new_file_with_a_secret_is_for_this_user_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("qp.json");
        let mode = || std::fs::metadata(&path).expect("a file").mode() & 0o777;
        replace_secret(&path, "rkey", |_| false).expect("written");
        assert_eq!(mode(), 0o600);
        std::fs::set_permissions(&path, Permissions::from_mode(0o640)).expect("set");
        replace_secret(&path, "new", |_| true).expect("written");
        assert_eq!(mode(), 0o640, "as the user has set it");
        assert_eq!(read(&path).expect("read"), b"new");
    }

    #[test]
    fn a_pipe_is_read_and_written_once_its_other_end_is_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = pipe(folder.path(), "pipe");
        let writer = std::thread::spawn({
            let path = path.clone();
            move || write(&path, b"bytes")
        });
        assert_eq!(read(&path).expect("read"), b"bytes");
        writer.join().expect("a thread").expect("written");
        // What is held is its reader's other end.
        let reader = std::thread::spawn({
            let path = path.clone();
            move || read(&path)
        });
        let held = await_reader(&path).expect("no signal");
        write(&path, b"more").expect("without a wait");
        drop(held);
        assert_eq!(reader.join().expect("a thread").expect("read"), b"more");
        assert!(await_reader(Path::new("/dev/null")).is_ok_and(|held| held.is_none()));
    }

    #[test]
    fn a_standard_stream_that_is_closed_is_known() {
        let is_open = |path: &str, reads, writes| {
            let file = File::options().read(reads).write(writes).open(path);
            check_open(file.expect("it is there"), "stdout", "--out").is_ok()
        };
        assert!(is_open("/dev/null", true, false) && is_open("/dev/null", false, true));
        assert!(is_open("/dev/zero", true, true));
        assert!(!is_open("/dev/null", true, true));
    }

    #[test]
    fn what_a_kill_has_left_is_in_nobodys_way() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ready");
        std::fs::write(part_file::name(&path, 0), "left").expect("written");
        check_replaceable(&path, |_| false).expect("another name is free");
        replace(&path, "text", |_| false).expect("replaced");
        assert_eq!(read(&path).expect("read"), b"text");
        assert_eq!(std::fs::read_dir(folder.path()).expect("files").count(), 2);
    }

    #[test]
    fn links_are_followed_and_devices_are_special() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("file"), "old").expect("written");
        std::fs::create_dir(at("below")).expect("a folder");
        for (target, name) in [
            ("file", "link"),
            ("../link", "below/link"),
            ("missing", "dangling"),
            ("/dev/null", "device"),
            ("round", "round"),
        ] {
            symlink(target, at(name)).expect("a link");
        }
        let file = |name: &str| Place::File(at(name));
        assert_eq!(place(&at("file")).expect("a place"), file("file"));
        assert_eq!(place(&at("link")).expect("a place"), file("file"));
        assert_eq!(place(&at("new")).expect("a place"), file("new"));
        assert_eq!(place(&at("dangling")).expect("a place"), file("missing"));
        assert_eq!(place(&at("below/link")).expect("a place"), file("below/../file"));
        assert_eq!(place(&at("device")).expect("a place"), Place::Special);
        assert_eq!(place(Path::new("/dev/null")).expect("a place"), Place::Special);
        let (_reader, writer) = std::io::pipe().expect("a pipe");
        let open = format!("/proc/self/fd/{}", writer.as_raw_fd());
        assert_eq!(place(Path::new(&open)).expect("a place"), Place::Special);
        assert!(place(&at("round")).is_err());
        assert!(place(Path::new("/dev/null/x")).is_err());
    }
}
