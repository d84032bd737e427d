//! Ctrl-C and SIGTERM, as something that can be waited for.

use std::sync::mpsc::{Receiver, channel};
use std::thread;

use castnet_softroce::LabError;
use nix::sys::signal::{SigSet, Signal};

/// Blocks SIGINT, SIGTERM and SIGHUP in this thread and those that it starts, and calls `then` for each that comes. To be
/// called before any other thread is started.
pub(crate) fn on_end(mut then: impl FnMut() + Send + 'static) -> Result<(), LabError> {
    let fault = |e: nix::errno::Errno| LabError::Io {
        what: "blocking signals".into(),
        source: e.into(),
    };
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        signals.add(signal);
    }
    signals.thread_block().map_err(fault)?;
    thread::spawn(move || {
        while signals.wait().is_ok() {
            then();
        }
    });
    Ok(())
}

/// The same, as a channel.
pub(crate) fn ends() -> Result<Receiver<()>, LabError> {
    let (sender, receiver) = channel();
    on_end(move || {
        // Nobody listens any more where the program is about to end anyway.
        let _ = sender.send(());
    })?;
    Ok(receiver)
}
