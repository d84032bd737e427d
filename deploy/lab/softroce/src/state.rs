//! State of labs on disk, and how a lab is taken down.

use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::error::LabError;
use crate::host::{Host, name};
use crate::process::Process;

/// Removes the lab of namespace $1 and folder $2: processes of the namespace, namespace and interfaces, files. It may
/// run twice, also at the same time.
pub(crate) const TAKE_DOWN: &str = r#"
tries=0
while [ -e "/run/netns/$1" ] || [ -e "/var/run/netns/$1" ]; do
    alive=$(ip netns pids "$1" 2>/dev/null)
    [ -n "$alive" ] || break
    tries=$((tries + 1))
    [ "$tries" -lt 200 ] || break
    kill -KILL $alive 2>/dev/null
    sleep 0.02
done
ip netns del "$1" 2>/dev/null
rm -rf -- "$2"
[ ! -e "/run/netns/$1" ] && [ ! -e "$2" ]
"#;

/// State of a lab.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LabState {
    /// Its name, and that of its network namespace.
    pub name: String,
    /// The number of its machines.
    pub hosts: usize,
    /// The MTU of their data interfaces.
    pub mtu: u32,
    /// Whether a Linux bridge joins them.
    pub bridge: bool,
    /// Whether all machines are up.
    pub ready: bool,
    /// Its folder.
    pub directory: PathBuf,
    pub(crate) owner: Process,
}

impl LabState {
    /// The process that holds the lab.
    pub fn owner_pid(&self) -> i32 {
        self.owner.pid
    }

    /// Whether that process still runs. If not, the lab's reaper removes the lab, or [`take_down`] does.
    pub fn owner_lives(&self) -> bool {
        self.owner.lives()
    }

    /// Writes it into the lab's folder, atomically.
    pub(crate) fn write(&self) -> Result<(), LabError> {
        let file = self.directory.join("lab.json");
        let text = serde_json::to_vec_pretty(self).expect("plain data");
        let new = self.directory.join("lab.new");
        fs::write(&new, text)
            .and_then(|()| fs::rename(&new, &file))
            .map_err(LabError::at("writing", &file))
    }

    /// The program that holds it.
    pub fn owner_program(&self) -> String {
        self.owner.program()
    }

    /// Asks the process that holds it to end, by SIGTERM.
    pub fn end_owner(&self) {
        self.owner.signal(nix::sys::signal::Signal::SIGTERM);
    }
}

/// Only root may write to it.
pub(crate) fn labs_folder() -> PathBuf {
    PathBuf::from("/var/tmp/castnet-softroce")
}

/// Checks owner and mode, too.
pub(crate) fn make_labs_folder() -> Result<PathBuf, LabError> {
    let folder = labs_folder();
    match fs::DirBuilder::new().mode(0o700).create(&folder) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(LabError::at("making", &folder)(e));
        }
        _ => {}
    }
    let metadata = fs::symlink_metadata(&folder).map_err(LabError::at("reading", &folder))?;
    if !metadata.is_dir() || metadata.uid() != 0 || metadata.mode() & 0o022 != 0 {
        return Err(LabError::Config(format!(
            "{} is not a folder that root alone may write to: somebody else has made it",
            folder.display()
        )));
    }
    Ok(folder)
}

/// All labs of this machine, running or left over, by name.
pub fn labs() -> Vec<LabState> {
    let mut labs: Vec<LabState> = fs::read_dir(labs_folder())
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| fs::read(entry.path().join("lab.json")).ok())
        .filter_map(|text| serde_json::from_slice(&text).ok())
        .collect();
    labs.sort_by(|a, b| a.name.cmp(&b.name));
    labs
}

/// The machines of a running lab that another process holds. Fails if the lab is not ready, or gone.
pub fn hosts_of(lab: &LabState) -> Result<Vec<Host>, LabError> {
    (1..=lab.hosts)
        .map(|index| {
            let file = lab.directory.join(name(index)).join("qemu.json");
            let text = fs::read(&file).map_err(LabError::at("reading", &file))?;
            let qemu = serde_json::from_slice(&text).map_err(|e| LabError::Config(e.to_string()))?;
            Ok(Host::new(index, &lab.directory, qemu))
        })
        .collect()
}

/// Kills all processes of a lab's namespace, including its machines, and removes namespace and files.
pub fn take_down(lab: &LabState) -> Result<(), LabError> {
    take_down_parts(&lab.name, &lab.directory)
}

pub(crate) fn take_down_parts(netns: &str, directory: &Path) -> Result<(), LabError> {
    let mut command = Command::new("sh");
    command.args(["-c", TAKE_DOWN, "take-down", netns]).arg(directory);
    let status = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .map_err(LabError::io("running sh"))?;
    if !status.success() {
        return Err(LabError::Config(format!(
            "something is left of the lab {netns}: see `ip netns` and {}",
            directory.display()
        )));
    }
    Ok(())
}

/// Removes labs whose owner and reaper are gone.
pub(crate) fn sweep() {
    for lab in labs().iter().filter(|lab| !lab.owner.lives()) {
        // `softroce ps` shows a lab that cannot be removed.
        let _ = take_down(lab);
    }
}
