//! Loops that drive the two machines in a thread of their own.

use std::io::{self, BufRead, Write};
use std::time::Duration;

use super::error::StreamError;
use super::frame::{StreamHeader, StreamSummary};
use super::receiver::{Event, StreamReceiver};
use super::sender::StreamSender;
use crate::rnic::Rnic;

/// Longest sleep before the loop calls its owner again.
pub(crate) const WAIT: Duration = Duration::from_millis(50);

/// Called with the RNIC, the header once it has arrived, and the bytes received so far.
pub type Progress<'a> = dyn FnMut(&mut dyn Rnic, Option<&StreamHeader>, u64) -> Flow + 'a;

/// Decision of the owner of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Continue.
    Continue,
    /// Stop. The loop returns [`StreamError::Stopped`].
    Stop,
}

impl Flow {
    /// [`StreamError::Stopped`] if the owner stops the loop.
    pub(crate) fn check(self) -> Result<(), StreamError> {
        match self {
            Self::Continue => Ok(()),
            Self::Stop => Err(StreamError::Stopped),
        }
    }
}

/// Sends all of `source` as one stream. Returns when every receiver has acknowledged it. `progress` is called about
/// once per message and at least several times per second, with the RNIC, the bytes taken from the source so far, and those that all
/// receivers have acknowledged. It may stop the loop. A source that waits for its bytes returns [`io::ErrorKind::Interrupted`] several times
/// per second: then the RNIC is polled and `progress` is called.
pub fn send(
    rnic: &mut dyn Rnic,
    sender: &mut StreamSender,
    header: &StreamHeader,
    source: &mut dyn BufRead,
    progress: &mut dyn FnMut(&dyn Rnic, u64, u64) -> Flow,
) -> Result<StreamSummary, StreamError> {
    send_unless_followed(rnic, sender, header, source, progress, &mut |_, _| Ok(false))
}

/// As [`send`] where other members of a group may send next. `is_followed` is called when everything is posted, with the number of
/// messages that this sender has posted: whether a message of another member has come. Switches let another one send only when all members
/// have the stream, so only the answer to this member is missing, and the group may end before it comes. Then returns although the sender
/// is not drained: keep it until it is, or reset the QP.
pub fn send_unless_followed(
    rnic: &mut dyn Rnic,
    sender: &mut StreamSender,
    header: &StreamHeader,
    source: &mut dyn BufRead,
    progress: &mut dyn FnMut(&dyn Rnic, u64, u64) -> Flow,
    is_followed: &mut dyn FnMut(&mut dyn Rnic, u64) -> Result<bool, StreamError>,
) -> Result<StreamSummary, StreamError> {
    let mut step = |rnic: &mut dyn Rnic, sender: &mut StreamSender, bytes: u64, wait: Duration| {
        rnic.poll_or_wait(wait)?;
        sender.poll(rnic)?;
        progress(rnic, bytes, sender.bytes_acknowledged()).check()
    };
    while !sender.start(rnic, header)? {
        step(rnic, sender, 0, WAIT)?;
    }
    let mut bytes = 0;
    loop {
        let next = match source.fill_buf() {
            Ok([]) => break,
            Ok(next) => next,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {
                // The source has waited.
                step(rnic, sender, bytes, Duration::ZERO)?;
                continue;
            }
            Err(source) => {
                return Err(StreamError::Io {
                    what: "reading what is to be sent",
                    source,
                });
            }
        };
        let taken = sender.write(rnic, next)?;
        source.consume(taken);
        bytes += taken as u64;
        step(rnic, sender, bytes, WAIT)?;
    }
    let summary = loop {
        match sender.finish(rnic)? {
            Some(summary) => break summary,
            None => step(rnic, sender, bytes, WAIT)?,
        }
    };
    while !is_followed(rnic, sender.messages_posted())? && !sender.is_drained() {
        step(rnic, sender, bytes, WAIT)?;
    }
    Ok(summary)
}

/// Receives one stream into the sink that `open` creates from the header. Returns the flushed sink with the summary.
/// `progress` is called about once per message and at least several times per second, with the RNIC, and may stop the loop. The last
/// acknowledgement may be unsent or get lost: continue to poll the RNIC until the sender is known to be done.
pub fn receive<W: Write>(
    rnic: &mut dyn Rnic,
    receiver: &mut StreamReceiver,
    open: &mut dyn FnMut(&StreamHeader) -> io::Result<W>,
    progress: &mut Progress<'_>,
) -> Result<(StreamSummary, W), StreamError> {
    let begun = StreamError::WrongOrder {
        call: "receive",
        reason: "a stream has begun before",
    };
    if receiver.open_stream().is_some() {
        return Err(begun);
    }
    let mut sink = None;
    let failed = |source| StreamError::Io {
        what: "writing what arrived",
        source,
    };
    loop {
        rnic.poll_or_wait(WAIT)?;
        loop {
            match receiver.next_event(rnic)? {
                Some(Event::Begin(header)) => {
                    let opened = open(header);
                    sink = Some(opened.map_err(|source| StreamError::Io {
                        what: "opening the sink",
                        source,
                    })?);
                }
                Some(Event::Data(bytes)) => {
                    sink.as_mut()
                        .map_or(Ok(()), |sink| sink.write_all(bytes))
                        .map_err(failed)?;
                }
                Some(Event::End(summary)) => {
                    let mut sink = sink.ok_or(begun)?;
                    sink.flush().map_err(failed)?;
                    return Ok((summary, sink));
                }
                None => break,
            }
            report_progress(rnic, receiver, progress)?;
            // Consuming must not delay ACKs.
            let now = rnic.now();
            rnic.poll(now)?;
        }
        report_progress(rnic, receiver, progress)?;
    }
}

fn report_progress(
    rnic: &mut dyn Rnic,
    receiver: &StreamReceiver,
    progress: &mut Progress<'_>,
) -> Result<(), StreamError> {
    let (header, bytes) = receiver.open_stream().unzip();
    progress(rnic, header, bytes.unwrap_or(0)).check()
}
