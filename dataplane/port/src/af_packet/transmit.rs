//! The sending side: groups frames to super-frames, and sends them from where they lie.

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;

use arrayvec::ArrayVec;
use castnet_wire::DropReason;

use super::cut::VNET_HEADER;
use super::join::{HEADERS, Run};
use super::sys;
use crate::port::Segmentation;

/// The most frames per call.
pub(super) const SEND_MAX: usize = 64;
/// A `virtio_net_hdr` of a single frame.
const SINGLE: [u8; VNET_HEADER] = [0; VNET_HEADER];

/// A frame in up to three pieces, the first of which has all headers.
pub(super) type Pieces<'a> = [&'a [u8]; 3];

/// A socket to send on.
#[derive(Debug)]
pub(super) struct Transmitter {
    fd: OwnedFd,
    joins: bool,
    /// The error of the last super-frame, if the kernel did not accept it and accepted its packets one by one.
    refused: Option<i32>,
    /// True after a refusal, until the next attempt.
    is_paused: bool,
    /// Frames sent as parts of super-frames.
    joined: u64,
}

impl Transmitter {
    /// `joins`: true to send super-frames.
    pub(super) fn new(fd: OwnedFd, joins: bool) -> io::Result<Self> {
        sys::set_option(&fd, libc::PACKET_VNET_HDR, &1)?;
        Ok(Self {
            fd,
            joins,
            refused: None,
            is_paused: false,
            joined: 0,
        })
    }

    /// Frames sent as parts of super-frames.
    pub(super) fn joined(&self) -> u64 {
        self.joined
    }

    /// Whether super-frames are sent.
    pub(super) fn segmentation(&self) -> Segmentation {
        match self.refused {
            _ if !self.joins => Segmentation::Off,
            Some(error) => Segmentation::Refused(error),
            None => Segmentation::On,
        }
    }

    /// Bytes of the kernel's memory for frames that the device still has.
    pub(super) fn backlog(&self) -> Option<u64> {
        sys::out_queue(&self.fd)
    }

    /// Tries super-frames again after a refusal. The cause may be gone: a full queue, or a setting of the interface.
    pub(super) fn resume(&mut self) {
        self.is_paused = false;
    }

