//! All tests of this crate form one program, so that shared code is compiled once.

mod collectives;
mod common;
mod moving;
mod neighbours;
mod pfc;
mod switch;
mod workers;
