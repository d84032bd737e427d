//! A machine of a lab.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::error::LabError;
use crate::job::{Job, Output};
use crate::machine::console_tail;
use crate::network::{data_ip, data_mac, data_tap, management_ip};
use crate::process::Process;

/// Time-out of an answer. It is long because many machines share few cores.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// A machine of a lab, whether this process holds the lab or another does. Clones are the same machine.
#[derive(Clone, Debug)]
pub struct Host {
    index: usize,
    name: String,
    tap: String,
    directory: PathBuf,
    exchange: PathBuf,
    qemu: Process,
}

impl Host {
    pub(crate) fn new(index: usize, lab: &Path, qemu: Process) -> Self {
        let name = name(index);
        Self {
            index,
            tap: data_tap(index),
            directory: lab.join(&name),
            exchange: lab.join("share").join(&name),
            name,
            qemu,
        }
    }

    /// Its number, from 1.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Its name, h1 for the first.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The address of `eth0` and of the RDMA device `rxe0`, whose GID 1 it is.
    pub fn ip(&self) -> Ipv4Addr {
        data_ip(self.index)
    }

    /// The address of `eth1`.
    pub fn management_ip(&self) -> Ipv4Addr {
        management_ip(self.index)
    }

    /// The MAC address of `eth0`.
    pub fn mac(&self) -> [u8; 6] {
        data_mac(self.index)
    }

    /// The interface of the lab's namespace that is the other end of `eth0`.
    pub fn tap(&self) -> &str {
        &self.tap
    }

    /// Runs a script with bash, as root, in /root, without input, and waits for its end. Kills it after the time-out,
    /// with [`LabError::Timeout`] and its output; [`LabError::Guest`] if the machine is gone. A failing script is no
    /// error: see [`Output::code`].
    pub fn run(&self, script: &str, timeout: Duration) -> Result<Output, LabError> {
        let mut job = self.spawn(script)?;
        let result = job.wait(timeout);
        if matches!(result, Err(LabError::Timeout { .. })) {
            job.kill()?;
        }
        result
    }

    /// Starts a script, as [`Host::run`] does, and returns as soon as the machine has taken it. Any number may run at
    /// once. Fails with [`LabError::Guest`] if the machine is gone.
    pub fn spawn(&self, script: &str) -> Result<Job, LabError> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let file = self.exchange().join(format!("{id}.sh"));
        fs::write(&file, script).map_err(LabError::at("writing", &file))?;
        self.tell("run", &id, "begun")?;
        Ok(Job::new(self.clone(), id))
    }

    /// Cuts the power: kills QEMU with SIGKILL. The tap stays, without carrier.
    pub fn kill_power(&self) {
        self.qemu.signal(Signal::SIGKILL);
    }

    /// Whether its QEMU runs.
    pub fn is_up(&self) -> bool {
        self.qemu.lives()
    }

    /// The last lines of its console.
    pub fn console(&self) -> String {
        console_tail(&self.directory)
    }

    /// A socket that is a terminal line with a shell at its other end. One user at a time.
    pub fn shell_socket(&self) -> PathBuf {
        self.directory.join("shell.sock")
    }

    pub(crate) fn exchange(&self) -> &Path {
        &self.exchange
    }

    pub(crate) fn gone(&self) -> LabError {
        self.fault("the machine is gone")
    }

    fn fault(&self, why: &str) -> LabError {
        LabError::Guest {
            host: self.name.clone(),
            why: why.to_owned(),
            console: self.console(),
        }
    }

    /// Sends `verb id` to the machine's agent, and waits for `answer id`. The line is locked meanwhile: bytes that a
    /// client has not read are lost for the next one.
    pub(crate) fn tell(&self, verb: &str, id: &str, answer: &str) -> Result<(), LabError> {
        if !self.is_up() {
            return Err(self.gone());
        }
        let directory = &self.directory;
        let lock = directory.join("agent.lock");
        let lock = File::create(&lock).map_err(LabError::at("making", &lock))?;
        lock.lock().map_err(LabError::io("locking a machine's line"))?;
        let talk = || -> std::io::Result<bool> {
            let mut line = UnixStream::connect(directory.join("agent.sock"))?;
            line.write_all(format!("{verb} {id}\n").as_bytes())?;
            let deadline = Instant::now() + ANSWER_WITHIN;
            let mut answers = BufReader::new(line);
            let mut text = String::new();
            loop {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Ok(false);
                }
                answers.get_ref().set_read_timeout(Some(left))?;
                match answers.read_line(&mut text) {
                    Ok(0) => return Ok(false),
                    Ok(_) if text.trim() == format!("{answer} {id}") => return Ok(true),
                    // An answer to an earlier client.
                    Ok(_) => text.clear(),
                    Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return Ok(false),
                    Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(e),
                }
            }
        };
        match talk() {
            Ok(true) => Ok(()),
            _ if !self.is_up() => Err(self.gone()),
            Ok(false) => Err(self.fault(&format!("does not answer `{verb}`"))),
            Err(e) => Err(self.fault(&format!("does not answer `{verb}`: {e}"))),
        }
    }
}

pub(crate) fn name(index: usize) -> String {
    format!("h{index}")
}
