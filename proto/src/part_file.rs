//! A new file beside its place, which gets its name when it is complete.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Names that a process tries for a part.
pub const NAMES_MAX: u32 = 64;

/// The name of a part of `path`.
pub fn name(path: &Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".castnet-part-{}-{number}", std::process::id()));
    name.into()
}

/// Makes a new file beside `path` for writing: `PATH.castnet-part-PID-N`. What has such a name already is left alone: it may be a link, what a
/// killed process has left, or a file of a process with the same number in another container.
///
/// # Errors
/// The file cannot be made, or all names are taken.
pub fn create(path: &Path, options: &mut OpenOptions) -> io::Result<(PathBuf, File)> {
    for number in 0..NAMES_MAX {
        let part = name(path, number);
        match options.write(true).create_new(true).open(&part) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            opened => return opened.map(|file| (part, file)),
        }
    }
    let first = name(path, 0);
    Err(io::Error::other(format!(
        "remove {} and its like, which killed processes have left",
        first.display()
    )))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// In a container, the number of a process may be the same at each start.
    #[test]
    fn what_stands_at_the_name_of_a_part_stays_as_it_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let [path, other] = ["c", "other"].map(|name| folder.path().join(name));
        std::fs::write(&other, "other").expect("written");
        symlink(&other, name(&path, 0)).expect("a link");
        symlink("missing", name(&path, 1)).expect("a link");
        std::fs::hard_link(&other, name(&path, 2)).expect("a second name");
        let (part, file) = create(&path, &mut OpenOptions::new()).expect("a part");
        assert_eq!(part, name(&path, 3));
        assert_eq!(file.metadata().expect("it").len(), 0);
        assert_eq!(std::fs::read(&other).expect("read"), b"other");
        assert!(!folder.path().join("missing").exists());
        for number in 4..NAMES_MAX {
            std::fs::write(name(&path, number), "").expect("written");
        }
        let error = create(&path, &mut OpenOptions::new()).expect_err("no name is free");
        let first = name(&path, 0);
        assert!(
            error.to_string().contains(&first.display().to_string()),
            "{error}"
        );
    }
}
