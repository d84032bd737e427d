//! The loops round the two machines, for threads that have nothing else to do.

use std::io::{self, Read, Write};
use std::time::Duration;

use super::error::StreamError;
use super::frame::{StreamHeader, StreamSummary};
use super::receiver::{Event, StreamReceiver};
use super::sender::StreamSender;
use crate::rnic::Rnic;

/// How long the loops sleep where nothing happens, before they ask their owner again.
const WAIT: Duration = Duration::from_millis(50);

/// What the owner of a loop wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Go on.
    Continue,
    /// Stop; the loop ends with [`StreamError::Stopped`].
    Stop,
}

/// Polls, and sleeps where there was nothing to do.
pub(crate) fn turn(rnic: &mut dyn Rnic) -> Result<(), StreamError> {
    let now = rnic.now();
    if !rnic.poll(now)? {
        rnic.wait(WAIT)?;
    }
    Ok(())
}

/// Sends all of `source` as one stream and returns when every receiver has acknowledged it.
///
/// `progress` is told the bytes taken from the source, about once per message and at least some times a second, and
/// may stop the loop. It sees the RNIC, whose counters tell whether anybody answers.
///
/// # Errors
/// Any [`StreamError`].
pub fn send<R: Rnic>(
    rnic: &mut R,
    sender: &mut StreamSender,
    header: &StreamHeader,
    source: &mut dyn Read,
    progress: &mut dyn FnMut(&R, u64) -> Flow,
) -> Result<StreamSummary, StreamError> {
    let mut step = |rnic: &mut R, sender: &mut StreamSender, bytes| {
        turn(rnic)?;
        sender.poll(rnic)?;
        if progress(rnic, bytes) == Flow::Stop {
            Err(StreamError::Stopped)
        } else {
            Ok(())
        }
    };
    while !sender.start(rnic, header)? {
        step(rnic, sender, 0)?;
    }
    let mut buffer = vec![0; sender.config().message_size as usize];
    let mut bytes = 0;
    loop {
        let mut rest = match source.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => &buffer[..n],
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(source) => {
                return Err(StreamError::Io {
                    what: "reading what is to be sent",
                    source,
                });
            }
        };
        while !rest.is_empty() {
            let taken = sender.write(rnic, rest)?;
            rest = &rest[taken..];
            bytes += taken as u64;
            step(rnic, sender, bytes)?;
        }
    }
    let summary = loop {
        match sender.finish(rnic)? {
            Some(summary) => break summary,
            None => step(rnic, sender, bytes)?,
        }
    };
    while !sender.is_drained() {
        step(rnic, sender, bytes)?;
    }
    Ok(summary)
}

/// Receives one stream. `open` makes the sink once the header is there; it comes back, flushed, with the summary.
/// `progress` is told header and bytes so far, about once per message and at least some times a second, and may stop
/// the loop.
///
/// The last acknowledgement may still wait to be sent, or get lost, when this returns: go on polling the RNIC until
/// the sender is known to be done.
///
/// # Errors
/// Any [`StreamError`].
pub fn receive<W: Write>(
    rnic: &mut dyn Rnic,
    receiver: &mut StreamReceiver,
    open: &mut dyn FnMut(&StreamHeader) -> io::Result<W>,
    progress: &mut dyn FnMut(Option<&StreamHeader>, u64) -> Flow,
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
        turn(rnic)?;
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
            tell(receiver, progress)?;
            // Consuming must not keep ACKs waiting.
            let now = rnic.now();
            rnic.poll(now)?;
        }
        tell(receiver, progress)?;
    }
}

/// Tells how far a stream is, and asks whether to go on.
fn tell(
    receiver: &StreamReceiver,
    progress: &mut dyn FnMut(Option<&StreamHeader>, u64) -> Flow,
) -> Result<(), StreamError> {
    let (header, bytes) = receiver.open_stream().unzip();
    if progress(header, bytes.unwrap_or(0)) == Flow::Stop {
        Err(StreamError::Stopped)
    } else {
        Ok(())
    }
}
