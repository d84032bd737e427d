//! DPDK's environment (EAL), which is started once per process, its log, and its registered threads.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char};
use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;

use castnet_dpdk_sys as sys;
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

use crate::error::{DpdkError, Reason};

/// The version of DPDK.
pub fn version() -> String {
    // SAFETY: a zero-terminated constant of DPDK.
    text(unsafe { sys::cn_version() })
}

/// Placement of buffers in hugepages. Most PCI devices need hugepages; virtual devices do not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hugepages {
    /// Use hugepages if enough are free.
    #[default]
    Auto,
    /// Require hugepages.
    Yes,
    /// Do not use hugepages.
    No,
}

/// Only the settings of the first start have an effect.
#[derive(Clone, Debug, Default)]
pub(crate) struct EalConfig {
    pub(crate) hugepages: Hugepages,
    /// In total.
    pub(crate) bytes: usize,
    /// With their options. DPDK uses no other PCI devices.
    pub(crate) pci: Vec<String>,
}

/// Proof that the environment runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Eal {
    hugepages: bool,
}

static RUNNING: Mutex<Option<Eal>> = Mutex::new(None);
thread_local! {
    /// Since it was last cleared. DPDK logs in the thread that calls it, and other threads' operations leave it alone.
    static LOG: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}
const LOG_MAX: usize = 16 << 10;
const LOG_LINES: usize = 5;

extern "C" fn log(text: *const c_char, length: usize) {
    // SAFETY: DPDK passes `length` bytes that are valid during this call.
    let bytes = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), length) };
    // A thread that ends may log after its log is gone.
    let _ = LOG.try_with(|log| {
        let mut log = log.borrow_mut();
        let over = (log.len() + length).saturating_sub(LOG_MAX).min(log.len());
        log.drain(..over);
        log.extend(bytes.iter().take(LOG_MAX));
    });
}

/// Called before an operation whose failure must be explained.
pub(crate) fn forget_log() {
    LOG.with_borrow_mut(Vec::clear);
}

/// For a negative return value, which is an error number, or -1 if [`sys::cn_errno`] has it.
pub(crate) fn reason(code: i32) -> Reason {
    // SAFETY: reads a thread-local variable.
    let errno = || unsafe { sys::cn_errno() };
    let code = if code < -1 { -code } else { errno() };
    // SAFETY: any number is allowed. The text is valid until the thread's next call, and is copied.
    let words = text(unsafe { sys::rte_strerror(code) });
    let log = LOG.take();
    let log = String::from_utf8_lossy(&log).into_owned();
    let lines: Vec<_> = log.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    Reason {
        code,
        text: words,
        log: lines[lines.len().saturating_sub(LOG_LINES)..].join("; "),
    }
}

/// `from` must be valid during this call.
pub(crate) fn text(from: *const c_char) -> String {
    if from.is_null() {
        return String::new();
    }
    // SAFETY: not null, and all callers pass zero-terminated strings of DPDK.
    unsafe { CStr::from_ptr(from) }.to_string_lossy().into_owned()
}

impl Eal {
    /// The settings of the first start apply.
    pub(crate) fn start(config: &EalConfig) -> Result<Self, DpdkError> {
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(eal) = *running {
            return Ok(eal);
        }
        let megabytes = config.bytes.div_ceil(1 << 20);
        let free = free_hugepages() >> 20;
        let hugepages = match config.hugepages {
            Hugepages::No => false,
            Hugepages::Auto => free >= megabytes,
            Hugepages::Yes if free >= megabytes => true,
            Hugepages::Yes => {
                return Err(DpdkError::Hugepages {
                    needed: megabytes,
                    free,
                    pages: megabytes.div_ceil(2),
                });
            }
        };
        let arguments = arguments(config, hugepages, megabytes);
        let line = arguments.join(" ");
        // DPDK pins the thread that starts it and the threads created by it, so a separate thread starts it.
        let started = thread::Builder::new()
            .name("castnet-eal".into())
            .spawn(move || init(&arguments))
            .map(|thread| thread.join());
        let no_thread = || Reason {
            code: 0,
            text: "cannot create a thread".to_owned(),
            log: String::new(),
        };
        let started = started.ok().and_then(Result::ok);
        started
            .unwrap_or_else(|| Err(no_thread()))
            .map_err(|reason| DpdkError::Start {
                arguments: line,
                reason,
            })?;
        Ok(*running.insert(Self { hugepages }))
    }

    pub(crate) fn hugepages(self) -> bool {
        self.hugepages
    }
}

