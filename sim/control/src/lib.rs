//! Control in virtual time: several controllers, agents over the real engine, etcd, clients, and a network between them that delays, holds
//! and cuts. Nothing has a socket, all of it is in one thread, and the clock stands still while anybody has something to do.
//!
//! The seed of a [`Scenario`] decides what happens and when. Which of several tasks goes on first at one moment does not follow from it, so a
//! fault that needs such an order comes back in some runs of its seed. The parts of a scenario are for other tests, too: [`etcd`] is a model of etcd, [`net`] has connections that
//! fail, [`store`] fails, too, and [`controllers`] runs several controllers.
#![forbid(unsafe_code)]

pub mod controllers;
mod dataplane;
pub mod etcd;
mod frames;
mod jobs;
mod log;
pub mod net;
mod panics;
pub mod random;
mod scenario;
pub mod store;
mod switch;

pub use scenario::{Outcome, Scenario};
