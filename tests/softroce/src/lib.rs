//! Interoperability: Linux SoftRoCE hosts in virtual machines, verbs programs that know nothing of Castnet, and the
//! software RNIC meet at one `castnet switch` on the machines' tap devices.
//!
//! A [`Fabric`] is that switch with its controller; a [`Peer`] is a host that does what a test asks for, step by step; a
//! [`capture::Capture`] tells what passed the switch, and in which order. The tests are in `tests/interop`.

pub mod capture;
pub mod device;
pub mod events;
pub mod fabric;
pub mod peer;
pub mod protocol;
pub mod ranks;
pub mod raw;

pub use fabric::{Counts, Fabric};
pub use peer::{Connected, Peer};
