//! The network between hosts as this crate uses it: a communicator of this thread, or one of a runner.

use castnet_comm::{Collectives, CommError, Communicator};
use castnet_runner::Comm;

/// A communicator of some ranks. All its ranks make the same calls in the same order.
pub trait Network: Collectives + Sized {
    /// Makes a communicator of the ranks with `is_in`, in the order of their ranks. A collective of all ranks.
    fn part(&mut self, is_in: bool) -> Result<Option<Self>, CommError>;

    /// Progresses what this rank owes to others, such as acknowledgements.
    fn poll(&mut self) -> Result<(), CommError>;

    /// Waits until all ranks close it.
    fn close(self) -> Result<(), CommError>;
}

impl Network for Communicator {
    fn part(&mut self, is_in: bool) -> Result<Option<Self>, CommError> {
        self.split(is_in.then_some(0), 0)
    }

    fn poll(&mut self) -> Result<(), CommError> {
        Communicator::poll(self).map(drop)
    }

    fn close(self) -> Result<(), CommError> {
        self.close()
    }
}

impl Network for Comm {
    fn part(&mut self, is_in: bool) -> Result<Option<Self>, CommError> {
        self.split(is_in.then_some(0), 0)
    }

    fn poll(&mut self) -> Result<(), CommError> {
        Ok(())
    }

    fn close(self) -> Result<(), CommError> {
        self.close()
    }
}
