//! A lab: its machines and their network.

use std::ffi::OsStr;
use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::error::LabError;
use crate::host::{Host, name};
use crate::image::{self, Image};
use crate::machine::{Machine, console_tail};
use crate::network::{self, MANAGEMENT_IP};
use crate::process::{Process, inside};
use crate::rootfs;
use crate::state::{LabState, TAKE_DOWN, make_labs_folder, sweep, take_down_parts};
use crate::watch::Watch;

/// The most machines that a lab has.
pub const HOSTS_MAX: usize = 16;

/// Configuration of a lab.
#[derive(Clone, Debug)]
pub struct LabConfig {
    /// The number of machines, 1 to [`HOSTS_MAX`].
    pub hosts: usize,
    /// The MTU of their data interfaces. 1500 gives rxe a path MTU of 1024; 4200 gives 4096.
    pub mtu: u32,
    /// The memory of each machine; 160 is the least that boots.
    pub memory_mib: u32,
    /// How long all machines together may take to come up.
    pub boot_timeout: Duration,
    /// Folder of images; `None`: [`image::default_cache`].
    pub cache: Option<PathBuf>,
    /// Whether a plain Linux bridge joins the taps, for a lab without a switch of ours.
    pub bridge: bool,
    /// The lab's name and that of its network namespace; `None`: an unused one.
    pub name: Option<String>,
}

impl Default for LabConfig {
    fn default() -> Self {
        Self {
            hosts: 2,
            mtu: 1500,
            memory_mib: 192,
            boot_timeout: Duration::from_secs(300),
            cache: None,
            bridge: false,
            name: None,
        }
    }
}

impl LabConfig {
    fn check(&self) -> Result<(), LabError> {
        let Self {
            hosts,
            mtu,
            memory_mib,
            ..
        } = self;
        if !(1..=HOSTS_MAX).contains(hosts) {
            return Err(LabError::Config(format!(
                "a lab has 1 to {HOSTS_MAX} hosts, not {hosts}"
            )));
        }
        if !(576..=9000).contains(mtu) {
            return Err(LabError::Config(format!("an MTU is 576 to 9000, not {mtu}")));
        }
        if *memory_mib < 160 {
            return Err(LabError::Config(format!(
                "a machine needs 160 MiB to boot, not {memory_mib}"
            )));
        }
        if let Some(name) = &self.name {
            let fits = name.len() <= 32
                && name.starts_with(|c: char| c.is_ascii_alphanumeric())
                && name
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
            if !fits {
                return Err(LabError::Config(format!(
                    "{name:?} is no name: up to 32 of a-z A-Z 0-9 - _"
                )));
            }
        }
        Ok(())
    }
}

/// A running lab. It is removed when this is dropped, or when the process ends in any way.
#[derive(Debug)]
pub struct Lab {
    parts: Parts,
    hosts: Vec<Host>,
    boot_time: Duration,
    image: Image,
}

/// Removed when this is dropped.
#[derive(Debug)]
struct Parts {
    name: String,
    directory: PathBuf,
    machines: Vec<Child>,
    reaper: Option<Reaper>,
}

/// Removes the lab when its owner ends: it reads from a pipe that only the owner holds.
#[derive(Debug)]
struct Reaper {
    child: Child,
    pipe: Option<ChildStdin>,
}

impl Reaper {
    fn start(name: &str, directory: &Path) -> Result<Self, LabError> {
        let script = format!("trap '' HUP INT TERM\nwhile read -r line; do :; done\n{TAKE_DOWN}");
        let mut child = Command::new("sh")
            .args(["-c", &script, "softroce-reaper", name])
            .arg(directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .current_dir("/")
            // Ctrl-C at a terminal is for the owner.
            .process_group(0)
            .spawn()
            .map_err(LabError::io("starting the lab's reaper"))?;
        let pipe = child.stdin.take();
        Ok(Self { child, pipe })
    }
}

impl Parts {
    fn take_down(&mut self) -> Result<(), LabError> {
        for machine in &mut self.machines {
            // It may have ended.
            let _ = machine.kill();
        }
        for machine in &mut self.machines {
            let _ = machine.wait();
        }
        self.machines.clear();
        let Some(mut reaper) = self.reaper.take() else {
            return Ok(());
        };
        drop(reaper.pipe.take());
        let done = reaper.child.wait().is_ok_and(|status| status.success());
        if done {
            return Ok(());
        }
        take_down_parts(&self.name, &self.directory)
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        // `softroce ps` shows what could not be removed.
        let _ = self.take_down();
    }
}

impl Lab {
    /// Boots all machines at once, and returns when each has its RDMA device up and takes scripts. If there is no
    /// image, it is built first, in some seconds. Fails with [`LabError::Config`]; [`LabError::Missing`] as of
    /// [`crate::available`]; [`LabError::Boot`] with the end of the console of a machine that did not come up.
    pub fn start(config: &LabConfig) -> Result<Self, LabError> {
        Self::start_with(config, &|_| ())
    }

