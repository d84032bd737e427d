//! The bytes that are sent, which can be taken back and sent again in another way.

use std::io::{self, BufRead, BufReader, Read};
use std::time::Instant;

use castnet_rnic::stream::{OpenStream, StreamHeader};

use super::course::Rest;
use crate::error::MemberError;
use crate::safeguard::Unsent;

/// The source of a stream.
pub struct Outgoing<'f> {
    /// Its name, and its length where that is known.
    pub header: StreamHeader,
    /// When the transfer began.
    pub begun: Instant,
    file: BufReader<Box<dyn Read + 'f>>,
    /// Bytes that come before those of `file`, from `at` on.
    back: Vec<u8>,
    at: usize,
    position: u64,
    /// Bytes read so far and their digest. `None`: the group has the only one.
    taken: Option<OpenStream>,
}

impl<'f> Outgoing<'f> {
    /// `piece`: bytes that are read at once.
    pub fn new(file: impl Read + 'f, header: StreamHeader, piece: usize) -> Self {
        Self {
            header,
            begun: Instant::now(),
            file: BufReader::with_capacity(piece, Box::new(file)),
            back: Vec::new(),
            at: 0,
            position: 0,
            taken: None,
        }
    }

    /// Takes back what a group has not delivered to all. Returns why.
    pub fn take_back(&mut self, unsent: Box<Unsent>) -> MemberError {
        self.taken.get_or_insert(unsent.stream);
        let mut bytes = unsent.unacknowledged;
        self.position -= bytes.len() as u64;
        bytes.extend_from_slice(&self.back[self.at..]);
        (self.back, self.at) = (bytes, 0);
        unsent.error
    }

    /// Drops bytes that were sent otherwise.
    pub(super) fn pass_over(&mut self, bytes: u64) -> io::Result<()> {
        let passed = io::copy(&mut (&mut *self).take(bytes), &mut io::sink())?;
        match passed == bytes {
            true => Ok(()),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Number of the next byte.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The bytes taken so far, with their digest.
    pub fn taken(&mut self) -> &OpenStream {
        self.taken
            .get_or_insert_with(|| OpenStream::new(self.header.clone()))
    }

    /// Drops bytes that all have.
    pub(super) fn skip_to(&mut self, position: u64) {
        let known = position.saturating_sub(self.position);
        let known = usize::try_from(known)
            .unwrap_or(usize::MAX)
            .min(self.back.len() - self.at);
        self.consume(known);
    }

    /// What follows. Bytes that are late are waited for as long as one call of the file takes.
    pub(super) fn rest(&mut self) -> io::Result<Rest> {
        self.taken();
        match self.fill_buf() {
            Ok([]) => Ok(Rest::End),
            Ok(_) => Ok(Rest::Bytes),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Rest::Late),
            Err(error) => Err(error),
        }
    }

    /// Reads until the chunk is full, or the source ends or has no more bytes now.
    pub(super) fn fill(&mut self, chunk: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < chunk.len() {
            match self.read(&mut chunk[filled..]) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => break,
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }
}

impl Read for Outgoing<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let from = self.fill_buf()?;
        let length = from.len().min(out.len());
        out[..length].copy_from_slice(&from[..length]);
        self.consume(length);
        Ok(length)
    }
}

impl BufRead for Outgoing<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at < self.back.len() {
            return Ok(&self.back[self.at..]);
        }
        self.file.fill_buf()
    }

    fn consume(&mut self, length: usize) {
        let rest = &self.back[self.at..];
        let from_back = !rest.is_empty();
        let bytes = if from_back { rest } else { self.file.buffer() };
        if let Some(taken) = &mut self.taken {
            // What was taken back is in the digest already.
            let known = taken.bytes().saturating_sub(self.position).min(length as u64);
            taken.add(&bytes[known as usize..length]);
        }
        if from_back {
            self.at += length;
        } else {
            self.file.consume(length);
        }
        self.position += length as u64;
        if self.at == self.back.len() {
            (self.back, self.at) = (Vec::new(), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A pipe whose writer pauses between these pieces.
    struct Pausing(Vec<&'static [u8]>);

    impl Read for Pausing {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            match self.0.pop() {
                None => Ok(0),
                Some([]) => Err(io::ErrorKind::Interrupted.into()),
                Some(mut piece) => piece.read(out),
            }
        }
    }

    #[test]
    fn what_has_come_does_not_wait_for_what_is_late() {
        let pieces: [&[u8]; 5] = [b"", b"12", b"3", b"", b"45"];
        let pipe = Pausing(pieces.into_iter().rev().collect());
        let mut outgoing = Outgoing::new(pipe, StreamHeader::default(), 16);
        let mut chunk = [0; 16];
        assert_eq!(outgoing.rest().unwrap(), Rest::Late);
        assert_eq!(outgoing.rest().unwrap(), Rest::Bytes);
        let filled = outgoing.fill(&mut chunk).unwrap();
        assert_eq!(chunk[..filled], *b"123");
        assert_eq!(outgoing.rest().unwrap(), Rest::Bytes);
        let filled = outgoing.fill(&mut chunk).unwrap();
        assert_eq!(chunk[..filled], *b"45");
        assert_eq!(outgoing.rest().unwrap(), Rest::End);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        /// The digest has each byte once, and bytes come again from where they were taken back.
        #[test]
        fn bytes_that_are_taken_back_come_again(
            length in 0usize..2000, piece in 1usize..300, steps in proptest::collection::vec((1usize..400, 0usize..400, any::<bool>()), 0..12),
        ) {
            let data: Vec<u8> = (0..length).map(|i| (i * 13 + i / 200) as u8).collect();
            let header = StreamHeader::default();
            let mut file = &data[..];
            let mut outgoing = Outgoing::new(&mut file, header.clone(), piece);
            // The group counts until it is left for the first time.
            let mut stream = OpenStream::new(header.clone());
            for (read, back, skip) in steps {
                let (from, mut chunk) = (outgoing.position() as usize, vec![0; read]);
                let n = outgoing.fill(&mut chunk).unwrap();
                prop_assert_eq!(&chunk[..n], &data[from..from + n]);
                let new = (from + n).saturating_sub(stream.bytes() as usize);
                stream.add(&chunk[n - new..n]);
                let bytes = chunk[n - back.min(n)..n].to_vec();
                let begin = (from + n - bytes.len()) as u64;
                let half = begin + bytes.len() as u64 / 2;
                outgoing.take_back(Box::new(Unsent { error: MemberError::Interrupted, stream: stream.clone(), unacknowledged: bytes }));
                prop_assert_eq!(outgoing.position(), begin);
                if skip {
                    outgoing.skip_to(half);
                    prop_assert_eq!(outgoing.position(), half);
                }
            }
            while outgoing.rest().unwrap() == Rest::Bytes {
                let (from, mut chunk) = (outgoing.position() as usize, [0; 99]);
                let n = outgoing.fill(&mut chunk).unwrap();
                prop_assert_eq!(&chunk[..n], &data[from..from + n]);
            }
            let mut whole = OpenStream::new(header);
            whole.add(&data);
            prop_assert_eq!(outgoing.taken().summary(), whole.summary());
        }
    }
}
