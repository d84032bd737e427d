//! All of this crate's tests are one program, so that what they share is compiled once.

mod anything;
mod batches;
mod collective;
mod collective_install;
mod common;
mod contributions;
mod feedback;
mod floods;
mod flow;
mod forwarding;
mod memory;
mod most;
mod moving;
mod replication;
mod routed;
mod shared_ports;
mod switching;
mod watching;
