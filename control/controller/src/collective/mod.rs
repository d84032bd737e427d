//! Collective groups: their life, beside that of multicast groups.
//!
//! Ranks come by a call that stands for as long as they are in (`requests`): it is their lease. When all are in, the
//! group is placed (`planning`) and installed (`driver`); from then on what happens to a rank or to a switch decides
//! ([`lifecycle`] has the whole table). A generation of rules serves one set of connections: ranks that join again get a
//! new one.

pub(crate) mod detour;
pub(crate) mod driver;
pub(crate) mod exchange;
pub mod lifecycle;
pub(crate) mod links;
pub(crate) mod planning;
pub mod record;
pub(crate) mod reports;
pub(crate) mod requests;
pub(crate) mod state;
pub(crate) mod view;
