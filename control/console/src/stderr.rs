//! Lines on stderr. A reader that stands still, such as a pager or a supervisor that is stopped, stops no service.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};

/// How long a line waits for the reader, in milliseconds. While lines are left out, none waits.
const PATIENCE: u8 = 100;
/// A pipe that can be written takes as much at once (PIPE_BUF).
const AT_ONCE: usize = 4096;

/// Lines that were left out since the last one that was written.
static LEFT_OUT: Mutex<u64> = Mutex::new(0);

/// The stderr of this process. Each write is a line, with its end. Errors are ignored.
pub(crate) struct Lines;

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut left_out = LEFT_OUT.lock().unwrap_or_else(PoisonError::into_inner);
        put(&mut io::stderr(), &mut left_out, line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a line, or leaves it out.
fn put(to: &mut (impl Write + AsFd), left_out: &mut u64, line: &[u8]) {
    let patience = if *left_out == 0 { PATIENCE } else { 0 };
    let mut parts = |line: &[u8]| {
        line.chunks(AT_ONCE).all(|part| {
            let takes = is_writable(&*to, patience);
            if takes {
                let _ = to.write_all(part);
            }
            takes
        })
    };
    let before = format!("{left_out} lines were left out: nobody read them\n");
    if *left_out > 0 && parts(before.as_bytes()) {
        *left_out = 0;
    }
    if *left_out > 0 || !parts(line) {
        *left_out += 1;
    }
}

fn is_writable(file: &impl AsFd, patience: u8) -> bool {
    loop {
        match poll(&mut [PollFd::new(file.as_fd(), PollFlags::POLLOUT)], patience) {
            Err(Errno::EINTR) => {}
            ready => return ready != Ok(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// A controller with `-v`, whose log went to a pipe that nobody read, stopped.
    #[test]
    fn lines_that_nobody_reads_are_left_out_and_counted() {
        let (mut reader, mut writer) = io::pipe().unwrap();
        let mut left_out = 0;
        let line = |n: usize| format!("{n:99}\n");
        // A pipe takes 64 KiB.
        (0..2000).for_each(|n| put(&mut writer, &mut left_out, line(n).as_bytes()));
        assert!((1000..2000).contains(&left_out), "{left_out}");
        let written = 2000 - left_out as usize;
        let mut first = vec![0; written * 100];
        reader.read_exact(&mut first).unwrap();
        assert_eq!(first, (0..written).map(line).collect::<String>().into_bytes());
        let reported = left_out;
        put(&mut writer, &mut left_out, b"it goes on\n");
        // A line that is longer than what a pipe takes at once.
        put(&mut writer, &mut left_out, &[b'x'; 10_000]);
        drop(writer);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        let long = "x".repeat(10_000);
        assert_eq!(
            rest,
            format!("{reported} lines were left out: nobody read them\nit goes on\n{long}")
        );
        assert_eq!(left_out, 0);
    }

    #[test]
    fn a_reader_that_is_gone_is_no_failure() {
        let (reader, mut writer) = io::pipe().unwrap();
        drop(reader);
        let mut left_out = 0;
        put(&mut writer, &mut left_out, b"to nobody\n");
        assert_eq!(left_out, 0);
    }
}
