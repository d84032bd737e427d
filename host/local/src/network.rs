//! The network between hosts as this crate uses it: a communicator of this thread, or one of a runner.

use castnet_comm::machine::Collective;
use castnet_comm::{Buffers, CommError, Communicator, Element, Operation, Request};
use castnet_runner::{Comm, Pending};

/// A communicator of some ranks. All its ranks make the same calls in the same order.
pub trait Network: Sized {
    /// A collective that runs.
    type Pending<T: Element>;

    /// Number of this rank.
    fn rank(&self) -> u16;

    /// Number of ranks.
    fn size(&self) -> u16;

    /// Makes a communicator of the ranks with `is_in`, in the order of their ranks. A collective of all ranks.
    fn part(&mut self, is_in: bool) -> Result<Option<Self>, CommError>;

    /// Makes a collective and waits for its end.
    fn call<T: Element>(
        &mut self,
        collective: Collective,
        operation: Operation,
        buffers: Buffers<'_, T>,
    ) -> Result<(), CommError>;

    /// Starts a collective in place: any but ReduceScatter and AllGather.
    fn begin<T: Element>(
        &mut self,
        collective: Collective,
        operation: Operation,
        data: Vec<T>,
    ) -> Result<Self::Pending<T>, CommError>;

    /// Whether it has ended. Progresses all collectives.
    fn is_done<T: Element>(&mut self, pending: &Self::Pending<T>) -> Result<bool, CommError>;

    /// Waits for its end, and returns its memory.
    fn end<T: Element>(&mut self, pending: Self::Pending<T>) -> Result<Vec<T>, CommError>;

    /// Progresses what this rank owes to others, such as acknowledgements.
    fn poll(&mut self) -> Result<(), CommError>;

    /// Waits until all ranks close it.
    fn close(self) -> Result<(), CommError>;
}

impl Network for Communicator {
    type Pending<T: Element> = Request<T>;

    fn rank(&self) -> u16 {
        self.rank()
    }

    fn size(&self) -> u16 {
        self.size()
    }

    fn part(&mut self, is_in: bool) -> Result<Option<Self>, CommError> {
        self.split(is_in.then_some(0), 0)
    }

    fn call<T: Element>(
        &mut self,
        collective: Collective,
        operation: Operation,
        buffers: Buffers<'_, T>,
    ) -> Result<(), CommError> {
        Communicator::call(self, collective, operation, buffers)
    }

    fn begin<T: Element>(
        &mut self,
        collective: Collective,
        operation: Operation,
        data: Vec<T>,
    ) -> Result<Request<T>, CommError> {
        self.icall(collective, operation, data.into())
    }

    fn is_done<T: Element>(&mut self, pending: &Request<T>) -> Result<bool, CommError> {
        self.test(pending)
    }

    fn end<T: Element>(&mut self, pending: Request<T>) -> Result<Vec<T>, CommError> {
        self.wait(pending)
    }

    fn poll(&mut self) -> Result<(), CommError> {
        Communicator::poll(self).map(drop)
    }

    fn close(self) -> Result<(), CommError> {
        self.close()
    }
}

impl Network for Comm {
    type Pending<T: Element> = Pending<T>;

    fn rank(&self) -> u16 {
        self.rank()
    }

    fn size(&self) -> u16 {
        self.size()
    }

    fn part(&mut self, is_in: bool) -> Result<Option<Self>, CommError> {
        self.split(is_in.then_some(0), 0)
    }

    fn call<T: Element>(
        &mut self,
        collective: Collective,
        operation: Operation,
        buffers: Buffers<'_, T>,
    ) -> Result<(), CommError> {
        Comm::call(self, collective, operation, buffers)
    }

    fn begin<T: Element>(
        &mut self,
        collective: Collective,
        operation: Operation,
        data: Vec<T>,
    ) -> Result<Pending<T>, CommError> {
        Ok(self.icall(collective, operation, data.into()))
    }

    fn is_done<T: Element>(&mut self, pending: &Pending<T>) -> Result<bool, CommError> {
        Ok(pending.is_done())
    }

    fn end<T: Element>(&mut self, pending: Pending<T>) -> Result<Vec<T>, CommError> {
        pending.wait()
    }

    fn poll(&mut self) -> Result<(), CommError> {
        Ok(())
    }

    fn close(self) -> Result<(), CommError> {
        self.close()
    }
}
