//! The tasks of a channel, one at a time.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use hyper::rt::Executor;
use parking_lot::Mutex;

/// Runs the tasks of a channel on the runtime, never two of them at the same time.
///
/// One task hands requests to a connection over an mpsc queue of tokio, and another one takes them. What is put into such a queue
/// while its receiver is dropped on another thread stays there: a call on a connection that ends at that moment would get no answer
/// and no error until the channel is used again.
#[derive(Default)]
pub(super) struct InTurn(Arc<Mutex<()>>);

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Executor<Task> for InTurn {
    fn execute(&self, task: Task) {
        let (turn, mut task) = (self.0.clone(), Some(task));
        tokio::spawn(poll_fn(move |cx| {
            let _turn = turn.lock();
            let polled = task
                .as_mut()
                .map_or(Poll::Ready(()), |task| task.as_mut().poll(cx));
            if polled.is_ready() {
                // In turn as well.
                task = None;
            }
            polled
        }));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::sync::mpsc;
    use tokio::task::yield_now;

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn no_two_tasks_run_at_the_same_time() {
        /// Runs until it is dropped.
        struct Running(Arc<AtomicBool>);

        impl Running {
            fn begin(running: &Arc<AtomicBool>) -> Self {
                assert!(!running.swap(true, Ordering::SeqCst), "beside another one");
                std::thread::yield_now();
                Self(running.clone())
            }
        }

        impl Drop for Running {
            fn drop(&mut self) {
                std::thread::yield_now();
                self.0.store(false, Ordering::SeqCst);
            }
        }

        let (executor, running) = (InTurn::default(), Arc::new(AtomicBool::new(false)));
        let (ended, mut all) = mpsc::unbounded_channel();
        for _ in 0..8 {
            let (running, ended) = (running.clone(), ended.clone());
            executor.execute(Box::pin(async move {
                for _ in 0..200 {
                    drop(Running::begin(&running));
                    yield_now().await;
                }
                ended.send(()).unwrap();
            }));
        }
        drop(ended);
        for n in 0..8 {
            assert!(all.recv().await.is_some(), "{n} of 8 have ended");
        }
    }
}
