//! What connects the state with the world: the gRPC service, the threads for events, MRP, traces and captures, and the dataplane. It decides
//! nothing about groups; what it answers of the dataplane alone, it reads there.

pub(crate) mod events;
pub(crate) mod mrp;
pub(crate) mod pipeline;
pub(crate) mod service;
pub(crate) mod status;
pub(crate) mod taps;
