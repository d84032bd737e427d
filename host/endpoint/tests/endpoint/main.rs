//! All of this crate's tests are one program, so that what they share is compiled once.

mod common;
mod golden;
mod lossy;
mod requester;
mod responder;
mod robust;
mod rxe;
