//! Tables: routes, Ethernet addresses, neighbours, next hops, and timers.

pub(crate) mod fdb;
pub(crate) mod fixed_map;
pub(crate) mod flows;
pub(crate) mod neighbours;
pub(crate) mod next_hops;
mod port_table;
pub(crate) mod published;
pub(crate) mod route;
pub(crate) mod source_guard;
pub(crate) mod wheel;
