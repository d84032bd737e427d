//! Multicast: the source's data to all receivers, their feedback gathered (Cepheus).

pub(crate) mod context;
mod core;
mod fast;
pub(crate) mod feedback;
pub(crate) mod frame;
pub(crate) mod replicate;
pub(crate) mod ring;
