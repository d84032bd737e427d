//! The match-action pipeline over batches of frames: parse, classify, run the group's machine, carry its effects out on
//! bytes, send. Frames of no group are switched as an Ethernet switch would, or routed where routes are installed.
//!
//! The engine does no I/O and knows no clock. It is driven by whoever owns the ports:
//!
//! 1. [`Engine::process`] for each batch that a port received: it drains the batch into the [`Egress`];
//! 2. [`Engine::handle_timeout`] when the time of [`Engine::poll_timeout`] has come;
//! 3. between batches [`Engine::install`], [`Engine::remove`], [`Engine::set_tables`]; and draining of
//!    [`Engine::pop_event`], [`Engine::pop_trace`], [`Engine::pop_captured`].
//!
//! All tables are sized in [`Engine::new`], and a [`Group`] brings its memory along; from then on a frame costs no
//! allocation (contract S2). Each frame ends in exactly one [`Verdict`], and that is counted (S1).
#![forbid(unsafe_code)]

mod arp;
mod classify;
mod collective;
mod config;
mod context;
mod counters;
mod dry_run;
mod egress;
mod engine;
mod ethernet;
mod events;
mod fast;
mod fdb;
mod feedback;
mod fixed_map;
mod forwarding;
mod group;
mod groups;
mod limit;
mod lldp;
mod lookup;
mod moving;
mod multicast;
mod neighbours;
mod next_hops;
mod pipeline;
pub mod plain;
mod port_set;
mod port_table;
mod replicate;
mod route;
mod tables;
mod tap;
mod trace;
mod wheel;

pub use castnet_collective::translated::Refusal;
pub use castnet_collective::{EndpointId, EndpointSet};
pub use classify::destination;
pub use collective::{Collective, CollectiveGroupStatus};
pub use config::{ConfigError, EngineConfig, PortInfo};
pub use context::{Context, ContextStatus};
pub use counters::{
    CollectiveCounters, CongestionCounters, CountersSnapshot, EndpointCounters, EndpointSnapshot,
    ForwardingCounters, ForwardingEndpoint, GroupSnapshot, KindSnapshot, MulticastCounters, PathCounters,
    PathSnapshot, PortCounters, PortTraffic, Totals,
};
pub use dry_run::DryRun;
pub use egress::Egress;
pub use engine::Engine;
pub use events::{EngineEvent, EventKind};
pub use fdb::FdbEntry;
pub use forwarding::{Forwarding, ForwardingStatus};
pub use group::{Group, GroupStatus, InstallError, port_count};
pub use moving::Expected;
pub use neighbours::{NAME_MAX, Name, Neighbour, Said};
pub use port_set::PortSet;
pub use route::{Flow, Hop};
pub use tables::{Members, Owners, Tables};
pub use tap::{Captured, FrameFilter, Seen, TAPS_MAX, TapId};
pub use trace::{SentFrame, Stage, Step, Trace, Verdict};
