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

/// A request of a bounded size, which must come within a bounded time: what has come of it waits in the memory.
pub(crate) struct Bounded {
    body: Body,
    left: usize,
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
            left: REQUEST_MAX,
            too_late: Box::pin(tokio::time::sleep(REQUEST_TIME)),
            large: large.clone(),
            names: names.to_vec(),
            share: None,
        }
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
        let length = match &frame {
            Some(Ok(frame)) => frame.data_ref().map_or(0, Bytes::len),
            _ => 0,
        };
        match self.left.checked_sub(length) {
            Some(left) => self.left = left,
            None => {
                let why =
                    format!("the request is longer than {REQUEST_MAX} bytes, which only operators may send");
                return Poll::Ready(Some(Err(Status::resource_exhausted(why))));
            }
        }
        if REQUEST_MAX - self.left > SMALL && self.share.is_none() {
            self.share = self.large.take(&self.names, LARGE_MAX);
            if self.share.is_none() {
                let why = format!(
                    "{LARGE_MAX} requests of more than {SMALL} bytes with this certificate have not come whole: end some"
                );
                return Poll::Ready(Some(Err(Status::resource_exhausted(why))));
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    fn names(of: &str) -> Vec<String> {
        vec![of.to_owned()]
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
        let say = |length| send.send(Ok(Frame::data(vec![7; length].into()))).is_ok();
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
            let first = Frame::data(Bytes::from(vec![7; length]));
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
