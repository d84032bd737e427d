//! All tests of this crate form one program, so that shared code is compiled once.

mod common;
mod congestion;
mod edges;
mod golden;
mod kept;
mod lent;
mod lossy;
mod pace;
mod probes;
mod requester;
mod responder;
mod robust;
mod rxe;
