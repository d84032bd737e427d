//! All of this crate's tests are one program, so that what they share is compiled once.

mod anything;
mod collective;
mod common;
mod feedback;
mod floods;
mod flow;
mod memory;
mod moving;
mod replication;
mod switching;
