//! A cpio archive in the "newc" form (Linux, Documentation/driver-api/early-userspace/buffer-format.rst).

use std::collections::BTreeSet;

const DIRECTORY: u32 = 0o040_755;
const REGULAR: u32 = 0o100_000;
const SYMLINK: u32 = 0o120_777;
const CHARACTER_DEVICE: u32 = 0o020_600;

/// Grows in memory. The same calls give the same bytes, without time, owner or inode of the host.
#[derive(Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    inode: u32,
    directories: BTreeSet<String>,
}

impl Archive {
    /// Adds a folder, and those above it, once. Paths have no leading slash.
    pub(crate) fn directory(&mut self, path: &str) {
        let mut end = 0;
        for part in path.split('/') {
            end += part.len();
            let folder = &path[..end];
            end += 1;
            if self.directories.insert(folder.to_owned()) {
                self.entry(folder, DIRECTORY, (0, 0), &[]);
            }
        }
    }

    pub(crate) fn file(&mut self, path: &str, executable: bool, content: &[u8]) {
        self.parents(path);
        let mode = REGULAR | if executable { 0o755 } else { 0o644 };
        self.entry(path, mode, (0, 0), content);
    }

    pub(crate) fn symlink(&mut self, path: &str, target: &str) {
        self.parents(path);
        self.entry(path, SYMLINK, (0, 0), target.as_bytes());
    }

    pub(crate) fn device(&mut self, path: &str, major: u32, minor: u32) {
        self.parents(path);
        self.entry(path, CHARACTER_DEVICE, (major, minor), &[]);
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }

    fn parents(&mut self, path: &str) {
        if let Some((folder, _)) = path.rsplit_once('/') {
            self.directory(folder);
        }
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), content: &[u8]) {
        self.inode += 1;
        let size = u32::try_from(content.len()).expect("no file of the image reaches 4 GiB");
        let name_size = path.len() as u32 + 1;
        let fields = [
            self.inode, mode, 0, 0, 1, 0, size, 0, 0, device.0, device.1, name_size, 0,
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The slow reader: (path, mode, content) of each entry up to the trailer.
    fn read(archive: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let (mut at, mut entries) = (0, Vec::new());
        loop {
            assert_eq!(&archive[at..at + 6], b"070701");
            let field = |n: usize| {
                let from = at + 6 + n * 8;
                let text = std::str::from_utf8(&archive[from..from + 8]).expect("hex");
                u32::from_str_radix(text, 16).expect("hex")
            };
            let (mode, size, name_size) = (field(1), field(6) as usize, field(11) as usize);
            let name = &archive[at + 110..at + 110 + name_size - 1];
            let content = (at + 110 + name_size).next_multiple_of(4);
            let name = String::from_utf8(name.to_vec()).expect("UTF-8");
            if name == "TRAILER!!!" {
                assert_eq!(content, archive.len());
                return entries;
            }
            entries.push((name, mode, archive[content..content + size].to_vec()));
            at = (content + size).next_multiple_of(4);
        }
    }

    proptest! {
        #[test]
        fn what_goes_in_comes_out(files in prop::collection::vec(
            ("[a-z]{1,9}(/[a-z]{1,9}){0,3}", any::<bool>(), prop::collection::vec(any::<u8>(), 0..99)), 0..20)) {
            let mut archive = Archive::default();
            for (path, executable, content) in &files {
                archive.file(path, *executable, content);
            }
            let entries = read(&archive.finish());
            let kept: Vec<_> = entries.iter().filter(|(_, mode, _)| mode & 0o170_000 == REGULAR)
                .map(|(path, mode, content)| (path.clone(), mode & 0o111 != 0, content.clone())).collect();
            prop_assert_eq!(&kept, &files);
            // Each folder comes once, and before what lies in it.
            for (at, (path, ..)) in entries.iter().enumerate() {
                if let Some((folder, _)) = path.rsplit_once('/') {
                    let same: Vec<_> = entries.iter().enumerate()
                        .filter(|(_, (p, mode, _))| p == folder && *mode == DIRECTORY).collect();
                    prop_assert_eq!(same.len(), 1);
                    prop_assert!(same[0].0 < at);
                }
            }
        }
    }

    #[test]
    fn links_and_devices_have_their_types() {
        let mut archive = Archive::default();
        archive.symlink("bin", "usr/bin");
        archive.device("dev/console", 5, 1);
        let entries = read(&archive.finish());
        assert_eq!(entries[0], ("bin".into(), SYMLINK, b"usr/bin".to_vec()));
        assert_eq!(entries[2].1, CHARACTER_DEVICE);
    }
}
