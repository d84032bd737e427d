//! All of this crate's tests are one program, so that what they share is compiled once.

mod collective_faults;
mod faults;
mod forwarding;
mod round_trip;
