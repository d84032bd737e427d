//! What the agent knows and decides.

pub(crate) mod access;
pub(crate) mod events;
pub(crate) mod install;
pub(crate) mod mrp;
pub(crate) mod terms;
pub(crate) mod view;
