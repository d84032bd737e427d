//! All unsafe code of this crate. Only safe types are visible outside.
#![allow(unsafe_code)]

pub(crate) mod device;
pub(crate) mod eal;
pub(crate) mod flow;
pub(crate) mod mbuf;
pub(crate) mod pool;
