//! All tests of this crate are one program, so that shared code is compiled once.

mod checksum;
mod common;
mod meaning;
mod twin;
