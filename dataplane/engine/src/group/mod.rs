//! Groups: their table, the contract of a kind, and the kinds. A kind gets [`services::Services`] beside its group, and has access
//! neither to the engine nor to other groups (contract C4).

pub(crate) mod classify;
pub(crate) mod collective;
pub(crate) mod context;
pub(crate) mod forwarding;
pub(crate) mod headers;
pub(crate) mod install;
pub(crate) mod kind;
pub(crate) mod lookup;
pub(crate) mod meter;
pub(crate) mod multicast;
pub(crate) mod rewrite;
pub(crate) mod services;
pub(crate) mod table;
pub(crate) mod verify;
