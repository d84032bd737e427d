//! The six collectives, over whatever makes them.

use castnet_wire::control::Operation;

use crate::buffers::{Buffers, OwnedBuffers};
use crate::element::Element;
use crate::error::CommError;
use crate::machine::Collective;

/// One rank among others, with which it makes collectives: blocking ones on memory that is borrowed until they end, and
/// non-blocking ones (`i...`) on vectors that [`Collectives::wait`] returns. All ranks make the same ones in the same order.
///
/// # Errors
/// All calls: any [`CommError`]. All ranks fail, possibly with different errors.
pub trait Collectives {
    /// A running non-blocking collective. It has the memory until [`Collectives::wait`].
    type Request<T: Element>;

    /// Number of this rank.
    fn rank(&self) -> u16;

    /// Number of ranks.
    fn size(&self) -> u16;

    /// Makes any collective, and waits for its end. The methods for single collectives are this one. The operation is ignored
    /// where nothing is reduced, and the memory by a barrier.
    fn call<T: Element>(
        &mut self,
        collective: Collective,
        operation: Operation,
        buffers: Buffers<'_, T>,
    ) -> Result<(), CommError>;

    /// Non-blocking [`Collectives::call`].
    fn icall<T: Element>(
        &mut self,
        collective: Collective,
        operation: Operation,
        buffers: OwnedBuffers<T>,
    ) -> Result<Self::Request<T>, CommError>;

    /// Waits until a non-blocking collective of this communicator ends. Returns its output; in place, the whole buffer. The
    /// buffers are lost on an error.
    fn wait<T: Element>(&mut self, request: Self::Request<T>) -> Result<Vec<T>, CommError>;

    /// Whether `request` has ended. Does not wait, and progresses what progresses during calls only. Fails if the RNIC or
    /// group failed.
    fn test<T: Element>(&mut self, request: &Self::Request<T>) -> Result<bool, CommError>;

    /// Reduces the elements of all ranks, index by index, to all ranks. All ranks pass the same number of elements.
    fn allreduce<'a, T: Element>(
        &mut self,
        buffers: impl Into<Buffers<'a, T>>,
        operation: Operation,
    ) -> Result<(), CommError> {
        self.call::<T>(Collective::AllReduce, operation, buffers.into())
    }

    /// Reduces the elements of all ranks and returns the result at `root`. The other ranks may pass an input only; they return when all
    /// ranks have called and their data is sent. If it is lost for good, the next call fails.
    fn reduce<'a, T: Element>(
        &mut self,
        buffers: impl Into<Buffers<'a, T>>,
        operation: Operation,
        root: u16,
    ) -> Result<(), CommError> {
        self.call::<T>(Collective::Reduce { root }, operation, buffers.into())
    }

    /// Copies the buffer of `root` to all ranks. The root returns when all ranks have called and its data is sent. If it is lost for good,
    /// the next call fails.
    fn broadcast<T: Element>(&mut self, buffer: &mut [T], root: u16) -> Result<(), CommError> {
        self.call::<T>(Collective::Broadcast { root }, Operation::Sum, buffer.into())
    }

    /// Returns when all ranks have called it.
    fn barrier(&mut self) -> Result<(), CommError> {
        self.call::<u8>(Collective::Barrier, Operation::Sum, Buffers::InPlace(&mut []))
    }

    /// Reduces the elements of all ranks and returns block i of the result at rank i. The input has one block for
    /// each rank. In place, the result replaces this rank's block and the other blocks are unchanged.
    fn reduce_scatter<'a, T: Element>(
        &mut self,
        buffers: impl Into<Buffers<'a, T>>,
        operation: Operation,
    ) -> Result<(), CommError> {
        self.call::<T>(Collective::ReduceScatter, operation, buffers.into())
    }

    /// Collects the blocks of all ranks at every rank. The output has one block for each rank. In place, this rank's
    /// contribution is the block at its own index.
    fn allgather<'a, T: Element>(&mut self, buffers: impl Into<Buffers<'a, T>>) -> Result<(), CommError> {
        self.call::<T>(Collective::AllGather, Operation::Sum, buffers.into())
    }

    /// Non-blocking [`Collectives::allreduce`].
    fn iallreduce<T: Element>(
        &mut self,
        buffers: impl Into<OwnedBuffers<T>>,
        operation: Operation,
    ) -> Result<Self::Request<T>, CommError> {
        self.icall::<T>(Collective::AllReduce, operation, buffers.into())
    }

    /// Non-blocking [`Collectives::reduce`]. At all ranks but `root` the memory is returned unchanged.
    fn ireduce<T: Element>(
        &mut self,
        buffers: impl Into<OwnedBuffers<T>>,
        operation: Operation,
        root: u16,
    ) -> Result<Self::Request<T>, CommError> {
        self.icall::<T>(Collective::Reduce { root }, operation, buffers.into())
    }

    /// Non-blocking [`Collectives::broadcast`].
    fn ibroadcast<T: Element>(&mut self, buffer: Vec<T>, root: u16) -> Result<Self::Request<T>, CommError> {
        self.icall::<T>(Collective::Broadcast { root }, Operation::Sum, buffer.into())
    }

    /// Non-blocking [`Collectives::barrier`].
    fn ibarrier(&mut self) -> Result<Self::Request<u8>, CommError> {
        self.icall::<u8>(
            Collective::Barrier,
            Operation::Sum,
            OwnedBuffers::InPlace(Vec::new()),
        )
    }

    /// Non-blocking [`Collectives::reduce_scatter`].
    fn ireduce_scatter<T: Element>(
        &mut self,
        buffers: impl Into<OwnedBuffers<T>>,
        operation: Operation,
    ) -> Result<Self::Request<T>, CommError> {
        self.icall::<T>(Collective::ReduceScatter, operation, buffers.into())
    }

    /// Non-blocking [`Collectives::allgather`].
    fn iallgather<T: Element>(
        &mut self,
        buffers: impl Into<OwnedBuffers<T>>,
    ) -> Result<Self::Request<T>, CommError> {
        self.icall::<T>(Collective::AllGather, Operation::Sum, buffers.into())
    }
}
