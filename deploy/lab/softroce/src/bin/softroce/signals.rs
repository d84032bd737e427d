//! Waits for Ctrl-C and SIGTERM.

use std::sync::mpsc::{Receiver, channel};
use std::thread;

use castnet_softroce::LabError;
use nix::sys::signal::{SigSet, Signal};

/// Blocks SIGINT, SIGTERM and SIGHUP in this thread and those that it starts, and calls `then` for each. Call it before
/// any other thread is started.
pub(crate) fn on_end(mut then: impl FnMut() + Send + 'static) -> Result<(), LabError> {
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]
        .into_iter()
        .collect();
    signals.thread_block().map_err(LabError::io("blocking signals"))?;
    thread::spawn(move || {
        while signals.wait().is_ok() {
            then();
        }
    });
    Ok(())
}

pub(crate) fn ends() -> Result<Receiver<()>, LabError> {
    let (sender, receiver) = channel();
    on_end(move || {
        let _ = sender.send(());
    })?;
    Ok(receiver)
}
