//! All tests of this crate are one program, so that shared code is compiled once.

mod anything;
mod batches;
mod collective;
mod collective_install;
mod collective_refusals;
mod common;
mod contributions;
mod feedback;
mod floods;
mod flow;
mod flows;
mod forwarding;
mod joins;
mod memory;
mod most;
mod moving;
mod rates;
mod registration;
mod repair;
mod replication;
mod routed;
mod shared_ports;
mod static_core;
mod static_core_batches;
mod switching;
mod watching;
