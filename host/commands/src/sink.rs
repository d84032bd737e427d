//! The target of a received stream: stdout, a device or pipe, or a file that appears whole or not at all.

use std::ffi::OsStr;
use std::fs::{File, Permissions, TryLockError};
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use castnet_console::exit::{self, Failure, Outcome};
use castnet_console::files::{self, Place, place};
use castnet_console::output::{Output, Report};
use castnet_member::StreamHeader;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::unistd::{AccessFlags, eaccess};

/// What the name of a file ends in until it is complete. A file of this name is one that a process has left, and is used again.
const PART: &str = ".castnet-part";

/// A file, a folder, a device, a pipe, or `-` for stdout.
#[derive(Clone, Debug)]
pub(crate) struct Target(pub(crate) PathBuf);

impl Target {
    pub(crate) fn is_stdout(&self) -> bool {
        self.0 == Path::new("-")
    }

    /// Whether what was written can be read again.
    pub(crate) fn is_kept(&self) -> bool {
        !self.is_stdout() && place(&self.0).is_ok_and(|place| place != Place::Special)
    }

    /// A missing folder, or one that this user may not write to, is found before the data comes.
    pub(crate) fn check(&self) -> Outcome {
        if self.is_stdout() {
            return Ok(());
        }
        let writable = |path: &Path| {
            let access = eaccess(path, AccessFlags::W_OK).map_err(io::Error::from);
            access.map_err(|error| exit::cannot_write_flag("--out", path, &error))
        };
        let path = match place(&self.0) {
            Ok(Place::Special) => return writable(&self.0),
            Ok(Place::File(path)) => path,
            Err(_) => self.0.clone(),
        };
        let folder = folder(&path);
        if !folder.is_dir() {
            let (out, folder) = (self.0.display(), folder.display());
            let what = format!("--out {out}: {folder} is not a folder");
            return Err(Failure::usage(what).next(format!("mkdir -p {folder}")));
        }
        writable(folder)
    }

    /// Shows the report of a transfer; beside a stream on stdout, on stderr.
    pub(crate) fn report(&self, report: &impl Report, output: Output) -> Outcome {
        match self.is_stdout() {
            true => output.remark_report(report),
            false => output.show_next(report),
        }
    }

    /// `None` for stdout.
    fn path(&self, header: &StreamHeader) -> io::Result<Option<PathBuf>> {
        if self.is_stdout() {
            return Ok(None);
        }
        if !self.0.is_dir() {
            return Ok(Some(self.0.clone()));
        }
        // The name comes from another host: only its last part is used, so that it stays in the folder.
        let name = Path::new(&header.name)
            .file_name()
            .filter(|n| *n != OsStr::new(".."));
        // Hidden files, such as those that a shell runs, and parts of others are no targets either.
        let is_plain = |name: &&OsStr| {
            let text = name.to_string_lossy();
            !text.starts_with('.') && !text.ends_with(PART)
        };
        let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidInput, text);
        let name = name
            .filter(is_plain)
            .ok_or_else(|| invalid(format!("'{}' is no name for a file in a folder", header.name)))?;
        let path = self.0.join(name);
        // A link would lead out of the folder.
        match std::fs::symlink_metadata(&path) {
            Ok(there) if !there.is_file() && !there.is_dir() => Err(invalid(format!(
                "{}: not a regular file: to write into it, give its path",
                path.display()
            ))),
            _ => Ok(Some(path)),
        }
    }

    pub(crate) fn open(&self, header: &StreamHeader) -> io::Result<Sink> {
        let Some(path) = self.path(header)? else {
            return Ok(Sink::into(io::stdout()));
        };
        let path = match place(&path).map_err(|error| named(&path, error))? {
            Place::File(path) if path.is_dir() => {
                let error = io::Error::new(io::ErrorKind::IsADirectory, "it is a folder");
                return Err(named(&path, error));
            }
            Place::File(path) => path,
            Place::Special => {
                let opened = files::open(&path, File::options().write(true));
                return Ok(Sink::into(opened.map_err(|error| named(&path, error))?));
            }
        };
        let mut name = path.as_os_str().to_owned();
        name.push(PART);
        let name = PathBuf::from(name);
        let file = open_part(&name).map_err(|error| named(&name, error))?;
        // Who may not read the old file may not read the new one.
        if path.exists() {
            let kept = file.set_permissions(Permissions::from_mode(0o600));
            kept.map_err(|error| named(&name, error))?;
        }
        let out = file.try_clone()?;
        Ok(Sink {
            part: Some(Part { file, name, path }),
            // Full messages are written without a copy.
            out: Box::new(BufWriter::with_capacity(1 << 16, out)),
        })
    }
}

