//! All tests of this crate form one program, so that shared code is compiled once.

mod common;
mod conformance;
mod datagrams;
mod soft;
mod stream;
