//! All of this crate's tests are one program, so that what they share is compiled once.

mod bench;
mod collective_lab;
mod collectives;
mod control;
mod fabric;
mod flow_control;
mod lanes;
mod members;
mod moving;
mod multicast;
mod netns_sh;
mod programs;
mod ranks;
mod rates;
mod registered;
mod replicate;
mod restart;
mod routed_groups;
mod routed_sums;
mod runner;
mod runtime;
mod shared_memory;
mod splits;
mod static_rules;
mod switching;
mod turns;
