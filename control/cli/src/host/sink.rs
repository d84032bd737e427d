//! Where a received stream goes: a file that appears whole or not at all, or stdout.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use castnet_rnic::stream::StreamHeader;

/// What the user named: a file, a folder, or `-` for stdout.
#[derive(Clone, Debug)]
pub(crate) struct Target(PathBuf);

impl Target {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// Whether the bytes go to stdout, where nothing else may go then.
    pub(crate) fn is_stdout(&self) -> bool {
        self.0 == Path::new("-")
    }

    /// The file for a stream of this name; `None` for stdout.
    fn path(&self, header: &StreamHeader) -> io::Result<Option<PathBuf>> {
        if self.is_stdout() {
            return Ok(None);
        }
        if !self.0.is_dir() {
            return Ok(Some(self.0.clone()));
        }
        // The name comes from another host: only its last part is believed, and it cannot lead out of the folder.
        let name = Path::new(&header.name)
            .file_name()
            .filter(|n| *n != OsStr::new(".."));
        let name = name.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("'{}' is no name for a file", header.name),
            )
        })?;
        Ok(Some(self.0.join(name)))
    }

    /// Opens the place for a stream.
    pub(crate) fn open(&self, header: &StreamHeader) -> io::Result<Sink> {
        match self.path(header)? {
            None => Ok(Sink {
                part: None,
                out: Some(Out::Stdout(io::stdout())),
            }),
            Some(path) => {
                let mut part = path.as_os_str().to_owned();
                part.push(".part");
                let part = PathBuf::from(part);
                let file = File::create(&part)
                    .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", part.display())))?;
                Ok(Sink {
                    part: Some((part, path)),
                    out: Some(Out::File(BufWriter::with_capacity(1 << 20, file))),
                })
            }
        }
    }
}

#[derive(Debug)]
enum Out {
    Stdout(io::Stdout),
    File(BufWriter<File>),
}

/// An open place. Dropped before it is kept, a file disappears.
#[derive(Debug)]
pub(crate) struct Sink {
    /// Under which name it is written, and under which it shall appear.
    part: Option<(PathBuf, PathBuf)>,
    out: Option<Out>,
}

impl Sink {
    /// Everything has arrived: the file appears. Returns where it is.
    pub(crate) fn keep(mut self) -> io::Result<Option<PathBuf>> {
        match self.out.take() {
            Some(Out::File(file)) => drop(file.into_inner().map_err(io::IntoInnerError::into_error)?),
            Some(Out::Stdout(mut out)) => out.flush()?,
            None => {}
        }
        let Some((part, path)) = &self.part else {
            return Ok(None);
        };
        std::fs::rename(part, path)?;
        Ok(self.part.take().map(|(_, path)| path))
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.out {
            Some(Out::Stdout(out)) => out.write(bytes),
            Some(Out::File(file)) => file.write(bytes),
            None => Ok(bytes.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.out {
            Some(Out::Stdout(out)) => out.flush(),
            Some(Out::File(file)) => file.flush(),
            None => Ok(()),
        }
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        if let Some((part, _)) = &self.part {
            let _ = std::fs::remove_file(part);
        }
    }
}

#[cfg(test)]
mod tests {
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
        let target = Target::new(folder.path().join("out.bin"));
        let mut sink = target.open(&header("x")).expect("a place");
        sink.write_all(b"half").expect("written");
        drop(sink);
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0);
        let mut sink = target.open(&header("x")).expect("a place");
        sink.write_all(b"whole").expect("written");
        assert_eq!(sink.keep().expect("kept"), Some(folder.path().join("out.bin")));
        assert_eq!(
            std::fs::read(folder.path().join("out.bin")).expect("a file"),
            b"whole"
        );
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1);
    }

    #[test]
    fn a_name_from_another_host_stays_in_the_folder() {
        let folder = tempfile::tempdir().expect("a folder");
        let target = Target::new(folder.path().to_owned());
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
}
