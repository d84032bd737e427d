//! All of this crate's tests are one program, so that what they share is compiled once.

mod bulk;
mod chaos;
mod collective_failures;
mod collective_places;
mod collective_restarts;
mod collectives;
mod common;
mod contents;
mod durability;
mod etcd;
mod evict;
mod failover;
mod full_disk;
mod groups;
mod hosts;
mod lanes;
mod layouts;
mod leases;
mod plans;
mod refusals;
mod restarts;
mod routed;
mod store;
mod terms;
mod who;
mod written_off;
