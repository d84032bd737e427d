//! House rules as tests: who may depend on whom, where `unsafe` may live, and what a room may import. See `tests/`.
//! [`commands`] is for the tests of the programs: it finds their command lines in pages.

pub mod commands;
