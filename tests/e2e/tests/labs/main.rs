//! All of this crate's tests are one program, so that what they share is compiled once.

mod bench;
mod co_working;
mod collective_kills;
mod collective_lab;
mod fallback;
mod flow_control;
mod lanes;
mod lost_switches;
mod members;
mod multicast;
mod netns_sh;
mod ranks;
mod registered;
mod registered_safeguard;
mod replicate;
mod routed_groups;
mod runtime;
mod safeguard;
mod shared_memory;
mod static_core;
mod static_rules;
mod switching;
mod turns;