fn init(arguments: &[String]) -> Result<(), Reason> {
    forget_log();
    // No argument contains a zero: they are numbers and checked names.
    let owned: Vec<_> = arguments
        .iter()
        .filter_map(|a| CString::new(a.as_str()).ok())
        .collect();
    let mut pointers: Vec<_> = owned.into_iter().map(CString::into_raw).collect();
    let count = pointers.len() as i32;
    pointers.push(std::ptr::null_mut());
    // SAFETY: the sink is a function and exists forever. The arguments are zero-terminated strings in an
    // array terminated by null. They are never freed, because DPDK may reorder and keep them.
    let started = unsafe {
        sys::cn_log_to(log);
        sys::rte_eal_init(count, pointers.leak().as_mut_ptr())
    };
    let outcome = if started < 0 { Err(reason(-1)) } else { Ok(()) };
    // SAFETY: reads a zero-terminated string of DPDK, which exists forever.
    let folder = text(unsafe { sys::rte_eal_get_runtime_dir() });
    remove_empty(Path::new(&folder));
    outcome
}

/// Removes the folder that DPDK makes at each start, such as /run/dpdk/rte, and the one around it. With our arguments it puts nothing there.
/// Those in which other processes have files stay.
fn remove_empty(folder: &Path) {
    for folder in [Some(folder), folder.parent()].into_iter().flatten() {
        let _ = fs::remove_dir(folder);
    }
}

fn arguments(config: &EalConfig, hugepages: bool, megabytes: usize) -> Vec<String> {
    let cores = sched_getaffinity(Pid::from_raw(0)).map_or(vec![0], |set| {
        (0..CpuSet::count())
            .filter(|core| set.is_set(*core).unwrap_or(false))
            .collect()
    });
    let cores: Vec<_> = cores.iter().map(usize::to_string).collect();
    let mut out: Vec<String> = ["castnet", "--no-shconf", "--no-telemetry", "--lcores"]
        .map(str::to_owned)
        .into();
    // One thread of DPDK's own on any core. The workers' threads are registered.
    out.push(format!("0@({})", cores.join(",")));
    if hugepages {
        out.push("--in-memory".to_owned());
    } else {
        out.extend([
            "--no-huge".to_owned(),
            "-m".to_owned(),
            megabytes.max(512).to_string(),
        ]);
    }
    if config.pci.is_empty() {
        out.push("--no-pci".to_owned());
    }
    for device in &config.pci {
        out.extend(["-a".to_owned(), device.clone()]);
    }
    out
}

fn free_hugepages() -> usize {
    let sizes = fs::read_dir("/sys/kernel/mm/hugepages")
        .into_iter()
        .flatten()
        .flatten();
    sizes
        .filter_map(|size| {
            let name = size.file_name().into_string().ok()?;
            let kilobytes: usize = name
                .strip_prefix("hugepages-")?
                .strip_suffix("kB")?
                .parse()
                .ok()?;
            let free = fs::read_to_string(size.path().join("free_hugepages")).ok()?;
            Some(free.trim().parse::<usize>().ok()? * (kilobytes << 10))
        })
        .sum()
}

thread_local! {
    /// [`Registered`] values in this thread.
    static REGISTERED: Cell<usize> = const { Cell::new(0) };
}

/// A registered thread has its own cache in each pool. Without it each buffer costs three times as much.
#[derive(Debug)]
pub(crate) struct Registered {
    /// Makes the type `!Send`: the same thread must unregister.
    _here: std::marker::PhantomData<*const ()>,
}

impl Registered {
    /// [`DpdkError::Thread`] if there are too many: DPDK supports 128 threads by default.
    pub(crate) fn new(_running: Eal) -> Result<Self, DpdkError> {
        if REGISTERED.get() == 0 {
            forget_log();
            // SAFETY: the environment runs, and this thread is not registered.
            let failed = unsafe { sys::rte_thread_register() };
            if failed != 0 {
                return Err(DpdkError::Thread(reason(-1)));
            }
        }
        REGISTERED.set(REGISTERED.get() + 1);
        Ok(Self {
            _here: std::marker::PhantomData,
        })
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        REGISTERED.set(REGISTERED.get() - 1);
        if REGISTERED.get() == 0 {
            // SAFETY: this module registered this thread. Buffers that it still has can be freed without a cache.
            unsafe { sys::rte_thread_unregister() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_threads_leave_the_log_of_a_failure_alone() {
        let refused = "net_null: no such colour\n";
        log(refused.as_ptr().cast(), refused.len());
        let other = thread::spawn(|| {
            forget_log();
            reason(-95).log
        });
        assert_eq!(other.join().unwrap(), "");
        assert_eq!(reason(-95).log, refused.trim());
        assert_eq!(reason(-95).log, "", "told once");
    }

    #[test]
    fn a_folder_with_files_of_others_stays() {
        let run = tempfile::tempdir().unwrap();
        let around = run.path().join("dpdk");
        let (ours, other) = (around.join("rte"), around.join("other"));
        fs::create_dir_all(&ours).unwrap();
        fs::create_dir(&other).unwrap();
        remove_empty(&ours);
        assert!(!ours.exists() && other.exists());
        fs::write(other.join("config"), "").unwrap();
        remove_empty(&other);
        assert!(other.join("config").exists());
        fs::remove_file(other.join("config")).unwrap();
        remove_empty(&other);
        assert!(!around.exists() && run.path().exists());
    }
}
