//! All of this crate's tests are one program, so that what they share is compiled once.

mod access;
mod agent;
mod bulk;
mod collectives;
mod forwarding;
mod interfaces;
mod mrp;
mod next_hops;
mod one_checker;
mod routes;
mod state;
mod terms;
