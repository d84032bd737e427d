//! What connects the state with the world: the gRPC service, links to switches, the writing of the journal, the election, and tasks. It decides
//! nothing about groups, but in which order their switches are called.

pub(crate) mod calls;
pub(crate) mod durable;
pub(crate) mod election;
pub(crate) mod exchange;
pub(crate) mod follow;
pub(crate) mod front;
pub(crate) mod health;
pub(crate) mod link;
pub(crate) mod plan;
pub(crate) mod service;
pub(crate) mod shared;
pub(crate) mod tasks;
pub(crate) mod watch;
pub(crate) mod write;
