//! The program itself, built with DPDK, as processes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use castnet_e2e::process;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::PATIENCE;

/// The binary, built with DPDK: what CASTNET_DPDK_BINARY names, or else from this workspace.
pub fn binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("CASTNET_DPDK_BINARY") {
        return Ok(path.into());
    }
    process::build(&["--features", "castnet/dpdk"])
}

/// A process whose output goes into a file, and that is killed when the test forgets it.
pub struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    /// Starts it; what it says goes into `<folder>/<name>.log`.
    pub fn start(name: &str, folder: &Path, mut command: Command) -> Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let out = fs::File::create(&log)?;
        let child = command
            .stdin(Stdio::null())
            .stderr(out.try_clone()?)
            .stdout(out)
            .spawn()?;
        Ok(Self { child, log })
    }

    /// What it has said, whenever that is asked.
    pub fn said(&self) -> impl Fn() -> String + use<> {
        let log = self.log.clone();
        move || fs::read_to_string(&log).unwrap_or_default()
    }

    /// Waits until `ready` says so; an error where the process ends before.
    pub fn wait_until(&mut self, ready: impl Fn() -> bool) -> Result<()> {
        let start = Instant::now();
        while !ready() {
            if let Some(status) = self.child.try_wait()? {
                bail!("it ended with {status} before it was ready");
            }
            ensure!(start.elapsed() < PATIENCE, "it is not ready");
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Asks it to end, which it must do in good order.
    pub fn stop(mut self) -> Result<()> {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM)?;
        let status = self.child.wait()?;
        ensure!(status.success(), "it ended with {status}: {}", self.said()());
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