/// The folder itself, or that of a file. A path that ends in `/` is a folder.
fn folder(path: &Path) -> &Path {
    if path.is_dir() || path.as_os_str().as_bytes().ends_with(b"/") {
        return path;
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// Opens the file that gets its final name when it is complete. What a process has left is used again, what one writes is not.
fn open_part(part: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    // A link there is of somebody else.
    options.custom_flags(OFlag::O_NOFOLLOW.bits());
    loop {
        let file = options.open(part)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(io::Error::other(
                    "another process receives into it: wait for that, or give another name",
                ));
            }
            // Some network file systems have no locks.
            Err(TryLockError::Error(error))
                if error.kind() == io::ErrorKind::Unsupported
                    || error.raw_os_error() == Some(Errno::ENOLCK as i32) => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // The other process may have given it its final name meanwhile.
        let (own, there) = (file.metadata()?, std::fs::metadata(part));
        if there.is_ok_and(|there| (there.dev(), there.ino()) == (own.dev(), own.ino())) {
            file.set_len(0)?;
            return Ok(file);
        }
    }
}

/// The names of the files in a folder are on disk. It may be one that this user cannot read, or whose file system has no such call.
fn sync_folder(folder: &Path) -> io::Result<()> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.or_else(|error| match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported => Ok(()),
        _ => Err(error),
    })
}