    /// [`Lab::start`] that reports each step to `progress`.
    pub fn start_with(config: &LabConfig, progress: &dyn Fn(&str)) -> Result<Self, LabError> {
        config.check()?;
        let image = image::image(config.cache.as_deref(), false, progress)?;
        sweep();
        let began = Instant::now();
        let mut parts = Self::begin(config)?;
        let state = LabState {
            name: parts.name.clone(),
            hosts: config.hosts,
            mtu: config.mtu,
            bridge: config.bridge,
            ready: false,
            directory: parts.directory.clone(),
            owner: Process::of(std::process::id())
                .ok_or_else(|| LabError::missing("/proc", "the lab knows its owner by it"))?,
        };
        state.write()?;
        network::build(&parts.name, config.hosts, config.mtu, config.bridge)?;
        let watch_folders: Vec<PathBuf> = (1..=config.hosts).map(|n| parts.exchange(n)).collect();
        for index in 1..=config.hosts {
            parts.make_folders(index)?;
        }
        let watch = Watch::new(watch_folders.iter().map(PathBuf::as_path))?;
        progress(&format!("booting {} machines", config.hosts));
        let hosts = (1..=config.hosts)
            .map(|index| parts.start_machine(index, config, &image))
            .collect::<Result<Vec<_>, _>>()?;
        parts.wait_until_ready(&hosts, &watch, began, config, progress)?;
        LabState { ready: true, ..state }.write()?;
        Ok(Self {
            parts,
            hosts,
            boot_time: began.elapsed(),
            image,
        })
    }

    fn begin(config: &LabConfig) -> Result<Parts, LabError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = config.name.clone().unwrap_or_else(|| {
            let count = NEXT.fetch_add(1, Ordering::Relaxed);
            format!("crn-{}-{count}", std::process::id())
        });
        let directory = make_labs_folder()?.join(&name);
        fs::create_dir(&directory).map_err(|e| match e.kind() {
            std::io::ErrorKind::AlreadyExists => LabError::Config(format!("there is a lab {name} already")),
            _ => LabError::at("making", &directory)(e),
        })?;
        if Path::new("/run/netns").join(&name).exists() {
            let _ = fs::remove_dir(&directory);
            return Err(LabError::Config(format!(
                "there is a network namespace {name} already"
            )));
        }
        let reaper = Reaper::start(&name, &directory)?;
        let parts = Parts {
            name,
            directory,
            machines: Vec::new(),
            reaper: Some(reaper),
        };
        for folder in ["share/bin", "share/lib"].map(|name| parts.directory.join(name)) {
            fs::create_dir_all(&folder).map_err(LabError::at("making", &folder))?;
        }
        Ok(parts)
    }

    /// The network namespace that the taps are in, which is also the lab's name.
    pub fn netns(&self) -> &str {
        &self.parts.name
    }

    /// The lab's folder; it goes with the lab. `share` in it is what the machines see at /share.
    pub fn directory(&self) -> &Path {
        &self.parts.directory
    }

    /// The machines.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The machine of this number, from 1.
    ///
    /// # Panics
    ///
    /// There is no such machine.
    pub fn host(&self, index_from_1: usize) -> &Host {
        &self.hosts[index_from_1 - 1]
    }

    /// Copies a program, or any file, with the libraries that it links, to a folder in the PATH of all machines, and
    /// returns its path there. A program must be for the C library of this machine, or static. Fails if it cannot be
    /// copied, or a library is missing.
    pub fn share(&self, program: &Path) -> Result<String, LabError> {
        let fault = |e| LabError::at("sharing", program)(e);
        let name = program
            .file_name()
            .ok_or_else(|| LabError::Config(format!("{} is no file", program.display())))?
            .to_string_lossy();
        for library in rootfs::libraries_beside(program)? {
            let name = library.file_name().unwrap_or_default().to_string_lossy();
            self.copy(&library, "lib", &name).map_err(fault)?;
        }
        self.copy(program, "bin", &name).map_err(fault)?;
        Ok(format!("/share/bin/{name}"))
    }