    /// Sends frames in order, and calls `done` with the index and the result of each. Stops at a frame that cannot be sent
    /// now: its index is returned, with the reason, and neither it nor a later frame was sent.
    pub(super) fn send(
        &mut self,
        frames: &[Pieces<'_>],
        done: &mut impl FnMut(usize, Result<(), DropReason>),
    ) -> Result<(), (usize, DropReason)> {
        let mut from = 0;
        for frames in frames.chunks(SEND_MAX) {
            self.send_some(frames, &mut |index, result| done(from + index, result))
                .map_err(|(index, reason)| (from + index, reason))?;
            from += frames.len();
        }
        Ok(())
    }

    fn send_some(
        &mut self,
        frames: &[Pieces<'_>],
        done: &mut impl FnMut(usize, Result<(), DropReason>),
    ) -> Result<(), (usize, DropReason)> {
        let runs = group(frames, self.joins && !self.is_paused);
        let headers: ArrayVec<_, SEND_MAX> = runs.iter().map(header).collect();
        let (mut parts, mut ends) = (
            ArrayVec::<_, { 4 * SEND_MAX }>::new(),
            ArrayVec::<_, SEND_MAX>::new(),
        );
        let mut first = 0;
        for (run, header) in runs.iter().zip(&headers) {
            let is_joined = run.count() > 1;
            parts.push(IoSlice::new(if is_joined { header } else { &SINGLE }));
            for pieces in &frames[first..first + run.count()] {
                let head = if is_joined {
                    &pieces[0][HEADERS..]
                } else {
                    pieces[0]
                };
                let pieces = [head, pieces[1], pieces[2]];
                parts.extend(pieces.into_iter().filter(|p| !p.is_empty()).map(IoSlice::new));
            }
            first += run.count();
            ends.push(parts.len());
        }
        let starts = [0].into_iter().chain(ends.iter().copied());
        let messages: ArrayVec<_, SEND_MAX> = starts
            .zip(&ends)
            .map(|(start, &end)| &parts[start..end])
            .collect();

        let (mut next, mut first) = (0, 0);
        while next < runs.len() {
            match sys::send_messages(&self.fd, &messages[next..]) {
                Ok(sent) => {
                    for run in &runs[next..next + sent] {
                        if run.count() > 1 {
                            self.refused = None;
                            self.joined += run.count() as u64;
                        }
                        (first..first + run.count()).for_each(|index| done(index, Ok(())));
                        first += run.count();
                    }
                    next += sent;
                }
                Err(error) => {
                    let count = runs[next].count();
                    match failure(&error) {
                        Failure::Interrupted => continue,
                        Failure::Port(reason) => return Err((first, reason)),
                        _ if count > 1 => {
                            self.send_singly(&frames[first..first + count], &error, first, done)?;
                        }
                        Failure::Queue => return Err((first, DropReason::TxFull)),
                        Failure::Frame(reason) => done(first, Err(reason)),
                    }
                    next += 1;
                    first += count;
                }
            }
        }
        Ok(())
    }

    /// Sends the frames of a super-frame that the kernel has not accepted because of `error`.
    #[cold]
    fn send_singly(
        &mut self,
        frames: &[Pieces<'_>],
        error: &io::Error,
        from: usize,
        done: &mut impl FnMut(usize, Result<(), DropReason>),
    ) -> Result<(), (usize, DropReason)> {
        for (index, pieces) in (from..).zip(frames) {
            let parts = [&SINGLE[..], pieces[0], pieces[1], pieces[2]].map(IoSlice::new);
            let result = loop {
                match sys::send_messages(&self.fd, &[&parts]).map_err(|error| failure(&error)) {
                    Ok(_) => break Ok(()),
                    Err(Failure::Interrupted) => {}
                    Err(Failure::Port(reason)) => return Err((index, reason)),
                    Err(Failure::Queue) => return Err((index, DropReason::TxFull)),
                    Err(Failure::Frame(reason)) => break Err(reason),
                }
            };
            if result.is_ok() {
                self.refused = error.raw_os_error();
                self.is_paused = true;
            }
            done(index, result);
        }
        Ok(())
    }
}

/// What an error of the kernel concerns.
enum Failure {
    /// Nothing: the call is repeated.
    Interrupted,
    /// All frames.
    Port(DropReason),
    /// The next frames too, or a super-frame that this device does not take.
    Queue,
    /// This frame.
    Frame(DropReason),
}

fn failure(error: &io::Error) -> Failure {
    match error.raw_os_error() {
        Some(libc::EINTR) => Failure::Interrupted,
        Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => Failure::Port(DropReason::PortDown),
        Some(libc::EAGAIN) => Failure::Port(DropReason::TxFull),
        Some(libc::ENOBUFS | libc::ENOMEM) => Failure::Queue,
        Some(libc::EMSGSIZE) => Failure::Frame(DropReason::TooLong),
        Some(libc::EINVAL) => Failure::Frame(DropReason::Malformed),
        _ => Failure::Frame(DropReason::TxFull),
    }
}

fn header(run: &Run) -> [u8; VNET_HEADER + HEADERS] {
    if run.count() > 1 {
        run.headers()
    } else {
        [0; VNET_HEADER + HEADERS]
    }
}

fn group(frames: &[Pieces<'_>], joins: bool) -> ArrayVec<Run, SEND_MAX> {
    let mut runs: ArrayVec<Run, SEND_MAX> = ArrayVec::new();
    for pieces in frames {
        let (head, length) = (pieces[0], pieces.iter().map(|p| p.len()).sum());
        if !joins || !runs.last_mut().is_some_and(|run| run.add(head, length)) {
            runs.push(Run::new(head, length));
        }
    }
    runs
}
