//! Counters, events, traces and captures.

mod addresses;
pub(crate) mod counters;
pub(crate) mod events;
pub(crate) mod neighbour;
pub(crate) mod tap;
pub(crate) mod trace;
