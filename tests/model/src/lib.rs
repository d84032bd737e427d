//! Model checking of the protocol machines that the data plane uses.
//!
//! The checker explores two tiers of [`castnet_collective::Multicast`] machines with four hosts and three packets, whose PSNs
//! wrap, in every order of events that a network allows (Cepheus III.D; contract M1 to M3 and delivery). Switches may repair
//! losses from rings as long as the window or shorter; then a switch may tick at any time. A switch may evict a path at any
//! time, and receivers may send CNPs (M4). Several members may send, in turn or at once (M5). The hosts, the networks and the
//! oracle belong to this crate. The switches are the code of the data plane, not a copy. There are two
//! networks:
//!
//! - [`bounded`]: hosts that behave like rxe, and a bounded number of faults. Any message may be lost, duplicated or delayed;
//!   the source times out. Everything must be delivered in the end.
//! - [`hostile`]: every message that was or could have been sent may arrive at any time, repeatedly, or never. Switches may
//!   lose their state. M1 to M3 must hold for any number of losses, duplicates, delays, retransmissions and restarts.
//!
//! [`collectives`] does the same for [`castnet_collective::Translated`], and [`terminated`] for [`castnet_collective::Terminated`]. [`runs`] lists the explorations: those of the tests of
//! this crate, and those of `cargo run --release -p castnet-model -- full`.

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
pub mod terminated;
