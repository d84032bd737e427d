//! Debian's kernel and busybox, taken out of their packages without installing them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::LabError;
use crate::modules::{Dependencies, NEEDED, WELCOME};
use crate::packages::update;
use crate::process::run;

/// The package that depends on the newest kernel.
const NEWEST: &str = "linux-image-amd64";

/// Such as linux-image-6.1.0-56-amd64.
fn newest_package() -> Result<String, LabError> {
    let ask = || run(Command::new("apt-cache").args(["depends", NEWEST]));
    let answer = ask().and_then(|text| {
        if text.is_empty() {
            update()?;
            return ask();
        }
        Ok(text)
    });
    let answer = match answer {
        Err(LabError::Command { .. }) => update().and_then(|()| ask())?,
        other => other?,
    };
    parse_depends(&String::from_utf8_lossy(&answer)).ok_or_else(|| {
        LabError::package(
            format!("package {NEWEST}"),
            "depends on no kernel that apt-cache knows of",
        )
    })
}

fn parse_depends(text: &str) -> Option<String> {
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|package| package.starts_with("linux-image-"))
        .map(str::to_owned)
}

fn unpack(package: &str, folder: &Path) -> Result<PathBuf, LabError> {
    let target = folder.join(package);
    fs::create_dir_all(&target).map_err(LabError::at("making", &target))?;
    let download = || {
        run(Command::new("apt-get")
            .args(["-o", "APT::Sandbox::User=root", "-qq", "download", package])
            .current_dir(folder))
    };
    // Outdated lists name files that no longer exist.
    download().or_else(|_| update().and_then(|()| download()))?;
    let prefix = format!("{package}_");
    let deb = list(folder)?
        .into_iter()
        .find(|file| {
            let name = file_name(file);
            name.starts_with(&prefix) && name.ends_with(".deb")
        })
        .ok_or_else(|| LabError::package(format!("package {package}"), "apt-get downloaded nothing"))?;
    run(Command::new("dpkg-deb").arg("-x").arg(&deb).arg(&target))?;
    fs::remove_file(&deb).map_err(LabError::io("removing a package"))?;
    Ok(target)
}

fn list(folder: &Path) -> Result<Vec<PathBuf>, LabError> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .and_then(|entries| entries.map(|e| e.map(|e| e.path())).collect())
        .map_err(LabError::at("reading", folder))?;
    files.sort();
    Ok(files)
}

