//! The poll-mode loop on a pinned core, and the dataplane that several of them make.
//!
//! [`Dataplane::start`] opens the ports, each in the thread of the worker that receives from it, and starts the workers.
//! A worker owns its engine, its side of every port and its groups, so a frame meets no lock:
//!
//! ```text
//!   ports i mod n --receive--> worker i --engine--> out batches --send--> all ports (own send side each)
//!                                 |  ^
//!        frames of other workers' |  | rings, one per pair     commands: bounded channel, replies travel back
//!        groups, and of no group  v  |                         tables:   whole snapshots, taken between batches
//!                              worker 0, j, ...
//! ```
//!
//! A group belongs to one worker, chosen at install, and [moved](Dataplane::move_group) with all its state where that worker is
//! overloaded or somebody asks for it. Whatever belongs to no group is worker 0's, which alone learns
//! Ethernet addresses and speaks ARP and LLDP.
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
mod keeper;
mod meter;
mod moves;
mod nursery;
mod outputs;
mod published;
mod report;
mod resolve;
mod round;
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
pub use castnet_port as port;
pub use castnet_rules as rules;
