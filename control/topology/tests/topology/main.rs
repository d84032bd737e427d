//! All of this crate's tests are one program, so that what they share is compiled once.

mod edges;
mod files;
mod shapes;
mod twin;