fn file_name(path: &Path) -> String {
    path.file_name()
        .map(|n| n.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// Fetches the newest kernel into the empty `folder`: `vmlinux`, `busybox`, `modules/NAME.ko`, `modules/order` (lines
/// "needed NAME" or "welcome NAME"). Returns its version, such as 6.1.0-56-amd64.
pub(crate) fn fetch(folder: &Path, progress: &dyn Fn(&str)) -> Result<String, LabError> {
    let package = newest_package()?;
    progress(&format!("fetching {package}"));
    let work = folder.join("work");
    fs::create_dir_all(&work).map_err(LabError::io("making a folder"))?;
    let busybox = unpack("busybox-static", &work)?;
    let found = ["bin/busybox", "usr/bin/busybox"]
        .map(|path| busybox.join(path))
        .into_iter()
        .find(|file| file.exists())
        .ok_or_else(|| LabError::package("package busybox-static", "holds no busybox"))?;
    copy(&found, &folder.join("busybox"))?;

    let root = unpack(&package, &work)?;
    progress(&format!("unpacking {package}"));
    let boot = list(&root.join("boot"))?;
    let kernel = boot
        .iter()
        .find_map(|f| {
            file_name(f)
                .strip_prefix("vmlinuz-")
                .map(|v| (f.clone(), v.to_owned()))
        })
        .ok_or_else(|| LabError::package(format!("package {package}"), "holds no kernel"))?;
    let (vmlinuz, version) = kernel;
    decompress_kernel(&vmlinuz, &folder.join("vmlinux"))?;
    take_modules(&root, &version, &folder.join("modules"))?;
    fs::remove_dir_all(&work).map_err(LabError::io("removing the unpacked packages"))?;
    Ok(version)
}

fn copy(from: &Path, to: &Path) -> Result<(), LabError> {
    fs::copy(from, to)
        .map(|_| ())
        .map_err(LabError::at("copying", from))
}

fn take_modules(root: &Path, version: &str, to: &Path) -> Result<(), LabError> {
    // Debian 13 and later keep modules below usr/lib.
    if !root.join("lib").exists() && root.join("usr/lib/modules").exists() {
        std::os::unix::fs::symlink("usr/lib", root.join("lib")).map_err(LabError::io("linking lib"))?;
    }
    let lib = root.join("lib/modules").join(version);
    run(Command::new("depmod").arg("-b").arg(root).arg(version))?;
    let read = |name: &str| {
        let file = lib.join(name);
        fs::read_to_string(&file).map_err(LabError::at("reading", &file))
    };
    let order =
        Dependencies::parse(&read("modules.dep")?, &read("modules.builtin")?).order(NEEDED, WELCOME)?;
    fs::create_dir_all(to).map_err(LabError::io("making a folder"))?;
    let mut lines = String::new();
    for module in &order {
        let name = module.name();
        decompress_module(&lib.join(&module.path), &to.join(format!("{name}.ko")))?;
        let need = if module.needed { "needed" } else { "welcome" };
        lines.push_str(&format!("{need} {name}\n"));
    }
    fs::write(to.join("order"), lines).map_err(LabError::io("writing the modules' order"))
}

fn decompress_module(from: &Path, to: &Path) -> Result<(), LabError> {
    let program = match from.extension().and_then(|e| e.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => return copy(from, to),
    };
    decompress(program, from, to)
}

/// The bytes of `vmlinuz` that are a compressed kernel, and the program that expands them: the fields setup_sects,
/// payload_offset and payload_length of Linux's x86 boot protocol, Documentation/arch/x86/boot.rst.
fn payload(vmlinuz: &[u8]) -> Option<(&'static str, &[u8])> {
    let word = |at: usize| Some(u32::from_le_bytes(vmlinuz.get(at..at + 4)?.try_into().ok()?) as usize);
    if vmlinuz.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    let setup_sectors = match *vmlinuz.get(0x1f1)? {
        0 => 4,
        n => usize::from(n),
    };
    let start = (setup_sectors + 1).checked_mul(512)?.checked_add(word(0x248)?)?;
    let all = vmlinuz.get(start..start.checked_add(word(0x24c)?)?)?;
    // All except gzip are followed by the expanded length, which their programs refuse.
    let cut = all.get(..all.len().checked_sub(4)?)?;
    match all {
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Some(("xz", cut)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(("zstd", cut)),
        [0x1f, 0x8b, ..] => Some(("gzip", all)),
        _ => None,
    }
}

/// Writes the kernel as an ELF file, which QEMU starts by its PVH entry. Emulated, the kernel's own decompressor takes
/// longer than the rest of the boot.
fn decompress_kernel(vmlinuz: &Path, to: &Path) -> Result<(), LabError> {
    let fault = |why: &str| LabError::package(vmlinuz.display().to_string(), why.to_owned());
    let bytes = fs::read(vmlinuz).map_err(LabError::at("reading", vmlinuz))?;
    let (program, payload) = payload(&bytes).ok_or_else(|| fault("is no kernel of a known compression"))?;
    let packed = to.with_extension("packed");
    fs::write(&packed, payload).map_err(LabError::io("writing the packed kernel"))?;
    decompress(program, &packed, to)?;
    fs::remove_file(&packed).map_err(LabError::io("removing the packed kernel"))?;
    let head = fs::read(to).map_err(LabError::io("reading the kernel"))?;
    if !head.starts_with(b"\x7fELF") {
        return Err(fault("does not expand to an ELF file"));
    }
    Ok(())
}

fn decompress(program: &str, from: &Path, to: &Path) -> Result<(), LabError> {
    let input = fs::File::open(from).map_err(LabError::at("opening", from))?;
    let output = fs::File::create(to).map_err(LabError::at("making", to))?;
    let status = Command::new(program)
        .arg("-dc")
        .stdin(input)
        .stdout(output)
        .stderr(Stdio::null())
        .status()
        .map_err(LabError::io(format!("running {program}")))?;
    if !status.success() {
        return Err(LabError::package(
            from.display().to_string(),
            format!("{program} cannot expand it ({status})"),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_kernel_that_the_newest_depends_on_is_found() {
        let text = "linux-image-amd64\n  Depends: linux-image-6.1.0-56-amd64\n";
        assert_eq!(parse_depends(text).as_deref(), Some("linux-image-6.1.0-56-amd64"));
        assert_eq!(parse_depends("linux-image-amd64\n  Depends: <x>\n"), None);
    }

    fn vmlinuz(setup_sectors: u8, offset: u32, body: &[u8]) -> Vec<u8> {
        let start = (usize::from(setup_sectors) + 1) * 512 + offset as usize;
        let mut bytes = vec![0; start];
        bytes[0x1f1] = setup_sectors;
        bytes[0x202..0x206].copy_from_slice(b"HdrS");
        bytes[0x248..0x24c].copy_from_slice(&offset.to_le_bytes());
        bytes[0x24c..0x250].copy_from_slice(&(body.len() as u32).to_le_bytes());
        bytes.extend_from_slice(body);
        bytes.extend_from_slice(b"what follows");
        bytes
    }

    #[test]
    fn the_payload_is_cut_as_its_compression_asks() {
        let xz = vmlinuz(27, 300, b"\xfd7zXZ\0data\x01\x02\x03\x04");
        assert_eq!(payload(&xz), Some(("xz", &b"\xfd7zXZ\0data"[..])));
        let gzip = vmlinuz(1, 0, b"\x1f\x8bdata");
        assert_eq!(payload(&gzip), Some(("gzip", &b"\x1f\x8bdata"[..])));
        assert_eq!(payload(&vmlinuz(1, 0, b"unknown")), None);
    }

    proptest! {
        #[test]
        fn nothing_that_is_no_kernel_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let _ = payload(&bytes);
        }
    }
}
