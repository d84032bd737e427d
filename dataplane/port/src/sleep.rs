//! Sleeping until there is work. A sender pays no system call while the receiver is awake.
//!
//! Each wake source has an event: a flag that says whether a thread sleeps, and an event descriptor. A sender
//! reads the flag after it has published its frame, and writes to the descriptor only if the flag is set.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use arrayvec::ArrayVec;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{getsockopt, sockopt};
use nix::sys::time::TimeSpec;

/// Most sources of a sleeper: an event and a file descriptor per port, commands, and rings from other workers.
const SOURCES_MAX: usize = 256;

/// Sleep flag and event descriptor of a source. The descriptor is created before the first sleep.
#[derive(Debug, Default)]
pub(crate) struct WakeEvent {
    asleep: AtomicBool,
    event: OnceLock<EventFd>,
}

impl WakeEvent {
    /// Wakes the sleeper if it sleeps. The work must be published before.
    pub(crate) fn wake(&self) {
        // Pairs with the fence in `Sleeper::sleep`: either the sleeper sees the work, or this thread sees the flag.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed)
            && self.asleep.swap(false, Ordering::Relaxed)
            && let Some(event) = self.event.get()
        {
            // A write of 1 fails only if the counter is full, in which case the sleeper wakes as well.
            let _ = event.write(1);
        }
    }

    fn prepare(&self) -> io::Result<()> {
        if self.event.get().is_none() {
            let event = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
            let _ = self.event.set(event);
        }
        Ok(())
    }
}

/// Wakes the thread that sleeps in a [`Sleeper`]. Cheap while that thread is awake.
#[derive(Clone, Debug)]
pub struct Waker(Arc<WakeEvent>);

impl Waker {
    /// Wakes the sleeper if it sleeps; otherwise its next sleep is not affected. Publish the work before.
    pub fn wake(&self) {
        self.0.wake();
    }
}

/// A file that wakes a sleeper when it is readable. Its owner can replace it, but not while the sleeper sleeps.
#[derive(Clone, Debug)]
pub(crate) struct WakeFile(Arc<Mutex<Option<Arc<OwnedFd>>>>);

impl WakeFile {
    pub(crate) fn new(file: Option<Arc<OwnedFd>>) -> Self {
        Self(Arc::new(Mutex::new(file)))
    }

    pub(crate) fn set(&self, file: Option<Arc<OwnedFd>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = file;
    }

    fn get(&self) -> Option<Arc<OwnedFd>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Lets one thread sleep until one of its sources has work.
#[derive(Debug)]
pub struct Sleeper {
    events: Vec<Arc<WakeEvent>>,
    files: Vec<WakeFile>,
    own_event: Arc<WakeEvent>,
}

impl Sleeper {
    /// Creates a sleeper whose only source is its [`Waker`].
    ///
    /// # Errors
    /// The process has no free file descriptor.
    pub fn new() -> io::Result<Self> {
        let own_event = Arc::new(WakeEvent::default());
        let mut sleeper = Self {
            events: Vec::new(),
            files: Vec::new(),
            own_event: own_event.clone(),
        };
        sleeper.add_event(own_event)?;
        Ok(sleeper)
    }

    /// A handle that wakes the sleeper from any thread.
    pub fn waker(&self) -> Waker {
        Waker(self.own_event.clone())
    }

    /// Adds a file that wakes the sleeper when it is readable.
    ///
    /// # Errors
    /// Too many sources.
    pub fn add_file(&mut self, file: Arc<OwnedFd>) -> io::Result<()> {
        self.add_wake_file(WakeFile::new(Some(file)))
    }

    pub(crate) fn add_wake_file(&mut self, file: WakeFile) -> io::Result<()> {
        self.check_capacity()?;
        self.files.push(file);
        Ok(())
    }

    pub(crate) fn add_event(&mut self, wake_event: Arc<WakeEvent>) -> io::Result<()> {
        self.check_capacity()?;
        wake_event.prepare()?;
        if !self.events.iter().any(|known| Arc::ptr_eq(known, &wake_event)) {
            self.events.push(wake_event);
        }
        Ok(())
    }

    fn check_capacity(&self) -> io::Result<()> {
        if self.events.len() + self.files.len() < SOURCES_MAX {
            return Ok(());
        }
        Err(io::Error::new(
            io::ErrorKind::QuotaExceeded,
            format!("more than {SOURCES_MAX} sources for one sleeper"),
        ))
    }

    /// Sleeps until a source has work, a waker is used, or `timeout` has passed; spurious wakeups are possible. `ready` must
    /// check everything that the thread may have to do; if it returns true, the thread does not sleep.
    pub fn sleep(&mut self, timeout: Duration, ready: impl FnOnce() -> bool) {
        for wake_event in &self.events {
            wake_event.asleep.store(true, Ordering::Relaxed);
        }
        // Pairs with the fence in `WakeEvent::wake`.
        fence(Ordering::SeqCst);
        if !ready() {
            self.poll(timeout);
        }
        for wake_event in &self.events {
            // A thread that has cleared the flag writes to the descriptor. The only effect is that the next
            // sleep is short.
            if !wake_event.asleep.swap(false, Ordering::Relaxed)
                && let Some(event) = wake_event.event.get()
            {
                let _ = event.read();
            }
        }
    }

    fn poll(&self, timeout: Duration) {
        let files: ArrayVec<_, SOURCES_MAX> = self.files.iter().filter_map(WakeFile::get).collect();
        let mut fds = ArrayVec::<PollFd<'_>, SOURCES_MAX>::new();
        let events = self.events.iter().filter_map(|b| b.event.get()).map(AsFd::as_fd);
        fds.extend(
            events
                .chain(files.iter().map(|f| f.as_fd()))
                .map(|fd| PollFd::new(fd, PollFlags::POLLIN)),
        );
        // A signal may end the sleep early. Other errors cannot occur with descriptors that are open.
        let _ = ppoll(&mut fds, Some(TimeSpec::from_duration(timeout)), None);
        // A socket whose interface went down stays readable until its error is read, which would prevent any sleep.
        for (fd, file) in fds.iter().rev().zip(files.iter().rev()) {
            if fd.revents().is_some_and(|r| r.contains(PollFlags::POLLERR)) {
                let _ = getsockopt(file, sockopt::SocketError);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_wake_while_asleep_ends_the_sleep_and_ready_prevents_it() {
        let mut sleeper = Sleeper::new().unwrap();
        let start = Instant::now();
        sleeper.sleep(Duration::from_secs(60), || true);
        let waker = sleeper.waker();
        let thread = std::thread::spawn(move || {
            while !waker.0.asleep.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            waker.wake();
        });
        sleeper.sleep(Duration::from_secs(60), || false);
        thread.join().unwrap();
        assert!(start.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_sleep_ends_at_its_timeout() {
        let mut sleeper = Sleeper::new().unwrap();
        let start = Instant::now();
        sleeper.sleep(Duration::from_millis(5), || false);
        assert!(start.elapsed() >= Duration::from_millis(5));
    }
}