    /// Copies a file to `name` in this folder of the share, by rename: a machine may run an earlier one.
    fn copy(&self, file: &Path, folder: &str, name: &str) -> std::io::Result<()> {
        let folder = self.parts.directory.join("share").join(folder);
        let new = folder.join(format!(".{name}.new"));
        fs::copy(file, &new)?;
        fs::rename(&new, folder.join(name))
    }

    /// The address at which machines reach what runs in the lab's namespace, past the switch under test.
    pub fn management_ip(&self) -> Ipv4Addr {
        MANAGEMENT_IP
    }

    /// Time from the first step until the last machine was ready, without the building of an image.
    pub fn boot_time(&self) -> Duration {
        self.boot_time
    }

    /// The version of the machines' kernel, such as 6.1.0-56-amd64.
    pub fn kernel_version(&self) -> &str {
        self.image.version()
    }

    /// A command in the lab's network namespace. Everything that runs there is killed when the lab ends.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        inside(&self.parts.name, program)
    }

    /// Removes the lab, as dropping it does. Fails if a part cannot be removed.
    pub fn stop(mut self) -> Result<(), LabError> {
        self.parts.take_down()
    }
}

impl Parts {
    fn exchange(&self, index: usize) -> PathBuf {
        self.directory.join("share").join(name(index))
    }

    fn make_folders(&self, index: usize) -> Result<(), LabError> {
        for folder in [self.exchange(index), self.directory.join(name(index))] {
            fs::create_dir_all(&folder).map_err(LabError::at("making", &folder))?;
        }
        Ok(())
    }

    fn start_machine(&mut self, index: usize, config: &LabConfig, image: &Image) -> Result<Host, LabError> {
        let directory = self.directory.join(name(index));
        let machine = Machine {
            index,
            netns: &self.name,
            mtu: config.mtu,
            memory_mib: config.memory_mib,
            directory: &directory,
            share: &self.directory.join("share"),
        };
        let child = machine.start(image)?;
        let pid = child.id();
        self.machines.push(child);
        let qemu = Process::of(pid).ok_or_else(|| self.boot_fault(index, "its QEMU ended at once"))?;
        let file = directory.join("qemu.json");
        fs::write(&file, serde_json::to_vec(&qemu).expect("plain data"))
            .map_err(LabError::at("writing", &file))?;
        Ok(Host::new(index, &self.directory, qemu))
    }

    fn wait_until_ready(
        &self,
        hosts: &[Host],
        watch: &Watch,
        began: Instant,
        config: &LabConfig,
        progress: &dyn Fn(&str),
    ) -> Result<(), LabError> {
        let deadline = began + config.boot_timeout;
        let mut waiting: Vec<&Host> = hosts.iter().collect();
        loop {
            waiting.retain(|host| {
                let ready = host.exchange().join("ready").exists();
                if ready {
                    let seconds = began.elapsed().as_secs_f32();
                    progress(&format!("{} is ready after {seconds:.1} s", host.name()));
                }
                !ready
            });
            if waiting.is_empty() {
                return Ok(());
            }
            if let Some(dead) = waiting.iter().find(|host| !host.is_up()) {
                return Err(self.boot_fault(dead.index(), "its QEMU ended"));
            }
            if Instant::now() >= deadline {
                let why = format!("not ready after {:?}", config.boot_timeout);
                return Err(self.boot_fault(waiting[0].index(), &why));
            }
            watch.wait(deadline)?;
        }
    }

    fn boot_fault(&self, index: usize, why: &str) -> LabError {
        LabError::Boot {
            host: name(index),
            why: why.to_owned(),
            console: console_tail(&self.directory.join(name(index))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(config: LabConfig) -> String {
        config.check().expect_err("refused").to_string()
    }

    #[test]
    fn sizes_and_names_are_checked() {
        let default = LabConfig::default;
        assert!(default().check().is_ok());
        assert!(
            refused(LabConfig {
                hosts: 0,
                ..default()
            })
            .contains("1 to 16")
        );
        assert!(
            refused(LabConfig {
                hosts: 17,
                ..default()
            })
            .contains("17")
        );
        assert!(
            refused(LabConfig {
                mtu: 100,
                ..default()
            })
            .contains("MTU")
        );
        assert!(
            refused(LabConfig {
                memory_mib: 64,
                ..default()
            })
            .contains("160 MiB")
        );
        for bad in ["", "../x", "-x", "a b", "a/b"] {
            let config = LabConfig {
                name: Some(bad.into()),
                ..default()
            };
            assert!(refused(config).contains("no name"), "{bad:?}");
        }
    }
}
