//! Requests of those who may change nothing but what concerns themselves.

use std::pin::Pin;
use std::time::Duration;

use http_body::Frame;
use tokio::time::Sleep;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Bytes, Context, Poll};

/// Bytes of a request of those who may change nothing but what concerns themselves: a blob of an exchange, or the plan of a group.
pub(crate) const REQUEST_MAX: usize = 128 << 10;
/// How long such a request may take to come.
const REQUEST_TIME: Duration = Duration::from_secs(10);

/// A request of a bounded size, which must come within a bounded time: what has come of it waits in the memory.
pub(crate) struct Bounded {
    body: Body,
    left: usize,
    too_late: Pin<Box<Sleep>>,
}

impl Bounded {
    pub(crate) fn new(body: Body) -> Self {
        Self {
            body,
            left: REQUEST_MAX,
            too_late: Box::pin(tokio::time::sleep(REQUEST_TIME)),
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

    /// What has come of a request waits in the memory.
    #[tokio::test(start_paused = true)]
    async fn a_request_is_bounded_in_size_and_in_time() {
        use http_body_util::{BodyExt, StreamBody};
        let (send, frames) = tokio::sync::mpsc::unbounded_channel::<Result<Frame<Bytes>, Status>>();
        let frames = tokio_stream::wrappers::UnboundedReceiverStream::new(frames);
        let mut body = Bounded::new(Body::new(StreamBody::new(frames)));
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
        let mut body = Bounded::new(Body::new(StreamBody::new(frames)));
        let begin = tokio::time::Instant::now();
        let too_late = body.frame().await.expect("a frame").expect_err("too late");
        assert_eq!(
            (too_late.code(), begin.elapsed().as_secs()),
            (Code::DeadlineExceeded, 10)
        );
    }
}
