//! Labs that run, whoever holds them: what is known of them on disk, and how one is taken down.

use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::error::LabError;
use crate::host::{Host, name};
use crate::process::Process;

/// Takes the lab of namespace $1 and folder $2 away: first all processes of the namespace, then the namespace and its
/// interfaces, then the files. Safe to run twice, and beside another of its kind.
pub(crate) const TAKE_DOWN: &str = r#"
turn=0
while [ -e "/run/netns/$1" ] || [ -e "/var/run/netns/$1" ]; do
    alive=$(ip netns pids "$1" 2>/dev/null)
    [ -n "$alive" ] || break
    turn=$((turn + 1))
    [ "$turn" -lt 200 ] || break
    kill -KILL $alive 2>/dev/null
    sleep 0.02
done
ip netns del "$1" 2>/dev/null
rm -rf -- "$2"
[ ! -e "/run/netns/$1" ] && [ ! -e "$2" ]
"#;

/// What is known of a lab.
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

    /// Whether that process still runs. A lab whose owner is gone is taken down by its reaper within moments, or by
    /// [`take_down`].
    pub fn owner_lives(&self) -> bool {
        self.owner.lives()
    }

    /// Writes it into the lab's folder, whole or not at all.
    pub(crate) fn write(&self) -> Result<(), LabError> {
        let file = self.directory.join("lab.json");
        let text = serde_json::to_vec_pretty(self).expect("plain data");
        let new = self.directory.join("lab.new");
        fs::write(&new, text)
            .and_then(|()| fs::rename(&new, &file))
            .map_err(LabError::io(format!("writing {}", file.display())))
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

/// The folder of all labs; it is root's own, so that nobody else can put a lab into it.
pub(crate) fn labs_folder() -> PathBuf {
    PathBuf::from("/var/tmp/castnet-softroce")
}

/// Makes the folder of all labs, and checks whose it is.
pub(crate) fn make_labs_folder() -> Result<PathBuf, LabError> {
    let folder = labs_folder();
    match fs::DirBuilder::new().mode(0o700).create(&folder) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(LabError::io(format!("making {}", folder.display()))(e));
        }
        _ => {}
    }
    let metadata =
        fs::symlink_metadata(&folder).map_err(LabError::io(format!("reading {}", folder.display())))?;
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

/// The machines of a lab that runs, for a process that does not hold it.
///
/// # Errors
///
/// Where the lab is not ready, or gone.
pub fn hosts_of(lab: &LabState) -> Result<Vec<Host>, LabError> {
    (1..=lab.hosts)
        .map(|index| {
            let file = lab.directory.join(name(index)).join("qemu.json");
            let text = fs::read(&file).map_err(LabError::io(format!("reading {}", file.display())))?;
            let qemu = serde_json::from_slice(&text).map_err(|e| LabError::Config(e.to_string()))?;
            Ok(Host::new(index, &lab.directory, qemu))
        })
        .collect()
}

/// Takes a lab away: kills all processes of its namespace, its machines among them, and removes namespace and files.
///
/// # Errors
///
/// Where something of it is still there afterwards.
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

/// Takes away labs whose owners are gone and whose reapers were killed too.
pub(crate) fn sweep() {
    for lab in labs().iter().filter(|lab| !lab.owner.lives()) {
        // Whoever asked wants a lab of his own; that an old one resists is said by `softroce ps`.
        let _ = take_down(lab);
    }
}
