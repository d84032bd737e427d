//! What other threads see of a communicator.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::task::{Context, Poll};

use castnet_comm::machine::Collective;
use castnet_comm::{Buffers, Collectives, CommError, CommPath, Element, LentBytes, Operation, OwnedBuffers};

use crate::lend::{LentBuffers, lend};
use crate::queue::{Call, CommId, Command, Joined, Queue, Reply};
use crate::ticket::{Completer, Ticket};

/// A communicator of a [`crate::Runner`], for any thread. When all its clones are dropped, and its calls have ended, the
/// communicator is dropped.
#[derive(Clone, Debug)]
pub struct Comm(Arc<Handle>);

#[derive(Debug)]
struct Handle {
    id: CommId,
    rank: u16,
    size: u16,
    queue: Arc<Queue>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.queue.push(Command::Drop(self.id));
    }
}

impl Comm {
    pub(crate) fn new(joined: Joined, queue: Arc<Queue>) -> Self {
        let Joined { id, rank, size } = joined;
        Self(Arc::new(Handle {
            id,
            rank,
            size,
            queue,
        }))
    }

    /// The path that its collectives take. Waits for the runner.
    pub fn path(&self) -> Result<CommPath, CommError> {
        self.ask(|reply| Command::Path(self.0.id, reply))
    }

    /// As [`castnet_comm::Communicator::split`]. The collectives that run progress meanwhile; those that are called wait.
    pub fn split(&self, colour: Option<u32>, key: i32) -> Result<Option<Self>, CommError> {
        let joined = self.ask(|reply| Command::Split(self.0.id, colour, key, reply))?;
        Ok(joined.map(|joined| Self::new(joined, self.0.queue.clone())))
    }

    /// As [`castnet_comm::Communicator::dup`].
    pub fn dup(&self) -> Result<Self, CommError> {
        let joined = self.ask(|reply| Command::Dup(self.0.id, reply))?;
        Ok(Self::new(joined, self.0.queue.clone()))
    }

    /// As [`castnet_comm::Communicator::close`], after the calls that run. Later calls fail with [`CommError::Closed`].
    pub fn close(self) -> Result<(), CommError> {
        self.ask(|reply| Command::Close(self.0.id, reply))
    }

    fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, CommError> {
        let (reply, answer) = sync_channel(1);
        self.0.queue.push(command(reply));
        answer.recv().map_err(|_| CommError::Interrupted)?
    }

    fn submit<T: Element>(
        &self,
        collective: Collective,
        operation: Operation,
        memory: LentBytes,
        ticket: &Arc<Ticket>,
    ) {
        let call = Call {
            collective,
            operation,
            data_type: T::DATA_TYPE,
            memory,
        };
        let completer = Completer::new(ticket);
        self.0.queue.push(Command::Call(self.0.id, call, completer));
    }
}

impl Collectives for Comm {
    type Request<T: Element> = Pending<T>;

    fn rank(&self) -> u16 {
        self.0.rank
    }

    fn size(&self) -> u16 {
        self.0.size
    }

    fn call<T: Element>(
        &mut self,
        collective: Collective,
        operation: Operation,
        buffers: Buffers<'_, T>,
    ) -> Result<(), CommError> {
        lend(buffers, |memory, ticket| {
            self.submit::<T>(collective, operation, memory, ticket);
        })
    }

    fn icall<T: Element>(
        &mut self,
        collective: Collective,
        operation: Operation,
        buffers: OwnedBuffers<T>,
    ) -> Result<Pending<T>, CommError> {
        let submit = |memory, ticket: &_| self.submit::<T>(collective, operation, memory, ticket);
        Ok(Pending(Some(LentBuffers::new(buffers, submit))))
    }

    fn wait<T: Element>(&mut self, request: Pending<T>) -> Result<Vec<T>, CommError> {
        request.wait()
    }

    fn test<T: Element>(&mut self, request: &Pending<T>) -> Result<bool, CommError> {
        Ok(request.is_done())
    }
}

/// A collective that runs, also without a further call. Dropped before its end, it waits for it: its memory is in use. As
/// a future it returns what [`Pending::wait`] returns.
#[must_use = "dropped, it waits for the end of the collective"]
#[derive(Debug)]
pub struct Pending<T: Element>(Option<LentBuffers<T>>);

impl<T: Element> Pending<T> {
    /// Whether it has ended.
    pub fn is_done(&self) -> bool {
        self.0.as_ref().is_none_or(|lent| lent.ticket().is_done())
    }

    /// Waits for the end. Returns the output; in place, the whole buffer. The buffers are lost on an error.
    pub fn wait(mut self) -> Result<Vec<T>, CommError> {
        let lent = self.0.take().ok_or(CommError::Aborted)?;
        lent.ticket().wait()?;
        Ok(lent.into_output())
    }
}

impl<T: Element> Future for Pending<T> {
    type Output = Result<Vec<T>, CommError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(lent) = &self.0 else {
            return Poll::Ready(Err(CommError::Aborted));
        };
        match lent.ticket().poll(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(result) => {
                let output = self.0.take().map(LentBuffers::into_output).unwrap_or_default();
                Poll::Ready(result.map(|()| output))
            }
        }
    }
}
