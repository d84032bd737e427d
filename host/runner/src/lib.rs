//! A thread that owns an RNIC and the communicators over it. Other threads call collectives on their own memory.
//!
//! A [`castnet_comm::Communicator`] belongs to one thread, and its collectives progress only during calls. With a
//! [`Runner`] they progress always: a rank that computes still answers other ranks and switches, and a started collective
//! ends without a further call.
//!
//! - [`Runner::start`] starts the thread, which opens the RNIC. [`Runner::connect`] connects a rank of a job.
//! - [`Comm`] is the handle of a communicator. It can be cloned and sent to other threads.
//! - The blocking calls of [`castnet_comm::Collectives`] borrow memory and return when the collective has ended. The non-blocking
//!   ones (`i...`) take vectors and return a [`Pending`], which is also a future.
//!
//! Collectives of a job start in the order in which they are called, over all its communicators. All ranks must use the
//! same order, so threads that call at once must agree on it.
//!
//! ```no_run
//! use castnet_comm::{Collectives, CommConfig, CommError, Operation};
//! use castnet_rnic::{Rnic, RnicError};
//! use castnet_runner::Runner;
//!
//! fn sum(config: CommConfig, open: fn() -> Result<Box<dyn Rnic>, RnicError>) -> Result<(), CommError> {
//!     let runner = Runner::start(open).expect("an RNIC");
//!     let mut comm = runner.connect(config)?;
//!     let mut own = vec![1.0_f32; 1024];
//!     let other = comm.iallreduce(vec![2.0_f32; 1024], Operation::Sum)?;
//!     std::thread::scope(|s| s.spawn(|| comm.allreduce(&mut own, Operation::Sum)).join()).expect("no panic")?;
//!     let _sum: Vec<f32> = other.wait()?;
//!     comm.close()
//! }
//! ```

mod comm;
mod lend;
mod queue;
mod runner;
mod ticket;

pub use comm::{Comm, Pending};
pub use runner::{Runner, StartError};
