//! End-to-end tests: real processes over real interfaces in network namespaces.
//!
//! A [`Lab`] owns everything it makes, and takes it down when it is dropped: a folder, namespaces, veth pairs, processes.
//! Control goes over unix sockets in the folder, since these cross network namespaces; data goes over veth pairs.

mod content;
pub mod lab;
pub mod net;
pub mod process;

pub use lab::{Lab, Transfer};