fn named(path: &Path, error: io::Error) -> io::Error {
    if files::is_by_signal(&error) {
        return error;
    }
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Its file is removed if it is dropped before it is complete.
pub(crate) struct Sink {
    /// `None` for stdout, a device or a pipe.
    part: Option<Part>,
    out: Box<dyn Write>,
}

/// A file until it is complete.
struct Part {
    file: File,
    name: PathBuf,
    /// Its final name.
    path: PathBuf,
}

impl Part {
    /// The file has the mode of the one that it replaces.
    fn rename(&self) -> io::Result<()> {
        if let Ok(old) = std::fs::metadata(&self.path) {
            let same_group = old.gid() == self.file.metadata()?.gid();
            let mode = old.mode() & if same_group { 0o777 } else { 0o707 };
            self.file.set_permissions(Permissions::from_mode(mode))?;
        }
        std::fs::rename(&self.name, &self.path)
    }
}

impl Sink {
    /// Keeps nothing.
    pub(crate) fn into(out: impl Write + 'static) -> Self {
        Self {
            part: None,
            out: Box::new(out),
        }
    }

    /// The file, to read what is written and flushed.
    pub(crate) fn kept(&self) -> io::Result<Option<File>> {
        let file = self.part.as_ref().map(|part| part.file.try_clone());
        file.transpose()
    }

    fn named(&self, error: io::Error) -> io::Error {
        match &self.part {
            Some(part) => named(&part.path, error),
            None => error,
        }
    }

    /// Gives the complete file its final name once it is on disk, and returns the name once that is. If the file cannot get it, the file
    /// stays, and the error has its name.
    pub(crate) fn keep(mut self) -> io::Result<Option<PathBuf>> {
        self.flush()?;
        if let Some(part) = &self.part {
            // Disks and network file systems may say only now that there is no room.
            part.file.sync_all().map_err(|error| named(&part.path, error))?;
        }
        let Some(part) = self.part.take() else {
            return Ok(None);
        };
        part.rename().map_err(|error| {
            let (path, name) = (part.path.display(), part.name.display());
            let rest = match part.name.exists() {
                true => format!("what arrived is in {name}"),
                false => format!("what arrived was in {name}, which somebody has removed"),
            };
            io::Error::new(error.kind(), format!("{path}: {error}; {rest}"))
        })?;
        sync_folder(folder(&part.path)).map_err(|error| named(&part.path, error))?;
        Ok(Some(part.path))
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes);
        written.map_err(|error| self.named(error))
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.out.flush();
        flushed.map_err(|error| self.named(error))
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        if let Some(part) = &self.part {
            let _ = std::fs::remove_file(&part.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use nix::unistd::Uid;

    use super::*;

    fn header(name: &str) -> StreamHeader {
        StreamHeader {
            name: name.to_owned(),
            length: None,
        }
    }

    #[test]
    fn a_file_appears_whole_or_not_at_all() {
        let folder = tempfile::tempdir().expect("a folder");
        let target = Target(folder.path().join("out.bin"));
        let mut sink = target.open(&header("x")).expect("a place");
        sink.write_all(b"half").expect("written");
        assert!(target.open(&header("x")).is_err(), "another one writes on");
        drop(sink);
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0);
        std::fs::write(
            folder.path().join("out.bin.castnet-part"),
            "left by one that was killed",
        )
        .expect("written");
        let mut sink = target.open(&header("x")).expect("a place");
        sink.write_all(b"whole").expect("written");
        let kept = sink.keep().expect("kept");
        assert_eq!(kept, Some(folder.path().join("out.bin")));
        assert_eq!(
            std::fs::read(folder.path().join("out.bin")).expect("a file"),
            b"whole"
        );
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1);
    }

    #[test]
    fn a_complete_file_that_cannot_be_renamed_stays_as_its_part() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, part) = (folder.path().join("out"), folder.path().join("out.castnet-part"));
        let target = Target(folder.path().to_owned());
        let mut sink = target.open(&header("out")).expect("a place");
        sink.write_all(b"whole").expect("written");
        std::fs::create_dir(&path).expect("a folder");
        let text = sink.keep().expect_err("a folder is there").to_string();
        let end = format!("what arrived is in {}", part.display());
        assert!(text.contains("Is a directory") && text.ends_with(&end), "{text}");
        let refused = target.open(&header("out")).map(drop);
        let refused = refused.expect_err("a folder is there").to_string();
        assert_eq!(refused, format!("{}: it is a folder", path.display()));
        assert_eq!(std::fs::read(&part).expect("a file"), b"whole");
        std::fs::remove_dir(&path).expect("an empty folder");
        let sink = target.open(&header("out")).expect("a place");
        std::fs::remove_file(&part).expect("it is there");
        let text = sink.keep().expect_err("there is no part").to_string();
        assert!(text.ends_with("which somebody has removed"), "{text}");
    }

    #[test]
    fn devices_and_pipes_are_written_to_and_links_followed() {
        use std::os::unix::fs::{FileTypeExt, symlink};
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let write = |name: &str| {
            let target = Target(at(name));
            let mut sink = target.open(&header("x")).expect("a place");
            sink.write_all(b"data").expect("written");
            (sink.keep().expect("kept"), target.is_kept())
        };
        std::fs::write(at("file"), "old").expect("written");
        symlink("file", at("link")).expect("a link");
        assert_eq!(write("link"), (Some(at("file")), true));
        assert!(at("link").is_symlink());
        assert_eq!(std::fs::read(at("file")).expect("a file"), b"data");

        symlink("/dev/null", at("null")).expect("a link");
        assert_eq!(write("null"), (None, false));
        let status = std::process::Command::new("mkfifo").arg(at("pipe")).status();
        assert!(status.expect("mkfifo").success());
        let path = at("pipe");
        let reader = std::thread::spawn(move || std::fs::read(path));
        assert_eq!(write("pipe"), (None, false));
        assert_eq!(reader.join().expect("a thread").expect("read"), b"data");
        let kind = std::fs::symlink_metadata(at("pipe")).expect("there").file_type();
        assert!(kind.is_fifo());
    }

    #[test]
    fn a_missing_folder_is_an_error_before_the_data() {
        let check = |out: &str| Target(out.into()).check();
        for out in ["-", "file", "/tmp", "/tmp/file"] {
            check(out).expect(out);
        }
        for out in ["/nonexistent/file", "/dev/null/file"] {
            let failure = check(out).expect_err(out);
            assert_eq!(failure.code(), 2);
            assert!(failure.text().contains("next: mkdir -p /"), "{}", failure.text());
        }
    }

    /// Root may write to any folder.
    #[test]
    fn a_folder_is_there_and_may_be_written_to_before_the_data() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let check = |name: &str| Target(at(name)).check();
        std::fs::create_dir(at("there")).expect("a folder");
        std::fs::write(at("file"), "old").expect("written");
        std::os::unix::fs::symlink("none/file", at("link")).expect("a link");
        check("there/").expect("a folder");
        for name in ["none/", "file/", "link"] {
            let text = check(name).expect_err(name).text();
            assert!(text.contains("is not a folder"), "{text}");
        }
        std::fs::set_permissions(at("there"), Permissions::from_mode(0o500)).expect("its owner");
        for name in ["there", "there/", "there/new"] {
            assert_eq!(check(name).is_ok(), Uid::effective().is_root(), "{name}");
        }
    }

    #[test]
    fn a_file_keeps_the_mode_of_the_one_that_it_replaces() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("secret");
        std::fs::write(&path, "old").expect("written");
        let mode = |path: &Path| std::fs::metadata(path).expect("a file").permissions().mode() & 0o7777;
        // A new one runs with the rights of no other user.
        for (old, new) in [(0o600, 0o600), (0o444, 0o444), (0o4755, 0o755), (0o2640, 0o640)] {
            std::fs::set_permissions(&path, Permissions::from_mode(old)).expect("its owner");
            let sink = Target(path.clone()).open(&header("x")).expect("a place");
            assert_eq!(mode(&folder.path().join("secret.castnet-part")), 0o600);
            sink.keep().expect("kept");
            assert_eq!(mode(&path), new);
        }
    }

    #[test]
    fn an_error_of_writing_names_the_file() {
        let sink = Sink {
            part: Some(Part {
                file: File::open("/dev/null").expect("a device"),
                name: PathBuf::from("/nowhere/out.castnet-part"),
                path: PathBuf::from("/nowhere/out"),
            }),
            out: Box::new(
                File::options()
                    .write(true)
                    .open("/dev/full")
                    .expect("a full disk"),
            ),
        };
        let mut sink = BufWriter::with_capacity(1, sink);
        let error = sink.write_all(b"bytes").expect_err("no space");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(
            error.to_string().starts_with("/nowhere/out: No space left"),
            "{error}"
        );
    }

    /// A device cannot be synced, as a disk that fails. The file was reported as kept before it was on disk.
    #[test]
    fn a_file_that_is_not_on_disk_is_not_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, name) = (folder.path().join("out"), folder.path().join("out.castnet-part"));
        std::fs::write(&name, "in the cache").expect("written");
        let sink = Sink {
            part: Some(Part {
                file: File::open("/dev/null").expect("a device"),
                name,
                path: path.clone(),
            }),
            out: Box::new(io::sink()),
        };
        let text = sink.keep().expect_err("it is not on disk").to_string();
        assert!(text.starts_with(&format!("{}: ", path.display())), "{text}");
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0);
    }

    /// Its names are on disk where that can be asked for.
    #[test]
    fn a_folder_is_synced_or_need_not_be() {
        let folder = tempfile::tempdir().expect("a folder");
        sync_folder(folder.path()).expect("a folder");
        sync_folder(Path::new("/dev/null")).expect("it has no such call");
        let error = sync_folder(&folder.path().join("none")).expect_err("it is gone");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_name_from_another_host_stays_in_the_folder() {
        let folder = tempfile::tempdir().expect("a folder");
        let target = Target(folder.path().to_owned());
        for (name, file) in [
            ("a.bin", "a.bin"),
            ("../../etc/passwd", "passwd"),
            ("/etc/shadow", "shadow"),
        ] {
            assert_eq!(
                target.path(&header(name)).expect("a name"),
                Some(folder.path().join(file)),
                "{name}"
            );
        }
        for name in ["", "..", "/", "a/.."] {
            assert!(target.path(&header(name)).is_err(), "{name}");
        }
    }

    /// A source could replace the .bashrc of whoever received into a home folder, and any file that a link in a folder led to.
    #[test]
    fn a_name_from_another_host_is_of_a_plain_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let (inside, outside) = (folder.path().join("in"), folder.path().join("out"));
        fs::create_dir(&inside).expect("a folder");
        fs::write(&outside, "kept").expect("a file");
        let target = Target(inside.clone());
        for link in ["link", "dangling"] {
            let to = if link == "link" {
                &outside
            } else {
                Path::new("nowhere")
            };
            symlink(to, inside.join(link)).expect("a link");
        }
        for name in [".bashrc", "x.castnet-part", "link", "dangling"] {
            assert!(target.open(&header(name)).is_err(), "{name}");
        }
        assert_eq!(fs::read_dir(&inside).expect("a folder").count(), 2);
        assert_eq!(fs::read(&outside).expect("a file"), b"kept");
        // A path that its user gives may be a link.
        assert!(Target(inside.join("link")).open(&header("x")).is_ok());
    }
}
