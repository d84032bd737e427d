//! Content of the guests: the host's own programs with their libraries, kernel modules, and the scripts of `guest/`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::cpio::Archive;
use crate::error::LabError;
use crate::process::find_program;

const INIT: &str = include_str!("../guest/init");
const AGENT: &str = include_str!("../guest/agent");

const PROGRAMS: &str = "\
    bash ip rdma tc ping base64 basename cat chmod chown cksum comm cp cut date dd df dirname du \
    echo env expr false fold head id install join ln ls md5sum mkdir mkfifo mknod mktemp mv nice nl \
    nohup nproc numfmt od paste printenv printf pwd readlink realpath rm rmdir seq sha256sum shred \
    shuf sleep sort split stat stdbuf stty sync tac tail tee test timeout touch tr true truncate \
    tsort tty uname uniq unlink wc yes";

/// Verbs tools, perftest, and the connection manager's programs.
const VERBS_PROGRAMS: &str = "\
    ibv_devices ibv_devinfo ibv_asyncwatch ibv_rc_pingpong ibv_srq_pingpong ibv_uc_pingpong \
    ibv_ud_pingpong ib_atomic_bw ib_atomic_lat ib_read_bw ib_read_lat ib_send_bw ib_send_lat \
    ib_write_bw ib_write_lat rping ucmatose udaddy rdma_client rdma_server";

/// Programs that guests have if the host has them.
const WELCOME_PROGRAMS: &str = "\
    ethtool ss tcpdump arping grep sed cmp gawk ps pgrep pkill";

/// Libraries that programs open at run time, or that programs on the share may need.
const LIBRARIES: &str = "\
    libibverbs.so.1 librdmacm.so.1 libgcc_s.so.1 libm.so.6 libdl.so.2 libpthread.so.0 librt.so.1";

pub(crate) fn recipe() -> Vec<u8> {
    let lists = [PROGRAMS, VERBS_PROGRAMS, WELCOME_PROGRAMS, LIBRARIES];
    [&lists[..], &[INIT, AGENT, "layout 1"]]
        .concat()
        .join("\0")
        .into_bytes()
}

fn words(list: &'static str) -> impl Iterator<Item = &'static str> {
    list.split_whitespace()
}

/// Files of the guest, by their path there, and of the host; and the names of the programs that are welcome and absent.
pub(crate) type HostFiles = (BTreeMap<String, PathBuf>, Vec<String>);

pub(crate) fn host_files() -> Result<HostFiles, LabError> {
    let mut found = Vec::new();
    for name in words(PROGRAMS).chain(words(VERBS_PROGRAMS)) {
        let program = find_program(name)
            .ok_or_else(|| LabError::missing(format!("program {name}"), "`softroce install` gets it"))?;
        found.push(program);
    }
    let (there, absent): (Vec<_>, Vec<_>) =
        words(WELCOME_PROGRAMS).partition(|name| find_program(name).is_some());
    found.extend(there.into_iter().filter_map(find_program));

    let linked = libraries_of(&found)?;
    let folder = linked
        .iter()
        .find(|path| path.ends_with("libc.so.6"))
        .and_then(|path| path.parent())
        .ok_or_else(|| LabError::missing("libc.so.6", "ldd names none for bash"))?
        .to_owned();
    let mut opened: Vec<PathBuf> = words(LIBRARIES)
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
    Ok((files, absent.into_iter().map(|name| name.to_owned()).collect()))
}

/// rxe's provider for libibverbs. Its name contains the version of the interface.
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

pub(crate) fn libraries_beside(program: &Path) -> Result<Vec<PathBuf>, LabError> {
    let linked = libraries_of(&[program.to_owned()])?;
    let (image, _) = host_files()?;
    let beside = linked
        .into_iter()
        .filter(|file| !image.contains_key(&guest_path(file)));
    Ok(beside.collect())
}

fn libraries_of(files: &[PathBuf]) -> Result<BTreeSet<PathBuf>, LabError> {
    // ldd fails if one of the files is static, but prints the others.
    let out = Command::new("ldd")
        .args(files)
        .stdin(Stdio::null())
        .output()
        .map_err(LabError::io("running ldd"))?;
    let text = String::from_utf8_lossy(&out.stdout);
    parse_ldd(&text).map_err(|library| {
        LabError::missing(format!("library {library}"), "a program of the guests links it")
    })
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

/// Path in the guest of a file of the host: bin, sbin, lib and lib64 are links into usr there.
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

pub(crate) fn initramfs(base: &Path, files: &BTreeMap<String, PathBuf>) -> Result<Vec<u8>, LabError> {
    let read = |path: &Path| fs::read(path).map_err(LabError::at("reading", path));
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
    let order = fs::read_to_string(&order).map_err(LabError::at("reading", &order))?;
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
}
