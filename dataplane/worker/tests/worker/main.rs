//! All tests of this crate form one program, so that shared code is compiled once.

mod collectives;
mod common;
mod moving;
mod pfc;
mod switch;
mod workers;
