//! Groups: their table, the contract of their kinds, and the kinds.
//!
//! A kind is given [`services::Services`] beside its group, and knows neither the engine nor other groups.

pub(crate) mod classify;
pub(crate) mod collective;
pub(crate) mod context;
pub(crate) mod forwarding;
pub(crate) mod headers;
pub(crate) mod install;
pub(crate) mod kind;
pub(crate) mod lookup;
pub(crate) mod multicast;
pub(crate) mod rewrite;
pub(crate) mod services;
pub(crate) mod table;
