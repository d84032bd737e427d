//! All of this crate's tests are one program, so that what they share is compiled once.

mod dependencies;
mod docs;
mod fences;
mod layers;
mod limit;
mod links;
mod programs;
mod rooms;
mod settings;
