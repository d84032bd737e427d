//! Model checking of the very machines that ship.
//!
//! Two tiers of [`castnet_collective::Multicast`] machines with four hosts and three packets, whose PSNs wrap on the way,
//! are explored in every order that a network allows (Cepheus III.D; contract M1 to M3 and delivery). The hosts, the
//! networks and the oracle are of this crate; the switches are the code of the data plane, not a copy. There are two
//! networks:
//!
//! - [`bounded`]: rxe-like hosts; a bounded number of messages, anywhere, is lost, delivered twice or late; the source times
//!   out. Here all must be delivered in the end.
//! - [`hostile`]: whatever was ever sent, or could have been, may arrive at any time, again, or never, and switches may lose
//!   their state. Here M1 to M3 hold whatever the number of losses, duplicates, delays, retransmissions and restarts.
//!
//! [`runs`] lists what is explored: by the tests of this crate, and by `cargo run --release -p castnet-model -- full`.

pub mod bounded;
pub mod collectives;
pub mod fabric;
pub mod host;
pub mod hostile;
pub mod message;
pub mod plain;
pub mod report;
pub mod runs;
pub mod switch;
