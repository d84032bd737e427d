//! Multicast: the source's data to all receivers, their feedback gathered (Cepheus).

mod classify;
pub(crate) mod context;
mod fast;
pub(crate) mod feedback;
pub(crate) mod frame;
pub(crate) mod replicate;
