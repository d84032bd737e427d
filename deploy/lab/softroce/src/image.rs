//! What the machines boot: the kernel, and an initramfs out of the host's own programs. Built once, and kept in a cache.
//!
//! The cache holds `debian-VERSION-HASH` (the kernel, its modules and busybox, as fetched), `image-HASH` (what QEMU is given,
//! named by content), and `current.json`, which says from which files, of which size and age, the current image was
//! built: where one of them is another now, the image is stale and is built anew.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::cpio::Archive;
use crate::error::LabError;
use crate::kernel;
use crate::modules::{NEEDED, WELCOME};
use crate::process::find_program;

const INIT: &str = include_str!("../guest/init");
const AGENT: &str = include_str!("../guest/agent");

/// Programs that every guest has.
const PROGRAMS: &[&str] = &[
    "bash",
    "ip",
    "rdma",
    "tc",
    "ping", // coreutils:
    "base64",
    "basename",
    "cat",
    "chmod",
    "chown",
    "cksum",
    "comm",
    "cp",
    "cut",
    "date",
    "dd",
    "df",
    "dirname",
    "du",
    "echo",
    "env",
    "expr",
    "false",
    "fold",
    "head",
    "id",
    "install",
    "join",
    "ln",
    "ls",
    "md5sum",
    "mkdir",
    "mkfifo",
    "mknod",
    "mktemp",
    "mv",
    "nice",
    "nl",
    "nohup",
    "nproc",
    "numfmt",
    "od",
    "paste",
    "printenv",
    "printf",
    "pwd",
    "readlink",
    "realpath",
    "rm",
    "rmdir",
    "seq",
    "sha256sum",
    "shred",
    "shuf",
    "sleep",
    "sort",
    "split",
    "stat",
    "stdbuf",
    "stty",
    "sync",
    "tac",
    "tail",
    "tee",
    "test",
    "timeout",
    "touch",
    "tr",
    "true",
    "truncate",
    "tsort",
    "tty",
    "uname",
    "uniq",
    "unlink",
    "wc",
    "yes",
    // verbs:
    "ibv_devices",
    "ibv_devinfo",
    "ibv_asyncwatch",
    "ibv_rc_pingpong",
    "ibv_srq_pingpong",
    "ibv_uc_pingpong",
    "ibv_ud_pingpong",
    "ib_atomic_bw",
    "ib_atomic_lat",
    "ib_read_bw",
    "ib_read_lat",
    "ib_send_bw",
    "ib_send_lat",
    "ib_write_bw",
    "ib_write_lat",
    "rping",
    "ucmatose",
    "udaddy",
    "rdma_client",
    "rdma_server",
];

/// Programs that a guest has where the host does.
const WELCOME_PROGRAMS: &[&str] = &[
    "ethtool", "ss", "tcpdump", "arping", "grep", "sed", "cmp", "gawk", "ps",
];

/// Libraries that programs open by name as they run, or that programs put on the share may want.
const LIBRARIES: &[&str] = &[
    "libibverbs.so.1",
    "librdmacm.so.1",
    "libgcc_s.so.1",
    "libm.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "librt.so.1",
];

/// An image that can be booted. It stays in the cache as long as this lives.
#[derive(Debug)]
pub struct Image {
    directory: PathBuf,
    version: String,
    // Held shared, so that nobody who clears the cache takes the image away.
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

/// Where images are kept unless told otherwise: $CASTNET_SOFTROCE_CACHE, else castnet/softroce below $XDG_CACHE_HOME, below
/// ~/.cache, or below /var/cache.
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

/// One host file that the image was built from.
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

/// The file `current.json`.
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

/// A hash of all that this crate itself puts into an image, or decides about it.
fn recipe() -> String {
    let lists = [PROGRAMS, WELCOME_PROGRAMS, LIBRARIES, NEEDED, WELCOME].map(|list| list.join(" "));
    let mut parts: Vec<&[u8]> = vec![INIT.as_bytes(), AGENT.as_bytes(), b"1"];
    parts.extend(lists.iter().map(|l| l.as_bytes()));
    hash(&parts)
}

/// The end of the name of a kernel's folder: another choice of modules is another folder.
fn base_suffix() -> String {
    hash(&[NEEDED.join(" ").as_bytes(), WELCOME.join(" ").as_bytes(), b"1"])
}

/// The newest kernel in the cache, by the time of its coming.
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

/// Whether an image can be built without fetching anything.
pub(crate) fn has_kernel(cache: &Path) -> bool {
    base(cache).is_some()
}

/// Locks the cache for building; it is free again when the file is dropped.
fn lock(cache: &Path) -> Result<File, LabError> {
    fs::create_dir_all(cache).map_err(LabError::io(format!("making {}", cache.display())))?;
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
        .map_err(LabError::io(format!("opening {}", path.display())))
}

/// Fetches the kernel unless one is there.
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
    fs::rename(&work, &target).map_err(LabError::io(format!("making {}", target.display())))?;
    // Others are older, or of another choice of modules; images hold all that they need themselves.
    clear(cache, "debian-", &name);
    Ok(name)
}

