//! All tests of this crate are one program, so that shared code is compiled once.

mod collective_faults;
mod edges;
mod faults;
mod forwarding;
mod lanes;
mod round_trip;
