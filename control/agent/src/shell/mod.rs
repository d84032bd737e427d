//! What connects the state with the world.

pub(crate) mod service;
pub(crate) mod taps;
