//! Messages of one size (`--size`) where the group is not installed, or slow: their bytes as a stream.

use std::io::{self, Read, Write};

use castnet_rnic::messages::{self, Messages};
use castnet_rnic::stream::{OpenStream, StreamHeader};

use super::Outgoing;
use crate::error::MemberError;
use crate::safeguard::Unsent;

/// The bytes of messages, one after the other.
#[derive(Debug)]
pub struct Pattern {
    messages: Messages,
    /// The next byte.
    at: u64,
    /// The message that it is in.
    message: Vec<u8>,
    number: Option<u64>,
}

impl Pattern {
    /// From a byte on.
    pub fn new(messages: Messages, at: u64) -> Self {
        Self {
            messages,
            at,
            message: vec![0; messages.size as usize],
            number: None,
        }
    }

    /// What is left of the message that the next byte is in; nothing after the last one.
    fn rest(&mut self) -> &[u8] {
        let size = u64::from(self.messages.size);
        if self.at >= length(self.messages) {
            return &[];
        }
        let number = self.at / size;
        if self.number != Some(number) {
            messages::fill(number, &mut self.message);
            self.number = Some(number);
        }
        &self.message[(self.at % size) as usize..]
    }
}

impl Read for Pattern {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let rest = self.rest();
        let length = rest.len().min(out.len());
        out[..length].copy_from_slice(&rest[..length]);
        self.at += length as u64;
        Ok(length)
    }
}

/// Compares what is written with the bytes of messages.
#[derive(Debug)]
pub struct Check(pub Pattern);

impl Write for Check {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let at = self.0.at;
        let rest = self.0.rest();
        let length = rest.len().min(bytes.len());
        if length == 0 || rest[..length] != bytes[..length] {
            let what = format!("the bytes from {at} on differ from those of the messages");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        self.0.at += length as u64;
        Ok(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Bytes of all messages.
fn length(messages: Messages) -> u64 {
    u64::from(messages.size) * u64::from(messages.count)
}

/// The header of messages as a stream.
pub fn header(messages: Messages) -> StreamHeader {
    StreamHeader {
        name: "messages".into(),
        length: Some(length(messages)),
    }
}

/// The messages as a stream of which so many bytes have come.
///
/// # Errors
/// There are fewer bytes.
pub fn begun(messages: Messages, bytes: u64) -> io::Result<OpenStream> {
    let mut stream = OpenStream::new(header(messages));
    let mut pattern = Pattern::new(messages, 0);
    while stream.bytes() < bytes {
        let rest = pattern.rest();
        let length = usize::try_from(bytes - stream.bytes()).map_or(rest.len(), |most| rest.len().min(most));
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        stream.add(&rest[..length]);
        pattern.at += length as u64;
    }
    Ok(stream)
}

impl Outgoing<'_> {
    /// Messages were sent in a group, and all receivers have acknowledged the first ones; each may have some of those in flight.
    ///
    /// # Errors
    /// There are fewer messages.
    pub fn left_group(
        &mut self,
        messages: Messages,
        (acknowledged, in_flight): (u64, u32),
        error: MemberError,
    ) -> io::Result<()> {
        let size = u64::from(messages.size);
        let taken = (acknowledged + u64::from(in_flight)).min(messages.count.into()) * size;
        let stream = begun(messages, taken)?;
        let mut pattern = Pattern::new(messages, acknowledged * size);
        let mut unacknowledged = vec![0; (taken - acknowledged * size) as usize];
        pattern.read_exact(&mut unacknowledged)?;
        self.pass_over(taken)?;
        self.take_back(Box::new(Unsent {
            error,
            stream,
            unacknowledged,
        }));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::course::Rest;
    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// Whatever was acknowledged and in flight: the stream goes on with the first message that is not acknowledged, and each byte is
        /// what a receiver checks.
        #[test]
        fn messages_go_on_as_a_stream(
            size in 1u32..50, count in 1u32..20, acknowledged in 0u64..20, in_flight in 1u32..9, wrong in proptest::option::of(0usize..1000),
        ) {
            let messages = Messages { size, count };
            let acknowledged = acknowledged.min(count.into());
            let mut pattern = Pattern::new(messages, 0);
            let mut outgoing = Outgoing::new(&mut pattern, header(messages), 16);
            outgoing.left_group(messages, (acknowledged, in_flight), MemberError::Interrupted).unwrap();
            let at = acknowledged * u64::from(size);
            prop_assert_eq!(outgoing.position(), at);
            let mut rest = vec![0; (length(messages) - at) as usize];
            prop_assert_eq!(outgoing.fill(&mut rest).unwrap(), rest.len());
            prop_assert_eq!(outgoing.rest().unwrap(), Rest::End);
            let mut check = Check(Pattern::new(messages, at));
            let wrong = wrong.filter(|at| *at < rest.len());
            if let Some(at) = wrong {
                rest[at] ^= 1;
            }
            let checked = check.write_all(&rest);
            prop_assert_eq!(checked.is_err(), wrong.is_some());
            prop_assert!(check.write_all(&[0]).is_err(), "there are no more");
            let whole = begun(messages, length(messages)).unwrap().summary();
            prop_assert_eq!(outgoing.taken().summary(), whole);
        }
    }
}
