//! All of this crate's tests are one program, so that what they share is compiled once.

mod bench;
mod cli;
mod collective;
mod connections;
mod demo;
mod fabric;
mod live;
mod lives;
mod operators;
mod pki;
mod purge;
mod ranks;
