//! Event descriptors that a peer shares: ringing one never blocks.
//!
//! Both processes have the same open file. A peer could fill its counter and make it blocking, also between a check and
//! a `write`, so that the `write` would stop this thread for good. The kernel signals the completion of an
//! asynchronous operation at an event descriptor, too, and that never waits. So [`Bell`] submits an operation that
//! is complete at once.
#![allow(unsafe_code)]

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use libc::{c_long, c_ulong, c_void};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::retired::Late;

/// Operations whose results are not taken yet. The kernel gives twice as many or more.
const RESULTS: usize = 16;
/// Opcode and flag of linux/aio_abi.h: wait for a file to be ready; signal the completion at a descriptor.
const IOCB_CMD_POLL: u16 = 5;
const IOCB_FLAG_RESFD: u32 = 1;

/// `struct iocb` of linux/aio_abi.h on a little-endian machine.
#[repr(C)]
#[derive(Default)]
struct Operation {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    result_file: u32,
}

/// `struct io_event` of linux/aio_abi.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Completion([u64; 4]);

/// Rings event descriptors of peers.
#[derive(Debug)]
pub(super) struct Bell {
    context: c_ulong,
    /// Always readable.
    ready: EventFd,
    results: usize,
}

impl Bell {
    /// # Errors
    /// The kernel has no asynchronous operations, or too many are in use (`/proc/sys/fs/aio-max-nr`).
    pub(super) fn new() -> io::Result<Self> {
        let ready = EventFd::from_value_and_flags(1, EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        let mut context: c_ulong = 0;
        let (results, out) = (RESULTS as c_long, &raw mut context);
        // SAFETY: `io_setup` writes one word at `out`, which is valid and zero as required.
        if unsafe { libc::syscall(libc::SYS_io_setup, results, out) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            context,
            ready,
            results: 0,
        })
    }

    /// Signals `event`.
    pub(super) fn ring(&mut self, event: &Event) {
        if self.results == RESULTS {
            self.take_results();
        }
        let mut operation = Operation {
            opcode: IOCB_CMD_POLL,
            file: self.ready.as_fd().as_raw_fd() as u32,
            buffer: libc::POLLIN as u64,
            flags: IOCB_FLAG_RESFD,
            result_file: event.0.as_raw_fd() as u32,
            ..Operation::default()
        };
        let mut operations = [&raw mut operation];
        // SAFETY: one pointer to one operation, both valid during the call. The operation reads and writes no memory of
        // ours: the kernel copies it, and its result goes to the ring of the context.
        let submitted = unsafe {
            libc::syscall(
                libc::SYS_io_submit,
                self.context,
                1 as c_long,
                operations.as_mut_ptr(),
            )
        };
        if submitted == 1 {
            self.results += 1;
        }
    }

    fn take_results(&mut self) {
        let mut results = [Completion::default(); RESULTS];
        let at_once = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let (none, most) = (0 as c_long, RESULTS as c_long);
        let out = results.as_mut_ptr().cast::<c_void>();
        // SAFETY: `out` has capacity for RESULTS events of this layout, and the time-out is valid during the call.
        unsafe {
            libc::syscall(
                libc::SYS_io_getevents,
                self.context,
                none,
                most,
                out,
                &raw const at_once,
            )
        };
        self.results = 0;
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        // SAFETY: the context was made by `io_setup`, and this is its only owner.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}

/// An event descriptor that a peer has as well. Nothing is ever read from it.
#[derive(Debug)]
pub(super) struct Event(OwnedFd);

impl Event {
    pub(super) fn new() -> io::Result<Self> {
        let event = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        Ok(Self(event.into()))
    }

    /// A peer's descriptor. `None` if it is of another type, or `/proc` is not there to tell.
    pub(super) fn of_peer(fd: Late<OwnedFd>) -> Option<Self> {
        let kind = fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()?;
        let is_event = kind.as_os_str() == "anon_inode:[eventfd]";
        // To close an event descriptor takes no time.
        is_event.then(|| fd.into_inner())?.map(Self)
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::retired::Retired;
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    fn is_rung(event: &Event) -> bool {
        let mut fds = [PollFd::new(event.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).unwrap() == 1
    }

    #[test]
    fn a_bell_rings_any_number_of_times() {
        let (mut bell, mut count) = (Bell::new().unwrap(), [0; 8]);
        let event = Event::new().unwrap();
        assert!(!is_rung(&event));
        for _ in 0..1000 {
            bell.ring(&event);
        }
        nix::unistd::read(&event, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 1000);
    }

    #[test]
    fn an_event_that_a_peer_has_filled_and_made_blocking_stops_nobody() {
        let (mut bell, event) = (Bell::new().unwrap(), Event::new().unwrap());
        nix::unistd::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        fcntl(&event, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
        for _ in 0..100 {
            bell.ring(&event);
        }
        assert!(is_rung(&event));
    }

    #[test]
    fn only_event_descriptors_are_events() {
        let of_peer = |fd: OwnedFd| Event::of_peer(Late::new(fd, &Retired::new()));
        let event = EventFd::new().unwrap();
        assert!(of_peer(event.into()).is_some());
        let (pipe, _other) = nix::unistd::pipe().unwrap();
        assert!(of_peer(pipe).is_none());
        assert!(of_peer(tempfile::tempfile().unwrap().into()).is_none());
    }
}
