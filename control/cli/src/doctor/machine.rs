//! The files in which a Linux kernel tells about its machine; tests put others in their place.

use std::path::PathBuf;

/// Where to look.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    root: PathBuf,
    /// Whether the files are those of the machine that this runs on, so that it can also be tried out.
    pub(crate) real: bool,
}

impl Machine {
    /// The machine that this runs on.
    pub(crate) fn this() -> Self {
        Self {
            root: PathBuf::from("/"),
            real: true,
        }
    }

    /// A machine made of files below `root`.
    #[cfg(test)]
    pub(crate) fn below(root: &std::path::Path) -> Self {
        Self {
            root: root.to_owned(),
            real: false,
        }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// The file's text without the blanks round it; `None` where it is not there.
    pub(crate) fn read(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.path(path))
            .ok()
            .map(|text| text.trim().to_owned())
    }

    /// The file's number.
    pub(crate) fn number(&self, path: &str) -> Option<u64> {
        self.read(path)?.parse().ok()
    }

    /// The value behind `key` in lines such as `key: value unit`.
    pub(crate) fn field(&self, path: &str, key: &str) -> Option<String> {
        let text = self.read(path)?;
        text.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name.trim() == key).then(|| value.trim().to_owned())
        })
    }

    /// The names in a folder, sorted; none where it is not there.
    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(path)).into_iter().flatten();
        let mut names: Vec<_> = entries
            .flatten()
            .map(|e| e.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// Whether there is such a file or folder.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// Whether a program of this name is in the search path.
    pub(crate) fn has_program(&self, name: &str) -> bool {
        if !self.real {
            return self.has(&format!("bin/{name}"));
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let more = ["/usr/sbin", "/sbin"].map(PathBuf::from);
        std::env::split_paths(&path)
            .chain(more)
            .any(|folder| folder.join(name).is_file())
    }
}
