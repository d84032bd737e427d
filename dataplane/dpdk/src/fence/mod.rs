//! The fence: all that is unsafe about DPDK is in here, and only safe types leave it.
#![allow(unsafe_code)]

pub(crate) mod device;
pub(crate) mod eal;
pub(crate) mod flow;
pub(crate) mod mbuf;
pub(crate) mod pool;
