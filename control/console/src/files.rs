//! Where a file that a user names is written.

use std::io;
use std::path::{Path, PathBuf};

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
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        match std::fs::symlink_metadata(&path) {
            Ok(file) if file.is_symlink() => {
                let target = std::fs::read_link(&path)?;
                path = path.parent().unwrap_or(Path::new("")).join(target);
            }
            Ok(file) if !file.is_file() && !file.is_dir() => return Ok(Place::Special),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => return Ok(Place::File(path)),
        }
    }
    Err(io::Error::other("too many links"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

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
        assert!(place(&at("round")).is_err());
        assert!(place(Path::new("/dev/null/x")).is_err());
    }
}
