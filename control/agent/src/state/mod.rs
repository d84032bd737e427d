//! What the agent knows and decides. Handlers of [`core::Core`] make all changes, with the switch below them as a [`pipeline::Pipeline`], and time
//! is that of the call. Nothing here uses the shell, so a simulated switch can have an agent too.

pub(crate) mod access;
pub mod core;
pub mod events;
mod install;
pub mod mrp;
pub mod pipeline;
pub mod refusal;
mod terms;
pub(crate) mod view;
