//! The end of a call, between the runner and the thread that waits.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use castnet_comm::{CommError, Idle, Progress, Spinner};
use castnet_wire::Nanos;

pub(crate) type CallResult = Result<(), CommError>;

/// A call that was submitted. After [`Ticket::is_done`] nothing accesses the memory of the call.
#[derive(Debug, Default)]
pub(crate) struct Ticket {
    is_done: AtomicBool,
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    result: Option<CallResult>,
    waker: Option<Waker>,
    sleeps: bool,
}

thread_local! {
    /// The ticket of this thread's blocking calls, so that they allocate nothing.
    static OWN: RefCell<Option<Arc<Ticket>>> = const { RefCell::new(None) };
}

impl Ticket {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `with` with a ticket that no call uses.
    pub(crate) fn with_own<R>(with: impl FnOnce(&Arc<Self>) -> R) -> R {
        let own = OWN.with(RefCell::take).unwrap_or_default();
        let result = with(&own);
        own.is_done.store(false, Ordering::Relaxed);
        OWN.with(|slot| slot.replace(Some(own)));
        result
    }

    pub(crate) fn is_done(&self) -> bool {
        self.is_done.load(Ordering::Acquire)
    }

    fn end(&self, result: CallResult) {
        let mut state = self.lock();
        state.result = Some(result);
        let waker = state.waker.take();
        self.is_done.store(true, Ordering::Release);
        if state.sleeps {
            self.ended.notify_all();
        }
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Waits for the end. Returns the result once; [`CommError::Aborted`] after that.
    pub(crate) fn wait(&self) -> CallResult {
        self.wait_end().result.take().unwrap_or(Err(CommError::Aborted))
    }

    /// Waits for the end, and leaves the result.
    pub(crate) fn wait_end(&self) -> MutexGuard<'_, State> {
        let (start, mut spinner) = (Instant::now(), Spinner::new(Progress::Adaptive));
        let now = || Nanos(start.elapsed().as_nanos() as u64);
        while !self.is_done() && spinner.idle(now()) != Idle::Sleep {
            let before = now();
            std::thread::yield_now();
            spinner.yielded(before, now());
        }
        let mut state = self.lock();
        loop {
            state.sleeps = !self.is_done();
            if !state.sleeps {
                return state;
            }
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<CallResult> {
        let mut state = self.lock();
        if self.is_done() {
            return Poll::Ready(state.result.take().unwrap_or(Err(CommError::Aborted)));
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

/// The runner's side of a ticket. Dropped without a result, it ends the call: the runner has stopped.
#[derive(Debug)]
pub(crate) struct Completer(Option<Arc<Ticket>>);

impl Completer {
    pub(crate) fn new(ticket: &Arc<Ticket>) -> Self {
        Self(Some(ticket.clone()))
    }

    pub(crate) fn end(mut self, result: CallResult) {
        if let Some(ticket) = self.0.take() {
            ticket.end(result);
        }
    }
}

impl Drop for Completer {
    fn drop(&mut self) {
        if let Some(ticket) = self.0.take() {
            ticket.end(Err(CommError::Interrupted));
        }
    }
}
