//! What a client gets for its call, as it takes it.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http_body::{Body as _, Frame};
use tokio::time::Sleep;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Bytes, Context, Poll, http};

use crate::shares::Share;

/// Bytes of a piece.
const PIECE: usize = 16 << 10;
/// Bytes of messages that wait for hosts and readers with one certificate. Further messages of their streams wait where they come from.
const WAITING_MAX: usize = 64 << 20;
/// How often such a stream looks for room.
const RETRY: Duration = Duration::from_millis(100);

type Revoked = Pin<Box<dyn Future<Output = Status> + Send>>;
type Next = Option<Result<Frame<Bytes>, Status>>;

/// An answer, as long as its client has its role.
pub(crate) struct Answer {
    body: Body,
    /// `None`: it was revoked.
    revoked: Option<Revoked>,
    /// What is left of a message.
    rest: Bytes,
    /// What comes after that, if the body has said it already.
    next: Option<Next>,
    call: Option<Arc<Share>>,
    /// Of the bytes of its messages, if they are counted.
    waiting: Option<Share>,
    retry: Option<Pin<Box<Sleep>>>,
}

/// A message with its shares. A connection may take all pieces of it long before it can send them: they have it until the last one is sent.
struct Message {
    bytes: Bytes,
    _call: Option<Arc<Share>>,
    _waiting: Option<Share>,
}

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Answer {
    /// `call`: of the running calls of its certificate. `waiting`: of the bytes that wait for it, if they are counted. They are, from now on,
    /// if the first message is there.
    pub(crate) fn new(
        body: Body,
        revoked: Revoked,
        call: Option<Arc<Share>>,
        waiting: Option<Share>,
    ) -> Self {
        let mut answer = Self {
            body,
            revoked: Some(revoked),
            rest: Bytes::new(),
            next: None,
            call,
            waiting,
            retry: None,
        };
        if answer.waiting.is_some() && !answer.body.is_end_stream() {
            // It is polled again with its own waker.
            let mut unwoken = Context::from_waker(std::task::Waker::noop());
            let _ = answer.fill(&mut unwoken, usize::MAX);
        }
        answer
    }

    /// Takes the next message from the body, if fewer than `most` bytes wait.
    fn fill(&mut self, cx: &mut Context<'_>, most: usize) -> Poll<()> {
        if self
            .waiting
            .as_ref()
            .is_some_and(|waiting| waiting.of_all() >= most)
        {
            let retry = self
                .retry
                .get_or_insert_with(|| Box::pin(tokio::time::sleep(RETRY)));
            if retry.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            self.retry = None;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let next = std::task::ready!(Pin::new(&mut self.body).poll_frame(cx));
        match next {
            Some(Ok(frame)) => match frame.into_data() {
                Ok(bytes) => {
                    let waiting = self.waiting.as_ref().map(|waiting| waiting.another(bytes.len()));
                    self.rest = Bytes::from_owner(Message {
                        bytes,
                        _call: self.call.clone(),
                        _waiting: waiting,
                    });
                }
                Err(trailers) => self.next = Some(Some(Ok(trailers))),
            },
            ends => self.next = Some(ends),
        }
        Poll::Ready(())
    }
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Next> {
        let Some(revoked) = &mut self.revoked else {
            return Poll::Ready(None);
        };
        let Poll::Ready(status) = revoked.as_mut().poll(cx) else {
            if self.rest.is_empty() && self.next.is_none() {
                std::task::ready!(self.fill(cx, WAITING_MAX));
            }
            let length = self.rest.len().min(PIECE);
            return Poll::Ready(match self.next.take() {
                Some(next) => next,
                None => Some(Ok(Frame::data(self.rest.split_to(length)))),
            });
        };
        tracing::info!(status = status.message(), "an answer is ended");
        self.revoked = None;
        self.body = Body::empty();
        let mut trailers = http::HeaderMap::new();
        status.add_header(&mut trailers)?;
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        let is_empty = self.rest.is_empty() && self.next.is_none();
        self.revoked.is_none() || is_empty && self.body.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http_body_util::{BodyExt, Full, StreamBody};
    use tokio::sync::mpsc;

    use super::*;
    use crate::shares::Shares;

    const NAMES: &[String] = &[String::new()];

    fn answer(body: Body, call: Option<Arc<Share>>, waiting: &Shares) -> Answer {
        let revoked = Box::pin(std::future::pending());
        Answer::new(body, revoked, call, Some(waiting.none(NAMES)))
    }

    /// A connection drops the body of an answer when it has taken the last frame, sent or not.
    #[tokio::test]
    async fn an_answer_holds_its_shares_until_its_last_piece_is_sent() {
        let (calls, waiting) = (Shares::default(), Shares::default());
        let message: Vec<u8> = (0..3 * PIECE + 5).map(|n| n as u8).collect();
        let body = Body::new(Full::new(Bytes::from(message.clone())));
        let mut answer = answer(body, calls.take(NAMES, 1).map(Arc::new), &waiting);
        let mut taken = Vec::new();
        while !answer.is_end_stream() {
            let frame = answer.frame().await.expect("a frame").expect("no error");
            taken.push(frame.into_data().expect("data"));
        }
        drop(answer);
        assert!(taken.iter().map(Bytes::len).eq([PIECE, PIECE, PIECE, 5]));
        assert_eq!(taken.concat(), message);
        while let Some(piece) = taken.pop() {
            assert!(calls.take(NAMES, 1).is_none(), "{} pieces before", taken.len());
            assert_eq!(waiting.none(NAMES).of_all(), message.len());
            drop(piece);
        }
        assert!(calls.take(NAMES, 1).is_some());
        assert_eq!(waiting.none(NAMES).of_all(), 0);
    }

    /// Nobody is refused anything in the middle of a stream: its source notices that nobody takes its messages.
    #[tokio::test(start_paused = true)]
    async fn a_stream_waits_while_much_waits_for_its_certificate() {
        let waiting = Shares::default();
        let (send, frames) = mpsc::unbounded_channel::<Result<Frame<Bytes>, Status>>();
        let frames = tokio_stream::wrappers::UnboundedReceiverStream::new(frames);
        let made = Arc::new(AtomicUsize::new(0));
        let counted = made.clone();
        let frames = tokio_stream::StreamExt::map(frames, move |frame| {
            counted.fetch_add(1, Ordering::Relaxed);
            frame
        });
        let mut stream = answer(Body::new(StreamBody::new(frames)), None, &waiting);
        let say = |data: &'static [u8]| send.send(Ok(Frame::data(Bytes::from_static(data)))).is_ok();
        let all = waiting.none(NAMES);
        assert!(say(b"one"));
        let first = stream.frame().await.expect("a frame").expect("no error");
        let first = first.into_data().expect("data");
        assert_eq!((&*first, all.of_all()), (&b"one"[..], 3));
        drop(first);
        assert_eq!(all.of_all(), 0, "it is sent");
        let unread = answer(Body::new(Full::new(vec![7; WAITING_MAX].into())), None, &waiting);
        assert!(say(b"two"));
        let late = tokio::time::timeout(10 * RETRY, stream.frame()).await;
        assert!(late.is_err(), "{late:?}");
        assert_eq!(
            made.load(Ordering::Relaxed),
            1,
            "the second is not made before there is room"
        );
        assert_eq!(all.of_all(), WAITING_MAX);
        drop(unread);
        let second = stream.frame().await.expect("a frame").expect("no error");
        assert_eq!(second.into_data().expect("data"), "two");
        let trailers = http::HeaderMap::new();
        assert!(send.send(Ok(Frame::trailers(trailers))).is_ok());
        assert!(
            stream
                .frame()
                .await
                .expect("a frame")
                .expect("no error")
                .is_trailers()
        );
        drop(send);
        assert!(stream.frame().await.is_none());
    }
}
