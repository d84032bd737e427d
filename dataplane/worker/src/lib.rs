//! The poll-mode workers of a switch, and the [`Dataplane`] that they form.
//!
//! A worker is one thread, pinned to a core if so configured. It owns an engine, its groups, and its own send and
//! receive side of the ports, so no frame waits for a lock. The main types are [`Dataplane`], [`DataplaneConfig`],
//! [`Counters`] and [`EventStream`].
//!
//! [`Dataplane::start`] starts the workers. Each worker opens its side of all ports in its own thread:
//!
//! ```text
//!   ports i mod n --receive--> worker i --engine--> out batches --send--> all ports (own send side each)
//!                                 |  ^
//!        frames of other workers' |  | rings, one per pair     commands: bounded channel, replies travel back
//!        groups, and of no group  v  |                         tables:   whole snapshots, taken between batches
//!                              worker 0, j, ...
//! ```
//!
//! Each group belongs to one worker, and [moves](Dataplane::move_group) with all its state when that one is overloaded.
//! Worker 0 processes the frames that belong to no group. Only it learns Ethernet addresses and runs ARP and LLDP. See
//! docs/workers.md.
//!
//! ```
//! use castnet_port::{MemLink, MemLinkConfig};
//! use castnet_wire::PortId;
//! use castnet_worker::{Dataplane, DataplaneConfig, PortConfig};
//!
//! let (end, _host) = MemLink::pair(&MemLinkConfig::default());
//! let port = PortConfig::new(PortId::default(), "p0", end);
//! let dataplane = Dataplane::start(DataplaneConfig::new("leaf1", vec![port]))?;
//! assert_eq!(dataplane.ports()?.len(), 1);
//! dataplane.stop();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod balance;
mod balancer;
mod command;
mod config;
mod control;
mod dataplane;
mod error;
mod events;
mod hold;
mod housekeeping;
mod interfaces;
mod iteration;
mod meter;
mod moves;
mod outputs;
mod published;
mod report;
mod resolve;
mod ring;
mod startup;
mod steering;
mod sum;
mod tap;
mod worker;

pub use balance::Balance;
pub use config::{DataplaneConfig, Idle, PortConfig, WorkerConfig};
pub use control::{Installed, Installer};
pub use dataplane::Dataplane;
pub use error::{InstallError, MoveError, RouteError, StartError, Stopped, TapError};
pub use events::{EventStream, MoveCause, SwitchEvent, SwitchEventKind};
pub use meter::{Clocks, Occupancy};
pub use moves::Moved;
pub use report::{
    Counters, GroupReport, InstalledGroup, KindReport, PortReport, PortTotals, Ring, RingReport,
    WorkerCounters, WorkerReport, WorkerStats,
};
pub use tap::TapStream;

pub use castnet_engine as engine;
pub use castnet_pfc::{PfcClassReport, PfcCounters, copy_pfc_counters};
pub use castnet_port as port;
pub use castnet_rules as rules;
