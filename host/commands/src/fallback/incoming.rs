//! The bytes that are received, in the group or from host to host.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use castnet_member::fallback::{Check, Destination, Pattern, begun};
use castnet_member::{Messages, OpenStream, StreamHeader, StreamSummary};

use crate::sink::{Sink, Target};

/// The target of a stream, and what it has.
pub(crate) struct Incoming<'t> {
    pub(crate) target: &'t Target,
    sink: Option<Sink>,
    /// The file of the sink, to read what it has; `None` for stdout.
    kept: Option<File>,
    /// Bytes written and their digest. `None` while the group counts them.
    stream: Option<OpenStream>,
    /// Of its bytes, those that came from another member while the tree did not reach this one.
    from_members: u64,
    /// Messages are checked, and not written.
    checks: Option<Messages>,
    /// All has arrived, and this is its file.
    whole: Option<(StreamSummary, Option<PathBuf>)>,
}

impl<'t> Incoming<'t> {
    pub(crate) fn new(target: &'t Target) -> RefCell<Self> {
        RefCell::new(Self {
            target,
            sink: None,
            kept: None,
            stream: None,
            from_members: 0,
            checks: None,
            whole: None,
        })
    }

    /// For messages that are checked, of which so many bytes have come.
    pub(crate) fn checks(target: &'t Target, messages: Messages, bytes: u64) -> io::Result<RefCell<Self>> {
        let this = Self::new(target);
        {
            let mut incoming = this.borrow_mut();
            incoming.checks = Some(messages);
            incoming.stream = Some(begun(messages, bytes)?);
            incoming.sink = Some(Sink::into(Check(Pattern::new(messages, bytes))));
        }
        Ok(this)
    }

    /// What is checked instead of written.
    pub(super) fn messages(&self) -> Option<Messages> {
        self.checks
    }

    fn set_sink(&mut self, header: &StreamHeader) -> io::Result<()> {
        // The file of an earlier one is removed first: it may have the same name.
        (self.sink, self.kept) = (None, None);
        let sink = self.target.open(header)?;
        self.kept = sink.kept()?;
        self.sink = Some(sink);
        Ok(())
    }

    /// The bytes from this one on came from another member.
    pub(crate) fn note_from_members(&mut self, at_byte: u64) {
        self.from_members = self.position().saturating_sub(at_byte);
    }

    /// Bytes that came in the group, and from another member.
    pub(super) fn came(&self) -> (u64, u64) {
        (self.position() - self.from_members, self.from_members)
    }

    /// The group has ended in the middle of this stream, or before it began. From now on, the bytes are counted here.
    pub(crate) fn go_on(&mut self, stream: Option<OpenStream>) {
        if self.stream.is_none() && self.whole.is_none() {
            self.stream = stream;
        }
    }

    /// All has arrived: the file appears. Returns its path.
    pub(crate) fn keep(&mut self, summary: StreamSummary) -> io::Result<Option<PathBuf>> {
        if let Some((_, path)) = &self.whole {
            return Ok(path.clone());
        }
        let path = self.sink.take().map_or(Ok(None), Sink::keep)?;
        self.whole = Some((summary, path.clone()));
        Ok(path)
    }
}

impl Write for Incoming<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sink = self.sink.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        sink.write_all(bytes)?;
        if let Some(stream) = &mut self.stream {
            stream.add(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink.as_mut().map_or(Ok(()), Write::flush)
    }
}

impl Destination for Incoming<'_> {
    fn open(&mut self, header: &StreamHeader) -> io::Result<()> {
        match self.stream {
            None => self.set_sink(header),
            Some(_) => Ok(()),
        }
    }

    fn begin(&mut self, header: StreamHeader) -> io::Result<()> {
        if self.stream.is_none() && self.whole.is_none() {
            self.set_sink(&header)?;
            self.stream = Some(OpenStream::new(header));
        }
        Ok(())
    }

    fn position(&self) -> u64 {
        let whole = self.whole.as_ref().map(|(summary, _)| summary.bytes);
        whole.unwrap_or_else(|| self.stream.as_ref().map_or(0, OpenStream::bytes))
    }

    fn keeps(&self) -> bool {
        self.kept.is_some()
    }

    fn read_kept(&mut self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        self.flush()?;
        let kept = self.kept.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        kept.read_at(out, offset)
    }

    fn summary(&self) -> Option<StreamSummary> {
        let whole = self.whole.as_ref().map(|(summary, _)| summary.clone());
        whole.or_else(|| Some(self.stream.as_ref()?.summary()))
    }

    fn complete(&mut self, summary: StreamSummary) -> io::Result<()> {
        self.keep(summary).map(drop)
    }
}
