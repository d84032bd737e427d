//! The bytes that are received, in the group or from host to host.

use std::cell::RefCell;
use std::io::{self, Write};
use std::path::PathBuf;

use castnet_member::{OpenStream, StreamHeader, StreamSummary};

use crate::host::sink::{Sink, Target};

/// The target of a stream, and what it has.
pub(in crate::host) struct Incoming<'t> {
    pub(in crate::host) target: &'t Target,
    sink: Option<Sink>,
    /// Bytes written and their digest. `None` while the group counts them.
    stream: Option<OpenStream>,
    /// All has arrived, and this is its file.
    whole: Option<(StreamSummary, Option<PathBuf>)>,
}

/// Writes into the target of a stream.
pub(in crate::host) struct Writer<'i, 't>(&'i RefCell<Incoming<'t>>);

impl<'t> Incoming<'t> {
    pub(in crate::host) fn new(target: &'t Target) -> RefCell<Self> {
        RefCell::new(Self {
            target,
            sink: None,
            stream: None,
            whole: None,
        })
    }

    /// Begins a stream in a group. An earlier one that was not ended is removed, unless this goes on with it.
    pub(in crate::host) fn open<'i>(
        this: &'i RefCell<Self>,
        header: &StreamHeader,
    ) -> io::Result<Writer<'i, 't>> {
        let mut incoming = this.borrow_mut();
        if incoming.stream.is_none() {
            incoming.sink = None;
            incoming.sink = Some(incoming.target.open(header)?);
        }
        Ok(Writer(this))
    }

    /// The group has ended in the middle of this stream, or before it began. From now on, the bytes are counted here.
    pub(in crate::host) fn go_on(&mut self, stream: Option<OpenStream>) {
        if self.stream.is_none() && self.whole.is_none() {
            self.stream = stream;
        }
    }

    /// The stream goes on from host to host with this header, if nothing of it has come.
    pub(super) fn begin(&mut self, header: StreamHeader) -> io::Result<()> {
        if self.stream.is_none() && self.whole.is_none() {
            self.sink = Some(self.target.open(&header)?);
            self.stream = Some(OpenStream::new(header));
        }
        Ok(())
    }

    /// Bytes of the stream that are written.
    pub(super) fn position(&self) -> u64 {
        let whole = self.whole.as_ref().map(|(summary, _)| summary.bytes);
        whole.unwrap_or_else(|| self.stream.as_ref().map_or(0, OpenStream::bytes))
    }

    /// What has come from host to host.
    pub(super) fn summary(&self) -> Option<StreamSummary> {
        let whole = self.whole.as_ref().map(|(summary, _)| summary.clone());
        whole.or_else(|| Some(self.stream.as_ref()?.summary()))
    }

    /// All has arrived: the file appears. Returns its path.
    pub(in crate::host) fn keep(&mut self, summary: StreamSummary) -> io::Result<Option<PathBuf>> {
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

impl Write for Writer<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.borrow_mut().flush()
    }
}
