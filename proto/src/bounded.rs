//! Requests of those who may change nothing but what concerns themselves.

use std::pin::Pin;
use std::time::Duration;

use http_body::Frame;
use tokio::time::Sleep;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Bytes, Context, Poll};

use crate::shares::{Share, Shares};

/// Bytes of a request of those who may change nothing but what concerns themselves: a blob of an exchange, or the plan of a group.
pub(crate) const REQUEST_MAX: usize = 128 << 10;
/// How long such a request may take to come.
const REQUEST_TIME: Duration = Duration::from_secs(10);
/// A longer one is one of at most [`LARGE_MAX`] with its certificate that are still to come.
const SMALL: usize = 4 << 10;
const LARGE_MAX: usize = 1024;
/// Bytes before each message of gRPC: flags, and its length in four bytes.
const PREFIX: usize = 5;

/// A request of a bounded size, which must come within a bounded time: what has come of it waits in the memory, and for a message memory is
/// reserved as soon as its length has come.
pub(crate) struct Bounded {
    body: Body,
    come: usize,
    messages: Messages,
    too_late: Pin<Box<Sleep>>,
    large: Shares,
    /// Of its certificate.
    names: Vec<String>,
    share: Option<Share>,
}

impl Bounded {
    /// `large` counts the large requests of each certificate; `names` are those of this one.
    pub(crate) fn new(body: Body, large: &Shares, names: &[String]) -> Self {
        Self {
            body,
            come: 0,
            messages: Messages::default(),
            too_late: Box::pin(tokio::time::sleep(REQUEST_TIME)),
            large: large.clone(),
            names: names.to_vec(),
            share: None,
        }
    }

    /// Counts what has come, with the rest of the message that it has begun. Refuses too much.
    fn count(&mut self, bytes: &[u8]) -> Result<(), Status> {
        self.messages.take(bytes);
        self.come += bytes.len();
        let length = self.come.saturating_add(self.messages.rest);
        if length > REQUEST_MAX {
            let why =
                format!("the request is longer than {REQUEST_MAX} bytes, which only operators may send");
            return Err(Status::resource_exhausted(why));
        }
        if length > SMALL && self.share.is_none() {
            self.share = self.large.take(&self.names, LARGE_MAX);
            if self.share.is_none() {
                let why = format!(
                    "{LARGE_MAX} requests of more than {SMALL} bytes with this certificate have not come whole: end some"
                );
                return Err(Status::resource_exhausted(why));
            }
        }
        Ok(())
    }
}

