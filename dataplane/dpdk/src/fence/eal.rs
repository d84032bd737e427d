//! DPDK's environment: started once in a process, its log, and the threads that it knows.

use std::cell::Cell;
use std::ffi::{CStr, CString, c_char};
use std::fs;
use std::sync::{Mutex, PoisonError};
use std::thread;

use castnet_dpdk_sys as sys;
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

use crate::error::{DpdkError, Reason};

/// DPDK's release, as it names itself.
pub fn version() -> String {
    // SAFETY: a constant of DPDK's, ended by a zero.
    text(unsafe { sys::cn_version() })
}

/// Whether buffers live in hugepages. PCI devices as a rule need them; virtual devices do not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hugepages {
    /// Where enough of them are free.
    #[default]
    Auto,
    /// They must.
    Yes,
    /// They do not.
    No,
}

/// What the environment is started with, if it is the first time.
#[derive(Clone, Debug, Default)]
pub(crate) struct EalConfig {
    pub(crate) hugepages: Hugepages,
    /// Bytes that are needed, all in all.
    pub(crate) bytes: usize,
    /// PCI devices with their options; DPDK touches no others.
    pub(crate) pci: Vec<String>,
}

/// Proof that the environment runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Eal {
    hugepages: bool,
}

static RUNNING: Mutex<Option<Eal>> = Mutex::new(None);

/// What DPDK logged since somebody last looked.
static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());
const LOG_MAX: usize = 16 << 10;
/// Lines of it that an error carries.
const LOG_LINES: usize = 5;

extern "C" fn log(text: *const c_char, length: usize) {
    // SAFETY: DPDK hands over `length` bytes that are there until this returns.
    let bytes = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), length) };
    let mut log = LOG.lock().unwrap_or_else(PoisonError::into_inner);
    let over = (log.len() + length).saturating_sub(LOG_MAX).min(log.len());
    log.drain(..over);
    log.extend(bytes.iter().take(LOG_MAX));
}

/// Forgets what was logged: before something whose failure shall be explained.
pub(crate) fn forget_log() {
    LOG.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

/// The reason for a negative return value, which is an error number, or else for what [`sys::cn_errno`] says.
pub(crate) fn reason(code: i32) -> Reason {
    // SAFETY: reads a variable of this thread.
    let errno = || unsafe { sys::cn_errno() };
    let code = if code < -1 { -code } else { errno() };
    // SAFETY: any number is allowed; the text is this thread's until the next call, and copied.
    let words = text(unsafe { sys::rte_strerror(code) });
    let log = std::mem::take(&mut *LOG.lock().unwrap_or_else(PoisonError::into_inner));
    let log = String::from_utf8_lossy(&log).into_owned();
    let lines: Vec<_> = log.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    Reason {
        code,
        text: words,
        log: lines[lines.len().saturating_sub(LOG_LINES)..].join("; "),
    }
}

/// A C string that lives on at least until this returns.
pub(crate) fn text(from: *const c_char) -> String {
    if from.is_null() {
        return String::new();
    }
    // SAFETY: not null, and all callers hand over strings of DPDK's, which end in a zero.
    unsafe { CStr::from_ptr(from) }.to_string_lossy().into_owned()
}

impl Eal {
    /// Starts the environment, or finds it running; then the settings are those of who came first.
    ///
    /// # Errors
    /// [`DpdkError::Start`], [`DpdkError::Hugepages`].
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
        // DPDK ties the thread that starts it to cores, and that of its threads' children: so it is one of its own.
        let started = thread::Builder::new()
            .name("castnet-eal".into())
            .spawn(move || init(&arguments))
            .map(|thread| thread.join());
        let failed = match started {
            Ok(Ok(Ok(()))) => {
                let eal = Self { hugepages };
                *running = Some(eal);
                return Ok(eal);
            }
            Ok(Ok(Err(reason))) => reason,
            Ok(Err(_)) | Err(_) => Reason {
                code: 0,
                text: "no thread for it".to_owned(),
                log: String::new(),
            },
        };
        Err(DpdkError::Start {
            arguments: line,
            reason: failed,
        })
    }

    /// Whether memory comes in hugepages.
    pub(crate) fn hugepages(self) -> bool {
        self.hugepages
    }
}

fn init(arguments: &[String]) -> Result<(), Reason> {
    forget_log();
    // No argument holds a zero: they are numbers and checked names.
    let owned: Vec<_> = arguments
        .iter()
        .filter_map(|a| CString::new(a.as_str()).ok())
        .collect();
    let mut pointers: Vec<_> = owned.into_iter().map(CString::into_raw).collect();
    let count = pointers.len() as i32;
    pointers.push(std::ptr::null_mut());
    // SAFETY: the sink is a function of this module, which is there for ever. The arguments are strings that end in a
    // zero, in an array that ends in a null; DPDK may reorder and keep them, so they are never freed.
    let started = unsafe {
        sys::cn_log_to(log);
        sys::rte_eal_init(count, pointers.leak().as_mut_ptr())
    };
    if started < 0 { Err(reason(-1)) } else { Ok(()) }
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
    // One thread of DPDK's own, on any core; ours are registered.
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

/// Bytes of hugepages that nobody has taken.
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
    /// How many [`Registered`] of this thread there are.
    static REGISTERED: Cell<usize> = const { Cell::new(0) };
}

/// This thread is known to DPDK, and has caches of its own in all pools; without, each buffer costs three times as much.
#[derive(Debug)]
pub(crate) struct Registered {
    /// It is this thread that must be taken off the list again.
    _here: std::marker::PhantomData<*const ()>,
}

impl Registered {
    /// Registers this thread, if it is not yet.
    ///
    /// # Errors
    /// [`DpdkError::Thread`]: DPDK has room for 128, as a rule.
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
            // SAFETY: this thread is registered, and was by us. Buffers that it still holds may go back without a cache.
            unsafe { sys::rte_thread_unregister() };
        }
    }
}
