//! Sleeping until there is something to do, without a cost for those who send while the sleeper is awake.
//!
//! Each source that can wake a thread has a bell: a flag that says whether somebody sleeps, and an event descriptor. A
//! sender looks at the flag after it has put its frame down; only where somebody sleeps does it make a system call.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arrayvec::ArrayVec;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{getsockopt, sockopt};
use nix::sys::time::TimeSpec;

/// Sources that one sleeper listens to: a port's bell and file descriptor each, commands, and rings from other workers.
const SOURCES_MAX: usize = 256;

/// A source's flag and event descriptor. The descriptor is made when somebody first wants to sleep.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    asleep: AtomicBool,
    event: OnceLock<EventFd>,
}

impl Bell {
    /// Wakes the sleeper, if there is one. What it shall find must have been put down before.
    pub(crate) fn ring(&self) {
        // Pairs with the fence in `Sleeper::sleep`: either the sleeper sees what was put down, or we see its flag.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed)
            && self.asleep.swap(false, Ordering::Relaxed)
            && let Some(event) = self.event.get()
        {
            // The only error of a write of 1 is a full counter, and then the sleeper wakes as well.
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

/// Wakes the thread that sleeps in a [`Sleeper`]. Cheap while it is awake.
#[derive(Clone, Debug)]
pub struct Waker(Arc<Bell>);

impl Waker {
    /// Wakes the sleeper, if it sleeps; otherwise its next sleep is not affected, so put down first what it shall find.
    pub fn wake(&self) {
        self.0.ring();
    }
}

/// Lets one thread sleep until one of its sources has something for it.
#[derive(Debug)]
pub struct Sleeper {
    bells: Vec<Arc<Bell>>,
    files: Vec<Arc<OwnedFd>>,
    own: Arc<Bell>,
}

impl Sleeper {
    /// A sleeper with no source but its own [`Waker`].
    ///
    /// # Errors
    /// The process has no free file descriptor.
    pub fn new() -> io::Result<Self> {
        let own = Arc::new(Bell::default());
        let mut sleeper = Self {
            bells: Vec::new(),
            files: Vec::new(),
            own: own.clone(),
        };
        sleeper.add_bell(own)?;
        Ok(sleeper)
    }

    /// A handle by which any thread can end the sleep.
    pub fn waker(&self) -> Waker {
        Waker(self.own.clone())
    }

    /// Ends the sleep when `file` can be read.
    ///
    /// # Errors
    /// Too many sources.
    pub fn add_file(&mut self, file: Arc<OwnedFd>) -> io::Result<()> {
        self.room()?;
        self.files.push(file);
        Ok(())
    }

    pub(crate) fn add_bell(&mut self, bell: Arc<Bell>) -> io::Result<()> {
        self.room()?;
        bell.prepare()?;
        if !self.bells.iter().any(|known| Arc::ptr_eq(known, &bell)) {
            self.bells.push(bell);
        }
        Ok(())
    }

    fn room(&self) -> io::Result<()> {
        if self.bells.len() + self.files.len() < SOURCES_MAX {
            return Ok(());
        }
        Err(io::Error::new(
            io::ErrorKind::QuotaExceeded,
            format!("more than {SOURCES_MAX} sources for one sleeper"),
        ))
    }

    /// Sleeps until a source has something, a waker is used, or `timeout` is over. `ready` must look at everything that
    /// the thread would have to do; where it says `true`, nobody sleeps.
    ///
    /// Returns early without a reason at times, as all such waits do.
    pub fn sleep(&mut self, timeout: Duration, ready: impl FnOnce() -> bool) {
        for bell in &self.bells {
            bell.asleep.store(true, Ordering::Relaxed);
        }
        // Pairs with the fence in `Bell::ring`.
        fence(Ordering::SeqCst);
        if !ready() {
            self.poll(timeout);
        }
        for bell in &self.bells {
            // Who has taken the flag has rung, or is about to: the event then cuts the next sleep short, and no more.
            if !bell.asleep.swap(false, Ordering::Relaxed)
                && let Some(event) = bell.event.get()
            {
                let _ = event.read();
            }
        }
    }

    fn poll(&self, timeout: Duration) {
        let mut fds = ArrayVec::<PollFd<'_>, SOURCES_MAX>::new();
        let events = self.bells.iter().filter_map(|b| b.event.get()).map(AsFd::as_fd);
        fds.extend(
            events
                .chain(self.files.iter().map(|f| f.as_fd()))
                .map(|fd| PollFd::new(fd, PollFlags::POLLIN)),
        );
        // A signal ends the sleep early, which is allowed; other errors cannot come of descriptors that we own.
        let _ = ppoll(&mut fds, Some(TimeSpec::from_duration(timeout)), None);
        // A socket whose interface went down reports that until it is asked, and would let nobody sleep.
        for (fd, file) in fds.iter().rev().zip(self.files.iter().rev()) {
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
