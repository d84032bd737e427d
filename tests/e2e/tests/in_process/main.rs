//! Switches, agents and a controller in this process, over memory links, and ranks as threads with software RNICs: what needs threads and
//! gRPC, but no namespaces and no processes.

mod collectives;
mod control;
mod fabric;
mod programs;
mod runner;
mod splits;