impl http_body::Body for Bounded {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) else {
            return self.too_late.as_mut().poll(cx).map(|()| {
                let seconds = REQUEST_TIME.as_secs();
                Some(Err(Status::deadline_exceeded(format!(
                    "the request has not come within {seconds} s"
                ))))
            });
        };
        if let Some(Ok(frame)) = &frame
            && let Some(bytes) = frame.data_ref()
            && let Err(refused) = self.count(bytes)
        {
            return Poll::Ready(Some(Err(refused)));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

/// Where messages begin and end in a body of gRPC.
#[derive(Debug, Default)]
struct Messages {
    /// Bytes of the prefix that have come, and the length, as far as it has.
    prefix: usize,
    length: u32,
    /// Bytes of the message that are still to come.
    rest: usize,
}

impl Messages {
    fn take(&mut self, mut bytes: &[u8]) {
        loop {
            let of_message = self.rest.min(bytes.len());
            self.rest -= of_message;
            bytes = &bytes[of_message..];
            let Some((byte, more)) = bytes.split_first() else {
                return;
            };
            bytes = more;
            self.prefix += 1;
            if self.prefix > 1 {
                self.length = (self.length << 8) | u32::from(*byte);
            }
            if self.prefix == PREFIX {
                self.rest = usize::try_from(self.length).unwrap_or(usize::MAX);
                (self.prefix, self.length) = (0, 0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    fn names(of: &str) -> Vec<String> {
        vec![of.to_owned()]
    }

    /// The beginning of a message of this length.
    fn prefix(length: usize) -> Vec<u8> {
        let length = u32::try_from(length).expect("a length");
        [&[0_u8][..], &length.to_be_bytes()[..]].concat()
    }

    /// What is refused of a body of these frames, which does not end, and whether its certificate has a large request then.
    async fn refusal(frames: Vec<Vec<u8>>) -> (Option<Code>, bool) {
        use http_body_util::{BodyExt, StreamBody};
        let large = Shares::default();
        let count = frames.len();
        let frames = frames
            .into_iter()
            .map(|bytes| Ok::<_, Status>(Frame::data(Bytes::from(bytes))));
        let body = Body::new(StreamBody::new(tokio_stream::iter(frames)));
        let mut body = Bounded::new(body, &large, &names("a"));
        for _ in 0..count {
            if let Err(refused) = body.frame().await.expect("a frame") {
                return (Some(refused.code()), body.share.is_some());
            }
        }
        (None, body.share.is_some())
    }

    /// A host sent five bytes of each of 8192 requests, and the memory for a message of 4 MiB was reserved for each.
    #[tokio::test]
    async fn a_message_counts_as_soon_as_its_length_has_come() {
        let too_long = Some(Code::ResourceExhausted);
        let most = REQUEST_MAX - PREFIX;
        for (length, expected) in [
            (SMALL - PREFIX, (None, false)),
            (SMALL - PREFIX + 1, (None, true)),
            (most, (None, true)),
            (most + 1, (too_long, false)),
            (4 << 20, (too_long, false)),
            (u32::MAX as usize, (too_long, false)),
        ] {
            let begin = prefix(length);
            for at in 0..=PREFIX {
                let (first, second) = begin.split_at(at);
                let frames = vec![first.to_vec(), second.to_vec()];
                assert_eq!(refusal(frames).await, expected, "{length} split at {at}");
            }
            let bytewise = begin.iter().map(|byte| vec![*byte]).collect();
            assert_eq!(refusal(bytewise).await, expected, "{length}");
            // After a message that is whole, a longer one would be too long.
            let before = [prefix(3), vec![0xFF; 3]].concat();
            let shorter = prefix(length.saturating_sub(before.len()));
            let both = [before, shorter].concat();
            for at in 0..=both.len() {
                let (first, second) = both.split_at(at);
                let frames = vec![first.to_vec(), second.to_vec()];
                assert_eq!(
                    refusal(frames).await,
                    expected,
                    "{length} after another, split at {at}"
                );
            }
        }
        // What a message has is none of its length: of one that is whole, the next one begins after it.
        let whole = [prefix(most), vec![0xFF; most]].concat();
        for at in [0, 1, PREFIX, PREFIX + 1, SMALL, most, most + PREFIX] {
            let (first, second) = whole.split_at(at);
            let frames = vec![first.to_vec(), second.to_vec()];
            assert_eq!(refusal(frames).await, (None, true), "split at {at}");
            let one_more = vec![first.to_vec(), second.to_vec(), vec![0]];
            assert_eq!(refusal(one_more).await, (too_long, true), "split at {at}");
        }
        assert_eq!(
            refusal(vec![prefix(0).repeat(SMALL / PREFIX)]).await,
            (None, false)
        );
    }

    /// What has come of a request waits in the memory.
    #[tokio::test(start_paused = true)]
    async fn a_request_is_bounded_in_size_and_in_time() {
        use http_body_util::{BodyExt, StreamBody};
        let (send, frames) = tokio::sync::mpsc::unbounded_channel::<Result<Frame<Bytes>, Status>>();
        let frames = tokio_stream::wrappers::UnboundedReceiverStream::new(frames);
        let mut body = Bounded::new(
            Body::new(StreamBody::new(frames)),
            &Shares::default(),
            &names("a"),
        );
        let say = |length| send.send(Ok(Frame::data(vec![0; length].into()))).is_ok();
        assert!(say(REQUEST_MAX - 1) && say(1) && say(1));
        for length in [REQUEST_MAX - 1, 1] {
            let frame = body.frame().await.expect("a frame").expect("no error");
            assert_eq!(frame.into_data().expect("data").len(), length);
        }
        let too_long = body.frame().await.expect("a frame").expect_err("too long");
        assert_eq!(too_long.code(), Code::ResourceExhausted);

        let (_send, frames) = tokio::sync::mpsc::unbounded_channel::<Result<Frame<Bytes>, Status>>();
        let frames = tokio_stream::wrappers::UnboundedReceiverStream::new(frames);
        let mut body = Bounded::new(
            Body::new(StreamBody::new(frames)),
            &Shares::default(),
            &names("a"),
        );
        let begin = tokio::time::Instant::now();
        let too_late = body.frame().await.expect("a frame").expect_err("too late");
        assert_eq!(
            (too_late.code(), begin.elapsed().as_secs()),
            (Code::DeadlineExceeded, 10)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_certificate_has_so_many_large_requests_that_are_still_to_come() {
        use http_body_util::{BodyExt, StreamBody};
        let large = Shares::default();
        // All that the first frame has is there, and more is to come.
        let begun = |of: &str, length| {
            let first = Frame::data(Bytes::from(vec![0; length]));
            let frames = tokio_stream::once(Ok::<_, Status>(first));
            let frames = tokio_stream::StreamExt::chain(frames, tokio_stream::pending());
            Bounded::new(Body::new(StreamBody::new(frames)), &large, &names(of))
        };
        let mut bodies: Vec<Bounded> = (0..LARGE_MAX).map(|_| begun("a", SMALL + 1)).collect();
        for body in &mut bodies {
            body.frame().await.expect("a frame").expect("no error");
        }
        let mut small = begun("a", SMALL);
        small.frame().await.expect("a frame").expect("a small one");
        let mut one_more = begun("a", SMALL + 1);
        let refused = one_more.frame().await.expect("a frame").expect_err("refused");
        assert_eq!(refused.code(), Code::ResourceExhausted);
        let mut of_another = begun("b", SMALL + 1);
        of_another.frame().await.expect("a frame").expect("its own share");
        bodies.pop();
        let mut in_its_place = begun("a", SMALL + 1);
        in_its_place.frame().await.expect("a frame").expect("a place");
    }
}
