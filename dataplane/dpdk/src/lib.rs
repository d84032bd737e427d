//! DPDK devices as ports.
//!
//! A `Runtime` is DPDK for one dataplane: the environment (EAL), which is started once per process, the buffers, and
//! the devices. Each thread has a `DpdkMemory`, in which its frames live as `Mbuf`s, and opens its ports there. A port
//! of another kind is opened behind a bridge that copies.
//!
//! Replicas copy short frames and, if the device can send frames of several segments, share the body of long ones. The
//! length threshold is measured when the first thread creates its memory. Without the feature `dpdk` the crate is empty
//! and needs nothing of DPDK.
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
pub use rss::{KEY_LENGTH, destination_key};
pub use runtime::{Config, Runtime};
pub use sharing::Thresholds;
