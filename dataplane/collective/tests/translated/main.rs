//! Mode-II on whole trees: the machines between hosts that behave as Linux rxe does, with payloads that are sets of the
//! ranks that have contributed.

mod augmented;
mod boundaries;
mod check;
mod congestion;
mod edges;
mod host;
mod net;
mod paths;
mod policies;
mod program;
mod properties;
mod refusals;
mod resend;
mod rules;
mod silence;
mod single;
mod tree;
