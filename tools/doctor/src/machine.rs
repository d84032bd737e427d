//! The files in which a Linux kernel describes its machine. Tests use other files.

use std::path::PathBuf;

#[derive(Clone, Debug)]
pub(crate) struct Machine {
    root: PathBuf,
    /// Whether it is this machine, so that things can be tried out.
    pub(crate) real: bool,
}

impl Machine {
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

    /// Trimmed text; `None` if there is no such file.
    pub(crate) fn read(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.path(path))
            .ok()
            .map(|text| text.trim().to_owned())
    }

    pub(crate) fn number(&self, path: &str) -> Option<u64> {
        self.read(path)?.parse().ok()
    }

    /// Value of `key` in lines such as `key: value unit`.
    pub(crate) fn field(&self, path: &str, key: &str) -> Option<String> {
        let text = self.read(path)?;
        text.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name.trim() == key).then(|| value.trim().to_owned())
        })
    }

    /// Names in a folder, sorted; empty if there is no such folder.
    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(path)).into_iter().flatten();
        let mut names: Vec<_> = entries
            .flatten()
            .map(|e| e.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// Last part of a link's target, such as a device's driver.
    pub(crate) fn link(&self, path: &str) -> Option<String> {
        let target = std::fs::read_link(self.path(path)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    /// File or folder.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// Whether the program is in the search path.
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

/// Output of a program; `None` if it fails.
pub(crate) fn output_of(program: &str, arguments: &[&str]) -> Option<String> {
    let mut command = std::process::Command::new(program);
    let output = command.args(arguments).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    output.status.success().then_some(text)
}

/// Numbers of a list such as `0-3,8`.
pub(crate) fn cores(list: &str) -> Option<Vec<usize>> {
    let mut cores = Vec::new();
    for part in list.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        // Too large for a core number.
        if last < first || last > CORES_MAX {
            return None;
        }
        cores.extend(first..=last);
    }
    Some(cores)
}

const CORES_MAX: usize = 1 << 16;

/// Cores of the machine.
pub(crate) fn online(machine: &Machine) -> Option<Vec<usize>> {
    cores(&machine.read("/sys/devices/system/cpu/online")?)
}

/// Cores that this process may run on.
pub(crate) fn allowed(machine: &Machine) -> Option<Vec<usize>> {
    cores(&machine.field("/proc/self/status", "Cpus_allowed_list")?)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;

    use tempfile::TempDir;

    use super::*;

    /// A machine made of files.
    pub(crate) struct Fake(TempDir);

    impl Fake {
        /// With these files and their texts.
        pub(crate) fn new(files: &[(&str, &str)]) -> Self {
            let fake = Self(tempfile::tempdir().expect("a folder"));
            for (path, text) in files {
                std::fs::write(fake.place(path), text).expect("written");
            }
            fake
        }

        /// And this link.
        pub(crate) fn link(&self, path: &str, to: &str) {
            std::os::unix::fs::symlink(Path::new(to), self.place(path)).expect("a link");
        }

        fn place(&self, path: &str) -> PathBuf {
            let path = self.0.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
            path
        }

        pub(crate) fn machine(&self) -> Machine {
            Machine::below(self.0.path())
        }
    }

    #[test]
    fn lists_of_cores_are_read() {
        assert_eq!(cores("0-3,8"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(cores("7\n"), Some(vec![7]));
        assert_eq!(cores(""), Some(vec![]));
        for bad in ["x-y", "3-1", "0-99999999999"] {
            assert_eq!(cores(bad), None, "{bad}");
        }
    }
}
