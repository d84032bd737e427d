//! Waiting for files to change, by inotify(7).

use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use crate::error::LabError;

/// Longest sleep before the caller checks again.
const LOOK_EVERY: Duration = Duration::from_millis(200);

pub(crate) struct Watch {
    inotify: Inotify,
}

impl Watch {
    /// Changes of the folders from here on end a [`Watch::wait`].
    pub(crate) fn new<'a>(folders: impl IntoIterator<Item = &'a Path>) -> Result<Self, LabError> {
        let flags = InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK;
        let inotify = Inotify::init(flags).map_err(LabError::io("starting inotify"))?;
        let changes = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_MODIFY
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_CLOSE_WRITE;
        for folder in folders {
            inotify
                .add_watch(folder, changes)
                .map_err(LabError::at("watching", folder))?;
        }
        Ok(Self { inotify })
    }

    /// Sleeps until something has changed, at most until `deadline`, and at most for a fifth of a second.
    pub(crate) fn wait(&self, deadline: Instant) -> Result<(), LabError> {
        let failed = LabError::io("waiting for files");
        let span = deadline.saturating_duration_since(Instant::now()).min(LOOK_EVERY);
        // One more millisecond, because a poll that ended before the deadline would be repeated at once.
        let span = PollTimeout::try_from(span.as_millis() as u32 + 1).unwrap_or(PollTimeout::ZERO);
        let mut wanted = [PollFd::new(self.inotify.as_fd(), PollFlags::POLLIN)];
        match poll(&mut wanted, span) {
            Ok(0) | Err(Errno::EINTR) => return Ok(()),
            Ok(_) => {}
            Err(e) => return Err(failed(e)),
        }
        loop {
            match self.inotify.read_events() {
                Ok(events) if events.is_empty() => return Ok(()),
                Ok(_) => {}
                Err(Errno::EAGAIN | Errno::EINTR) => return Ok(()),
                Err(e) => return Err(failed(e)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_ends_the_wait_and_a_deadline_does_too() {
        let folder = tempfile::tempdir().expect("a folder");
        let watch = Watch::new([folder.path()]).expect("watched");
        let far = Instant::now() + Duration::from_secs(3600);
        std::fs::write(folder.path().join("x"), "y").expect("written");
        watch.wait(far).expect("waited");
        watch.wait(Instant::now()).expect("waited");
    }
}
