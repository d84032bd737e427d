//! What the lab needs of the host, and its installation.

use std::fs::OpenOptions;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::LabError;
use crate::image;
use crate::process::{find_program, ip, run};

/// Programs and files of the host, and the Debian package of each. Most of them go into the guests as well.
const NEEDED: &[(&str, &str)] = &[
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("ip", "iproute2"),
    ("rdma", "iproute2"),
    ("depmod", "kmod"),
    ("xz", "xz-utils"),
    ("tar", "tar"),
    ("ldd", "libc-bin"),
    ("bash", "bash"),
    ("stdbuf", "coreutils"),
    ("ping", "iputils-ping"),
    ("ibv_devinfo", "ibverbs-utils"),
    ("/etc/libibverbs.d/rxe.driver", "ibverbs-providers"),
    ("ib_send_bw", "perftest"),
    ("rping", "rdmacm-utils"),
];

const HOW: &str = "`softroce install` gets it";

fn missing_packages() -> Vec<&'static str> {
    let mut missing: Vec<&str> = NEEDED
        .iter()
        .filter(|(name, _)| {
            if name.starts_with('/') {
                !Path::new(name).exists()
            } else {
                find_program(name).is_none()
            }
        })
        .map(|(_, package)| *package)
        .collect();
    missing.dedup();
    missing
}

/// Checks whether a lab can be started here. [`LabError::Missing`] names the first thing that this machine lacks: root,
/// /dev/net/tun, a package, the guests' kernel in the default cache, the right to make network namespaces.
pub fn available() -> Result<(), LabError> {
    machine_fits()?;
    if let Some(package) = missing_packages().first() {
        return Err(LabError::missing(format!("Debian package {package}"), HOW));
    }
    if !image::has_kernel(&image::default_cache()) {
        return Err(LabError::missing("the kernel of the virtual machines", HOW));
    }
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let count = NEXT.fetch_add(1, Ordering::Relaxed);
    let probe = format!("crn-{}-probe-{count}", std::process::id());
    ip(&format!("netns add {probe}"))
        .and_then(|_| ip(&format!("netns del {probe}")))
        .map_err(|e| LabError::missing("the right to make network namespaces", e.to_string()))?;
    Ok(())
}

fn machine_fits() -> Result<(), LabError> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        let remedy = "the lab's machines share the programs of the host";
        return Err(LabError::missing("Linux on x86-64", remedy));
    }
    if !nix::unistd::Uid::effective().is_root() {
        let remedy = "network namespaces and tap devices are root's";
        return Err(LabError::missing("root", remedy));
    }
    OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/net/tun")
        .map_err(|e| LabError::missing("/dev/net/tun", format!("{e}; modprobe tun")))?;
    Ok(())
}

/// Installs missing packages, and fetches the guests' kernel into the default cache. Reports each step to `progress`.
/// Fails if apt-get is missing or fails, or the machine lacks something that no package has.
pub fn install(progress: &dyn Fn(&str)) -> Result<(), LabError> {
    machine_fits()?;
    if find_program("apt-get").is_none() {
        let remedy = "the lab is built from Debian packages";
        return Err(LabError::missing("apt-get", remedy));
    }
    let missing = missing_packages();
    if !missing.is_empty() {
        progress(&format!("installing {}", missing.join(", ")));
        update()?;
        run(Command::new("apt-get")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .args(["install", "-y", "-qq", "--no-install-recommends"])
            .args(&missing))?;
        if let Some(package) = missing_packages().first() {
            return Err(LabError::package(
                format!("package {package}"),
                "is installed, and lacks a program that the lab needs",
            ));
        }
    }
    image::fetch_kernel_once(&image::default_cache(), progress)
}

pub(crate) fn update() -> Result<(), LabError> {
    run(Command::new("apt-get").args(["update", "-qq"])).map(|_| ())
}