/// A folder that is there and empty, for whoever holds the lock; an earlier one was left by a builder that was killed.
fn fresh_folder(path: &Path) -> Result<PathBuf, LabError> {
    let _ = fs::remove_dir_all(path);
    fs::create_dir_all(path).map_err(LabError::io(format!("making {}", path.display())))?;
    Ok(path.to_owned())
}

/// Removes the folders of `cache` whose names begin with `prefix`, but for `keep` and those that somebody uses.
fn clear(cache: &Path, prefix: &str, keep: &str) {
    for entry in fs::read_dir(cache).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with(prefix) || name == keep {
            continue;
        }
        let in_use = File::open(entry.path().join("lock")).is_ok_and(|lock| lock.try_lock().is_err());
        if !in_use {
            // What cannot be removed now is removed after the next build.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// The image of the cache, built first where there is none or where it is stale. Several processes may ask at once.
/// `refresh` asks Debian for a newer kernel first. `progress` hears of each step.
///
/// # Errors
///
/// [`LabError::Missing`] where a program of the host is missing; others where a package cannot be fetched or understood.
pub fn image(cache: Option<&Path>, refresh: bool, progress: &dyn Fn(&str)) -> Result<Image, LabError> {
    let cache = cache.map_or_else(default_cache, Path::to_owned);
    let _building = lock(&cache)?;
    let base = match base(&cache) {
        Some(base) if !refresh => base,
        _ => fetch_kernel(&cache, progress)?,
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
    let (mut files, absent) = host_files()?;
    let inputs = files.values().filter_map(|path| Input::of(path)).collect();
    let from = cache.join(&base);
    let version = base
        .strip_prefix("debian-")
        .and_then(|rest| rest.strip_suffix(&format!("-{}", base_suffix())))
        .unwrap_or(&base)
        .to_owned();
    files.insert("usr/bin/busybox".into(), from.join("busybox"));
    let initramfs = initramfs(&from, &files)?;
    let name = format!("image-{}", hash(&[version.as_bytes(), &initramfs]));
    if !cache.join(&name).join("initramfs").exists() {
        let work = fresh_folder(&cache.join("new-image"))?;
        fs::write(work.join("initramfs"), &initramfs).map_err(LabError::io("writing the initramfs"))?;
        let kernel = from.join("vmlinux");
        fs::hard_link(&kernel, work.join("vmlinux")).map_err(LabError::io("linking the kernel"))?;
        open_lock(&work.join("lock"))?;
        let target = cache.join(&name);
        let _ = fs::remove_dir_all(&target);
        fs::rename(&work, &target).map_err(LabError::io(format!("making {}", target.display())))?;
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

/// Files of the guest, by their path there, and of the host; and the names of the programs that are welcome and absent.
type HostFiles = (BTreeMap<String, PathBuf>, Vec<String>);

fn host_files() -> Result<HostFiles, LabError> {
    let mut found = Vec::new();
    for name in PROGRAMS {
        let program = find_program(name)
            .ok_or_else(|| LabError::missing(format!("program {name}"), "`softroce install` gets it"))?;
        found.push(program);
    }
    let (there, absent): (Vec<_>, Vec<_>) = WELCOME_PROGRAMS
        .iter()
        .partition(|name| find_program(name).is_some());
    found.extend(there.into_iter().filter_map(|name| find_program(name)));

    let linked = libraries_of(&found)?;
    let folder = linked
        .iter()
        .find(|path| path.ends_with("libc.so.6"))
        .and_then(|path| path.parent())
        .ok_or_else(|| LabError::missing("libc.so.6", "ldd names none for bash"))?
        .to_owned();
    let mut opened: Vec<PathBuf> = LIBRARIES
        .iter()
        .map(|name| folder.join(name))
        .filter(|file| file.exists())
        .collect();
    opened.push(rxe_provider(&folder)?);
    opened.extend(
        [
            "/usr/libexec/coreutils/libstdbuf.so",
            "/usr/lib/coreutils/libstdbuf.so",
        ]
        .map(PathBuf::from)
        .into_iter()
        .filter(|file| file.exists()),
    );
    let more = libraries_of(&opened)?;
    let all = found.into_iter().chain(linked).chain(opened).chain(more);
    let mut files: BTreeMap<String, PathBuf> = all.map(|file| (guest_path(&file), file)).collect();
    let driver = "/etc/libibverbs.d/rxe.driver";
    files.insert(driver.trim_start_matches('/').into(), driver.into());
    Ok((files, absent.into_iter().map(|name| (*name).to_owned()).collect()))
}

/// The user's half of rxe: libibverbs opens it, by a name that holds the version of their interface.
fn rxe_provider(folder: &Path) -> Result<PathBuf, LabError> {
    fs::read_dir(folder.join("libibverbs"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("librxe-rdmav") && name.ends_with(".so")
        })
        .max()
        .ok_or_else(|| LabError::missing("the verbs provider of rxe", "apt-get install ibverbs-providers"))
}

/// All libraries that the dynamic linker would load for `files`.
fn libraries_of(files: &[PathBuf]) -> Result<BTreeSet<PathBuf>, LabError> {
    // ldd fails where one of the files is static, and has told of the others all the same.
    let out = Command::new("ldd")
        .args(files)
        .stdin(Stdio::null())
        .output()
        .map_err(LabError::io("running ldd"))?;
    let text = String::from_utf8_lossy(&out.stdout);
    parse_ldd(&text)
        .map_err(|library| LabError::missing(format!("library {library}"), "a program of the image links it"))
}

fn parse_ldd(text: &str) -> Result<BTreeSet<PathBuf>, String> {
    let mut found = BTreeSet::new();
    for line in text.lines().filter(|line| line.starts_with('\t')) {
        if let Some(name) = line.trim().strip_suffix(" => not found") {
            return Err(name.to_owned());
        }
        let target = line.rsplit("=> ").next().unwrap_or_default().trim();
        if let Some((path, _)) = target.split_once(" (")
            && path.starts_with('/')
        {
            found.insert(PathBuf::from(path));
        }
    }
    Ok(found)
}

/// Where a file of the host lies in the guest: bin, sbin, lib and lib64 are links into usr there.
fn guest_path(host: &Path) -> String {
    let path = host.to_string_lossy();
    let path = path.trim_start_matches('/');
    let top = path.split('/').next().unwrap_or_default();
    if ["bin", "sbin", "lib", "lib64"].contains(&top) {
        format!("usr/{path}")
    } else {
        path.to_owned()
    }
}

fn initramfs(base: &Path, files: &BTreeMap<String, PathBuf>) -> Result<Vec<u8>, LabError> {
    let read = |path: &Path| fs::read(path).map_err(LabError::io(format!("reading {}", path.display())));
    let mut archive = Archive::default();
    for folder in [
        "proc",
        "sys",
        "dev",
        "run",
        "tmp",
        "root",
        "share",
        "usr/bin",
        "usr/sbin",
        "usr/busybox",
        "etc",
        "var/tmp",
    ] {
        archive.directory(folder);
    }
    for folder in ["bin", "sbin", "lib", "lib64"] {
        archive.symlink(folder, &format!("usr/{folder}"));
    }
    archive.device("dev/console", 5, 1);
    archive.file("init", true, INIT.as_bytes());
    archive.file("etc/softroce/agent", false, AGENT.as_bytes());
    archive.file("etc/passwd", false, b"root:x:0:0:root:/root:/bin/bash\n");
    archive.file("etc/group", false, b"root:x:0:\n");
    archive.file(
        "etc/nsswitch.conf",
        false,
        b"passwd: files\ngroup: files\nhosts: files\n",
    );
    let names: String = (1..=crate::lab::HOSTS_MAX)
        .map(|n| format!("10.0.0.{n} h{n}\n192.168.100.{n} h{n}-management\n"))
        .collect();
    let names = format!("127.0.0.1 localhost\n192.168.100.254 management\n{names}");
    archive.file("etc/hosts", false, names.as_bytes());

    let order = base.join("modules/order");
    let order = fs::read_to_string(&order).map_err(LabError::io(format!("reading {}", order.display())))?;
    archive.file("etc/softroce/modules", false, order.as_bytes());
    for name in order.lines().filter_map(|line| line.split_whitespace().nth(1)) {
        let module = read(&base.join(format!("modules/{name}.ko")))?;
        archive.file(&format!("etc/softroce/{name}.ko"), false, &module);
    }
    for (path, file) in files {
        archive.file(path, true, &read(file)?);
    }
    archive.symlink("usr/bin/sh", "bash");
    let applets = crate::process::run(Command::new(base.join("busybox")).arg("--list"))?;
    for applet in String::from_utf8_lossy(&applets).lines() {
        archive.symlink(&format!("usr/busybox/{applet}"), "../bin/busybox");
    }
    Ok(archive.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ldd_says_of_several_files_is_read() {
        let text = "/bin/bash:\n\tlinux-vdso.so.1 (0x7ffd)\n\tlibtinfo.so.6 => /lib/x/libtinfo.so.6 (0x7f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x7f)\n/bin/busybox:\n\tnot a dynamic executable\n\tstatically linked\n";
        let found: Vec<_> = parse_ldd(text).expect("all found").into_iter().collect();
        assert_eq!(
            found,
            [
                Path::new("/lib/x/libtinfo.so.6"),
                Path::new("/lib64/ld-linux-x86-64.so.2")
            ]
        );
        assert_eq!(parse_ldd("x:\n\tlibx.so => not found\n"), Err("libx.so".into()));
    }

    #[test]
    fn the_guests_have_a_merged_usr() {
        assert_eq!(guest_path(Path::new("/lib64/ld.so")), "usr/lib64/ld.so");
        assert_eq!(guest_path(Path::new("/usr/bin/x")), "usr/bin/x");
        assert_eq!(guest_path(Path::new("/opt/bin/x")), "opt/bin/x");
    }

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
