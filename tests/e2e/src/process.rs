//! The `castnet` binary as processes that are waited for by readiness, never by sleeping a guessed time.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How long any one step may take before a test fails.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The binary under test: what CASTNET_BINARY names, or else what this run of `cargo test` has built, or else built now.
pub fn castnet() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        if let Some(path) = std::env::var_os("CASTNET_BINARY") {
            return path.into();
        }
        up_to_date().unwrap_or_else(|| build(&["--package", "castnet-lab"]).expect("the binary under test"))
    })
}

/// `castnet-lab` beside it.
pub fn castnet_lab() -> PathBuf {
    castnet().with_file_name("castnet-lab")
}

/// `castnet` beside this test program, where it and `castnet-lab` are newer than all that they may have been built from. `cargo test --workspace`
/// builds it; building it here once more, without the features that other members ask for, would cost minutes.
fn up_to_date() -> Option<PathBuf> {
    // target/debug/deps/program: cargo puts binaries two folders above.
    let program = std::env::current_exe().ok()?;
    let binary = program.parent()?.parent()?.join("castnet");
    let written = |path: &Path| fs::metadata(path).ok()?.modified().ok();
    let built = written(&binary)?.min(written(&binary.with_file_name("castnet-lab"))?);
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let rooms = [
        "control",
        "dataplane",
        "host",
        "proto",
        "rules",
        "sim",
        "tools",
        "Cargo.lock",
        "Cargo.toml",
    ];
    let older = |room: &&str| changed(&workspace.join(room)).is_some_and(|changed| changed <= built);
    rooms.iter().all(older).then_some(binary)
}

/// When the youngest file below `path` was written, but for tests, their seeds and benches. `None` if that cannot be read.
fn changed(path: &Path) -> Option<SystemTime> {
    if path.is_file() {
        return fs::metadata(path).ok()?.modified().ok();
    }
    let mut youngest = SystemTime::UNIX_EPOCH;
    for entry in fs::read_dir(path).ok()? {
        let path = entry.ok()?.path();
        let skipped = ["tests", "proptest-regressions", "benches"];
        if !skipped.iter().any(|name| path.ends_with(name)) {
            youngest = youngest.max(changed(&path)?);
        }
    }
    Some(youngest)
}

/// Builds `castnet` of this workspace with further `arguments` of `cargo build`, and returns its path.
pub fn build(arguments: &[&str]) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let out = Command::new(cargo)
        .args([
            "build",
            "--quiet",
            "--package",
            "castnet",
            "--message-format",
            "json",
        ])
        .args(arguments)
        .stderr(Stdio::inherit())
        .output()
        .context("running cargo")?;
    ensure!(out.status.success(), "castnet does not build");
    String::from_utf8_lossy(&out.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter_map(|message| message["executable"].as_str().map(PathBuf::from))
        .find(|path| path.file_name().is_some_and(|name| name == "castnet"))
        .context("cargo names no binary")
}

/// A running process whose output goes to a file that a failing test shows. Killed on drop.
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    /// Bytes that earlier processes of this name have written there.
    before: usize,
}

impl Process {
    /// Starts `command`, output into `<folder>/<name>.log`, behind that of an earlier process of the same name.
    pub fn start(name: &str, folder: &Path, mut command: Command) -> Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let out = fs::OpenOptions::new().create(true).append(true).open(&log)?;
        let before = out.metadata()?.len() as usize;
        let child = command
            .stdin(Stdio::null())
            .stderr(out.try_clone()?)
            .stdout(out)
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        Ok(Self {
            name: name.into(),
            child,
            log,
            before,
        })
    }

    /// All that it has printed.
    pub fn output(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(log.get(self.before..).unwrap_or_default()).into_owned()
    }

    /// The same, and what earlier processes of its name have printed.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Its last output in JSON.
    pub fn report(&self) -> Result<serde_json::Value> {
        let output = self.output();
        let report = output
            .lines()
            .rev()
            .find_map(|line| serde_json::from_str(line).ok());
        report.with_context(|| output.clone())
    }

    /// Waits until `ready` says yes; an error if the process ends first or the test's patience does.
    pub fn wait_until(&mut self, what: &str, mut ready: impl FnMut(&Self) -> bool) -> Result<()> {
        let start = Instant::now();
        while !ready(self) {
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended ({status}) before {what}:\n{}", self.name, self.output());
            }
            if start.elapsed() > PATIENCE {
                bail!(
                    "{} took over {PATIENCE:?} until {what}:\n{}",
                    self.name,
                    self.output()
                );
            }
            std::thread::yield_now();
            nix::poll::poll(&mut [], 10u8).ok();
        }
        Ok(())
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if start.elapsed() > PATIENCE {
                bail!(
                    "{} did not end within {PATIENCE:?}:\n{}",
                    self.name,
                    self.output()
                );
            }
            nix::poll::poll(&mut [], 10u8).ok();
        }
    }

    /// Waits for its end, which must be success.
    pub fn succeed(&mut self) -> Result<()> {
        let status = self.wait()?;
        if !status.success() {
            bail!("{} failed ({status}):\n{}", self.name, self.output());
        }
        Ok(())
    }

    /// Stops it where it is, as a debugger would: its sockets stay open, and nobody answers.
    pub fn stop(&self) -> Result<()> {
        self.signal(Signal::SIGSTOP)
    }

    /// Lets it go on.
    pub fn go_on(&self) -> Result<()> {
        self.signal(Signal::SIGCONT)
    }

    /// Asks it to end, as Ctrl-C does.
    pub fn interrupt(&self) -> Result<()> {
        self.signal(Signal::SIGINT)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.child.id().cast_signed());
        kill(pid, signal).with_context(|| format!("{signal} to {}", self.name))
    }

    /// Kills it at once, as `kill -9` does.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
