//! Plans of known fabrics, and what holds for any plan in any fabric.

mod common;
mod deadlock;
mod golden;
mod mixed;
mod placement;
mod plans;
mod prefix;
mod properties;
mod random;
mod relays;
mod routed;
mod shufflecast;
mod steiner;
