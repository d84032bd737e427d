//! DPDK devices as ports.
//!
//! A `Runtime` is DPDK for one dataplane: the environment (EAL), started once in a process, the buffers, and the devices
//! that the dataplane's ports name. Each of its threads has a `DpdkMemory` of it, in which its frames live as
//! `Mbuf`s, and opens its ports there; a port of any other kind joins behind a bridge that copies.
//!
//! Replicas copy short frames, and share the body of long ones where the device can send frames of several segments. From
//! which length on is measured when the first thread has its memory.
//!
//! Built only with the feature `dpdk`; without it the crate is empty, and nothing of DPDK is needed.
#![cfg(feature = "dpdk")]

mod error;
mod fence;
mod flow;
mod memory;
mod port;
mod rss;
mod runtime;
mod sharing;

pub use error::{DpdkError, Reason};
pub use fence::eal::{Hugepages, version};
pub use fence::mbuf::Mbuf;
pub use memory::DpdkMemory;
pub use port::DpdkPort;
pub use rss::{KEY_LENGTH, destination_key, toeplitz};
pub use runtime::{Config, Runtime};
pub use sharing::Thresholds;
