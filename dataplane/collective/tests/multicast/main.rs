//! All of this crate's tests are one program, so that what they share is compiled once.

mod common;
mod congestion;
mod joins;
mod memory;
mod pitfalls;
mod repair;
mod switching;
mod tree;
mod twin;
