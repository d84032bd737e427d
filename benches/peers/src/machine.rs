//! The machine: cores, hugepages, interrupts.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::Pid;

use crate::options;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Makes SIGINT, SIGTERM and SIGHUP end every [`pause`] with an error, for clean-up. Call it before starting threads.
pub fn catch_interrupts() -> Result<()> {
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]
        .into_iter()
        .collect();
    signals.thread_block()?;
    thread::Builder::new().name("interrupts".into()).spawn(move || {
        if signals.wait().is_ok() {
            INTERRUPTED.store(true, Ordering::Relaxed);
        }
    })?;
    Ok(())
}

/// Sleeps, or fails at an interrupt.
pub fn pause(time: Duration) -> Result<()> {
    let start = Instant::now();
    loop {
        check()?;
        let Some(left) = time.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) else {
            return Ok(());
        };
        thread::sleep(left.min(Duration::from_millis(50)));
    }
}

/// Fails after an interrupt.
pub fn check() -> Result<()> {
    ensure!(!INTERRUPTED.load(Ordering::Relaxed), "interrupted");
    Ok(())
}

/// The cores to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cores {
    /// The core of the switch that is measured.
    pub switch: usize,
    /// The core of everything else; the same if there is only one.
    pub other: usize,
}

impl Cores {
    /// The core `asked`, or the last usable one. Fails if the core may not be used.
    pub fn choose(asked: Option<usize>) -> Result<Self> {
        let set = sched_getaffinity(Pid::from_raw(0))?;
        let all: Vec<usize> = (0..CpuSet::count())
            .filter(|&core| set.is_set(core).unwrap_or(false))
            .collect();
        let last = *all.last().context("no core")?;
        let switch = asked.unwrap_or(last);
        ensure!(
            all.contains(&switch),
            "core {switch} is not one of those that may be used here: {all:?}"
        );
        let other = all.iter().copied().find(|&core| core != switch).unwrap_or(switch);
        Ok(Self { switch, other })
    }

    /// Whether they are different.
    pub fn are_two(self) -> bool {
        self.switch != self.other
    }
}

/// Pins this thread, and all processes that it starts, to a core. Fails if the core may not be used.
pub fn pin(core: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(core)?;
    sched_setaffinity(Pid::from_raw(0), &set).with_context(|| format!("going to core {core}"))
}

/// Pages of 2 MiB that the largest switch needs.
const PAGES: usize = 512;

/// Hugepages that are reserved until this is dropped.
#[derive(Debug)]
pub struct Reserved {
    folder: std::path::PathBuf,
    /// The previous number, if it was changed.
    before: Option<usize>,
}

impl Reserved {
    /// Reserves missing pages. `None` without hugepages, with the reason unless that was wanted. Fails if they are
    /// required and cannot be reserved.
    pub fn new(wish: options::Hugepages) -> Result<(Option<Self>, Option<String>)> {
        if wish == options::Hugepages::No {
            return Ok((None, None));
        }
        match Self::at(Path::new("/sys/kernel/mm/hugepages/hugepages-2048kB")) {
            Ok(reserved) => Ok((Some(reserved), None)),
            Err(why) if wish == options::Hugepages::Auto => Ok((None, Some(why.to_string()))),
            Err(why) => Err(why.context("hugepages are asked for")),
        }
    }

    fn at(folder: &Path) -> Result<Self> {
        let (free, all) = (folder.join("free_hugepages"), folder.join("nr_hugepages"));
        let mut reserved = Self {
            folder: folder.to_owned(),
            before: None,
        };
        let there = number(&free)?;
        if there < PAGES {
            let before = number(&all)?;
            fs::write(&all, (before + PAGES - there).to_string())
                .context("reserving hugepages (needs root)")?;
            // They are released if this fails too.
            reserved.before = Some(before);
            let there = number(&free)?;
            ensure!(
                there >= PAGES,
                "{PAGES} hugepages are needed, {there} can be had: memory is full or in pieces"
            );
        }
        Ok(reserved)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            let _ = fs::write(self.folder.join("nr_hugepages"), before.to_string());
        }
    }
}

fn number(file: &Path) -> Result<usize> {
    let text = fs::read_to_string(file).with_context(|| format!("no {}", file.display()))?;
    text.trim()
        .parse()
        .with_context(|| format!("no number in {}", file.display()))
}

/// The processor, how many cores there are, and the kernel.
pub fn describe() -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu
        .lines()
        .find_map(|line| Some(line.strip_prefix("model name")?.split_once(':')?.1.trim()));
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cores = cpu.lines().filter(|line| line.starts_with("processor")).count();
    format!(
        "{}, {cores} cores, Linux {}",
        model.unwrap_or("a processor"),
        kernel.trim()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_given_back() {
        let folder = tempfile::tempdir().expect("a folder");
        let (free, all) = (
            folder.path().join("free_hugepages"),
            folder.path().join("nr_hugepages"),
        );
        fs::write(&free, "40\n").expect("written");
        fs::write(&all, "100\n").expect("written");
        // No kernel makes pages free here, so they cannot be had: what was reserved is given back.
        let why = Reserved::at(folder.path()).expect_err("no pages").to_string();
        assert!(why.contains("512 hugepages are needed, 40"), "{why}");
        assert_eq!(number(&all).expect("a number"), 100);
        fs::write(&free, "600\n").expect("written");
        drop(Reserved::at(folder.path()).expect("there are enough"));
        assert_eq!(number(&all).expect("a number"), 100);
    }

    #[test]
    fn the_core_is_one_that_may_be_used() {
        let cores = Cores::choose(None).expect("cores");
        assert_eq!(Cores::choose(Some(cores.switch)).expect("the same"), cores);
        assert!(Cores::choose(Some(100_000)).is_err());
        assert!(describe().contains("Linux"));
    }
}
