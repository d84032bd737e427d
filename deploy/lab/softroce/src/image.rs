//! The kernel, and an initramfs from the host's own programs, in a cache: `debian-VERSION-HASH` (the kernel, its
//! modules and busybox, as fetched), `image-HASH` (for QEMU, named by content), and `current.json`, which names the
//! files, with size and age, that the image was built from: if one of them differs, the image is stale.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::LabError;
use crate::kernel;
use crate::modules::{NEEDED, WELCOME};
use crate::packages::update;
use crate::process::find_program;
use crate::rootfs;

/// An image to boot. It stays in the cache as long as this exists.
#[derive(Debug)]
pub struct Image {
    directory: PathBuf,
    version: String,
    // Held shared: images in use are not removed from the cache.
    _lock: File,
}

impl Image {
    /// The kernel, an ELF file.
    pub fn kernel(&self) -> PathBuf {
        self.directory.join("vmlinux")
    }

    /// The initramfs, a cpio archive, not compressed.
    pub fn initramfs(&self) -> PathBuf {
        self.directory.join("initramfs")
    }

    /// The kernel's version, as its Debian package has it.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The folder of both.
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

/// $CASTNET_SOFTROCE_CACHE, else castnet/softroce below $XDG_CACHE_HOME, ~/.cache or /var/cache.
pub fn default_cache() -> PathBuf {
    let variable = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    if let Some(cache) = variable("CASTNET_SOFTROCE_CACHE") {
        return cache;
    }
    variable("XDG_CACHE_HOME")
        .or_else(|| variable("HOME").map(|home| home.join(".cache")))
        .unwrap_or_else(|| PathBuf::from("/var/cache"))
        .join("castnet/softroce")
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Input {
    path: PathBuf,
    size: u64,
    modified_ns: i64,
}

impl Input {
    fn of(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        Some(Self {
            path: path.to_owned(),
            size: metadata.len(),
            modified_ns: metadata
                .mtime()
                .wrapping_mul(1_000_000_000)
                .wrapping_add(metadata.mtime_nsec()),
        })
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Current {
    base: String,
    recipe: String,
    inputs: Vec<Input>,
    absent: Vec<String>,
    image: String,
    version: String,
}

impl Current {
    fn is_fresh(&self, base: &str, cache: &Path) -> bool {
        self.base == base
            && self.recipe == recipe()
            && cache.join(&self.image).join("initramfs").exists()
            && self.inputs.iter().all(|i| Input::of(&i.path).as_ref() == Some(i))
            && self.absent.iter().all(|name| find_program(name).is_none())
    }
}

fn hash(parts: &[&[u8]]) -> String {
    let mut state = Sha256::new();
    for part in parts {
        state.update((part.len() as u64).to_le_bytes());
        state.update(part);
    }
    state
        .finalize()
        .iter()
        .take(8)
        .map(|b| format!("{b:02x}"))
        .collect()
}

/// Hash of everything that this crate itself determines of an image.
fn recipe() -> String {
    hash(&[
        &rootfs::recipe(),
        NEEDED.join(" ").as_bytes(),
        WELCOME.join(" ").as_bytes(),
    ])
}

/// Suffix of a kernel's folder: a hash of the choice of modules.
fn base_suffix() -> String {
    hash(&[NEEDED.join(" ").as_bytes(), WELCOME.join(" ").as_bytes(), b"1"])
}

fn base(cache: &Path) -> Option<String> {
    let suffix = base_suffix();
    fs::read_dir(cache)
        .ok()?
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let fits = name.starts_with("debian-") && name.ends_with(&suffix);
            let modified = entry.metadata().ok()?.modified().ok()?;
            fits.then_some((modified, name))
        })
        .max()
        .map(|(_, name)| name)
}

pub(crate) fn has_kernel(cache: &Path) -> bool {
    base(cache).is_some()
}

/// Until the file is dropped.
fn lock(cache: &Path) -> Result<File, LabError> {
    fs::create_dir_all(cache).map_err(LabError::at("making", cache))?;
    let file = open_lock(&cache.join("lock"))?;
    file.lock().map_err(LabError::io("locking the cache"))?;
    Ok(file)
}

fn open_lock(path: &Path) -> Result<File, LabError> {
    File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .map_err(LabError::at("opening", path))
}

pub(crate) fn fetch_kernel_once(cache: &Path, progress: &dyn Fn(&str)) -> Result<(), LabError> {
    let _lock = lock(cache)?;
    match base(cache) {
        Some(_) => Ok(()),
        None => fetch_kernel(cache, progress).map(|_| ()),
    }
}

fn fetch_kernel(cache: &Path, progress: &dyn Fn(&str)) -> Result<String, LabError> {
    let work = fresh_folder(&cache.join("new-kernel"))?;
    let version = kernel::fetch(&work, progress)?;
    let name = format!("debian-{version}-{}", base_suffix());
    let target = cache.join(&name);
    let _ = fs::remove_dir_all(&target);
    fs::rename(&work, &target).map_err(LabError::at("making", &target))?;
    // The others are older, or of another choice of modules. Images do not need them.
    clear(cache, "debian-", &name);
    Ok(name)
}

/// An empty folder. An earlier one is of a builder that was killed.
fn fresh_folder(path: &Path) -> Result<PathBuf, LabError> {
    let _ = fs::remove_dir_all(path);
    fs::create_dir_all(path).map_err(LabError::at("making", path))?;
    Ok(path.to_owned())
}

/// Except `keep` and folders in use.
fn clear(cache: &Path, prefix: &str, keep: &str) {
    for entry in fs::read_dir(cache).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with(prefix) || name == keep {
            continue;
        }
        let in_use = File::open(entry.path().join("lock")).is_ok_and(|lock| lock.try_lock().is_err());
        if !in_use {
            // A folder that cannot be removed now is removed after the next build.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// The image of the cache. Builds it if there is none or if it is stale; several processes may call this at once.
/// `refresh` fetches Debian's newest kernel first. Reports each step to `progress`. [`LabError::Missing`] if a program
/// of the host is missing; other errors if a package cannot be fetched or understood.
pub fn image(cache: Option<&Path>, refresh: bool, progress: &dyn Fn(&str)) -> Result<Image, LabError> {
    let cache = cache.map_or_else(default_cache, Path::to_owned);
    let _building = lock(&cache)?;
    let base = match base(&cache) {
        Some(base) if !refresh => base,
        Some(_) => {
            update()?;
            fetch_kernel(&cache, progress)?
        }
        None => fetch_kernel(&cache, progress)?,
    };
    let current: Option<Current> = fs::read(cache.join("current.json"))
        .ok()
        .and_then(|text| serde_json::from_slice(&text).ok());
    let current = match current {
        Some(current) if current.is_fresh(&base, &cache) => current,
        _ => build(&cache, base, progress)?,
    };
    let directory = cache.join(&current.image);
    let image_lock = open_lock(&directory.join("lock"))?;
    image_lock
        .lock_shared()
        .map_err(LabError::io("locking the image"))?;
    Ok(Image {
        directory,
        version: current.version,
        _lock: image_lock,
    })
}

fn build(cache: &Path, base: String, progress: &dyn Fn(&str)) -> Result<Current, LabError> {
    progress("building the image");
    let (mut files, absent) = rootfs::host_files()?;
    let inputs = files.values().filter_map(|path| Input::of(path)).collect();
    let from = cache.join(&base);
    let version = base
        .strip_prefix("debian-")
        .and_then(|rest| rest.strip_suffix(&format!("-{}", base_suffix())))
        .unwrap_or(&base)
        .to_owned();
    files.insert("usr/bin/busybox".into(), from.join("busybox"));
    let initramfs = rootfs::initramfs(&from, &files)?;
    let name = format!("image-{}", hash(&[version.as_bytes(), &initramfs]));
    if !cache.join(&name).join("initramfs").exists() {
        let work = fresh_folder(&cache.join("new-image"))?;
        fs::write(work.join("initramfs"), &initramfs).map_err(LabError::io("writing the initramfs"))?;
        let kernel = from.join("vmlinux");
        fs::hard_link(&kernel, work.join("vmlinux")).map_err(LabError::io("linking the kernel"))?;
        open_lock(&work.join("lock"))?;
        let target = cache.join(&name);
        let _ = fs::remove_dir_all(&target);
        fs::rename(&work, &target).map_err(LabError::at("making", &target))?;
    }
    let current = Current {
        base,
        recipe: recipe(),
        inputs,
        absent,
        image: name,
        version,
    };
    let text = serde_json::to_vec_pretty(&current).expect("plain data");
    let new = cache.join("current.new");
    fs::write(&new, text)
        .and_then(|()| fs::rename(&new, cache.join("current.json")))
        .map_err(LabError::io("writing current.json"))?;
    clear(cache, "image-", &current.image);
    Ok(current)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_stale_when_one_of_its_files_is_another() {
        let cache = tempfile::tempdir().expect("a folder");
        let file = cache.path().join("program");
        fs::write(&file, "one").expect("written");
        fs::create_dir(cache.path().join("image-1")).expect("made");
        fs::write(cache.path().join("image-1/initramfs"), "").expect("written");
        let current = Current {
            base: "debian-6".into(),
            recipe: recipe(),
            inputs: vec![Input::of(&file).expect("there")],
            absent: vec!["no-such-program".into()],
            image: "image-1".into(),
            version: "6".into(),
        };
        assert!(current.is_fresh("debian-6", cache.path()));
        assert!(!current.is_fresh("debian-7", cache.path()));
        fs::write(&file, "three").expect("written");
        assert!(!current.is_fresh("debian-6", cache.path()));
    }

    #[test]
    fn clearing_spares_what_is_kept_and_what_is_in_use() {
        let cache = tempfile::tempdir().expect("a folder");
        for name in ["image-1", "image-2", "image-3", "other"] {
            fs::create_dir(cache.path().join(name)).expect("made");
            open_lock(&cache.path().join(name).join("lock")).expect("a lock");
        }
        let used = open_lock(&cache.path().join("image-2/lock")).expect("a lock");
        used.lock_shared().expect("locked");
        clear(cache.path(), "image-", "image-3");
        let mut left: Vec<_> = fs::read_dir(cache.path())
            .expect("read")
            .map(|e| e.expect("an entry").file_name().into_string().expect("UTF-8"))
            .collect();
        left.sort();
        assert_eq!(left, ["image-2", "image-3", "other"]);
    }
}
