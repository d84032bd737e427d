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

/// What was not written since the last line that was.
struct LeftOut {
    lines: u64,
    /// The last of them was written in part: its end is still to come.
    is_cut: bool,
}

impl LeftOut {
    const NOTHING: Self = Self {
        lines: 0,
        is_cut: false,
    };
}

static LEFT_OUT: Mutex<LeftOut> = Mutex::new(LeftOut::NOTHING);

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

/// Writes a line, or leaves it out. A line that is longer than what a pipe takes at once may be cut. The end of a cut line is written before
/// the next one.
fn put(to: &mut (impl Write + AsFd), left_out: &mut LeftOut, line: &[u8]) {
    let patience = if left_out.lines == 0 { PATIENCE } else { 0 };
    // Returns how many parts were written, and whether those are all.
    let mut write = |line: &[u8]| {
        let parts = line.chunks(AT_ONCE);
        let all = parts.len();
        let written = parts
            .take_while(|part| {
                let takes = is_writable(&*to, patience);
                if takes {
                    let _ = to.write_all(part);
                }
                takes
            })
            .count();
        (written, written == all)
    };
    if left_out.lines > 0 {
        let end = if left_out.is_cut { "\n" } else { "" };
        let before = format!("{end}{} lines were left out: nobody read them\n", left_out.lines);
        if !write(before.as_bytes()).1 {
            left_out.lines += 1;
            return;
        }
        *left_out = LeftOut::NOTHING;
    }
    let (written, is_whole) = write(line);
    if !is_whole {
        *left_out = LeftOut {
            lines: 1,
            is_cut: written > 0,
        };
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
        let mut left_out = LeftOut::NOTHING;
        let line = |n: usize| format!("{n:99}\n");
        // A pipe takes 64 KiB.
        (0..2000).for_each(|n| put(&mut writer, &mut left_out, line(n).as_bytes()));
        let reported = left_out.lines;
        assert!((1000..2000).contains(&reported), "{reported}");
        let written = 2000 - reported as usize;
        let mut first = vec![0; written * 100];
        reader.read_exact(&mut first).unwrap();
        assert_eq!(first, (0..written).map(line).collect::<String>().into_bytes());
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
        assert_eq!(left_out.lines, 0);
    }

    /// It was glued to the line after it.
    #[test]
    fn a_line_that_was_cut_ends_before_the_next_one() {
        let (mut reader, mut writer) = io::pipe().unwrap();
        let mut left_out = LeftOut::NOTHING;
        // More than a pipe takes.
        put(&mut writer, &mut left_out, &[b'x'; 100_000]);
        assert!(left_out.lines == 1 && left_out.is_cut);
        // One that does not even begin.
        put(&mut writer, &mut left_out, b"nobody reads\n");
        assert!(left_out.lines == 2 && left_out.is_cut);
        reader.read_exact(&mut [0; 2 * AT_ONCE]).unwrap();
        put(&mut writer, &mut left_out, b"it goes on\n");
        drop(writer);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        assert_eq!(
            rest.trim_start_matches('x'),
            "\n2 lines were left out: nobody read them\nit goes on\n"
        );
        assert!(left_out.lines == 0 && !left_out.is_cut);
    }

    #[test]
    fn a_reader_that_is_gone_is_no_failure() {
        let (reader, mut writer) = io::pipe().unwrap();
        drop(reader);
        let mut left_out = LeftOut::NOTHING;
        put(&mut writer, &mut left_out, b"to nobody\n");
        assert_eq!(left_out.lines, 0);
    }
}
