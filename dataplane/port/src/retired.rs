//! A thread that drops what takes long. The last user of a memory file frees its pages: that takes tens of milliseconds if a peer
//! has filled the file and is gone.

use std::any::Any;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, mpsc};
use std::thread;

use nix::sched::{sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// More than an honest peer causes at once.
const WAITING_MAX: usize = 32;

/// What waits to be dropped for one user of the thread. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Retired(Arc<AtomicUsize>);

struct Item {
    value: Box<dyn Any + Send>,
    waiting: Arc<AtomicUsize>,
}

/// `None` if the thread cannot be started.
static THREAD: LazyLock<Option<mpsc::Sender<Item>>> = LazyLock::new(|| {
    let (sender, items) = mpsc::channel();
    let thread = thread::Builder::new().name("castnet-retired".into());
    thread.spawn(move || run(items)).ok()?;
    Some(sender)
});

fn run(items: mpsc::Receiver<Item>) {
    // The worker that has started this thread may be pinned to its core. The main thread is not.
    if let Ok(cores) = sched_getaffinity(Pid::this()) {
        let _ = sched_setaffinity(Pid::from_raw(0), &cores);
    }
    for Item { value, waiting } in items {
        drop(value);
        waiting.fetch_sub(1, Ordering::Release);
    }
}

impl Retired {
    /// Starts the thread if it does not run yet.
    pub(crate) fn new() -> Self {
        LazyLock::force(&THREAD);
        Self(Arc::default())
    }

    /// Drops a value on the thread, or here if there is none.
    pub(crate) fn put(&self, value: impl Send + 'static) {
        let Some(thread) = &*THREAD else { return };
        self.0.fetch_add(1, Ordering::Relaxed);
        let item = Item {
            value: Box::new(value),
            waiting: self.0.clone(),
        };
        // The thread never ends.
        let _ = thread.send(item);
    }

    /// True if all that was put here has been dropped.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }

    /// True if so much waits that no more should be taken from a peer.
    pub(crate) fn is_full(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= WAITING_MAX
    }
}

/// A value that the thread drops.
#[derive(Debug)]
pub(crate) struct Late<T: Send + 'static> {
    /// `None` only during drop.
    value: Option<T>,
    retired: Retired,
}

impl<T: Send + 'static> Late<T> {
    pub(crate) fn new(value: T, retired: &Retired) -> Self {
        Self {
            value: Some(value),
            retired: retired.clone(),
        }
    }

    /// Where the value will wait.
    pub(crate) fn retired(&self) -> &Retired {
        &self.retired
    }

    /// The value, which is dropped where it is from now on. Always there.
    pub(crate) fn into_inner(mut self) -> Option<T> {
        self.value.take()
    }
}

impl<T: Send + 'static> Deref for Late<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &self.value {
            Some(value) => value,
            None => unreachable!("the value is there until drop"),
        }
    }
}

impl<T: Send + 'static> Drop for Late<T> {
    fn drop(&mut self) {
        if let Some(value) = self.value.take() {
            self.retired.put(value);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Keeps the thread busy until this is dropped.
    pub(crate) fn keep_busy() -> mpsc::Sender<()> {
        struct Wait(mpsc::Receiver<()>);
        impl Drop for Wait {
            fn drop(&mut self) {
                let _ = self.0.recv();
            }
        }
        let (end, ended) = mpsc::channel();
        Retired::new().put(Wait(ended));
        end
    }

    #[test]
    fn values_are_dropped_by_another_thread_and_counted_until_then() {
        struct Probe(mpsc::Sender<thread::ThreadId>);
        impl Drop for Probe {
            fn drop(&mut self) {
                let _ = self.0.send(thread::current().id());
            }
        }
        let (report, reports) = mpsc::channel();
        let (retired, busy) = (Retired::new(), keep_busy());
        for _ in 0..WAITING_MAX {
            assert!(!retired.is_full());
            drop(Late::new(Probe(report.clone()), &retired));
            assert!(!retired.is_empty());
        }
        assert!(retired.is_full() && reports.try_recv().is_err());
        drop(busy);
        for _ in 0..WAITING_MAX {
            assert_ne!(reports.recv().unwrap(), thread::current().id());
        }
        while !retired.is_empty() {
            thread::yield_now();
        }
        drop(Late::new(Probe(report), &retired).into_inner());
        assert_eq!(reports.recv().unwrap(), thread::current().id());
    }
}
